//! Hand-over to another process: a lease leaves the client without being released, or enters one without being
//! requested.
//!
//! A lease that has left is remembered for a while: a late event must not make the client release it as one that nobody
//! knows. A late answer or event under a later token says that the hold that was handed over has ended, and that a request
//! that was still on its way has taken the resource for nobody: that is released.

use std::pin::pin;
use std::sync::Arc;

use futures::StreamExt;
use tokio::time::{Instant, sleep};

use super::acquire::PERSIST;
use super::deadline::GIVE_UP_AFTER;
use super::keeper::Keeper;
use super::lease::{Hold, Lease, NotGiven, RETRY};
use crate::backend::{BackendError, Claim, LeaseId, LeaseRef, Limit, Renew, Renewal, Request};
use crate::error::Error;
use crate::fence::FencingToken;
use crate::observer::{ReleaseOutcome, Source};
use crate::options::Settings;

/// A lease between two clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HandedOver {
    pub(crate) lease: LeaseRef,
    pub(crate) token: FencingToken,
    pub(crate) permits: u32,
    /// The owner of a reentrant lock.
    pub(crate) owner: Option<Arc<str>>,
    pub(crate) terms: Arc<Settings>,
}

impl HandedOver {
    fn claim(&self) -> Claim {
        match &self.owner {
            Some(owner) => Claim::Owner(Arc::clone(owner)),
            None if self.lease.resource.kind.is_semaphore() => {
                Claim::Permits(self.permits, Limit::stated(self.permits))
            }
            None => Claim::Sole,
        }
    }
}

impl Keeper {
    /// Ends a hold in this client without a release, nor is it passed on here. Fails if it is lost, or other guards
    /// share its lease.
    pub(crate) fn hand_over(&self, hold: &Hold, permits: u32) -> Result<HandedOver, Error> {
        self.check_process("hand over", Some(hold.name()))?;
        self.check_resumable()?;
        let (lease, now, observed) = (&hold.lease, Instant::now(), self.observed(hold));
        let next = match lease.group() {
            Some(group) => self.queue(group, |queue| {
                lease.give_away(hold.token, now).map(|()| self.replacements_for(lease, queue))
            }),
            None => lease.give_away(hold.token, now).map(|()| Vec::new()),
        };
        let next = next.map_err(|not| match not {
            NotGiven::Lost(reason) => hold.loss_error(reason),
            NotGiven::Shared => Error::invalid("guard", "other guards share its lease, and would lose it"),
        })?;
        self.schedule.forget(lease);
        self.forget_owner(lease);
        self.remember_given(lease, hold.token, now);
        self.backend.handed_over(lease.id());
        self.forget(lease.id());
        hold.finish();
        self.request(next);
        self.tell_released(hold, observed, now, ReleaseOutcome::HandedOver);
        tracing::debug!(name = %hold.name(), token = hold.token.get(), "handed over by a ticket");
        let Settings { ttl, renewal_period, max_hold, .. } = **lease.terms();
        // No lease that comes from elsewhere is passed on within a client.
        let terms = Settings::new(ttl, renewal_period, max_hold, false).share();
        let owner = lease.owner().cloned();
        Ok(HandedOver { lease: lease.lease_ref().clone(), token: hold.token, permits, owner, terms })
    }

    /// For as long as a request for it, or an event, may be on its way.
    fn remember_given(&self, lease: &Lease, token: FencingToken, now: Instant) {
        let mut given = self.given.lock();
        given.retain(|_, (_, until)| *until > now);
        given.insert(lease.id(), (token, now + GIVE_UP_AFTER.max(lease.terms().ttl * 2)));
    }

    /// Whether a grant under this token, of a lease that is not in the table, belongs to another process: to whoever
    /// has been given the lease under that token or a later one.
    pub(super) fn is_given(&self, lease: LeaseId, token: FencingToken) -> bool {
        let given = self.given.lock();
        given.get(&lease).is_some_and(|(given, until)| token <= *given && Instant::now() < *until)
    }

    /// Takes a lease over that another client has handed over: renews it at once, and from then on.
    ///
    /// Cancel safe: until it is renewed it belongs to nobody, so nothing is left behind.
    pub(crate) async fn resume(&self, handed: &HandedOver) -> Result<Hold, Error> {
        let name = handed.lease.resource.name();
        self.check_process("resume", Some(name))?;
        self.check_resumable()?;
        self.check_not_here(handed)?;
        self.ensure_running();
        let (renewal, sent) = self.renew_handed_over(handed).await;
        match renewal.map_err(|error| self.error(error, "resume", Some(name)))? {
            Renewal::Renewed => {
                self.take_in(handed, sent).inspect(|hold| self.tell_resumed(hold, handed.permits))
            }
            Renewal::Lost(reason) => {
                Err(Error::Lost { name: name.to_owned(), token: handed.token, reason, detail: None })
            }
        }
    }

