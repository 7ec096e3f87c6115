//! Both semaphores behind one trait and both stores behind one type, so that a promise is written once and kept by
//! all of them; and what their tests have in common.

// Each of the binaries that include this uses a part.
#![allow(dead_code)]

use std::fmt;
use std::future::{Future, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use futures::future::join_all;
use leasehold::backend::Kind;
use leasehold::{
    Client, CountingSemaphore, Error, FairSemaphore, FencingToken, Guard, Inspection, LossReason,
    MemoryBackend, SemaphoreOptions,
};
use tokio::task::JoinHandle;

use leasehold_support::{RedisServer, eventually, permits_passed_on, within};

pub(crate) const NAME: &str = "slow-service";

pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// A deadline for what should happen at once. Shorter than a third of the default lease, so that nothing can
/// meet it just because a request is repeated.
pub(crate) const SOON: Duration = Duration::from_secs(5);
/// How much later than promised something may be, on a machine that has so much else to do that a process may have to
/// wait for a second until it runs.
pub(crate) const SLACK: Duration = Duration::from_secs(2);

pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

// The two kinds

/// What both kinds can do, word for word.
pub(crate) trait Semaphore: Clone + fmt::Debug + Send + Sync + 'static {
    const KIND: Kind;
    /// The default prefix of the name.
    const PREFIX: &'static str;

    /// In the way of this run.
    fn make(client: &Client, name: &str, limit: u32, options: SemaphoreOptions) -> Result<Self, Error>;
    /// One on which every request has a place of its own in the store's queue, whatever the rest of the run tests.
    fn strict(client: &Client, name: &str, limit: u32, options: SemaphoreOptions) -> Self;
    fn name(&self) -> &str;
    fn limit(&self) -> u32;
    fn acquire(&self) -> impl Future<Output = Result<Guard, Error>> + Send;
    fn acquire_many(&self, permits: u32) -> impl Future<Output = Result<Guard, Error>> + Send;
    fn try_acquire(&self) -> impl Future<Output = Result<Option<Guard>, Error>> + Send;
    fn try_acquire_many(&self, permits: u32) -> impl Future<Output = Result<Option<Guard>, Error>> + Send;
    fn acquire_timeout(&self, time_limit: Duration) -> impl Future<Output = Result<Guard, Error>> + Send;
    fn acquire_many_timeout(
        &self,
        permits: u32,
        time_limit: Duration,
    ) -> impl Future<Output = Result<Guard, Error>> + Send;
    fn available(&self) -> impl Future<Output = Result<u32, Error>> + Send;
    fn inspect(&self) -> impl Future<Output = Result<Inspection, Error>> + Send;
    fn resize(&self, limit: u32) -> impl Future<Output = Result<(), Error>> + Send;

    /// The semaphore of the tests, with default options.
    fn of(client: &Client, limit: u32) -> Self {
        Self::named(client, NAME, limit)
    }

    fn named(client: &Client, name: &str, limit: u32) -> Self {
        Self::make(client, name, limit, SemaphoreOptions::new()).expect("valid")
    }

    /// The semaphore of the tests, with leases of this length.
    fn leased(client: &Client, limit: u32, lease: Duration) -> Self {
        Self::with(client, limit, SemaphoreOptions::new().ttl(lease))
    }

    fn with(client: &Client, limit: u32, options: SemaphoreOptions) -> Self {
        Self::make(client, NAME, limit, options).expect("valid")
    }

    /// A semaphore whose holders notice within a few milliseconds what happened in the store, while their leases last
    /// for longer than any test waits.
    fn attentive(client: &Client, limit: u32) -> Self {
        Self::with(client, limit, SemaphoreOptions::new().renewal_period(ms(20)))
    }
}

