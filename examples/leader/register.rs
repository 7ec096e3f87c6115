//! What leaders write to. It compares tokens, and keeps a record of who led.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use leasehold::{Fence, FencingToken};
use tokio::sync::watch;

use crate::fenced::refused;
use crate::loopback::Answer;

#[derive(Debug, Default)]
pub(crate) struct Register {
    state: Mutex<State>,
    leads: watch::Sender<Option<u32>>,
}

#[derive(Debug, Default)]
struct State {
    fence: Fence,
    reigns: Vec<Reign>,
    killed: Option<Instant>,
}

/// What one candidate wrote under one token.
#[derive(Clone, Debug)]
pub(crate) struct Reign {
    pub(crate) by: u32,
    pub(crate) token: FencingToken,
    pub(crate) writes: u32,
    /// From when the leader before it was killed until the first write.
    pub(crate) after: Option<Duration>,
}

impl Register {
    /// Who has written last under a token of its own.
    pub(crate) fn leads(&self) -> watch::Receiver<Option<u32>> {
        self.leads.subscribe()
    }

    /// The leader is about to be killed.
    pub(crate) fn killed(&self, now: Instant) {
        self.state().killed = Some(now);
    }

    pub(crate) fn reigns(&self) -> Vec<Reign> {
        self.state().reigns.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Answer for Register {
    /// To `<candidate> <token>`.
    async fn answer(&self, request: &str) -> String {
        let read =
            request.split_once(' ').and_then(|(by, token)| Some((by.parse().ok()?, token.parse().ok()?)));
        let Some((by, token)) = read else { return format!("what is {request}?") };
        let token = FencingToken::new(token);
        let mut state = self.state();
        if let Err(stale) = state.fence.admit(token) {
            return refused(stale);
        }
        // Two candidates that write under one token appear one after the other.
        match state.reigns.last_mut().filter(|reign| (reign.by, reign.token) == (by, token)) {
            Some(reign) => reign.writes += 1,
            None => {
                let after = state.killed.take().map(|killed| killed.elapsed());
                state.reigns.push(Reign { by, token, writes: 1, after });
                self.leads.send_replace(Some(by));
            }
        }
        "ok".to_owned()
    }
}
