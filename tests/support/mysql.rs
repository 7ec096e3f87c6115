//! A real MariaDB or MySQL server for one test: its own directory, its own port, gone at the end.

// Each of the binaries that include this uses a part.
#![allow(dead_code)]

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{LazyLock, OnceLock};
use std::thread::sleep;
use std::time::{Duration, Instant};

use leasehold::Client;
use leasehold::mysql::MysqlBackend;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, OptsBuilder, Row};
use tempfile::TempDir;

use leasehold_support::Clock;
use leasehold_support::child::{CHILD_DIR, ChildProcess, free_port};
use leasehold_support::redis::REQUIRE;

/// Names the program, `mariadbd` or `mysqld`, instead of a search. `mariadb-install-db` has to be beside MariaDB's, or
/// on the path.
const PROGRAM: &str = "LEASEHOLD_MYSQL_SERVER";
const DIR: &str = match option_env!("CARGO_TARGET_TMPDIR") {
    Some(dir) => dir,
    // A program is neither a test nor a bench.
    None => "/tmp",
};
/// How long a server may take to answer.
const START: Duration = Duration::from_secs(30);
const PORTS: u32 = 10;
/// The user whose password is in the URLs.
pub(crate) const USER: &str = "leasehold";
pub(crate) const PASSWORD: &str = "hunter2";
/// A server of MariaDB that takes little room.
const SMALL_MARIADB: [&str; 9] = [
    "--no-defaults",
    "--innodb-log-file-size=8M",
    "--innodb-data-file-path=ibdata1:5M:autoextend",
    "--innodb-temp-data-file-path=ibtmp1:1M:autoextend",
    "--innodb-buffer-pool-size=32M",
    "--innodb-undo-tablespaces=0",
    "--key-buffer-size=1M",
    "--aria-pagecache-buffer-size=1M",
    "--performance-schema=OFF",
];
/// The same of MySQL.
const SMALL_MYSQL: [&str; 6] = [
    "--no-defaults",
    "--innodb-redo-log-capacity=8M",
    "--innodb-buffer-pool-size=32M",
    "--key-buffer-size=1M",
    "--performance-schema=OFF",
    "--mysqlx=OFF",
];

/// A running server. Killed when dropped, and with the test process.
#[derive(Debug)]
pub(crate) struct MysqlServer {
    program: PathBuf,
    directory: TempDir,
    port: u16,
    clock: Option<Clock>,
    options: Vec<String>,
    process: ChildProcess,
}

impl MysqlServer {
    /// A server, or `None` if this machine has none: then standard error tells what was left out. With
    /// `LEASEHOLD_REQUIRE_SERVERS=1` the test fails instead.
    #[track_caller]
    pub(crate) fn start_or_skip(left_out: &str) -> Option<Self> {
        Self::start_with_or_skip(left_out, &[], None)
    }

    /// The same with more options, such as `--read-only`, and perhaps under a clock that is not the machine's.
    #[track_caller]
    pub(crate) fn start_with_or_skip(
        left_out: &str,
        options: &[&str],
        clock: Option<&Clock>,
    ) -> Option<Self> {
        Self::start_with_files_or_skip(left_out, options, &[], clock)
    }

    /// The same with files, which options call `../name`: all names of files are taken from the server's data
    /// directory.
    #[track_caller]
    pub(crate) fn start_with_files_or_skip(
        left_out: &str,
        options: &[&str],
        files: &[(&str, &str)],
        clock: Option<&Clock>,
    ) -> Option<Self> {
        let Some(program) = find_program() else {
            assert!(
                env::var_os(REQUIRE).is_none_or(|value| value != "1"),
                "no MariaDB or MySQL for: {left_out}"
            );
            let notice =
                format!("\nLEFT OUT: {left_out}: no server in {PROGRAM} or on PATH; see scripts/test.sh\n");
            std::io::stderr().write_all(notice.as_bytes()).expect("standard error is open");
            return None;
        };
        let directory = new_directory();
        copy(&TEMPLATE, &directory.path().join("data"));
        for (name, text) in files {
            fs::write(directory.path().join(name), text).expect("room");
        }
        let options: Vec<_> = options.iter().map(|option| (*option).to_owned()).collect();
        for _ in 0..PORTS {
            let port = free_port();
            if let Some(process) = launch(&program, directory.path(), port, &options, clock) {
                let (clock, options) = (clock.cloned(), options);
                return Some(Self { program, directory, port, clock, options, process });
            }
        }
        panic!("the server does not start; its log:\n{}", log(directory.path()));
    }

