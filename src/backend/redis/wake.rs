//! One subscription per client: pushes grants to the requests that wait for them, and revocations to holders.
//!
//! Every request registers before it is sent, so that no push can come too early. A push may get lost on the
//! way (a lagging buffer, a connection cut in between); whenever that is possible every waiting request is
//! told to ask again, and each repeats itself now and then in any case. A grant for a lease that nobody here
//! knows is released at once: its request was carried out after it had been given up.
//!
//! Messages travel on another connection than answers, and may arrive late. So a grant names its place in the queue, and
//! whoever waits decides whether it is that of today; a revocation names the token of the grant that it ends, and reaches
//! nobody who holds under another one.

use std::collections::{HashMap, hash_map};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use fred::clients::Client;
use fred::error::Error as FredError;
use fred::interfaces::{ClientLike, EventInterface, PubsubInterface};
use fred::types::Message;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::connection::Timeouts;
use super::reply::Ticket;
use super::wire::sort;
use crate::backend::{Acquired, BackendError, Grant, Kind, LeaseId, Resource, Revocation, Stated};
use crate::fence::FencingToken;
use crate::sync::Mutex;

/// How often the subscription is tried while somebody waits and nothing else tells that it works.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// The pause before another attempt to subscribe.
const RETRY: Duration = Duration::from_millis(50);

/// Who in this client is to be told what.
#[derive(Debug)]
pub(super) struct Wake {
    client: Uuid,
    /// By the number of the lease within this client.
    entries: Mutex<HashMap<u64, Entry>>,
    /// How often pushes may have been lost so far.
    lapses: watch::Sender<u64>,
    suspect: Notify,
    /// Grants that nobody waits for any more, to be released.
    strays: mpsc::UnboundedSender<(LeaseId, Resource)>,
}

/// What is pushed to a waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pushed {
    /// It holds now, if this is still its place; of a semaphore, under this limit.
    Grant { token: FencingToken, ticket: Ticket, limit: Option<Stated> },
    /// It may come in if it asks.
    Ask,
}

#[derive(Debug)]
struct Entry {
    state: State,
    revocation: Revocation,
    /// The token of the last grant that was revoked, should that be heard of first.
    revoked: Option<FencingToken>,
}

#[derive(Debug)]
enum State {
    /// It is to be told of its grant.
    Waits(oneshot::Sender<Pushed>),
    /// It has been told of a grant, and decides whether to believe it; or it does not wait to be told.
    Told,
    /// It holds under this token.
    Holds(FencingToken),
    /// It is being released; whether a grant has come since.
    Leaves { granted: bool },
}

/// A lease that is being released. It is known until this is dropped.
#[derive(Debug)]
#[must_use = "dropping it forgets the lease"]
pub(super) struct Leaving<'a> {
    wake: &'a Wake,
    lease: LeaseId,
}

impl Wake {
    pub(super) fn new(client: Uuid, strays: mpsc::UnboundedSender<(LeaseId, Resource)>) -> Self {
        Self {
            client,
            entries: Mutex::default(),
            lapses: watch::Sender::new(0),
            suspect: Notify::new(),
            strays,
        }
    }

    /// From now on `lease` is told of its revocation.
    pub(super) fn register(&self, lease: LeaseId, revocation: Revocation) {
        self.entries.lock().insert(lease.sequence(), Entry::new(State::Told, revocation));
    }

    /// From now on `lease` is told of a grant as well. Replaces what was registered before, but for what was revoked.
    pub(super) fn expect_grant(&self, lease: LeaseId, revocation: Revocation) -> oneshot::Receiver<Pushed> {
        let (tell, told) = oneshot::channel();
        let entry = Entry::new(State::Waits(tell), revocation);
        match self.entries.lock().entry(lease.sequence()) {
            hash_map::Entry::Occupied(mut place) => {
                let revoked = place.get().revoked;
                place.insert(Entry { revoked, ..entry });
            }
            hash_map::Entry::Vacant(place) => drop(place.insert(entry)),
        }
        told
    }

    /// `lease` holds under this grant: its revocation is believed, and no other.
    pub(super) fn hold(&self, lease: LeaseId, grant: Grant) -> Acquired {
        if let Some(entry) = self.entries.lock().get_mut(&lease.sequence()) {
            entry.state = State::Holds(grant.token);
            if entry.revoked == Some(grant.token) {
                entry.revocation.revoke();
            }
        }
        Acquired::Granted(grant)
    }

