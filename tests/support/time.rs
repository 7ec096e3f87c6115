//! Waiting for an event, with a deadline and never with a bare sleep.

use std::panic::Location;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

/// The pause between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(3);

/// Looks at `condition` until it holds. For conditions in a store that nobody pushes; panics at the deadline,
/// naming the caller.
#[track_caller]
pub(crate) fn eventually<F, C>(deadline: Duration, mut condition: F) -> impl Future<Output = ()>
where
    F: FnMut() -> C,
    C: Future<Output = bool>,
{
    let caller = Location::caller();
    async move {
        let end = Instant::now() + deadline;
        while !condition().await {
            assert!(Instant::now() < end, "not within {deadline:?}: the condition at {caller}");
            sleep(LOOK_AGAIN).await;
        }
    }
}

/// The output of `future`; panics if it takes longer than `deadline`, naming the caller.
#[track_caller]
pub(crate) fn within<F: IntoFuture>(deadline: Duration, future: F) -> impl Future<Output = F::Output> {
    let caller = Location::caller();
    let bounded = timeout(deadline, future);
    async move {
        let Ok(output) = bounded.await else { panic!("not within {deadline:?}: the future at {caller}") };
        output
    }
}
