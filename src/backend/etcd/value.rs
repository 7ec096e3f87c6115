//! A hold or a place, or what is left of a hold that was ended by force, as it is stored: one line that people can
//! read.

use std::sync::Arc;

use crate::backend::ledger::{Party, split};
use crate::backend::{Kind, LeaseId};
use crate::fence::FencingToken;

const FORM: &str = "leasehold/1";

/// What is stored under an etcd lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) lease: LeaseId,
    /// The kind of the resource.
    pub(super) kind: Kind,
    /// In seconds.
    pub(super) ttl: u32,
    pub(super) permits: u32,
    pub(super) what: What,
    pub(super) party: Arc<Party>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// A hold under this token, since then: in milliseconds since 1970, by the clock of the client that stored it; 0 if
    /// that is not known.
    Hold { token: FencingToken, since: u64 },
    /// A hold that was ended by force: its client is told so until the etcd lease expires.
    Revoked,
    /// A place, whose grant will reserve this many tokens. Of those made by one transaction, which is it?
    Place { tokens: u32, index: u32 },
}

impl Value {
    pub(super) fn to_text(&self) -> Vec<u8> {
        let Self { lease, kind, ttl, permits, what, party } = self;
        let kind = kind.as_str();
        let mut text = match what {
            What::Hold { token, since } => {
                format!("{FORM} hold {lease} {kind} {ttl} {permits} {token} {since}")
            }
            What::Revoked => format!("{FORM} revoked {lease} {kind} {ttl} {permits} 0 0"),
            What::Place { tokens, index } => {
                format!("{FORM} place {lease} {kind} {ttl} {permits} {tokens} {index}")
            }
        };
        // Writing to a string does not fail.
        let _ = party.write(&mut text);
        text.into_bytes()
    }

    pub(super) fn read(text: &[u8]) -> Option<Self> {
        let (words, party) = split(std::str::from_utf8(text).ok()?, 8)?;
        let mut words = words.split(' ');
        if words.next()? != FORM {
            return None;
        }
        let what = words.next()?;
        let lease = LeaseId::parse(words.next()?)?;
        let kind = Kind::parse(words.next()?)?;
        let (ttl, permits) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let (number, detail) = (words.next()?, words.next()?);
        let what = match what {
            "hold" => {
                What::Hold { token: FencingToken::new(number.parse().ok()?), since: detail.parse().ok()? }
            }
            "revoked" => What::Revoked,
            "place" => What::Place { tokens: number.parse().ok()?, index: detail.parse().ok()? },
            _ => return None,
        };
        Some(Self { lease, kind, ttl, permits, what, party })
    }
}

#[cfg(test)]
mod tests {

    use uuid::Uuid;

    use super::*;

    #[test]
    fn what_is_stored_is_read_as_it_was_written() {
        let hold = What::Hold { token: FencingToken::new(u64::MAX), since: 7 };
        let place = What::Place { tokens: 16, index: 3 };
        for (what, owner) in
            [(hold, None), (place, Some("a b\nc")), (hold, Some("")), (place, None), (What::Revoked, None)]
        {
            let lease = LeaseId::next(Uuid::nil());
            let value = Value {
                lease,
                kind: Kind::Reentrant,
                ttl: 30,
                permits: 2,
                what,
                party: Arc::new(Party {
                    owner: owner.map(Arc::from),
                    note: owner.map(Arc::from),
                    label: None,
                }),
            };
            assert_eq!(Value::read(&value.to_text()), Some(value));
        }
        for text in ["", "x", "leasehold/1 hold mutex 1 1 1", "leasehold/2 hold mutex 1 1 1 0", "\u{0}"] {
            assert_eq!(Value::read(text.as_bytes()), None, "{text}");
        }
        assert_eq!(Value::read(b"\xff"), None);
    }
}
