//! Keys, and changes of the window, from a thread that waits for them.

use std::thread;

use ratatui::crossterm::event::{self, Event};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Ends when the terminal does. The thread ends with the program: nothing can wake it but a key.
pub(super) fn read() -> UnboundedReceiver<Event> {
    let (sender, events) = unbounded_channel();
    thread::spawn(move || {
        while let Ok(event) = event::read() {
            if sender.send(event).is_err() {
                break;
            }
        }
    });
    events
}
