//! What can be chosen per primitive. Everything is checked when the primitive is built.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use crate::backend::Kind;
use crate::error::Error;

/// The shortest lease: below it, one slow round trip would end it.
pub const MIN_LEASE: Duration = Duration::from_millis(100);
/// The shortest maximum hold time: below it, a grant could be over before it is handed out.
const MIN_HOLD: Duration = Duration::from_millis(10);
/// The longest lease: a store remembers the last token of an idle name for a day, and must not forget it
/// while a lease lasts.
pub const MAX_LEASE: Duration = Duration::from_secs(24 * 60 * 60);

/// Options of a [`DistMutex`](crate::DistMutex) or a [`ReentrantLock`](crate::ReentrantLock).
///
/// | option | default | why |
/// |---|---|---|
/// | [`lease`](Self::lease) | 30 s | long enough for a pause or a short outage, short enough to wait for |
/// | [`renewal_period`](Self::renewal_period) | a third of the lease | two renewals may fail before the third is too late |
/// | [`max_hold`](Self::max_hold) | none | only the application knows how long its work may take |
/// | [`prefix`](Self::prefix) | `lock:` | what most libraries use |
/// | [`local_handover`](Self::local_handover) | on | tasks of one process need not ask the store for each other's lock |
///
/// ```
/// use std::time::Duration;
/// use leasehold::{Client, MutexOptions};
///
/// let options = MutexOptions::new().lease(Duration::from_secs(10)).max_hold(Duration::from_secs(60));
/// let mutex = Client::memory().mutex_with("machine:42", options)?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "options do nothing until they are given to `Client::mutex_with` or `Client::reentrant_lock_with`"]
pub struct MutexOptions {
    hold: HoldOptions,
    local_handover: bool,
}

impl Default for MutexOptions {
    fn default() -> Self {
        Self { hold: HoldOptions::default(), local_handover: true }
    }
}

impl MutexOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// How long the store keeps the lock without hearing from its holder: the longest time that a dead holder
    /// blocks the others. From 100 ms to 24 h; fractions of a millisecond are cut off.
    ///
    /// Default: 30 s.
    pub const fn lease(mut self, lease: Duration) -> Self {
        self.hold.lease = lease;
        self
    }

    /// How long after each confirmation the lease is renewed, or up to a hundredth of that earlier, to go together with
    /// other leases of the client. Longer than zero and shorter than the lease; above a half of it, a single renewal that
    /// goes astray costs the lease. A period that would leave no time for a renewal at all is cut to nine tenths of the
    /// time the lease is trusted.
    ///
    /// Default: a third of the lease.
    pub const fn renewal_period(mut self, period: Duration) -> Self {
        self.hold.renewal_period = Some(period);
        self
    }

    /// The longest time one lease may last, from its grant. When it is over, the lease is released and the `lost` of its
    /// guards fires with [`HeldTooLong`](crate::LossReason::HeldTooLong), however alive the holder is. Coming in again
    /// does not prolong it. 10 ms or more.
    ///
    /// Default: none.
    pub const fn max_hold(mut self, hold: Duration) -> Self {
        self.hold.max_hold = Some(hold);
        self
    }

    /// What stands before the name in the store's keys; may be empty. Two locks exclude each other if
    /// prefix and name together are the same.
    ///
    /// Default: `lock:`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.hold.prefix = Some(prefix.into());
        self
    }

    /// Whether a task of this client that leaves the lock may pass it on to the next one of this client, without asking the
    /// store: at most 15 times in a row and for at most 30 ms, then other clients have their turn. It makes a lock that many
    /// tasks of a process want some ten times faster, and costs nothing otherwise.
    ///
    /// Every hold has a token of its own, greater than the one before. Tasks of one client are served in order of arrival,
    /// and so are clients; but a task may be served before one of another client that came first. A `release` that passed
    /// the lock on was not confirmed by the store; and of the tasks of a client only the first is seen in line by `inspect`.
    ///
    /// Switch it off where strict order among all tasks of all processes is the point. Mutexes that differ in this or any
    /// other option but the prefix do not pass the lock on to each other. Without effect for reentrant locks.
    ///
    /// Default: on.
    pub const fn local_handover(mut self, allowed: bool) -> Self {
        self.local_handover = allowed;
        self
    }

    pub(crate) fn key_prefix(&self) -> &str {
        self.hold.prefix.as_deref().unwrap_or("lock:")
    }

    pub(crate) fn validate(&self) -> Result<Settings, Error> {
        Ok(Settings::new(self.hold.terms()?, self.local_handover))
    }
}

