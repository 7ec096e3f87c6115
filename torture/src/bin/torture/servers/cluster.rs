//! A cluster of Redis: three primaries with a replica each. Its clients go where the nodes say: there are no lines.

use futures::future::{BoxFuture, FutureExt, ready};

use super::redis::{begin_by_command, end_by_command};
use super::{LEFT_OUT, Outcome, Server, Strike, done, unknown, until};
use crate::fault::ServerFault;
use crate::line::Line;
use leasehold_support::Cluster as Nodes;
use leasehold_support::Raw;

pub(crate) const FAULTS: &[ServerFault] = &[
    ServerFault::FailOver,
    ServerFault::MoveSlot,
    ServerFault::ForgetScripts,
    ServerFault::EndConnections,
    ServerFault::PauseWrites,
    ServerFault::NoRoom,
];

/// A slot of each of the three, at first and mostly.
const SLOTS: [u16; 3] = [0, 8_000, 16_383];

pub(crate) struct Cluster {
    nodes: Nodes,
    /// The primary that a fault hits, and one of its slots.
    hit: (usize, u16),
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("hit", &self.hit).finish_non_exhaustive()
    }
}

impl Cluster {
    pub(crate) fn start_or_skip() -> Option<Self> {
        Some(Self { nodes: Nodes::start_or_skip(LEFT_OUT)?, hit: (0, 0) })
    }

    fn is_hung(which: usize) -> bool {
        which / SLOTS.len() % 2 == 1
    }

    /// The primary is killed, or hangs and wakes up when it has been replaced.
    async fn fail_over(&mut self, hangs: bool) -> Result<(), String> {
        let (old, slot) = self.hit;
        if hangs {
            self.nodes.nodes[old].pause();
        } else {
            self.nodes.nodes[old].kill();
        }
        let nodes = &self.nodes;
        let others = || (0..nodes.nodes.len()).filter(|node| *node != old);
        until("another primary", || others().all(|asked| nodes.serving(asked, slot) != old)).await
    }

    /// The one that was replaced follows.
    async fn follow(&mut self, hangs: bool) -> Result<(), String> {
        let (old, _) = self.hit;
        if hangs {
            self.nodes.nodes[old].resume();
        } else {
            self.nodes.nodes[old].restart();
        }
        let nodes = &self.nodes;
        until("the old primary follows", || {
            let info = Raw::connect(nodes.nodes[old].port());
            let info = info.and_then(|mut raw| raw.try_send(&["INFO", "replication"]));
            info.is_ok_and(|info| info.text().is_some_and(|info| info.contains("master_link_status:up")))
        })
        .await
    }

    /// The slot of something that is locked goes to another primary.
    fn move_slot(&self, which: usize) {
        let keys = self.nodes.keys();
        let Some(key) = keys.get(which % keys.len().max(1)) else { return };
        let slot = self.nodes.slot(key);
        let from = self.nodes.serving(0, slot);
        let others = SLOTS.map(|slot| self.nodes.serving(0, slot));
        if let Some(to) = others.into_iter().find(|node| *node != from) {
            self.nodes.move_slot(slot, from, to);
        }
    }
}

impl Server for Cluster {
    fn url(&self) -> String {
        self.nodes.url()
    }

    fn line(&self) -> BoxFuture<'_, (Line, String)> {
        ready((Line::None, self.url())).boxed()
    }

    fn begin(&mut self, strike: Strike) -> Outcome<'_> {
        let slot = SLOTS[strike.which % SLOTS.len()];
        self.hit = (self.nodes.serving(0, slot), slot);
        match strike.fault {
            ServerFault::FailOver => self.fail_over(Self::is_hung(strike.which)).boxed(),
            ServerFault::MoveSlot => {
                self.move_slot(strike.which);
                done()
            }
            _ if begin_by_command(&self.nodes.nodes[self.hit.0], strike) => done(),
            fault => unknown(fault),
        }
    }

    fn end(&mut self, strike: Strike) -> Outcome<'_> {
        if strike.fault == ServerFault::FailOver {
            return self.follow(Self::is_hung(strike.which)).boxed();
        }
        end_by_command(&self.nodes.nodes[self.hit.0], strike.fault);
        done()
    }
}
