//! The store inside the process: [ledgers](super::Ledger) in a map.
//!
//! They are behind one mutex, which is never held across an await. Time is tokio's, so a test can pause it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use futures::channel::mpsc::{UnboundedSender, unbounded};
use futures::future::ready;
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use parking_lot::Mutex;
use tokio::time::Instant;
use uuid::Uuid;

use super::BackendError;
use super::ledger::{Effects, Ledger, Stamp};
use super::ledger_backend::{LedgerBackend, LedgerStore, backend_on_ledger};
use super::types::{Capabilities, Event};
use crate::origin::PerProcess;

/// Locks and semaphores for the tasks of one process, and a substitute for Redis in tests.
///
/// Everything is forgotten when the last client of the store is gone. The tokens of a later store are still greater,
/// because they follow the clock.
///
/// It uses tokio's clock, which a test may pause. So, unlike with other stores, leases are renewed on the runtime on which the client
/// was first used. If that runtime ends, they are not renewed until the client is used on another one.
pub struct MemoryBackend(LedgerBackend<MemoryStore>);

backend_on_ledger!(MemoryBackend);

/// The records of a [`MemoryBackend`].
#[derive(Clone)]
pub(super) struct MemoryStore {
    shared: Arc<Shared>,
}

struct Shared {
    records: Mutex<Records>,
    start: Instant,
}

/// The stores with a name that are in use.
static NAMED: PerProcess<BTreeMap<String, Weak<Shared>>> = PerProcess::new();

#[derive(Default)]
struct Records {
    ledgers: HashMap<Arc<str>, Ledger>,
    /// The greatest number issued so far: unused records are deleted, and their numbers with them.
    newest: u64,
    listeners: HashMap<Uuid, UnboundedSender<Event>>,
    served: u64,
    /// The number of records above which unused ones are searched for and deleted.
    sweep_at: usize,
}

impl MemoryBackend {
    /// A new, empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::on(Shared::new())
    }

    /// A client of the store called `name` in this process: the one that is in use under that name, or a new one. It is what the URL
    /// `memory:NAME` stands for.
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
        Self(LedgerBackend::on(MemoryStore { shared }))
    }

    pub(super) const fn store(&self) -> &MemoryStore {
        self.0.store()
    }

    /// Another client of the same store, like another process that uses the same Redis server.
    #[must_use]
    pub fn peer(&self) -> Self {
        Self::on(Arc::clone(&self.store().shared))
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
        events.boxed()
    }

    fn keys<'a>(&'a self, prefix: &'a str) -> BoxStream<'a, Result<Vec<Arc<str>>, BackendError>> {
        let keys = move || {
            let records = self.shared.records.lock();
            records.ledgers.keys().filter(|key| key.starts_with(prefix)).cloned().collect()
        };
        stream::once(ready(())).map(move |()| Ok(keys())).boxed()
    }

    fn capabilities(&self) -> Capabilities {
        // It uses the clock of the caller's runtime, which a test may pause.
        Capabilities { own_thread: false, lists: true, ..Capabilities::new("memory:") }
    }
}

impl Shared {
    fn new() -> Arc<Self> {
        Arc::new(Self { records: Mutex::default(), start: Instant::now() })
    }
}

impl MemoryStore {
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
        let outcome = change(ledger);
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

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").finish_non_exhaustive()
    }
}

fn micros(micros: u128) -> u64 {
    u64::try_from(micros).unwrap_or(u64::MAX)
}
