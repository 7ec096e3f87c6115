//! How many instructions a lock and its release take, in the client and in the server.
//!
//! `cargo bench -p leasehold-benches --bench instructions` needs valgrind, and runs the counted program under callgrind
//! twice, for different numbers of pairs: the difference leaves out everything that happens only once. Every task has
//! its own lock. Instructions are not time, but unlike time they are nearly the same in every run and on every machine.
//!
//! * client: 1024 tasks on a runtime with one worker thread, in a separate process; everything in that process counts,
//!   including fred and tokio;
//! * server: 256 tasks of a client that is not counted; four calls are in flight, so a call has 64 operations on
//!   average;
//! * server, sent alone: one task, so that every operation is a call of its own; beside it the bare recipe, `SET NX PX`
//!   and a compare-and-delete script, through the same library.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use clap::Parser;
use leasehold::Client;
use leasehold::redis::RedisBackend;
use tokio::runtime::Builder;
use tokio::task::JoinSet;

mod common;
use common::{Bare, Place, Raw, Result, table, url};

const CLIENT_TASKS: u64 = 1024;
const CLIENT_PAIRS: [u64; 2] = [4, 12];
const SERVER_TASKS: u64 = 256;
const SERVER_PAIRS: [u64; 2] = [10, 40];
const ALONE_PAIRS: [u64; 2] = [200, 1200];
/// How long a program that is counted may take to connect: it runs fifty times as slowly, and more slowly still if it
/// is not optimized.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long it may take to answer. As by default, this is not longer than a third of the TTL: then no request needs a
/// timer of its own.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    place: Place,
    /// What this process is if it is not the bench itself: so many tasks that take their locks ...
    #[arg(long, hide = true)]
    tasks: Option<u64>,
    /// ... so many times.
    #[arg(long, hide = true, default_value_t = 1)]
    pairs: u64,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let Some((port, _server)) = options.place.server("the count of instructions") else { return Ok(()) };
    if let Some(tasks) = options.tasks {
        return take_turns(port, tasks, options.pairs);
    }
    if Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("left out: valgrind is missing");
        return Ok(());
    }
    let dir = std::env::temp_dir().join(format!("leasehold-instructions-{}", std::process::id()));
    fs::create_dir_all(&dir)?;
    let choose = |pairs: [u64; 2]| options.place.choose(pairs, [1, 2]);
    let [client_tasks, server_tasks] = options.place.choose([CLIENT_TASKS, SERVER_TASKS], [16, 4]);
    let of_client = |pairs| of_client(&dir, [port.into(), client_tasks, pairs]);
    let client = per_pair(client_tasks, choose(CLIENT_PAIRS), of_client)?;
    let server = per_pair(server_tasks, choose(SERVER_PAIRS), |pairs| {
        of_server(&dir, |port| take_turns(port, server_tasks, pairs))
    })?;
    let alone = per_pair(1, choose(ALONE_PAIRS), |pairs| of_server(&dir, |port| take_turns(port, 1, pairs)))?;
    let bare = per_pair(1, choose(ALONE_PAIRS), |pairs| of_server(&dir, |port| take_bare(port, pairs)))?;
    fs::remove_dir_all(&dir)?;
    let mut table = table(["a lock and its release", "instructions", "goal", ""]);
    for (what, measured, goal) in [
        ("client, 1024 tasks", client, 15_000.0),
        ("server, calls of 64 operations", server, 46_000.0),
        ("server, sent alone", alone, 75_000.0),
    ] {
        let met = if measured <= goal { "met" } else { "not met" };
        table.add_row([what, &format!("{measured:.0}"), &format!("<= {goal:.0}"), met]);
    }
    table.add_row(["server, the bare recipe sent alone", &format!("{bare:.0}"), "", ""]);
    println!("{table}");
    Ok(())
}

/// The difference between two runs, per pair.
fn per_pair(tasks: u64, pairs: [u64; 2], count: impl Fn(u64) -> Result<u64>) -> Result<f64> {
    let [few, many] = pairs;
    let difference = count(many)?.saturating_sub(count(few)?);
    Ok(difference as f64 / ((many - few) * tasks) as f64)
}

/// Of a client that uses the server at a port, with so many tasks that take so many turns.
fn of_client(dir: &Path, numbers: [u64; 3]) -> Result<u64> {
    let file = dir.join("client");
    let [port, tasks, pairs] = &numbers.map(|number| number.to_string());
    let mut client = callgrind(&file)
        .arg(std::env::current_exe()?)
        .args(["--port", port, "--tasks", tasks, "--pairs", pairs])
        .spawn()?;
    finished(&mut client, &file)
}

/// Of a server of its own, for which `work` is all there is to do.
fn of_server(dir: &Path, work: impl FnOnce(u16) -> Result<()>) -> Result<u64> {
    let file = dir.join("server");
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let program = std::env::var("LEASEHOLD_REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
    let mut server = callgrind(&file)
        .args([&program, "--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
        .current_dir(dir)
        .stdout(Stdio::null())
        .spawn()?;
    let mut raw = loop {
        if let Some(status) = server.try_wait()? {
            return Err(format!("the server has ended: {status}").into());
        }
        match Raw::connect(port) {
            Ok(raw) => break raw,
            Err(_) => sleep(Duration::from_millis(50)),
        }
    };
    work(port)?;
    // The connection ends without an answer.
    let _ = raw.try_send(&["SHUTDOWN", "NOSAVE"]);
    finished(&mut server, &file)
}

fn callgrind(file: &Path) -> Command {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--quiet", "--tool=callgrind"]).arg(format!("--callgrind-out-file={}", file.display()));
    valgrind
}

/// The total in callgrind's file when the program has ended.
fn finished(program: &mut Child, file: &Path) -> Result<u64> {
    let status = program.wait()?;
    if !status.success() {
        return Err(format!("the counted program has failed: {status}").into());
    }
    let text = fs::read_to_string(file)?;
    let total =
        text.lines().find_map(|line| line.strip_prefix("summary: ").or(line.strip_prefix("totals: ")));
    total.and_then(|total| total.parse().ok()).ok_or_else(|| format!("nothing was counted: {status}").into())
}

/// Every task takes and releases its lock.
fn take_turns(port: u16, tasks: u64, pairs: u64) -> Result<()> {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        let builder =
            RedisBackend::builder(&url(port))?.connect_timeout(PATIENCE).reply_timeout(ANSWERED_WITHIN);
        let client = Client::with_backend(Arc::new(builder.connect().await?));
        let mut running = JoinSet::<Result<()>>::new();
        for n in 0..tasks {
            let mutex = client.mutex(&format!("record:{n}"))?;
            running.spawn(async move {
                for _ in 0..pairs {
                    mutex.lock().await?.release().await?;
                }
                Ok(())
            });
        }
        while let Some(done) = running.join_next().await {
            done??;
        }
        Ok(client.shutdown().await?)
    })
}

/// The same with the bare recipe, one task.
fn take_bare(port: u16, pairs: u64) -> Result<()> {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        let bare = Bare::connect(&url(port)).await?;
        for _ in 0..pairs {
            bare.pair("record:0").await?;
        }
        Ok(())
    })
}