/// Options of a [`CountingSemaphore`](crate::CountingSemaphore) or a [`FairSemaphore`](crate::FairSemaphore).
///
/// | option | default | why |
/// |---|---|---|
/// | [`lease`](Self::lease) | 30 s | long enough for a pause or a short outage, short enough to wait for |
/// | [`renewal_period`](Self::renewal_period) | a third of the lease | two renewals may fail before the third is too late |
/// | [`max_hold`](Self::max_hold) | none | only the application knows how long its work may take |
/// | [`prefix`](Self::prefix) | `semaphore:` or `fair-semaphore:` | the two kinds do not mix under one key |
/// | [`local_handover`](Self::local_handover) | off | tokens tell the order of all grants |
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "options do nothing until they are given to a client"]
pub struct SemaphoreOptions {
    hold: HoldOptions,
    local_handover: bool,
}

impl SemaphoreOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// How long the store keeps permits without hearing from their holder: the longest time that a dead holder keeps
    /// them from the others. From 100 ms to 24 h; fractions of a millisecond are cut off.
    ///
    /// Default: 30 s.
    pub const fn lease(mut self, lease: Duration) -> Self {
        self.hold.lease = lease;
        self
    }

    /// How long after each confirmation the lease is renewed; bounds and effects as for
    /// [`MutexOptions::renewal_period`].
    ///
    /// Default: a third of the lease.
    pub const fn renewal_period(mut self, period: Duration) -> Self {
        self.hold.renewal_period = Some(period);
        self
    }

    /// The longest time one lease may last, from its grant; then its permits go back and the `lost` of its guards fires
    /// with [`HeldTooLong`](crate::LossReason::HeldTooLong). 10 ms or more.
    ///
    /// Default: none.
    pub const fn max_hold(mut self, hold: Duration) -> Self {
        self.hold.max_hold = Some(hold);
        self
    }

    /// What stands before the name in the store's keys; may be empty. Do not use one prefix for both kinds of semaphore: of
    /// a name that they have in common they would share the permits, and neither order would hold. Nor for semaphores and
    /// locks: such a name is refused to one of them ([`StoreRefused`](crate::Error::StoreRefused)), on Redis for up to a day
    /// after the other was last used.
    ///
    /// Default: `semaphore:` for a [`CountingSemaphore`](crate::CountingSemaphore), `fair-semaphore:` for a
    /// [`FairSemaphore`](crate::FairSemaphore).
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.hold.prefix = Some(prefix.into());
        self
    }

    /// Whether a task of this client that returns a permit of a [`CountingSemaphore`](crate::CountingSemaphore) may pass it on
    /// to the next one of this client that waits for one permit, without asking the store: at most 15 times in a row and for
    /// at most 30 ms, then others have their turn. It makes a semaphore that many tasks of a process want several times faster.
    ///
    /// What it costs: a hold to which a permit was passed has the token after that of the hold before it, unlike all others,
    /// but not greater than those that the store has granted meanwhile, so tokens do not tell the order of all grants any
    /// more. A task may be served before one of another client that came first. Tasks of one client are served in order of
    /// arrival, but for the first of them that wait, one more than the limit: those have places in the store's line, which may
    /// come up in another order. Only those are seen there by `inspect`. A `release` that passed the permit on was not confirmed
    /// by the store. A limit that shrinks counts from the next turn on.
    ///
    /// A [`FairSemaphore`](crate::FairSemaphore) is served in strict order, and refuses this.
    ///
    /// Default: off.
    pub const fn local_handover(mut self, allowed: bool) -> Self {
        self.local_handover = allowed;
        self
    }

    pub(crate) fn key_prefix(&self, kind: Kind) -> &str {
        let default = if kind == Kind::Fair { "fair-semaphore:" } else { "semaphore:" };
        self.hold.prefix.as_deref().unwrap_or(default)
    }

    pub(crate) fn validate(&self, kind: Kind) -> Result<Settings, Error> {
        let local_handover = self.local_handover;
        if local_handover && kind == Kind::Fair {
            return Err(Error::invalid(
                "local hand-over",
                "a fair semaphore is served in order of arrival at the store",
            ));
        }
        Ok(Settings::new(self.hold.terms()?, local_handover))
    }
}

