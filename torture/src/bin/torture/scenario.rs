//! The scenarios: which faults there are, and what must hold.

use std::time::Duration;

use clap::ValueEnum;

use crate::fault::{Fault, ServerFault};
use crate::servers;
use crate::store::Store;
use Direction::{Both, ToClient, ToServer};
use Traffic::{Commands, Messages};
use leasehold_support::{Direction, Traffic};

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
    /// One of how many sections takes longer than a lease.
    pub(crate) long: u64,
    /// Whether clients are also used from other runtimes, which end, and from threads that are blocked.
    pub(crate) has_other_runtimes: bool,
    /// Whether the server keeps everything on disk.
    pub(crate) is_on_disk: bool,
}

/// Shorter than it takes to lose a lease, about as long, and longer.
const ANY: &[(u64, u64)] = &[(1, 6), (1, 6), (6, 13), (20, 26)];
const TWO_LEASES: &[(u64, u64)] = &[(20, 26)];
const SHORT_CALM: (u64, u64) = (100, 1_500);
const CALM: (u64, u64) = (1_000, 2_500);

const PLAIN: Scenario = Scenario {
    name: "",
    holds: "I1 to I7",
    faults: &[],
    lasts: ANY,
    calm: CALM,
    long: 500,
    has_other_runtimes: false,
    is_on_disk: true,
};

const WAITS: &str = "I1 to I7: nobody who waits is told of it";
const FORGETS: &str = "I2 to I7; I1 not until a lease after it, which is counted";

const REFUSALS: [Fault; 8] = [
    Fault::Server(ServerFault::NoRoom),
    Fault::Server(ServerFault::NoReplicas),
    Fault::Server(ServerFault::PauseWrites),
    Fault::Server(ServerFault::CannotSave),
    Fault::Server(ServerFault::Busy),
    Fault::Server(ServerFault::TooManyClients),
    Fault::Server(ServerFault::ReadOnly),
    Fault::Server(ServerFault::StatementLimit),
];

/// A scenario of one fault.
const fn one(name: &'static str, holds: &'static str, faults: &'static [Fault]) -> Scenario {
    Scenario { name, holds, faults, ..PLAIN }
}

