//! What an operator reads: every step in the life of a lease is traced, with its name and its token.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold::{Client, Error, FencingToken, MutexOptions};
use tracing::Level;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::fmt::format::FmtSpan;

const NAME: &str = "machine:42";
const SECOND: Duration = Duration::from_secs(1);

/// The lines traced so far.
#[derive(Clone, Debug, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    /// Collects what this thread traces, down to `level`, for as long as the returned guard lives.
    fn collect(level: Level) -> (Self, DefaultGuard) {
        let lines = Self::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_span_events(FmtSpan::NEW | FmtSpan::CLOSE)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        (lines, tracing::subscriber::set_default(subscriber))
    }

    fn text(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Some line has all of `parts`.
    #[track_caller]
    fn assert_line(&self, parts: &[&str]) {
        let text = self.text();
        let found = text.lines().any(|line| parts.iter().all(|part| line.contains(part)));
        assert!(found, "no line has all of {parts:?}:\n{text}");
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn field(token: FencingToken) -> String {
    format!("token={token}")
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_traced_from_request_to_release() -> Result<(), Error> {
    let (lines, _collecting) = Lines::collect(Level::DEBUG);
    let mutex = Client::memory().mutex_with(NAME, MutexOptions::new().lease(SECOND))?;
    let guard = mutex.lock().await?;
    let token = field(guard.token());
    lines.assert_line(&["acquire{name=machine:42", "new"]);
    lines.assert_line(&["granted", NAME, &token]);
    lines.assert_line(&["acquire{name=machine:42", &token, "close"]);
    tokio::time::sleep(SECOND).await;
    lines.assert_line(&["renewed", NAME, &token]);
    guard.release().await?;
    lines.assert_line(&["released", NAME, &token]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_request_that_does_not_get_the_lock_is_traced() -> Result<(), Error> {
    let (lines, _collecting) = Lines::collect(Level::DEBUG);
    let mutex = Client::memory().mutex(NAME)?;
    let _guard = mutex.lock().await?;
    assert!(mutex.try_lock().await?.is_none());
    lines.assert_line(&["busy", NAME]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_a_warning_with_its_reason() -> Result<(), Error> {
    let (lines, _collecting) = Lines::collect(Level::WARN);
    let mutex = Client::memory().mutex(NAME)?;
    let guard = mutex.lock().await?;
    assert_eq!(lines.text(), "", "nothing to warn of yet");
    mutex.force_release().await?;
    guard.lost().await;
    lines.assert_line(&["WARN", "lost", NAME, &field(guard.token()), "released by force"]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_dropped_guard_is_traced_until_its_release() -> Result<(), Error> {
    let (lines, _collecting) = Lines::collect(Level::DEBUG);
    let mutex = Client::memory().mutex(NAME)?;
    let guard = mutex.lock().await?;
    let token = field(guard.token());
    drop(guard);
    lines.assert_line(&["dropped", NAME, &token]);
    assert!(mutex.try_lock().await?.is_some());
    lines.assert_line(&["released in the background", NAME]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn the_callers_own_span_is_left_alone() -> Result<(), Error> {
    let (lines, _collecting) = Lines::collect(Level::INFO);
    let mutex = Client::memory().mutex(NAME)?;
    // At this level the crate's own span is off, and the caller's is the current one.
    let callers = tracing::info_span!("callers", token = tracing::field::Empty);
    let lock = tracing::Instrument::instrument(mutex.lock(), callers.clone());
    let guard = lock.await?;
    callers.in_scope(|| tracing::info!("locked"));
    lines.assert_line(&["locked"]);
    assert!(!lines.text().contains(&field(guard.token())), "{}", lines.text());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn no_trace_tells_a_lease_id() -> Result<(), Error> {
    let (lines, _collecting) = Lines::collect(Level::TRACE);
    let client = Client::memory();
    let mutex = client.mutex_with(NAME, MutexOptions::new().lease(SECOND))?;
    let guard = mutex.lock().await?;
    let id = mutex.inspect().await?.holder().cloned().expect("a holder").id;
    tokio::time::sleep(SECOND).await;
    drop(guard);
    client.shutdown().await?;
    let text = lines.text();
    assert!(text.contains("released in the background"), "{text}");
    assert!(!text.contains(&id), "whoever knows the id can end the lease:\n{text}");
    Ok(())
}
