//! What leasehold promises, under every fault.
//!
//! | module | content |
//! |---|---|
//! | [`protocol`] | the protocol as models, every state of which is visited |

pub mod protocol;
