//! What a request promises on every store whose record is a row: given up, lost or late, it takes effect once or never, and it takes
//! few exchanges.

use std::time::Duration;

use futures::future::join;
use leasehold::backend::{
    Answer, Backend, BackendError, Claim, Detail, Kind, LeaseRef, Released, Request, Resource,
};

use tokio::time::sleep;

use crate::server_promises::{Server, hold_many, renew_all};
use crate::support::eventually;
use crate::support::faults::{NAME, SECOND, SOON, ms};
use crate::support::wire::{Fault, Wire};

/// A database server for one test.
pub(crate) trait SqlServer: Server {
    type Store: Backend;

    async fn store(&self) -> Self::Store;

    /// With one connection for changes, so that no other one is opened in between on a slow machine, and without a push.
    async fn store_with_one_connection(url: &str, reply_timeout: Duration) -> Self::Store;

    /// Has the superuser execute a statement.
    async fn change(&self, statement: &str);
}

fn request(store: &impl Backend, name: &str) -> Request {
    let resource = Resource::named("lock:", name, Kind::Mutex);
    Request::new(LeaseRef::new(store.lease_id(), resource), Claim::Sole, SECOND * 30)
}

/// A release that finds nothing keeps the request from being granted that was given up before it, and is still on its way.
pub(crate) async fn a_request_that_was_released_is_not_granted_when_it_arrives_late<S: SqlServer>() {
    let Some(server) = S::start_or_skip("late requests") else { return };
    let direct = server.store().await;
    // A record that is remembered is written at once. One that is not, because it is new here, is read before, and so is one that somebody
    // else has changed, when writing it has failed.
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

/// All of them, as tests.
macro_rules! sql_promises {
    ($server:ty) => {
        sql_promises! {
            @ $server:
            a_request_that_was_released_is_not_granted_when_it_arrives_late
            a_request_whose_connection_is_lost_before_it_writes_is_repeated
            renewals_of_many_guards_are_few_transactions
            a_record_that_this_client_has_written_last_is_not_read_again
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
