//! Errors, classified by what the caller can do about them.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::contention::Contention;
use crate::fence::FencingToken;

/// All errors of this crate.
///
/// The text of an error says all that is known, including the causes, so [`source`](std::error::Error::source) returns
/// none of them: a report that prints the whole chain says nothing twice. The causes are in the fields.
///
/// Contention is not an error: `try_lock` returns `None`, and only calls with a time limit can time out.
///
/// ```
/// # use std::time::Duration;
/// # use leasehold::Error;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::memory();
/// match client.mutex("machine:42")?.lock_timeout(Duration::from_secs(5)).await {
///     Ok(guard) => guard.release().await?,
///     Err(Error::TimedOut { .. }) => println!("409: somebody else is at it"),
///     Err(error) if error.is_retryable() => println!("503: {error}"),
///     Err(error) => return Err(error),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// An argument is invalid. Nothing was changed, and the same call cannot succeed.
    #[non_exhaustive]
    InvalidArgument {
        /// Which argument: `name`, `ttl`, `url`, ...
        argument: &'static str,
        /// What is wrong with it. Passwords in URLs are omitted.
        reason: String,
    },

    /// The resource did not become available within the given time. Try again later.
    #[non_exhaustive]
    TimedOut {
        /// The resource.
        name: String,
        /// How long the call waited.
        waited: Duration,
        /// Whether the lock's key has no expiry: another client has left it behind, or holds it until the key is
        /// deleted.
        holder_never_expires: bool,
        /// Who held it and how many waited, half a second before the time was up, or less. `None` if the store was not
        /// asked, or did not answer in time: a call does not wait for longer because of this, and a client does not ask
        /// for more than a few of its calls at once.
        contention: Option<Box<Contention>>,
    },

    /// The lease ended before its guard was released: another client may hold the resource by now. Stop, and do not
    /// rely on anything written since the last renewal unless the resource checks tokens.
    #[non_exhaustive]
    Lost {
        /// The resource.
        name: String,
        /// The token of the lease that was lost.
        token: FencingToken,
        /// Why it was lost.
        reason: LossReason,
        /// Why the last renewal failed, if the reason is [`StoreRefused`](LossReason::StoreRefused) or
        /// [`StoreUnreachable`](LossReason::StoreUnreachable): for instance what the store said.
        detail: Option<String>,
    },

    /// The limit of a semaphore's handle is not the one in force; nothing was granted. Create all handles with the
    /// same limit, change the limit in force with `resize`, or let handles do something else about it, with
    /// [`SemaphoreOptions::on_other_limit`](crate::SemaphoreOptions::on_other_limit).
    #[non_exhaustive]
    LimitDiffers {
        /// The semaphore.
        name: String,
        /// The limit of this handle.
        stated: u32,
        /// The limit that is in force.
        in_force: u32,
    },

    /// The store did not answer in time, is unreachable, or declines for now (it is starting, switching over, or has no
    /// memory left, for instance). Anything it may have granted is released in the background, or expires within one
    /// TTL. Try again later.
    #[non_exhaustive]
    StoreUnavailable {
        /// The resource, if the operation concerns one.
        name: Option<String>,
        /// The operation that failed: `connect`, `acquire`, `release`, ...
        operation: &'static str,
        /// The store's address, without password.
        store: String,
        /// What the store's client reported.
        source: BackendError,
    },

    /// The store refused the request: wrong type of key, missing permission. Retrying does not help until the cause is
    /// fixed.
    #[non_exhaustive]
    StoreRefused {
        /// The resource, if the operation concerns one.
        name: Option<String>,
        /// The operation that failed: `connect`, `acquire`, `release`, ...
        operation: &'static str,
        /// The store's address, without password.
        store: String,
        /// What the store said.
        source: BackendError,
    },

    /// This store, or this build of the crate, does not support the request.
    #[non_exhaustive]
    Unsupported {
        /// The store's address or scheme, without password.
        store: String,
        /// The request, and the feature or store that it would need.
        reason: String,
    },

    /// The process has forked since the client was made, and this is the child, which has a copy of the parent's
    /// client: its requests would go through the parent's connections. The parent keeps its leases. Create a new client
    /// after a fork.
    #[non_exhaustive]
    Forked {
        /// The resource, if the operation concerns one.
        name: Option<String>,
        /// The operation that failed.
        operation: &'static str,
        /// The id of the process in which the client was made.
        origin: u32,
        /// The id of this process.
        process: u32,
    },

    /// The client was shut down.
    #[non_exhaustive]
    Closed {
        /// The resource, if the operation concerns one.
        name: Option<String>,
        /// The operation that failed.
        operation: &'static str,
    },
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidArgument { argument, reason } => write!(f, "invalid {argument}: {reason}"),
            Self::TimedOut { name, waited, holder_never_expires, contention } => {
                write!(f, "timed out after {waited:?} waiting for `{name}`")?;
                match contention {
                    _ if *holder_never_expires => f.write_str(NEVER_EXPIRES),
                    Some(contention) => write!(f, ", {contention}"),
                    None => Ok(()),
                }
            }
            Self::Lost { name, token, reason, detail } => {
                write!(f, "the lease on `{name}` (token {token}) was lost: {reason}{}", said(detail))
            }
            Self::LimitDiffers { name, stated, in_force } => {
                write!(
                    f,
                    "`{name}`: this handle has a limit of {stated}, but the limit in force is {in_force} (to use that one or to \
                     replace it, choose `Follow` or `Set` with `SemaphoreOptions::on_other_limit`)"
                )
            }
            Self::StoreUnavailable { name, operation, store, source } => {
                write!(f, "{operation}{} at {store}: store unavailable: {source}", about(name))
            }
            Self::StoreRefused { name, operation, store, source } => {
                write!(f, "{operation}{} at {store}: refused by the store: {source}", about(name))
            }
            Self::Unsupported { store, reason } => write!(f, "not supported by {store}: {reason}"),
            Self::Forked { name, operation, origin, process } => write!(
                f,
                "{operation}{}: the process id has changed from {origin} to {process}, because the process has forked since this \
                 client was made: make a new client in each process",
                about(name)
            ),
            Self::Closed { name, operation } => {
                write!(f, "{operation}{}: the client is shut down", about(name))
            }
        }
    }
}

