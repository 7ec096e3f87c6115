//! A hold or a place, or what is left of a hold that was ended by force, as it is stored: one line, an owner comes last, because it may contain anything.

use std::fmt::Write;
use std::sync::Arc;

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
    pub(super) owner: Option<Arc<str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Hold(FencingToken),
    /// A hold that was ended by force: its client is told so until the etcd lease expires.
    Revoked,
    /// A place, whose grant will reserve this many tokens. Of those made by one transaction, which is it?
    Place {
        tokens: u32,
        index: u32,
    },
}

impl Value {
    pub(super) fn to_text(&self) -> Vec<u8> {
        let Self { lease, kind, ttl, permits, what, owner } = self;
        let kind = kind.as_str();
        let mut text = match what {
            What::Hold(token) => format!("{FORM} hold {lease} {kind} {ttl} {permits} {token} 0"),
            What::Revoked => format!("{FORM} revoked {lease} {kind} {ttl} {permits} 0 0"),
            What::Place { tokens, index } => {
                format!("{FORM} place {lease} {kind} {ttl} {permits} {tokens} {index}")
            }
        };
        if let Some(owner) = owner {
            // Writing to a string does not fail.
            let _ = write!(text, " {owner}");
        }
        text.into_bytes()
    }

    pub(super) fn read(text: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(text).ok()?.splitn(9, ' ');
        if words.next()? != FORM {
            return None;
        }
        let what = words.next()?;
        let lease = LeaseId::parse(words.next()?)?;
        let kind = Kind::parse(words.next()?)?;
        let (ttl, permits) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let (number, index) = (words.next()?, words.next()?.parse().ok()?);
        let what = match what {
            "hold" => What::Hold(FencingToken::new(number.parse().ok()?)),
            "revoked" => What::Revoked,
            "place" => What::Place { tokens: number.parse().ok()?, index },
            _ => return None,
        };
        Some(Self { lease, kind, ttl, permits, what, owner: words.next().map(Arc::from) })
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn what_is_stored_is_read_as_it_was_written() {
        let hold = What::Hold(FencingToken::new(u64::MAX));
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
                owner: owner.map(Arc::from),
            };
            assert_eq!(Value::read(&value.to_text()), Some(value));
        }
        for text in ["", "x", "leasehold/1 hold mutex 1 1 1", "leasehold/2 hold mutex 1 1 1 0", "\u{0}"] {
            assert_eq!(Value::read(text.as_bytes()), None, "{text}");
        }
        assert_eq!(Value::read(b"\xff"), None);
    }
}
