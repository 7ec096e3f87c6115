//! What this crate itself costs, without a network: every operation on the memory store, on one thread.
//!
//! `cargo bench -p leasehold-benches --bench micro`
//! measures with criterion. Each figure is the time of one iteration, on a current-thread
//! runtime, with a client that has nothing else to do:
//!
//! * `uncontended/*`: acquiring something uncontended, and releasing it. After `lock + drop`, the release continues in
//!   the background, and the next `lock` waits for it, so the figure includes both.
//! * `observed/*`: locking and releasing something uncontended, as `uncontended/lock + release`, which nobody observes:
//!   with an observer that does nothing, and with the feature `metrics` while no exporter is installed. After
//!   criterion's figures, the three are measured once more in turns, because they differ by less than what a machine
//!   changes from one minute to the next.
//! * `held/*`: the methods of a guard, and `protect` around work that is ready at once or that yields once; for
//!   comparison with the latter, the same work without `protect`.
//! * `handover/*`: two tasks that take turns, or a number of waiters behind a held lock: from the first release until
//!   all have had the lock, where queueing the waiters is not measured. The throughput is in hand-overs per second.

use std::env;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};
use leasehold::observer::Event;
use leasehold::{Client, DistMutex, Error, Guard, MetricsObserver, Observer};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinSet, yield_now};

const WAITERS: usize = 100;

/// How often the observers are measured in turns, and how many locks one turn takes.
const ROUNDS: usize = 1000;
const LOCKS: u32 = 500;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    uncontended(&mut criterion);
    observed(&mut criterion);
    while_held(&mut criterion);
    hand_over(&mut criterion);
    criterion.final_summary();
    // Unless criterion was given a filter, or lists, or tests, which it does if it is given nothing.
    let arguments: Vec<_> = env::args().skip(1).collect();
    if !arguments.is_empty() && arguments.iter().all(|argument| argument == "--bench") {
        observed_in_turns();
    }
}

fn uncontended(criterion: &mut Criterion) {
    let runtime = runtime();
    let client = Client::memory();
    let mutex = client.mutex("mutex").expect("a valid name");
    let reentrant = client.reentrant_lock("reentrant", "me").expect("a valid name");
    let fair = client.fair_semaphore("fair", 2).expect("a valid name");
    let counting = client.counting_semaphore("counting", 2).expect("a valid name");
    let mut group = criterion.benchmark_group("uncontended");
    group.bench_function("lock + release", |bencher| {
        bencher.to_async(&runtime).iter(|| released(mutex.lock()));
    });
    group.bench_function("try_lock + release", |bencher| {
        bencher.to_async(&runtime).iter(|| released(free(mutex.try_lock())));
    });
    group.bench_function("lock + drop", |bencher| {
        bencher.to_async(&runtime).iter(|| async { drop(held(mutex.lock()).await) });
    });
    group.bench_function("reentrant, lock + release", |bencher| {
        bencher.to_async(&runtime).iter(|| released(reentrant.lock()));
    });
    group.bench_function("fair semaphore, acquire + release", |bencher| {
        bencher.to_async(&runtime).iter(|| released(fair.acquire()));
    });
    group.bench_function("counting semaphore, acquire + release", |bencher| {
        bencher.to_async(&runtime).iter(|| released(counting.acquire()));
    });
    group.finish();
}

fn observed(criterion: &mut Criterion) {
    let runtime = runtime();
    let mut group = criterion.benchmark_group("observed");
    for (name, observer) in observers() {
        let mutex = mutex(Some(observer));
        group.bench_function(format!("lock + release, {name}"), |bencher| {
            bencher.to_async(&runtime).iter(|| released(mutex.lock()));
        });
    }
    group.finish();
}

fn observed_in_turns() {
    let runtime = runtime();
    let nobody = [("nobody observes", mutex(None)), ("nobody observes, again", mutex(None))];
    let observed = observers().map(|(name, observer)| (name, mutex(Some(observer))));
    let all: Vec<_> = nobody.into_iter().chain(observed).collect();
    let mut times = vec![Vec::new(); all.len()];
    for _ in 0..ROUNDS {
        for ((_, mutex), times) in all.iter().zip(&mut times) {
            let started = Instant::now();
            runtime.block_on(async {
                for _ in 0..LOCKS {
                    released(mutex.lock()).await;
                }
            });
            times.push(started.elapsed() / LOCKS);
        }
    }
    let medians: Vec<_> = times.into_iter().map(median).collect();
    println!("lock + release, {ROUNDS} times {LOCKS} in turns, medians:");
    for ((name, _), median) in all.iter().zip(&medians) {
        let ratio = median.as_secs_f64() / medians[0].as_secs_f64();
        println!("{name:24} {:5} ns  {:+.1} %", median.as_nanos(), (ratio - 1.0) * 100.0);
    }
}

