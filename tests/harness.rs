//! The support code of the other tests can itself be trusted: its servers, faults and processes do what
//! their names say, and its waits can fail.

use std::env;
use std::fs;
use std::io::Read;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use leasehold_support::{
    Clock, Direction, Proxy, Raw, RedisServer, Reply, Setup, Worker, eventually, say, within, worker_args,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const SECOND: Duration = Duration::from_secs(1);
/// Long enough to see that nothing comes.
const SILENCE: Duration = Duration::from_millis(150);

const SET: &[u8] = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n";
const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

async fn connect(proxy: &Proxy) -> tokio::net::TcpStream {
    tokio::net::TcpStream::connect(("127.0.0.1", proxy.port())).await.expect("the proxy accepts")
}

/// Reads exactly `expected`.
async fn expect(stream: &mut tokio::net::TcpStream, expected: &[u8]) {
    let mut bytes = vec![0; expected.len()];
    within(SECOND, stream.read_exact(&mut bytes)).await.expect("the connection stays open");
    assert_eq!(String::from_utf8_lossy(&bytes), String::from_utf8_lossy(expected));
}

async fn expect_silence(stream: &mut tokio::net::TcpStream) {
    let read = tokio::time::timeout(SILENCE, stream.read_u8()).await;
    assert!(read.is_err(), "expected neither bytes nor an end, got {read:?}");
}

async fn expect_end(stream: &mut tokio::net::TcpStream) {
    let end = within(SECOND, stream.read_u8()).await;
    assert!(end.is_err(), "expected the end, got a byte: {end:?}");
}

// Servers

#[test]
fn a_server_starts_empty_and_obeys_commands_by_hand() {
    let Some(server) = RedisServer::start_or_skip("commands by hand") else { return };
    let mut raw = server.raw();
    assert_eq!(raw.keys("*"), Vec::<String>::new());
    assert_eq!(raw.send(&["SET", "k", "ü\r\n"]), Reply::ok());
    assert_eq!(raw.send(&["SET", "k", "w", "NX"]), Reply::nil());
    assert_eq!(raw.get("k").as_deref(), Some("ü\r\n"));
    assert_eq!(raw.send(&["EXISTS", "k", "l"]).int(), 1);
    assert!(matches!(raw.send(&["LPUSH", "k", "x"]), Reply::Error(why) if why.starts_with("WRONGTYPE")));
    assert_eq!(raw.keys("*"), ["k"]);
    let calls = raw.info_commandstats();
    assert_eq!((calls["set"], calls["get"], calls["exists"]), (2, 1, 1), "{calls:?}");
}

#[test]
fn servers_share_nothing_and_know_their_own_process() {
    let Some(one) = RedisServer::start_or_skip("two servers") else { return };
    let Some(two) = RedisServer::start_or_skip("two servers") else { return };
    assert_ne!((one.port(), one.pid()), (two.port(), two.pid()));
    one.raw().send(&["SET", "k", "1"]);
    assert_eq!(two.raw().get("k"), None);
    let info = two.raw().send(&["INFO", "server"]).text().expect("text");
    assert!(info.contains(&format!("process_id:{}\r\n", two.pid())));
}

#[test]
fn a_paused_server_is_silent_and_answers_when_resumed() {
    let Some(server) = RedisServer::start_or_skip("a paused server") else { return };
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).expect("it accepts");
    stream.set_read_timeout(Some(SILENCE)).expect("a timeout can be set");
    server.pause();
    std::io::Write::write_all(&mut stream, PING).expect("the kernel takes it");
    let mut pong = [0; 7];
    assert!(stream.read_exact(&mut pong).is_err(), "a paused server answered");
    server.resume();
    stream.set_read_timeout(Some(SECOND)).expect("a timeout can be set");
    stream.read_exact(&mut pong).expect("it answers what was asked meanwhile");
    assert_eq!(&pong, b"+PONG\r\n");
}

#[test]
fn a_killed_server_restarts_empty_on_the_same_port() {
    let Some(mut server) = RedisServer::start_or_skip("a restart without disk") else { return };
    let (port, pid) = (server.port(), server.pid());
    server.raw().send(&["SET", "k", "1"]);
    server.kill();
    assert!(!server.is_alive());
    assert!(Raw::connect(port).is_err(), "nobody listens");
    server.restart();
    assert_eq!(server.port(), port);
    assert_ne!(server.pid(), pid);
    assert_eq!(server.raw().get("k"), None);
}

