//! What may happen to a PostgreSQL server and the connections to it, and what its users are told: refused logins,
//! missing rights and tables, poolers, restarts, stalls, cut connections, sessions that are ended, requests that get
//! lost or arrive late.
#![cfg(feature = "postgres")]

#[path = "support/postgres.rs"]
mod server;
#[macro_use]
#[path = "support/server_promises.rs"]
mod server_promises;
#[macro_use]
#[path = "support/sql_promises.rs"]
mod sql_promises;
#[path = "support/postgres_wire.rs"]
mod wire;

use std::time::Duration;

use futures::StreamExt;
use leasehold::backend::{Answer, Backend, Claim, Detail, Event, Kind, LeaseRef, Request, Resource};
use leasehold::postgres::PostgresBackend;
use leasehold::{BackendError, Client, Severity, postgres};
use leasehold_support::faults::{NAME, SECOND, SOON, granted, ms, mutex, refused, until_waiting, waiter};
use leasehold_support::wire::Fault;
use leasehold_support::{eventually, within};
use server::{PASSWORD, Pooler, PostgresServer, USER};
use server_promises::{
    Server, a_hand_over_takes_fewer_requests_than, assert_refused, assert_unavailable, is_process_of_its_own,
};
use sql_promises::SqlServer;
use tokio::time::{Instant, timeout};
use wire::Wire;

server!(PostgresServer, wire::Postgres, start_or_skip, SECOND);
server_promises!(PostgresServer, grants_and_forced_releases_are_pushed_to_other_clients);
sql_promises!(PostgresServer);

impl SqlServer for PostgresServer {
    type Store = PostgresBackend;

    const KEY: &str = "key";
    const TWO_CONNECTIONS: &str = "max_connections=2";
    const REJECTED: &str = "not that one (SQLSTATE 23514)";

    async fn store(&self) -> PostgresBackend {
        self.backend().await
    }

    async fn store_with_one_connection(url: &str, reply_timeout: Duration) -> PostgresBackend {
        let builder = PostgresBackend::builder(url).expect("a URL").max_connections(2);
        builder.reply_timeout(reply_timeout).connect().await.expect("the server accepts clients")
    }

    async fn change(&self, statement: &str) {
        self.execute(statement).await;
    }

    async fn number(&self, query: &str) -> i64 {
        self.number(query).await
    }

    async fn sessions(&self) -> i64 {
        self.number("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'leasehold%'").await
    }

    async fn end_sessions(&self) {
        self.execute(TERMINATE).await;
    }

    async fn reject_records_that_are_bad(&self) {
        self.execute(
            "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             IF NEW.key LIKE '%bad%' THEN RAISE EXCEPTION 'not that one' USING ERRCODE = '23514'; END IF; RETURN NEW; END $$; \
             CREATE TRIGGER fail BEFORE INSERT OR UPDATE ON leasehold FOR EACH ROW EXECUTE FUNCTION fail()",
        )
        .await;
    }
}

/// Ends all sessions of this crate's clients, and counts them.
const TERMINATE: &str =
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE 'leasehold%'";

/// The query in `docs/stores/postgres.md`.
const WHO: &str =
    r#"SELECT key || ' ' || line FROM leasehold, string_to_table(doc, E'\n') AS line WHERE line LIKE 'h %'"#;

