//! What a MySQL server, its addresses and its neighbours may do for some seconds without anybody being told of a failure.
#![cfg(feature = "mysql")]

#[path = "support/mysql_refusals.rs"]
mod refusals;
#[path = "support/mysql.rs"]
mod server;
mod support;

use std::net::{Ipv4Addr, SocketAddr};

use futures::StreamExt;
use futures::future::join_all;
use leasehold::backend::Severity;
use leasehold::{Client, DistMutex, Error, MutexOptions};
use refusals::{Refusal, RefusingProxy};
use server::{MysqlServer, PASSWORD, USER};
use support::faults::{SECOND, SOON, ms};
use support::hosts::{Fault, FaultyAddress, is_run_with_hosts};
use support::{eventually, within};
use tokio::time::{Instant, sleep};

const FAULTS: usize = 5;

/// Each fault has an address of its own.
const fn faulty(n: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 0, 10 + n as u8)
}

fn faults(server: SocketAddr) -> [Fault; FAULTS] {
    [Fault::Swallows, Fault::Hangs, Fault::Refuses, Fault::Drops, Fault::Late(SECOND, server)]
}

fn url(hosts: &str) -> String {
    format!("mysql://{USER}:{PASSWORD}@{hosts}/{USER}")
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
    let Some(server) = MysqlServer::start_or_skip("lists of servers") else { return };
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_whose_server_hangs_or_drops_continues_with_the_next_one() {
    let Some(server) = MysqlServer::start_or_skip("servers that hang in use") else { return };
    let other = server.port();
    for hangs in [true, false] {
        let first = Stoppable::start(server.port()).await;
        let hosts = format!("127.0.0.1:{},127.0.0.1:{other}", first.port);
        let client = Client::connect(&url(&hosts)).await.expect("both answer");
        let held = mutex(&client, "held").lock().await.expect("free");
        assert!(first.is_used(), "the first one answers at once");
        let stopped = first.stop(hangs).await;
        let begun = Instant::now();
        let guard = mutex(&client, "other").try_lock().await;
        guard.expect("the other one answers").expect("free").release().await.expect("held");
        assert!(begun.elapsed() < SECOND * 4, "{hangs}: {:?}", begun.elapsed());
        held.release().await.expect("held");
        drop(stopped);
    }
}

/// A proxy that can stop answering, or end.
struct Stoppable {
    port: u16,
    proxy: RefusingProxy,
}

impl Stoppable {
    async fn start(server_port: u16) -> Self {
        let proxy = RefusingProxy::start(server_port).await;
        Self { port: proxy.port(), proxy }
    }

    fn is_used(&self) -> bool {
        self.proxy.open() > 0
    }

    async fn stop(self, hangs: bool) -> Option<RefusingProxy> {
        if hangs {
            self.proxy.refuse(Refusal::Everything);
            return Some(self.proxy);
        }
        None
    }
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
        let Some(server) = MysqlServer::start_or_skip("names with several addresses") else { return };
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
async fn the_server_of_a_list_that_accepts_changes_is_used_and_others_are_named() {
    let Some(server) = MysqlServer::start_or_skip("replicas in a list") else { return };
    let Some(replica) = MysqlServer::start_with_or_skip("replicas in a list", &["--read-only"], None) else {
        return;
    };
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", replica.port(), server.port());
    let client = Client::connect(&url(&hosts)).await.expect("one accepts changes");
    lock_and_release(&client, "replica").await;
    let findings = client.check().await.expect("it answers");
    let text = format!("127.0.0.1:{} is not used: it is read-only", replica.port());
    let found = findings.iter().find(|finding| finding.text.contains(&text));
    assert_eq!(found.map(|finding| finding.severity), Some(Severity::Info), "{findings:?}");
    server.execute("SET GLOBAL read_only = 1").await;
    let error = Client::connect(&url(&hosts)).await.map(drop).expect_err("none accepts changes");
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
    server.client().await.shutdown().await.expect("closed");
    let changes = [1021, 1041, 1114, 1205, 1213, 1290, 1836, 1969, 3024];
    let all = changes.map(|code| Refusal::Queries(code, CHANGES)).into_iter();
    let all = all.chain([1047, 1053, 1290, 3032].map(|code| Refusal::Queries(code, EVERYTHING)));
    let all = all.chain([1040, 1203, 1226].map(Refusal::Connections));
    let direct = server.client().await;
    join_all(all.map(|refusal| survive(&server, &direct, refusal))).await;
}

async fn survive(server: &MysqlServer, direct: &Client, refusal: Refusal) {
    let proxy = RefusingProxy::start(server.port()).await;
    let client = Client::connect(&url(&format!("127.0.0.1:{}", proxy.port()))).await.expect("it answers");
    let name = |what: &str| format!("{refusal:?} {what}");
    let kept = client.mutex_with(&name("kept"), MutexOptions::new().ttl(SECOND * 6)).expect("valid");
    let kept = kept.lock().await.expect("free");
    let released = mutex(&client, &name("released")).lock().await.expect("free");
    let waiters: Vec<_> = (0..20)
        .map(|_| {
            let mutex = mutex(&client, &name("kept"));
            tokio::spawn(async move { mutex.lock().await?.release().await })
        })
        .collect();
    sleep(ms(300)).await;
    proxy.refuse(refusal);
    // Repeated until it is done.
    drop(released);
    sleep(SECOND * 3).await;
    assert!(kept.is_held(), "{refusal:?}");
    proxy.refuse(Refusal::None);
    let over = Instant::now();
    let free = mutex(direct, &name("released"));
    eventually(SOON, || async { free.inspect().await.is_ok_and(|seen| seen.holders.is_empty()) }).await;
    // Within a second, on a machine that does nothing else.
    assert!(over.elapsed() < SECOND * 2, "{refusal:?}: {:?}", over.elapsed());
    assert!(kept.is_held(), "{refusal:?}");
    kept.release().await.unwrap_or_else(|error| panic!("{refusal:?}: {error}"));
    for waiter in waiters {
        let waited = within(SOON * 2, waiter).await.expect("no panic");
        waited.unwrap_or_else(|error| panic!("{refusal:?}: {error}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_named_locks_contended_locks_are_handed_over_by_polling() {
    let Some(server) = MysqlServer::start_or_skip("servers without named locks") else { return };
    server.client().await.shutdown().await.expect("closed");
    let all = [1064, 1105, 1142, 1227, 1235, 1305].map(async |code| {
        let proxy = RefusingProxy::start(server.port()).await;
        proxy.refuse(Refusal::Queries(code, &["GET_LOCK"]));
        let url = url(&format!("127.0.0.1:{}", proxy.port()));
        let clients = join_all((0..3).map(|_| Client::connect(&url))).await;
        let mut states = Vec::new();
        let turns = clients.into_iter().map(|client| {
            let client = client.expect("it answers");
            states.push((client.state_changes(), client.clone()));
            async move {
                for _ in 0..10 {
                    let guard = mutex(&client, &format!("without {code}")).lock().await;
                    let guard = guard.unwrap_or_else(|error| panic!("{code}: {error}"));
                    guard.release().await.unwrap_or_else(|error| panic!("{code}: {error}"));
                }
            }
        });
        let turns: Vec<_> = turns.collect();
        within(SOON * 3, join_all(turns)).await;
        for (_, client) in &states {
            assert!(client.state().status.is_connected(), "{code}: {:?}", client.state());
        }
    });
    join_all(all).await;
}

// Sessions and tables

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_limit_of_the_server_closes_no_session_and_a_closed_one_is_replaced_in_silence() {
    let options = ["--wait-timeout=1", "--interactive-timeout=1"];
    let Some(server) = MysqlServer::start_with_or_skip("idle limits", &options, None) else { return };
    let client = server.client().await;
    lock_and_release(&client, "idle").await;
    let sessions =
        "SELECT GROUP_CONCAT(ID ORDER BY ID) FROM information_schema.PROCESSLIST WHERE USER = 'leasehold'";
    let before = server.execute(sessions).await.expect("two");
    let mut states = client.state_changes();
    sleep(ms(3500)).await;
    let after = server.execute(sessions).await.expect("two");
    assert_eq!(after, before);
    // As a proxy in between does it.
    for id in before.split(',') {
        server.execute(&format!("KILL CONNECTION {id}")).await;
    }
    lock_and_release(&client, "idle").await;
    eventually(SOON, || async {
        let now = server.execute(sessions).await.unwrap_or_default();
        now != before && now.contains(',')
    })
    .await;
    while let Some(Some(state)) = futures::FutureExt::now_or_never(states.next()) {
        assert!(state.status.is_connected(), "{state:?}");
    }
    assert!(client.state().status.is_connected());
}

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_are_gone_leave_no_session() {
    let Some(server) = MysqlServer::start_or_skip("sessions of clients that are gone") else { return };
    let holder = server.client().await;
    let held = mutex(&holder, "gone").lock().await.expect("free");
    let mut shut_down = Vec::new();
    for n in 0..10 {
        let client = server.client().await;
        let mutex = mutex(&client, "gone");
        // Some wait for a named lock.
        let waiter = tokio::spawn(async move { mutex.lock().await.map(drop) });
        sleep(ms(50)).await;
        waiter.abort();
        if n % 2 == 0 {
            client.shutdown().await.expect("closed");
            shut_down.push(client);
        }
    }
    let sessions = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE USER = 'leasehold'";
    eventually(SOON, || async { server.number(sessions).await <= 3 }).await;
    held.release().await.expect("held");
    holder.shutdown().await.expect("released");
    eventually(SOON, || async { server.number(sessions).await == 0 }).await;
}
