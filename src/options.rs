//! Options of the primitives. They are validated when the primitive is created.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Capabilities, Kind, MAX_TTL, MIN_TTL};
use crate::error::Error;
use crate::origin::PerProcess;

/// The prefix of the keys of mutexes and reentrant locks, unless another one is set.
pub(crate) const DEFAULT_LOCK_PREFIX: &str = "lock:";
/// How long a lease lasts if nothing else is said.
pub(crate) const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// What the keys of locks begin with that serve another purpose than mutexes: see [`MutexOptions::within`].
pub(crate) mod within {
    pub(crate) const RW_LOCK: &str = "rwlock:";
    pub(crate) const ELECTION: &str = "election:";
    /// Of a schedule: whoever runs a tick holds it.
    pub(crate) const TICK_RUN: &str = "once:run:";
    /// Of a schedule: the mark of a tick that need not be run.
    pub(crate) const TICK_DONE: &str = "once:done:";
}

/// The shortest maximum hold time: below it, a grant could be over before it is handed out.
const MIN_HOLD: Duration = Duration::from_millis(10);

/// Options of a [`DistMutex`](crate::DistMutex) or a [`ReentrantLock`](crate::ReentrantLock).
///
/// | option | default | why |
/// |---|---|---|
/// | [`ttl`](Self::ttl) | 30 s | long enough to survive a pause or a short outage, short enough to wait for |
/// | [`renewal_period`](Self::renewal_period) | a third of the TTL | two renewals in a row can fail |
/// | [`max_hold`](Self::max_hold) | none | only the application knows how long its work takes |
/// | [`prefix`](Self::prefix) | `lock:` | used by most libraries |
/// | [`local_handover`](Self::local_handover) | on | tasks of one process need not ask the store to hand over a lock |
///
/// ```
/// use std::time::Duration;
/// use leasehold::{Client, MutexOptions};
///
/// let options = MutexOptions::new().ttl(Duration::from_secs(10)).max_hold(Duration::from_secs(60));
/// let mutex = Client::memory().mutex_with("machine:42", options)?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize, serde::Serialize),
    serde(try_from = "crate::config::MutexFields", into = "crate::config::MutexFields")
)]
#[must_use = "options do nothing until they are passed to `Client::mutex_with` or `Client::reentrant_lock_with`"]
pub struct MutexOptions {
    pub(crate) hold: HoldOptions,
    pub(crate) local_handover: bool,
}

impl Default for MutexOptions {
    fn default() -> Self {
        Self { hold: HoldOptions::default(), local_handover: true }
    }
}

