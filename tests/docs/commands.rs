//! The commands and the SQL of the guide are run on a real server on which a lock is held and waited for. Blocks marked
//! `look` show who holds it and leave it alone; those marked `break` take it from its holder, who is notified, and the
//! waiter gets it.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use leasehold::{Client, Guard, MutexOptions};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::etcd::EtcdServer;
use crate::file::SqliteFile;
use crate::mysql::{self, MysqlServer};
use crate::page::{Code, pages};
use crate::postgres::PostgresServer;
use crate::zookeeper::ZookeeperServer;
use leasehold_support::redis::REQUIRE;
use leasehold_support::{RedisServer, eventually, say, within};

/// What the guide calls the lock, its holder and what it is held for.
const NAME: &str = "machine:42";
const HOLDER: &str = "api-7";
const NOTE: &str = "order 42";
/// Not lost on a busy machine.
const TTL: Duration = Duration::from_secs(6);
/// Longer than that.
const SOON: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_on_redis() {
    let Some(server) = RedisServer::start_or_skip("commands on Redis") else { return };
    let Some(shell) = Shell::or_skip("redis-cli", &[("REDIS_URL", &server.address())]) else { return };
    try_all("redis", Queue::Stays, &server.url(), &shell).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_on_postgres() {
    let Some(server) = PostgresServer::start_or_skip("commands on PostgreSQL") else { return };
    let Some(shell) = Shell::or_skip("psql", &[("DATABASE_URL", &server.url())]) else { return };
    server.execute("CREATE ROLE app").await;
    try_all("postgres", Queue::IsDropped, &server.url(), &shell).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_on_mysql() {
    let Some(server) = MysqlServer::start_or_skip("commands on MySQL") else { return };
    let Some(shell) = Shell::or_skip("mysql", &[]) else { return };
    server.execute("CREATE USER app").await;
    // Only it may give others permissions.
    let options = format!(
        "[client]\nprotocol=tcp\nhost=127.0.0.1\nport={}\nuser=root\n[mysql]\ndatabase={}\n",
        server.port(),
        mysql::USER
    );
    fs::write(shell.home().join(".my.cnf"), options).expect("room");
    try_all("mysql", Queue::IsDropped, &server.url(), &shell).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_on_sqlite() {
    let file = SqliteFile::new();
    let path = file.path();
    let Some(shell) = Shell::or_skip("sqlite3", &[("LOCKS", &path.display().to_string())]) else { return };
    try_all("sqlite", Queue::FormsAgain, &file.url(), &shell).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_on_etcd() {
    let Some(server) = EtcdServer::start_or_skip("commands on etcd") else { return };
    let endpoint = format!("127.0.0.1:{}", server.port());
    let variables = [("ETCDCTL_ENDPOINTS", &*endpoint), ("ETCDCTL_API", "3")];
    let Some(shell) = Shell::or_skip("etcdctl", &variables) else { return };
    server.ctl(&["role", "add", "locks"]);
    try_all("etcd", Queue::Stays, &server.url(), &shell).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_on_zookeeper() {
    let Some(server) = ZookeeperServer::start_or_skip("commands on ZooKeeper") else { return };
    let address = format!("127.0.0.1:{}", server.port());
    let Some(shell) = Shell::or_skip("zkCli.sh", &[("ZOOKEEPER", &address)]) else { return };
    try_all("zookeeper", Queue::Stays, &format!("zookeeper://{address}"), &shell).await;
}

/// What becomes of those who wait when a lock is broken by hand.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Queue {
    Stays,
    IsDropped,
    /// It is dropped too, and clients that wait look at the file all the time.
    FormsAgain,
}

async fn try_all(store: &str, queue: Queue, url: &str, shell: &Shell) {
    let blocks: Vec<Code> = pages().into_iter().flat_map(|page| page.code).collect();
    let blocks = || blocks.iter().filter(|code| code.store() == Some(store) && !code.has("fencing"));
    let held = Contended::new(url, NAME, TTL).await;
    for code in blocks().filter(|code| !code.has("break")) {
        let printed = shell.run(code);
        for part in [HOLDER, NOTE].iter().filter(|_| code.has("look")) {
            assert!(
                printed.contains(part),
                "there is no {part:?} in what this prints:\n{}\n{printed}",
                code.text
            );
        }
    }
    assert!(held.guard.is_held(), "{:?}", held.guard);
    let mut held = Some(held);
    let mut broken = 0;
    for code in blocks().filter(|code| code.has("break")) {
        let Contended { guard, waiter, _clients } = match held.take() {
            Some(held) => held,
            None => Contended::new(url, NAME, TTL).await,
        };
        shell.run(code);
        within(SOON, guard.lost()).await;
        let next = within(SOON, waiter).await.expect("no panic");
        assert!(next.token() > guard.token(), "the waiter got it");
        next.release().await.expect("held");
        see_the_queue(queue, url, shell, code).await;
        broken += 1;
    }
    assert!(broken > 0, "the guide does not say how to break a lock");
}

/// Breaks another lock, for which nobody asks again soon.
async fn see_the_queue(queue: Queue, url: &str, shell: &Shell, code: &Code) {
    let other = "machine:43";
    let held = Contended::new(url, other, SOON * 4).await;
    shell.run(&Code { tags: code.tags.clone(), text: code.text.replace(NAME, other) });
    let seen =
        client(url, "observer").await.mutex(other).expect("valid").inspect().await.expect("it answers");
    // Whoever waited may have got the lock by now.
    let is_empty = seen.waiters.is_empty() && seen.holders.is_empty();
    match queue {
        Queue::Stays => assert!(!is_empty, "{seen:?}"),
        Queue::IsDropped => assert!(is_empty, "{seen:?}"),
        Queue::FormsAgain => drop(within(SOON, held.waiter).await.expect("no panic")),
    }
}

/// A lock that one process holds and another one waits for.
struct Contended {
    guard: Guard,
    waiter: JoinHandle<Guard>,
    _clients: [Client; 2],
}

impl Contended {
    async fn new(url: &str, name: &str, ttl: Duration) -> Self {
        let options = || MutexOptions::new().ttl(ttl);
        let (first, second) = (client(url, HOLDER).await, client(url, "api-8").await);
        let lock = first.mutex_with(name, options()).expect("valid").with_note(NOTE);
        let guard = within(SOON, lock.lock()).await.expect("free");
        let awaited = second.mutex_with(name, options()).expect("valid");
        let waiter = tokio::spawn(async move { awaited.lock().await.expect("granted") });
        eventually(SOON, || async { lock.inspect().await.is_ok_and(|seen| seen.waiters.len() == 1) }).await;
        Self { guard, waiter, _clients: [first, second] }
    }
}

async fn client(url: &str, label: &str) -> Client {
    Client::builder(url).label(label).connect().await.expect("it accepts clients")
}

/// Runs commands as their reader does, who has the server's address in a variable.
struct Shell {
    home: TempDir,
    path: String,
    variables: Vec<(String, String)>,
}

impl Shell {
    /// `None` if this machine lacks the program: then standard error tells so. With `LEASEHOLD_REQUIRE_SERVERS=1` the
    /// test fails instead.
    fn or_skip(program: &str, variables: &[(&str, &str)]) -> Option<Self> {
        // Debian has ZooKeeper's there.
        let path = format!("{}:/usr/share/zookeeper/bin", env::var("PATH").unwrap_or_default());
        if !env::split_paths(&path).any(|folder| folder.join(program).is_file()) {
            assert!(env::var_os(REQUIRE).is_none_or(|value| value != "1"), "there is no {program}");
            say(&format!(
                "\nLEFT OUT: the commands of the guide: there is no {program}; see scripts/install.sh\n"
            ));
            return None;
        }
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let home = TempDir::new().expect("room");
        Some(Self { home, path, variables: variables.collect() })
    }

    fn home(&self) -> &Path {
        self.home.path()
    }

    fn run(&self, code: &Code) -> String {
        let script = match (code.language(), code.store()) {
            ("sql", Some("postgres")) => in_program("psql \"$DATABASE_URL\" -v ON_ERROR_STOP=1", &code.text),
            ("sql", Some("mysql")) => in_program("mysql", &code.text),
            ("sql", Some("sqlite")) => {
                in_program("sqlite3 -bail -cmd '.timeout 5000' \"$LOCKS\"", &code.text)
            }
            ("sh", _) => code.text.clone(),
            other => panic!("{other:?}: nothing runs this:\n{}", code.text),
        };
        let output = Command::new("bash")
            .args(["-euo", "pipefail", "-c", &script])
            .env("HOME", self.home())
            .env("PATH", &self.path)
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .current_dir(self.home())
            .output()
            .expect("bash starts");
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let complained = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}:\n{script}\n{printed}\n{complained}", output.status);
        printed
    }
}

fn in_program(program: &str, sql: &str) -> String {
    format!("{program} <<'SQL'\n{sql}\nSQL\n")
}