    /// Nothing is to be told to `lease` any more.
    pub(super) fn forget(&self, lease: LeaseId) {
        self.entries.lock().remove(&lease.sequence());
    }

    /// `lease` is being released. A grant of it that comes now may be of long ago, and its end is on its way.
    pub(super) fn leave(&self, lease: LeaseId) -> Leaving<'_> {
        if let Some(entry) = self.entries.lock().get_mut(&lease.sequence()) {
            entry.state = State::Leaves { granted: false };
        }
        Leaving { wake: self, lease }
    }

    /// `lease` was granted, perhaps after it had been released.
    pub(super) fn stray(&self, lease: LeaseId, resource: Resource) {
        tracing::debug!(?lease, key = &*resource.key, "granted to a request that was given up, releasing");
        // The receiver is only gone when the backend is.
        let _ = self.strays.send((lease, resource));
    }

    /// How often pushes may have been lost so far.
    pub(super) fn lapses(&self) -> u64 {
        *self.lapses.borrow()
    }

    /// Waits until pushes may have been lost more often than `before` times.
    pub(super) async fn lapsed_since(&self, before: u64) {
        // The sender is in `self`, so this cannot fail.
        let _ = self.lapses.subscribe().wait_for(|lapses| *lapses > before).await;
    }

    /// Pushes may have been lost: every waiting request asks again.
    pub(super) fn lapse(&self) {
        self.lapses.send_modify(|lapses| *lapses += 1);
    }

    /// A grant was found that should have been pushed: see whether the subscription still works.
    pub(super) fn suspect(&self) {
        self.suspect.notify_one();
    }

    fn is_idle(&self) -> bool {
        self.entries.lock().is_empty()
    }

    /// What was pushed, or came with an answer.
    pub(super) fn tell(&self, message: &str) {
        match Push::parse(message).filter(|push| push.lease().client() == self.client) {
            Some(Push::Grant { lease, token, ticket, limit, resource }) => {
                if !self.tell_waiting(lease, Pushed::Grant { token, ticket, limit }) {
                    self.stray(lease, resource);
                }
            }
            Some(Push::Ask { lease }) => drop(self.tell_waiting(lease, Pushed::Ask)),
            Some(Push::Revoke { lease, token }) => {
                if let Some(entry) = self.entries.lock().get_mut(&lease.sequence()) {
                    entry.revoke(lease, token);
                }
            }
            None => tracing::warn!(message, "a message on the wake channel that is not for this client"),
        }
    }

    /// `false` if nobody here knows the lease.
    fn tell_waiting(&self, lease: LeaseId, pushed: Pushed) -> bool {
        let mut entries = self.entries.lock();
        let Some(Entry { state, .. }) = entries.get_mut(&lease.sequence()) else { return false };
        match mem::replace(state, State::Told) {
            State::Waits(tell) => {
                drop(entries);
                // If the request is being dropped right now, its release is on its way, or somebody asks in its place.
                let _ = tell.send(pushed);
            }
            State::Leaves { granted } => {
                *state = State::Leaves { granted: granted || matches!(pushed, Pushed::Grant { .. }) };
            }
            told => *state = told,
        }
        true
    }
}

impl Entry {
    const fn new(state: State, revocation: Revocation) -> Self {
        Self { state, revocation, revoked: None }
    }

    /// The grant with this token was ended by force; 0 if the server does not know which.
    fn revoke(&mut self, lease: LeaseId, token: FencingToken) {
        match self.state {
            State::Holds(held) if held == token || token.get() == 0 => {
                tracing::warn!(?lease, "released by force");
                self.revocation.revoke();
            }
            // Of an earlier grant of the same lease, which was given up or never heard of.
            State::Holds(_) => {}
            // Perhaps of the grant whose answer is on its way.
            State::Waits(_) | State::Told | State::Leaves { .. } => self.revoked = Some(token),
        }
    }
}

