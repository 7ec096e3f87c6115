//! Keeps the leases of a client, and releases those that have ended.
//!
//! The client owns its leases from before they are requested until their release is confirmed; a user's future owns
//! none. What follows when a lease is requested, granted or ended is decided here. The tasks that do it in the
//! background are in `tasks` (requests that are repeated, events, renewals) and `release`; none of them waits for one
//! request before it handles the next lease. Held leases are renewed on the crate's own thread if the store allows it,
//! otherwise where the client lives (see `home`).

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};

use scopeguard::{ScopeGuard, guard};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::lease::{Hold, Lease, Message, Outcome};
use super::reentry::Owners;
use super::release_queue::{Patience, PendingRelease, ReleaseQueue};
use super::running::Running;
use super::schedule::Schedule;
use crate::backend::{Answer, Backend, BackendError, Claim, LeaseId, LeaseRef, Limit, Request, Resource};
use crate::background;
use crate::closing::Closing;
use crate::error::{Error, LossReason};
use crate::fence::FencingToken;
use crate::handover::{Group, Queue, Queues, take_all_waiters, tokens, with_queue};
use crate::hash::HashMap;
use crate::home::Home;
use crate::observer::{Audience, Observers, ReleaseOutcome};
use crate::options::Settings;
use crate::origin::Origin;
use crate::runtime::spawn_on;
use crate::sync::{Handle, Id, Mutex};

/// How many calls may ask at a time who holds what they want.
const ASKING_WHO: usize = 8;

/// The queue of a group within the client.
pub(super) type Waiters = Queue<oneshot::Sender<Message>>;

/// All leases of a client, and the work that is due for them.
#[derive(Debug)]
pub(crate) struct Keeper {
    pub(super) this: Weak<Self>,
    pub(super) backend: Arc<dyn Backend>,
    /// What the client is called at the store.
    label: Option<Arc<str>>,
    /// An id that no lease has, for that of the client in it.
    id: LeaseId,
    /// Every lease from before it is requested until its release is confirmed.
    pub(super) leases: Mutex<HashMap<LeaseId, Arc<Lease>>>,
    /// The leases that were handed over to other processes, and until when they are remembered.
    pub(super) given: Mutex<HashMap<LeaseId, (FencingToken, Instant)>>,
    pub(super) schedule: Schedule,
    pub(super) releases: ReleaseQueue,
    pub(super) queues: Queues<oneshot::Sender<Message>>,
    pub(super) owners: Owners,
    /// Whether new requests are refused. Set before `closing`, or with it.
    pub(super) draining: Closing,
    pub(super) closing: Closing,
    pub(super) origin: Origin,
    /// How many releases were never confirmed.
    pub(super) given_up: AtomicUsize,
    /// Why the release that was answered last was not confirmed; `None` if it was.
    pub(super) last_failure: Mutex<Option<BackendError>>,
    /// Cancelled with the last handle to the client, when no further release can be queued, and after a shutdown.
    pub(super) abandoned: CancellationToken,
    /// The crate's own thread, if held leases are kept there.
    pub(super) background: Option<Handle>,
    /// Where the tasks run that are not on that thread.
    pub(super) home: Arc<Home>,
    pub(super) running: Running,
    /// The other runtimes whose end is kept waiting for releases.
    pub(super) ends_awaited: Mutex<Vec<Id>>,
    /// For how much longer the application may be kept waiting for releases where there is no runtime.
    pub(super) drops_wait: Mutex<Patience>,
    pub(super) observers: Arc<Observers>,
    /// For calls that ask, before they give up, who holds what they want: if thousands give up at once, most do not
    /// ask.
    pub(super) asking_who: Semaphore,
}

