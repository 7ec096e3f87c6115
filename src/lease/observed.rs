//! What observers are told of requests and releases. Nothing here decides anything.

use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use futures::stream::StreamExt;
use tokio::time::Instant;

use super::keeper::Keeper;
use super::lease::Hold;
use crate::backend::{Resource, Status, StoreState};
use crate::error::{Error, LossReason};
use crate::observer::{Event, Observer, Observers, ReleaseOutcome, RequestOutcome};
use crate::runtime::spawn_on;

/// A request that is observed. It is regarded as waiting from when it is first suspended, so one that is answered at
/// once takes no reading of the clock.
pub(crate) struct Observed<'a, F> {
    observers: &'a Arc<Observers>,
    resource: &'a Resource,
    permits: u32,
    waits: bool,
    waiting_since: Option<Instant>,
    is_over: bool,
    acquiring: F,
}

impl<'a, F> Observed<'a, F> {
    pub(crate) const fn new(
        observers: &'a Arc<Observers>,
        resource: &'a Resource,
        permits: u32,
        waits: bool,
        acquiring: F,
    ) -> Self {
        Self { observers, resource, permits, waits, waiting_since: None, is_over: false, acquiring }
    }

    fn begin_to_wait(&mut self) {
        if self.waiting_since.is_none() {
            self.waiting_since = Some(Instant::now());
            self.observers.tell(&Event::Waiting { subject: self.observers.subject(self.resource) });
        }
    }

    fn acquired(&self, hold: &Hold) {
        tell_acquired(self.observers, hold, self.permits, self.waiting_since);
    }

    fn not_acquired(&self, outcome: RequestOutcome) {
        self.observers.tell(&Event::NotAcquired {
            subject: self.observers.subject(self.resource),
            waited: self.waiting_since.map(|since| since.elapsed()).unwrap_or_default(),
            had_to_wait: self.waiting_since.is_some(),
            outcome,
        });
    }

    fn outcome(&self, error: &Error) -> RequestOutcome {
        match error {
            Error::TimedOut { .. } if !self.waits => RequestOutcome::Busy,
            error => RequestOutcome::Failed(error.kind()),
        }
    }
}

impl<F: Future<Output = Result<Hold, Error>> + Unpin> Future for Observed<'_, F> {
    type Output = Result<Hold, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Poll::Ready(answer) = self.acquiring.poll_unpin(cx) else {
            self.begin_to_wait();
            return Poll::Pending;
        };
        self.is_over = true;
        match &answer {
            Ok(hold) => self.acquired(hold),
            Err(error) => self.not_acquired(self.outcome(error)),
        }
        Poll::Ready(answer)
    }
}

impl<F> Drop for Observed<'_, F> {
    fn drop(&mut self) {
        if !self.is_over && self.waiting_since.is_some() {
            self.not_acquired(RequestOutcome::Cancelled);
        }
    }
}

fn tell_acquired(observers: &Arc<Observers>, hold: &Hold, permits: u32, waiting_since: Option<Instant>) {
    let now = waiting_since.map(|since| (since, Instant::now()));
    observers.tell(&Event::Acquired {
        subject: observers.subject(hold.resource()),
        token: hold.token,
        permits,
        waited: now.map(|(since, now)| now.saturating_duration_since(since)).unwrap_or_default(),
        had_to_wait: now.is_some(),
        source: hold.source,
    });
    // Afterwards, so that its end is told after its beginning.
    if let Some(reason) = hold.observe(observers, now.map(|(_, now)| now)) {
        tell_lost(observers, hold, Duration::ZERO, reason);
    }
}

fn tell_lost(observers: &Observers, hold: &Hold, held: Duration, reason: LossReason) {
    let subject = observers.subject(hold.resource());
    observers.tell(&Event::Lost { subject, token: hold.token, held, reason });
}

impl Keeper {
    /// The observers, if there are any.
    pub(crate) fn observed(&self) -> Option<&Arc<Observers>> {
        Some(&self.observers).filter(|observers| observers.is_any())
    }

    /// Since when the current hold is observed, if it is.
    pub(super) fn observed_since(&self, hold: &Hold) -> Option<Instant> {
        self.observed().and_then(|_| hold.observed_since())
    }

    /// A lease that another process has handed over was taken up here.
    pub(super) fn tell_resumed(&self, hold: &Hold, permits: u32) {
        if let Some(observers) = self.observed() {
            tell_acquired(observers, hold, permits, None);
        }
    }

    pub(super) fn tell_released(&self, hold: &Hold, held: Duration, outcome: ReleaseOutcome) {
        if let Some(observers) = self.observed() {
            let subject = observers.subject(hold.resource());
            observers.tell(&Event::Released { subject, token: hold.token, held, outcome });
        }
    }

    pub(super) fn tell_lost(&self, hold: &Hold, held: Duration, reason: LossReason) {
        if let Some(observers) = self.observed() {
            tell_lost(observers, hold, held, reason);
        }
    }

    /// Adds an observer, and tells it the state of the store. With the first one, the client begins to watch that.
    pub(crate) fn observe(&self, observer: Arc<dyn Observer>) {
        let state = self.backend.state();
        self.observers
            .tell_one(&*observer, &Event::StoreState { store: self.observers.store(), state: &state });
        let is_first = self.observers.add(observer);
        if let Some(background) = self.background.as_ref().filter(|_| is_first) {
            let (watched, abandoned) = (self.watch_store(), self.abandoned.clone());
            spawn_on(background, async move {
                tokio::select! {
                    // The last state is told before the client is gone.
                    biased;
                    () = watched => {}
                    () = abandoned.cancelled() => {}
                }
            });
        }
    }

    /// Tells the observers the changes of the store's state until the client is closed. The future does not keep the
    /// client alive.
    pub(super) fn watch_store(&self) -> impl Future<Output = ()> + Send + use<> {
        let (observers, closed) = (Arc::clone(&self.observers), self.closing.token());
        let was_closed = closed.is_cancelled();
        let mut changes = self.backend.state_changes().take_until(closed.clone().cancelled_owned()).boxed();
        let mut state = self.backend.state();
        async move {
            observers.any().await;
            while let Some(change) = changes.next().await {
                state = change;
                observers.tell_state(&state);
            }
            closed.cancelled().await;
            if !was_closed {
                observers.tell_state(&StoreState { status: Status::Closed, ..state });
            }
            pending().await
        }
    }
}
