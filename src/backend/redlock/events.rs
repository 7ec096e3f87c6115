//! The nodes' events. None of them is a grant by itself: the client is prompted to ask all nodes again when a majority
//! may have granted its request.

use std::sync::Arc;

use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};

use super::leases::FollowUp;
use super::quorum::Quorum;
use crate::backend::Event;
use crate::background;

impl Quorum {
    /// The events for the client from now on.
    pub(super) fn events(self: &Arc<Self>) -> BoxStream<'static, Event> {
        let events = self.events.lock().open();
        self.connect_in_background();
        let nodes = self.all().map(|n| {
            let handle = Arc::clone(&self.nodes[n]);
            let late = handle.node().is_none();
            let events = async move {
                let events = handle.ready().await.events();
                // Waiters must join the queue of a node that is connected later.
                stream::iter(late.then_some(Event::Resync)).chain(events)
            };
            events.flatten_stream().map(move |event| (n, event)).boxed()
        });
        let quorum = Arc::clone(self);
        let heard = stream::select_all(nodes).filter_map(move |(n, event)| {
            let event = quorum.hear(n, event);
            async move { event }
        });
        stream::select(heard, events).boxed()
    }

    /// Connects nodes that are not connected yet.
    pub(super) fn connect_in_background(&self) {
        if self.closing.is_closed() {
            return;
        }
        match background::handle() {
            Ok(own) => self.nodes.iter().for_each(|handle| handle.connect(&own, self.closing.token())),
            Err(error) => {
                tracing::warn!(target: "leasehold::store", %error, "the nodes of a Redlock are not connected: the crate's own thread could not be started")
            }
        }
    }

    /// The event for the client that follows from an event of a node.
    fn hear(self: &Arc<Self>, n: usize, event: Event) -> Option<Event> {
        match event {
            Event::Granted { lease, ticket, grant } => {
                let follow_up = self.leases.with(lease.id, |entry| {
                    entry.notified(n, ticket);
                    entry.after_grant(grant.token)
                });
                match follow_up.unwrap_or(FollowUp::Orphan) {
                    FollowUp::Ask => Some(Event::AskAgain(lease.id)),
                    follow_up => {
                        self.follow(Some(n), &lease, follow_up);
                        None
                    }
                }
            }
            Event::AskAgain(lease) => {
                let prompt = self.leases.with(lease, |entry| entry.prompt());
                (prompt == Some(true)).then_some(Event::AskAgain(lease))
            }
            Event::Revoked { lease, .. } => {
                let token = self.leases.with(lease, |entry| entry.revoked(n)).flatten()?;
                Some(Event::Revoked { lease, token })
            }
            event => Some(event),
        }
    }
}
