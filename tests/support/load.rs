//! Tasks that lock all the time, and what they saw: for faults of the store.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::{Client, Error, MutexOptions};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

const CLIENTS: usize = 4;
const NAMES: usize = 16;
const TTL: Duration = Duration::from_secs(1);

/// From when a task was handed a lock until it gave it up or heard that it was lost.
#[derive(Clone, Debug)]
struct Held {
    client: usize,
    name: usize,
    token: u64,
    from: Instant,
    until: Instant,
    lost: bool,
}

/// What the tasks saw.
#[derive(Debug)]
pub struct Report {
    pub operations: usize,
    pub lost: usize,
    /// How many requests failed, and how.
    pub errors: BTreeMap<String, usize>,
    pub tokens_that_went_back: usize,
    /// Guards of one lock at the same time, none of which was told that it was lost.
    pub overlaps: usize,
    /// The longest time without any grant.
    pub longest_gap: Duration,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "operations {}, lost {}, tokens that went back {}, overlaps without `lost` {}, longest time without a grant {:?}, \
             errors {:?}",
            self.operations,
            self.lost,
            self.tokens_that_went_back,
            self.overlaps,
            self.longest_gap,
            self.errors
        )
    }
}

/// What was held, and how often which error came.
type Seen = (Vec<Held>, BTreeMap<String, usize>);

/// Tasks of several clients that take the same locks.
#[derive(Debug)]
pub struct Load {
    clients: Vec<Client>,
    tasks: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    seen: Arc<Mutex<Seen>>,
}

impl Load {
    pub async fn start(url: &str, tasks: usize) -> Self {
        Self::start_with_ttl(url, tasks, TTL).await
    }

    /// The same with leases that last for so long.
    pub async fn start_with_ttl(url: &str, tasks: usize, ttl: Duration) -> Self {
        let (stop, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::<Seen>::default()));
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(Client::connect(url).await.expect("the store answers"));
        }
        let task = |n: usize| {
            let (client, stop, seen) = (clients[n % CLIENTS].clone(), Arc::clone(&stop), Arc::clone(&seen));
            tokio::spawn(async move {
                let mut round = n;
                while !stop.load(Ordering::Relaxed) {
                    round += 7;
                    let outcome = lock_once(&client, ttl, n % CLIENTS, round % NAMES).await;
                    let mut seen = seen.lock().expect("no panic");
                    match outcome {
                        Ok(held) => seen.0.push(held),
                        Err(Error::StoreUnavailable { source, .. }) => {
                            *seen.1.entry(format!("unavailable: {source}")).or_default() += 1
                        }
                        Err(error) => *seen.1.entry(error.to_string()).or_default() += 1,
                    }
                }
            })
        };
        let tasks = (0..tasks).map(task).collect();
        Self { clients, tasks, stop, seen }
    }

    /// How many locks have been taken so far.
    pub fn operations(&self) -> usize {
        self.seen.lock().expect("no panic").0.len()
    }

    /// Waits for as many further locks.
    pub async fn go_on_for(&self, operations: usize) {
        self.go_on_for_or(operations, String::new).await;
    }

    /// The same; if it takes too long, `explain` says how the store is.
    pub async fn go_on_for_or(&self, operations: usize, explain: impl Fn() -> String) {
        let goal = self.operations() + operations;
        let went_on = async {
            while self.operations() < goal {
                sleep(Duration::from_millis(5)).await;
            }
        };
        if timeout(Duration::from_secs(60), went_on).await.is_err() {
            panic!("{} of {goal} locks were taken: {}\n{}", self.operations(), self.found().await, explain());
        }
    }

    /// What can be seen of the locks, and what has gone wrong so far.
    async fn found(&self) -> String {
        let mut found = format!("{:?}", self.seen.lock().expect("no panic").1);
        for name in 0..NAMES {
            let mutex = self.clients[0].mutex(&format!("load {name}")).expect("valid");
            found += &match timeout(TTL, mutex.inspect()).await {
                Ok(Ok(seen)) => format!(
                    "\n{name}: {:?}, {} wait, first {:?}",
                    seen.holders,
                    seen.waiters.len(),
                    seen.waiters.first()
                ),
                Ok(Err(error)) => format!("\n{name}: {error}"),
                Err(_) => format!("\n{name}: no answer"),
            };
        }
        found
    }

    /// Waits until every client has taken every lock again.
    pub async fn go_on_everywhere(&self) {
        let before = self.operations();
        super::eventually(Duration::from_secs(60), || async {
            let seen = self.seen.lock().expect("no panic");
            let taken: BTreeSet<_> = seen.0[before..].iter().map(|held| (held.client, held.name)).collect();
            taken.len() == CLIENTS * NAMES
        })
        .await;
    }

    pub async fn stop(self) -> Report {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            super::within(Duration::from_secs(60), task).await.expect("no panic");
        }
        for client in self.clients {
            client.shutdown().await.expect("everything is released");
        }
        let (held, errors) = std::mem::take(&mut *self.seen.lock().expect("no panic"));
        judge(held, errors)
    }
}

async fn lock_once(client: &Client, ttl: Duration, number: usize, name: usize) -> Result<Held, Error> {
    let options = MutexOptions::new().ttl(ttl);
    let guard = client.mutex_with(&format!("load {name}"), options)?.lock().await?;
    let (from, token) = (Instant::now(), guard.token().get());
    let lost = tokio::select! {
        _ = guard.lost() => true,
        () = sleep(Duration::from_millis(from.elapsed().as_nanos() as u64 % 5)) => false,
    };
    let until = Instant::now();
    let lost = lost || !guard.is_held();
    let released = guard.release().await;
    let lost = lost || matches!(released, Err(Error::Lost { .. }));
    Ok(Held { client: number, name, token, from, until, lost })
}

fn judge(mut held: Vec<Held>, errors: BTreeMap<String, usize>) -> Report {
    held.sort_by_key(|held| held.from);
    let gaps = held.windows(2).map(|pair| pair[1].from - pair[0].from);
    let mut report = Report {
        operations: held.len(),
        lost: held.iter().filter(|held| held.lost).count(),
        errors,
        tokens_that_went_back: 0,
        overlaps: 0,
        longest_gap: gaps.max().unwrap_or_default(),
    };
    for name in 0..NAMES {
        let of_name: Vec<_> = held.iter().filter(|held| held.name == name).collect();
        // What has ended by the time that something begins has the smaller token.
        let begins = of_name.iter().map(|held| (held.from, true, *held));
        let ends = of_name.iter().map(|held| (held.until, false, *held));
        let mut events: Vec<_> = begins.chain(ends).collect();
        events.sort_by_key(|(at, begins, _)| (*at, *begins));
        let (mut greatest, mut open) = (0, Vec::<&Held>::new());
        for (_, begins, held) in events {
            if begins {
                report.tokens_that_went_back += usize::from(held.token <= greatest);
                report.overlaps += open.iter().filter(|other| !other.lost && !held.lost).count();
                open.push(held);
            } else {
                greatest = greatest.max(held.token);
                open.retain(|other| other.token != held.token);
            }
        }
    }
    report
}
