//! The commands that look at a store, and `break`: real processes, on every store, and in a real terminal.

#[path = "../../tests/support/etcd.rs"]
mod etcd;
#[path = "../../tests/support/mysql.rs"]
mod mysql;
#[path = "../../tests/support/postgres.rs"]
mod postgres;
#[path = "../../tests/support/sqlite.rs"]
mod sqlite;
mod terminal;
#[path = "../../tests/support/zookeeper.rs"]
mod zookeeper;

use std::collections::BTreeSet;
use std::future::pending;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join_all;
use leasehold::{Client, Error, LossReason, MutexOptions, Purpose};
use leasehold_support::{Nodes, RedisServer, Reply, Setup, acl, eventually, say, within};
use serde_json::Value;
use sqlite::SqliteFile;
use terminal::Terminal;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::{Instant, sleep};

/// For what takes a moment, on a machine that is busy.
const SOON: Duration = Duration::from_secs(60);
/// The program, which is built before the tests.
const PROGRAM: &str = env!("CARGO_BIN_EXE_leasehold");
/// What the URLs of the servers have in them.
const PASSWORD: &str = "hunter2";

/// What a run of the program has printed, and how it ended.
#[derive(Debug)]
struct Output {
    status: i32,
    stdout: String,
    stderr: String,
}

impl Output {
    /// The objects that were printed.
    #[track_caller]
    fn json(&self) -> Vec<Value> {
        let parse = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        self.stdout.lines().map(parse).collect()
    }
}

fn command(url: &str, args: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(args).env("LEASEHOLD_URL", url).env_remove("LEASEHOLD_CONFIG").env_remove("LEASEHOLD_LABEL");
    command.current_dir(std::env::temp_dir()).stdin(Stdio::null()).kill_on_drop(true);
    command
}

