//! Keeps every living lease of a client alive, and releases every one that is over.
//!
//! The client owns its leases from before they are asked for until their release is confirmed; a user's future owns none. One task
//! per client renews those that are held, many in one request; asks again for those that wait, at moments that they share, so that
//! they travel together; hears what the store tells; and sends the releases that are pending. It never waits for one request before it looks at
//! another lease.

use std::collections::HashMap;
use std::pin::{Pin, pin};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::{join, join_all};
use futures::stream::{BoxStream, FuturesUnordered};
use futures::{FutureExt, StreamExt};
use tokio::sync::oneshot;
use tokio::task::consume_budget;
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::lease::{Heard, Hold, Lease, Leaving, Outcome, Step, Told};
use super::reentry::Owners;
use super::release_queue::{PendingRelease, ReleaseQueue, Target, UnderWay};
use super::schedule::Schedule;
use crate::backend::{
    Answer, Backend, BackendError, Claim, Event, LeaseId, LeaseRef, Limit, Released, Request,
};
use crate::closing::Closing;
use crate::error::LossReason;
use crate::handover::{Group, Queue, Queues, tokens};
use crate::name::Name;
use crate::options::Terms;
use crate::sync::Mutex;

/// Releases under way at once. The store answers them in order anyway; this bounds memory.
const MAX_RELEASES: usize = 256;
/// Events that are heard before the keeper looks at its other duties.
const EVENTS: usize = 64;
/// The pause before a release that was not answered is sent again.
const RETRY: Duration = Duration::from_millis(50);
/// How long a release is sent again while it is not answered, or for its TTL if that is longer. No request can be on its way for
/// as long as this: the store has either carried it out or lost the connection that it came by.
const PATIENCE: Duration = Duration::from_secs(60);

/// All leases of a client, and what is to be done for them.
#[derive(Debug)]
pub(crate) struct Keeper {
    backend: Arc<dyn Backend>,
    /// From before they are asked for until their release is confirmed.
    leases: Mutex<HashMap<LeaseId, Arc<Lease>>>,
    /// The leases that are asked for, and those that are held.
    queued: Schedule,
    held: Schedule,
    releases: ReleaseQueue,
    queues: Queues<oneshot::Sender<Told>>,
    owners: Owners,
    closing: Closing,
    /// How many releases were never confirmed.
    given_up: AtomicUsize,
}

/// What becomes of a lease whose hold is over.
enum Next {
    /// Somebody else of this client has it.
    Passed,
    /// It goes back, and these are asked for before.
    Back(Vec<Arc<Lease>>),
    /// It was lost before.
    Lost,
}