/// Why a lease was lost.
///
/// ```
/// # use leasehold::LossReason;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::memory();
/// let mutex = client.mutex("machine:42")?;
/// let guard = mutex.lock().await?;
/// mutex.force_release().await?;
/// assert_eq!(guard.lost().await, LossReason::Revoked);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// The lease expired: the holder was paused for too long.
    Expired,
    /// The store no longer has the lease, although it should not have expired yet: its key was deleted, or the store
    /// lost its data.
    Missing,
    /// The store reports another holder, or something else is stored under the key.
    Taken,
    /// No renewal was confirmed before the lease expired, because the store did not answer.
    StoreUnreachable,
    /// The store refused to renew the lease, which then expired: a missing permission, or no memory left.
    StoreRefused,
    /// It was released with `force_release`.
    Revoked,
    /// The maximum hold time was reached.
    HeldTooLong,
    /// The client was shut down.
    ClientClosed,
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "it expired",
            Self::Missing => "the store no longer has it, although it should not have expired yet",
            Self::Taken => "the store reports another holder",
            Self::StoreUnreachable => "no renewal was confirmed in time",
            Self::StoreRefused => "the store refused to renew it",
            Self::Revoked => "it was released by force",
            Self::HeldTooLong => "the maximum hold time was reached",
            Self::ClientClosed => "the client was shut down",
        })
    }
}

/// The errors that a store reports. The text includes the cause: see [`Error`].
///
/// ```
/// use leasehold::BackendError;
///
/// // What a store of your own reports when its connection broke before it had sent anything.
/// let error = BackendError::NotSent { source: "connection reset".into() };
/// assert!(error.is_transient());
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum BackendError {
    /// The request definitely did not reach the store.
    NotSent {
        /// The cause.
        source: Cause,
    },
    /// The store is known to be unreachable, and the backend is configured to fail at once instead of retrying. Nothing
    /// was sent.
    FailedFast {
        /// The cause.
        source: Cause,
    },
    /// The request may or may not have been executed. It can be sent again.
    Unanswered {
        /// The cause.
        source: Cause,
    },
    /// Something else is stored under the key: not a lock where one was requested, or not a semaphore.
    WrongType {
        /// What the store said.
        source: Cause,
    },
    /// The store declined for now, and nothing was executed: it has no memory or no disk space left, is starting or
    /// switching over to another server, or has too many clients. The same request can succeed within seconds.
    RefusedForNow {
        /// What the store said.
        source: Cause,
    },
    /// The store answered with an error. Repeating the request does not help until the cause is fixed.
    Refused {
        /// What the store said.
        source: Cause,
    },
    /// The limit of the request is not the one in force.
    LimitDiffers {
        /// The limit of the request.
        stated: u32,
        /// The limit in force.
        in_force: u32,
    },
    /// More permits were requested than the limit in force allows.
    AboveLimit {
        /// How many were requested.
        permits: u32,
        /// The limit in force.
        limit: u32,
    },
    /// The store does not support this.
    Unsupported {
        /// The request, and what the store would need for it.
        reason: String,
    },
    /// Fewer nodes of a store on several servers answered than are needed. The request can be retried.
    NoQuorum {
        /// How many nodes are needed.
        needed: usize,
        /// How many there are.
        of: usize,
        /// The nodes that failed, and why.
        nodes: Vec<NodeFailure>,
    },
    /// The backend was closed.
    Closed,
}