impl Keeper {
    pub(super) fn new(backend: Arc<dyn Backend>, label: Option<Arc<str>>) -> Arc<Self> {
        let background = if backend.capabilities().own_thread { own_thread() } else { None };
        let (home, id) = (backend.home().unwrap_or_default(), backend.lease_id());
        let observers = Arc::new(Observers::new(&backend.capabilities().store));
        let keeper = Arc::new_cyclic(|this| Self {
            this: this.clone(),
            backend,
            label,
            id,
            leases: Mutex::default(),
            given: Mutex::default(),
            schedule: Schedule::default(),
            releases: ReleaseQueue::default(),
            queues: Queues::default(),
            owners: Owners::default(),
            draining: Closing::default(),
            closing: Closing::default(),
            origin: Origin::default(),
            given_up: AtomicUsize::new(0),
            last_failure: Mutex::default(),
            abandoned: CancellationToken::new(),
            background,
            home,
            running: Running::default(),
            ends_awaited: Mutex::default(),
            drops_wait: Mutex::new(Patience::new()),
            observers,
            asking_who: Semaphore::new(ASKING_WHO),
        });
        if let Some(background) = &keeper.background {
            spawn_on(background, Arc::clone(&keeper).keep_held());
            keeper.home.may_move(background);
            spawn_on(background, Self::watch_home(Arc::downgrade(&keeper), keeper.abandoned.clone()));
        }
        keeper.home.take_in(&keeper);
        keeper
    }

    pub(crate) const fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    pub(crate) const fn label(&self) -> Option<&Arc<str>> {
        self.label.as_ref()
    }

    /// An id that begins as those of all leases of this client.
    pub(crate) const fn id(&self) -> LeaseId {
        self.id
    }

    pub(crate) const fn owners(&self) -> &Owners {
        &self.owners
    }

    /// Fails in a process that was forked from the one in which the client was made.
    pub(crate) fn check_process(&self, operation: &'static str, name: Option<&str>) -> Result<(), Error> {
        self.origin.elsewhere().map_or(Ok(()), |(origin, process)| {
            Err(Error::Forked { name: name.map(str::to_owned), operation, origin, process })
        })
    }

    /// See [`Origin::was_elsewhere`].
    pub(crate) fn was_elsewhere(&self, now: Instant) -> bool {
        self.origin.was_elsewhere(now)
    }

    /// Whether new requests are refused.
    pub(crate) const fn draining(&self) -> &Closing {
        &self.draining
    }

    pub(crate) const fn closing(&self) -> &Closing {
        &self.closing
    }

    /// Adds the operation, the name and the store to a backend's error.
    pub(crate) fn error(&self, error: BackendError, step: &'static str, name: Option<&str>) -> Error {
        Error::from_backend(error, step, name, &self.backend.capabilities().store)
    }

    /// The error for what the store has not answered in time, with the reason if the store is known to be unreachable.
    pub(crate) fn unanswered(&self) -> BackendError {
        let nodes = self.backend.state().nodes;
        let reasons: Vec<_> = nodes.iter().filter_map(|node| node.reason.as_deref()).collect();
        let colon = if reasons.is_empty() { "" } else { ": " };
        let source = format!("no answer within the time limit{colon}{}", reasons.join("; "));
        BackendError::Unanswered { source: source.into() }
    }
}

// Requests

impl Keeper {
    /// Runs `change` on the queue of a group.
    pub(super) fn queue<T>(&self, group: &Group, change: impl FnOnce(&mut Waiters) -> T) -> T {
        with_queue(&self.queues, group, None, change)
    }

    /// Creates a lease, which the client owns from here on. `None` once the client takes no new requests.
    pub(super) fn open(
        &self,
        resource: &Resource,
        terms: &Arc<Settings>,
        claim: &Claim,
        note: Option<&Arc<str>>,
        waits: bool,
        group: Option<Group>,
    ) -> Option<Arc<Lease>> {
        let lease = LeaseRef::new(self.backend.lease_id(), resource.clone());
        let mut request = Request::new(lease, claim.clone(), terms.ttl);
        (request.waits, request.tokens) = (waits, tokens(group.is_some()));
        (request.label, request.note) = (self.label.clone(), note.cloned());
        let lease = Lease::new(request, Arc::clone(terms), group);
        let mut leases = self.leases.lock();
        if self.draining.is_closed() {
            return None;
        }
        leases.insert(lease.id(), Arc::clone(&lease));
        Some(lease)
    }

    /// Removes a lease whose release is confirmed or given up, if it is not forgotten yet.
    pub(super) fn forget(&self, id: LeaseId) -> Option<Arc<Lease>> {
        let forgotten = self.leases.lock().remove(&id);
        if self.draining.is_closed() {
            self.releases.recheck();
        }
        forgotten
    }

