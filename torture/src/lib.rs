//! What leasehold promises, under every fault.
//!
//! | module | content |
//! |---|---|
//! | [`protocol`] | the protocol as models, every state of which is visited |
//! | [`history`] | what happened in a run: operations and faults, on one clock |
//! | [`judge`] | whether a history keeps the promises I1 to I8 |

pub mod history;
pub mod judge;
pub mod protocol;
