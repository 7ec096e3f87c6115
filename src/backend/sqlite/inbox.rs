//! Events for this client: datagrams of other processes, messages inside this one, and what polling finds.
//!
//! A datagram is an event as text. Only a sender that has read this client's leases in the file can send one that is
//! accepted: it must name a lease of this client, whose id contains 122 random bits that are sent to no one else.
//! Nothing depends on their arrival.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{Ipv4Addr, UdpSocket};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, Weak};

use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use parking_lot::Mutex;
use uuid::Uuid;

use crate::backend::{Event, EventSender, LeaseId, Ledger};
use crate::origin::PerProcess;

/// A grant names a key, of at most a kilobyte.
const LONGEST: usize = 4096;

/// The inboxes of this process.
static HERE: PerProcess<BTreeMap<Uuid, Weak<Inbox>>> = PerProcess::new();

/// The inbox of a client.
#[derive(Debug)]
pub(super) struct Inbox {
    /// `None` where there is no loopback interface, so this client polls, and once the client is closed.
    socket: Mutex<Option<UdpSocket>>,
    client: OnceLock<Uuid>,
    events: Mutex<EventSender>,
    /// The leases of this client that waited when it last changed or saw the record of their key.
    waiting: Mutex<HashMap<Arc<str>, HashSet<LeaseId>>>,
}

impl Inbox {
    pub(super) fn new() -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
        let socket = socket.and_then(|socket| socket.set_nonblocking(true).map(|()| socket)).ok();
        let socket = Mutex::new(socket);
        Self { socket, client: OnceLock::new(), events: Mutex::default(), waiting: Mutex::default() }
    }

    /// The events from now on, for the client with this id, which never changes. A later stream replaces an earlier
    /// one.
    pub(super) fn open(self: &Arc<Self>, client: Uuid) -> BoxStream<'static, Event> {
        let events = self.events.lock().open();
        let client = *self.client.get_or_init(|| client);
        HERE.with(|here| here.insert(client, Arc::downgrade(self)));
        stream::select(events, datagrams(Arc::downgrade(self))).boxed()
    }

    /// Where datagrams reach it.
    pub(super) fn port(&self) -> Option<u16> {
        let socket = self.socket.lock();
        socket.as_ref().and_then(|socket| socket.local_addr().ok()).map(|address| address.port())
    }

    /// Nothing is received any more once the last stream of events is gone.
    pub(super) fn close(&self) {
        *self.socket.lock() = None;
    }

    /// Passes on an event that concerns this client.
    pub(super) fn send(&self, event: Event) {
        if let Some(event) = self.accept(event) {
            self.events.lock().send(event);
        }
    }

    /// `None` for the event of another client.
    fn accept(&self, event: Event) -> Option<Event> {
        if event.lease().is_some_and(|lease| self.client.get() != Some(&lease.client())) {
            return None;
        }
        if let Event::Granted { lease, .. } = &event {
            self.forget(&lease.resource.key, lease.id);
        }
        Some(event)
    }

    // Waiting leases

    /// Records which leases of this client wait in a ledger, as it was stored.
    pub(super) fn note(&self, key: &Arc<str>, ledger: &Ledger) {
        let Some(client) = self.client.get() else { return };
        let waiting: HashSet<_> = ledger.waiting().filter(|lease| lease.client() == *client).collect();
        let mut known = self.waiting.lock();
        if waiting.is_empty() {
            known.remove(key);
        } else {
            known.insert(Arc::clone(key), waiting);
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.lock().is_empty()
    }

    /// The keys for which it waits.
    pub(super) fn keys(&self) -> Vec<Arc<str>> {
        self.waiting.lock().keys().cloned().collect()
    }

    /// Compares what is known with a ledger that others have changed: a lease that no longer waits there should ask
    /// what became of it.
    pub(super) fn compare(&self, key: &Arc<str>, ledger: &Ledger) {
        let Some(mut gone) = self.waiting.lock().get(key).cloned() else { return };
        for lease in ledger.waiting() {
            gone.remove(&lease);
        }
        for lease in gone {
            self.forget(key, lease);
            self.send(Event::AskAgain(lease));
        }
    }

    fn forget(&self, key: &Arc<str>, lease: LeaseId) {
        let mut known = self.waiting.lock();
        if let Some(waiting) = known.get_mut(key) {
            waiting.remove(&lease);
            if waiting.is_empty() {
                known.remove(key);
            }
        }
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        if let Some(client) = self.client.get() {
            HERE.with(|here| here.remove(client));
        }
    }
}

/// The inbox of a client, if it is in this process, and not the copy of one in the process that this was forked from.
pub(super) fn here(client: Uuid) -> Option<Arc<Inbox>> {
    HERE.with(|here| here.get(&client).and_then(Weak::upgrade))
}

/// The events that arrive as datagrams, once this is polled on a runtime that can carry sockets. Where there is none,
/// the client polls.
fn datagrams(inbox: Weak<Inbox>) -> BoxStream<'static, Event> {
    let socket = async move {
        let socket = inbox.upgrade()?.socket.lock().as_ref()?.try_clone().ok()?;
        // Tokio panics if this runtime has no I/O.
        let socket = catch_unwind(AssertUnwindSafe(|| tokio::net::UdpSocket::from_std(socket))).ok()?.ok()?;
        Some((inbox, socket))
    };
    let events = socket.into_stream().flat_map(|socket| match socket {
        Some(socket) => stream::unfold(socket, |(inbox, socket)| async {
            let event = next(&inbox, &socket).await?;
            Some((event, (inbox, socket)))
        })
        .boxed(),
        None => stream::empty().boxed(),
    });
    events.chain(stream::pending()).boxed()
}

/// `None` if the inbox is gone, or its socket does not work.
async fn next(inbox: &Weak<Inbox>, socket: &tokio::net::UdpSocket) -> Option<Event> {
    let mut buffer = [0; LONGEST];
    loop {
        let length = socket.recv(&mut buffer).await.ok()?;
        let event = std::str::from_utf8(&buffer[..length]).ok().and_then(|text| text.parse::<Event>().ok());
        // An event without a lease says nothing about its sender.
        let event = event.filter(|event| event.lease().is_some());
        if let Some(event) = event.and_then(|event| inbox.upgrade()?.accept(event)) {
            return Some(event);
        }
    }
}
