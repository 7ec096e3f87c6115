//! The one narrow path to the server: a script, its keys and arguments in, a sorted answer out.
//!
//! What fred does, and what is done about it here:
//!
//! * It repeats a command whose reply was lost: switched off, so that an unknown outcome is seen as one. The
//!   scripts are idempotent per lease id, and whoever called decides whether to send again.
//! * A dropped future does not take its command back: every command has a timeout of fred's own as well.
//! * It does not notice a server that hangs while commands are still being written: after a few timeouts in a
//!   row the connection is made anew.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use fred::clients::Client;
use fred::error::{Error as FredError, ErrorKind};
use fred::interfaces::{ClientLike, LuaInterface};
use fred::types::{Key, Value};
use tokio::time::timeout;

use super::connection::Timeouts;
use super::script::Script;
use crate::backend::BackendError;

/// Answers that did not come, in a row, before the connection is given up.
const TIMEOUTS_BEFORE_RECONNECT: u32 = 3;

/// The connection that carries all commands.
#[derive(Debug)]
pub(super) struct Transport {
    client: Client,
    reply_timeout: Duration,
    timeouts_in_a_row: AtomicU32,
    reconnecting: Arc<AtomicBool>,
}

impl Transport {
    pub(super) fn new(client: Client, timeouts: Timeouts) -> Self {
        Self {
            client,
            reply_timeout: timeouts.reply,
            timeouts_in_a_row: AtomicU32::new(0),
            reconnecting: Arc::default(),
        }
    }

    pub(super) const fn reply_timeout(&self) -> Duration {
        self.reply_timeout
    }

    pub(super) const fn client(&self) -> &Client {
        &self.client
    }

    /// Runs a script once, and waits for its answer for at most `patience`.
    pub(super) async fn call(
        &self,
        script: &Script,
        keys: &[Key],
        args: &[Value],
        patience: Duration,
    ) -> Result<Value, BackendError> {
        let run = self.run(script, keys, args);
        let answer = if patience >= self.reply_timeout {
            // fred's own timeout comes first. A second timer would wake the runtime's driver once more per call.
            run.await
        } else {
            let late = |_| FredError::new(ErrorKind::Timeout, format!("no answer within {patience:?}"));
            timeout(patience, run).await.unwrap_or_else(|elapsed| Err(late(elapsed)))
        };
        self.note(&answer);
        answer.map_err(sort)
    }

    /// EVALSHA, and EVAL if the server does not know the script: after a restart or SCRIPT FLUSH.
    ///
    /// fred's futures have 5 KB; boxed here, they are not copied through every future around this one.
    async fn run(&self, script: &Script, keys: &[Key], args: &[Value]) -> Result<Value, FredError> {
        let cached = Box::pin(self.client.evalsha(script.hash().clone(), keys.to_vec(), args.to_vec()));
        match cached.await {
            Err(error) if error.details().starts_with("NOSCRIPT") => {
                Box::pin(self.client.eval(script.source().clone(), keys.to_vec(), args.to_vec())).await
            }
            answer => answer,
        }
    }

    /// Counts timeouts in a row; too many of them, and the connection is made anew.
    fn note(&self, answer: &Result<Value, FredError>) {
        if !matches!(answer, Err(error) if *error.kind() == ErrorKind::Timeout) {
            self.timeouts_in_a_row.store(0, Ordering::Relaxed);
            return;
        }
        let timeouts = self.timeouts_in_a_row.fetch_add(1, Ordering::Relaxed) + 1;
        if timeouts < TIMEOUTS_BEFORE_RECONNECT || self.reconnecting.swap(true, Ordering::AcqRel) {
            return;
        }
        tracing::warn!(timeouts, "the server does not answer, reconnecting");
        self.timeouts_in_a_row.store(0, Ordering::Relaxed);
        let (client, reconnecting) = (self.client.clone(), Arc::clone(&self.reconnecting));
        tokio::spawn(async move {
            if let Err(error) = client.force_reconnection().await {
                tracing::debug!(%error, "not reconnected");
            }
            reconnecting.store(false, Ordering::Release);
        });
    }
}

/// Sorts fred's errors by what they say about the command: not sent, unknown, or a definite answer.
pub(super) fn sort(error: FredError) -> BackendError {
    let source = |error: FredError| error.into();
    let text = error.details();
    if text.contains("WRONGTYPE") {
        return BackendError::WrongType { source: source(error) };
    }
    if NOT_SENT.iter().any(|start| text.starts_with(start)) || *error.kind() == ErrorKind::Backpressure {
        return BackendError::NotSent { source: source(error) };
    }
    match error.kind() {
        ErrorKind::Timeout | ErrorKind::IO | ErrorKind::Canceled => {
            BackendError::Unanswered { source: source(error) }
        }
        _ => BackendError::Refused { source: source(error) },
    }
}

/// How errors start after which the command has certainly not been carried out: fred's own words, then
/// answers of a server that is on its way up, down, or behind a script that runs for too long.
const NOT_SENT: [&str; 9] = [
    "Failed to route command",
    "Too many failed write attempts",
    "Too many redirections",
    "LOADING",
    "MASTERDOWN",
    "READONLY",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "BUSY ",
];
