//! Where a client lives: the runtime of its connections and of its tasks.
//!
//! That is the runtime on which it was connected, or used first if it connects lazily: in a program with one runtime, no call has to pass
//! from one thread to another. If that runtime ends, or makes no progress while somebody waits, the client moves to a thread of the crate,
//! once and for good: that thread never ends, and is always driven. What was in progress counts as unanswered, as after a reconnect.
//!
//! A client whose store must be used from the caller's runtime (`own_thread` is false) lives nowhere when its runtime has ended, and settles
//! on the runtime of the next call.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::{Handle, Id};
use tokio::time::timeout;

use crate::background;
use crate::runtime::spawn_on;

/// How long a runtime may make no progress before those that wait elsewhere no longer rely on it.
const STUCK: Duration = Duration::from_millis(500);

/// The home of one client.
#[derive(Default)]
pub struct Home {
    /// Where the client may move if a thread for that cannot be started: the one on which leases are renewed.
    own: OnceLock<Handle>,
    is_settled: AtomicBool,
    is_ending: AtomicBool,
    /// When the client moved to a thread of the crate.
    moved: OnceLock<Instant>,
    place: Mutex<Place>,
    /// How many wait on other runtimes.
    awaited_elsewhere: AtomicUsize,
    /// Whether anybody has waited on another runtime since that was last asked.
    was_awaited_elsewhere: AtomicBool,
}

#[derive(Default)]
struct Place {
    runtime: Option<Handle>,
    residents: Vec<Weak<dyn Resident>>,
}

/// Something that lives where its client does.
pub(crate) trait Resident: Send + Sync {
    /// Starts its tasks on this runtime. Those on an earlier one must not be relied on any more: it has ended, or is not driven.
    fn settle(&self, runtime: &Handle);

    /// The runtime ends, and this has to settle elsewhere next.
    fn before_end(&self) {}

    /// The runtime has ended, and this has settled elsewhere.
    fn after_end(&self) {}
}

impl Home {
    /// One that is the crate's own thread from the beginning.
    pub(crate) fn own(thread: &Handle) -> Arc<Self> {
        let home = Self { is_settled: true.into(), moved: Instant::now().into(), ..Self::default() };
        home.place.lock().runtime = Some(thread.clone());
        Arc::new(home)
    }

    /// From here on the client may move to a thread of the crate.
    pub(crate) fn may_move(&self, own: &Handle) {
        self.own.get_or_init(|| own.clone());
    }

    /// The runtime, if the client lives anywhere.
    pub(crate) fn runtime(&self) -> Option<Handle> {
        self.place.lock().runtime.clone()
    }

    /// Whether the client has moved to a thread of the crate.
    pub(crate) fn has_moved(&self) -> bool {
        self.moved.get().is_some()
    }

    /// Whether that was less than `since` ago.
    pub(crate) fn has_just_moved(&self, since: Duration) -> bool {
        self.moved.get().is_some_and(|moved| moved.elapsed() < since)
    }

    /// From here on `resident` lives here.
    pub(crate) fn take_in(&self, resident: &Arc<impl Resident + 'static>) {
        let weak = Arc::downgrade(resident);
        let mut place = self.place.lock();
        place.residents.retain(|resident| resident.strong_count() > 0);
        place.residents.push(weak);
        let runtime = place.runtime.clone();
        drop(place);
        if let Some(runtime) = runtime {
            resident.settle(&runtime);
        }
    }

    /// Settles on the current runtime, unless the client lives somewhere already.
    ///
    /// # Panics
    ///
    /// Outside a runtime, if it is needed.
    pub(crate) fn settle(self: &Arc<Self>) {
        if self.is_settled.load(Ordering::Acquire) {
            return;
        }
        let (here, mut place) = (Handle::current(), self.place.lock());
        if place.runtime.is_some() {
            return;
        }
        place.runtime = Some(here.clone());
        self.is_settled.store(true, Ordering::Release);
        drop(place);
        self.settle_residents(&here);
    }

    fn settle_residents(&self, runtime: &Handle) {
        self.residents().iter().for_each(|resident| resident.settle(runtime));
    }

