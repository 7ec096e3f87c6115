//! One subscription per client: messages from the server become the client's events.
//!
//! Messages travel on another connection than answers, and may arrive late or get lost (in a buffer that overflows, or with a
//! connection). So a grant contains the ticket of its place in the queue, and a revocation the token of the grant that it ends; and
//! whenever messages may have been lost, the client is asked to repeat its waiting requests.

use std::sync::Arc;
use std::time::Duration;

use fred::clients::Client;
use fred::error::Error as FredError;
use fred::interfaces::{ClientLike, EventInterface, PubsubInterface};
use fred::types::Message;
use futures::StreamExt;
use futures::channel::mpsc::{UnboundedSender, unbounded};
use futures::stream::{self, BoxStream};
use tokio::sync::Notify;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::commands::sort;
use super::connection::Connection;
use crate::backend::{Answer, BackendError, Event, Grant, Kind, LeaseId, LeaseRef, Limit, Resource, Ticket};
use crate::fence::FencingToken;
use crate::hash::HashSet;
use crate::sync::Mutex;

/// How often the subscription is checked while leases of this client wait.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// The pause before another attempt to subscribe.
const RETRY: Duration = Duration::from_millis(50);

/// Messages from the server to this client.
#[derive(Debug)]
pub(super) struct Notifications {
    client: Uuid,
    /// The channel for events that come with answers, or originate in this client.
    tell: Mutex<Option<UnboundedSender<Event>>>,
    /// The leases that wait, by their numbers within this client: the subscription is only checked while there are any.
    queued: Mutex<HashSet<u64>>,
    /// Notified when the subscription may have failed.
    suspect: Notify,
}

impl Notifications {
    pub(super) fn new(client: Uuid) -> Self {
        Self { client, tell: Mutex::default(), queued: Mutex::default(), suspect: Notify::new() }
    }

    /// The events from now on. Replaces the stream that was returned before.
    pub(super) fn events(self: &Arc<Self>, subscriber: &Client) -> BoxStream<'static, Event> {
        let (tell, told) = unbounded();
        *self.tell.lock() = Some(tell);
        let messages = stream::unfold((subscriber.message_rx(), Arc::clone(self)), next_message);
        stream::select(messages, told).boxed()
    }

    /// Handles a message that came with an answer.
    pub(super) fn tell(&self, message: &str) {
        if let Some(event) = self.read(message) {
            self.send(event);
        }
    }

    /// Messages may have been lost: has every waiting request repeated.
    pub(super) fn resync(&self) {
        self.send(Event::Resync);
    }

    /// Keeps track of which leases wait. A grant that is found by repeating a request should have been reported before: perhaps the
    /// subscription has failed.
    pub(super) fn answered(&self, lease: LeaseId, answer: &Answer) {
        match answer {
            Answer::Queued(_) => drop(self.queued.lock().insert(lease.sequence())),
            Answer::Granted(grant) if self.forget(lease) && grant.remaining.is_some() => {
                self.suspect.notify_one();
            }
            Answer::Granted(_) | Answer::Busy { .. } => {}
        }
    }

    /// This lease does not wait any more. Returns whether it did.
    pub(super) fn forget(&self, lease: LeaseId) -> bool {
        let mut queued = self.queued.lock();
        !queued.is_empty() && queued.remove(&lease.sequence())
    }

    fn is_idle(&self) -> bool {
        self.queued.lock().is_empty()
    }

    fn send(&self, event: Event) {
        if let Some(tell) = &*self.tell.lock() {
            // The receiver is gone once the client is closed.
            let _ = tell.unbounded_send(event);
        }
    }

    fn read(&self, message: &str) -> Option<Event> {
        let event = read(message).filter(|event| {
            let of = match event {
                Event::Granted { lease, .. } => lease.id,
                Event::Revoked { lease, .. } | Event::AskAgain(lease) => *lease,
                _ => return true,
            };
            of.client() == self.client
        });
        match &event {
            Some(Event::Granted { lease, .. }) => drop(self.forget(lease.id)),
            Some(_) => {}
            None => tracing::warn!(message, "a message on the wake channel that is not for this client"),
        }
        event
    }
}

async fn next_message(
    (mut messages, notifications): (Receiver<Message>, Arc<Notifications>),
) -> Option<(Event, (Receiver<Message>, Arc<Notifications>))> {
    let event = loop {
        match messages.recv().await {
            Ok(message) => match message.value.as_bytes_str() {
                Some(text) if &*text == "probe" => {}
                Some(text) => {
                    if let Some(event) = notifications.read(&text) {
                        break event;
                    }
                }
                None => tracing::warn!("a message on the wake channel that is no text"),
            },
            Err(RecvError::Lagged(lost)) => {
                tracing::debug!(lost, "wake-ups lost, asking again");
                break Event::Resync;
            }
            Err(RecvError::Closed) => return None,
        }
    };
    Some((event, (messages, notifications)))
}

