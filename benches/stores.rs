//! What a lock costs on each store, compared with the least that the store could do and with the store's own
//! primitives.
//!
//! `cargo bench -p leasehold-benches --bench stores` starts its own server for each store that is installed on this
//! machine (SQLite needs none), and measures:
//!
//! * commit: one small write, as durable as the store is configured to make it, by one task: `SET`, an `UPDATE` of one
//!   row, or `setData`. All other figures are also given in commits (x), because the machine's disk decides how long a
//!   commit takes;
//! * lock + release: of a free lock, by one task, in small blocks interleaved with commits, because a shared machine
//!   drifts, after as many that warm up. Two commits are the minimum;
//! * hand-over: from the call of a release to the next grant, with 2, 16 and 100 clients, each with its own connections
//!   and one waiter, that release and request again at once; and the number of hand-overs per second. If two holds
//!   overlap, the run fails;
//! * 100 tasks of one client: the same within a client;
//! * semaphore: permits granted per second, of a counting semaphore of 10, to 100 tasks of one client;
//! * guards: what 1000 guards of 30 s cost this process while they are renewed for a minute, in % of a core.
//!
//! All clients are in this process, which shares the machine's processors with the server.

use std::time::{Duration, Instant};

use clap::Parser;
use comfy_table::Table;
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use leasehold::{Client, MutexOptions};
use uuid::Uuid;

mod common;
// The harnesses of the tests.
#[path = "stores/etcd.rs"]
mod etcd;
#[path = "../tests/support/etcd.rs"]
mod etcd_server;
#[path = "../tests/support/mysql.rs"]
mod mysql;
#[path = "../tests/support/postgres.rs"]
mod postgres;
#[path = "stores/races.rs"]
mod races;
#[path = "stores/recipes.rs"]
mod recipes;
#[path = "stores/site.rs"]
mod site;
#[path = "../tests/support/zookeeper.rs"]
mod zookeeper;

use common::guards::{give_back, processor_time, take};
use common::turns::{Contender, Spread};
use common::{LEASE, Ours, Place, Polling, Result, micros, table, timed};
use etcd::WatchedPredecessor;
use races::{Raced, Times, among_clients, race};
use recipes::{
    AdvisoryLock, CuratorLock, MysqlRows, NamedLock, OursPolling, Permits, PolledRow, PostgresRows, Recipe,
    SqliteRows,
};
use site::{Site, Store};

/// Pairs measured before the same number of commits.
const BLOCK: usize = 20;
/// Pairs before that: ZooKeeper's virtual machine compiles what it has run a few thousand times, so the first pairs
/// take twice as long.
const WARM_UP: usize = 2000;
/// Tasks of one client.
const TASKS: usize = 100;
const PERMITS: u32 = 10;

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    place: Place,
    /// Stores to measure; all by default.
    #[arg(long, value_delimiter = ',')]
    stores: Vec<Store>,
    /// Numbers of clients that wait for one lock.
    #[arg(long, value_delimiter = ',', default_value = "2,16,100")]
    clients: Vec<usize>,
    /// Pairs of a free lock.
    #[arg(long, default_value_t = 1000)]
    pairs: usize,
    /// For how long hand-overs are counted, in ms.
    #[arg(long, default_value_t = 3000)]
    window: u64,
    #[arg(long, default_value_t = 1000)]
    guards: usize,
    /// For how long guards are held, in s.
    #[arg(long, default_value_t = 60)]
    hold: u64,
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut options = Options::parse();
    if options.stores.is_empty() {
        options.stores = <Store as clap::ValueEnum>::value_variants().to_vec();
    }
    let mut measured = Vec::new();
    for &store in &options.stores {
        let Some(site) = store.start() else { continue };
        let bench = Bench::new(&options, store, &site);
        let done = bench.measure().await;
        measured.push(done.map_err(|error| format!("{}: {error}", bench.progress.message()))?);
    }
    println!("{}\n", locks(&options, &measured));
    println!("{}\n", many(&options, &measured));
    // A round that only shows that everything works says nothing about them.
    if options.place.choose(true, false) {
        println!("{}", goals(&options, &measured));
    }
    Ok(())
}

impl Options {
    fn clients(&self) -> &[usize] {
        self.place.choose(&self.clients, &[2])
    }

    fn times(&self, clients: usize) -> Times {
        let warm_up = Duration::from_millis(300) + Duration::from_millis(5) * clients as u32;
        let window = Duration::from_millis(self.window);
        let short = Duration::from_millis(100);
        Times { warm_up: self.place.choose(warm_up, short), window: self.place.choose(window, short) }
    }
}

/// What was measured on a store.
struct Measured {
    store: Store,
    recipes: Vec<Lock>,
    tasks: Raced,
    /// The same where waiters poll the store.
    polling: Option<Raced>,
    permits: Raced,
    /// Of one core, without what the process does anyway.
    guards: f64,
}