impl Keeper {
    pub(super) fn new(backend: Arc<dyn Backend>) -> Self {
        Self {
            backend,
            leases: Mutex::new(HashMap::new()),
            queued: Schedule::default(),
            held: Schedule::default(),
            releases: ReleaseQueue::default(),
            queues: Queues::default(),
            owners: Owners::default(),
            closing: Closing::default(),
            given_up: AtomicUsize::new(0),
        }
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

// Asking

impl Keeper {
    /// A lease that the client owns from here on. `None` once the client is closed.
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

    /// No release of this lease is pending any more.
    pub(super) fn forget(&self, lease: &Lease) {
        self.leases.lock().remove(&lease.id());
        if self.closing.is_closed() {
            self.releases.look();
        }
    }

    /// Files a lease by what is due for it next.
    pub(super) fn file(&self, lease: &Arc<Lease>) {
        if lease.waits() {
            self.queued.file([Arc::clone(lease)]);
        } else {
            self.queued.forget(lease);
            self.held.file([Arc::clone(lease)]);
        }
    }

    /// The keeper asks as well for the leases for which somebody asks in place, now that others wait for them too.
    pub(super) fn watch(&self, queue: &mut Queue<oneshot::Sender<Told>>) {
        let in_place = queue.take_in_place();
        if !in_place.is_empty() {
            self.queued.file(self.of(&in_place));
        }
    }

    fn of(&self, leases: &[LeaseId]) -> Vec<Arc<Lease>> {
        let table = self.leases.lock();
        leases.iter().filter_map(|id| table.get(id).cloned()).collect()
    }

    /// Whoever asked for this lease in place has gone. If others wait for it, it is asked for again.
    pub(super) fn take_on(&self, lease: &Arc<Lease>) {
        if lease.waits() {
            lease.ask_soon(Instant::now());
            self.file(lease);
        }
    }

    /// Why the store was not heard when it was asked for a group last, if it was not.
    pub(super) fn silence(&self, group: &Group) -> Option<BackendError> {
        let leases = self.queues.with(group, None, |queue| self.of(&queue.leases()));
        leases.iter().find_map(|lease| lease.silence())
    }

    /// Asks the store for a lease, first or again.
    async fn ask(&self, lease: Arc<Lease>) {
        let Some(request) = lease.request_again() else { return };
        let sent = Instant::now();
        let answer = self.backend.request(&request).await;
        let limit = answer.as_ref().ok().and_then(Answer::limit);
        let known = matches!(answer, Ok(Answer::Granted(_) | Answer::Queued(_)));
        match lease.answered(answer, sent, Instant::now()) {
            Outcome::Granted => self.granted(&lease),
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

    /// A request was answered after its lease was given up. If it was carried out after the release, the store knows it again.
    fn known_again(&self, lease: &Lease) {
        lease.note_grant();
        // If the release is under way, whoever hears its answer looks for the note.
        let is_confirmed = self.lease(lease.id()).is_none();
        if is_confirmed && lease.granted_since() {
            self.queue_release(PendingRelease::of(Target::Orphan(lease.lease_ref().clone())));
        }
    }

    /// The limit of a group has turned out to be this: more may be asked for.
    pub(super) fn follow(&self, lease: &Arc<Lease>, limit: Option<Limit>) {
        let (Some(group), Some(limit)) = (lease.group(), limit) else { return };
        self.queues.with(group, None, |queue| queue.follow(limit.permits));
        self.ask_more(lease);
    }

    /// Asks for as many leases like this one as are wanted by those who wait.
    pub(super) fn ask_more(&self, like: &Arc<Lease>) {
        let Some(group) = like.group() else { return };
        let more = self.queues.with(group, None, |queue| self.wanted(queue, like));
        for lease in &more {
            lease.ask_soon(Instant::now());
        }
        self.queued.file(more);
    }

    /// New leases for those who wait, as many as are wanted.
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

// Held, and over

impl Keeper {
    /// A lease is held, by nobody yet.
    fn granted(&self, lease: &Arc<Lease>) {
        let Some(group) = lease.group() else {
            if let Some(waiter) = lease.waiter() {
                self.hand_to(waiter, lease);
            }
            return;
        };
        // Others may want it if whoever is told does not take it up.
        self.file(lease);
        if self.hold(group, lease, |_| ()).is_some() {
            self.offer(lease);
            self.ask_more(lease);
        }
    }

    /// A lease of a group is held. `None` if it was given up at this moment.
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

    /// Tells whoever of the group waits longest that it holds. If nobody waits, the lease goes back.
    pub(super) fn offer(&self, lease: &Arc<Lease>) {
        let Some(group) = lease.group() else { return };
        loop {
            let found = self.queues.with(group, None, |queue| {
                let hold = lease.hand().filter(|hold| hold.loss(Instant::now()).is_none())?;
                Some((hold, queue.next()))
            });
            let Some((hold, waiter)) = found else { return };
            let token = hold.token;
            let told = waiter.map(|waiter| waiter.send(Told::Granted(hold)).is_ok());
            match told {
                Some(true) => return,
                Some(false) => lease.take_back(token),
                None => return self.end(lease),
            }
        }
    }

    /// A lease is not to be had.
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
            self.unfile(lease);
            self.queue_release(PendingRelease::of(Target::Lease(Arc::clone(lease))));
        } else if lease.group().is_none() {
            self.end(lease);
        }
    }

    /// Gives up what is asked for and nobody waits for any more.
    pub(super) fn give_up_surplus(&self, group: &Group) {
        while let Some(id) = self.queues.with(group, None, Queue::surplus) {
            let lease = self.leases.lock().get(&id).cloned();
            if let Some(lease) = lease {
                self.give_up(&lease);
            }
        }
    }

    /// A hold that has not arrived, or is not wanted, goes to whoever is next, or back to the store.
    pub(super) fn give_back(&self, hold: &Hold) {
        hold.lease.take_back(hold.token);
        if hold.lease.group().is_some() {
            self.offer(&hold.lease);
        } else {
            self.end(&hold.lease);
        }
    }

    /// A lease goes back to the store.
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
        self.unfile(lease);
        self.owners.forget(lease);
        Next::Back(self.followers(lease))
    }

    /// A lease is not held any more: those of its group who wait want another one.
    fn followers(&self, lease: &Arc<Lease>) -> Vec<Arc<Lease>> {
        let Some(group) = lease.group() else { return Vec::new() };
        self.queues.with(group, None, |queue| {
            queue.end(lease.id());
            self.wanted(queue, lease)
        })
    }

    /// The last guard of a hold goes: the lease goes to the next one of this client, or back.
    fn pass_on(&self, lease: &Arc<Lease>) -> Next {
        let Some(group) = lease.group() else { return self.back(lease) };
        let now = Instant::now();
        let passed = self.queues.with(group, None, |queue| {
            let passed = queue.next_if(|| lease.pass_on(now));
            passed.map(|(waiter, hold)| (waiter, hold, queue.has_surplus()))
        });
        let Some((waiter, hold, has_surplus)) = passed else { return self.back(lease) };
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

    /// A lease was lost: it is released as well, since only this client knows that it is over.
    fn release_lost(&self, lease: &Arc<Lease>) {
        self.owners.forget(lease);
        let next = self.followers(lease);
        self.queue_release(PendingRelease { next, ..PendingRelease::of(Target::Lease(Arc::clone(lease))) });
    }

    pub(super) fn queue_release(&self, pending: PendingRelease) {
        self.releases.push(pending);
    }

    /// A guard goes, and its permits with it, without waiting.
    pub(crate) fn abandon(&self, hold: &Hold, permits: u32) {
        let lease = &hold.lease;
        match lease.leave(hold.token, permits, Instant::now()) {
            Leaving::Last => {
                hold.give_back();
                if let Next::Back(next) = self.pass_on(lease) {
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

    /// A guard goes, and its permits with it: the store is told now, or the next one in this client.
    pub(crate) async fn release(&self, hold: &Hold, permits: u32) -> Result<(), ReleaseError> {
        let lease = &hold.lease;
        let ends = hold.ends().unwrap_or_else(Instant::now);
        let leaving = lease.leave(hold.token, permits, Instant::now());
        let _giving_back = (leaving == Leaving::Last).then(|| GivingBack(hold));
        let (target, next) = match leaving {
            Leaving::Last => match self.pass_on(lease) {
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
        // A part may find nothing because the rest of the lease was released meanwhile, and got there first.
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

    /// If it is not answered, it goes to the release queue.
    async fn release_in_place(&self, target: Target) -> Result<Released, BackendError> {
        let pending = Unconfirmed { keeper: self, target: Some(target.clone()) };
        let released = self.send_release(&target).await?;
        pending.settle();
        self.released(&target);
        Ok(released)
    }

    /// By the keeper's task, since what is asked for before concerns others.
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

    /// The store has confirmed a release.
    fn released(&self, target: &Target) {
        let Target::Lease(lease) = target else { return };
        self.forget(lease);
        if lease.granted_since() {
            // Perhaps its request was carried out after its release. If not, there is nothing to be found.
            self.queue_release(PendingRelease::of(Target::Orphan(lease.lease_ref().clone())));
        }
    }

    /// Ends everything: nothing more is asked for, and all that is held is lost.
    pub(super) fn close(&self) {
        self.closing.close();
        let leases: Vec<_> = self.leases.lock().values().cloned().collect();
        for lease in leases {
            lease.lose(LossReason::ClientClosed);
            if lease.step(Instant::now()) == Step::Release {
                self.unfile(&lease);
                self.release_lost(&lease);
            } else if lease.give_up() {
                self.queue_release(PendingRelease::of(Target::Lease(lease)));
            }
        }
        drop(self.queues.dismiss_all());
    }

    /// Waits until no release is pending any more, and tells whether the store has confirmed all of it.
    pub(super) async fn drained(&self) -> bool {
        let given_up = || self.given_up.load(Ordering::Relaxed);
        let before = given_up();
        self.releases.drained(|| self.leases.lock().is_empty()).await;
        given_up() == before
    }
}

fn set_alarm(schedule: &Schedule, alarm: Pin<&mut Sleep>) {
    let at = schedule.set_alarm();
    if alarm.deadline() != at {
        alarm.reset(at);
    }
}

/// Why a release did not end a hold.
#[derive(Debug)]
pub(crate) enum ReleaseError {
    Lost(LossReason),
    Store(BackendError),
}

/// A release that is under way. When it is over, also by being dropped, those who wait for the end of the hold are told.
struct GivingBack<'a>(&'a Hold);

impl Drop for GivingBack<'_> {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

/// A release that is sent in place: it goes to the release queue unless the store confirms it.
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

/// Whether what a release found means that the lease was lost before. If nobody knows, the lease had not ended as long
/// as its time was not over.
fn lost_before(released: Released, ends: Instant) -> Option<LossReason> {
    match released {
        Released::Held => None,
        Released::Unknown if Instant::now() < ends => None,
        Released::Unknown => Some(LossReason::StoreUnreachable),
        Released::Taken => Some(LossReason::Taken),
        Released::Queued | Released::Absent => Some(LossReason::Expired),
    }
}

// The task

impl Keeper {
    /// Does what is due until `abandoned` and no release is pending any more: all of it, or all but keeping what is held.
    pub(super) async fn run(
        self: Arc<Self>,
        events: BoxStream<'static, Event>,
        abandoned: CancellationToken,
        held_too: bool,
    ) {
        self.take_over(held_too);
        let held = async {
            if held_too {
                self.renew_held().await;
            }
            std::future::pending().await
        };
        // Keeping leases has no end of its own: it is over when no release is pending any more.
        tokio::select! {
            () = self.keep_queued(events) => {}
            () = held => {}
            () = self.send_releases(&abandoned) => {}
        }
    }

    /// What was under way on a runtime that has died is due again.
    fn take_over(&self, held_too: bool) {
        self.queued.clear();
        if held_too {
            self.held.clear();
        }
        let mut leases: Vec<_> = self.leases.lock().values().cloned().collect();
        let now = Instant::now();
        leases.retain(|lease| (held_too || lease.waits()) && lease.take_over(now));
        self.file_all(leases);
    }

    /// Keeps what is held: renews it, and notices that it ends. Until `abandoned`, when nobody holds any more.
    pub(super) async fn keep_held(self: Arc<Self>, abandoned: CancellationToken) {
        tokio::select! {
            () = self.renew_held() => {}
            () = abandoned.cancelled() => {}
        }
    }

    async fn renew_held(&self) {
        let mut renewals = FuturesUnordered::new();
        let mut alarm = pin!(sleep_until(Instant::now()));
        loop {
            // A store that answers at once must not keep other tasks from running.
            consume_budget().await;
            // One that is asked for again would have been given up before.
            for lease in self.tend(&self.held, Instant::now()) {
                self.queued.file([lease]);
            }
            let rounds = self.held.start_rounds().into_iter();
            renewals.extend(rounds.map(|round| self.held.ask(&*self.backend, round)));
            set_alarm(&self.held, alarm.as_mut());
            tokio::select! {
                Some(()) = renewals.next() => {}
                () = self.held.rescheduled() => {}
                () = &mut alarm => {}
            }
        }
    }

    async fn keep_queued(&self, events: BoxStream<'static, Event>) {
        let mut events = events.fuse();
        let mut asks = FuturesUnordered::new();
        let mut alarm = pin!(sleep_until(Instant::now()));
        loop {
            consume_budget().await;
            asks.extend(self.tend(&self.queued, Instant::now()).into_iter().map(|lease| self.ask(lease)));
            set_alarm(&self.queued, alarm.as_mut());
            tokio::select! {
                Some(event) = events.next() => {
                    self.hear(event);
                    for _ in 0..EVENTS {
                        let Some(Some(event)) = events.next().now_or_never() else { break };
                        self.hear(event);
                    }
                }
                Some(()) = asks.next() => {}
                () = self.queued.rescheduled() => {}
                () = &mut alarm => {}
            }
        }
    }

    /// Looks at every lease for which something is due. Those to be asked for are returned.
    fn tend(&self, schedule: &Schedule, now: Instant) -> Vec<Arc<Lease>> {
        let (mut ask, mut renew, mut wait) = (Vec::new(), Vec::new(), Vec::new());
        for lease in schedule.take_due(now) {
            match lease.step(now) {
                Step::Ask => ask.push(lease),
                Step::Renew => renew.push(lease),
                Step::Wait => wait.push(lease),
                Step::Release => self.release_lost(&lease),
                Step::Forget => {}
            }
        }
        if !wait.is_empty() {
            self.file_all(wait);
        }
        if !renew.is_empty() {
            self.held.renew(&renew);
            if ptr::eq(schedule, &self.queued) {
                self.held.wake();
            }
        }
        ask
    }

    /// Files leases by what is due for them next, where that is looked at.
    fn file_all(&self, leases: impl IntoIterator<Item = Arc<Lease>>) {
        let (queued, held): (Vec<_>, Vec<_>) = leases.into_iter().partition(|lease| lease.waits());
        if !queued.is_empty() {
            self.queued.file(queued);
        }
        if !held.is_empty() {
            for lease in &held {
                self.queued.forget(lease);
            }
            self.held.file(held);
        }
    }

    /// Nothing is due for this lease any more.
    fn unfile(&self, lease: &Lease) {
        self.queued.forget(lease);
        self.held.forget(lease);
    }

    /// Takes in what the store tells.
    fn hear(&self, event: Event) {
        match event {
            Event::Granted { lease, ticket, grant } => {
                let Some(known) = self.lease(lease.id) else {
                    tracing::debug!(lease = ?lease.id, key = &*lease.resource.key, "granted to nobody, releasing");
                    return self.queue_release(PendingRelease::of(Target::Orphan(lease)));
                };
                match known.told(ticket, grant, Instant::now()) {
                    Heard::Granted => self.granted(&known),
                    Heard::Doubtful => self.file(&known),
                    Heard::Known => {}
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
        self.queued.file(leases.into_iter().inspect(|lease| lease.ask_soon(now)));
    }

    /// Works the releases off.
    async fn send_releases(&self, abandoned: &CancellationToken) {
        let mut releases = FuturesUnordered::new();
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
                // The last one may have been queued since the line above was looked at: then there is something to do.
                () = abandoned.cancelled(), if releases.is_empty() => {
                    if self.releases.is_empty() {
                        return;
                    }
                }
            }
        }
    }

    /// Sends what is pending now. The leases that were to be asked for before are left to the next runtime.
    pub(super) async fn send_pending_releases(&self) {
        let mut releases = FuturesUnordered::new();
        while let Some(mut pending) = self.releases.pop() {
            self.ask_again(pending.take_next());
            releases.push(self.send_until_confirmed(pending));
        }
        while releases.next().await.is_some() {}
    }

    /// Whoever is next is asked for, and the release sent, in this order.
    async fn send_pending(&self, mut pending: UnderWay<'_>) {
        let next = pending.take_next();
        let asked = join_all(next.into_iter().map(|lease| self.ask(lease)));
        join(asked, self.send_until_confirmed(pending)).await;
    }

    /// Sends one release until the store confirms it. That its TTL has passed is no reason to stop: the request itself may still be
    /// on its way, and be granted then.
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
                // Something else stands there, so nothing of this lease does.
                Err(BackendError::WrongType { .. }) => break,
                Err(error) => {
                    tracing::warn!(key, %error, "release given up: it happens when the lease ends");
                    // Whoever has closed the client has been told.
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
