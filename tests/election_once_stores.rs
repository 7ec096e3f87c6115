//! Elections, and jobs that run once per tick, on every store that processes share, with leaders and runners that are
//! killed. Each worker is the test binary once more, as a process of its own.
#![cfg(all(
    feature = "fred",
    feature = "sqlite",
    feature = "postgres",
    feature = "mysql",
    feature = "etcd",
    feature = "zookeeper"
))]

#[path = "support/etcd.rs"]
mod etcd;
#[path = "support/etcd_wire.rs"]
mod etcd_wire;
#[path = "support/mysql.rs"]
mod mysql;
#[path = "support/postgres.rs"]
mod postgres;
#[path = "support/sqlite.rs"]
mod sqlite;
#[path = "support/zookeeper.rs"]
mod zookeeper;
#[path = "support/zookeeper_proxy.rs"]
mod zookeeper_proxy;

use std::collections::BTreeMap;
use std::env;
use std::future::pending;
use std::io;
use std::process;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use futures::StreamExt;
use futures::future::join_all;
use futures::join;
use leasehold::{Client, Election, Leader, MutexOptions, OnDeadRunner, Once, OnceOptions, Tick, Ticks};
use leasehold_support::observing::Observing;
use leasehold_support::{Nodes, RedisServer, Worker, begun, eventually, say, within, worker_args};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

const SECOND: Duration = Duration::from_secs(1);
/// What a busy machine may add to what is promised. What it took is printed.
const SOON: Duration = Duration::from_secs(10);
/// The shortest that all stores can keep.
const LEASE: Duration = Duration::from_secs(2);
/// Of those that are not killed: no machine stands still for so long.
const LASTING: Duration = Duration::from_secs(30);

fn connect(url: &str, ttl: Duration) -> Client {
    // Many that start at the same time may take longer than `connect` allows.
    Client::connect_lazy(url).expect("a URL").with_mutex_options(MutexOptions::new().ttl(ttl))
}

fn election(url: &str, ttl: Duration) -> Election {
    connect(url, ttl).election("reports").expect("valid")
}

// Workers

/// Leads until it is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leading_worker() {
    let Some(url) = worker_args() else { return };
    let leadership = election(&url, LEASE).campaign("worker").await.expect("it leads");
    say(&format!("held {}", leadership.token()));
    pending::<()>().await;
}

/// Runs one tick until it is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_worker() {
    let Some(args) = worker_args() else { return };
    let (number, url) = args.split_once(' ').expect("a number and a URL");
    let choice = if number == "1" { OnDeadRunner::LeaveOut } else { OnDeadRunner::RunAgain };
    let schedule = schedule(&connect(url, LEASE), choice);
    let job = async |tick: Tick| {
        say(&format!("held {}", tick.token));
        pending::<()>().await;
    };
    schedule.try_run_tick(number.parse().expect("a number"), job).await.expect("it is not lost");
}

/// Leads whenever it can, and increments the number in the register with every write, until it is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn incrementing_worker() {
    let Some(args) = worker_args() else { return };
    let (register, url) = args.split_once(' ').expect("an address and a URL");
    let me = process::id();
    let election = election(url, BRIEF);
    say("campaigns");
    let job = async |leader: Leader| increment(register, leader.token.get(), me).await;
    let outcome = election.run(&me.to_string(), job).await;
    panic!("it goes on until it is killed: {outcome:?}");
}

async fn increment(register: &str, token: u64, me: u32) -> io::Result<()> {
    let mut register = BufReader::new(TcpStream::connect(register).await?);
    let mut number = ask(&mut register, &format!("{token} {me} read")).await?;
    loop {
        number = ask(&mut register, &format!("{token} {me} {}", number + 1)).await?;
        sleep(Duration::from_millis(2)).await;
    }
}

/// The number in the register, if it accepts the token.
async fn ask(register: &mut BufReader<TcpStream>, request: &str) -> io::Result<u64> {
    register.write_all(format!("{request}\n").as_bytes()).await?;
    let mut answer = String::new();
    register.read_line(&mut answer).await?;
    answer.trim_end().parse().map_err(|_| io::Error::other(format!("refused: {answer}")))
}

// What every store promises

