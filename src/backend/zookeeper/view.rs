//! A key as it was read: the record, and the leases that are beside it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::clock::{MILLISECOND, millis};
use super::failure::Code;
use super::names::{self, ChildName};
use super::op::{Op, Reply, Stat};
use crate::backend::ledger::UNKNOWN;
use crate::backend::records::{Cached, Failure};
use crate::backend::{BackendError, Grant, LeaseId, Ledger, Limit, Ticket};
use crate::fence::FencingToken;

/// The form of what a record's node contains, of which the generation is the rest of the first line, and the ledger
/// what follows.
const FORM: &str = "zookeeper/1";

/// A key as it was read, or as this client knows it after its own change.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    /// `None` if there is none.
    pub(super) record: Option<Record>,
    /// In the order in which they were created.
    pub(super) children: Vec<Child>,
    /// How often children have been created or deleted; `None` if there may be others than these.
    pub(super) child_version: Option<i32>,
    /// Whether the node exists that proves which generation the record is of.
    pub(super) has_generation: bool,
    /// Whether it was read, and not remembered, and the record did not change meanwhile.
    pub(super) is_current: bool,
}

/// A key as this client has written or read it last, for its next change.
pub(super) struct Known {
    view: View,
    since: Instant,
}

impl Known {
    pub(super) fn new(view: View) -> Self {
        Self { view: View { is_current: false, ..view }, since: Instant::now() }
    }

    pub(super) fn into_view(self) -> View {
        self.view
    }
}

impl Cached for Known {
    /// Whether it is still so is decided when it is written: this only bounds the memory.
    fn is_recent(&self) -> bool {
        self.since.elapsed() < Duration::from_secs(60)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) generation: Arc<str>,
    /// How often the node has been written. It begins again at zero with every generation.
    pub(super) version: i32,
    /// When the node was created, in milliseconds.
    pub(super) created: i64,
    /// Without places.
    pub(super) ledger: Ledger,
}

/// The node of a lease.
#[derive(Clone, Debug)]
pub(super) struct Child {
    pub(super) node: String,
    pub(super) name: ChildName,
    pub(super) seen: Option<Seen>,
}

/// What was found in the node of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) version: i32,
    /// When the lease was last asked for, in milliseconds.
    pub(super) asked: i64,
    /// Whether its owner was asked to repeat its request, and has not done so yet.
    pub(super) is_prompted: bool,
}

/// What the node of a lease says to its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// Nothing new: the owner has written it last.
    Nothing,
    /// The lease was granted.
    Granted(Grant),
    /// The owner should ask again. It asked last at this time.
    AskAgain(i64),
}

/// The requests that read a key. What is read of the children must not be older than the record: then a hold without a
/// child has ended, or the record has been written meanwhile.
pub(super) fn reads(path: &str) -> [Op; 2] {
    [Op::Get { path: path.to_owned(), watch: false }, Op::Children { path: path.to_owned(), watch: false }]
}

impl View {
    /// From the replies to those requests.
    pub(super) fn read(
        key: &Arc<str>,
        path: &str,
        replies: &mut impl Iterator<Item = Result<Reply, Code>>,
    ) -> Result<Self, Unreadable> {
        let (data, children) = (replies.next(), replies.next());
        let (data, stat) = match data {
            Some(Ok(Reply::Data(data, stat))) => (data, stat),
            Some(Err(Code::NO_NODE)) => return Ok(Self { is_current: true, ..Self::default() }),
            Some(Err(code)) => return Err(Unreadable::Refused(code.failure(path))),
            _ => return Err(Unreadable::Refused(super::failure::Malformed.into())),
        };
        let (names, later) = match children {
            Some(Ok(Reply::Children(names, stat))) => (names, stat),
            // It was deleted in between.
            Some(Err(Code::NO_NODE)) => return Ok(Self::default()),
            Some(Err(code)) => return Err(Unreadable::Refused(code.failure(path))),
            _ => return Err(Unreadable::Refused(super::failure::Malformed.into())),
        };
        let record = Record::read(&data, stat).ok_or(Unreadable::Foreign)?;
        let is_current = (stat.version, stat.ctime) == (later.version, later.ctime);
        let child_version = is_current.then_some(later.child_version);
        let mut view = Self { record: Some(record), is_current, child_version, ..Self::default() };
        view.set_children(key, names);
        Ok(view)
    }