impl MutexOptions {
    /// Creates the default options.
    ///
    /// ```
    /// # use leasehold::MutexOptions;
    /// let options = MutexOptions::new();
    /// assert_eq!(options, MutexOptions::default());
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// How long the store keeps the lock without hearing from its holder, which is the maximum time that a dead holder
    /// blocks others. From 100 ms to 24 h; fractions of a millisecond are truncated. A store may require more, or round
    /// it up: on etcd, the TTL is at least 2 s, in whole seconds.
    ///
    /// Default: 30 s.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::MutexOptions;
    /// let options = MutexOptions::new().ttl(Duration::from_secs(10)); // a dead holder blocks others for 10 s
    /// # drop(options);
    /// ```
    #[doc(alias = "lease time")]
    #[doc(alias = "expiry")]
    #[doc(alias = "timeout")]
    #[doc(alias = "EX")]
    #[doc(alias = "PX")]
    #[doc(alias = "lockAtMostFor")]
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.hold.ttl = ttl;
        self
    }

    /// How long after its last confirmation (the grant or a renewal) a lease is renewed. A renewal may be sent up to 1%
    /// early (100 ms at most), so that renewals of several leases of the client can be batched. The period must be
    /// greater than zero and less than the TTL. If it is more than half of the TTL, a single lost renewal costs the
    /// lease. A period that would leave no time for a renewal at all is reduced to nine tenths of the time for which
    /// the lease is trusted.
    ///
    /// Default: a third of the TTL.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::MutexOptions;
    /// let options = MutexOptions::new().ttl(Duration::from_secs(10)).renewal_period(Duration::from_secs(2));
    /// # drop(options);
    /// ```
    #[doc(alias = "watchdog")]
    #[doc(alias = "heartbeat")]
    #[doc(alias = "keep-alive")]
    pub const fn renewal_period(mut self, period: Duration) -> Self {
        self.hold.renewal_period = Some(period);
        self
    }

    /// The maximum time that the lock may be held without interruption, from its grant. After that, the lease is
    /// released and the `lost` of its guards completes with [`HeldTooLong`](crate::LossReason::HeldTooLong), even if
    /// the holder is alive. Re-entering does not extend it. If the lock is passed on within the client, the time starts
    /// again for the next holder. 10 ms or more.
    ///
    /// Default: none.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::MutexOptions;
    /// let options = MutexOptions::new().max_hold(Duration::from_secs(300)); // whoever hangs for longer loses it
    /// # drop(options);
    /// ```
    pub const fn max_hold(mut self, hold: Duration) -> Self {
        self.hold.max_hold = Some(hold);
        self
    }

    /// What the store's keys start with, before the name; may be empty. Two locks exclude each other if prefix and name
    /// together are the same. Tokens may be issued per prefix, so use the same prefix for a name everywhere.
    ///
    /// Default: `lock:`.
    ///
    /// ```
    /// # use leasehold::MutexOptions;
    /// let options = MutexOptions::new().prefix("shop:");
    /// # drop(options);
    /// ```
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.hold.prefix = Some(prefix.into());
        self
    }

    /// Whether a task that releases the lock may pass it on to the next waiting task of the same client without asking
    /// the store: at most 15 times in a row and for at most 30 ms, then other clients get their turn. This makes a lock
    /// that is contended by many tasks of a process about ten times faster, and costs nothing otherwise.
    ///
    /// Every hold has its own token, greater than the one before. Tasks of one client are served in order of arrival,
    /// and so are clients, but a task may be served before a task of another client that arrived earlier. A `release`
    /// that passes the lock on returns without a confirmation from the store. In `inspect`, tasks that pass the lock on
    /// to each other appear as one waiter at most.
    ///
    /// Turn it off if you need strict order among all tasks of all processes. Mutexes that differ in this or any
    /// other option except the prefix do not pass the lock on to each other. No effect on reentrant locks.
    ///
    /// Default: on.
    ///
    /// ```
    /// # use leasehold::MutexOptions;
    /// let options = MutexOptions::new().local_handover(false);
    /// # drop(options);
    /// ```
    pub const fn local_handover(mut self, allowed: bool) -> Self {
        self.local_handover = allowed;
        self
    }

    pub(crate) fn key_prefix(&self) -> &str {
        self.hold.prefix.as_deref().unwrap_or(DEFAULT_LOCK_PREFIX)
    }

    /// The same for locks that serve another purpose, whose keys begin with `kind`, after the prefix that was set, if
    /// one was: never those of mutexes or semaphores with the same prefix and name.
    pub(crate) fn within(self, kind: &str) -> Self {
        let prefix = self.hold.prefix.as_deref().unwrap_or_default();
        let prefix = format!("{prefix}{kind}");
        self.prefix(prefix)
    }

    pub(crate) fn validate(&self) -> Result<Settings, Error> {
        self.hold.validate(self.local_handover)
    }

    /// For locks of which each waiter has a place of its own.
    pub(crate) fn validate_without_handover(&self) -> Result<Settings, Error> {
        self.hold.validate(false)
    }
}

/// Options of a [`CountingSemaphore`](crate::CountingSemaphore) or a [`FairSemaphore`](crate::FairSemaphore).
///
/// | option | default | why |
/// |---|---|---|
/// | [`ttl`](Self::ttl) | 30 s | long enough to survive a pause or a short outage, short enough to wait for |
/// | [`renewal_period`](Self::renewal_period) | a third of the TTL | two renewals in a row can fail |
/// | [`max_hold`](Self::max_hold) | none | only the application knows how long its work takes |
/// | [`prefix`](Self::prefix) | `semaphore:` or `fair-semaphore:` | the two kinds must not share a key |
/// | [`local_handover`](Self::local_handover) | off | tokens show the order of all grants |
///
/// ```
/// use std::time::Duration;
/// use leasehold::{Client, SemaphoreOptions};
///
/// let options = SemaphoreOptions::new().ttl(Duration::from_secs(10)).prefix("shop:");
/// let semaphore = Client::memory().counting_semaphore_with("payments", 20, options)?;
/// # drop(semaphore);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize, serde::Serialize),
    serde(try_from = "crate::config::SemaphoreFields", into = "crate::config::SemaphoreFields")
)]
#[must_use = "options do nothing until they are passed to a client"]
pub struct SemaphoreOptions {
    pub(crate) hold: HoldOptions,
    pub(crate) local_handover: bool,
    pub(crate) on_other_limit: OnOtherLimit,
}

