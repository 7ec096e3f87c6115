//! What a PostgreSQL server, its addresses and its neighbours may do for some seconds without anybody being told of a failure.
#![cfg(feature = "postgres")]

#[path = "support/postgres_refusals.rs"]
mod refusals;
#[path = "support/postgres.rs"]
mod server;
mod support;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::join_all;
use futures::{FutureExt, StreamExt};
use leasehold::backend::Severity;
use leasehold::{Client, DistMutex, Error, Guard, MutexOptions};
use refusals::{Mode, RefusingProxy};
use server::{PASSWORD, PostgresServer, USER};
use support::faults::{SECOND, SOON, ms};
use support::hosts::{Fault, FaultyAddress, is_run_with_hosts};
use support::{eventually, within};
use tokio::time::{Instant, sleep};

const FAULTS: usize = 5;

/// Each fault has an address of its own.
const fn faulty(n: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 0, 30 + n as u8)
}

fn faults(server: SocketAddr) -> [Fault; FAULTS] {
    [Fault::Swallows, Fault::Hangs, Fault::Refuses, Fault::Drops, Fault::Late(SECOND, server)]
}

fn url(hosts: &str) -> String {
    format!("postgres://{USER}:{PASSWORD}@{hosts}/{USER}")
}

fn mutex(client: &Client, name: &str) -> DistMutex {
    client.mutex_with(name, MutexOptions::new().ttl(SECOND * 10)).expect("valid")
}

async fn lock_and_release(client: &Client, name: &str) {
    let guard = within(SOON, mutex(client, name).lock()).await.expect("free");
    within(SOON, guard.release()).await.expect("held");
}

/// A client connects and works within the limits that it has unless others are set.
async fn works(hosts: &str, case: &str) {
    let client = Client::connect(&url(hosts)).await.unwrap_or_else(|error| panic!("{case}: {error}"));
    lock_and_release(&client, case).await;
    client.shutdown().await.expect("released");
}

// Servers and addresses

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_server_of_a_list_may_hang_refuse_drop_or_answer_late() {
    let Some(server) = PostgresServer::start_or_skip("lists of servers") else { return };
    let port = server.port();
    server.client().await.shutdown().await.expect("closed");
    let each = faults((Ipv4Addr::LOCALHOST, port).into()).into_iter().enumerate().map(async |(n, fault)| {
        let (first, sound) = (format!("{}:{port}", faulty(n)), format!("127.0.0.1:{port}"));
        let _faulty = FaultyAddress::new((faulty(n), port).into(), fault).await;
        for hosts in [format!("{first},{sound}"), format!("{sound},{first}")] {
            works(&hosts, &format!("{fault:?} {hosts}")).await;
        }
    });
    join_all(each).await;
}

