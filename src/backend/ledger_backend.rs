//! A store on any database that can change one record atomically.

use std::collections::BTreeMap;
use std::fmt;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, FuturesUnordered};
use futures::{FutureExt, StreamExt};
use parking_lot::Mutex;
use scopeguard::{ScopeGuard, guard};
use uuid::Uuid;

use super::ledger::{Effects, Ledger, Stamp};
use super::types::*;
use super::{Backend, BackendError, EventSender, Finding, LeaseId, NodeState, Status, StoreState};
use crate::closing::Closing;

/// What a database must provide so that [`LedgerBackend`] can use it as a store: atomic changes of one record and, if
/// possible, messages to other clients.
///
/// ```
/// use std::collections::HashMap;
/// use std::sync::{Arc, Mutex, PoisonError};
/// use std::time::{Duration, SystemTime};
///
/// use leasehold::backend::{Capabilities, Effects, Ledger, LedgerBackend, LedgerStore, Stamp, Wakes};
/// use leasehold::{BackendError, Client};
///
/// /// Records in memory, as text: in place of the map, a database.
/// #[derive(Debug, Default)]
/// struct Table(Mutex<HashMap<Arc<str>, String>>);
///
/// impl LedgerStore for Table {
///     async fn transact<T: Send + 'static>(
///         &self,
///         keys: &[Arc<str>],
///         mut change: impl FnMut(usize, &mut Ledger, Stamp) -> (T, Effects) + Send + 'static,
///     ) -> Result<Vec<T>, BackendError> {
///         let mut rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
///         let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_micros() as u64;
///         let mut results = Vec::new();
///         for (n, key) in keys.iter().enumerate() {
///             let stored = rows.get(key).map_or(Ok(Ledger::default()), |row| row.parse());
///             let mut ledger = stored.map_err(|_| BackendError::WrongType { source: "not a ledger".into() })?;
///             results.push(change(n, &mut ledger, Stamp::new(now, now, now)).0);
///             rows.insert(Arc::clone(key), ledger.to_string());
///         }
///         Ok(results)
///     }
///
///     fn capabilities(&self) -> Capabilities {
///         let mut capabilities = Capabilities::new("table:");
///         capabilities.wakes = Wakes::Polled(Duration::from_millis(50));
///         capabilities.pushes_losses = false;
///         capabilities
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// let client = Client::with_backend(Arc::new(LedgerBackend::on(Table::default())));
/// client.mutex("cart:7")?.lock().await?.release().await?;
/// # client.shutdown().await
/// # }
/// ```
///
/// The record is a [`Ledger`], stored as its text or in any other form. See [`Ledger::is_in_use`] for when it may be
/// deleted.
pub trait LedgerStore: fmt::Debug + Send + Sync + 'static {
    /// Runs `change` on the record of each of these keys, or on a new one if there is none, and stores the results.
    /// `change` is passed the index of the key, and the results are returned in the order of the keys. The keys are
    /// sorted, without duplicates, and at most [`MAX_KEYS`](Self::MAX_KEYS) in number.
    ///
    /// The change of one record is one atomic step: if another client has changed the record in the meantime, `change`
    /// is run again on the new one. Changes of several records are independent of each other. A store should make them
    /// in one transaction if that costs less, and may make them one after another. If the call fails, some of them may
    /// have been stored, and the caller repeats all of them. [`BackendError::WrongType`] means that at least one record
    /// cannot be read; the caller then repeats the change for each key separately.
    ///
    /// Besides its result, `change` returns its effects. Once the record is stored, deliver the events to the clients
    /// that created the leases they name; a store that cannot push drops them, and its waiters poll. The changes of one
    /// client to one key take effect in the order in which they were called, even if a future is dropped.
    fn transact<T: Send + 'static>(
        &self,
        keys: &[Arc<str>],
        change: impl FnMut(usize, &mut Ledger, Stamp) -> (T, Effects) + Send + 'static,
    ) -> impl Future<Output = Result<Vec<T>, BackendError>> + Send;

    /// The maximum number of keys changed together: renewals of more leases take several transactions.
    const MAX_KEYS: usize = 128;

    /// The events for `client`: those that resulted from other clients' changes, or [`Event::Changed`] for a key, or
    /// [`Event::Resync`] if events may have been lost. A store that cannot push has none.
    fn wakes(&self, client: Uuid) -> BoxStream<'static, Event> {
        let _ = client;
        stream::pending().boxed()
    }

    /// The keys of all records that begin with `prefix`, each once, in pages of some hundred: reading one must hold up
    /// no other client. They may be those of records that are not [in use](Ledger::is_in_use). If a store can do this,
    /// its capabilities say that it [lists](Capabilities::lists) what it has; by default, it cannot.
    fn keys<'a>(&'a self, prefix: &'a str) -> BoxStream<'a, Result<Vec<Arc<str>>, BackendError>> {
        let _ = prefix;
        stream::iter([Err(BackendError::no_list())]).boxed()
    }

    /// Yields whenever the holders in the record of this key may have changed, as far as the store can push that: see
    /// [`Backend::changes`]. By default, nothing is pushed.
    fn changes(&self, key: &Arc<str>) -> BoxStream<'static, ()> {
        let _ = key;
        stream::pending().boxed()
    }

    /// The store's address and what it supports. Labels are recorded in any case.
    fn capabilities(&self) -> Capabilities;

    /// Whether the store can currently be reached. A store without connections is always connected.
    fn state(&self) -> StoreState {
        StoreState::of(vec![NodeState::new(self.capabilities().store, Status::Connected)])
    }

    /// A stream of state changes; if several follow each other quickly, only the last is reported. It need not end.
    fn state_changes(&self) -> BoxStream<'static, StoreState> {
        stream::pending().boxed()
    }

    /// Whether the store can have been sent anything. Set this before the first change is run, and never reset it.
    /// Until then, releases are answered without asking the store, and requests that are dropped change nothing when
    /// they are run later.
    fn was_reached(&self) -> bool {
        true
    }

    /// Returns when the store has answered.
    fn ping(&self) -> impl Future<Output = Result<(), BackendError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Checks the servers of the store for problems and risky settings.
    fn check(&self) -> impl Future<Output = Result<Vec<Finding>, BackendError>> + Send {
        std::future::ready(Ok(Vec::new()))
    }

    /// Closes connections and ends background work.
    fn close(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// A full [`Backend`] on a [`LedgerStore`].
///
/// ```
/// use leasehold::backend::{LedgerBackend, LedgerStore};
///
/// /// A client of any such store: see `LedgerStore` for one.
/// fn client_of<S: LedgerStore>(store: S) -> leasehold::Client {
///     leasehold::Client::with_backend(std::sync::Arc::new(LedgerBackend::on(store)))
/// }
/// ```
pub struct LedgerBackend<S> {
    store: S,
    client: Uuid,
    capabilities: Capabilities,
    /// For events that result from this client's own changes.
    own: Arc<Mutex<EventSender>>,
    closing: Closing,
}

impl<S: LedgerStore> LedgerBackend<S> {
    /// A client of `store`.
    #[must_use]
    pub fn on(store: S) -> Self {
        let (client, capabilities) = (Uuid::new_v4(), store.capabilities());
        let capabilities = Capabilities { labels: true, ..capabilities };
        Self { store, client, capabilities, own: Arc::default(), closing: Closing::default() }
    }

    /// The same, as one of several nodes: all of them have the same client.
    #[cfg(all(test, feature = "_redis"))]
    pub(super) fn for_client(store: S, client: Uuid) -> Self {
        Self { client, ..Self::on(store) }
    }

    /// The store.
    #[must_use]
    pub const fn store(&self) -> &S {
        &self.store
    }

    async fn change<T: Send + 'static>(
        &self,
        key: &Arc<str>,
        mut change: impl FnMut(&mut Ledger, Stamp, &mut Effects) -> T + Send + 'static,
    ) -> Result<T, BackendError> {
        let (client, own) = (self.client, OwnEvents::of(&self.own));
        let changed = own.clone();
        let transaction = self.transact(slice::from_ref(key), move |_, ledger, stamp| {
            let mut effects = Effects::default();
            let outcome = change(ledger, stamp, &mut effects);
            let is_own = |event: &mut Event| event.lease().is_some_and(|lease| lease.client() == client);
            changed.run(effects.events.extract_if(.., is_own).collect());
            (outcome, effects)
        });
        let own = guard(own, OwnEvents::give_up);
        let Some(outcome) = transaction.await?.pop() else {
            return Err(BackendError::Unanswered { source: "the store returned no result".into() });
        };
        ScopeGuard::into_inner(own).send();
        Ok(outcome)
    }

    async fn transact<T: Send + 'static>(
        &self,
        keys: &[Arc<str>],
        change: impl FnMut(usize, &mut Ledger, Stamp) -> (T, Effects) + Send + 'static,
    ) -> Result<Vec<T>, BackendError> {
        if self.closing.is_closed() {
            return Err(BackendError::Closed);
        }
        self.store.transact(keys, change).await
    }

    /// Renews leases of several keys in one transaction; if one of their records cannot be read, one key at a time.
    async fn renew_together(&self, renewals: Vec<OfKey>) -> Vec<Answered> {
        let answer = self.renew_at_once(&renewals).await;
        if renewals.len() == 1 || !matches!(answer, Err(BackendError::WrongType { .. })) {
            return answered(&renewals, answer);
        }
        let each = renewals.chunks(1).map(|one| async { answered(one, self.renew_at_once(one).await) });
        each.collect::<FuturesUnordered<_>>().flat_map(stream::iter).collect().await
    }

    async fn renew_at_once(&self, renewals: &[OfKey]) -> Result<Vec<(usize, Renewal)>, BackendError> {
        let keys: Vec<_> = renewals.iter().map(|(key, _)| Arc::clone(key)).collect();
        let asked: Vec<_> = renewals.iter().map(|(_, of_key)| of_key.clone()).collect();
        let renew = move |key: usize, ledger: &mut Ledger, stamp| {
            let answer = |(n, renew): &(usize, Renew)| (*n, ledger.renew(renew, stamp));
            (asked[key].iter().map(answer).collect::<Vec<_>>(), Effects::default())
        };
        Ok(self.transact(&keys, renew).await?.into_iter().flatten().collect())
    }

    /// What is held or awaited under these keys. Records that cannot be read are left out: they are other programs'.
    async fn look_at(&self, keys: &[Arc<str>]) -> Vec<Result<Listed, BackendError>> {
        let listed = match self.look_at_once(keys).await {
            Err(BackendError::WrongType { .. }) if keys.len() > 1 => {
                let each = keys.chunks(1).map(|key| self.look_at_once(key));
                each.collect::<FuturesUnordered<_>>().collect().await
            }
            listed => vec![listed],
        };
        let readable = listed.into_iter().filter(|one| !matches!(one, Err(BackendError::WrongType { .. })));
        let each = readable.map(|listed| match listed {
            Ok(listed) => listed.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error)],
        });
        each.flat_map(Vec::into_iter).collect()
    }

    async fn look_at_once(&self, keys: &[Arc<str>]) -> Result<Vec<Listed>, BackendError> {
        let of: Vec<_> = keys.to_vec();
        let look = move |n: usize, ledger: &mut Ledger, stamp| {
            let mut effects = Effects::default();
            (ledger.list(&of[n], stamp, &mut effects), effects)
        };
        Ok(self.transact(keys, look).await?.into_iter().flatten().collect())
    }

    async fn release_all_but(&self, lease: &LeaseRef, keep: u32) -> Result<Released, BackendError> {
        if !self.store.was_reached() {
            return if self.closing.is_closed() { Err(BackendError::Closed) } else { Ok(Released::Absent) };
        }
        let asked = lease.clone();
        let release = move |ledger: &mut Ledger, stamp, effects: &mut Effects| {
            ledger.release(&asked, keep, stamp, effects)
        };
        self.change(&lease.resource.key, release).await?
    }
}

