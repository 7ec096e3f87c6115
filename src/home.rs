//! Where a client lives: the runtime of its connections and of its tasks.
//!
//! That is the runtime on which its connections were opened (Redis, Redlock), or on which it was used first: in a
//! program with one runtime, no call has to pass from one thread to another. The client moves to a thread of the crate,
//! once and for good, if that runtime ends, or makes no progress while somebody waits on another one, a release is
//! late, or the client is closed: that thread never ends, and is always driven. What was in progress counts as
//! unanswered, as after a reconnect.
//!
//! A client whose store must be used from the caller's runtime (`own_thread` is false) does not move there. When its
//! runtime has ended, or makes no progress while somebody waits on another one, it settles on the runtime of the next
//! call, or of whoever waits.

use std::fmt;
use std::future::{pending, poll_fn};
use std::pin::{Pin, pin};
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use scopeguard::guard;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::background;
use crate::origin::Origin;
use crate::runtime::{spawn_on, takes_tasks};
use crate::sync::{
    AbortOnDropHandle, AtomicBool, AtomicUsize, Handle, Id, Mutex, OnceLock, ThreadId, thread,
};

/// How long a runtime may make no progress before those that wait elsewhere no longer rely on it.
const STUCK: Duration = Duration::from_millis(500);
/// How much longer: after a pause of the whole process, the time is up before the runtime has had a chance.
const AFTER_A_PAUSE: Duration = Duration::from_millis(50);
/// How often a home is looked after for those that wait on another runtime.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// The home of one client.
#[derive(Default)]
pub struct Home {
    /// The thread on which leases are renewed, if the client may move.
    own: OnceLock<Handle>,
    is_settled: AtomicBool,
    is_ending: AtomicBool,
    /// When the client moved to a thread of the crate.
    moved: OnceLock<Instant>,
    place: Mutex<Place>,
    /// While residents are settling. One thread at a time has them settle.
    settling: Mutex<Option<Settling>>,
    /// Notified when the client lives nowhere any more.
    ended: Notify,
    /// How many wait on other runtimes.
    awaited_elsewhere: AtomicUsize,
    /// Whether anybody has waited on another runtime since that was last asked.
    was_awaited_elsewhere: AtomicBool,
    origin: Origin,
}

#[derive(Default)]
struct Place {
    runtime: Option<Handle>,
    /// Ends with the runtime.
    end: Option<AbortOnDropHandle<()>>,
    residents: Vec<Entry>,
}

impl Place {
    fn lives_on(&self, runtime: Id) -> bool {
        self.runtime.as_ref().is_some_and(|current| current.id() == runtime)
    }
}

struct Entry {
    resident: Weak<dyn Resident>,
    /// Where it was last told to settle.
    settled: Option<Id>,
}

struct Settling {
    thread: ThreadId,
    /// To be told that their runtime has ended, which this thread has noticed meanwhile.
    at_the_end: Vec<Arc<dyn Resident>>,
}

/// Something that lives where its client does.
pub(crate) trait Resident: Send + Sync {
    /// Starts its tasks on this runtime. Those on an earlier one must not be relied on any more: it has ended, or is
    /// not driven.
    fn settle(&self, runtime: &Handle);

    /// The runtime ends, and this has to settle elsewhere next.
    fn before_end(&self) {}

    /// The runtime has ended, and this has settled elsewhere.
    fn after_end(&self) {}
}

impl Home {
    /// One that is a thread of the crate from the beginning.
    #[cfg(feature = "_redis")]
    pub(crate) fn own(thread: &Handle) -> Arc<Self> {
        let home = Self { is_settled: true.into(), moved: Instant::now().into(), ..Self::default() };
        home.place.lock().runtime = Some(thread.clone());
        Arc::new(home)
    }

    /// From here on the client may move to a thread of the crate. `own` is the one on which leases are renewed, from
    /// where the home is looked after.
    pub(crate) fn may_move(self: &Arc<Self>, own: &Handle) {
        if self.own.set(own.clone()).is_ok() {
            spawn_on(own, Self::watch(Arc::downgrade(self)));
        }
    }

