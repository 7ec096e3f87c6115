//! The store inside the process: [ledgers](super::Ledger) in a map.
//!
//! They are behind one mutex, which is never held across an await. Time is tokio's, so a test can pause it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use futures::StreamExt;
use futures::channel::mpsc::{UnboundedSender, unbounded};
use futures::future::{pending, ready};
use futures::stream::{self, BoxStream, Stream};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use uuid::Uuid;

use super::BackendError;
use super::ledger::{Effects, Ledger, Stamp};
use super::ledger_backend::{LedgerBackend, LedgerStore, backend_on_ledger};
use super::types::{Capabilities, Event};
use super::{NodeState, Status, StoreState};
use crate::origin::PerProcess;

/// Locks and semaphores for the tasks of one process, and a substitute for Redis in tests.
///
/// Everything is forgotten when the last client of the store is gone. The tokens of a later store are still greater,
/// because they follow the clock.
///
/// # In tests of applications
///
/// A test can [crash](Self::crash) one client of the store, [cut it off](Self::cut_off) and [restore](Self::restore)
/// it, and have the store [forget](Self::flush) everything. Each client needs a backend of its own, of which the test
/// keeps a handle. On tokio's paused clock (feature `test-util`), leases expire in no time. Such as a worker that must
/// start again after it has lost its lease:
///
/// ```
/// # use std::{sync::Arc, time::Duration};
/// # use leasehold::{Client, Error, LossReason, MemoryBackend};
/// # use tokio::time::sleep;
/// /// What is to be tested: works under a lock, and again if it is lost.
/// async fn work(client: Client) -> Result<u32, Error> {
///     for attempt in 1.. {
///         let guard = client.mutex("report")?.lock().await?;
///         match guard.protect(sleep(Duration::from_secs(60))).await {
///             Err(Error::Lost { .. }) => continue,
///             done => return done.map(|()| attempt),
///         }
///     }
///     unreachable!()
/// }
///
/// #[tokio::main(flavor = "current_thread", start_paused = true)] // in a test: `#[tokio::test(start_paused = true)]`
/// async fn main() -> Result<(), Error> {
///     let store = Arc::new(MemoryBackend::new());
///     let other = Client::with_backend(Arc::new(store.peer()));
///     let worker = tokio::spawn(work(Client::with_backend(store.clone())));
///     sleep(Duration::from_secs(1)).await;
///     store.cut_off(); // from here on, the lease cannot be renewed
///     drop(other.mutex("report")?.lock().await?); // granted when it has expired
///     store.restore();
///     assert_eq!(worker.await.expect("it does not panic")?, 2);
///     Ok(())
/// }
/// ```
///
/// # Time
///
/// It uses tokio's clock, which a test may pause. So, unlike with other stores, leases are renewed on the runtime on
/// which the client was first used. If that runtime ends, they are not renewed until the client is used on another one.
pub struct MemoryBackend(LedgerBackend<MemoryStore>);

backend_on_ledger!(MemoryBackend);

/// The records of a [`MemoryBackend`].
#[derive(Clone)]
pub(super) struct MemoryStore {
    shared: Arc<Shared>,
    link: Arc<watch::Sender<Link>>,
}

/// How one client reaches the store.
#[derive(Clone, Copy, Debug)]
enum Link {
    Open,
    Cut { since: std::time::Instant },
    Crashed { since: std::time::Instant },
}

struct Shared {
    records: Mutex<Records>,
    start: Instant,
}

const ADDRESS: &str = "memory:";
const CUT_OFF: &str = "the test has cut this client off";

/// The stores with a name that are in use.
static NAMED: PerProcess<BTreeMap<String, Weak<Shared>>> = PerProcess::new();

