//! What every store whose record is a row promises: a request that is given up, lost or late takes effect once or
//! never, and takes few exchanges; nothing is lost by what may happen to tables, sessions and rows.

use std::time::Duration;

use futures::future::{join, join_all};
use leasehold::backend::{Answer, Backend, Claim, Detail, Kind, LeaseRef, Released, Request, Resource};
use leasehold::{BackendError, Client, DistMutex};
use tokio::time::sleep;

use crate::server_promises::{Server, assert_refused, client, hold_many, nothing_went_wrong, renew_all, url};
use leasehold_support::faults::{NAME, SECOND, SOON, brief_mutex, granted, ms, mutex, until_waiting, waiter};
use leasehold_support::wire::{Fault, Wire};
use leasehold_support::{Load, eventually, within};

/// A database server for one test.
pub(crate) trait SqlServer: Server {
    type Store: Backend;

    /// The column of the records' keys.
    const KEY: &str;

    /// In a URL: one connection for changes, and no push.
    const TWO_CONNECTIONS: &str;

    /// What a client is told about a record that is bad.
    const REJECTED: &str;

    async fn store(&self) -> Self::Store;

    /// With one connection for changes, so that no other one is opened in between on a slow machine, and without a
    /// push.
    async fn store_with_one_connection(url: &str, reply_timeout: Duration) -> Self::Store;

    /// Has the superuser execute a statement.
    async fn change(&self, statement: &str);

    async fn number(&self, query: &str) -> i64;

    /// How many sessions the clients of this crate have.
    async fn sessions(&self) -> i64;

    /// Ends all of them.
    async fn end_sessions(&self);

    /// Lets no record be written whose key contains `bad`.
    async fn reject_records_that_are_bad(&self);
}

fn request(store: &impl Backend, name: &str) -> Request {
    let resource = Resource::named("lock:", name, Kind::Mutex);
    Request::new(LeaseRef::new(store.lease_id(), resource), Claim::Sole, SECOND * 30)
}

// Requests

/// A release that finds nothing keeps the request from being granted that was given up before it, and is still on its
/// way.
pub(crate) async fn a_request_that_was_released_is_not_granted_when_it_arrives_late<S: SqlServer>() {
    let Some(server) = S::start_or_skip("late requests") else { return };
    let direct = server.store().await;
    // A record that is remembered is written at once. One that is not, because it is new here, is read before, and so
    // is one that somebody else has changed, when writing it has failed.
    for (case, nth) in [("remembered", 0), ("new", 1), ("changed", 2)] {
        let mut attempts = 5;
        while !is_released_before_it_arrives(&server, &direct, case, nth).await {
            attempts -= 1;
            assert!(attempts > 0, "{case}: the request that writes was never late");
        }
    }
}

/// Whether it was the request that writes which was late. On a machine that is busy there may be others before it.
async fn is_released_before_it_arrives<S: SqlServer>(
    server: &S,
    direct: &S::Store,
    case: &str,
    nth: usize,
) -> bool {
    let wire = Wire::<S::Protocol>::start(server.port()).await;
    let store = S::store_with_one_connection(&server.url_through(wire.port()), SECOND).await;
    // All statements are prepared, and if the record is to be there, it is.
    for name in ["used", if case == "new" { "else" } else { "name" }] {
        let used = request(&store, name);
        store.request(&used).await.expect("the wire is whole");
        store.release(&used.lease).await.expect("the wire is whole");
    }
    let late = request(&store, "name");
    match case {
        "new" => server.change("DELETE FROM leasehold").await,
        "changed" => server.change("UPDATE leasehold SET version = version + 1").await,
        _ => {}
    }
    let _sprung = wire.trap(nth, Fault::Late);
    let answer = store.request(&late).await;
    let is_late = matches!(answer, Err(BackendError::Unanswered { .. }));
    let released = store.release(&late.lease).await.expect("another connection");
    assert!(released == Released::Absent || !is_late, "{case}: {answer:?}, {released:?}");
    wire.deliver().await;
    let seen = direct.inspect(&late.lease.resource, Detail::Full).await.expect("it answers");
    assert!(seen.holders.is_empty(), "{case}: {seen:?}");
    store.close().await;
    is_late
}

