//! `leasehold` beside other libraries for locks on Redis, each with its defaults:
//!
//! ```text
//! pip install redis        # or leave redis-py out with --without-python
//! cargo run --release --manifest-path benches/libraries/Cargo.toml
//! ```
//!
//! Starts `redis-server` on a free port and measures, in alternating rounds:
//!
//! * one task, a lock that nobody else wants: the median time of lock + release, also in units of a PING in the same round;
//! * sixteen tasks of two clients, one lock, nothing done under it: turns per second, and the longest wait. Who still waits when the round
//!   ends counts with its wait so far.
//!
//! The table has the median of the rounds. redis-py runs in a process of its own (`redis_py.py`), with threads for tasks.

use std::error::Error;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::{FutureExt, try_join_all};
use hdrhistogram::Histogram;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const LEASE: Duration = Duration::from_secs(30);
const ROUNDS: usize = 5;
const PAIRS: usize = 2000;
const TASKS: usize = 16;
const WINDOW: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> Result<()> {
    let server = Server::start().await?;
    let python = std::env::args().all(|argument| argument != "--without-python");
    let mut rows = vec![
        Row::new("leasehold", Kind::Leasehold),
        Row::new("rslock 0.10", Kind::Rslock),
        Row::new("rlock 0.2", Kind::Rlock),
    ];
    if python {
        rows.push(Row::new("redis-py", Kind::RedisPy));
    }
    for round in 0..ROUNDS {
        for row in &mut rows {
            eprintln!("round {} of {ROUNDS}: {}", round + 1, row.name);
            row.rounds.push(server.measure(row.kind, row.name, round).await?);
        }
    }
    println!("| one lock, 1 task and 16 tasks | lock + release us | in PINGs | turns/s | longest wait ms |");
    println!("|---|---|---|---|---|");
    rows.iter().for_each(Row::print);
    Ok(())
}

#[derive(Clone, Copy)]
enum Kind {
    Leasehold,
    Rslock,
    Rlock,
    RedisPy,
}

/// What a round showed: microseconds, microseconds, per second, milliseconds.
struct Figures {
    ping: f64,
    pair: f64,
    turns: f64,
    wait: f64,
}

struct Row {
    name: &'static str,
    kind: Kind,
    rounds: Vec<Figures>,
}

impl Row {
    const fn new(name: &'static str, kind: Kind) -> Self {
        Self { name, kind, rounds: Vec::new() }
    }

    fn print(&self) {
        let median = |value: fn(&Figures) -> f64| {
            let mut values: Vec<_> = self.rounds.iter().map(value).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        println!(
            "| {} | {:.0} | {:.1} | {:.0} | {:.0} |",
            self.name,
            median(|round| round.pair),
            median(|round| round.pair / round.ping),
            median(|round| round.turns),
            median(|round| round.wait),
        );
    }
}

/// One client of a library.
enum Library {
    Leasehold(leasehold::Client),
    Rslock(rslock::LockManager),
    Rlock(rlock::async_lock::RLock),
}

impl Library {
    async fn connect(kind: Kind, url: &str) -> Result<Self> {
        Ok(match kind {
            Kind::Leasehold => Self::Leasehold(leasehold::Client::connect(url).await?),
            Kind::Rslock => Self::Rslock(rslock::LockManager::new(vec![url])),
            Kind::Rlock => Self::Rlock(rlock::async_lock::RLock::new(url).await?),
            Kind::RedisPy => unreachable!("it has a process of its own"),
        })
    }