#[derive(Default)]
struct Records {
    ledgers: HashMap<Arc<str>, Ledger>,
    /// The greatest number issued so far: unused records are deleted, and their numbers with them.
    newest: u64,
    listeners: HashMap<Uuid, UnboundedSender<Event>>,
    /// Notified when these records have changed.
    watchers: HashMap<Arc<str>, Vec<Weak<Notify>>>,
    served: u64,
    /// The number of records above which unused ones are searched for and deleted.
    sweep_at: usize,
}

impl MemoryBackend {
    /// A new, empty store.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use leasehold::{Client, MemoryBackend};
    /// let client = Client::with_backend(Arc::new(MemoryBackend::new()));
    /// # drop(client);
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self::on(Shared::new())
    }

    /// A client of the store called `name` in this process: the one that is in use under that name, or a new one. It is
    /// what the URL `memory:NAME` stands for.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use leasehold::{Client, MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// let guard = Client::connect("memory:shop").await?.mutex("cart:7")?.lock().await?;
    /// let same = Client::with_backend(Arc::new(MemoryBackend::named("shop")));
    /// assert!(same.mutex("cart:7")?.try_lock().await?.is_none());
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn named(name: &str) -> Self {
        let shared = NAMED.with(|named| {
            named.retain(|_, shared| shared.strong_count() > 0);
            named.get(name).and_then(Weak::upgrade).unwrap_or_else(|| {
                let new = Shared::new();
                named.insert(name.to_owned(), Arc::downgrade(&new));
                new
            })
        });
        Self::on(shared)
    }

    fn on(shared: Arc<Shared>) -> Self {
        Self(LedgerBackend::on(MemoryStore { shared, link: Arc::new(watch::Sender::new(Link::Open)) }))
    }

    pub(super) const fn store(&self) -> &MemoryStore {
        self.0.store()
    }

    /// Another client of the same store, like another process that uses the same Redis server.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use leasehold::{Client, MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// let store = MemoryBackend::new();
    /// let (one, other) = (Client::with_backend(Arc::new(store.peer())), Client::with_backend(Arc::new(store)));
    /// let guard = one.mutex("cart:7")?.lock().await?;
    /// assert!(other.mutex("cart:7")?.try_lock().await?.is_none());
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn peer(&self) -> Self {
        Self::on(Arc::clone(&self.store().shared))
    }

    /// From now on, this client does nothing more at the store, as if its process had been killed: its calls are never
    /// answered, and nothing is released. Its leases last until they expire. Its guards report the loss by then, since
    /// they still exist. For good: to go on, make a [`peer`](Self::peer).
    ///
    /// ```
    /// # use std::{sync::Arc, time::Duration};
    /// # use leasehold::{Client, Error, MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Error> {
    /// let store = Arc::new(MemoryBackend::new());
    /// let (doomed, next) = (Client::with_backend(store.clone()), Client::with_backend(Arc::new(store.peer())));
    /// let guard = doomed.mutex("report")?.lock().await?;
    /// store.crash();
    /// drop(guard); // releases nothing any more
    /// assert!(next.mutex("report")?.try_lock().await?.is_none());
    /// next.mutex("report")?.lock_timeout(Duration::from_secs(31)).await?; // the TTL is 30 s
    /// # Ok(()) }
    /// ```
    pub fn crash(&self) {
        self.store().link.send_replace(Link::Crashed { since: std::time::Instant::now() });
    }

    /// From now on, this client cannot reach the store: its calls fail, and it learns of no grants, until
    /// [`restore`](Self::restore). Its leases expire unless it is restored in time. Has no effect on a client that was
    /// crashed.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use leasehold::{Client, LossReason, MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// let store = Arc::new(MemoryBackend::new());
    /// let client = Client::with_backend(store.clone());
    /// let guard = client.mutex("cart:7")?.lock().await?;
    /// store.cut_off();
    /// assert_eq!(guard.lost().await, LossReason::StoreUnreachable); // after the TTL, at once on a paused clock
    /// store.restore();
    /// # Ok(()) }
    /// ```
    pub fn cut_off(&self) {
        self.reach(Link::Cut { since: std::time::Instant::now() });
    }

    /// Ends the effect of [`cut_off`](Self::cut_off).
    pub fn restore(&self) {
        self.reach(Link::Open);
    }

    fn reach(&self, link: Link) {
        self.store().link.send_if_modified(|now| {
            let changes = match (*now, link) {
                (Link::Crashed { .. }, _)
                | (Link::Open, Link::Open)
                | (Link::Cut { .. }, Link::Cut { .. }) => false,
                (Link::Open | Link::Cut { .. }, _) => true,
            };
            if changes {
                *now = link;
            }
            changes
        });
    }

    /// Forgets everything except the newest token, like a server that restarts without persistence. (A server's clock
    /// is ahead of all its tokens by then, but a loop in one process may use up numbers faster than microseconds pass.)
    /// Waiters notice it when they repeat their requests.
    pub fn flush(&self) {
        self.store().shared.records.lock().ledgers.clear();
    }

    /// The same, and forgets the newest token as well.
    #[cfg(all(test, feature = "_redis"))]
    pub(crate) fn flush_with_tokens(&self) {
        self.flush();
        self.store().shared.records.lock().newest = 0;
    }

    /// How many waiters hand-overs have granted a lease to so far, as a measure for point 9 of the contract.
    #[must_use]
    pub fn waiters_served(&self) -> u64 {
        self.store().shared.records.lock().served
    }
}

