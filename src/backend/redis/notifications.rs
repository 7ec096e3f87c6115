//! One subscription per client: messages from the server become the client's events.
//!
//! Messages travel on another connection than answers, and may arrive late or get lost (in a buffer that overflows, or
//! with a connection). So a grant contains the ticket of its place in the queue, and a revocation the token of the
//! grant that it ends; and whenever messages may have been lost, the client is asked to repeat its waiting requests.

use std::fmt;
use std::str;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::channel::mpsc::{UnboundedSender, unbounded};
use futures::future::ready;
use futures::stream::{self, BoxStream};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::connection::Connection;
use super::elections::{Elections, processed, within};
use super::keys;
use super::link::{CallError, Link, Message, command};
use crate::backend::observed::Observed;
use crate::backend::{
    Answer, BackendError, Event, EventSender, Grant, Kind, LeaseId, LeaseRef, Limit, Resource, Ticket,
};
use crate::fence::FencingToken;
use crate::hash::HashSet;
use crate::runtime::spawn_on;

/// How often the subscription is checked while leases of this client wait.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// The pause before another attempt to subscribe.
const RETRY: Duration = Duration::from_millis(50);

/// Messages from the server to this client.
#[derive(Debug)]
pub(super) struct Notifications {
    client: Uuid,
    /// The channel on which they are published.
    pub(super) channel: String,
    listener: Mutex<Listener>,
    /// How many links have been subscribed: after another one, the store may be another one as well.
    links: AtomicU64,
    /// The leases that wait, by their numbers within this client: the subscription is only checked while there are any.
    queued: Mutex<HashSet<u64>>,
    /// Notified when the subscription may have failed.
    suspect: Notify,
    /// The elections that are observed.
    pub(super) observed: Arc<Observed>,
    /// Whether a pushed grant must be confirmed by a request, because it counts only when replicas have it.
    confirms: bool,
}

/// Where events go: the stream that was returned last.
#[derive(Default)]
struct Listener {
    /// For events that come with answers, or originate in this client.
    events: EventSender,
    /// For the messages of one link after another.
    links: Option<UnboundedSender<BoxStream<'static, Message>>>,
    /// The link that is subscribed now, or was last.
    link: Option<Arc<dyn Link>>,
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("link", &self.link).finish_non_exhaustive()
    }
}

impl Notifications {
    pub(super) fn new(client: Uuid, confirms: bool) -> Self {
        Self {
            client,
            channel: keys::channel(client),
            listener: Mutex::default(),
            links: AtomicU64::new(0),
            queued: Mutex::default(),
            suspect: Notify::new(),
            observed: Arc::default(),
            confirms,
        }
    }

