//! What a MySQL server, its addresses and its neighbours may do for some seconds without anybody being told of a
//! failure.
#![cfg(feature = "mysql")]

#[path = "support/mysql.rs"]
mod server;
#[macro_use]
#[path = "support/sql_faults.rs"]
mod sql_faults;
#[path = "support/mysql_wire.rs"]
mod wire;

use futures::future::join_all;
use leasehold::{Client, Error, Severity};
use leasehold_support::faults::SOON;
use leasehold_support::refusing_proxy::{Mode, Refusable, RefusingProxy};
use leasehold_support::within;
use server::{MysqlServer, PASSWORD, USER};
use sql_faults::{SqlServer, assert_stayed_connected, lock_and_release, mutex, survive, url};
use wire::Mysql;

impl Refusable for Mysql {
    const CLIENT_BEGINS: bool = false;

    /// Before the login, an error has no state.
    fn error(code: &str, is_first: bool) -> Vec<u8> {
        let mut body = vec![0xff];
        body.extend(code.parse::<u16>().expect("a number").to_le_bytes());
        body.extend(if is_first { "as a test" } else { "#HY000as a test" }.bytes());
        let mut packet = vec![body.len() as u8, 0, 0, u8::from(!is_first)];
        packet.extend(body);
        packet
    }
}

impl SqlServer for MysqlServer {
    type Protocol = Mysql;

    const SCHEME: &str = "mysql";
    const FIRST_ADDRESS: u8 = 10;
    const REFUSALS: [&str; 2] = ["1040", "1045"];
    const HOLDS_UP: &str =
        "BEGIN; SELECT 1 FROM leasehold WHERE k LIKE '%held up%' FOR UPDATE; SELECT SLEEP(0.2); COMMIT";
    const IDLE_LIMIT: &[&str] = &["--wait-timeout=1", "--interactive-timeout=1"];
    const SETTINGS_OF_OTHERS: &[&str] = &[
        "--autocommit=0",
        "--completion-type=CHAIN",
        "--default-time-zone=+05:45",
        "--innodb-lock-wait-timeout=1",
        "--innodb-rollback-on-timeout",
        "--loose-idle-transaction-timeout=1",
        "--loose-max-statement-time=1",
        "--loose-max-execution-time=1000",
        "--sql-mode=ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT",
        "--transaction-isolation=SERIALIZABLE",
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
            "CREATE USER {name}@'%' IDENTIFIED BY '{PASSWORD}' WITH MAX_USER_CONNECTIONS {sessions}; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON {USER}.* TO {name}@'%'"
        ))
        .await;
    }

    async fn sessions(&self, user: &str) -> Vec<String> {
        let sessions = format!(
            "SELECT GROUP_CONCAT(ID SEPARATOR ' ') FROM information_schema.PROCESSLIST WHERE USER = '{user}'"
        );
        let sessions = self.execute(&sessions).await.unwrap_or_default();
        sessions.split_whitespace().map(str::to_owned).collect()
    }

    async fn end_session(&self, session: &str) {
        // It may have ended.
        let _ = self.try_to_execute(&format!("KILL CONNECTION {session}")).await;
    }

    async fn has_refused_a_session(&self) -> bool {
        self.counted("Aborted_connects").await > 0
    }
}

sql_faults!(MysqlServer);

// Servers

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_of_a_list_that_accepts_changes_is_used_and_others_are_named() {
    let Some(server) = MysqlServer::start_or_skip("replicas in a list") else { return };
    let Some(replica) = MysqlServer::start_with_or_skip("replicas in a list", &["--read-only"], None) else {
        return;
    };
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", replica.port(), server.port());
    let client = Client::connect(&url::<MysqlServer>(&hosts)).await.expect("one accepts changes");
    lock_and_release(&client, "replica").await;
    let findings = client.check().await.expect("it answers");
    let text = format!("127.0.0.1:{} is not used: it is read-only", replica.port());
    let found = findings.iter().find(|finding| finding.text.contains(&text));
    assert_eq!(found.map(|finding| finding.severity), Some(Severity::Info), "{findings:?}");
    server.execute("SET GLOBAL read_only = 1").await;
    let error =
        Client::connect(&url::<MysqlServer>(&hosts)).await.map(drop).expect_err("none accepts changes");
    assert!(matches!(error, Error::StoreUnavailable { .. }), "{error:?}");
    let each = format!("127.0.0.1:{}: it is read-only", server.port());
    assert!(error.to_string().contains(&each), "{error}");
    assert!(!format!("{error:?}").contains(PASSWORD));
}

