//! What `ReentrantLock` promises on a real Redis server, seen from one process. Several clients represent several
//! processes; what another library or an operator would do is sent by hand.
#![cfg(feature = "_redis")]

use std::future::{Future, ready};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use leasehold::backend::LeaseId;
use leasehold::{
    Client, DistMutex, Error, FencingToken, Guard, Inspection, LossReason, MutexOptions, ReentrantLock,
};
use leasehold_support::locks::*;
use leasehold_support::proxy::Request;
use leasehold_support::{Direction, Proxy, Raw, RedisServer, Reply, Setup, eventually, within};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};

const HOLDS: &str = "{lock:machine:42}:holds";
const OWNER: &str = "order-42";
const OTHER_OWNER: &str = "order-43";
/// Long enough that nothing here runs out by itself; and a third of it, after which a waiter asks again, is longer than
/// what may be called soon.
const LONG: Duration = Duration::from_secs(30);
/// Short, and long enough that a busy machine renews it in time.
const LEASE: Duration = Duration::from_secs(2);
/// More polls than any request takes.
const MANY: usize = 100;

/// A server, two clients in which the owner works, and one for everybody else.
struct Fixture {
    one: Client,
    two: Client,
    other: Client,
    server: RedisServer,
}

impl Fixture {
    async fn set_up(left_out: &str) -> Option<Self> {
        Self::set_up_with(left_out, Setup::default()).await
    }

    async fn set_up_with(left_out: &str, setup: Setup) -> Option<Self> {
        let server = RedisServer::start_with_or_skip(left_out, setup)?;
        let url = server.url();
        let (one, two, other) = tokio::join!(connect(&url), connect(&url), connect(&url));
        Some(Self { one, two, other, server })
    }

    /// The lock for the owner, in each of its clients.
    fn owners(&self) -> [ReentrantLock; 2] {
        [&self.one, &self.two].map(|client| owned(client, OWNER, LONG))
    }

    fn other_owner(&self) -> ReentrantLock {
        owned(&self.other, OTHER_OWNER, LONG)
    }

    /// With a place of its own in the store's queue for every waiter, as reentrant locks have.
    fn mutex(&self) -> DistMutex {
        queued_mutex(&self.other, LONG)
    }

    /// The owner, in both of its clients.
    async fn both_in(&self) -> [Guard; 2] {
        let [one, two] = self.owners();
        let guards = [enter(&one).await, enter(&two).await];
        assert_eq!(guards[0].token(), guards[1].token());
        guards
    }

    async fn inspect(&self) -> Inspection {
        self.mutex().inspect().await.expect("inspected")
    }

    /// The lock is held under `n` leases within a second.
    #[track_caller]
    fn holding(&self, n: usize) -> impl Future<Output = ()> {
        eventually(SECOND, move || async move { self.inspect().await.holders.len() == n })
    }

    /// Nobody but its owner gets the lock.
    async fn assert_excluded(&self, at: &str) {
        assert!(self.mutex().try_lock().await.expect("answered").is_none(), "{at}: a mutex got in");
        let other = self.other_owner().try_lock().await.expect("answered");
        assert!(other.is_none(), "{at}: another owner got in");
    }

    /// Everybody gets the lock at once.
    async fn assert_served(&self) {
        for lock in [self.other_owner(), owned(&self.one, OWNER, LONG), owned(&self.two, OWNER, LONG)] {
            let guard = lock.lock_timeout(SECOND).await.expect("free within a second");
            guard.release().await.expect("held");
        }
    }

    /// The same, and nothing is left of whatever came before.
    async fn assert_clean(&self) {
        self.assert_served().await;
        nothing_left(&self.server, SECOND).await;
    }

    /// No client has left anything, not even a connection.
    async fn tear_down(self) {
        for client in [&self.one, &self.two, &self.other] {
            client.shutdown().await.expect("drained");
        }
        let mut raw = self.server.raw();
        assert_eq!(left(&mut raw), Vec::<String>::new());
        disconnected(&mut raw).await;
    }
}

fn owned(client: &Client, owner: &str, lease: Duration) -> ReentrantLock {
    owned_named(client, NAME, owner, lease)
}

fn owned_named(client: &Client, name: &str, owner: &str, lease: Duration) -> ReentrantLock {
    client.reentrant_lock_with(name, owner, MutexOptions::new().ttl(lease)).expect("valid")
}

/// A lock whose holder notices within a few milliseconds what happened in the store, while its lease lasts for longer
/// than any test waits.
fn attentive(client: &Client, owner: &str) -> ReentrantLock {
    client.reentrant_lock_with(NAME, owner, MutexOptions::new().renewal_period(ms(20))).expect("valid")
}

/// Locks what is free or the owner's, soon.
#[track_caller]
fn enter(lock: &ReentrantLock) -> impl Future<Output = Guard> {
    let entering = within(SOON, lock.lock().boxed());
    async move { entering.await.expect("let in") }
}

/// Anything that locks, in a task of its own, and when it was granted.
fn spawn_lock(lock: impl Future<Output = Result<Guard, Error>> + Send + 'static) -> Waiter {
    tokio::spawn(async move { (lock.await.expect("granted"), Instant::now()) })
}

type Waiter = JoinHandle<(Guard, Instant)>;

fn waiter(lock: &ReentrantLock) -> Waiter {
    let lock = lock.clone();
    spawn_lock(async move { lock.lock().await })
}

fn mutex_waiter(mutex: DistMutex) -> Waiter {
    spawn_lock(async move { mutex.lock().await })
}

#[track_caller]
fn granted(waiter: Waiter) -> impl Future<Output = Guard> {
    let granted = within(SOON, waiter);
    async move { granted.await.expect("no panic").0 }
}

async fn release_all(guards: impl IntoIterator<Item = Guard>) {
    for guard in guards {
        guard.release().await.expect("held to the end");
    }
}

/// Gives a guard back in one way or the other.
async fn give_back(guard: Guard, way: usize) {
    if way.is_multiple_of(2) { guard.release().await.expect("held to the end") } else { drop(guard) }
}

/// The output of a future that is ready at the first poll: it has not asked the store.
#[track_caller]
fn at_once<F: Future>(future: F) -> F::Output {
    future.now_or_never().expect("ready at once")
}

#[track_caller]
fn assert_lost<T: std::fmt::Debug>(outcome: Result<T, Error>, expected: &[LossReason]) {
    let Err(Error::Lost { name, reason, .. }) = &outcome else { panic!("expected a loss, got {outcome:?}") };
    assert!(name == NAME && expected.contains(reason), "{name}: {reason:?}");
}

/// Every one of `guards` is told that it is lost, soon and in every way there is.
async fn assert_all_lost(guards: impl IntoIterator<Item = Guard>, expected: &[LossReason]) {
    for guard in guards {
        let reason = within(SOON, guard.lost()).await;
        assert!(expected.contains(&reason), "{reason:?} is none of {expected:?}");
        assert!(!guard.is_held() && guard.remaining().is_zero());
        assert_lost(guard.protect(ready(())).await, expected);
        assert_lost(guard.release().await, expected);
    }
}

/// None of `guards` is lost for as long as this.
async fn assert_kept(duration: Duration, guards: &[&Guard]) {
    let lost = futures::future::select_all(guards.iter().map(|guard| Box::pin(guard.lost())));
    let lost = timeout(duration, lost).await;
    assert!(lost.is_err(), "lost: {:?}", lost.map(|(reason, which, _)| (reason, which)));
    assert!(guards.iter().all(|guard| guard.is_held()));
}

// The store by hand

/// Everything the server did, apart from this count.
fn commands(raw: &mut Raw) -> u64 {
    all_commands(&raw.info_commandstats())
}

/// Puts a list where a key of ours was.
fn replace_by_list(raw: &mut Raw, key: &str) {
    raw.send(&["MULTI"]);
    raw.send(&["DEL", key]);
    raw.send(&["LPUSH", key, "x"]);
    raw.send(&["EXEC"]);
}

fn asks_for_owner(request: &Request) -> bool {
    is_of_lease(request, 5)
}

fn renews_for_owner(request: &Request) -> bool {
    is_of_lease(request, 2)
}

fn releases_for_owner(request: &Request) -> bool {
    is_of_lease(request, 1)
}

