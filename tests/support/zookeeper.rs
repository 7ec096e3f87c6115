//! Real ZooKeeper servers: one for all tests of a binary, each under a node of its own, and others that a test can stop.

// Each of the binaries that include this uses a part.
#![allow(dead_code)]

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use leasehold::{Client, ZookeeperBackend};
use tempfile::TempDir;

use crate::support::Clock;
use crate::support::child::{CHILD_DIR, ChildProcess};
use crate::support::redis::REQUIRE;
use crate::zookeeper_wire::Wire;

/// Names the class path of ZooKeeper, instead of a search.
const CLASS_PATH: &str = "LEASEHOLD_ZOOKEEPER_CLASSPATH";
const DEBIAN: &str = "/usr/share/java/zookeeper.jar";
/// How long a server may take to answer.
const START: Duration = Duration::from_secs(60);
const PORTS: u32 = 10;
/// The length of a tick. Sessions last 2 to 20 of them.
const TICK: Duration = Duration::from_millis(200);
const SERVICE_TICK: Duration = Duration::from_secs(2);

/// A node of its own on a running server. The server is killed with the test process, and when nobody uses it any more.
#[derive(Clone, Debug)]
pub(crate) struct ZookeeperServer {
    server: Arc<Server>,
    chroot: String,
    directory: Arc<TempDir>,
}

#[derive(Debug)]
struct Server {
    class_path: PathBuf,
    directory: TempDir,
    port: u16,
    setup: Setup,
    process: Mutex<ChildProcess>,
}

/// How a server is run.
#[derive(Debug, Default)]
struct Setup {
    settings: Vec<String>,
    clock: Option<Clock>,
    is_service: bool,
}

impl ZookeeperServer {
    /// A node on the server that the tests of this binary share, or `None` if this machine has none: then standard error tells what
    /// was left out. With `LEASEHOLD_REQUIRE_SERVERS=1` the test fails instead.
    #[track_caller]
    pub(crate) fn shared_or_skip(left_out: &str) -> Option<Self> {
        static SHARED: Mutex<Option<Arc<Server>>> = Mutex::new(None);
        let class_path = class_path_or_skip(left_out)?;
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let server = shared.get_or_insert_with(|| Arc::new(Server::start(class_path, Setup::default())));
        Some(Self::on(Arc::clone(server)))
    }

    /// A server of its own, that can be stopped.
    #[track_caller]
    pub(crate) fn start_or_skip(left_out: &str) -> Option<Self> {
        Self::start_with_or_skip(left_out, &[], None)
    }

    /// The same with more settings, such as `forceSync=no`, and perhaps under a clock that is not the machine's.
    #[track_caller]
    pub(crate) fn start_with_or_skip(
        left_out: &str,
        settings: &[&str],
        clock: Option<&Clock>,
    ) -> Option<Self> {
        let class_path = class_path_or_skip(left_out)?;
        let settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let setup = Setup { settings, clock: clock.cloned(), is_service: false };
        Some(Self::on(Arc::new(Server::start(class_path, setup))))
    }

    /// A server of its own, as one is run that is to be fast.
    #[track_caller]
    pub(crate) fn start_as_a_service_or_skip(left_out: &str) -> Option<Self> {
        let class_path = class_path_or_skip(left_out)?;
        let setup = Setup { is_service: true, ..Setup::default() };
        Some(Self::on(Arc::new(Server::start(class_path, setup))))
    }

    fn on(server: Arc<Server>) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let chroot = format!("/test{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let directory = Arc::new(new_directory());
        Self { server, chroot, directory }
    }