#[test]
fn a_server_on_disk_remembers_after_a_kill_and_after_a_shutdown() {
    let Some(mut server) = RedisServer::start_with_or_skip("a restart with disk", Setup::on_disk()) else {
        return;
    };
    server.raw().send(&["SET", "k", "1"]);
    server.kill();
    server.restart();
    assert_eq!(server.raw().get("k").as_deref(), Some("1"));
    server.raw().send(&["SET", "k", "2"]);
    server.shutdown();
    assert!(!server.is_alive());
    server.restart();
    assert_eq!(server.raw().get("k").as_deref(), Some("2"));
}

#[cfg(unix)]
#[test]
fn a_server_listens_on_a_unix_socket_if_asked_to() {
    let setup = Setup { unix_socket: true, ..Setup::default() };
    let Some(server) = RedisServer::start_with_or_skip("unix sockets", setup) else { return };
    let url = server.unix_url();
    let rest = url.strip_prefix("redis+unix://").expect("the scheme");
    let path = Path::new(&rest[rest.find('/').expect("a path")..]);
    assert!(std::os::unix::net::UnixStream::connect(path).is_ok());
    drop(server);
    assert!(!path.exists(), "the directory is removed");
}

#[test]
fn a_dropped_server_is_gone_even_if_it_was_paused() {
    let Some(server) = RedisServer::start_or_skip("the end of a server") else { return };
    let port = server.port();
    server.pause();
    drop(server);
    assert!(Raw::connect(port).is_err(), "nobody listens");
}

#[test]
fn server_owner_worker() {
    if worker_args().is_none() {
        return;
    }
    let server = RedisServer::start_or_skip("a worker's server").expect("the parent has found one");
    say(&server.port().to_string());
    say(&server.dir().display().to_string());
    std::thread::park();
}

#[tokio::test]
async fn a_server_does_not_outlive_a_test_process_that_is_killed() {
    if RedisServer::start_or_skip("a killed test process").is_none() {
        return;
    }
    let mut owner = Worker::start("server_owner_worker", "");
    let port = owner.line().await.and_then(|port| port.parse().ok()).expect("a port");
    let dir = owner.line().await.expect("a directory");
    assert!(Raw::connect(port).is_ok() && Path::new(&dir).exists());
    owner.kill();
    eventually(5 * SECOND, || async { Raw::connect(port).is_err() && !Path::new(&dir).exists() }).await;
}

// Missing servers

/// Runs one test of this binary, as `cargo test` would on a machine without a server.
fn run_without_server(test: &str, require: &str) -> Output {
    Command::new(env::current_exe().expect("a process knows its program"))
        .args(["--exact", test])
        .env("LEASEHOLD_REDIS_SERVER", "/nonexistent/redis-server")
        .env("LEASEHOLD_REQUIRE_SERVERS", require)
        .output()
        .expect("the binary runs")
}

#[test]
fn a_missing_server_is_reported_on_standard_error_despite_capture() {
    let output = run_without_server("a_paused_server_is_silent_and_answers_when_resumed", "0");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(stderr.contains("LEFT OUT: a paused server"), "{stderr}");
}

#[test]
fn a_missing_server_is_a_failure_where_servers_are_required() {
    let output = run_without_server("a_paused_server_is_silent_and_answers_when_resumed", "1");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success(), "{stdout}");
    assert!(stdout.contains("no redis-server for: a paused server"), "{stdout}");
}

// The wire

#[tokio::test]
async fn a_proxy_forwards_both_ways_and_counts_connections() {
    let Some(server) = RedisServer::start_or_skip("the proxy") else { return };
    let proxy = Proxy::start(server.port()).await;
    let mut client = connect(&proxy).await;
    // Requests are forwarded whole, in whatever pieces they come.
    let (head, tail) = SET.split_at(9);
    client.write_all(head).await.expect("open");
    client.write_all(tail).await.expect("open");
    expect(&mut client, b"+OK\r\n").await;
    client.write_all(&[PING, PING].concat()).await.expect("open");
    expect(&mut client, b"+PONG\r\n+PONG\r\n").await;
    assert_eq!((proxy.accepted(), proxy.open()), (1, 1));
    drop(client);
    eventually(SECOND, || async { proxy.open() == 0 }).await;
    assert_eq!(proxy.accepted(), 1);
}