pub(crate) const ALL: &[Scenario] = &[
    Scenario {
        name: "mixed",
        holds: "I1 to I7",
        faults: &[
            Fault::StopWorker,
            Fault::KillWorker,
            Fault::Server(ServerFault::Stop),
            Fault::Server(ServerFault::Restart),
            Fault::Server(ServerFault::ForgetScripts),
            Fault::Server(ServerFault::EndConnections),
            Fault::Server(ServerFault::PauseWrites),
            Fault::Server(ServerFault::NoRoom),
            Fault::Server(ServerFault::NoReplicas),
            Fault::Server(ServerFault::CannotSave),
            Fault::Server(ServerFault::Busy),
            Fault::Server(ServerFault::TooManyClients),
            Fault::Server(ServerFault::ReadOnly),
            Fault::Server(ServerFault::StatementLimit),
            Fault::Server(ServerFault::Compact),
            Fault::Server(ServerFault::KillMinority),
            Fault::Server(ServerFault::FailOver),
            Fault::Server(ServerFault::MoveLeader),
            Fault::Server(ServerFault::StopFollower),
            Fault::Server(ServerFault::MoveSlot),
            Fault::Hold(Both),
            Fault::Hold(ToServer),
            Fault::Hold(ToClient),
            Fault::HoldTraffic(Commands, ToServer),
            Fault::HoldTraffic(Commands, ToClient),
            Fault::HoldTraffic(Messages, ToClient),
            Fault::Partition(Both),
            Fault::Cut,
            Fault::CutRequest,
            Fault::CutAnswer,
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
        faults: &[Fault::Server(ServerFault::Stop)],
        ..PLAIN
    },
    Scenario {
        name: "server-restart",
        holds: "I1 to I7: what is on disk is not forgotten",
        faults: &[Fault::Server(ServerFault::Restart)],
        ..PLAIN
    },
    Scenario {
        name: "server-restart-without-disk",
        holds: "I2 to I7; I1 not until a lease after the restart, which is counted",
        faults: &[Fault::Server(ServerFault::RestartEmpty)],
        is_on_disk: false,
        ..PLAIN
    },
    Scenario {
        name: "flush",
        holds: "I2 to I7; I1 not until a lease after it, which is counted",
        faults: &[Fault::Server(ServerFault::Flush)],
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
        name: "late-commands",
        holds: "I1 to I7: what is executed and not answered is found out, or undone",
        faults: &[Fault::HoldTraffic(Commands, ToClient), Fault::HoldTraffic(Commands, ToServer)],
        lasts: &[(1, 3)],
        calm: (20, 300),
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
        faults: &[Fault::Server(ServerFault::SetClockBack)],
        lasts: &[(1, 6)],
        ..PLAIN
    },
    Scenario { name: "slow-network", holds: "I1 to I7", faults: &[Fault::Slow, Fault::Cut], ..PLAIN },
    Scenario {
        name: "refused-releases",
        holds: "I1 to I7: what was released meanwhile is free a second after the store refuses no more",
        faults: &[Fault::Server(ServerFault::NoReplicas)],
        lasts: &[(3, 5)],
        ..PLAIN
    },
    Scenario {
        name: "refusals",
        holds: "I1 to I7: nobody who waits is told of them",
        faults: &REFUSALS,
        ..PLAIN
    },
    Scenario {
        name: "cut-messages",
        holds: "I1 to I7: what may have been done is found out, or undone",
        faults: &[Fault::CutRequest, Fault::CutAnswer],
        calm: SHORT_CALM,
        ..PLAIN
    },
    Scenario {
        name: "released-by-force",
        holds: "I1 by tokens, I2 to I7: the holder is told, and until then the smaller token is refused",
        faults: &[Fault::ForceRelease],
        calm: (20, 300),
        long: 20,
        ..PLAIN
    },
    Scenario {
        name: "resized",
        holds: "I1 to I7, by the limits in force",
        faults: &[Fault::Resize],
        calm: (20, 300),
        long: 50,
        ..PLAIN
    },
    Scenario {
        name: "other-runtimes",
        holds: "I1 to I7: what ends with a runtime is given up, and a blocked thread loses nothing",
        has_other_runtimes: true,
        ..PLAIN
    },
    one("no-room", WAITS, &[Fault::Server(ServerFault::NoRoom)]),
    one("no-replicas", WAITS, &[Fault::Server(ServerFault::NoReplicas)]),
    one("paused-writes", WAITS, &[Fault::Server(ServerFault::PauseWrites)]),
    one("cannot-save", WAITS, &[Fault::Server(ServerFault::CannotSave)]),
    one("busy", WAITS, &[Fault::Server(ServerFault::Busy)]),
    one("too-many-clients", WAITS, &[Fault::Server(ServerFault::TooManyClients)]),
    one("read-only", WAITS, &[Fault::Server(ServerFault::ReadOnly)]),
    one("statement-limit", WAITS, &[Fault::Server(ServerFault::StatementLimit)]),
    one("forgotten-scripts", PLAIN.holds, &[Fault::Server(ServerFault::ForgetScripts)]),
    one("ended-connections", PLAIN.holds, &[Fault::Server(ServerFault::EndConnections)]),
    one("compaction", PLAIN.holds, &[Fault::Server(ServerFault::Compact)]),
    one("ended-sessions", FORGETS, &[Fault::Server(ServerFault::EndSessions)]),
    one("clock-ahead", FORGETS, &[Fault::Server(ServerFault::ClockAhead)]),
    one("clock-back", FORGETS, &[Fault::Server(ServerFault::ClockBack)]),
    one("killed-minority", PLAIN.holds, &[Fault::Server(ServerFault::KillMinority)]),
    one("replaced-node", FORGETS, &[Fault::Server(ServerFault::ReplaceOne)]),
    one(
        "failover",
        "I1 to I7; where servers confirm what the others do not know yet, I1 from a lease after it",
        &[Fault::Server(ServerFault::FailOver)],
    ),
    one("failover-behind", FORGETS, &[Fault::Server(ServerFault::FailOverBehind)]),
    one("moved-leader", PLAIN.holds, &[Fault::Server(ServerFault::MoveLeader)]),
    one("stopped-follower", PLAIN.holds, &[Fault::Server(ServerFault::StopFollower)]),
    one("moved-slot", PLAIN.holds, &[Fault::Server(ServerFault::MoveSlot)]),
];

impl Scenario {
    pub(crate) fn named(name: &str) -> Result<&'static Self, String> {
        let names: Vec<_> = ALL.iter().map(|scenario| scenario.name).collect();
        let found = ALL.iter().find(|scenario| scenario.name == name);
        found.ok_or_else(|| format!("no such scenario; there are {}", names.join(", ")))
    }

    /// The faults that this store can have. None, if that is not one of those of the scenario.
    pub(crate) fn faults_on(&self, store: Store) -> Result<Vec<Fault>, String> {
        let faults: Vec<_> = self.faults.iter().copied().filter(|fault| is_on(*fault, store)).collect();
        if faults.is_empty() && !self.faults.is_empty() {
            return Err(format!("{} has none of the faults of {}", store.name(), self.name));
        }
        Ok(faults)
    }
}

/// Whether it can happen there.
fn is_on(fault: Fault, store: Store) -> bool {
    match fault {
        Fault::StopWorker | Fault::KillWorker | Fault::ForceRelease => true,
        Fault::Resize => store.has_semaphores(),
        Fault::HoldTraffic(..) | Fault::Slow | Fault::SlowThenHold => {
            matches!(store, Store::Redis | Store::Redlock)
        }
        Fault::Hold(_) | Fault::Partition(_) | Fault::Cut | Fault::CutRequest | Fault::CutAnswer => {
            store.has_lines()
        }
        Fault::Server(fault) => servers::faults(store).contains(&fault),
    }
}

/// Every scenario on every store that can have any of its faults.
pub(crate) fn list() -> impl Iterator<Item = (Store, &'static Scenario)> {
    let all = Store::value_variants().iter().flat_map(|store| ALL.iter().map(|scenario| (*store, scenario)));
    all.filter(|(store, scenario)| scenario.faults_on(*store).is_ok())
}

/// How long a fault of this scenario lasts.
pub(crate) fn length(tenths: u64, lease: Duration) -> Duration {
    lease / 10 * u32::try_from(tenths).unwrap_or(u32::MAX)
}
