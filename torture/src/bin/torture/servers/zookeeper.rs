//! One server of ZooKeeper.

use futures::future::{FutureExt, LocalBoxFuture};

use super::{LEFT_OUT, Outcome, Server, Strike, done, one_line, unknown};
use crate::fault::ServerFault;
use crate::line::Line;
use crate::zookeeper::ZookeeperServer;

pub(crate) const FAULTS: &[ServerFault] = &[ServerFault::Stop, ServerFault::Restart];

#[derive(Debug)]
pub(crate) struct Zookeeper {
    server: ZookeeperServer,
}

impl Zookeeper {
    pub(crate) fn start_or_skip() -> Option<Self> {
        Some(Self { server: ZookeeperServer::start_or_skip(LEFT_OUT)? })
    }
}

impl Server for Zookeeper {
    fn url(&self) -> String {
        self.server.url()
    }

    fn line(&self) -> LocalBoxFuture<'_, (Line, String)> {
        one_line(self.server.port(), |port| self.server.url_through(port)).boxed_local()
    }

    fn begin(&mut self, strike: Strike) -> Outcome<'_> {
        match strike.fault {
            ServerFault::Stop => self.server.pause(),
            ServerFault::Restart => self.server.restart(),
            fault => return unknown(fault),
        }
        done()
    }

    fn end(&mut self, strike: Strike) -> Outcome<'_> {
        if strike.fault == ServerFault::Stop {
            self.server.resume();
        }
        done()
    }
}
