//! What is held or awaited: found by SCAN on every primary, in small steps, and then looked at, some at a time.
//!
//! A lock that is awaited and that nobody holds, as after the death of its holder, has a queue and no key of its own.
//! So keys are found by their own names and by those of their queues. The name of a queue contains that of its lock, so
//! one pass finds both.
//!
//! A position in a scan means nothing to another server, nor to the same one after a restart. So a list ends with an
//! error when its connection is lost: what it has not reported would remain unknown.

use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt, TryStreamExt};
use tokio::time::Instant;

use super::RedisBackend;
use super::calls::{read_lock_holders, read_number, read_permit_holders};
use super::connection::Connection;
use super::descriptions::{Labels, annotate, label, leases_of, read_labels, read_notes};
use super::keys;
use super::link::{Link, Value};
use super::protocol::{A_LOCK, A_SEMAPHORE};
use super::script::{Arguments, LIST};
use crate::backend::{BackendError, Kind, Listed, Resource};
use crate::hash::HashSet;
use crate::name;

/// How many keys the server looks at in one step of a scan, about: less than half a millisecond.
const SCANNED: &str = "1000";
/// How many resources one call looks at: about half a millisecond if each has one holder. A call that finds many of
/// them ends early.
const LOOKED_AT: usize = 128;
/// How many calls to a cluster are in flight: each concerns one slot, and so only a few keys.
const IN_FLIGHT: usize = 16;
/// For semaphores of which it is not stored whether they are fair.
const PREFIX_OF_FAIR: &str = "fair-semaphore:";

/// How far a list has come.
struct Progress<'a> {
    prefixes: Vec<&'a str>,
    /// The scans that are not over; `None` before the first step.
    scans: Option<Vec<Scan>>,
    /// The keys that have been looked at: a scan may return a key twice, and a lock is found by its queue as well.
    seen: HashSet<Box<str>>,
    labels: Labels,
}

/// A scan of one server, over one link.
struct Scan {
    connection: Arc<Connection>,
    link: Arc<dyn Link>,
    cursor: String,
}

impl RedisBackend {
    pub(super) fn list_in_steps<'a>(
        &'a self,
        prefixes: Vec<&'a str>,
    ) -> BoxStream<'a, Result<Listed, BackendError>> {
        let begin = Progress { prefixes, scans: None, seen: HashSet::default(), labels: Labels::default() };
        let steps = stream::try_unfold(begin, move |progress| self.at_home(move || self.step(progress)));
        steps.map_ok(|listed| stream::iter(listed.into_iter().map(Ok))).try_flatten().boxed()
    }

    /// What the next step of the scans has found; `None` if they are over.
    async fn step<'a>(
        &self,
        mut progress: Progress<'a>,
    ) -> Result<Option<(Vec<Listed>, Progress<'a>)>, BackendError> {
        let scans = match &mut progress.scans {
            Some(scans) => scans,
            none => none.insert(self.begin_scans().await?),
        };
        let Some(scan) = scans.last_mut() else { return Ok(None) };
        // A scan has one pattern.
        let part = if let [prefix] = progress.prefixes[..] { prefix } else { "" };
        let found = scan.next(part).await?;
        if scan.is_over() {
            scans.pop();
        }
        let found = found.into_iter().filter_map(|key| resource_at(&key, &progress.prefixes));
        let found: Vec<_> = found.filter(|key| progress.seen.insert(key.clone())).collect();
        let listed = self.look_at(&found, &mut progress.labels).await?;
        Ok(Some((listed, progress)))
    }

    async fn begin_scans(&self) -> Result<Vec<Scan>, BackendError> {
        self.connections.ready().await?;
        let mut scans = Vec::new();
        for connection in self.commands.connections() {
            let link = connection.link().await?;
            scans.push(Scan { connection, link, cursor: "0".to_owned() });
        }
        Ok(scans)
    }

    /// Those of these keys that are held or awaited.
    async fn look_at(&self, keys: &[Box<str>], labels: &mut Labels) -> Result<Vec<Listed>, BackendError> {
        let mut keys: Vec<_> = keys.iter().map(|key| (self.slot_of(key), &**key)).collect();
        keys.sort_unstable();
        let groups = keys.chunk_by(|(a, _), (b, _)| a == b).flat_map(|group| group.chunks(LOOKED_AT));
        let in_flight = if self.commands.are_in_cluster() { IN_FLIGHT } else { 1 };
        let calls: Vec<_> = groups.map(|group| self.look_at_group(group).boxed()).collect();
        let mut listed: Vec<Listed> = stream::iter(calls).buffered(in_flight).try_concat().await?;
        let leases: Vec<_> = listed.iter().flat_map(|listed| leases_of(&listed.holders)).collect();
        read_labels(&self.commands, labels, &leases).await;
        listed.iter_mut().for_each(|listed| label(&mut listed.holders, labels));
        Ok(listed)
    }

    /// The same for keys in one slot, as yet without labels.
    async fn look_at_group(&self, group: &[(Option<u16>, &str)]) -> Result<Vec<Listed>, BackendError> {
        let Some((_, first)) = group.first() else { return Ok(Vec::new()) };
        let transport = self.commands.at(first.as_bytes());
        let (mut listed, mut rest) = (Vec::with_capacity(group.len()), group);
        while !rest.is_empty() {
            let keys: Vec<Bytes> = rest.iter().flat_map(|(_, key)| keys::with_its_queue(key)).collect();
            let arguments = || Arguments { keys: keys.clone(), args: Vec::new() };
            let answer = transport.deliver(&LIST, arguments).await?;
            // Those of the first ones, which may be all of them.
            let answers = answer.as_list().split_first();
            let answers = answers.filter(|(_, answers)| (1..=rest.len()).contains(&answers.len()));
            let (now, answers) = answers.ok_or_else(|| LIST.unreadable())?;
            let (asked, others) = rest.split_at(answers.len());
            listed.extend(asked.iter().zip(answers).filter_map(|((_, key), one)| read_listed(key, one, now)));
            rest = others;
        }
        let leases = listed
            .iter()
            .flat_map(|listed| leases_of(&listed.holders).map(|lease| (&*listed.resource.key, lease)));
        let notes = read_notes(transport, leases.collect()).await;
        listed.iter_mut().for_each(|listed| annotate(&mut listed.holders, &notes));
        Ok(listed)
    }

    fn slot_of(&self, key: &str) -> Option<u16> {
        self.commands.are_in_cluster().then(|| keys::slot(key.as_bytes()))
    }
}

