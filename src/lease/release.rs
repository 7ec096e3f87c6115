//! From the last guard to a confirmed release.
//!
//! `release` sends from the caller's task and awaits the answer; a guard that is dropped only queues its release, and so does a
//! `release` that is dropped or not answered. Queued releases are sent by a task of the keeper, and repeated until the store has
//! confirmed them; when the runtime of that task ends, by the crate's own thread.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use futures::StreamExt;
use futures::future::{join, join_all};
use futures::stream::FuturesUnordered;
use tokio::sync::oneshot;
use tokio::task::consume_budget;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::keeper::{Keeper, Next};
use super::lease::{Hold, Lease, Leaving};
use super::release_queue::{PendingRelease, Target, UnderWay};
use crate::backend::{BackendError, Released};
use crate::background;
use crate::error::LossReason;

/// The maximum number of releases in flight. The store answers them in order anyway; this bounds memory.
const MAX_RELEASES: usize = 256;
/// The pause before a release that was not answered is sent again.
const RETRY: Duration = Duration::from_millis(50);
/// How long an unanswered release is repeated, or for its TTL if that is longer. No request stays in flight that long: by
/// then the store has either executed it or lost the connection on which it was sent.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);

impl Keeper {
    pub(super) fn queue_release(&self, pending: PendingRelease) {
        self.releases.push(pending);
        if self.without_runtime.load(Ordering::SeqCst) {
            drop(self.send_from_own_thread());
        }
    }

    /// Releases a guard and its permits without waiting.
    pub(crate) fn abandon(&self, hold: &Hold, permits: u32) {
        let lease = &hold.lease;
        let now = Instant::now();
        match lease.leave(hold.token, permits, now) {
            Leaving::Last => {
                hold.give_back();
                if let Next::Back(next) = self.pass_on(lease, now) {
                    tracing::debug!(name = %lease.name(), token = hold.token.get(), "guard dropped, release queued");
                    self.queue_release(PendingRelease {
                        next,
                        ..PendingRelease::of(Target::Lease(Arc::clone(lease)))
                    });
                }
            }
            Leaving::Keeping(keep) => {
                self.queue_release(PendingRelease::of(Target::Permits(Arc::clone(lease), keep)))
            }
            Leaving::Sharing | Leaving::Ended(_) => {}
        }
    }

    /// Releases a guard and its permits: to the next waiter of this client, or to the store, whose answer is awaited.
    pub(crate) async fn release(&self, hold: &Hold, permits: u32) -> Result<(), ReleaseError> {
        let lease = &hold.lease;
        let ends = hold.ends().unwrap_or_else(Instant::now);
        let now = Instant::now();
        let leaving = lease.leave(hold.token, permits, now);
        let _giving_back = (leaving == Leaving::Last).then(|| GivingBack(hold));
        let (target, next) = match leaving {
            Leaving::Last => match self.pass_on(lease, now) {
                Next::Back(next) => (Target::Lease(Arc::clone(lease)), next),
                Next::Passed => return Ok(()),
                Next::Lost => return Err(ReleaseError::Lost(hold.reason())),
            },
            Leaving::Keeping(keep) => (Target::Permits(Arc::clone(lease), keep), Vec::new()),
            Leaving::Sharing => return Ok(()),
            Leaving::Ended(reason) => return Err(ReleaseError::Lost(reason)),
        };
        let part = matches!(target, Target::Permits(..));
        let answer = if next.is_empty() {
            self.release_in_place(target).await
        } else {
            self.release_behind(target, next).await
        };
        let released = answer.map_err(ReleaseError::Store)?;
        // The release of a part may find nothing because the rest of the lease was released in the meantime.
        let overtaken = part && lease.is_released();
        match lost_before(released, ends).filter(|_| !overtaken) {
            None => Ok(()),
            Some(reason) => {
                if part {
                    lease.lose(reason);
                    self.file(lease);
                } else {
                    lease.found_lost(hold.token, reason);
                }
                Err(ReleaseError::Lost(reason))
            }
        }
    }

