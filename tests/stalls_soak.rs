//! Four processes use every primitive while their connections are held back, cut, and the server is paused, at random;
//! every interval in which somebody believed it held a lease is recorded on one clock and checked.
//!
//! With `LEASEHOLD_STALL_FAULT`, all faults are of one sort (`disturb`).
//!
//! Runs for `LEASEHOLD_STALL_SECONDS` (20 by default) from the seed `LEASEHOLD_STALL_SEED`, which it prints. What every
//! task asked and held is left in the folder `LEASEHOLD_STALL_RECORDS`, if that is set.
//!
//! ```sh
//! LEASEHOLD_STALL_SECONDS=200 LEASEHOLD_STALL_SEED=1 cargo test --all-features --test stalls_soak -- --nocapture
//! ```
#![cfg(feature = "_redis")]

use std::collections::HashMap;
use std::env;
use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::join_all;
use leasehold::{Client, Error, Guard, MutexOptions, SemaphoreOptions};
use leasehold_support::checker::{LIMIT, Primitive, Record, Stall, Verdict, now};
use leasehold_support::random::Random;
use leasehold_support::{Direction, Proxy, RedisServer, Traffic, Worker, say, worker_args};
use tokio::time::{Instant, sleep, timeout};

const PROCESSES: usize = 4;
const TASKS: usize = 4;
const OWNERS: [&str; 2] = ["a", "b"];
/// How long to wait after a fault until every waiter must have been served: the longest lease, a second, and a little.
const CALM: Duration = Duration::from_millis(3_300);
/// How long after the end of its time a worker waits for requests that are still open.
const AFTERWARDS: Duration = Duration::from_secs(10);

// The workers

#[test]
fn stalled_worker() {
    let Some(args) = worker_args() else { return };
    let args: Vec<_> = args.split(' ').collect();
    let [url, seconds, seed, path] = args[..] else { panic!("four arguments") };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let client = Client::connect(url).await.expect("the server answers");
        let end = Instant::now() + Duration::from_secs(seconds.parse().expect("a number"));
        let seed: u64 = seed.parse().expect("a number");
        let records = Arc::new(Mutex::new(Log::default()));
        let tasks =
            Primitive::ALL.into_iter().flat_map(|primitive| (0..TASKS).map(move |task| (primitive, task)));
        let tasks = tasks.map(|(primitive, task)| {
            let random = Random::new(seed, (primitive as u64) << 32 | task as u64);
            let user =
                User { client: client.clone(), primitive, task, random, records: Arc::clone(&records) };
            tokio::spawn(user.run(end))
        });
        say("running");
        let tasks: Vec<_> = tasks.collect();
        tokio::time::sleep_until(end).await;
        let finished = timeout(AFTERWARDS, join_all(tasks)).await;
        let text = records.lock().expect("no panic").to_text();
        fs::write(path, text).expect("the file is writable");
        say(if finished.is_ok() { "finished" } else { "stuck" });
    });
}

/// The requests of a process: the open ones, and those that are over.
#[derive(Default)]
struct Log {
    open: HashMap<String, Record>,
    closed: Vec<Record>,
}

impl Log {
    fn to_text(&self) -> String {
        self.closed.iter().chain(self.open.values()).map(Record::to_line).collect()
    }
}

/// A task that asks for one primitive again and again.
struct User {
    client: Client,
    primitive: Primitive,
    task: usize,
    random: Random,
    records: Arc<Mutex<Log>>,
}

impl User {
    async fn run(mut self, end: Instant) {
        while Instant::now() < end {
            // An owner comes in past those who wait for it: its tasks must not keep the lock by turns.
            let pause = if self.primitive == Primitive::Reentrant { 50..300 } else { 0..20 };
            sleep(self.random.millis(pause)).await;
            let time_limit = (self.random.within(0..4) == 0).then(|| self.random.millis(100..2_000));
            let asked = now();
            let opened = self.open(asked);
            let outcome = self.acquire(time_limit).await;
            let mut record = Record { answered: now(), asked, unlimited: time_limit.is_none(), ..opened };
            match outcome {
                Ok(guard) => self.hold(guard, &mut record).await,
                Err(Error::TimedOut { .. }) => "timeout".clone_into(&mut record.outcome),
                Err(Error::StoreUnavailable { .. }) => "unavailable".clone_into(&mut record.outcome),
                Err(error) => record.outcome = error.to_string().replace(' ', "_"),
            }
            let mut records = self.records.lock().expect("no panic");
            records.open.remove(&record.user);
            records.closed.push(record);
        }
    }

    /// A request that is not answered yet is on record as such.
    fn open(&self, asked: u64) -> Record {
        let user = format!("{}-{}-{}", std::process::id(), self.primitive as usize, self.task);
        let owner = if self.primitive == Primitive::Reentrant { OWNERS[self.task % 2] } else { "-" };
        let record = Record::open(self.primitive, user, owner, asked);
        self.records.lock().expect("no panic").open.insert(record.user.clone(), record.clone());
        record
    }