macro_rules! semaphore {
    ($type:ident, $kind:expr, $prefix:literal, $make:ident) => {
        impl Semaphore for $type {
            const KIND: Kind = $kind;
            const PREFIX: &'static str = $prefix;

            fn make(c: &Client, name: &str, limit: u32, options: SemaphoreOptions) -> Result<Self, Error> {
                c.$make(name, limit, options.local_handover($kind == Kind::Counting && permits_passed_on()))
            }

            fn strict(client: &Client, name: &str, limit: u32, options: SemaphoreOptions) -> Self {
                client.$make(name, limit, options).expect("valid")
            }

            fn name(&self) -> &str {
                $type::name(self)
            }

            fn limit(&self) -> u32 {
                $type::limit(self)
            }

            async fn acquire(&self) -> Result<Guard, Error> {
                $type::acquire(self).await
            }

            async fn acquire_many(&self, permits: u32) -> Result<Guard, Error> {
                $type::acquire_many(self, permits).await
            }

            async fn try_acquire(&self) -> Result<Option<Guard>, Error> {
                $type::try_acquire(self).await
            }

            async fn try_acquire_many(&self, permits: u32) -> Result<Option<Guard>, Error> {
                $type::try_acquire_many(self, permits).await
            }

            async fn acquire_timeout(&self, time_limit: Duration) -> Result<Guard, Error> {
                $type::acquire_timeout(self, time_limit).await
            }

            async fn acquire_many_timeout(&self, permits: u32, time_limit: Duration) -> Result<Guard, Error> {
                $type::acquire_many_timeout(self, permits, time_limit).await
            }

            async fn available(&self) -> Result<u32, Error> {
                $type::available(self).await
            }

            async fn inspect(&self) -> Result<Inspection, Error> {
                $type::inspect(self).await
            }

            async fn resize(&self, limit: u32) -> Result<(), Error> {
                $type::resize(self, limit).await
            }
        }
    };
}

semaphore!(CountingSemaphore, Kind::Counting, "semaphore:", counting_semaphore_with);
semaphore!(FairSemaphore, Kind::Fair, "fair-semaphore:", fair_semaphore_with);

// The two stores

/// A store, and how its clients come to it.
#[derive(Debug)]
pub(crate) enum Site {
    Memory(MemoryBackend),
    Redis(RedisServer),
}

impl Site {
    pub(crate) fn memory() -> Self {
        Self::Memory(MemoryBackend::new())
    }

    #[track_caller]
    pub(crate) fn redis(left_out: &str) -> Option<Self> {
        RedisServer::start_or_skip(left_out).map(Self::Redis)
    }

    /// A client, as another process would have one.
    pub(crate) async fn client(&self) -> Client {
        match self {
            Self::Memory(store) => Client::with_backend(Arc::new(store.peer())),
            Self::Redis(server) => connect(&server.url()).await,
        }
    }

    pub(crate) async fn clients<const N: usize>(&self) -> [Client; N] {
        let clients = join_all((0..N).map(|_| self.client())).await;
        clients.try_into().expect("as many as asked for")
    }

    /// The store itself, where it is in this process.
    pub(crate) fn store(&self) -> &MemoryBackend {
        let Self::Memory(store) = self else { panic!("not on memory: {self:?}") };
        store
    }

    /// The server, where there is one.
    pub(crate) fn server(&self) -> &RedisServer {
        let Self::Redis(server) = self else { panic!("no server: {self:?}") };
        server
    }

    /// A lease that is as short as it can be if nothing is to be lost by accident, on a machine that has other things
    /// to do.
    pub(crate) const fn brief_lease(&self) -> Duration {
        match self {
            Self::Memory(_) => SECOND,
            Self::Redis(_) => Duration::from_secs(3),
        }
    }

    /// Makes the store forget everything, as a restart without disk does.
    pub(crate) fn flush(&self) {
        match self {
            Self::Memory(store) => store.flush(),
            Self::Redis(server) => drop(server.raw().send(&["FLUSHALL"])),
        }
    }
}

/// A client of the server at `url`. Connecting takes two seconds at most, which is not much for a server that has to
/// wait until it runs.
pub(crate) async fn connect(url: &str) -> Client {
    for _ in 0..4 {
        match Client::connect(url).await {
            Err(Error::StoreUnavailable { .. }) => {}
            client => return client.expect("the server accepts clients"),
        }
    }
    panic!("no server at {url}");
}

// Requests

/// A request, in a task of its own.
pub(crate) fn waiter<S: Semaphore>(semaphore: &S, permits: u32) -> JoinHandle<Guard> {
    let semaphore = semaphore.clone();
    tokio::spawn(async move { semaphore.acquire_many(permits).await.expect("granted") })
}

/// A request that is queued behind `ahead` others.
pub(crate) async fn queued<S: Semaphore>(semaphore: &S, permits: u32, ahead: usize) -> JoinHandle<Guard> {
    let waiter = waiter(semaphore, permits);
    until_waiting(semaphore, ahead + 1).await;
    waiter
}

