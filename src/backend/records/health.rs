//! Whether the server can be reached, and what is logged about it.

use std::fmt;
use std::time::Instant;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::backend::{NodeState, Status, StoreState};

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backend) enum Purpose {
    Changes,
    Notifications,
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Changes => "changes",
            Self::Notifications => "notifications",
        })
    }
}

#[derive(Debug)]
pub(in crate::backend) struct Health {
    address: String,
    links: Mutex<Links>,
    state: watch::Sender<StoreState>,
}

#[derive(Debug)]
struct Links {
    changes: Link,
    notifications: Link,
    is_closed: bool,
}

#[derive(Clone, Debug)]
enum Link {
    /// It has not been needed yet.
    Unused(Instant),
    Up,
    Down {
        since: Instant,
        reason: String,
    },
}

impl Health {
    /// For a server that has not been connected to yet.
    pub(in crate::backend) fn new(address: String) -> Self {
        let unused = || Link::Unused(Instant::now());
        let links = Links { changes: unused(), notifications: unused(), is_closed: false };
        let state = watch::Sender::new(StoreState::of(vec![links.node(&address)]));
        Self { address, links: Mutex::new(links), state }
    }

    pub(in crate::backend) fn address(&self) -> &str {
        &self.address
    }

    pub(in crate::backend) fn state(&self) -> StoreState {
        self.state.borrow().clone()
    }

    /// The states from now on. If several follow each other quickly, only the last is reported.
    pub(in crate::backend) fn changes(&self) -> BoxStream<'static, StoreState> {
        let changes = stream::unfold(self.state.subscribe(), |mut changes| async {
            changes.changed().await.ok()?;
            let state = changes.borrow_and_update().clone();
            Some((state, changes))
        });
        changes.chain(stream::pending()).boxed()
    }

    /// The server has answered.
    pub(in crate::backend) fn succeeded(&self, purpose: Purpose) {
        let mut links = self.links.lock();
        let before = links.down().map(|(since, _)| since);
        *links.of(purpose) = Link::Up;
        if purpose == Purpose::Notifications && matches!(links.changes, Link::Down { .. }) {
            // It accepts connections: a client that has nothing to change need not prove it.
            links.changes = Link::Up;
        }
        if let (Some(since), None) = (before, links.down()) {
            tracing::info!(target: "leasehold::store", store = %self.address, down_for = ?since.elapsed(), "the store is connected again");
        }
        self.publish(&links);
    }

    /// A call could not be done, or a connection could not be opened again. One that ends is replaced first: if that
    /// succeeds, nobody needs to know. If it was down before, `since` stays the same. After the client was closed, it
    /// no longer matters.
    pub(in crate::backend) fn failed(&self, purpose: Purpose, reason: &str) {
        let mut links = self.links.lock();
        if links.is_closed {
            return;
        }
        if links.down().is_none() {
            tracing::warn!(target: "leasehold::store", store = %self.address, %purpose, reason, "the store is disconnected");
        }
        let link = links.of(purpose);
        let since = match link {
            Link::Down { since, .. } => *since,
            Link::Unused(_) | Link::Up => Instant::now(),
        };
        *link = Link::Down { since, reason: reason.to_owned() };
        self.publish(&links);
    }

    /// Returns when there is no connection for this purpose, although one is needed.
    pub(in crate::backend) async fn lacks(&self, purpose: Purpose) {
        let mut state = self.state.subscribe();
        while !matches!(self.links.lock().of(purpose), Link::Down { .. }) {
            if state.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    pub(in crate::backend) fn close(&self) {
        let mut links = self.links.lock();
        links.is_closed = true;
        self.publish(&links);
    }

    fn publish(&self, links: &Links) {
        let state = StoreState::of(vec![links.node(&self.address)]);
        self.state.send_if_modified(|known| {
            let is_new = *known != state;
            *known = state;
            is_new
        });
    }
}

impl Links {
    const fn of(&mut self, purpose: Purpose) -> &mut Link {
        match purpose {
            Purpose::Changes => &mut self.changes,
            Purpose::Notifications => &mut self.notifications,
        }
    }

    /// Since when one of them is down, and why.
    fn down(&self) -> Option<(Instant, &str)> {
        match (&self.changes, &self.notifications) {
            (Link::Down { since, reason }, _) | (_, Link::Down { since, reason }) => Some((*since, reason)),
            _ => None,
        }
    }

    /// A connection for notifications that has not been needed yet does not count.
    fn node(&self, address: &str) -> NodeState {
        let node = |status| NodeState::new(address, status);
        if self.is_closed {
            return node(Status::Closed);
        }
        match (self.down(), &self.changes) {
            (Some((since, reason)), _) => {
                node(Status::Disconnected { since }).because(Some(reason.to_owned()))
            }
            (None, Link::Unused(since)) => node(Status::Disconnected { since: *since }),
            (None, _) => node(Status::Connected),
        }
    }
}
