//! A request that stands in line.
//!
//! It repeats itself every third of a lease, when the holder's lease should be over, when pushes may have been
//! lost, and as often as its poll interval says. In between it waits for its grant to be pushed.

use std::sync::LazyLock;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;
use tokio::time::{Instant, sleep_until};

use super::reply::{Answer, Ticket};
use super::transport::{RETRY, Transport};
use super::wake::{Pushed, Wake};
use crate::backend::{AcquireRequest, Acquired, BackendError, Claim, Grant};

/// How long a waiting request bears a store that does not answer: this, or four leases if that is longer.
const OUTAGE: Duration = Duration::from_secs(30);
/// What the first request may take however short the patience is.
const ROUND_TRIP: Duration = Duration::from_millis(100);
/// How much later each waiter looks for the end of the holder's lease than the one before it, up to a limit:
/// the first one finds it, the others need not all ask at that moment.
const STAGGER: Duration = Duration::from_millis(2);
const MAX_STAGGER: Duration = Duration::from_millis(500);
/// Moments per lease at which requests repeat themselves, so that those of one client travel together.
const MOMENTS: u32 = 20;

/// A request that stands in line.
pub(super) struct Waiting<'a> {
    transport: &'a Transport,
    wake: &'a Wake,
    request: &'a AcquireRequest,
    grant: oneshot::Receiver<Pushed>,
    /// What [`Wake::lapses`] was when the request was last sent.
    lapses: u64,
    /// When this lease was first asked for.
    since: Instant,
    /// The place in the queue, and when the last request was sent that the server answered with it.
    place: Option<(Ticket, Instant)>,
    heard: Heard,
}

/// What the server last said to a waiting request.
#[derive(Debug)]
enum Heard {
    /// Nothing yet, since the first request was sent.
    Nothing { since: Instant },
    /// That it stands in line.
    Queued { at: Instant },
    /// Nothing any more: the last request was not answered.
    Silence { since: Instant, error: BackendError },
}

/// How a wait goes on.
enum Next {
    Done(Acquired),
    AskAgainIn(Duration),
}

impl<'a> Waiting<'a> {
    pub(super) fn new(transport: &'a Transport, wake: &'a Wake, request: &'a AcquireRequest) -> Self {
        let now = Instant::now();
        let since = request.since.unwrap_or(now);
        Self {
            transport,
            wake,
            request,
            grant: wake.expect_grant(request.lease, request.revocation.clone()),
            lapses: 0,
            since,
            place: None,
            heard: Heard::Nothing { since: now },
        }
    }

    pub(super) async fn wait(mut self) -> Result<Acquired, BackendError> {
        loop {
            let pause = match self.ask().await? {
                Next::Done(acquired) => return Ok(acquired),
                Next::AskAgainIn(pause) => pause,
            };
            if let Next::Done(acquired) = self.rest(pause).await? {
                return Ok(acquired);
            }
        }
    }

    /// Sends the request, and takes the grant from the answer or from a push, whichever comes first.
    async fn ask(&mut self) -> Result<Next, BackendError> {
        self.lapses = self.wake.lapses();
        let sent = Instant::now();
        let give_up = self.give_up_asking();
        tokio::select! {
            biased;
            pushed = &mut self.grant => Ok(self.pushed(pushed)),
            // Boxed: the future is large, and not needed while the request only waits.
            answer = Box::pin(self.transport.acquire(self.request)) => self.answered(answer, sent),
            () = sleep_until_some(give_up) => self.out_of_patience(),
        }
    }

    /// Waits for a push, or for a reason to ask again.
    async fn rest(&mut self, pause: Duration) -> Result<Next, BackendError> {
        // Told to ask before its first request was answered, it still has the time of a round trip.
        let (deadline, repeat) = (self.give_up_asking(), Instant::now() + pause);
        tokio::select! {
            biased;
            pushed = &mut self.grant => Ok(self.pushed(pushed)),
            () = sleep_until_some(deadline) => self.out_of_patience(),
            () = self.wake.lapsed_since(self.lapses) => Ok(Next::AskAgainIn(Duration::ZERO)),
            () = sleep_until(repeat) => Ok(Next::AskAgainIn(Duration::ZERO)),
        }
    }

