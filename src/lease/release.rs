//! From the last guard to a confirmed release.
//!
//! `release` sends from the caller's task and awaits the answer; a guard that is dropped only queues its release, and
//! so does a `release` that is dropped or not answered. Queued releases are sent by a task of the keeper, and repeated
//! until the store has confirmed them. Where there is no runtime, or it ends, the crate's own thread sends them once.

use std::convert::Infallible;
use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::{join, join_all};
use futures::stream::{self, FuturesUnordered};
use futures::{FutureExt, StreamExt};
use scopeguard::{ScopeGuard, guard};
use tokio::sync::{Notify, oneshot};
use tokio::task::consume_budget;
use tokio::time::{Instant, sleep, timeout};

use super::acquire::PERSIST;
use super::deadline::GIVE_UP_AFTER;
use super::keeper::Keeper;
use super::known::Known;
use super::lease::{Hold, Lease};
use super::release_queue::{LAST_RELEASES, MAX_RELEASES, Patience, PendingRelease};
use crate::backend::{BackendError, LeaseRef, Released, Renew, Renewal};
use crate::background;
use crate::error::{Error, LossReason};
use crate::observer::{Audience, ReleaseOutcome};
use crate::runtime::spawn_on;
use crate::sync::{Handle, RecvTimeoutError, mpsc};

/// The pause before a release that was not confirmed is sent again.
const RETRY: Duration = Duration::from_millis(50);
/// How long an unanswered release is repeated before others are sent, which may be for a server that answers. In the
/// keeper's tasks the attempt that is under way then is the last one.
const ATTEMPT: Duration = Duration::from_secs(5);
/// A lease that ends sooner than that is renewed while a caller waits for its release: longer than threads are blocked.
const ENDS_SOON: Duration = Duration::from_secs(5);
/// How long a request may be on its way after its connection has ended with its runtime.
const ON_ITS_WAY: Duration = Duration::from_secs(2);
/// It is not worth while to keep the application waiting for less.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);
/// The longest pause before a release that was refused is sent again.
const REFUSED: Duration = Duration::from_millis(200);

impl Keeper {
    /// Has a release sent in the background. Outside a runtime it waits for that, because the process may end next: for
    /// up to 100 ms, not for a store that was too slow before, and not for ever if there are many guards.
    pub(super) fn queue_release(&self, pending: PendingRelease) {
        if self.origin.is_elsewhere() {
            return;
        }
        let Ok(here) = Handle::try_current() else { return self.release_outside_a_runtime(pending) };
        self.releases.push(pending);
        self.ensure_running();
        if !background::is_current() && self.home.runtime().is_some_and(|home| home.id() != here.id()) {
            self.finish_before_the_end_of(&here);
        }
    }

    /// Releases were queued on a runtime that is not the home. If that runtime ends before they are done, the process
    /// may end next.
    fn finish_before_the_end_of(&self, runtime: &Handle) {
        let (Some(keeper), id) = (self.this.upgrade(), runtime.id()) else { return };
        {
            let mut awaited = self.ends_awaited.lock();
            if awaited.contains(&id) {
                return;
            }
            awaited.push(id);
        }
        let waits = guard(keeper, move |keeper| {
            keeper.ends_awaited.lock().retain(|other| *other != id);
            keeper.wait_for_last_releases();
        });
        spawn_on(runtime, async move { waits.releases.drained(|| true).await });
    }

    /// A lease that is not wanted any more: its release is queued, unless no request for it has reached the store.
    pub(super) fn release_if_known(&self, lease: &Arc<Lease>) {
        match lease.take_known() {
            Known::Nothing => drop(self.forget(lease.id())),
            known => self.queue_release(PendingRelease::of(lease, known)),
        }
    }

    /// Releases a guard and its permits without waiting.
    pub(crate) fn abandon(&self, hold: &Hold, permits: u32) {
        if self.origin.is_elsewhere() {
            return;
        }
        let (now, observed) = (Instant::now(), self.observed(hold));
        let Ok(Some(pending)) = self.leave(hold, permits, false, now, observed) else { return };
        if pending.keep == 0 {
            hold.finish();
            self.tell_released(hold, observed, now, ReleaseOutcome::InBackground);
            tracing::debug!(target: "leasehold::lease", name = %hold.name(), token = hold.token.get(), "guard dropped, release queued");
        }
        self.queue_release(pending);
    }

