//! The stream of a client's events.

use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};

use super::Event;

/// Sends events to the stream that was opened last.
#[derive(Debug, Default)]
pub(super) struct EventSender(Option<UnboundedSender<Event>>);

impl EventSender {
    /// The events from now on. Ends the stream that was opened before.
    pub(super) fn open(&mut self) -> UnboundedReceiver<Event> {
        let (sender, events) = unbounded();
        self.0 = Some(sender);
        events
    }

    pub(super) fn send(&self, event: Event) {
        if let Some(sender) = &self.0 {
            // An error means that the stream has been dropped: no one is listening.
            let _ = sender.unbounded_send(event);
        }
    }
}
