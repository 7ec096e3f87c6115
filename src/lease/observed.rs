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
use crate::backend::{Resource, Status};
use crate::error::{Error, LossReason};
use crate::observer::{Audience, Event, Observer, Observers, ReleaseOutcome, RequestOutcome};
use crate::runtime::spawn_on;

/// A request that is observed. It is regarded as waiting from when it is first suspended, so one that is answered at
/// once takes no reading of the clock.
pub(crate) struct Observed<'a, F> {
    observers: &'a Arc<Observers>,
    audience: Audience,
    resource: &'a Resource,
    permits: u32,
    waits: bool,
    waiting_since: Option<Instant>,
    is_over: bool,
    acquiring: F,
}

impl<'a, F> Observed<'a, F> {
    pub(crate) fn new(
        keeper: &'a Keeper,
        audience: Audience,
        resource: &'a Resource,
        permits: u32,
        waits: bool,
        acquiring: F,
    ) -> Self {
        let (observers, waiting_since, is_over) = (&keeper.observers, None, false);
        Self { observers, audience, resource, permits, waits, waiting_since, is_over, acquiring }
    }

    fn begin_to_wait(&mut self) {
        if self.waiting_since.is_none() {
            self.waiting_since = Some(Instant::now());
            let subject = self.observers.subject(self.resource);
            self.observers.tell(self.audience, &Event::Waiting { subject });
        }
    }

    fn acquired(&self, hold: &Hold) {
        tell_acquired(self.observers, self.audience, hold, self.permits, self.waiting_since);
    }

    fn not_acquired(&self, outcome: RequestOutcome) {
        let event = Event::NotAcquired {
            subject: self.observers.subject(self.resource),
            waited: self.waiting_since.map(|since| since.elapsed()).unwrap_or_default(),
            had_to_wait: self.waiting_since.is_some(),
            outcome,
        };
        self.observers.tell(self.audience, &event);
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

fn tell_acquired(
    observers: &Arc<Observers>,
    audience: Audience,
    hold: &Hold,
    permits: u32,
    waiting_since: Option<Instant>,
) {
    let now = waiting_since.map(|since| (since, Instant::now()));
    let event = Event::Acquired {
        subject: observers.subject(hold.resource()),
        token: hold.token,
        permits,
        waited: now.map(|(since, now)| now.saturating_duration_since(since)).unwrap_or_default(),
        had_to_wait: now.is_some(),
        source: hold.source,
    };
    observers.tell(audience, &event);
    // Afterwards, so that its end is told after its beginning.
    if let Some(reason) = hold.observe(observers, audience, now.map(|(_, now)| now)) {
        let (subject, token) = (observers.subject(hold.resource()), hold.token);
        observers.tell(audience, &Event::Lost { subject, token, held: Duration::ZERO, reason });
    }
}

impl Keeper {
    /// The observers that are told of what begins now, if there are any.
    pub(crate) fn audience(&self) -> Option<Audience> {
        self.observers.audience()
    }

    /// Which observers were told that the current hold began, if any were, and when it did.
    pub(super) fn observed(&self, hold: &Hold) -> Option<(Audience, Instant)> {
        self.audience().and_then(|_| hold.ends_and_observed().1)
    }

    /// A lease that another process has handed over was taken up here.
    pub(super) fn tell_resumed(&self, hold: &Hold, permits: u32) {
        if let Some(audience) = self.audience() {
            tell_acquired(&self.observers, audience, hold, permits, None);
        }
    }

    /// A hold that may be [observed](Self::observed) has ended with its last guard, `now`.
    pub(super) fn tell_released(
        &self,
        hold: &Hold,
        observed: Option<(Audience, Instant)>,
        now: Instant,
        outcome: ReleaseOutcome,
    ) {
        if let Some((audience, since)) = observed {
            let (subject, held) =
                (self.observers.subject(hold.resource()), now.saturating_duration_since(since));
            self.observers.tell(audience, &Event::Released { subject, token: hold.token, held, outcome });
        }
    }

    /// The same, if it had been lost before.
    pub(super) fn tell_lost(
        &self,
        hold: &Hold,
        observed: Option<(Audience, Instant)>,
        now: Instant,
        reason: LossReason,
    ) {
        if let Some((audience, since)) = observed {
            let (subject, held) =
                (self.observers.subject(hold.resource()), now.saturating_duration_since(since));
            self.observers.tell(audience, &Event::Lost { subject, token: hold.token, held, reason });
        }
    }

    /// Adds an observer, and tells it the state of the store. With the first one, the client begins to watch that.
    pub(crate) fn observe(&self, observer: Arc<dyn Observer>) {
        let mut state = self.backend.state();
        if self.closing.is_closed() {
            state.status = Status::Closed;
        }
        let is_first = self.observers.add(observer, state);
        if let Some(background) = self.background.as_ref().filter(|_| is_first) {
            let (watched, abandoned) = (self.watch_store(), self.abandoned.clone());
            spawn_on(background, async move { abandoned.run_until_cancelled_owned(watched).await });
        }
    }

    /// Tells the observers the changes of the store's state until the client is closed. The future does not keep the
    /// client alive.
    pub(super) fn watch_store(&self) -> impl Future<Output = ()> + Send + use<> {
        let (observers, backend) = (Arc::clone(&self.observers), Arc::clone(&self.backend));
        let closed = self.closing.token();
        async move {
            observers.any().await;
            // Before the state is looked at, so that no change is missed in between.
            let changes = backend.state_changes();
            if !closed.is_cancelled() {
                observers.state_is(backend.state());
            }
            drop(backend);
            let mut changes = changes.take_until(closed.clone().cancelled_owned()).boxed();
            while let Some(state) = changes.next().await {
                observers.state_is(state);
            }
            closed.cancelled().await;
            observers.closed();
            pending().await
        }
    }
}
