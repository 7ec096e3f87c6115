//! How long a lease may be trusted locally. Pure: `now` is always an argument.
//!
//! The store measures a lease from the moment it executes the request; the client measures it from the moment it sent
//! that request, which is earlier. In addition, the client stops a little before the store does ([`margin`]). So even
//! with clocks of slightly different speed and a timer that fires late, the holder is notified of its loss before the
//! store grants the resource to another client. Leader leases in Raft are measured from the send time as well.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tokio::time::Instant;

use crate::options::Settings;

/// The number of shared moments per TTL at which waiting requests are repeated, so that those of one client are sent
/// together.
const MOMENTS: u32 = 20;

/// How long an unanswered release is repeated, or for its TTL if that is longer. No request stays in flight that long:
/// by then the store has either executed it or lost the connection on which it was sent.
pub(super) const GIVE_UP_AFTER: Duration = Duration::from_secs(60);

/// How long after `now` to repeat a waiting request: at the last shared moment within a third of the TTL.
pub(crate) fn moment_within(now: Instant, ttl: Duration) -> Duration {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let third = ttl / 3;
    let since = (now + third).saturating_duration_since(*START).as_nanos();
    let past = since % (ttl / MOMENTS).as_nanos().max(1);
    third - Duration::from_nanos(u64::try_from(past).unwrap_or_default())
}

/// When a lease ends: from its terms, and from when the store last confirmed it.
#[derive(Clone, Debug)]
pub(crate) struct Deadline {
    terms: Arc<Settings>,
    measured_from: Instant,
    /// Until when the lease is trusted, regardless of the maximum hold time.
    trusted_until: Instant,
    /// The end of the maximum hold time.
    cap: Option<Instant>,
    /// When the store reported that it may not have the lease any more: a request that was sent before confirms nothing.
    doubted: Option<Instant>,
}

/// How much earlier than the store the client regards a lease as ended: 10 ms for timers and scheduling, and a
/// thousandth of the TTL for clocks that do not run at the same speed.
pub(crate) fn margin(ttl: Duration) -> Duration {
    Duration::from_millis(10) + ttl / 1000
}

impl Deadline {
    /// The deadline of a lease that was granted `now` and is measured from `measured_from`.
    pub(crate) fn new(terms: Arc<Settings>, measured_from: Instant, now: Instant) -> Self {
        let trusted_until = measured_from + trusted(&terms);
        let mut deadline = Self { terms, measured_from, trusted_until, cap: None, doubted: None };
        deadline.start_hold(now);
        deadline
    }

    /// A new holder has the lease: its maximum hold time starts now.
    pub(crate) fn start_hold(&mut self, now: Instant) {
        self.cap = self.terms.max_hold.and_then(|hold| now.checked_add(hold));
    }

    /// It ends then at the latest.
    pub(crate) fn cap(&mut self, at: Instant) {
        self.cap = Some(self.cap.map_or(at, |cap| cap.min(at)));
    }

    /// Records that the store has confirmed the lease as of `measured_from`. Confirmations may arrive in any order.
    pub(crate) fn extend(&mut self, measured_from: Instant) {
        if measured_from > self.measured_from {
            (self.measured_from, self.trusted_until) = (measured_from, measured_from + trusted(&self.terms));
            self.doubted = self.doubted.filter(|doubted| measured_from < *doubted);
        }
    }

    /// The store may not have the lease any more: whether it does is to be asked at once.
    pub(crate) const fn doubt(&mut self, now: Instant) {
        self.doubted = Some(now);
    }

    /// The planted mistake: it begins anew with each hold.
    #[cfg(leasehold_planted)]
    pub(crate) fn begin_anew(&mut self, now: Instant) -> bool {
        let does = crate::planted::is(crate::planted::Mistake::PassesOnPastTheLease);
        if does {
            self.extend(now);
        }
        does
    }

    /// When the store last confirmed the lease, at the earliest.
    pub(crate) const fn measured_from(&self) -> Instant {
        self.measured_from
    }

    /// When the lease ends unless it is extended.
    pub(crate) fn ends(&self) -> Instant {
        self.cap.map_or(self.trusted_until, |cap| self.trusted_until.min(cap))
    }

    /// Whether the lease has ended.
    pub(crate) fn has_passed(&self, now: Instant) -> bool {
        now >= self.ends()
    }

    /// Whether the maximum hold time ends the lease, rather than its TTL.
    pub(crate) fn ends_by_cap(&self) -> bool {
        self.cap.is_some_and(|cap| cap <= self.trusted_until)
    }

    /// For how long the lease may still be trusted, regardless of the maximum hold time.
    pub(crate) fn uncapped(&self, now: Instant) -> Duration {
        self.trusted_until.saturating_duration_since(now)
    }

    /// When to renew: one period after the last confirmation, and in any case before the lease ends; at once if it is in
    /// doubt. `None` if the maximum hold time ends it first, so that renewing is pointless.
    pub(crate) fn renew_at(&self) -> Option<Instant> {
        let latest = trusted(&self.terms) * 9 / 10;
        let at = self.measured_from + self.terms.renewal_period.min(latest);
        self.doubted.or_else(|| (!self.ends_by_cap()).then_some(at))
    }

    /// How much earlier a renewal may be sent so that it can be sent with others: a hundredth of the period, 100 ms at
    /// most.
    pub(crate) fn leeway(&self) -> Duration {
        (self.terms.renewal_period / 100).min(Duration::from_millis(100))
    }

