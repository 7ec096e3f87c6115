//! How long it takes from the start of a program until the command that it runs under a lock has printed its first line,
//! if nobody else wants the lock: `leasehold run` beside `flock` and `etcdctl lock`.
//!
//! ```sh
//! cargo bench -p leasehold-cli
//! ```

#[path = "../../tests/support/etcd.rs"]
mod etcd;
#[path = "../../tests/support/sqlite.rs"]
mod sqlite;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use comfy_table::Table;
use etcd::EtcdServer;
use leasehold_support::RedisServer;
use sqlite::SqliteFile;

const PROGRAM: &str = env!("CARGO_BIN_EXE_leasehold");
const LEFT_OUT: &str = "time until a command's first line";

/// A program that runs `echo`, and how long that took each time.
struct Row {
    name: &'static str,
    command: Vec<String>,
    took: Vec<Duration>,
}

impl Row {
    fn new(name: &'static str, command: &[&str]) -> Self {
        let command = command.iter().chain(&["echo", "in"]).map(|&part| part.to_owned()).collect();
        Self { name, command, took: Vec::new() }
    }

    fn leasehold(name: &'static str, url: &str) -> Self {
        Self::new(name, &["env", &format!("LEASEHOLD_URL={url}"), PROGRAM, "run", "a", "--"])
    }

    fn round(&mut self) {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).stdin(Stdio::null()).stdout(Stdio::piped());
        let begun = Instant::now();
        let mut child = command.spawn().expect("the program is installed");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let first = lines.next();
        self.took.push(begun.elapsed());
        assert_eq!(first.expect("a line").expect("it can be read"), "in", "{}", self.name);
        // Or the next round would have to wait.
        drop(lines);
        child.wait().expect("it is ours");
    }

    /// In milliseconds: of this many of a hundred rounds the slowest.
    fn percentile(&self, percent: usize) -> String {
        let mut sorted = self.took.clone();
        sorted.sort();
        let millis = sorted[(sorted.len() - 1) * percent / 100].as_secs_f64() * 1000.0;
        format!("{millis:.1}")
    }
}

fn main() {
    // Otherwise it is a test of whether it works.
    let rounds = if std::env::args().any(|arg| arg == "--bench") { 100 } else { 2 };
    let file = SqliteFile::new();
    let (redis, etcd) = (RedisServer::start_or_skip(LEFT_OUT), EtcdServer::start_or_skip(LEFT_OUT));
    let path = file.directory().join("flock").display().to_string();
    let mut rows = vec![
        Row::new("the command alone", &["env"]),
        Row::new("flock", &["env", "flock", &path]),
        Row::leasehold("leasehold, SQLite", &file.url()),
    ];
    if let Some(redis) = &redis {
        rows.push(Row::leasehold("leasehold, Redis", &redis.url()));
    }
    if let Some(etcd) = &etcd {
        rows.push(Row::leasehold("leasehold, etcd", &etcd.url()));
        let endpoint = format!("127.0.0.1:{}", etcd.port());
        let etcdctl = ["env", "ETCDCTL_API=3", "etcdctl", "--endpoints", &endpoint, "lock", "a"];
        rows.push(Row::new("etcdctl lock", &etcdctl));
    }
    // In turn, so that what else the machine does is the same for all.
    for _ in 0..rounds {
        rows.iter_mut().for_each(Row::round);
    }
    let mut table = Table::new();
    table.set_header(["start to first line, ms", "p50", "p90"]);
    for row in &rows {
        table.add_row([row.name, &row.percentile(50), &row.percentile(90)]);
    }
    println!("{table}");
}
