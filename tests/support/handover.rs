//! Whether the tasks of a client pass a mutex or a permit on to each other, without a word to the store.
//!
//! What the tests promise holds with it and without it. By default it is on for mutexes, and off for counting
//! semaphores; `LEASEHOLD_TEST_LOCAL_HANDOVER=off` or `=on` says so for both. `scripts/test.sh` runs the tests of both
//! both ways. Workers inherit it.

use std::env;
use std::pin::pin;
use std::task::Poll;

use futures::poll;
use leasehold::MutexOptions;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const SWITCH: &str = "LEASEHOLD_TEST_LOCAL_HANDOVER";

/// Whether mutexes are passed on in this run.
pub fn local_handover() -> bool {
    switch().unwrap_or(true)
}

/// Whether permits of counting semaphores are passed on in this run.
pub fn permits_passed_on() -> bool {
    switch().unwrap_or(false)
}

fn switch() -> Option<bool> {
    match env::var(SWITCH).as_deref() {
        Err(_) => None,
        Ok("on") => Some(true),
        Ok("off") => Some(false),
        Ok(other) => panic!("{SWITCH} is `on` or `off`, not `{other}`"),
    }
}

/// The default options, in the way of this run.
pub fn options() -> MutexOptions {
    MutexOptions::new().local_handover(local_handover())
}

/// The same for tests of the store's own queue, whatever the run tests otherwise: every waiter has a place of its own
/// there, and every hand-over is the store's.
pub fn one_place_each() -> MutexOptions {
    MutexOptions::new().local_handover(false)
}

/// Runs `future` in a task of its own, and returns when it has been polled once: a `lock` that has to wait for others
/// of its client is behind them by then.
pub async fn begun<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    let (begun, beginning) = oneshot::channel();
    let task = tokio::spawn(async move {
        let mut future = pin!(future);
        let first = poll!(future.as_mut());
        let _ = begun.send(());
        match first {
            Poll::Ready(output) => output,
            Poll::Pending => future.await,
        }
    });
    beginning.await.expect("the first poll does not panic");
    task
}
