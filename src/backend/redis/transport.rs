//! Calling scripts: an operation in, a classified answer out. Operations that are called while others are in flight are sent
//! together (`batch`); everything is sent through the `connection`.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::batch::State;
use super::connection::Connection;
use super::link::CallError;
use super::notifications::Notifications;
use super::operation::Operation;
use super::value::Value;
use crate::backend::BackendError;
use crate::sync::Mutex;

/// The pause before a request that was not answered is sent again.
pub(super) const RETRY: Duration = Duration::from_millis(25);

/// Calls scripts on a connection: at once, or together with others.
#[derive(Debug)]
pub(super) struct Transport {
    pub(super) connection: Arc<Connection>,
    pub(super) notifications: Arc<Notifications>,

    // For `batch`.
    pub(super) state: Mutex<State>,
    /// Held from when operations are taken out of the queue until they have been passed to fred.
    pub(super) sending: Mutex<()>,
    /// Whether an answer was lost that may have contained grants.
    pub(super) unheard: AtomicBool,
}

impl Transport {
    pub(super) fn new(connection: Arc<Connection>, notifications: Arc<Notifications>) -> Arc<Self> {
        Arc::new(Self {
            connection,
            notifications,
            state: Mutex::default(),
            sending: Mutex::default(),
            unheard: AtomicBool::default(),
        })
    }

    /// Runs a script once, perhaps together with others, and waits for its answer for at most `time_limit`; if that is not shorter
    /// than the reply timeout, until fred's timeouts have passed, those of the calls before it and its own.
    pub(super) async fn call(
        self: &Arc<Self>,
        operation: Operation,
        time_limit: Duration,
    ) -> Result<Value, BackendError> {
        self.call_within(self.run(operation), time_limit).await
    }

    /// Waits for an answer, as long as `time_limit` and fred's timeout allow.
    pub(super) async fn call_within(
        &self,
        call: impl Future<Output = Result<Value, CallError>>,
        time_limit: Duration,
    ) -> Result<Value, BackendError> {
        if time_limit >= self.connection.timeouts.reply {
            // fred's timeout comes first anyway, and a second timer would wake the runtime's driver once more per call.
            return call.await.map_err(BackendError::from);
        }
        let sent = Instant::now();
        let late = || CallError::Timeout(format!("no answer within {time_limit:?}"));
        let answer = timeout(time_limit, Box::pin(call)).await;
        let answer = answer.unwrap_or_else(|_| Err(late()));
        self.connection.note(&answer, sent);
        answer.map_err(BackendError::from)
    }

    /// How long one command for a lease with the TTL `term` may take.
    pub(super) fn answer_timeout(&self, term: Duration) -> Duration {
        self.connection.timeouts.reply.min(term / 3)
    }

    /// Calls a script, repeatedly while it fails with an error that `again` accepts, for up to two reply timeouts. Also returns
    /// whether an earlier attempt may have been executed.
    pub(super) async fn insist(
        self: &Arc<Self>,
        operation: impl Fn() -> Operation,
        again: fn(&BackendError) -> bool,
    ) -> Result<(Value, bool), BackendError> {
        let time_limit = self.connection.timeouts.reply;
        let give_up = Instant::now() + time_limit * 2;
        let mut repeated = false;
        loop {
            match self.call(operation(), time_limit).await {
                Ok(answer) => return Ok((answer, repeated)),
                Err(error) if again(&error) && Instant::now() + RETRY < give_up => {
                    repeated |= matches!(error, BackendError::Unanswered { .. });
                    sleep(RETRY).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}
