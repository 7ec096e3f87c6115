//! A real etcd server, or a cluster of them, for one test: own directories, own ports, gone at the end.

// Each of the binaries that include this uses a part.
#![allow(dead_code)]

use std::env;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use leasehold::Client;
use leasehold::etcd::EtcdBackend;
use tempfile::TempDir;

use leasehold_support::child::{CHILD_DIR, ChildProcess, free_port};
use leasehold_support::redis::REQUIRE;

/// Names the directory of the programs `etcd` and `etcdctl`, instead of a search on PATH.
const PROGRAMS: &str = "LEASEHOLD_ETCD_BIN";
/// How long a server may take to answer.
const START: Duration = Duration::from_secs(30);
const PORTS: u32 = 10;
/// The user of a server with authentication, who may use the prefix of the locks, and the administrator of it.
pub(crate) const USER: &str = "leasehold";
pub(crate) const PASSWORD: &str = "hunter2";

/// A running server. Killed when dropped, and with the test process.
#[derive(Debug)]
pub(crate) struct EtcdServer {
    programs: PathBuf,
    directory: TempDir,
    ports: Ports,
    options: Vec<String>,
    process: ChildProcess,
}

/// For clients, for other members, and to ask how it is, without TLS.
#[derive(Clone, Copy, Debug)]
struct Ports {
    client: u16,
    peer: u16,
    health: u16,
}

impl EtcdServer {
    /// A server, or `None` if this machine has none: then standard error tells what was left out. With
    /// `LEASEHOLD_REQUIRE_SERVERS=1` the test fails instead.
    #[track_caller]
    pub(crate) fn start_or_skip(left_out: &str) -> Option<Self> {
        Self::start_with_or_skip(left_out, &[])
    }

    /// The same with more options, such as `--quota-backend-bytes=1000000`.
    #[track_caller]
    pub(crate) fn start_with_or_skip(left_out: &str, options: &[&str]) -> Option<Self> {
        Self::start_in(new_directory(), left_out, |ports| {
            let options = options.iter().map(|option| (*option).to_owned());
            alone(ports).into_iter().chain(options).collect()
        })
    }

    /// One that speaks TLS, with this certificate and its key, in PEM.
    #[track_caller]
    pub(crate) fn start_with_tls_or_skip(left_out: &str, certificate: &str, key: &str) -> Option<Self> {
        let directory = new_directory();
        let (certificate_file, key_file) =
            (directory.path().join("server.pem"), directory.path().join("server.key"));
        fs::write(&certificate_file, certificate).expect("room");
        fs::write(&key_file, key).expect("room");
        Self::start_in(directory, left_out, |ports| {
            let client = format!("=https://127.0.0.1:{}", ports.client);
            let plain = alone(ports).into_iter().filter(|option| !option.contains("client-urls"));
            let more = [
                format!("--listen-client-urls{client}"),
                format!("--advertise-client-urls{client}"),
                format!("--cert-file={}", certificate_file.display()),
                format!("--key-file={}", key_file.display()),
                format!("--listen-metrics-urls=http://127.0.0.1:{}", ports.health),
            ];
            plain.chain(more).collect()
        })
    }

    #[track_caller]
    fn start_in(directory: TempDir, left_out: &str, options: impl Fn(Ports) -> Vec<String>) -> Option<Self> {
        let programs = programs_or_notice(left_out)?;
        for _ in 0..PORTS {
            let client = free_port();
            let mut ports = Ports { client, peer: free_port(), health: client };
            if options(ports).iter().any(|option| option.contains("metrics")) {
                ports.health = free_port();
            }
            let all = options(ports);
            if let Some(process) = launch(&programs, directory.path(), ports, &all) {
                return Some(Self { programs, directory, ports, options: all, process });
            }
        }
        panic!("the server does not start; its log:\n{}", log(directory.path()));
    }

    pub(crate) const fn port(&self) -> u16 {
        self.ports.client
    }

    pub(crate) fn url(&self) -> String {
        url_of(self.port())
    }

    /// The same, through a proxy on this port.
    pub(crate) fn url_through(&self, port: u16) -> String {
        url_of(port)
    }

    /// As it is in errors.
    pub(crate) fn address(&self) -> String {
        self.url()
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) async fn backend(&self) -> EtcdBackend {
        EtcdBackend::connect(&self.url()).await.expect("the server accepts clients")
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(&self.url()).await.expect("the server accepts clients")
    }

