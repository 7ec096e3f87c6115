//! The contract's verbs on one Redis server.

use std::sync::Arc;
use std::time::Duration;

use fred::types::{Key, Value};
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::oneshot::error::RecvError;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::RedisBackend;
use super::connection::Timeouts;
use super::keys::LockKeys;
use super::script::{ACQUIRE, INSPECT, RELEASE, RENEW, Script};
use super::transport::Transport;
use crate::backend::{
    AcquireRequest, Acquired, Backend, BackendError, Capabilities, Grant, Holder, Inspection, LeaseId,
    Released, RenewRequest, Renewal, Wait, Waiter, Whose,
};
use crate::error::LossReason;
use crate::fence::FencingToken;

/// How long a waiting request bears a store that does not answer: this, or four leases if that is longer.
const OUTAGE: Duration = Duration::from_secs(30);
/// The pause before a request that was not answered is sent again.
const RETRY: Duration = Duration::from_millis(25);
/// What the first request may take however short the patience is.
const ROUND_TRIP: Duration = Duration::from_millis(100);
/// How much later each waiter looks for the end of the holder's lease than the one before it, up to a limit:
/// the first one finds it, the others need not all ask at that moment.
const STAGGER: Duration = Duration::from_millis(2);
const MAX_STAGGER: Duration = Duration::from_millis(500);

impl Backend for RedisBackend {
    fn lease_id(&self) -> LeaseId {
        self.ids.next()
    }

    fn acquire<'a>(&'a self, request: &'a AcquireRequest) -> BoxFuture<'a, Result<Acquired, BackendError>> {
        async move {
            self.open_or_closed()?;
            match request.wait {
                Wait::No => self.ask_once(request).await,
                Wait::Until(_) | Wait::Forever => Queued::new(self, request).wait().await,
            }
        }
        .boxed()
    }

    fn renew<'a>(&'a self, request: &'a RenewRequest) -> BoxFuture<'a, Result<Renewal, BackendError>> {
        async move {
            self.open_or_closed()?;
            self.renew_once(request).await
        }
        .boxed()
    }

    fn release<'a>(
        &'a self,
        key: &'a Arc<str>,
        whose: Whose,
    ) -> BoxFuture<'a, Result<Released, BackendError>> {
        async move {
            self.open_or_closed()?;
            if let Whose::Lease(lease) = whose {
                self.wake.forget(lease);
            }
            release(&self.transport, key, whose, self.timeouts).await
        }
        .boxed()
    }

    fn inspect<'a>(&'a self, key: &'a Arc<str>) -> BoxFuture<'a, Result<Inspection, BackendError>> {
        async move {
            self.open_or_closed()?;
            let keys = LockKeys::of(key);
            let (answer, _) = insist(&self.transport, &INSPECT, keys.all(), &[], self.timeouts.reply).await?;
            read_inspection(answer)
        }
        .boxed()
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.close_connections().boxed()
    }
}

/// The server's answer to a request.
enum Answer {
    Granted(FencingToken),
    /// How long the holder's lease still lasts, if it ends at all, and how many wait before this one.
    Queued {
        remaining: Option<Duration>,
        before: u32,
    },
    Busy,
}

impl RedisBackend {
    fn open_or_closed(&self) -> Result<(), BackendError> {
        if self.closed.is_cancelled() { Err(BackendError::Closed) } else { Ok(()) }
    }

    /// How long one command for a lease of `term` may take.
    fn patience(&self, term: Duration) -> Duration {
        self.timeouts.reply.min(term / 3)
    }

    async fn ask_once(&self, request: &AcquireRequest) -> Result<Acquired, BackendError> {
        self.wake.register(request.lease, request.revocation.clone());
        let give_up = Instant::now() + self.timeouts.reply * 2;
        loop {
            let sent = Instant::now();
            match self.ask(request).await {
                Ok(Answer::Granted(token)) => return Ok(Acquired::Granted(Grant::new(token, sent))),
                Ok(_) => {
                    self.wake.forget(request.lease);
                    return Ok(Acquired::Busy);
                }
                Err(error) if error.is_transient() && Instant::now() < give_up => sleep(RETRY).await,
                Err(error) => return Err(error),
            }
        }
    }

    async fn ask(&self, request: &AcquireRequest) -> Result<Answer, BackendError> {
        let waits = Value::from(i64::from(request.wait != Wait::No));
        let repair = Value::from(request.repair.map_or(0, millis));
        let args = [Value::from(request.lease.to_text()), Value::from(millis(request.term)), waits, repair];
        // Every argument costs a microsecond on its way: the frequent case goes without the last two.
        let usual = request.wait != Wait::No && request.repair.is_none();
        let args = if usual { &args[..2] } else { &args[..] };
        let keys = LockKeys::of(&request.key);
        read_answer(self.transport.call(&ACQUIRE, keys.all(), args, self.patience(request.term)).await?)
    }