/// All on one store, because to start a server takes longer than all of them. Elections and schedules have nothing to do
/// with each other, and wait most of the time.
async fn keeps_its_promises(store: &str, url: &str) {
    let leaders = async {
        a_killed_leader_is_replaced_within_its_ttl(store, url).await;
        the_next_one_leads_at_once_after_a_resignation(store, url).await;
    };
    let runners = a_tick_whose_runner_was_killed_is_run_again_or_left_out(store, url);
    join!(leaders, runners, schedulers_run_each_tick_once(url));
}

async fn a_killed_leader_is_replaced_within_its_ttl(store: &str, url: &str) {
    let mut worker = Worker::start("leading_worker", url);
    let first = worker.held().await;
    let (candidate, watcher) = (election(url, LEASE), election(url, LEASE));
    let mut leaders = watcher.observe();
    let seen = within(SOON, leaders.next()).await.flatten().expect("the worker leads");
    assert_eq!((&*seen.value, seen.token), ("worker", first), "{store}");
    let next = begun({
        let candidate = candidate.clone();
        async move { (candidate.campaign("next").await, Instant::now()) }
    })
    .await;
    worker.kill();
    let killed = Instant::now();
    let (leadership, at) = within(LEASE + SOON, next).await.expect("no panic");
    let leadership = leadership.expect("it leads");
    println!("{store}: the next one leads {:?} after the leader was killed (TTL {LEASE:?})", at - killed);
    assert!(leadership.token() > first, "{store}");
    let last = loop {
        match within(SOON, leaders.next()).await.expect("it goes on") {
            Some(leader) if leader.token > first => break leader,
            _ => {}
        }
    };
    assert_eq!((&*last.value, last.token), ("next", leadership.token()), "{store}");
    leadership.resign().await.expect("it led until the end");
}

/// With a TTL of which not even a third passes.
async fn the_next_one_leads_at_once_after_a_resignation(store: &str, url: &str) {
    const LONG: Duration = Duration::from_secs(60);
    let (one, two) = (election(url, LONG), election(url, LONG));
    let mut times = Vec::new();
    for round in 0..5 {
        let leadership = within(SOON, one.campaign("one")).await.expect("it leads");
        let next = tokio::spawn({
            let two = two.clone();
            async move { (two.campaign("two").await, Instant::now()) }
        });
        let queue = Client::connect_lazy(url).expect("a URL");
        let queue = queue.mutex_with("reports", MutexOptions::new().prefix("election:")).expect("valid");
        eventually(SOON, || async { queue.inspect().await.is_ok_and(|now| now.waiters.len() == 1) }).await;
        let resigned = Instant::now();
        leadership.resign().await.expect("it led until the end");
        let (next, at) = within(SOON, next).await.expect("no panic");
        let next = next.expect("it leads");
        times.push(at - resigned);
        assert_eq!(
            two.leader().await.expect("answered").map(|leader| leader.token),
            Some(next.token()),
            "{store} {round}"
        );
        next.resign().await.expect("it led until the end");
    }
    times.sort();
    println!(
        "{store}: the next one leads {:?} after a resignation (median of 5; at most {:?})",
        times[2], times[4]
    );
}

fn schedule(client: &Client, choice: OnDeadRunner) -> Once {
    schedule_called("nightly", client, choice, 0)
}

fn schedule_called(name: &str, client: &Client, choice: OnDeadRunner, off: i64) -> Once {
    let options = OnceOptions::new().at_most_late(SECOND * 30).on_dead_runner(choice);
    let schedule = client.once_with(name, Ticks::every(SECOND / 2), options).expect("valid");
    let error = Duration::from_millis(off.unsigned_abs());
    let now = move || if off < 0 { SystemTime::now() - error } else { SystemTime::now() + error };
    schedule.by_clock(now)
}

async fn a_tick_whose_runner_was_killed_is_run_again_or_left_out(store: &str, url: &str) {
    let again = Worker::start("running_worker", &format!("0 {url}"));
    assert_eq!(next_run(again, store, url, 0, OnDeadRunner::RunAgain).await, Some(0));
    let left_out = Worker::start("running_worker", &format!("1 {url}"));
    assert_eq!(next_run(left_out, store, url, 1, OnDeadRunner::LeaveOut).await, None);
    // It is remembered that these were run, or at least begun, and that they are not to be run again.
    for (number, choice) in [(0, OnDeadRunner::RunAgain), (1, OnDeadRunner::LeaveOut)] {
        let once = schedule(&connect(url, LEASE), choice);
        assert_eq!(
            once.try_run_tick(number, async |_| ()).await.expect("answered"),
            None,
            "{store} {number}"
        );
    }
}