    /// The events from now on. Replaces the stream that was returned before.
    pub(super) fn events(self: &Arc<Self>) -> BoxStream<'static, Event> {
        let (links, linked) = unbounded();
        let mut listener = self.listener.lock();
        let events = listener.events.open();
        if let Some(link) = &listener.link {
            // The receiver exists.
            let _ = links.unbounded_send(link.messages());
        }
        listener.links = Some(links);
        drop(listener);
        let notifications = Arc::clone(self);
        let pushed = linked.flatten().filter_map(move |message| ready(notifications.event(&message)));
        stream::select(pushed, events).boxed()
    }

    /// From now on this link is subscribed.
    fn listen_to(&self, link: Arc<dyn Link>) {
        let mut listener = self.listener.lock();
        if let Some(links) = &listener.links {
            // The receiver is gone once the client is closed.
            let _ = links.unbounded_send(link.messages());
        }
        listener.link = Some(link);
        self.links.fetch_add(1, Ordering::Relaxed);
    }

    /// How many links have been subscribed so far.
    pub(super) fn links(&self) -> u64 {
        self.links.load(Ordering::Relaxed)
    }

    fn event(&self, message: &Message) -> Option<Event> {
        match message {
            // It is for those who observe an election.
            Message::Text { channel, .. } if **channel != *self.channel.as_bytes() => None,
            Message::Text { text, .. } => match str::from_utf8(text) {
                Ok("probe") => None,
                Ok(text) => self.read(text),
                Err(_) => {
                    tracing::warn!(target: "leasehold::store", "received a message that is not text");
                    None
                }
            },
            Message::Lost(lost) => {
                tracing::debug!(lost, "messages lost, repeating waiting requests");
                Some(Event::Resync)
            }
        }
    }

    /// Handles a message that came with an answer.
    pub(super) fn send_message(&self, message: &str) {
        if let Some(event) = self.read(message) {
            self.send(event);
        }
    }

    /// Messages may have been lost: makes every waiting request repeat.
    pub(super) fn resync(&self) {
        self.send(Event::Resync);
    }

    /// Keeps track of which leases wait. A grant that is found by repeating a request should have been reported before:
    /// perhaps the subscription has failed.
    pub(super) fn answered(&self, lease: LeaseId, answer: &Answer) {
        match answer {
            Answer::Queued(_) => drop(self.queued.lock().insert(lease.sequence())),
            Answer::Granted(grant) if self.forget(lease) && grant.remaining.is_some() => {
                self.suspect.notify_one();
            }
            Answer::Granted(_) | Answer::Busy { .. } => {}
        }
    }

    /// This lease no longer waits. Returns whether it did.
    pub(super) fn forget(&self, lease: LeaseId) -> bool {
        let mut queued = self.queued.lock();
        !queued.is_empty() && queued.remove(&lease.sequence())
    }

    /// A call was not answered in time: perhaps messages do not arrive either.
    pub(super) fn suspect(&self) {
        self.suspect.notify_one();
    }

    fn is_idle(&self) -> bool {
        self.queued.lock().is_empty()
    }

    fn send(&self, event: Event) {
        self.listener.lock().events.send(event);
    }

    /// Whether this client has requested this lease, and so is told of it.
    pub(super) fn are_for(&self, lease: LeaseId) -> bool {
        lease.client() == self.client
    }

    pub(super) fn read(&self, message: &str) -> Option<Event> {
        let event = read(message).filter(|event| event.lease().is_none_or(|lease| self.are_for(lease)));
        match &event {
            Some(Event::Granted { lease, .. }) => {
                self.forget(lease.id);
                if self.confirms {
                    return Some(Event::AskAgain(lease.id));
                }
            }
            Some(_) => {}
            None => {
                tracing::warn!(target: "leasehold::store", message, "received a message that is not for this client")
            }
        }
        event
    }
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

// The subscription

impl Notifications {
    /// Subscribes on `subscriber`, which carries no other commands, and stays subscribed, by a task on the crate's own
    /// thread, until the result is dropped. `publisher` is used once, to check that messages are delivered: a rejected
    /// SUBSCRIBE looks like a successful one. (In a cluster a node does not say who has received a message.)
    pub(super) async fn subscribe(
        self: &Arc<Self>,
        own: &Handle,
        subscriber: &Arc<Connection>,
        publisher: Option<&Connection>,
    ) -> Result<AbortOnDropHandle<()>, BackendError> {
        let links = subscriber.links();
        let link = subscriber.link().await?;
        self.listen_to(Arc::clone(&link));
        self.subscribe_on(&*link, subscriber.timeouts().connect).await.map_err(not_permitted)?;
        if let Some(publisher) = publisher {
            verify_delivery(publisher, &self.channel, &*link, subscriber.timeouts().reply).await?;
        }
        let stay = Arc::clone(self).stay_subscribed(Arc::clone(subscriber), links, link);
        Ok(AbortOnDropHandle::new(spawn_on(own, stay)))
    }

