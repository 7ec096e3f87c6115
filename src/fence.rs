//! Fencing tokens, and the check that a protected resource performs with them.
//!
//! A lease can end while its holder is paused and unaware of it. Only the resource itself can then reject the late
//! write, and it needs a fencing token to do so: every grant carries a number greater than all earlier ones for the
//! same name, and the resource rejects anything older than the newest it has seen. The idea goes back to Lampson's
//! generation numbers and was popularized by Kleppmann's "How to do distributed locking".

use std::fmt;
use std::num::TryFromIntError;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that increases with every grant of one name.
///
/// ```
/// # use leasehold::FencingToken;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = leasehold::Client::memory();
/// let token = client.mutex("machine:42")?.lock().await?.token();
/// let stored = i64::from(token); // UPDATE … SET token = $1 WHERE token <= $1
/// assert_eq!(FencingToken::try_from(stored)?, token);
/// # Ok(()) }
/// ```
///
/// Tokens of different names are not comparable. A new token is the store's time in microseconds or the next number
/// after all tokens already reserved, whichever is greater, so tokens keep increasing after the store has lost its
/// data. (On etcd, the number of changes takes the place of the time, so tokens start again if the data is lost.) They
/// fit into an `i64`, and into a JavaScript number until the year 2255.
///
/// For a database, convert a token with `i64::from`, and a number that is read back with `FencingToken::try_from`. With
/// the feature `serde`, a token is (de)serialized as its number.
#[doc(alias = "epoch")]
#[doc(alias = "generation")]
#[doc(alias = "sequencer")]
#[doc(alias = "fence")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct FencingToken(u64);

impl FencingToken {
    /// Creates a token with the given value, as read back from a protected resource.
    ///
    /// ```
    /// use leasehold::FencingToken;
    ///
    /// assert!(FencingToken::new(8) > FencingToken::new(7));
    /// ```
    #[must_use]
    pub const fn new(value: u64) -> Self {
        Self(value)
    }

    /// The token's value.
    ///
    /// ```
    /// assert_eq!(leasehold::FencingToken::new(7).get(), 7);
    /// ```
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> Self {
        token.0
    }
}

impl From<u64> for FencingToken {
    fn from(value: u64) -> Self {
        Self(value)
    }
}

impl From<FencingToken> for i64 {
    /// Stores only issue tokens that fit. Any other becomes the greatest number, so that the order is kept.
    fn from(token: FencingToken) -> Self {
        Self::try_from(token.0).unwrap_or(Self::MAX)
    }
}

impl TryFrom<i64> for FencingToken {
    type Error = TryFromIntError;

    /// Fails for a negative number.
    fn try_from(value: i64) -> Result<Self, TryFromIntError> {
        u64::try_from(value).map(Self)
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The check at a protected resource: accepts the newest token seen so far and any newer one.
///
/// ```
/// use leasehold::{Fence, FencingToken};
///
/// let fence = Fence::new();
/// let (older, newer) = (FencingToken::new(7), FencingToken::new(8));
/// assert!(fence.admit(newer).is_ok());
/// assert!(fence.admit(newer).is_ok(), "one holder may write many times");
/// assert!(fence.admit(older).is_err(), "an earlier holder is rejected");
/// ```
///
/// A resource that is read, modified and written back must check on both the read and the write: if only the write is
/// checked, an earlier holder may still write between the next holder's read and write.
///
/// The check and the write must be one atomic step at the resource. With several writers in one process, call
/// [`admit`](Fence::admit) under the lock that guards the write; in a database, compare in the same statement.
#[derive(Debug, Default)]
pub struct Fence {
    newest: AtomicU64,
}

impl Fence {
    /// Creates a fence that has not seen any token.
    ///
    /// ```
    /// let fence = leasehold::Fence::new();
    /// assert!(fence.admit(leasehold::FencingToken::new(1)).is_ok());
    /// ```
    #[must_use]
    pub const fn new() -> Self {
        Self { newest: AtomicU64::new(0) }
    }

    /// Accepts `token` and remembers it, unless a newer one has been accepted before.
    ///
    /// ```
    /// use leasehold::{Fence, FencingToken};
    ///
    /// let fence = Fence::new();
    /// fence.admit(FencingToken::new(8))?;
    /// assert!(fence.admit(FencingToken::new(7)).is_err());
    /// # Ok::<(), leasehold::StaleToken>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`StaleToken`] if a newer token has been accepted: the lock has been acquired again since.
    pub fn admit(&self, token: FencingToken) -> Result<(), StaleToken> {
        let newest = self.newest.fetch_max(token.0, Ordering::AcqRel);
        if token.0 < newest {
            return Err(StaleToken::new(token, FencingToken(newest)));
        }
        Ok(())
    }
}

/// The error for a fencing token that is older than one the resource has already seen.
///
/// ```
/// use leasehold::{Fence, FencingToken};
///
/// let fence = Fence::new();
/// fence.admit(FencingToken::new(8))?;
/// let stale = fence.admit(FencingToken::new(7)).expect_err("it is older");
/// assert_eq!((stale.offered().get(), stale.newest().get()), (7, 8));
/// # Ok::<(), leasehold::StaleToken>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("fencing token {offered} is stale: {newest} has been seen")]
pub struct StaleToken {
    offered: FencingToken,
    newest: FencingToken,
}

impl StaleToken {
    /// Creates the error for `offered` at a resource that has seen `newest`, for resources with a check of their own.
    ///
    /// ```
    /// use leasehold::{FencingToken, StaleToken};
    ///
    /// let stale = StaleToken::new(FencingToken::new(7), FencingToken::new(8)); // of a check of your own
    /// assert_eq!(stale.to_string(), "fencing token 7 is stale: 8 has been seen");
    /// ```
    #[must_use]
    pub const fn new(offered: FencingToken, newest: FencingToken) -> Self {
        Self { offered, newest }
    }

    /// The token that was rejected.
    #[must_use]
    pub const fn offered(&self) -> FencingToken {
        self.offered
    }

    /// The newest token the resource had seen.
    #[must_use]
    pub const fn newest(&self) -> FencingToken {
        self.newest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_numbers_of_a_database() {
        let token = FencingToken::new(1_700_000_000_000_000);
        assert_eq!(FencingToken::try_from(i64::from(token)), Ok(token));
        assert!(FencingToken::try_from(-1_i64).is_err());
        assert!(i64::from(FencingToken::new(u64::MAX)) > i64::from(token));
    }

    #[cfg(feature = "serde")]
    #[test]
    fn a_token_is_serialized_as_a_number() {
        let token = FencingToken::new(7);
        assert_eq!(serde_json::to_string(&token).unwrap(), "7");
        assert_eq!(serde_json::from_str::<FencingToken>("7").unwrap(), token);
    }

    #[test]
    fn a_refused_token_leaves_the_fence_where_it_was() {
        let fence = Fence::new();
        fence.admit(FencingToken::new(5)).unwrap();
        let stale = fence.admit(FencingToken::new(4)).unwrap_err();
        assert_eq!((stale.offered().get(), stale.newest().get()), (4, 5));
        fence.admit(FencingToken::new(5)).unwrap();
    }
}
