//! Faults of the network: the wire between client and server is cut, held, or loses single replies.
#![cfg(feature = "_redis")]

use std::time::Duration;

use futures::future::{join, join_all};
use leasehold::{Client, DistMutex, Error, Guard, LossReason};
use leasehold_support::faults::waiter;
use leasehold_support::locks::*;
use leasehold_support::{Direction, Proxy, RedisServer, eventually, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

/// Long enough that nothing here runs out by itself.
const LONG: Duration = Duration::from_secs(31);

/// A server, a client behind a wire, and a client beside it.
struct Fixture {
    far: Client,
    near: Client,
    proxy: Proxy,
    server: RedisServer,
}

impl Fixture {
    async fn set_up(left_out: &str) -> Option<Self> {
        let server = RedisServer::start_or_skip(left_out)?;
        let proxy = Proxy::start(server.port()).await;
        let (far, near) = (connect(&proxy.url()).await, connect(&server.url()).await);
        warm_up(&server, &near).await;
        Some(Self { far, near, proxy, server })
    }

    fn far(&self, lease: Duration) -> DistMutex {
        mutex(&self.far, lease)
    }

    fn near(&self, lease: Duration) -> DistMutex {
        mutex(&self.near, lease)
    }
}

/// `n` waiters behind the wire, in this order.
async fn queue_up(fixture: &Fixture, n: i64) -> Vec<JoinHandle<Result<Guard, Error>>> {
    let mut waiters = Vec::new();
    for n in 1..=n {
        waiters.push(waiter(&queued_mutex(&fixture.far, LONG)));
        queued(&fixture.server, n).await;
    }
    waiters
}

async fn granted(waiter: JoinHandle<Result<Guard, Error>>, deadline: Duration) -> Guard {
    within(deadline, waiter).await.expect("no panic").expect("granted")
}

// The wire itself

async fn expect(stream: &mut tokio::net::TcpStream, expected: &str) {
    let mut bytes = vec![0; expected.len()];
    within(SOON, stream.read_exact(&mut bytes)).await.expect("the connection stays open");
    assert_eq!(String::from_utf8_lossy(&bytes), expected);
}

#[tokio::test]
async fn the_proxy_counts_neither_pushes_nor_confirmations_as_replies() {
    let Some(server) = RedisServer::start_or_skip("RESP3 through the proxy") else { return };
    let proxy = Proxy::start(server.port()).await;
    let mut client =
        tokio::net::TcpStream::connect(("127.0.0.1", proxy.port())).await.expect("the proxy accepts");
    client.write_all(b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n").await.expect("open");
    let mut hello = vec![0; 4096];
    let len = within(SOON, client.read(&mut hello)).await.expect("open");
    assert!(hello[..len].starts_with(b"%"), "a map");
    client.write_all(b"*3\r\n$9\r\nSUBSCRIBE\r\n$1\r\na\r\n$1\r\nb\r\n").await.expect("open");
    expect(
        &mut client,
        ">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n>3\r\n$9\r\nsubscribe\r\n$1\r\nb\r\n:2\r\n",
    )
    .await;
    for _ in 0..3 {
        assert_eq!(server.raw().send(&["PUBLISH", "a", "x"]).int(), 1);
        expect(&mut client, ">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nx\r\n").await;
    }
    let cut = proxy.cut_after_next_request_matching("SET");
    let set = "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n";
    let ping = "*1\r\n$4\r\nPING\r\n";
    client.write_all(format!("{ping}{ping}{set}{ping}").as_bytes()).await.expect("open");
    expect(&mut client, "+PONG\r\n+PONG\r\n").await;
    assert!(within(SOON, client.read_u8()).await.is_err(), "the answer to SET is lost, and the connection");
    within(SOON, cut).await.expect("the trap is sprung");
    assert_eq!(server.raw().get("k").as_deref(), Some("v"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_works_through_the_proxy() {
    let Some(fixture) = Fixture::set_up("a client through the proxy").await else { return };
    let guard = fixture.far(LONG).lock().await.expect("free");
    let waiters = queue_up(&fixture, 2).await;
    guard.release().await.expect("held");
    for waiter in waiters {
        granted(waiter, SOON).await.release().await.expect("held");
    }
    let why = "one connection for commands, one for renewals, one that listens, and no reconnects";
    assert_eq!(fixture.proxy.accepted(), 3, "{why}");
    nothing_left(&fixture.server, SECOND).await;
}

// Applied, and never answered

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_whose_grant_was_never_answered_is_adopted() {
    let Some(fixture) = Fixture::set_up("an unanswered lock").await else { return };
    let cut = fixture.proxy.cut_after_next_request(asks);
    let guard = within(SOON, fixture.far(LONG).lock()).await.expect("granted");
    within(SOON, cut).await.expect("the first answer was lost");
    let mut raw = fixture.server.raw();
    assert!(guard.is_held());
    // One grant: the second request was told the token of the first.
    assert_eq!(leasehold_support::locks::token_held(&mut raw), Some(guard.token().to_string()));
    assert_eq!(left(&mut raw), [KEY]);
    guard.release().await.expect("held to the end");
    assert_eq!(left(&mut raw), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_try_lock_whose_grant_was_never_answered_is_adopted() {
    let Some(fixture) = Fixture::set_up("an unanswered try_lock").await else { return };
    let cut = fixture.proxy.cut_after_next_request(asks);
    let guard = within(SOON, fixture.far(LONG).try_lock()).await.expect("answered").expect("free");
    within(SOON, cut).await.expect("the first answer was lost");
    let mut raw = fixture.server.raw();
    assert_eq!(leasehold_support::locks::token_held(&mut raw), Some(guard.token().to_string()));
    guard.release().await.expect("held to the end");
    assert_eq!(left(&mut raw), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_was_never_answered_succeeds_and_touches_no_later_holder() {
    let Some(fixture) = Fixture::set_up("an unanswered release").await else { return };
    let guard = fixture.far(LONG).lock().await.expect("free");
    let next = waiter(&fixture.near(LONG));
    queued(&fixture.server, 1).await;
    let cut = fixture.proxy.cut_after_next_request(releases);
    let (released, next) = tokio::join!(guard.release(), granted(next, SOON));
    within(SOON, cut).await.expect("the first answer was lost");
    released.expect("repeated until answered");
    let mut raw = fixture.server.raw();
    assert_eq!(leasehold_support::locks::token_held(&mut raw), Some(next.token().to_string()));
    assert!(raw.get(KEY).is_some() && next.is_held(), "the repeated release left the next holder alone");
    next.release().await.expect("held to the end");
    nothing_left(&fixture.server, SECOND).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unanswered_renewal_loses_nothing() {
    let Some(fixture) = Fixture::set_up("an unanswered renewal").await else { return };
    let lease = 2 * SECOND;
    let guard = fixture.far(lease).lock().await.expect("free");
    let (token, holder) = (guard.token(), fixture.server.raw().get(KEY));
    let cut = fixture.proxy.cut_after_next_request(renews);
    within(lease, cut).await.expect("an answer to a renewal was lost");
    let lost = timeout(2 * lease, guard.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    assert_eq!(fixture.server.raw().get(KEY), holder);
    assert_eq!(guard.token(), token);
    guard.release().await.expect("held to the end");
    nothing_left(&fixture.server, SECOND).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_place_was_never_confirmed_is_queued_once_and_keeps_its_place() {
    let Some(fixture) = Fixture::set_up("an unanswered place in the queue").await else { return };
    let guard = fixture.near(LONG).lock().await.expect("free");
    let cut = fixture.proxy.cut_after_next_request(asks);
    let first = waiter(&fixture.far(LONG));
    within(SOON, cut).await.expect("the first answer was lost");
    queued(&fixture.server, 1).await;
    let second = waiter(&queued_mutex(&fixture.near, LONG));
    queued(&fixture.server, 2).await;
    // The connection and the subscription are back: their places can be told of a grant.
    let mut raw = fixture.server.raw();
    eventually(SOON * 4, || std::future::ready(listeners(&mut raw) == 2)).await;
    eventually(SOON, || std::future::ready(fixture.proxy.open() == 2)).await;
    eventually(SOON, || std::future::ready(raw.send(&["ZCARD", QUEUE]).int() == 2)).await;
    guard.release().await.expect("held");
    let first = granted(first, SOON).await;
    assert!(!second.is_finished(), "the order of the queue was kept");
    first.release().await.expect("held");
    granted(second, SOON).await.release().await.expect("held");
    nothing_left(&fixture.server, SECOND).await;
}

// Lost pushes

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_could_not_be_pushed_is_found_when_the_wire_is_back() {
    let Some(fixture) = Fixture::set_up("a delayed push").await else { return };
    let lease = 6 * SECOND;
    for cut in [false, true] {
        let guard = fixture.near(lease).lock().await.expect("free");
        let waiter = waiter(&fixture.far(lease));
        queued(&fixture.server, 1).await;
        fixture.proxy.hold(Direction::ToClient);
        guard.release().await.expect("held");
        queued(&fixture.server, 0).await;
        assert!(fixture.server.raw().get(KEY).is_some(), "granted in the store");
        assert!(!waiter.is_finished(), "and nobody knows");
        if cut {
            fixture.proxy.cut();
        }
        fixture.proxy.resume();
        let guard = granted(waiter, lease / 3 + SLACK).await;
        assert!(guard.is_held());
        guard.release().await.expect("held to the end");
        nothing_left(&fixture.server, SECOND).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_whose_subscriptions_are_killed_keep_their_places_and_are_served_in_order() {
    let Some(fixture) = Fixture::set_up("killed subscriptions").await else { return };
    let mut raw = fixture.server.raw();
    let guard = fixture.near(LONG).lock().await.expect("free");
    let mut waiters = Vec::new();
    for n in 1..=6 {
        let mutex = queued_mutex(if n % 2 == 0 { &fixture.near } else { &fixture.far }, LONG);
        waiters.push(waiter(&mutex));
        queued(&fixture.server, n).await;
    }
    let queue = raw.send(&["ZRANGE", QUEUE, "0", "-1"]);
    assert_eq!(raw.send(&["CLIENT", "KILL", "TYPE", "pubsub"]).int(), 2);
    assert_eq!(raw.send(&["ZRANGE", QUEUE, "0", "-1"]), queue);
    eventually(SOON, || std::future::ready(listeners(&mut raw) == 2)).await;
    let mut last = guard.token();
    guard.release().await.expect("held");
    for waiter in waiters {
        let guard = granted(waiter, SOON).await;
        assert!(guard.token() > last, "in order");
        last = guard.token();
        guard.release().await.expect("held");
    }
    nothing_left(&fixture.server, SECOND).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_while_nobody_is_subscribed_wakes_the_waiter_soon_after() {
    let Some(fixture) = Fixture::set_up("a release without listeners").await else { return };
    let mut raw = fixture.server.raw();
    for _ in 0..10 {
        let guard = fixture.near(LONG).lock().await.expect("free");
        let waiter = waiter(&fixture.far(LONG));
        queued(&fixture.server, 1).await;
        raw.send(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        guard.release().await.expect("held");
        // Far below a third of the lease: the reconnect is what wakes it.
        granted(waiter, SOON).await.release().await.expect("held");
    }
    nothing_left(&fixture.server, SECOND).await;
}

// Black holes

/// Holds the wire for half a lease: the holder keeps its lease, the waiter its place.
async fn half_a_lease_of_black_hole(direction: Direction) {
    let Some(fixture) = Fixture::set_up("a short black hole").await else { return };
    let lease = 3 * SECOND;
    let guard = fixture.far(lease).lock().await.expect("free");
    let waiter = waiter(&queued_mutex(&fixture.far, lease));
    queued(&fixture.server, 1).await;
    let mut raw = fixture.server.raw();
    let holder = raw.get(KEY);
    // From just before a renewal on, which is when it hurts most.
    let renewed = guard.remaining();
    eventually(lease, || std::future::ready(guard.remaining() < renewed - lease / 4)).await;
    fixture.proxy.hold(direction);
    sleep(lease / 2).await;
    fixture.proxy.resume();
    let lost = timeout(lease, guard.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    assert_eq!(raw.get(KEY), holder);
    assert_eq!(raw.send(&["ZCARD", QUEUE]).int(), 1);
    guard.release().await.expect("held to the end");
    granted(waiter, lease / 3 + SLACK).await.release().await.expect("held");
    nothing_left(&fixture.server, SLACK).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_black_hole_of_half_a_ttl_loses_nothing() {
    half_a_lease_of_black_hole(Direction::Both).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_black_hole_of_half_a_ttl_to_the_store_loses_nothing() {
    half_a_lease_of_black_hole(Direction::ToServer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_black_hole_of_half_a_ttl_from_the_store_loses_nothing() {
    half_a_lease_of_black_hole(Direction::ToClient).await;
}

/// Holds the wire for two leases: the holder is told at its deadline and before anybody else is, and the client
/// works again afterwards.
async fn two_leases_of_black_hole(direction: Direction) {
    let Some(fixture) = Fixture::set_up("a long black hole").await else { return };
    let lease = 2 * SECOND;
    let guard = fixture.far(lease).lock().await.expect("free");
    let next = fixture.near(lease);
    let next = tokio::spawn(async move {
        let guard = next.lock().await.expect("granted");
        (Instant::now(), guard)
    });
    queued(&fixture.server, 1).await;
    fixture.proxy.hold(direction);
    let start = Instant::now();
    // No renewal that was sent before can still be answered.
    let told = guard.lost();
    let told = tokio::spawn(async move { (told.await, Instant::now()) });
    let work = guard.protect(std::future::pending::<()>()).await;
    let ended = Instant::now();
    let (reason, told) = within(SLACK, told).await.expect("no panic");
    assert_eq!(reason, LossReason::StoreUnreachable);
    assert!(
        matches!(work, Err(Error::Lost { reason: LossReason::StoreUnreachable, .. })),
        "the work ended: {work:?}"
    );
    assert!(!guard.is_held());
    assert!(told <= start + lease, "told by the clock, not by TCP: {:?}", told - start);
    let (let_in, next) = within(lease + SLACK, next).await.expect("no panic");
    assert!(told.max(ended) < let_in, "the loss was told {:?} late", told.max(ended) - let_in);
    assert!(next.token() > guard.token());
    tokio::time::sleep_until(start + 2 * lease).await;
    assert!(next.is_held());
    fixture.proxy.resume();
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
    // What the first client still sent does not touch the new holder.
    let far = waiter(&fixture.far(lease));
    queued(&fixture.server, 1).await;
    next.release().await.expect("held to the end");
    granted(far, SOON).await.release().await.expect("held");
    nothing_left(&fixture.server, lease + SLACK).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_black_hole_of_two_ttls_is_reported_before_another_client_is_granted() {
    two_leases_of_black_hole(Direction::Both).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_black_hole_of_two_ttls_to_the_store_is_reported_before_another_client_is_granted() {
    two_leases_of_black_hole(Direction::ToServer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_black_hole_of_two_ttls_from_the_store_is_reported_before_another_client_is_granted() {
    two_leases_of_black_hole(Direction::ToClient).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_is_reported_within_50_ms_of_the_deadline() {
    let Some(fixture) = Fixture::set_up("the moment of a loss").await else { return };
    let guard = fixture.far(SECOND).lock().await.expect("free");
    fixture.proxy.hold(Direction::Both);
    let deadline = deadline(&guard);
    // What a timer can do on this machine now is what may be asked for.
    let timer = tokio::spawn(async move {
        tokio::time::sleep_until(deadline).await;
        Instant::now()
    });
    let lost = guard.lost();
    let told = tokio::spawn(async move {
        lost.await;
        Instant::now()
    });
    let (timer, told) = (timer.await.expect("no panic"), within(SOON, told).await.expect("no panic"));
    assert!(told + ms(5) >= deadline, "{:?} early", deadline - told);
    assert!(told <= timer + ms(50), "{:?} late", told - timer);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_timeout_returns_in_time_from_a_black_hole() {
    let Some(fixture) = Fixture::set_up("a time limit in a black hole").await else { return };
    let mutex = fixture.far(4 * SECOND);
    for direction in [Direction::Both, Direction::ToClient] {
        fixture.proxy.hold(direction);
        let start = Instant::now();
        assert_unavailable(&mutex.lock_timeout(ms(300)).await);
        let waited = start.elapsed();
        assert!(waited >= ms(300) && waited < ms(300) + SLACK, "{waited:?}");
        fixture.proxy.resume();
        nothing_left(&fixture.server, 4 * SECOND + SLACK).await;
    }
    within(SOON, mutex.lock()).await.expect("works again").release().await.expect("held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_try_lock_returns_within_seconds_from_a_black_hole() {
    let Some(fixture) = Fixture::set_up("try_lock in a black hole").await else { return };
    fixture.proxy.hold(Direction::Both);
    let answer = within(SOON + SLACK, fixture.far(LONG).try_lock()).await;
    assert_unavailable(&answer);
    fixture.proxy.resume();
    nothing_left(&fixture.server, SOON).await;
    let guard = within(SOON, fixture.far(LONG).try_lock()).await.expect("works again").expect("free");
    guard.release().await.expect("held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_into_a_black_hole_says_so_and_is_done_when_the_wire_is_back() {
    let Some(fixture) = Fixture::set_up("a release in a black hole").await else { return };
    let guard = fixture.far(LONG).lock().await.expect("free");
    fixture.proxy.hold(Direction::Both);
    assert_unavailable(&within(SOON + SLACK, guard.release()).await);
    assert!(fixture.server.raw().get(KEY).is_some());
    fixture.proxy.resume();
    nothing_left(&fixture.server, SOON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_survive_a_server_that_refuses_connections_for_a_second() {
    let Some(fixture) = Fixture::set_up("refused connections").await else { return };
    let guard = fixture.near(LONG).lock().await.expect("free");
    let waiters = queue_up(&fixture, 2).await;
    fixture.proxy.refuse(true);
    fixture.proxy.cut();
    sleep(SECOND).await;
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
    // Released while nobody can be told.
    guard.release().await.expect("held");
    fixture.proxy.refuse(false);
    // In whichever order they come back. Far below a third of the lease: the reconnect is what wakes them.
    join_all(waiters.into_iter().map(|waiter| async {
        granted(waiter, SOON).await.release().await.expect("held");
    }))
    .await;
    nothing_left(&fixture.server, SECOND).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_that_were_unreachable_are_served_in_order_of_arrival() {
    let Some(fixture) = Fixture::set_up("order after an outage").await else { return };
    let guard = fixture.near(LONG).lock().await.expect("free");
    let waiters = queue_up(&fixture, 8).await;
    // Their client knows it, too: a request whose answer is lost would be repeated before the others.
    fixture.far(LONG).inspect().await.expect("the wire is whole");
    fixture.proxy.refuse(true);
    fixture.proxy.cut();
    let mut raw = fixture.server.raw();
    eventually(SOON, || std::future::ready(listeners(&mut raw) == 1)).await;
    // Everybody is passed over.
    guard.release().await.expect("held");
    fixture.proxy.refuse(false);
    let tokens = join_all(waiters.into_iter().map(|waiter| async {
        let guard = granted(waiter, SOON).await;
        let token = guard.token();
        guard.release().await.expect("held");
        token
    }))
    .await;
    assert!(tokens.is_sorted(), "{tokens:?}");
    nothing_left(&fixture.server, SECOND).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resetting_every_connection_loses_no_hold_and_no_place() {
    let Some(fixture) = Fixture::set_up("resets").await else { return };
    let lease = LONG;
    let guard = fixture.far(lease).lock().await.expect("free");
    let waiter = waiter(&queued_mutex(&fixture.far, lease));
    queued(&fixture.server, 1).await;
    for _ in 0..10 {
        let accepted = fixture.proxy.accepted();
        fixture.proxy.reset();
        // A connection that is cut while it is being set up is waited for until fred's timeouts are over.
        eventually(2 * SOON, || std::future::ready(fixture.proxy.accepted() >= accepted + 2)).await;
    }
    assert!(guard.is_held());
    within(2 * SOON, guard.release()).await.expect("held to the end");
    granted(waiter, lease / 3 + SLACK).await.release().await.expect("held");
    nothing_left(&fixture.server, SECOND).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forced_release_whose_reply_is_lost_does_not_take_the_lock_from_the_next_holder() {
    let Some(fixture) = Fixture::set_up("a forced release without reply").await else { return };
    // The server must know the script, or it is the refusal whose reply is lost.
    fixture.near(LONG).force_release().await.expect("nobody holds");
    let first = fixture.near(LONG).lock().await.expect("free");
    let waiter = waiter(&queued_mutex(&fixture.near, LONG));
    queued(&fixture.server, 1).await;
    let cut = fixture.proxy.cut_after_next_request(releases_by_force);
    let forced = fixture.far(LONG).force_release().await;
    assert!(matches!(forced, Err(Error::StoreUnavailable { .. })), "the outcome is unknown: {forced:?}");
    within(SOON, cut).await.expect("the reply is lost");
    assert_eq!(within(SOON, first.lost()).await, LossReason::Revoked);
    let second = within(SOON, waiter).await.expect("no panic").expect("handed over");
    assert!(timeout(SECOND, second.lost()).await.is_err(), "the next holder was taken down as well");
    second.release().await.expect("held to the end");
}

/// The subscription is lost before it is checked: that is not a missing permission, and a client that connects lazily
/// goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_lost_before_its_first_message_is_not_a_refusal() {
    let Some(server) = RedisServer::start_or_skip("a subscription lost at once") else { return };
    let proxy = Proxy::start(server.port()).await;
    let lose_subscription = async || {
        let held =
            proxy.hold_connection_at(|request| request.words().first().is_some_and(|word| word == "PUBLISH"));
        within(SOON, held).await.expect("it is checked");
        server.raw().send(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        proxy.resume();
    };
    let (connected, ()) = join(Client::connect(&proxy.url()), lose_subscription()).await;
    let error = connected.expect_err("the subscription was lost");
    assert!(matches!(error, Error::StoreUnavailable { .. }), "{error}");
    let lazy = Client::connect_lazy(&proxy.url()).expect("valid");
    let mutex = mutex(&lazy, LONG);
    let (guard, ()) = join(mutex.lock_timeout(SOON), lose_subscription()).await;
    guard.expect("free").release().await.expect("held to the end");
}