/// Implements [`Backend`] for the type of one of this crate's stores, whose only field is a [`LedgerBackend`]. Each
/// store has such a type, so that its constructors are on a page of their own.
macro_rules! backend_on_ledger {
    ($name:ident) => {
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }

        const _: () = {
            use std::time::Duration;

            use futures::future::BoxFuture;
            use futures::stream::BoxStream;

            use $crate::backend::*;

            impl Backend for $name {
                delegate! {
                    0: lease_id request renew release release_permits force_release set_limit inspect list events
                    changes capabilities state state_changes ping check close
                }
            }
        };
    };
}
pub(super) use backend_on_ledger;

/// For the builders of this crate's stores.
#[cfg(any(feature = "_records", feature = "sqlite"))]
impl<S: LedgerStore> LedgerBackend<S> {
    /// A client of a store that was to be started, or why it was not.
    pub(super) fn started(store: std::io::Result<S>, address: &str) -> Result<Self, crate::Error> {
        store.map(Self::on).map_err(|error| {
            let error = BackendError::NotSent { source: error.into() };
            crate::Error::from_backend(error, "connect", None, address)
        })
    }

    pub(super) fn connect_error(&self, error: BackendError) -> crate::Error {
        crate::Error::from_backend(error, "connect", None, &self.capabilities.store)
    }
}

