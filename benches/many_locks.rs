//! What read/write locks and several locks at once cost: beside a semaphore used as one, and beside as many single
//! locks.
//!
//! To read is to take one permit of a fair semaphore: the client sends the same two requests, and the server executes
//! the same commands, so apart from noise the ratio is 1.
//!
//! ```sh
//! LEASEHOLD_BENCH_URL=redis://127.0.0.1:6379 cargo bench -p leasehold-benches --bench many_locks
//! ```

#![allow(clippy::future_not_send, reason = "everything runs on one thread")]

use std::env;
use std::future::Future;
use std::time::{Duration, Instant};

use leasehold::{Client, Error};

/// How often each is measured, and for how long, in turn with the other, so that both meet the same machine.
const ROUNDS: u32 = 6;
const ROUND: Duration = Duration::from_millis(300);
/// The limit of the semaphore beside the lock, as a program would choose it.
const READERS: u32 = 5;

/// How often this can be done in a round, one after the other, and how long it took.
async fn measured(work: impl AsyncFn() -> Result<(), Error>) -> Result<(u32, Duration), Error> {
    let (begun, mut times) = (Instant::now(), 0);
    while begun.elapsed() < ROUND {
        work().await?;
        times += 1;
    }
    Ok((times, begun.elapsed()))
}

/// The means of both, in microseconds: in turn, each as often before the other as after it, and after a round that does
/// not count, in which connections, scripts, and caches get warm.
async fn side_by_side(
    what: &str,
    one: impl AsyncFn() -> Result<(), Error>,
    other: impl AsyncFn() -> Result<(), Error>,
) -> Result<(), Error> {
    let mut sums = [(0, Duration::ZERO); 2];
    for round in 0..=ROUNDS {
        for turn in 0..2 {
            let which = usize::try_from((round + turn) % 2).unwrap_or_default();
            let (times, took) = if which == 0 { measured(&one).await? } else { measured(&other).await? };
            if round > 0 {
                sums[which].0 += times;
                sums[which].1 += took;
            }
        }
    }
    let [one, other] = sums.map(|(times, took)| took.as_secs_f64() * 1e6 / f64::from(times));
    println!("{what:44} {one:9.1} {other:9.1} {:6.2}", one / other);
    Ok(())
}

async fn done<G>(
    guard: impl Future<Output = Result<G, Error>>,
    release: impl AsyncFn(G) -> Result<(), Error>,
) -> Result<(), Error> {
    release(guard.await?).await
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let url = env::var("LEASEHOLD_BENCH_URL").unwrap_or_else(|_| "memory:".to_owned());
    let client = Client::connect(&url).await?;
    println!("{url}; acquire and release, in µs          {:>18} {:>9} {:>6}", "this", "beside", "ratio");
    let (lock, semaphore) = (client.rw_lock("bench")?, client.fair_semaphore("bench", READERS)?);
    let few = || done(semaphore.acquire(), async |guard| guard.release().await);
    let all = || done(semaphore.acquire_many(READERS), async |guard| guard.release().await);
    side_by_side(
        "read | one permit of 5",
        async || done(lock.read(), async |guard| guard.release().await).await,
        async || few().await,
    )
    .await?;
    side_by_side(
        "write | all permits of 5",
        async || done(lock.write(), async |guard| guard.release().await).await,
        async || all().await,
    )
    .await?;
    for n in [2, 8, 32] {
        let names: Vec<_> = (0..n).map(|n| format!("bench:{n}")).collect();
        let together = client.lock_all(&names)?;
        let each = names.iter().map(|name| client.mutex(name)).collect::<Result<Vec<_>, _>>()?;
        let one_by_one = async || {
            let mut guards = Vec::new();
            for mutex in &each {
                guards.push(mutex.lock().await?);
            }
            for guard in guards {
                guard.release().await?;
            }
            Ok(())
        };
        let what = format!("lock_all of {n} | one after the other");
        side_by_side(&what, async || Ok(together.lock().await?.release().await?), one_by_one).await?;
    }
    client.shutdown().await
}
