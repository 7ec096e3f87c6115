//! Events as text, for stores that pass them on as messages.

use std::fmt;
use std::str::FromStr;

use super::types::*;
use super::{BackendError, LeaseId};
use crate::fence::FencingToken;

/// A compact text on one line, unless the key contains line breaks. [`FromStr`] reads it.
impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted { lease, ticket, grant } => {
                let (permits, version) = grant.limit.map_or((0, 0), |limit| (limit.permits, limit.version));
                let LeaseRef { id, resource } = lease;
                let (kind, prefix) = (resource.kind.as_str(), resource.prefix().len());
                let (ticket, token) = (ticket.get(), grant.token);
                write!(f, "g {id} {ticket} {token} {permits} {version} {kind} {prefix} {}", resource.key)
            }
            Self::Revoked { lease, token } => write!(f, "r {lease} {token}"),
            Self::AskAgain(lease) => write!(f, "a {lease}"),
            Self::Changed(key) => write!(f, "c {key}"),
            Self::Resync => f.write_str("s"),
        }
    }
}

/// Reads what `Display` writes. How long a grant lasts is not part of it: a grant at a place in the queue ends with the
/// place.
impl FromStr for Event {
    type Err = BackendError;

    fn from_str(text: &str) -> Result<Self, BackendError> {
        read(text)
            .ok_or_else(|| BackendError::WrongType { source: "it is not an event of this crate".into() })
    }
}

fn read(text: &str) -> Option<Event> {
    let (what, rest) = text.split_once(' ').unwrap_or((text, ""));
    match what {
        "g" => read_grant(rest),
        "r" => {
            let (lease, token) = rest.split_once(' ')?;
            let token = FencingToken::new(token.parse().ok()?);
            Some(Event::Revoked { lease: LeaseId::parse(lease)?, token })
        }
        "a" => Some(Event::AskAgain(LeaseId::parse(rest)?)),
        "c" => Some(Event::Changed(rest.into())),
        "s" if rest.is_empty() => Some(Event::Resync),
        _ => None,
    }
}

fn read_grant(text: &str) -> Option<Event> {
    // The key may contain spaces.
    let mut words = text.splitn(8, ' ');
    let id = LeaseId::parse(words.next()?)?;
    let ticket = Ticket::new(words.next()?.parse().ok()?);
    let token = FencingToken::new(words.next()?.parse().ok()?);
    let limit = Limit::new(words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let kind = Kind::parse(words.next()?)?;
    let prefix = words.next()?.parse().ok()?;
    let resource = Resource::split_at(words.next()?, prefix, kind)?;
    let grant = Grant::new(token, (limit.version > 0).then_some(limit));
    Some(Event::Granted { lease: LeaseRef::new(id, resource), ticket, grant })
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn every_event_is_read_as_it_was_written() {
        let token = FencingToken::new(u64::MAX);
        let new_id = || LeaseId::next(Uuid::nil());
        let lease =
            |prefix: &str, name: &str, kind| LeaseRef::new(new_id(), Resource::named(prefix, name, kind));
        let grant =
            |lease, limit| Event::Granted { lease, ticket: Ticket::new(7), grant: Grant::new(token, limit) };
        for event in [
            grant(lease("lock:", "a b:c\nd é", Kind::Mutex), None),
            grant(lease("", "x", Kind::Reentrant), None),
            grant(lease("a:b:", "x", Kind::Fair), Some(Limit::new(u32::MAX, u64::MAX))),
            Event::Revoked { lease: new_id(), token },
            Event::AskAgain(new_id()),
            Event::Changed("lock: a".into()),
            Event::Resync,
        ] {
            assert_eq!(event.to_string().parse::<Event>().unwrap(), event);
        }
    }

    #[test]
    fn a_text_that_is_not_an_event_is_rejected() {
        let lease = LeaseId::next(Uuid::nil());
        for text in [
            String::new(),
            "x".to_owned(),
            "s s".to_owned(),
            "a 1".to_owned(),
            format!("r {lease}"),
            format!("r {lease} x"),
            format!("g {lease} 1 2 0 0 mutex 0"),
            format!("g {lease} 1 2 0 0 mutex 3 é"),
            format!("g {lease} 1 2 0 0 mutex 1 é"),
            format!("g {lease} 1 2 0 0 latch 0 key"),
        ] {
            assert!(text.parse::<Event>().is_err(), "{text}");
        }
    }
}
