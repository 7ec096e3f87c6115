//! The tasks of a keeper: one repeats the requests of waiting leases and handles the store's events, one renews held leases and
//! watches their deadlines, one sends releases.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::mem;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use futures::stream::{BoxStream, FuturesUnordered};
use futures::{FutureExt, Stream, StreamExt};
use scopeguard::guard;
use tokio::runtime::Handle;
use tokio::task::consume_budget;
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::deadline::GIVE_UP_AFTER;
use super::keeper::Keeper;
use super::lease::{Lease, List, PushOutcome, Step};
use super::release_queue::{LAST_RELEASES, MAX_RELEASES, Patience, PendingRelease};
use super::renewals::next_together;
use crate::backend::Event;
use crate::runtime::{PROBE_INTERVAL, is_stuck, spawn, spawn_cancelable, spawn_on};

impl Keeper {
    /// Starts the keeper's tasks on the current runtime unless they are running. The first request does this; when that run is over,
    /// those that wait do it again, and so does the next call. Must be called within a runtime. `false` if this
    /// one has ended and takes no more tasks.
    pub(crate) fn ensure_running(self: &Arc<Self>) -> bool {
        if self.runs.is_running() {
            return true;
        }
        // Subscribed before any request is sent, so that no event caused by it is missed.
        let Some((number, events)) = self.runs.begin(|| self.backend.events()) else { return true };
        // If the runtime is about to end, this is dropped at once.
        let until_over = guard(Arc::clone(self), move |keeper| {
            keeper.stop(number, LAST_RELEASES);
        });
        let (task, cancel) =
            spawn_cancelable(async move { Arc::clone(&until_over).run(number, events).await });
        self.runs.started(number, cancel);
        !task.is_finished()
    }

    /// Ends a run, perhaps because its runtime has ended. Those that wait on another runtime start the next one there; until then,
    /// releases are sent from the crate's own thread. Waits at most for `time_limit` for those that are pending.
    ///
    /// `false` if it was over before.
    fn stop(&self, number: u64, time_limit: Duration) -> bool {
        let ended = self.runs.end(number);
        if ended {
            // Once in a run that has begun; those that end at once have no time of their own.
            self.release_and_wait(time_limit, None);
        }
        ended
    }

    /// Waits for something that the keeper's tasks bring about. If the runtime on which they run ends, or is no longer driven, they
    /// are started on this one.
    pub(super) async fn while_running<T>(self: &Arc<Self>, mut work: impl Future<Output = T> + Unpin) -> T {
        loop {
            let over = self.runs.over();
            if !self.ensure_running() {
                // This is about to be dropped, or the next call on another runtime goes on.
                return work.await;
            }
            tokio::select! {
                biased;
                done = &mut work => return done,
                // Another run would be over at once.
                () = over => if self.abandoned.is_cancelled() && self.releases.is_empty() { return work.await },
                never = self.probe_if_elsewhere() => match never {},
            }
        }
    }

    /// Probes the current run while it is on another runtime than the one on which this is polled, which may change.
    fn probe_if_elsewhere(self: &Arc<Self>) -> impl Future<Output = Infallible> {
        let (mut polled_on, mut probes) = (None, None);
        poll_fn(move |context| {
            if let Ok(here) = Handle::try_current()
                && polled_on.replace(here.id()) != Some(here.id())
            {
                probes = (!self.runs.is_here()).then(|| Box::pin(self.probe()));
            }
            probes.as_mut().map_or(Poll::Pending, |probes| probes.as_mut().poll(context))
        })
    }

    /// Ends the current run if it is on another runtime that makes no progress.
    async fn probe(self: &Arc<Self>) -> Infallible {
        loop {
            if let Some((number, runtime)) = self.runs.to_probe() {
                // In a task: others rely on it, even if this is dropped.
                spawn(Self::stop_if_stuck(Arc::downgrade(self), number, runtime));
            }
            sleep(PROBE_INTERVAL).await;
        }
    }

    /// Ends a run if its runtime makes no progress. If that is driven again, and there is no other run by then, another one begins
    /// there.
    async fn stop_if_stuck(this: Weak<Self>, number: u64, runtime: Handle) {
        if is_stuck(&runtime).await
            && let Some(keeper) = this.upgrade()
        {
            keeper.stop_stuck(number, &runtime);
        }
    }

    fn stop_stuck(&self, number: u64, runtime: &Handle) {
        if self.stop(number, Duration::ZERO) {
            tracing::info!(
                "a runtime on which a client is used has run no task for half a second: it is blocked, busy, or not driven; the client's \
                 tasks continue where it is used next"
            );
            let this = Weak::clone(&self.this);
            spawn_on(runtime, async move {
                if let Some(keeper) = this.upgrade() {
                    keeper.ensure_running();
                }
            });
        }
    }

