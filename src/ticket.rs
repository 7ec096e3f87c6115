//! Tickets: a hold on its way from one process to another, as a secret text.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Kind, LeaseId, LeaseRef, MAX_TTL, MIN_TTL, Resource};
use crate::client::Client;
use crate::error::Error;
use crate::fence::FencingToken;
use crate::guard::Guard;
use crate::lease::HandedOver;
use crate::options::Settings;

/// The first field, which names the form of the others.
const FORM: &str = "leasehold1";
/// How many fields there are.
const FIELDS: usize = 12;

/// A lock or permits on the way to another process: made by [`Guard::into_ticket`], and turned into a guard again by
/// [`Client::resume`].
///
/// While it is on the way nobody renews the lease, which therefore ends unless the ticket is resumed within its TTL
/// (counted from the last renewal, so two thirds of the TTL are left unless renewals have failed or the renewal period was
/// changed). The label and the note of the lease remain those of the process that acquired it, for as long as the store has
/// them. A ticket that is not
/// resumed needs no clean-up.
///
/// # It is a secret
///
/// Whoever has the text can keep the lease or end it, so `Debug` and `Display` only print what is held, and under which
/// token; [`expose`](Self::expose) returns the text, which [`FromStr`] reads.
///
/// # It is for one process
///
/// A client refuses to resume a ticket twice. The store does not notice if two processes resume the same ticket: **both
/// hold the lock then**, under the same token, until one of them releases it; the other is notified of that at its next
/// renewal. So send it to one process only. The first process no longer holds anything once the ticket is made, even if
/// the ticket gets lost.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// use leasehold::{Client, LeaseTicket};
///
/// let first = Client::connect("memory:shared").await?;
/// let guard = first.mutex("machine:42")?.lock().await?;
/// let token = guard.token();
/// let secret = guard.into_ticket()?.expose();
///
/// // Usually in another process, to which the text was sent.
/// let second = Client::connect("memory:shared").await?;
/// let ticket: LeaseTicket = secret.parse()?;
/// let guard = second.resume(&ticket).await?; // renewed from here on
/// assert_eq!(guard.token(), token);
/// guard.release().await?;
/// assert!(second.resume(&ticket).await.is_err(), "it is over");
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq)]
#[must_use = "nobody renews the lease until the ticket is resumed"]
pub struct LeaseTicket(HandedOver);

impl Guard {
    /// Gives up this guard without releasing it, and returns a ticket by which another process can go on holding. From
    /// here on, this client neither renews nor releases the lease, and passes it on to nobody; [`ended`](Self::ended)
    /// completes. No I/O.
    ///
    /// Permits of a semaphore and a [read lock](crate::RwLock) are handed over as they are. The hold of a reentrant
    /// lock keeps its owner, which re-enters it where the ticket is resumed.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let guard = client.mutex("machine:42")?.lock().await?;
    /// let secret = guard.into_ticket()?.expose(); // for a message to another process
    /// let ticket = secret.parse::<leasehold::LeaseTicket>()?;
    /// assert_eq!(ticket.name(), "machine:42");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`] if the lease was lost.
    /// * [`Error::InvalidArgument`] if other guards share the lease (of an owner that has re-entered, or split off):
    ///   they would lose it.
    /// * [`Error::Unsupported`] if a lease does not outlive its client on this store (ZooKeeper and Redlock).
    ///
    /// In the last two cases this guard is released, as if it had been dropped.
    ///
    /// # Requests that are still on their way
    ///
    /// A request by which this client has asked for the lease may reach the store late, when the lease has ended where
    /// the ticket was resumed. It then takes the lock, or a place in the queue, for nobody. As soon as its answer or
    /// its grant arrives here, this client releases that. If it never arrives, because this client has been shut down
    /// or has lost its connection, that blocks others for one TTL at most; so does, for the owner of a reentrant lock,
    /// a request that the store carries out while that owner holds it again. On Redis there is no such request after a
    /// connection was lost: before another one is used, the server closes the earlier one (if the user may use `CLIENT
    /// KILL`). On no store does a late request affect who holds the lock: it takes only what is free.
    #[doc(alias = "handover")]
    #[doc(alias = "transfer")]
    #[doc(alias = "forget")]
    pub fn into_ticket(mut self) -> Result<LeaseTicket, Error> {
        let handed = self.hand_over()?;
        Ok(LeaseTicket(handed))
    }
}

