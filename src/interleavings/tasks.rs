//! Tasks that another thread can drop: see [`Cancel`](crate::runtime::Cancel).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures::FutureExt;
use scopeguard::guard;
use shuttle::thread;

use super::explore::explore;
use super::runtime::Runtime;
use crate::runtime::{spawn_cancelable, takes_tasks};

/// It is dropped while its runtime polls it, and while that ends.
fn scene_of_a_task() {
    let runtime = Runtime::new("app");
    let (drops, is_gone) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
    let dropped = guard(Arc::clone(&drops), |drops| {
        drops.fetch_add(1, Ordering::SeqCst);
    });
    let must_not_run = Arc::clone(&is_gone);
    let (task, cancel) = spawn_cancelable(runtime.handle(), async move {
        let _dropped = dropped;
        for _ in 0..3 {
            assert!(!must_not_run.load(Ordering::SeqCst), "it is polled after its end");
            shuttle::future::yield_now().await;
        }
    });
    let handle = runtime.handle().clone();
    let ending = thread::spawn(move || runtime.end());
    let canceling = thread::spawn(move || drop(cancel));
    canceling.join().expect("no panic");
    ending.join().expect("no panic");
    is_gone.store(true, Ordering::SeqCst);
    assert_eq!(drops.load(Ordering::SeqCst), 1, "its future is dropped once");
    assert!(!takes_tasks(&handle));
    assert!(task.now_or_never().is_some(), "whoever joins it is not kept waiting");
}

#[test]
fn a_task_is_dropped_once_by_its_runtime_or_by_another_thread() {
    explore(scene_of_a_task);
}