/// Nobody is told of it.
pub(crate) async fn a_request_whose_connection_is_lost_before_it_writes_is_repeated<S: SqlServer>() {
    let Some(server) = S::start_or_skip("lost requests") else { return };
    let wire = Wire::<S::Protocol>::start(server.port()).await;
    let store = S::store_with_one_connection(&server.url_through(wire.port()), SECOND * 2).await;
    for fault in [Fault::Lost, Fault::Unanswered] {
        let asked = request(&store, &format!("{fault:?}"));
        let sprung = wire.trap(0, fault);
        let answer = store.request(&asked).await;
        assert!(matches!(answer, Ok(Answer::Granted(_))), "{fault:?}: {answer:?}");
        sprung.await.expect("it was hit");
        assert_eq!(store.release(&asked.lease).await.expect("the wire is whole"), Released::Held);
    }
    store.close().await;
}

pub(crate) async fn renewals_of_many_guards_are_few_transactions<S: SqlServer>() {
    let Some(server) = S::start_or_skip("renewals together") else { return };
    let wire = Wire::<S::Protocol>::start(server.port()).await;
    let store = S::store_with_one_connection(&server.url_through(wire.port()), SECOND * 2).await;
    let renewals = hold_many(&store, 256).await;
    let before = wire.requests();
    renew_all(&store, &renewals).await;
    // Two times reading and writing; preparing the statements, and what goes on besides.
    let made = wire.requests() - before;
    assert!(made <= 12, "{made} requests for 256 renewals");
}

/// Unless somebody else has changed it, or writing it takes so long that its leases would not be counted correctly.
pub(crate) async fn a_record_that_this_client_has_written_last_is_not_read_again<S: SqlServer>() {
    let Some(server) = S::start_or_skip("records that are remembered") else { return };
    let wire = Wire::<S::Protocol>::start(server.port()).await;
    let store = S::store_with_one_connection(&server.url_through(wire.port()), SECOND * 2).await;
    let direct = server.store().await;
    let pair = async || {
        let (own, before) = (request(&store, NAME), wire.requests());
        let Ok(Answer::Granted(grant)) = store.request(&own).await else { panic!("it is free") };
        assert_eq!(store.release(&own.lease).await.expect("the wire is whole"), Released::Held);
        (grant.token, wire.requests() - before)
    };
    // All statements are prepared.
    pair().await;
    let (token, requests) = pair().await;
    // On a very slow machine a record is read after all.
    assert!((2..=4).contains(&requests), "{requests} requests");
    let other = request(&direct, NAME);
    assert!(matches!(direct.request(&other).await, Ok(Answer::Granted(grant)) if grant.token > token));
    let refused = store.request(&request(&store, NAME)).await;
    assert!(matches!(refused, Ok(Answer::Busy { .. })), "{refused:?}");
    direct.release(&other.lease).await.expect("it answers");
    pair().await;

    let (slow, before) = (request(&store, NAME), wire.requests());
    wire.hold();
    let (answer, ()) = join(store.request(&slow), async {
        eventually(SOON, || async { wire.requests() > before }).await;
        // Longer than it may take to be written.
        sleep(ms(50)).await;
        wire.resume();
    })
    .await;
    assert!(matches!(answer, Ok(Answer::Granted(_))), "{answer:?}");
    assert!(wire.requests() - before >= 3, "it was not read");
    store.close().await;
}

// Tables

pub(crate) async fn clients_that_create_the_tables_at_the_same_time_do_not_disturb_each_other<
    S: SqlServer,
>() {
    let Some(server) = S::start_or_skip("creating the tables") else { return };
    let url = url(&server);
    let clients = (0..8).map(|_| {
        tokio::spawn({
            let url = url.clone();
            async move { Client::connect(&url).await }
        })
    });
    for client in join_all(clients).await {
        client.expect("no panic").expect("connected").shutdown().await.expect("closed");
    }
    assert_eq!(server.number("SELECT COUNT(*) FROM leasehold_meta").await, 3);
}

pub(crate) async fn tables_dropped_in_use_are_created_again_and_holders_are_notified<S: SqlServer>() {
    let Some(server) = S::start_or_skip("dropped tables") else { return };
    let (one, other) = (client(&server).await, client(&server).await);
    let held = brief_mutex(&one).lock().await.expect("free");
    let waiter = waiter(&brief_mutex(&other));
    until_waiting(&brief_mutex(&one), 1).await;
    server.change("DROP TABLE leasehold, leasehold_meta").await;
    let next = granted(waiter).await;
    within(SOON, held.lost()).await;
    assert!(next.token() > held.token());
}

// Sessions

pub(crate) async fn a_client_needs_two_connections_and_leaves_none<S: SqlServer>() {
    let Some(server) = S::start_or_skip("connections") else { return };
    // On a machine that is slow enough to hold it up it would open more.
    let client =
        Client::connect(&format!("{}?{}", url(&server), S::TWO_CONNECTIONS)).await.expect("it answers");
    let mut guards = Vec::new();
    for n in 0..10 {
        guards.push(client.mutex(&format!("{n}")).expect("valid").lock().await.expect("free"));
    }
    assert_eq!(server.sessions().await, 2);
    drop(guards);
    client.shutdown().await.expect("released");
    eventually(SOON, || async { server.sessions().await == 0 }).await;
    assert_eq!(server.number("SELECT COUNT(*) FROM leasehold WHERE doc LIKE '%\nh %'").await, 0);
}

