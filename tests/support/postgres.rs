//! A real PostgreSQL server for one test: its own directory, its own port, gone at the end.

// Each of the binaries that include this uses a part.
#![allow(dead_code)]

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use leasehold::Client;
use leasehold::postgres::PostgresBackend;
use tempfile::TempDir;
use tokio_postgres::{NoTls, SimpleQueryMessage};

use leasehold_support::Clock;
use leasehold_support::child::{CHILD_DIR, ChildProcess, free_port};
use leasehold_support::redis::REQUIRE;

/// Names the directory of the programs `initdb` and `postgres`, instead of a search.
const PROGRAMS: &str = "LEASEHOLD_POSTGRES_BIN";
const DIR: &str = match option_env!("CARGO_TARGET_TMPDIR") {
    Some(dir) => dir,
    // An example is neither a test nor a bench.
    None => "/tmp",
};
/// How long a server may take to answer.
const START: Duration = Duration::from_secs(30);
const PORTS: u32 = 10;
/// The user whose password is in the URLs.
pub(crate) const USER: &str = "leasehold";
pub(crate) const PASSWORD: &str = "hunter2";

/// A running server. Killed when dropped, and with the test process.
#[derive(Debug)]
pub(crate) struct PostgresServer {
    programs: PathBuf,
    directory: TempDir,
    port: u16,
    clock: Option<Clock>,
    options: Vec<String>,
    process: ChildProcess,
}

impl PostgresServer {
    /// A server, or `None` if this machine has none: then standard error tells what was left out. With
    /// `LEASEHOLD_REQUIRE_SERVERS=1` the test fails instead.
    #[track_caller]
    pub(crate) fn start_or_skip(left_out: &str) -> Option<Self> {
        Self::start_with_or_skip(left_out, &[], None)
    }

    /// The same with more settings, such as `fsync=off`, and perhaps under a clock that is not the machine's.
    #[track_caller]
    pub(crate) fn start_with_or_skip(
        left_out: &str,
        settings: &[&str],
        clock: Option<&Clock>,
    ) -> Option<Self> {
        Self::start_with_files_or_skip(left_out, settings, &[], clock)
    }

