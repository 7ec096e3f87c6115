//! The tasks of a keeper, which run where its client lives: one repeats the requests of waiting leases and handles the
//! store's events, one renews held leases and watches their deadlines, one sends releases.

use std::collections::VecDeque;
use std::future::pending;
use std::mem;
use std::pin::{Pin, pin};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::stream::{BoxStream, FuturesUnordered};
use futures::{FutureExt, Stream, StreamExt};
use scopeguard::{ScopeGuard, guard};
use tokio::sync::Notify;
use tokio::task::consume_budget;
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::keeper::Keeper;
use super::lease::{Lease, List, PushOutcome, Step};
use super::release_queue::{MAX_RELEASES, PendingRelease};
use super::renewals::next_together;
use crate::backend::Event;
use crate::home::Resident;
use crate::runtime::spawn_cancelable;
use crate::sync::{Handle, select};

/// How often the crate's own thread looks after releases.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// What wakes the tasks.
struct Wakes {
    /// A release was queued.
    queued: Arc<Notify>,
    /// Something is due for a lease that waits, or that is held, before the alarm.
    waiting: Arc<Notify>,
    held: Arc<Notify>,
}

impl Resident for Keeper {
    fn settle(&self, runtime: &Handle) {
        let Some(keeper) = self.this.upgrade() else { return };
        // What they were sending is pending again, even if their runtime is not driven.
        let number = self.running.give_up();
        // Before any request is sent, so that no event caused by it is missed.
        let events = self.backend.events();
        self.take_over();
        self.running.begin();
        // Here, one after another: an earlier task that is only now polled must not take the place of these.
        let wakes = self.wakes();
        let home = runtime.clone();
        let until_dropped = guard(keeper, move |keeper| keeper.tasks_were_dropped(number, &home));
        let (_, tasks) = spawn_cancelable(runtime, async move {
            if Arc::clone(&until_dropped).run(events, wakes).await {
                ScopeGuard::into_inner(until_dropped).running.have_ended();
            }
        });
        self.running.started(number, tasks);
    }

    fn before_end(&self) {
        self.running.give_up();
        self.send_last_releases();
    }

    fn after_end(&self) {
        self.wait_for_last_releases();
    }
}

impl Keeper {
    /// Makes sure that the keeper's tasks run. Must be called within a runtime.
    pub(crate) fn ensure_running(&self) {
        self.home.settle();
        self.restart_tasks_that_are_over();
    }

    /// They have ended with the client, or because a store has panicked.
    fn restart_tasks_that_are_over(&self) {
        if self.running.take_over() {
            self.home.settle_again(ptr::from_ref(self).cast());
        }
    }

    /// See [`Running::were_dropped`](super::running::Running::were_dropped).
    fn tasks_were_dropped(&self, number: u64, runtime: &Handle) {
        if self.running.were_dropped(number) {
            self.home.task_was_dropped(runtime);
        }
    }

    /// Looks after the home from the crate's own thread: nobody waits for a guard that was dropped, so nobody else
    /// would notice that its release is not sent, or what a client that is gone has left on a runtime that is not
    /// driven.
    pub(super) async fn watch_home(this: Weak<Self>, abandoned: CancellationToken) {
        let (mut queued_before, mut sent_before) = (0, 0);
        loop {
            // At once when it is abandoned.
            let was_abandoned = abandoned.is_cancelled();
            select! {
                () = abandoned.cancelled(), if !was_abandoned => {}
                () = sleep(WATCH_INTERVAL) => {}
            }
            let Some(keeper) = this.upgrade() else { return };
            let (home, releases) = (Arc::clone(&keeper.home), &keeper.releases);
            let late_below = mem::replace(&mut queued_before, releases.next_number());
            let sent = releases.sent();
            let are_any_sent = mem::replace(&mut sent_before, sent) != sent;
            // The task that sends them has been woken by a worker that is blocked, which no other worker takes over.
            let is_any_unsent = !are_any_sent && releases.is_any_unsent(late_below, MAX_RELEASES);
            let is_any_late = releases.is_any_late(late_below);
            let are_needed = !abandoned.is_cancelled() || releases.is_any_waiting();
            if are_needed && home.runtime().is_some() {
                keeper.restart_tasks_that_are_over();
            }
            // Not kept alive while this waits.
            drop(keeper);
            if home.has_moved() {
                continue;
            }
            if is_any_unsent {
                tracing::info!(
                    target: "leasehold::client",
                    "a release was not sent for a second; its client moves to a thread of its own"
                );
                home.move_away();
            } else if is_any_late || abandoned.is_cancelled() {
                home.move_if_stuck().await;
            }
        }
    }