    async fn renew_once(&self, request: &RenewRequest) -> Result<Renewal, BackendError> {
        let keys = LockKeys::of(&request.key).lock_and_fence();
        let args = [Value::from(request.lease.to_text()), Value::from(millis(request.term))];
        let sent = Instant::now();
        match self.transport.call(&RENEW, &keys, &args, self.patience(request.term)).await {
            // Somebody has put something else in the place of the lock.
            Err(BackendError::WrongType { .. }) => Ok(Renewal::Lost(LossReason::Taken)),
            answer => match answer?.as_bytes_str().as_deref() {
                Some("renewed") => Ok(Renewal::Renewed { counted_from: sent }),
                Some("taken") => Ok(Renewal::Lost(LossReason::Taken)),
                Some("expired") => Ok(Renewal::Lost(LossReason::Expired)),
                _ => Err(unreadable(&RENEW)),
            },
        }
    }
}

/// A request that stands in line.
///
/// It repeats itself every third of a lease, when the holder's lease should be over, when pushes may have been
/// lost, and as often as its poll interval says. In between it waits for its grant to be pushed.
struct Queued<'a> {
    backend: &'a RedisBackend,
    request: &'a AcquireRequest,
    grant: oneshot::Receiver<FencingToken>,
    ask_again: watch::Receiver<()>,
    /// The latest instant that certainly lies before the grant: when the last request was sent that the server
    /// answered with "still queued", or else the first one.
    counted_from: Instant,
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

impl<'a> Queued<'a> {
    fn new(backend: &'a RedisBackend, request: &'a AcquireRequest) -> Self {
        let now = Instant::now();
        Self {
            backend,
            request,
            grant: backend.wake.expect_grant(request.lease, request.revocation.clone()),
            ask_again: backend.wake.ask_again(),
            counted_from: now,
            heard: Heard::Nothing { since: now },
        }
    }

    async fn wait(mut self) -> Result<Acquired, BackendError> {
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
        self.ask_again.mark_unchanged();
        let sent = Instant::now();
        let give_up = self.give_up_asking();
        tokio::select! {
            biased;
            token = &mut self.grant => Ok(self.pushed(token)),
            answer = self.backend.ask(self.request) => self.answered(answer, sent),
            () = sleep_until_some(give_up) => self.out_of_patience(),
        }
    }

    /// Waits for a push, or for a reason to ask again.
    async fn rest(&mut self, pause: Duration) -> Result<Next, BackendError> {
        let (deadline, repeat) = (self.request.wait.deadline(), Instant::now() + pause);
        tokio::select! {
            biased;
            token = &mut self.grant => Ok(self.pushed(token)),
            () = sleep_until_some(deadline) => self.out_of_patience(),
            _ = self.ask_again.changed() => Ok(Next::AskAgainIn(Duration::ZERO)),
            () = sleep_until(repeat) => Ok(Next::AskAgainIn(Duration::ZERO)),
        }
    }

    /// A pushed grant is good if it still has most of its time. If not, this process was paused, and only the
    /// server knows what became of it.
    fn pushed(&mut self, token: Result<FencingToken, RecvError>) -> Next {
        match token {
            Ok(token) if self.counted_from.elapsed() < self.request.term / 2 => {
                Next::Done(Acquired::Granted(Grant::new(token, self.counted_from)))
            }
            _ => {
                self.grant =
                    self.backend.wake.expect_grant(self.request.lease, self.request.revocation.clone());
                Next::AskAgainIn(Duration::ZERO)
            }
        }
    }