impl std::error::Error for BackendError {}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSent { source } => write!(f, "the request was not sent: {source}"),
            Self::FailedFast { source } | Self::Refused { source } => write!(f, "{source}"),
            Self::Unanswered { source } => write!(f, "no answer; the outcome is unknown: {source}"),
            Self::WrongType { source } => write!(f, "something else is stored under the key: {source}"),
            Self::RefusedForNow { source } => write!(f, "declined for now: {source}"),
            Self::LimitDiffers { stated, in_force } => {
                write!(f, "the request has a limit of {stated}, but the limit in force is {in_force}")
            }
            Self::AboveLimit { permits, limit } => {
                write!(f, "{permits} permits were requested, but the limit is {limit}")
            }
            Self::Unsupported { reason } => f.write_str(reason),
            Self::NoQuorum { needed, of, nodes } => {
                write!(f, "no quorum: {needed} of {of} nodes are needed{}", each(nodes))
            }
            Self::Closed => f.write_str("the backend is closed"),
        }
    }
}

/// A node of a store on several servers, and why it failed.
///
/// ```
/// use leasehold::{BackendError, NodeFailure};
///
/// let failure = NodeFailure::new("10.0.0.7:6379", BackendError::NotSent { source: "refused".into() });
/// assert_eq!(failure.store, "10.0.0.7:6379");
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeFailure {
    /// Its address, without password.
    pub store: String,
    /// What happened.
    pub error: BackendError,
}

/// Any error of a store's client.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What caused a [`BackendError`]: any error, shared by all requests that it concerns.
///
/// It is made with `into()`, from whatever can become a [`BoxError`]: an error, a `String`, a `&str`.
///
/// ```
/// let cause = leasehold::Cause::from(std::io::Error::other("connection reset"));
/// assert_eq!(cause.to_string(), "connection reset");
/// ```
#[derive(Clone)]
pub struct Cause(Arc<dyn std::error::Error + Send + Sync>);

impl<E: Into<BoxError>> From<E> for Cause {
    fn from(error: E) -> Self {
        Self(error.into().into())
    }
}

impl Deref for Cause {
    type Target = dyn std::error::Error + Send + Sync;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl BackendError {
    /// A semaphore cannot be released by force.
    pub(crate) fn many_holders() -> Self {
        Self::Unsupported { reason: "releasing a semaphore by force: it has many holders".to_owned() }
    }

    /// The store has no index of its keys, or none that is used.
    pub(crate) fn no_list() -> Self {
        Self::Unsupported { reason: "listing what is held: this store has no list of its keys".to_owned() }
    }

    /// Whether sending the same request again may help.
    ///
    /// ```
    /// assert!(!leasehold::BackendError::Closed.is_transient());
    /// ```
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::NotSent { .. }
                | Self::Unanswered { .. }
                | Self::NoQuorum { .. }
                | Self::RefusedForNow { .. }
        )
    }

    /// Whether it is certain that nothing has left this process.
    pub(crate) fn was_never_sent(&self) -> bool {
        match self {
            Self::NotSent { .. } | Self::FailedFast { .. } => true,
            // The others have answered.
            Self::NoQuorum { of, nodes, .. } => {
                nodes.len() == *of && nodes.iter().all(|node| node.error.was_never_sent())
            }
            _ => false,
        }
    }

    /// Whether the store has answered, and declined.
    pub(crate) const fn is_refusal(&self) -> bool {
        matches!(self, Self::RefusedForNow { .. } | Self::Refused { .. } | Self::WrongType { .. })
    }
}

impl NodeFailure {
    /// A node at the address `store`, which failed with this error.
    #[must_use]
    pub fn new(store: impl Into<String>, error: BackendError) -> Self {
        Self { store: store.into(), error }
    }
}