    /// Runs the keeper's duties until the client is abandoned and no release is pending. Held leases are kept here if
    /// they are not kept on the crate's own thread. `false` if one of the tasks has ended before, because the runtime
    /// ends, or in a panic.
    async fn run(self: Arc<Self>, events: BoxStream<'static, Event>, wakes: Wakes) -> bool {
        let here = Handle::current();
        // Separate tasks, so that a message does not wake those that send releases, and vice versa.
        let (queued, _cancel) = spawn_cancelable(&here, Arc::clone(&self).keep_queued(events, wakes.waiting));
        let held = async {
            if self.background.is_none() {
                let (held, _cancel) = spawn_cancelable(&here, Arc::clone(&self).renew_held(wakes.held));
                held.await
            } else {
                pending().await
            }
        };
        tokio::select! {
            // The last state is told before the tasks end.
            biased;
            // On the crate's own thread if there is one.
            () = self.watch_store(), if self.background.is_none() => false,
            () = self.send_releases(wakes.queued) => true,
            _ = queued => false,
            _ = held => false,
        }
    }

    /// For tasks that are about to be started: those before are not woken any more.
    fn wakes(&self) -> Wakes {
        let [waiting, held] = [List::Waiting, List::Held].map(|list| self.schedule.rescheduled(list));
        Wakes { queued: self.releases.listen(), waiting, held }
    }

    /// Makes everything due again that earlier tasks had in progress.
    fn take_over(&self) {
        let held_too = self.background.is_none();
        self.schedule.clear(List::Waiting);
        if held_too {
            self.schedule.clear(List::Held);
        }
        let mut leases: Vec<_> = self.leases.lock().values().cloned().collect();
        let now = Instant::now();
        leases.retain(|lease| (held_too || lease.waits()) && lease.take_over(now));
        self.schedule.file(leases);
    }

    /// Keeps held leases: renews them and notices their end. Runs until the client is abandoned; nothing is held after
    /// that.
    pub(super) async fn keep_held(self: Arc<Self>) {
        select! {
            () = Arc::clone(&self).renew_held(self.schedule.rescheduled(List::Held)) => {}
            () = self.abandoned.cancelled() => {}
        }
    }

    async fn renew_held(self: Arc<Self>, rescheduled: Arc<Notify>) {
        let in_flight = AtomicUsize::new(0);
        let (mut waiting, mut renewals) = (VecDeque::new(), FuturesUnordered::new());
        let mut alarm = pin!(sleep_until(Instant::now()));
        loop {
            // A store that answers at once must not keep other tasks from running.
            consume_budget().await;
            waiting.extend(self.process_due(List::Held, Instant::now()));
            while let Some(leases) = next_together(&mut waiting, in_flight.load(Ordering::Relaxed)) {
                renewals.push(self.renew(leases, &in_flight).boxed());
            }
            set_alarm(self.schedule.set_alarm(List::Held), alarm.as_mut());
            select! {
                Some(()) = renewals.next() => {}
                () = rescheduled.notified() => {}
                () = &mut alarm => {}
            }
        }
    }

    async fn keep_queued(self: Arc<Self>, events: BoxStream<'static, Event>, rescheduled: Arc<Notify>) {
        let mut events = events.fuse();
        let mut asks = FuturesUnordered::new();
        let mut alarm = pin!(sleep_until(Instant::now()));
        loop {
            consume_budget().await;
            asks.extend(
                self.process_due(List::Waiting, Instant::now())
                    .into_iter()
                    .map(|lease| self.ask(lease).boxed()),
            );
            set_alarm(self.schedule.set_alarm(List::Waiting), alarm.as_mut());
            select! {
                () = self.handle_events(&mut events) => {}
                Some(()) = asks.next() => {}
                () = rescheduled.notified() => {}
                () = &mut alarm => {}
            }
        }
    }

    /// Handles the store's events. Never ends; whatever becomes due sets off the schedule.
    async fn handle_events(&self, events: &mut (impl Stream<Item = Event> + Unpin)) {
        while let Some(event) = events.next().await {
            self.handle_event(event);
            consume_budget().await;
        }
        pending().await
    }

