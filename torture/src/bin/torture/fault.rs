//! What can go wrong: with workers, with the network, and with the servers of a store; and what operators do.

use leasehold_torture::history::Effect;

use crate::store::Store;
use leasehold_support::{Direction, Traffic};

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
    /// A connection of a worker is cut after some bytes of a request.
    CutRequest,
    /// The same for an answer: after its request, or within it.
    CutAnswer,
    /// What a worker is answered takes longer.
    Slow,
    /// The same for a lease, of which it takes a sixteenth; then everything is held.
    SlowThenHold,
    /// An operator releases by force what is held.
    ForceRelease,
    /// An operator changes the limit of a semaphore.
    Resize,
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
    /// The server could not save its data, and refuses to write until it can.
    CannotSave,
    /// Somebody else's script or transaction keeps the server busy, or what is asked of it locked.
    Busy,
    /// The server has as many clients as it takes, and ends those it has.
    TooManyClients,
    /// The server can only be read, as after a failover.
    ReadOnly,
    /// Every statement takes longer than the server allows.
    StatementLimit,
    /// The server's clock goes half a minute ahead.
    ClockAhead,
    /// The server's clock is set back by more than a minute and a half, and later set right.
    ClockBack,
    /// The server's clock is set back for good, by as long as the fault would last.
    SetClockBack,
    /// The sessions or leases of all clients end.
    EndSessions,
    /// The history of the store is compacted.
    Compact,
    /// A minority of several servers is killed, and started again with its disk.
    KillMinority,
    /// One of several servers is replaced by an empty one.
    ReplaceOne,
    /// The server that leads is killed or stopped, and another one takes over.
    FailOver,
    /// The server is replaced by one that has not been told of its last changes.
    FailOverBehind,
    /// Another server is made the one that leads.
    MoveLeader,
    /// A server that follows is stopped.
    StopFollower,
    /// What is locked moves from one server to another.
    MoveSlot,
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
            Self::CutRequest => "a worker's request is cut".to_owned(),
            Self::CutAnswer => "a worker's answer is cut".to_owned(),
            Self::Slow => "a worker's answers are late".to_owned(),
            Self::SlowThenHold => "a worker's answers are late, and then its line is held".to_owned(),
            Self::ForceRelease => "an operator releases by force".to_owned(),
            Self::Resize => "an operator changes a limit".to_owned(),
            Self::Server(fault) => fault.name().to_owned(),
        }
    }

    /// Whether it ends the moment it begins.
    pub(crate) const fn is_instant(self) -> bool {
        match self {
            Self::KillWorker
            | Self::Cut
            | Self::CutRequest
            | Self::CutAnswer
            | Self::ForceRelease
            | Self::Resize => true,
            Self::Server(fault) => fault.is_instant(),
            _ => false,
        }
    }

    /// Whether it concerns one worker and no other.
    pub(crate) const fn is_of_worker(self) -> bool {
        !matches!(self, Self::Partition(_) | Self::ForceRelease | Self::Resize | Self::Server(_))
    }

    /// What it does to the promises of this store, if it hits this client.
    pub(crate) const fn effect(self, store: Store, client: u32) -> Effect {
        match self {
            Self::StopWorker => Effect::Pauses { client },
            Self::KillWorker => Effect::Kills { client },
            Self::Server(fault) if fault.forgets(store) => Effect::Forgets,
            Self::Server(ServerFault::NoRoom | ServerFault::NoReplicas) if matches!(store, Store::Redis) => {
                Effect::Refuses
            }
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
            Self::CannotSave => "the server cannot save",
            Self::Busy => "a stranger keeps the server busy",
            Self::TooManyClients => "the server has too many clients",
            Self::ReadOnly => "the server is read-only",
            Self::StatementLimit => "statements take too long for the server",
            Self::ClockAhead => "the server's clock jumps ahead",
            Self::ClockBack => "the server's clock is set back, and right again",
            Self::SetClockBack => "the server's clock is set back",
            Self::EndSessions => "the sessions of all clients end",
            Self::Compact => "the store is compacted",
            Self::KillMinority => "a minority of the servers is killed",
            Self::ReplaceOne => "one of the servers is replaced by an empty one",
            Self::FailOver => "another server takes over",
            Self::FailOverBehind => "another server takes over that lags",
            Self::MoveLeader => "another server is made the leader",
            Self::StopFollower => "a server that follows is stopped",
            Self::MoveSlot => "a slot moves to another server",
        }
    }

    const fn is_instant(self) -> bool {
        matches!(
            self,
            Self::Restart
                | Self::RestartEmpty
                | Self::Flush
                | Self::ForgetScripts
                | Self::EndConnections
                | Self::ClockAhead
                | Self::SetClockBack
                | Self::EndSessions
                | Self::Compact
                | Self::ReplaceOne
                | Self::MoveLeader
                | Self::MoveSlot
        )
    }

    /// Whether servers are then to be awaited.
    pub(crate) const fn ends_servers(self) -> bool {
        matches!(
            self,
            Self::Restart | Self::RestartEmpty | Self::KillMinority | Self::FailOver | Self::FailOverBehind
        )
    }

    /// Whether the store then knows less than before, or something else than its clients, so that exclusion is not
    /// promised. A server that takes over is told of writes by the others when they are confirmed only if they agree
    /// on them.
    const fn forgets(self, store: Store) -> bool {
        match self {
            Self::RestartEmpty
            | Self::Flush
            | Self::ClockAhead
            | Self::ClockBack
            | Self::EndSessions
            | Self::ReplaceOne
            | Self::FailOverBehind => true,
            Self::FailOver => matches!(store, Store::Sentinel | Store::Cluster),
            // Sentinels publish at the server, and may replace it when it does not do that.
            Self::PauseWrites => matches!(store, Store::Sentinel),
            _ => false,
        }
    }
}
