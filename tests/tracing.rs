//! What an operator reads: every step in the life of a lease is traced, with its name and its token.

use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use leasehold::backend::{Answered, Renew};
use leasehold::{BackendError, Client, Error, FencingToken, LossReason, MemoryBackend, MutexOptions};
use leasehold_support::intercept::{Intercept, Intercepted};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_core::span::Current;

const NAME: &str = "machine:42";
const SECOND: Duration = Duration::from_secs(1);

/// The lines traced so far: one per event, with the spans that it is in, and one per span that begins or ends.
#[derive(Clone, Debug, Default)]
struct Lines(Arc<Mutex<Traced>>);

#[derive(Debug, Default)]
struct Traced {
    text: String,
    /// All spans so far; the id of a span is its position, from 1.
    spans: Vec<Span>,
    /// Those that are being executed, outermost first.
    entered: Vec<Id>,
}

#[derive(Debug)]
struct Span {
    metadata: &'static Metadata<'static>,
    fields: Fields,
    handles: usize,
}

impl Lines {
    /// Collects what this thread traces, down to `level`, for as long as the returned guard lives.
    fn collect(level: Level) -> (Self, DefaultGuard) {
        let lines = Self::default();
        let collector = Collector { level, lines: lines.clone() };
        (lines, tracing::subscriber::set_default(collector))
    }

    fn traced(&self) -> MutexGuard<'_, Traced> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn text(&self) -> String {
        self.traced().text.clone()
    }

    /// Some line has all of `parts`.
    #[track_caller]
    fn assert_line(&self, parts: &[&str]) {
        let text = self.text();
        let found = text.lines().any(|line| parts.iter().all(|part| line.contains(part)));
        assert!(found, "no line has all of {parts:?}:\n{text}");
    }
}

impl Traced {
    fn span(&mut self, id: &Id) -> &mut Span {
        let position = usize::try_from(id.into_u64()).expect("a position");
        &mut self.spans[position - 1]
    }

    /// A line about what happens within the entered spans and within `last`.
    fn write(&mut self, level: &Level, last: Option<&Id>, what: &dyn fmt::Display) {
        let mut line = format!("{level} ");
        for id in self.entered.clone().iter().chain(last) {
            line.push_str(&format!("{}: ", self.span(id)));
        }
        writeln!(self.text, "{line}{what}").expect("strings take everything");
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{{{}}}", self.metadata.name(), self.fields.0)
    }
}

/// Fields with their values, as they were recorded.
#[derive(Debug, Default)]
struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if !self.0.is_empty() {
            self.0.push(' ');
        }
        write!(self.0, "{field}={value:?}").expect("strings take everything");
    }
}

struct Collector {
    level: Level,
    lines: Lines,
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut traced = self.lines.traced();
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let metadata = attributes.metadata();
        traced.spans.push(Span { metadata, fields, handles: 1 });
        let id = Id::from_u64(traced.spans.len() as u64);
        traced.write(metadata.level(), Some(&id), &"new");
        id
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        values.record(&mut self.lines.traced().span(id).fields);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        self.lines.traced().write(event.metadata().level(), None, &fields.0);
    }

    fn enter(&self, id: &Id) {
        self.lines.traced().entered.push(id.clone());
    }

    fn exit(&self, id: &Id) {
        let entered = &mut self.lines.traced().entered;
        if let Some(last) = entered.iter().rposition(|other| other == id) {
            entered.remove(last);
        }
    }

    fn clone_span(&self, id: &Id) -> Id {
        self.lines.traced().span(id).handles += 1;
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        let mut traced = self.lines.traced();
        let span = traced.span(&id);
        span.handles -= 1;
        let (closed, level) = (span.handles == 0, *span.metadata.level());
        if closed {
            traced.write(&level, Some(&id), &"close");
        }
        closed
    }

    fn current_span(&self) -> Current {
        let mut traced = self.lines.traced();
        let Some(id) = traced.entered.last().cloned() else { return Current::none() };
        let metadata = traced.span(&id).metadata;
        Current::new(id, metadata)
    }
}

fn field(token: FencingToken) -> String {
    format!("token={token}")
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_traced_from_request_to_release() -> Result<(), Error> {
    let (lines, _collecting) = Lines::collect(Level::DEBUG);
    let mutex = Client::memory().mutex_with(NAME, MutexOptions::new().ttl(SECOND))?;
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

/// Declines all renewals.
#[derive(Debug)]
struct NoRenewals;

impl Intercept for NoRenewals {
    fn renew<'a>(&'a self, _: &'a MemoryBackend, renewals: &'a [Renew]) -> BoxStream<'a, Answered> {
        let declined = |n| (n, Err(BackendError::Refused { source: "no permission".into() }));
        stream::iter((0..renewals.len()).map(declined)).boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_store_said_of_a_lost_lease_is_traced_as_it_is() -> Result<(), Error> {
    let (lines, _collecting) = Lines::collect(Level::WARN);
    let client = Client::with_backend(Intercepted::new(&MemoryBackend::new(), NoRenewals));
    let guard = client.mutex_with(NAME, MutexOptions::new().ttl(SECOND))?.lock().await?;
    assert_eq!(guard.lost().await, LossReason::StoreRefused);
    lines.assert_line(&["WARN", "lost", NAME, "no permission"]);
    assert!(!lines.text().contains("Some("), "{}", lines.text());
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
async fn no_event_contains_a_lease_id() -> Result<(), Error> {
    let (lines, _collecting) = Lines::collect(Level::TRACE);
    let client = Client::memory();
    let mutex = client.mutex_with(NAME, MutexOptions::new().ttl(SECOND))?;
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