    /// When to retry after a renewal that was found unanswered at `now`: soon, but never in a tight loop.
    pub(crate) fn retry_at(&self, now: Instant) -> Instant {
        let pause = (self.terms.renewal_period / 4).clamp(Duration::from_millis(10), Duration::from_secs(1));
        (now + pause).min(self.ends())
    }
}

/// For how long a lease is trusted after the store has confirmed it.
fn trusted(terms: &Settings) -> Duration {
    terms.ttl.saturating_sub(margin(terms.ttl))
}

#[cfg(test)]
mod tests {
    use std::iter::successors;

    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn terms(lease: u64, renewal_period: u64, max_hold: Option<u64>) -> Arc<Settings> {
        Arc::new(Settings::new(ms(lease), ms(renewal_period), max_hold.map(ms), false))
    }

    #[test]
    fn the_lease_is_measured_from_the_request_and_not_from_the_reply() {
        let sent = Instant::now();
        let answered = sent + ms(400);
        let deadline = Deadline::new(terms(1000, 300, None), sent, answered);
        assert_eq!(deadline.ends(), sent + ms(989));
        assert!(!deadline.has_passed(sent + ms(988)));
        assert!(deadline.has_passed(sent + ms(989)));
    }

    #[test]
    fn a_late_confirmation_of_an_earlier_renewal_does_not_shorten_the_lease() {
        let start = Instant::now();
        let mut deadline = Deadline::new(terms(1000, 300, None), start, start);
        deadline.extend(start + ms(600));
        deadline.extend(start + ms(300));
        assert_eq!(deadline.ends(), start + ms(1589));
    }

    #[test]
    fn the_maximum_hold_time_starts_at_the_grant_and_ends_renewal() {
        let (sent, granted) = (Instant::now(), Instant::now() + ms(50));
        let mut deadline = Deadline::new(terms(1000, 300, Some(1500)), sent, granted);
        assert!(!deadline.ends_by_cap());
        assert!(deadline.renew_at().is_some());
        deadline.extend(sent + ms(900));
        assert!(deadline.ends_by_cap());
        assert_eq!(deadline.ends(), granted + ms(1500));
        assert_eq!(deadline.renew_at(), None);
    }

    #[test]
    fn waiting_requests_are_repeated_at_shared_moments_within_a_third_of_their_ttl() {
        let (start, ttl) = (Instant::now(), ms(1000));
        let first = start + moment_within(start, ttl);
        for n in 0..2000 {
            let now = start + Duration::from_micros(n * 700);
            let pause = moment_within(now, ttl);
            assert!(pause <= ttl / 3 && pause > ttl / 3 - ttl / MOMENTS, "{pause:?}");
            let moments = (now + pause).saturating_duration_since(first).as_nanos();
            assert_eq!(moments % (ttl / MOMENTS).as_nanos(), 0);
        }
    }

    #[test]
    fn a_renewal_that_was_not_answered_is_repeated_after_a_quarter_of_its_period() {
        let start = Instant::now();
        let mut deadline = Deadline::new(terms(1000, 300, None), start, start);
        assert_eq!(deadline.retry_at(start), start + ms(75));
        assert_eq!(deadline.retry_at(start + ms(980)), deadline.ends());
        deadline.cap(start + ms(500));
        assert_eq!(deadline.ends(), start + ms(500));
        deadline.cap(start + ms(600));
        assert_eq!(deadline.ends(), start + ms(500));
    }

    #[test]
    fn a_lease_in_doubt_is_renewed_at_once_until_a_later_request_is_confirmed() {
        let start = Instant::now();
        for max_hold in [None, Some(500)] {
            let mut deadline = Deadline::new(terms(1000, 300, max_hold), start, start);
            let before = (deadline.renew_at(), deadline.ends());
            deadline.doubt(start + ms(100));
            assert_eq!((deadline.renew_at(), deadline.ends()), (Some(start + ms(100)), before.1));
            // It was sent before that.
            deadline.extend(start + ms(99));
            assert_eq!(deadline.renew_at(), Some(start + ms(100)));
            deadline.extend(start + ms(100));
            assert_eq!(deadline.renew_at(), max_hold.is_none().then_some(start + ms(400)));
        }
    }

    /// Point 4 of the contract, and the reason for renewing at all.
    #[test]
    fn the_client_never_trusts_a_lease_beyond_its_end_and_renews_before_it() {
        let mut random = random_numbers();
        let mut below = |end: u64| random.next().unwrap() % end;
        for _ in 0..2000 {
            let most = [200, 1000, 10_000, 100_000, 86_400_000][below(5) as usize];
            let lease = 100 + below(most - 99);
            let period = (lease * (1 + below(999)) / 1000).max(1).min(lease - 1);
            let start = Instant::now();
            let mut deadline = Deadline::new(terms(lease, period, None), start, start);
            for _ in 0..1 + below(19) {
                let sent = start + ms(below(100_000));
                let store_ends = sent + ms(below(1000)) + ms(lease);
                deadline.extend(sent);
                let newest = deadline.measured_from;
                assert!(deadline.ends() < store_ends.max(newest + ms(lease)), "{deadline:?}");
                assert!(deadline.renew_at().unwrap() < deadline.ends(), "{deadline:?}");
                assert!(deadline.retry_at(sent) <= deadline.ends(), "{deadline:?}");
                assert!(deadline.renew_at().unwrap() - deadline.leeway() > newest, "{deadline:?}");
            }
        }
    }

    /// Always the same ones: the upper halves of a linear congruential generator (Knuth's MMIX).
    fn random_numbers() -> impl Iterator<Item = u64> {
        let next =
            |n: &u64| Some(n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
        successors(Some(1), next).map(|n| n >> 32)
    }
}
