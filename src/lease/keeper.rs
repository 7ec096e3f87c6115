//! Keeps the leases of a client, and releases those that have ended.
//!
//! The client owns its leases from before they are requested until their release is confirmed; a user's future owns none. The
//! keeper's task repeats the requests of waiting leases (at shared moments, so that they travel together), handles the store's
//! events, and sends pending releases. Held leases are renewed, many in one request, and their deadlines watched: by a task on
//! the crate's own thread if the store allows it, otherwise by the same task. Neither waits for one request before it looks
//! after the next lease.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak, mpsc};
use std::time::Duration;

use futures::future::{join, join_all};
use futures::stream::{BoxStream, FuturesUnordered};
use futures::{Stream, StreamExt};
use tokio::sync::oneshot;
use tokio::task::consume_budget;
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::lease::{Heard, Hold, Lease, Leaving, Outcome, Step, Told};
use super::reentry::Owners;
use super::release_queue::{PendingRelease, ReleaseQueue, Target, UnderWay};
use super::schedule::{List, Schedule};
use crate::backend::{
    Answer, Backend, BackendError, Claim, Event, LeaseId, LeaseRef, Limit, Released, Request,
};
use crate::background;
use crate::closing::Closing;
use crate::error::LossReason;
use crate::handover::{Group, Queue, Queues, tokens};
use crate::name::Name;
use crate::options::Terms;
use crate::sync::Mutex;

/// The maximum number of releases in flight. The store answers them in order anyway; this bounds memory.
const MAX_RELEASES: usize = 256;
/// The pause before a release that was not answered is sent again.
const RETRY: Duration = Duration::from_millis(50);
/// How long an unanswered release is repeated, or for its TTL if that is longer. No request stays in flight that long: by
/// then the store has either executed it or lost the connection on which it was sent.
const PATIENCE: Duration = Duration::from_secs(60);

/// All leases of a client, and the work that is due for them.
#[derive(Debug)]
pub(crate) struct Keeper {
    this: Weak<Self>,
    backend: Arc<dyn Backend>,
    /// Every lease from before it is requested until its release is confirmed.
    leases: Mutex<HashMap<LeaseId, Arc<Lease>>>,
    schedule: Schedule,
    releases: ReleaseQueue,
    queues: Queues<oneshot::Sender<Told>>,
    owners: Owners,
    closing: Closing,
    /// How many releases were never confirmed.
    given_up: AtomicUsize,
    /// The runtime of the keeper's task has ended, and no other has taken over; for stores that can be used from the crate's own
    /// thread.
    without_runtime: AtomicBool,
}

/// What happens to a lease whose hold has ended.
enum Next {
    /// It was passed on within this client.
    Passed,
    /// It is returned to the store, after these leases have been requested.
    Back(Vec<Arc<Lease>>),
    /// It had been lost before.
    Lost,
}

impl Keeper {
    pub(super) fn new(backend: Arc<dyn Backend>) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            backend,
            leases: Mutex::new(HashMap::new()),
            schedule: Schedule::default(),
            releases: ReleaseQueue::default(),
            queues: Queues::default(),
            owners: Owners::default(),
            closing: Closing::default(),
            given_up: AtomicUsize::new(0),
            without_runtime: AtomicBool::new(false),
        })
    }

    pub(crate) const fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    pub(crate) const fn owners(&self) -> &Owners {
        &self.owners
    }

    pub(crate) const fn closing(&self) -> &Closing {
        &self.closing
    }

    pub(super) const fn queues(&self) -> &Queues<oneshot::Sender<Told>> {
        &self.queues
    }

    pub(super) const fn releases(&self) -> &ReleaseQueue {
        &self.releases
    }
}

// Requests

impl Keeper {
    /// Creates a lease, which the client owns from here on. `None` once the client is closed.
    pub(super) fn open(
        &self,
        name: &Name,
        terms: Terms,
        claim: &Claim,
        waits: bool,
        group: Option<Group>,
    ) -> Option<Arc<Lease>> {
        let lease = LeaseRef::new(self.backend.lease_id(), name.resource().clone());
        let mut request = Request::new(lease, claim.clone(), terms.ttl);
        (request.waits, request.tokens) = (waits, tokens(group.is_some()));
        let lease = Lease::new(name, request, terms, group);
        let mut leases = self.leases.lock();
        if self.closing.is_closed() {
            return None;
        }
        leases.insert(lease.id(), Arc::clone(&lease));
        Some(lease)
    }