    fn residents(&self) -> Vec<Arc<dyn Resident>> {
        self.place.lock().residents.iter().filter_map(Weak::upgrade).collect()
    }

    /// To be called when the runtime drops a task of a resident.
    pub(crate) fn runtime_has_ended(&self) {
        if self.has_moved() || self.is_ending.swap(true, Ordering::AcqRel) {
            return;
        }
        if self.own.get().is_some() {
            let residents = self.residents();
            residents.iter().for_each(|resident| resident.before_end());
            self.move_away();
            residents.iter().for_each(|resident| resident.after_end());
        } else {
            self.place.lock().runtime = None;
            self.is_settled.store(false, Ordering::Release);
            self.is_ending.store(false, Ordering::Release);
        }
    }

    /// Moves to a thread of the crate, unless the client lives there.
    pub(crate) fn move_away(&self) {
        let Some(own) = self.own.get() else { return };
        let own = background::for_clients().unwrap_or_else(|_| own.clone());
        let mut place = self.place.lock();
        if place.runtime.is_none() || self.moved.set(Instant::now()).is_err() {
            return;
        }
        place.runtime = Some(own.clone());
        drop(place);
        self.settle_residents(&own);
    }

    /// Moves to a thread of the crate if the runtime makes no progress: it is not driven, or all its threads are blocked.
    pub(crate) async fn move_if_stuck(&self) {
        let Some(runtime) = self.runtime().filter(|_| !self.has_moved()) else { return };
        let is_here = Handle::current().id() == runtime.id();
        if !is_here && timeout(STUCK, spawn_on(&runtime, async {})).await.is_err() {
            tracing::info!(
                "the runtime on which a client lives has run no task for half a second: it is blocked, busy, or not driven; the client moves \
                 to a thread of its own"
            );
            self.move_away();
        }
    }

    /// Whether anybody waits on another runtime, or has waited there since this was last asked.
    pub(crate) fn is_awaited_elsewhere(&self) -> bool {
        let was_awaited = self.was_awaited_elsewhere.swap(false, Ordering::Relaxed);
        was_awaited || self.awaited_elsewhere.load(Ordering::Relaxed) > 0
    }

    /// Awaits something that depends on the home, which is looked after while this is polled on another runtime. That may change.
    pub(crate) async fn awaiting<T>(&self, work: impl Future<Output = T>) -> T {
        let (mut work, mut polled_on, mut waiting) = (pin!(work), None, None);
        poll_fn(|context| {
            let polled = work.as_mut().poll(context);
            if polled.is_pending()
                && let Ok(here) = Handle::try_current()
                && polled_on.replace(here.id()) != Some(here.id())
            {
                waiting = self.wait_on(here.id());
            }
            polled
        })
        .await
    }

    /// Counts somebody who waits on this runtime, if it is another one.
    fn wait_on(&self, runtime: Id) -> Option<WaitsElsewhere<'_>> {
        let is_elsewhere = !self.has_moved() && self.runtime().is_some_and(|home| home.id() != runtime);
        is_elsewhere.then(|| {
            self.awaited_elsewhere.fetch_add(1, Ordering::Relaxed);
            self.was_awaited_elsewhere.store(true, Ordering::Relaxed);
            WaitsElsewhere(self)
        })
    }
}

/// Somebody who waits on another runtime.
struct WaitsElsewhere<'a>(&'a Home);

