//! What a scene takes place in: a store, a clock, the crate's threads, and a judge that is told what happens.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use shuttle::thread;
use tokio::runtime::{Builder, Runtime as Timers};

use super::runtime::{Cancelled, JoinHandle};
use super::store::{Ends, Far, Link};
use crate::backend::{Backend, Detail, Inspection, Kind, MemoryBackend, Resource};
use crate::background::Threads;
use crate::observer::{Event, Observer};
use crate::{Client, Guard, MutexOptions};

pub(super) const TTL: Duration = Duration::from_secs(1);
const PATIENCE: usize = 10_000;
/// By how much a thread that lets time pass advances the clock each time.
const STEP: Duration = Duration::from_millis(20);

/// tokio's clock, paused, and its timers. Whatever the thread of the executions does while this is entered is on that clock.
pub(super) struct Clock(Timers);

impl Clock {
    fn new() -> Self {
        let timers = Builder::new_current_thread().enable_time().start_paused(true).build();
        Self(timers.expect("it needs nothing of the system"))
    }

    /// Timers that are due by then fire.
    pub(super) fn advance(&self, by: Duration) {
        self.0.block_on(async {
            tokio::time::advance(by).await;
            tokio::task::yield_now().await;
        });
    }
}

pub(super) struct World {
    pub(super) clock: Arc<Clock>,
    memory: MemoryBackend,
    ends: Arc<Ends>,
    judge: Arc<Judge>,
    /// How many are where one may be at a time.
    inside: AtomicUsize,
    /// Whether a lease is released by force, of which its holder hears a little later.
    is_forced: AtomicBool,
}

impl World {
    /// Plays a scene in a new world. At its end, all that it has made must be gone, and released.
    pub(super) fn play(scene: impl FnOnce(&Arc<Self>)) {
        let (clock, threads) = (Arc::new(Clock::new()), Threads::start());
        let timers = clock.0.enter();
        let world = Arc::new(Self {
            clock: Arc::clone(&clock),
            memory: MemoryBackend::new(),
            ends: Arc::default(),
            judge: Arc::default(),
            inside: AtomicUsize::new(0),
            is_forced: AtomicBool::new(false),
        });
        scene(&world);
        assert!(world.is_released(), "something was left behind");
        threads.end();
        assert_eq!(world.judge.unended(), [], "all that has begun has ended once, and observers were told");
        drop(timers);
    }

    /// A client of the store.
    pub(super) fn client(&self, link: Link) -> Client {
        let far = Far::new(self.memory.peer(), Arc::clone(&self.ends), link);
        let options = MutexOptions::new().ttl(TTL);
        Client::with_backend(Arc::new(far))
            .with_mutex_options(options)
            .with_observer(Arc::clone(&self.judge) as _)
    }

    /// What the store knows of a mutex.
    pub(super) fn look(&self, name: &str) -> Inspection {
        let resource = Resource::named("lock:", name, Kind::Mutex);
        let looked = self.memory.inspect(&resource, Detail::Full).now_or_never();
        looked.expect("memory needs no waiting").expect("it is always there")
    }

    /// Uses what the mutex `a` protects, alone: nobody loses a lease in this scene, except to the end of its client.
    pub(super) async fn use_alone(&self, guard: &Guard) {
        assert_eq!(self.inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
        // Also if this is dropped.
        let _inside = scopeguard::guard(&self.inside, |inside| {
            inside.fetch_sub(1, Ordering::SeqCst);
        });
        self.use_as_told(guard).await;
    }

    /// The same, where leases may be lost: whoever believes to hold a lease is whom the store has granted it.
    pub(super) async fn use_as_told(&self, guard: &Guard) {
        for _ in 0..2 {
            let known: Vec<_> =
                self.look(guard.name()).holders.iter().filter_map(|holder| holder.short_id()).collect();
            // Held now, and so when the store was looked at, too.
            let is_excepted = self.is_forced.load(Ordering::SeqCst);
            assert!(
                is_excepted || !guard.is_held() || known == [guard.lease_id()],
                "held by {known:?}, and here"
            );
            shuttle::future::yield_now().await;
        }
    }

    /// From now on, a lease may be released by force.
    pub(super) fn except_force(&self) {
        self.is_forced.store(true, Ordering::SeqCst);
    }

    /// Waits for a task that needs nothing but events, and that so many changes between threads are enough for.
    pub(super) fn join<T: Send + 'static>(
        &self,
        client: &Client,
        task: JoinHandle<T>,
    ) -> Result<T, Cancelled> {
        let mut task = task;
        for _ in 0..PATIENCE {
            if let Some(output) = (&mut task).now_or_never() {
                return output;
            }
            thread::yield_now();
        }
        panic!("it waits for ever; the store: {:?}; the client: {:#?}", self.look("a"), client.engine());
    }

    /// Waits until the store knows of no hold and no waiter any more.
    pub(super) fn until_released(&self) {
        while !self.is_released() {
            thread::yield_now();
        }
    }

    /// Whether the store knows of no hold and no waiter.
    pub(super) fn is_released(&self) -> bool {
        let known = self.look("a");
        known.holders.is_empty() && known.waiting == 0
    }

    /// Lets time pass beside what `play` does.
    pub(super) fn while_time_passes<T>(&self, play: impl FnOnce() -> T) -> T {
        let (clock, is_over) = (Arc::clone(&self.clock), Arc::new(AtomicBool::new(false)));
        let until = Arc::clone(&is_over);
        let passing = thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                thread::yield_now();
                clock.advance(STEP);
            }
        });
        let outcome = play();
        is_over.store(true, Ordering::Relaxed);
        passing.join().expect("it does not panic");
        outcome
    }
}

/// Is told what happens, as an observer of all clients.
#[derive(Default)]
struct Judge(Mutex<HashMap<u64, Told>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Begun,
    Ended,
    /// Its beginning or its end came twice, or in the wrong order.
    OutOfOrder,
}

impl Judge {
    /// What was told of holds whose end was not told, once and last. (A panic in an observer would be swallowed.)
    fn unended(&self) -> Vec<(u64, Told)> {
        let told = self.0.lock().expect("nobody panics under it");
        told.iter().filter(|(_, told)| **told != Told::Ended).map(|(token, told)| (*token, *told)).collect()
    }
}

impl Observer for Judge {
    fn observe(&self, event: &Event<'_>) {
        let mut holds = self.0.lock().expect("nobody panics under it");
        let (token, told, before) = match event {
            Event::Acquired { token, .. } => (token, Told::Begun, None),
            Event::Lost { token, .. } | Event::Released { token, .. } => {
                (token, Told::Ended, Some(Told::Begun))
            }
            _ => return,
        };
        if holds.insert(token.get(), told) != before {
            holds.insert(token.get(), Told::OutOfOrder);
        }
    }
}