/// What a handle of a semaphore does if the limit in force is not the one that it was created with: see
/// [`SemaphoreOptions::on_other_limit`].
///
/// ```
/// # use leasehold::{OnOtherLimit, SemaphoreOptions};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::memory();
/// let old = client.counting_semaphore("payments", 4)?;
/// let held = old.acquire().await?; // 4 is in force
/// let follows = SemaphoreOptions::new().on_other_limit(OnOtherLimit::Follow);
/// let new = client.counting_semaphore_with("payments", 6, follows)?;
/// assert!(new.try_acquire_many(4).await?.is_none(), "3 of 4 are left");
/// # drop(held);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum OnOtherLimit {
    /// Its request fails with [`Error::LimitDiffers`], so that a mistake is noticed.
    #[default]
    Refuse,
    /// It uses the limit in force.
    Follow,
    /// It puts its own limit in force, as [`resize`](crate::FairSemaphore::resize) does.
    Set,
}

impl SemaphoreOptions {
    /// Creates the default options.
    ///
    /// ```
    /// # use leasehold::SemaphoreOptions;
    /// let options = SemaphoreOptions::new();
    /// assert_eq!(options, SemaphoreOptions::default());
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// How long the store keeps permits without hearing from their holder, which is the maximum time that a dead holder
    /// blocks them. From 100 ms to 24 h; fractions of a millisecond are truncated. A store
    /// may require more, or round it up: on etcd, the TTL is at least 2 s, in whole seconds.
    ///
    /// Default: 30 s.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::SemaphoreOptions;
    /// let options = SemaphoreOptions::new().ttl(Duration::from_secs(10)); // a dead holder blocks others for 10 s
    /// # drop(options);
    /// ```
    #[doc(alias = "lease time")]
    #[doc(alias = "expiry")]
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.hold.ttl = ttl;
        self
    }

    /// How long after each confirmation the lease is renewed; bounds and effects are as for
    /// [`MutexOptions::renewal_period`].
    ///
    /// Default: a third of the TTL.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::SemaphoreOptions;
    /// let options = SemaphoreOptions::new().ttl(Duration::from_secs(10)).renewal_period(Duration::from_secs(2));
    /// # drop(options);
    /// ```
    #[doc(alias = "watchdog")]
    #[doc(alias = "heartbeat")]
    pub const fn renewal_period(mut self, period: Duration) -> Self {
        self.hold.renewal_period = Some(period);
        self
    }

    /// The maximum time that permits may be held without interruption, from their grant. After that, they are returned
    /// and the `lost` of their guards completes with [`HeldTooLong`](crate::LossReason::HeldTooLong). If a permit is
    /// passed on within the client, the time starts again for the next holder. 10 ms or more.
    ///
    /// Default: none.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::SemaphoreOptions;
    /// let options = SemaphoreOptions::new().max_hold(Duration::from_secs(300)); // whoever hangs for longer loses it
    /// # drop(options);
    /// ```
    pub const fn max_hold(mut self, hold: Duration) -> Self {
        self.hold.max_hold = Some(hold);
        self
    }

    /// What the store's keys start with, before the name; may be empty. Do not use the same prefix for both kinds of
    /// semaphore: semaphores of both kinds with the same name would share permits, and neither could keep its order. Do
    /// not use the same prefix for semaphores and locks either: one of them would get an error
    /// ([`StoreRefused`](crate::Error::StoreRefused)), on Redis for up to a day after the other was last used.
    ///
    /// Default: `semaphore:` for a [`CountingSemaphore`](crate::CountingSemaphore), `fair-semaphore:` for a
    /// [`FairSemaphore`](crate::FairSemaphore).
    ///
    /// ```
    /// # use leasehold::SemaphoreOptions;
    /// let options = SemaphoreOptions::new().prefix("shop:");
    /// # drop(options);
    /// ```
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.hold.prefix = Some(prefix.into());
        self
    }

    /// Whether a task that returns a permit of a [`CountingSemaphore`](crate::CountingSemaphore) may pass it on to the
    /// next task of the same client that waits for one permit, without asking the store: at most 15 times in a row and
    /// for at most 30 ms, then other clients get their turn. This makes a semaphore that is contended by many tasks of
    /// a process several times faster.
    ///
    /// The drawback: a holder that received its permit this way gets the token after that of the previous holder. The
    /// token is unique, but not greater than the tokens that the store has issued in the meantime, so tokens no longer
    /// show the order of all grants. Tasks of one client that wait for single permits are served in order of arrival,
    /// but a task may be served before a task of another client that arrived earlier. A client requests at most one
    /// permit more than the limit, including the permits that it holds, so `inspect` may not show all of its waiting
    /// tasks. A `release` that passes the permit on returns without a confirmation from the store. A reduced limit
    /// takes effect once the permit is no longer passed on, after at most 30 ms.
    ///
    /// A [`FairSemaphore`](crate::FairSemaphore) is served in strict order and rejects this option.
    ///
    /// Default: off.
    ///
    /// ```
    /// # use leasehold::SemaphoreOptions;
    /// let options = SemaphoreOptions::new().local_handover(true);
    /// # drop(options);
    /// ```
    pub const fn local_handover(mut self, allowed: bool) -> Self {
        self.local_handover = allowed;
        self
    }

    /// What a handle does if the limit in force is not the one that it was created with, as while a new version of a
    /// service with another limit replaces the old one:
    ///
    /// | | the old version, limit 4 | the new version, limit 6 |
    /// |---|---|---|
    /// | [`Refuse`](OnOtherLimit::Refuse) | works | its requests fail until the old one is gone for two TTLs |
    /// | [`Follow`](OnOtherLimit::Follow) | works | works with 4, until the semaphore was unused for two TTLs or is resized |
    /// | [`Set`](OnOtherLimit::Set) | works; handles in use go on with 6 | works with 6 from its first request on |
    ///
    /// With `Set`, each handle puts its own limit in force once, with its first request. Afterwards it follows changes
    /// like any other handle, so an old process that starts again while new ones are in use changes the limit back.
    ///
    /// Default: [`Refuse`](OnOtherLimit::Refuse).
    ///
    /// ```
    /// # use leasehold::SemaphoreOptions;
    /// let options = SemaphoreOptions::new().on_other_limit(leasehold::OnOtherLimit::Set);
    /// # drop(options);
    /// ```
    pub const fn on_other_limit(mut self, choice: OnOtherLimit) -> Self {
        self.on_other_limit = choice;
        self
    }

    pub(crate) const fn choice_on_other_limit(&self) -> OnOtherLimit {
        self.on_other_limit
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
        self.hold.validate(local_handover)
    }
}