async fn leasehold(url: &str, args: &[&str]) -> Output {
    let output = within(SOON, command(url, args).output()).await.expect("the program starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    let status = output.status.code().expect("it ends by itself");
    let output = Output { status, stdout: text(output.stdout), stderr: text(output.stderr) };
    assert!(!format!("{output:?}").contains(PASSWORD), "{args:?}: {output:?}");
    output
}

/// The same, again if the store of this machine has not answered within 2 s because that is busy.
async fn leasehold_at_store(url: &str, args: &[&str]) -> Output {
    let end = Instant::now() + SOON;
    loop {
        let output = leasehold(url, args).await;
        if output.status != 69 || Instant::now() > end {
            return output;
        }
    }
}

async fn client(url: &str, label: &str) -> Client {
    let end = Instant::now() + SOON;
    loop {
        match Client::builder(url).label(label).connect().await {
            Err(Error::StoreUnavailable { .. }) if Instant::now() < end => {}
            connected => return connected.expect("the store answers"),
        }
    }
}

fn kinds_and_names(lines: &[Value]) -> BTreeSet<(String, String)> {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    lines.iter().map(|line| (text(&line["kind"]), text(&line["name"]))).collect()
}

/// Something of each kind is held, and listed and shown; a lock is broken while its holder works.
async fn everything_is_seen_and_a_lock_is_broken(url: &str, has_semaphores: bool, tells_at_once: bool) {
    let (api, job) = (client(url, "api-7").await, client(url, "worker-3").await);
    // If the holder is told at once, then not by a renewal.
    let ttl = Duration::from_secs(if tells_at_once { 60 } else { 6 });
    // The nodes of a Redlock hold it for a little longer, since their clocks differ.
    let most = ttl.as_secs_f64() * 1.1;
    let options = api.mutex_options().ttl(ttl);
    let mutex = api.mutex_with("nightly", options).expect("valid").with_note("nightly report");
    let held = mutex.lock().await.expect("free");
    let token = held.token().get();
    let leader = api.election("reports").expect("valid").campaign("10.0.0.7:80").await.expect("nobody leads");
    let mut expected = vec![("mutex", "nightly"), ("election", "reports")];
    let mut permits = Vec::new();
    if has_semaphores {
        permits.push(api.counting_semaphore("slots", 3).expect("valid").acquire_many(2).await.expect("free"));
        permits.push(api.rw_lock("prices").expect("valid").read().await.expect("free"));
        expected.extend([("counting_semaphore", "slots"), ("rw_lock", "prices")]);
    }
    let next = job.mutex("nightly").expect("valid");
    let waiting = tokio::spawn(async move { next.lock().await });
    eventually(SOON, || async { mutex.inspect().await.is_ok_and(|now| now.waiters.len() == 1) }).await;

    let listed = leasehold_at_store(url, &["list", "--json"]).await;
    let lines = listed.json();
    let expected: BTreeSet<_> =
        expected.into_iter().map(|(kind, name)| (kind.to_owned(), name.to_owned())).collect();
    assert_eq!((listed.status, kinds_and_names(&lines)), (0, expected), "{listed:?}");
    let nightly = lines.iter().find(|line| line["name"] == "nightly").expect("it is listed");
    assert_eq!((&nightly["waiters"], &nightly["holders"][0]["token"]), (&1.into(), &token.into()));
    let table = leasehold_at_store(url, &["list", "night"]).await;
    let rows: Vec<_> = table.stdout.lines().collect();
    assert!(rows.len() == 2 && rows[0].starts_with("NAME"), "{table:?}");
    assert!(rows[1].starts_with("nightly") && rows[1].contains("api-7"), "{table:?}");

    let shown = leasehold_at_store(url, &["show", "nightly", "--json"]).await;
    let lines = shown.json();
    let [line] = &lines[..] else { panic!("{shown:?}") };
    let holder = &line["holders"][0];
    assert_eq!((&holder["label"], &holder["note"]), (&"api-7".into(), &"nightly report".into()), "{line}");
    assert!(holder["held_seconds"].is_f64() && holder["since"].is_string(), "{line}");
    assert!(holder["remaining_seconds"].as_f64().is_some_and(|left| left > 0.0 && left < most), "{line}");
    assert_eq!(line["waiting"][0]["label"], "worker-3", "{line}");
    let text = leasehold_at_store(url, &["show", "nightly"]).await.stdout;
    assert!(text.contains("held by   api-7") && text.contains("1. worker-3"), "{text}");
    let printed = leasehold_at_store(url, &["token", "nightly"]).await;
    assert_eq!((printed.status, printed.stdout.trim()), (0, &*token.to_string()));

    if has_semaphores {
        for (name, what) in [("slots", "a semaphore"), ("prices", "a read/write lock")] {
            let refused = leasehold_at_store(url, &["break", name, "--yes"]).await;
            let says = format!("{name} is {what}, which cannot be broken; it is held by api-7");
            assert!(refused.status == 64 && refused.stderr.contains(&says), "{refused:?}");
        }
    }
    let working = tokio::spawn(async move {
        let ended = held.protect(pending::<()>()).await;
        (ended, Instant::now())
    });
    let (line, printed) = break_nightly(url).await;
    assert_eq!((&line["broken"], &line["told_at_once"]), (&true.into(), &tells_at_once.into()), "{line}");
    assert_eq!(line["holders"][0]["token"], token);
    let (ended, at) = within(SOON, working).await.expect("it does not panic");
    assert!(matches!(ended, Err(Error::Lost { reason: LossReason::Revoked, .. })), "{ended:?}");
    let after = at.saturating_duration_since(printed);
    say(&format!("{url}: `protect` has ended {after:?} after `break`\n").replace(PASSWORD, "..."));
    // 100 ms on a machine that has nothing else to do; a renewal would be 20 s away.
    assert!(!tells_at_once || after < Duration::from_secs(5), "{after:?}");
    let next = within(SOON, waiting).await.expect("it does not panic").expect("granted");
    let printed = leasehold_at_store(url, &["token", "nightly"]).await;
    assert_eq!(printed.stdout.trim(), next.token().to_string());
    let broken = leasehold_at_store(url, &["break", "reports", "--yes"]).await;
    assert_eq!(broken.status, 0, "{broken:?}");
    within(SOON, leader.lost()).await;
    drop((permits, next));
}

/// What `break` prints, and when. Again if the store of this busy machine could not be connected to in time.
async fn break_nightly(url: &str) -> (Value, Instant) {
    let end = Instant::now() + SOON;
    loop {
        let mut breaking = command(url, &["break", "nightly", "--yes", "--json"]);
        let mut breaking = breaking.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut lines = BufReader::new(breaking.stdout.take().expect("piped")).lines();
        let line = within(SOON, lines.next_line()).await.expect("readable");
        let printed = Instant::now();
        let status = within(SOON, breaking.wait()).await.expect("it ends").code();
        match line {
            Some(line) => {
                assert_eq!(status, Some(0), "{line}");
                return (serde_json::from_str(&line).expect("JSON"), printed);
            }
            None => assert!(status == Some(69) && Instant::now() < end, "{status:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite() {
    let file = SqliteFile::new();
    everything_is_seen_and_a_lock_is_broken(&file.url(), true, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_redis() {
    let Some(server) = RedisServer::start_or_skip("the command line on Redis") else { return };
    let url = server.url();
    everything_is_seen_and_a_lock_is_broken(&url, true, true).await;
    // Nobody tells a client of another library, nor anybody if nothing is held.
    server.raw().send(&["SET", "lock:foreign", "theirs", "PX", "60000"]);
    for (status, kind) in [(0, Value::from("mutex")), (1, Value::Null)] {
        let broken = leasehold_at_store(&url, &["break", "foreign", "--yes", "--json"]).await;
        let line = &broken.json()[0];
        assert_eq!((broken.status, &line["kind"]), (status, &kind), "{broken:?}");
        assert_eq!(line["told_at_once"], false, "{broken:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_redlock() {
    let Some(nodes) = Nodes::start_or_skip("the command line on Redlock", 3) else { return };
    let url = format!("{}?connect_timeout=10s&node_timeout=1s", nodes.url());
    everything_is_seen_and_a_lock_is_broken(&url, false, true).await;
    let api = client(&url, "api-7").await;
    let _held = api.mutex("a").expect("valid").lock().await.expect("free");
    let shown = leasehold_at_store(&url, &["show", "a", "--json"]).await;
    assert_eq!(shown.json()[0]["nodes"].as_array().map(Vec::len), Some(3), "{shown:?}");
    let semaphore = leasehold_at_store(&url, &["show", "a", "--kind", "counting_semaphore"]).await;
    assert!(semaphore.status == 64 && semaphore.stderr.contains("do not count permits"), "{semaphore:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres() {
    let Some(server) = postgres::PostgresServer::start_or_skip("the command line on PostgreSQL") else {
        return;
    };
    everything_is_seen_and_a_lock_is_broken(&server.url(), true, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mysql() {
    let Some(server) = mysql::MysqlServer::start_or_skip("the command line on MySQL") else { return };
    everything_is_seen_and_a_lock_is_broken(&server.url(), true, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_etcd() {
    let Some(server) = etcd::EtcdServer::start_or_skip("the command line on etcd") else { return };
    everything_is_seen_and_a_lock_is_broken(&server.url(), true, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_zookeeper() {
    let Some(server) = zookeeper::ZookeeperServer::start_or_skip("the command line on ZooKeeper") else {
        return;
    };
    everything_is_seen_and_a_lock_is_broken(&server.url(), true, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statuses_and_messages_say_what_to_do_next() {
    let file = SqliteFile::new();
    let url = &file.url();
    let api = client(url, "api-7").await;
    let held = api.mutex("a").expect("valid").lock().await.expect("free");
    let leader = api.election("a").expect("valid").campaign("me").await.expect("nobody leads");
    for (args, status, says) in [
        (&["list"][..], 0, ""),
        (&["list", "x"], 0, "nothing is held or awaited"),
        (&["show", "x"], 1, "nobody holds x or waits for it at sqlite:"),
        (&["token", "x"], 1, "x is not held"),
        (&["break", "x", "--yes"], 1, "there is nothing to break"),
        (&["break", "a", "--yes"], 64, "several things called a are held: mutex, election"),
        (&["break", "a", "--kind", "mutex"], 64, "add --yes"),
        (&["wait", "a", "--timeout", "1s"], 75, "a is still in use: `leasehold show a` says by whom"),
        (&["wait", "x"], 0, ""),
        (&["wait", "x", "--timeout", "1s", "--url", "redis://127.0.0.1:1"], 69, "redis://127.0.0.1:1"),
        (&["watch", "--every", "0s"], 64, "100ms or more"),
        (&["check"], 0, ""),
        (&["show", ""], 64, "empty"),
        (&["show", "a", "--kind", "lock"], 64, "--kind"),
        (&["list", "--url", "redis://:hunter2@127.0.0.1:1"], 69, "redis://127.0.0.1:1"),
        (&["list", "--url", "nowhere://:hunter2@a"], 64, "its scheme is not one of"),
    ] {
        let output =
            if status == 69 { leasehold(url, args).await } else { leasehold_at_store(url, args).await };
        assert_eq!(output.status, status, "{args:?}: {output:?}");
        assert!(output.stderr.contains(says), "{args:?}: {output:?}");
    }
    assert!(held.is_held() && leader.is_held(), "nothing was broken");
    let mut nowhere = command(url, &["list"]);
    let output = nowhere.env_remove("LEASEHOLD_URL").output().await.expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(64) && said.contains("Set LEASEHOLD_URL"), "{output:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_prints_why_a_store_refuses_its_user() {
    let Some(server) = RedisServer::start_or_skip("the findings of a limited user") else { return };
    let user = format!(">{PASSWORD}");
    let rules = ["ACL", "SETUSER", "limited", "on", &user, "~*", "&*", "+@all", "-evalsha", "-script"];
    assert_eq!(server.raw().send(&rules).text().as_deref(), Some("OK"));
    let url = format!("redis://limited:{PASSWORD}@127.0.0.1:{}", server.port());
    let checked = leasehold_at_store(&url, &["check", "--json"]).await;
    let lines = checked.json();
    assert_eq!((checked.status, &lines[0]["severity"]), (1, &"refused".into()), "{checked:?}");
    assert!(lines[0]["text"].as_str().is_some_and(|text| text.contains("EVALSHA")), "{checked:?}");
    let checked = leasehold_at_store(&url, &["check"]).await;
    assert!(checked.status == 1 && checked.stdout.starts_with("refused: "), "{checked:?}");
    // To all other commands it is a failure.
    assert_eq!(leasehold_at_store(&url, &["show", "a"]).await.status, 77);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_store_refuses_to_tell_is_said_once() {
    let Some(server) = RedisServer::start_or_skip("a user who may see some things") else { return };
    let rules: Vec<_> = acl::rules().into_iter().filter(|rule| !rule.contains("rwlock")).collect();
    let command = ["ACL", "SETUSER", "limited"].into_iter().chain(rules.iter().map(|rule| &**rule));
    assert_eq!(server.raw().send(&command.collect::<Vec<_>>()).text().as_deref(), Some("OK"));
    let _held = client(&server.url(), "api-7").await.mutex("a").expect("valid").lock().await.expect("free");
    let url = format!("redis://limited:p%40ss%3Aword@127.0.0.1:{}", server.port());
    // More than one look.
    let waited = leasehold_at_store(&url, &["wait", "a", "--timeout", "2s"]).await;
    assert_eq!(waited.status, 75, "{waited:?}");
    assert_eq!(waited.stderr.matches("cannot look up the rw_lock called a").count(), 1, "{waited:?}");
    let shown = leasehold_at_store(&url, &["show", "a"]).await;
    assert!(shown.status == 0 && shown.stdout.contains("held by   api-7"), "{shown:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_begins_before_its_store() {
    let Some(mut server) = RedisServer::start_with_or_skip("waiting for a store", Setup::on_disk()) else {
        return;
    };
    let url = server.url();
    server.kill();
    let mut waiting =
        command(&url, &["wait", "a", "--json"]).stdout(Stdio::piped()).spawn().expect("it starts");
    // Longer than a connection is tried for.
    sleep(Duration::from_secs(3)).await;
    assert!(waiting.try_wait().expect("it can be asked").is_none(), "it keeps trying");
    server.restart();
    let output = within(SOON, waiting.wait_with_output()).await.expect("it ends");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_takes_no_place_and_ends_when_the_lock_is_free() {
    let file = SqliteFile::new();
    let url = file.url();
    let api = client(&url, "api-7").await;
    let held = api.mutex("a").expect("valid").lock().await.expect("free");
    let mut waiting =
        command(&url, &["wait", "a", "--json"]).stdout(Stdio::piped()).spawn().expect("it starts");
    // It says nothing meanwhile: time has to pass in which it could end, or get into the queue, by mistake.
    sleep(Duration::from_millis(500)).await;
    assert!(waiting.try_wait().expect("it can be asked").is_none(), "the lock is held");
    assert!(api.inspect(Purpose::Mutex, "a").await.expect("answered").waiters.is_empty());
    if let Some(terminal) = Terminal::start(&url, "wait a", &[], 80, 24) {
        terminal.until(SOON, |text| text.contains("`a`: held by api-7 for")).await;
    }
    held.release().await.expect("held");
    let output = within(SOON, waiting.wait_with_output()).await.expect("it ends");
    assert_eq!(output.status.code(), Some(0));
    let line: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(line["free"] == true && line["waited_seconds"].as_f64() > Some(0.1), "{line}");
    // A semaphore is free while it has a permit.
    let slots = api.counting_semaphore("slots", 2).expect("valid");
    let _one = slots.acquire().await.expect("free");
    assert_eq!(leasehold_at_store(&url, &["wait", "slots"]).await.status, 0);
    let _two = slots.acquire().await.expect("free");
    assert_eq!(leasehold_at_store(&url, &["wait", "slots", "--timeout", "1s"]).await.status, 75);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_others_do_nothing_to_the_terminal_and_prefixes_of_the_file_hold() {
    let file = SqliteFile::new();
    let url = file.url();
    let options = MutexOptions::new().prefix("shop:");
    let api = Client::builder(&url).mutex_options(options).connect().await.expect("the file can be used");
    let _held = api.mutex("a\u{1b}[31mb").expect("valid").lock().await.expect("free");
    let _leader = api.election("e").expect("valid").campaign("me").await.expect("nobody leads");
    let settings = file.directory().join("leasehold.toml");
    std::fs::write(&settings, "url = \"sqlite:none\"\n[mutex]\nprefix = \"shop:\"\n").expect("writable");
    let settings = settings.to_str().expect("UTF-8");
    let output = leasehold_at_store(&url, &["list", "--config", settings]).await;
    assert!(output.stdout.contains("a\\u{1b}[31mb") && !output.stdout.contains('\u{1b}'), "{output:?}");
    let output = leasehold_at_store(&url, &["list", "--json", "--config", settings]).await;
    let expected = [("mutex", "a\u{1b}[31mb"), ("election", "e")];
    let expected = expected.map(|(kind, name)| (kind.to_owned(), name.to_owned()));
    assert_eq!(kinds_and_names(&output.json()), expected.into());
    // Without the file, these are the names of nobody.
    assert_eq!(leasehold_at_store(&url, &["list"]).await.stdout, "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn break_asks_in_a_terminal() {
    let file = SqliteFile::new();
    let url = file.url();
    let api = client(&url, "api-7").await;
    let held = api.mutex("a").expect("valid").lock().await.expect("free");
    for (answer, broken) in [("n", false), ("y", true)] {
        // Whoever is asked sees the holder, also if the output goes elsewhere.
        let Some(terminal) = Terminal::start(&url, "break a --json | cat", &[], 80, 24) else { return };
        let asked =
            terminal.until(SOON, |text| text.contains("Take the mutex a away from its holder? [y/N]")).await;
        assert!(asked.contains("held by   api-7") && asked.contains("api-7 is told at once"), "{asked}");
        assert!(held.is_held());
        terminal.send(&[answer, "Enter"]);
        terminal.until(SOON, |text| text.contains(&format!("\"broken\":{broken}"))).await;
    }
    assert_eq!(within(SOON, held.lost()).await, LossReason::Revoked);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_sorts_filters_shows_one_and_survives_a_restart_of_the_store() {
    let Some(mut server) = RedisServer::start_with_or_skip("watch", Setup::on_disk()) else { return };
    let url = server.url();
    let (api, job) = (client(&url, "api-7").await, client(&url, "zebra").await);
    let options = MutexOptions::new().ttl(Duration::from_secs(120));
    let mut held = Vec::new();
    for n in 0..40 {
        let (client, note) = if n == 17 { (&job, "the odd one") } else { (&api, "report") };
        let mutex = client.mutex_with(&format!("machine:{n:03}"), options.clone()).expect("valid");
        held.push(mutex.with_note(note).lock().await.expect("free"));
    }
    let Some(terminal) = Terminal::start(&url, "watch", &[], 100, 20) else { return };
    let text = terminal
        .until(SOON, |text| text.contains("40 held or awaited") && text.contains("machine:000"))
        .await;
    assert!(text.contains("NOTE") && !text.contains("machine:039"), "{text}");
    assert!(terminal.colored().contains("\u{1b}["), "{text}");
    terminal.send(&["r"]);
    terminal.until(SOON, |text| text.contains("by name, reversed") && text.contains("machine:039")).await;
    terminal.send(&["h", "r"]);
    let text = terminal.until(SOON, |text| text.contains("by holder, reversed")).await;
    assert!(
        text.lines().nth(3).is_some_and(|row| row.contains("machine:017") && row.contains("zebra")),
        "{text}"
    );
    terminal.send(&["n", "/", "ODD"]);
    terminal.until(SOON, |text| text.contains("filter: ODD_") && text.contains("1 of 40")).await;
    terminal.send(&["Enter", "Enter"]);
    let text = terminal.until(SOON, |text| text.contains("  token")).await;
    assert!(text.contains("the odd one") && text.contains("held by   zebra"), "{text}");
    // These are keys of the table, which is not seen.
    terminal.send(&["/", "r"]);
    terminal.send(&["Escape"]);
    let text = terminal.until(SOON, |text| text.contains("filter: ODD") && text.contains("NAME")).await;
    assert!(!text.contains("filter: ODD_"), "{text}");
    terminal.send(&["Escape"]);
    // An escape and what follows it too soon are another key.
    terminal.until(SOON, |text| text.starts_with("40 held or awaited")).await;
    terminal.send(&["Home"]);
    terminal.until(SOON, |text| text.contains("machine:000")).await;

    server.kill();
    let text = terminal.until(SOON, |text| text.contains("disconnected since")).await;
    assert!(text.contains("machine:000"), "what was known: {text}");
    server.restart();
    terminal.until(SOON, |text| text.contains("by name") && text.contains("machine:000")).await;

    terminal.resize(40, 20);
    let narrow = |text: &str| text.contains("machine:000") && !text.contains("NOTE") && text.contains("WAIT");
    let text = terminal.until(SOON, narrow).await;
    assert!(text.lines().all(|line| line.chars().count() <= 40) && text.contains("FOR"), "{text}");
    terminal.send(&["q"]);
    let text = terminal.until(SOON, |text| text.contains("status 0")).await;
    assert!(!text.contains("machine:"), "the screen of before: {text}");
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_uses_no_color_if_told_so_and_restores_the_terminal_when_it_is_ended() {
    let file = SqliteFile::new();
    let url = file.url();
    let _held = client(&url, "api-7").await.mutex("a").expect("valid").lock().await.expect("free");
    for (variables, has_color, signal) in [(&[("NO_COLOR", "1")][..], false, "INT"), (&[], true, "TERM")] {
        let Some(terminal) = Terminal::start(&url, "watch", variables, 80, 20) else { return };
        terminal.until(SOON, |text| text.contains("1 held or awaited")).await;
        let colored = terminal.colored();
        let is_cyan = ["[36m", "38;5;6m"].iter().any(|code| colored.contains(code));
        assert_eq!(is_cyan, has_color, "{colored:?}");
        terminal.signal(signal);
        terminal.until(SOON, |text| text.contains("status 0") && text.contains("terminal: icanon")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_prints_where_there_is_no_terminal_and_goes_on_after_an_outage() {
    let Some(mut server) = RedisServer::start_with_or_skip("watch as lines", Setup::on_disk()) else {
        return;
    };
    let url = server.url();
    let _held = client(&url, "api-7").await.mutex("a").expect("valid").lock().await.expect("free");
    // As under `nohup`.
    let script = "trap '' HUP; exec \"$0\" watch --json --every 100ms";
    let mut watching = Command::new("sh");
    watching.args(["-c", script, PROGRAM]).env("LEASEHOLD_URL", &url).current_dir(std::env::temp_dir());
    let watching = watching.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true).spawn();
    let mut watching = watching.expect("it starts");
    let mut lines = BufReader::new(watching.stdout.take().expect("piped")).lines();
    let mut until = async |connected: bool| loop {
        let line = within(SOON, lines.next_line()).await.expect("readable").expect("it goes on");
        let line: Value = serde_json::from_str(&line).expect("JSON");
        if line["connected"] == connected {
            return line;
        }
    };
    let line = until(true).await;
    assert_eq!((&line["items"][0]["name"], &line["error"]), (&"a".into(), &Value::Null), "{line}");
    let id = watching.id().expect("it runs").to_string();
    assert!(Command::new("kill").args(["-s", "HUP", &id]).status().await.expect("it starts").success());
    server.kill();
    let line = until(false).await;
    assert!(line["error"].as_str().is_some_and(|error| !error.is_empty()), "{line}");
    assert_eq!(line["items"], Value::Null, "nobody knows what is held: {line}");
    server.restart();
    assert_eq!(until(true).await["items"][0]["name"], "a");
    // Nobody reads any more.
    drop(lines);
    let status = within(SOON, watching.wait()).await.expect("it ends");
    assert_eq!(status.code(), Some(0));
    let text = within(
        SOON,
        command(&url, &["watch"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts")
            .stdout
            .take()
            .map(|out| async { BufReader::new(out).lines().next_line().await })
            .expect("piped"),
    )
    .await;
    let text = text.expect("readable").expect("a line");
    assert!(text.ends_with(": 1 held or awaited"), "{text}");
}

/// How many locks and clients there are, and how many requests a second they may cost whoever watches.
const LOCKS: usize = 200;
const CLIENTS: usize = 20;
const MAX_REQUESTS: f64 = 20.0;
/// How often it looks before the measurement ends. An idle machine needs no more than `MEASURED` for it; a busy one may.
const MIN_LOOKS: usize = 4;
/// Of a core, in a build that is not optimized; at most 5 % in one that is.
const MAX_CPU: f64 = 0.25;
const MEASURED: Duration = Duration::from_secs(4);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_costs_little_under_load() {
    let Some(server) = RedisServer::start_or_skip("the cost of watch") else { return };
    let url = server.url();
    let stop = Arc::new(AtomicBool::new(false));
    let clients = join_all((0..CLIENTS).map(|n| {
        let url = &url;
        async move { client(url, &format!("client-{n}")).await }
    }))
    .await;
    let mut tasks = Vec::new();
    for n in 0..LOCKS {
        // One lock of ten is busy: two clients pass it to each other. The others are held.
        let (is_busy, owner) = (n % 10 == 0, n % CLIENTS);
        let users = if is_busy { vec![owner, (owner + 1) % CLIENTS] } else { vec![owner] };
        for user in users {
            let mutex = clients[user].mutex(&format!("machine:{n:03}")).expect("valid");
            let stop = Arc::clone(&stop);
            tasks.push(tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let guard = mutex.lock().await.expect("granted");
                    // What is done under the lock.
                    sleep(Duration::from_millis(20)).await;
                    while !is_busy && !stop.load(Ordering::Relaxed) {
                        sleep(Duration::from_millis(100)).await;
                    }
                    guard.release().await.expect("held");
                }
            }));
        }
    }
    let Some(terminal) = Terminal::start(&url, "watch --label watcher", &[], 140, 50) else { return };
    // Some of the busy ones may be free at that moment.
    let is_full = |text: &str| {
        let count = text.split_whitespace().next().and_then(|word| word.parse::<usize>().ok());
        count.is_some_and(|count| count > LOCKS * 9 / 10)
    };
    terminal.until(SOON, is_full).await;
    let mut raw = server.raw();
    let connections = raw.send(&["CLIENT", "LIST"]).text().expect("a text");
    let of_watcher = connections.lines().filter(|line| line.contains(" name=") && line.contains("watcher"));
    let addresses: Vec<_> = of_watcher
        .filter_map(|line| line.split(' ').find_map(|field| field.strip_prefix("addr=")).map(str::to_owned))
        .collect();
    assert!(!addresses.is_empty(), "{connections}");
    let (cpu_before, begun) = (terminal.cpu_time(), Instant::now());
    let seen = tokio::task::spawn_blocking(move || {
        let (mut requests, mut looks, mut all) = (Vec::new(), 0, 0);
        raw.write(&["MONITOR"]).expect("sent");
        while begun.elapsed() < MEASURED || looks < MIN_LOOKS && begun.elapsed() < SOON {
            let Ok(Reply::Simple(line)) = raw.read() else { continue };
            all += 1;
            if addresses.iter().any(|address| line.contains(&**address)) {
                // Each look begins with a scan.
                looks += usize::from(line.contains("\"SCAN\" \"0\""));
                requests.push(line);
            }
        }
        (requests, looks, all)
    });
    let (requests, looks, all) = seen.await.expect("it does not panic");
    let elapsed = begun.elapsed().as_secs_f64();
    let cpu = terminal.cpu_time().saturating_sub(cpu_before).as_secs_f64();
    let (rate, cpu) = (requests.len() as f64 / elapsed, cpu / elapsed);
    say(&format!(
        "watch: {:.1} looks and {rate:.1} requests a second, {:.1} % of a core; {:.0} commands a second at the server\n",
        looks as f64 / elapsed,
        100.0 * cpu,
        f64::from(all) / elapsed
    ));
    assert!(
        looks >= MIN_LOOKS && rate <= MAX_REQUESTS && cpu <= MAX_CPU,
        "{looks}, {rate}, {cpu}: {:#?}",
        requests.iter().take(40).collect::<Vec<_>>()
    );
    terminal.send(&["q"]);
    terminal.until(SOON, |text| text.contains("status 0")).await;
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        within(SOON, task).await.expect("it does not panic");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_demo_ends_well_and_tells_its_story() {
    // Its leases last for 3 s, so a machine that is very busy may spoil it.
    let mut output = leasehold("memory:", &["demo"]).await;
    for _ in 0..2 {
        if output.status != 0 {
            say(&format!("the demo has failed: {output:?}\n"));
            output = leasehold("memory:", &["demo"]).await;
        }
    }
    assert_eq!(output.status, 0, "{output:?}");
    assert!(output.stdout.lines().all(|line| line.len() <= 80), "{}", output.stdout);
    for part in [
        "dies while it holds the lock",
        "after the death",
        "is paused for 5 s",
        "after the pause",
        "writes late: refused",
    ] {
        assert!(output.stdout.contains(part), "{part}: {}", output.stdout);
    }
}