/// Parses a message of the client's channel. The key comes last, because it may contain spaces.
fn read(message: &str) -> Option<Event> {
    let (verb, rest) = message.split_once(' ')?;
    let (lease, rest) = rest.split_once(' ')?;
    let lease = LeaseId::parse(lease)?;
    match verb {
        "grant" => {
            let (token, rest) = rest.split_once(' ')?;
            let (ticket, rest) = rest.split_once(' ')?;
            let (kind, rest) = rest.split_once(' ')?;
            let (prefix_len, key) = rest.split_once(' ')?;
            let (token, ticket) = (FencingToken::new(token.parse().ok()?), Ticket::new(ticket.parse().ok()?));
            // For a semaphore: kind/limit/version.
            let mut parts = kind.split('/');
            let kind = Kind::parse(parts.next()?)?;
            let limit = match (parts.next(), parts.next()) {
                (Some(limit), Some(version)) => Some(Limit::new(limit.parse().ok()?, version.parse().ok()?)),
                _ => None,
            };
            let lease = LeaseRef::new(lease, Resource::split_at(key, prefix_len.parse().ok()?, kind)?);
            Some(Event::Granted { lease, ticket, grant: Grant::new(token, limit) })
        }
        "ask" => Some(Event::AskAgain(lease)),
        "revoke" => {
            let (token, _key) = rest.split_once(' ')?;
            Some(Event::Revoked { lease, token: FencingToken::new(token.parse().ok()?) })
        }
        _ => None,
    }
}

/// The channel of a client, and who is told what arrives there.
#[derive(Clone, Debug)]
pub(super) struct Channel {
    name: String,
    notifications: Arc<Notifications>,
}

impl Channel {
    pub(super) const fn new(name: String, notifications: Arc<Notifications>) -> Self {
        Self { name, notifications }
    }
}

/// The subscription, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Subscription {
    _keeper: AbortOnDropHandle<()>,
}

impl Subscription {
    /// Subscribes on `subscriber`, which carries no other commands, and stays subscribed. `publisher` is used once, to check that
    /// messages are delivered: a rejected SUBSCRIBE looks like a successful one.
    pub(super) async fn open(
        subscriber: &Arc<Connection>,
        publisher: &Client,
        channel: Channel,
    ) -> Result<Self, BackendError> {
        let reconnects = subscriber.client.reconnect_rx();
        subscribe(subscriber, &channel).await?;
        prove(publisher, &channel.name).await?;
        let keeper = tokio::spawn(keep(Arc::clone(subscriber), channel, reconnects));
        Ok(Self { _keeper: AbortOnDropHandle::new(keeper) })
    }

    /// The same for a connection that was made anew: it is subscribed as soon as the server answers.
    pub(super) fn reopen(subscriber: &Arc<Connection>, channel: Channel) -> Self {
        let (subscriber, reconnects) = (Arc::clone(subscriber), subscriber.client.reconnect_rx());
        let keeper = tokio::spawn(async move {
            subscribe_again(&subscriber, &channel).await;
            keep(subscriber, channel, reconnects).await;
        });
        Self { _keeper: AbortOnDropHandle::new(keeper) }
    }
}

/// Subscribes and waits until the server has processed it: fred does not wait for the answer to SUBSCRIBE, but answers
/// arrive in order.
async fn subscribe(subscriber: &Connection, channel: &Channel) -> Result<(), BackendError> {
    let steps = async {
        subscriber.client.subscribe(channel.name.as_str()).await?;
        subscriber.client.ping::<()>(None).await
    };
    match timeout(subscriber.timeouts.connect, steps).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(not_permitted(&error).unwrap_or_else(|| sort(error))),
        Err(late) => Err(BackendError::Unanswered { source: late.into() }),
    }
}

/// Publishes a message on the client's own channel, and fails if nobody receives it.
async fn prove(publisher: &Client, channel: &str) -> Result<(), BackendError> {
    match publisher.publish::<i64, _, _>(channel, "probe").await {
        Ok(0) => Err(BackendError::Refused { source: NOT_PERMITTED.into() }),
        Ok(_) => Ok(()),
        Err(error) => Err(not_permitted(&error).unwrap_or_else(|| sort(error))),
    }
}

/// The error of a server that does not allow the user to use the channel, with a hint. The answer to SUBSCRIBE may be taken for
/// that of the next command, because fred does not wait for it.
fn not_permitted(error: &FredError) -> Option<BackendError> {
    let denied = error.details().starts_with("NOPERM");
    denied.then(|| BackendError::Refused { source: format!("{}: {NOT_PERMITTED}", error.details()).into() })
}

const NOT_PERMITTED: &str =
    "the user must be allowed to publish and subscribe on channels `leasehold:*`, or it could not wait";

