//! Labels of clients and notes of leases: texts for people, which no script of the protocol reads or writes.
//!
//! A label is stored once per client and not with its leases, so that it costs them nothing: a lease id names its
//! client. It is written beside a client's first request, and again beside a request or a renewal when the lease could
//! outlast it, which is once in an hour, and when the store may have lost it: after the subscription was lost, or a
//! lease. The note of a lease is written beside each of its requests and renewals.
//!
//! Whoever knows a lease id can end the lease, and the id of the client is the part of it that cannot be guessed. Names
//! of keys are seen by more people than what is stored there (`SCAN`, `MONITOR`, `ACL LOG`), so they contain only
//! hashes (`keys.rs`).
//!
//! All of this may fail, without consequences: what the user may not write is missing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, join, join_all};
use parking_lot::Mutex;
use tokio::time::Instant;
use uuid::Uuid;

use super::calls::millis;
use super::connections::Commands;
use super::keys;
use super::link::{CallError, Value};
use super::notifications::Notifications;
use super::script::{Arguments, DESCRIBE, DESCRIPTIONS};
use super::transport::Transport;
use crate::backend::{Answer, BackendError, Holder, LeaseId, LeaseRef, Renew, Request, Resource, Waiter};
use crate::hash::HashMap;

/// For how long a label is kept beyond the lease for which it is written: while leases do not become longer, it is
/// written once in this time.
const LABEL_LASTS: Duration = Duration::from_secs(60 * 60);
/// For how long a note is kept beyond its lease, which begins a moment later.
const NOTE_LASTS: Duration = Duration::from_secs(1);
/// How many keys are read in one call.
const MAX_KEYS: usize = 128;

/// What this client has written.
#[derive(Debug)]
pub(super) struct Descriptions {
    key: String,
    notifications: Arc<Notifications>,
    label: Mutex<Option<Label>>,
    /// Whether the store may have lost the label.
    lost: AtomicBool,
    /// Of the leases that have one.
    notes: Mutex<HashMap<LeaseId, Arc<str>>>,
}

/// The label, until when it is stored, and how many links had been subscribed when it was written.
#[derive(Debug)]
struct Label {
    text: Arc<str>,
    until: Instant,
    links: u64,
}

/// A text to be written, or, if it is `None`, to be removed.
#[derive(Debug)]
struct Text {
    key: String,
    text: Option<Arc<str>>,
    lasts: Duration,
}

/// Texts on their way, to be kept until this is done: a client library may not send what is dropped.
pub(super) type Sent = BoxFuture<'static, ()>;

impl Descriptions {
    pub(super) fn new(client: Uuid, notifications: Arc<Notifications>) -> Self {
        let (label, lost, notes) = (Mutex::default(), AtomicBool::new(false), Mutex::default());
        Self { key: keys::label(client), notifications, label, lost, notes }
    }

    /// Sends what is to be stored beside a request, if there is anything.
    pub(super) fn send_with_request(
        self: &Arc<Self>,
        commands: &Commands,
        request: &Request,
    ) -> Option<Sent> {
        let label = request.label.as_ref().and_then(|label| self.label_due(Some(label), request.ttl));
        let note = request.note.as_ref().map(|note| {
            self.notes.lock().insert(request.lease.id, Arc::clone(note));
            Text::of_note(&request.lease, Some(Arc::clone(note)), request.ttl)
        });
        self.send(commands, label.into_iter().chain(note))
    }

    /// A request was answered. If that has left nothing at the store, no release follows: removes its note, if it has
    /// one.
    pub(super) fn send_unless_known(
        self: &Arc<Self>,
        commands: &Commands,
        request: &Request,
        answer: &Result<Answer, BackendError>,
    ) -> Option<Sent> {
        request.note.as_ref()?;
        let is_unknown = match answer {
            Ok(Answer::Busy { .. }) => true,
            Ok(_) => false,
            Err(error) => error.was_never_sent(),
        };
        if is_unknown { self.send_with_release(commands, &request.lease) } else { None }
    }

    /// The same as with a request, beside renewals.
    pub(super) fn send_with_renewals(
        self: &Arc<Self>,
        commands: &Commands,
        renewals: &[Renew],
    ) -> Option<Sent> {
        let longest = renewals.iter().map(|renew| renew.ttl).max()?;
        let label = self.label_due(None, longest);
        let notes = self.notes.lock();
        let noted = renewals.iter().filter(|_| !notes.is_empty()).filter_map(|renew| {
            let note = Some(Arc::clone(notes.get(&renew.lease.id)?));
            Some(Text::of_note(&renew.lease, note, renew.ttl))
        });
        let texts: Vec<_> = label.into_iter().chain(noted).collect();
        drop(notes);
        self.send(commands, texts.into_iter())
    }