    fn answered(
        &mut self,
        answer: Result<Answer, BackendError>,
        sent: Instant,
    ) -> Result<Next, BackendError> {
        match answer {
            Ok(Answer::Granted(token)) => {
                if matches!(self.heard, Heard::Queued { .. }) {
                    self.backend.wake.suspect();
                }
                Ok(Next::Done(Acquired::Granted(Grant::new(token, sent))))
            }
            Ok(Answer::Queued { remaining, before }) => {
                tracing::debug!(key = &*self.request.key, before, ?remaining, "waiting");
                (self.counted_from, self.heard) = (sent, Heard::Queued { at: Instant::now() });
                Ok(Next::AskAgainIn(self.pause(remaining, before)))
            }
            Ok(Answer::Busy) => Err(unreadable(&ACQUIRE)),
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
        tracing::debug!(key = &*self.request.key, %error, "request not answered, asking again");
        self.heard = Heard::Silence { since, error };
        Ok(Next::AskAgainIn(RETRY))
    }

    /// The time to wait is over: somebody else has the lock, or nobody knows.
    fn out_of_patience(&mut self) -> Result<Next, BackendError> {
        let heard = std::mem::replace(&mut self.heard, Heard::Nothing { since: self.counted_from });
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
        [Some(self.request.term / 3), self.request.poll_interval, holder_gone]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(self.request.term / 3)
    }
}

async fn sleep_until_some(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// Releases until the server answers or two timeouts have passed.
async fn release(
    transport: &Transport,
    key: &Arc<str>,
    whose: Whose,
    timeouts: Timeouts,
) -> Result<Released, BackendError> {
    let lease = match whose {
        Whose::Lease(lease) => Value::from(lease.to_text()),
        Whose::Anyone => Value::from_static_str(""),
    };
    let (keys, patience) = (LockKeys::of(key), timeouts.reply);
    let (answer, repeated) = insist(transport, &RELEASE, keys.all(), &[lease], patience).await?;
    match answer.as_i64() {
        Some(1) => Ok(Released::Held),
        Some(2) => Ok(Released::Queued),
        // An earlier attempt may have released it, and its answer got lost.
        Some(0 | 3) if repeated => Ok(Released::Held),
        Some(3) => Ok(Released::Taken),
        Some(0) => Ok(Released::Absent),
        _ => Err(unreadable(&RELEASE)),
    }
}

/// Calls an idempotent script again while it is not answered. Tells whether there was more than one attempt.
async fn insist(
    transport: &Transport,
    script: &Script,
    keys: &[Key],
    args: &[Value],
    patience: Duration,
) -> Result<(Value, bool), BackendError> {
    let give_up = Instant::now() + patience * 2;
    let mut repeated = false;
    loop {
        match transport.call(script, keys, args, patience).await {
            Ok(answer) => return Ok((answer, repeated)),
            Err(error) if error.is_transient() && Instant::now() + RETRY < give_up => {
                repeated = true;
                sleep(RETRY).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Gives back what was granted to requests that had been given up by then.
pub(super) async fn release_strays(
    transport: Arc<Transport>,
    mut strays: mpsc::UnboundedReceiver<(LeaseId, Arc<str>)>,
    timeouts: Timeouts,
) {
    while let Some((lease, key)) = strays.recv().await {
        if let Err(error) = release(&transport, &key, Whose::Lease(lease), timeouts).await {
            tracing::warn!(key = &*key, %error, "a grant to nobody was not given back: it runs out by itself");
        }
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// `-1` and `-2`, for "never" and "not there", are no durations.
fn from_millis(value: &Value) -> Option<Duration> {
    value.as_i64().and_then(|millis| u64::try_from(millis).ok()).map(Duration::from_millis)
}

fn read_answer(answer: Value) -> Result<Answer, BackendError> {
    if let Value::Array(parts) = &answer {
        let [remaining, before] = &parts[..] else { return Err(unreadable(&ACQUIRE)) };
        let before = before.as_i64().and_then(|before| u32::try_from(before).ok());
        let before = before.ok_or_else(|| unreadable(&ACQUIRE))?;
        return Ok(Answer::Queued { remaining: from_millis(remaining), before });
    }
    match read_token(&answer).ok_or_else(|| unreadable(&ACQUIRE))? {
        token if token.get() == 0 => Ok(Answer::Busy),
        token => Ok(Answer::Granted(token)),
    }
}

fn read_token(value: &Value) -> Option<FencingToken> {
    value.as_u64().map(FencingToken::new)
}

fn read_inspection(answer: Value) -> Result<Inspection, BackendError> {
    let parts = answer.into_array();
    let [holder, remaining, token, waiters] = &parts[..] else { return Err(unreadable(&INSPECT)) };
    let holder = holder.as_bytes().map(|id| {
        let id = String::from_utf8_lossy(id).into_owned();
        let ours = LeaseId::parse(&id).is_some();
        Holder { token: if ours { read_token(token) } else { None }, remaining: from_millis(remaining), id }
    });
    let waiters = waiters.clone().into_array();
    let waiters = waiters.chunks_exact(2).map(|pair| {
        let id = pair[0].as_bytes_str().and_then(|id| LeaseId::parse(&id))?;
        Some(Waiter { id, remaining: from_millis(&pair[1])? })
    });
    let waiters = waiters.collect::<Option<_>>().ok_or_else(|| unreadable(&INSPECT))?;
    Ok(Inspection { holder, waiters })
}

fn unreadable(script: &Script) -> BackendError {
    BackendError::Refused {
        source: format!("script {} gave an answer of no known form", script.hash()).into(),
    }
}
