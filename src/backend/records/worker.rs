//! One connection for changes, and the task that carries out changes on it.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::sleep;

use super::failure::{Failure, Remedy};
use super::health::Purpose;
use super::round::{Done, KeyBatch, Round};
use super::workers::{Connection, Workers};
use crate::runtime::spawn_on;

/// How long an idle connection is kept, except the oldest one.
pub(super) const IDLE: Duration = Duration::from_secs(30);
/// The pause between attempts to connect: it grows from the first of these to the second.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(200));

/// One connection.
struct Worker<C: Connection> {
    workers: Arc<Workers<C>>,
    number: u64,
    connection: Option<C>,
    /// How long to wait before the next attempt to connect, and since when.
    pause: Option<(Duration, Instant)>,
    /// Why the server could not be reached, and since when that was tried: what is taken next fails for it.
    unreachable: Option<(Failure, Instant)>,
    next_sweep: Instant,
}

/// Why a worker ends: its connection could not be opened, and others work.
struct Unneeded;

impl<C: Connection> Workers<C> {
    /// Makes sure that a connection starts on pending changes soon.
    pub(super) fn ensure_worker(self: &Arc<Self>) {
        let Some(wait) = self.crew.lock().may_grow(self.max) else { return };
        let workers = Arc::clone(self);
        spawn_on(&self.runtime, async move {
            if !wait.is_zero() {
                sleep(wait).await;
            }
            let number = {
                let mut crew = workers.crew.lock();
                crew.is_starting = false;
                if !workers.schedule.is_ready() {
                    return;
                }
                crew.enlist()
            };
            Worker::new(Arc::clone(&workers), number).work().await;
        });
    }
}

impl<C: Connection> Worker<C> {
    fn new(workers: Arc<Workers<C>>, number: u64) -> Self {
        let (connection, pause, unreachable) = (None, None, None);
        Self { workers, number, connection, pause, unreachable, next_sweep: Instant::now() }
    }

    async fn work(mut self) {
        while let Some(round) = self.next().await {
            if self.carry_out(round).await.is_err() {
                return;
            }
        }
    }

    /// What is to be done next; `None` if this connection is not needed any more.
    async fn next(&mut self) -> Option<Round<C::Written>> {
        self.wait_to_connect().await;
        let workers = Arc::clone(&self.workers);
        loop {
            if workers.schedule.is_ready() && self.connect_beside_others().await.is_err() {
                return None;
            }
            if let Some(round) = workers.schedule.take() {
                if workers.schedule.is_ready() {
                    workers.ensure_worker();
                }
                return Some(round);
            }
            if workers.schedule.is_drained() {
                return None;
            }
            if workers.is_oldest(self.number) {
                self.sweep_if_due().await;
            }
            if !self.wait_for_work().await {
                return None;
            }
        }
    }

    /// After an attempt that failed, waits before the next one.
    async fn wait_to_connect(&self) {
        if let Some((pause, since)) = self.pause {
            sleep(pause.saturating_sub(since.elapsed())).await;
        }
    }

    /// If others have connections, opens one before it takes work, which is left to them if that fails.
    async fn connect_beside_others(&mut self) -> Result<(), Unneeded> {
        let is_first = self.workers.crew.lock().others(self.number).all(|other| other.answered.is_none());
        if is_first || self.is_usable() {
            return Ok(());
        }
        let begun = Instant::now();
        if let Err(failure) = self.connect().await {
            self.yield_to_others(&failure, begun)?;
            self.unreachable = Some((failure, begun));
        }
        Ok(())
    }

    /// After its connection could not be opened: whether the work is left to others.
    fn yield_to_others(&self, failure: &Failure, begun: Instant) -> Result<(), Unneeded> {
        let mut crew = self.workers.crew.lock();
        if !crew.do_others_work(self.number, failure, begun) {
            return Ok(());
        }
        crew.pause_growing();
        drop(crew);
        tracing::debug!(store = %self.workers.health.address(), %failure, "another connection could not be opened");
        Err(Unneeded)
    }

    /// Returns when there may be something to do. `false` if this connection is not needed any more.
    async fn wait_for_work(&self) -> bool {
        let workers = &self.workers;
        let wake = Arc::new(Notify::new());
        let _idle = Idle::of(workers, self.number, &wake);
        if workers.schedule.is_ready() {
            return true;
        }
        let unneeded = async {
            tokio::select! {
                () = sleep(IDLE) => {}
                // The server may permit only so many: that one is needed more.
                () = workers.health.lacks(Purpose::Notifications) => {}
            }
            if workers.is_oldest(self.number) {
                pending::<()>().await;
            }
        };
        tokio::pin!(unneeded);
        loop {
            tokio::select! {
                () = wake.notified() => return true,
                // An older one is to be used first, and this one stays unused.
                () = workers.schedule.changed() => if !workers.wakes_older(self.number) {
                    return true;
                },
                () = &mut unneeded => return false,
            }
        }
    }

    async fn carry_out(&mut self, round: Round<C::Written>) -> Result<(), Unneeded> {
        if let Some((failure, begun)) = self.unreachable.take() {
            return self.give_up(round, failure, begun);
        }
        let begun = Instant::now();
        let workers = Arc::clone(&self.workers);
        let connection = match self.connect().await {
            Ok(connection) => connection,
            Err(failure) => return self.give_up(round, failure, begun),
        };
        let sent = Instant::now();
        let (batches, failure) = connection.carry_out(round, &workers.schedule).await;
        let has_failed = batches.iter().any(|(_, done)| matches!(done, Done::Failed { .. }));
        match failure {
            None => self.has_answered(),
            Some(failure) => self.has_failed(&failure, sent, has_failed),
        }
        self.finish(batches);
        Ok(())
    }