/// What was measured for one recipe. The first one for a store is this crate.
struct Lock {
    recipe: &'static str,
    /// In us.
    commit: f64,
    /// In us.
    pair: f64,
    /// For each number of clients.
    raced: Vec<Raced>,
}

impl Measured {
    fn ours(&self) -> &Lock {
        &self.recipes[0]
    }
}

struct Bench<'a> {
    options: &'a Options,
    store: Store,
    site: &'a Site,
    progress: ProgressBar,
}

impl<'a> Bench<'a> {
    fn new(options: &'a Options, store: Store, site: &'a Site) -> Self {
        let style = ProgressStyle::with_template("{spinner} {elapsed} {msg}").expect("it is a template");
        let progress = ProgressBar::new_spinner().with_style(style);
        progress.enable_steady_tick(Duration::from_millis(200));
        Self { options, store, site, progress }
    }

    fn now(&self, what: &str) {
        self.progress.set_message(format!("{}: {what}", self.store.name()));
    }

    async fn measure(&self) -> Result<Measured> {
        let mut recipes = vec![self.lock::<Ours>().await?];
        match self.store {
            Store::Redis => recipes.push(self.lock::<Polling>().await?),
            Store::Sqlite => recipes.push(self.lock::<PolledRow<SqliteRows>>().await?),
            Store::Mysql => {
                recipes.push(self.lock::<OursPolling>().await?);
                recipes.push(self.lock::<NamedLock>().await?);
                recipes.push(self.lock::<PolledRow<MysqlRows>>().await?);
            }
            Store::Postgres => {
                recipes.push(self.lock::<AdvisoryLock>().await?);
                recipes.push(self.lock::<PolledRow<PostgresRows>>().await?);
            }
            Store::Etcd => recipes.push(self.lock::<WatchedPredecessor>().await?),
            Store::Zookeeper => recipes.push(self.lock::<CuratorLock>().await?),
        }
        let (tasks, permits) = (self.tasks(&self.site.url()).await?, self.permits().await?);
        let polling = match self.store {
            Store::Mysql => Some(self.tasks(&format!("{}?push=off", self.site.url())).await?),
            _ => None,
        };
        let guards = self.guards().await?;
        self.progress.finish_and_clear();
        Ok(Measured { store: self.store, recipes, tasks, polling, permits, guards })
    }

    async fn lock<R: Recipe>(&self) -> Result<Lock> {
        self.now(R::NAME);
        let (commit, pair) = self.pairs::<R>().await?;
        let mut raced = Vec::new();
        for &clients in self.options.clients() {
            self.now(&format!("{}, {clients} clients", R::NAME));
            raced.push(among_clients::<R>(self.site, clients, self.options.times(clients)).await?);
        }
        Ok(Lock { recipe: R::NAME, commit, pair, raced })
    }

    /// Medians, in us, of a commit and of lock + release.
    async fn pairs<R: Recipe>(&self) -> Result<(f64, f64)> {
        let lock = R::connect(self.site, &format!("bench:{}", Uuid::new_v4())).await?;
        let mut commits = self.site.commits().await?;
        let (mut committed, mut paired) = (Histogram::<u64>::new(3)?, Histogram::<u64>::new(3)?);
        let warm_up = self.options.place.choose(WARM_UP, BLOCK) / BLOCK;
        for block in 0..warm_up + self.options.place.choose(self.options.pairs, BLOCK).div_ceil(BLOCK) {
            for _ in 0..BLOCK {
                let took = timed(commits.one()).await?;
                if block >= warm_up {
                    committed.record(took)?;
                }
            }
            for _ in 0..BLOCK {
                let took = timed(pair(&lock)).await?;
                if block >= warm_up {
                    paired.record(took)?;
                }
            }
        }
        Ok((micros(&committed, 0.5), micros(&paired, 0.5)))
    }

    async fn tasks(&self, url: &str) -> Result<Raced> {
        self.now("tasks of one client");
        let lock = Ours::connect(url, "bench:tasks", true).await?;
        race(vec![lock; TASKS], self.options.times(TASKS), true).await
    }

    async fn permits(&self) -> Result<Raced> {
        self.now("permits");
        let client = Client::connect(&self.site.url()).await?;
        let permits = vec![Permits::new(&client, "bench:permits", PERMITS)?; TASKS];
        let raced = race(permits, self.options.times(TASKS), false).await?;
        client.shutdown().await?;
        Ok(raced)
    }

    async fn guards(&self) -> Result<f64> {
        // No store has a longer shortest lease than etcd.
        let lease = self.options.place.choose(LEASE, Duration::from_secs(2));
        let hold = self.options.place.choose(Duration::from_secs(self.options.hold), lease);
        let client = Client::connect(&self.site.url()).await?;
        self.now("no guards");
        let idle = share(hold / 4).await?;
        let guards = self.options.place.choose(self.options.guards, 10);
        let held = take(&client, &MutexOptions::new().ttl(lease), "bench:guard", guards).await?;
        self.now("guards");
        let share = share(hold).await?;
        give_back(held).await?;
        client.shutdown().await?;
        Ok((share - idle).max(0.0))
    }
}

