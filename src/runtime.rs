//! The runtimes of the application: a client may be used on several, and one of them may end, or not be driven.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::timeout;

/// How long a runtime may make no progress before those that are used on another one no longer rely on it.
const STUCK: Duration = Duration::from_millis(500);

/// Whether a runtime other than the current one makes no progress: it is not driven, or all its threads are blocked.
pub(crate) async fn is_stuck(runtime: &Handle) -> bool {
    runtime.id() != Handle::current().id() && timeout(STUCK, runtime.spawn(async {})).await.is_err()
}

#[cfg(test)]
mod tests {
    use tokio::runtime::{Builder, Runtime};

    use super::*;

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn a_runtime_that_is_not_driven_is_stuck_and_one_that_has_ended_is_not() {
        let (driven, other) = (runtime(), runtime());
        let handle = other.handle().clone();
        driven.block_on(async {
            assert!(!is_stuck(&Handle::current()).await);
            assert!(is_stuck(&handle).await);
        });
        drop(other);
        assert!(!driven.block_on(is_stuck(&handle)));
    }
}
