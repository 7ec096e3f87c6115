//! Five independent servers of Redis.

use futures::future::{FutureExt, LocalBoxFuture};

use super::{LEFT_OUT, Outcome, Server, Strike, done, minority, unknown};
use crate::fault::ServerFault;
use crate::line::Line;
use crate::nodes_url;
use crate::support::{Nodes, RedisServer};

pub(crate) const FAULTS: &[ServerFault] = &[ServerFault::Stop];

#[derive(Debug)]
pub(crate) struct Redlock {
    nodes: Nodes,
}

impl Redlock {
    pub(crate) fn start_or_skip() -> Option<Self> {
        Some(Self { nodes: Nodes::start_or_skip(LEFT_OUT, 5)? })
    }
}

impl Server for Redlock {
    fn url(&self) -> String {
        self.nodes.url()
    }

    fn line(&self) -> LocalBoxFuture<'_, (Line, String)> {
        let line = Line::to_redis(self.nodes.0.iter().map(RedisServer::port));
        line.map(|line| (nodes_url(line.ports().into_iter()), line))
            .map(|(url, line)| (line, url))
            .boxed_local()
    }

    fn begin(&mut self, Strike { fault, which, .. }: Strike) -> Outcome<'_> {
        match fault {
            ServerFault::Stop => minority(&mut self.nodes.0, which).for_each(|node| node.pause()),
            _ => return unknown(fault),
        }
        done()
    }

    fn end(&mut self, Strike { fault, which, .. }: Strike) -> Outcome<'_> {
        if fault == ServerFault::Stop {
            minority(&mut self.nodes.0, which).for_each(|node| node.resume());
        }
        done()
    }
}