// Coming in again within a client

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn re_entering_and_leaving_sends_no_command() {
    let Some(fixture) = Fixture::set_up("the cost of coming in again").await else { return };
    let mut raw = fixture.server.raw();
    let [lock, _] = fixture.owners();
    let outer = enter(&lock).await;
    raw.send(&["CONFIG", "RESETSTAT"]);
    for way in 0..50 {
        let again = [
            at_once(lock.lock()).expect("let in"),
            at_once(lock.try_lock()).expect("answered").expect("let in"),
            at_once(lock.lock_timeout(SECOND)).expect("let in"),
            at_once(owned(&fixture.one.clone(), OWNER, SECOND).lock()).expect("let in"),
        ];
        assert!(again.iter().all(|again| again.token() == outer.token()));
        for guard in again {
            give_back(guard, way).await;
        }
    }
    assert_eq!(commands(&mut raw), 0);
    assert_eq!(fixture.inspect().await.holders.len(), 1);
    outer.release().await.expect("held to the end");
    drop(raw);
    fixture.tear_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn re_entering_works_while_the_server_hangs() {
    let Some(fixture) = Fixture::set_up("coming in again while the server hangs").await else { return };
    let [lock, _] = fixture.owners();
    let outer = enter(&lock).await;
    fixture.server.pause();
    let tasks = (0..10).map(|way| {
        let lock = lock.clone();
        tokio::spawn(async move {
            let guard = lock.lock().await.expect("let in");
            let inner = lock.try_lock().await.expect("answered").expect("let in");
            give_back(inner, way).await;
            give_back(guard, way + 1).await;
        })
    });
    for task in within(SOON, join_all(tasks)).await {
        task.expect("no panic");
    }
    fixture.server.resume();
    outer.release().await.expect("held to the end");
    fixture.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_of_nested_guards_confirms_that_the_next_waiter_holds() {
    let Some(fixture) = Fixture::set_up("nested guards").await else { return };
    let [lock, _] = fixture.owners();
    for (way, order) in orders(3).into_iter().enumerate() {
        let mut guards = [enter(&lock).await, enter(&lock).await, enter(&lock).await].map(Some);
        let token = guards[0].as_ref().map(Guard::token);
        let next = mutex_waiter(fixture.mutex());
        queued(&fixture.server, 1).await;
        let mut take = |i: usize| guards[order[i]].take().expect("each once");
        give_back(take(0), way).await;
        give_back(take(1), way + 1).await;
        assert_eq!(fixture.inspect().await.waiters.len(), 1, "one guard is left");
        take(2).release().await.expect("held to the end");
        let inspection = fixture.inspect().await;
        assert!(inspection.waiters.is_empty() && inspection.holder().expect("held").token > token);
        granted(next).await.release().await.expect("held to the end");
    }
    fixture.tear_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nested_guards_are_kept_for_many_leases() {
    let Some(fixture) = Fixture::set_up("renewal of nested guards").await else { return };
    let lock = owned(&fixture.one, OWNER, LEASE);
    let (outer, inner) = (enter(&lock).await, enter(&lock).await);
    let value = fixture.server.raw().get(KEY);
    assert_kept(2 * LEASE, &[&outer, &inner]).await;
    outer.release().await.expect("held to the end");
    assert_kept(2 * LEASE, &[&inner]).await;
    assert_eq!(fixture.server.raw().get(KEY), value);
    fixture.assert_excluded("one guard is left").await;
    inner.release().await.expect("held to the end");
    fixture.assert_clean().await;
}

// Beside other libraries

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_held_by_an_owner_excludes_the_bare_recipe() {
    let Some(fixture) = Fixture::set_up("other libraries").await else { return };
    let mut raw = fixture.server.raw();
    let [one, two] = fixture.owners();
    let mut guards = vec![enter(&one).await];
    for _ in 0..2 {
        let value = raw.get(KEY).expect("a string");
        let (id, owner) = value.split_once('/').expect("lease id, token and owner");
        let (id, token) = id.split_once(' ').expect("lease id and token");
        assert_eq!(token, guards[0].token().to_string());
        assert!(LeaseId::parse(id).is_some() && owner == OWNER, "{value}");
        assert!((1..=30_000).contains(&raw.pttl(KEY)));
        assert!(!bare_lock(&mut raw, BARE_HOLDER, SECOND));
        for foreign in [BARE_HOLDER, OWNER, id] {
            assert!(!bare_release(&mut raw, foreign), "{foreign}");
        }
        assert_eq!(raw.get(KEY).as_deref(), Some(value.as_str()));
        guards.push(enter(&two).await);
    }
    while let Some(guard) = guards.pop() {
        assert!(!bare_lock(&mut raw, BARE_HOLDER, SECOND), "{} are left", guards.len() + 1);
        guard.release().await.expect("held to the end");
    }
    assert!(bare_lock(&mut raw, BARE_HOLDER, SECOND));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_held_by_the_bare_recipe_excludes_every_owner() {
    let Some(fixture) = Fixture::set_up("other libraries").await else { return };
    let mut raw = fixture.server.raw();
    // What other libraries put there may look a little like what we do.
    let values = [
        BARE_HOLDER,
        OWNER,
        "/order-42",
        "host/order-42",
        "host.1/order-42",
        "0bd7ff6e-a7e3-11f0-a9dd-0242ac120002/order-42",
        "a/b/order-42",
        "",
    ];
    for value in values {
        assert!(bare_lock(&mut raw, value, SECOND * 60));
        for lock in fixture.owners() {
            assert!(lock.try_lock().await.expect("answered").is_none(), "let in beside {value:?}");
            let waited = lock.lock_timeout(ms(30)).await;
            assert!(matches!(waited, Err(Error::TimedOut { .. })), "{value:?}: {waited:?}");
        }
        let holder = fixture.inspect().await.holder().cloned().expect("held");
        assert_eq!((holder.id.as_str(), holder.token, holder.owner), (value, None, None));
        assert!(bare_release(&mut raw, value), "{value:?}: the value was changed");
        enter(&fixture.owners()[0]).await.release().await.expect("held to the end");
        nothing_left(&fixture.server, SECOND).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_gets_a_bare_lock_when_its_time_is_over_and_not_before() {
    let Some(fixture) = Fixture::set_up("other libraries").await else { return };
    let begun = Instant::now();
    assert!(bare_lock(&mut fixture.server.raw(), BARE_HOLDER, ms(600)));
    let waiters = fixture.owners().map(|lock| waiter(&lock));
    queued(&fixture.server, 2).await;
    // The first finds it free, and the other comes in with it.
    let [first, second] = waiters.map(granted);
    let guards = [first.await, second.await];
    assert!(begun.elapsed() >= ms(595), "after {:?}", begun.elapsed());
    assert_eq!(guards[0].token(), guards[1].token());
    release_all(guards).await;
    fixture.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mutex_and_a_reentrant_lock_of_one_name_exclude_each_other() {
    let Some(fixture) = Fixture::set_up("one lock").await else { return };
    let guard = fixture.mutex().lock().await.expect("free");
    for lock in fixture.owners() {
        assert!(lock.try_lock().await.expect("answered").is_none());
    }
    // Not even an owner who is called like the holder's lease.
    let id = fixture.server.raw().get(KEY).expect("held");
    assert!(owned(&fixture.two, &id, LONG).try_lock().await.expect("answered").is_none());
    guard.release().await.expect("held to the end");
    let guards = fixture.both_in().await;
    for client in [&fixture.one, &fixture.two, &fixture.other] {
        assert!(mutex(client, LONG).try_lock().await.expect("answered").is_none());
    }
    release_all(guards).await;
    fixture.assert_clean().await;
}

// Owners

/// Owners that are parts of each other, or of what the store contains.
fn odd_owners() -> Vec<String> {
    let short = [" ", "a", "a/b", "a/", "/a", "/", "a\n", "\r\n", "a\0", "ä", "%s", "0 1 2 3 4", "%d+"];
    short.map(str::to_owned).into_iter().chain([OWNER.to_owned(), "o".repeat(512), "é".repeat(256)]).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unusual_owner_names_re_enter_and_stay_distinct() {
    let Some(fixture) = Fixture::set_up("odd owners").await else { return };
    for owner in odd_owners() {
        let guards = [&fixture.one, &fixture.two].map(|client| owned(client, &owner, LONG));
        let guards = [enter(&guards[0]).await, enter(&guards[1]).await];
        assert_eq!(guards[0].token(), guards[1].token(), "{owner:?}");
        for other in odd_owners().iter().filter(|other| **other != owner) {
            let other_in = owned(&fixture.two, other, LONG).try_lock().await.expect("answered");
            assert!(other_in.is_none(), "{other:?} while {owner:?} holds");
        }
        let holders = fixture.inspect().await.holders;
        assert!(holders.len() == 2 && holders.iter().all(|holder| holder.owner.as_ref() == Some(&owner)));
        let id = &holders[0].id;
        for like_its_lease in [id.clone(), format!("{id}/"), format!("{id}/{}", &OWNER[..5])] {
            let lock = owned(&fixture.two, &like_its_lease, LONG);
            assert!(lock.try_lock().await.expect("answered").is_none());
        }
        release_all(guards).await;
    }
    fixture.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unusual_owner_names_wait_and_are_admitted() {
    let Some(fixture) = Fixture::set_up("odd owners").await else { return };
    for owner in odd_owners() {
        let holder = fixture.mutex().lock().await.expect("free");
        let first = waiter(&owned(&fixture.one, &owner, LONG));
        queued(&fixture.server, 1).await;
        let between = mutex_waiter(fixture.mutex());
        queued(&fixture.server, 2).await;
        let second = waiter(&owned(&fixture.two, &owner, LONG));
        queued(&fixture.server, 3).await;
        holder.release().await.expect("held to the end");
        let guards = [granted(first).await, granted(second).await];
        assert_eq!(guards[0].token(), guards[1].token(), "{owner:?}");
        release_all(guards).await;
        granted(between).await.release().await.expect("held to the end");
    }
    fixture.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_with_braces_have_holds_of_their_own() {
    let Some(fixture) = Fixture::set_up("odd names").await else { return };
    let names =
        ["a", "{a}", "{tag}x", "{tag}y", "a}b", "}{", "{", "a:holds", "{lock:a}:holds", "a b", "lock:a"];
    let mut guards = Vec::new();
    for name in names {
        for client in [&fixture.one, &fixture.two] {
            guards.push(enter(&owned_named(client, name, OWNER, LONG)).await);
        }
        assert_eq!(guards[guards.len() - 1].token(), guards[guards.len() - 2].token(), "{name:?}");
    }
    for name in names {
        let other_owner = owned_named(&fixture.other, name, OTHER_OWNER, LONG);
        assert!(other_owner.try_lock().await.expect("answered").is_none(), "{name:?}");
        assert_eq!(other_owner.inspect().await.expect("inspected").holders.len(), 2, "{name:?}");
    }
    for (i, guard) in guards.into_iter().enumerate() {
        guard.release().await.unwrap_or_else(|error| panic!("{:?}: {error}", names[i / 2]));
    }
    fixture.tear_down().await;
}

// Across clients

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inspect_lists_one_holder_per_lease_and_the_key_names_one_of_them() {
    let Some(fixture) = Fixture::set_up("inspection").await else { return };
    let mut raw = fixture.server.raw();
    let locks = [(&fixture.one, 10), (&fixture.two, 30), (&fixture.other, 20)]
        .map(|(client, seconds)| owned(client, OWNER, SECOND * seconds));
    let mut guards = Vec::new();
    for (i, lock) in locks.iter().enumerate() {
        guards.push(enter(lock).await);
        // A nested guard is no hold of its own.
        guards.push(enter(lock).await);
        let inspection = fixture.inspect().await;
        assert_eq!((inspection.holders.len(), inspection.in_use), (i + 1, 1));
        let value = raw.get(KEY).expect("held");
        assert!(
            inspection
                .holders
                .iter()
                .any(|holder| value == format!("{} {}/{OWNER}", holder.id, holder.token.expect("ours"))),
            "{value}"
        );
        let mut clients: Vec<_> = inspection
            .holders
            .iter()
            .map(|holder| LeaseId::parse(&holder.id).expect("an id").client())
            .collect();
        clients.sort();
        clients.dedup();
        assert_eq!(clients.len(), i + 1, "one lease per client");
        for holder in &inspection.holders {
            assert_eq!((holder.owner.as_deref(), holder.permits), (Some(OWNER), 1));
            assert_eq!(holder.token, Some(guards[0].token()));
        }
        let mut remaining: Vec<_> = inspection.holders.iter().filter_map(|holder| holder.remaining).collect();
        remaining.sort();
        let leases = [&[10][..], &[10, 30], &[10, 20, 30]][i];
        assert_eq!(remaining.len(), leases.len());
        for (remaining, lease) in remaining.iter().zip(leases) {
            let lease = SECOND * *lease;
            assert!(*remaining <= lease && *remaining + SOON > lease, "{remaining:?} of {lease:?}");
        }
    }
    release_all(guards).await;
    drop(raw);
    fixture.tear_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_is_free_when_the_last_client_has_left_whichever_order_they_leave_in() {
    let Some(fixture) = Fixture::set_up("the order of leaving").await else { return };
    let outsider = connect(&fixture.server.url()).await;
    let outside = owned(&outsider, OTHER_OWNER, LONG);
    let locks = [&fixture.one, &fixture.two, &fixture.other].map(|client| owned(client, OWNER, LONG));
    let mut newest = None;
    for (way, order) in orders(3).into_iter().enumerate() {
        let mut guards = Vec::new();
        for lock in &locks {
            guards.push(Some(enter(lock).await));
        }
        let token = guards[0].as_ref().map(Guard::token);
        assert!(token > newest && guards.iter().flatten().all(|guard| Some(guard.token()) == token));
        newest = token;
        for (left, i) in (0..3).rev().zip(&order) {
            assert!(outside.try_lock().await.expect("answered").is_none(), "{order:?}, before {i} goes");
            give_back(guards[*i].take().expect("each once"), way + i).await;
            fixture.holding(left).await;
            assert!(guards.iter().flatten().all(Guard::is_held));
        }
        let guard = outside.try_lock().await.expect("answered").expect("all have left");
        assert!(Some(guard.token()) > newest);
        newest = Some(guard.token());
        guard.release().await.expect("held to the end");
        assert_eq!(left(&mut fixture.server.raw()), Vec::<String>::new());
    }
    outsider.shutdown().await.expect("drained");
    fixture.tear_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whichever_client_stays_keeps_the_lock_for_many_leases() {
    let Some(fixture) = Fixture::set_up("renewal of one of several holds").await else { return };
    let leases = [(LEASE, LEASE), (LEASE, 2 * LEASE), (2 * LEASE, LEASE)];
    let cases = leases.into_iter().flat_map(|leases| [(leases, true), (leases, false)]).enumerate();
    let cases = cases.map(|(n, ((first, second), first_stays))| {
        let name = format!("case:{n}");
        let locks = [(&fixture.one, first), (&fixture.two, second)];
        let locks = locks.map(|(client, lease)| owned_named(client, &name, OWNER, lease));
        let outside = owned_named(&fixture.other, &name, OTHER_OWNER, LONG);
        async move {
            let [first, second] = [enter(&locks[0]).await, enter(&locks[1]).await];
            let (stays, goes) = if first_stays { (first, second) } else { (second, first) };
            goes.release().await.expect("held to the end");
            let end = Instant::now() + 3 * LEASE;
            while Instant::now() < end {
                assert!(outside.try_lock().await.expect("answered").is_none(), "{name}: somebody got in");
                assert!(stays.is_held(), "{name}");
                sleep(ms(50)).await;
            }
            stays.release().await.expect("held to the end");
            outside.try_lock().await.expect("answered").expect("free").release().await.expect("held");
        }
    });
    join_all(cases).await;
    fixture.tear_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_never_ends_before_any_hold_that_is_trusted() {
    let Some(fixture) = Fixture::set_up("what holds believe").await else { return };
    let mut raw = fixture.server.raw();
    let leases = [LEASE, 3 * LEASE, 2 * LEASE];
    let clients = [&fixture.one, &fixture.two, &fixture.other];
    let locks: Vec<_> =
        clients.iter().zip(leases).map(|(client, lease)| owned(client, OWNER, lease)).collect();
    let mut guards = [const { None }; 3];
    guards[0] = Some(enter(&locks[0]).await);
    // The three come and go in all combinations; somebody is always in.
    for step in 0..160_usize {
        let i = [1, 2, 0, 2, 1, 0][step % 6];
        let alone = guards.iter().flatten().count() == 1;
        match guards[i].take() {
            Some(guard) if alone => guards[i] = Some(guard),
            Some(guard) => guard.release().await.expect("held to the end"),
            None => guards[i] = Some(enter(&locks[i]).await),
        }
        let in_now = leases.iter().zip(&guards).filter_map(|(lease, guard)| guard.as_ref().map(|_| *lease));
        let longest = in_now.max().expect("somebody is in").as_millis();
        for guard in guards.iter().flatten() {
            let asked = Instant::now();
            let believed = guard.remaining();
            assert!(!believed.is_zero(), "step {step}: lost");
            let rest = u128::try_from(raw.pttl(KEY)).expect("an end");
            let believed = believed.saturating_sub(asked.elapsed()).as_millis();
            assert!(rest + 1 >= believed, "step {step}: {rest} ms left, {believed} ms believed");
            assert!(rest <= longest, "step {step}: the lock outlives everybody");
        }
        sleep(ms(15)).await;
    }
    release_all(guards.into_iter().flatten()).await;
    fixture.assert_clean().await;
}

/// A client behind a wire; once the wire is held, it is as good as dead for the store.
struct Doomed {
    client: Client,
    wire: Proxy,
}

impl Doomed {
    async fn meet(server: &RedisServer) -> Self {
        let wire = Proxy::start(server.port()).await;
        Self { client: connect(&wire.url()).await, wire }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_dies_drops_its_own_holds_and_nobody_elses() {
    let Some(fixture) = Fixture::set_up("a dead client").await else { return };
    let doomed = Doomed::meet(&fixture.server).await;
    let leases = [(LEASE, LEASE), (LEASE, 2 * LEASE), (2 * LEASE, LEASE)];
    let mut cases = Vec::new();
    for (n, (dead, living)) in leases.into_iter().enumerate() {
        for lead_dies in [true, false] {
            let name = format!("case:{n}:{lead_dies}");
            let dying = owned_named(&doomed.client, &name, OWNER, dead);
            let staying = owned_named(&fixture.one, &name, OWNER, living);
            let (first, second) = if lead_dies { (&dying, &staying) } else { (&staying, &dying) };
            let guards = (enter(first).await, enter(second).await);
            let (dying, staying) = if lead_dies { guards } else { (guards.1, guards.0) };
            let next = mutex_waiter(named(&fixture.other, &name, LONG));
            cases.push((name, dying, staying, next));
        }
    }
    doomed.wire.hold(Direction::Both);
    let end = Instant::now() + 3 * LEASE;
    join_all(cases.into_iter().map(|(name, dying, staying, next)| async move {
        assert_eq!(within(SOON, dying.lost()).await, LossReason::StoreUnreachable);
        assert_kept(end - Instant::now(), &[&staying]).await;
        assert!(!next.is_finished(), "{name}: the owner is still in");
        staying.release().await.expect("held to the end");
        granted(next).await.release().await.expect("held to the end");
    }))
    .await;
    nothing_left(&fixture.server, SLACK).await;
}

/// One that dies, one that leaves, and one that waits for both.
struct Case {
    name: String,
    dying: Arc<Guard>,
    leaving: Guard,
    next: Waiter,
    dead_lease: Duration,
    /// A waiter looks when the longest lease that it was told of should be over.
    longest: Duration,
}

impl Case {
    async fn form(
        fixture: &Fixture,
        doomed: &Doomed,
        [dead, living]: [Duration; 2],
        lead_dies: bool,
    ) -> Self {
        let name = format!("case:{dead:?}:{living:?}:{lead_dies}");
        let dying = owned_named(&doomed.client, &name, OWNER, dead);
        let leaving = owned_named(&fixture.one, &name, OWNER, living);
        let (first, second) = if lead_dies { (&dying, &leaving) } else { (&leaving, &dying) };
        let guards = (enter(first).await, enter(second).await);
        let (dying, leaving) = if lead_dies { guards } else { (guards.1, guards.0) };
        let dying = Arc::new(dying);
        let (mutex, dead_one) = (named(&fixture.other, &name, LONG), Arc::clone(&dying));
        let next = spawn_lock(async move {
            let guard = mutex.lock().await;
            assert!(!dead_one.is_held(), "let in before the loss was to be seen");
            guard
        });
        Self { name, dying, leaving, next, dead_lease: dead, longest: dead.max(living) }
    }

    async fn end(self, fixture: &Fixture) {
        let dead_since = Instant::now();
        let Self { name, dying, leaving, next, dead_lease, longest } = self;
        leaving.release().await.expect("held to the end");
        let rest = fixture.server.raw().pttl(&format!("lock:{name}"));
        let rest = Duration::from_millis(u64::try_from(rest).expect("the dead is in for its lease"));
        assert!(rest <= dead_lease, "{name}: {rest:?} left");
        let outside = owned_named(&fixture.two, &name, OTHER_OWNER, LONG);
        assert!(outside.try_lock().await.expect("answered").is_none(), "{name}: the dead is in");
        let (next, granted) = within(longest + SOON, next).await.expect("no panic");
        let after = granted - dead_since;
        assert!(after <= longest + SECOND + SLACK, "{name}: after {after:?}");
        assert_eq!(within(SOON, dying.lost()).await, LossReason::StoreUnreachable);
        assert!(next.token() > dying.token());
        next.release().await.expect("held to the end");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_live_clients_have_left_the_lock_is_free_once_the_dead_lease_ends() {
    let Some(fixture) = Fixture::set_up("a dead client").await else { return };
    let doomed = Doomed::meet(&fixture.server).await;
    let mut cases = Vec::new();
    for leases in [[LEASE, LEASE], [2 * LEASE, LEASE], [LEASE, 2 * LEASE]] {
        for lead_dies in [true, false] {
            cases.push(Case::form(&fixture, &doomed, leases, lead_dies).await);
        }
    }
    let mut raw = fixture.server.raw();
    eventually(SOON, || ready(raw.keys("{lock:case:*}:queue").len() == cases.len())).await;
    doomed.wire.hold(Direction::Both);
    join_all(cases.into_iter().map(|case| case.end(&fixture))).await;
    nothing_left(&fixture.server, SLACK).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn losing_one_hold_keeps_the_others_and_its_client_re_enters() {
    let Some(fixture) = Fixture::set_up("the loss of one hold").await else { return };
    let options = MutexOptions::new().max_hold(ms(500));
    for capped_leads in [true, false] {
        let capped = fixture.one.reentrant_lock_with(NAME, OWNER, options.clone()).expect("valid");
        let staying = attentive(&fixture.two, OWNER);
        let (first, second) = if capped_leads { (&capped, &staying) } else { (&staying, &capped) };
        let guards = (enter(first).await, enter(second).await);
        let (lost, stays) = if capped_leads { guards } else { (guards.1, guards.0) };
        let nested = enter(&capped).await;
        assert_all_lost([lost, nested], &[LossReason::HeldTooLong]).await;
        fixture.holding(1).await;
        assert_kept(ms(300), &[&stays]).await;
        fixture.assert_excluded("one hold is left").await;
        let again = enter(&capped).await;
        assert_eq!(again.token(), stays.token());
        release_all([stays, again]).await;
    }
    fixture.assert_clean().await;
}

// The queue

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_re_enters_ahead_of_all_waiters() {
    let Some(fixture) = Fixture::set_up("coming in past waiters").await else { return };
    let [one, two] = fixture.owners();
    let guard = enter(&one).await;
    let first = mutex_waiter(fixture.mutex());
    queued(&fixture.server, 1).await;
    let waiters = [first, waiter(&fixture.other_owner())];
    queued(&fixture.server, 2).await;
    let mut again = vec![two.try_lock().await.expect("answered").expect("let in")];
    again.push(owned(&fixture.other, OWNER, LONG).lock_timeout(Duration::ZERO).await.expect("let in"));
    assert!(again.iter().all(|again| again.token() == guard.token()));
    guard.release().await.expect("held to the end");
    again.push(enter(&one).await);
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
    queued(&fixture.server, 2).await;
    release_all(again).await;
    for waiter in waiters {
        granted(waiter).await.release().await.expect("held to the end");
    }
    fixture.tear_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_one_owner_are_admitted_together_after_any_holder() {
    let Some(fixture) = Fixture::set_up("coming in together").await else { return };
    let [one, two] = fixture.owners();
    let three = owned(&fixture.other, OWNER, LONG);
    for by in 0..4 {
        let holder = match by {
            0 | 1 => fixture.mutex().lock().await.expect("free"),
            _ => enter(&owned(&fixture.other, "order-44", LONG)).await,
        };
        let mut owners = Vec::new();
        let mut others = Vec::new();
        // The same client twice, two others, and somebody else between any two of them.
        for (n, lock) in [&one, &two, &three, &one].into_iter().enumerate() {
            owners.push(waiter(lock));
            queued(&fixture.server, 2 * n as i64 + 1).await;
            others.push(if n % 2 == 0 {
                mutex_waiter(fixture.mutex())
            } else {
                waiter(&fixture.other_owner())
            });
            queued(&fixture.server, 2 * n as i64 + 2).await;
        }
        let before = holder.token();
        match by % 2 {
            0 => holder.release().await.expect("held to the end"),
            _ => assert!(fixture.mutex().force_release().await.expect("answered")),
        }
        let mut guards = Vec::new();
        for owner in owners {
            guards.push(granted(owner).await);
        }
        assert!(guards.iter().all(|guard| guard.token() == guards[0].token() && guard.token() > before));
        assert!(others.iter().all(|waiter| !waiter.is_finished()), "somebody is still in");
        queued(&fixture.server, 4).await;
        let mut newest = guards[0].token();
        release_all(guards).await;
        // Two of the others are one owner, who comes in twice.
        let [m1, s1, m2, s2] = <[Waiter; 4]>::try_from(others).expect("four");
        let first = granted(m1).await;
        assert!(first.token() > newest && !m2.is_finished());
        newest = first.token();
        first.release().await.expect("held to the end");
        let other_guards = [granted(s1).await, granted(s2).await];
        assert!(
            other_guards
                .iter()
                .all(|guard| guard.token() == other_guards[0].token() && guard.token() > newest)
        );
        newest = other_guards[0].token();
        release_all(other_guards).await;
        let last = granted(m2).await;
        assert!(last.token() > newest);
        last.release().await.expect("held to the end");
        nothing_left(&fixture.server, SECOND).await;
    }
    fixture.tear_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_waiters_of_one_owner_are_admitted_together_and_leave_nothing() {
    let Some(fixture) = Fixture::set_up("a crowd of one owner").await else { return };
    let holder = fixture.mutex().lock().await.expect("free");
    let locks = [owned(&fixture.one, OWNER, LONG), owned(&fixture.two, OWNER, LONG)];
    let waiters: Vec<_> = (0..100).map(|n| waiter(&locks[n % 2])).collect();
    queued(&fixture.server, 100).await;
    holder.release().await.expect("held to the end");
    let guards = join_all(waiters.into_iter().map(granted)).await;
    assert!(guards.iter().all(|guard| guard.token() == guards[0].token()));
    fixture.assert_excluded("a crowd is in").await;
    for (way, guard) in guards.into_iter().enumerate() {
        give_back(guard, way).await;
    }
    fixture.assert_clean().await;
    fixture.tear_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_waiter_is_admitted_when_it_is_reachable_again() {
    let Some(fixture) = Fixture::set_up("an owner out of reach").await else { return };
    let wire = Proxy::start(fixture.server.port()).await;
    let far = connect(&wire.url()).await;
    let (far_lock, near_lock) = (owned(&far, OWNER, LONG), owned(&fixture.one, OWNER, LONG));
    let mut raw = fixture.server.raw();
    for far_first in [true, false] {
        let holder = fixture.mutex().lock().await.expect("free");
        let (first, second) = if far_first { (&far_lock, &near_lock) } else { (&near_lock, &far_lock) };
        let first = waiter(first);
        queued(&fixture.server, 1).await;
        let second = waiter(second);
        queued(&fixture.server, 2).await;
        wire.refuse(true);
        wire.cut();
        eventually(SOON, || ready(listeners(&mut raw) == 3)).await;
        holder.release().await.expect("held to the end");
        let (far, near) = if far_first { (first, second) } else { (second, first) };
        let near = granted(near).await;
        wire.refuse(false);
        let far = granted(far).await;
        assert_eq!(far.token(), near.token());
        release_all([near, far]).await;
        eventually(SOON, || ready(listeners(&mut raw) == 4)).await;
        nothing_left(&fixture.server, SECOND).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn different_owners_and_mutexes_of_three_clients_are_served_in_order_of_arrival() {
    const WAITERS: usize = 16;
    let Some(fixture) = Fixture::set_up("one queue").await else { return };
    let clients = [&fixture.one, &fixture.two, &fixture.other];
    let holder = enter(&fixture.other_owner()).await;
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for i in 0..WAITERS {
        let (client, served) = (clients[i % 3], Arc::clone(&served));
        let (mutex, lock) = (queued_mutex(client, LONG), owned(client, &format!("owner {i}"), LONG));
        tasks.spawn(async move {
            let guard = match i % 3 {
                0 => mutex.lock().await,
                1 => lock.lock().await,
                _ => lock.lock_timeout(LONG).await,
            };
            let guard = guard.expect("granted");
            served.lock().unwrap_or_else(PoisonError::into_inner).push((i, guard.token()));
            give_back(guard, i).await;
        });
        queued(&fixture.server, i as i64 + 1).await;
    }
    holder.release().await.expect("held to the end");
    within(SOON, tasks.join_all()).await;
    let served = served.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert!(served.iter().map(|(i, _)| *i).eq(0..WAITERS), "{served:?}");
    assert!(served.windows(2).all(|pair| pair[0].1 < pair[1].1), "{served:?}");
    fixture.tear_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_dropped_its_last_guard_queues_behind_the_waiters() {
    let Some(fixture) = Fixture::set_up("the end of the queue").await else { return };
    let [lock, _] = fixture.owners();
    for round in 0..20 {
        let guard = enter(&lock).await;
        let mut next =
            if round % 2 == 0 { mutex_waiter(fixture.mutex()) } else { waiter(&fixture.other_owner()) };
        queued(&fixture.server, 1).await;
        let token = guard.token();
        drop(guard);
        let mut again = waiter(&lock);
        let next = tokio::select! {
            next = &mut next => next.expect("no panic").0,
            _ = &mut again => panic!("round {round}: it came in again, past the waiter"),
        };
        assert!(next.token() > token, "round {round}");
        let token = next.token();
        next.release().await.expect("held to the end");
        let again = granted(again).await;
        assert!(again.token() > token, "round {round}");
        again.release().await.expect("held to the end");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn try_lock_does_not_overtake_a_waiter_even_if_the_lock_is_free() {
    let Some(fixture) = Fixture::set_up("no overtaking").await else { return };
    let [one, two] = fixture.owners();
    for first in [true, false] {
        let holder = enter(&fixture.other_owner()).await;
        let waiter = if first { waiter(&one) } else { mutex_waiter(fixture.mutex()) };
        queued(&fixture.server, 1).await;
        // Free, and nobody has told the waiter: it would ask in ten seconds.
        fixture.server.raw().send(&["DEL", KEY]);
        let early = owned(&fixture.two, "order-44", LONG).try_lock().await.expect("answered");
        assert!(early.is_none(), "the waiter was first");
        let guard = granted(waiter).await;
        assert!(guard.token() > holder.token());
        assert_eq!(two.try_lock().await.expect("answered").is_some(), first, "only its own owner comes in");
        drop(holder);
        guard.release().await.expect("held to the end");
        nothing_left(&fixture.server, SECOND).await;
    }
    fixture.tear_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn force_release_notifies_all_holds_at_once_and_serves_the_next_waiter() {
    let Some(fixture) = Fixture::set_up("release by force").await else { return };
    let [one, two] = fixture.owners();
    for by in 0..4 {
        // Renewed every ten seconds: only a push can tell sooner.
        let [first, second] = fixture.both_in().await;
        let guards = [first, second, enter(&one).await];
        let token = guards[0].token();
        let next = waiter(&fixture.other_owner());
        queued(&fixture.server, 1).await;
        let forced = match by {
            0 => fixture.mutex().force_release().await,
            1 => fixture.other_owner().force_release().await,
            2 => two.force_release().await,
            _ => owned(&fixture.other, OWNER, LONG).force_release().await,
        };
        assert!(forced.expect("answered"));
        assert_all_lost(guards, &[LossReason::Revoked]).await;
        let next = granted(next).await;
        assert!(next.token() > token);
        for lock in [&one, &two] {
            assert!(lock.try_lock().await.expect("answered").is_none(), "the owner is out");
        }
        assert_kept(ms(50), &[&next]).await;
        next.release().await.expect("held to the end");
        assert!(!one.force_release().await.expect("answered"), "nobody holds it");
        nothing_left(&fixture.server, SECOND).await;
    }
    fixture.tear_down().await;
}

// Cancellation

/// Asks in one of the three ways.
fn ask(lock: &ReentrantLock, verb: usize) -> BoxFuture<'_, Option<Guard>> {
    match verb {
        0 => lock.lock().map(Result::ok).boxed(),
        1 => lock.lock_timeout(LONG).map(Result::ok).boxed(),
        _ => lock.try_lock().map(|guard| guard.ok().flatten()).boxed(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_dropped_after_any_poll_on_a_free_lock_leaves_nothing() {
    let Some(fixture) = Fixture::set_up("dropped requests on a free lock").await else { return };
    let [lock, _] = fixture.owners();
    for verb in 0..3 {
        let mut done = false;
        for polls in 0..MANY {
            let locked = polled(ask(&lock, verb), polls).await;
            done = locked.is_some();
            drop(locked);
            fixture.assert_clean().await;
            if done {
                break;
            }
        }
        assert!(done, "not done after {MANY} polls");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_dropped_after_any_poll_on_a_lock_of_another_owner_leaves_its_place() {
    let Some(fixture) = Fixture::set_up("dropped waiters").await else { return };
    let [lock, _] = fixture.owners();
    for verb in 0..3 {
        let guard = enter(&fixture.other_owner()).await;
        let mut done = false;
        for polls in 0..MANY {
            // The last polls come with a wake-up that never comes: then it waits in the queue.
            let asked = timeout(ms(50), polled(ask(&lock, verb), polls)).await;
            done = asked.is_err() || matches!(asked, Ok(Some(None)));
            assert!(!matches!(asked, Ok(Some(Some(_)))), "the lock is held");
            queued(&fixture.server, 0).await;
            if done {
                break;
            }
        }
        assert!(done, "neither waiting nor answered after {MANY} polls");
        guard.release().await.expect("held to the end");
        fixture.assert_clean().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_dropped_after_any_poll_while_its_owner_holds_elsewhere_keeps_that_hold() {
    let Some(fixture) = Fixture::set_up("dropped requests of an owner who is in").await else { return };
    let [lock, elsewhere] = fixture.owners();
    let guard = enter(&elsewhere).await;
    for verb in 0..3 {
        let mut done = false;
        for polls in 0..MANY {
            let locked = polled(ask(&lock, verb), polls).await;
            done = locked.is_some();
            assert!(!matches!(locked, Some(None)), "the owner is in");
            drop(locked);
            fixture.holding(1).await;
            assert!(guard.is_held());
            if done {
                break;
            }
        }
        assert!(done, "not done after {MANY} polls");
        fixture.assert_excluded("the owner is in").await;
    }
    let token = guard.token();
    assert_eq!(enter(&lock).await.token(), token);
    guard.release().await.expect("held to the end");
    fixture.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_dropped_after_any_poll_while_it_is_granted_leaves_nothing() {
    let Some(fixture) = Fixture::set_up("dropped while granted").await else { return };
    let [lock, _] = fixture.owners();
    for verb in 0..2 {
        let mut done = false;
        for polls in 0..MANY {
            let guard = enter(&fixture.other_owner()).await;
            let mut waiter = ask(&lock, verb);
            drive_until(waiter.as_mut(), queued(&fixture.server, 1)).await;
            guard.release().await.expect("held");
            let locked = polled(waiter, polls).await;
            done = locked.is_some();
            drop(locked);
            fixture.assert_clean().await;
            if done {
                break;
            }
        }
        assert!(done, "not granted after {MANY} polls");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_dropped_after_any_poll_while_admitted_with_another_keeps_that_one() {
    let Some(fixture) = Fixture::set_up("dropped while let in").await else { return };
    let [lock, elsewhere] = fixture.owners();
    for dropped_is_first in [true, false] {
        let mut done = false;
        for polls in 0..MANY {
            let guard = enter(&fixture.other_owner()).await;
            let mut dropped = ask(&lock, 0);
            let other = if dropped_is_first {
                drive_until(dropped.as_mut(), queued(&fixture.server, 1)).await;
                waiter(&elsewhere)
            } else {
                let other = waiter(&elsewhere);
                queued(&fixture.server, 1).await;
                other
            };
            drive_until(dropped.as_mut(), queued(&fixture.server, 2)).await;
            guard.release().await.expect("held");
            let locked = polled(dropped, polls).await;
            done = locked.is_some();
            drop(locked);
            let other = granted(other).await;
            fixture.holding(1).await;
            assert!(other.is_held());
            fixture.assert_excluded("the other is in").await;
            other.release().await.expect("held to the end");
            fixture.assert_clean().await;
            if done {
                break;
            }
        }
        assert!(done, "not granted after {MANY} polls");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timeout_that_races_the_grant_leaves_nothing_in_many_rounds() {
    const LANES: u64 = 4;
    const ROUNDS: u64 = 100;
    let Some(fixture) = Fixture::set_up("timeouts that race the grant").await else { return };
    let lanes = (0..LANES).map(|lane| {
        let name = format!("machine:{lane}");
        let locks = [&fixture.one, &fixture.two].map(|client| owned_named(client, &name, OWNER, LONG));
        let other_owner = owned_named(&fixture.other, &name, OTHER_OWNER, LONG);
        async move {
            let mut won = 0;
            for round in 0..ROUNDS {
                let guard = within(SECOND, other_owner.lock()).await.expect("granted");
                let limit = Instant::now() + ms(8);
                // From 5 ms before the limit to 5 ms after it.
                let release_at = limit - ms(5) + Duration::from_micros(10_000 * round / ROUNDS);
                let release = async {
                    sleep_until(release_at - ms(1)).await;
                    while Instant::now() < release_at {
                        tokio::task::yield_now().await;
                    }
                    guard.release().await.expect("held");
                };
                // Both may win, one of them, or none.
                let asking = [
                    tokio::time::timeout_at(limit, locks[0].lock()).map(|locked| locked.ok()).boxed(),
                    locks[1].lock_timeout(ms(8)).map(Some).boxed(),
                ];
                let (locked, ()) = tokio::join!(join_all(asking), release);
                for locked in locked.into_iter().flatten() {
                    match locked {
                        Ok(guard) => {
                            guard.release().await.expect("held to the end");
                            won += 1;
                        }
                        // A busy server may not have answered yet.
                        Err(Error::TimedOut { .. } | Error::StoreUnavailable { .. }) => {}
                        Err(error) => panic!("neither granted nor timed out: {error:?}"),
                    }
                }
            }
            won
        }
    });
    let won: u64 = join_all(lanes).await.into_iter().sum();
    assert!(won > 0 && won < 2 * LANES * ROUNDS, "a race that both sides win now and then: {won}");
    nothing_left(&fixture.server, SECOND).await;
    fixture.tear_down().await;
}

// Applied, and never answered

/// A fixture whose owner is in near the server and wants to come in from behind a wire.
async fn wired(left_out: &str) -> Option<(Fixture, Doomed)> {
    let fixture = Fixture::set_up(left_out).await?;
    let far = Doomed::meet(&fixture.server).await;
    // The server learns the scripts: none of the next calls is refused as unknown.
    let [one, two] = [&fixture.one, &fixture.two].map(|client| attentive(client, OWNER));
    let guards = [enter(&one).await, enter(&two).await];
    let mut raw = fixture.server.raw();
    raw.send(&["CONFIG", "RESETSTAT"]);
    // While nobody comes or goes, only a renewal calls this.
    eventually(SOON, || ready(raw.info_commandstats().contains_key("pexpireat"))).await;
    release_all(guards).await;
    Some((fixture, far))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_whose_grant_was_never_answered_is_adopted() {
    let Some((fixture, far)) = wired("an unanswered grant").await else { return };
    let lock = owned(&far.client, OWNER, LONG);
    for try_lock in [true, false] {
        for is_in in [true, false] {
            let near = if is_in { Some(enter(&fixture.owners()[0]).await) } else { None };
            let cut = far.wire.cut_after_next_request(asks_for_owner);
            let guard = match try_lock {
                true => within(SOON, lock.try_lock()).await.expect("answered").expect("let in"),
                false => enter(&lock).await,
            };
            within(SOON, cut).await.expect("the first answer was lost");
            assert!(near.as_ref().is_none_or(|near| near.token() == guard.token()));
            // One grant: the second request was told of the first.
            assert_eq!(fixture.inspect().await.holders.len(), 1 + usize::from(is_in));
            assert_eq!(fixture.server.raw().get(FENCE), Some(guard.token().to_string()));
            guard.release().await.expect("held to the end");
            assert!(near.as_ref().is_none_or(Guard::is_held));
            assert_eq!(fixture.inspect().await.holders.len(), usize::from(is_in));
            release_all(near).await;
            assert_eq!(left(&mut fixture.server.raw()), Vec::<String>::new());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_admission_was_not_answered_is_admitted_once() {
    let Some((fixture, far)) = wired("an unanswered way in").await else { return };
    let holder = fixture.mutex().lock().await.expect("free");
    let near = waiter(&fixture.owners()[0]);
    queued(&fixture.server, 1).await;
    let far_waiter = waiter(&owned(&far.client, OWNER, LONG));
    queued(&fixture.server, 2).await;
    let cut = far.wire.cut_after_next_request(asks_for_owner);
    holder.release().await.expect("held to the end");
    let guards = [granted(near).await, granted(far_waiter).await];
    within(SOON, cut).await.expect("the first answer was lost");
    assert_eq!(guards[0].token(), guards[1].token());
    assert_eq!(fixture.inspect().await.holders.len(), 2);
    release_all(guards).await;
    fixture.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_of_one_hold_that_was_never_answered_ends_that_one() {
    let Some((fixture, far)) = wired("an unanswered release").await else { return };
    let [near, _] = fixture.owners();
    let far_lock = owned(&far.client, OWNER, LONG);
    for far_leads in [true, false] {
        let (first, second) = if far_leads { (&far_lock, &near) } else { (&near, &far_lock) };
        let guards = (enter(first).await, enter(second).await);
        let (far_guard, near_guard) = if far_leads { guards } else { (guards.1, guards.0) };
        let cut = far.wire.cut_after_next_request(releases_for_owner);
        within(SOON, far_guard.release()).await.expect("repeated until answered");
        within(SOON, cut).await.expect("the first answer was lost");
        assert!(near_guard.is_held());
        assert_eq!(fixture.inspect().await.holders.len(), 1);
        fixture.assert_excluded("one hold is left").await;
        near_guard.release().await.expect("held to the end");
        assert_eq!(left(&mut fixture.server.raw()), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_last_release_that_was_never_answered_succeeds_and_touches_no_later_holder() {
    let Some((fixture, far)) = wired("an unanswered release").await else { return };
    let far_lock = owned(&far.client, OWNER, LONG);
    // The next one is another owner, or the same owner elsewhere.
    for next in [fixture.other_owner(), fixture.owners()[1].clone()] {
        let far_guard = enter(&far_lock).await;
        let ahead = mutex_waiter(fixture.mutex());
        queued(&fixture.server, 1).await;
        let cut = far.wire.cut_after_next_request(releases_for_owner);
        let (released, ahead) = tokio::join!(far_guard.release(), granted(ahead));
        within(SOON, cut).await.expect("the first answer was lost");
        released.expect("repeated until answered");
        let next = waiter(&next);
        queued(&fixture.server, 1).await;
        assert_kept(ms(100), &[&ahead]).await;
        ahead.release().await.expect("held to the end");
        granted(next).await.release().await.expect("held to the end");
        nothing_left(&fixture.server, SECOND).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unanswered_renewal_of_one_hold_loses_nothing() {
    let Some((fixture, far)) = wired("an unanswered renewal").await else { return };
    let lease = 2 * LEASE;
    let near_guard = enter(&owned(&fixture.one, OWNER, lease)).await;
    let far_guard = enter(&owned(&far.client, OWNER, lease)).await;
    let cut = far.wire.cut_after_next_request(renews_for_owner);
    within(lease, cut).await.expect("an answer to a renewal was lost");
    assert_kept(lease, &[&near_guard, &far_guard]).await;
    assert_eq!(fixture.inspect().await.holders.len(), 2);
    release_all([near_guard, far_guard]).await;
    fixture.assert_clean().await;
}

// A server that hangs, forgets, and restarts

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_server_hangs_each_hold_is_notified_at_its_own_deadline() {
    let Some(fixture) = Fixture::set_up("a hang").await else { return };
    let leases = [SECOND, 2 * SECOND];
    let locks = [owned(&fixture.one, OWNER, leases[0]), owned(&fixture.two, OWNER, leases[1])];
    let guards = [enter(&locks[0]).await, enter(&locks[0]).await, enter(&locks[1]).await];
    let next = mutex_waiter(fixture.mutex());
    queued(&fixture.server, 1).await;
    fixture.server.pause();
    for (guard, lease) in guards.iter().zip([leases[0], leases[0], leases[1]]) {
        let ends = deadline(guard);
        assert_eq!(within(lease + SLACK, guard.lost()).await, LossReason::StoreUnreachable);
        assert!(Instant::now() + ms(5) >= ends && !guard.is_held());
    }
    fixture.server.resume();
    let next = granted(next).await;
    assert!(next.token() > guards[0].token());
    next.release().await.expect("held to the end");
    drop(guards);
    fixture.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_for_half_a_ttl_loses_nothing() {
    let Some(fixture) = Fixture::set_up("a short hang").await else { return };
    let lease = 3 * SECOND;
    let locks = [&fixture.one, &fixture.two].map(|client| owned(client, OWNER, lease));
    let guards = [enter(&locks[0]).await, enter(&locks[1]).await];
    fixture.server.pause();
    sleep(lease / 2).await;
    fixture.server.resume();
    assert_kept(lease, &[&guards[0], &guards[1]]).await;
    assert_eq!(fixture.inspect().await.holders.len(), 2);
    release_all(guards).await;
    fixture.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_loss_of_data_all_holds_are_notified_and_tokens_increase() {
    let Some(fixture) = Fixture::set_up("a store that forgets").await else { return };
    let mut raw = fixture.server.raw();
    let locks = [&fixture.one, &fixture.two].map(|client| attentive(client, OWNER));
    let reasons = [LossReason::Missing, LossReason::Taken];
    let mut newest: Option<FencingToken> = None;
    for forget in [&["FLUSHALL"][..], &["DEL", KEY], &["DEL", KEY, FENCE], &["DEL", KEY, HOLDS, FENCE]] {
        let guards = [enter(&locks[0]).await, enter(&locks[0]).await, enter(&locks[1]).await];
        assert!(guards.iter().all(|guard| guard.token() == guards[0].token()));
        assert!(Some(guards[0].token()) > newest, "after {newest:?}");
        newest = Some(guards[0].token());
        raw.send(forget);
        assert_all_lost(guards, &reasons).await;
        let other_owner = within(SOON, fixture.other_owner().lock()).await.expect("granted");
        assert!(Some(other_owner.token()) > newest, "{forget:?}");
        newest = Some(other_owner.token());
        // What is left of the owner's holds opens nothing.
        for lock in &locks {
            assert!(lock.try_lock().await.expect("answered").is_none(), "{forget:?}");
        }
        other_owner.release().await.expect("held to the end");
    }
    // A list of holds without its lock goes by itself, with the longest of their leases.
    assert!(raw.pttl(HOLDS) != -1);
    raw.send(&["DEL", HOLDS]);
    fixture.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forgotten_scripts_are_not_noticed() {
    let Some(fixture) = Fixture::set_up("SCRIPT FLUSH").await else { return };
    let mut raw = fixture.server.raw();
    let locks = [&fixture.one, &fixture.two].map(|client| attentive(client, OWNER));
    for _ in 0..20 {
        let mut guards = Vec::new();
        for lock in &locks {
            raw.send(&["SCRIPT", "FLUSH"]);
            guards.push(enter(lock).await);
            raw.send(&["SCRIPT", "FLUSH"]);
        }
        assert_kept(ms(40), &[&guards[0], &guards[1]]).await;
        raw.send(&["SCRIPT", "FLUSH"]);
        let next = waiter(&fixture.other_owner());
        queued(&fixture.server, 1).await;
        for guard in guards {
            raw.send(&["SCRIPT", "FLUSH"]);
            guard.release().await.expect("held to the end");
        }
        granted(next).await.release().await.expect("held to the end");
    }
    drop(raw);
    fixture.tear_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_restart_without_persistence_all_holds_are_notified_and_tokens_increase() {
    let Some(mut fixture) = Fixture::set_up("a restart without disk").await else { return };
    let lease = 3 * SECOND;
    let locks = [&fixture.one, &fixture.two].map(|client| owned(client, OWNER, lease));
    let guards = [enter(&locks[0]).await, enter(&locks[1]).await];
    let token = guards[0].token();
    let next = waiter(&owned(&fixture.other, OTHER_OWNER, lease));
    queued(&fixture.server, 1).await;
    fixture.server.restart();
    let (next, _) = within(lease + SOON, next).await.expect("no panic");
    assert!(next.token() > token);
    let reasons = [LossReason::Missing, LossReason::Taken, LossReason::StoreUnreachable];
    assert_all_lost(guards, &reasons).await;
    next.release().await.expect("held to the end");
    let again = [enter(&locks[0]).await, enter(&locks[1]).await];
    assert!(again[0].token() > token && again[0].token() == again[1].token());
    release_all(again).await;
    nothing_left(&fixture.server, SLACK).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_with_persistence_within_the_ttl_loses_nothing() {
    let Some(mut fixture) = Fixture::set_up_with("a restart with disk", Setup::on_disk()).await else {
        return;
    };
    let lease = 6 * SECOND;
    let locks = [(&fixture.one, OWNER), (&fixture.two, OWNER), (&fixture.other, OTHER_OWNER)]
        .map(|(client, owner)| owned(client, owner, lease));
    let guards = [enter(&locks[0]).await, enter(&locks[1]).await];
    let next = waiter(&locks[2]);
    queued(&fixture.server, 1).await;
    let before = fixture.server.raw().send(&["ZRANGE", HOLDS, "0", "-1"]);
    fixture.server.restart();
    let mut raw = fixture.server.raw();
    assert_eq!(raw.send(&["ZRANGE", HOLDS, "0", "-1"]), before, "remembered");
    eventually(SOON, || ready(listeners(&mut raw) == 3)).await;
    assert_kept(lease, &[&guards[0], &guards[1]]).await;
    assert!(!next.is_finished());
    release_all(guards).await;
    granted(next).await.release().await.expect("held to the end");
    nothing_left(&fixture.server, SLACK).await;
}

// Our keys changed by others

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replaced_lock_key_is_a_loss_for_all_holds_and_is_left_alone() {
    let Some(fixture) = Fixture::set_up("replaced keys").await else { return };
    let mut raw = fixture.server.raw();
    let locks = [&fixture.one, &fixture.two].map(|client| attentive(client, OWNER));
    let elsewhere = enter(&owned_named(&fixture.one, "machine:43", OWNER, LONG)).await;
    for value in [Some(BARE_HOLDER), None] {
        let guards = [enter(&locks[0]).await, enter(&locks[1]).await];
        match value {
            Some(value) => drop(raw.send(&["SET", KEY, value])),
            None => replace_by_list(&mut raw, KEY),
        }
        assert_all_lost(guards, &[LossReason::Taken]).await;
        for lock in [&locks[0], &fixture.other_owner()] {
            match (value, within(SOON, lock.try_lock()).await) {
                (Some(value), answer) => assert!(answer.expect("answered").is_none(), "beside {value:?}"),
                (None, Err(error @ Error::StoreRefused { .. })) => {
                    assert!(error.to_string().contains("WRONGTYPE"), "{error}");
                }
                (None, other) => panic!("expected a refusal, got {other:?}"),
            }
        }
        match value {
            Some(value) => assert_eq!(raw.get(KEY).as_deref(), Some(value)),
            None => assert_eq!(raw.send(&["LRANGE", KEY, "0", "-1"]), Reply::Array(vec![Reply::bulk("x")])),
        }
        raw.send(&["DEL", KEY]);
    }
    assert_kept(ms(50), &[&elsewhere]).await;
    elsewhere.release().await.expect("held to the end");
    raw.send(&["DEL", HOLDS]);
    fixture.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_set_of_holds_the_lead_continues_and_the_others_are_notified() {
    let Some(fixture) = Fixture::set_up("deleted holds").await else { return };
    let mut raw = fixture.server.raw();
    let locks = [&fixture.one, &fixture.two].map(|client| attentive(client, OWNER));
    let lead = enter(&locks[0]).await;
    let joined = enter(&locks[1]).await;
    raw.send(&["DEL", HOLDS]);
    assert_all_lost([joined], &[LossReason::Taken]).await;
    assert_kept(ms(200), &[&lead]).await;
    fixture.assert_excluded("the lead is in").await;
    // The list is made anew.
    let again = enter(&locks[1]).await;
    assert_eq!(again.token(), lead.token());
    assert_kept(ms(200), &[&lead, &again]).await;
    lead.release().await.expect("held to the end");
    fixture.assert_excluded("the other is in").await;
    again.release().await.expect("held to the end");
    fixture.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_of_holds_without_its_lead_admits_no_other() {
    let Some(fixture) = Fixture::set_up("holds changed by hand").await else { return };
    let mut raw = fixture.server.raw();
    let locks = [&fixture.one, &fixture.two].map(|client| attentive(client, OWNER));
    let lead = enter(&locks[0]).await;
    let joined = enter(&locks[1]).await;
    let value = raw.get(KEY).expect("held");
    let (id, _) = value.split_once(' ').expect("lease id and token");
    assert_eq!(raw.send(&["ZREM", HOLDS, id]).int(), 1);
    assert_all_lost([joined], &[LossReason::Taken]).await;
    assert_kept(ms(200), &[&lead]).await;
    fixture.assert_excluded("the lead is in").await;
    lead.release().await.expect("held to the end");
    let next = enter(&fixture.other_owner()).await;
    assert!(locks[1].try_lock().await.expect("answered").is_none(), "a list of holds is no way in");
    next.release().await.expect("held to the end");
    raw.send(&["DEL", HOLDS]);
    fixture.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_of_holds_left_by_another_owner_admits_no_one() {
    let Some(fixture) = Fixture::set_up("stale holds").await else { return };
    let mut raw = fixture.server.raw();
    let old = fixture.both_in().await;
    let listed = raw.send(&["ZRANGE", HOLDS, "0", "-1"]);
    raw.send(&["DEL", KEY]);
    assert_eq!(raw.send(&["ZCARD", HOLDS]).int(), 2, "what the owner left behind");
    let other_locks = [owned(&fixture.other, OTHER_OWNER, LONG), owned(&fixture.two, OTHER_OWNER, LONG)];
    let first = enter(&other_locks[0]).await;
    for client in [&fixture.one, &fixture.other] {
        let new = owned(client, "order-44", LONG);
        assert!(new.try_lock().await.expect("answered").is_none());
        // The guards of old are still believed in their own clients: they are asked for from a new one.
        let newcomer = connect(&fixture.server.url()).await;
        assert!(owned(&newcomer, OWNER, LONG).try_lock().await.expect("answered").is_none());
    }
    assert_eq!(fixture.inspect().await.holders.len(), 1);
    // A second hold of the other owner begins a list of its own.
    let second = enter(&other_locks[1]).await;
    assert_eq!(fixture.inspect().await.holders.len(), 2);
    assert_ne!(raw.send(&["ZRANGE", HOLDS, "0", "-1"]), listed);
    let taken = [LossReason::Taken];
    for guard in old {
        assert_lost(guard.release().await, &taken);
    }
    assert_eq!(fixture.inspect().await.holders.len(), 2, "late releases touched nobody");
    release_all([first, second]).await;
    fixture.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_of_holds_of_another_type_is_refused_and_over_admits_nobody() {
    let Some(fixture) = Fixture::set_up("wrong types").await else { return };
    let mut raw = fixture.server.raw();
    let locks = [&fixture.one, &fixture.two].map(|client| attentive(client, OWNER));
    let elsewhere = enter(&owned_named(&fixture.one, "machine:43", OWNER, LONG)).await;
    for holds in 1..=2 {
        let mut guards = Vec::new();
        for lock in &locks[..holds] {
            guards.push(enter(lock).await);
        }
        replace_by_list(&mut raw, HOLDS);
        // Whoever asks now is refused, or excluded, unless the holders have been told already, and have released the
        // lock.
        let is_held = |guards: &[Guard]| guards.iter().any(Guard::is_held);
        let asked = [
            within(SOON, fixture.other_owner().try_lock()).await,
            within(SOON, owned(&fixture.other, OWNER, LONG).try_lock()).await,
        ];
        for answer in asked {
            match answer {
                Ok(guard) => assert!(guard.is_none() || !is_held(&guards), "{holds} holds: over-admitted"),
                Err(Error::StoreRefused { .. }) => {}
                Err(error) => panic!("not a refusal: {error:?}"),
            }
        }
        let mutex = fixture.mutex().try_lock().await.expect("answered");
        assert!(mutex.is_none() || !is_held(&guards), "{holds} holds: over-admitted");
        drop(mutex);
        // Told, or still in: whoever believes it holds the lock at the end does.
        sleep(ms(200)).await;
        let believing = guards.iter().filter(|guard| guard.is_held()).count();
        assert!(believing == 0 || raw.get(KEY).is_some(), "{holds} holds: {believing} are wrong");
        assert_eq!(raw.send(&["LRANGE", HOLDS, "0", "-1"]), Reply::Array(vec![Reply::bulk("x")]));
        raw.send(&["DEL", HOLDS]);
        drop(guards);
        fixture.mutex().force_release().await.expect("answered");
        fixture.assert_served().await;
        eventually(SECOND, || ready(left(&mut raw) == ["lock:machine:43"])).await;
    }
    assert_kept(ms(50), &[&elsewhere]).await;
    elsewhere.release().await.expect("held to the end");
    drop(raw);
    fixture.tear_down().await;
}

/// Releases a lock while one of the keys beside it holds something else.
async fn release_beside_a_broken(key: &str) {
    let Some(fixture) = Fixture::set_up("wrong types").await else { return };
    let mut raw = fixture.server.raw();
    let guard = enter(&fixture.owners()[0]).await;
    replace_by_list(&mut raw, key);
    // Confirmed or refused: what is in the keys beside the lock does not keep it held.
    let released = guard.release().await;
    assert!(matches!(released, Ok(()) | Err(Error::StoreRefused { .. })), "{key}: {released:?}");
    let mut raw = fixture.server.raw();
    eventually(SECOND, || ready(raw.get(KEY).is_none())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_of_holds_of_another_type_does_not_keep_a_released_lock() {
    release_beside_a_broken(HOLDS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_of_another_type_does_not_keep_a_released_lock() {
    release_beside_a_broken(QUEUE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fence_or_waiters_of_another_type_do_not_keep_a_released_lock() {
    release_beside_a_broken(FENCE).await;
    release_beside_a_broken("{lock:machine:42}:waiters").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_store_refuses_new_holds_and_still_renews_and_hands_over() {
    let Some(fixture) = Fixture::set_up("a full store").await else { return };
    let mut raw = fixture.server.raw();
    let locks = [&fixture.one, &fixture.two].map(|client| attentive(client, OWNER));
    let guards = [enter(&locks[0]).await, enter(&locks[1]).await];
    let next = waiter(&fixture.other_owner());
    queued(&fixture.server, 1).await;
    assert_eq!(raw.send(&["CONFIG", "SET", "maxmemory", "1"]), Reply::ok());
    let elsewhere = owned_named(&fixture.other, "machine:43", OWNER, LONG);
    let refused = within(SOON, elsewhere.try_lock()).await;
    assert!(
        matches!(&refused, Err(error @ Error::StoreUnavailable { .. }) if error.to_string().contains("OOM")),
        "{refused:?}"
    );
    assert_kept(ms(200), &[&guards[0], &guards[1]]).await;
    release_all(guards).await;
    granted(next).await.release().await.expect("held to the end");
    assert_eq!(left(&mut raw), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_needs_the_keys_of_the_lock_and_the_channels_and_nothing_else() {
    let Some(fixture) = Fixture::set_up("users").await else { return };
    let mut raw = fixture.server.raw();
    raw.send(&["ACL", "SETUSER", "some", "on", ">pw", "+@all", "resetchannels", "&leasehold:*"]);
    raw.send(&["ACL", "SETUSER", "some", "~lock:*", "~{lock:*"]);
    let url = format!("redis://some:pw@127.0.0.1:{}", fixture.server.port());
    let (one, two) = (connect(&url).await, connect(&url).await);
    let holder = enter(&fixture.other_owner()).await;
    let waiters = [&one, &two].map(|client| waiter(&owned(client, OWNER, LONG)));
    queued(&fixture.server, 2).await;
    holder.release().await.expect("held to the end");
    let [first, second] = waiters.map(granted);
    let guards = [first.await, second.await];
    assert_eq!(guards[0].token(), guards[1].token());
    release_all(guards).await;
    fixture.assert_clean().await;
}

// Exclusion under load

/// When a lock was held, and under which token.
type Hold = (Instant, Instant, FencingToken);

/// Reads, sleeps and writes the counter under the lock, sometimes under two guards of it, sometimes handing the hold
/// over to another client of the same owner on the way.
async fn count(locks: [&ReentrantLock; 2], counter: &Counter, round: usize) -> Hold {
    let outer = locks[0].lock().await.expect("granted");
    let (begin, token) = (Instant::now(), outer.token());
    let inner = match round % 4 {
        0 => Some(locks[0].lock().await.expect("let in")),
        1 => Some(locks[1].lock().await.expect("let in")),
        _ => None,
    };
    assert!(inner.as_ref().is_none_or(|inner| inner.token() == token));
    let read = counter.read();
    // The last one decides, whichever it is.
    let (first, last) = match inner {
        Some(inner) if round.is_multiple_of(3) => (Some(outer), inner),
        inner => (inner, outer),
    };
    if let Some(first) = first {
        first.release().await.expect("held");
    }
    sleep(ms(1)).await;
    counter.write(read + 1);
    assert!(last.is_held());
    let end = Instant::now();
    last.release().await.expect("held to the end");
    (begin, end, token)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_tasks_that_read_sleep_and_write_a_plain_counter_lose_no_update() {
    const TASKS: usize = 8;
    const ROUNDS: usize = 100;
    let Some(fixture) = Fixture::set_up("lost updates").await else { return };
    let counter = Counter::new(&fixture.server);
    let mut tasks = JoinSet::new();
    for i in 0..TASKS {
        let locks = [&fixture.one, &fixture.two].map(|client| owned(client, &format!("task {i}"), LONG));
        let counter = Arc::clone(&counter);
        tasks.spawn(async move {
            let mut holds = Vec::new();
            for round in 0..ROUNDS {
                let [here, there] = [&locks[i % 2], &locks[(i + 1) % 2]];
                holds.push(count([here, there], &counter, i + round).await);
            }
            holds
        });
    }
    let mut holds: Vec<Hold> = within(SECOND * 60, tasks.join_all()).await.into_iter().flatten().collect();
    assert_eq!(counter.read(), (TASKS * ROUNDS) as u64);
    holds.sort_by_key(|&(begin, ..)| begin);
    for pair in holds.windows(2) {
        let [(_, end, token), (begin, _, next_token)] = pair else { unreachable!("windows of two") };
        assert!(end <= begin, "two held at once: {pair:?}");
        assert!(token < next_token, "tokens do not grow: {pair:?}");
    }
    counter.raw().send(&["DEL", "counter"]);
    drop(counter);
    fixture.tear_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mixed_run_leaves_nothing_but_fences_and_no_connection() {
    const TASKS: usize = 48;
    let Some(fixture) = Fixture::set_up("nothing left").await else { return };
    let mut tasks = JoinSet::new();
    for i in 0..TASKS {
        let client = [&fixture.one, &fixture.two, &fixture.other][i % 3].clone();
        tasks.spawn(async move {
            for round in 0..8 {
                let name = format!("machine:{}", (i + round) % 3);
                let lock = owned_named(&client, &name, &format!("owner {}", (i + round) % 5), LONG);
                let time_limit = ms((i * 7 + round) as u64 % 12);
                match (i + round) % 7 {
                    0 => lock.lock().await.expect("granted").release().await.expect("held to the end"),
                    1 => drop(lock.lock().await.expect("granted")),
                    2 => drop(lock.try_lock().await.expect("answered")),
                    // Times out, and is dropped, at any point of the way to a grant and after it.
                    3 => drop(lock.lock_timeout(time_limit).await),
                    4 => drop(timeout(time_limit, lock.lock()).await),
                    5 => drop(named(&client, &name, LONG).lock().await.expect("granted")),
                    _ => {
                        let outer = lock.lock().await.expect("granted");
                        let inner = lock.lock().await.expect("let in");
                        drop(outer);
                        tokio::task::yield_now().await;
                        inner.release().await.expect("held to the end");
                    }
                }
            }
        });
    }
    within(SECOND * 60, tasks.join_all()).await;
    nothing_left(&fixture.server, SECOND).await;
    let mut raw = fixture.server.raw();
    for key in raw.keys("*") {
        assert!(raw.pttl(&key) > 0, "{key} stays forever");
    }
    assert_eq!(raw.keys("*"), [FENCE], "one fence for all names");
    drop(raw);
    fixture.tear_down().await;
}

// Cost

/// How many commands the server carries out per turn while owners are served one after another, each of whom comes in
/// from a second client as well.
async fn cost_of_turns(fixture: &Fixture, waiters: usize) -> f64 {
    // Its requests are repeated every 100 seconds.
    let lease = 10 * LONG;
    let guard = enter(&owned(&fixture.other, OTHER_OWNER, lease)).await;
    let mut tasks = JoinSet::new();
    for n in 0..waiters {
        let locks = [&fixture.one, &fixture.two].map(|client| owned(client, &format!("owner {n}"), lease));
        tasks.spawn(async move {
            let waited = locks[n % 2].lock().await.expect("granted");
            let joined = locks[(n + 1) % 2].lock().await.expect("let in");
            release_all([waited, joined]).await;
        });
    }
    queued(&fixture.server, waiters as i64).await;
    let mut raw = fixture.server.raw();
    raw.send(&["CONFIG", "RESETSTAT"]);
    guard.release().await.expect("held to the end");
    within(LONG, tasks.join_all()).await;
    commands(&mut raw) as f64 / waiters as f64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_takes_the_same_work_for_ten_and_for_five_hundred_waiters() {
    let Some(fixture) = Fixture::set_up("costs").await else { return };
    // The server learns the scripts.
    cost_of_turns(&fixture, 2).await;
    let few = cost_of_turns(&fixture, 10).await;
    let many = cost_of_turns(&fixture, 500).await;
    assert!(many <= few * 1.1, "{few} commands per turn among 10 waiters, {many} among 500");
    fixture.tear_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_waits_time_out_regardless_of_the_number_of_requests() {
    // A call that the store has not answered in this time says so, however short its time limit is.
    const ROUND_TRIP: Duration = Duration::from_millis(100);
    let Some(server) = RedisServer::start_or_skip("short waits") else { return };
    let mut tasks = Vec::new();
    for client in 0..2 {
        let client_handle = Client::connect(&server.url()).await.expect("the server answers");
        for task in 0..32_u64 {
            let owner = ["a", "b"][task as usize % 2];
            let lock = client_handle.reentrant_lock("short", owner).expect("valid");
            tasks.push(tokio::spawn(async move {
                for n in 0..50 {
                    let begun = Instant::now();
                    match lock.lock_timeout(Duration::from_micros((task + n * 64 + client) % 3_000)).await {
                        Ok(guard) => drop(guard),
                        Err(Error::TimedOut { .. }) => {}
                        Err(Error::StoreUnavailable { .. }) if begun.elapsed() >= ROUND_TRIP => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            }));
        }
    }
    for task in tasks {
        task.await.expect("granted or timed out");
    }
}