#[tokio::test]
async fn a_cut_ends_all_connections_and_new_ones_work() {
    let Some(server) = RedisServer::start_or_skip("cuts") else { return };
    let proxy = Proxy::start(server.port()).await;
    for cut in [Proxy::cut, Proxy::reset] {
        let mut client = connect(&proxy).await;
        client.write_all(PING).await.expect("open");
        expect(&mut client, b"+PONG\r\n").await;
        cut(&proxy);
        expect_end(&mut client).await;
        eventually(SECOND, || async { proxy.open() == 0 }).await;
    }
    let mut client = connect(&proxy).await;
    client.write_all(PING).await.expect("open");
    expect(&mut client, b"+PONG\r\n").await;
}

#[tokio::test]
async fn a_reset_is_told_from_a_close() {
    let Some(server) = RedisServer::start_or_skip("resets") else { return };
    let proxy = Proxy::start(server.port()).await;
    let mut client = connect(&proxy).await;
    client.write_all(PING).await.expect("open");
    expect(&mut client, b"+PONG\r\n").await;
    proxy.reset();
    let end = within(SECOND, client.read_u8()).await.expect_err("the end");
    assert_eq!(end.kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_wire_held_to_the_server_keeps_requests_until_it_is_resumed() {
    let Some(server) = RedisServer::start_or_skip("a held wire") else { return };
    let proxy = Proxy::start(server.port()).await;
    let mut client = connect(&proxy).await;
    proxy.hold(Direction::ToServer);
    client.write_all(SET).await.expect("open");
    expect_silence(&mut client).await;
    assert_eq!(server.raw().get("k"), None, "the request did not arrive");
    proxy.resume();
    expect(&mut client, b"+OK\r\n").await;
    assert_eq!(server.raw().get("k").as_deref(), Some("v"));
}

#[tokio::test]
async fn a_wire_held_to_the_client_keeps_replies_until_it_is_resumed() {
    let Some(server) = RedisServer::start_or_skip("a held wire") else { return };
    let proxy = Proxy::start(server.port()).await;
    let mut client = connect(&proxy).await;
    proxy.hold(Direction::ToClient);
    client.write_all(SET).await.expect("open");
    eventually(SECOND, || async { server.raw().get("k").is_some() }).await;
    expect_silence(&mut client).await;
    proxy.resume();
    expect(&mut client, b"+OK\r\n").await;
}

#[tokio::test]
async fn a_cut_reply_means_applied_and_never_answered() {
    let Some(server) = RedisServer::start_or_skip("lost replies") else { return };
    let proxy = Proxy::start(server.port()).await;
    let (mut client, mut bystander) = (connect(&proxy).await, connect(&proxy).await);
    let cut = proxy.cut_after_next_request_matching("SET");
    // What was asked before in the same packet is answered; the marked request is applied and is not.
    client.write_all(&[PING, SET, PING].concat()).await.expect("open");
    expect(&mut client, b"+PONG\r\n").await;
    expect_end(&mut client).await;
    within(SECOND, cut).await.expect("the trap is sprung");
    assert_eq!(server.raw().get("k").as_deref(), Some("v"));
    // The trap is used up, and other connections have not noticed.
    bystander.write_all(SET).await.expect("open");
    expect(&mut bystander, b"+OK\r\n").await;
}

#[tokio::test]
async fn a_refusing_proxy_closes_new_connections_and_keeps_old_ones() {
    let Some(server) = RedisServer::start_or_skip("refused connections") else { return };
    let proxy = Proxy::start(server.port()).await;
    let mut old = connect(&proxy).await;
    old.write_all(PING).await.expect("open");
    expect(&mut old, b"+PONG\r\n").await;
    proxy.refuse(true);
    expect_end(&mut connect(&proxy).await).await;
    old.write_all(PING).await.expect("open");
    expect(&mut old, b"+PONG\r\n").await;
    proxy.refuse(false);
    let mut new = connect(&proxy).await;
    new.write_all(PING).await.expect("open");
    expect(&mut new, b"+PONG\r\n").await;
}

// Processes

#[test]
fn ticking_worker() {
    let Some(args) = worker_args() else { return };
    say(&format!("args {args}"));
    for tick in 0.. {
        say(&tick.to_string());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn brief_worker() {
    let Some(args) = worker_args() else { return };
    say("one line");
    if args != "succeed" {
        std::process::exit(1); // as a failed assertion would, but quietly
    }
}

#[tokio::test]
async fn a_worker_gets_its_arguments_and_can_be_killed() {
    let mut worker = Worker::start("ticking_worker", "lease=2s name=a b");
    assert_eq!(worker.line().await.as_deref(), Some("args lease=2s name=a b"));
    assert_eq!(worker.line().await.as_deref(), Some("0"));
    assert!(worker.is_alive());
    worker.kill();
    assert!(!worker.is_alive());
    while worker.line().await.is_some() {}
}

#[tokio::test]
async fn a_paused_worker_stops_and_continues_when_resumed() {
    let mut worker = Worker::start("ticking_worker", "");
    assert!(worker.line().await.is_some());
    worker.pause();
    // What it said before it stopped comes first; then nothing does.
    while tokio::time::timeout(SILENCE, worker.line()).await.is_ok() {}
    assert!(worker.is_alive());
    worker.resume();
    assert!(worker.line().await.is_some());
}

#[tokio::test]
async fn a_workers_exit_says_whether_its_function_succeeded() {
    for (args, success) in [("succeed", true), ("fail", false)] {
        let mut worker = Worker::start("brief_worker", args);
        assert_eq!(worker.line().await.as_deref(), Some("one line"));
        assert_eq!(worker.line().await, None);
        assert_eq!(worker.wait().success(), success);
    }
}

#[test]
fn worker_owner_worker() {
    if worker_args().is_none() {
        return;
    }
    let worker = Worker::start("ticking_worker", "");
    say(&worker.pid().to_string());
    std::thread::park();
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_worker_does_not_outlive_a_test_process_that_is_killed() {
    let mut owner = Worker::start("worker_owner_worker", "");
    let pid = owner.line().await.expect("a process id");
    assert!(fs::exists(format!("/proc/{pid}")).expect("readable"));
    owner.kill();
    // Dead and not yet reaped by init counts as gone.
    let gone = || async {
        fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
    };
    eventually(5 * SECOND, gone).await;
}

// The clock

/// Seconds since 1970, by this process's clock.
fn seconds() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    i64::try_from(now.as_secs()).expect("before the year 292 billion")
}

/// What the server's clock is ahead of the machine's, in whole seconds, rounded.
#[track_caller]
fn ahead(raw: &mut Raw) -> i64 {
    let micros = |reply: &[Reply]| {
        let parts = reply.iter().map(|part| part.text().and_then(|part| part.parse::<f64>().ok()));
        parts.map(|part| part.expect("a number")).zip([1e6, 1.0]).map(|(part, unit)| part * unit).sum::<f64>()
    };
    let right = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros() as f64;
    ((micros(&raw.send(&["TIME"]).array()) - right) / 1e6).round() as i64
}

fn server_under(clock: &Clock) -> Option<RedisServer> {
    RedisServer::start_with_or_skip("a server under a shifted clock", Setup::under(clock))
}

#[test]
fn a_server_lives_by_its_clock() {
    let Some(clock) = Clock::new_or_skip("a server's clock") else { return };
    let Some(server) = server_under(&clock) else { return };
    let mut raw = server.raw();
    assert_eq!(ahead(&mut raw), 0);
    clock.shift(31 * SECOND);
    assert_eq!((ahead(&mut raw), clock.offset()), (31, 31_000_000));
    clock.set_back(131 * SECOND);
    assert_eq!((ahead(&mut raw), clock.offset()), (-100, -100_000_000));
    let scripted = raw.send(&["EVAL", "return redis.call('TIME')[1]", "0"]).text().expect("text");
    let behind = seconds() - scripted.parse::<i64>().expect("a number");
    assert!((95..=100).contains(&behind), "a script is {behind} s behind");
}

#[test]
fn keys_expire_by_a_servers_clock() {
    let Some(clock) = Clock::new_or_skip("expiry by a server's clock") else { return };
    let Some(server) = server_under(&clock) else { return };
    let mut raw = server.raw();
    raw.send(&["SET", "short", "1", "PX", "60000"]);
    raw.send(&["SET", "long", "1", "PX", "180000"]);
    assert_eq!(raw.keys("*"), ["long", "short"]);
    clock.shift(120 * SECOND);
    assert_eq!((raw.get("short"), raw.get("long").as_deref()), (None, Some("1")));
    let left = raw.pttl("long");
    assert!((30_000..=60_000).contains(&left), "{left} ms left");
}

#[test]
fn a_test_clock_affects_only_its_own_processes() {
    let Some(clock) = Clock::new_or_skip("two clocks") else { return };
    let Some(one) = server_under(&clock) else { return };
    let right = Clock::new_or_skip("two clocks").expect("there is one already");
    let Some(other) = server_under(&right) else { return };
    clock.shift(1000 * SECOND);
    assert_eq!((ahead(&mut one.raw()), ahead(&mut other.raw())), (1000, 0));
}

#[test]
fn a_restarted_server_lives_by_the_same_clock() {
    let Some(clock) = Clock::new_or_skip("a restart under a clock") else { return };
    let Some(mut server) = server_under(&clock) else { return };
    clock.shift(1000 * SECOND);
    server.restart();
    assert_eq!(ahead(&mut server.raw()), 1000);
}

/// Says when it is, in seconds since 1970 and on the monotonic clock since it started, again and again.
#[test]
fn timekeeping_worker() {
    if worker_args().is_none() {
        return;
    }
    let start = Instant::now();
    loop {
        say(&format!("{} {}", seconds(), start.elapsed().as_secs()));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until a worker says that it is so many seconds ahead of this process.
async fn until_ahead(worker: &mut Worker, expected: i64) {
    let end = Instant::now() + 10 * SECOND;
    loop {
        let line = worker.line().await.expect("it goes on");
        let (now, elapsed) = line.split_once(' ').expect("two numbers");
        assert!(elapsed.parse::<u64>().expect("a number") < 1000, "its monotonic clock has moved: {line}");
        let ahead = now.parse::<i64>().expect("a number") - seconds();
        if (ahead - expected).abs() < 60 {
            return;
        }
        assert!(Instant::now() < end, "{ahead} s ahead instead of {expected}");
    }
}

#[tokio::test]
async fn a_worker_lives_by_its_clock_and_its_monotonic_time_does_not() {
    let Some(clock) = Clock::new_or_skip("a worker's clock") else { return };
    clock.set_back(5000 * SECOND);
    let mut worker = Worker::start_under(&clock, "timekeeping_worker", "");
    until_ahead(&mut worker, -5000).await;
    clock.shift(10_000 * SECOND);
    until_ahead(&mut worker, 5000).await;
}

#[test]
fn a_missing_compiler_is_reported_or_is_a_failure() {
    if Clock::new_or_skip("a machine without a compiler").is_none() {
        return;
    }
    for (require, success) in [("0", true), ("1", false)] {
        let output = Command::new(env::current_exe().expect("a process knows its program"))
            .args(["--exact", "a_worker_lives_by_its_clock_and_its_monotonic_time_does_not"])
            .env("PATH", "/nonexistent")
            .env("LEASEHOLD_REQUIRE_SERVERS", require)
            .output()
            .expect("the binary runs");
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert_eq!(output.status.success(), success, "{said}");
        assert!(said.contains("a worker's clock: no C compiler"), "{said}");
    }
}

// Deadlines

#[tokio::test(start_paused = true)]
#[should_panic(expected = "tests/harness.rs")]
async fn a_condition_that_never_holds_fails_and_names_its_place() {
    eventually(SECOND, || async { false }).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "tests/harness.rs")]
async fn a_future_that_takes_too_long_fails_and_names_its_place() {
    within(SECOND, std::future::pending::<()>()).await;
}

#[tokio::test(start_paused = true)]
async fn a_condition_that_holds_later_is_waited_for() {
    let start = Instant::now();
    let mut looks = 0;
    eventually(SECOND, || {
        looks += 1;
        let enough = looks == 10;
        async move { enough }
    })
    .await;
    assert_eq!(looks, 10);
    assert!(start.elapsed() < 5 * SECOND);
}
