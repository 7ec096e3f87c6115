//! Waiting until replicas have a grant: WAIT.
//!
//! A server answers WAIT when replicas have everything that it had executed by the time of the connection's last write.
//! So a write and a WAIT on a separate connection cover all grants that were answered before, on any connection. Grants
//! that are answered while a WAIT is in flight share the next one; sent on the connection of the commands, it would
//! hold them up.
//!
//! The write renews the expiry of a fence, which every grant has just written. (Before Redis 8, any command would do.)

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared, join};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;

use super::connection::Connection;
use super::connections::Commands;
use super::keys;
use super::link::CallError;
use super::protocol::FENCE_MS;
use crate::backend::{BackendError, Resource};
use crate::runtime::spawn_on;

/// How many replicas have to acknowledge a grant, and how long that may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quota {
    pub(super) replicas: u32,
    pub(super) time_limit: Duration,
}

/// One WAIT, and how many replicas have acknowledged.
type Round = Shared<BoxFuture<'static, Result<u64, CallError>>>;

/// Makes replicas acknowledge grants.
#[derive(Debug)]
pub(super) struct Replicas {
    quota: Quota,
    /// The rounds of connections that carry nothing else.
    commands: Commands,
    /// By the address of the connection.
    rounds: Mutex<HashMap<usize, Rounds>>,
    /// The crate's own thread, on which they take place: a caller that is not polled holds up no other.
    own: Handle,
}

/// The rounds on one connection.
#[derive(Debug, Default)]
struct Rounds {
    /// Held by the round that is in flight.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// The round that has not begun.
    next: Option<Round>,
}

impl Rounds {
    /// The next round, if somebody waits for it.
    fn next(&mut self) -> Option<&Round> {
        self.next.take_if(|next| next.strong_count() == Some(1));
        self.next.as_ref()
    }

    /// Whether a round is in flight, or somebody waits for the next one.
    fn is_busy(&mut self) -> bool {
        self.next().is_some() || Arc::strong_count(&self.turn) > 1
    }
}

impl Replicas {
    pub(super) fn new(quota: Quota, commands: Commands, own: Handle) -> Arc<Self> {
        Arc::new(Self { quota, commands, rounds: Mutex::default(), own })
    }

    /// Waits until enough replicas have everything that has been granted so far.
    pub(super) async fn acknowledge(self: &Arc<Self>, resource: &Resource) -> Result<(), BackendError> {
        let Quota { replicas, time_limit } = self.quota;
        let transport = self.commands.of(resource);
        let mut fence = String::new();
        keys::write_fence(&mut fence, resource.prefix(), transport.slot());
        let acknowledged = self.next_round(transport.connection(), fence).await?;
        if acknowledged >= u64::from(replicas) {
            return Ok(());
        }
        let reason = format!(
            "{acknowledged} of {replicas} replicas acknowledged the grant within {time_limit:?}, so the lease was released"
        );
        Err(BackendError::Refused { source: reason.into() })
    }

    fn next_round(self: &Arc<Self>, connection: Arc<Connection>, fence: String) -> Round {
        let key = Arc::as_ptr(&connection) as usize;
        let mut all = self.rounds.lock();
        if !all.contains_key(&key) {
            all.retain(|_, rounds| rounds.is_busy());
        }
        let rounds = all.entry(key).or_default();
        if let Some(next) = rounds.next() {
            return next.clone();
        }
        // `Weak`, because the round is stored in `self`. Callers that wait for it keep `self` alive.
        let (replicas, turn) = (Arc::downgrade(self), Arc::clone(&rounds.turn));
        let round = AbortOnDropHandle::new(spawn_on(&self.own, async move {
            let _turn = turn.lock_owned().await;
            let Some(replicas) = replicas.upgrade() else {
                return Err(CallError::NotSent("the client is gone".to_owned()));
            };
            if let Some(rounds) = replicas.rounds.lock().get_mut(&key) {
                rounds.next = None;
            }
            replicas.wait(&connection, &fence).await
        }));
        let round = round.map(|ended| ended.unwrap_or_else(|gone| Err(CallError::Lost(gone.to_string()))));
        rounds.next.insert(round.boxed().shared()).clone()
    }

    async fn wait(&self, connection: &Connection, fence: &str) -> Result<u64, CallError> {
        let (number, millis) =
            (self.quota.replicas.to_string(), self.quota.time_limit.as_millis().to_string());
        let (write, wait) = (["PEXPIRE", fence, FENCE_MS], ["WAIT", &number, &millis]);
        let (written, acknowledged) = join(connection.command(&write), connection.command(&wait)).await;
        if written?.as_i64() != Some(1) {
            return Err(CallError::Lost("the fence of a grant no longer exists".to_owned()));
        }
        let acknowledged = acknowledged?.as_u64();
        acknowledged.ok_or_else(|| CallError::Lost("WAIT did not return a number".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[test]
    fn a_round_that_nobody_waits_for_is_forgotten() {
        let turn = Arc::new(tokio::sync::Mutex::new(()));
        let in_flight = Arc::clone(&turn).try_lock_owned();
        // It waits for the round in flight.
        let waiting = Arc::clone(&turn);
        let next = async move {
            let _turn = waiting.lock_owned().await;
            pending().await
        };
        let next = next.boxed().shared();
        let mut rounds = Rounds { turn, next: Some(next.clone()) };
        assert!(next.clone().now_or_never().is_none());
        assert!(rounds.is_busy());
        drop(next);
        assert!(rounds.is_busy(), "a round is in flight");
        assert!(rounds.next().is_none());
        drop(in_flight);
        assert!(!rounds.is_busy());
    }
}