    /// The same with files, which settings call `../name`: all names of files are taken from the server's data
    /// directory.
    #[track_caller]
    pub(crate) fn start_with_files_or_skip(
        left_out: &str,
        settings: &[&str],
        files: &[(&str, &str)],
        clock: Option<&Clock>,
    ) -> Option<Self> {
        let Some(programs) = find_programs() else {
            assert!(env::var_os(REQUIRE).is_none_or(|value| value != "1"), "no PostgreSQL for: {left_out}");
            let notice = format!(
                "\nLEFT OUT: {left_out}: no PostgreSQL server in {PROGRAMS} or where Debian has it; see scripts/test.sh\n"
            );
            std::io::stderr().write_all(notice.as_bytes()).expect("standard error is open");
            return None;
        };
        let directory = new_directory();
        copy(&TEMPLATE, &directory.path().join("data"));
        for (name, text) in files {
            write_for_server(&directory.path().join(name), text);
        }
        let options: Vec<_> =
            settings.iter().flat_map(|setting| ["-c".to_owned(), (*setting).to_owned()]).collect();
        for _ in 0..PORTS {
            let port = free_port();
            if let Some(process) = launch(&programs, directory.path(), port, &options, clock) {
                let (clock, options) = (clock.cloned(), options);
                let server = Self { programs, directory, port, clock, options, process };
                return Some(server);
            }
        }
        panic!("the server does not start; its log:\n{}", log(directory.path()));
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// With the password, for an ordinary user that may create tables.
    pub(crate) fn url(&self) -> String {
        url_of(self.port)
    }

    /// The same, through a proxy on this port.
    pub(crate) fn url_through(&self, port: u16) -> String {
        url_of(port)
    }

    /// As it is in errors.
    pub(crate) fn address(&self) -> String {
        format!("postgres://127.0.0.1:{}/{USER}", self.port)
    }

    /// Where the server keeps its socket.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// It may take its time to connect: the machine may be busy.
    pub(crate) async fn backend(&self) -> PostgresBackend {
        let builder = PostgresBackend::builder(&self.url()).expect("a URL");
        builder.connect_timeout(START).connect().await.expect("the server accepts clients")
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(&self.url()).await.expect("the server accepts clients")
    }

    /// Has the superuser execute statements in the database of the tests, and returns the first value of the last row.
    pub(crate) async fn execute(&self, statements: &str) -> Option<String> {
        let session = self.session("postgres").await;
        let messages = session.simple_query(statements).await.expect(statements);
        let row = messages.iter().rev().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        row.and_then(|row| row.get(0)).map(str::to_owned)
    }

    pub(crate) async fn number(&self, query: &str) -> i64 {
        let value = self.execute(query).await;
        value.as_deref().and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{query}: {value:?}"))
    }

    /// A connection of another program.
    pub(crate) async fn session(&self, user: &str) -> tokio_postgres::Client {
        let config =
            format!("host=127.0.0.1 port={} user={user} password={PASSWORD} dbname={USER}", self.port);
        let (session, connection) =
            tokio_postgres::connect(&config, NoTls).await.expect("it accepts connections");
        tokio::spawn(connection);
        session
    }

    /// SIGSTOP to the server and all of its processes: connections stay open, nothing is answered.
    pub(crate) fn pause(&self) {
        self.signal_all("STOP");
    }

    /// SIGCONT.
    pub(crate) fn resume(&self) {
        self.signal_all("CONT");
    }

    fn signal_all(&self, signal: &str) {
        self.signal_children(signal);
        let parent = self.process.pid().to_string();
        let status = Command::new("kill").args(["-s", signal, &parent]).status().expect("kill starts");
        assert!(status.success(), "SIG{signal} was delivered");
    }

    fn signal_children(&self, signal: &str) {
        let parent = self.process.pid().to_string();
        // One that has ended meanwhile need not be signaled.
        let _ = Command::new("pkill")
            .args([&format!("-{signal}"), "-P", &parent])
            .status()
            .expect("pkill starts");
    }

    /// SIGKILL of all processes of the server. Waits until they are gone.
    pub(crate) fn kill(&mut self) {
        if self.process.is_alive() {
            // The sessions would go on until they are idle. The first process starts no others meanwhile.
            self.process.pause();
            self.signal_children("KILL");
        }
        self.process.kill();
        let end = Instant::now() + START;
        // The next server waits for them by itself, but a test must not talk to one of them.
        while TcpListener::bind(("127.0.0.1", self.port)).is_err() {
            assert!(Instant::now() < end, "port {} stays in use", self.port);
            sleep(Duration::from_millis(5));
        }
    }

    /// Starts the server again on the same port, after killing it if it still runs.
    pub(crate) fn restart(&mut self) {
        self.kill();
        let end = Instant::now() + START;
        loop {
            let started =
                launch(&self.programs, self.directory.path(), self.port, &self.options, self.clock.as_ref());
            if let Some(process) = started {
                self.process = process;
                return;
            }
            // Processes of the one that was killed may still use its shared memory.
            assert!(Instant::now() < end, "no restart; the log:\n{}", log(self.directory.path()));
        }
    }

    /// Forgets everything, and becomes a standby of `primary`: a copy that follows it, on the port of before.
    pub(crate) fn follow(&mut self, primary: &Self) {
        self.kill();
        let data = self.directory.path().join("data");
        fs::remove_dir_all(&data).expect("it is ours");
        let mut args: Vec<OsString> = vec!["--pgdata".into(), data.into()];
        args.push(format!("--port={}", primary.port).into());
        args.extend(
            [
                "--host=127.0.0.1",
                "--username=postgres",
                "--checkpoint=fast",
                "--write-recovery-conf",
                "--no-sync",
            ]
            .map(OsString::from),
        );
        let (program, args) = as_owner(&self.programs.join("pg_basebackup"), args);
        let output = Command::new(program).args(args).env("PGPASSWORD", PASSWORD).current_dir("/").output();
        let output = output.expect("pg_basebackup starts");
        assert!(output.status.success(), "pg_basebackup: {}", String::from_utf8_lossy(&output.stderr));
        self.restart();
    }

    /// What the server has written to its log.
    pub(crate) fn log(&self) -> String {
        log(self.directory.path())
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        if self.process.is_alive() {
            // Whatever was paused has to run to end.
            self.resume();
            // A server that is killed leaves its shared memory behind.
            self.process.quit();
        }
    }
}

pub(crate) fn url_of(port: u16) -> String {
    url_of_hosts(&format!("127.0.0.1:{port}"))
}

/// For several servers, by host and port, separated by commas.
pub(crate) fn url_of_hosts(hosts: &str) -> String {
    format!("postgres://{USER}:{PASSWORD}@{hosts}/{USER}")
}

/// An empty database, made once and kept for later runs.
static TEMPLATE: LazyLock<PathBuf> = LazyLock::new(|| {
    let programs = find_programs().expect("whoever needs it has looked");
    let output = Command::new(programs.join("initdb")).arg("--version").output().expect("initdb starts");
    let version = String::from_utf8_lossy(&output.stdout).replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    let kept = Path::new(DIR).join(format!("postgres-{version}"));
    if !kept.join("PG_VERSION").is_file() {
        // Its owner may not have access to where it is kept.
        let directory = new_directory();
        initialize(&programs, directory.path());
        let new = Path::new(DIR).join(format!("postgres-{}", std::process::id()));
        copy(&directory.path().join("data"), &new);
        if fs::rename(&new, &kept).is_err() {
            // Somebody else has made it at the same time.
            fs::remove_dir_all(&new).expect("it is ours");
        }
    }
    kept
});

fn initialize(programs: &Path, directory: &Path) {
    let password = directory.join("password");
    write_for_server(&password, PASSWORD);
    let mut args: Vec<OsString> =
        vec!["--pgdata".into(), directory.join("data").into(), "--pwfile".into(), password.into()];
    args.extend(
        ["--username=postgres", "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync"]
            .map(OsString::from),
    );
    let (program, args) = as_owner(&programs.join("initdb"), args);
    let output = Command::new(program).args(args).current_dir("/").output().expect("initdb starts");
    assert!(output.status.success(), "initdb: {}", String::from_utf8_lossy(&output.stderr));
    // The server is asked for its users and its database by itself, alone.
    let statements =
        format!("CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}';\nCREATE DATABASE {USER} OWNER {USER};\n");
    single_user(programs, directory, &statements);
}

fn single_user(programs: &Path, directory: &Path, statements: &str) {
    let args: Vec<OsString> =
        vec!["--single".into(), "-D".into(), directory.join("data").into(), "postgres".into()];
    let (program, args) = as_owner(&programs.join("postgres"), args);
    let mut process = Command::new(program)
        .args(args)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("postgres starts");
    let mut stdin = process.stdin.take().expect("it was piped");
    stdin.write_all(statements.as_bytes()).expect("it reads");
    drop(stdin);
    assert!(process.wait().expect("it ends").success());
}

/// With the owners of the files.
fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").args([from, to]).status().expect("cp starts");
    assert!(status.success(), "{} was copied", from.display());
}

