//! What a lock promises real processes on every store that they share: they exclude each other, and one that is killed,
//! while it holds, while it waits or at any moment, blocks nobody for longer than its lease. Each worker is the test
//! binary once more.

use std::fs::{self, OpenOptions};
use std::future::pending;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold::{Client, DistMutex, FencingToken, Guard};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep};

use leasehold_support::{Worker, eventually, one_place_each, options, say, within, worker_args};

const NAME: &str = "machine:42";
const SECOND: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_secs(5);
const ROUNDS: usize = 3;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn brief_mutex(client: &Client, lease: Duration) -> DistMutex {
    client.mutex_with(NAME, options().ttl(lease)).expect("valid")
}

/// With a place of its own in the queue for every waiter.
fn queued_mutex(client: &Client, lease: Duration) -> DistMutex {
    client.mutex_with(NAME, one_place_each().ttl(lease)).expect("valid")
}

fn waiter(mutex: &DistMutex) -> JoinHandle<(Guard, Instant)> {
    let mutex = mutex.clone();
    tokio::spawn(async move { (mutex.lock().await.expect("granted"), Instant::now()) })
}

async fn until_waiting(mutex: &DistMutex, n: usize) {
    eventually(SOON * 2, || async {
        mutex.inspect().await.is_ok_and(|inspection| inspection.waiters.len() == n)
    })
    .await;
}

// Workers

/// A store for one test, and a directory in which the workers have the rest.
pub(crate) trait Shared: Sync {
    fn url(&self) -> String;

    fn directory(&self) -> &Path;

    /// The lease of every worker.
    fn lease(&self) -> Duration {
        SECOND
    }

    /// When nothing is left of a process that has died.
    fn gone_after(&self) -> Duration {
        self.lease()
    }

    /// A holder that has died is replaced within this time: its lease, and a second.
    fn replaced(&self) -> Duration {
        self.lease() + SECOND
    }
}

async fn client(store: &impl Shared) -> Client {
    Client::connect(&store.url()).await.expect("the store can be used")
}

/// What a worker has been told.
struct Orders {
    directory: PathBuf,
    lease: Duration,
    client: Client,
}

async fn orders() -> Option<Orders> {
    let args = worker_args()?;
    let (directory, rest) = args.split_once(' ').expect("a directory");
    let (lease, url) = rest.split_once(' ').expect("a lease and a URL");
    let lease = ms(lease.parse().expect("a number"));
    let client = Client::connect(url).await.expect("the store can be used");
    Some(Orders { directory: directory.into(), lease, client })
}

fn start(worker: &str, store: &impl Shared) -> Worker {
    let (directory, lease) = (store.directory().display(), store.lease().as_millis());
    Worker::start(worker, &format!("{directory} {lease} {}", store.url()))
}

/// Increments a number in a file under the lock, in several tasks.
pub(crate) async fn counting_worker() {
    let Some(Orders { directory, lease, client }) = orders().await else { return };
    let counter = directory.join("counter");
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (mutex, counter) = (brief_mutex(&client, lease), counter.clone());
        tasks.spawn(async move {
            for _ in 0..TURNS {
                let guard = mutex.lock().await.expect("granted");
                let read = read_number(&counter);
                sleep(ms(1)).await;
                fs::write(&counter, (read + 1).to_string()).expect("room");
                guard.release().await.expect("held to the end");
            }
        });
    }
    tasks.join_all().await;
    client.shutdown().await.expect("released");
}

/// Waits for the lock, holds it until it is lost, and says so.
pub(crate) async fn holding_worker() {
    let Some(Orders { lease, client, .. }) = orders().await else { return };
    let guard = brief_mutex(&client, lease).lock().await.expect("granted");
    say(&format!("held {}", guard.token()));
    let reason = guard.lost().await;
    say(&format!("lost: {reason:?}"));
    pending::<()>().await;
}

/// Takes the lock again and again, and adds one to a register that a token fences. Notes in a log when each section
/// begins and ends, by its token, and what it has written.
pub(crate) async fn logging_worker() {
    let Some(Orders { directory, lease, client }) = orders().await else { return };
    let log = OpenOptions::new().create(true).append(true).open(directory.join("log")).expect("room");
    say("ready");
    let mut tasks = JoinSet::new();
    for _ in 0..2 {
        let (mutex, log) = (queued_mutex(&client, lease), log.try_clone().expect("a descriptor is free"));
        let register = Register::in_directory(&directory);
        tasks.spawn(async move {
            loop {
                let guard = mutex.lock().await.expect("granted");
                note(&log, "begin", guard.token(), register.read());
                let value = register.read() + 1;
                sleep(ms(1)).await;
                register.write(value, guard.token());
                note(&log, "end", guard.token(), value);
                guard.release().await.expect("held to the end");
            }
        });
    }
    tasks.join_next().await.expect("there are tasks").expect("they go on");
}