impl Default for MemoryBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl LedgerStore for MemoryStore {
    async fn transact<T: Send + 'static>(
        &self,
        keys: &[Arc<str>],
        mut change: impl FnMut(usize, &mut Ledger, Stamp) -> (T, Effects) + Send + 'static,
    ) -> Result<Vec<T>, BackendError> {
        self.pass().await?;
        let mut records = self.shared.records.lock();
        let stamp = self.stamp(&records);
        records.sweep(stamp);
        let changes = keys.iter().enumerate().map(|(n, key)| {
            let stamp = Stamp::new(stamp.now, stamp.late, stamp.floor.max(records.newest + 1));
            let (outcome, effects) = records.change(key, stamp, |ledger| change(n, ledger, stamp));
            records.served += effects.served.unwrap_or(0);
            records.send(effects.events);
            outcome
        });
        Ok(changes.collect())
    }

    fn wakes(&self, client: Uuid) -> BoxStream<'static, Event> {
        let (sender, events) = unbounded();
        self.shared.records.lock().listeners.insert(client, sender);
        let link = self.link.subscribe();
        let received = events.filter(move |_| ready(link.borrow().is_open()));
        let restored = self.links().filter(|link| ready(link.is_open())).map(|_| Event::Resync);
        stream::select(received, restored).boxed()
    }

    fn changes(&self, key: &Arc<str>) -> BoxStream<'static, ()> {
        let notify = Arc::new(Notify::new());
        self.shared.records.lock().watchers.entry(Arc::clone(key)).or_default().push(Arc::downgrade(&notify));
        let changes = stream::unfold(notify, async |notify| {
            notify.notified().await;
            Some(((), notify))
        });
        let link = self.link.subscribe();
        let received = changes.filter(move |()| ready(link.borrow().is_open()));
        let restored = self.links().filter(|link| ready(link.is_open())).map(drop);
        stream::select(received, restored).boxed()
    }

    fn state(&self) -> StoreState {
        self.link.borrow().state()
    }

    fn state_changes(&self) -> BoxStream<'static, StoreState> {
        self.links().map(Link::state).boxed()
    }

    async fn ping(&self) -> Result<(), BackendError> {
        self.pass().await
    }

    fn keys<'a>(&'a self, prefix: &'a str) -> BoxStream<'a, Result<Vec<Arc<str>>, BackendError>> {
        let keys = move || {
            let records = self.shared.records.lock();
            records.ledgers.keys().filter(|key| key.starts_with(prefix)).cloned().collect()
        };
        stream::once(async move { self.pass().await.map(|()| keys()) }).boxed()
    }

    fn capabilities(&self) -> Capabilities {
        // It uses the clock of the caller's runtime, which a test may pause.
        Capabilities { own_thread: false, lists: true, ..Capabilities::new(ADDRESS) }
    }
}

