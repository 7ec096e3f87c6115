//! The etcd leases of a client: which there are, until when they certainly last, and which can be used again.
//!
//! Every hold and every place has an etcd lease of its own, so that one that nobody renews ends by itself. Granting one
//! costs the server a commit, and keeping it alive does not: so those whose key has been deleted are kept for the next
//! ones of the same TTL. One is given back only after a transaction is known to have deleted its key. So a lease that
//! is used again never keeps an old key alive.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use parking_lot::Mutex;
use uuid::Uuid;

use super::connection::Connection;
use crate::backend::LeaseId;
use crate::backend::records::Failure;

/// An etcd lease, and its TTL in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct EtcdLease {
    pub(super) id: i64,
    pub(super) ttl: u32,
}

/// One that is to be used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) lease: EtcdLease,
    /// Whether it has to be kept alive first: it may have been granted long ago.
    pub(super) is_old: bool,
}

#[derive(Debug, Default)]
pub(super) struct Leases {
    /// This client, once it is known.
    client: OnceLock<Uuid>,
    state: Mutex<State>,
    /// Set when the warning about longer leases has been logged.
    has_warned_ttl: OnceLock<()>,
}

#[derive(Debug, Default)]
struct State {
    /// Until when they last at least. Those that others have granted are not here.
    alive: HashMap<i64, Instant>,
    /// Those that no key is attached to, by TTL.
    unused: HashMap<u32, Vec<i64>>,
    /// How many there may be before those are forgotten that have ended.
    many: usize,
}

impl Leases {
    /// The client whose leases these are, which never changes.
    pub(super) fn set_client(&self, client: Uuid) {
        self.client.get_or_init(|| client);
    }

    /// Whether this is a lease of this client.
    pub(super) fn is_own(&self, lease: LeaseId) -> bool {
        self.client.get() == Some(&lease.client())
    }

    /// Leases of these TTLs, or those that have been used for the same before.
    pub(super) async fn take(
        &self,
        connection: &Arc<Connection>,
        wanted: impl Iterator<Item = (Option<EtcdLease>, u32)>,
    ) -> Result<Vec<Taken>, Failure> {
        let each = wanted.map(|(known, ttl)| async move {
            if let Some(lease) = known.filter(|known| known.ttl == ttl) {
                return Ok(Taken { lease, is_old: true });
            }
            if let Some(id) = self.state.lock().take_unused(ttl) {
                return Ok(Taken { lease: EtcdLease { id, ttl }, is_old: true });
            }
            let lease = self.grant(connection, ttl).await?;
            Ok(Taken { lease, is_old: false })
        });
        try_join_all(each).await
    }

    pub(super) async fn grant(&self, connection: &Arc<Connection>, ttl: u32) -> Result<EtcdLease, Failure> {
        let sent = Instant::now();
        let granted = connection.grant(ttl).await?;
        if granted.ttl > i64::from(ttl) && self.has_warned_ttl.set(()).is_ok() {
            tracing::warn!(
                target: "leasehold::store", requested = ttl,
                granted = granted.ttl,
                "etcd grants longer leases because of its election timeout: a client that dies blocks others for that many seconds"
            );
        }
        let id = granted.id;
        self.state.lock().note(EtcdLease { id, ttl }, sent);
        Ok(EtcdLease { id, ttl })
    }

    /// Keeps leases alive. Returns for each of them whether it lasts for a full TTL from now.
    pub(super) async fn keep_alive(
        &self,
        connection: &Arc<Connection>,
        leases: &[EtcdLease],
    ) -> Result<Vec<bool>, Failure> {
        let ids: Vec<_> = leases.iter().map(|lease| lease.id).collect();
        let sent = Instant::now();
        let alive = connection.keep_all_alive(&ids).await?;
        let mut state = self.state.lock();
        for (lease, is_alive) in leases.iter().zip(&alive) {
            if *is_alive {
                state.note(*lease, sent);
            } else {
                state.alive.remove(&lease.id);
            }
        }
        Ok(alive)
    }

    /// How long one of this client's lasts at least; `None` for those of others.
    pub(super) fn remaining(&self, id: i64) -> Option<Duration> {
        self.state.lock().alive.get(&id).map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// No key is attached to it any more, and it may be used again.
    pub(super) fn give_back(&self, lease: EtcdLease) {
        let mut state = self.state.lock();
        if state.alive.contains_key(&lease.id) {
            state.unused.entry(lease.ttl).or_default().push(lease.id);
        }
    }

    /// One of these has ended early, and unused ones may have, too: the store may have lost its data.
    pub(super) fn forget_all(&self, ended: &[Taken]) {
        let mut state = self.state.lock();
        let unused = std::mem::take(&mut state.unused).into_values().flatten();
        for id in unused.chain(ended.iter().map(|taken| taken.lease.id)) {
            state.alive.remove(&id);
        }
    }
}

impl State {
    /// The one that was used last, if it will not end while it is being used again.
    fn take_unused(&mut self, ttl: u32) -> Option<i64> {
        let unused = self.unused.get_mut(&ttl)?;
        let id = unused.pop();
        let lasts = |id: &i64| {
            let until = self.alive.get(id);
            until.is_some_and(|until| *until > Instant::now() + Duration::from_secs(ttl.into()) / 2)
        };
        let id = id.filter(lasts);
        if id.is_none() {
            // All others were used before it.
            let old = self.unused.remove(&ttl).unwrap_or_default();
            for id in old {
                self.alive.remove(&id);
            }
        }
        id
    }

    fn note(&mut self, lease: EtcdLease, since: Instant) {
        let until = since + Duration::from_secs(lease.ttl.into());
        let known = self.alive.entry(lease.id).or_insert(until);
        *known = until.max(*known);
        if self.alive.len() > self.many.max(1024) {
            let now = Instant::now();
            self.alive.retain(|_, until| *until > now);
            self.many = self.alive.len() * 2;
        }
    }
}