    /// Waits for the lock and releases it; returns how long it has waited.
    async fn turn(&self, name: &str) -> Result<Duration> {
        let asked = Instant::now();
        match self {
            Self::Leasehold(client) => {
                let guard = client.mutex(name)?.lock().await?;
                let waited = asked.elapsed();
                guard.release().await?;
                Ok(waited)
            }
            Self::Rslock(manager) => loop {
                match manager.lock(name, LEASE).await {
                    Ok(lock) => {
                        let waited = asked.elapsed();
                        manager.unlock(&lock).await;
                        return Ok(waited);
                    }
                    // Its attempts were in vain: more of them.
                    Err(rslock::LockError::Unavailable) => {}
                    Err(error) => return Err(error.into()),
                }
            },
            Self::Rlock(client) => {
                let mut guard = client.acquire_mutex(name).await?;
                let waited = asked.elapsed();
                guard.release().await?;
                Ok(waited)
            }
        }
    }
}

struct Server {
    process: Child,
    port: u16,
}

impl Server {
    async fn start() -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let options = ["--save", "", "--appendonly", "no", "--port"];
        let process = Command::new("redis-server")
            .args(options)
            .arg(port.to_string())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("cannot start redis-server: {error}"))?;
        let server = Self { process, port };
        for _ in 0..200 {
            if tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
                return Ok(server);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Err("redis-server does not listen".into())
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    async fn measure(&self, kind: Kind, name: &str, round: usize) -> Result<Figures> {
        let ping = self.ping().await?;
        if matches!(kind, Kind::RedisPy) {
            return self.redis_py(ping).await;
        }
        let url = self.url();
        let clients = try_join_all((0..2).map(|_| Library::connect(kind, &url))).await?;
        let [one, other] = <[Library; 2]>::try_from(clients).map_err(|_| "two clients")?;
        let clients = [Arc::new(one), Arc::new(other)];
        let mut pairs = Histogram::<u64>::new(3)?;
        for pair in 0..PAIRS + 100 {
            let started = Instant::now();
            clients[0].turn("alone").await?;
            if pair >= 100 {
                pairs.record(u64::try_from(started.elapsed().as_nanos())?)?;
            }
        }
        let (turns, wait) = contend(&clients, &format!("{name}:{round}")).await?;
        Ok(Figures { ping, pair: pairs.value_at_quantile(0.5) as f64 / 1e3, turns, wait })
    }

    async fn ping(&self) -> Result<f64> {
        let mut connection = redis::Client::open(self.url())?.get_multiplexed_async_connection().await?;
        let mut times = Histogram::<u64>::new(3)?;
        for _ in 0..PAIRS {
            let started = Instant::now();
            redis::cmd("PING").query_async::<()>(&mut connection).await?;
            times.record(u64::try_from(started.elapsed().as_nanos())?)?;
        }
        Ok(times.value_at_quantile(0.5) as f64 / 1e3)
    }

    async fn redis_py(&self, ping: f64) -> Result<Figures> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/redis_py.py");
        let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
        let arguments =
            [self.port.to_string(), PAIRS.to_string(), TASKS.to_string(), WINDOW.as_secs().to_string()];
        let output = tokio::process::Command::new(python).arg(script).args(arguments).output().await?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
        }
        let text = String::from_utf8(output.stdout)?;
        let figures: Vec<f64> =
            text.split_whitespace().map(str::parse).collect::<std::result::Result<_, _>>()?;
        match figures[..] {
            [pair, turns, wait] => Ok(Figures { ping, pair, turns, wait }),
            _ => Err(format!("redis_py.py printed {text:?}").into()),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Turns per second of all tasks, and the longest wait of any, in ms.
async fn contend(clients: &[Arc<Library>; 2], name: &str) -> Result<(f64, f64)> {
    let end = Instant::now() + WINDOW;
    let tasks = (0..TASKS).map(|task| {
        let (client, name) = (Arc::clone(&clients[task % 2]), name.to_owned());
        tokio::spawn(async move {
            let mut waits = Vec::new();
            loop {
                let asked = Instant::now();
                match tokio::time::timeout_at(end.into(), client.turn(&name)).await {
                    Ok(waited) => waits.push(waited?),
                    Err(_) => return Ok::<_, Box<dyn Error + Send + Sync>>((waits, asked.elapsed())),
                }
            }
        })
        .map(|joined| joined?)
    });
    let all: Vec<(Vec<Duration>, Duration)> = try_join_all(tasks).await?;
    let turns: usize = all.iter().map(|(waits, _)| waits.len()).sum();
    let waits = all.into_iter().flat_map(|(waits, unfinished)| waits.into_iter().chain([unfinished]));
    let longest = waits.max().unwrap_or_default();
    Ok((turns as f64 / WINDOW.as_secs_f64(), longest.as_secs_f64() * 1e3))
}