impl Drop for WaitsElsewhere<'_> {
    fn drop(&mut self) {
        self.0.awaited_elsewhere.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Home").field("has_moved", &self.has_moved()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::thread;

    use futures::future::LocalBoxFuture;
    use futures::{FutureExt, poll};
    use tokio::runtime::{Builder, Runtime};

    use super::*;

    /// Takes note of what it is told: where it settles, and the end of a runtime.
    #[derive(Default)]
    struct Noting(Mutex<Vec<Noted>>);

    #[derive(Debug, PartialEq)]
    enum Noted {
        Settled(Id),
        BeforeEnd,
        AfterEnd,
    }

    impl Resident for Noting {
        fn settle(&self, runtime: &Handle) {
            self.0.lock().push(Noted::Settled(runtime.id()));
        }

        fn before_end(&self) {
            self.0.lock().push(Noted::BeforeEnd);
        }

        fn after_end(&self) {
            self.0.lock().push(Noted::AfterEnd);
        }
    }

    impl Noting {
        fn noted(&self) -> Vec<Noted> {
            std::mem::take(&mut self.0.lock())
        }
    }

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    fn home() -> (Arc<Home>, Arc<Noting>) {
        let (home, resident) = (Arc::<Home>::default(), Arc::default());
        home.take_in(&resident);
        (home, resident)
    }

    fn home_that_may_move() -> (Arc<Home>, Arc<Noting>) {
        let (home, resident) = home();
        home.may_move(&background::handle().unwrap());
        (home, resident)
    }

    #[test]
    fn a_client_settles_once_and_moves_once() {
        let (home, resident) = home_that_may_move();
        home.move_away();
        assert!(!home.has_moved() && home.runtime().is_none(), "it lives nowhere yet");
        let (first, second) = (runtime(), runtime());
        first.block_on(async { home.settle() });
        second.block_on(async { home.settle() });
        assert_eq!(resident.noted(), [Noted::Settled(first.handle().id())]);
        home.runtime_has_ended();
        let away = background::for_clients().unwrap().id();
        assert_eq!(resident.noted(), [Noted::BeforeEnd, Noted::Settled(away), Noted::AfterEnd]);
        // Such as tasks that are dropped later.
        home.runtime_has_ended();
        home.move_away();
        second.block_on(async { home.settle() });
        assert_eq!(resident.noted(), []);
        let late = Arc::<Noting>::default();
        home.take_in(&late);
        assert_eq!(late.noted(), [Noted::Settled(away)]);
    }

    #[test]
    fn a_client_that_must_not_move_settles_on_the_runtime_of_the_next_call() {
        let (home, resident) = home();
        let (first, second) = (runtime(), runtime());
        first.block_on(async { home.settle() });
        home.runtime_has_ended();
        assert!(home.runtime().is_none());
        second.block_on(async { home.settle() });
        let ids = [&first, &second].map(|runtime| Noted::Settled(runtime.handle().id()));
        assert_eq!(resident.noted(), ids);
    }

    #[test]
    fn a_client_moves_away_from_a_runtime_that_is_not_driven_and_from_no_other() {
        let (home, resident) = home_that_may_move();
        let (first, second) = (runtime(), runtime());
        first.block_on(async { home.settle() });
        first.block_on(home.move_if_stuck());
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let driving = thread::spawn(move || {
            let _ = first.block_on(stopped);
            first
        });
        second.block_on(home.move_if_stuck());
        assert!(!home.has_moved());
        drop(stop);
        let first = driving.join().unwrap();
        second.block_on(home.move_if_stuck());
        let away = background::for_clients().unwrap().id();
        assert_eq!(resident.noted(), [Noted::Settled(first.handle().id()), Noted::Settled(away)]);
    }

    #[test]
    fn whoever_waits_on_another_runtime_is_noticed_also_afterwards_and_when_it_changes() {
        let (home, _resident) = home_that_may_move();
        let (first, second) = (runtime(), runtime());
        first.block_on(async { home.settle() });
        let mut waiting = home.awaiting(pending::<()>()).boxed_local();
        let poll_on = |runtime: &Runtime, waiting: &mut LocalBoxFuture<'_, ()>| {
            assert!(runtime.block_on(async { poll!(waiting.as_mut()) }).is_pending());
        };
        poll_on(&first, &mut waiting);
        assert!(!home.is_awaited_elsewhere(), "at home");
        poll_on(&second, &mut waiting);
        assert!(home.is_awaited_elsewhere() && home.is_awaited_elsewhere());
        poll_on(&first, &mut waiting);
        assert!(!home.is_awaited_elsewhere(), "at home again");
        poll_on(&second, &mut waiting);
        drop(waiting);
        assert!(home.is_awaited_elsewhere(), "it gave up before it was noticed");
        assert!(!home.is_awaited_elsewhere());
        assert_eq!(second.block_on(home.awaiting(async { 7 })), 7);
        assert!(!home.is_awaited_elsewhere(), "what is ready at once does not wait");
    }
}