/// The options that all primitives have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HoldOptions {
    pub(crate) ttl: Duration,
    pub(crate) renewal_period: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    /// `None` for the primitive's default.
    pub(crate) prefix: Option<String>,
}

impl Default for HoldOptions {
    fn default() -> Self {
        Self { ttl: DEFAULT_TTL, renewal_period: None, max_hold: None, prefix: None }
    }
}

impl HoldOptions {
    fn validate(&self, local_handover: bool) -> Result<Settings, Error> {
        let ttl = whole_milliseconds(self.ttl);
        if ttl < MIN_TTL || ttl > MAX_TTL {
            let why = format!("{ttl:?} is not between {MIN_TTL:?} and {MAX_TTL:?}");
            return Err(Error::invalid("ttl", why));
        }
        let renewal_period = self.renewal_period.unwrap_or(ttl / 3);
        if renewal_period.is_zero() || renewal_period >= ttl {
            let why = format!("{renewal_period:?} is not greater than zero and less than the TTL of {ttl:?}");
            return Err(Error::invalid("renewal period", why));
        }
        if let Some(hold) = self.max_hold.filter(|hold| *hold < MIN_HOLD) {
            return Err(Error::invalid("maximum hold time", format!("{hold:?} is below {MIN_HOLD:?}")));
        }
        Ok(Settings::new(ttl, renewal_period, self.max_hold, local_handover))
    }
}

/// Truncates a duration to whole milliseconds.
const fn whole_milliseconds(duration: Duration) -> Duration {
    Duration::new(duration.as_secs(), duration.subsec_millis() * 1_000_000)
}