    async fn watch(this: Weak<Self>) {
        loop {
            sleep(WATCH_INTERVAL).await;
            match this.upgrade() {
                Some(home) if !home.has_moved() => {
                    if home.is_awaited_elsewhere() {
                        home.move_if_stuck().await;
                    }
                }
                _ => return,
            }
        }
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
        let resident: Weak<dyn Resident> = Arc::downgrade(resident) as _;
        let mut place = self.place.lock();
        place.residents.retain(|entry| entry.resident.strong_count() > 0);
        place.residents.push(Entry { resident, settled: None });
        drop(place);
        self.settle_residents();
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
        let here = Handle::current();
        {
            let mut place = self.place.lock();
            if place.runtime.is_some() {
                return;
            }
            place.runtime = Some(here.clone());
            self.is_settled.store(true, Ordering::Release);
        }
        self.settle_residents();
        self.watch_for_end(&here);
    }

    /// Has a resident settle again where the client lives, because its tasks are over.
    pub(crate) fn settle_again(&self, resident: *const ()) {
        let mut place = self.place.lock();
        let entry = place.residents.iter_mut().find(|entry| ptr::addr_eq(entry.resident.as_ptr(), resident));
        if let Some(entry) = entry {
            entry.settled = None;
        }
        drop(place);
        self.settle_residents();
    }

    /// Has the residents settle that have not settled where the client lives now. If that changes, or another thread
    /// does it at the moment, or this one further up, whoever does it goes on.
    fn settle_residents(&self) {
        while self.is_any_unsettled() && self.begin_settling() {
            let _settling = guard((), |()| self.have_settled());
            while let Some((runtime, resident)) = self.next_unsettled() {
                resident.settle(&runtime);
            }
        }
    }

    fn begin_settling(&self) -> bool {
        let mut settling = self.settling.lock();
        if settling.is_some() {
            return false;
        }
        *settling = Some(Settling { thread: thread::current().id(), at_the_end: Vec::new() });
        true
    }

    fn have_settled(&self) {
        let settled = self.settling.lock().take();
        for resident in settled.into_iter().flat_map(|settled| settled.at_the_end) {
            resident.after_end();
        }
    }

    /// Tells these residents that their runtime has ended; if this very thread has residents settle, further up, then
    /// only once they have: what is waited for at the end is done where they live then.
    fn tell_end(&self, residents: Vec<Arc<dyn Resident>>) {
        let here = thread::current().id();
        if let Some(settling) = self.settling.lock().as_mut().filter(|settling| settling.thread == here) {
            settling.at_the_end.extend(residents);
            return;
        }
        residents.iter().for_each(|resident| resident.after_end());
    }

    fn is_any_unsettled(&self) -> bool {
        let place = self.place.lock();
        let Some(runtime) = place.runtime.as_ref().map(Handle::id) else { return false };
        place
            .residents
            .iter()
            .any(|entry| entry.settled != Some(runtime) && entry.resident.strong_count() > 0)
    }

    fn next_unsettled(&self) -> Option<(Handle, Arc<dyn Resident>)> {
        let mut place = self.place.lock();
        let runtime = place.runtime.clone()?;
        place.residents.iter_mut().find_map(|entry| {
            let resident = entry.resident.upgrade().filter(|_| entry.settled != Some(runtime.id()))?;
            entry.settled = Some(runtime.id());
            Some((runtime.clone(), resident))
        })
    }

    /// Notices the end of the runtime: it drops all tasks.
    fn watch_for_end(self: &Arc<Self>, runtime: &Handle) {
        let ended = guard((Arc::downgrade(self), runtime.clone()), |(home, runtime)| {
            if let Some(home) = home.upgrade() {
                home.task_was_dropped(&runtime);
            }
        });
        let end = spawn_on(runtime, async move {
            let _ended = ended;
            pending::<()>().await;
        });
        let mut place = self.place.lock();
        let end = AbortOnDropHandle::new(end);
        let before = if place.lives_on(runtime.id()) { place.end.replace(end) } else { Some(end) };
        drop(place);
        drop(before);
    }

    /// A task was dropped on this runtime, perhaps because that ends. Whoever notices the end first has the client move,
    /// also on another thread; but it is this one that is kept waiting, because the process may end next.
    pub(crate) fn task_was_dropped(&self, runtime: &Handle) {
        if takes_tasks(runtime) || self.origin.is_elsewhere() {
            return;
        }
        if self.own.get().is_none() {
            return self.leave(runtime.id());
        }
        let residents = self.residents();
        if self.lives_on(runtime.id()) && !self.is_ending.swap(true, Ordering::AcqRel) {
            residents.iter().for_each(|resident| resident.before_end());
            self.move_away();
        }
        self.tell_end(residents);
    }