    /// The lease ends: removes its note, if it has one.
    pub(super) fn send_with_release(self: &Arc<Self>, commands: &Commands, lease: &LeaseRef) -> Option<Sent> {
        let mut notes = self.notes.lock();
        // Nearly always.
        if notes.is_empty() {
            return None;
        }
        notes.remove(&lease.id)?;
        drop(notes);
        self.send(commands, [Text::of_note(lease, None, Duration::ZERO)].into_iter())
    }

    /// Another client has the lease by now: whatever is stored remains for as long as it lasts.
    pub(super) fn forget(&self, lease: LeaseId) {
        self.notes.lock().remove(&lease);
    }

    /// The client ends: removes its label, if it has stored one.
    pub(super) fn send_at_end(self: &Arc<Self>, commands: &Commands) -> Option<Sent> {
        self.label.lock().take()?;
        let removed = Text { key: self.key.clone(), text: None, lasts: Duration::ZERO };
        self.send(commands, [removed].into_iter())
    }

    /// The store may have lost what it had.
    pub(super) fn may_be_lost(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }

    /// The label, the one known if none is given, if a lease of this duration could outlast what is stored.
    fn label_due(&self, given: Option<&Arc<str>>, ttl: Duration) -> Option<Text> {
        let (now, links) = (Instant::now(), self.notifications.links());
        let mut known = self.label.lock();
        let is_stored = known.as_ref().is_some_and(|known| {
            known.links == links && now + ttl <= known.until && given.is_none_or(|given| *given == known.text)
        });
        if is_stored && !self.lost.load(Ordering::Relaxed) {
            return None;
        }
        let text = Arc::clone(given.or(known.as_ref().map(|known| &known.text))?);
        self.lost.store(false, Ordering::Relaxed);
        let lasts = ttl + LABEL_LASTS;
        *known = Some(Label { text: Arc::clone(&text), until: now + lasts, links });
        Some(Text { key: self.key.clone(), text: Some(text), lasts })
    }

    /// Passes the texts to the connections, ahead of whatever is sent there next.
    fn send(self: &Arc<Self>, commands: &Commands, texts: impl Iterator<Item = Text>) -> Option<Sent> {
        let sent: Vec<_> =
            texts.filter_map(|text| self.send_one(&commands.at(text.key.as_bytes()), text)).collect();
        (!sent.is_empty()).then(|| join_all(sent).map(drop).boxed())
    }

    fn send_one(self: &Arc<Self>, transport: &Arc<Transport>, text: Text) -> Option<Sent> {
        let Some(link) = transport.connection().current_link() else {
            self.may_be_lost();
            return None;
        };
        let (descriptions, transport) = (Arc::clone(self), Arc::clone(transport));
        let mut sent = async move {
            match link.command(text.words()).await {
                Err(error) if error.is_redirection() => {
                    // If this is dropped before it is there, the next request or renewal repeats it.
                    descriptions.may_be_lost();
                    text.send_where_it_belongs(&transport).await;
                }
                Err(error) if !is_denied(&error) => descriptions.may_be_lost(),
                _ => {}
            }
        }
        .boxed();
        // It is sent when it is polled for the first time.
        (&mut sent).now_or_never().is_none().then_some(sent)
    }
}

/// Whether the next request would meet with the same: this user may not write there. Then it is written again in an
/// hour.
fn is_denied(error: &CallError) -> bool {
    matches!(BackendError::from(error.clone()), BackendError::Refused { .. })
}

impl Text {
    fn of_note(lease: &LeaseRef, text: Option<Arc<str>>, ttl: Duration) -> Self {
        Self { key: keys::note(&lease.resource.key, lease.id), text, lasts: ttl + NOTE_LASTS }
    }

    /// Another node serves the slot by now, or soon: finds it.
    async fn send_where_it_belongs(&self, transport: &Transport) {
        let arguments = || {
            let text = self.text.iter().map(|text| Bytes::copy_from_slice(text.as_bytes()));
            let args = std::iter::once(millis(self.lasts).to_string().into()).chain(text).collect();
            Arguments { keys: vec![Bytes::copy_from_slice(self.key.as_bytes())], args }
        };
        if let Err(error) = transport.deliver(&DESCRIBE, arguments).await {
            tracing::debug!(%error, "a label or a note could not be stored");
        }
    }

    /// The command that writes or removes it.
    fn words(&self) -> Vec<String> {
        let words: &[&str] = match &self.text {
            Some(text) => &["SET", &self.key, text, "PX", &millis(self.lasts).to_string()],
            None => &["DEL", &self.key],
        };
        words.iter().map(|word| (*word).to_owned()).collect()
    }
}

/// The labels of clients that have been read, `None` of those that have none.
pub(super) type Labels = HashMap<Uuid, Option<String>>;

/// The notes of leases, of those that have one.
pub(super) type Notes = HashMap<LeaseId, String>;