    /// Sends a release from the caller's task. If it is not confirmed, it goes to the release queue.
    async fn release_in_place(&self, target: Target) -> Result<Released, BackendError> {
        let pending = Unconfirmed { keeper: self, target: Some(target.clone()) };
        let released = self.send_release(&target).await?;
        pending.finish();
        self.released(&target);
        Ok(released)
    }

    /// Has the keeper's task send the requests in `next` and then the release. Others wait for those requests, so they must
    /// not depend on the caller's future.
    async fn release_behind(&self, target: Target, next: Vec<Arc<Lease>>) -> Result<Released, BackendError> {
        let (confirm, confirmed) = oneshot::channel();
        self.queue_release(PendingRelease { target, next, confirm: Some(confirm) });
        confirmed.await.unwrap_or_else(|gone| Err(BackendError::Unanswered { source: gone.into() }))
    }

    async fn send_release(&self, target: &Target) -> Result<Released, BackendError> {
        match target {
            Target::Lease(lease) => self.backend.release(lease.lease_ref()).await,
            Target::Permits(lease, keep) => self.backend.release_permits(lease.lease_ref(), *keep).await,
            Target::Orphan(lease) => self.backend.release(lease).await,
        }
    }

    /// A release was confirmed, or given up.
    fn released(&self, target: &Target) {
        let Target::Lease(lease) = target else { return };
        self.forget(lease);
        if lease.granted_since() {
            // Its request may have been executed after its release. If it was not, this release finds nothing.
            self.queue_release(PendingRelease::of(Target::Orphan(lease.lease_ref().clone())));
        }
    }

    /// Waits until no release is pending. Returns whether the store has confirmed all those that were pending.
    pub(super) async fn drained(&self) -> bool {
        let given_up = || self.given_up.load(Ordering::Relaxed);
        let before = given_up();
        self.releases.drained(|| self.leases.lock().is_empty()).await;
        given_up() == before
    }

    /// Sends pending releases.
    pub(super) async fn send_releases(&self, abandoned: &CancellationToken) {
        let mut releases = FuturesUnordered::new();
        let mut drained = pin!(self.drained_after(abandoned));
        loop {
            consume_budget().await;
            while releases.len() < MAX_RELEASES {
                let Some(pending) = self.releases.pop() else { break };
                releases.push(self.send_pending(pending));
            }
            tokio::select! {
                biased;
                Some(()) = releases.next() => {}
                () = self.releases.queued(), if releases.len() < MAX_RELEASES => {}
                // Others may be sent from the crate's own thread, and be pending again if that fails.
                () = &mut drained, if releases.is_empty() => return,
            }
        }
    }

    async fn drained_after(&self, abandoned: &CancellationToken) {
        abandoned.cancelled().await;
        self.releases.drained(|| true).await;
    }

    /// Sends the requests for the next leases and the release, in this order, without waiting in between.
    async fn send_pending(&self, mut pending: UnderWay<'_>) {
        let next = pending.take_next();
        if next.is_empty() {
            return self.send_until_confirmed(pending).await;
        }
        next.iter().for_each(|lease| lease.start_asking());
        let asked = join_all(next.into_iter().map(|lease| self.ask(lease)));
        join(asked, self.send_until_confirmed(pending)).await;
    }