    /// Removes a lease whose release is confirmed or given up.
    pub(super) fn forget(&self, lease: &Lease) {
        self.leases.lock().remove(&lease.id());
        if self.closing.is_closed() {
            self.releases.look();
        }
    }

    /// Schedules a lease by the instant at which something is due for it.
    pub(super) fn file(&self, lease: &Arc<Lease>) {
        self.schedule.file([Arc::clone(lease)]);
    }

    /// From now on the keeper repeats the requests that waiters have sent themselves, because others wait for these leases too.
    pub(super) fn watch(&self, queue: &mut Queue<oneshot::Sender<Told>>) {
        let in_place = queue.take_in_place();
        if !in_place.is_empty() {
            self.schedule.file(self.of(&in_place));
        }
    }

    fn of(&self, leases: &[LeaseId]) -> Vec<Arc<Lease>> {
        let table = self.leases.lock();
        leases.iter().filter_map(|id| table.get(id).cloned()).collect()
    }

    /// The future that requested this lease itself has been dropped. The keeper repeats the request if the lease still waits.
    pub(super) fn take_on(&self, lease: &Arc<Lease>) {
        if lease.waits() {
            lease.leave_to_keeper(Instant::now());
            self.file(lease);
        }
    }

    /// Why the last request or renewal for a group was not answered, if one was not.
    pub(super) fn silence(&self, group: &Group) -> Option<BackendError> {
        let leases = self.queues.with(group, None, |queue| self.of(&queue.leases()));
        leases.iter().find_map(|lease| lease.silence())
    }

    /// Sends the request for a lease, for the first time or again.
    async fn ask(&self, lease: Arc<Lease>) {
        let Some(request) = lease.request_again() else { return };
        let sent = Instant::now();
        let answer = self.backend.request(&request).await;
        let limit = answer.as_ref().ok().and_then(Answer::limit);
        let known = matches!(answer, Ok(Answer::Granted(_) | Answer::Queued(_)));
        let now = Instant::now();
        match lease.answered(answer, sent, now) {
            Outcome::Granted => self.granted(&lease, now),
            Outcome::Queued => {
                self.file(&lease);
                self.follow(&lease, limit);
            }
            Outcome::Busy => {
                let source = "a request that waits was told that it does not".into();
                self.failed(&lease, &BackendError::Refused { source });
            }
            Outcome::Failed(error) => self.failed(&lease, &error),
            Outcome::Over if known => self.known_again(&lease),
            Outcome::Over => {}
        }
    }

    /// A request was answered, or its grant told, after its lease was given up. If it was executed after the release, the store has a record of the
    /// lease again.
    pub(super) fn known_again(&self, lease: &Lease) {
        lease.note_grant();
        // If the release is still in flight, `released` looks at the note when it is answered.
        let is_confirmed = self.lease(lease.id()).is_none();
        if is_confirmed && lease.granted_since() {
            self.queue_release(PendingRelease::of(Target::Orphan(lease.lease_ref().clone())));
        }
    }

    /// Takes over the limit that the store has reported for a group: more leases may be wanted under it.
    pub(super) fn follow(&self, lease: &Arc<Lease>, limit: Option<Limit>) {
        let (Some(group), Some(limit)) = (lease.group(), limit) else { return };
        self.queues.with(group, None, |queue| queue.follow(limit.permits));
        self.ask_more(lease);
    }

    /// Requests as many leases like this one as the waiters of its group still want.
    pub(super) fn ask_more(&self, like: &Arc<Lease>) {
        let Some(group) = like.group() else { return };
        let more = self.queues.with(group, None, |queue| self.wanted(queue, like));
        self.request(more);
    }

    /// Has these leases requested.
    fn request(&self, leases: Vec<Arc<Lease>>) {
        if leases.is_empty() {
            return;
        }
        for lease in &leases {
            lease.ask_soon(Instant::now());
        }
        self.schedule.file(leases);
    }

