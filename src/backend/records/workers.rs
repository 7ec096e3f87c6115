//! The connections for changes, each with a task that executes them. There is one, and there are more while it is held up.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::failure::Failure;
use super::health::{Health, Purpose};
use super::outcome::Outcome;
use super::schedule::{Cached, Done, Round, Schedule};
use crate::backend::{BackendError, Event, Ledger, Stamp};
use crate::runtime::spawn_on;

/// How long a change waits for a busy connection before another connection is opened.
const HELD_UP: Duration = Duration::from_millis(50);
/// How long an idle connection is kept, except the first one.
const IDLE: Duration = Duration::from_secs(30);
/// The pause between attempts to connect: it grows from the first of these to the second.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(200));

/// A connection to the server that carries out changes.
pub(in crate::backend) trait Connection: Sized + Send + Sync + 'static {
    /// What is needed to open one.
    type Settings: Send + Sync + 'static;
    /// A record as it was written.
    type Written: Cached;

    /// How often idle records are looked for.
    const SWEEP_INTERVAL: Duration;

    fn open(settings: &Self::Settings) -> impl Future<Output = Result<Self, Failure>> + Send;

    fn is_closed(&self) -> bool;

    fn carry_out(
        &mut self,
        round: Round<Self::Written>,
    ) -> impl Future<Output = Outcome<Self::Written>> + Send;

    /// Removes records that nobody has used for a day.
    fn sweep(&mut self) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// The connections of a client for changes.
pub(in crate::backend) struct Workers<C: Connection> {
    settings: Arc<C::Settings>,
    /// How many there are at most.
    max: usize,
    /// How long opening a connection and a change on it take together at most.
    time_limit: Duration,
    health: Arc<Health>,
    pub(in crate::backend) schedule: Schedule<C::Written>,
    runtime: Handle,
    count: Mutex<Count>,
    /// Notified when one has ended.
    ended: Notify,
}

#[derive(Default)]
struct Count {
    all: usize,
    idle: usize,
    /// Whether another one is about to be opened if it is still needed then.
    is_starting: bool,
}

impl<C: Connection> Workers<C> {
    pub(in crate::backend) fn new(
        settings: Arc<C::Settings>,
        max: usize,
        time_limit: Duration,
        health: Arc<Health>,
        runtime: Handle,
    ) -> Self {
        let (schedule, count, ended) = Default::default();
        Self { settings, max, time_limit, health, schedule, runtime, count, ended }
    }

    /// See [`Schedule::transact`].
    pub(in crate::backend) fn transact<T: Send + 'static>(
        self: &Arc<Self>,
        keys: &[Arc<str>],
        change: impl FnMut(usize, &mut Ledger, Stamp) -> (T, Vec<Event>) + Send + 'static,
    ) -> impl Future<Output = Result<Vec<T>, BackendError>> + Send {
        self.schedule.transact(keys, change, || self.ensure_worker())
    }

    /// Makes sure that a connection starts on pending changes soon.
    fn ensure_worker(self: &Arc<Self>) {
        let mut count = self.count.lock();
        if count.idle > 0 || count.is_starting || count.all >= self.max {
            return;
        }
        count.is_starting = true;
        let wait = if count.all == 0 { Duration::ZERO } else { HELD_UP };
        drop(count);
        let workers = Arc::clone(self);
        spawn_on(&self.runtime, async move {
            if !wait.is_zero() {
                sleep(wait).await;
            }
            let is_first = {
                let mut count = workers.count.lock();
                count.is_starting = false;
                if !workers.schedule.is_ready() {
                    return;
                }
                count.all += 1;
                count.all == 1
            };
            Worker::new(Arc::clone(&workers), is_first).work().await;
        });
    }

    /// Returns when all have ended, after the schedule was closed.
    pub(in crate::backend) async fn ended(&self) {
        let all = async {
            loop {
                let ended = self.ended.notified();
                if self.count.lock().all == 0 {
                    return;
                }
                ended.await;
            }
        };
        // Those that hang end by their own time limits.
        let _ = timeout(self.time_limit * 2, all).await;
        self.schedule.abandon();
    }
}