    /// Releases a guard and its permits: to the next waiter of this client, or to the store, whose answer is awaited.
    pub(crate) async fn release(self: &Arc<Self>, hold: &Hold, permits: u32) -> Result<(), Error> {
        self.check_process("release", Some(hold.name()))?;
        let lease = &hold.lease;
        let now = Instant::now();
        let (ends, observed) = hold.ends_and_observed();
        let ends = ends.unwrap_or(now);
        let is_renewed = ends < now + ENDS_SOON;
        let left =
            self.leave(hold, permits, is_renewed, now, observed).map_err(|reason| hold.loss_error(reason))?;
        let released = || {
            tracing::debug!(target: "leasehold::lease", name = %hold.name(), token = hold.token.get(), "released");
            Ok(())
        };
        let Some(pending) = left else { return released() };
        let is_part = pending.keep > 0;
        let mut told = observed.filter(|_| !is_part).map(|observed| {
            let tell = move |outcome| self.tell_released(hold, Some(observed), now, outcome);
            guard(ReleaseOutcome::InBackground, tell)
        });
        // When the release is over or dropped, all that wait for the end of the hold are notified.
        let _finishing = (!is_part).then(|| guard(hold, Hold::finish));
        let stop_renewing = |lease: &Lease| {
            self.stop_renewing(lease);
        };
        let renewing = (is_renewed && !is_part).then(|| guard(&**lease, stop_renewing));
        let answer = if pending.next.is_empty() {
            self.release_in_place(pending, now).await
        } else {
            self.release_behind(pending).await
        };
        let renewed = renewing.and_then(|renewing| self.stop_renewing(ScopeGuard::into_inner(renewing)));
        let (ends, is_gone_in_time) = renewed.unwrap_or((ends, false));
        let answer = answer.map_err(|error| self.error(error, "release", Some(hold.name())));
        if let Some(outcome) = &mut told {
            **outcome = answer
                .as_ref()
                .err()
                .map_or(ReleaseOutcome::Confirmed, |error| ReleaseOutcome::Failed(error.kind()));
        }
        let found = answer?;
        let found = if is_part { found } else { self.explained(lease, found).await };
        // The release of a part may find nothing because the rest of the lease was released in the meantime.
        let overtaken = is_part && lease.is_released();
        match lost_before(found, ends, is_gone_in_time).filter(|_| !overtaken) {
            None => released(),
            Some(reason) => {
                if is_part {
                    lease.lose(reason);
                    self.file(lease);
                } else {
                    lease.found_lost(hold.token, reason);
                    if let Some(told) = told.take() {
                        ScopeGuard::into_inner(told);
                        self.tell_lost(hold, observed, now, reason);
                    }
                }
                Err(hold.loss_error(reason))
            }
        }
    }

    /// A lease that was released by force is gone, and some stores say why only if it is renewed.
    async fn explained(&self, lease: &Lease, found: Released) -> Released {
        if !matches!(found, Released::Taken | Released::Absent) {
            return found;
        }
        let renewal = [Renew::new(lease.lease_ref().clone(), lease.terms().ttl)];
        match self.backend.renew(&renewal).next().await {
            Some((_, Ok(Renewal::Lost(LossReason::Revoked)))) => Released::Revoked,
            _ => found,
        }
    }

    /// The release of a lease that was renewed while its caller waited is over: see [`Lease::stop_renewing`].
    fn stop_renewing(&self, lease: &Lease) -> Option<(Instant, bool)> {
        let renewed = lease.stop_renewing();
        self.schedule.forget(lease);
        renewed
    }

    /// Removes a guard and its permits from a hold. If it was the last one, passes the lease on, or ends it. Returns
    /// what must be returned to the store: the lease, or a part of its permits. If `keep_renewed`, the lease is renewed
    /// until its release is over: the caller's thread may be blocked before it is sent.
    fn leave(
        &self,
        hold: &Hold,
        permits: u32,
        keep_renewed: bool,
        now: Instant,
        observed: Option<(Audience, Instant)>,
    ) -> Result<Option<PendingRelease>, LossReason> {
        match hold.lease.leave(hold.token, permits, now)? {
            // Other guards keep all of a lock.
            None => Ok(None),
            Some(0) => self.pass_on(hold, now, keep_renewed, observed),
            Some(keep) => {
                Ok(Some(PendingRelease { keep, ..PendingRelease::of(&hold.lease, hold.lease.take_known()) }))
            }
        }
    }