impl Client {
    /// Goes on holding what another process has [handed over](Guard::into_ticket): renews the lease at once, and from
    /// then on, with the TTL and the other options that it was acquired with. Its maximum hold time starts again.
    ///
    /// If the lease is [released by force](crate::DistMutex::force_release), this client is notified at its next
    /// renewal.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let guard = client.mutex("machine:42")?.lock().await?;
    /// let token = guard.token();
    /// let ticket = guard.into_ticket()?;
    /// assert_eq!(client.resume(&ticket).await?.token(), token); // usually in another process
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`] if the lease has ended: the ticket was resumed too late, or the lease was released elsewhere.
    /// * [`Error::InvalidArgument`] if this client has resumed the ticket before and still holds it.
    /// * [`Error::StoreUnavailable`] if the store has not answered for 4 s. The ticket can be resumed until its lease
    ///   ends.
    /// * [`Error::Unsupported`] as for [`Guard::into_ticket`]; [`Error::StoreRefused`] and [`Error::Closed`].
    ///
    /// # Panics
    ///
    /// When it is polled outside a tokio runtime, or in one without timers.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind. The ticket can be resumed until its lease ends, which may have been
    /// renewed.
    pub async fn resume(&self, ticket: &LeaseTicket) -> Result<Guard, Error> {
        let hold = self.engine().resume(&ticket.0).await?;
        Ok(Guard::new(Arc::clone(self.engine()), hold, ticket.0.permits))
    }
}

impl LeaseTicket {
    /// The name of the lock or semaphore, without prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.lease.resource.name()
    }

    /// The fencing token, which stays the same.
    #[must_use]
    pub const fn token(&self) -> FencingToken {
        self.0.token
    }

    /// The TTL of the lease: the ticket must be resumed within that time after the last renewal.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        self.0.terms.ttl
    }

    /// The secret text, in ASCII without spaces, that `parse` turns into a ticket again.
    #[must_use]
    pub fn expose(&self) -> String {
        let HandedOver { lease: LeaseRef { id, resource }, token, permits, owner, terms } = &self.0;
        let (kind, key) = (resource.kind.as_str(), hex(&resource.key));
        let (ttl, renewal) = (terms.ttl.as_millis(), nanos(terms.renewal_period));
        let max_hold = terms.max_hold.map_or(0, nanos);
        let owner = owner.as_deref().map(hex).unwrap_or_default();
        let prefix = resource.prefix().len();
        format!(
            "{FORM}.{kind}.{token}.{permits}.{ttl}.{renewal}.{max_hold}.{prefix}.{key}.{owner}.{id}",
            token = token.get()
        )
    }

    fn read(text: &str) -> Option<Self> {
        let fields: Vec<_> = text.split('.').collect();
        let [FORM, kind, token, permits, ttl, renewal, max_hold, prefix, key, owner, client, number] =
            <[&str; FIELDS]>::try_from(fields).ok()?
        else {
            return None;
        };
        let kind = Kind::parse(kind)?;
        let resource = Resource::split_at(&unhex(key)?, prefix.parse().ok()?, kind)?;
        let id = LeaseId::parse(&format!("{client}.{number}"))?;
        let ttl = Duration::from_millis(ttl.parse().ok()?);
        let renewal = Duration::from_nanos(renewal.parse().ok()?);
        let max_hold = Duration::from_nanos(max_hold.parse().ok()?);
        let permits = permits.parse().ok()?;
        let owner = unhex(owner)?;
        let is_valid = (MIN_TTL..=MAX_TTL).contains(&ttl)
            && !renewal.is_zero()
            && renewal < ttl
            && !resource.name().is_empty()
            && permits > 0
            && (permits == 1 || kind.is_semaphore())
            && owner.is_empty() == (kind != Kind::Reentrant);
        let max_hold = Some(max_hold).filter(|hold| !hold.is_zero());
        let token = FencingToken::new(token.parse().ok()?);
        let owner = Some(owner.into()).filter(|_| kind == Kind::Reentrant);
        let terms = Settings::new(ttl, renewal, max_hold, false).share();
        let lease = LeaseRef::new(id, resource);
        is_valid.then_some(Self(HandedOver { lease, token, permits, owner, terms }))
    }
}

/// Half a millennium at most.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(digits: &str) -> Option<String> {
    let pairs = digits.as_bytes().chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?;
        u8::from_str_radix(pair, 16).ok()
    });
    String::from_utf8(pairs.collect::<Option<_>>()?).ok()
}

impl FromStr for LeaseTicket {
    type Err = Error;

    /// Reads the text that [`expose`](Self::expose) returns. The error does not contain it.
    fn from_str(text: &str) -> Result<Self, Error> {
        Self::read(text.trim()).ok_or_else(|| Error::invalid("ticket", "it is not the text of a ticket"))
    }
}

impl fmt::Display for LeaseTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a ticket for `{}` under token {}", self.name(), self.token())
    }
}

impl fmt::Debug for LeaseTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseTicket")
            .field("name", &self.name())
            .field("token", &self.token().get())
            .field("permits", &self.0.permits)
            .finish_non_exhaustive()
    }
}
