//! A real server that lives by a shifted clock, and clients with real connections.
//!
//! The clients' timers do not see the shift, so this file stands in for them: it lets waiters ask again, by the message
//! with which the server itself can make them do so.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use leasehold::RedisBackend;
use leasehold::backend::{Detail, Inspection, Resource};
use leasehold::fred::types::config::Config;
use tokio::runtime::{Builder, Runtime};
use tokio::task::yield_now;

use crate::line::{Line, Waiting};
use crate::plan::Label;
use crate::reply::Answers;
use crate::side::{Client, Failed, Store};
use crate::support::{Clock, Raw, RedisServer, Setup};

/// How long anything may take that was set going.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the server may take.
const SLOW: Duration = Duration::from_secs(30);

/// A Redis server, and the runtime of its clients.
pub(crate) struct Redis {
    /// Looks without taking part.
    observer: Client,
    raw: Raw,
    runtime: Runtime,
    clock: Clock,
    server: RedisServer,
}

impl Redis {
    /// A server under a clock of its own, or `None` where there can be none of either.
    #[track_caller]
    pub(crate) fn start_or_skip(left_out: &str) -> Option<Self> {
        let clock = Clock::new_or_skip(left_out)?;
        let server = RedisServer::start_with_or_skip(left_out, Setup::under(&clock))?;
        let runtime =
            Builder::new_current_thread().enable_all().build().expect("the system has room for a runtime");
        let observer = connect(&runtime, &server);
        Some(Self { observer, raw: server.raw(), runtime, clock, server })
    }

    /// What the server knows of a waiting request.
    fn record(&mut self, waiting: &Waiting) -> Option<String> {
        let waiters = format!("{{{}}}:waiters", waiting.request.resource.key);
        self.raw.send(&["HGET", &waiters, &waiting.request.lease.to_string()]).text()
    }

    /// Makes a waiting request ask again.
    fn tell_to_ask(&mut self, waiting: &Waiting) -> Result<(), Failed> {
        let (lease, key) = (waiting.request.lease, &waiting.request.resource.key);
        let channel = format!("leasehold:{}", lease.client());
        match self.raw.send(&["PUBLISH", &channel, &format!("ask {lease} {key}")]).int() {
            0 => Err(format!("nobody listens for lease {}", waiting.label)),
            _ => Ok(()),
        }
    }

    /// Lets the clients work, and collects what has been answered.
    fn turn(&mut self, line: &mut Line) -> Answers {
        let labels = line.labels();
        let polled = poll_fn(|cx| {
            let mut answer = |label: &Label| line.poll(*label, cx).map(|answer| (*label, answer));
            Poll::Ready(labels.iter().filter_map(&mut answer).collect())
        });
        self.runtime.block_on(async {
            yield_now().await;
            polled.await
        })
    }

    /// Those whose requests have neither been answered, though they should, nor stand in line.
    fn unsettled(&mut self, line: &mut Line, expected: &Answers) -> Result<Vec<Label>, Failed> {
        let mut unsettled = Vec::new();
        for resource in resources(line) {
            let seen = self.inspect(&resource)?;
            for waiting in line.0.iter_mut().filter(|waiting| waiting.request.resource.key == resource.key) {
                let stands = seen.waiters.iter().any(|waiter| waiter.id == waiting.request.lease);
                if stands && !waiting.stood {
                    self.hear_out(waiting)?;
                } else if stands && !expected.contains_key(&waiting.label) {
                    continue;
                }
                unsettled.push(waiting.label);
            }
        }
        Ok(unsettled)
    }

    /// Waits until a client has heard that its request stands in line: the server says so before it answers this.
    fn hear_out(&mut self, waiting: &mut Waiting) -> Result<(), Failed> {
        let echo = waiting.client.inspect(&waiting.request.resource, Detail::Numbers);
        self.runtime.block_on(echo).map_err(|error| format!("no echo: {error}"))?;
        waiting.stood = true;
        Ok(())
    }

    fn inspect(&mut self, resource: &Resource) -> Result<Inspection, Failed> {
        let inspection = self.observer.inspect(resource, Detail::Everybody);
        self.runtime.block_on(inspection).map_err(|error| format!("no inspection: {error}"))
    }
}

impl Store for Redis {
    fn connect(&mut self) -> Client {
        connect(&self.runtime, &self.server)
    }

    fn crash(&mut self, client: Client) {
        let channel = format!("leasehold:{}", client.lease_id().client());
        self.runtime.block_on(client.close());
        let end = Instant::now() + PATIENCE;
        while self.raw.send(&["PUBSUB", "NUMSUB", &channel]).array()[1].int() > 0 {
            assert!(Instant::now() < end, "a closed client is still subscribed");
        }
    }

    fn lose_memory(&mut self) {
        self.raw.send(&["FLUSHALL"]);
        self.raw.send(&["SCRIPT", "FLUSH"]);
    }

    fn pass(&mut self, time: Duration) {
        self.clock.shift(time);
    }

    fn run<T>(&mut self, verb: impl Future<Output = T>) -> T {
        self.runtime.block_on(verb)
    }

    fn ask_again(&mut self, line: &mut Line, meant: fn(&Waiting) -> bool) -> Result<Answers, Failed> {
        let mut answers = Answers::new();
        for label in line.labels_where(meant) {
            let Some(waiting) = line.get(label) else { continue };
            waiting.stood = false;
            let before = self.record(waiting);
            self.tell_to_ask(waiting)?;
            let end = Instant::now() + PATIENCE;
            while let Some(waiting) = line.get(label) {
                let record = self.record(waiting);
                if record.is_some() && record != before {
                    break;
                }
                if Instant::now() >= end {
                    return Err(format!("lease {label} is told to ask again and does not"));
                }
                answers.extend(self.turn(line));
            }
        }
        Ok(answers)
    }

    fn settle(
        &mut self,
        line: &mut Line,
        _: Option<&Resource>,
        expected: &Answers,
    ) -> Result<Answers, Failed> {
        let mut answers = Answers::new();
        let end = Instant::now() + PATIENCE;
        loop {
            answers.extend(self.turn(line));
            let unsettled = self.unsettled(line, expected)?;
            if unsettled.is_empty() {
                return Ok(answers);
            }
            if Instant::now() >= end {
                return Err(format!(
                    "neither answered as {expected:?} nor in line: {unsettled:?}; answered {answers:?}"
                ));
            }
        }
    }

    fn leftovers(&mut self, of: &str) -> Vec<String> {
        let mut keys = self.raw.keys(&format!("*{of}*"));
        keys.retain(|key| !key.ends_with(":fence") && !key.ends_with(":state"));
        keys
    }
}

fn connect(runtime: &Runtime, server: &RedisServer) -> Client {
    let config = Config::from_url(&server.url()).expect("a server's URL can be read");
    // What is slow here is the machine, and nothing is to be sent twice for that.
    let builder = RedisBackend::builder(config).connect_timeout(SLOW).reply_timeout(SLOW);
    Arc::new(runtime.block_on(builder.connect()).expect("the server accepts clients"))
}

/// What is waited for.
fn resources(line: &Line) -> Vec<Resource> {
    let mut resources: Vec<Resource> = Vec::new();
    for waiting in &line.0 {
        if resources.iter().all(|resource| resource.key != waiting.request.resource.key) {
            resources.push(waiting.request.resource.clone());
        }
    }
    resources
}