    /// Sends a release from the caller's task, again for a while if it is not confirmed, like a request that does not
    /// wait. If it is not confirmed by then, it goes to the release queue.
    async fn release_in_place(
        &self,
        pending: PendingRelease,
        now: Instant,
    ) -> Result<Released, BackendError> {
        let mut pending = guard(pending, |unconfirmed| self.queue_release(unconfirmed));
        let give_up = now + PERSIST;
        #[cfg(leasehold_planted)]
        let give_up = crate::planted::give_up(now, give_up);
        loop {
            match self.send_release(&pending.lease, pending.keep).await {
                Err(error) if error.is_transient() && Instant::now() < give_up => {
                    pending.repeated |= !error.was_never_sent() && !error.is_refusal();
                    sleep(REFUSED).await;
                }
                answer => {
                    let released = answer?;
                    let released = if pending.repeated { released.by_repetition() } else { released };
                    self.released(&ScopeGuard::into_inner(pending));
                    return Ok(released);
                }
            }
        }
    }

    /// Makes the keeper's task send the preceding requests and then the release. Other waiters depend on those
    /// requests, so they must not depend on the caller's future.
    async fn release_behind(self: &Arc<Self>, pending: PendingRelease) -> Result<Released, BackendError> {
        let (confirm, confirmed) = oneshot::channel();
        self.queue_release(PendingRelease { confirm: Some(confirm), ..pending });
        let confirmed = self.home.awaiting(pin!(confirmed)).await;
        confirmed.unwrap_or_else(|gone| Err(BackendError::Unanswered { source: gone.into() }))
    }

    async fn send_release(&self, lease: &LeaseRef, keep: u32) -> Result<Released, BackendError> {
        match keep {
            0 => self.backend.release(lease).await,
            _ => self.backend.release_permits(lease, keep).await,
        }
    }

    /// A release was confirmed, or given up.
    fn released(&self, pending: &PendingRelease) {
        if pending.keep > 0 {
            return;
        }
        if let Some(lease) = self.forget(pending.lease.id) {
            self.release_what_came_to_light(&lease);
        }
    }

    /// Waits until no release is pending.
    pub(super) async fn drained(&self) {
        self.releases.drained(|| self.leases.lock().is_empty()).await;
    }

    /// How many releases were never confirmed.
    pub(super) fn given_up(&self) -> usize {
        self.given_up.load(Ordering::Relaxed)
    }

    /// How many releases are left when a shutdown gives them up, besides those that were given up before, and why.
    pub(super) fn unconfirmed(&self, given_up: usize) -> BackendError {
        let known = self.leases.lock().len();
        let left = known.max(self.releases.unfinished()) + given_up;
        let why = self.last_failure.lock().clone().unwrap_or_else(|| self.unanswered());
        let (releases, were) = if left == 1 { ("release", "was") } else { ("releases", "were") };
        BackendError::Unanswered { source: format!("{left} {releases} {were} not confirmed: {why}").into() }
    }

    /// Sends pending releases.
    pub(super) async fn send_releases(&self, queued: Arc<Notify>) {
        let mut releases = FuturesUnordered::new();
        let mut drained = pin!(self.drained_at_last());
        loop {
            consume_budget().await;
            while releases.len() < MAX_RELEASES {
                let Some(pending) = self.releases.pop() else { break };
                releases.push(self.send_pending(pending));
            }
            tokio::select! {
                biased;
                Some(()) = releases.next() => {}
                () = queued.notified(), if releases.len() < MAX_RELEASES => {}
                // Others are sent by their callers or from the crate's own thread, and are pending again if that fails.
                () = &mut drained, if releases.is_empty() => return,
            }
        }
    }

    async fn drained_at_last(&self) {
        self.abandoned.cancelled().await;
        self.releases.drained(|| true).await;
    }

    /// Sends the requests for the next leases and the release, in this order, without waiting in between.
    async fn send_pending(
        &self,
        mut pending: ScopeGuard<PendingRelease, impl FnOnce(PendingRelease) + Send>,
    ) {
        let next = mem::take(&mut pending.next);
        let sent = if next.is_empty() {
            self.send_until_confirmed(&mut pending).await
        } else {
            next.iter().for_each(|lease| lease.start_asking());
            let asked = join_all(next.into_iter().map(|lease| self.ask(lease).boxed()));
            join(asked, self.send_until_confirmed(&mut pending)).await.1
        };
        match sent {
            Ok(_) => self.finish(pending),
            Err(_) => self.releases.postpone(pending),
        }
    }

    /// A release is no longer pending.
    fn finish(&self, pending: ScopeGuard<PendingRelease, impl FnOnce(PendingRelease)>) {
        self.released(&pending);
        self.releases.finish(pending);
    }