    /// For the files of a test.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn port(&self) -> u16 {
        self.server.port
    }

    pub(crate) fn chroot(&self) -> &str {
        &self.chroot
    }

    pub(crate) fn url(&self) -> String {
        self.url_through(self.port())
    }

    /// The same through another port.
    pub(crate) fn url_through(&self, port: u16) -> String {
        format!("zookeeper://127.0.0.1:{port}{}", self.chroot)
    }

    /// As it is in errors.
    pub(crate) fn address(&self) -> String {
        self.url()
    }

    pub(crate) async fn backend(&self) -> ZookeeperBackend {
        ZookeeperBackend::connect(&self.url()).await.expect("the server accepts clients")
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(&self.url()).await.expect("the server accepts clients")
    }

    /// A session of another program.
    pub(crate) fn wire(&self) -> Wire {
        Wire::open(self.port())
    }

    /// SIGSTOP to the server: connections stay open, nothing is answered.
    pub(crate) fn pause(&self) {
        self.process().pause();
    }

    /// SIGCONT.
    pub(crate) fn resume(&self) {
        self.process().resume();
    }

    /// SIGKILL.
    pub(crate) fn kill(&self) {
        self.process().kill();
    }

    /// Starts the server again on the same port, after killing it if it still runs.
    pub(crate) fn restart(&self) {
        let mut process = self.process();
        process.kill();
        let end = Instant::now() + START;
        loop {
            if let Some(started) = self.server.launch() {
                *process = started;
                return;
            }
            assert!(Instant::now() < end, "no restart; the log:\n{}", self.server.log());
        }
    }

    /// Forgets everything, as long as the server does not run.
    pub(crate) fn forget_everything(&self) {
        fs::remove_dir_all(self.server.directory.path().join("data")).expect("it is ours");
    }

    fn process(&self) -> std::sync::MutexGuard<'_, ChildProcess> {
        self.server.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Server {
    fn start(class_path: PathBuf, setup: Setup) -> Self {
        let directory = new_directory();
        let path = directory.path();
        for _ in 0..PORTS {
            let port = free_port();
            let mut text = format!(
                "tickTime={}\ndataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\nadmin.enableServer=false\n",
                (if setup.is_service { SERVICE_TICK } else { TICK }).as_millis(),
                path.join("data").display(),
            );
            text.extend(setup.settings.iter().flat_map(|setting| [setting, "\n"]));
            fs::write(path.join("zoo.cfg"), text).expect("room");
            fs::write(path.join("logback.xml"), LOGGING).expect("room");
            if let Some(process) = launch(&class_path, path, port, &setup) {
                return Self { class_path, directory, port, setup, process: Mutex::new(process) };
            }
        }
        panic!("the server does not start; its log:\n{}", log(path));
    }

    fn launch(&self) -> Option<ChildProcess> {
        launch(&self.class_path, self.directory.path(), self.port, &self.setup)
    }

    fn log(&self) -> String {
        log(self.directory.path())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let process = self.process.get_mut().unwrap_or_else(PoisonError::into_inner);
        process.kill();
    }
}

const LOGGING: &str = "<configuration><root level=\"WARN\"/></configuration>\n";

/// Starts a server and waits until it answers; `None` if it ends instead.
fn launch(class_path: &Path, directory: &Path, port: u16, setup: &Setup) -> Option<ChildProcess> {
    // It starts in half of the time if it is not compiled for speed.
    let options = match setup.is_service {
        true => ["-XX:+UseSerialGC", "-Xmx512m", "-Xms512m", "-cp"],
        false => ["-XX:+UseSerialGC", "-Xmx192m", "-XX:TieredStopAtLevel=1", "-cp"],
    };
    let mut args: Vec<OsString> = options.map(OsString::from).to_vec();
    let mut all = OsString::from(directory);
    all.push(":");
    all.push(class_path);
    args.extend([all, "org.apache.zookeeper.server.quorum.QuorumPeerMain".into()]);
    args.push(directory.join("zoo.cfg").into());
    let log_file =
        fs::File::options().create(true).append(true).open(directory.join("server.log")).expect("room");
    let mut process = ChildProcess::start("java".as_ref(), args, |command| {
        let errors = log_file.try_clone().expect("a file can be shared");
        command.env(CHILD_DIR, directory).current_dir(directory).stdout(log_file).stderr(errors);
        command.envs(setup.clock.iter().flat_map(|clock| clock.environment()));
    });
    let end = Instant::now() + START;
    while process.is_alive() {
        if Wire::is_ready(port) {
            return Some(process);
        }
        assert!(Instant::now() < end, "no answer within {START:?}; the log:\n{}", log(directory));
        sleep(Duration::from_millis(10));
    }
    None
}

fn new_directory() -> TempDir {
    tempfile::Builder::new().prefix("leasehold-").tempdir().expect("room for a directory")
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("a listener has an address").port()
}

#[track_caller]
fn class_path_or_skip(left_out: &str) -> Option<PathBuf> {
    static FOUND: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
        if let Some(named) = env::var_os(CLASS_PATH) {
            return Some(PathBuf::from(named));
        }
        let has_java =
            env::split_paths(&env::var_os("PATH")?).any(|directory| directory.join("java").is_file());
        Some(PathBuf::from(DEBIAN)).filter(|jar| has_java && jar.is_file())
    });
    if FOUND.is_none() {
        assert!(env::var_os(REQUIRE).is_none_or(|value| value != "1"), "no ZooKeeper for: {left_out}");
        let notice = format!(
            "\nLEFT OUT: {left_out}: no ZooKeeper in {CLASS_PATH} or where Debian has it; see scripts/test.sh\n"
        );
        std::io::stderr().write_all(notice.as_bytes()).expect("standard error is open");
    }
    FOUND.clone()
}

fn log(directory: &Path) -> String {
    fs::read_to_string(directory.join("server.log")).unwrap_or_default()
}