    /// Creates as many leases as the waiters of a group still want.
    fn wanted(&self, queue: &mut Queue<oneshot::Sender<Told>>, like: &Lease) -> Vec<Arc<Lease>> {
        let mut leases = Vec::new();
        while queue.wanted() > 0 {
            let (terms, group) = (like.terms(), like.group().cloned());
            let Some(lease) = self.open(like.name(), terms, &like.claim(), true, group) else { break };
            queue.ask(lease.id());
            leases.push(lease);
        }
        leases
    }
}

// Held and ended leases

impl Keeper {
    /// A lease was granted, and nobody has taken it up yet.
    fn granted(&self, lease: &Arc<Lease>, now: Instant) {
        let Some(group) = lease.group() else {
            if let Some(waiter) = lease.waiter() {
                self.hand_to(waiter, lease);
            }
            return;
        };
        let next = |queue: &mut Queue<_>| (next(queue, lease, now), self.wanted(queue, lease));
        let held = self.hold(group, lease, next);
        let handed = held.is_some_and(|(first, more)| {
            let handed = self.offer_to(first, lease);
            self.request(more);
            handed
        });
        // Its end must be noticed, because others may want it if whoever was told does not take it up. If it is still filed as
        // waiting, this is soon enough.
        if !handed || !lease.is_filed() {
            self.file(lease);
        }
    }

    /// Records that a lease of a group is held. `None` if it was given up in the meantime; then it is released.
    pub(super) fn hold<T>(
        &self,
        group: &Group,
        lease: &Arc<Lease>,
        then: impl FnOnce(&mut Queue<oneshot::Sender<Told>>) -> T,
    ) -> Option<T> {
        let limit = lease.limit();
        let held = self.queues.with(group, None, |queue| {
            if let Some(limit) = limit {
                queue.follow(limit.permits);
            }
            queue.hold(lease.id()).then(|| then(queue))
        });
        if held.is_none() && lease.end() {
            self.queue_release(PendingRelease::of(Target::Lease(Arc::clone(lease))));
        }
        held
    }

    fn hand_to(&self, waiter: oneshot::Sender<Told>, lease: &Arc<Lease>) {
        let Some(hold) = lease.hand() else { return };
        if waiter.send(Told::Granted(hold)).is_err() {
            self.end(lease);
        }
    }

    /// Hands the lease to the waiter of the group that has waited longest. If nobody waits, it is returned to the store.
    pub(super) fn offer(&self, lease: &Arc<Lease>) {
        if let Some(group) = lease.group() {
            let first = self.queues.with(group, None, |queue| next(queue, lease, Instant::now()));
            self.offer_to(first, lease);
        }
    }

    /// The same, where the first waiter is known already. Returns whether a waiter has the lease now.
    fn offer_to(&self, mut first: Option<(Hold, Option<oneshot::Sender<Told>>)>, lease: &Arc<Lease>) -> bool {
        while let Some((hold, waiter)) = first {
            let token = hold.token;
            match waiter.map(|waiter| waiter.send(Told::Granted(hold)).is_ok()) {
                Some(true) => return true,
                Some(false) => lease.take_back(token),
                None => {
                    self.end(lease);
                    return false;
                }
            }
            let Some(group) = lease.group() else { return false };
            first = self.queues.with(group, None, |queue| next(queue, lease, Instant::now()));
        }
        false
    }

    /// The request for a lease has failed for good.
    fn failed(&self, lease: &Arc<Lease>, error: &BackendError) {
        if let Some(waiter) = lease.waiter() {
            let _ = waiter.send(Told::Failed(error.again()));
        }
        if let Some(group) = lease.group() {
            let dismissed = self.queues.with(group, None, |queue| {
                queue.end(lease.id());
                queue.dismiss()
            });
            for waiter in dismissed {
                let _ = waiter.send(Told::Failed(error.again()));
            }
            self.give_up_surplus(group);
        }
        self.queue_release(PendingRelease::of(Target::Lease(Arc::clone(lease))));
    }