/// The events for the client itself that a change has caused when it was run last. They are sent when it is certain that
/// it was stored. If its caller is gone by then, or does not learn of it, the leases are asked for again instead: a store
/// carries that out after the change.
#[derive(Clone)]
struct OwnEvents(Arc<Mutex<Caused>>);

struct Caused {
    events: Vec<Event>,
    is_given_up: bool,
    sender: Arc<Mutex<EventSender>>,
}

impl OwnEvents {
    fn of(sender: &Arc<Mutex<EventSender>>) -> Self {
        let (events, is_given_up, sender) = (Vec::new(), false, Arc::clone(sender));
        Self(Arc::new(Mutex::new(Caused { events, is_given_up, sender })))
    }

    /// The change was run. These take the place of what an earlier run has caused, which was not stored.
    fn run(&self, events: Vec<Event>) {
        let mut caused = self.0.lock();
        caused.events = events;
        if caused.is_given_up {
            caused.ask_again();
        }
    }

    /// The change is stored.
    fn send(self) {
        let mut caused = self.0.lock();
        caused.send(|event| event);
    }

    /// Nobody learns whether the change is stored.
    fn give_up(self) {
        let mut caused = self.0.lock();
        caused.is_given_up = true;
        caused.ask_again();
    }
}

impl Caused {
    fn ask_again(&mut self) {
        self.send(|event| event.lease().map_or(Event::Resync, Event::AskAgain));
    }

