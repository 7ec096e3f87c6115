//! Waiting for an event, with a deadline and never with a bare sleep.

use std::fmt::Debug;
use std::panic::Location;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

/// The pause between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(3);

/// Looks at `condition` until it holds. For conditions in a store that nobody pushes; panics at the deadline,
/// naming the caller.
#[track_caller]
pub fn eventually<F, C>(deadline: Duration, mut condition: F) -> impl Future<Output = ()>
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
pub fn within<F: IntoFuture>(deadline: Duration, future: F) -> impl Future<Output = F::Output> {
    let caller = Location::caller();
    let bounded = timeout(deadline, future);
    async move {
        let Ok(output) = bounded.await else { panic!("not within {deadline:?}: the future at {caller}") };
        output
    }
}

/// The future does not complete, whatever happens meanwhile.
pub async fn assert_pending<F: Future>(duration: Duration, future: F)
where
    F::Output: Debug,
{
    let output = timeout(duration, future).await;
    assert!(output.is_err(), "expected to stay pending, got {output:?}");
}

/// The longest that what happens "at once" may take.
pub const AT_ONCE: Duration = Duration::from_millis(100);

/// What this call gives, which is repeated up to four times if it takes long: a machine may be busy with other things.
pub async fn at_once<T: Debug>(call: impl AsyncFn() -> T) -> T {
    let mut repetitions = 4;
    loop {
        let begun = Instant::now();
        let outcome = call().await;
        let took = begun.elapsed();
        if took < AT_ONCE {
            return outcome;
        }
        assert!(repetitions > 0, "{took:?}: {outcome:?}");
        repetitions -= 1;
    }
}