/// Requests that are queued in this order, and no others.
pub(crate) async fn queue_up<S: Semaphore>(semaphores: &[S], sizes: &[u32]) -> Vec<JoinHandle<Guard>> {
    let mut waiters = Vec::new();
    for (i, permits) in sizes.iter().enumerate() {
        waiters.push(queued(&semaphores[i % semaphores.len()], *permits, i).await);
    }
    waiters
}

pub(crate) async fn granted(waiter: JoinHandle<Guard>) -> Guard {
    within(SOON, waiter).await.expect("the waiter did not panic")
}

/// The guard that a request got at once or not at all.
pub(crate) async fn taken<S: Semaphore>(semaphore: &S, permits: u32) -> Guard {
    within(SOON, semaphore.try_acquire_many(permits)).await.expect("answered").expect("free")
}

/// This many permits are not available now.
pub(crate) async fn assert_none<S: Semaphore>(semaphore: &S, permits: u32) {
    let taken = within(SOON, semaphore.try_acquire_many(permits)).await.expect("answered");
    assert!(taken.is_none(), "granted: {taken:?}");
}

pub(crate) async fn give_back(guards: impl IntoIterator<Item = Guard>) {
    for guard in guards {
        guard.release().await.expect("held to the end");
    }
}

/// Waits until the guard's lease is renewed: only that increases its remaining time.
#[track_caller]
pub(crate) fn renewed(guard: &Guard) -> impl Future<Output = ()> {
    let mut last = guard.remaining();
    eventually(SOON, move || {
        let now = guard.remaining();
        ready(now > std::mem::replace(&mut last, now))
    })
}

// What the store says

/// How many permits each waiter wants, in order.
pub(crate) async fn queued_permits<S: Semaphore>(semaphore: &S) -> Vec<u32> {
    let now = semaphore.inspect().await.expect("inspected");
    now.waiters.iter().map(|waiter| waiter.permits).collect()
}

/// How many permits each holder has, the smallest first.
pub(crate) async fn holds<S: Semaphore>(semaphore: &S) -> Vec<u32> {
    let now = semaphore.inspect().await.expect("inspected");
    let mut sizes: Vec<_> = now.holders.iter().map(|holder| holder.permits).collect();
    assert_eq!(now.in_use, sizes.iter().sum::<u32>());
    sizes.sort_unstable();
    sizes
}

pub(crate) async fn free<S: Semaphore>(semaphore: &S) -> u32 {
    semaphore.available().await.expect("answered")
}

/// Waits until `n` requests are queued. A process may have to be started for that.
#[track_caller]
pub(crate) fn until_waiting<S: Semaphore>(semaphore: &S, n: usize) -> impl Future<Output = ()> {
    let is_so = move || async move { semaphore.inspect().await.is_ok_and(|now| now.waiters.len() == n) };
    eventually(SOON * 2, is_so)
}

/// Neither a holder nor a waiter is left within a second.
#[track_caller]
pub(crate) fn nothing_is_left<S: Semaphore>(semaphore: &S) -> impl Future<Output = ()> {
    eventually(
        SECOND + SLACK,
        move || async move { semaphore.inspect().await.is_ok_and(|now| is_empty(&now)) },
    )
}

pub(crate) fn is_empty(now: &Inspection) -> bool {
    now.holders.is_empty() && now.waiters.is_empty() && now.in_use == 0
}

/// Waits until this many permits are free.
#[track_caller]
pub(crate) fn becomes_free<S: Semaphore>(semaphore: &S, permits: u32) -> impl Future<Output = ()> {
    eventually(SOON, move || async move { semaphore.available().await.is_ok_and(|free| free == permits) })
}

// Errors

#[track_caller]
pub(crate) fn assert_lost<T: fmt::Debug>(outcome: Result<T, Error>, expected: LossReason) {
    let Err(Error::Lost { reason, .. }) = &outcome else { panic!("expected a loss, got {outcome:?}") };
    assert_eq!(*reason, expected);
}

#[track_caller]
pub(crate) fn assert_invalid<T: fmt::Debug>(outcome: Result<T, Error>, expected: &str) {
    let Err(Error::InvalidArgument { argument: what, .. }) = &outcome else {
        panic!("expected InvalidArgument, got {outcome:?}");
    };
    assert_eq!(*what, expected);
}

#[track_caller]
pub(crate) fn assert_timed_out<T: fmt::Debug>(outcome: Result<T, Error>) {
    assert!(matches!(outcome, Err(Error::TimedOut { .. })), "expected a timeout, got {outcome:?}");
}