    fn send(&mut self, instead: impl Fn(Event) -> Event) {
        if !self.events.is_empty() {
            let sender = self.sender.lock();
            self.events.drain(..).map(instead).for_each(|event| sender.send(event));
        }
    }
}

/// Renewals of the leases of one key, each with its index.
type OfKey = (Arc<str>, Vec<(usize, Renew)>);

/// The renewals by key, in the order of the keys.
fn by_key(renewals: &[Renew]) -> Vec<OfKey> {
    let mut keys = BTreeMap::<_, Vec<_>>::new();
    for (n, renew) in renewals.iter().enumerate() {
        keys.entry(&renew.lease.resource.key).or_default().push((n, renew.clone()));
    }
    keys.into_iter().map(|(key, of_key)| (Arc::clone(key), of_key)).collect()
}

/// The answer to each of them: its own, or the error that is the same for all.
fn answered(renewals: &[OfKey], answer: Result<Vec<(usize, Renewal)>, BackendError>) -> Vec<Answered> {
    match answer {
        Ok(answers) => answers.into_iter().map(|(n, renewal)| (n, Ok(renewal))).collect(),
        Err(error) => {
            let all = renewals.iter().flat_map(|(_, of_key)| of_key);
            all.map(|(n, _)| (*n, Err(error.clone()))).collect()
        }
    }
}

impl<S: LedgerStore> Backend for LedgerBackend<S> {
    fn lease_id(&self) -> LeaseId {
        LeaseId::next(self.client)
    }