/// One line in one write, which is not mixed with others.
fn note(mut log: &fs::File, what: &str, token: FencingToken, value: u64) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis();
    log.write_all(format!("{what} {token} {now} {value}\n").as_bytes()).expect("room");
}

/// A number in a file, which rejects writes under a token that is not the newest.
struct Register(PathBuf);

impl Register {
    fn in_directory(directory: &Path) -> Self {
        Self(directory.join("register"))
    }

    fn contents(&self) -> (u64, u64) {
        let text = fs::read_to_string(&self.0).unwrap_or_else(|_| "0 0".to_owned());
        let (value, token) = text.split_once(' ').expect("a number and a token");
        (value.parse().expect("a number"), token.parse().expect("a token"))
    }

    fn read(&self) -> u64 {
        self.contents().0
    }

    /// As a whole or, if the process is killed, not at all.
    fn write(&self, value: u64, token: FencingToken) {
        assert!(token.get() > self.contents().1, "a write under an old token");
        let new = self.0.with_extension(token.to_string());
        fs::write(&new, format!("{value} {token}")).expect("room");
        fs::rename(new, &self.0).expect("they are in the same directory");
    }
}

fn read_number(path: &Path) -> usize {
    fs::read_to_string(path).expect("it exists").parse().expect("a number")
}

// Exclusion

const PROCESSES: usize = 4;
const TASKS: usize = 5;
const TURNS: usize = 10;

pub(crate) async fn four_processes_exclude_each_other(store: &impl Shared) {
    let counter = store.directory().join("counter");
    fs::write(&counter, "0").expect("room");
    // They also create what the store needs at the same time.
    let mut workers: Vec<_> = (0..PROCESSES).map(|_| start("counting_worker", store)).collect();
    for worker in &mut workers {
        assert!(worker.wait().success());
    }
    assert_eq!(read_number(&counter), PROCESSES * TASKS * TURNS);
}

// Death

pub(crate) async fn a_killed_holder_is_replaced_within_its_lease_and_a_second(store: &impl Shared) {
    let client = client(store).await;
    for round in 0..ROUNDS {
        let mut worker = start("holding_worker", store);
        let token = worker.held().await;
        // With the default lease: it is not its own repeated request that gets it the lock.
        let mutex = client.mutex_with(NAME, options()).expect("valid");
        let waiter = waiter(&mutex);
        until_waiting(&mutex, 1).await;
        let killed = Instant::now();
        worker.kill();
        let (next, granted) = within(SOON, waiter).await.expect("no panic");
        assert!(granted - killed <= store.replaced(), "round {round}: after {:?}", granted - killed);
        assert!(next.token() > token, "round {round}");
        next.release().await.expect("held to the end");
    }
    client.shutdown().await.expect("released");
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Head,
    Middle,
}

/// A waiter that is killed, with another one behind it, and perhaps one before it.
async fn kill_waiter(store: &impl Shared, client: &Client, place: Place) -> Duration {
    let mutex = queued_mutex(client, store.lease());
    let holder = mutex.lock().await.expect("free");
    let before = (place == Place::Middle).then(|| waiter(&mutex));
    let ahead = usize::from(before.is_some());
    until_waiting(&mutex, ahead).await;
    let mut doomed = start("holding_worker", store);
    until_waiting(&mutex, ahead + 1).await;
    let after = waiter(&mutex);
    until_waiting(&mutex, ahead + 2).await;
    doomed.kill();
    let released = Instant::now();
    holder.release().await.expect("held to the end");
    if let Some(before) = before {
        let (guard, _) = within(SOON, before).await.expect("no panic");
        guard.release().await.expect("held to the end");
    }
    let (guard, granted) = within(SOON, after).await.expect("no panic");
    assert_eq!(doomed.unread(), None, "it never held");
    guard.release().await.expect("held to the end");
    granted - released
}

pub(crate) async fn a_killed_waiter_blocks_nobody_for_longer_than_a_lease(store: &impl Shared) {
    let client = client(store).await;
    for place in [Place::Head, Place::Middle] {
        for round in 0..ROUNDS {
            let blocked = kill_waiter(store, &client, place).await;
            assert!(
                blocked <= store.replaced(),
                "round {round}: a dead waiter blocked the others for {blocked:?}"
            );
        }
    }
    client.shutdown().await.expect("released");
}

