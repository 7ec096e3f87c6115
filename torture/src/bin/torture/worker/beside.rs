//! What uses the client of a worker from other threads, each with a runtime of its own: guests, whose runtime ends again
//! and again while they hold and wait; and somebody who blocks its thread for longer than a lease.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use leasehold::Error;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::user::User;
use super::{Shared, beat};
use crate::clock::now;
use leasehold_support::random::Random;

/// How many guests there are at once.
const GUESTS: usize = 6;
/// For how long a runtime of guests lives, in milliseconds.
const LIVES: Range<u64> = 100..1_500;
/// From the end of one to the next one.
const PAUSE: Range<u64> = 0..300;
/// The numbers of those who are no tasks of the worker's own runtime.
const GUEST: usize = 100;
const BLOCKER: usize = 99;

/// A thread that ends by itself.
pub(super) struct Beside {
    thread: thread::JoinHandle<()>,
    ended: oneshot::Receiver<io::Result<()>>,
}

impl Beside {
    fn start(work: impl FnOnce() -> io::Result<()> + Send + 'static) -> Self {
        let (end, ended) = oneshot::channel();
        // Whoever waited for it may have given up.
        let thread = thread::spawn(move || drop(end.send(work())));
        Self { thread, ended }
    }

    /// Until it has.
    pub(super) async fn ended(self) -> io::Result<()> {
        let ended = self.ended.await;
        // It has nothing to do any more.
        let joined = self.thread.join();
        ended.map_err(io::Error::other)??;
        joined.map_err(|_| io::Error::other("a thread beside the worker has panicked"))
    }

    pub(super) fn guests(shared: &Arc<Shared>) -> Self {
        let shared = Arc::clone(shared);
        Self::start(move || {
            let mut random =
                Random::new(shared.orders.seed, u64::from(shared.orders.client) << 20 | 0xf_ffff);
            while now() < shared.orders.end {
                let length = random.millis(LIVES);
                let generation = random.within(0..1 << 20) as usize;
                let runtime = Builder::new_current_thread().enable_all().build()?;
                runtime.block_on(receive(&shared, generation, length)).map_err(io::Error::other)?;
                // With all that its tasks hold and wait for, which is given back meanwhile. None of them can be told.
                let ending = now();
                drop(runtime);
                shared.late(ending, now());
                thread::sleep(random.millis(PAUSE));
            }
            Ok(())
        })
    }

    pub(super) fn blocker(shared: &Arc<Shared>) -> Self {
        let shared = Arc::clone(shared);
        Self::start(move || {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(User::new(&shared, 0, BLOCKER).block()).map_err(io::Error::other)
        })
    }
}

/// Guests come, and are not asked to leave.
async fn receive(shared: &Arc<Shared>, generation: usize, length: Duration) -> Result<(), Error> {
    let mut guests = JoinSet::new();
    tokio::spawn(beat(Arc::clone(shared)));
    for n in 0..GUESTS {
        let task = GUEST + generation * GUESTS + n;
        guests.spawn(User::new(shared, task % shared.sites.len(), task).visit());
    }
    let end = sleep(length);
    tokio::pin!(end);
    loop {
        tokio::select! {
            () = &mut end => break,
            Some(left) = guests.join_next() => match left {
                Ok(left) => left?,
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            },
        }
    }
    // They end with their runtime.
    guests.detach_all();
    Ok(())
}