/// What comes of a tick after this worker, which runs it, was killed.
async fn next_run(
    mut worker: Worker,
    store: &str,
    url: &str,
    number: u64,
    choice: OnDeadRunner,
) -> Option<u64> {
    let first = worker.held().await;
    let once = schedule(&connect(url, LEASE), choice);
    worker.kill();
    let begun = Instant::now();
    let ran = within(LEASE + SOON, once.try_run_tick(number, async |tick| tick)).await.expect("answered");
    if let Some(tick) = ran {
        println!(
            "{store}: a tick is run again {:?} after its runner was killed (TTL {LEASE:?})",
            begun.elapsed()
        );
        assert!(tick.token > first, "{store}");
    }
    ran.map(|tick| tick.number)
}

/// With clocks that differ by seconds; the one that is ahead leaves in the middle.
async fn schedulers_run_each_tick_once(url: &str) {
    let log = Arc::new(Mutex::new(BTreeMap::<u64, u32>::new()));
    let first = u64::try_from(SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_millis() / 500)
        .expect("not that late");
    let mut schedulers = Vec::new();
    for off in [2_500, 900, 0, -1_700] {
        let client = connect(url, LASTING);
        // Ticks that pass before that are left out.
        eventually(SOON * 3, || async { client.ping(SOON).await.is_ok() }).await;
        let once = schedule_called("clocks", &client, OnDeadRunner::RunAgain, off);
        let log = Arc::clone(&log);
        let run = tokio::spawn(async move {
            once.run(|tick| {
                *log.lock().expect("no panic").entry(tick.number).or_default() += 1;
                std::future::ready(())
            })
            .await
        });
        schedulers.push((client, run));
    }
    let done = |upto: u64| {
        let log = Arc::clone(&log);
        eventually(SOON * 6, move || {
            let is_done = log.lock().expect("no panic").keys().last().is_some_and(|last| *last >= upto);
            std::future::ready(is_done)
        })
    };
    done(first + 5).await;
    for (client, run) in schedulers.drain(..1).collect::<Vec<_>>() {
        client.close(SOON).await.expect("the tick that is run ends");
        run.await.expect("no panic").expect("closed");
    }
    done(first + 10).await;
    join_all(schedulers.iter().map(|(client, _)| client.close(SOON)))
        .await
        .into_iter()
        .for_each(|closed| closed.expect("done"));
    let log = log.lock().expect("no panic");
    assert!(log.values().all(|runs| *runs == 1), "{log:?}");
    // Of those before the first one, some may have become too late by the clock of the only one that was to run them.
    let last = *log.keys().last().expect("ticks");
    assert!((first..=last).all(|tick| log.contains_key(&tick)), "{log:?}");
}

/// Nodes that may take longer to answer than the 100 ms that they usually have.
struct PatientNodes(Nodes);

impl PatientNodes {
    fn url(&self) -> String {
        format!("{}?node_timeout=1s", self.0.url())
    }
}

macro_rules! promises_on {
    ($($name:ident: $start:expr;)*) => { $(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            let this = stringify!($name);
            let Some(store) = ($start)(this) else { return };
            keeps_its_promises(this, &store.url()).await;
        }
    )* };
}

promises_on! {
    on_redis: RedisServer::start_or_skip;
    on_redlock: |left_out: &str| Nodes::start_or_skip(left_out, 3).map(PatientNodes);
    on_postgresql: postgres::PostgresServer::start_or_skip;
    on_mysql: mysql::MysqlServer::start_or_skip;
    on_etcd: etcd::EtcdServer::start_or_skip;
    on_zookeeper: zookeeper::ZookeeperServer::shared_or_skip;
    on_sqlite: |_: &str| Some(sqlite::SqliteFile::new());
}

// What is pushed to observers