    fn lives_on(&self, runtime: Id) -> bool {
        self.place.lock().lives_on(runtime)
    }

    /// From here on the client lives nowhere, unless it has left `home` before: several may find that it should.
    fn leave(&self, home: Id) {
        let mut ended = Some(home);
        // One thread at a time. What another one has noticed meanwhile is done by this one.
        while let Some(home) = ended.filter(|_| !self.is_ending.swap(true, Ordering::AcqRel)) {
            self.leave_alone(home);
            self.is_ending.store(false, Ordering::Release);
            ended = self.runtime().filter(|runtime| !takes_tasks(runtime)).map(|runtime| runtime.id());
        }
    }

    fn leave_alone(&self, home: Id) {
        if !self.lives_on(home) {
            return;
        }
        self.residents().iter().for_each(|resident| resident.before_end());
        let left = {
            let mut place = self.place.lock();
            place.residents.iter_mut().for_each(|entry| entry.settled = None);
            self.is_settled.store(false, Ordering::Release);
            (place.runtime.take(), place.end.take())
        };
        drop(left);
        self.ended.notify_waiters();
    }

    fn residents(&self) -> Vec<Arc<dyn Resident>> {
        self.place.lock().residents.iter().filter_map(|entry| entry.resident.upgrade()).collect()
    }

    /// Moves to a thread of the crate, unless the client lives there.
    pub(crate) fn move_away(&self) {
        let Some(own) = self.own.get().filter(|_| !self.origin.is_elsewhere()) else { return };
        let own = background::for_clients().unwrap_or_else(|_| own.clone());
        let end = {
            let mut place = self.place.lock();
            if place.runtime.is_none() || self.moved.set(Instant::now()).is_err() {
                return;
            }
            place.runtime = Some(own);
            place.end.take()
        };
        self.settle_residents();
        drop(end);
    }

    /// Moves to a thread of the crate if the runtime makes no progress: it is not driven, or all its threads are
    /// blocked.
    pub(crate) async fn move_if_stuck(&self) {
        if !self.has_moved() && self.stuck().await.is_some() {
            self.move_away();
        }
    }

    /// Where the client lives, if that is another runtime, which makes no progress.
    async fn stuck(&self) -> Option<Id> {
        let here = Handle::current().id();
        let runtime = self.runtime().filter(|runtime| runtime.id() != here)?;
        let mut probe = spawn_on(&runtime, async {});
        // If the runtime ends, that is noticed there.
        let is_stuck =
            timeout(STUCK, &mut probe).await.is_err() && timeout(AFTER_A_PAUSE, &mut probe).await.is_err();
        if is_stuck {
            tracing::info!(
                target: "leasehold::client", "the runtime on which a client lives has run no task for half a second: it is blocked, busy, or not driven; the client moves"
            );
        }
        is_stuck.then(|| runtime.id())
    }

    /// Whether anybody waits on another runtime, or has waited there since this was last asked.
    fn is_awaited_elsewhere(&self) -> bool {
        let was_awaited = self.was_awaited_elsewhere.swap(false, Ordering::Relaxed);
        was_awaited || self.awaited_elsewhere.load(Ordering::Relaxed) > 0
    }

