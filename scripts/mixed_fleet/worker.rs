//! A worker of the mixed fleet that locks with rslock or with this crate; see run.py for what all workers do.

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::io::{Write, stdin, stdout};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use clap::Parser;
use fred::prelude::{Builder, Client as Fred, ClientLike, Config, KeysInterface};
use leasehold::redis::RedisBackend;
use leasehold::{Client, DistMutex, MutexOptions};
use rslock::LockManager;
use tokio::task::JoinSet;
use tokio::time::sleep;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[derive(Clone, Parser)]
struct Options {
    #[arg(long)]
    library: String,
    #[arg(long)]
    prefix: String,
    #[arg(long)]
    name: String,
    #[arg(long, default_value = "")]
    log: String,
    #[arg(long)]
    port: u16,
    /// 0 to hold the lock once and tell what becomes of it.
    #[arg(long, default_value_t = 0)]
    seconds: u64,
    #[arg(long, default_value_t = 0)]
    hold_ms: u64,
    /// How often to retry; for leasehold, the poll interval, 0 for none.
    #[arg(long, default_value_t = 0)]
    retry_ms: u64,
    #[arg(long)]
    lease_ms: u64,
}

/// What this crate's worker runs at a time: tasks of one client.
const TASKS: usize = 2;

#[tokio::main(worker_threads = 1)]
async fn main() -> Result<()> {
    let options = Options::parse();
    match (options.library.as_str(), options.seconds) {
        ("leasehold", 0) => hold_ours(&options).await,
        ("leasehold", _) => sections_of_ours(&options).await,
        ("rslock", 0) => hold_rslock(&options).await,
        ("rslock", _) => sections_of_rslock(&options).await,
        (other, _) => Err(format!("unknown: {other}").into()),
    }
}

// This crate

async fn connect(options: &Options) -> Result<(Client, DistMutex)> {
    let mut builder = RedisBackend::builder(&format!("redis://127.0.0.1:{}", options.port))?;
    if options.retry_ms > 0 {
        builder = builder.poll_interval(Duration::from_millis(options.retry_ms));
    }
    let client = Client::with_backend(Arc::new(builder.connect().await?));
    let terms = MutexOptions::new().prefix(&options.prefix).ttl(Duration::from_millis(options.lease_ms));
    let mutex = client.mutex_with(&options.name, terms)?;
    Ok((client, mutex))
}

async fn sections_of_ours(options: &Options) -> Result<()> {
    let (client, mutex) = connect(options).await?;
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (options, mutex, redis) = (options.clone(), mutex.clone(), redis(options.port).await?);
        tasks.spawn(async move {
            let mut log = String::new();
            let end = Instant::now() + Duration::from_secs(options.seconds);
            while Instant::now() < end {
                let guard = mutex.lock().await?;
                section(&redis, options.hold_ms, &mut log).await?;
                guard.release().await?;
            }
            Ok::<_, Box<dyn Error + Send + Sync>>(log)
        });
    }
    let logs = tasks.join_all().await.into_iter().collect::<Result<Vec<_>>>()?;
    fs::write(&options.log, logs.concat())?;
    Ok(client.shutdown().await?)
}

async fn hold_ours(options: &Options) -> Result<()> {
    let (client, mutex) = connect(options).await?;
    let guard = mutex.lock().await?;
    let lost = guard.lost();
    tell("held");
    tokio::task::spawn_blocking(|| stdin().read_line(&mut String::new())).await??;
    let heard = tokio::time::timeout(Duration::ZERO, lost).await;
    tell(&heard.map_or_else(|_| "nothing".to_owned(), |end| format!("lost(): {end:?}")));
    tell(&guard.is_held().to_string());
    match guard.release().await {
        Ok(()) => tell("ok, ()"),
        Err(error) => tell(&format!("raises {error}")),
    }
    Ok(client.shutdown().await?)
}

// rslock

fn manager(options: &Options) -> LockManager {
    let mut manager = LockManager::new(vec![format!("redis://127.0.0.1:{}", options.port)]);
    if options.retry_ms > 0 {
        // It waits for up to twice the average.
        manager.set_retry(3, Duration::from_millis(options.retry_ms));
    }
    manager
}

async fn rslock(manager: &LockManager, options: &Options) -> rslock::Lock {
    let (key, lease) =
        (format!("{}{}", options.prefix, options.name), Duration::from_millis(options.lease_ms));
    loop {
        // It gives up after a few attempts.
        if let Ok(lock) = manager.lock(key.as_bytes(), lease).await {
            return lock;
        }
    }
}

async fn sections_of_rslock(options: &Options) -> Result<()> {
    let (manager, redis) = (manager(options), redis(options.port).await?);
    let mut log = String::new();
    let end = Instant::now() + Duration::from_secs(options.seconds);
    while Instant::now() < end {
        let lock = rslock(&manager, options).await;
        section(&redis, options.hold_ms, &mut log).await?;
        manager.unlock(&lock).await;
    }
    Ok(fs::write(&options.log, log)?)
}

async fn hold_rslock(options: &Options) -> Result<()> {
    let manager = manager(options);
    let lock = rslock(&manager, options).await;
    tell("held");
    tokio::task::spawn_blocking(|| stdin().read_line(&mut String::new())).await??;
    tell("nothing");
    tell("no such call");
    manager.unlock(&lock).await;
    tell("ok, ()");
    Ok(())
}

// What all do

async fn redis(port: u16) -> Result<Fred> {
    let client = Builder::from_config(Config::from_url(&format!("redis://127.0.0.1:{port}"))?).build()?;
    client.init().await?;
    Ok(client)
}

/// Increments a counter in two steps, which is correct only if no other worker does so meanwhile.
async fn section(redis: &Fred, hold_ms: u64, log: &mut String) -> Result<()> {
    let start = now_us()?;
    let count: Option<u64> = redis.get("counter").await?;
    sleep(Duration::from_millis(hold_ms)).await;
    let () = redis.set("counter", count.unwrap_or(0) + 1, None, None, false).await?;
    Ok(writeln!(log, "{start} {}", now_us()?)?)
}

fn now_us() -> Result<u128> {
    Ok(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_micros())
}

fn tell(line: &str) {
    println!("{line}");
    let _ = stdout().flush();
}
