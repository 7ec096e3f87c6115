//! One server of Redis.

use futures::future::{FutureExt, LocalBoxFuture};

use super::{LEFT_OUT, Outcome, Server, Start, Strike, done, unknown};
use crate::fault::ServerFault;
use crate::line::Line;
use crate::support::{RedisServer, Setup, url_of};

pub(crate) const FAULTS: &[ServerFault] = &[
    ServerFault::Stop,
    ServerFault::Restart,
    ServerFault::RestartEmpty,
    ServerFault::Flush,
    ServerFault::ForgetScripts,
    ServerFault::EndConnections,
    ServerFault::PauseWrites,
    ServerFault::NoRoom,
    ServerFault::NoReplicas,
];

#[derive(Debug)]
pub(crate) struct Redis {
    server: RedisServer,
}

impl Redis {
    pub(crate) fn start_or_skip(start: Start) -> Option<Self> {
        let setup = if start.is_on_disk { Setup::on_disk() } else { Setup::default() };
        Some(Self { server: RedisServer::start_with_or_skip(LEFT_OUT, setup)? })
    }
}

impl Server for Redis {
    fn url(&self) -> String {
        self.server.url()
    }

    fn line(&self) -> LocalBoxFuture<'_, (Line, String)> {
        let line = Line::to_redis([self.server.port()].into_iter());
        line.map(|line| (url_of(line.ports()[0]), line)).map(|(url, line)| (line, url)).boxed_local()
    }

    fn begin(&mut self, strike: Strike) -> Outcome<'_> {
        match strike.fault {
            ServerFault::Stop => self.server.pause(),
            // With what the setup keeps on disk.
            ServerFault::Restart | ServerFault::RestartEmpty => self.server.restart(),
            _ if !begin_by_command(&self.server, strike) => return unknown(strike.fault),
            _ => {}
        }
        done()
    }

    fn end(&mut self, strike: Strike) -> Outcome<'_> {
        match strike.fault {
            ServerFault::Stop => self.server.resume(),
            fault => end_by_command(&self.server, fault),
        }
        done()
    }

    fn connections(&self) -> Option<u64> {
        let list = self.server.raw().send(&["CLIENT", "LIST"]).text()?;
        // One is that of the question.
        Some(list.lines().count() as u64 - 1)
    }

    fn records(&self) -> Option<Vec<String>> {
        let mut keys = self.server.raw().keys("*");
        keys.retain(|key| !key.ends_with(":fence") && !key.ends_with(":revoked"));
        Some(keys)
    }
}

/// What a server is told so that it fails. `false` if that is no such fault.
pub(super) fn begin_by_command(server: &RedisServer, strike: Strike) -> bool {
    let lasts = strike.lasts.as_millis().to_string();
    let commands: &[&[&str]] = match strike.fault {
        ServerFault::Flush => &[&["FLUSHALL"]],
        ServerFault::ForgetScripts => &[&["SCRIPT", "FLUSH"]],
        ServerFault::EndConnections => {
            &[&["CLIENT", "KILL", "TYPE", "normal"], &["CLIENT", "KILL", "TYPE", "pubsub"]]
        }
        ServerFault::PauseWrites => &[&["CLIENT", "PAUSE", &lasts, "WRITE"]],
        ServerFault::NoRoom => &[&["CONFIG", "SET", "maxmemory", "1"]],
        ServerFault::NoReplicas => &[&["CONFIG", "SET", "min-replicas-to-write", "1"]],
        _ => return false,
    };
    send(server, commands);
    true
}

/// The opposite.
pub(super) fn end_by_command(server: &RedisServer, fault: ServerFault) {
    match fault {
        ServerFault::NoRoom => send(server, &[&["CONFIG", "SET", "maxmemory", "0"]]),
        ServerFault::NoReplicas => send(server, &[&["CONFIG", "SET", "min-replicas-to-write", "0"]]),
        _ => {}
    }
}

fn send(server: &RedisServer, commands: &[&[&str]]) {
    let mut raw = server.raw();
    for command in commands {
        raw.send(command);
    }
}
