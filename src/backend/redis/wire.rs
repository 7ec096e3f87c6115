//! The connection that carries all commands, and what becomes of them there.
//!
//! What fred does, and what is done about it here:
//!
//! * It repeats a command whose reply was lost: switched off, so that an unknown outcome is seen as one. The
//!   scripts are idempotent per lease id, and whoever called decides whether to send again.
//! * A dropped future does not take its command back: every command has a timeout of fred's own as well.
//! * It does not notice a server that hangs while commands are still being written: when nothing is answered
//!   for two timeouts the connection is made anew.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fred::clients::Client;
use fred::error::{Error as FredError, ErrorKind};
use fred::interfaces::{ClientLike, LuaInterface};
use fred::types::Value;
use futures::future::BoxFuture;
use tokio::time::{Instant, timeout};

use super::script::Call;
use crate::backend::BackendError;
use crate::sync::Mutex;

/// For how many reply timeouts nothing is answered before the connection is given up.
const SILENT_TIMEOUTS: u32 = 2;

/// What goes through it goes as it is.
#[derive(Debug)]
pub(super) struct Wire {
    client: Client,
    reply_timeout: Duration,
    silent_since: Mutex<Option<Instant>>,
    reconnecting: Arc<AtomicBool>,
}

impl Wire {
    pub(super) fn new(client: Client, reply_timeout: Duration) -> Self {
        Self { client, reply_timeout, silent_since: Mutex::default(), reconnecting: Arc::default() }
    }

    pub(super) const fn client(&self) -> &Client {
        &self.client
    }

    pub(super) const fn reply_timeout(&self) -> Duration {
        self.reply_timeout
    }

    /// Runs a script once, until it is answered or fred's timeout is over; with its text if the server does not know it: after a
    /// restart or SCRIPT FLUSH.
    pub(super) async fn run(&self, call: impl Fn() -> Call) -> Result<Value, FredError> {
        let answer = self.evalsha(call()).await;
        if is_unknown_script(&answer) { self.eval(call()).await } else { answer }
    }

    pub(super) fn evalsha(
        &self,
        Call { script, keys, args }: Call,
    ) -> BoxFuture<'_, Result<Value, FredError>> {
        in_place(move || async move {
            let sent = Instant::now();
            let answer = self.client.evalsha(script.hash().clone(), keys, args).await;
            self.note(&answer, sent);
            answer
        })
    }

    pub(super) fn eval(&self, Call { script, keys, args }: Call) -> BoxFuture<'_, Result<Value, FredError>> {
        in_place(move || async move {
            let sent = Instant::now();
            let answer = self.client.eval(script.source().clone(), keys, args).await;
            self.note(&answer, sent);
            answer
        })
    }

    /// Remembers since when nothing has been answered; if that is too long ago, the connection is made anew. How
    /// many calls time out says nothing: they may have been sent together, and be impatient.
    pub(super) fn note(&self, answer: &Result<Value, FredError>, sent: Instant) {
        let mut silent_since = self.silent_since.lock();
        if !matches!(answer, Err(error) if *error.kind() == ErrorKind::Timeout) {
            *silent_since = None;
            return;
        }
        let since = *silent_since.get_or_insert(sent);
        if since.elapsed() < self.reply_timeout * SILENT_TIMEOUTS
            || self.reconnecting.swap(true, Ordering::AcqRel)
        {
            return;
        }
        *silent_since = None;
        tracing::warn!(silent = ?since.elapsed(), "the server does not answer, reconnecting");
        let (client, reconnecting) = (self.client.clone(), Arc::clone(&self.reconnecting));
        let patience = self.reply_timeout * SILENT_TIMEOUTS;
        tokio::spawn(async move {
            match timeout(patience, client.force_reconnection()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "not reconnected"),
                Err(_) => tracing::debug!("not reconnected yet"),
            }
            reconnecting.store(false, Ordering::Release);
        });
    }
}

/// Makes a future where it stays. fred's have 5 KB: `Box::pin` would make them on the stack and copy them, since they must be
/// dropped there should the allocation fail, and what one task needs would be in no cache any more.
fn in_place<F: Future>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    let place = Box::new_uninit();
    Box::into_pin(Box::write(place, make()))
}

/// Whether the server has forgotten a script, or never knew it.
pub(super) fn is_unknown_script(answer: &Result<Value, FredError>) -> bool {
    matches!(answer, Err(error) if error.details().starts_with("NOSCRIPT"))
}

/// Sorts fred's errors by what they say about the command: not sent, unknown, or a definite answer.
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

/// What stands in errors after which the command has certainly not been carried out: fred's own words, then
/// answers of a server that is on its way up, down, or behind a script that runs for too long.
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
