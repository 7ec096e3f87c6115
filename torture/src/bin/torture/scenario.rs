//! The scenarios: which faults there are, and what must hold.

use std::time::Duration;

use crate::store::Store;
use crate::support::{Direction, Traffic};

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// SIGSTOP to a worker.
    StopWorker,
    /// SIGKILL to a worker. Another one takes its place.
    KillWorker,
    /// SIGSTOP to the server; of Redlock's, to two.
    StopServer,
    /// SIGKILL to the server, which is started again with its disk.
    RestartServer,
    /// The same without anything on disk.
    EmptyServer,
    /// The store is emptied.
    Flush,
    /// The store forgets the scripts it knows.
    ForgetScripts,
    /// The server ends all connections.
    EndConnections,
    /// The clock of the server is set back.
    SetClockBack,
    /// The server carries out nothing that writes, for a while.
    PauseWrites,
    /// The server refuses everything that writes: it has no room, or no replicas.
    Refuse(&'static str, &'static str, &'static str),
    /// What a worker sends, or is sent, or both, is kept and delivered later.
    Hold(Direction),
    /// The same, of its messages or of everything else alone.
    HoldTraffic(Traffic, Direction),
    /// The same for all workers.
    Partition(Direction),
    /// The connections of a worker are cut.
    Cut,
    /// What a worker is answered takes longer.
    Slow,
    /// The same for a lease, of which it takes a sixteenth; then everything is held.
    SlowThenHold,
}

const NO_ROOM: Fault = Fault::Refuse("maxmemory", "1", "0");
const NO_REPLICAS: Fault = Fault::Refuse("min-replicas-to-write", "1", "0");
use Direction::{Both, ToClient, ToServer};
use Traffic::{Commands, Messages};

impl Fault {
    /// What it is called in the report.
    pub(crate) fn name(self) -> String {
        match self {
            Self::StopWorker => "a worker is stopped".to_owned(),
            Self::KillWorker => "a worker is killed".to_owned(),
            Self::StopServer => "the server is stopped".to_owned(),
            Self::RestartServer => "the server is killed and restarted".to_owned(),
            Self::EmptyServer => "the server is restarted without its disk".to_owned(),
            Self::Flush => "the store is emptied".to_owned(),
            Self::ForgetScripts => "scripts are forgotten".to_owned(),
            Self::EndConnections => "the server ends all connections".to_owned(),
            Self::SetClockBack => "the server's clock is set back".to_owned(),
            Self::PauseWrites => "the server pauses what writes".to_owned(),
            Self::Refuse(setting, value, _) => format!("the server refuses what writes ({setting} {value})"),
            Self::Hold(direction) => format!("a worker's line is held ({direction:?})"),
            Self::HoldTraffic(traffic, direction) => {
                format!("{traffic:?} of a worker are held ({direction:?})")
            }
            Self::Partition(direction) => format!("all lines are held ({direction:?})"),
            Self::Cut => "a worker's connections are cut".to_owned(),
            Self::Slow => "a worker's answers are late".to_owned(),
            Self::SlowThenHold => "a worker's answers are late, and then its line is held".to_owned(),
        }
    }

    /// Whether it ends the moment it begins.
    pub(crate) const fn is_instant(self) -> bool {
        matches!(
            self,
            Self::KillWorker
                | Self::RestartServer
                | Self::EmptyServer
                | Self::Flush
                | Self::ForgetScripts
                | Self::EndConnections
                | Self::SetClockBack
                | Self::Cut
        )
    }

    pub(crate) const fn is_on(self, store: Store) -> bool {
        match self {
            Self::StopWorker | Self::KillWorker => true,
            Self::EmptyServer
            | Self::Flush
            | Self::ForgetScripts
            | Self::EndConnections
            | Self::SetClockBack
            | Self::PauseWrites
            | Self::Refuse(..) => matches!(store, Store::Redis),
            Self::HoldTraffic(..) | Self::Slow | Self::SlowThenHold => {
                matches!(store, Store::Redis | Store::Redlock)
            }
            Self::RestartServer => !matches!(store, Store::Redlock | Store::Sqlite),
            Self::StopServer | Self::Hold(_) | Self::Partition(_) | Self::Cut => {
                !matches!(store, Store::Sqlite)
            }
        }
    }
}

/// A scenario.
#[derive(Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// What must hold besides what always must.
    pub(crate) holds: &'static str,
    pub(crate) faults: &'static [Fault],
    /// How long faults last, in tenths of the lease.
    pub(crate) lasts: &'static [(u64, u64)],
    /// From the end of one fault to the next one, in milliseconds.
    pub(crate) calm: (u64, u64),
    /// Whether the server keeps everything on disk.
    pub(crate) is_on_disk: bool,
}

/// Shorter than it takes to lose a lease, about as long, and longer.
const ANY: &[(u64, u64)] = &[(1, 6), (1, 6), (6, 13), (20, 26)];
const TWO_LEASES: &[(u64, u64)] = &[(20, 26)];
const SHORT_CALM: (u64, u64) = (100, 1_500);
const CALM: (u64, u64) = (1_000, 2_500);

const PLAIN: Scenario =
    Scenario { name: "", holds: "I1 to I7", faults: &[], lasts: ANY, calm: CALM, is_on_disk: true };

