//! Five Redis servers of this example's own, which end with it.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::failure::Failure;

const NAMES: [char; 5] = ['A', 'B', 'C', 'D', 'E'];
const PROGRAMS: [&str; 2] = ["redis-server", "valkey-server"];
/// How long a server may take to answer.
const START: Duration = Duration::from_secs(10);

/// The servers A to E.
#[derive(Debug)]
pub(crate) struct Servers {
    servers: Vec<Server>,
    dir: PathBuf,
}

#[derive(Debug)]
struct Server {
    port: u16,
    process: Child,
}

impl Servers {
    /// Starts them on free ports of this machine, without anything on disk.
    pub(crate) async fn start() -> Result<Self, Failure> {
        let program = program().ok_or(Failure::NoServer)?;
        let dir = env::temp_dir().join(format!("leasehold-redlock-{}", std::process::id()));
        fs::create_dir_all(&dir)?;
        // They are killed when this is dropped, however the start ends.
        let mut started = Self { servers: Vec::new(), dir };
        for _ in NAMES {
            let port = free_port()?;
            let process = Command::new(&program)
                .args([
                    "--port",
                    &port.to_string(),
                    "--bind",
                    "127.0.0.1",
                    "--save",
                    "",
                    "--appendonly",
                    "no",
                ])
                .arg("--dir")
                .arg(&started.dir)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?;
            started.servers.push(Server { port, process });
        }
        let end = Instant::now() + START;
        for server in &mut started.servers {
            while command(server.port, &["PING"]).is_err() {
                if Instant::now() > end || server.process.try_wait()?.is_some() {
                    let why = format!("the server on port {} does not answer", server.port);
                    return Err(io::Error::new(io::ErrorKind::TimedOut, why).into());
                }
                sleep(Duration::from_millis(5)).await;
            }
        }
        Ok(started)
    }

    /// The URL of all of them.
    pub(crate) fn url(&self) -> String {
        self.url_reaching(&NAMES)
    }

    /// The URL for a client that does not reach the others: nothing listens there.
    pub(crate) fn url_reaching(&self, reached: &[char]) -> String {
        // Nothing listens on ports 1 and up, and each address may appear only once.
        let port = |(n, server): (usize, &Server)| {
            if reached.contains(&NAMES[n]) { server.port } else { u16::try_from(n + 1).unwrap_or(1) }
        };
        let hosts: Vec<_> =
            self.servers.iter().enumerate().map(|server| format!("127.0.0.1:{}", port(server))).collect();
        format!("redlock://{}", hosts.join(","))
    }

    /// Kills servers, as a crash would.
    pub(crate) fn kill(&mut self, names: &[char]) -> io::Result<()> {
        for (server, _) in self.servers.iter_mut().zip(NAMES).filter(|(_, name)| names.contains(name)) {
            server.process.kill()?;
            server.process.wait()?;
        }
        Ok(())
    }

    /// Lets the expiry of a key pass on one server, as a clock that jumps ahead would.
    pub(crate) fn expire(&self, name: char, key: &str) -> io::Result<()> {
        let server = self.servers.iter().zip(NAMES).find(|(_, known)| *known == name);
        let (server, _) = server.ok_or(io::ErrorKind::NotFound)?;
        command(server.port, &["PEXPIRE", key, "0"]).map(drop)
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for server in &mut self.servers {
            // It may have ended already.
            let _ = server.process.kill();
            let _ = server.process.wait();
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// The server program: that of `LEASEHOLD_REDIS_SERVER`, or one on the path.
fn program() -> Option<PathBuf> {
    if let Some(named) = env::var_os("LEASEHOLD_REDIS_SERVER") {
        return Some(PathBuf::from(named)).filter(|program| program.is_file());
    }
    let path: OsString = env::var_os("PATH")?;
    let dirs: Vec<_> = env::split_paths(&path).collect();
    let programs = PROGRAMS.iter().flat_map(|name| dirs.iter().map(move |dir| dir.join(name)));
    programs.into_iter().find(|program| program.is_file())
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Sends a command on a connection of its own, and returns the beginning of the answer.
fn command(port: u16, words: &[&str]) -> io::Result<String> {
    let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    connection.set_read_timeout(Some(Duration::from_secs(2)))?;
    let mut text = format!("*{}\r\n", words.len());
    for word in words {
        text.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    connection.write_all(text.as_bytes())?;
    let mut answer = [0; 128];
    let length = connection.read(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer[..length]).trim_end().to_owned();
    if answer.starts_with('-') || answer.is_empty() { Err(io::Error::other(answer)) } else { Ok(answer) }
}