pub(crate) async fn a_holder_paused_for_longer_than_its_lease_is_replaced_and_notified(store: &impl Shared) {
    let client = client(store).await;
    let mut worker = start("holding_worker", store);
    let token = worker.held().await;
    worker.pause();
    let next = within(SOON, brief_mutex(&client, store.lease()).lock()).await.expect("granted");
    assert!(next.token() > token);
    worker.resume();
    let line = worker.line().await.expect("it goes on");
    assert!(line.starts_with("lost: "), "{line}");
    // It has not taken anything from the one that holds now.
    assert!(next.is_held());
    next.release().await.expect("held to the end");
}

/// A line of the log.
struct Noted {
    is_begin: bool,
    token: u64,
    at: u64,
    value: u64,
}

fn read_log(path: &Path) -> Vec<Noted> {
    let text = fs::read_to_string(path).expect("there is a log");
    let noted = text.lines().map(|line| {
        let words: Vec<_> = line.split(' ').collect();
        let number = |n: usize| words[n].parse().expect("a number");
        Noted { is_begin: words[0] == "begin", token: number(1), at: number(2), value: number(3) }
    });
    noted.collect()
}

/// A number that is set for long runs.
fn setting(name: &str, usual: usize) -> usize {
    std::env::var(name).map_or(usual, |number| number.parse().expect("a number"))
}

/// `LEASEHOLD_TEST_PROCESSES` and `LEASEHOLD_TEST_KILLS` set how many there are and how often one is killed, for long
/// runs: 240 kills take five minutes.
pub(crate) async fn processes_killed_at_random_leave_no_overlap_and_no_long_gap(store: &impl Shared) {
    let processes = setting("LEASEHOLD_TEST_PROCESSES", PROCESSES);
    let kills = setting("LEASEHOLD_TEST_KILLS", 8);
    let mut workers: Vec<_> = (0..processes).map(|_| start("logging_worker", store)).collect();
    for worker in &mut workers {
        assert_eq!(worker.line().await.as_deref(), Some("ready"));
    }
    let mut random = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").subsec_nanos();
    for _ in 0..kills {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // What a process leaves behind is gone by then, so that each gap is of one death.
        sleep(store.gone_after() + ms(u64::from(random >> 16) % 500)).await;
        let victim = (random >> 24) as usize % processes;
        workers[victim].kill();
        workers[victim] = start("logging_worker", store);
    }
    for worker in &mut workers {
        // Nobody has ended without being killed: all sections ended as they should.
        assert!(worker.is_alive());
        worker.kill();
    }

    let log = read_log(&store.directory().join("log"));
    assert!(log.len() > kills * 20, "only {} lines", log.len());
    let longest_gap = longest_gap_of(&log);
    let sections = log.iter().filter(|noted| !noted.is_begin).count();
    println!("{processes} processes, {kills} kills, {sections} sections, longest gap {longest_gap:?}");
    assert!(longest_gap < store.replaced(), "nobody held the lock for {longest_gap:?}");
}

/// How long nobody held the lock at most. Every section must have been alone, with a greater token than the one before,
/// and must have found in the register what that one had written.
fn longest_gap_of(log: &[Noted]) -> Duration {
    let (mut last, mut open, mut written, mut longest_gap) = (0, None, 0, 0);
    let mut previous = log[0].at;
    for &Noted { is_begin, token, at, value } in log {
        if is_begin {
            assert!(token > last, "token {token} after {last}");
            // One that was killed may have written before.
            let may_be_written = written..=written + u64::from(open.is_some());
            assert!(may_be_written.contains(&value), "{value} was found, after {written}");
            (last, open, written) = (token, Some(token), value);
            longest_gap = longest_gap.max(at.saturating_sub(previous));
        } else {
            assert_eq!(open.take(), Some(token), "the section of {token} was not alone");
            assert_eq!(value, written + 1, "the section of {token} was not alone");
            written = value;
        }
        previous = at;
    }
    Duration::from_millis(longest_gap)
}

/// A test for each promise, on the stores that `$store` makes: it is given what is left out if it returns `None`.
macro_rules! process_promises {
    ($store:path) => {
        process_promises! { workers => counting_worker, holding_worker, logging_worker }
        process_promises! { $store => four_processes_exclude_each_other, a_killed_holder_is_replaced_within_its_lease_and_a_second, a_killed_waiter_blocks_nobody_for_longer_than_a_lease, a_holder_paused_for_longer_than_its_lease_is_replaced_and_notified, processes_killed_at_random_leave_no_overlap_and_no_long_gap }
    };
    (workers => $($worker:ident),*) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $worker() {
            process_promises::$worker().await;
        })*
    };
    ($store:path => $($promise:ident),*) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $promise() {
            let Some(store) = $store(stringify!($promise)) else { return };
            process_promises::$promise(&store).await;
        })*
    };
}
