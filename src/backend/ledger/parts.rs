//! The parts of a record, for stores that keep holds or places apart from it.

use std::sync::Arc;

use super::{FORM, Hold, Ledger, Place};
use crate::backend::LeaseId;
use crate::backend::types::{Kind, Limit, Ticket};
use crate::fence::FencingToken;

/// A hold or a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::backend) struct Entry {
    pub(in crate::backend) lease: LeaseId,
    pub(in crate::backend) permits: u32,
    pub(in crate::backend) owner: Option<Arc<str>>,
    pub(in crate::backend) ends: u64,
    pub(in crate::backend) standing: Standing,
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backend) enum Standing {
    /// A hold under this token.
    Held(FencingToken),
    /// A place, whose grant will reserve this many tokens.
    Waiting { ticket: Ticket, tokens: u32 },
}

#[cfg_attr(not(feature = "all-stores"), allow(dead_code, reason = "each store uses a part of it"))]
impl Ledger {
    /// The text form without holds, places, and the time when the limit lapses.
    pub(in crate::backend) fn head(&self) -> String {
        let (permits, version) = self.limit.map_or((0, 0), |limit| (limit.permits, limit.version));
        format!("{FORM} {} {} {permits} {version} 0", self.kind.as_str(), self.last)
    }

    /// The same with these holds and places as well, and a limit that lapses then.
    pub(in crate::backend) fn with(self, entries: impl Iterator<Item = Entry>, lapses: u64) -> Self {
        let mut ledger = Self { lapses, ..self };
        for Entry { lease, permits, owner, ends, standing } in entries {
            match standing {
                Standing::Held(token) => {
                    ledger.holds.insert(lease, Hold { permits, token, ends, owner });
                }
                Standing::Waiting { ticket, tokens } => {
                    ledger.queue.insert(ticket, Place { lease, permits, tokens, ends, owner });
                }
            }
        }
        ledger.derive();
        ledger
    }

    /// The holds, and the places in order.
    pub(in crate::backend) fn entries(&self) -> impl Iterator<Item = Entry> {
        let holds = self.holds.iter().map(|(lease, hold)| {
            let Hold { permits, token, ends, owner } = hold.clone();
            Entry { lease: *lease, permits, owner, ends, standing: Standing::Held(token) }
        });
        let places = self.queue.iter().map(|(ticket, place)| {
            let Place { lease, permits, tokens, ends, owner } = place.clone();
            Entry { lease, permits, owner, ends, standing: Standing::Waiting { ticket: *ticket, tokens } }
        });
        holds.chain(places)
    }

    pub(in crate::backend) const fn kind(&self) -> Kind {
        self.kind
    }

    pub(in crate::backend) const fn limit(&self) -> Option<Limit> {
        self.limit
    }

    /// When the limit lapses if nobody holds or waits.
    pub(in crate::backend) const fn lapses(&self) -> u64 {
        self.lapses
    }

    /// Whether it is certain that no request of another owner can be granted.
    pub(in crate::backend) fn is_full(&self) -> bool {
        self.free() == 0 && !self.holds.is_empty()
    }
}
