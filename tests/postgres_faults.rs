//! What a PostgreSQL server, its addresses and its neighbours may do for some seconds without anybody being told of a
//! failure.
#![cfg(feature = "postgres")]

#[path = "support/postgres.rs"]
mod server;
#[macro_use]
#[path = "support/sql_faults.rs"]
mod sql_faults;
#[path = "support/postgres_wire.rs"]
mod wire;

use futures::future::join_all;
use leasehold::{Client, Error, MutexOptions, Severity};
use leasehold_support::faults::SECOND;
use leasehold_support::refusing_proxy::{Mode, Refusable, RefusingProxy};
use server::{PASSWORD, PostgresServer, USER};
use sql_faults::{
    SqlServer, assert_soon_after, lock_and_release, mutex, survive, twenty_waiters, until_free,
    until_granted, until_waiting, url,
};
use tokio::time::{Instant, sleep};
use wire::Postgres;

impl Refusable for Postgres {
    const CLIENT_BEGINS: bool = true;

    fn error(code: &str, is_first: bool) -> Vec<u8> {
        let severity = if is_first { "FATAL" } else { "ERROR" };
        let fields = format!("S{severity}\0V{severity}\0C{code}\0Mas a test\0\0");
        let mut message = vec![b'E'];
        message.extend((fields.len() as u32 + 4).to_be_bytes());
        message.extend(fields.bytes());
        message
    }
}

impl SqlServer for PostgresServer {
    type Protocol = Postgres;

    const SCHEME: &str = "postgres";
    const FIRST_ADDRESS: u8 = 30;
    const REFUSALS: [&str; 2] = ["57P03", "28000"];
    const HOLDS_UP: &str = "SET lock_timeout = 0; BEGIN ISOLATION LEVEL READ COMMITTED; \
         SELECT 1 FROM leasehold WHERE key LIKE '%held up%' FOR UPDATE; SELECT pg_sleep(0.2); COMMIT";
    const IDLE_LIMIT: &[&str] = &["idle_session_timeout=1s"];
    const SETTINGS_OF_OTHERS: &[&str] = &[
        "statement_timeout=1s",
        "lock_timeout=1ms",
        "idle_in_transaction_session_timeout=1ms",
        "default_transaction_isolation=serializable",
        "default_transaction_deferrable=on",
        "standard_conforming_strings=off",
        "bytea_output=escape",
        "DateStyle=SQL, DMY",
        "TimeZone=Asia/Kathmandu",
        "client_min_messages=debug1",
    ];

    fn start_with_or_skip(left_out: &str, settings: &[&str]) -> Option<Self> {
        Self::start_with_or_skip(left_out, settings, None)
    }

    fn port(&self) -> u16 {
        self.port()
    }

    async fn change(&self, statements: &str) {
        self.execute(statements).await;
    }

    async fn create_user(&self, name: &str, sessions: u32) {
        self.execute(&format!(
            "CREATE ROLE {name} LOGIN PASSWORD '{PASSWORD}' CONNECTION LIMIT {sessions}; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON leasehold, leasehold_meta TO {name}"
        ))
        .await;
    }

    async fn sessions(&self, user: &str) -> Vec<String> {
        let sessions = format!(
            "SELECT string_agg(pid::text, ' ') FROM pg_stat_activity WHERE application_name LIKE 'leasehold%' AND usename = '{user}'"
        );
        let sessions = self.execute(&sessions).await.unwrap_or_default();
        sessions.split_whitespace().map(str::to_owned).collect()
    }

    async fn end_session(&self, session: &str) {
        self.execute(&format!("SELECT pg_terminate_backend({session})")).await;
    }

    async fn has_refused_a_session(&self) -> bool {
        self.log().contains("too many connections for role")
    }
}

sql_faults!(PostgresServer);

// Servers and roles

/// Two servers, of which the first is read-only, and hangs later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_of_a_list_is_passed_over_also_when_it_hangs() {
    let Some(server) = PostgresServer::start_or_skip("standbys in a list") else { return };
    let read_only = &["default_transaction_read_only=on"];
    let Some(standby) = SqlServer::start_with_or_skip("standbys in a list", read_only) else { return };
    let standby: PostgresServer = standby;
    let first = RefusingProxy::<Postgres>::start(standby.port()).await;
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", first.port(), server.port());
    for (n, options) in
        ["", "?target_session_attrs=read-write", "?load_balance_hosts=random"].iter().enumerate()
    {
        first.set(Mode::Passes);
        let url = format!("{}{options}", url::<PostgresServer>(&hosts));
        let client = Client::connect(&url).await.unwrap_or_else(|error| panic!("{options}: {error}"));
        let held = mutex(&client, &format!("standby {n}")).lock().await.expect("free");
        first.set(Mode::Hangs);
        server.execute(TERMINATE).await;
        // On new sessions.
        lock_and_release(&client, "other").await;
        held.release().await.unwrap_or_else(|error| panic!("{options}: {error}"));
    }
}

#[tokio::test]
async fn a_role_with_one_session_is_told_so() {
    let Some(server) = PostgresServer::start_or_skip("roles with one session") else { return };
    server.client().await.shutdown().await.expect("closed");
    server.create_user("single", 1).await;
    let url = format!("postgres://single:{PASSWORD}@127.0.0.1:{}/{USER}", server.port());
    let begun = Instant::now();
    let error = Client::connect(&url).await.map(drop).expect_err("two are needed");
    assert!(matches!(error, Error::StoreUnavailable { .. }), "{error:?}");
    assert!(begun.elapsed() < SECOND * 4, "{:?}", begun.elapsed());
    assert!(error.to_string().contains("too many connections for role \"single\""), "{error}");
}

// Refusals

const TERMINATE: &str =
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE 'leasehold%'";

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
        let proxy = RefusingProxy::<Postgres>::start(server.port()).await;
        let (begin, end) = (async || proxy.set(Mode::Refuses(code)), async || proxy.set(Mode::Passes));
        survive::<PostgresServer>(code, proxy.port(), direct, begin, end).await;
    });
    let changes = ["53100", "53200", "57014", "58030", "40001", "40P01", "55P03"].map(async |code| {
        let insert = format!("INSERT INTO refused VALUES ('change {code}')");
        let delete = format!("DELETE FROM refused WHERE code = 'change {code}'");
        let begin = async || drop(server.execute(&insert).await);
        let end = async || drop(server.execute(&delete).await);
        survive::<PostgresServer>(&format!("change {code}"), server.port(), direct, begin, end).await;
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
    survive::<PostgresServer>("read-only", server.port(), &direct, begin, end).await;
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
    survive::<PostgresServer>("a full role", server.port(), &direct, begin, end).await;
}

/// Nothing but a release that is not awaited, because a server that is gone may have executed what it was sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_some_seconds_fails_no_waiter_and_no_holder() {
    let Some(mut server) = PostgresServer::start_or_skip("restarts of some seconds") else { return };
    let client = server.client().await;
    // Not with the options of the waiters, to which it would be passed on without a word to the server.
    let kept = client.mutex_with("kept", MutexOptions::new().ttl(SECOND * 20)).expect("valid");
    let kept = kept.lock().await.expect("free");
    let dropped = mutex(&client, "dropped").lock().await.expect("free");
    let waiters = twenty_waiters(&client, "kept");
    until_waiting(&client, "kept", 20).await;
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
    until_free(&other, "dropped").await;
    assert_soon_after("a restart", over);
    assert!(kept.is_held());
    kept.release().await.expect("held");
    until_granted("a restart", waiters).await;
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
