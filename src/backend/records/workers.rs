//! The connections for changes, each with a task that executes them. There is one, and there are more while it is held up.
//!
//! Work goes to the oldest connection that is idle, so that those which are not needed any more are unused for long enough to be closed. As
//! long as one connection works, nothing fails because another one cannot be opened: the work is left to those that there are.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::failure::{Failure, Remedy};
use super::health::{Health, Purpose};
use super::outcome::Outcome;
use super::schedule::{Cached, Done, KeyBatch, Round, Schedule};
use crate::backend::{BackendError, Effects, Ledger, Stamp};
use crate::runtime::spawn_on;

/// How long a change waits for a busy connection before another connection is opened.
const HELD_UP: Duration = Duration::from_millis(50);
/// How long an idle connection is kept, except the oldest one.
const IDLE: Duration = Duration::from_secs(30);
/// The pause between attempts to connect: it grows from the first of these to the second.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(200));
/// How long no further connection is opened after one was refused, while others work: it grows from the first of these to the second.
const REFUSED_PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

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
    crew: Mutex<Crew>,
    /// Whether there has been a connection.
    was_reached: AtomicBool,
    /// Cancelled when the client is closed: no further connection is opened.
    closing: CancellationToken,
    /// Notified when one has ended.
    ended: Notify,
}

/// What is known of all workers.
#[derive(Default)]
struct Crew {
    /// By their numbers, which are in the order in which they started.
    members: BTreeMap<u64, Member>,
    last_number: u64,
    /// Whether another one is about to start if it is still needed then.
    is_starting: bool,
    /// After a further connection was refused: for how long no other one is tried, and since when.
    refused: Option<(Duration, Instant)>,
    /// When a request was sent that was not answered in time. A connection that has not answered since is replaced before it is used: it may
    /// lead to the same server that hangs.
    unanswered: Option<Instant>,
}

/// What is known of one worker.
#[derive(Default)]
struct Member {
    /// When its connection last answered; `None` if it has none.
    answered: Option<Instant>,
    /// Wakes it, if it waits for something to do.
    idle: Option<Arc<Notify>>,
}

impl<C: Connection> Workers<C> {
    pub(in crate::backend) fn new(
        settings: Arc<C::Settings>,
        max: usize,
        time_limit: Duration,
        health: Arc<Health>,
        runtime: Handle,
    ) -> Self {
        let (schedule, crew, ended) = Default::default();
        let (was_reached, closing) = Default::default();
        Self { settings, max, time_limit, health, schedule, runtime, crew, was_reached, closing, ended }
    }

    pub(in crate::backend) fn was_reached(&self) -> bool {
        self.was_reached.load(Ordering::SeqCst)
    }

