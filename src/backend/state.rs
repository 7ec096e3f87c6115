//! Whether a store can be reached, and findings about it.

use std::fmt;
use std::time::Instant;

/// Whether a store can currently be reached.
///
/// ```
/// # let client = leasehold::Client::memory();
/// let state = client.state(); // no I/O
/// println!("{}: {} servers", state.status, state.nodes.len());
/// assert!(state.status.is_connected());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreState {
    /// The worst status of its nodes; for a Redlock store, the worst status of the best majority.
    pub status: Status,
    /// The servers that the client uses, connected or not.
    pub nodes: Vec<NodeState>,
}

/// Whether one server of a store can currently be reached.
///
/// ```
/// # let client = leasehold::Client::memory();
/// for node in client.state().nodes {
///     println!("{node}"); // such as: 127.0.0.1:6379 is disconnected (for 3.2s): Connection refused
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeState {
    /// Its address, without credentials.
    pub address: String,
    /// The worst status of the connections to it.
    pub status: Status,
    /// Why it is not connected, as far as known, as text without credentials.
    pub reason: Option<String>,
}

/// Whether a server can currently be reached.
///
/// ```
/// # use leasehold::Status;
/// # let client = leasehold::Client::memory();
/// let ready = match client.state().status {
///     Status::Connected => true,
///     Status::Silent { since } => since.elapsed().as_secs() < 5,
///     _ => false,
/// };
/// assert!(ready);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// It is connected, and answers.
    Connected,
    /// It is connected, but has not answered for at least the reply timeout.
    Silent {
        /// Since when.
        since: Instant,
    },
    /// It is not connected. The client tries to reconnect.
    Disconnected {
        /// Since when.
        since: Instant,
    },
    /// The client was shut down.
    Closed,
}

impl Status {
    /// Whether requests can be expected to succeed.
    #[must_use]
    pub const fn is_connected(self) -> bool {
        matches!(self, Self::Connected)
    }

    /// A stable name, for metrics; without since when.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Silent { .. } => "silent",
            Self::Disconnected { .. } => "disconnected",
            Self::Closed => "closed",
        }
    }

    /// The worse one of two.
    pub(crate) const fn or_worse(self, other: Self) -> Self {
        if other.rank() > self.rank() { other } else { self }
    }

    /// The greater, the worse.
    pub(crate) const fn rank(self) -> u8 {
        match self {
            Self::Connected => 0,
            Self::Silent { .. } => 1,
            Self::Disconnected { .. } => 2,
            Self::Closed => 3,
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connected => f.write_str("connected"),
            Self::Silent { since } => write!(f, "silent (for {:.1?})", since.elapsed()),
            Self::Disconnected { since } => write!(f, "disconnected (for {:.1?})", since.elapsed()),
            Self::Closed => f.write_str("closed"),
        }
    }
}

impl StoreState {
    /// The state of a store that consists of these nodes. One without nodes is connected.
    #[must_use]
    pub fn of(nodes: Vec<NodeState>) -> Self {
        let status = nodes.iter().fold(Status::Connected, |worst, node| worst.or_worse(node.status));
        Self { status, nodes }
    }
}

impl NodeState {
    /// The state of the node at this address.
    #[must_use]
    pub fn new(address: impl Into<String>, status: Status) -> Self {
        Self { address: address.into(), status, reason: None }
    }

    /// The same, for this reason.
    #[must_use]
    pub fn because(mut self, reason: Option<String>) -> Self {
        self.reason = reason;
        self
    }
}

impl fmt::Display for NodeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}", self.address, self.status)?;
        self.reason.iter().try_for_each(|reason| write!(f, ": {reason}"))
    }
}

/// A problem or a risky setting found on a store's server.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::memory();
/// for finding in client.check().await? {
///     println!("{:?}: {finding}", finding.severity);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How serious it is.
    pub severity: Severity,
    /// What it is, and what to do about it.
    pub text: String,
}

/// How serious a [`Finding`] is.
///
/// ```
/// # use leasehold::Severity;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::memory();
/// let problems = client.check().await?.into_iter().filter(|found| found.severity >= Severity::Warning);
/// assert_eq!(problems.count(), 0);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// Limits what the store guarantees after a restart or a failover.
    Info,
    /// Leases may be lost even though all clients behave correctly.
    Warning,
    /// The store cannot be used: connecting fails.
    Refused,
}

impl Finding {
    /// A finding.
    #[must_use]
    pub fn new(severity: Severity, text: impl Into<String>) -> Self {
        Self { severity, text: text.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