/// Options after validation: the terms of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) ttl: Duration,
    pub(crate) renewal_period: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) local_handover: bool,
    /// Distinguishes these settings from others. Computed here, because every request that may share a lease needs it.
    pub(crate) fingerprint: u64,
}

impl Settings {
    pub(crate) fn new(
        ttl: Duration,
        renewal_period: Duration,
        max_hold: Option<Duration>,
        local_handover: bool,
    ) -> Self {
        let mut hasher = DefaultHasher::new();
        (ttl, renewal_period, max_hold, local_handover).hash(&mut hasher);
        Self { ttl, renewal_period, max_hold, local_handover, fingerprint: hasher.finish() }
    }

    /// Handles with equal settings share them, and so do their leases: a client may hold many, and most have the same.
    pub(crate) fn share(self) -> Arc<Self> {
        static LAST: PerProcess<Option<Arc<Settings>>> = PerProcess::new();
        LAST.with(|last| match last {
            Some(known) if **known == self => Arc::clone(known),
            _ => Arc::clone(last.insert(Arc::new(self))),
        })
    }

    /// Rounds the TTL up to the store's granularity.
    pub(crate) fn fit(self, capabilities: &Capabilities) -> Result<Self, Error> {
        let Capabilities { store, min_ttl, ttl_granularity: unit, .. } = capabilities;
        if self.ttl < *min_ttl {
            return Err(Error::invalid(
                "ttl",
                format!("{:?} is below the minimum of {min_ttl:?} on {store}", self.ttl),
            ));
        }
        let units = self.ttl.as_micros().div_ceil(unit.as_micros().max(1));
        let micros = units.saturating_mul(unit.as_micros());
        let rounded = Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX));
        Ok(Self { ttl: rounded.max(self.ttl), ..self })
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
        assert_eq!(settings.ttl, ms(30_000));
        assert_eq!(settings.renewal_period, ms(10_000));
        assert_eq!(settings.max_hold, None);
        assert_eq!(MutexOptions::new().key_prefix(), "lock:");
        assert_eq!(SemaphoreOptions::new().validate(Kind::Fair).unwrap().ttl, settings.ttl);
        assert_eq!(SemaphoreOptions::new().key_prefix(Kind::Counting), "semaphore:");
        assert_eq!(SemaphoreOptions::new().key_prefix(Kind::Fair), "fair-semaphore:");
    }

    #[test]
    fn leases_outside_their_bounds_are_refused_with_the_bounds() {
        assert!(refusal(&MutexOptions::new().ttl(ms(99))).contains("100ms"));
        assert!(MutexOptions::new().ttl(ms(100)).validate().is_ok());
        assert!(MutexOptions::new().ttl(MAX_TTL).validate().is_ok());
        assert!(refusal(&MutexOptions::new().ttl(MAX_TTL + ms(1))).contains("86400s"));
    }

    #[test]
    fn a_ttl_is_truncated_to_whole_milliseconds() {
        let settings = MutexOptions::new().ttl(Duration::from_micros(100_999)).validate().unwrap();
        assert_eq!(settings.ttl, ms(100));
    }

    #[test]
    fn a_ttl_is_what_the_store_can_keep() {
        let mut store = Capabilities::new("etcd:");
        (store.min_ttl, store.ttl_granularity) = (ms(2000), ms(1000));
        let fit =
            |ttl| MutexOptions::new().ttl(ttl).validate().and_then(|settings| Ok(settings.fit(&store)?.ttl));
        assert!(fit(ms(1999)).unwrap_err().to_string().contains("etcd:"));
        assert_eq!(fit(ms(2000)).unwrap(), ms(2000));
        assert_eq!(fit(ms(2001)).unwrap(), ms(3000));
    }

    #[test]
    fn a_renewal_period_not_below_the_lease_is_refused() {
        let options = MutexOptions::new().ttl(ms(1000));
        assert!(options.clone().renewal_period(ms(999)).validate().is_ok());
        assert!(refusal(&options.clone().renewal_period(ms(1000))).contains("renewal period"));
        assert!(options.renewal_period(Duration::ZERO).validate().is_err());
    }

    #[test]
    fn zero_durations_are_refused() {
        assert!(MutexOptions::new().max_hold(ms(9)).validate().is_err());
        assert!(MutexOptions::new().max_hold(ms(10)).validate().is_ok());
    }
}