/// Subscribes again after every reconnect, and reconnects a connection that does not answer any more.
async fn keep(
    subscriber: Arc<Connection>,
    channel: Channel,
    mut reconnects: tokio::sync::broadcast::Receiver<fred::types::config::Server>,
) {
    let notifications = &channel.notifications;
    loop {
        let check = tokio::select! {
            reconnected = reconnects.recv() => match reconnected {
                Ok(_) | Err(RecvError::Lagged(_)) => false,
                Err(RecvError::Closed) => return,
            },
            () = sleep(HEARTBEAT) => true,
            () = notifications.suspect.notified() => true,
        };
        if check {
            if !notifications.is_idle() && !answers(&subscriber).await {
                tracing::debug!("the subscription does not answer, reconnecting");
                match timeout(subscriber.timeouts.connect * 2, subscriber.client.force_reconnection()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::debug!(%error, "not reconnected"),
                    Err(_) => tracing::debug!("not reconnected yet"),
                }
            }
            continue;
        }
        subscribe_again(&subscriber, &channel).await;
    }
}

async fn subscribe_again(subscriber: &Connection, channel: &Channel) {
    while let Err(error) = subscribe(subscriber, channel).await {
        tracing::debug!(%error, "not subscribed");
        sleep(RETRY).await;
    }
    tracing::debug!("subscribed again, asking again");
    channel.notifications.resync();
}

async fn answers(subscriber: &Connection) -> bool {
    matches!(timeout(subscriber.timeouts.reply, subscriber.client.ping::<()>(None)).await, Ok(Ok(())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::LeaseIds;

    fn granted(lease: LeaseId, kind: Kind, key: &str, limit: Option<Limit>) -> Event {
        let lease = LeaseRef::new(lease, Resource::new(key, kind));
        Event::Granted { lease, ticket: Ticket::new(7), grant: Grant::new(FencingToken::new(42), limit) }
    }

    #[test]
    fn a_grant_tells_its_place_and_of_permits_the_limit() {
        let ids = LeaseIds::new();
        let (notifications, lease) = (Notifications::new(ids.client()), ids.next());
        let told = notifications.read(&format!("grant {lease} 42 7 mutex 5 lock:a b"));
        assert_eq!(told, Some(granted(lease, Kind::Mutex, "lock:a b", None)));
        let told = notifications.read(&format!("grant {lease} 42 7 fair/5/17 10 semaphore:a"));
        assert_eq!(told, Some(granted(lease, Kind::Fair, "semaphore:a", Some(Limit::new(5, 17)))));
    }

    #[test]
    fn revocations_and_requests_to_ask_name_their_lease() {
        let ids = LeaseIds::new();
        let (notifications, lease) = (Notifications::new(ids.client()), ids.next());
        let told = notifications.read(&format!("revoke {lease} 42 lock:a"));
        assert_eq!(told, Some(Event::Revoked { lease, token: FencingToken::new(42) }));
        assert_eq!(notifications.read(&format!("ask {lease} lock:a")), Some(Event::AskAgain(lease)));
    }

    #[test]
    fn nonsense_and_what_is_for_others_is_told_to_nobody() {
        let ids = LeaseIds::new();
        let (notifications, lease) = (Notifications::new(ids.client()), ids.next());
        for nonsense in [
            "",
            "grant",
            "revoke x lock:a",
            "grant 1.2 3 k",
            &format!("grant {lease} x 1 mutex 0 k"),
            &format!("grant {lease} 1 k k"),
            &format!("grant {lease} 1 x mutex 0 k"),
            &format!("grant {lease} 1 2 mutex k"),
            &format!("grant {lease} 1 2 mutex 2 k"),
            &format!("revoke {lease} x lock:a"),
            &format!("ask {} lock:a", LeaseIds::new().next()),
            "evict a b",
        ] {
            assert_eq!(notifications.read(nonsense), None, "{nonsense}");
        }
    }

    #[tokio::test]
    async fn a_grant_that_was_found_and_not_told_makes_the_subscription_suspect() {
        let ids = LeaseIds::new();
        let (notifications, lease) = (Notifications::new(ids.client()), ids.next());
        let queued = Answer::Queued(crate::backend::Queued::new(Ticket::new(7), None, None));
        let found = Answer::Granted(Grant::new(FencingToken::new(42), None).lasting(RETRY));
        let suspected = || timeout(Duration::ZERO, notifications.suspect.notified());
        notifications.answered(lease, &queued);
        assert!(!notifications.is_idle());
        notifications.read(&format!("grant {lease} 42 7 mutex 5 lock:a"));
        notifications.answered(lease, &found);
        assert!(suspected().await.is_err(), "it was told");
        notifications.answered(lease, &queued);
        notifications.answered(lease, &found);
        assert!(suspected().await.is_ok() && notifications.is_idle());
    }
}