#[test]
fn each_address_of_a_name_may_hang_refuse_drop_or_answer_late() {
    const TEST: &str = "each_address_of_a_name_may_hang_refuse_drop_or_answer_late";
    let names = (0..FAULTS).map(|n| {
        let faulty = faulty(n);
        format!("first{n}.test={faulty},127.0.0.1 last{n}.test=127.0.0.1,{faulty} ")
    });
    let hosts = format!("{}silent.test=", names.collect::<String>());
    if !is_run_with_hosts(TEST, &hosts) {
        return;
    }
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    runtime.block_on(async {
        let Some(server) = PostgresServer::start_or_skip("names with several addresses") else { return };
        let port = server.port();
        server.client().await.shutdown().await.expect("closed");
        let each = faults((Ipv4Addr::LOCALHOST, port).into()).into_iter().enumerate();
        let each = each.map(async |(n, fault)| {
            let _faulty = FaultyAddress::new((faulty(n), port).into(), fault).await;
            for name in ["first", "last"] {
                works(&format!("{name}{n}.test:{port}"), &format!("{fault:?} {name}")).await;
            }
        });
        join_all(each).await;
        // A name that is not resolved is one server of several.
        works(&format!("silent.test:{port},127.0.0.1:{port}"), "a silent name").await;
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_whose_server_hangs_drops_refuses_or_is_late_continues() {
    let Some(server) = PostgresServer::start_or_skip("servers that fail in use") else { return };
    server.client().await.shutdown().await.expect("closed");
    let other = server.port();
    let modes =
        [Mode::Hangs, Mode::Drops, Mode::Refuses("57P03"), Mode::Refuses("28000"), Mode::Late(ms(600))];
    let each = modes.map(async |mode| {
        let first = RefusingProxy::start(server.port()).await;
        let hosts = format!("127.0.0.1:{},127.0.0.1:{other}", first.port());
        let client = Client::connect(&url(&hosts)).await.expect("both answer");
        let held = mutex(&client, &format!("held {mode:?}")).lock().await.expect("free");
        first.set(mode);
        let begun = Instant::now();
        let guard = mutex(&client, &format!("other {mode:?}")).try_lock().await;
        let guard = guard.unwrap_or_else(|error| panic!("{mode:?}: {error}")).expect("free");
        // A reply timeout, and then a new connection.
        assert!(begun.elapsed() < SECOND * 4, "{mode:?}: {:?}", begun.elapsed());
        for guard in [guard, held] {
            guard.release().await.unwrap_or_else(|error| panic!("{mode:?}: {error}"));
        }
    });
    join_all(each).await;
}

// Refusals

/// A role for each client, which may have two sessions: others are refused, and rows are held up all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_fails_because_a_further_session_is_refused() {
    let Some(server) = PostgresServer::start_or_skip("roles with two connections") else { return };
    server.client().await.shutdown().await.expect("closed");
    let mut clients = Vec::new();
    for n in 0..3 {
        server
            .execute(&format!(
                "CREATE ROLE limited{n} LOGIN PASSWORD '{PASSWORD}' CONNECTION LIMIT 2; \
                 GRANT SELECT, INSERT, UPDATE, DELETE ON leasehold, leasehold_meta TO limited{n}"
            ))
            .await;
        let url = format!("postgres://limited{n}:{PASSWORD}@127.0.0.1:{}/{USER}", server.port());
        clients.push(Client::connect(&url).await.expect("two sessions will do"));
    }
    let mut states: Vec<_> = clients.iter().map(Client::state_changes).collect();
    let is_over = Arc::new(AtomicBool::new(false));
    let tasks = clients.iter().flat_map(|client| (0..12).map(move |n| (client.clone(), n)));
    let tasks: Vec<_> =
        tasks.map(|(client, n)| tokio::spawn(use_locks(client, n, Arc::clone(&is_over)))).collect();
    // Holds up changes, so that further sessions are wanted.
    let other = server.session("postgres").await;
    let end = Instant::now() + SECOND * 8;
    while Instant::now() < end {
        let locked = "BEGIN; SELECT 1 FROM leasehold WHERE key LIKE '%limit 0' FOR UPDATE; SELECT pg_sleep(0.2); COMMIT";
        other.batch_execute(locked).await.expect("it waits");
        sleep(ms(20)).await;
    }
    is_over.store(true, Ordering::SeqCst);
    for task in tasks {
        within(SOON * 2, task).await.expect("no call fails");
    }
    assert!(server.log().contains("too many connections for role"), "none was refused");
    for (states, client) in states.iter_mut().zip(&clients) {
        assert_stayed_connected(client, states);
    }
}

async fn use_locks(client: Client, n: usize, is_over: Arc<AtomicBool>) {
    while !is_over.load(Ordering::SeqCst) {
        let mutex = mutex(&client, &format!("limit {}", n % 4));
        let guard = mutex.lock().await.expect("one connection works");
        sleep(ms(5)).await;
        guard.release().await.expect("one connection works");
        if let Some(guard) = mutex.try_lock().await.expect("one connection works") {
            guard.release().await.expect("one connection works");
        }
    }
}

fn assert_stayed_connected(
    client: &Client,
    states: &mut (impl futures::Stream<Item = leasehold::backend::StoreState> + Unpin),
) {
    while let Some(Some(state)) = states.next().now_or_never() {
        assert!(state.status.is_connected(), "{state:?}");
    }
    assert!(client.state().status.is_connected(), "{:?}", client.state());
}

const TERMINATE: &str =
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'leasehold'";

/// What the server, and what stands in front of it, may say for some seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_of_some_seconds_fails_nothing() {
    tokio::join!(new_sessions_and_changes(), read_only(), role_that_is_full());
}

/// New sessions are refused, and changes.
async fn new_sessions_and_changes() {
    let Some(server) = PostgresServer::start_or_skip("refusals for some seconds") else { return };
    let direct = server.client().await;
    server
        .execute(
            "CREATE TABLE refused (code text); \
             CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ DECLARE found text; BEGIN \
             SELECT code INTO found FROM refused WHERE strpos(NEW.key, code) > 0; \
             IF found IS NOT NULL THEN RAISE EXCEPTION 'as a test' USING ERRCODE = right(found, 5); END IF; RETURN NEW; END $$; \
             CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON leasehold FOR EACH ROW EXECUTE FUNCTION refuse()",
        )
        .await;
    let (server, direct) = (&server, &direct);
    let sessions = ["57P03", "53300", "53200"].map(async |code| {
        let proxy = RefusingProxy::start(server.port()).await;
        let (begin, end) = (async || proxy.set(Mode::Refuses(code)), async || proxy.set(Mode::Passes));
        survive(code, proxy.port(), direct, begin, end).await;
    });
    let changes = ["53100", "53200", "57014", "58030", "40001", "40P01", "55P03"].map(async |code| {
        let insert = format!("INSERT INTO refused VALUES ('change {code}')");
        let delete = format!("DELETE FROM refused WHERE code = 'change {code}'");
        let begin = async || drop(server.execute(&insert).await);
        let end = async || drop(server.execute(&delete).await);
        survive(&format!("change {code}"), server.port(), direct, begin, end).await;
    });
    tokio::join!(join_all(sessions), join_all(changes));
}

/// As after a failover.
async fn read_only() {
    let Some(server) = PostgresServer::start_or_skip("servers that are read-only for some seconds") else {
        return;
    };
    let direct = server.client().await;
    let begin = async || {
        server.execute("ALTER SYSTEM SET default_transaction_read_only = on").await;
        server.execute("SELECT pg_reload_conf()").await;
    };
    let end = async || {
        server.execute("ALTER SYSTEM RESET default_transaction_read_only").await;
        server.execute("SELECT pg_reload_conf()").await;
    };
    survive("read-only", server.port(), &direct, begin, end).await;
}

/// No session is left for this user.
async fn role_that_is_full() {
    let Some(server) = PostgresServer::start_or_skip("roles without a session for some seconds") else {
        return;
    };
    let direct = server.client().await;
    let begin = async || {
        server.execute("ALTER ROLE leasehold CONNECTION LIMIT 0").await;
        server.execute(TERMINATE).await;
    };
    let end = async || drop(server.execute("ALTER ROLE leasehold CONNECTION LIMIT -1").await);
    survive("a full role", server.port(), &direct, begin, end).await;
}

/// Twenty waiters, a holder, and two releases: one that is awaited, and one that is not.
async fn survive(case: &str, port: u16, direct: &Client, begin: impl AsyncFn(), end: impl AsyncFn()) {
    let client = Client::connect(&url(&format!("127.0.0.1:{port}"))).await.expect("it answers");
    let name = |what: &str| format!("{case} {what}");
    let kept = client.mutex_with(&name("kept"), MutexOptions::new().ttl(SECOND * 6)).expect("valid");
    let kept = kept.lock().await.expect("free");
    let lock = async |what| mutex(&client, &name(what)).lock().await.expect("free");
    let (awaited, dropped): (Guard, Guard) = (lock("awaited").await, lock("dropped").await);
    let waiters: Vec<_> = (0..20)
        .map(|_| {
            let mutex = mutex(&client, &name("kept"));
            tokio::spawn(async move { mutex.lock().await?.release().await })
        })
        .collect();
    sleep(ms(300)).await;
    begin().await;
    // Nothing was under way when sessions ended: what was may have been executed, or not.
    sleep(ms(300)).await;
    // Repeated until it is done.
    drop(dropped);
    let awaited = tokio::spawn(awaited.release());
    sleep(ms(2700)).await;
    assert!(kept.is_held(), "{case}");
    end().await;
    let over = Instant::now();
    within(SOON, awaited).await.expect("no panic").unwrap_or_else(|error| panic!("{case}: {error}"));
    let free = mutex(direct, &name("dropped"));
    eventually(SOON, || async { free.inspect().await.is_ok_and(|seen| seen.holders.is_empty()) }).await;
    // Within a second, on a machine that does nothing else.
    assert!(over.elapsed() < SECOND * 2, "{case}: {:?}", over.elapsed());
    assert!(kept.is_held(), "{case}");
    kept.release().await.unwrap_or_else(|error| panic!("{case}: {error}"));
    for waiter in waiters {
        let waited = within(SOON * 2, waiter).await.expect("no panic");
        waited.unwrap_or_else(|error| panic!("{case}: {error}"));
    }
}

/// Nothing but a release that is not awaited, because a server that is gone may have executed what it was sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_some_seconds_fails_no_waiter_and_no_holder() {
    let Some(mut server) = PostgresServer::start_or_skip("restarts of some seconds") else { return };
    let client = server.client().await;
    let kept = mutex(&client, "kept").lock().await.expect("free");
    let dropped = mutex(&client, "dropped").lock().await.expect("free");
    let waiters: Vec<_> = (0..20)
        .map(|_| {
            let mutex = mutex(&client, "kept");
            tokio::spawn(async move { mutex.lock().await?.release().await })
        })
        .collect();
    sleep(ms(300)).await;
    server.kill();
    drop(dropped);
    sleep(SECOND * 3).await;
    let server = tokio::task::spawn_blocking(move || {
        server.restart();
        server
    });
    let server = server.await.expect("it starts");
    let over = Instant::now();
    let other = server.client().await;
    let free = mutex(&other, "dropped");
    eventually(SOON, || async { free.inspect().await.is_ok_and(|seen| seen.holders.is_empty()) }).await;
    assert!(over.elapsed() < SECOND * 2, "{:?}", over.elapsed());
    assert!(kept.is_held());
    kept.release().await.expect("held");
    for waiter in waiters {
        within(SOON * 2, waiter).await.expect("no panic").expect("it is granted");
    }
}

