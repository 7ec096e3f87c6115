//! The connections for changes, each with a task that carries out what is asked for. There is one, and more while it is held up.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::builder::Settings;
use super::exchange::{Outcome, change_crowded, change_quiet};
use super::failure::Failure;
use super::health::{Health, Purpose};
use super::schedule::{Done, Round, Schedule, Work};
use super::session::Session;
use super::sweep;
use crate::sync::Mutex;

/// For how long something waits for a connection that is busy before another one is opened.
const HELD_UP: Duration = Duration::from_millis(50);
/// How long a connection is kept that is not needed, besides the first one.
const IDLE: Duration = Duration::from_secs(30);
/// The pause between attempts to connect: it grows from the first of these to the second.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(200));

/// The connections of a client for changes.
pub(super) struct Workers {
    settings: Arc<Settings>,
    health: Arc<Health>,
    pub(super) schedule: Schedule,
    runtime: Handle,
    count: Mutex<Count>,
    /// Told when one has ended.
    ended: Notify,
}

#[derive(Default)]
struct Count {
    all: usize,
    idle: usize,
    /// Whether another one is about to be opened if it is still needed then.
    is_called: bool,
}

impl Workers {
    pub(super) fn new(settings: Arc<Settings>, health: Arc<Health>, runtime: Handle) -> Self {
        let (schedule, count, ended) = Default::default();
        Self { settings, health, schedule, runtime, count, ended }
    }

    /// Makes sure that what is ready is begun soon.
    pub(super) fn call(self: &Arc<Self>) {
        let mut count = self.count.lock();
        // One is for notifications.
        if count.idle > 0 || count.is_called || count.all + 1 >= self.settings.max_connections {
            return;
        }
        count.is_called = true;
        let wait = if count.all == 0 { Duration::ZERO } else { HELD_UP };
        drop(count);
        let workers = Arc::clone(self);
        self.runtime.spawn(async move {
            if !wait.is_zero() {
                sleep(wait).await;
            }
            let is_first = {
                let mut count = workers.count.lock();
                count.is_called = false;
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
    pub(super) async fn ended(&self) {
        let limit = (self.settings.connect_timeout + self.settings.reply_timeout) * 2;
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
        let _ = timeout(limit, all).await;
        self.schedule.abandon();
    }
}

/// One connection.
struct Worker {
    workers: Arc<Workers>,
    is_first: bool,
    session: Option<Session>,
    /// How long to wait before the next attempt to connect, and since when.
    pause: Option<(Duration, Instant)>,
    next_sweep: Instant,
}

impl Worker {
    fn new(workers: Arc<Workers>, is_first: bool) -> Self {
        Self { workers, is_first, session: None, pause: None, next_sweep: Instant::now() }
    }

    async fn work(mut self) {
        while let Some(round) = self.next().await {
            self.carry_out(round).await;
        }
    }

    /// What is to be done next; `None` if this connection is not needed any more.
    async fn next(&mut self) -> Option<Round> {
        self.wait_to_connect().await;
        let workers = Arc::clone(&self.workers);
        loop {
            if let Some(round) = workers.schedule.take() {
                if workers.schedule.is_ready() {
                    workers.call();
                }
                return Some(round);
            }
            if workers.schedule.is_over() {
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

    async fn carry_out(&mut self, round: Round) {
        let works = match self.connect().await {
            Ok(session) => {
                let (works, failure) = exchange(session, round).await;
                self.judge(failure);
                works
            }
            Err(failure) => {
                let error = failure.before_storing();
                self.judge(Some(failure));
                let done = || Done::Failed { error: error.again(), unsure: false };
                works_of(round).into_iter().map(|work| (work, done())).collect()
            }
        };
        for (work, done) in works {
            self.workers.schedule.finish(work, done);
        }
    }

    async fn connect(&mut self) -> Result<&Session, Failure> {
        let session = match self.session.take().filter(|session| !session.is_closed()) {
            Some(session) => session,
            None => Session::open(&self.workers.settings).await?,
        };
        Ok(self.session.insert(session))
    }

    /// What follows from how it went.
    fn judge(&mut self, failure: Option<Failure>) {
        let health = &self.workers.health;
        match failure {
            None => {
                health.succeeded(Purpose::Changes);
                self.pause = None;
            }
            Some(failure) => {
                if failure.is_broken {
                    // A session that could be opened is replaced at once, and then there are pauses.
                    let was_open = self.session.take().is_some();
                    let pause = self.pause.map_or(PAUSES.0, |(pause, _)| (pause * 2).min(PAUSES.1));
                    let pause = if was_open { Duration::ZERO } else { pause };
                    self.pause = Some((pause, Instant::now()));
                    health.failed(Purpose::Changes, &failure.why);
                }
                tracing::debug!(store = %self.workers.settings.address, %failure, "changes were not stored");
            }
        }
    }

    async fn sweep_if_due(&mut self) {
        let now = Instant::now();
        if self.next_sweep > now {
            return;
        }
        let Some(session) = self.session.as_ref().filter(|session| !session.is_closed()) else { return };
        self.next_sweep = now + sweep::INTERVAL;
        if let Err(failure) = sweep::sweep(session).await {
            tracing::debug!(store = %self.workers.settings.address, %failure, "idle rows were not removed");
            if failure.is_broken {
                self.session = None;
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.workers.count.lock().all -= 1;
        self.workers.ended.notify_waiters();
        // Something may have become ready after it was decided that this one is not needed.
        if self.workers.schedule.is_ready() {
            self.workers.call();
        }
    }
}

/// Counts a connection that waits for something to do.
struct Idle<'a>(&'a Workers);

impl<'a> Idle<'a> {
    fn of(workers: &'a Workers) -> Self {
        workers.count.lock().idle += 1;
        Self(workers)
    }
}

impl Drop for Idle<'_> {
    fn drop(&mut self) {
        self.0.count.lock().idle -= 1;
    }
}

async fn exchange(session: &Session, round: Round) -> Outcome {
    match round {
        Round::Quiet(works) => change_quiet(session, works).await,
        Round::Crowded(work) => change_crowded(session, work).await,
    }
}

fn works_of(round: Round) -> Vec<Work> {
    match round {
        Round::Quiet(works) => works,
        Round::Crowded(work) => vec![work],
    }
}
