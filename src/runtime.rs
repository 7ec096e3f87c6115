//! Tasks on a runtime that may end, or not be driven.

use std::future::poll_fn;
use std::mem;
use std::sync::Arc;
use std::task::Poll;

use futures::FutureExt;
use futures::future::BoxFuture;
use scopeguard::guard;

use crate::sync::{AbortHandle, AbortOnDropHandle, Handle, JoinHandle, Mutex};

/// Spawns a task on the current runtime.
///
/// The future is boxed: for every type of future that is spawned, the compiler generates more than two thousand lines
/// of tokio's code (in LLVM's representation), which was a tenth of all code of this crate.
#[cfg(any(feature = "_redis", feature = "_records"))]
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

/// Whether a runtime still takes tasks, and has not begun to end.
pub(crate) fn takes_tasks(runtime: &Handle) -> bool {
    !AbortOnDropHandle::new(runtime.spawn(std::future::pending::<()>())).is_finished()
}

/// A task's future, which is dropped together with this, even if the runtime of the task is not driven: at once, or if
/// it is being polled, after that.
///
/// Aborting a task does not do that: its future is dropped by its runtime.
pub(crate) struct Cancel {
    drop_future: Box<dyn Fn() + Send + Sync>,
    task: AbortHandle,
}

/// The future of a task.
enum Slot {
    Idle(BoxFuture<'static, ()>),
    /// It is being polled, and put back unless it is dropped in the meantime.
    Polled,
    Dropped,
}

/// Spawns a task that can be dropped from another runtime than its own.
pub(crate) fn spawn_cancelable(
    runtime: &Handle,
    future: impl Future<Output = ()> + Send + 'static,
) -> (JoinHandle<()>, Cancel) {
    let future = future.boxed();
    let slot = Arc::new(Mutex::new(Slot::Idle(future)));
    let shared = Arc::clone(&slot);
    let drop_future = move || {
        let dropped = mem::replace(&mut *shared.lock(), Slot::Dropped);
        // When the mutex is free again: the future may do anything while it is dropped.
        drop(dropped);
    };
    let dropped_with_its_runtime = guard(drop_future.clone(), |drop_future| drop_future());
    let task = runtime.spawn(poll_fn(move |context| {
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

#[cfg(all(test, not(leasehold_shuttle)))]
mod tests {
    use std::future::pending;
    use std::sync::Weak;

    use tokio::runtime::{Builder, Runtime};
    use tokio::task::yield_now;

    use super::*;

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
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
                let spawned = spawn_cancelable(&Handle::current(), future);
                for _ in 0..polls {
                    yield_now().await;
                }
                spawned
            });
            assert!(alive.upgrade().is_some() && !task.is_finished());
            drop(cancel);
            assert!(alive.upgrade().is_none());
            assert!(runtime.block_on(task).unwrap_err().is_cancelled());
        }
    }

    #[test]
    fn a_task_is_dropped_with_its_runtime() {
        let (runtime, (future, alive)) = (runtime(), endless());
        let (task, _cancel) = spawn_cancelable(runtime.handle(), future);
        drop(runtime);
        assert!(alive.upgrade().is_none() && task.is_finished());
    }

    #[tokio::test]
    async fn a_task_that_cancels_itself_is_dropped_after_that() {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let (task, cancel) = spawn_cancelable(&Handle::current(), async move {
            drop::<Cancel>(receiver.await.unwrap());
            pending::<()>().await;
        });
        sender.send(cancel).unwrap();
        assert!(task.await.unwrap_err().is_cancelled());
    }
}