    /// Whether servers of this machine are those of MySQL, and not MariaDB's.
    pub(crate) fn are_of_mysql() -> bool {
        find_program().is_some_and(|program| !is_mariadb(&program))
    }

    /// Whether it is one of MariaDB; otherwise, of MySQL.
    pub(crate) fn is_mariadb(&self) -> bool {
        is_mariadb(&self.program)
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// With the password, for an ordinary user that may do everything in its own database.
    pub(crate) fn url(&self) -> String {
        url_of(self.port)
    }

    /// The same, through a proxy on this port.
    pub(crate) fn url_through(&self, port: u16) -> String {
        url_of(port)
    }

    /// As it is in errors.
    pub(crate) fn address(&self) -> String {
        format!("mysql://127.0.0.1:{}/{USER}", self.port)
    }

    /// Where the server keeps its files.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// It may take its time to connect: the machine may be busy.
    pub(crate) async fn backend(&self) -> MysqlBackend {
        let builder = MysqlBackend::builder(&self.url()).expect("a URL");
        builder.connect_timeout(START).connect().await.expect("the server accepts clients")
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(&self.url()).await.expect("the server accepts clients")
    }

    /// Has the superuser execute statements in the database of the tests, and returns the first value of the last row.
    pub(crate) async fn execute(&self, statements: &str) -> Option<String> {
        self.try_to_execute(statements).await.unwrap_or_else(|error| panic!("{statements}: {error}"))
    }

    /// The same, and what the server says if it does not execute them.
    pub(crate) async fn try_to_execute(
        &self,
        statements: &str,
    ) -> Result<Option<String>, mysql_async::Error> {
        for _ in 0..10 {
            match self.execute_in_one_session(statements).await {
                // The session has the thread of one that a test has killed, and goes with it.
                Err(mysql_async::Error::Io(_)) => {}
                executed => return executed,
            }
        }
        self.execute_in_one_session(statements).await
    }

    async fn execute_in_one_session(&self, statements: &str) -> Result<Option<String>, mysql_async::Error> {
        let mut session = self.try_session("root", "").await?;
        let mut result = session.query_iter(statements).await?;
        let mut last: Option<Row> = None;
        loop {
            let mut rows: Vec<Row> = result.collect().await?;
            last = rows.pop().or(last);
            if result.is_empty() {
                break;
            }
        }
        drop(result);
        session.disconnect().await?;
        Ok(last.and_then(|row| row.get::<Option<String>, _>(0).flatten()))
    }

    pub(crate) async fn number(&self, query: &str) -> i64 {
        let value = self.execute(query).await;
        value.as_deref().and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{query}: {value:?}"))
    }

    /// How often the server has done something, by the name of its counter, such as `Questions`.
    pub(crate) async fn counted(&self, name: &str) -> i64 {
        let mut session = self.session("root", "").await;
        let found = session.query_first(format!("SHOW GLOBAL STATUS LIKE '{name}'")).await;
        let (_, count): (String, i64) = found.expect("it answers").expect("a known counter");
        session.disconnect().await.expect("it answers");
        count
    }

    /// A connection of another program.
    pub(crate) async fn session(&self, user: &str, password: &str) -> Conn {
        self.try_session(user, password).await.expect("it accepts connections")
    }

    async fn try_session(&self, user: &str, password: &str) -> Result<Conn, mysql_async::Error> {
        let opts = OptsBuilder::default()
            .ip_or_hostname("127.0.0.1")
            .tcp_port(self.port)
            .user(Some(user))
            .pass(Some(password))
            .db_name(Some(USER))
            .prefer_socket(false);
        Conn::new(opts).await
    }

    /// SIGSTOP: connections stay open, nothing is answered.
    pub(crate) fn pause(&self) {
        self.process.pause();
    }

    /// SIGCONT.
    pub(crate) fn resume(&self) {
        self.process.resume();
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts the server again on the same port, after killing it if it still runs.
    pub(crate) fn restart(&mut self) {
        self.kill();
        let end = Instant::now() + START;
        loop {
            let started =
                launch(&self.program, self.directory.path(), self.port, &self.options, self.clock.as_ref());
            if let Some(process) = started {
                self.process = process;
                return;
            }
            assert!(Instant::now() < end, "no restart; the log:\n{}", log(self.directory.path()));
        }
    }

    /// The same with other options.
    pub(crate) fn restart_with(&mut self, options: &[&str]) {
        self.options = options.iter().map(|option| (*option).to_owned()).collect();
        self.restart();
    }

    /// Forgets everything, and becomes a replica of `primary`: a copy that follows it, on the port of before. Both have a
    /// log and numbers of their own (`--log-bin`, `--server-id`). Only MariaDB can do this.
    pub(crate) async fn follow(&mut self, primary: &Self) {
        self.kill();
        let data = self.directory.path().join("data");
        fs::remove_dir_all(&data).expect("it is ours");
        copy(&TEMPLATE, &data);
        // From the beginning: clients know its address, and would create their table before it is copied.
        const READ_ONLY: &str = "--read-only";
        if self.options.iter().all(|option| option != READ_ONLY) {
            self.options.push(READ_ONLY.to_owned());
        }
        self.restart();
        let dump = self.directory.path().join("dump.sql");
        let options = ["--single-transaction", "--master-data=1", "--gtid", "--databases", USER];
        let output =
            primary.client_program("mariadb-dump").args(options).output().expect("mariadb-dump starts");
        assert!(output.status.success(), "mariadb-dump: {}", String::from_utf8_lossy(&output.stderr));
        // What was copied is not to be copied back.
        let text = [b"SET sql_log_bin = 0;\n", &*output.stdout].concat();
        fs::write(&dump, text).expect("room");
        let output =
            self.client_program("mariadb").stdin(fs::File::open(&dump).expect("it was written")).output();
        let output = output.expect("mariadb starts");
        assert!(output.status.success(), "mariadb: {}", String::from_utf8_lossy(&output.stderr));
        let source =
            format!("MASTER_HOST = '127.0.0.1', MASTER_PORT = {}, MASTER_USER = 'root'", primary.port);
        self.execute(&format!("CHANGE MASTER TO {source}, MASTER_USE_GTID = slave_pos")).await;
        self.execute("START SLAVE").await;
    }

    /// Whether a replica has carried out all that it was told.
    pub(crate) async fn has_caught_up(&self) -> bool {
        let mut session = self.session("root", "").await;
        let status: Option<Row> = session.query_first("SHOW SLAVE STATUS").await.expect("it answers");
        let received: String = status.and_then(|row| row.get("Gtid_IO_Pos")).expect("it follows");
        let done: Option<String> = session.query_first("SELECT @@gtid_slave_pos").await.expect("it answers");
        session.disconnect().await.expect("it answers");
        done == Some(received)
    }

    /// A program of the superuser, connected to this server.
    fn client_program(&self, name: &str) -> Command {
        let beside = self.program.with_file_name(name);
        let mut command = Command::new(if beside.is_file() { beside.as_os_str() } else { OsStr::new(name) });
        let port = format!("--port={}", self.port);
        command.args(["--no-defaults", "--protocol=tcp", "--host=127.0.0.1", "--user=root", &port]);
        command
    }

    /// What the server has written to its log.
    pub(crate) fn log(&self) -> String {
        log(self.directory.path())
    }
}

pub(crate) fn url_of(port: u16) -> String {
    url_of_hosts(&format!("127.0.0.1:{port}"))
}

/// For several servers, by host and port, separated by commas.
pub(crate) fn url_of_hosts(hosts: &str) -> String {
    format!("mysql://{USER}:{PASSWORD}@{hosts}/{USER}")
}

/// An empty database, made once and kept for later runs.
static TEMPLATE: LazyLock<PathBuf> = LazyLock::new(|| {
    let program = find_program().expect("whoever needs it has looked");
    let version = version(&program).replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    let kept = Path::new(DIR).join(format!("mysql-{version}"));
    if !kept.is_dir() {
        let directory = new_directory();
        let data = directory.path().join("data");
        initialize(&program, &data, directory.path());
        // Whoever comes first.
        let new = Path::new(DIR).join(format!("mysql-{}", std::process::id()));
        copy(&data, &new);
        if fs::rename(&new, &kept).is_err() {
            fs::remove_dir_all(&new).expect("it is ours");
        }
    }
    kept
});

/// Such as `10.11.19-MariaDB-0+deb12u1`.
fn version(program: &Path) -> String {
    static VERSION: OnceLock<String> = OnceLock::new();
    let ask = || {
        let output = Command::new(program).arg("--version").output().expect("the server starts");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let version = said.split("Ver ").nth(1).and_then(|rest| rest.split(' ').next());
        version.unwrap_or("unknown").to_owned()
    };
    VERSION.get_or_init(ask).clone()
}

fn is_mariadb(program: &Path) -> bool {
    version(program).contains("MariaDB")
}

fn small(program: &Path) -> &'static [&'static str] {
    if is_mariadb(program) { &SMALL_MARIADB } else { &SMALL_MYSQL }
}

fn initialize(program: &Path, data: &Path, temporary: &Path) {
    let statements = format!(
        "CREATE DATABASE {USER};\nCREATE USER {USER}@'%' IDENTIFIED BY '{PASSWORD}';\n\
         GRANT ALL ON {USER}.* TO {USER}@'%';\n"
    );
    let options = small(program);
    let command = |program: &OsStr| {
        let mut command = Command::new(program);
        command.args(options).arg(format!("--datadir={}", data.display())).args(as_root());
        command.current_dir("/").env("TMPDIR", temporary);
        command
    };
    let run = |command: &mut Command| {
        let output = command.output().expect("it starts");
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let file = temporary.join("statements.sql");
    if !is_mariadb(program) {
        // The superuser of MySQL comes from a name only, and names are not looked up.
        let superuser =
            "CREATE USER root@'127.0.0.1';\nGRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;\n";
        fs::write(&file, format!("{superuser}{statements}")).expect("room");
        let file = format!("--init-file={}", file.display());
        return run(command(program.as_os_str()).args(["--initialize-insecure", &file]));
    }
    let beside = program.with_file_name("mariadb-install-db");
    let installer = if beside.is_file() { beside.into_os_string() } else { "mariadb-install-db".into() };
    run(command(&installer).args(["--auth-root-authentication-method=normal", "--skip-test-db"]));
    // The server executes what it reads, alone, without an account.
    fs::write(&file, format!("FLUSH PRIVILEGES;\n{statements}")).expect("room");
    run(command(program.as_os_str())
        .arg("--bootstrap")
        .stdin(fs::File::open(&file).expect("it was written")));
}

fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").args(["-a", "--sparse=always"]).args([from, to]).status();
    assert!(status.expect("cp starts").success(), "{} was copied", from.display());
}

/// Starts a server and waits until it answers; `None` if it ends instead.
fn launch(
    program: &Path,
    directory: &Path,
    port: u16,
    options: &[String],
    clock: Option<&Clock>,
) -> Option<ChildProcess> {
    let before = log(directory).len();
    let mut args: Vec<OsString> = small(program).iter().map(OsString::from).collect();
    args.push(format!("--datadir={}", directory.join("data").display()).into());
    args.push(format!("--socket={}", directory.join("socket").display()).into());
    args.push(format!("--pid-file={}", directory.join("pid").display()).into());
    args.push(format!("--port={port}").into());
    args.extend(as_root());
    for option in
        ["--bind-address=127.0.0.1", "--skip-log-bin", "--skip-name-resolve", "--max-connections=1000"]
    {
        args.push(option.into());
    }
    args.extend(options.iter().map(OsString::from));
    let log_file =
        fs::File::options().create(true).append(true).open(directory.join("server.log")).expect("room");
    let mut process = ChildProcess::start(program.as_os_str(), args, |command| {
        // A server removes the temporary files of others that it finds when it starts.
        command.env("TMPDIR", directory);
        command.env(CHILD_DIR, directory).current_dir(directory).stdout(Stdio::null()).stderr(log_file);
        command.envs(clock.iter().flat_map(|clock| clock.environment()));
    });
    let end = Instant::now() + START;
    while process.is_alive() {
        if log(directory)[before..].contains("ready for connections") {
            return Some(process);
        }
        assert!(Instant::now() < end, "no answer within {START:?}; the log:\n{}", log(directory));
        sleep(Duration::from_millis(5));
    }
    None
}

/// The server runs as root only if it is told to.
fn as_root() -> Option<OsString> {
    use std::os::unix::fs::MetadataExt;

    static IS_ROOT: LazyLock<bool> = LazyLock::new(|| {
        let file = tempfile::NamedTempFile::new().expect("the temporary directory is writable");
        fs::metadata(file.path()).expect("it exists").uid() == 0
    });
    IS_ROOT.then(|| "--user=root".into())
}

fn new_directory() -> TempDir {
    tempfile::Builder::new().prefix("leasehold-").tempdir().expect("room for a directory")
}

fn find_program() -> Option<PathBuf> {
    if let Some(named) = env::var_os(PROGRAM) {
        return Some(PathBuf::from(named)).filter(|program| program.is_file());
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let places = env::split_paths(&path).chain(["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from));
    let programs = places.flat_map(|place| ["mariadbd", "mysqld"].map(|name| place.join(name)));
    programs.into_iter().find(|program| program.is_file())
}

fn log(directory: &Path) -> String {
    fs::read_to_string(directory.join("server.log")).unwrap_or_default()
}
