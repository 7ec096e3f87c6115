//! A cluster: which node serves which slot (`slots`), a connection per node (`nodes`), and a transport per slot (`transports`).
//!
//! A call concerns one slot, and names all of its keys. So a node executes all of it or nothing: it answers MOVED if another node
//! serves the slot, and while the slot is moved, ASK if that has all the keys, and TRYAGAIN if each has some. The first two are followed;
//! after the third the call is repeated until the slot has been moved or the time is up. Nodes that send a call back and forth
//! have not heard of each other, or never will: after a few redirections the call fails, and is known not to have been executed. (Client libraries follow them as well,
//! but not for scripts of every kind, and not all of them recover from an ASK.)
//!
//! What the nodes are is asked again when a node answers MOVED, when a call is not answered, and while one of them cannot be reached. An
//! answer of a node that by then does not serve the slot any more counts as lost: the call is repeated where the slot is served.

mod nodes;
mod slots;
mod transports;

pub(super) use nodes::{Nodes, stay_up_to_date};
pub(super) use slots::{Slots, ToAnyNode};
pub(super) use transports::SlotTransports;