    fn finish(&self, batches: Vec<(KeyBatch<C::Written>, Done)>) {
        for (batch, done) in batches {
            self.workers.schedule.finish(batch, done);
        }
    }

    /// A round that was taken, but there is no connection for it.
    fn give_up(
        &mut self,
        round: Round<C::Written>,
        failure: Failure,
        begun: Instant,
    ) -> Result<(), Unneeded> {
        let is_left = self.yield_to_others(&failure, begun);
        let done = || match is_left {
            Ok(()) => Done::Failed { error: failure.before_storing(), unsure: false },
            Err(Unneeded) => Done::Retry,
        };
        let batches = round.into_batches().into_iter().map(|batch| (done(), batch));
        let batches: Vec<_> = batches.map(|(done, batch)| (batch, done)).collect();
        if is_left.is_ok() {
            let pause = self.pause.map_or(PAUSES.0, |(pause, _)| (pause * 2).clamp(PAUSES.0, PAUSES.1));
            self.pause = Some((pause, Instant::now()));
            self.workers.health.failed(Purpose::Changes, &failure.why);
            self.trace(&failure);
        }
        self.finish(batches);
        is_left
    }

    /// Whether its connection can be used without opening it again.
    fn is_usable(&self) -> bool {
        let Some(connection) = &self.connection else { return false };
        let crew = self.workers.crew.lock();
        let answered = crew.members.get(&self.number).and_then(|member| member.answered);
        !connection.is_closed() && crew.unanswered.is_none_or(|sent| answered >= Some(sent))
    }

    async fn connect(&mut self) -> Result<&mut C, Failure> {
        if !self.is_usable() {
            self.disconnect();
            let opened = self.workers.closing.run_until_cancelled(C::open(&self.workers.settings)).await;
            self.connection = Some(opened.unwrap_or_else(|| Err(Failure::closed()))?);
            self.workers.was_reached.store(true, Ordering::SeqCst);
            let mut crew = self.workers.crew.lock();
            crew.set_answered(self.number, Some(Instant::now()));
            crew.refused = None;
        }
        self.connection.as_mut().ok_or_else(|| Failure::unavailable("there is no connection"))
    }

    fn disconnect(&mut self) {
        self.connection = None;
        self.workers.crew.lock().set_answered(self.number, None);
    }

    fn has_answered(&mut self) {
        self.pause = None;
        self.workers.crew.lock().set_answered(self.number, Some(Instant::now()));
        self.workers.health.succeeded(Purpose::Changes);
    }

    /// A round has failed that was `sent` then; `is_final` if somebody is told. Otherwise it is repeated, and if that
    /// succeeds, nobody needs to know.
    fn has_failed(&mut self, failure: &Failure, sent: Instant, is_final: bool) {
        if failure.is_broken {
            self.disconnect();
            // A connection that could be opened is replaced at once, and then there are pauses.
            self.pause = Some((Duration::ZERO, Instant::now()));
            let mut crew = self.workers.crew.lock();
            if failure.remedy == Remedy::Wait {
                crew.unanswered = crew.unanswered.max(Some(sent));
            }
            let is_alone = !crew.do_others_work(self.number, failure, sent);
            drop(crew);
            if is_final && is_alone {
                self.workers.health.failed(Purpose::Changes, &failure.why);
            }
        }
        self.trace(failure);
    }

    fn trace(&self, failure: &Failure) {
        tracing::debug!(store = %self.workers.health.address(), %failure, "changes were not stored");
    }

    async fn sweep_if_due(&mut self) {
        let now = Instant::now();
        if self.next_sweep > now {
            return;
        }
        let open = self.connection.as_mut().filter(|connection| !connection.is_closed());
        let Some(connection) = open else { return };
        self.next_sweep = now + C::SWEEP_INTERVAL;
        if let Err(failure) = connection.sweep().await {
            tracing::debug!(store = %self.workers.health.address(), %failure, "idle records were not removed");
            if failure.is_broken {
                self.disconnect();
            }
        }
    }
}

impl<C: Connection> Drop for Worker<C> {
    fn drop(&mut self) {
        self.workers.crew.lock().members.remove(&self.number);
        self.workers.ended.notify_waiters();
        // Something may have become ready after it was decided that this one is not needed.
        if self.workers.schedule.is_ready() {
            self.workers.ensure_worker();
        }
    }
}

/// A worker that waits for something to do, as long as this lives.
struct Idle<'a, C: Connection>(&'a Workers<C>, u64);

impl<'a, C: Connection> Idle<'a, C> {
    fn of(workers: &'a Workers<C>, number: u64, wake: &Arc<Notify>) -> Self {
        if let Some(member) = workers.crew.lock().members.get_mut(&number) {
            member.idle = Some(Arc::clone(wake));
        }
        Self(workers, number)
    }
}

impl<C: Connection> Drop for Idle<'_, C> {
    fn drop(&mut self) {
        if let Some(member) = self.0.crew.lock().members.get_mut(&self.1) {
            member.idle = None;
        }
    }
}
