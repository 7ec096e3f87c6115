//! One server of ZooKeeper.

use futures::future::{BoxFuture, FutureExt};

use super::{LEFT_OUT, Outcome, Server, Strike, done, one_line, unknown};
use crate::fault::ServerFault;
use crate::line::Line;
use crate::zookeeper::ZookeeperServer;
use leasehold_support::zookeeper_wire::Wire;

pub(crate) const FAULTS: &[ServerFault] =
    &[ServerFault::Stop, ServerFault::Restart, ServerFault::EndSessions];

/// To ask for its sessions.
const SETTINGS: [&str; 1] = ["4lw.commands.whitelist=dump"];

#[derive(Debug)]
pub(crate) struct Zookeeper {
    server: ZookeeperServer,
}

impl Zookeeper {
    pub(crate) fn start_or_skip() -> Option<Self> {
        Some(Self { server: ZookeeperServer::start_with_or_skip(LEFT_OUT, &SETTINGS, None)? })
    }
}

impl Server for Zookeeper {
    fn url(&self) -> String {
        self.server.url()
    }

    fn line(&self) -> BoxFuture<'_, (Line, String)> {
        one_line(self.server.port(), |port| self.server.url_through(port)).boxed()
    }

    fn begin(&mut self, strike: Strike) -> Outcome<'_> {
        match strike.fault {
            ServerFault::Stop => self.server.pause(),
            ServerFault::Restart => self.server.restart(),
            ServerFault::EndSessions => end_sessions(self.server.port()),
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

/// All that have anything in the store.
fn end_sessions(port: u16) {
    let text = Wire::ask(port, "dump").unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.trim().strip_prefix("0x")?.strip_suffix(':'));
    for session in lines.filter_map(|number| u64::from_str_radix(number, 16).ok()) {
        // It may have ended by itself.
        Wire::end_session_if_any(port, session.cast_signed());
    }
}