/// A leader that dies is seen when its lease ends, where the store ends it.
async fn sees_the_end_of_a_leader_that_dies(observing: &mut Observing, url: &str) {
    let mut worker = Worker::start("leading_worker", url);
    let token = worker.held().await;
    assert_eq!(observing.next().await.expect("a leader").token, token);
    worker.kill();
    assert_eq!(observing.next().await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_etcd_changes_are_pushed_to_observers() {
    let Some(store) = etcd::EtcdServer::start_or_skip("changes are pushed") else { return };
    let wire = etcd_wire::Wire::start(store.port()).await;
    let mut observing = Observing::begin(&store.url_through(wire.port()), &store.url()).await;
    observing.sees_every_change("etcd").await;
    sees_the_end_of_a_leader_that_dies(&mut observing, &store.url()).await;
    // Also when what has happened meanwhile was removed.
    let compact = async || {
        wire.cut();
        store.ctl(&["compaction", "--physical", &store.revision().to_string()]);
    };
    observing.sees_a_change_after(compact).await;
    let watchers = || store.metric("etcd_debugging_mvcc_watcher_total");
    // Perhaps also some of connections that were cut just now.
    let before = watchers();
    let client = observing.stop();
    eventually(SOON, || std::future::ready(watchers() + 2 <= before)).await;
    drop(client);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgresql_changes_are_pushed_to_observers() {
    let settings = ["log_statement=all"];
    let store = postgres::PostgresServer::start_with_or_skip("changes are pushed", &settings, None);
    let Some(store) = store else { return };
    let mut observing = Observing::begin(&store.url(), &store.url()).await;
    observing.sees_every_change("PostgreSQL").await;
    assert_eq!(store.log().matches("LISTEN lh_changes_").count(), 1, "they share it");
    let cut = async || {
        let listeners = "query LIKE 'LISTEN lh%' OR query = 'SELECT 1'";
        let cut = format!("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE {listeners}");
        assert!(store.number(&cut).await > 0);
    };
    observing.sees_a_change_after(cut).await;
    assert!(!store.log().contains("UNLISTEN"));
    let client = observing.stop();
    eventually(SOON, || std::future::ready(store.log().contains("UNLISTEN lh_changes_"))).await;
    drop(client);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_zookeeper_changes_are_pushed_to_observers() {
    let settings = ["4lw.commands.whitelist=srvr,wchp"];
    let store = zookeeper::ZookeeperServer::start_with_or_skip("changes are pushed", &settings, None);
    let Some(store) = store else { return };
    let wire = zookeeper_proxy::Proxy::start(store.port()).await;
    let mut observing = Observing::begin(&store.url_through(wire.port()), &store.url()).await;
    observing.sees_every_change("ZooKeeper").await;
    sees_the_end_of_a_leader_that_dies(&mut observing, &store.url()).await;
    observing.sees_a_change_after(async || wire.cut()).await;
    let watches = || {
        let paths = leasehold_support::zookeeper_wire::Wire::ask(store.port(), "wchp").expect("it answers");
        paths.lines().filter(|line| line.ends_with("election:reports")).count()
    };
    assert_eq!(watches(), 1);
    let client = observing.stop();
    eventually(SOON, || std::future::ready(watches() == 0)).await;
    drop(client);
}

// Leaders that are killed all the time

/// The lease of the leaders that are killed every two seconds.
const BRIEF: Duration = Duration::from_secs(1);
/// For how many seconds, with 40 processes; otherwise for a few, with fewer.
const SOAK: &str = "LEASEHOLD_ELECTION_SOAK_SECONDS";

/// A number that is changed only under a token that is not older than any before: what a leader works on.
#[derive(Debug, Default)]
struct Register {
    token: u64,
    number: u64,
    accepted: u64,
    refused: u64,
    /// Which process has used which token.
    leaders: BTreeMap<u64, u32>,
    wrong: Vec<String>,
}

impl Register {
    fn answer(&mut self, request: &str) -> String {
        let [token, by, what] =
            request.split(' ').collect::<Vec<_>>().try_into().expect("a token, a process, and a number");
        let (token, by) = (token.parse().expect("a token"), by.parse().expect("a process"));
        if token < self.token {
            self.refused += 1;
            return "stale".to_owned();
        }
        if *self.leaders.entry(token).or_insert(by) != by {
            self.wrong.push(format!("two leaders under token {token}"));
        }
        self.token = token;
        if what != "read" {
            let number = what.parse().expect("a number");
            if number != self.number + 1 {
                self.wrong.push(format!("{by} replaced {} by {number} under token {token}", self.number));
            }
            self.number = number;
            self.accepted += 1;
        }
        self.number.to_string()
    }
}

/// Serves a register. Who has used the newest token is watched.
async fn serve() -> (String, Arc<Mutex<Register>>, watch::Receiver<(u64, u32)>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = listener.local_addr().expect("it is bound").to_string();
    let (register, (leads, leader)) = (Arc::new(Mutex::new(Register::default())), watch::channel((0, 0)));
    let (served, leads) = (Arc::clone(&register), Arc::new(leads));
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("it listens");
            let (register, leads) = (Arc::clone(&served), Arc::clone(&leads));
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                let mut request = String::new();
                // The end, or an error, is that of a process that was killed.
                while stream.read_line(&mut request).await.is_ok_and(|length| length > 0) {
                    let (answer, newest) = {
                        let mut register = register.lock().expect("no panic");
                        let answer = register.answer(request.trim_end());
                        (answer, register.leaders.last_key_value().map(|(token, by)| (*token, *by)))
                    };
                    leads.send_if_modified(|now| {
                        newest.is_some_and(|newest| std::mem::replace(now, newest) != newest)
                    });
                    if stream.write_all(format!("{answer}\n").as_bytes()).await.is_err() {
                        break;
                    }
                    request.clear();
                }
            });
        }
    });
    (address, register, leader)
}