    /// Awaits something that depends on the home, which is looked after while this is polled on another runtime. That
    /// may change.
    ///
    /// `work` is pinned by the caller: a future that takes another one by value has room for it twice.
    pub(crate) async fn awaiting<T>(self: &Arc<Self>, mut work: Pin<&mut impl Future<Output = T>>) -> T {
        if self.own.get().is_some() {
            return self.noticed(work).await;
        }
        loop {
            let mut ended = pin!(self.ended.notified());
            ended.as_mut().enable();
            if self.runtime().is_none() && Handle::try_current().is_ok_and(|here| takes_tasks(&here)) {
                self.settle();
            }
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = ended => {}
                stuck = self.until_stuck() => self.leave(stuck),
            }
        }
    }

    /// Completes when the runtime makes no progress, if that is another one.
    async fn until_stuck(&self) -> Id {
        let here = Handle::try_current().map(|here| here.id());
        if self.runtime().is_none_or(|home| here.is_ok_and(|here| here == home.id())) {
            pending::<()>().await;
        }
        // Rarely needed, and large.
        Box::pin(async {
            loop {
                if let Some(stuck) = self.stuck().await {
                    return stuck;
                }
                sleep(WATCH_INTERVAL).await;
            }
        })
        .await
    }

    async fn noticed<T>(&self, mut work: Pin<&mut impl Future<Output = T>>) -> T {
        let (mut polled_on, mut waiting) = (None, None);
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
        let is_elsewhere =
            !self.has_moved() && self.place.lock().runtime.as_ref().is_some_and(|home| home.id() != runtime);
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

#[cfg(all(test, not(leasehold_shuttle)))]
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
        let ended = first.handle().clone();
        first.block_on(async { home.settle() });
        second.block_on(async { home.settle() });
        assert_eq!(resident.noted(), [Noted::Settled(ended.id())]);
        drop(first);
        let away = background::for_clients().unwrap().id();
        assert_eq!(resident.noted(), [Noted::BeforeEnd, Noted::Settled(away), Noted::AfterEnd]);
        // Such as a task that is dropped later, on the thread that ends the runtime, if another one has noticed the end.
        home.task_was_dropped(&ended);
        assert_eq!(resident.noted(), [Noted::AfterEnd]);
        home.move_away();
        second.block_on(async { home.settle() });
        assert_eq!(resident.noted(), []);
        let late = Arc::<Noting>::default();
        home.take_in(&late);
        assert_eq!(late.noted(), [Noted::Settled(away)]);
    }

    /// Lives in a home whose end it notices while it settles, as tasks do that are spawned on a runtime that has ended.
    #[derive(Default)]
    struct NoticingTheEnd {
        home: Weak<Home>,
        noting: Noting,
    }

    impl Resident for NoticingTheEnd {
        fn settle(&self, runtime: &Handle) {
            if let Some(home) = self.home.upgrade() {
                home.task_was_dropped(runtime);
            }
            self.noting.settle(runtime);
        }

        fn before_end(&self) {
            self.noting.before_end();
        }

        fn after_end(&self) {
            self.noting.after_end();
        }
    }

    #[test]
    fn an_end_that_is_noticed_while_residents_settle_is_told_when_they_have_settled_elsewhere() {
        let home = Arc::<Home>::default();
        home.may_move(&background::handle().unwrap());
        let ended = runtime();
        let at_the_end = Noted::Settled(ended.handle().id());
        home.place.lock().runtime = Some(ended.handle().clone());
        drop(ended);
        let resident = Arc::new(NoticingTheEnd { home: Arc::downgrade(&home), noting: Noting::default() });
        home.take_in(&resident);
        let away = Noted::Settled(background::for_clients().unwrap().id());
        assert_eq!(resident.noting.noted(), [Noted::BeforeEnd, at_the_end, away, Noted::AfterEnd]);
    }

    #[test]
    fn a_client_that_must_not_move_settles_on_the_runtime_of_the_next_call() {
        let (home, resident) = home();
        let (first, second) = (runtime(), runtime());
        let ids = [&first, &second].map(|runtime| Noted::Settled(runtime.handle().id()));
        first.block_on(async { home.settle() });
        home.task_was_dropped(first.handle());
        assert!(home.runtime().is_some(), "another task has ended");
        let work = pin!(pending::<()>());
        let mut waiting = home.awaiting(work).boxed_local();
        assert!(second.block_on(async { poll!(waiting.as_mut()) }).is_pending());
        drop(first);
        assert!(home.runtime().is_none());
        // Somebody waits, and is woken.
        assert!(second.block_on(async { poll!(waiting.as_mut()) }).is_pending());
        let [at_first, at_second] = ids;
        assert_eq!(resident.noted(), [at_first, Noted::BeforeEnd, at_second]);
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
        let work = pin!(pending::<()>());
        let mut waiting = home.awaiting(work).boxed_local();
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
        assert_eq!(second.block_on(home.awaiting(pin!(async { 7 }))), 7);
        assert!(!home.is_awaited_elsewhere(), "what is ready at once does not wait");
    }
}
