//! A worker: one client of the store, in a process of its own, whose tasks take everything there is again and again, and
//! write down what happens to them.

mod beside;
mod going_on;
mod handle;
mod lease;
mod open;
mod several;
mod usage;
mod user;

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::{Args, ValueEnum};
use futures::future::join_all;
use leasehold::{Client, Error, MutexOptions};
use leasehold_torture::history::{HoldId, Micros};
use tokio::runtime::{Builder, Handle as Runtime, Runtime as OtherRuntime};
use tokio::sync::oneshot;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{sleep, timeout};

use crate::clock::{micros, now};
use crate::log::Log;
use crate::register::Registered;
use crate::sites::{self, Taken};
use beside::Beside;
use handle::Held;
use usage::{settled, usage};
use user::User;

/// How often a worker looks whether it runs at all.
const BEAT: Duration = Duration::from_millis(4);
/// What is later than that is written down: less than what a lease has in reserve for timers and scheduling.
const LATE: Micros = 8_000;
/// How long requests may take that were open at the end, when nothing goes wrong any more.
const AFTERWARDS: Duration = Duration::from_secs(15);

/// After which time a runtime ends on which a client lives.
const MOVES: Duration = Duration::from_secs(2);

/// What a worker is told by the harness.
#[derive(Args, Clone, Debug)]
pub(crate) struct Orders {
    /// The store, through this worker's own line.
    #[arg(long)]
    pub(crate) url: String,
    /// The port of the register.
    #[arg(long)]
    pub(crate) register: u16,
    /// Where to write events.
    #[arg(long)]
    pub(crate) log: PathBuf,
    /// The number of its client.
    #[arg(long)]
    pub(crate) client: u32,
    #[arg(long)]
    pub(crate) seed: u64,
    /// When to end, on the clock that all processes share.
    #[arg(long)]
    pub(crate) end: Micros,
    /// Of all leases, in milliseconds.
    #[arg(long)]
    pub(crate) lease: u64,
    /// How many there are of each kind.
    #[arg(long)]
    pub(crate) each: usize,
    /// How many tasks ask for each of them.
    #[arg(long)]
    pub(crate) tasks: usize,
    /// One of how many sections is long.
    #[arg(long)]
    pub(crate) long: u64,
    /// For how long a task rests at most before it asks again, in milliseconds.
    #[arg(long)]
    pub(crate) rest: u64,
    /// Whether the store has semaphores.
    #[arg(long)]
    pub(crate) semaphores: bool,
    /// Whether it is also used from other runtimes.
    #[arg(long)]
    pub(crate) other_runtimes: bool,
    /// A mistake of this worker.
    #[arg(long)]
    pub(crate) planted: Option<Planted>,
}

/// A mistake that the judge must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Planted {
    /// Workers go on when their lease is lost.
    Deaf,
    /// Workers that are told that somebody else holds go on as if they did.
    Impatient,
    /// The register does not check tokens.
    NoFence,
    /// The store is emptied, and nobody is told that promises end with that.
    SecretFlush,
    /// Workers forget some of what they hold.
    Leaking,
}

impl Planted {
    /// As it is written on the command line.
    pub(crate) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// What the tasks of a worker share.
struct Shared {
    orders: Orders,
    client: Client,
    register: Registered,
    log: Log,
    sites: Vec<Taken>,
    /// How many requests there were.
    requests: AtomicU32,
    /// What nobody will drop while the client is used. (What is leaked for good keeps its client for good.)
    forgotten: Mutex<Vec<Arc<Held>>>,
    /// Where those are watched that others cannot watch.
    runtime: Runtime,
}

impl Shared {
    /// The number of the next request: no two clients have the same.
    fn next_hold(&self) -> HoldId {
        let n = self.requests.fetch_add(1, Ordering::Relaxed);
        HoldId::from(self.orders.client) << 32 | HoldId::from(n)
    }

    /// Nothing ran on one of its runtimes meanwhile.
    fn late(&self, from: Micros, to: Micros) {
        if to > from + LATE {
            self.log.late(from, to);
        }
    }

    fn forget(&self, held: Arc<Held>) {
        self.forgotten.lock().unwrap_or_else(PoisonError::into_inner).push(held);
    }