/// What can be chosen for every primitive.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HoldOptions {
    lease: Duration,
    renewal_period: Option<Duration>,
    max_hold: Option<Duration>,
    /// `None` for the primitive's own.
    prefix: Option<String>,
}

impl Default for HoldOptions {
    fn default() -> Self {
        Self { lease: Duration::from_secs(30), renewal_period: None, max_hold: None, prefix: None }
    }
}

impl HoldOptions {
    fn terms(&self) -> Result<Terms, Error> {
        let lease = whole_milliseconds(self.lease);
        if lease < MIN_LEASE || lease > MAX_LEASE {
            let why = format!("{lease:?} is outside {MIN_LEASE:?} to {MAX_LEASE:?}");
            return Err(Error::invalid("lease", why));
        }
        let renewal_period = self.renewal_period.unwrap_or(lease / 3);
        if renewal_period.is_zero() || renewal_period >= lease {
            let why = format!("{renewal_period:?} is not between zero and the lease of {lease:?}");
            return Err(Error::invalid("renewal period", why));
        }
        if let Some(hold) = self.max_hold.filter(|hold| *hold < MIN_HOLD) {
            return Err(Error::invalid("maximum hold time", format!("{hold:?} is below {MIN_HOLD:?}")));
        }
        Ok(Terms { ttl: lease, renewal_period, max_hold: self.max_hold })
    }
}

/// What the store counts in.
const fn whole_milliseconds(duration: Duration) -> Duration {
    Duration::new(duration.as_secs(), duration.subsec_millis() * 1_000_000)
}

/// The durations a lease is held under, as validated by the options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Terms {
    pub(crate) ttl: Duration,
    pub(crate) renewal_period: Duration,
    pub(crate) max_hold: Option<Duration>,
}

/// Options after validation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) terms: Terms,
    pub(crate) local_handover: bool,
    /// Tells these from others. Made here, since every request of a task needs it that shares a lock with others.
    pub(crate) fingerprint: u64,
}

impl Settings {
    fn new(terms: Terms, local_handover: bool) -> Self {
        let mut hasher = DefaultHasher::new();
        (terms, local_handover).hash(&mut hasher);
        Self { terms, local_handover, fingerprint: hasher.finish() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn refusal(options: &MutexOptions) -> String {
        options.validate().unwrap_err().to_string()
    }

    #[test]
    fn the_defaults_are_as_documented() {
        let settings = MutexOptions::new().validate().unwrap();
        assert_eq!(settings.terms.ttl, ms(30_000));
        assert_eq!(settings.terms.renewal_period, ms(10_000));
        assert_eq!(settings.terms.max_hold, None);
        assert_eq!(MutexOptions::new().key_prefix(), "lock:");
        assert_eq!(SemaphoreOptions::new().validate(Kind::Fair).unwrap().terms, settings.terms);
        assert_eq!(SemaphoreOptions::new().key_prefix(Kind::Counting), "semaphore:");
        assert_eq!(SemaphoreOptions::new().key_prefix(Kind::Fair), "fair-semaphore:");
    }

    #[test]
    fn leases_outside_their_bounds_are_refused_with_the_bounds() {
        assert!(refusal(&MutexOptions::new().lease(ms(99))).contains("100ms"));
        assert!(MutexOptions::new().lease(ms(100)).validate().is_ok());
        assert!(MutexOptions::new().lease(MAX_LEASE).validate().is_ok());
        assert!(refusal(&MutexOptions::new().lease(MAX_LEASE + ms(1))).contains("86400s"));
    }

    #[test]
    fn a_lease_is_cut_to_the_whole_milliseconds_that_the_store_counts() {
        let settings = MutexOptions::new().lease(Duration::from_micros(100_999)).validate().unwrap();
        assert_eq!(settings.terms.ttl, ms(100));
    }

    #[test]
    fn a_renewal_period_not_below_the_lease_is_refused() {
        let options = MutexOptions::new().lease(ms(1000));
        assert!(options.clone().renewal_period(ms(999)).validate().is_ok());
        assert!(refusal(&options.clone().renewal_period(ms(1000))).contains("renewal period"));
        assert!(options.renewal_period(Duration::ZERO).validate().is_err());
    }

    #[test]
    fn durations_of_nothing_are_refused() {
        assert!(MutexOptions::new().max_hold(ms(9)).validate().is_err());
        assert!(MutexOptions::new().max_hold(ms(10)).validate().is_ok());
    }
}
