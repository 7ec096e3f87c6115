//! The connections for changes, on a server that is none.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::sleep;

use super::worker::IDLE;
use super::*;
use crate::backend::{BackendError, Effects};

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
    const CONTENDED: Duration = Duration::from_secs(1);

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

    async fn carry_out(&mut self, round: Round<()>, _: &Schedule<()>) -> Outcome<()> {
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