    /// What `etcdctl` prints for these arguments.
    #[track_caller]
    pub(crate) fn ctl(&self, args: &[&str]) -> String {
        let output = self.try_ctl(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The same, if it may fail.
    pub(crate) fn try_ctl(&self, args: &[&str]) -> Output {
        Command::new(self.programs.join("etcdctl"))
            .env("ETCDCTL_API", "3")
            .arg(format!("--endpoints=127.0.0.1:{}", self.port()))
            .args(args)
            .output()
            .expect("etcdctl starts")
    }

    /// Deletes all keys. Leases go on, and so do revisions.
    pub(crate) fn delete_all(&self) {
        // All from the byte 0 on.
        self.post("/v3/kv/deleterange", r#"{"key":"AA==","range_end":"AA=="}"#);
    }

    /// Ends all leases, as time does.
    pub(crate) fn end_all_leases(&self) {
        let all = self.post("/v3/lease/leases", "{}");
        for lease in all.split("\"ID\":\"").skip(1) {
            let id = lease.split('"').next().expect("it is split");
            self.post("/v3/lease/revoke", &format!("{{\"ID\":{id}}}"));
        }
    }

    /// A call by etcd's gateway for JSON, as starting `etcdctl` takes long.
    fn post(&self, path: &str, json: &str) -> String {
        let length = json.len();
        let request = format!("POST {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{json}");
        let answer = ask(self.port(), &request).expect("it answers");
        assert!(answer.starts_with("HTTP/1.0 200"), "{path}: {answer}");
        answer
    }

    /// The same, of which only success counts.
    pub(crate) fn post_json(&self, path: &str, json: &str) {
        self.post(path, json);
    }

    /// The value of a metric of the server, of the connection that asks for it as well.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let metrics = ask(self.ports.health, "GET /metrics HTTP/1.0\r\n\r\n").expect("it answers");
        let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        // It is a whole number.
        value.and_then(|value| format!("{:.0}", value.parse::<f64>().ok()?).parse().ok()).unwrap_or(0)
    }

    /// The keys that begin like this.
    #[track_caller]
    pub(crate) fn keys(&self, prefix: &str) -> Vec<String> {
        let keys = self.ctl(&["get", prefix, "--prefix", "--keys-only"]);
        keys.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    /// The store's revision.
    #[track_caller]
    pub(crate) fn revision(&self) -> u64 {
        let status = self.ctl(&["get", "no-such-key", "-w", "json"]);
        let revision = status.split_once("\"revision\":").expect("it says so").1;
        let end = revision.find(|c: char| !c.is_ascii_digit()).unwrap_or(revision.len());
        revision[..end].parse().expect("a number")
    }

    /// Whether it can write, by what it says itself.
    pub(crate) fn is_healthy(&self) -> bool {
        is_healthy(self.ports.health)
    }

    /// SIGSTOP to the server: connections stay open, nothing is answered.
    pub(crate) fn pause(&self) {
        self.process.pause();
    }

    /// SIGCONT.
    pub(crate) fn resume(&self) {
        self.process.resume();
    }

    /// SIGKILL, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts the server again on the same ports, after killing it if it still runs.
    pub(crate) fn restart(&mut self) {
        self.kill();
        let end = Instant::now() + START;
        loop {
            if let Some(process) = launch(&self.programs, self.directory.path(), self.ports, &self.options) {
                self.process = process;
                return;
            }
            assert!(Instant::now() < end, "no restart; the log:\n{}", self.log());
        }
    }

    /// Starts the server again without its data.
    pub(crate) fn restart_empty(&mut self) {
        self.kill();
        fs::remove_dir_all(self.directory.path().join("data")).expect("it is ours");
        self.restart();
    }

    /// What the server has written to its log.
    pub(crate) fn log(&self) -> String {
        log(self.directory.path())
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        if self.process.is_alive() {
            // Whatever was paused has to run to end.
            self.resume();
        }
        self.process.kill();
    }
}

/// Three members.
#[derive(Debug)]
pub(crate) struct EtcdCluster {
    pub(crate) members: Vec<EtcdServer>,
}

impl EtcdCluster {
    #[track_caller]
    pub(crate) fn start_or_skip(left_out: &str) -> Option<Self> {
        Self::start_with_or_skip(left_out, &[])
    }

    /// The same with more options.
    #[track_caller]
    pub(crate) fn start_with_or_skip(left_out: &str, more: &[&str]) -> Option<Self> {
        let programs = programs_or_notice(left_out)?;
        for _ in 0..PORTS {
            let ports = [(); 3].map(|()| {
                let client = free_port();
                Ports { client, peer: free_port(), health: client }
            });
            let names: Vec<_> =
                (0..).zip(&ports).map(|(n, ports)| format!("m{n}=http://127.0.0.1:{}", ports.peer)).collect();
            let options = (0..).zip(ports).map(|(n, ports)| {
                let mut options = member(&format!("m{n}"), ports, &names.join(","));
                options.extend(more.iter().map(|option| (*option).to_owned()));
                options
            });
            let options: Vec<_> = options.collect();
            let directories: Vec<_> = ports.iter().map(|_| new_directory()).collect();
            let processes: Vec<_> = (directories.iter().zip(&options))
                .map(|(directory, options)| start(&programs, directory.path(), options))
                .collect();
            let members = directories.into_iter().zip(ports).zip(options).zip(processes);
            let members = members.map(|(((directory, ports), options), process)| EtcdServer {
                programs: programs.clone(),
                directory,
                ports,
                options,
                process,
            });
            let mut cluster = Self { members: members.collect() };
            if cluster.members.iter_mut().all(|member| {
                let directory = member.directory.path().to_owned();
                wait_until_ready(&mut member.process, member.ports, &directory)
            }) {
                return Some(cluster);
            }
        }
        panic!("the cluster does not start");
    }

    pub(crate) fn url(&self) -> String {
        let members: Vec<_> =
            self.members.iter().map(|member| format!("127.0.0.1:{}", member.port())).collect();
        format!("etcd://{}", members.join(","))
    }
}

pub(crate) fn url_of(port: u16) -> String {
    format!("etcd://127.0.0.1:{port}")
}

fn alone(ports: Ports) -> Vec<String> {
    member("default", ports, &format!("default=http://127.0.0.1:{}", ports.peer))
}

fn member(name: &str, ports: Ports, all: &str) -> Vec<String> {
    let client = format!("http://127.0.0.1:{}", ports.client);
    let peer = format!("http://127.0.0.1:{}", ports.peer);
    [
        format!("--name={name}"),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster={all}"),
        "--logger=zap".to_owned(),
        "--log-level=warn".to_owned(),
    ]
    .to_vec()
}

fn start(programs: &Path, directory: &Path, options: &[String]) -> ChildProcess {
    let log_file =
        fs::File::options().create(true).append(true).open(directory.join("server.log")).expect("room");
    let data = directory.join("data");
    ChildProcess::start(programs.join("etcd").as_os_str(), options, |command| {
        command.arg("--data-dir").arg(data).env(CHILD_DIR, directory);
        command.stdout(Stdio::null()).stderr(log_file);
    })
}

/// Starts a server and waits until it answers; `None` if it ends instead.
fn launch(programs: &Path, directory: &Path, ports: Ports, options: &[String]) -> Option<ChildProcess> {
    let mut process = start(programs, directory, options);
    wait_until_ready(&mut process, ports, directory).then_some(process)
}

fn wait_until_ready(process: &mut ChildProcess, ports: Ports, directory: &Path) -> bool {
    let end = Instant::now() + START;
    while process.is_alive() {
        if is_healthy(ports.health) {
            return true;
        }
        assert!(Instant::now() < end, "no answer within {START:?}; the log:\n{}", log(directory));
        sleep(Duration::from_millis(5));
    }
    false
}

/// Whether the server can write, by what it says itself.
fn is_healthy(port: u16) -> bool {
    let answer = ask(port, "GET /health HTTP/1.0\r\n\r\n");
    answer.is_ok_and(|answer| answer.contains("\"health\":\"true\""))
}

fn ask(port: u16, request: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn new_directory() -> TempDir {
    tempfile::Builder::new().prefix("leasehold-").tempdir().expect("room for a directory")
}

#[track_caller]
fn programs_or_notice(left_out: &str) -> Option<PathBuf> {
    let programs = find_programs();
    if programs.is_none() {
        assert!(env::var_os(REQUIRE).is_none_or(|value| value != "1"), "no etcd for: {left_out}");
        let notice = format!(
            "\nLEFT OUT: {left_out}: no `etcd` and `etcdctl` in {PROGRAMS} or on PATH; see scripts/test.sh\n"
        );
        std::io::stderr().write_all(notice.as_bytes()).expect("standard error is open");
    }
    programs
}

fn find_programs() -> Option<PathBuf> {
    let has_both =
        |directory: &PathBuf| directory.join("etcd").is_file() && directory.join("etcdctl").is_file();
    if let Some(named) = env::var_os(PROGRAMS) {
        return Some(PathBuf::from(named)).filter(has_both);
    }
    env::split_paths(&env::var_os("PATH").unwrap_or_default()).find(has_both)
}

fn log(directory: &Path) -> String {
    fs::read_to_string(directory.join("server.log")).unwrap_or_default()
}