    fn has(&self, mistake: Planted) -> bool {
        self.orders.planted == Some(mistake)
    }
}

/// The whole life of a worker.
pub(crate) async fn work(orders: Orders) -> io::Result<()> {
    let log = Log::create(&orders.log)?;
    let register = Registered::connect(orders.register).await?;
    // What the first client of a process makes, it keeps: only what comes later must go again.
    first(&orders, &log).await?;
    let before = usage()?;
    log.uses(before.0, before.1);
    let (client, home) = at_home(&orders, &log).await?;
    let sites = sites::all(orders.semaphores, Duration::from_millis(orders.lease), orders.each);
    let shared = Shared {
        orders,
        client,
        register,
        log,
        sites,
        requests: AtomicU32::new(0),
        forgotten: Mutex::default(),
        runtime: Runtime::current(),
    };
    let shared = Arc::new(shared);
    let mut watching = JoinSet::new();
    watching.spawn(beat(Arc::clone(&shared)));
    watching.spawn(usage::watch_memory(shared.log.clone()));
    let users =
        (0..shared.sites.len()).flat_map(|site| (0..shared.orders.tasks).map(move |task| (site, task)));
    let users: Vec<_> =
        users.map(|(site, task)| tokio::spawn(User::new(&shared, site, task).run())).collect();
    let mut beside = Vec::new();
    if shared.orders.other_runtimes {
        beside = vec![Beside::guests(&shared).ended(), Beside::blocker(&shared).ended()];
    }
    let (end, ending) = oneshot::channel();
    let receiving = tokio::spawn(going_on::receive(Arc::clone(&shared), ending));
    let moving = tokio::spawn(end_later(home));
    let limit = Duration::from_micros(shared.orders.end.saturating_sub(now())) + AFTERWARDS;
    // What is not answered by then, the judge sees.
    let all = async { (join_all(users).await, join_all(beside).await) };
    let Ok((ended, beside)) = timeout(limit, all).await else { return Ok(()) };
    beside.into_iter().collect::<io::Result<()>>()?;
    moving.await.map_err(io::Error::other)?;
    // Nobody here sends letters any more. What comes from others, and is not read, ends by itself.
    drop(end);
    receiving.await.map_err(io::Error::other)??;
    for task in ended {
        task.map_err(io::Error::other)?.map_err(io::Error::other)?;
    }
    watching.shutdown().await;
    close(&shared.client, &shared.log).await;
    let shared = Arc::into_inner(shared).ok_or_else(|| io::Error::other("a task goes on"))?;
    let Shared { client, log, register, forgotten, .. } = shared;
    drop((client, forgotten));
    let after = settled(before).await?;
    log.uses(after.0, after.1);
    drop(register);
    Ok(())
}

/// The first client of the process: it is used on a runtime that ends, so that it starts all the threads that clients have in
/// common, and then closed.
async fn first(orders: &Orders, log: &Log) -> io::Result<()> {
    let (orders, noted) = (orders.clone(), log.clone());
    let using = async move {
        let client = connect(&orders, &noted).await;
        let options = MutexOptions::new().ttl(Duration::from_millis(orders.lease));
        let mutex = client.mutex_with(&format!("first of {}", orders.client), options)?;
        match mutex.try_lock().await {
            Ok(guard) => drop(guard),
            Err(error) => noted.error("first request", &error),
        }
        Ok::<_, Error>(client)
    };
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let client = runtime.spawn(using).await;
    // It waits for its threads.
    spawn_blocking(move || drop(runtime)).await.map_err(io::Error::other)?;
    close(&client.map_err(io::Error::other)?.map_err(io::Error::other)?, log).await;
    Ok(())
}

/// The client, and a runtime that ends in the middle of the run, where every other client lives until then.
async fn at_home(orders: &Orders, log: &Log) -> io::Result<(Client, Option<OtherRuntime>)> {
    if !orders.other_runtimes || orders.client.is_multiple_of(2) {
        return Ok((connect(orders, log).await, None));
    }
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let connecting = runtime.spawn({
        let (orders, log) = (orders.clone(), log.clone());
        async move { connect(&orders, &log).await }
    });
    Ok((connecting.await.map_err(io::Error::other)?, Some(runtime)))
}

/// After a while, a runtime ends on which a client lives.
async fn end_later(home: Option<OtherRuntime>) {
    let Some(runtime) = home else { return };
    sleep(MOVES).await;
    runtime.shutdown_background();
}

async fn connect(orders: &Orders, log: &Log) -> Client {
    loop {
        match Client::connect(&orders.url).await {
            Ok(client) => return client,
            Err(error) => log.error("connect", &error),
        }
        sleep(Duration::from_millis(50)).await;
    }
}

async fn close(client: &Client, log: &Log) {
    if let Err(error) = client.shutdown().await {
        log.error("shutdown", &error);
    }
}

/// Notes when nothing runs: such a time is judged as a pause of this client, because nobody can be told then.
async fn beat(shared: Arc<Shared>) {
    let mut last = now();
    loop {
        sleep(BEAT).await;
        let now = now();
        shared.late(last + micros(BEAT), now);
        last = now;
    }
}