    /// Schedules a lease by the instant at which something is due for it.
    pub(super) fn file(&self, lease: &Arc<Lease>) {
        self.schedule.file([Arc::clone(lease)]);
    }

    /// From now on the keeper repeats the requests that waiters have sent themselves, because others wait for these
    /// leases too.
    pub(super) fn watch(&self, queue: &mut Waiters) {
        let in_place = queue.take_in_place();
        if !in_place.is_empty() {
            self.schedule.file(self.known(&in_place));
        }
    }

    /// The lease of that id, if it is not forgotten yet.
    pub(super) fn lease(&self, id: LeaseId) -> Option<Arc<Lease>> {
        self.leases.lock().get(&id).cloned()
    }

    fn known(&self, leases: &[LeaseId]) -> Vec<Arc<Lease>> {
        leases.iter().filter_map(|id| self.lease(*id)).collect()
    }

    /// The future that requested this lease itself has been dropped. The keeper repeats the request if the lease still
    /// waits.
    pub(super) fn adopt(&self, lease: &Arc<Lease>) {
        if lease.waits() {
            lease.leave_to_keeper(Instant::now());
            self.file(lease);
        }
    }

    /// When the store last answered a request or a renewal for a group. An error if it did not answer the last one for
    /// a lease.
    pub(super) fn last_answer(&self, group: &Group) -> Result<Option<Instant>, BackendError> {
        let leases = self.queue(group, |queue| self.known(&queue.leases()));
        leases.iter().try_fold(None, |last, lease| Ok(last.max(lease.last_answer()?)))
    }

    /// Whether a group waits behind a key that has no expiry.
    pub(super) fn holder_never_expires(&self, group: &Group) -> bool {
        let leases = self.queue(group, |queue| self.known(&queue.leases()));
        leases.iter().any(|lease| lease.holder_never_expires())
    }

    /// Sends the request for a lease, for the first time or again. If the returned future is dropped, perhaps without
    /// having been polled, the keeper's tasks do it when they are started again.
    pub(super) fn ask(&self, lease: Arc<Lease>) -> impl Future<Output = ()> + use<'_> {
        let interrupted = guard(lease, |lease| {
            self.request_dropped(&lease);
            if lease.waits() && lease.take_over(Instant::now()) {
                self.file(&lease);
            }
        });
        async move {
            let Some(request) = interrupted.request_again() else {
                drop(ScopeGuard::into_inner(interrupted));
                return;
            };
            let sent = Instant::now();
            let answer = self.backend.request(&request).await;
            self.asked_again(&ScopeGuard::into_inner(interrupted), answer, sent);
        }
    }

    /// Handles the answer to a request that the keeper has sent.
    fn asked_again(&self, lease: &Arc<Lease>, answer: Result<Answer, BackendError>, sent: Instant) {
        let limit = answer.as_ref().ok().and_then(Answer::limit);
        let now = Instant::now();
        match lease.answered(answer, sent, now) {
            Outcome::Granted => self.granted(lease, now),
            Outcome::Queued => {
                self.file(lease);
                self.follow(lease, limit);
            }
            Outcome::Busy => {
                let source = "the store answered a waiting request as if it did not wait".into();
                self.failed(lease, &BackendError::Refused { source });
            }
            Outcome::Failed(error) => self.failed(lease, &error),
            Outcome::Over => self.release_again(lease),
        }
    }

    /// A request was dropped before it was answered. The store may execute it at any time.
    pub(super) fn request_dropped(&self, lease: &Lease) {
        lease.request_dropped();
        self.release_again(lease);
    }

    /// A request was answered or dropped, or its grant reported, perhaps after its lease was given up. If it was
    /// executed after the release, the store has a record of the lease again.
    pub(super) fn release_again(&self, lease: &Lease) {
        // If the release is still in flight, `released` asks the same when the release is answered.
        let is_confirmed = self.lease(lease.id()).is_none();
        if is_confirmed {
            self.release_what_came_to_light(lease);
        }
    }

    /// The release of this lease is confirmed or given up. If its request may have been executed after that, another
    /// release follows, which finds nothing if it was not.
    pub(super) fn release_what_came_to_light(&self, lease: &Lease) {
        let known = lease.take_known();
        if known.is_possible() {
            self.queue_release(PendingRelease { known, ..PendingRelease::orphan(lease.lease_ref().clone()) });
        }
    }

    /// Takes over the limit that the store has reported for a group: more leases may be wanted under it.
    pub(super) fn follow(&self, lease: &Arc<Lease>, limit: Option<Limit>) {
        let (Some(group), Some(limit)) = (lease.group(), limit) else { return };
        self.queue(group, |queue| queue.follow(limit.permits));
        self.ask_more(lease);
    }

    /// Requests as many leases like this one as the waiters of its group still want.
    pub(super) fn ask_more(&self, like: &Arc<Lease>) {
        let Some(group) = like.group() else { return };
        let more = self.queue(group, |queue| self.wanted(queue, like));
        self.request(more);
    }

    /// Has these leases requested.
    pub(super) fn request(&self, leases: Vec<Arc<Lease>>) {
        if leases.is_empty() {
            return;
        }
        for lease in &leases {
            lease.ask_soon(Instant::now());
        }
        self.schedule.file(leases);
    }

    /// Creates as many leases as the waiters of a group still want.
    fn wanted(&self, queue: &mut Waiters, like: &Lease) -> Vec<Arc<Lease>> {
        let mut leases = Vec::new();
        while queue.wanted() > 0 {
            let (terms, group) = (like.terms(), like.group().cloned());
            let Some(lease) = self.open(like.resource(), terms, &like.claim(), None, true, group) else {
                break;
            };
            queue.ask(lease.id());
            leases.push(lease);
        }
        leases
    }
}