    fn request<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<Answer, BackendError>> {
        async move {
            // Shared, because each of the futures below has room for it twice.
            let (asked, key) = (Arc::new(request.clone()), &request.lease.resource.key);
            let (is_early, wanted) = (!self.store.was_reached(), Arc::new(()));
            let wish = Arc::downgrade(&wanted);
            let change = move |ledger: &mut Ledger, stamp, effects: &mut Effects| {
                // It was dropped before the store was reached, and its release may have been answered by then.
                if is_early && wish.strong_count() == 0 {
                    return Ok(Answer::Busy { limit: None });
                }
                effects.requests.push(Arc::clone(&asked));
                ledger.request(&asked, stamp, effects)
            };
            let mut answer = self.change(key, change).await??;
            drop(wanted);
            if let (Answer::Queued(queued), Wakes::Polled(interval)) = (&mut answer, self.capabilities.wakes)
            {
                queued.ask_again_in = Some(queued.ask_again_in.map_or(interval, |pause| pause.min(interval)));
            }
            Ok(answer)
        }
        .boxed()
    }

    fn renew<'a>(&'a self, renewals: &'a [Renew]) -> BoxStream<'a, Answered> {
        let mut keys = by_key(renewals).into_iter();
        let together = std::iter::from_fn(move || {
            let together: Vec<_> = keys.by_ref().take(S::MAX_KEYS).collect();
            (!together.is_empty()).then(|| self.renew_together(together))
        });
        together.collect::<FuturesUnordered<_>>().flat_map(stream::iter).boxed()
    }

    fn release<'a>(&'a self, lease: &'a LeaseRef) -> BoxFuture<'a, Result<Released, BackendError>> {
        self.release_all_but(lease, 0).boxed()
    }

    fn release_permits<'a>(
        &'a self,
        lease: &'a LeaseRef,
        keep: u32,
    ) -> BoxFuture<'a, Result<Released, BackendError>> {
        self.release_all_but(lease, keep).boxed()
    }

    fn force_release<'a>(&'a self, resource: &'a Resource) -> BoxFuture<'a, Result<bool, BackendError>> {
        async move {
            let asked = resource.clone();
            self.change(&resource.key, move |ledger, stamp, effects| {
                ledger.force_release(&asked, stamp, effects)
            })
            .await?
        }
        .boxed()
    }

    fn set_limit<'a>(
        &'a self,
        resource: &'a Resource,
        permits: u32,
        ttl: Duration,
    ) -> BoxFuture<'a, Result<Limit, BackendError>> {
        async move {
            let asked = resource.clone();
            self.change(&resource.key, move |ledger, stamp, effects| {
                ledger.set_limit(&asked, permits, ttl, stamp, effects)
            })
            .await?
        }
        .boxed()
    }

    fn inspect<'a>(
        &'a self,
        resource: &'a Resource,
        detail: Detail,
    ) -> BoxFuture<'a, Result<Inspection, BackendError>> {
        async move {
            let asked = resource.clone();
            self.change(&resource.key, move |ledger, stamp, effects| {
                ledger.inspect(&asked, detail, stamp, effects)
            })
            .await?
        }
        .boxed()
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxStream<'a, Result<Listed, BackendError>> {
        if self.closing.is_closed() {
            return stream::iter([Err(BackendError::Closed)]).boxed();
        }
        let pages = self.store.keys(prefix).then(|page| async {
            let mut keys = match page {
                Ok(keys) => keys,
                Err(error) => return stream::iter(vec![Err(error)]),
            };
            keys.sort_unstable();
            let mut listed = Vec::new();
            for keys in keys.chunks(S::MAX_KEYS) {
                listed.extend(self.look_at(keys).await);
            }
            stream::iter(listed)
        });
        pages.flatten().boxed()
    }

    fn events(&self) -> BoxStream<'static, Event> {
        let events = self.own.lock().open();
        stream::select(events, self.store.wakes(self.client)).boxed()
    }

    fn changes(&self, resource: &Resource) -> BoxStream<'static, ()> {
        self.store.changes(&resource.key)
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn state(&self) -> StoreState {
        self.store.state()
    }

    fn state_changes(&self) -> BoxStream<'static, StoreState> {
        self.store.state_changes()
    }

    fn ping(&self) -> BoxFuture<'_, Result<(), BackendError>> {
        self.store.ping().boxed()
    }

    fn check(&self) -> BoxFuture<'_, Result<Vec<Finding>, BackendError>> {
        self.store.check().boxed()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        async {
            self.closing.close();
            self.store.close().await;
        }
        .boxed()
    }
}