async fn leaders_that_are_killed_every_two_seconds(store: &str, url: &str) {
    let soak = env::var(SOAK).ok().map(|seconds| seconds.parse().expect("a number of seconds"));
    let (processes, seconds) = soak.map_or((6, 6), |seconds| (40, seconds));
    let (address, register, mut leader) = serve().await;
    let args = format!("{address} {url}");
    let mut workers: Vec<_> = (0..processes).map(|_| Worker::start("incrementing_worker", &args)).collect();
    for worker in &mut workers {
        worker.line().await.expect("it campaigns");
    }
    within(SOON, leader.wait_for(|(token, _)| *token > 0)).await.expect("one leads");
    let (end, mut kills, mut times) = (Instant::now() + Duration::from_secs(seconds), 0, Vec::new());
    while Instant::now() < end {
        let next_kill = Instant::now() + SECOND * 2;
        let (token, pid) = *leader.borrow_and_update();
        let led = workers.iter().position(|worker| worker.pid() == pid).expect("only they write");
        workers[led].kill();
        let killed = Instant::now();
        within(BRIEF + SOON, leader.wait_for(|(newest, _)| *newest > token))
            .await
            .expect("the next one leads");
        times.push(killed.elapsed());
        kills += 1;
        workers[led] = Worker::start("incrementing_worker", &args);
        sleep_until(next_kill).await;
    }
    let register = register.lock().expect("no panic");
    times.sort();
    println!(
        "{store}: {processes} processes, {kills} leaders killed, {} led, {} writes accepted, {} refused; the next one wrote after {:?} at the \
         median and {:?} at most (TTL {BRIEF:?})",
        register.leaders.len(),
        register.accepted,
        register.refused,
        times[times.len() / 2],
        times[times.len() - 1],
    );
    assert!(register.wrong.is_empty(), "{store}: {:?}", register.wrong);
    assert_eq!(register.accepted, register.number, "{store}: lost updates");
    assert!(register.leaders.len() > kills && register.accepted > kills as u64, "{store}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaders_on_redis_that_are_killed_all_the_time_lose_no_update() {
    let Some(server) = RedisServer::start_or_skip("leaders that are killed on Redis") else { return };
    leaders_that_are_killed_every_two_seconds("redis", &server.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaders_on_postgresql_that_are_killed_all_the_time_lose_no_update() {
    let Some(server) = postgres::PostgresServer::start_or_skip("leaders that are killed on PostgreSQL")
    else {
        return;
    };
    leaders_that_are_killed_every_two_seconds("postgresql", &server.url()).await;
}