impl Leaving<'_> {
    /// It is released. Whether a grant has come meanwhile.
    pub(super) fn end(self) -> bool {
        let entry = self.wake.entries.lock().remove(&self.lease.sequence());
        // Nothing is left to be forgotten.
        mem::forget(self);
        matches!(entry, Some(Entry { state: State::Leaves { granted: true }, .. }))
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.wake.forget(self.lease);
    }
}

/// What is told on the wake channel. The key comes last, because it may contain spaces.
enum Push {
    Grant { lease: LeaseId, token: FencingToken, ticket: Ticket, limit: Option<Stated>, resource: Resource },
    Ask { lease: LeaseId },
    Revoke { lease: LeaseId, token: FencingToken },
}

impl Push {
    const fn lease(&self) -> LeaseId {
        match self {
            Self::Grant { lease, .. } | Self::Ask { lease } | Self::Revoke { lease, .. } => *lease,
        }
    }

    fn parse(message: &str) -> Option<Self> {
        let (verb, rest) = message.split_once(' ')?;
        let (lease, rest) = rest.split_once(' ')?;
        let lease = LeaseId::parse(lease)?;
        match verb {
            "grant" => {
                let (token, rest) = rest.split_once(' ')?;
                let (ticket, rest) = rest.split_once(' ')?;
                let (kind, rest) = rest.split_once(' ')?;
                let (prefix, key) = rest.split_once(' ')?;
                let (token, ticket) = (FencingToken::new(token.parse().ok()?), Ticket::parse(ticket)?);
                // Of a semaphore: kind/limit/reign.
                let mut parts = kind.split('/');
                let kind = Kind::parse(parts.next()?)?;
                let limit = match (parts.next(), parts.next()) {
                    (Some(limit), Some(reign)) => {
                        Some(Stated { permits: limit.parse().ok()?, reign: reign.parse().ok()? })
                    }
                    _ => None,
                };
                Some(Self::Grant {
                    lease,
                    token,
                    ticket,
                    limit,
                    resource: Resource::split_at(key, prefix.parse().ok()?, kind)?,
                })
            }
            "ask" => Some(Self::Ask { lease }),
            "revoke" => {
                let (token, _key) = rest.split_once(' ')?;
                Some(Self::Revoke { lease, token: FencingToken::new(token.parse().ok()?) })
            }
            _ => None,
        }
    }
}

/// The connection that listens.
#[derive(Debug)]
pub(super) struct Subscription {
    _listener: AbortOnDropHandle<()>,
    _keeper: AbortOnDropHandle<()>,
}

impl Subscription {
    /// Subscribes on `subscriber`, which carries no other commands, and keeps subscribed. `publisher` is used
    /// once, to see that messages are delivered: a refused SUBSCRIBE looks like a granted one.
    pub(super) async fn open(
        subscriber: &Client,
        publisher: &Client,
        channel: String,
        wake: Arc<Wake>,
        timeouts: Timeouts,
    ) -> Result<Self, BackendError> {
        let messages = subscriber.message_rx();
        let reconnects = subscriber.reconnect_rx();
        subscribe(subscriber, &channel, timeouts).await?;
        prove(publisher, &channel).await?;
        let listener = tokio::spawn(listen(messages, Arc::clone(&wake)));
        let keeper = tokio::spawn(keep(subscriber.clone(), channel, wake, reconnects, timeouts));
        Ok(Self { _listener: AbortOnDropHandle::new(listener), _keeper: AbortOnDropHandle::new(keeper) })
    }
}

/// Subscribes and waits until the server has done so: SUBSCRIBE itself is not waited for by fred, but answers
/// come in order.
async fn subscribe(subscriber: &Client, channel: &str, timeouts: Timeouts) -> Result<(), BackendError> {
    let steps = async {
        subscriber.subscribe(channel).await?;
        subscriber.ping::<()>(None).await
    };
    match timeout(timeouts.connect, steps).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(not_permitted(&error).unwrap_or_else(|| sort(error))),
        Err(late) => Err(BackendError::Unanswered { source: late.into() }),
    }
}

/// Publishes a message to ourselves, and fails if nobody would receive it.
async fn prove(publisher: &Client, channel: &str) -> Result<(), BackendError> {
    match publisher.publish::<i64, _, _>(channel, "probe").await {
        Ok(0) => Err(BackendError::Refused { source: NOT_PERMITTED.into() }),
        Ok(_) => Ok(()),
        Err(error) => Err(not_permitted(&error).unwrap_or_else(|| sort(error))),
    }
}