    /// Subscribes on every new link but `subscribed`, and replaces a link that no longer answers. On each of them, the
    /// channels of the elections that are observed are subscribed as well.
    async fn stay_subscribed(
        self: Arc<Self>,
        subscriber: Arc<Connection>,
        mut links: watch::Receiver<Option<Arc<dyn Link>>>,
        mut subscribed: Arc<dyn Link>,
    ) {
        let mut may_observe = true;
        loop {
            let link = match links.wait_for(Option::is_some).await {
                Ok(link) => link.clone(),
                Err(_) => return,
            };
            let Some(link) = link else { continue };
            if !Arc::ptr_eq(&subscribed, &link) {
                self.subscribe_again(&link, subscriber.timeouts().connect).await;
            }
            let mut elections = Elections::default();
            while !link.ended().is_cancelled() {
                if may_observe {
                    may_observe =
                        self.observe_on(&*link, &mut elections, subscriber.timeouts().connect).await;
                }
                tokio::select! {
                    () = link.ended().cancelled() => break,
                    () = self.observed.altered() => continue,
                    () = elections.hear(&self.observed) => continue,
                    () = sleep(HEARTBEAT) => {}
                    () = self.suspect.notified() => {}
                }
                // Its connection is replaced if it does not answer.
                let is_observing = !elections.is_empty();
                while (is_observing || !self.is_idle())
                    && !link.ended().is_cancelled()
                    && matches!(subscriber.command(&["PING"]).await, Err(CallError::Timeout(_)))
                {
                    tracing::debug!("the subscription does not answer");
                }
            }
            subscribed = link;
            // The link may not have been taken out yet.
            if links.changed().await.is_err() {
                return;
            }
        }
    }

    async fn subscribe_again(&self, link: &Arc<dyn Link>, time_limit: Duration) {
        self.listen_to(Arc::clone(link));
        while !link.ended().is_cancelled() {
            match self.subscribe_on(&**link, time_limit).await {
                Ok(()) => {
                    tracing::debug!("subscribed again, repeating waiting requests");
                    return self.resync();
                }
                // If that was the answer to SUBSCRIBE, the client library may take each answer for that of the command
                // before it.
                Err(error) if error.is_refusal_for_now() => {
                    sleep(RETRY).await;
                    link.abort();
                }
                Err(error) => tracing::debug!(%error, "not subscribed"),
            }
            sleep(RETRY).await;
        }
    }

    /// Subscribes, and waits until the server has processed it.
    async fn subscribe_on(&self, link: &dyn Link, time_limit: Duration) -> Result<(), CallError> {
        let steps = async {
            link.subscribe(&self.channel).await?;
            processed(link).await
        };
        within(time_limit, steps).await
    }

    /// Subscribes what is observed, and nothing else. If that fails, the link is replaced. Returns whether it may be
    /// tried again: not if this user must not subscribe, because other messages arrive on the same link.
    async fn observe_on(&self, link: &dyn Link, elections: &mut Elections, time_limit: Duration) -> bool {
        let due = elections.due(&self.observed);
        if let Err(error) = elections.leave(&due.removed, link, time_limit).await {
            tracing::debug!(%error, "subscriptions that are not needed end with their connection");
            link.abort();
            return true;
        }
        let Err(error) = elections.join(due.added, &self.observed, link, time_limit).await else {
            return true;
        };
        let is_denied = error.answers("NOPERM");
        if is_denied {
            tracing::warn!(target: "leasehold::store", %error, "changes of leadership are not pushed: this user may not subscribe to their channels");
        } else {
            tracing::debug!(%error, "the channels of elections are subscribed again");
            sleep(RETRY).await;
        }
        link.abort();
        !is_denied
    }
}

