//! A real server for one test: its own port, its own directory, gone at the end.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::mem;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::acl;
use super::child::{CHILD_DIR, ChildProcess, free_port, free_port_below};
use super::clock::Clock;
use super::resp::{Raw, Reply};

/// Names the server program, instead of a search on PATH.
const SERVER: &str = "LEASEHOLD_REDIS_SERVER";
/// Set to 1, a missing server fails the test.
pub const REQUIRE: &str = "LEASEHOLD_REQUIRE_SERVERS";
const PROGRAMS: [&str; 2] = ["redis-server", "valkey-server"];

/// How long a server may take to answer its first PING.
const START: Duration = Duration::from_secs(10);
/// How many ports are tried: somebody else may take one between the look and the start.
const PORTS: u32 = 10;

/// How a server is started beyond the plain way: nothing on disk, TCP only.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// Listen on a unix socket as well.
    pub unix_socket: bool,
    /// Further options, such as `["--appendonly", "yes", "--appendfsync", "always"]`.
    pub options: Vec<String>,
    /// Live by this clock instead of the machine's.
    pub clock: Option<Clock>,
    /// Run in a session of its own, as a service does, where the machine has `setsid`. Linux gives each session its
    /// share of the processors; in the session of a bench, the bench's tasks would take the server's.
    pub own_session: bool,
    /// A node of a cluster, whose bus has a port of its own, 10 000 above the other.
    pub cluster: bool,
    /// Serve TLS as well, on a port of its own. `None` if the plain port is all.
    pub tls: Option<ServerCertificate>,
    /// A sentinel with this configuration instead of a server that stores anything.
    pub sentinel: Option<String>,
}

/// What a server needs for TLS, in PEM.
#[derive(Clone, Debug)]
pub struct ServerCertificate {
    pub certificate: String,
    pub key: String,
    /// The authority that clients' certificates must be signed by.
    pub authority: String,
    /// Whether clients need a certificate.
    pub required: bool,
}

impl ServerCertificate {
    /// Options that make a server listen on `port` as well; what they name is in `dir`.
    fn options(&self, dir: &Path, port: u16) -> Vec<OsString> {
        let file = |name: &str, text: &str| {
            let file = dir.join(name);
            fs::write(&file, text).expect("the directory is writable");
            file
        };
        let mut options = vec!["--tls-port".into(), port.to_string().into()];
        options.extend(["--tls-cert-file".into(), file("server.pem", &self.certificate).into()]);
        options.extend(["--tls-key-file".into(), file("server.key", &self.key).into()]);
        options.extend(["--tls-ca-cert-file".into(), file("authority.pem", &self.authority).into()]);
        options.extend(["--tls-auth-clients", if self.required { "yes" } else { "no" }].map(OsString::from));
        options
    }
}

impl Setup {
    /// Plain text on one port, TLS on another.
    pub fn with_tls(certificate: ServerCertificate) -> Self {
        Self { tls: Some(certificate), ..Self::default() }
    }

    /// Every write is noted in the order of the writes, for [`RedisServer::written`].
    pub fn with_a_log_of_writes() -> Self {
        Self { options: ["--appendonly", "yes"].map(str::to_owned).to_vec(), ..Self::default() }
    }

    /// Every write is on disk before it is answered, so that a restart remembers everything.
    pub fn on_disk() -> Self {
        let options = ["--appendonly", "yes", "--appendfsync", "always"];
        Self { options: options.map(str::to_owned).to_vec(), ..Self::default() }
    }

    /// For measurements.
    pub fn as_a_service() -> Self {
        Self { own_session: true, ..Self::default() }
    }

    /// The server lives by `clock`.
    pub fn under(clock: &Clock) -> Self {
        Self { clock: Some(clock.clone()), ..Self::default() }
    }
}

/// Where a server listens.
#[derive(Clone, Copy, Debug)]
struct Ports {
    plain: u16,
    tls: Option<u16>,
}

impl Ports {
    /// The bus of a node has a port that is greater by 10 000.
    fn find(setup: &Setup) -> Self {
        let port = || if setup.cluster { free_port_below(22_000) } else { free_port() };
        Self { plain: port(), tls: setup.tls.as_ref().map(|_| port()) }
    }
}