    async fn acquire(&self, time_limit: Option<Duration>) -> Result<Guard, Error> {
        let (client, ttl) = (&self.client, self.primitive.lease());
        let locks = MutexOptions::new().ttl(ttl).local_handover(self.primitive != Primitive::QueuedMutex);
        let permits = SemaphoreOptions::new().ttl(ttl);
        let name = self.primitive.name();
        match self.primitive {
            Primitive::Mutex | Primitive::QueuedMutex => {
                let mutex = client.mutex_with(name, locks)?;
                match time_limit {
                    Some(time_limit) => mutex.lock_timeout(time_limit).await,
                    None => mutex.lock().await,
                }
            }
            Primitive::Reentrant => {
                let lock = client.reentrant_lock_with(name, OWNERS[self.task % 2], locks)?;
                match time_limit {
                    Some(time_limit) => lock.lock_timeout(time_limit).await,
                    None => lock.lock().await,
                }
            }
            Primitive::Counting => {
                let semaphore = client.counting_semaphore_with(name, LIMIT, permits)?;
                match time_limit {
                    Some(time_limit) => semaphore.acquire_timeout(time_limit).await,
                    None => semaphore.acquire().await,
                }
            }
            Primitive::Fair => {
                let semaphore = client.fair_semaphore_with(name, LIMIT, permits)?;
                match time_limit {
                    Some(time_limit) => semaphore.acquire_timeout(time_limit).await,
                    None => semaphore.acquire().await,
                }
            }
        }
    }

    async fn hold(&mut self, guard: Guard, record: &mut Record) {
        let section = match self.random.within(0..40) {
            // Sometimes for longer than a lease: it must be renewed, or its loss reported.
            0 => self.primitive.lease() + self.primitive.lease() / 4,
            _ => self.random.millis(0..8),
        };
        record.token = guard.token().get();
        "held".clone_into(&mut record.outcome);
        let nested = if self.primitive == Primitive::Reentrant && self.random.within(0..2) == 0 {
            self.acquire(Some(self.primitive.lease())).await.ok()
        } else {
            None
        };
        if let Some(nested) = &nested {
            // In this order: if `guard` is held at the second check, it was also held at the first.
            let held = nested.is_held() && guard.is_held();
            record.nested = if held { nested.token().get() } else { 0 };
        }
        let end = Instant::now() + section;
        loop {
            let before = now();
            if !guard.is_held() {
                break;
            }
            record.believed = before.max(record.answered);
            if Instant::now() >= end {
                break;
            }
            sleep(Duration::from_millis(2).min(section)).await;
        }
        if self.random.within(0..2) == 0 {
            let _ = timeout(Duration::from_secs(5), guard.release()).await;
        }
    }
}

// The faults

/// One fault, from beginning to end.
async fn disturb(random: &mut Random, server: &RedisServer, proxies: &[Proxy], longest: u64) -> Stall {
    let proxy = &proxies[random.within(0..PROCESSES as u64) as usize];
    let duration = random.millis(500..longest);
    let direction = match random.within(0..3) {
        0 => Direction::ToServer,
        1 => Direction::ToClient,
        _ => Direction::Both,
    };
    let began = now();
    let fault = random.within(0..10);
    let what = match env::var("LEASEHOLD_STALL_FAULT").map_or(fault, |fault| fault.parse().expect("a number"))
    {
        0 => {
            server.pause();
            sleep(duration).await;
            server.resume();
            "server stopped".to_owned()
        }
        1 => {
            let ms = duration.as_millis().to_string();
            server.raw().send(&["CLIENT", "PAUSE", &ms, "WRITE"]);
            sleep(duration).await;
            "CLIENT PAUSE WRITE".to_owned()
        }
        2 => {
            proxy.cut();
            "cut".to_owned()
        }
        3 => {
            proxy.hold(direction);
            sleep(duration).await;
            // The connection for commands first, so that messages arrive late.
            proxy.resume_traffic(Traffic::Commands);
            sleep(Duration::from_millis(20)).await;
            proxy.resume();
            format!("both lines {direction:?}")
        }
        n => {
            let traffic = if n % 2 == 0 { Traffic::Commands } else { Traffic::Messages };
            proxy.hold_traffic(traffic, direction);
            sleep(duration).await;
            proxy.resume();
            format!("{traffic:?} {direction:?}")
        }
    };
    Stall { began, ended: now(), what }
}

fn setting(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |value| value.parse().expect("a number"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_reported_too_late_is_accepted() {
    let Some(server) = RedisServer::start_or_skip("stalls at random") else { return };
    let (seconds, seed) = (setting("LEASEHOLD_STALL_SECONDS", 20), setting("LEASEHOLD_STALL_SEED", 1));
    let longest = if seconds < 60 { 3_000 } else { 8_000 };
    println!("seed {seed}, {seconds} s");
    let (mut proxies, mut workers, mut files) = (Vec::new(), Vec::new(), Vec::new());
    let records = env::var_os("LEASEHOLD_STALL_RECORDS").map_or_else(|| server.dir().to_owned(), Into::into);
    for n in 0..PROCESSES {
        let proxy = Proxy::start(server.port()).await;
        let file = records.join(format!("worker-{n}"));
        let args = format!("{} {seconds} {} {}", proxy.url(), seed * 1_000 + n as u64, file.display());
        workers.push(Worker::start("stalled_worker", &args));
        proxies.push(proxy);
        files.push(file);
    }
    for worker in &mut workers {
        assert_eq!(worker.line().await.as_deref(), Some("running"));
    }
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut random, mut stalls) = (Random::new(seed, u64::MAX), Vec::new());
    sleep(Duration::from_secs(1)).await;
    while Instant::now() + Duration::from_millis(longest) + CALM < end {
        stalls.push(disturb(&mut random, &server, &proxies, longest).await);
        sleep(CALM).await;
    }
    let deadline = end + AFTERWARDS + Duration::from_secs(5);
    for worker in &mut workers {
        let line = tokio::time::timeout_at(deadline, worker.line()).await.expect("a worker that ends");
        println!("worker {}", line.unwrap_or_default());
    }
    let records: Vec<_> = files.iter().flat_map(|file| Record::read(file)).collect();
    let verdict = Verdict::of(&records, &stalls);
    println!("{verdict}");
    verdict.assert();
}