/// Publishes a message on the client's own channel, and fails if nobody receives it, although the subscribed link still
/// answers.
async fn verify_delivery(
    publisher: &Connection,
    channel: &str,
    subscribed: &dyn Link,
    time_limit: Duration,
) -> Result<(), BackendError> {
    let receivers = publisher.command(&["PUBLISH", channel, "probe"]).await.map_err(not_permitted)?;
    if receivers.as_i64() != Some(0) {
        return Ok(());
    }
    if answers(subscribed, time_limit).await {
        return Err(BackendError::Refused { source: NOT_PERMITTED.into() });
    }
    Err(BackendError::NotSent { source: "the subscribed connection was lost".into() })
}

/// The error of a server that does not allow the user to use the channel gets a hint. The answer to SUBSCRIBE may be
/// taken for that of the next command, because fred does not wait for it.
fn not_permitted(error: CallError) -> BackendError {
    if error.answers("NOPERM") {
        BackendError::Refused { source: format!("{error}: {NOT_PERMITTED}").into() }
    } else {
        error.into()
    }
}

const NOT_PERMITTED: &str = "the user needs permission to publish and subscribe to the channels `leasehold:*`; without it, no call can wait";

async fn answers(link: &dyn Link, time_limit: Duration) -> bool {
    matches!(timeout(time_limit, command(link, &["PING"])).await, Ok(Ok(_) | Err(CallError::Answer(_))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(lease: LeaseId, kind: Kind, key: &str, limit: Option<Limit>) -> Event {
        let lease = LeaseRef::new(lease, Resource::new(key, kind));
        Event::Granted { lease, ticket: Ticket::new(7), grant: Grant::new(FencingToken::new(42), limit) }
    }

    #[test]
    fn a_grant_message_names_the_place_and_for_permits_the_limit() {
        let lease = LeaseId::next(Uuid::new_v4());
        let notifications = Notifications::new(lease.client(), false);
        let event = notifications.read(&format!("grant {lease} 42 7 mutex 5 lock:a b"));
        assert_eq!(event, Some(granted(lease, Kind::Mutex, "lock:a b", None)));
        let event = notifications.read(&format!("grant {lease} 42 7 fair/5/17 10 semaphore:a"));
        assert_eq!(event, Some(granted(lease, Kind::Fair, "semaphore:a", Some(Limit::new(5, 17)))));
    }

    #[test]
    fn revocations_and_prompts_name_their_lease() {
        let lease = LeaseId::next(Uuid::new_v4());
        let notifications = Notifications::new(lease.client(), false);
        let event = notifications.read(&format!("revoke {lease} 42 lock:a"));
        assert_eq!(event, Some(Event::Revoked { lease, token: FencingToken::new(42) }));
        assert_eq!(notifications.read(&format!("ask {lease} lock:a")), Some(Event::AskAgain(lease)));
    }

    #[test]
    fn malformed_messages_and_messages_for_others_are_ignored() {
        let lease = LeaseId::next(Uuid::new_v4());
        let notifications = Notifications::new(lease.client(), false);
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
            &format!("ask {} lock:a", LeaseId::next(Uuid::new_v4())),
            "evict a b",
        ] {
            assert_eq!(notifications.read(nonsense), None, "{nonsense}");
        }
    }

    #[tokio::test]
    async fn a_grant_without_a_message_makes_the_subscription_suspect() {
        let lease = LeaseId::next(Uuid::new_v4());
        let notifications = Notifications::new(lease.client(), false);
        let queued = Answer::Queued(crate::backend::Queued::new(Ticket::new(7), None, None));
        let found = Answer::Granted(Grant::new(FencingToken::new(42), None).lasting(RETRY));
        let suspected = || timeout(Duration::ZERO, notifications.suspect.notified());
        notifications.answered(lease, &queued);
        assert!(!notifications.is_idle());
        notifications.read(&format!("grant {lease} 42 7 mutex 5 lock:a"));
        notifications.answered(lease, &found);
        assert!(suspected().await.is_err(), "it was notified");
        notifications.answered(lease, &queued);
        notifications.answered(lease, &found);
        assert!(suspected().await.is_ok() && notifications.is_idle());
    }
}