#[cfg(all(test, feature = "_redis"))]
impl<S: LedgerStore> super::redlock::Node for LedgerBackend<S> {
    fn request_from<'a>(
        &'a self,
        request: &'a Request,
        proposed: crate::fence::FencingToken,
    ) -> BoxFuture<'a, Result<Answer, BackendError>> {
        let asked = request.clone();
        let key = &request.lease.resource.key;
        async move {
            self.change(key, move |ledger, stamp, effects| {
                let floor = stamp.floor.max(proposed.get());
                ledger.request(&asked, Stamp { floor, ..stamp }, effects)
            })
            .await?
        }
        .boxed()
    }

    fn settle<'a>(
        &'a self,
        lease: &'a LeaseRef,
        token: crate::fence::FencingToken,
    ) -> BoxFuture<'a, Result<bool, BackendError>> {
        let id = lease.id;
        self.change(&lease.resource.key, move |ledger, stamp, _| ledger.settle(id, token, stamp)).boxed()
    }
}

impl<S: fmt::Debug> fmt::Debug for LedgerBackend<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LedgerBackend").field("store", &self.store).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tokio::sync::Semaphore;
    use tokio::time::timeout;

    use super::*;
    use crate::backend::MemoryBackend;
    use crate::backend::memory::MemoryStore;

    const TTL: Duration = Duration::from_secs(10);
    const UNREADABLE: &str = "unreadable";

    /// The keys of each transaction.
    type Transactions = Arc<Mutex<Vec<Vec<Arc<str>>>>>;

    /// A store in memory that notes the keys of each transaction, and cannot read the record of one key.
    #[derive(Debug)]
    struct Noting {
        store: MemoryStore,
        transactions: Transactions,
    }

    impl LedgerStore for Noting {
        async fn transact<T: Send + 'static>(
            &self,
            keys: &[Arc<str>],
            change: impl FnMut(usize, &mut Ledger, Stamp) -> (T, Effects) + Send + 'static,
        ) -> Result<Vec<T>, BackendError> {
            self.transactions.lock().push(keys.to_vec());
            if keys.iter().any(|key| &**key == UNREADABLE) {
                return Err(BackendError::WrongType { source: "it is no record".into() });
            }
            self.store.transact(keys, change).await
        }

        fn capabilities(&self) -> Capabilities {
            self.store.capabilities()
        }
    }

    fn backend() -> (LedgerBackend<Noting>, Transactions) {
        let (memory, transactions) = (MemoryBackend::new(), Transactions::default());
        let observing = Noting { store: memory.store().clone(), transactions: Arc::clone(&transactions) };
        (LedgerBackend::on(observing), transactions)
    }

    fn lease(backend: &impl Backend, key: &str, kind: Kind) -> LeaseRef {
        LeaseRef::new(backend.lease_id(), Resource::new(key, kind))
    }

    /// Requests leases of these keys, two of each, and returns the renewals of all of them.
    async fn hold(backend: &impl Backend, keys: impl Iterator<Item = String>) -> Vec<Renew> {
        let mut renewals = Vec::new();
        for key in keys.flat_map(|key| [key.clone(), key]) {
            let lease = lease(backend, &key, Kind::Counting);
            let request = Request::new(lease.clone(), Claim::Permits(1, Limit::stated(2)), TTL);
            let answer = backend.request(&request).await.unwrap();
            assert!(matches!(answer, Answer::Granted(_)), "{answer:?}");
            renewals.push(Renew::new(lease, TTL));
        }
        renewals
    }

    #[tokio::test]
    async fn many_leases_are_renewed_by_few_transactions_on_sorted_keys() {
        let (backend, transactions) = backend();
        let mut renewals = hold(&backend, (0..300).map(|n| n.to_string())).await;
        let gone = renewals.len();
        renewals.push(Renew::new(lease(&backend, "0", Kind::Counting), TTL));
        transactions.lock().clear();
        let answers: Vec<_> = backend.renew(&renewals).collect().await;
        let answered: BTreeSet<_> = answers.iter().map(|(n, _)| *n).collect();
        assert_eq!((answers.len(), answered.len()), (renewals.len(), renewals.len()));
        for (n, answer) in answers {
            let is_renewed = matches!(answer, Ok(Renewal::Renewed));
            assert_eq!(is_renewed, n != gone, "{n}: {answer:?}");
        }
        let sizes: Vec<_> = transactions.lock().iter().map(Vec::len).collect();
        assert_eq!(sizes, [128, 128, 44]);
        assert!(transactions.lock().iter().all(|keys| keys.is_sorted_by(|a, b| a < b)));
    }

    #[tokio::test]
    async fn an_unreadable_record_affects_no_other_lease() {
        let (backend, transactions) = backend();
        let mut renewals = hold(&backend, (0..3).map(|n| n.to_string())).await;
        renewals.insert(2, Renew::new(lease(&backend, UNREADABLE, Kind::Counting), TTL));
        transactions.lock().clear();
        let answers: Vec<_> = backend.renew(&renewals).collect().await;
        assert_eq!(answers.len(), renewals.len());
        for (n, answer) in answers {
            match answer {
                Err(BackendError::WrongType { .. }) => assert_eq!(n, 2),
                answer => assert!(matches!(answer, Ok(Renewal::Renewed)) && n != 2, "{n}: {answer:?}"),
            }
        }
        assert_eq!(transactions.lock().len(), 1 + 4);
    }

    /// A store in memory that runs each change when it has a permit, on a task of its own, and answers when it has
    /// another one.
    #[derive(Debug)]
    struct InSteps {
        store: MemoryStore,
        steps: Arc<Semaphore>,
    }

    impl LedgerStore for InSteps {
        async fn transact<T: Send + 'static>(
            &self,
            keys: &[Arc<str>],
            change: impl FnMut(usize, &mut Ledger, Stamp) -> (T, Effects) + Send + 'static,
        ) -> Result<Vec<T>, BackendError> {
            let (store, steps, keys) = (self.store.clone(), Arc::clone(&self.steps), keys.to_vec());
            let running = tokio::spawn(async move {
                steps.acquire().await.unwrap().forget();
                let changed = store.transact(&keys, change).await;
                steps.acquire().await.unwrap().forget();
                changed
            });
            running.await.unwrap()
        }

        fn capabilities(&self) -> Capabilities {
            self.store.capabilities()
        }
    }

    #[tokio::test]
    async fn whoever_is_granted_by_a_release_that_nobody_awaits_is_asked_for_again() {
        for steps_before_the_drop in 0..=1 {
            let steps = Arc::new(Semaphore::new(4));
            let store = MemoryBackend::new().store().clone();
            let backend = LedgerBackend::on(InSteps { store, steps: Arc::clone(&steps) });
            let mut events = backend.events();
            let [held, waiting] = [(); 2].map(|()| lease(&backend, "one", Kind::Mutex));
            let request = Request::new(held.clone(), Claim::Sole, TTL);
            assert!(matches!(backend.request(&request).await, Ok(Answer::Granted(_))));
            let mut request = Request::new(waiting.clone(), Claim::Sole, TTL);
            request.waits = true;
            assert!(matches!(backend.request(&request).await, Ok(Answer::Queued(_))));
            let release = backend.release(&held);
            steps.add_permits(steps_before_the_drop);
            let not_done = timeout(Duration::from_millis(50), release).await;
            assert!(not_done.is_err(), "{not_done:?}");
            steps.add_permits(2 - steps_before_the_drop);
            let event = timeout(TTL, events.next()).await.expect("it is told");
            assert!(matches!(event, Some(Event::AskAgain(lease)) if lease == waiting.id), "{event:?}");
            steps.add_permits(2);
            assert!(matches!(backend.request(&request).await, Ok(Answer::Granted(_))));
        }
    }
}