    /// Nobody waits for this lease any more.
    pub(super) fn give_up(&self, lease: &Arc<Lease>) {
        if lease.give_up() {
            self.schedule.forget(lease);
            self.queue_release(PendingRelease::of(Target::Lease(Arc::clone(lease))));
        } else if lease.group().is_none() {
            self.end(lease);
        }
    }

    /// Gives up the requested leases of a group for which nobody waits any more.
    pub(super) fn give_up_surplus(&self, group: &Group) {
        while let Some(id) = self.queues.with(group, None, Queue::surplus) {
            let lease = self.leases.lock().get(&id).cloned();
            if let Some(lease) = lease {
                self.give_up(&lease);
            }
        }
    }

    /// A hold whose receiver has gone: hands it to the next waiter of the group, or returns the lease to the store.
    pub(super) fn give_back(&self, hold: &Hold) {
        hold.lease.take_back(hold.token);
        if hold.lease.group().is_some() {
            self.offer(&hold.lease);
        } else {
            self.end(&hold.lease);
        }
    }

    /// Returns a lease to the store.
    fn end(&self, lease: &Arc<Lease>) {
        if let Next::Back(next) = self.back(lease) {
            self.queue_release(PendingRelease {
                next,
                ..PendingRelease::of(Target::Lease(Arc::clone(lease)))
            });
        }
    }

    fn back(&self, lease: &Arc<Lease>) -> Next {
        if !lease.end() {
            return Next::Lost;
        }
        self.schedule.forget(lease);
        self.owners.forget(lease);
        Next::Back(self.followers(lease))
    }

    /// A lease is no longer held: creates those that the waiters of its group now want instead.
    fn followers(&self, lease: &Arc<Lease>) -> Vec<Arc<Lease>> {
        let Some(group) = lease.group() else { return Vec::new() };
        self.queues.with(group, None, |queue| self.instead_of(lease, queue))
    }

    fn instead_of(&self, lease: &Lease, queue: &mut Queue<oneshot::Sender<Told>>) -> Vec<Arc<Lease>> {
        queue.end(lease.id());
        self.wanted(queue, lease)
    }

    /// The last guard of a hold has gone: passes the lease on to the next waiter of this client, or ends it.
    fn pass_on(&self, lease: &Arc<Lease>, now: Instant) -> Next {
        let Some(group) = lease.group() else { return self.back(lease) };
        let passed = self.queues.with(group, None, |queue| match queue.next_if(|| lease.pass_on(now)) {
            Some((waiter, hold)) => Ok((waiter, hold, queue.has_surplus())),
            None => Err(lease.end().then(|| self.instead_of(lease, queue))),
        });
        let (waiter, hold, has_surplus) = match passed {
            Ok(passed) => passed,
            Err(None) => return Next::Lost,
            Err(Some(next)) => {
                self.schedule.forget(lease);
                return Next::Back(next);
            }
        };
        tracing::debug!(name = %lease.name(), "passed on within the client");
        let token = hold.token;
        if lease.is_capped() {
            self.file(lease);
        }
        if waiter.send(Told::Granted(hold)).is_err() {
            lease.take_back(token);
            self.offer(lease);
        }
        if has_surplus {
            self.give_up_surplus(group);
        }
        Next::Passed
    }

    /// A lost lease is released as well: the store may still count it as held.
    fn release_lost(&self, lease: &Arc<Lease>) {
        self.owners.forget(lease);
        let next = self.followers(lease);
        self.queue_release(PendingRelease { next, ..PendingRelease::of(Target::Lease(Arc::clone(lease))) });
    }

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
        pending.settle();
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

    /// Closes the client: no more requests are sent, and every held lease is lost.
    pub(super) fn close(&self) {
        self.closing.close();
        let leases: Vec<_> = self.leases.lock().values().cloned().collect();
        for lease in leases {
            lease.lose(LossReason::ClientClosed);
            if lease.step(Instant::now()) == Step::Release {
                self.schedule.forget(&lease);
                self.release_lost(&lease);
            } else if lease.give_up() {
                self.queue_release(PendingRelease::of(Target::Lease(lease)));
            }
        }
        drop(self.queues.dismiss_all());
    }