// Refusals

const CHANGES: &[&str] = &["UPDATE leasehold SET doc", "INSERT INTO leasehold (k"];
const EVERYTHING: &[&str] = &["leasehold"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_of_some_seconds_fails_nothing() {
    let Some(server) = MysqlServer::start_or_skip("refusals for some seconds") else { return };
    let direct = server.client().await;
    let changes = ["1021", "1041", "1114", "1205", "1213", "1290", "1836", "1969", "3024"];
    let all = changes.map(|code| Mode::RefusesQueries(code, CHANGES)).into_iter();
    let all = all.chain(["1047", "1053", "1290", "3032"].map(|code| Mode::RefusesQueries(code, EVERYTHING)));
    let all = all.chain(["1040", "1203", "1226"].map(Mode::Refuses));
    let each = all.map(async |refusal| {
        let proxy = RefusingProxy::<Mysql>::start(server.port()).await;
        let (begin, end) = (async || proxy.set(refusal), async || proxy.set(Mode::Passes));
        survive::<MysqlServer>(&format!("{refusal:?}"), proxy.port(), &direct, begin, end).await;
    });
    join_all(each).await;
}

/// They are refused, not known, or answered with NULL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_named_locks_contended_locks_are_handed_over_by_polling() {
    let Some(server) = MysqlServer::start_or_skip("servers without named locks") else { return };
    server.client().await.shutdown().await.expect("closed");
    let refused = ["1064", "1105", "1142", "1227", "1235", "1305"];
    let modes = refused.map(|code| Mode::RefusesQueries(code, &["GET_LOCK"])).into_iter();
    // Of what is not a time.
    let modes = modes.chain([Mode::Replaces("GET_LOCK(", "TIMEDIFF(")]);
    let all = modes.map(async |mode| {
        let proxy = RefusingProxy::<Mysql>::start(server.port()).await;
        proxy.set(mode);
        let url = url::<MysqlServer>(&format!("127.0.0.1:{}", proxy.port()));
        let clients = join_all((0..3).map(|_| Client::connect(&url))).await;
        let turns = clients.into_iter().map(async |client| {
            let client = client.expect("it answers");
            let mut states = client.state_changes();
            for _ in 0..10 {
                let guard = mutex(&client, &format!("without {mode:?}")).lock().await;
                let guard = guard.unwrap_or_else(|error| panic!("{mode:?}: {error}"));
                guard.release().await.unwrap_or_else(|error| panic!("{mode:?}: {error}"));
            }
            assert_stayed_connected(&client, &mut states);
        });
        within(SOON * 3, join_all(turns)).await;
    });
    join_all(all).await;
}

// Tables

#[tokio::test]
async fn a_table_of_another_program_is_refused_and_nothing_is_created() {
    let Some(server) = MysqlServer::start_or_skip("tables of other programs") else { return };
    server.execute("CREATE TABLE leasehold (id INT PRIMARY KEY, tenant TEXT)").await;
    let error = Client::connect(&server.url()).await.map(drop).expect_err("it is another table");
    assert!(matches!(error, Error::StoreRefused { .. }), "{error:?}");
    assert!(error.to_string().contains("the table leasehold was not made by this crate"), "{error}");
    let tables = "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'leasehold'";
    assert_eq!(server.number(tables).await, 1);
    // A client that is in use is told at once.
    server.execute("DROP TABLE leasehold").await;
    let client = server.client().await;
    lock_and_release(&client, "foreign").await;
    server.execute("DROP TABLE leasehold; CREATE TABLE leasehold (id INT PRIMARY KEY, tenant TEXT)").await;
    let error = mutex(&client, "foreign").try_lock().await.map(drop).expect_err("it is another table");
    assert!(matches!(error, Error::StoreRefused { .. }), "{error:?}");
}