pub(crate) const ALL: &[Scenario] = &[
    Scenario {
        name: "mixed",
        holds: "I1 to I7",
        faults: &[
            Fault::StopWorker,
            Fault::KillWorker,
            Fault::StopServer,
            Fault::RestartServer,
            Fault::ForgetScripts,
            Fault::EndConnections,
            Fault::PauseWrites,
            NO_ROOM,
            NO_REPLICAS,
            Fault::Hold(Both),
            Fault::Hold(ToServer),
            Fault::Hold(ToClient),
            Fault::HoldTraffic(Commands, ToServer),
            Fault::HoldTraffic(Commands, ToClient),
            Fault::HoldTraffic(Messages, ToClient),
            Fault::Partition(Both),
            Fault::Cut,
            Fault::Slow,
        ],
        calm: SHORT_CALM,
        ..PLAIN
    },
    Scenario { name: "calm", holds: "I1 to I7, and nothing is lost", ..PLAIN },
    Scenario {
        name: "paused-holder",
        holds: "I1 to I7: a worker that was stopped for two leases changes nothing that checks tokens",
        faults: &[Fault::StopWorker],
        lasts: TWO_LEASES,
        calm: SHORT_CALM,
        ..PLAIN
    },
    Scenario {
        name: "killed-holder",
        holds: "I1 to I7: whoever waits is served within a lease and a second",
        faults: &[Fault::KillWorker],
        ..PLAIN
    },
    Scenario {
        name: "stopped-server",
        holds: "I1 to I7: losses are told by the clients' own clocks",
        faults: &[Fault::StopServer],
        ..PLAIN
    },
    Scenario {
        name: "server-restart",
        holds: "I1 to I7: what is on disk is not forgotten",
        faults: &[Fault::RestartServer],
        ..PLAIN
    },
    Scenario {
        name: "server-restart-without-disk",
        holds: "I2 to I7; I1 not until a lease after the restart, which is counted",
        faults: &[Fault::EmptyServer],
        is_on_disk: false,
        ..PLAIN
    },
    Scenario {
        name: "flush",
        holds: "I2 to I7; I1 not until a lease after it, which is counted",
        faults: &[Fault::Flush],
        ..PLAIN
    },
    Scenario {
        name: "partition",
        holds: "I1 to I7: losses are told by the clients' own clocks",
        faults: &[
            Fault::Hold(Both),
            Fault::Hold(ToServer),
            Fault::Hold(ToClient),
            Fault::Partition(Both),
            Fault::Partition(ToServer),
            Fault::Partition(ToClient),
        ],
        ..PLAIN
    },
    Scenario {
        name: "late-messages",
        holds: "I1 to I7: an old grant is not believed",
        faults: &[
            Fault::HoldTraffic(Commands, ToServer),
            Fault::HoldTraffic(Commands, ToClient),
            Fault::HoldTraffic(Messages, ToServer),
            Fault::HoldTraffic(Messages, ToClient),
        ],
        lasts: &[(6, 13), (20, 50)],
        ..PLAIN
    },
    Scenario {
        name: "late-requests",
        holds: "I1 to I7: a late renewal or release takes nothing from others",
        faults: &[Fault::Hold(ToServer)],
        lasts: &[(7, 13)],
        calm: SHORT_CALM,
        ..PLAIN
    },
    Scenario {
        name: "late-answers",
        holds: "I1 to I7: a lease is measured from its request",
        faults: &[Fault::SlowThenHold],
        lasts: &[(10, 14)],
        calm: SHORT_CALM,
        ..PLAIN
    },
    Scenario {
        name: "clock-set-back",
        holds: "I1 to I7: tokens increase although the server's clock goes back",
        faults: &[Fault::SetClockBack],
        lasts: &[(1, 6)],
        ..PLAIN
    },
    Scenario { name: "slow-network", holds: "I1 to I7", faults: &[Fault::Slow, Fault::Cut], ..PLAIN },
    Scenario {
        name: "refused-releases",
        holds: "I1 to I7: what was released meanwhile is free a second after the store refuses no more",
        faults: &[NO_REPLICAS],
        lasts: &[(3, 5)],
        ..PLAIN
    },
    Scenario {
        name: "refusals",
        holds: "I1 to I7: nobody who waits is told of them",
        faults: &[NO_ROOM, NO_REPLICAS, Fault::PauseWrites],
        ..PLAIN
    },
];

impl Scenario {
    pub(crate) fn named(name: &str) -> Result<&'static Self, String> {
        let names: Vec<_> = ALL.iter().map(|scenario| scenario.name).collect();
        let found = ALL.iter().find(|scenario| scenario.name == name);
        found.ok_or_else(|| format!("no such scenario; there are {}", names.join(", ")))
    }

    /// The faults that this store can have. None, if that is not one of those of the scenario.
    pub(crate) fn faults_on(&self, store: Store) -> Result<Vec<Fault>, String> {
        let faults: Vec<_> = self.faults.iter().copied().filter(|fault| fault.is_on(store)).collect();
        if faults.is_empty() && !self.faults.is_empty() {
            return Err(format!("{} has none of the faults of {}", store.name(), self.name));
        }
        Ok(faults)
    }
}

/// How long a fault of this scenario lasts.
pub(crate) fn length(tenths: u64, lease: Duration) -> Duration {
    lease / 10 * u32::try_from(tenths).unwrap_or(u32::MAX)
}