    /// Repeats a release until the store confirms it, even after the TTL has passed: the request for the lease may still be in
    /// flight, and be granted later.
    async fn send_until_confirmed(&self, mut pending: UnderWay<'_>) {
        let Some(target) = pending.target() else { return };
        let key = &*target.lease_ref().resource.key;
        let give_up = Instant::now() + target.ttl().map_or(GIVE_UP_AFTER, |ttl| ttl.max(GIVE_UP_AFTER));
        loop {
            let answer = self.send_release(&target).await;
            pending.confirm(|| answer.as_ref().copied().map_err(BackendError::again));
            match answer {
                Ok(released) => {
                    tracing::debug!(key, ?released, "released in the background");
                    break;
                }
                Err(error) if error.is_transient() && Instant::now() < give_up => {
                    tracing::debug!(key, %error, "release not answered, sending it again");
                    sleep(RETRY).await;
                }
                // Something else is stored under the key, so nothing of this lease is.
                Err(BackendError::WrongType { .. }) => break,
                Err(error) => {
                    tracing::warn!(key, %error, "release given up: it happens when the lease ends");
                    // `shutdown` closes the backend, and has already reported what was not confirmed by then.
                    if !matches!(error, BackendError::Closed) {
                        self.given_up.fetch_add(1, Ordering::Relaxed);
                    }
                    break;
                }
            }
        }
        self.released(&target);
        pending.finish();
    }

    /// The runtime of the keeper's task has ended: what is pending is sent from the crate's own thread, and so is what is queued
    /// until another runtime takes over. Waits for it at most for `time_limit`.
    pub(super) fn leave_runtime(&self, time_limit: Duration) {
        self.without_runtime.store(true, Ordering::SeqCst);
        if let Some(done) = self.send_from_own_thread() {
            // Nothing is ever sent: it ends when the other side is gone, or too late.
            let _ = done.recv_timeout(time_limit);
        }
    }

    fn send_from_own_thread(&self) -> Option<mpsc::Receiver<Infallible>> {
        if self.releases.is_empty() {
            return None;
        }
        // Without a thread they stay pending, and are sent by the next runtime that uses the client.
        let (keeper, background) = (self.this.upgrade()?, background::handle().ok()?);
        let (done, wait) = mpsc::channel();
        background.spawn(async move {
            keeper.send_pending_releases().await;
            drop(done);
        });
        Some(wait)
    }

    /// Sends the releases that are pending now, on the crate's own thread. Those that the store does not answer at all, perhaps
    /// because its client belongs to a runtime that has ended, are pending again afterwards.
    async fn send_pending_releases(&self) {
        let mut releases = FuturesUnordered::new();
        while let Some(mut pending) = self.releases.pop() {
            // These are requested by the keeper's task on the next runtime.
            self.ask_again(pending.take_next());
            releases.push(timeout(GIVE_UP_AFTER, self.send_until_confirmed(pending)));
        }
        while releases.next().await.is_some() {}
    }
}

/// Why a release did not end a hold.
#[derive(Debug)]
pub(crate) enum ReleaseError {
    Lost(LossReason),
    Store(BackendError),
}

/// A release in progress. When it is over or dropped, everybody who waits for the end of the hold is notified.
struct GivingBack<'a>(&'a Hold);

impl Drop for GivingBack<'_> {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

/// A release that the caller's task sends: it goes to the release queue unless the store confirms it.
struct Unconfirmed<'a> {
    keeper: &'a Keeper,
    target: Option<Target>,
}

impl Unconfirmed<'_> {
    fn finish(mut self) {
        self.target = None;
    }
}

impl Drop for Unconfirmed<'_> {
    fn drop(&mut self) {
        if let Some(target) = self.target.take() {
            self.keeper.queue_release(PendingRelease::of(target));
        }
    }
}

/// Whether the result of a release means that the lease had been lost before. If the result is unknown, the lease counts as
/// held as long as its deadline has not passed.
fn lost_before(released: Released, ends: Instant) -> Option<LossReason> {
    match released {
        Released::Held => None,
        Released::Unknown if Instant::now() < ends => None,
        Released::Unknown => Some(LossReason::StoreUnreachable),
        Released::Taken => Some(LossReason::Taken),
        Released::Queued | Released::Absent if Instant::now() < ends => Some(LossReason::Missing),
        Released::Queued | Released::Absent => Some(LossReason::Expired),
    }
}
