//! One server of etcd.

use futures::future::{BoxFuture, FutureExt};

use super::{LEFT_OUT, Outcome, Server, Strike, done, one_line, unknown};
use crate::etcd::EtcdServer;
use crate::fault::ServerFault;
use crate::line::Line;

pub(crate) const FAULTS: &[ServerFault] = &[
    ServerFault::Stop,
    ServerFault::Restart,
    ServerFault::EndSessions,
    ServerFault::Compact,
    ServerFault::NoRoom,
];

#[derive(Debug)]
pub(crate) struct Etcd {
    server: EtcdServer,
}

impl Etcd {
    pub(crate) fn start_or_skip() -> Option<Self> {
        Some(Self { server: EtcdServer::start_or_skip(LEFT_OUT)? })
    }
}

impl Server for Etcd {
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
            ServerFault::EndSessions => revoke_leases(&self.server),
            ServerFault::Compact => compact(&self.server),
            ServerFault::NoRoom => alarm(&self.server, "ACTIVATE"),
            fault => return unknown(fault),
        }
        done()
    }

    fn end(&mut self, strike: Strike) -> Outcome<'_> {
        match strike.fault {
            ServerFault::Stop => self.server.resume(),
            ServerFault::NoRoom => alarm(&self.server, "DEACTIVATE"),
            _ => {}
        }
        done()
    }
}

/// All there are. One may end by itself meanwhile.
fn revoke_leases(server: &EtcdServer) {
    let all = server.ctl(&["lease", "list"]);
    for lease in all.lines().skip(1) {
        server.try_ctl(&["lease", "revoke", lease.trim()]);
    }
}

pub(super) fn compact(server: &EtcdServer) {
    server.ctl(&["compaction", "--physical", &server.revision().to_string()]);
}

pub(super) fn alarm(server: &EtcdServer, action: &str) {
    server.post_json("/v3/maintenance/alarm", &format!(r#"{{"action":"{action}","alarm":"NOSPACE"}}"#));
}
