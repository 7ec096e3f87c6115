//! What is printed as JSON. The field names are stable, and documented in `docs/guide/command-line.md`: a test compares
//! them with that page.

use std::time::{Duration, SystemTime};

use leasehold::{Inspection, ListEntry, Purpose, RwLock};
use serde::Serialize;

use crate::find::Found;

/// A line of `list`.
#[derive(Debug, Serialize)]
pub(crate) struct Item {
    pub(crate) kind: &'static str,
    pub(crate) name: String,
    pub(crate) holders: Vec<Holder>,
    pub(crate) waiters: usize,
}

impl Item {
    pub(crate) fn of(entry: &ListEntry) -> Self {
        let ListEntry { purpose, name, .. } = entry;
        Self {
            kind: purpose.as_str(),
            name: name.clone(),
            holders: holders(*purpose, &entry.holders),
            waiters: entry.waiters,
        }
    }
}

/// A line of `show`.
#[derive(Debug, Serialize)]
pub(crate) struct Details {
    pub(crate) kind: &'static str,
    pub(crate) name: String,
    pub(crate) holders: Vec<Holder>,
    pub(crate) waiters: usize,
    pub(crate) waiting: Vec<Waiter>,
    pub(crate) limit: Option<u32>,
    pub(crate) in_use: u32,
    pub(crate) nodes: Vec<Node>,
}

impl Details {
    pub(crate) fn of(name: &str, found: &Found) -> Self {
        let Found { purpose, now } = found;
        let is_rw = *purpose == Purpose::RwLock;
        let waiting = now.waiters.iter().map(|waiter| Waiter::of(*purpose, waiter));
        let nodes = now.nodes.iter().map(|node| Node::of(*purpose, &node.store, &node.view));
        Self {
            kind: purpose.as_str(),
            name: name.to_owned(),
            holders: holders(*purpose, &now.holders),
            waiters: now.waiters.len(),
            waiting: waiting.collect(),
            limit: now.limit.filter(|_| !is_rw),
            in_use: if is_rw { u32::try_from(now.holders.len()).unwrap_or(u32::MAX) } else { now.in_use },
            nodes: nodes.collect(),
        }
    }
}

/// Who holds something.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Holder {
    pub(crate) label: Option<String>,
    pub(crate) note: Option<String>,
    pub(crate) owner: Option<String>,
    /// Of a read/write lock.
    pub(crate) mode: Option<&'static str>,
    pub(crate) permits: u32,
    pub(crate) token: Option<u64>,
    /// By the clock of this machine.
    pub(crate) since: Option<String>,
    pub(crate) held_seconds: Option<f64>,
    pub(crate) remaining_seconds: Option<f64>,
    /// Enough of the lease id to find it in logs; none for a client of another library.
    pub(crate) lease: Option<String>,
}

fn holders(purpose: Purpose, holders: &[leasehold::Holder]) -> Vec<Holder> {
    holders.iter().map(|holder| Holder::of(purpose, holder)).collect()
}

impl Holder {
    pub(crate) fn of(purpose: Purpose, holder: &leasehold::Holder) -> Self {
        let mode = mode(purpose, holder.permits);
        Self {
            label: holder.label.clone(),
            note: holder.note.clone(),
            owner: holder.owner.clone(),
            mode,
            permits: if mode.is_some() { 1 } else { holder.permits },
            token: holder.token.map(|token| token.get()),
            since: holder.held_for.and_then(ago),
            held_seconds: holder.held_for.map(seconds),
            remaining_seconds: holder.remaining.map(seconds),
            lease: holder.short_id(),
        }
    }
}

/// Who waits, in the order of arrival.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Waiter {
    pub(crate) label: Option<String>,
    pub(crate) note: Option<String>,
    pub(crate) mode: Option<&'static str>,
    pub(crate) permits: u32,
    pub(crate) remaining_seconds: f64,
}

impl Waiter {
    fn of(purpose: Purpose, waiter: &leasehold::Waiter) -> Self {
        let mode = mode(purpose, waiter.permits);
        Self {
            label: waiter.label.clone(),
            note: waiter.note.clone(),
            mode,
            permits: if mode.is_some() { 1 } else { waiter.permits },
            remaining_seconds: seconds(waiter.remaining),
        }
    }
}

/// What one node of a Redlock says.
#[derive(Debug, Serialize)]
pub(crate) struct Node {
    pub(crate) store: String,
    pub(crate) holders: Vec<Holder>,
    pub(crate) waiters: usize,
    pub(crate) error: Option<String>,
}

impl Node {
    fn of(purpose: Purpose, store: &str, view: &Result<Inspection, String>) -> Self {
        let store = store.to_owned();
        match view {
            Ok(view) => {
                let holders = holders(purpose, &view.holders);
                Self { store, holders, waiters: view.waiters.len(), error: None }
            }
            Err(error) => Self { store, holders: Vec::new(), waiters: 0, error: Some(error.clone()) },
        }
    }
}