#[track_caller]
pub(crate) fn assert_closed<T: fmt::Debug>(outcome: Result<T, Error>) {
    assert!(matches!(outcome, Err(Error::Closed { .. })), "expected Closed, got {outcome:?}");
}

/// The key holds something else.
#[track_caller]
pub(crate) fn assert_refused<T: fmt::Debug>(outcome: Result<T, Error>) {
    assert!(
        matches!(outcome, Err(Error::StoreRefused { .. })),
        "expected a refusal by the store, got {outcome:?}"
    );
}

#[track_caller]
pub(crate) fn assert_differs<T: fmt::Debug>(outcome: Result<T, Error>, limits: (u32, u32)) {
    let Err(error @ Error::LimitDiffers { .. }) = &outcome else {
        panic!("expected LimitDiffers, got {outcome:?}");
    };
    let text = error.to_string();
    let Error::LimitDiffers { name, stated, in_force, .. } = error else { unreachable!("matched above") };
    assert_eq!((name.as_str(), (*stated, *in_force)), (NAME, limits));
    for word in [NAME.to_owned(), stated.to_string(), in_force.to_string()] {
        assert!(text.contains(&word), "{word} is not named: {text}");
    }
}

// Who is inside, and under which tokens

/// Counts the permits in use by those who believe they hold them, and fails if there are too many.
#[derive(Debug)]
pub(crate) struct Inside {
    limit: u32,
    now: AtomicU32,
    most: AtomicU32,
    clock: AtomicU64,
}

/// One grant: when it was asked for and when it came, in steps of a clock that all tasks share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granted {
    asked: u64,
    came: u64,
    token: FencingToken,
}

impl Inside {
    pub(crate) fn new(limit: u32) -> Arc<Self> {
        let (now, most) = (AtomicU32::new(0), AtomicU32::new(0));
        Arc::new(Self { limit, now, most, clock: AtomicU64::new(0) })
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// Waits for a grant and goes in.
    pub(crate) async fn enter(
        &self,
        request: impl Future<Output = Result<Guard, Error>>,
    ) -> (Guard, Granted) {
        let asked = self.tick();
        let guard = request.await.expect("granted");
        let granted = Granted { asked, came: self.tick(), token: guard.token() };
        self.count(guard.permits());
        (guard, granted)
    }

    pub(crate) fn count(&self, permits: u32) {
        let now = self.now.fetch_add(permits, Ordering::SeqCst) + permits;
        assert!(now <= self.limit, "{now} permits are in use, the limit is {}", self.limit);
        self.most.fetch_max(now, Ordering::SeqCst);
    }

    /// Before the permits are given back.
    pub(crate) fn leave(&self, permits: u32) {
        self.now.fetch_sub(permits, Ordering::SeqCst);
    }

    pub(crate) const fn limit(&self) -> u32 {
        self.limit
    }

    /// The most permits that were in use at a time.
    pub(crate) fn most(&self) -> u32 {
        self.most.load(Ordering::SeqCst)
    }
}

/// No token twice, and, unless permits are passed on within a client, each greater than those of all grants that had
/// come before it was asked for.
#[track_caller]
pub(crate) fn assert_tokens_grow(mut grants: Vec<Granted>) {
    let mut tokens: Vec<_> = grants.iter().map(|grant| grant.token).collect();
    tokens.sort_unstable();
    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "a token was given twice");
    if permits_passed_on() {
        return;
    }
    let mut came = grants.clone();
    came.sort_unstable_by_key(|grant| grant.came);
    grants.sort_unstable_by_key(|grant| grant.asked);
    let (mut earlier, mut newest) = (came.iter().peekable(), None);
    for grant in &grants {
        while let Some(before) = earlier.next_if(|before| before.came < grant.asked) {
            newest = newest.max(Some(before.token));
        }
        assert!(newest < Some(grant.token), "{grant:?} after {newest:?}");
    }
}

#[track_caller]
pub(crate) fn assert_grow(tokens: &[FencingToken]) {
    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "tokens do not grow: {tokens:?}");
}

/// Numbers that look random and are the same in every run.
#[derive(Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Less than `n`. (Knuth's linear congruential generator; its upper bits are the good ones.)
    pub(crate) fn below(&mut self, n: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from((self.0 >> 33) % u64::from(n)).expect("less than n")
    }

    pub(crate) fn index(&mut self, len: usize) -> usize {
        self.below(u32::try_from(len).expect("a short list")) as usize
    }
}

/// As a parameter.
pub(crate) fn size(n: usize) -> u32 {
    u32::try_from(n).expect("a small number")
}