// Held and ended leases

impl Keeper {
    /// A lease was granted, and no waiter has taken it up yet.
    pub(super) fn granted(&self, lease: &Arc<Lease>, now: Instant) {
        let Some(group) = lease.group() else {
            if let Some(waiter) = lease.take_waiter() {
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
        // The end of the lease must be noticed: others may want it if the notified waiter does not take it up. A lease
        // that is still filed as waiting is looked at soon enough.
        if !handed || !lease.is_filed() {
            self.file(lease);
        }
    }

    /// Records that a lease of a group is held. `None` if it was given up in the meantime; then it is released.
    pub(super) fn hold<T>(
        &self,
        group: &Group,
        lease: &Arc<Lease>,
        then: impl FnOnce(&mut Waiters) -> T,
    ) -> Option<T> {
        let limit = lease.limit();
        let held = self.queue(group, |queue| {
            if let Some(limit) = limit {
                queue.follow(limit.permits);
            }
            queue.hold(lease.id()).then(|| then(queue))
        });
        if held.is_none()
            && let Some(known) = lease.end(false, Instant::now())
        {
            self.queue_release(PendingRelease::of(lease, known));
        }
        held
    }

    fn hand_to(&self, waiter: oneshot::Sender<Message>, lease: &Arc<Lease>) {
        let Some(hold) = lease.hand() else { return };
        if waiter.send(Ok(hold)).is_err() {
            self.end(lease);
        }
    }

    /// Hands the lease to the waiter of the group that has waited longest. If nobody waits, it is returned to the
    /// store.
    pub(super) fn offer(&self, lease: &Arc<Lease>) {
        if let Some(group) = lease.group() {
            let first = self.queue(group, |queue| next(queue, lease, Instant::now()));
            self.offer_to(first, lease);
        }
    }

    /// The same, if the first waiter is already known. Returns whether a waiter has the lease now.
    fn offer_to(
        &self,
        mut first: Option<(Hold, Option<oneshot::Sender<Message>>)>,
        lease: &Arc<Lease>,
    ) -> bool {
        while let Some((hold, waiter)) = first {
            let token = hold.token;
            match waiter.map(|waiter| waiter.send(Ok(hold)).is_ok()) {
                Some(true) => return true,
                Some(false) => lease.take_back(token),
                None => {
                    self.end(lease);
                    return false;
                }
            }
            let Some(group) = lease.group() else { return false };
            first = self.queue(group, |queue| next(queue, lease, Instant::now()));
        }
        false
    }

    /// The request for a lease has failed for good.
    fn failed(&self, lease: &Arc<Lease>, error: &BackendError) {
        if let Some(waiter) = lease.take_waiter() {
            let _ = waiter.send(Err(error.clone()));
        }
        if let Some(group) = lease.group() {
            let dismissed = self.queue(group, |queue| {
                queue.end(lease.id());
                queue.take_waiters()
            });
            for waiter in dismissed {
                let _ = waiter.send(Err(error.clone()));
            }
            self.give_up_surplus(group);
        }
        self.release_if_known(lease);
    }

    /// This lease no longer has a waiter.
    pub(super) fn give_up(&self, lease: &Arc<Lease>) {
        if lease.give_up() {
            self.schedule.forget(lease);
            self.release_if_known(lease);
        } else if lease.group().is_none() {
            self.end(lease);
        }
    }

    /// Gives up the requested leases of a group for which there is no waiter left.
    pub(super) fn give_up_surplus(&self, group: &Group) {
        while let Some(id) = self.queue(group, Queue::surplus) {
            if let Some(lease) = self.lease(id) {
                self.give_up(&lease);
            }
        }
    }

    /// A hold whose receiver is gone: hands it to the next waiter of the group, or returns the lease to the store.
    pub(super) fn return_hold(&self, hold: &Hold) {
        hold.lease.take_back(hold.token);
        if hold.lease.group().is_some() {
            self.offer(&hold.lease);
        } else {
            self.end(&hold.lease);
        }
    }

    /// Returns a lease to the store.
    fn end(&self, lease: &Arc<Lease>) {
        if let Some(pending) = self.end_lease(lease, false, Instant::now()) {
            self.queue_release(pending);
        }
    }

    /// Ends a lease. If `keep_renewed`, it is renewed until its release is over. `None` if it had ended before.
    fn end_lease(&self, lease: &Arc<Lease>, keep_renewed: bool, now: Instant) -> Option<PendingRelease> {
        let known = lease.end(keep_renewed, now)?;
        if !keep_renewed {
            self.schedule.forget(lease);
        }
        self.forget_owner(lease);
        Some(PendingRelease { next: self.replacements(lease), ..PendingRelease::of(lease, known) })
    }

    /// From now on the owner of this lease, if it has one, does not re-enter through it.
    pub(super) fn forget_owner(&self, lease: &Lease) {
        if lease.owner().is_some() {
            self.owners.forget(lease);
        }
    }

    /// A lease is no longer held: creates those that the waiters of its group now want instead.
    fn replacements(&self, lease: &Arc<Lease>) -> Vec<Arc<Lease>> {
        let Some(group) = lease.group() else { return Vec::new() };
        self.queue(group, |queue| self.replacements_for(lease, queue))
    }

    pub(super) fn replacements_for(&self, lease: &Lease, queue: &mut Waiters) -> Vec<Arc<Lease>> {
        queue.end(lease.id());
        self.wanted(queue, lease)
    }

    /// The last guard of a hold is gone: passes the lease on to the next waiter of this client, or ends it. Returns the
    /// release if it ends here, and the reason if it had been lost before. If it ends and `keep_renewed`, it is renewed
    /// until the release is over.
    pub(super) fn pass_on(
        &self,
        hold: &Hold,
        now: Instant,
        keep_renewed: bool,
        observed: Option<(Audience, Instant)>,
    ) -> Result<Option<PendingRelease>, LossReason> {
        let lease = &hold.lease;
        let lost_before = || {
            hold.finish();
            hold.reason()
        };
        let Some(group) = lease.group() else {
            return self.end_lease(lease, keep_renewed, now).map(Some).ok_or_else(lost_before);
        };
        let passed = self.queue(group, |queue| match queue.next_if(|| lease.pass_on(now)) {
            Some((waiter, next)) => Ok((waiter, next, queue.has_surplus())),
            None => {
                Err(lease.end(keep_renewed, now).map(|known| (known, self.replacements_for(lease, queue))))
            }
        });
        let (waiter, next, has_surplus) = match passed {
            Ok(passed) => passed,
            Err(None) => return Err(lost_before()),
            Err(Some((known, next))) => {
                if !keep_renewed {
                    self.schedule.forget(lease);
                }
                return Ok(Some(PendingRelease { next, ..PendingRelease::of(lease, known) }));
            }
        };
        tracing::debug!(target: "leasehold::lease", name = %lease.name(), "passed on within the client");
        self.tell_released(hold, observed, now, ReleaseOutcome::PassedOn);
        let token = next.token;
        if lease.is_capped() {
            self.file(lease);
        }
        if waiter.send(Ok(next)).is_err() {
            lease.take_back(token);
            self.offer(lease);
        }
        if has_surplus {
            self.give_up_surplus(group);
        }
        hold.finish();
        Ok(None)
    }

    /// A lost lease is released as well: the store may still count it as held.
    pub(super) fn release_lost(&self, lease: &Arc<Lease>) {
        self.forget_owner(lease);
        let next = self.replacements(lease);
        self.queue_release(PendingRelease { next, ..PendingRelease::of(lease, lease.take_known()) });
    }

    /// Takes no new requests from here on, and gives up those that wait. Returns the leases that were granted.
    pub(super) fn drain(&self) -> Vec<Arc<Lease>> {
        self.draining.close();
        drop(take_all_waiters(&self.queues));
        let leases: Vec<_> = self.leases.lock().values().cloned().collect();
        let (waited, granted): (Vec<_>, Vec<_>) = leases.into_iter().partition(|lease| lease.give_up());
        for lease in waited {
            self.release_if_known(&lease);
        }
        granted
    }

    /// Closes the client: no more requests are sent, and every held lease is lost.
    ///
    /// Requests are ended first: otherwise, what the client releases afterwards would be granted to its own waiters.
    pub(super) fn close(&self) {
        let granted = self.drain();
        self.closing.close();
        for lease in granted {
            lease.lose(LossReason::ClientClosed);
            if lease.claim_release() {
                self.schedule.forget(&lease);
                self.release_lost(&lease);
            }
        }
    }
}

/// The crate's own thread. Where it cannot be started, held leases are kept where the client lives.
fn own_thread() -> Option<Handle> {
    match background::handle() {
        Ok(background) => Some(background),
        Err(error) => {
            tracing::warn!(target: "leasehold::client", %error, "the crate's own thread could not be started: code that blocks its thread may lose its lease");
            None
        }
    }
}

/// The current hold of a lease, for the waiter that has waited longest, if there is a waiter. `None` if the lease has
/// no hold to hand out.
fn next<W>(queue: &mut Queue<W>, lease: &Arc<Lease>, now: Instant) -> Option<(Hold, Option<W>)> {
    let hold = lease.hand().filter(|hold| hold.loss(now).is_none())?;
    Some((hold, queue.next()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::MemoryBackend;

    const HOUR: Duration = Duration::from_secs(3600);

    fn keeper() -> Arc<Keeper> {
        Keeper::new(Arc::new(MemoryBackend::new()), None)
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_stays_in_the_schedule_while_its_release_is_awaited_and_not_longer_than_it_is_held_otherwise()
     {
        for is_in_group in [false, true] {
            for keep_renewed in [false, true] {
                let (keeper, now) = (keeper(), Instant::now());
                let lease = match is_in_group {
                    true => Lease::of_group(HOUR),
                    false => Lease::of_mutex(HOUR),
                };
                let hold = lease.grant_and_take_up(42, now);
                keeper.file(&lease);
                assert!(lease.is_filed());
                assert!(matches!(keeper.pass_on(&hold, now, keep_renewed, None), Ok(Some(_))));
                assert_eq!(lease.is_filed(), keep_renewed, "in a group: {is_in_group}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_dropped_after_its_lease_was_released_is_followed_by_another_release() {
        let (keeper, lease) = (keeper(), Lease::of_mutex(HOUR));
        keeper.release_again(&lease);
        assert_eq!(keeper.releases.unfinished(), 0, "nothing was sent");
        keeper.request_dropped(&lease);
        assert_eq!(keeper.releases.unfinished(), 1);
        keeper.request_dropped(&lease);
        assert_eq!(keeper.releases.unfinished(), 2, "of each");
    }
}
