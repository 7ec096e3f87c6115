//! Tasks, and the runtimes of the application: a client may be used on several, and one of them may end, or not be driven.

use std::future::poll_fn;
use std::mem;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use scopeguard::guard;
use tokio::runtime::Handle;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::timeout;

/// How long a runtime may make no progress before callers on other runtimes no longer rely on it.
const STUCK: Duration = Duration::from_millis(500);
/// How often a runtime on which something is awaited is probed for progress.
pub(crate) const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Whether a runtime other than the current one makes no progress: it is not driven, or all its threads are blocked.
pub(crate) async fn is_stuck(runtime: &Handle) -> bool {
    runtime.id() != Handle::current().id() && timeout(STUCK, spawn_on(runtime, async {})).await.is_err()
}

/// Spawns a task on the current runtime.
///
/// The future is boxed: for every type of future that is spawned, the compiler generates more than two thousand lines of tokio's code
/// (in LLVM's representation), which was a tenth of all code of this crate.
pub(crate) fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    spawn_on(&Handle::current(), future)
}

/// The same on another runtime.
pub(crate) fn spawn_on<T: Send + 'static>(
    runtime: &Handle,
    future: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    runtime.spawn(future.boxed())
}

/// A task's future, which is dropped together with this, even if the runtime of the task is not driven: at once, or if it is
/// being polled, after that.
///
/// Aborting a task does not do that: its future is dropped by its runtime.
pub(crate) struct Cancel {
    drop_future: Box<dyn Fn() + Send + Sync>,
    task: AbortHandle,
}

/// The future of a task.
enum Slot<T> {
    Idle(BoxFuture<'static, T>),
    /// It is being polled, and put back unless it is dropped in the meantime.
    Polled,
    Dropped,
}

/// Spawns a task on the current runtime that can be dropped from another one.
pub(crate) fn spawn_cancelable<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> (JoinHandle<T>, Cancel) {
    spawn_boxed(future.boxed())
}

fn spawn_boxed<T: Send + 'static>(future: BoxFuture<'static, T>) -> (JoinHandle<T>, Cancel) {
    let slot = Arc::new(Mutex::new(Slot::Idle(future)));
    let shared = Arc::clone(&slot);
    let drop_future = move || {
        let dropped = mem::replace(&mut *shared.lock(), Slot::Dropped);
        // When the mutex is free again: the future may do anything while it is dropped.
        drop(dropped);
    };
    let dropped_with_its_runtime = guard(drop_future.clone(), |drop_future| drop_future());
    let task = tokio::spawn(poll_fn(move |context| {
        // The guard moves into the task.
        let _ = &dropped_with_its_runtime;
        let taken = mem::replace(&mut *slot.lock(), Slot::Polled);
        // If it has been dropped, the task is about to be aborted.
        let Slot::Idle(mut future) = taken else { return Poll::Pending };
        let polled = future.poll_unpin(context);
        let mut slot = slot.lock();
        if polled.is_pending() && matches!(*slot, Slot::Polled) {
            *slot = Slot::Idle(future);
        } else {
            drop(slot);
            drop(future);
        }
        polled
    }));
    let cancel = Cancel { drop_future: Box::new(drop_future), task: task.abort_handle() };
    (task, cancel)
}

impl Cancel {
    /// Whether the task is over.
    #[cfg(any(test, feature = "_redis"))]
    pub(crate) fn is_over(&self) -> bool {
        self.task.is_finished()
    }
}

impl Drop for Cancel {
    fn drop(&mut self) {
        (self.drop_future)();
        self.task.abort();
    }
}

impl std::fmt::Debug for Cancel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Cancel").field(&self.task).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Weak;

    use tokio::runtime::{Builder, Runtime};
    use tokio::task::yield_now;

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

    /// A future that never ends, and something that lives as long as it.
    fn endless() -> (impl Future<Output = ()> + Send + 'static, Weak<()>) {
        let content = Arc::new(());
        let alive = Arc::downgrade(&content);
        let future = async move {
            pending::<()>().await;
            drop(content);
        };
        (future, alive)
    }

    #[test]
    fn a_task_is_dropped_at_once_although_its_runtime_is_not_driven() {
        for polls in 0..2 {
            let (runtime, (future, alive)) = (runtime(), endless());
            let (task, cancel) = runtime.block_on(async {
                let spawned = spawn_cancelable(future);
                for _ in 0..polls {
                    yield_now().await;
                }
                spawned
            });
            assert!(alive.upgrade().is_some() && !cancel.is_over());
            drop(cancel);
            assert!(alive.upgrade().is_none());
            assert!(runtime.block_on(task).unwrap_err().is_cancelled());
        }
    }

    #[test]
    fn a_task_is_dropped_with_its_runtime() {
        let (runtime, (future, alive)) = (runtime(), endless());
        let (_, cancel) = runtime.block_on(async { spawn_cancelable(future) });
        drop(runtime);
        assert!(alive.upgrade().is_none() && cancel.is_over());
    }

    #[tokio::test]
    async fn a_task_that_cancels_itself_is_dropped_after_that() {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let (task, cancel) = spawn_cancelable(async move {
            drop::<Cancel>(receiver.await.unwrap());
            pending::<()>().await;
        });
        sender.send(cancel).unwrap();
        assert!(task.await.unwrap_err().is_cancelled());
    }

    #[tokio::test]
    async fn a_task_returns_its_result() {
        let (task, cancel) = spawn_cancelable(async { yield_now().await });
        task.await.unwrap();
        assert!(cancel.is_over());
    }
}