    /// Repeats a release until the store confirms it, even after the TTL has passed: the request for the lease may
    /// still be in flight, and be granted later. Whatever the store says meanwhile may be over before the lease is:
    /// only an answer that nothing of this lease can be there ends it, or a refusal if all requests for the lease were
    /// declined as well. `None` if it is given up, or if nothing can be there. Fails if it was not confirmed for
    /// `ATTEMPT` and others wait to be sent.
    async fn send_until_confirmed(
        &self,
        pending: &mut PendingRelease,
    ) -> Result<Option<Released>, BackendError> {
        let resource = pending.lease.resource.clone();
        let name = resource.name();
        let (begin, lasts) = (Instant::now(), pending.ttl.max(GIVE_UP_AFTER));
        let give_up = *pending.give_up.get_or_insert(begin + lasts);
        #[cfg(leasehold_planted)]
        let give_up = crate::planted::give_up(begin, give_up);
        let mut pause = RETRY;
        loop {
            // Kept if this is dropped with its runtime.
            let repeated = mem::replace(&mut pending.repeated, true);
            let answer = self.send_release(&pending.lease, pending.keep).await;
            let answer = answer.map(|found| if repeated { found.by_repetition() } else { found });
            *self.last_failure.lock() = answer.as_ref().err().cloned();
            // `release` waits like a request that does not wait, from the first attempt, which was `lasts` before the
            // end.
            let has_persisted = Instant::now() >= give_up - lasts + PERSIST;
            let is_final = |error: &BackendError| has_persisted || !error.is_transient();
            if answer.as_ref().err().is_none_or(is_final) {
                pending.tell(answer.clone());
            }
            match answer {
                // A request may still be on its way over a connection of the former home, if the store could not close
                // that.
                Ok(_) if pending.known == Known::Unsettled && self.home.has_just_moved(ON_ITS_WAY) => {
                    self.releases.settle(pending);
                    sleep(pause).await;
                    pause *= 2;
                }
                Ok(released) => {
                    tracing::debug!(target: "leasehold::lease", name, ?released, "released in the background");
                    return Ok(Some(released));
                }
                // Something else is stored under the key, so nothing of this lease is.
                Err(BackendError::WrongType { .. }) => return Ok(None),
                Err(error) if pending.known == Known::Declined && error.is_refusal() => return Ok(None),
                Err(error) if may_succeed(&error) && Instant::now() < give_up => {
                    tracing::debug!(target: "leasehold::lease", name, %error, "release not confirmed, sending it again");
                    if begin.elapsed() >= ATTEMPT && self.releases.is_any_waiting() {
                        return Err(error);
                    }
                    sleep(pause).await;
                    if error.is_refusal() {
                        pause = (pause * 2).min(REFUSED);
                    }
                }
                Err(error) => {
                    self.give_up_release(pending, &error);
                    return Ok(None);
                }
            }
        }
    }

