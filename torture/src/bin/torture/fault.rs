//! What can go wrong: with workers, with the network, and with the servers of a store.

use leasehold_torture::history::Effect;

use crate::store::Store;
use crate::support::{Direction, Traffic};

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// SIGSTOP to a worker.
    StopWorker,
    /// SIGKILL to a worker. Another one takes its place.
    KillWorker,
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
    /// Something is the matter with a server.
    Server(ServerFault),
}

/// What servers can suffer. Each store has some of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerFault {
    /// SIGSTOP to the server; where there are several, to a minority.
    Stop,
    /// SIGKILL to the server, which is started again with its disk.
    Restart,
    /// The same without anything on disk.
    RestartEmpty,
    /// The store is emptied.
    Flush,
    /// The store forgets the scripts it knows.
    ForgetScripts,
    /// The server ends all connections.
    EndConnections,
    /// The server carries out nothing that writes, for a while.
    PauseWrites,
    /// The server has no room for what is written.
    NoRoom,
    /// The server has no replicas, and refuses to write without.
    NoReplicas,
}

impl Fault {
    /// What it is called in the report.
    pub(crate) fn name(self) -> String {
        match self {
            Self::StopWorker => "a worker is stopped".to_owned(),
            Self::KillWorker => "a worker is killed".to_owned(),
            Self::Hold(direction) => format!("a worker's line is held ({direction:?})"),
            Self::HoldTraffic(traffic, direction) => {
                format!("{traffic:?} of a worker are held ({direction:?})")
            }
            Self::Partition(direction) => format!("all lines are held ({direction:?})"),
            Self::Cut => "a worker's connections are cut".to_owned(),
            Self::Slow => "a worker's answers are late".to_owned(),
            Self::Server(fault) => fault.name().to_owned(),
        }
    }

    /// Whether it ends the moment it begins.
    pub(crate) const fn is_instant(self) -> bool {
        match self {
            Self::KillWorker | Self::Cut => true,
            Self::Server(fault) => fault.is_instant(),
            _ => false,
        }
    }

    pub(crate) fn is_on(self, store: Store) -> bool {
        match self {
            Self::StopWorker | Self::KillWorker => true,
            Self::HoldTraffic(..) | Self::Slow => matches!(store, Store::Redis | Store::Redlock),
            Self::Hold(_) | Self::Partition(_) | Self::Cut => store.has_lines(),
            Self::Server(fault) => store.faults().contains(&fault),
        }
    }

    /// What it does to the promises, if it hits this client.
    pub(crate) const fn effect(self, client: u32) -> Effect {
        match self {
            Self::StopWorker => Effect::Pauses { client },
            Self::KillWorker => Effect::Kills { client },
            Self::Server(fault) if fault.forgets() => Effect::Forgets,
            _ => Effect::Delays,
        }
    }
}

impl ServerFault {
    const fn name(self) -> &'static str {
        match self {
            Self::Stop => "the server is stopped",
            Self::Restart => "the server is killed and restarted",
            Self::RestartEmpty => "the server is restarted without its disk",
            Self::Flush => "the store is emptied",
            Self::ForgetScripts => "scripts are forgotten",
            Self::EndConnections => "the server ends all connections",
            Self::PauseWrites => "the server pauses what writes",
            Self::NoRoom => "the server has no room",
            Self::NoReplicas => "the server has no replicas",
        }
    }

    const fn is_instant(self) -> bool {
        use ServerFault::{EndConnections, Flush, ForgetScripts, Restart, RestartEmpty};

        matches!(self, Restart | RestartEmpty | Flush | ForgetScripts | EndConnections)
    }

    /// Whether the store then knows less than before, so that exclusion is not promised.
    const fn forgets(self) -> bool {
        matches!(self, Self::RestartEmpty | Self::Flush)
    }
}