// Sessions

const SESSIONS: &str = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasehold'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_limit_of_the_server_closes_no_session_and_a_closed_one_is_replaced_in_silence() {
    let settings = ["idle_session_timeout=1s"];
    let Some(server) = PostgresServer::start_with_or_skip("idle limits", &settings, None) else { return };
    let client = server.client().await;
    lock_and_release(&client, "idle").await;
    let sessions = "SELECT string_agg(pid::text, ',' ORDER BY pid) FROM pg_stat_activity WHERE application_name = 'leasehold'";
    let before = server.execute(sessions).await.expect("two");
    let mut states = client.state_changes();
    sleep(ms(2500)).await;
    assert_eq!(server.execute(sessions).await.expect("two"), before);
    // As a proxy in between does it.
    server.execute(TERMINATE).await;
    lock_and_release(&client, "idle").await;
    eventually(SOON, || async {
        let now = server.execute(sessions).await.unwrap_or_default();
        now != before && now.contains(',')
    })
    .await;
    assert_stayed_connected(&client, &mut states);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_are_gone_leave_no_session() {
    let Some(server) = PostgresServer::start_or_skip("sessions of clients that are gone") else { return };
    let holder = server.client().await;
    let held = mutex(&holder, "gone").lock().await.expect("free");
    let mut shut_down = Vec::new();
    for n in 0..10 {
        let client = server.client().await;
        let mutex = mutex(&client, "gone");
        let waiter = tokio::spawn(async move { mutex.lock().await.map(drop) });
        sleep(ms(50)).await;
        waiter.abort();
        if n % 2 == 0 {
            client.shutdown().await.expect("closed");
            shut_down.push(client);
        }
    }
    // Of the holder; a busy machine may have it open a further one.
    eventually(SOON, || async { server.number(SESSIONS).await <= 3 }).await;
    held.release().await.expect("held");
    holder.shutdown().await.expect("released");
    eventually(SOON, || async { server.number(SESSIONS).await == 0 }).await;
}