    /// Does what is due for every lease of a list. Returns those that must be requested or renewed.
    fn process_due(&self, list: List, now: Instant) -> Vec<Arc<Lease>> {
        let (mut send, mut file) = (Vec::new(), Vec::new());
        for lease in self.schedule.take_due(list, now) {
            match lease.step(list, now) {
                Step::Send => {
                    if list == List::Held {
                        file.push(Arc::clone(&lease));
                    }
                    send.push(lease);
                }
                Step::Wait => file.push(lease),
                Step::Release => self.release_lost(&lease),
                Step::Forget => {}
            }
        }
        if !file.is_empty() {
            self.schedule.file(file);
        }
        send
    }

    /// Handles an event from the store.
    fn handle_event(&self, event: Event) {
        #[cfg(leasehold_planted)]
        let Some(event) = crate::planted::heard(event) else { return };
        match event {
            Event::Granted { lease, ticket, grant } => {
                let Some(known) = self.lease(lease.id) else {
                    if self.is_given(lease.id, grant.token) {
                        return;
                    }
                    tracing::debug!(target: "leasehold::lease", lease = ?lease.id, name = lease.resource.name(), "orphaned grant, releasing it");
                    return self.queue_release(PendingRelease::orphan(lease));
                };
                let now = Instant::now();
                match known.pushed_grant(ticket, grant, now) {
                    PushOutcome::Granted => self.granted(&known, now),
                    PushOutcome::Doubtful => self.file(&known),
                    PushOutcome::Known => self.release_again(&known),
                }
            }
            Event::Revoked { lease, token } => {
                if let Some(known) = self.lease(lease)
                    && known.revoke(token, Instant::now())
                {
                    self.file(&known);
                }
            }
            Event::AskAgain(lease) => self.ask_again(self.lease(lease)),
            Event::Changed(key) => {
                let waits = |lease: &Lease| lease.resource().key == key;
                self.ask_again(self.all(waits));
            }
            Event::Resync => self.ask_again(self.all(|_| true)),
        }
    }

    fn all(&self, meant: impl Fn(&Lease) -> bool) -> Vec<Arc<Lease>> {
        self.leases.lock().values().filter(|lease| lease.waits() && meant(lease)).cloned().collect()
    }

    pub(super) fn ask_again(&self, leases: impl IntoIterator<Item = Arc<Lease>>) {
        let now = Instant::now();
        self.schedule.file(leases.into_iter().inspect(|lease| lease.ask_soon(now)));
    }
}

fn set_alarm(at: Instant, alarm: Pin<&mut Sleep>) {
    if alarm.deadline() != at {
        alarm.reset(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryBackend;

    const HOUR: Duration = Duration::from_secs(3600);

    /// A keeper with a lease that waits and one that is held, both of one key.
    fn keeper() -> (Arc<Keeper>, Arc<Lease>, Arc<Lease>) {
        let keeper = Keeper::new(Arc::new(MemoryBackend::new()), None);
        let [waits, held] = [(); 2].map(|()| Lease::of_mutex(HOUR));
        held.grant_and_take_up(42, Instant::now());
        for lease in [&waits, &held] {
            keeper.leases.lock().insert(lease.id(), Arc::clone(lease));
        }
        (keeper, waits, held)
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_changed_at_the_store_is_asked_by_those_that_wait_for_it() {
        let (keeper, waits, held) = keeper();
        keeper.handle_event(Event::Changed(Arc::from("lock:b")));
        assert!(!waits.is_filed() && !held.is_filed());
        keeper.handle_event(Event::Changed(Arc::from("lock:a")));
        assert!(waits.is_filed() && !held.is_filed());
        assert_eq!(keeper.all(|_| false).len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_that_are_started_again_take_over_what_those_before_had_in_progress() {
        let (keeper, first, held) = keeper();
        assert!(keeper.background.is_none(), "it keeps what is held, too");
        let asked = Lease::of_mutex(HOUR);
        asked.start_asking();
        keeper.leases.lock().insert(asked.id(), Arc::clone(&asked));
        keeper.take_over();
        assert!(asked.is_filed() && held.is_filed());
        assert!(!first.is_filed(), "its waiter has sent the request, and still waits for the answer");
    }
}