    /// What is known of the children is kept.
    pub(super) fn set_children(&mut self, key: &Arc<str>, names: Vec<String>) {
        let known = std::mem::take(&mut self.children).into_iter();
        // Only few have been looked at.
        let known: Vec<_> = known.filter_map(|child| Some((child.node, child.seen?))).collect();
        let seen = |node: &str| known.iter().find(|(known, _)| known == node).map(|(_, seen)| *seen);
        let generation = self.record.as_ref().map(|record| names::generation(&record.generation));
        self.has_generation = generation.is_some_and(|generation| names.contains(&generation));
        let children = names.into_iter().filter_map(|node| {
            let name = ChildName::parse(&node, key)?;
            Some(Child { seen: seen(&node), node, name })
        });
        self.children = children.collect();
        self.children.sort_unstable_by_key(|child| child.name.number);
    }

    /// The record with the places that have not ended, for changes.
    pub(super) fn ledger(&self, now: u64) -> Ledger {
        let Some(record) = &self.record else { return Ledger::default() };
        let mut ledger = record.ledger.clone();
        let present: HashSet<_> = self.children.iter().map(|child| child.name.lease()).collect();
        ledger.retain_holds(&present);
        // This place joined between a read and a change of the limit.
        let is_too_large = |child: &Child| {
            let permits = child.name.request.claim.permits();
            record.ledger.limit().is_some_and(|limit| permits > limit.permits)
        };
        for child in &self.children {
            let ends = child.ends();
            if ends > now && ledger.hold_of(child.name.lease()).is_none() && !is_too_large(child) {
                ledger.put_place(record.ticket(&child.name), &child.name.request, ends);
            }
        }
        ledger
    }

    /// The first place, if there is no holder and it is not known whether the place has ended: then that place decides
    /// the kind of the record.
    pub(super) fn uncertain(&self, now: u64) -> Option<usize> {
        if self.record.is_none() || self.is_held(now) {
            return None;
        }
        let first = self.children.iter().position(|child| child.ends() > now && !self.holds(child))?;
        self.children[first].seen.is_none().then_some(first)
    }

    /// Whether there is a holder.
    pub(super) fn is_held(&self, now: u64) -> bool {
        let Some(record) = &self.record else { return false };
        let ends = |child: &Child| record.ledger.hold_of(child.name.lease()).map(|(_, ends)| ends);
        self.children.iter().filter_map(ends).any(|ends| ends > now)
    }

    /// What changes whenever anybody writes the record, or creates or deletes a child.
    pub(super) fn versions(&self) -> Option<(i32, i64, Option<i32>)> {
        let record = self.record.as_ref()?;
        Some((record.version, record.created, self.child_version))
    }

    /// Whether there may be waiters although permits are free.
    pub(super) fn may_have_waiters(&self) -> bool {
        self.record.as_ref().is_some_and(|record| record.ledger.is_shared())
    }

    /// The child at this path was found, or written, like this. Returns its lease.
    pub(super) fn see(&mut self, path: &str, seen: Seen) -> Option<LeaseId> {
        let node = path.rsplit('/').next().unwrap_or_default();
        let child = self.children.iter_mut().find(|child| child.node == node)?;
        child.seen = Some(seen);
        Some(child.name.lease())
    }

    /// Whether the owner of a lease was asked to repeat its request, and has not done so yet.
    pub(super) fn is_prompted(&self, lease: LeaseId) -> bool {
        let child = self.children.iter().find(|child| child.name.lease() == lease);
        child.and_then(|child| child.seen).is_some_and(|seen| seen.is_prompted)
    }

    /// Children that do not exist any more, by index.
    pub(super) fn remove(&mut self, gone: &[usize]) {
        let mut n = 0;
        self.children.retain(|_| {
            n += 1;
            !gone.contains(&(n - 1))
        });
    }

    /// Children that are marked as granted have ended if the record does not contain their holds.
    pub(super) fn end_unless_held(&mut self, served: &[Child]) {
        for one in served {
            let found = self.children.iter().position(|child| child.node == one.node);
            if let Some(n) = found.filter(|n| !self.holds(&self.children[*n])) {
                self.children[n].seen = one.seen.map(|seen| Seen { asked: 0, ..seen });
            }
        }
    }

