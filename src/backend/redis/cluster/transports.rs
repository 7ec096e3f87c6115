//! A transport per slot.

use std::collections::HashMap;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;

use super::nodes::Nodes;
use crate::backend::redis::connection::Connection;
use crate::backend::redis::link::{CallError, Link};
use crate::backend::redis::notifications::Notifications;
use crate::backend::redis::transport::{Again, Destination, Transport};

/// The transports of the slots, each made when it is needed.
#[derive(Debug)]
pub(in super::super) struct SlotTransports {
    nodes: Arc<Nodes>,
    notifications: Arc<Notifications>,
    transports: Mutex<HashMap<u16, Arc<Transport>>>,
}

impl SlotTransports {
    pub(in super::super) fn new(nodes: Arc<Nodes>, notifications: Arc<Notifications>) -> Self {
        Self { nodes, notifications, transports: Mutex::default() }
    }

    pub(in super::super) fn of(&self, slot: u16) -> Arc<Transport> {
        let new = || {
            let reply_timeout = self.nodes.reply_timeout();
            let destination = AtSlot { slot, nodes: Arc::clone(&self.nodes) };
            let home = self.nodes.home();
            Transport::at(Arc::new(destination), reply_timeout, Arc::clone(&self.notifications), home)
        };
        Arc::clone(self.transports.lock().entry(slot).or_insert_with(new))
    }

    /// The client has moved.
    pub(in super::super) fn restart(&self) {
        let transports: Vec<_> = self.transports.lock().values().cloned().collect();
        transports.iter().for_each(|transport| transport.restart());
    }
}

/// The calls that concern a slot.
#[derive(Debug)]
struct AtSlot {
    slot: u16,
    nodes: Arc<Nodes>,
}

impl Destination for AtSlot {
    fn slot(&self) -> Option<u16> {
        Some(self.slot)
    }

    fn connection(&self) -> Arc<Connection> {
        self.nodes.serving(self.slot)
    }

    fn link(&self) -> BoxFuture<'_, Result<Arc<dyn Link>, CallError>> {
        self.nodes.link(self.slot).boxed()
    }

    fn on_unanswered(&self) {
        self.nodes.ask_soon();
    }

    fn redirected<'a>(&'a self, error: &'a str) -> BoxFuture<'a, Option<Result<Again, CallError>>> {
        self.nodes.redirected(self.slot, error).boxed()
    }
}