    fn give_up_release(&self, pending: &PendingRelease, error: &BackendError) {
        let name = pending.lease.resource.name();
        tracing::warn!(target: "leasehold::lease", name, %error, "release given up; the lease ends when it expires");
        // `shutdown` closes the backend, and has already reported what was not confirmed by then.
        if !matches!(error, BackendError::Closed) {
            self.given_up.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The runtime of the tasks, if it still exists, is perhaps not driven, or ends with the process.
    fn release_outside_a_runtime(&self, pending: PendingRelease) {
        let time_limit = LAST_RELEASES.min(self.drops_wait.lock().left());
        let (Some(keeper), Some(background), false) =
            (self.this.upgrade(), &self.background, time_limit < SHORTEST_WAIT)
        else {
            return self.releases.push(pending);
        };
        let pending = self.releases.admit(pending);
        self.wait_for(background, time_limit, async move { keeper.send_once(pending).await });
    }

    /// The runtime of the tasks ends: sends what is pending from the crate's own thread.
    pub(super) fn send_last_releases(&self) {
        // Guards that were dropped outside a runtime before do not shorten this wait.
        *self.drops_wait.lock() = Patience::new();
        let (Some(keeper), Some(background)) = (self.this.upgrade(), &self.background) else { return };
        if self.releases.is_any_waiting() && !self.origin.is_elsewhere() {
            let pending = self.releases.take_pending();
            self.wait_for(background, LAST_RELEASES, async move {
                let send = |pending| keeper.send_once(pending).boxed();
                stream::iter(pending).for_each_concurrent(MAX_RELEASES, send).await;
            });
        }
    }

    /// A runtime of the application ends. Keeps the application waiting for releases that are in flight, if others did
    /// not keep it waiting in vain.
    pub(super) fn wait_for_last_releases(&self) {
        let limit = LAST_RELEASES.min(self.drops_wait.lock().left());
        let (Some(keeper), Some(background)) = (self.this.upgrade(), &self.background) else { return };
        if limit > SHORTEST_WAIT && self.releases.unfinished() > 0 && !self.origin.is_elsewhere() {
            self.wait_for(background, limit, async move {
                let _ = timeout(limit, keeper.releases.drained(|| true)).await;
            });
        }
    }

    /// Runs `work` on the crate's own thread, and keeps the application waiting for it.
    fn wait_for(
        &self,
        background: &Handle,
        limit: Duration,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        let begin = std::time::Instant::now();
        let (done, wait) = mpsc::channel::<Infallible>();
        spawn_on(background, async move {
            work.await;
            drop(done);
        });
        // Nothing is ever sent on this channel: the wait ends when the sender is dropped, or at the time limit, which
        // is not on tokio's clock, because a test may pause that.
        let is_late = !background::is_current() && wait.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
        self.drops_wait.lock().spend(begin.elapsed(), is_late);
    }

    /// Sends a release once, from the crate's own thread. Unless it ends a hold, it is pending again: a request for the
    /// lease may still be on its way, over a connection of the home, where the release follows it.
    async fn send_once(&self, pending: PendingRelease) {
        let mut pending = self.releases.until_finished(pending);
        self.ask_again(mem::take(&mut pending.next));
        pending.repeated = true;
        let released = self.backend.release_from_own_thread(&pending.lease, pending.keep).await;
        if matches!(released, Ok(Released::Held)) && pending.known != Known::Unsettled {
            pending.tell(released);
            self.finish(pending);
        }
    }
}

/// Whether a release that failed like this may be confirmed if it is sent again.
const fn may_succeed(error: &BackendError) -> bool {
    !matches!(error, BackendError::Closed | BackendError::Unsupported { .. })
}

/// Whether the result of a release means that the lease had been lost before. If the result is unknown, because an
/// earlier attempt may have been executed, the lease counts as held as long as its deadline has not passed, or if a
/// renewal found it gone before that.
fn lost_before(released: Released, ends: Instant, is_gone_in_time: bool) -> Option<LossReason> {
    let in_time = || is_gone_in_time || Instant::now() < ends;
    match released {
        Released::Held => None,
        Released::Unknown if in_time() => None,
        Released::Unknown => Some(LossReason::StoreUnreachable),
        Released::Revoked => Some(LossReason::Revoked),
        Released::Taken => Some(LossReason::Taken),
        Released::Queued | Released::Absent if in_time() => Some(LossReason::Missing),
        Released::Queued | Released::Absent => Some(LossReason::Expired),
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::MemoryBackend;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn what_a_release_found_says_whether_the_lease_had_been_lost() {
        let now = Instant::now();
        let (past, future) = (now, now + HOUR);
        for (found, ends, is_gone_in_time, reason) in [
            (Released::Held, past, false, None),
            (Released::Unknown, future, false, None),
            (Released::Unknown, past, true, None),
            (Released::Unknown, past, false, Some(LossReason::StoreUnreachable)),
            (Released::Revoked, future, false, Some(LossReason::Revoked)),
            (Released::Taken, future, false, Some(LossReason::Taken)),
            (Released::Absent, future, false, Some(LossReason::Missing)),
            (Released::Queued, past, true, Some(LossReason::Missing)),
            (Released::Absent, past, false, Some(LossReason::Expired)),
            (Released::Queued, past, false, Some(LossReason::Expired)),
        ] {
            assert_eq!(lost_before(found, ends, is_gone_in_time), reason, "{found:?}, {is_gone_in_time}");
        }
    }

    #[test]
    fn a_release_is_not_repeated_that_can_never_be_confirmed() {
        assert!(!may_succeed(&BackendError::Closed));
        assert!(may_succeed(&BackendError::Unanswered { source: "a time limit".into() }));
        assert!(may_succeed(&BackendError::Refused { source: "read-only".into() }));
    }
    #[test]
    fn a_wait_that_was_in_vain_leaves_no_time_for_the_next() {
        let keeper = Keeper::new(Arc::new(MemoryBackend::new()), None);
        let background = background::handle().expect("a thread can be started");
        let left = || keeper.drops_wait.lock().left();
        let (begun, all) = (std::time::Instant::now(), left());
        keeper.wait_for(&background, HOUR, async {});
        assert!(left() + begun.elapsed() >= all);
        let (end, ended) = oneshot::channel::<()>();
        let begun = std::time::Instant::now();
        keeper.wait_for(&background, SHORTEST_WAIT, async { drop(ended.await) });
        // It is regained while time passes.
        assert!(left() <= begun.elapsed());
        drop(end);
    }
}