    /// Sent again for a while, like a request that does not wait. Also returns when the last one was sent.
    async fn renew_handed_over(&self, handed: &HandedOver) -> (Result<Renewal, BackendError>, Instant) {
        let give_up = Instant::now() + PERSIST;
        let renewal = [Renew::new(handed.lease.clone(), handed.terms.ttl)];
        loop {
            let sent = Instant::now();
            let answer = match self.home.awaiting(pin!(self.backend.renew(&renewal).next())).await {
                Some((_, answer)) => answer,
                None => Err(self.unanswered()),
            };
            match answer {
                Err(error) if error.is_transient() && Instant::now() < give_up => sleep(RETRY).await,
                answer => return (answer, sent),
            }
        }
    }

    /// The store has just renewed it.
    fn take_in(&self, handed: &HandedOver, sent: Instant) -> Result<Hold, Error> {
        let request = Request::new(handed.lease.clone(), handed.claim(), handed.terms.ttl);
        let now = Instant::now();
        let lease = Lease::handed_over(request, Arc::clone(&handed.terms), handed.token, sent, now);
        {
            let mut leases = self.leases.lock();
            if self.draining.is_closed() {
                let name = Some(handed.lease.resource.name().to_owned());
                return Err(Error::Closed { name, operation: "resume" });
            }
            if leases.contains_key(&lease.id()) {
                return Err(resumed_before());
            }
            leases.insert(lease.id(), Arc::clone(&lease));
        }
        self.given.lock().remove(&lease.id());
        let hold = Hold { lease, token: handed.token, source: Source::Store };
        if let Some(due) = hold.begin(now) {
            self.schedule.file_taken_up(&hold.lease, due, now);
        }
        self.owners.remember(&hold);
        match hold.loss(now) {
            // The answer came too late; the keeper releases it.
            Some(reason) => Err(hold.loss_error(reason)),
            None => Ok(hold),
        }
    }

    fn check_not_here(&self, handed: &HandedOver) -> Result<(), Error> {
        if self.lease(handed.lease.id).is_some() { Err(resumed_before()) } else { Ok(()) }
    }

    fn check_resumable(&self) -> Result<(), Error> {
        let capabilities = self.backend.capabilities();
        if capabilities.resumable {
            return Ok(());
        }
        let reason = "a lease belongs to the client that has requested it, so another one cannot resume it";
        Err(Error::Unsupported { store: capabilities.store.clone(), reason: reason.to_owned() })
    }
}

fn resumed_before() -> Error {
    Error::invalid("ticket", "this client has resumed it before")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;
    use crate::MemoryBackend;
    use crate::backend::{Kind, Resource};

    #[test]
    fn what_is_handed_over_is_claimed_as_what_it_is() {
        let claim = |kind, owner: Option<&str>| {
            let lease = LeaseRef::new(LeaseId::next(uuid::Uuid::nil()), Resource::new("a", kind));
            let terms =
                Settings::new(Duration::from_secs(1), Duration::from_millis(300), None, false).share();
            let owner = owner.map(Arc::from);
            HandedOver { lease, token: FencingToken::new(42), permits: 3, owner, terms }.claim()
        };
        assert!(matches!(claim(Kind::Mutex, None), Claim::Sole));
        assert!(matches!(claim(Kind::Mutex, Some("order:7")), Claim::Owner(owner) if &*owner == "order:7"));
        assert!(matches!(claim(Kind::Counting, None), Claim::Permits(3, limit) if limit.permits == 3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_was_handed_over_is_remembered_for_two_ttls_and_a_minute_at_least() {
        for (ttl, remembered) in [(Duration::from_secs(1), GIVE_UP_AFTER), (GIVE_UP_AFTER, GIVE_UP_AFTER * 2)]
        {
            let keeper = Keeper::new(Arc::new(MemoryBackend::new()), None);
            let [lease, other] = [(), ()].map(|()| Lease::of_mutex(ttl));
            let is_given = |lease: &Lease, token| keeper.is_given(lease.id(), FencingToken::new(token));
            keeper.remember_given(&lease, FencingToken::new(42), Instant::now());
            assert!(is_given(&lease, 41) && is_given(&lease, 42));
            assert!(!is_given(&lease, 43), "of a request that has taken it since");
            assert!(!is_given(&other, 42));
            advance(remembered - Duration::from_secs(1)).await;
            keeper.remember_given(&other, FencingToken::new(44), Instant::now());
            assert!(is_given(&lease, 42) && is_given(&other, 44));
            advance(Duration::from_secs(1)).await;
            assert!(!is_given(&lease, 42) && is_given(&other, 44));
            keeper.remember_given(&other, FencingToken::new(45), Instant::now());
            assert_eq!(keeper.given.lock().len(), 1, "those that are over are forgotten");
        }
    }
}
