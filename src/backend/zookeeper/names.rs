//! The names of nodes.
//!
//! | node | content |
//! |---|---|
//! | `<root>/<key>` | the record of a key: who holds it, and the last number issued |
//! | `<root>/<key>/~<generation>` | nothing: as long as it exists, versions of the record can be compared |
//! | `<root>/<key>/<lease>~...~<number>` | a lease that holds or waits; its name says what it claims, its data the last event sent to it |
//! | `<root>/~clock` | nothing: it is written in order to read the server's clock |
//! | `<root>/~swept` | nothing: it is written when idle records are removed |

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::backend::ledger::claim;
use crate::backend::{Kind, LeaseId, LeaseRef, Request, Resource};

/// What is not written as it is. In particular no name contains `/` or `~`.
const ESCAPED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b':').remove(b'@').remove(b'=');

/// What is escaped in a text that people read in the name of a node. ZooKeeper allows the rest of ASCII; what is beyond
/// it is always escaped.
const ESCAPED_IN_TEXT: &AsciiSet = &CONTROLS.add(b'/').add(b'~').add(b'%');
/// How much of a note is kept while its lease waits, in bytes: the names of all children of a key must fit into one
/// answer of the server.
const MAX_NOTE: usize = 128;

const CLOCK: &str = "~clock";
const SWEPT: &str = "~swept";

/// The path of the node that is written in order to read the clock.
pub(super) fn clock(root: &str) -> String {
    format!("{root}/{CLOCK}")
}

/// The path of the node that is written when idle records are removed.
pub(super) fn swept(root: &str) -> String {
    format!("{root}/{SWEPT}")
}

/// The path of the record of a key.
pub(super) fn record(root: &str, key: &str) -> String {
    // Two names that ZooKeeper does not allow, and the empty one.
    let name = match key {
        "" => "%".into(),
        "." => "%2E".into(),
        ".." => "%2E%2E".into(),
        key => utf8_percent_encode(key, ESCAPED).to_string(),
    };
    format!("{root}/{name}")
}

/// The name of the node whose existence proves that a record is still the one that was read.
pub(super) fn generation(generation: &str) -> String {
    format!("~{generation}")
}

/// Whether a child of the root is a record.
pub(super) fn is_record(name: &str) -> bool {
    !name.starts_with('~') && name != "zookeeper"
}

/// The key that a child of the root is the record of, if it is one.
pub(super) fn key(name: &str) -> Option<String> {
    match name {
        "%" => Some(String::new()),
        name if !is_record(name) => None,
        name => percent_decode_str(name).decode_utf8().ok().map(Cow::into_owned),
    }
}

/// A lease that holds or waits, as the name of its node says.
#[derive(Clone, Debug)]
pub(super) struct ChildName {
    pub(super) request: Request,
    /// The number that the server has appended: it grows from child to child.
    pub(super) number: u32,
}

/// What the name of the node for a request begins with.
pub(super) fn child(request: &Request) -> String {
    Prefix(request).to_string()
}

struct Prefix<'a>(&'a Request);

impl fmt::Display for Prefix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Request { lease: LeaseRef { id, resource }, claim, ttl, tokens, label, note, .. } = self.0;
        let (kind, prefix, permits) = (letter(resource.kind), resource.prefix().len(), claim.permits());
        write!(f, "{id}~{kind}{prefix}~{permits}~{tokens}~{}~", ttl.as_micros())?;
        if let Some(owner) = claim.owner() {
            write!(f, "={}", utf8_percent_encode(owner, ESCAPED))?;
        }
        let note = note.as_deref().map(beginning);
        for text in [label.as_deref(), note] {
            f.write_char('~')?;
            if let Some(text) = text {
                write!(f, "={}", utf8_percent_encode(text, ESCAPED_IN_TEXT))?;
            }
        }
        f.write_char('~')
    }
}

impl ChildName {
    /// `None` if it is not the name of a lease.
    pub(super) fn parse(name: &str, key: &Arc<str>) -> Option<Self> {
        if name.contains('/') {
            // Its path would be that of another node.
            return None;
        }
        let mut words = name.split('~');
        let id = LeaseId::parse(words.next()?)?;
        let (kind, prefix) = words.next()?.split_at_checked(1)?;
        let kind = Kind::ALL.into_iter().find(|one| letter(*one) == kind)?;
        let permits = words.next()?.parse().ok()?;
        let tokens = words.next()?.parse().ok()?;
        let ttl = Duration::from_micros(words.next()?.parse().ok()?);
        let [owner, label, note] = [text(words.next()?)?, text(words.next()?)?, text(words.next()?)?];
        // After two billion children the server counts on from the least negative number.
        let number = words.next()?.parse::<i32>().ok()?.cast_unsigned();
        if words.next().is_some() {
            return None;
        }
        let mut resource = Resource::new(Arc::clone(key), kind);
        let prefix = prefix.parse().ok()?;
        if resource.prefix().len() != prefix {
            resource = Resource::split_at(key, prefix, kind)?;
        }
        let lease = LeaseRef::new(id, resource);
        let request = Request::new(lease, claim(permits, owner, kind.is_semaphore()), ttl).waiting();
        Some(Self { request: Request { tokens, label, note, ..request }, number })
    }