/// One connection.
struct Worker<C: Connection> {
    workers: Arc<Workers<C>>,
    is_first: bool,
    connection: Option<C>,
    /// How long to wait before the next attempt to connect, and since when.
    pause: Option<(Duration, Instant)>,
    next_sweep: Instant,
}

impl<C: Connection> Worker<C> {
    fn new(workers: Arc<Workers<C>>, is_first: bool) -> Self {
        Self { workers, is_first, connection: None, pause: None, next_sweep: Instant::now() }
    }

    async fn work(mut self) {
        while let Some(round) = self.next().await {
            self.carry_out(round).await;
        }
    }

    /// What is to be done next; `None` if this connection is not needed any more.
    async fn next(&mut self) -> Option<Round<C::Written>> {
        self.wait_to_connect().await;
        let workers = Arc::clone(&self.workers);
        loop {
            if let Some(round) = workers.schedule.take() {
                if workers.schedule.is_ready() {
                    workers.ensure_worker();
                }
                return Some(round);
            }
            if workers.schedule.is_drained() {
                return None;
            }
            if self.is_first {
                self.sweep_if_due().await;
            }
            let _idle = Idle::of(&workers);
            if workers.schedule.is_ready() {
                continue;
            }
            if self.is_first {
                workers.schedule.changed().await;
            } else if timeout(IDLE, workers.schedule.changed()).await.is_err() {
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

    async fn carry_out(&mut self, round: Round<C::Written>) {
        let batches = match self.connect().await {
            Ok(connection) => {
                let (batches, failure) = connection.carry_out(round).await;
                self.handle_outcome(failure);
                batches
            }
            Err(failure) => {
                let error = failure.before_storing();
                self.handle_outcome(Some(failure));
                let done = || Done::Failed { error: error.duplicate(), unsure: false };
                round.into_batches().into_iter().map(|batch| (batch, done())).collect()
            }
        };
        for (batch, done) in batches {
            self.workers.schedule.finish(batch, done);
        }
    }

    async fn connect(&mut self) -> Result<&mut C, Failure> {
        let connection = match self.connection.take().filter(|connection| !connection.is_closed()) {
            Some(connection) => connection,
            None => C::open(&self.workers.settings).await?,
        };
        Ok(self.connection.insert(connection))
    }

    /// Updates the health and the pause between attempts after a round.
    fn handle_outcome(&mut self, failure: Option<Failure>) {
        let health = &self.workers.health;
        match failure {
            None => {
                health.succeeded(Purpose::Changes);
                self.pause = None;
            }
            Some(failure) => {
                if failure.is_broken {
                    // A connection that could be opened is replaced at once, and then there are pauses.
                    let was_open = self.connection.take().is_some();
                    let pause = self.pause.map_or(PAUSES.0, |(pause, _)| (pause * 2).min(PAUSES.1));
                    let pause = if was_open { Duration::ZERO } else { pause };
                    self.pause = Some((pause, Instant::now()));
                    health.failed(Purpose::Changes, &failure.why);
                }
                tracing::debug!(store = %health.address(), %failure, "changes were not stored");
            }
        }
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
                self.connection = None;
            }
        }
    }
}

impl<C: Connection> Drop for Worker<C> {
    fn drop(&mut self) {
        self.workers.count.lock().all -= 1;
        self.workers.ended.notify_waiters();
        // Something may have become ready after it was decided that this one is not needed.
        if self.workers.schedule.is_ready() {
            self.workers.ensure_worker();
        }
    }
}

/// Counts a connection that waits for something to do.
struct Idle<'a, C: Connection>(&'a Workers<C>);

impl<'a, C: Connection> Idle<'a, C> {
    fn of(workers: &'a Workers<C>) -> Self {
        workers.count.lock().idle += 1;
        Self(workers)
    }
}

impl<C: Connection> Drop for Idle<'_, C> {
    fn drop(&mut self) {
        self.0.count.lock().idle -= 1;
    }
}