/// The line of `break`.
#[derive(Debug, Serialize)]
pub(crate) struct Broken {
    pub(crate) name: String,
    pub(crate) kind: Option<&'static str>,
    pub(crate) broken: bool,
    pub(crate) holders: Vec<Holder>,
    /// Whether the holders are told at once: not by their next renewals, and not if they are of another library.
    pub(crate) told_at_once: bool,
}

/// The line of `wait`.
#[derive(Debug, Serialize)]
pub(crate) struct Free {
    pub(crate) name: String,
    pub(crate) free: bool,
    pub(crate) waited_seconds: f64,
}

/// A line of `token`.
#[derive(Debug, Serialize)]
pub(crate) struct Token {
    pub(crate) name: String,
    pub(crate) kind: &'static str,
    pub(crate) token: u64,
}

/// A line of `watch`.
#[derive(Debug, Serialize)]
pub(crate) struct Snapshot {
    pub(crate) at: String,
    pub(crate) store: String,
    pub(crate) connected: bool,
    pub(crate) error: Option<String>,
    /// None if it is not known.
    pub(crate) items: Option<Vec<Item>>,
}

/// A line of `demo`.
#[derive(Debug, Serialize)]
pub(crate) struct Event {
    pub(crate) seconds: f64,
    pub(crate) worker: Option<String>,
    pub(crate) text: String,
}

/// How many permits of a read/write lock stand for what.
fn mode(purpose: Purpose, permits: u32) -> Option<&'static str> {
    (purpose == Purpose::RwLock).then_some(if permits == RwLock::MAX_READERS { "write" } else { "read" })
}

/// To the millisecond.
pub(crate) fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1000.0).round() / 1000.0
}

/// The time of day as long ago, such as `2026-11-27T20:13:04Z`.
pub(crate) fn ago(time: Duration) -> Option<String> {
    let then = SystemTime::now().checked_sub(time)?;
    Some(humantime::format_rfc3339_seconds(then).to_string())
}

/// The time of day.
pub(crate) fn now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::Value;

    use super::*;

    const PAGE: &str = include_str!("../../docs/guide/command-line.md");

    fn fields(value: &impl Serialize) -> Vec<String> {
        let Value::Object(fields) = serde_json::to_value(value).unwrap() else { panic!("an object") };
        fields.keys().cloned().collect()
    }

    /// The first column of the table below each heading that ends with `(JSON)`.
    fn documented() -> BTreeMap<String, Vec<String>> {
        let mut tables = BTreeMap::<_, Vec<_>>::new();
        let mut heading = None;
        for line in PAGE.lines() {
            if line.starts_with('#') {
                heading = line.trim_start_matches('#').trim().strip_suffix(" (JSON)").map(str::to_owned);
            } else if let (Some(heading), Some(row)) = (&heading, line.strip_prefix("| `")) {
                let field = row.split('`').next().unwrap_or_default().to_owned();
                tables.entry(heading.clone()).or_default().push(field);
            }
        }
        tables
    }

    #[test]
    fn the_page_has_the_fields_of_the_code() {
        let text = String::new;
        let holder = Holder::of(Purpose::Mutex, &leasehold::Holder::new("x", None, None));
        let waiter = Waiter { label: None, note: None, mode: None, permits: 1, remaining_seconds: 0.0 };
        let details = Details::of("a", &Found { purpose: Purpose::Mutex, now: Inspection::default() });
        let node = Node::of(Purpose::Mutex, "redis://a", &Err(text()));
        let item = Item { kind: "mutex", name: text(), holders: Vec::new(), waiters: 0 };
        let broken =
            Broken { name: text(), kind: None, broken: false, holders: Vec::new(), told_at_once: true };
        let free = Free { name: text(), free: true, waited_seconds: 0.0 };
        let token = Token { name: text(), kind: "mutex", token: 1 };
        let snapshot =
            Snapshot { at: text(), store: text(), connected: false, error: Some(text()), items: None };
        let event = Event { seconds: 0.0, worker: None, text: text() };
        let finding = crate::commands::check::Line { severity: "info", text: "" };
        let expected = [
            ("list", fields(&item)),
            ("show", fields(&details)),
            ("A holder", fields(&holder)),
            ("A waiter", fields(&waiter)),
            ("A node", fields(&node)),
            ("break", fields(&broken)),
            ("wait", fields(&free)),
            ("token", fields(&token)),
            ("watch", fields(&snapshot)),
            ("demo", fields(&event)),
            ("check", fields(&finding)),
        ];
        let sorted = |mut fields: Vec<String>| {
            fields.sort();
            fields
        };
        let documented = documented();
        for (heading, fields) in expected {
            let on_page = documented.get(heading).unwrap_or_else(|| panic!("{heading} is missing")).clone();
            assert_eq!(sorted(on_page), sorted(fields), "{heading}");
        }
    }
}