    /// See [`Schedule::transact`].
    pub(in crate::backend) fn transact<T: Send + 'static>(
        self: &Arc<Self>,
        keys: &[Arc<str>],
        change: impl FnMut(usize, &mut Ledger, Stamp) -> (T, Effects) + Send + 'static,
    ) -> impl Future<Output = Result<Vec<T>, BackendError>> + Send {
        self.schedule.transact(keys, change, || self.ensure_worker())
    }

    /// Makes sure that a connection starts on pending changes soon.
    fn ensure_worker(self: &Arc<Self>) {
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

    /// Wakes the oldest worker that is idle and older than this one. `false` if there is none.
    fn wakes_older(&self, number: u64) -> bool {
        let crew = self.crew.lock();
        let idle = crew.members.range(..number).find_map(|(_, member)| member.idle.as_ref());
        idle.inspect(|idle| idle.notify_one()).is_some()
    }

    fn is_oldest(&self, number: u64) -> bool {
        self.crew.lock().members.first_key_value().is_some_and(|(oldest, _)| *oldest == number)
    }

    /// Nothing new is begun, and no further connection is opened. What has been asked for is done if there is one.
    pub(in crate::backend) fn close(&self) {
        self.schedule.close();
        self.closing.cancel();
    }

    /// Returns when all have ended, after they were closed.
    pub(in crate::backend) async fn ended(&self) {
        let all = async {
            loop {
                let ended = self.ended.notified();
                if self.crew.lock().members.is_empty() {
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

impl Crew {
    /// How long to wait before another worker is started; `None` if none is.
    fn may_grow(&mut self, max: usize) -> Option<Duration> {
        let is_refused = self.refused.is_some_and(|(pause, since)| since.elapsed() < pause);
        let is_any_idle = self.members.values().any(|member| member.idle.is_some());
        let is_first = self.members.is_empty();
        if is_any_idle || self.is_starting || self.members.len() >= max || (is_refused && !is_first) {
            return None;
        }
        self.is_starting = true;
        Some(if is_first { Duration::ZERO } else { HELD_UP })
    }

    fn enlist(&mut self) -> u64 {
        self.last_number += 1;
        self.members.insert(self.last_number, Member::default());
        self.last_number
    }

    fn others(&self, number: u64) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(move |(other, _)| **other != number).map(|(_, member)| member)
    }

    /// Whether another connection works, after this one has failed. If the server declines, it does answer. If it cannot be reached, only an
    /// answer since then shows that another connection can reach it.
    fn do_others_work(&self, number: u64, failure: &Failure, begun: Instant) -> bool {
        let has_declined = matches!(failure.remedy, Remedy::NotNow | Remedy::Fix);
        self.others(number)
            .any(|other| other.answered.is_some_and(|answered| has_declined || answered >= begun))
    }

    fn set_answered(&mut self, number: u64, answered: Option<Instant>) {
        if let Some(member) = self.members.get_mut(&number) {
            member.answered = answered;
        }
    }

    /// No further connection is opened for a while.
    fn pause_growing(&mut self) {
        let pause = self.refused.map_or(REFUSED_PAUSES.0, |(pause, _)| (pause * 2).min(REFUSED_PAUSES.1));
        self.refused = Some((pause, Instant::now()));
    }
}

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
        let connection = match self.connect().await {
            Ok(connection) => connection,
            Err(failure) => return self.give_up(round, failure, begun),
        };
        let sent = Instant::now();
        let (batches, failure) = connection.carry_out(round).await;
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

    /// A round has failed that was `sent` then; `is_final` if somebody is told. Otherwise it is repeated, and if that succeeds, nobody needs
    /// to know.
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use futures::future::join_all;

    use super::super::outcome::{Phase, failed};
    use super::*;

    /// A server without records, and what becomes of its connections.
    #[derive(Default)]
    struct Server {
        opened: AtomicUsize,
        open: AtomicUsize,
        /// How many connections it permits; 0 for any number.
        limit: AtomicUsize,
        /// How many of the connections lead to a server that hangs.
        dead: AtomicUsize,
        /// Whether each connection is closed as soon as it has been used.
        closes: AtomicBool,
        /// How many rounds each connection has carried out.
        used: Mutex<BTreeMap<usize, usize>>,
    }

    struct Fake {
        server: Arc<Server>,
        id: usize,
        is_closed: bool,
    }

    const ROUND: Duration = Duration::from_millis(100);
    const LIMIT: Duration = Duration::from_secs(2);

    impl Connection for Fake {
        type Settings = Arc<Server>;
        type Written = ();

        const SWEEP_INTERVAL: Duration = Duration::from_secs(3600);

        async fn open(server: &Arc<Server>) -> Result<Self, Failure> {
            let limit = server.limit.load(Ordering::SeqCst);
            if limit > 0 && server.open.load(Ordering::SeqCst) >= limit {
                return Err(Failure::not_now("too many connections"));
            }
            server.open.fetch_add(1, Ordering::SeqCst);
            let id = server.opened.fetch_add(1, Ordering::SeqCst);
            Ok(Self { server: Arc::clone(server), id, is_closed: false })
        }

        fn is_closed(&self) -> bool {
            self.is_closed
        }

        async fn carry_out(&mut self, round: Round<()>) -> Outcome<()> {
            *self.server.used.lock().entry(self.id).or_default() += 1;
            let batches = round.into_batches();
            if self.id < self.server.dead.load(Ordering::SeqCst) {
                sleep(LIMIT).await;
                return failed(batches, Failure::timed_out(LIMIT), Phase::Reading);
            }
            sleep(ROUND).await;
            self.is_closed = self.server.closes.load(Ordering::SeqCst);
            (batches.into_iter().map(|batch| (batch, Done::Finished)).collect(), None)
        }

        async fn sweep(&mut self) -> Result<(), Failure> {
            Ok(())
        }
    }

    impl Drop for Fake {
        fn drop(&mut self) {
            self.server.open.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn workers(max: usize) -> (Arc<Server>, Arc<Workers<Fake>>) {
        let (server, health) = (Arc::new(Server::default()), Arc::new(Health::new("test://".to_owned())));
        let workers = Workers::new(Arc::new(Arc::clone(&server)), max, LIMIT * 2, health, Handle::current());
        (server, Arc::new(workers))
    }

    async fn change(workers: &Arc<Workers<Fake>>, key: usize) -> Result<(), BackendError> {
        let keys = [format!("{key}").into()];
        workers.transact(&keys, |_, _, _| ((), Effects::default())).await.map(drop)
    }

    /// Changes that come one after another, faster than one connection carries them out.
    async fn burst(workers: &Arc<Workers<Fake>>, changes: usize) -> Vec<Result<(), BackendError>> {
        let each = (0..changes).map(async |n| {
            sleep(ROUND * u32::try_from(n).unwrap() * 6 / 10).await;
            change(workers, n).await
        });
        join_all(each).await
    }

    fn open(server: &Server) -> usize {
        server.open.load(Ordering::SeqCst)
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_burst_one_connection_stays_while_one_lease_is_renewed() {
        let (server, workers) = workers(4);
        assert!(burst(&workers, 40).await.iter().all(Result::is_ok));
        assert!(open(&server) > 1, "there was no need of others");
        server.used.lock().clear();
        let end = tokio::time::Instant::now() + IDLE + Duration::from_secs(1);
        while tokio::time::Instant::now() < end {
            change(&workers, 0).await.unwrap();
            sleep(Duration::from_millis(333)).await;
        }
        assert_eq!(open(&server), 1);
        assert_eq!(server.used.lock().keys().collect::<Vec<_>>(), [&0], "the oldest one is used");
    }

    #[tokio::test(start_paused = true)]
    async fn a_further_connection_that_is_refused_fails_nothing_and_is_not_tried_all_the_time() {
        let (server, workers) = workers(4);
        server.limit.store(1, Ordering::SeqCst);
        let mut states = workers.health.changes();
        for closes in [false, true] {
            // Also if the one that there is has to be opened again and again.
            server.closes.store(closes, Ordering::SeqCst);
            let answers = burst(&workers, 100).await;
            assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        }
        assert!(workers.health.state().status.is_connected());
        let seen = futures::FutureExt::now_or_never(futures::StreamExt::next(&mut states)).flatten();
        assert!(seen.is_none_or(|state| state.status.is_connected()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_is_closed_while_it_is_idle_is_opened_again_in_silence() {
        let (server, workers) = workers(1);
        server.closes.store(true, Ordering::SeqCst);
        change(&workers, 0).await.unwrap();
        let states = workers.health.changes();
        for n in 0..5 {
            change(&workers, n).await.unwrap();
        }
        assert_eq!(server.opened.load(Ordering::SeqCst), 6);
        assert!(futures::FutureExt::now_or_never(futures::StreamExt::into_future(states)).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn connections_that_swallow_everything_cost_one_time_limit_together() {
        let (server, workers) = workers(4);
        assert!(burst(&workers, 40).await.iter().all(Result::is_ok));
        assert!(open(&server) > 1);
        // Those that there are; new ones work.
        server.dead.store(server.opened.load(Ordering::SeqCst), Ordering::SeqCst);
        let begun = tokio::time::Instant::now();
        assert!(change(&workers, 0).await.is_err(), "it is repeated by whoever called");
        // Not by another connection that is as dead.
        change(&workers, 0).await.unwrap();
        assert!(begun.elapsed() < LIMIT + ROUND * 3, "{:?}", begun.elapsed());
    }
}