fn observers() -> [(&'static str, Arc<dyn Observer>); 2] {
    let nothing = |event: &Event<'_>| {
        black_box(event);
    };
    [("an observer", Arc::new(nothing)), ("metrics", Arc::new(MetricsObserver::new()))]
}

fn mutex(observer: Option<Arc<dyn Observer>>) -> DistMutex {
    let client = Client::memory();
    let client = match observer {
        Some(observer) => client.with_observer(observer),
        None => client,
    };
    client.mutex("mutex").expect("a valid name")
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn while_held(criterion: &mut Criterion) {
    let runtime = runtime();
    let client = Client::memory();
    let lock = client.reentrant_lock("reentrant", "me").expect("a valid name");
    let guard = runtime.block_on(held(lock.lock()));
    let mut group = criterion.benchmark_group("held");
    group.bench_function("reentry, lock + release", |bencher| {
        bencher.to_async(&runtime).iter(|| released(lock.lock()));
    });
    group.bench_function("is_held", |bencher| bencher.iter(|| black_box(&guard).is_held()));
    group.bench_function("token", |bencher| bencher.iter(|| black_box(&guard).token()));
    group.bench_function("protect ready work", |bencher| {
        bencher.to_async(&runtime).iter(|| guard.protect(async { black_box(42) }));
    });
    group.bench_function("protect work that yields", |bencher| {
        bencher.to_async(&runtime).iter(|| guard.protect(yield_now()));
    });
    group.bench_function("work that yields", |bencher| bencher.to_async(&runtime).iter(yield_now));
    group.finish();
}

fn hand_over(criterion: &mut Criterion) {
    let runtime = runtime();
    let mutex = Client::memory().mutex("mutex").expect("a valid name");
    let mut group = criterion.benchmark_group("handover");
    group.throughput(Throughput::Elements(2));
    group.bench_function("two tasks in turns", |bencher| {
        bencher.to_async(&runtime).iter_custom(|turns| let_through(&mutex, 2, turns));
    });
    group.throughput(Throughput::Elements(WAITERS as u64));
    group.bench_function("100 waiters", |bencher| {
        bencher.to_async(&runtime).iter_custom(async |rounds| {
            let mut took = Duration::ZERO;
            for _ in 0..rounds {
                took += let_through(&mutex, WAITERS, 1).await;
            }
            took
        });
    });
    group.finish();
}

/// How long it takes until each task has had the lock the given number of times, with all of them waiting at the start.
async fn let_through(mutex: &DistMutex, tasks: usize, turns: u64) -> Duration {
    let holder = held(mutex.lock()).await;
    let (mut waiting, begun) = (JoinSet::new(), Arc::new(AtomicUsize::new(0)));
    for _ in 0..tasks {
        let (mutex, begun) = (mutex.clone(), Arc::clone(&begun));
        waiting.spawn(async move {
            // Before this task lets another one run, it waits.
            begun.fetch_add(1, Ordering::Relaxed);
            for _ in 0..turns {
                released(mutex.lock()).await;
            }
        });
    }
    while begun.load(Ordering::Relaxed) < tasks {
        yield_now().await;
    }
    let started = Instant::now();
    holder.release().await.expect(STORE);
    waiting.join_all().await;
    started.elapsed()
}

const STORE: &str = "the memory store does not fail";

async fn held(acquire: impl Future<Output = Result<Guard, Error>>) -> Guard {
    acquire.await.expect(STORE)
}

async fn released(acquire: impl Future<Output = Result<Guard, Error>>) {
    held(acquire).await.release().await.expect(STORE);
}

async fn free(attempt: impl Future<Output = Result<Option<Guard>, Error>>) -> Result<Guard, Error> {
    Ok(attempt.await?.expect("nobody else wants it"))
}

fn runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime needs nothing that could be missing")
}