pub(crate) async fn a_client_that_is_dropped_closes_its_connections<S: SqlServer>() {
    let Some(server) = S::start_or_skip("dropped clients") else { return };
    drop(client(&server).await);
    eventually(SOON, || async { server.sessions().await == 0 }).await;
}

pub(crate) async fn killing_sessions_all_the_time_loses_no_lock<S: SqlServer>() {
    let Some(server) = S::start_or_skip("ended sessions under load") else { return };
    let load = Load::start(&url(&server), 16).await;
    for _ in 0..10 {
        load.go_on_for(30).await;
        server.end_sessions().await;
    }
    load.go_on_for(100).await;
    nothing_went_wrong(load).await;
}

// Rows

pub(crate) async fn a_rejected_change_is_reported_and_affects_no_other_lock<S: SqlServer>() {
    let Some(server) = S::start_or_skip("rejected statements") else { return };
    let client = client(&server).await;
    mutex(&client).lock().await.expect("free").release().await.expect("held");
    server.reject_records_that_are_bad().await;
    let names = ["one", "bad", "two", "three"].map(|name| client.mutex(name).expect("valid"));
    let answers = join_all(names.iter().map(DistMutex::try_lock)).await;
    for (name, answer) in ["one", "bad", "two", "three"].into_iter().zip(answers) {
        match answer {
            Ok(guard) => assert!(guard.is_some() && name != "bad", "{name}"),
            Err(error) => {
                assert_eq!(name, "bad", "{error}");
                assert_refused(&error, S::REJECTED);
            }
        }
    }
}

pub(crate) async fn idle_records_are_removed_and_tokens_stay_above_theirs<S: SqlServer>() {
    let Some(server) = S::start_or_skip("idle records") else { return };
    let one = client(&server).await;
    let token = mutex(&one).lock().await.expect("free").token();
    let _kept = one.mutex("kept").expect("valid").lock().await.expect("free");
    let records = || async { server.number("SELECT COUNT(*) FROM leasehold").await };
    eventually(SOON, || async { records().await == 2 }).await;
    let free = one.mutex(NAME).expect("valid");
    eventually(SOON, || async { free.inspect().await.is_ok_and(|seen| seen.holders.is_empty()) }).await;
    // Of a clock that was ahead by a year, and as if nobody had used them for more than a day.
    let year = 365 * 24 * 60 * 60 * 1_000_000_u64;
    let (last, ahead) = (token.get(), token.get() + year);
    server
        .change(&format!(
            "UPDATE leasehold SET doc = replace(doc, '{}', '{}') WHERE {} = 'lock:{NAME}'; UPDATE leasehold SET version = 1; \
             UPDATE leasehold_meta SET value = 0 WHERE name = 'swept'",
            last / 1_000_000,
            ahead / 1_000_000,
            S::KEY
        ))
        .await;
    // Another client sweeps when it has nothing else to do.
    let other = client(&server).await;
    eventually(SOON, || async { records().await == 1 }).await;
    let kept = format!("SELECT COUNT(*) FROM leasehold WHERE {} = 'lock:kept'", S::KEY);
    assert_eq!(server.number(&kept).await, 1);
    let next = mutex(&other).lock().await.expect("free").token();
    assert!(next.get() >= ahead - 1_000_000, "{next} follows {ahead}");
}

/// All of them, as tests.
macro_rules! sql_promises {
    ($server:ty) => {
        sql_promises! {
            @ $server:
            a_request_that_was_released_is_not_granted_when_it_arrives_late
            a_request_whose_connection_is_lost_before_it_writes_is_repeated
            renewals_of_many_guards_are_few_transactions
            a_record_that_this_client_has_written_last_is_not_read_again
            clients_that_create_the_tables_at_the_same_time_do_not_disturb_each_other
            tables_dropped_in_use_are_created_again_and_holders_are_notified
            a_client_needs_two_connections_and_leaves_none
            a_client_that_is_dropped_closes_its_connections
            killing_sessions_all_the_time_loses_no_lock
            a_rejected_change_is_reported_and_affects_no_other_lock
            idle_records_are_removed_and_tokens_stay_above_theirs
        }
    };
    (@ $server:ty: $($name:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                sql_promises::$name::<$server>().await;
            }
        )*
    };
}