impl Error {
    /// Whether the same call can succeed later on the same client without any intervention: the resource was taken, the
    /// store was unavailable, or the lease was lost. After a loss, acquire the resource again and begin the work again
    /// from the start.
    ///
    /// ```
    /// # let client = leasehold::Client::memory();
    /// let error = client.mutex("").expect_err("a name is not empty");
    /// assert!(!error.is_retryable());
    /// ```
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::TimedOut { .. } | Self::StoreUnavailable { .. } | Self::Lost { .. })
    }

    pub(crate) fn invalid(argument: &'static str, reason: impl Into<String>) -> Self {
        Self::InvalidArgument { argument, reason: reason.into() }
    }

    pub(crate) fn permits_above(permits: u32, limit: u32) -> Self {
        Self::invalid("permits", format!("{permits} can never be granted: the limit is {limit}"))
    }

    /// Adds the name, the operation and the store to a backend's error.
    pub(crate) fn from_backend(
        source: BackendError,
        operation: &'static str,
        name: Option<&str>,
        store: &str,
    ) -> Self {
        let (name, store) = (name.map(str::to_owned), store.to_owned());
        match source {
            BackendError::NotSent { .. }
            | BackendError::RefusedForNow { .. }
            | BackendError::Unanswered { .. }
            | BackendError::FailedFast { .. }
            | BackendError::NoQuorum { .. } => Self::StoreUnavailable { name, operation, store, source },
            BackendError::WrongType { .. } | BackendError::Refused { .. } => {
                Self::StoreRefused { name, operation, store, source }
            }
            BackendError::LimitDiffers { stated, in_force } => {
                Self::LimitDiffers { name: name.unwrap_or_default(), stated, in_force }
            }
            BackendError::AboveLimit { permits, limit } => Self::permits_above(permits, limit),
            BackendError::Unsupported { reason } => Self::Unsupported { store, reason },
            BackendError::Closed => Self::Closed { name, operation },
        }
    }
}

const NEVER_EXPIRES: &str = ": its key has no expiry, so the lock stays taken until that key is deleted (or repaired: see \
     `RedisBuilder::repair_keys_without_expiry`)";

/// `: address: reason; address: reason`, or nothing.
fn each(nodes: &[NodeFailure]) -> String {
    let mut text = String::new();
    for (n, node) in nodes.iter().enumerate() {
        text.push_str(if n == 0 { ": " } else { "; " });
        text.push_str(&format!("{}: {}", node.store, node.error));
    }
    text
}

/// `: what the store said`, or nothing.
fn said(detail: &Option<String>) -> String {
    detail.as_ref().map(|detail| format!(": {detail}")).unwrap_or_default()
}

/// A space and the name in backquotes, or nothing.
fn about(name: &Option<String>) -> String {
    name.as_ref().map(|name| format!(" `{name}`")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    const CAUSE: &str = "the cause";

    /// One of each kind, with [`CAUSE`] if it has a cause.
    fn all_of_a_store() -> Vec<BackendError> {
        let source = || CAUSE.into();
        let refused = || BackendError::Refused { source: source() };
        vec![
            BackendError::NotSent { source: source() },
            BackendError::FailedFast { source: source() },
            BackendError::Unanswered { source: source() },
            BackendError::WrongType { source: source() },
            BackendError::RefusedForNow { source: source() },
            refused(),
            BackendError::LimitDiffers { stated: 1, in_force: 2 },
            BackendError::AboveLimit { permits: 2, limit: 1 },
            BackendError::Unsupported { reason: CAUSE.to_owned() },
            BackendError::NoQuorum { needed: 2, of: 3, nodes: vec![NodeFailure::new("node", refused())] },
            BackendError::Closed,
        ]
    }

    /// A report that prints an error and then all its sources, such as that of `anyhow`, says each cause once.
    #[test]
    fn each_cause_is_said_once() {
        for inner in all_of_a_store() {
            let causes = inner.to_string().matches(CAUSE).count();
            assert!(causes <= 1 && inner.source().is_none(), "{inner:?}: {inner}");
            let outer = Error::from_backend(inner, "acquire", Some("a"), "store");
            assert_eq!(outer.to_string().matches(CAUSE).count(), causes, "{outer:?}: {outer}");
            assert!(outer.source().is_none(), "{outer:?}");
        }
    }

    #[test]
    fn a_request_was_never_sent_if_no_node_can_have_received_it() {
        let not_sent = || NodeFailure::new("node", BackendError::NotSent { source: CAUSE.into() });
        let unanswered = NodeFailure::new("node", BackendError::Unanswered { source: CAUSE.into() });
        for (nodes, expected) in [
            (vec![not_sent(), not_sent(), not_sent()], true),
            // The third one has answered.
            (vec![not_sent(), not_sent()], false),
            (vec![not_sent(), not_sent(), unanswered], false),
        ] {
            assert_eq!(BackendError::NoQuorum { needed: 2, of: 3, nodes }.was_never_sent(), expected);
        }
    }
}