    pub(super) const fn lease(&self) -> LeaseId {
        self.request.lease.id
    }
}

/// As much of a note as is kept.
fn beginning(note: &str) -> &str {
    let end = (0..=MAX_NOTE.min(note.len())).rev().find(|end| note.is_char_boundary(*end));
    &note[..end.unwrap_or_default()]
}

/// A text that need not be there. `None` if it cannot be read.
fn text(word: &str) -> Option<Option<Arc<str>>> {
    if word.is_empty() {
        return Some(None);
    }
    Some(Some(percent_decode_str(word.strip_prefix('=')?).decode_utf8().ok()?.into()))
}

const fn letter(kind: Kind) -> &'static str {
    match kind {
        Kind::Mutex => "m",
        Kind::Reentrant => "r",
        Kind::Counting => "c",
        Kind::Fair => "f",
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::backend::{Claim, Limit};

    fn request(resource: Resource, claim: Claim) -> Request {
        let lease = LeaseRef::new(LeaseId::next(Uuid::nil()), resource);
        Request { tokens: 16, ..Request::new(lease, claim, Duration::from_millis(1500)).waiting() }
    }

    #[test]
    fn the_name_of_a_child_says_everything_about_its_request() {
        let key: Arc<str> = "lock:a:b".into();
        for (resource, claim) in [
            (Resource::new(Arc::clone(&key), Kind::Mutex), Claim::Sole),
            (Resource::named("lock:a:", "b", Kind::Reentrant), Claim::Owner("a/b ~%=é".into())),
            (Resource::named("", "lock:a:b", Kind::Reentrant), Claim::Owner("".into())),
            (Resource::new(Arc::clone(&key), Kind::Fair), Claim::Permits(7, Limit::stated(7))),
        ] {
            let mut request = request(resource, claim);
            request.label = Some("api-7 (pid 4711)".into());
            request.note = (request.claim.permits() > 1).then(|| "~/%é\n\0".into());
            for (number, text) in [(0, "0000000000"), (17, "0000000017"), (1 << 31, "-2147483648")] {
                let node = format!("{}{text}", child(&request));
                assert!(!node.contains('/'), "{node}");
                let name = ChildName::parse(&node, &key).expect(&node);
                assert_eq!((name.number, &name.request.lease), (number, &request.lease), "{node}");
                assert_eq!((&name.request.claim, name.request.ttl), (&request.claim, request.ttl), "{node}");
                assert_eq!((name.request.tokens, name.request.waits), (16, true), "{node}");
                assert_eq!(
                    (&name.request.label, &name.request.note),
                    (&request.label, &request.note),
                    "{node}"
                );
                assert!(node.contains("~=api-7 (pid 4711)~"), "a person can read it: {node}");
            }
        }
    }

    #[test]
    fn a_long_note_is_cut_between_characters() {
        let mut request = request(Resource::new("lock:a", Kind::Mutex), Claim::Sole);
        request.note = Some("é".repeat(500).into());
        let name = ChildName::parse(&format!("{}0000000001", child(&request)), &"lock:a".into());
        assert_eq!(name.expect("ours").request.note.as_deref(), Some(&*"é".repeat(MAX_NOTE / 2)));
        request.note = Some(format!("x{}", "é".repeat(500)).into());
        let name = ChildName::parse(&format!("{}0000000001", child(&request)), &"lock:a".into());
        assert_eq!(name.expect("ours").request.note.map(|note| note.len()), Some(MAX_NOTE - 1));
    }

    #[test]
    fn names_of_other_programs_are_not_parsed() {
        let ours = child(&request(Resource::new("lock:a", Kind::Mutex), Claim::Sole));
        let key: Arc<str> = "lock:a".into();
        assert!(ChildName::parse(&format!("{ours}0000000001"), &key).is_some());
        for node in [
            "",
            "~0123",
            "_c_0bd7ff6e-a7e3-11f0-a9dd-0242ac120002-lock-0000000000",
            &ours,
            &format!("{ours}x"),
            &format!("{ours}0000000001~"),
            &format!("{ours}0000000001").replace("~0000000001", "=a/~0000000001"),
            &ours.replace("m5", "x5"),
            &format!("{}0000000001", ours.replace("m5", "m50")),
        ] {
            assert!(ChildName::parse(node, &key).is_none(), "{node}");
        }
    }

    #[test]
    fn different_keys_have_different_nodes_that_zookeeper_allows() {
        let keys =
            ["", ".", "..", "...", "%", "%2E", "a/b", "a%2Fb", "~clock", "a\0", "é", "lock:a.b-c_d@e=f"];
        let paths: std::collections::BTreeSet<_> = keys.iter().map(|key| record("/r", key)).collect();
        assert_eq!(paths.len(), keys.len());
        for of in keys {
            assert_eq!(key(&record("/r", of)[3..]).as_deref(), Some(of));
        }
        for path in paths {
            let name = path.strip_prefix("/r/").expect("below the root");
            assert!(!["", ".", "..", CLOCK].contains(&name) && is_record(name), "{name}");
            assert!(name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/'), "{name}");
        }
    }
}