/// What a server says to a user who may not use the channel, with a hint. The answer to SUBSCRIBE can reach
/// whatever was asked next, since fred does not wait for it.
fn not_permitted(error: &FredError) -> Option<BackendError> {
    let denied = error.details().starts_with("NOPERM");
    denied.then(|| BackendError::Refused { source: format!("{}: {NOT_PERMITTED}", error.details()).into() })
}

const NOT_PERMITTED: &str =
    "the user must be allowed to publish and subscribe on channels `leasehold:*`, or it could not wait";

async fn listen(mut messages: tokio::sync::broadcast::Receiver<Message>, wake: Arc<Wake>) {
    loop {
        match messages.recv().await {
            Ok(message) => match message.value.as_bytes_str() {
                Some(text) if &*text == "probe" => {}
                Some(text) => wake.tell(&text),
                None => tracing::warn!("a message on the wake channel that is no text"),
            },
            Err(RecvError::Lagged(lost)) => {
                tracing::debug!(lost, "wake-ups lost, asking again");
                wake.lapse();
            }
            Err(RecvError::Closed) => return,
        }
    }
}

/// Subscribes again after every reconnect, and reconnects a subscription that has gone quiet for good.
async fn keep(
    subscriber: Client,
    channel: String,
    wake: Arc<Wake>,
    mut reconnects: tokio::sync::broadcast::Receiver<fred::types::config::Server>,
    timeouts: Timeouts,
) {
    loop {
        let check = tokio::select! {
            reconnected = reconnects.recv() => match reconnected {
                Ok(_) | Err(RecvError::Lagged(_)) => false,
                Err(RecvError::Closed) => return,
            },
            () = sleep(HEARTBEAT) => true,
            () = wake.suspect.notified() => true,
        };
        if check {
            if !wake.is_idle() && !answers(&subscriber, timeouts).await {
                tracing::debug!("the subscription does not answer, reconnecting");
                match timeout(timeouts.connect * 2, subscriber.force_reconnection()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::debug!(%error, "not reconnected"),
                    Err(_) => tracing::debug!("not reconnected yet"),
                }
            }
            continue;
        }
        while let Err(error) = subscribe(&subscriber, &channel, timeouts).await {
            tracing::debug!(%error, "not subscribed");
            sleep(RETRY).await;
        }
        tracing::debug!("subscribed again, asking again");
        wake.lapse();
    }
}