/// A running server. Killed when dropped, and with the test process.
#[derive(Debug)]
pub struct RedisServer {
    program: PathBuf,
    setup: Setup,
    dir: PathBuf,
    ports: Ports,
    process: ChildProcess,
}

impl RedisServer {
    /// A server, or `None` if this machine has none: then standard error tells what was left out, also under
    /// `cargo test`, which captures only what the print macros write. With `LEASEHOLD_REQUIRE_SERVERS=1` the
    /// test fails instead.
    ///
    /// ```ignore
    /// let Some(server) = RedisServer::start_or_skip("a dead holder is replaced") else { return };
    /// ```
    #[track_caller]
    pub fn start_or_skip(left_out: &str) -> Option<Self> {
        Self::start_with_or_skip(left_out, Setup::default())
    }

    /// The same with a [`Setup`].
    #[track_caller]
    pub fn start_with_or_skip(left_out: &str, setup: Setup) -> Option<Self> {
        if let Some(program) = find_program() {
            if setup.tls.is_some() && !has_tls(&program) {
                say(&format!("\nLEFT OUT: {left_out}: {} was built without TLS\n", program.display()));
                return None;
            }
            return Some(Self::start(program, setup));
        }
        assert!(env::var_os(REQUIRE).is_none_or(|value| value != "1"), "no redis-server for: {left_out}");
        say(&format!(
            "\nLEFT OUT: {left_out}: no redis-server on PATH or in {SERVER}; see scripts/test.sh\n"
        ));
        None
    }

    fn start(program: PathBuf, setup: Setup) -> Self {
        let dir = new_dir();
        for _ in 0..PORTS {
            let ports = Ports::find(&setup);
            if let Some(process) = launch(&program, &setup, &dir, ports) {
                return Self { program, setup, dir, ports, process };
            }
        }
        panic!("{} does not start; its log:\n{}", program.display(), log(&dir));
    }

    pub fn port(&self) -> u16 {
        self.ports.plain
    }

