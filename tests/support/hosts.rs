//! Host names with the addresses that a test wants, and addresses that do what a test wants.

// Each of the programs that include this uses a part.
#![allow(dead_code)]

use std::env;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{Duration, sleep, timeout};

use super::preload::{compile, leave_out};

const SOURCE: &str = include_str!("hosts.c");
/// Tells the library which names there are.
const HOSTS: &str = "LEASEHOLD_HOSTS";

/// Runs the test of this name again, in a process in which host names have the given addresses:
/// `db.test=127.0.0.9,127.0.0.1`. `true` in that process, where the test does what it tests; `false` in the first one,
/// which has seen it pass, or has left it out.
///
/// ```ignore
/// #[test]
/// fn a_promise() {
///     if !is_run_with_hosts("a_promise", "db.test=127.0.0.9,127.0.0.1") {
///         return;
///     }
///     ...
/// }
/// ```
#[track_caller]
pub fn is_run_with_hosts(test: &str, hosts: &str) -> bool {
    static LIBRARY: LazyLock<Result<PathBuf, String>> = LazyLock::new(|| compile("hosts", SOURCE));
    if env::var_os(HOSTS).is_some() {
        return true;
    }
    match &*LIBRARY {
        Ok(library) => {
            let output = Command::new(env::current_exe().expect("a process knows its program"))
                .args([test, "--exact", "--nocapture", "--test-threads=1"])
                .env("LD_PRELOAD", library)
                .env(HOSTS, hosts)
                .output()
                .expect("a program that runs can be started again");
            let (stdout, stderr) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success() && stdout.contains("1 passed"), "{stdout}\n{stderr}");
        }
        Err(why) => leave_out(test, why),
    }
    false
}

/// What an address does with those who connect to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing is accepted, and nothing refused: its packets are swallowed (the backlog is full).
    Swallows,
    /// Accepts connections and never answers, like a process that is stopped.
    Hangs,
    /// Refuses connections.
    Refuses,
    /// Closes each connection as soon as it is accepted.
    Drops,
    /// Accepts connections and passes everything on to a server, this long after it has come.
    Late(Duration, SocketAddr),
}

/// An address with a fault, as long as this lives.
#[derive(Debug)]
pub struct FaultyAddress {
    address: SocketAddr,
    fillers: Vec<TcpStream>,
    task: Option<JoinHandle<()>>,
}

impl FaultyAddress {
    /// Makes `address` (such as `127.0.0.9` with the port of a server on `127.0.0.1`) behave like this.
    pub async fn new(address: SocketAddr, fault: Fault) -> Self {
        let mut faulty = Self { address, fillers: Vec::new(), task: None };
        match fault {
            Fault::Refuses => drop(TcpListener::bind(address).expect("nobody else has this address")),
            Fault::Swallows => faulty.fill().await,
            Fault::Hangs | Fault::Drops | Fault::Late(..) => {
                let listener =
                    tokio::net::TcpListener::bind(address).await.expect("nobody else has this address");
                faulty.task = Some(tokio::spawn(async move {
                    let mut held = Vec::new();
                    while let Ok((mut stream, _)) = listener.accept().await {
                        match fault {
                            Fault::Hangs => held.push(stream),
                            Fault::Late(late, server) => drop(tokio::spawn(async move {
                                sleep(late).await;
                                let mut server = TcpStream::connect(server).await?;
                                copy_bidirectional(&mut stream, &mut server).await
                            })),
                            _ => drop(stream),
                        }
                    }
                }));
            }
        }
        faulty
    }

    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connects until nothing is accepted any more.
    async fn fill(&mut self) {
        let socket = if self.address.is_ipv6() { TcpSocket::new_v6() } else { TcpSocket::new_v4() };
        let socket = socket.expect("there are sockets");
        socket.bind(self.address).expect("nobody else has this address");
        let listener = socket.listen(1).expect("it can be listened on");
        while let Ok(Ok(filler)) = timeout(Duration::from_millis(300), TcpStream::connect(self.address)).await
        {
            self.fillers.push(filler);
        }
        self.task = Some(tokio::spawn(async move {
            let _kept = listener;
            std::future::pending::<()>().await;
        }));
    }
}

impl Drop for FaultyAddress {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}