async fn answers(subscriber: &Client, timeouts: Timeouts) -> bool {
    matches!(timeout(timeouts.reply, subscriber.ping::<()>(None)).await, Ok(Ok(())))
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::backend::LeaseIds;

    fn granted(token: u64, limit: Option<Stated>) -> Pushed {
        let ticket = Ticket::parse("7").unwrap();
        Pushed::Grant { token: FencingToken::new(token), ticket, limit }
    }

    fn wake(ids: &LeaseIds) -> (Wake, mpsc::UnboundedReceiver<(LeaseId, Resource)>) {
        let (strays, stray) = mpsc::unbounded_channel();
        (Wake::new(ids.client(), strays), stray)
    }

    #[test]
    fn a_grant_reaches_its_request_and_only_once() {
        let ids = LeaseIds::new();
        let (wake, mut strays) = wake(&ids);
        let lease = ids.next();
        let mut told = wake.expect_grant(lease, Revocation::default());
        wake.tell(&format!("grant {lease} 42 7 mutex 5 lock:a b"));
        wake.tell(&format!("grant {lease} 42 7 mutex 5 lock:a b"));
        assert_eq!(told.try_recv().unwrap(), granted(42, None));
        assert!(strays.try_recv().is_err());
    }

    #[test]
    fn a_grant_that_nobody_waits_for_is_released() {
        let ids = LeaseIds::new();
        let (wake, mut strays) = wake(&ids);
        let lease = ids.next();
        wake.tell(&format!("grant {lease} 42 7 mutex 5 lock:a b"));
        assert_eq!(strays.try_recv().unwrap(), (lease, Resource::new("lock:a b", Kind::Mutex)));
    }

    #[test]
    fn a_grant_that_comes_while_its_lease_is_released_is_left_to_whoever_does_that() {
        let ids = LeaseIds::new();
        let (wake, mut strays) = wake(&ids);
        let lease = ids.next();
        for granted in [false, true] {
            let told = wake.expect_grant(lease, Revocation::default());
            let leaving = wake.leave(lease);
            wake.tell(&format!("ask {lease} lock:a"));
            if granted {
                wake.tell(&format!("grant {lease} 42 7 mutex 5 lock:a"));
            }
            assert_eq!(leaving.end(), granted);
            assert!(strays.try_recv().is_err() && wake.is_idle());
            drop(told);
        }
        // Given up half way: whoever comes next finds out.
        drop((wake.expect_grant(lease, Revocation::default()), wake.leave(lease)));
        wake.tell(&format!("grant {lease} 42 7 mutex 5 lock:a"));
        assert!(strays.try_recv().is_ok());
    }

    #[test]
    fn a_grant_of_permits_tells_the_limit() {
        let ids = LeaseIds::new();
        let (wake, _strays) = wake(&ids);
        let lease = ids.next();
        let mut told = wake.expect_grant(lease, Revocation::default());
        wake.tell(&format!("grant {lease} 42 7 fair/5/17 10 semaphore:a"));
        let limit = Some(Stated { permits: 5, reign: 17 });
        assert_eq!(told.try_recv().unwrap(), granted(42, limit));
    }

    #[test]
    fn a_request_is_told_to_ask_and_nobody_else_is() {
        let ids = LeaseIds::new();
        let (wake, mut strays) = wake(&ids);
        let lease = ids.next();
        let mut told = wake.expect_grant(lease, Revocation::default());
        wake.tell(&format!("ask {} lock:a", ids.next()));
        assert!(told.try_recv().is_err());
        wake.tell(&format!("ask {lease} lock:a"));
        assert_eq!(told.try_recv().unwrap(), Pushed::Ask);
        assert!(strays.try_recv().is_err());
    }

    #[test]
    fn a_revocation_reaches_the_holder_and_nonsense_nobody() {
        let ids = LeaseIds::new();
        let (wake, _strays) = wake(&ids);
        let lease = ids.next();
        let revocation = Revocation::default();
        wake.register(lease, revocation.clone());
        wake.hold(lease, Grant::new(FencingToken::new(42), Instant::now()));
        for nonsense in [
            "",
            "grant",
            "revoke x lock:a",
            "grant 1.2 3 k",
            &format!("grant {lease} x mutex k"),
            &format!("grant {lease} 1 k k"),
            &format!("grant {lease} 1 x mutex k"),
            &format!("revoke {lease} x lock:a"),
            "evict a b",
        ] {
            wake.tell(nonsense);
        }
        assert!(!revocation.is_revoked());
        wake.tell(&format!("revoke {lease} 42 lock:a"));
        assert!(revocation.is_revoked());
    }

    #[test]
    fn a_revocation_ends_the_grant_that_it_names_and_no_other() {
        let ids = LeaseIds::new();
        let (wake, _strays) = wake(&ids);
        for (revoked, held, is_revoked) in [(41, 42, false), (42, 42, true), (0, 42, true)] {
            // After the holder has heard of its grant.
            let (lease, revocation) = (ids.next(), Revocation::default());
            wake.register(lease, revocation.clone());
            wake.hold(lease, Grant::new(FencingToken::new(held), Instant::now()));
            wake.tell(&format!("revoke {lease} {revoked} lock:a"));
            assert_eq!(revocation.is_revoked(), is_revoked, "{revoked}, then held under {held}");
        }
        for (revoked, held, is_revoked) in [(41, 42, false), (42, 42, true)] {
            // Before: the answer travels on another connection.
            let (lease, revocation) = (ids.next(), Revocation::default());
            drop(wake.expect_grant(lease, revocation.clone()));
            wake.tell(&format!("revoke {lease} {revoked} lock:a"));
            drop(wake.expect_grant(lease, revocation.clone()));
            assert!(!revocation.is_revoked());
            wake.hold(lease, Grant::new(FencingToken::new(held), Instant::now()));
            assert_eq!(revocation.is_revoked(), is_revoked, "{revoked}, before it was held under {held}");
        }
    }
}