    /// Looks after releases once a second, on the crate's own thread: nobody waits for a guard that was dropped, so nobody else would
    /// notice that its release is not sent. If a release has been queued for a second although it could have been sent, the
    /// queued releases are sent from this thread: either the runtime of the run makes no progress, or one of its workers is blocked
    /// after waking the task that sends, which no other worker takes over. If the runtime is stuck, the run is ended as well, so that
    /// the next call begins one on its own runtime; also when the client is abandoned, because nobody else would end what is on that
    /// runtime.
    pub(super) async fn watch_runs(this: Weak<Self>, abandoned: CancellationToken) {
        let mut queued_before = 0;
        loop {
            // At once when it is abandoned.
            let was_abandoned = abandoned.is_cancelled();
            tokio::select! {
                () = abandoned.cancelled(), if !was_abandoned => {}
                () = sleep(PROBE_INTERVAL) => {}
            }
            let Some(keeper) = this.upgrade() else { return };
            let late_below = mem::replace(&mut queued_before, keeper.releases.next_number());
            let is_needed = abandoned.is_cancelled() || keeper.releases.is_any_late(late_below);
            let run = if is_needed { keeper.runs.elsewhere() } else { None };
            if keeper.releases.is_any_unsent(late_below, MAX_RELEASES) {
                keeper.release_from_own_thread(Duration::ZERO, None);
            }
            // Not kept alive while this waits.
            drop(keeper);
            let Some((number, runtime)) = run else { continue };
            if is_stuck(&runtime).await
                && let Some(keeper) = this.upgrade()
            {
                if abandoned.is_cancelled() {
                    keeper.end_without_runtime(number).await;
                } else {
                    keeper.stop_stuck(number, &runtime);
                }
            }
        }
    }

    /// The client is abandoned, and the runtime of its run makes no progress: ends the run, which keeps the client alive, and sends the
    /// pending releases, for a minute at most.
    async fn end_without_runtime(&self, number: u64) {
        if self.runs.end(number) {
            let all_sent = async {
                loop {
                    self.send_pending_releases().await;
                    // Others are in flight elsewhere, and may be pending again.
                    if timeout(PROBE_INTERVAL, self.releases.sent()).await.is_ok() {
                        return;
                    }
                }
            };
            let _ = timeout(GIVE_UP_AFTER, all_sent).await;
            self.repeat_left_releases().await;
        }
    }

    /// Runs the keeper's duties until the client is abandoned and no release is pending. Held leases are kept here if they are not
    /// kept on the crate's own thread.
    async fn run(self: Arc<Self>, number: u64, events: BoxStream<'static, Event>) {
        // Guards that were dropped outside a runtime in the meantime do not shorten the wait at its end.
        let _reset = guard((), |()| *self.drops_wait.lock() = Patience::new());
        let held_too = self.background.is_none();
        if number > 1 {
            self.take_over(held_too);
        }
        // Separate tasks, so that a message does not wake those that send releases, and vice versa.
        let (queued, _cancel) = spawn_cancelable(Arc::clone(&self).keep_queued(events));
        let held = async {
            if held_too {
                let (held, _cancel) = spawn_cancelable(Arc::clone(&self).renew_held());
                held.await
            } else {
                pending().await
            }
        };
        // The first ends when the client is abandoned and no release is pending. The others never end, unless they panic.
        tokio::select! {
            () = self.send_releases() => {}
            _ = queued => {}
            _ = held => {}
        }
    }

    /// Makes everything due again that was in progress in an earlier run.
    fn take_over(&self, held_too: bool) {
        self.schedule.clear(List::Waiting);
        if held_too {
            self.schedule.clear(List::Held);
        }
        let mut leases: Vec<_> = self.leases.lock().values().cloned().collect();
        let now = Instant::now();
        leases.retain(|lease| (held_too || lease.waits()) && lease.take_over(now));
        self.schedule.file(leases);
    }

    /// Keeps held leases: renews them and notices their end. Runs until the client is abandoned; nothing is held after that.
    pub(super) async fn keep_held(self: Arc<Self>) {
        tokio::select! {
            () = Arc::clone(&self).renew_held() => {}
            () = self.abandoned.cancelled() => {}
        }
    }

    async fn renew_held(self: Arc<Self>) {
        let (in_flight, rescheduled) = (AtomicUsize::new(0), self.schedule.rescheduled(List::Held));
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
            tokio::select! {
                Some(()) = renewals.next() => {}
                () = rescheduled.notified() => {}
                () = &mut alarm => {}
            }
        }
    }

    async fn keep_queued(self: Arc<Self>, events: BoxStream<'static, Event>) {
        let (mut events, rescheduled) = (events.fuse(), self.schedule.rescheduled(List::Waiting));
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
            tokio::select! {
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
        match event {
            Event::Granted { lease, ticket, grant } => {
                let Some(known) = self.lease(lease.id) else {
                    tracing::debug!(lease = ?lease.id, key = &*lease.resource.key, "orphaned grant, releasing it");
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