// Tables

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_in_several_schemas_are_reported_unless_one_is_named() {
    let Some(server) = PostgresServer::start_or_skip("several schemas") else { return };
    server.client().await.shutdown().await.expect("closed");
    server
        .execute(&format!(
            "CREATE SCHEMA \"Other\" AUTHORIZATION {USER}; CREATE ROLE elsewhere LOGIN PASSWORD '{PASSWORD}' IN ROLE {USER}; \
             ALTER ROLE elsewhere SET search_path = \"Other\", public"
        ))
        .await;
    let url = format!("postgres://elsewhere:{PASSWORD}@127.0.0.1:{}/{USER}", server.port());
    // The tables in `public` come later in its path, and are used.
    let client = Client::connect(&url).await.expect("it may use them");
    assert_eq!(client.check().await.expect("it answers"), []);
    server.execute("ALTER ROLE elsewhere SET search_path = \"Other\"").await;
    let client = Client::connect(&url).await.expect("it may create them");
    let findings = client.check().await.expect("it answers");
    let [finding] = &findings[..] else { panic!("{findings:?}") };
    assert_eq!(finding.severity, Severity::Warning);
    let text = "another table `leasehold`, in the schema public, but this client uses the one in the schema \"Other\"";
    assert!(finding.text.contains(text), "{finding}");
    let findings = server.client().await.check().await.expect("it answers");
    assert_eq!(findings.len(), 1, "{findings:?}");
    // Both mean the same table now, and that is in addresses and errors.
    let one = Client::connect(&format!("{url}?schema=public")).await.expect("it is there");
    let other = Client::connect(&format!("{}?schema=public", server.url())).await.expect("it is there");
    for client in [&one, &other] {
        assert_eq!(client.check().await.expect("it answers"), []);
    }
    let held = mutex(&one, "schema").lock().await.expect("free");
    assert!(mutex(&other, "schema").try_lock().await.expect("it answers").is_none());
    held.release().await.expect("held");
    let store = one.state().nodes.first().map(|node| node.address.clone());
    assert_eq!(store, Some(format!("{}?schema=public", server.address())));
    let error = refused(&format!("{}?schema=Missing", server.url())).await;
    assert!(
        error.contains("?schema=Missing") && error.contains("the schema Missing does not exist"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_of_another_program_is_refused_and_nothing_is_created() {
    let Some(server) = PostgresServer::start_or_skip("tables of other programs") else { return };
    server.execute("CREATE TABLE leasehold (id int PRIMARY KEY, tenant text)").await;
    let text = "leasehold in the schema public was not made by this crate";
    let error = refused(&server.url()).await;
    assert!(error.contains(text), "{error}");
    assert_eq!(server.number("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").await, 1);
    // A client that is in use is told at once.
    server.execute("DROP TABLE leasehold").await;
    let client = server.client().await;
    lock_and_release(&client, "foreign").await;
    server.execute("DROP TABLE leasehold; CREATE TABLE leasehold (id int PRIMARY KEY, tenant text)").await;
    let begun = Instant::now();
    let error = mutex(&client, "foreign").try_lock().await.map(drop).expect_err("it is another table");
    assert!(matches!(error, Error::StoreRefused { .. }) && begun.elapsed() < SECOND * 2, "{error:?}");
    assert!(error.to_string().contains(text), "{error}");
}

#[tokio::test]
async fn a_role_that_may_not_use_the_schema_is_told_so() {
    let Some(server) = PostgresServer::start_or_skip("schemas without permission") else { return };
    server
        .execute(&format!(
            "CREATE SCHEMA locks; CREATE SCHEMA {USER}; REVOKE ALL ON SCHEMA {USER} FROM PUBLIC; REVOKE ALL ON SCHEMA public FROM PUBLIC; \
             ALTER SCHEMA public OWNER TO postgres"
        ))
        .await;
    for (options, schemas) in
        [("?schema=locks", "locks"), ("", "leasehold, public"), ("?options=-csearch_path%3Dlocks", "locks")]
    {
        let error = refused(&format!("{}{options}", server.url())).await;
        assert!(error.contains(&format!("GRANT USAGE ON SCHEMA {schemas} TO ...")), "{options}: {error}");
    }
    let error = refused(&format!("{}?options=-csearch_path%3Dnowhere", server.url())).await;
    assert!(error.contains("no schema of its `search_path` exists"), "{error}");
}

async fn refused(url: &str) -> String {
    let error = Client::connect(url).await.map(drop).expect_err("it is refused");
    assert!(matches!(error, Error::StoreRefused { .. }), "{error:?}");
    error.to_string()
}