impl Scan {
    /// The keys that contain `part` and that the next step finds.
    async fn next(&mut self, part: &str) -> Result<Vec<Box<str>>, BackendError> {
        let words = ["SCAN", &self.cursor, "MATCH", &pattern(part), "COUNT", SCANNED].map(str::to_owned);
        let sent = Instant::now();
        let answer = self.link.command(words.into()).await;
        self.connection.record_answer(&answer, sent);
        let answer = answer?;
        let [cursor, keys] = answer.as_list() else { return Err(unreadable_scan()) };
        self.cursor = cursor.as_str().ok_or_else(unreadable_scan)?.to_owned();
        // The keys of this crate are UTF-8.
        Ok(keys.as_list().iter().filter_map(Value::as_str).map(Box::from).collect())
    }

    fn is_over(&self) -> bool {
        self.cursor == "0"
    }
}

fn unreadable_scan() -> BackendError {
    BackendError::Refused { source: "SCAN returned an answer of an unknown form".into() }
}

/// A pattern for all keys that contain this text, whatever its characters.
fn pattern(part: &str) -> String {
    let mut pattern = "*".to_owned();
    for c in part.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '\\') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern.push('*');
    pattern
}

/// The key of the resource, beginning with one of these, of which this key shows that it may be held or awaited.
fn resource_at(key: &str, prefixes: &[&str]) -> Option<Box<str>> {
    let resource = if name::is_reserved(key) { keys::with_queue(key)? } else { key };
    prefixes.iter().any(|prefix| resource.starts_with(prefix)).then(|| resource.into())
}

/// An answer of `list.lua`.
pub(super) fn read_listed(key: &str, answer: &Value, now: &Value) -> Option<Listed> {
    let (what, parts) = answer.as_list().split_first()?;
    let (kind, holders, waiters) = match (what.as_str()?, parts) {
        (A_LOCK, [value, remaining, waiters, holds]) => {
            let value = value.as_bytes().map(|value| read_lock_holders(value, remaining, holds, now));
            let holders = match value {
                Some(holders) => holders?,
                None => Vec::new(),
            };
            let is_owned = holders.first().is_some_and(|holder| holder.owner.is_some());
            (if is_owned { Kind::Reentrant } else { Kind::Mutex }, holders, waiters)
        }
        (A_SEMAPHORE, [is_counting, waiters, holders]) => {
            let is_fair = match is_counting.as_i64() {
                Some(is_counting) => is_counting == 0,
                None => key.starts_with(PREFIX_OF_FAIR),
            };
            let kind = if is_fair { Kind::Fair } else { Kind::Counting };
            (kind, read_permit_holders(holders, now).flatten().collect(), waiters)
        }
        _ => return None,
    };
    let waiters = usize::try_from(read_number(waiters)?).ok()?;
    let is_in_use = !holders.is_empty() || waiters > 0;
    is_in_use.then(|| Listed::new(Resource::new(key, kind), holders, waiters))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_character_of_a_prefix_stands_for_itself() {
        for (part, expected) in [("", "**"), ("lock:", "*lock:*"), ("a*?[b]\\^-", "*a\\*\\?\\[b\\]\\\\^-*")] {
            assert_eq!(pattern(part), expected);
        }
    }

    #[test]
    fn a_resource_is_found_by_its_own_key_and_by_its_queue_only() {
        for (key, prefix, resource) in [
            ("lock:a", "lock:", Some("lock:a")),
            ("lock:a", "", Some("lock:a")),
            ("lock:a", "lock:b", None),
            ("xlock:a", "lock:", None),
            ("{lock:a}:queue", "lock:", Some("lock:a")),
            ("{lock:a}:queue", "", Some("lock:a")),
            ("{lock:a}:queue", "{lock:", None),
            ("{t}:lock:{t}a:queue", "lock:", Some("lock:{t}a")),
            ("{lock:a}:waiters", "", None),
            ("{lock:a}:revoked", "", None),
            ("{lock:}:fence", "", None),
            ("{leasehold}:0:client", "", None),
            ("{t}a", "{t}", Some("{t}a")),
        ] {
            assert_eq!(resource_at(key, &["none:", prefix]).as_deref(), resource, "{key} {prefix}");
        }
    }
}