/// Starts a server and waits until it answers; `None` if it ends instead.
fn launch(
    programs: &Path,
    directory: &Path,
    port: u16,
    options: &[String],
    clock: Option<&Clock>,
) -> Option<ChildProcess> {
    let mut args: Vec<OsString> = vec!["-D".into(), directory.join("data").into()];
    args.extend(["-p".into(), port.to_string().into(), "-k".into(), directory.into()]);
    for setting in ["listen_addresses=127.0.0.1", "max_connections=400", "autovacuum=off"] {
        args.extend(["-c".into(), setting.into()]);
    }
    args.extend(options.iter().map(OsString::from));
    let log_file =
        fs::File::options().create(true).append(true).open(directory.join("server.log")).expect("room");
    let (program, args) = as_owner(&programs.join("postgres"), args);
    let mut process = ChildProcess::start(&program, args, |command| {
        command
            .env(CHILD_DIR, directory)
            .current_dir(directory.join("data"))
            .stdout(Stdio::null())
            .stderr(log_file);
        command.envs(clock.iter().flat_map(|clock| clock.environment()));
    });
    let end = Instant::now() + START;
    while process.is_alive() {
        if is_ready(directory, process.pid()) {
            return Some(process);
        }
        assert!(Instant::now() < end, "no answer within {START:?}; the log:\n{}", log(directory));
        sleep(Duration::from_millis(5));
    }
    None
}

/// Whether the server in this directory accepts connections, to a standby perhaps, by what it says there itself; its
/// predecessor may have said it, too.
fn is_ready(directory: &Path, pid: u32) -> bool {
    let status = fs::read_to_string(directory.join("data/postmaster.pid")).unwrap_or_default();
    let mut lines = status.lines();
    lines.next() == Some(&pid.to_string())
        && lines.nth(6).is_some_and(|line| ["ready", "standby"].contains(&line.trim()))
}

