//! How a thread without a runtime waits for what the crate's thread does.

use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

use tokio::runtime::Handle;
use tokio::task::unconstrained;

use crate::backend::BackendError;
use crate::background;
use crate::error::Error;
use crate::runtime::spawn_on;

/// Has the crate's thread do `work`, and waits until it is done.
pub(super) fn drive<T: Send + 'static>(
    operation: &'static str,
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    if background::is_own() {
        return Err(on_a_thread_of_the_crate(operation));
    }
    match wait(spawn_on(&crates_thread(operation)?, work)) {
        Ok(done) => done,
        Err(failed) => match failed.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(canceled) => Err(unavailable(operation, canceled)),
        },
    }
}

/// The runtime on which blocking clients live.
pub(super) fn crates_thread(operation: &'static str) -> Result<Handle, Error> {
    background::for_clients().map_err(|error| unavailable(operation, error))
}

/// Polls `future` on this thread until it is done.
pub(super) fn wait<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        if let Some(output) = wait_until(None, future.as_mut()) {
            return output;
        }
    }
}

/// The same until a deadline. `None` if the future is not done then.
pub(super) fn wait_until<F: Future>(deadline: Option<Instant>, future: F) -> Option<F::Output> {
    // In a task of tokio, a future that has used up the task's budget would stay pending: the task does not yield here.
    let mut future = pin!(unconstrained(future));
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
            None => thread::park(),
            Some(left) if left.is_zero() => return None,
            Some(left) => thread::park_timeout(left),
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Such a call would wait for itself.
fn on_a_thread_of_the_crate(operation: &'static str) -> Error {
    let reason = format!(
        "`{operation}` on the crate's own thread, where a store of yours or a provider of credentials runs: \
         use the async interface there"
    );
    Error::Unsupported { store: "leasehold::blocking".to_owned(), reason }
}

fn unavailable(operation: &'static str, cause: impl Into<crate::error::Cause>) -> Error {
    let source = BackendError::NotSent { source: cause.into() };
    Error::from_backend(source, operation, None, "leasehold::blocking")
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_call_on_a_thread_of_the_crate_is_refused() {
        for thread in [background::handle().unwrap(), background::for_clients().unwrap()] {
            let call = spawn_on(&thread, async { drive("lock", ready(Ok(()))) });
            let refused = wait(call).unwrap().unwrap_err().to_string();
            assert!(refused.contains("`lock` on the crate's own thread"), "{refused}");
        }
    }

    #[test]
    #[should_panic(expected = "as it was")]
    fn a_panic_reaches_the_caller_as_it_was() {
        let _ = drive::<()>("lock", async { panic!("as it was") });
    }

    #[test]
    fn waiting_ends_at_the_deadline() {
        let begun = Instant::now();
        assert_eq!(wait_until(Some(begun + Duration::from_millis(20)), pending::<()>()), None);
        assert!(begun.elapsed() >= Duration::from_millis(20));
    }
}
