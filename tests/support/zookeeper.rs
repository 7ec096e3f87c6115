//! Real ZooKeeper servers: one for all tests of a binary, each under a node of its own, and others that a test can
//! stop.

// Each of the binaries that include this uses a part.
#![allow(dead_code)]

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use leasehold::Client;
use leasehold::zookeeper::ZookeeperBackend;
use tempfile::TempDir;

use leasehold_support::Clock;
use leasehold_support::child::{CHILD_DIR, ChildProcess, free_port};
use leasehold_support::redis::REQUIRE;
use leasehold_support::zookeeper_wire::Wire;

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
    /// Where it speaks TLS.
    secure_port: Option<u16>,
    setup: Setup,
    process: Mutex<ChildProcess>,
}

/// How a server is run.
#[derive(Debug, Default)]
struct Setup {
    settings: Vec<String>,
    clock: Option<Clock>,
    is_service: bool,
    /// A private key and a certificate, in PEM.
    certificate: Option<String>,
}

impl ZookeeperServer {
    /// A node on the server that the tests of this binary share, or `None` if this machine has none: then standard
    /// error tells what was left out. With `LEASEHOLD_REQUIRE_SERVERS=1` the test fails instead.
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
        let setup = Setup { settings, clock: clock.cloned(), ..Setup::default() };
        Some(Self::on(Arc::new(Server::start(class_path, setup))))
    }

    /// A server of its own, as one is run that is to be fast.
    #[track_caller]
    pub(crate) fn start_as_a_service_or_skip(left_out: &str) -> Option<Self> {
        let class_path = class_path_or_skip(left_out)?;
        let setup = Setup { is_service: true, ..Setup::default() };
        Some(Self::on(Arc::new(Server::start(class_path, setup))))
    }

    /// A server of its own that speaks TLS on another port.
    #[track_caller]
    pub(crate) fn start_with_tls_or_skip(left_out: &str, certificate: &str, key: &str) -> Option<Self> {
        let class_path = class_path_or_skip(left_out)?;
        let setup = Setup { certificate: Some(format!("{key}\n{certificate}")), ..Setup::default() };
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

    pub(crate) fn secure_port(&self) -> u16 {
        self.server.secure_port.expect("it was started with a certificate")
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
            let secure_port = setup.certificate.as_ref().map(|pem| {
                fs::write(path.join(CERTIFICATE), pem).expect("room");
                let port = free_port();
                text.push_str(&secure(port));
                port
            });
            fs::write(path.join("zoo.cfg"), text).expect("room");
            fs::write(path.join("logback.xml"), LOGGING).expect("room");
            if let Some(process) = launch(&class_path, path, port, &setup) {
                let process = Mutex::new(process);
                return Self { class_path, directory, port, secure_port, setup, process };
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

const CERTIFICATE: &str = "server.pem";

/// The settings of a server that speaks TLS on this port, and does not ask for certificates of clients.
fn secure(port: u16) -> String {
    format!(
        "secureClientPort={port}\nsecureClientPortAddress=127.0.0.1\n\
         serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
         ssl.keyStore.location={CERTIFICATE}\nssl.clientAuth=none\n"
    )
}

const LOGGING: &str = "<configuration><root level=\"WARN\"/></configuration>\n";

/// Starts a server and waits until it answers; `None` if it ends instead.
fn launch(class_path: &Path, directory: &Path, port: u16, setup: &Setup) -> Option<ChildProcess> {
    let mut process = spawn(class_path, directory, setup);
    until_ready(&mut process, directory, port).then_some(process)
}

/// Starts a server in the background.
fn spawn(class_path: &Path, directory: &Path, setup: &Setup) -> ChildProcess {
    // It starts in half of the time if it is not compiled for speed.
    let options = match setup.is_service {
        true => ["-XX:+UseSerialGC", "-Xmx512m", "-Xms512m", "-cp"],
        false => ["-XX:+UseSerialGC", "-Xmx192m", "-XX:TieredStopAtLevel=1", "-cp"],
    };
    let mut args: Vec<OsString> = options.map(OsString::from).to_vec();
    let mut all = OsString::from(directory);
    all.push(":");
    all.push(class_path);
    // What Debian's package forgets, and TLS needs.
    all.push(":/usr/share/java/netty-codec.jar");
    args.extend([all, "org.apache.zookeeper.server.quorum.QuorumPeerMain".into()]);
    args.push(directory.join("zoo.cfg").into());
    let log_file =
        fs::File::options().create(true).append(true).open(directory.join("server.log")).expect("room");
    ChildProcess::start("java".as_ref(), args, |command| {
        let errors = log_file.try_clone().expect("a file can be shared");
        command.env(CHILD_DIR, directory).current_dir(directory).stdout(log_file).stderr(errors);
        command.envs(setup.clock.iter().flat_map(|clock| clock.environment()));
    })
}

/// Waits until a server answers; `false` if it ends instead.
fn until_ready(process: &mut ChildProcess, directory: &Path, port: u16) -> bool {
    let end = Instant::now() + START;
    while process.is_alive() {
        if Wire::is_ready(port) {
            return true;
        }
        assert!(Instant::now() < end, "no answer within {START:?}; the log:\n{}", log(directory));
        sleep(Duration::from_millis(10));
    }
    false
}

/// Three servers of which one leads.
#[derive(Debug)]
pub(crate) struct ZookeeperEnsemble {
    class_path: PathBuf,
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    directory: TempDir,
    port: u16,
    /// `None` if it was killed.
    process: Option<ChildProcess>,
}

impl ZookeeperEnsemble {
    #[track_caller]
    pub(crate) fn start_or_skip(left_out: &str) -> Option<Self> {
        let class_path = class_path_or_skip(left_out)?;
        for _ in 0..PORTS {
            let mut ensemble = Self { class_path: class_path.clone(), members: members() };
            for n in 0..ensemble.members.len() {
                ensemble.spawn(n);
            }
            if ensemble.until_ready() {
                return Some(ensemble);
            }
        }
        panic!("the ensemble does not start");
    }

    /// Of all servers, beginning with one of them.
    pub(crate) fn url(&self) -> String {
        let servers: Vec<_> =
            self.members.iter().map(|member| format!("127.0.0.1:{}", member.port)).collect();
        format!("zookeeper://{}", servers.join(","))
    }

    /// Where the members serve clients.
    pub(crate) fn ports(&self) -> Vec<u16> {
        self.members.iter().map(|member| member.port).collect()
    }

    /// Of the member that leads, or the first of those that follow.
    pub(crate) fn find(&self, leads: bool) -> usize {
        let end = Instant::now() + START;
        loop {
            let found = self.members.iter().position(|member| {
                let mode = member.process.as_ref().and_then(|_| Wire::mode(member.port));
                mode.is_some_and(|mode| (mode == "leader") == leads)
            });
            if let Some(n) = found {
                return n;
            }
            assert!(Instant::now() < end, "nobody leads");
            sleep(Duration::from_millis(10));
        }
    }

    /// SIGKILL to a member.
    pub(crate) fn kill(&mut self, n: usize) {
        if let Some(mut process) = self.members[n].process.take() {
            process.kill();
        }
    }

    /// SIGSTOP to a member.
    pub(crate) fn pause(&self, n: usize) {
        self.members[n].process.as_ref().expect("it runs").pause();
    }

    /// SIGCONT.
    pub(crate) fn resume(&self, n: usize) {
        self.members[n].process.as_ref().expect("it runs").resume();
    }

    /// Whether all that run serve clients.
    pub(crate) fn is_ready(&self) -> bool {
        let mut running = self.members.iter().filter(|member| member.process.is_some());
        running.all(|member| Wire::is_ready(member.port))
    }

    /// Starts a member that was killed, and waits until all that run answer.
    pub(crate) fn restart(&mut self, n: usize) {
        let end = Instant::now() + START;
        loop {
            self.spawn(n);
            if self.until_ready() {
                return;
            }
            // Meanwhile, its ports may have been those of connections.
            self.kill(n);
            assert!(
                Instant::now() < end,
                "a member does not start; its log:\n{}",
                log(self.members[n].directory.path())
            );
        }
    }

    fn spawn(&mut self, n: usize) {
        let member = &mut self.members[n];
        member.process = Some(spawn(&self.class_path, member.directory.path(), &Setup::default()));
    }

    fn until_ready(&mut self) -> bool {
        let mut running = self.members.iter_mut().filter_map(|Member { directory, port, process }| {
            Some((process.as_mut()?, directory.path(), *port))
        });
        running.all(|(process, directory, port)| until_ready(process, directory, port))
    }
}

impl Drop for ZookeeperEnsemble {
    fn drop(&mut self) {
        (0..self.members.len()).for_each(|n| self.kill(n));
    }
}

/// Three directories, with what servers need to know of each other.
fn members() -> Vec<Member> {
    let members: Vec<_> =
        (0..3).map(|_| Member { directory: new_directory(), port: free_port(), process: None }).collect();
    let list: String =
        (1..=3).map(|n| format!("server.{n}=127.0.0.1:{}:{}\n", free_port(), free_port())).collect();
    for (n, member) in (1..).zip(&members) {
        let path = member.directory.path();
        let text = format!(
            "tickTime={}\ninitLimit=25\nsyncLimit=5\ndataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\n\
             maxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=srvr\n{list}",
            TICK.as_millis(),
            path.join("data").display(),
            member.port,
        );
        fs::create_dir(path.join("data")).expect("room");
        fs::write(path.join("data/myid"), n.to_string()).expect("room");
        fs::write(path.join("zoo.cfg"), text).expect("room");
        fs::write(path.join("logback.xml"), LOGGING).expect("room");
    }
    members
}

fn new_directory() -> TempDir {
    tempfile::Builder::new().prefix("leasehold-").tempdir().expect("room for a directory")
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