/// Adds labels and notes to the holders of a resource, and to those that wait for it, as far as they can be read.
pub(super) async fn describe(
    commands: &Commands,
    resource: &Resource,
    holders: &mut [Holder],
    waiters: &mut [Waiter],
) {
    let leases: Vec<_> = leases_of(holders).chain(waiters.iter().map(|waiter| waiter.id)).collect();
    let mut labels = Labels::default();
    let noted = leases.iter().map(|lease| (&*resource.key, *lease)).collect();
    let notes = read_notes(commands.of(resource), noted);
    let (notes, ()) = join(notes, read_labels(commands, &mut labels, &leases)).await;
    label(holders, &labels);
    annotate(holders, &notes);
    for waiter in waiters {
        waiter.label = labels.get(&waiter.id.client()).cloned().flatten();
        waiter.note = notes.get(&waiter.id).cloned();
    }
}

/// The leases of those holders that are clients of this crate.
pub(super) fn leases_of(holders: &[Holder]) -> impl Iterator<Item = LeaseId> {
    holders.iter().filter_map(|holder| LeaseId::parse(&holder.id))
}

pub(super) fn label(holders: &mut [Holder], labels: &Labels) {
    for holder in holders {
        holder.label = LeaseId::parse(&holder.id).and_then(|id| labels.get(&id.client()).cloned().flatten());
    }
}

pub(super) fn annotate(holders: &mut [Holder], notes: &Notes) {
    for holder in holders {
        holder.note = LeaseId::parse(&holder.id).and_then(|id| notes.get(&id).cloned());
    }
}

/// Reads the notes of leases on resources of one slot.
pub(super) async fn read_notes(transport: Arc<Transport>, leases: Vec<(&str, LeaseId)>) -> Notes {
    let keys = leases.iter().map(|(key, lease)| keys::note(key, *lease)).collect();
    let texts = read(transport, keys).await;
    leases.into_iter().zip(texts).filter_map(|((_, lease), text)| Some((lease, text?))).collect()
}

/// Reads the labels of the clients of these leases that have not been read yet.
pub(super) async fn read_labels(commands: &Commands, labels: &mut Labels, leases: &[LeaseId]) {
    let mut clients: Vec<_> = leases.iter().map(LeaseId::client).collect();
    clients.sort_unstable();
    clients.dedup();
    clients.retain(|client| !labels.contains_key(client));
    let keys: Vec<_> = clients.iter().map(|client| keys::label(*client)).collect();
    let Some(first) = keys.first() else { return };
    // They are all in one slot.
    let transport = commands.at(first.as_bytes());
    let found = read(transport, keys).await;
    labels.extend(clients.into_iter().zip(found));
}

/// What is stored under these keys, which are in one slot; `None` for those of which that is not known.
async fn read(transport: Arc<Transport>, keys: Vec<String>) -> Vec<Option<String>> {
    let mut texts = Vec::with_capacity(keys.len());
    for keys in keys.chunks(MAX_KEYS) {
        let keys: Vec<_> = keys.iter().map(|key| Bytes::copy_from_slice(key.as_bytes())).collect();
        let arguments = || Arguments { keys: keys.clone(), args: Vec::new() };
        let answer = transport.deliver(&DESCRIPTIONS, arguments).await.unwrap_or(Value::Nil);
        texts.extend((0..keys.len()).map(|n| answer.as_list().get(n).and_then(read_text)));
    }
    texts
}

/// Another program may have written it: whoever reads it on a terminal gets no control characters.
fn read_text(value: &Value) -> Option<String> {
    Some(String::from_utf8_lossy(value.as_bytes()?).replace(char::is_control, ""))
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::super::connection::tests::unused_settings;
    use super::super::servers::Servers;
    use super::super::target::{Login, Server, Topology};
    use super::*;
    use crate::backend::{Claim, Kind};

    #[tokio::test]
    async fn nothing_is_kept_for_a_lease_that_was_handed_over() {
        let client = Uuid::new_v4();
        let notifications = Arc::new(Notifications::new(client, false));
        let topology = Topology::Single(Server::Tcp { host: "localhost".to_owned(), port: 6379 });
        let (login, closed) = (Login::default(), CancellationToken::new());
        let servers = Servers::new(topology, unused_settings(), login, Arc::clone(&notifications), closed);
        let commands = servers.commands(&Arc::default());
        let descriptions = Arc::new(Descriptions::new(client, notifications));
        let ids = [LeaseId::next(client), LeaseId::next(client)];
        for id in ids {
            let lease = LeaseRef::new(id, Resource::new("lock:a", Kind::Mutex));
            let mut request = Request::new(lease, Claim::Sole, LABEL_LASTS);
            request.note = Some("why".into());
            drop(descriptions.send_with_request(&commands, &request));
        }
        descriptions.forget(ids[0]);
        let kept: Vec<_> = descriptions.notes.lock().keys().copied().collect();
        assert_eq!(kept, [ids[1]]);
    }
}
