//! Scripts sent on a connection, and their errors.
//!
//! Properties of fred, and how they are dealt with here:
//!
//! * It repeats a command whose reply was lost: switched off, so that an unknown outcome is reported as such. The scripts are
//!   idempotent per lease id, and the caller decides whether to repeat a call.
//! * Dropping a future does not withdraw its command: every command also has a timeout within fred.
//! * It does not notice a server that hangs while commands are still being written: if nothing is answered for two timeouts, the
//!   connection is replaced.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fred::error::{Error as FredError, ErrorKind};
use fred::interfaces::{ClientLike, LuaInterface};
use fred::types::Value;
use futures::future::BoxFuture;
use tokio::time::{Instant, timeout};

use super::connection::Connection;
use super::operation::KeysAndArgs;
use super::script::Script;
use crate::backend::BackendError;

/// After how many reply timeouts without any answer the connection is replaced.
const SILENT_TIMEOUTS: u32 = 2;

impl Connection {
    /// Runs a script once, until it is answered or fred's timeout has passed. It is sent with its text if the server does not know
    /// it, after a restart or SCRIPT FLUSH.
    pub(super) async fn run(
        self: &Arc<Self>,
        script: &'static Script,
        keys_and_args: impl Fn() -> KeysAndArgs,
    ) -> Result<Value, FredError> {
        let answer = self.evalsha(script, keys_and_args()).await;
        if is_unknown_script(&answer) { self.eval(script, keys_and_args()).await } else { answer }
    }

    /// Runs a script that the server should know.
    pub(super) fn evalsha(
        self: &Arc<Self>,
        script: &'static Script,
        (keys, args): KeysAndArgs,
    ) -> BoxFuture<'_, Result<Value, FredError>> {
        self.noted(move || self.client.evalsha(script.hash().clone(), keys, args))
    }

    /// Runs a script, and sends its text.
    pub(super) fn eval(
        self: &Arc<Self>,
        script: &'static Script,
        (keys, args): KeysAndArgs,
    ) -> BoxFuture<'_, Result<Value, FredError>> {
        self.noted(move || self.client.eval(script.source().clone(), keys, args))
    }

    fn noted<'a, F: Future<Output = Result<Value, FredError>> + Send + 'a>(
        self: &'a Arc<Self>,
        command: impl FnOnce() -> F + Send + 'a,
    ) -> BoxFuture<'a, Result<Value, FredError>> {
        in_place(move || async move {
            let sent = Instant::now();
            let answer = command().await;
            self.note(&answer, sent);
            answer
        })
    }

    /// Looks at which connection is the present one, and records since when nothing has been answered; if that is too long ago, the
    /// connection is replaced. The number of timeouts does not matter: the calls may have been sent together, or have had short
    /// timeouts.
    pub(super) fn note(self: &Arc<Self>, answer: &Result<Value, FredError>, sent: Instant) {
        let mut silent_since = self.silent_since.lock();
        if !matches!(answer, Err(error) if *error.kind() == ErrorKind::Timeout) {
            *silent_since = None;
            drop(silent_since);
            self.present();
            return;
        }
        let since = *silent_since.get_or_insert(sent);
        let time_limit = self.timeouts.reply * SILENT_TIMEOUTS;
        if since.elapsed() < time_limit || self.is_reconnecting.swap(true, Ordering::AcqRel) {
            return;
        }
        *silent_since = None;
        tracing::warn!(silent = ?since.elapsed(), "the server does not answer, reconnecting");
        let connection = Arc::clone(self);
        tokio::spawn(async move {
            match timeout(time_limit, connection.client.force_reconnection()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "not reconnected"),
                Err(_) => tracing::debug!("not reconnected yet"),
            }
            connection.is_reconnecting.store(false, Ordering::Release);
        });
    }
}

/// Creates a future directly on the heap. Those of fred take 5 KB: `Box::pin` would create them on the stack and copy them, which
/// would evict what the task needs from the cache.
pub(super) fn in_place<F: Future>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    let place = Box::new_uninit();
    Box::into_pin(Box::write(place, make()))
}

/// Whether the server does not know a script, or not any more.
pub(super) fn is_unknown_script(answer: &Result<Value, FredError>) -> bool {
    matches!(answer, Err(error) if error.details().starts_with("NOSCRIPT"))
}

/// Classifies fred's errors by what they say about the command: not sent, unknown, or a definite answer.
pub(super) fn sort(error: FredError) -> BackendError {
    let source = |error: FredError| error.into();
    let text = error.details();
    if text.contains("WRONGTYPE") {
        return BackendError::WrongType { source: source(error) };
    }
    if NOT_SENT.iter().any(|words| text.contains(words)) || *error.kind() == ErrorKind::Backpressure {
        return BackendError::NotSent { source: source(error) };
    }
    match error.kind() {
        ErrorKind::Timeout | ErrorKind::IO | ErrorKind::Canceled => {
            BackendError::Unanswered { source: source(error) }
        }
        _ => BackendError::Refused { source: source(error) },
    }
}

/// Texts of errors after which the command has certainly not been executed: fred's own, then answers of a server that is starting,
/// stopping, or busy with a script that runs for too long.
const NOT_SENT: [&str; 10] = [
    "Failed to send command to router",
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
