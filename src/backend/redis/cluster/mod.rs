//! A cluster: which node serves which slot (`slots`), a connection per node (`nodes`), and a transport per slot
//! (`transports`).
//!
//! A call concerns one slot, and names all of its keys. So a node executes all of it or nothing: it answers MOVED if
//! another node serves the slot, and while the slot is moved, ASK if that has all the keys, and TRYAGAIN if each has
//! some. The first two are followed; after the third the call is repeated until the slot has been moved or the time is
//! up. Nodes that redirect a call back and forth do not agree yet, or never will: after a few redirections the call
//! fails, and is known not to have been executed. (Client libraries follow them as well, but not for scripts of every
//! kind, and not all of them recover from an ASK.)
//!
//! The client asks for the list of nodes again when a node answers MOVED, when a call is not answered, and while one of
//! the nodes cannot be reached. An answer from a node that no longer serves the slot by then counts as lost: the call
//! is repeated where the slot is served.

mod nodes;
mod slots;
mod transports;

pub(super) use nodes::{Nodes, stay_up_to_date};
#[cfg(all(any(test, fuzzing), feature = "all-stores"))]
pub(super) use slots::Map;
pub(super) use slots::{Slots, ToAnyNode};
pub(super) use transports::SlotTransports;
