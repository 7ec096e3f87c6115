//! Requests to the instances, and how they were answered.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use reqwest::Client;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How many requests are under way at a time.
const TASKS: u64 = 24;
/// How many records there are.
const MACHINES: u64 = 5;
/// How long the caller of a request waits.
const PATIENCE: Duration = Duration::from_secs(12);

/// Requests to whatever instances there are, until it is dropped.
#[derive(Debug)]
pub(crate) struct Load {
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    http: Client,
    instances: RwLock<Vec<SocketAddr>>,
    next: AtomicU64,
    answers: Mutex<Answers>,
}

/// How many requests were answered how.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answers {
    pub(crate) succeeded: u64,
    /// By status and cause.
    pub(crate) failed: BTreeMap<String, u64>,
    pub(crate) slowest: Duration,
}

impl Answers {
    pub(crate) fn add(&mut self, more: Self) {
        self.succeeded += more.succeeded;
        self.slowest = self.slowest.max(more.slowest);
        for (cause, times) in more.failed {
            *self.failed.entry(cause).or_default() += times;
        }
    }
}

impl Load {
    pub(crate) fn start(instances: Vec<SocketAddr>) -> Self {
        let shared = Arc::new(Shared {
            http: Client::new(),
            instances: RwLock::new(instances),
            next: AtomicU64::new(0),
            answers: Mutex::default(),
        });
        let mut tasks = JoinSet::new();
        for _ in 0..TASKS {
            let shared = Arc::clone(&shared);
            tasks.spawn(async move {
                loop {
                    shared.ask_next().await;
                }
            });
        }
        Self { shared, tasks }
    }

    /// Requests go to these instances from here on.
    pub(crate) fn balance_over(&self, instances: Vec<SocketAddr>) {
        *self.shared.instances.write() = instances;
    }

    /// What has been answered since the last time.
    pub(crate) fn take(&self) -> Answers {
        std::mem::take(&mut self.shared.answers.lock())
    }

    /// Gives up what is under way.
    pub(crate) async fn stop(mut self) {
        self.tasks.shutdown().await;
    }
}

impl Shared {
    async fn ask_next(&self) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let instance = {
            let instances = self.instances.read();
            // Each route to each instance.
            instances[(number / 3) as usize % instances.len()]
        };
        let path = match number % 3 {
            0 => "upstream".to_owned(),
            _ => format!("machines/{}/parts", number % MACHINES),
        };
        let asked = Instant::now();
        let answer = self.http.post(format!("http://{instance}/{path}")).timeout(PATIENCE).send().await;
        let failure = match answer {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => {
                let status = answer.status().as_u16();
                let cause = answer.text().await.unwrap_or_default();
                Some(format!("{status} {}", without_names(&cause)))
            }
            Err(error) if error.is_timeout() => Some("no answer in time".to_owned()),
            Err(_) => Some("connection lost".to_owned()),
        };
        let mut answers = self.answers.lock();
        answers.slowest = answers.slowest.max(asked.elapsed());
        match failure {
            None => answers.succeeded += 1,
            Some(failure) => *answers.failed.entry(failure).or_default() += 1,
        }
    }
}

/// The cause without what differs from one request to another.
fn without_names(cause: &str) -> String {
    let digits = |c: char| if c.is_ascii_digit() { '_' } else { c };
    cause.lines().next().unwrap_or_default().chars().map(digits).take(70).collect()
}
