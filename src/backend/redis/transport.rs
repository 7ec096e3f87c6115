//! Calling scripts: a script, its keys and arguments in, a classified answer out. Operations that are called while others are in
//! flight are sent together (`batch`); everything is sent through `wire`.

use std::sync::Arc;
use std::time::Duration;

use fred::clients::Client;
use fred::error::{Error as FredError, ErrorKind};
use fred::types::Value;
use tokio::time::{Instant, sleep, timeout};

use super::batch::Batches;
use super::connection::Timeouts;
use super::notifications::Notifications;
use super::operation::Operation;
use super::script::Call;
use super::succession::Succession;
use super::wire::{Wire, sort};
use crate::backend::BackendError;

/// The pause before a request that was not answered is sent again.
pub(super) const RETRY: Duration = Duration::from_millis(25);

/// Calls scripts: at once, or together with others.
#[derive(Debug)]
pub(super) struct Transport {
    succession: Arc<Succession>,
    wire: Arc<Wire>,
    batches: Arc<Batches>,
}

impl Transport {
    pub(super) fn new(client: Client, timeouts: Timeouts, notifications: Arc<Notifications>) -> Self {
        let wire = Arc::new(Wire::new(client, timeouts.reply));
        Self { succession: Arc::default(), batches: Batches::new(Arc::clone(&wire), notifications), wire }
    }

    pub(super) fn client(&self) -> &Client {
        self.wire.client()
    }

    pub(super) const fn succession(&self) -> &Arc<Succession> {
        &self.succession
    }

    /// Whether nothing that was sent on an earlier connection can be executed any more.
    pub(super) fn earlier_are_closed(&self) -> bool {
        self.succession.earlier_are_closed(self.client())
    }

    /// Waits until nothing that was sent on an earlier connection can be executed any more.
    pub(super) async fn outlive_earlier_connections(&self) -> Result<(), BackendError> {
        let closed = timeout(self.wire.reply_timeout(), self.succession.earlier_closed(self.client()));
        closed.await.map_err(|late| BackendError::Unanswered { source: late.into() })
    }

    /// Runs a script once, perhaps together with others, and waits for its answer for at most `time_limit`; if that is not shorter
    /// than the reply timeout, until fred's timeouts have passed, those of the calls before it and its own.
    pub(super) async fn call(
        &self,
        operation: Operation,
        time_limit: Duration,
    ) -> Result<Value, BackendError> {
        self.call_within(self.batches.run(operation), time_limit).await
    }

    /// Runs a script that is never part of a batch.
    pub(super) async fn call_apart(&self, call: Call, time_limit: Duration) -> Result<Value, BackendError> {
        self.call_within(self.batches.run_apart(|| call.clone()), time_limit).await
    }

    async fn call_within(
        &self,
        call: impl Future<Output = Result<Value, FredError>>,
        time_limit: Duration,
    ) -> Result<Value, BackendError> {
        if time_limit >= self.wire.reply_timeout() {
            // fred's timeout comes first anyway, and a second timer would wake the runtime's driver once more per call.
            return call.await.map_err(sort);
        }
        let sent = Instant::now();
        let late = || FredError::new(ErrorKind::Timeout, format!("no answer within {time_limit:?}"));
        let answer = timeout(time_limit, Box::pin(call)).await;
        let answer = answer.unwrap_or_else(|_| Err(late()));
        self.wire.note(&answer, sent);
        answer.map_err(sort)
    }

    /// How long one command for a lease with the TTL `term` may take.
    pub(super) fn answer_timeout(&self, term: Duration) -> Duration {
        self.wire.reply_timeout().min(term / 3)
    }

    /// Calls a script, repeatedly while it fails with an error that `again` accepts, for up to two reply timeouts. Also returns
    /// whether an earlier attempt may have been executed.
    pub(super) async fn insist(
        &self,
        operation: impl Fn() -> Operation,
        again: fn(&BackendError) -> bool,
    ) -> Result<(Value, bool), BackendError> {
        let time_limit = self.wire.reply_timeout();
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