    /// Of TLS, which the setup asked for.
    pub fn tls_port(&self) -> u16 {
        self.ports.tls.expect("the setup asked for TLS")
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The URL without credentials, as it is in errors.
    /// The clock that it lives by, if that is not the machine's.
    pub const fn clock(&self) -> Option<&Clock> {
        self.setup.clock.as_ref()
    }

    pub fn address(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }

    /// The port by which the other nodes of a cluster find this one.
    pub fn bus_client_port(&self) -> u16 {
        self.ports.tls.unwrap_or(self.ports.plain)
    }

    pub fn url(&self) -> String {
        acl::url_of(self.port())
    }

    pub fn unix_url(&self) -> String {
        assert!(self.setup.unix_socket, "the setup asked for a unix socket");
        let login = match acl::login() {
            "" => String::new(),
            login => format!("{login}localhost"),
        };
        format!("redis+unix://{login}{}", socket(&self.dir).display())
    }

    /// Gives the clients of this run a right that not everybody needs, if they have not got all.
    pub fn allow(&self, rules: &[String]) {
        if acl::is_restricted() {
            let command = ["ACL", "SETUSER", "leasehold"].into_iter().chain(rules.iter().map(|rule| &**rule));
            assert_eq!(self.raw().send(&command.collect::<Vec<_>>()), Reply::ok());
        }
    }

    /// Where the server keeps its log, its socket, and what the setup has on disk.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A new connection for commands by hand.
    #[track_caller]
    pub fn raw(&self) -> Raw {
        Raw::connect(self.port()).expect("the server accepts connections")
    }

    /// What the server has written to its log.
    pub fn log(&self) -> String {
        log(&self.dir)
    }

    /// What each call has set under `key`, from the log of writes of a server that has one, which ends with this.
    pub fn written(&mut self, key: &str) -> Vec<Vec<String>> {
        self.shutdown();
        let logged = logs_of_writes(&self.dir).into_iter().flat_map(|log| {
            let log = fs::read(&log).expect("it is there");
            values_set(&log, key)
        });
        logged.collect()
    }

    /// SIGSTOP: connections stay open, nothing is answered.
    pub fn pause(&self) {
        self.process.pause();
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.process.resume();
    }

    /// SIGKILL, and waits until the server is gone.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// An orderly end, and waits for it. What the setup keeps on disk is on disk.
    pub fn shutdown(&mut self) {
        // The answer is the end of the connection.
        let answer = self.raw().try_send(&["SHUTDOWN"]);
        assert!(answer.is_err(), "SHUTDOWN was refused: {answer:?}");
        self.process.wait();
    }

    pub fn is_alive(&mut self) -> bool {
        self.process.is_alive()
    }

    /// Starts the server again on the same port, after killing it if it still runs. It remembers what the
    /// setup keeps on disk.
    pub fn restart(&mut self) {
        self.kill();
        self.process = launch(&self.program, &self.setup, &self.dir, self.ports)
            .unwrap_or_else(|| panic!("no restart on port {}; the log:\n{}", self.port(), self.log()));
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.process.kill();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Starts a server and waits until it answers; `None` if it ends instead.
fn launch(program: &Path, setup: &Setup, dir: &Path, ports: Ports) -> Option<ChildProcess> {
    let port = ports.plain;
    let port_text = port.to_string();
    let mut args: Vec<OsString> =
        ["--port", &port_text, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir"]
            .map(OsString::from)
            .to_vec();
    args.extend([dir.into(), "--logfile".into(), log_file(dir).into()]);
    if setup.unix_socket {
        args.extend(["--unixsocket".into(), socket(dir).into()]);
    }
    if setup.cluster {
        args.extend(["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"].map(OsString::from));
    }
    if let Some(rules) = &setup.sentinel {
        let file = dir.join("sentinel.conf");
        let text = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\nlogfile {}\n{rules}\n",
            dir.display(),
            log_file(dir).display()
        );
        fs::write(&file, text).expect("the directory is writable");
        args = vec![file.into(), "--sentinel".into()];
    }
    if let (Some(certificate), Some(port)) = (&setup.tls, ports.tls) {
        args.extend(certificate.options(dir, port));
    }
    if acl::is_restricted() && setup.sentinel.is_none() {
        let topology = if setup.cluster { acl::more_rules("+cluster|slots") } else { Vec::new() };
        args.extend(["--user", "leasehold"].map(OsString::from));
        args.extend(acl::rules().into_iter().chain(topology).map(OsString::from));
    }
    args.extend(setup.options.iter().map(OsString::from));
    let setsid = setup.own_session.then(|| on_path("setsid")).flatten();
    let program = match &setsid {
        Some(setsid) => {
            args.insert(0, program.into());
            setsid
        }
        None => program,
    };
    let mut process = ChildProcess::start(program.as_os_str(), args, |command| {
        command.env(CHILD_DIR, dir).stdout(Stdio::null()).stderr(Stdio::null());
        command.envs(setup.clock.iter().flat_map(Clock::environment));
    });
    let end = Instant::now() + START;
    while process.is_alive() {
        if answers_as(port, process.pid()) {
            return Some(process);
        }
        assert!(Instant::now() < end, "no answer on port {port} within {START:?}; the log:\n{}", log(dir));
        sleep(Duration::from_millis(2));
    }
    None
}

/// Whether the server on `port` is ready, and is the process meant, not another test's.
fn answers_as(port: u16, pid: u32) -> bool {
    let Ok(mut raw) = Raw::connect(port) else { return false };
    if !matches!(raw.try_send(&["PING"]), Ok(Reply::Simple(pong)) if pong == "PONG") {
        return false;
    }
    let info = raw.try_send(&["INFO", "server"]).ok().and_then(|reply| reply.text()).unwrap_or_default();
    // Tests count connections: this one has been closed at the server when its end is read. Sentinels do not know the
    // command.
    if raw.try_send(&["QUIT"]).is_ok_and(|answer| answer == Reply::ok()) {
        let _ = raw.read();
    }
    info.lines().any(|line| line == format!("process_id:{pid}"))
}

/// Writes to standard error, past the capture of the test runner.
fn say(notice: &str) {
    std::io::stderr().write_all(notice.as_bytes()).expect("standard error is open");
}

/// Whether the server can serve TLS: one that cannot complains about that option, and any other about the next.
fn has_tls(program: &Path) -> bool {
    let options = ["--port", "0", "--tls-port", "1", "--no-such-option", "1"];
    let output = Command::new(program).args(options).output().expect("the server program starts");
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text).contains("no-such-option")
}

fn find_program() -> Option<PathBuf> {
    if let Some(named) = env::var_os(SERVER) {
        return Some(PathBuf::from(named)).filter(|program| program.is_file());
    }
    PROGRAMS.iter().find_map(|name| on_path(name))
}

/// The program of this name, if it is installed.
fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// No call has left a smaller number under `key` than an earlier one, or than one of its own, for which it has granted
/// something. The server ends with this.
#[track_caller]
pub fn assert_is_never_lowered(server: &mut RedisServer, key: &str) {
    let calls = server.written(key);
    assert!(calls.len() > 10, "too few: {calls:?}");
    let mut newest = "";
    for call in &calls {
        let greatest = call.iter().max().expect("a call sets something");
        assert!(call.last() == Some(greatest) && newest <= greatest.as_str(), "{call:?} after {newest}");
        newest = greatest;
    }
}

/// The files of the log of writes, the oldest first. Versions before 7 have one file, later ones a directory, in which
/// one has what there was before the first write.
fn logs_of_writes(dir: &Path) -> Vec<PathBuf> {
    let files = |dir: &Path| fs::read_dir(dir).map(|files| files.flatten().map(|file| file.path()).collect());
    let mut all: Vec<PathBuf> = files(dir).expect("it exists");
    all.extend(files(&dir.join("appendonlydir")).unwrap_or_else(|_| Vec::new()));
    all.retain(|path| path.extension().is_some_and(|extension| extension == "aof"));
    all.retain(|path| !path.to_string_lossy().contains(".base."));
    all.sort();
    all
}

/// The values that each call has set under `key`, from a log of writes: a call is one command, or several in a
/// transaction.
fn values_set(log: &[u8], key: &str) -> Vec<Vec<String>> {
    let (mut rest, mut calls, mut values, mut is_transaction) = (log, Vec::new(), Vec::new(), false);
    while let Some(command) = next_command(&mut rest) {
        match command[..] {
            [b"MULTI"] => is_transaction = true,
            [b"EXEC"] => is_transaction = false,
            [name, set, value, ..] if name.eq_ignore_ascii_case(b"set") && set == key.as_bytes() => {
                values.push(String::from_utf8_lossy(value).into_owned());
            }
            _ => {}
        }
        if !is_transaction && !values.is_empty() {
            calls.push(mem::take(&mut values));
        }
    }
    calls
}

/// Reads the words of a command, each with its length before it.
fn next_command<'a>(log: &mut &'a [u8]) -> Option<Vec<&'a [u8]>> {
    let words = next_number(log)?;
    let mut word = || {
        let length = next_number(log)?;
        let (word, rest) = log.split_at_checked(length)?;
        *log = rest.strip_prefix(b"\r\n")?;
        Some(word)
    };
    (0..words).map(|_| word()).collect()
}

/// Reads a line: a sign and a number.
fn next_number(log: &mut &[u8]) -> Option<usize> {
    let end = log.iter().position(|byte| *byte == b'\n')?;
    let (line, rest) = log.split_at(end + 1);
    *log = rest;
    std::str::from_utf8(line.get(1..)?).ok()?.trim_end().parse().ok()
}

fn new_dir() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("leasehold-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let dir = env::temp_dir().join(name);
    fs::create_dir_all(&dir).expect("the temporary directory is writable");
    dir
}

fn socket(dir: &Path) -> PathBuf {
    dir.join("redis.sock")
}

fn log_file(dir: &Path) -> PathBuf {
    dir.join("redis.log")
}

fn log(dir: &Path) -> String {
    fs::read_to_string(log_file(dir)).unwrap_or_default()
}