async fn pair<C: Contender>(contender: &C) -> Result<()> {
    let held = contender.acquire(Instant::now() + LEASE).await?.ok_or("nobody else uses this lock")?;
    contender.release(held).await
}

/// What this process uses of a core during that time.
async fn share(time: Duration) -> Result<f64> {
    let (used, started) = (processor_time()?, Instant::now());
    tokio::time::sleep(time).await;
    Ok((processor_time()? - used).as_secs_f64() / started.elapsed().as_secs_f64())
}

fn locks(options: &Options, measured: &[Measured]) -> Table {
    let clients = options
        .clients()
        .iter()
        .map(|clients| format!("{clients} clients: hand-over us p50 (x) / p99, per s"));
    let head = ["store", "", "commit us", "lock + release us (x)"].map(str::to_owned);
    let mut table = table::<0>([]);
    table.set_header(head.into_iter().chain(clients));
    for Measured { store, recipes, .. } in measured {
        for lock in recipes {
            let in_commits = |us: f64| format!("{us:.0} ({:.1})", us / lock.commit);
            let raced = lock.raced.iter().map(|raced| {
                let hand_over = raced
                    .hand_over
                    .map_or("-".to_owned(), |Spread { p50, p99 }| format!("{} / {p99:.0}", in_commits(p50)));
                format!("{hand_over}, {:.0}", raced.per_second)
            });
            let head = [store.name().to_owned(), lock.recipe.to_owned(), format!("{:.0}", lock.commit)];
            table.add_row(head.into_iter().chain([in_commits(lock.pair)]).chain(raced));
        }
    }
    table
}

fn many(options: &Options, measured: &[Measured]) -> Table {
    let guards = format!("{} guards, % of a core", options.guards);
    let mut table = table([
        "store",
        "100 tasks of one client: hand-overs/s (in the time of a commit)",
        "semaphore of 10, 100 tasks: grants/s (in the time of a commit)",
        &guards,
    ]);
    for measured in measured {
        let rate = |raced: Raced| {
            let in_a_commit = raced.per_second * measured.ours().commit / 1e6;
            format!("{:.0} ({in_a_commit:.1})", raced.per_second)
        };
        table.add_row([
            measured.store.name().to_owned(),
            rate(measured.tasks),
            rate(measured.permits),
            format!("{:.2}", measured.guards * 100.0),
        ]);
    }
    table
}

/// The goals, and to what extent they are met.
fn goals(options: &Options, measured: &[Measured]) -> Table {
    let mut table = table(["figure", "measured", "goal", ""]);
    let mut add = |what: String, measured: Option<f64>, (sign, goal): (&str, f64)| {
        let met = measured.map(|measured| if sign == "<=" { measured <= goal } else { measured >= goal });
        let verdict = match met {
            Some(true) => "met",
            Some(false) => "not met",
            None => "not measured",
        };
        let measured = measured.map_or("-".to_owned(), |measured| format!("{measured:.3}"));
        table.add_row([what, measured, format!("{sign} {goal}"), verdict.to_owned()]);
    };
    let of = |lock: &Lock, clients: usize| {
        let index = options.clients().iter().position(|of| *of == clients)?;
        Some(lock.raced[index])
    };
    for measured in measured {
        let (name, ours) = (measured.store.name(), measured.ours());
        let hand_over = of(ours, 2).and_then(|raced| raced.hand_over).map(|spread| spread.p50);
        if measured.store == Store::Sqlite {
            add(format!("{name}: lock + release, us"), Some(ours.pair), ("<=", 100.0));
            add(format!("{name}: hand-over between 2 clients, us"), hand_over, ("<=", 80.0));
        }
        // In commits.
        let goals = match measured.store {
            Store::Redis | Store::Sqlite => None,
            Store::Postgres => Some((2.7, 4.5)),
            Store::Mysql => Some((4.0, 7.5)),
            Store::Etcd => Some((3.0, 4.5)),
            Store::Zookeeper => Some((2.5, 3.5)),
        };
        if let Some((pair, between_two)) = goals {
            let in_commits = |us: f64| us / ours.commit;
            add(format!("{name}: lock + release, commits"), Some(in_commits(ours.pair)), ("<=", pair));
            let hand_over = hand_over.map(in_commits);
            add(format!("{name}: hand-over between 2 clients, commits"), hand_over, ("<=", between_two));
        }
        add(
            format!("{name}: 100 tasks of one client, hand-overs/s"),
            Some(measured.tasks.per_second),
            (">=", 4000.0),
        );
        if let Some(polling) = measured.polling {
            add(
                format!("{name}, push=off: 100 tasks of one client, hand-overs/s"),
                Some(polling.per_second),
                (">=", 1500.0),
            );
        }
        let slower = of(ours, 100).zip(of(ours, 16)).map(|(many, few)| many.per_second / few.per_second);
        add(format!("{name}: hand-overs/s, 100 clients against 16"), slower, (">=", 0.5));
    }
    table
}
