//! Messages to this client: the grants that others make to it, each put into its mailbox by the transaction that makes
//! it. One watch, which always stands, sees every one of them.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use parking_lot::Mutex;
use prost::Message;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tonic::Streaming;
use uuid::Uuid;

use super::connection::Connection;
use super::mail::Mail;
use super::proto::{
    EventType, Header, KeyValue, WatchCreateRequest, WatchEvent, WatchRequest, WatchResponse, WatchWish,
};
use super::shared::Shared;
use crate::backend::records::{Failure, Purpose};
use crate::backend::{Event, EventSender};
use crate::runtime::spawn_on;

/// The pause between attempts to watch.
const PAUSE: Duration = Duration::from_millis(200);

pub(super) struct Mailbox {
    shared: Arc<Shared>,
    inbox: Mutex<Inbox>,
    closing: CancellationToken,
}

#[derive(Default)]
struct Inbox {
    is_started: bool,
    events: EventSender,
}

/// Up to where the mailbox has been seen.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    cluster: u64,
    /// The revision to go on with; 0 if there is none.
    next: i64,
}

impl Mailbox {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, inbox: Mutex::default(), closing: CancellationToken::new() }
    }

    /// The messages from now on to the client of this name, which never changes. A later stream replaces an earlier
    /// one.
    pub(super) fn open(self: &Arc<Self>, client: Uuid, runtime: &Handle) -> BoxStream<'static, Event> {
        let mut inbox = self.inbox.lock();
        let events = inbox.events.open();
        if !std::mem::replace(&mut inbox.is_started, true) {
            self.shared.leases.set_client(client);
            let mailbox = Arc::clone(self);
            spawn_on(runtime, async move {
                let closing = mailbox.closing.clone();
                closing.run_until_cancelled(mailbox.watch(client)).await;
            });
        } else {
            // The previous stream may have received messages that this one did not.
            inbox.events.send(Event::Resync);
        }
        drop(inbox);
        events.chain(stream::pending()).boxed()
    }

    pub(super) fn close(&self) {
        self.closing.cancel();
    }

    async fn watch(&self, client: Uuid) {
        let mut seen = Seen::default();
        loop {
            let mut begun = None;
            let Err(failure) = self.watch_once(client, &mut seen, &mut begun).await;
            if self.shared.link.is_closed() {
                return;
            }
            if begun.is_some_and(|begun: Instant| begun.elapsed() > PAUSE) {
                // The connection may only have been closed while nobody used it: the next attempt tells.
                tracing::debug!(store = %self.shared.settings.address, %failure, "the watch begins again");
                continue;
            }
            self.shared.health.failed(Purpose::Notifications, &failure.why);
            sleep(PAUSE).await;
        }
    }

    /// Watches on one connection until it is lost. Tells when the watch has begun.
    async fn watch_once(
        &self,
        client: Uuid,
        seen: &mut Seen,
        begun: &mut Option<Instant>,
    ) -> Result<Infallible, Failure> {
        let connection = self.shared.link.open().await?;
        let watched = async {
            let mut watch = self.begin(&connection, client, seen).await?;
            *begun = Some(Instant::now());
            self.shared.health.succeeded(Purpose::Notifications);
            loop {
                match connection.next(&mut watch.changes).await? {
                    Some(response) => self.hear(response, client, seen)?,
                    None => return Err(Failure::unavailable("the watch has ended")),
                }
            }
        };
        let ended = tokio::select! {
            ended = watched => ended,
            () = connection.broken() => Err(Failure::unavailable("the connection was lost")),
        };
        if let Err(failure) = &ended
            && failure.is_broken
        {
            connection.give_up();
        }
        ended
    }

    /// Goes on where an earlier watch has ended. If that is not possible, messages may have been lost.
    async fn begin(
        &self,
        connection: &Arc<Connection>,
        client: Uuid,
        seen: &mut Seen,
    ) -> Result<Watch, Failure> {
        let mut may_log_in = connection.has_login();
        loop {
            let create = WatchCreateRequest {
                key: self.shared.keys.mailbox(client),
                range_end: Vec::new(),
                start_revision: seen.next,
            };
            let create = WatchRequest { wish: Some(WatchWish::Create(create)) };
            // The watch ends with the stream of requests, and that when the watch is dropped.
            let (open, dropped) = oneshot::channel();
            let requests = stream::iter([create]).chain(stream::pending()).take_until(dropped);
            let begun = async {
                let mut changes = connection.watch_stream(requests).await?;
                let response = connection.next(&mut changes).await?;
                Ok((changes, response.ok_or_else(|| Failure::unavailable("the watch has ended"))?))
            };
            let (changes, response) = connection.within(begun).await?;
            let header = response.header.unwrap_or_default();
            let is_possible = seen.next == 0 || seen.is_before(&header);
            if is_possible && response.created && !response.canceled {
                if seen.next == 0 {
                    *seen = Seen { cluster: header.cluster_id, next: header.revision.saturating_add(1) };
                    self.send(Event::Resync);
                }
                return Ok(Watch { changes, _open: open });
            }
            if response.canceled && std::mem::take(&mut may_log_in) {
                // If the token has expired, the reason is that permission is denied.
                connection.renew_login().await?;
                continue;
            }
            if seen.next == 0 {
                return Err(canceled(&response));
            }
            // It was compacted, or the cluster has lost its data: the next attempt begins with what happens from now
            // on.
            *seen = Seen::default();
        }
    }

    fn hear(&self, response: WatchResponse, client: Uuid, seen: &mut Seen) -> Result<(), Failure> {
        if response.canceled {
            if response.compact_revision > 0 {
                *seen = Seen::default();
            }
            return Err(canceled(&response));
        }
        for WatchEvent { kind, kv } in response.events {
            let Some(kv) = kv else { continue };
            seen.next = seen.next.max(kv.mod_revision.saturating_add(1));
            if kind == i32::from(EventType::Put) {
                self.read(&kv, client);
            }
        }
        Ok(())
    }

    /// Passes on what is in a mailbox.
    fn read(&self, kv: &KeyValue, client: Uuid) {
        let mail = Mail::decode(kv.value.as_slice()).ok();
        let events =
            mail.as_ref().and_then(|mail| mail.events.iter().map(|event| event.parse().ok()).collect());
        let Some((mail, events)) = mail.zip::<Vec<Event>>(events) else {
            tracing::debug!(store = %self.shared.settings.address, "a mailbox contains something that is not a message");
            return;
        };
        // Any user with write access to this prefix can put anything there.
        let is_ours = |event: &Event| event.lease().is_some_and(|lease| lease.client() == client);
        let events: Vec<_> = events.into_iter().filter(is_ours).collect();
        let granted: Option<&Arc<str>> = events.iter().find_map(|event| match event {
            Event::Granted { lease, .. } => Some(&lease.resource.key),
            _ => None,
        });
        if let Some(key) = granted {
            // What another client has granted is known before it is acted upon.
            self.shared.schedule.forget(key);
            if let Some(view) = mail.view(&self.shared.keys.of(key), kv.mod_revision) {
                self.shared.schedule.cache(key, view);
            }
        }
        events.into_iter().for_each(|event| self.send(event));
    }

    fn send(&self, event: Event) {
        self.inbox.lock().events.send(event);
    }
}

impl Seen {
    /// Whether a cluster in this state can have what is to be seen next.
    const fn is_before(&self, header: &Header) -> bool {
        self.cluster == header.cluster_id && self.next <= header.revision.saturating_add(1)
    }
}

/// A watch, which ends when it is dropped.
struct Watch {
    changes: Streaming<WatchResponse>,
    _open: oneshot::Sender<()>,
}

fn canceled(response: &WatchResponse) -> Failure {
    let reason = response.cancel_reason.trim_start_matches("etcdserver: ");
    let reason = if reason.is_empty() { "for no reason" } else { reason };
    Failure::unavailable(format!("the watch was canceled: {reason}"))
}
