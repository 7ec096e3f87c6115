//! A runtime for tasks, of which each is a thread to the schedule: as if it had as many workers as tasks. In all else that the
//! client relies on, it behaves as tokio's:
//!
//! * A task that is aborted is dropped by its runtime, at some later time, and not while it is polled; and not if the runtime is
//!   not driven.
//! * A runtime that ends drops the futures of its tasks, on the thread that ends it, after the polls that are under way. What is
//!   spawned from then on is dropped at once.

use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool as Flag, AtomicU64, Ordering};
use std::sync::{Arc, Mutex as Plain};
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::task::AtomicWaker;
use scopeguard::guard;

use super::stand_ins::Mutex;

shuttle::thread_local! {
    static CURRENT: RefCell<Option<Handle>> = RefCell::new(None);
}

/// Tells runtimes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id(u64);

/// A runtime of the application, or a thread of the crate.
pub(crate) struct Runtime(Handle);

#[derive(Clone)]
pub(crate) struct Handle(Arc<Shared>);

struct Shared {
    id: Id,
    name: &'static str,
    is_driven: Flag,
    tasks: Mutex<Tasks>,
}

#[derive(Default)]
struct Tasks {
    have_ended: bool,
    all: Vec<Arc<dyn AnyTask>>,
}

/// There is no current runtime.
#[derive(Debug)]
pub(crate) struct NoRuntime;

/// The task was aborted, or its runtime has ended.
#[derive(Debug)]
pub(crate) struct Cancelled;

struct Task<T> {
    /// Locked while it is polled.
    future: Mutex<Option<BoxFuture<'static, T>>>,
    is_aborted: Flag,
    /// Set when the future has been dropped.
    is_over: Flag,
    output: Plain<Option<Result<T, Cancelled>>>,
    own_waker: AtomicWaker,
    joiner: AtomicWaker,
}

trait AnyTask: Send + Sync {
    fn abort(&self);
    /// Drops the future, after a poll that is under way.
    fn shut_down(&self);
    fn is_over(&self) -> bool;
}

impl Runtime {
    pub(crate) fn new(name: &'static str) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = Id(NEXT.fetch_add(1, Ordering::Relaxed));
        Self(Handle(Arc::new(Shared { id, name, is_driven: true.into(), tasks: Mutex::default() })))
    }

    pub(crate) const fn handle(&self) -> &Handle {
        &self.0
    }

    /// Runs a future on the calling thread, which is within this runtime meanwhile.
    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.0.within(|| shuttle::future::block_on(future))
    }

    /// Polls its tasks no longer.
    pub(crate) fn stop_driving(&self) {
        self.0.0.is_driven.store(false, Ordering::Relaxed);
    }

    pub(crate) fn end(self) {
        let tasks = {
            let mut tasks = self.0.0.tasks.lock();
            tasks.have_ended = true;
            mem::take(&mut tasks.all)
        };
        self.0.within(|| tasks.iter().for_each(|task| task.shut_down()));
    }
}

impl Handle {
    /// # Panics
    ///
    /// Outside a runtime.
    pub(crate) fn current() -> Self {
        Self::try_current().expect("this is called within a runtime")
    }

    pub(crate) fn try_current() -> Result<Self, NoRuntime> {
        CURRENT.try_with(|current| current.borrow().clone()).ok().flatten().ok_or(NoRuntime)
    }

    pub(crate) fn id(&self) -> Id {
        self.0.id
    }

    /// Calls `inside` on the calling thread, which is within this runtime meanwhile.
    pub(crate) fn within<T>(&self, inside: impl FnOnce() -> T) -> T {
        let before = CURRENT.with(|current| current.replace(Some(self.clone())));
        // Not there any more at the very end of a thread.
        let _restored = guard(before, |before| drop(CURRENT.try_with(|current| current.replace(before))));
        inside()
    }

    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let task = Arc::new(Task {
            future: Mutex::new(Some(future.boxed())),
            is_aborted: false.into(),
            is_over: false.into(),
            output: Plain::new(None),
            own_waker: AtomicWaker::new(),
            joiner: AtomicWaker::new(),
        });
        let is_taken = {
            let mut tasks = self.0.tasks.lock();
            if !tasks.have_ended {
                tasks.all.retain(|task| !task.is_over());
                tasks.all.push(Arc::clone(&task) as _);
            }
            !tasks.have_ended
        };
        if is_taken {
            let (runtime, running) = (self.clone(), Arc::clone(&task));
            // Detached: a task that is left at the end of the execution is not waited for.
            drop(shuttle::future::spawn(poll_fn(move |cx| runtime.within(|| running.run(&runtime, cx)))));
        } else {
            task.shut_down();
        }
        JoinHandle(task)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Handle").field(&self.0.name).finish()
    }
}

impl<T: Send + 'static> Task<T> {
    /// Polled by the executor.
    fn run(&self, runtime: &Handle, cx: &mut Context<'_>) -> Poll<()> {
        self.own_waker.register(cx.waker());
        if self.is_over() {
            return Poll::Ready(());
        }
        if !runtime.0.is_driven.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        if self.is_aborted.load(Ordering::Relaxed) {
            self.shut_down();
            return Poll::Ready(());
        }
        let mut future = self.future.lock();
        let Some(polled) = future.as_mut() else { return Poll::Ready(()) };
        let output = match polled.poll_unpin(cx) {
            Poll::Pending if self.is_aborted.load(Ordering::Relaxed) => None,
            Poll::Pending => return Poll::Pending,
            Poll::Ready(output) => Some(output),
        };
        drop(future.take());
        drop(future);
        self.finish(output.ok_or(Cancelled));
        Poll::Ready(())
    }

    fn finish(&self, output: Result<T, Cancelled>) {
        *self.output.lock().expect("nobody panics under it") = Some(output);
        self.is_over.store(true, Ordering::Relaxed);
        self.joiner.wake();
        self.own_waker.wake();
    }
}

impl<T: Send + 'static> AnyTask for Task<T> {
    fn abort(&self) {
        self.is_aborted.store(true, Ordering::Relaxed);
        self.own_waker.wake();
    }

    fn shut_down(&self) {
        let mut future = self.future.lock();
        let Some(dropped) = future.take() else { return };
        drop(dropped);
        drop(future);
        self.finish(Err(Cancelled));
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

pub(crate) struct JoinHandle<T>(Arc<Task<T>>);

impl<T: Send + 'static> JoinHandle<T> {
    pub(crate) fn abort_handle(&self) -> AbortHandle {
        AbortHandle(Arc::clone(&self.0) as _)
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.0.is_over()
    }
}

impl<T: Send + 'static> Future for JoinHandle<T> {
    type Output = Result<T, Cancelled>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.joiner.register(cx.waker());
        let output = self.0.output.lock().expect("nobody panics under it").take();
        output.map_or(Poll::Pending, Poll::Ready)
    }
}

#[derive(Clone)]
pub(crate) struct AbortHandle(Arc<dyn AnyTask>);

impl AbortHandle {
    pub(crate) fn abort(&self) {
        self.0.abort();
    }
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AbortHandle").field("is_over", &self.0.is_over()).finish()
    }
}

pub(crate) struct AbortOnDropHandle<T: Send + 'static>(JoinHandle<T>);

impl<T: Send + 'static> AbortOnDropHandle<T> {
    pub(crate) const fn new(task: JoinHandle<T>) -> Self {
        Self(task)
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

impl<T: Send + 'static> Drop for AbortOnDropHandle<T> {
    fn drop(&mut self) {
        self.0.abort_handle().abort();
    }
}