#[tokio::test]
async fn the_database_shows_who_holds_what_and_whose_sessions_there_are() {
    let Some(server) = PostgresServer::start_or_skip("labels in the database") else { return };
    let client =
        Client::builder(server.url()).label("api-7 (pid 4711)").connect().await.expect("it accepts clients");
    let mutex = client.mutex("machine:42").expect("a name").with_note("order 42");
    let guard = mutex.lock().await.expect("it is free");
    let line = server.execute(WHO).await.expect("it is held");
    assert!(line.starts_with("lock:machine:42 h "), "{line}");
    assert!(line.ends_with(r#" label="api-7 (pid 4711)" note="order 42""#), "{line}");
    let named = "SELECT count(*) FROM pg_stat_activity WHERE application_name";
    assert!(server.number(&format!("{named} = 'leasehold api-7 (pid 4711)'")).await >= 2);
    assert_eq!(server.number(&format!("{named} = 'leasehold'")).await, 0);
    let url =
        format!("{}{}application_name=own", server.url(), if server.url().contains('?') { '&' } else { '?' });
    let other = Client::builder(url).label("unused").connect().await.expect("it accepts clients");
    assert!(server.number(&format!("{named} = 'own'")).await >= 2);
    guard.release().await.expect("it was held");
    other.shutdown().await.expect("it ends");
    client.shutdown().await.expect("it ends");
}

// Connecting

#[tokio::test]
async fn login_and_database_errors_are_reported_without_the_password() {
    let Some(server) = PostgresServer::start_or_skip("errors of logging in") else { return };
    let port = server.port();
    let error = refused(&format!("postgres://{USER}:wrong{PASSWORD}@127.0.0.1:{port}/{USER}")).await;
    assert_refused(&error, "password authentication failed");
    let error = refused(&format!("postgres://nobody:{PASSWORD}@127.0.0.1:{port}/{USER}")).await;
    assert_refused(&error, "password authentication failed");
    let error = refused(&format!("postgres://{USER}:{PASSWORD}@127.0.0.1:{port}/nothing")).await;
    assert_refused(&error, "database \"nothing\" does not exist");

    let builder = PostgresBackend::builder(&server.url()).expect("a URL");
    assert!(!format!("{builder:?}").contains(PASSWORD), "{builder:?}");
    let backend = builder.connect().await.expect("it accepts clients");
    assert_eq!(backend.capabilities().store, server.address());
    let state = backend.state();
    assert!(!format!("{backend:?} {state:?}").contains(PASSWORD), "{backend:?} {state:?}");
}

#[cfg(not(any(feature = "rustls", feature = "native-tls")))]
#[tokio::test]
async fn tls_that_this_build_lacks_is_refused() {
    for mode in ["require", "verify-ca", "verify-full"] {
        let url = format!("postgres://u:{PASSWORD}@127.0.0.1/db?sslmode={mode}");
        let error = Client::connect(&url).await.map(drop).expect_err("there is no TLS");
        assert!(matches!(error, leasehold::Error::Unsupported { .. }), "{error:?}");
        server_promises::assert_says(&error, "TLS needs the feature `rustls` or `native-tls`");
    }
}

#[tokio::test]
async fn a_standby_or_a_read_only_database_is_reported() {
    let Some(server) = PostgresServer::start_or_skip("read-only databases") else { return };
    server.execute("ALTER ROLE leasehold SET default_transaction_read_only = on").await;
    assert_unavailable(&refused(&server.url()).await, "it is read-only, perhaps a standby");
}

#[tokio::test]
async fn a_database_that_is_not_unicode_is_refused() {
    let Some(server) = PostgresServer::start_or_skip("other encodings") else { return };
    server.execute("CREATE DATABASE latin OWNER leasehold ENCODING 'LATIN1' TEMPLATE template0").await;
    let error = refused(&format!("postgres://{USER}:{PASSWORD}@127.0.0.1:{}/latin", server.port())).await;
    assert_refused(&error, "the encoding LATIN1, but UTF8 is needed");
}

// Tables and rights

#[tokio::test]
async fn the_schema_is_checked_and_can_be_created_by_hand() {
    let Some(server) = PostgresServer::start_or_skip("the schema") else { return };
    let by_hand = format!("{}?create=false", server.url());
    assert_refused(&refused(&by_hand).await, "leasehold::postgres::SCHEMA");
    server.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC").await;
    server.execute("ALTER SCHEMA public OWNER TO postgres").await;
    let error = refused(&server.url()).await;
    assert_refused(&error, "do not exist, and this user may not create them");

    server.execute(postgres::SCHEMA).await;
    server.execute(postgres::SCHEMA).await;
    let rights = "GRANT SELECT, INSERT, UPDATE, DELETE ON leasehold, leasehold_meta TO";
    assert_refused(&refused(&server.url()).await, rights);
    server.execute(&format!("{rights} leasehold")).await;
    for url in [&by_hand, &server.url()] {
        let client = Client::connect(url).await.expect("the tables may be used");
        mutex(&client).lock().await.expect("free").release().await.expect("held");
        client.shutdown().await.expect("released");
    }
    server.execute("UPDATE leasehold_meta SET value = 99 WHERE name = 'schema'").await;
    assert_refused(&refused(&server.url()).await, "its tables have version 99");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connecting_waits_for_another_client_that_creates_the_tables() {
    let Some(server) = PostgresServer::start_or_skip("tables that are being created") else { return };
    let other = server.session("postgres").await;
    other.batch_execute("SELECT pg_advisory_lock(6841273905571203)").await.expect("nobody has it");
    let builder = PostgresBackend::builder(&server.url()).expect("valid");
    let connecting = tokio::spawn(builder.connect_timeout(SECOND * 20).reply_timeout(SECOND * 20).connect());
    // For longer than a client waits for a row.
    let waiting = "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event = 'advisory' AND now() - query_start > '1500 ms'";
    eventually(SECOND * 10, || async { server.number(waiting).await > 0 }).await;
    drop(other);
    let backend = within(SOON, connecting).await.expect("no panic").expect("the tables are created now");
    backend.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_permissions_are_reported_and_restored_ones_are_used() {
    let Some(server) = PostgresServer::start_or_skip("rights that change") else { return };
    let client = server.client().await;
    let held = mutex(&client).lock().await.expect("free");
    server.execute("ALTER TABLE leasehold OWNER TO postgres").await;
    let error = client.mutex("other").expect("valid").try_lock().await.map(drop).expect_err("no rights");
    assert_refused(&error, "GRANT SELECT, INSERT, UPDATE, DELETE ON leasehold, leasehold_meta TO");
    server.execute("ALTER TABLE leasehold OWNER TO leasehold").await;
    assert!(held.is_held());
    held.release().await.expect("held");
    let other = client.mutex("other").expect("valid").try_lock().await.expect("it may").expect("free");
    other.release().await.expect("held");
}

#[tokio::test]
async fn what_an_operator_should_know_is_found() {
    let settings = ["fsync=off", "synchronous_commit=off"];
    let Some(server) = PostgresServer::start_with_or_skip("findings", &settings, None) else { return };
    let client = server.client().await;
    server.execute("ALTER TABLE leasehold SET UNLOGGED").await;
    let findings = client.check().await.expect("it answers");
    let found = |text: &str| {
        let of = findings.iter().find(|finding| finding.text.contains(text));
        of.map(|finding| finding.severity)
    };
    assert_eq!(found("`fsync` is off"), Some(Severity::Warning));
    assert_eq!(found("`synchronous_commit` is off"), Some(Severity::Info));
    assert_eq!(found("a table is unlogged"), Some(Severity::Warning));
    let Some(server) = PostgresServer::start_or_skip("findings") else { return };
    assert_eq!(server.client().await.check().await.expect("it answers"), []);
}

// Connections

#[tokio::test]
async fn a_pooler_in_transaction_mode_is_refused() {
    let Some(server) = PostgresServer::start_or_skip("poolers") else { return };
    let Some(pooler) = Pooler::start_or_skip("poolers", &server, "transaction") else { return };
    let why = "PgBouncer in transaction mode";
    for _ in 0..5 {
        assert_refused(&refused(&pooler.url()).await, why);
    }
    let lazy = Client::connect_lazy(&pooler.url()).expect("it opens nothing yet");
    let error = mutex(&lazy).try_lock().await.map(drop).expect_err("it is refused");
    assert_refused(&error, why);
    // Nothing was set in sessions that belong to others.
    let (session, connection) =
        tokio_postgres::connect(&pooler.url(), tokio_postgres::NoTls).await.expect("it accepts clients");
    tokio::spawn(connection);
    let messages = session.simple_query("SHOW lock_timeout").await.expect("a setting");
    let row = messages.iter().find_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    assert_eq!(row, Some("0"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_in_session_mode_will_do() {
    let Some(server) = PostgresServer::start_or_skip("poolers") else { return };
    let Some(pooler) = Pooler::start_or_skip("poolers", &server, "session") else { return };
    let pooled = Client::connect(&pooler.url()).await.expect("sessions are its own");
    let direct = server.client().await;
    let guard = mutex(&direct).lock().await.expect("free");
    let waiter = waiter(&mutex(&pooled));
    until_waiting(&mutex(&direct), 1).await;
    guard.release().await.expect("held");
    granted(waiter).await.release().await.expect("held");
}

#[tokio::test]
async fn a_pooler_in_statement_mode_is_refused() {
    let Some(server) = PostgresServer::start_or_skip("poolers") else { return };
    let Some(pooler) = Pooler::start_or_skip("poolers", &server, "statement") else { return };
    assert_refused(&refused(&pooler.url()).await, "PgBouncer in transaction mode");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_the_list_that_hangs_is_passed_over() {
    let Some(hanging) = PostgresServer::start_or_skip("a server that hangs") else { return };
    let Some(server) = PostgresServer::start_or_skip("a server that hangs") else { return };
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", hanging.port(), server.port());
    let url = format!("postgres://{USER}:{PASSWORD}@{hosts}/{USER}");
    let client = Client::connect(&url).await.expect("both answer");
    mutex(&client).lock().await.expect("free").release().await.expect("held");
    hanging.pause();
    let begun = Instant::now();
    let guard = within(SOON * 2, mutex(&client).lock()).await.expect("the other one answers");
    // A reply timeout, and then a new connection.
    assert!(begun.elapsed() < SECOND * 4, "{:?}", begun.elapsed());
    guard.release().await.expect("held");
    let other = Client::connect(&url).await.expect("the other one answers");
    mutex(&other).lock().await.expect("free").release().await.expect("held");
}

// Sessions

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_whose_sessions_are_killed_reconnects_and_catches_up() {
    let Some(server) = PostgresServer::start_or_skip("ended sessions") else { return };
    // No more than two sessions, even if a busy machine holds one of them up.
    let url = format!("{}?max_connections=2", server.url());
    let client = || async { Client::connect(&url).await.expect("the server accepts clients") };
    let (one, other) = (client().await, client().await);
    let held = mutex(&one).lock().await.expect("free");
    let waiter = waiter(&mutex(&other));
    until_waiting(&mutex(&one), 1).await;
    assert_eq!(server.number(TERMINATE).await, 4);
    // Nobody may be listening yet.
    held.release().await.expect("held");
    let begun = Instant::now();
    let next = granted(waiter).await;
    assert!(begun.elapsed() < SECOND, "{:?}", begun.elapsed());
    next.release().await.expect("held");
}

/// Fails the first writes of a record, as if others had been in the way.
fn failing_trigger(code: &str, times: u32) -> String {
    format!(
        "CREATE SEQUENCE attempts; GRANT USAGE ON SEQUENCE attempts TO leasehold; \
         CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         IF nextval('attempts') <= {times} THEN RAISE EXCEPTION 'as a test' USING ERRCODE = '{code}'; END IF; \
         RETURN NEW; END $$; \
         CREATE TRIGGER fail BEFORE INSERT OR UPDATE ON leasehold FOR EACH ROW EXECUTE FUNCTION fail()"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_cannot_be_serialized_or_is_a_deadlock_is_repeated() {
    for code in ["40001", "40P01"] {
        let Some(server) = PostgresServer::start_or_skip("serialization failures") else { return };
        let client = server.client().await;
        server.execute(&failing_trigger(code, 3)).await;
        let guard = mutex(&client).try_lock().await.expect("it is repeated").expect("free");
        guard.release().await.expect("held");
        assert_eq!(server.number("SELECT last_value FROM attempts").await, 5, "{code}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_locked_by_another_program_delays_no_other_lock() {
    let Some(server) = PostgresServer::start_or_skip("locked rows") else { return };
    let client = server.client().await;
    let held = mutex(&client).lock().await.expect("free");
    let stranger = server.session("postgres").await;
    stranger.batch_execute("BEGIN; SELECT * FROM leasehold FOR UPDATE").await.expect("it may");
    let release = tokio::spawn(async move { held.release().await });
    for n in 0..10 {
        let other = client.mutex(&format!("other {n}")).expect("valid");
        let begun = Instant::now();
        let guard = within(SOON, other.try_lock()).await.expect("it answers").expect("free");
        guard.release().await.expect("held");
        // The first one may wait for a further connection.
        assert!(begun.elapsed() < ms(900), "{n}: {:?}", begun.elapsed());
    }
    assert!(!release.is_finished());
    stranger.batch_execute("COMMIT").await.expect("it was locked");
    within(SOON, release).await.expect("no panic").expect("held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_several_servers_the_one_that_can_be_written_is_used() {
    let Some(standby) = PostgresServer::start_or_skip("several servers") else { return };
    let Some(mut primary) = PostgresServer::start_or_skip("several servers") else { return };
    standby.execute("ALTER ROLE leasehold SET default_transaction_read_only = on").await;
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", standby.port(), primary.port());
    let client = Client::connect(&format!("postgres://{USER}:{PASSWORD}@{hosts}/{USER}")).await;
    let client = client.expect("one of them can be written");
    let first = mutex(&client).lock().await.expect("free");
    let token = first.token();
    first.release().await.expect("held");
    assert_eq!(primary.number("SELECT count(*) FROM leasehold").await, 1);
    // A failover, by which all is forgotten.
    primary.kill();
    standby.execute("ALTER ROLE leasehold SET default_transaction_read_only = off").await;
    let next = within(SOON * 2, mutex(&client).lock()).await.expect("free");
    assert!(next.token() > token);
    assert_eq!(standby.number("SELECT count(*) FROM leasehold").await, 1);
    next.release().await.expect("held");
    client.shutdown().await.expect("released");
}

// Requests that get lost

/// Between locking a row and writing it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_stops_while_it_has_a_row_locked_holds_up_the_others_for_a_moment() {
    let Some(server) = PostgresServer::start_or_skip("clients that stop") else { return };
    let wire = Wire::start(server.port()).await;
    let (stopping, direct) = (
        PostgresBackend::connect(&server::url_of(wire.port())).await.expect("the wire is whole"),
        server.backend().await,
    );
    let request = |backend: &PostgresBackend| {
        Request::new(
            LeaseRef::new(backend.lease_id(), Resource::named("lock:", NAME, Kind::Mutex)),
            Claim::Sole,
            SECOND * 30,
        )
    };
    // Somebody else came first, so the row is locked for a second from now on.
    server.execute(&failing_trigger("40001", 1)).await;
    let first = request(&stopping);
    stopping.request(&first).await.expect("it is repeated");
    // It begins, locks and reads the clock, and then it would write.
    let sprung = wire.trap(3, Fault::Late);
    let stopped = tokio::spawn(async move { (stopping.release(&first.lease).await, stopping) });
    sprung.await.expect("it was hit");
    let begun = Instant::now();
    let asked = request(&direct);
    let answer = within(SOON, direct.request(&asked)).await.expect("it answers");
    assert!(matches!(answer, Answer::Busy { .. }), "reading needs no lock: {answer:?}");
    let waiting = request(&direct).waiting();
    let answer = within(SOON, direct.request(&waiting)).await.expect("it answers");
    assert!(matches!(answer, Answer::Queued(_)), "{answer:?}");
    assert!(begun.elapsed() < ms(1500), "{:?}", begun.elapsed());
    let (released, stopping) = within(SOON, stopped).await.expect("no panic");
    assert!(matches!(released, Err(BackendError::Unanswered { .. })), "{released:?}");
    wire.deliver().await;
    let held = direct.inspect(&asked.lease.resource, Detail::Full).await.expect("it answers");
    assert_eq!(held.holders.len(), 1, "its session was ended, and with it the transaction");
    stopping.close().await;
}

// Notifications

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_notifications_grant_nothing() {
    let Some(server) = PostgresServer::start_or_skip("notifications of strangers") else { return };
    let (one, other) = (server.client().await, server.backend().await);
    let held = mutex(&one).lock().await.expect("free");
    let resource = Resource::named("lock:", NAME, Kind::Mutex);
    let lease = LeaseRef::new(other.lease_id(), resource);
    let mut events = other.events();
    let request = Request::new(lease.clone(), Claim::Sole, SECOND * 10).waiting();
    assert!(matches!(other.request(&request).await.expect("it answers"), Answer::Queued(_)));
    assert_eq!(within(SOON, events.next()).await, Some(Event::Resync), "it listens");
    let channel = format!("lh_{}", lease.id.client().simple());
    let somebody = mutex(&one).inspect().await.expect("it answers").holders[0].id.clone();
    for message in ["", "x", "s", "c lock:machine:42", "a 1", "g 1 2 3", &format!("r {somebody} 1")] {
        server.execute(&format!("NOTIFY {channel}, '{message}'")).await;
    }
    assert!(timeout(ms(300), events.next()).await.is_err(), "nothing of that concerns this client");
    held.release().await.expect("held");
    let event = within(SOON, events.next()).await;
    assert!(matches!(&event, Some(Event::Granted { lease: granted, .. }) if *granted == lease), "{event:?}");
}

// Records

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_takes_as_many_requests_among_many_clients_as_among_few() {
    if !is_process_of_its_own("a_hand_over_takes_as_many_requests_among_many_clients_as_among_few").await {
        return;
    }
    let settings = &["max_connections=500"];
    let Some(server) = PostgresServer::start_with_or_skip("requests per hand-over", settings, None) else {
        return;
    };
    // Two transactions under a lock are ten.
    a_hand_over_takes_fewer_requests_than(&server, 12.0).await;
}