impl Shared {
    fn new() -> Arc<Self> {
        Arc::new(Self { records: Mutex::default(), start: Instant::now() })
    }
}

impl Link {
    const fn is_open(self) -> bool {
        matches!(self, Self::Open)
    }

    fn state(self) -> StoreState {
        let status = match self {
            Self::Open => Status::Connected,
            Self::Cut { since } => Status::Disconnected { since },
            Self::Crashed { since } => Status::Silent { since },
        };
        let reason = (!self.is_open()).then(|| CUT_OFF.to_owned());
        StoreState::of(vec![NodeState::new(ADDRESS, status).because(reason)])
    }
}

impl MemoryStore {
    /// Lets a call through, if this client reaches the store.
    async fn pass(&self) -> Result<(), BackendError> {
        let link = *self.link.borrow();
        match link {
            Link::Open => Ok(()),
            Link::Cut { .. } => Err(BackendError::NotSent { source: CUT_OFF.into() }),
            Link::Crashed { .. } => pending().await,
        }
    }

    /// How this client reaches the store, whenever that changes. Never ends.
    fn links(&self) -> impl Stream<Item = Link> + Send + use<> {
        stream::unfold(self.link.subscribe(), async |mut links| {
            // An error means that nobody can change it any more.
            let changed = links.changed().await;
            if changed.is_err() {
                pending::<()>().await;
            }
            let link = *links.borrow_and_update();
            Some((link, links))
        })
    }

    fn stamp(&self, records: &Records) -> Stamp {
        let now = micros(self.shared.start.elapsed().as_micros());
        let clock = micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros());
        Stamp::new(now, now, clock.max(records.newest + 1))
    }
}

impl Records {
    fn sweep(&mut self, stamp: Stamp) {
        if self.ledgers.len() > self.sweep_at {
            self.ledgers.retain(|_, ledger| ledger.is_in_use(stamp));
            self.sweep_at = self.ledgers.len() * 2 + 64;
        }
    }

    fn change<T>(&mut self, key: &Arc<str>, stamp: Stamp, change: impl FnOnce(&mut Ledger) -> T) -> T {
        let ledger = self.ledgers.entry(Arc::clone(key)).or_default();
        let before = self.watchers.contains_key(key).then(|| ledger.to_string());
        let outcome = change(ledger);
        if before.is_some_and(|before| before != ledger.to_string()) {
            notify(&mut self.watchers, key);
        }
        self.newest = self.newest.max(ledger.last_number());
        if !ledger.is_in_use(stamp) {
            self.ledgers.remove(key);
        }
        outcome
    }

    fn send(&mut self, events: Vec<Event>) {
        for event in events {
            let Some(client) = event.lease().map(|lease| lease.client()) else { continue };
            let gone =
                self.listeners.get(&client).is_some_and(|sender| sender.unbounded_send(event).is_err());
            if gone {
                self.listeners.remove(&client);
            }
        }
    }
}

/// Notifies those that watch a key, and forgets those that are gone.
fn notify(watchers: &mut HashMap<Arc<str>, Vec<Weak<Notify>>>, key: &Arc<str>) {
    if let Some(of_key) = watchers.get_mut(key) {
        of_key.retain(|watcher| {
            watcher.upgrade().is_some_and(|watcher| {
                watcher.notify_one();
                true
            })
        });
        if of_key.is_empty() {
            watchers.remove(key);
        }
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").finish_non_exhaustive()
    }
}

fn micros(micros: u128) -> u64 {
    u64::try_from(micros).unwrap_or(u64::MAX)
}
