//! The statements of the page about fencing, run on each of its stores: the holder reads and writes, the next holder
//! reads, and the first one is too late.

use mysql_async::prelude::Queryable;
use rusqlite::{Connection, params};

use crate::mysql::{self, MysqlServer};
use crate::page::{Page, root};
use crate::postgres::{self, PostgresServer};
use leasehold_support::{RedisServer, Reply};

/// The block for this store, in statements.
fn statements(language: &str, store: &str) -> Vec<String> {
    let page = Page::read(&root().join("docs/guide/fencing.md"));
    let on = format!("on-{store}");
    let block =
        page.code.iter().find(|code| code.language() == language && code.has(&on) && code.has("fencing"));
    let text = &block.expect("the page has it").text;
    let is_comment = |line: &&str| !line.trim_start().starts_with("--");
    let text: String = text.lines().filter(is_comment).map(|line| format!("{line}\n")).collect();
    let statements = text.split(";\n").map(str::trim).filter(|statement| !statement.is_empty());
    statements.map(str::to_owned).collect()
}

#[test]
fn on_sqlite() {
    let [create, read, write] = &statements("sql", "postgres")[..] else { panic!("three statements") };
    let database = Connection::open_in_memory().expect("SQLite works");
    database.execute(create, ()).expect("the table is created");
    database.execute("INSERT INTO machine (id) VALUES ('machine:42')", ()).expect("the row is inserted");
    let reads = |token: i64| {
        let mut statement = database.prepare(read).expect("it can be prepared");
        statement.query_map(params![token], |row| row.get::<_, String>(0)).expect("it runs").count()
    };
    let writes = |token: i64| database.execute(write, params![token]).expect("it runs");
    assert_eq!((reads(5), writes(5)), (1, 1), "the holder");
    assert_eq!(reads(7), 1, "the next holder");
    assert_eq!((reads(5), writes(5)), (0, 0), "the first one, late");
    assert_eq!((writes(7), writes(7)), (1, 1), "as often as it likes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres() {
    let Some(server) = PostgresServer::start_or_skip("fencing on PostgreSQL") else { return };
    let [create, read, write] = &statements("sql", "postgres")[..] else { panic!("three statements") };
    let session = server.session(postgres::USER).await;
    session.execute(create, &[]).await.expect("the table is created");
    session.execute("INSERT INTO machine (id) VALUES ('machine:42')", &[]).await.expect("inserted");
    let reads = async |token: i64| session.query(read, &[&token]).await.expect("it runs").len();
    let writes = async |token: i64| session.execute(write, &[&token]).await.expect("it runs");
    assert_eq!((reads(5).await, writes(5).await), (1, 1), "the holder");
    assert_eq!(reads(7).await, 1, "the next holder");
    assert_eq!((reads(5).await, writes(5).await), (0, 0), "the first one, late");
    assert_eq!((writes(7).await, writes(7).await), (1, 1), "as often as it likes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mysql() {
    let Some(server) = MysqlServer::start_or_skip("fencing on MySQL") else { return };
    let [begin, announce, read, write, ask, commit] = &statements("sql", "mysql")[..] else {
        panic!("six statements")
    };
    let mut session = server.session(mysql::USER, mysql::PASSWORD).await;
    let create =
        "CREATE TABLE machine (id varchar(64) PRIMARY KEY, parts text NOT NULL, token bigint NOT NULL)";
    session.query_drop(create).await.expect("the table is created");
    session.query_drop("INSERT INTO machine VALUES ('machine:42', '', 0)").await.expect("inserted");
    // Whether the holder of this token may read, and whether what it writes is accepted.
    let mut turn = async |token: i64, writes: bool| {
        session.query_drop(begin).await.expect("it begins");
        session.exec_drop(announce, (token, token)).await.expect("it runs");
        let found: Option<(String, i64)> = session.query_first(read).await.expect("it runs");
        let reads = found.expect("there is a row").1 == token;
        session.query_drop(commit).await.expect("it commits");
        if !writes {
            return (reads, false);
        }
        session.query_drop(begin).await.expect("it begins");
        session.exec_drop(write, (token, token)).await.expect("it runs");
        let newest: Option<i64> = session.query_first(ask).await.expect("it runs");
        session.query_drop(commit).await.expect("it commits");
        (reads, newest.expect("there is a row") == token)
    };
    assert_eq!(turn(5, true).await, (true, true), "the holder");
    assert_eq!(turn(7, false).await, (true, false), "the next holder reads");
    assert_eq!(turn(5, true).await, (false, false), "the first one, late");
    assert_eq!(turn(7, true).await, (true, true));
    assert_eq!(turn(7, true).await, (true, true), "as often as it likes");
}

#[test]
fn on_redis() {
    let Some(server) = RedisServer::start_or_skip("fencing on Redis") else { return };
    let [script] = &statements("lua", "redis")[..] else { panic!("one script") };
    let mut raw = server.raw();
    let mut eval = |token: &str, value: &[&str]| {
        let command = [&["EVAL", script, "1", "machine:42", token], value].concat();
        raw.send(&command)
    };
    let is_stale = |reply: &Reply| matches!(reply, Reply::Error(error) if error.starts_with("STALE"));
    let bulk = |text: &str| Reply::Bulk(Some(text.as_bytes().to_vec()));
    assert!(!is_stale(&eval("5", &[])), "the holder reads");
    assert!(!is_stale(&eval("5", &["wheel"])), "and writes");
    assert_eq!(eval("7", &[]), bulk("wheel"), "the next holder reads what it wrote");
    assert!(is_stale(&eval("5", &[])) && is_stale(&eval("5", &["late"])), "the first one, late");
    assert_eq!(eval("7", &["door"]), bulk("door"), "the next holder writes");
}