    /// A pushed grant is believed if it is that of this place and still has most of its time. If not, it was held back, or this
    /// process was paused, and only the server knows what became of it: it is asked.
    fn pushed(&mut self, pushed: Result<Pushed, RecvError>) -> Next {
        match pushed {
            Ok(Pushed::Grant { token, ticket, limit }) => {
                let counted_from =
                    self.lower_bound(ticket).filter(|from| from.elapsed() < self.request.term / 2);
                if let Some(counted_from) = counted_from {
                    if let (Claim::Permits(_, own), Some(met)) = (&self.request.claim, limit) {
                        own.follow(met.permits, met.reign);
                    }
                    return Next::Done(self.wake.hold(self.request.lease, Grant::new(token, counted_from)));
                }
                tracing::debug!(key = &*self.request.resource.key, "a grant came too late, asking again");
            }
            Ok(Pushed::Ask) | Err(_) => {}
        }
        self.grant = self.wake.expect_grant(self.request.lease, self.request.revocation.clone());
        Next::AskAgainIn(Duration::ZERO)
    }

    /// An instant that certainly lies before the grant of the place with this ticket. `None` if the server has answered with
    /// another place since, or before: then nothing is known of it.
    ///
    /// Answers and grants travel on different connections. A grant may be held back for so long that its lease has run out,
    /// and the next request has been given a place anew, and been answered. To count that grant from that request
    /// would let two clients hold at once.
    fn lower_bound(&self, ticket: Ticket) -> Option<Instant> {
        match self.place {
            Some((place, sent)) => (place == ticket).then_some(sent),
            // No request has been answered: whichever place it is, it was given after the first one was sent.
            None => Some(self.since),
        }
    }

    fn answered(
        &mut self,
        answer: Result<Answer, BackendError>,
        sent: Instant,
    ) -> Result<Next, BackendError> {
        match answer {
            Ok(Answer::Queued { remaining, before, ticket }) => {
                tracing::debug!(key = &*self.request.resource.key, before, ?remaining, "waiting");
                (self.place, self.heard) = (Some((ticket, sent)), Heard::Queued { at: Instant::now() });
                Ok(Next::AskAgainIn(self.pause(remaining, before)))
            }
            Ok(answer) => match answer.grant(sent, self.request.term) {
                Some(Ok(grant)) => {
                    if matches!(self.heard, Heard::Queued { .. }) {
                        self.wake.suspect();
                    }
                    Ok(Next::Done(self.wake.hold(self.request.lease, grant)))
                }
                Some(Err(error)) => self.silence(error),
                None => Err(BackendError::Refused {
                    source: "a request that waits was told that it does not".into(),
                }),
            },
            Err(error) if error.is_transient() => self.silence(error),
            Err(error) => Err(error),
        }
    }

    /// Bears a store that does not answer for a while.
    fn silence(&mut self, error: BackendError) -> Result<Next, BackendError> {
        let since = match self.heard {
            Heard::Nothing { since } | Heard::Silence { since, .. } | Heard::Queued { at: since } => since,
        };
        if since.elapsed() >= OUTAGE.max(self.request.term * 4) {
            return Err(error);
        }
        tracing::debug!(key = &*self.request.resource.key, %error, "request not answered, asking again");
        self.heard = Heard::Silence { since, error };
        Ok(Next::AskAgainIn(RETRY))
    }

    /// The time to wait is over: somebody else has the lock, or nobody knows.
    fn out_of_patience(&mut self) -> Result<Next, BackendError> {
        let heard = std::mem::replace(&mut self.heard, Heard::Nothing { since: self.since });
        match heard {
            Heard::Queued { .. } => Ok(Next::Done(Acquired::Busy)),
            Heard::Silence { error, .. } => Err(error),
            Heard::Nothing { .. } => {
                Err(BackendError::Unanswered { source: "no answer within the time to wait".into() })
            }
        }
    }

    /// When an unanswered request need not be waited for any more. The first one gets the time of a round
    /// trip, however short the patience is.
    fn give_up_asking(&self) -> Option<Instant> {
        let deadline = self.request.wait.deadline()?;
        match self.heard {
            Heard::Nothing { since } => Some(deadline.max(since + ROUND_TRIP)),
            _ => Some(deadline),
        }
    }

    /// How long to wait for a push before asking again.
    fn pause(&self, remaining: Option<Duration>, before: u32) -> Duration {
        let holder_gone =
            remaining.map(|rest| rest + Duration::from_millis(1) + (STAGGER * before).min(MAX_STAGGER));
        let alive = moment_within(Instant::now(), self.request.term);
        [self.request.poll_interval, holder_gone].into_iter().flatten().fold(alive, Duration::min)
    }
}

/// For how long a request may rest after `now`, to be heard of a third of a lease later: until the last moment before that.
fn moment_within(now: Instant, term: Duration) -> Duration {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let third = term / 3;
    let since = (now + third).saturating_duration_since(*START).as_nanos();
    let past = since % (term / MOMENTS).as_nanos().max(1);
    third - Duration::from_nanos(u64::try_from(past).unwrap_or_default())
}

async fn sleep_until_some(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