/// The server refuses to be run by root: then by the user of Debian's package, who owns its files.
fn as_owner(program: &Path, args: Vec<OsString>) -> (OsString, Vec<OsString>) {
    if !is_root() {
        return (program.into(), args);
    }
    let mut with: Vec<OsString> =
        ["--reuid=postgres", "--regid=postgres", "--clear-groups"].map(OsString::from).to_vec();
    with.push(program.into());
    with.extend(args);
    ("setpriv".into(), with)
}

/// A file that nobody else can read, as the server wants it for keys.
fn write_for_server(path: &Path, text: &str) {
    use std::os::unix::fs::OpenOptionsExt;

    let file = fs::File::options().create(true).truncate(true).write(true).mode(0o600).open(path);
    file.expect("room").write_all(text.as_bytes()).expect("room");
    own(path);
}

fn own(path: &Path) {
    if is_root() {
        let status = Command::new("chown").arg("postgres:postgres").arg(path).status().expect("chown starts");
        assert!(status.success(), "{} belongs to the server's user", path.display());
    }
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;

    static IS_ROOT: LazyLock<bool> = LazyLock::new(|| {
        let file = tempfile::NamedTempFile::new().expect("the temporary directory is writable");
        fs::metadata(file.path()).expect("it exists").uid() == 0
    });
    *IS_ROOT
}

fn new_directory() -> TempDir {
    let directory = tempfile::Builder::new().prefix("leasehold-").tempdir().expect("room for a directory");
    own(directory.path());
    directory
}

/// Debian keeps each version apart.
fn find_programs() -> Option<PathBuf> {
    let has_both =
        |directory: &PathBuf| directory.join("initdb").is_file() && directory.join("postgres").is_file();
    if let Some(named) = env::var_os(PROGRAMS) {
        return Some(PathBuf::from(named)).filter(has_both);
    }
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut versions: Vec<_> = versions.map(|version| version.path().join("bin")).filter(has_both).collect();
    versions.sort();
    let on_path = || env::split_paths(&env::var_os("PATH").unwrap_or_default()).find(has_both);
    versions.pop().or_else(on_path)
}

fn log(directory: &Path) -> String {
    fs::read_to_string(directory.join("server.log")).unwrap_or_default()
}

/// A pooler before a server, in one of its modes: `transaction`, `session`.
#[derive(Debug)]
pub(crate) struct Pooler {
    port: u16,
    _directory: TempDir,
    _process: ChildProcess,
}

impl Pooler {
    /// `None` if this machine has no PgBouncer, as for servers.
    #[track_caller]
    pub(crate) fn start_or_skip(left_out: &str, server: &PostgresServer, mode: &str) -> Option<Self> {
        let places = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "/usr/local/bin/pgbouncer"].map(Path::new);
        let Some(program) = places.into_iter().find(|program| program.is_file()) else {
            assert!(env::var_os(REQUIRE).is_none_or(|value| value != "1"), "no pgbouncer for: {left_out}");
            let notice = format!("\nLEFT OUT: {left_out}: no pgbouncer; see scripts/test.sh\n");
            std::io::stderr().write_all(notice.as_bytes()).expect("standard error is open");
            return None;
        };
        let directory = new_directory();
        let port = free_port();
        let (path, server_port) = (directory.path().display(), server.port);
        let text = format!(
            "[databases]\n{USER} = host=127.0.0.1 port={server_port} user={USER} password={PASSWORD}\n[pgbouncer]\n\
             listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = {mode}\n\
             logfile = {path}/pgbouncer.log\npidfile = {path}/pgbouncer.pid\ndefault_pool_size = 20\n"
        );
        let file = directory.path().join("pgbouncer.ini");
        fs::write(&file, text).expect("room");
        let (program, args) = as_owner(program, vec!["-q".into(), file.into()]);
        let mut process = ChildProcess::start(&program, args, |command| {
            command.current_dir("/").stdout(Stdio::null()).stderr(Stdio::null());
        });
        let end = Instant::now() + START;
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(process.is_alive() && Instant::now() < end, "pgbouncer does not start");
            sleep(Duration::from_millis(5));
        }
        Some(Self { port, _directory: directory, _process: process })
    }

    pub(crate) fn url(&self) -> String {
        url_of(self.port)
    }
}