    /// Waits until no release is pending. Returns whether the store has confirmed all those that were pending.
    pub(super) async fn drained(&self) -> bool {
        let given_up = || self.given_up.load(Ordering::Relaxed);
        let before = given_up();
        self.releases.drained(|| self.leases.lock().is_empty()).await;
        given_up() == before
    }
}

fn set_alarm(at: Instant, alarm: Pin<&mut Sleep>) {
    if alarm.deadline() != at {
        alarm.reset(at);
    }
}

/// The current hold of a lease, for the waiter that has waited longest, if anybody waits. `None` if the lease has no hold to hand
/// out.
fn next<W>(queue: &mut Queue<W>, lease: &Arc<Lease>, now: Instant) -> Option<(Hold, Option<W>)> {
    let hold = lease.hand().filter(|hold| hold.loss(now).is_none())?;
    Some((hold, queue.next()))
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
    fn settle(mut self) {
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

// The task

impl Keeper {
    /// Runs the keeper's duties until `abandoned` is cancelled and no release is pending. Held leases are kept here only if
    /// `held_too`.
    pub(super) async fn run(
        self: Arc<Self>,
        events: BoxStream<'static, Event>,
        abandoned: CancellationToken,
        held_too: bool,
    ) {
        self.without_runtime.store(false, Ordering::SeqCst);
        self.take_over(held_too);
        // Tasks of their own, so that a message does not wake those that send releases, and the other way round.
        let queued = AbortOnDropHandle::new(tokio::spawn(Arc::clone(&self).keep_queued(events)));
        let held = async {
            if held_too {
                AbortOnDropHandle::new(tokio::spawn(Arc::clone(&self).renew_held())).await
            } else {
                std::future::pending().await
            }
        };
        // The task ends when no release is pending any more. The others never end, unless they panic.
        tokio::select! {
            () = self.send_releases(&abandoned) => {}
            _ = queued => {}
            _ = held => {}
        }
    }

    /// Makes everything due again that was in progress on a runtime that has ended.
    fn take_over(&self, held_too: bool) {
        self.schedule.clear(List::Queued);
        if held_too {
            self.schedule.clear(List::Held);
        }
        let mut leases: Vec<_> = self.leases.lock().values().cloned().collect();
        let now = Instant::now();
        leases.retain(|lease| (held_too || lease.waits()) && lease.take_over(now));
        self.schedule.file(leases);
    }

    /// Keeps held leases: renews them and notices their end. Runs until `abandoned` is cancelled; nothing is held after that.
    pub(super) async fn keep_held(self: Arc<Self>, abandoned: CancellationToken) {
        tokio::select! {
            () = Arc::clone(&self).renew_held() => {}
            () = abandoned.cancelled() => {}
        }
    }

    async fn renew_held(self: Arc<Self>) {
        let mut renewals = FuturesUnordered::new();
        let mut alarm = pin!(sleep_until(Instant::now()));
        loop {
            // A store that answers at once must not keep other tasks from running.
            consume_budget().await;
            let ask = self.tend(List::Held, Instant::now());
            debug_assert!(ask.is_empty(), "leases that are to be requested are in the other list");
            let rounds = self.schedule.start_rounds().into_iter();
            renewals.extend(rounds.map(|round| self.schedule.ask(&*self.backend, round)));
            set_alarm(self.schedule.set_alarm(List::Held), alarm.as_mut());
            tokio::select! {
                Some(()) = renewals.next() => {}
                () = self.schedule.rescheduled(List::Held) => {}
                () = &mut alarm => {}
            }
        }
    }

    async fn keep_queued(self: Arc<Self>, events: BoxStream<'static, Event>) {
        let mut events = events.fuse();
        let mut asks = FuturesUnordered::new();
        let mut alarm = pin!(sleep_until(Instant::now()));
        loop {
            consume_budget().await;
            asks.extend(self.tend(List::Queued, Instant::now()).into_iter().map(|lease| self.ask(lease)));
            set_alarm(self.schedule.set_alarm(List::Queued), alarm.as_mut());
            tokio::select! {
                () = self.hear_all(&mut events) => {}
                Some(()) = asks.next() => {}
                () = self.schedule.rescheduled(List::Queued) => {}
                () = &mut alarm => {}
            }
        }
    }

    /// Handles the store's events. Never ends; whatever becomes due sets off the schedule.
    async fn hear_all(&self, events: &mut (impl Stream<Item = Event> + Unpin)) {
        while let Some(event) = events.next().await {
            self.hear(event);
            consume_budget().await;
        }
        std::future::pending().await
    }

    /// Does what is due for every lease of a list. Returns those that are to be requested.
    fn tend(&self, list: List, now: Instant) -> Vec<Arc<Lease>> {
        let (mut ask, mut renew, mut wait) = (Vec::new(), Vec::new(), Vec::new());
        for lease in self.schedule.take_due(list, now) {
            match lease.step(now) {
                Step::Ask => ask.push(lease),
                Step::Renew => renew.push(lease),
                Step::Wait => {
                    lease.leave_round();
                    wait.push(lease);
                }
                Step::Release => self.release_lost(&lease),
                Step::Forget => {}
            }
        }
        if !wait.is_empty() {
            self.schedule.file(wait);
        }
        if !renew.is_empty() {
            self.schedule.renew(&renew);
            if list == List::Queued {
                self.schedule.wake(List::Held);
            }
        }
        ask
    }

    /// Handles an event from the store.
    fn hear(&self, event: Event) {
        match event {
            Event::Granted { lease, ticket, grant } => {
                let Some(known) = self.lease(lease.id) else {
                    tracing::debug!(lease = ?lease.id, key = &*lease.resource.key, "granted to nobody, releasing");
                    return self.queue_release(PendingRelease::of(Target::Orphan(lease)));
                };
                let now = Instant::now();
                match known.told(ticket, grant, now) {
                    Heard::Granted => self.granted(&known, now),
                    Heard::Doubtful => self.file(&known),
                    Heard::Known => self.known_again(&known),
                }
            }
            Event::Revoked { lease, token } => {
                if let Some(known) = self.lease(lease)
                    && known.revoke(token)
                {
                    self.file(&known);
                }
            }
            Event::AskAgain(lease) => self.ask_again(self.lease(lease)),
            Event::Changed(key) => {
                let waits = |lease: &Lease| lease.lease_ref().resource.key == key;
                self.ask_again(self.all(waits));
            }
            Event::Resync => self.ask_again(self.all(|_| true)),
        }
    }

    fn lease(&self, id: LeaseId) -> Option<Arc<Lease>> {
        self.leases.lock().get(&id).cloned()
    }

    fn all(&self, meant: impl Fn(&Lease) -> bool) -> Vec<Arc<Lease>> {
        self.leases.lock().values().filter(|lease| lease.waits() && meant(lease)).cloned().collect()
    }

    fn ask_again(&self, leases: impl IntoIterator<Item = Arc<Lease>>) {
        let now = Instant::now();
        self.schedule.file(leases.into_iter().inspect(|lease| lease.ask_soon(now)));
    }

    /// Sends pending releases.
    async fn send_releases(&self, abandoned: &CancellationToken) {
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

    /// Sends the releases that are pending now, on the crate's own thread. Those that the store does not answer at all, perhaps
    /// because its client belongs to a runtime that has ended, are pending again afterwards.
    async fn send_pending_releases(&self) {
        let mut releases = FuturesUnordered::new();
        while let Some(mut pending) = self.releases.pop() {
            // These are requested by the keeper's task on the next runtime.
            self.ask_again(pending.take_next());
            releases.push(timeout(PATIENCE, self.send_until_confirmed(pending)));
        }
        while releases.next().await.is_some() {}
    }

    /// The runtime of the keeper's task has ended: what is pending is sent from the crate's own thread, and so is what is queued
    /// until another runtime takes over. Waits for it at most for `patience`.
    pub(super) fn leave_runtime(&self, patience: Duration) {
        self.without_runtime.store(true, Ordering::SeqCst);
        if let Some(done) = self.send_from_own_thread() {
            // Nothing is ever sent: it ends when the other side is gone, or too late.
            let _ = done.recv_timeout(patience);
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
        let give_up = Instant::now() + target.ttl().map_or(PATIENCE, |ttl| ttl.max(PATIENCE));
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
        pending.settle();
    }
}
