//! What leasehold promises, under every fault.
//!
//! | module | content |
//! |---|---|
//! | [`protocol`] | the protocol as models, every state of which is visited |
//! | [`history`] | what happened in a run: operations and faults, on one clock |
//! | [`judge`] | whether a history keeps the promises I1 to I8 |
//! | [`report`] | what a run has shown, for people with a browser |
//! | [`outcome`] | what is kept of it |
//! | [`guarantees`] | the page that is written from that |
//! | [`shrink`] | which faults of a run are needed for a violation |

pub mod guarantees;
pub mod history;
pub mod judge;
pub mod outcome;
pub mod protocol;
pub mod report;
pub mod shrink;
