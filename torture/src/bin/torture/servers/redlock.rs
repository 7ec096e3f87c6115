//! Five independent servers of Redis.

use std::fs;
use std::io::ErrorKind;

use futures::future::{BoxFuture, FutureExt, ready};

use super::redis::{begin_by_command, end_by_command};
use super::{LEFT_OUT, Outcome, Server, Start, Strike, done, minority, unknown};
use crate::fault::ServerFault;
use crate::line::Line;
use crate::nodes_url;
use leasehold_support::{Nodes, RedisServer, Setup};

/// All but the last one hit a minority.
pub(crate) const FAULTS: &[ServerFault] = &[
    ServerFault::Stop,
    ServerFault::KillMinority,
    ServerFault::ForgetScripts,
    ServerFault::EndConnections,
    ServerFault::PauseWrites,
    ServerFault::NoRoom,
    ServerFault::NoReplicas,
    ServerFault::ReadOnly,
    ServerFault::ReplaceOne,
];

#[derive(Debug)]
pub(crate) struct Redlock {
    nodes: Nodes,
}

impl Redlock {
    pub(crate) fn start_or_skip(start: Start<'_>) -> Option<Self> {
        let setup = if start.is_on_disk { Setup::on_disk() } else { Setup::default() };
        Some(Self { nodes: Nodes::start_with_or_skip(LEFT_OUT, vec![setup; 5])? })
    }
}

impl Server for Redlock {
    fn url(&self) -> String {
        self.nodes.url()
    }

    fn line(&self) -> BoxFuture<'_, (Line, String)> {
        let line = Line::to_redis(self.nodes.0.iter().map(RedisServer::port));
        line.map(|line| (nodes_url(line.ports().into_iter()), line)).map(|(url, line)| (line, url)).boxed()
    }

    fn begin(&mut self, strike: Strike) -> Outcome<'_> {
        let mut some = minority(&mut self.nodes.0, strike.which);
        match strike.fault {
            ServerFault::Stop => some.for_each(|node| node.pause()),
            ServerFault::KillMinority => some.for_each(RedisServer::kill),
            ServerFault::ReplaceOne => {
                return ready(some.next().map_or(Ok(()), replace)).boxed();
            }
            fault => {
                if !some.all(|node| begin_by_command(node, strike)) {
                    return unknown(fault);
                }
            }
        }
        done()
    }

    fn end(&mut self, Strike { fault, which, .. }: Strike) -> Outcome<'_> {
        let some = minority(&mut self.nodes.0, which);
        match fault {
            ServerFault::Stop => some.for_each(|node| node.resume()),
            ServerFault::KillMinority => some.for_each(RedisServer::restart),
            fault => some.for_each(|node| end_by_command(node, fault)),
        }
        done()
    }
}

/// Another server under the address of this one, which has nothing on disk.
fn replace(node: &mut RedisServer) -> Result<(), String> {
    node.kill();
    match fs::remove_dir_all(node.dir().join("appendonlydir")) {
        // It had not written anything yet, or writes nothing at all.
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.to_string()),
        _ => node.restart(),
    }
    Ok(())
}