    /// These children were found after a change.
    pub(super) fn list(&mut self, key: &Arc<str>, names: Vec<String>, stat: Stat) {
        self.is_current = self.matches(stat);
        self.child_version = self.is_current.then_some(stat.child_version);
        self.set_children(key, names);
    }

    /// The record's node was found like this afterwards. `false` if another client has written it.
    fn matches(&mut self, stat: Stat) -> bool {
        let Some(record) = &mut self.record else { return false };
        if record.created == 0 {
            record.created = stat.ctime;
        }
        (record.version, record.created) == (stat.version, stat.ctime)
    }

    /// Whether a lease of the children holds, according to the record.
    pub(super) fn holds(&self, child: &Child) -> bool {
        self.record.as_ref().is_some_and(|record| record.ledger.hold_of(child.name.lease()).is_some())
    }
}

/// Why a key cannot be read.
#[derive(Debug)]
pub(super) enum Unreadable {
    /// The server says why.
    Refused(Failure),
    /// It is not a record of this crate.
    Foreign,
}

impl Unreadable {
    pub(super) fn error(&self, path: &str) -> BackendError {
        match self {
            Self::Refused(failure) => failure.before_storing(),
            Self::Foreign => {
                let source = format!("{path} is a node of another program");
                BackendError::WrongType { source: source.into() }
            }
        }
    }
}

impl Record {
    pub(super) fn read(data: &[u8], stat: Stat) -> Option<Self> {
        let text = std::str::from_utf8(data).ok()?;
        let (head, ledger) = text.split_once('\n')?;
        let (form, generation) = head.split_once(' ')?;
        let ledger = ledger.parse().ok().filter(|_| form == FORM)?;
        let generation = generation.into();
        Some(Self { generation, version: stat.version, created: stat.ctime, ledger })
    }

    /// What the node contains.
    pub(super) fn data(generation: &str, ledger: &Ledger) -> Vec<u8> {
        format!("{FORM} {generation}\n{}", ledger.text_of_holds()).into_bytes()
    }

    /// The ticket of a place. No other place of this key ever has it: the numbers of the children begin again if the
    /// node is created again, but that is later.
    pub(super) fn ticket(&self, name: &ChildName) -> Ticket {
        Ticket::new(millis(self.created).saturating_add(name.number.into()))
    }
}

impl Child {
    /// When its place ends, in microseconds, rounded up.
    pub(super) fn ends(&self) -> u64 {
        let ttl = u64::try_from(self.name.request.ttl.as_micros()).unwrap_or(UNKNOWN);
        let asked = self.seen.map(|seen| millis(seen.asked));
        asked.map_or(UNKNOWN, |asked| asked.saturating_add(MILLISECOND).saturating_add(ttl))
    }
}

impl Seen {
    pub(super) fn of(data: &[u8], stat: Stat) -> Self {
        let prompted = match Mark::read(data) {
            Some(Mark::AskAgain(asked)) => Some(asked),
            _ => None,
        };
        let asked = prompted.unwrap_or(stat.mtime);
        Self { version: stat.version, asked, is_prompted: prompted.is_some() }
    }
}

impl Mark {
    /// `None` if another client has written it.
    pub(super) fn read(data: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(data).ok()?;
        let mut words = text.split(' ');
        match words.next()? {
            "" => Some(Self::Nothing),
            "g" => {
                let token = FencingToken::new(words.next()?.parse().ok()?);
                let limit = Limit::new(words.next()?.parse().ok()?, words.next()?.parse().ok()?);
                Some(Self::Granted(Grant::new(token, (limit.version > 0).then_some(limit))))
            }
            "a" => Some(Self::AskAgain(words.next()?.parse().ok()?)),
            _ => None,
        }
    }

    pub(super) fn data(self) -> Vec<u8> {
        let text = match self {
            Self::Nothing => String::new(),
            Self::Granted(Grant { token, limit, .. }) => {
                let (permits, version) = limit.map_or((0, 0), |limit| (limit.permits, limit.version));
                format!("g {token} {permits} {version}")
            }
            Self::AskAgain(asked) => format!("a {asked}"),
        };
        text.into_bytes()
    }
}
