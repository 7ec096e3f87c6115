//! Records that nobody has used for a day are removed.

use std::sync::Arc;
use std::time::Duration;

use super::Shared;
use super::clock::millis;
use super::failure::Code;
use super::names::{self, ChildName};
use super::op::{Mode, Op, Reply, Stat};
use super::view::{Child, Record, Seen};
use crate::backend::Stamp;
use crate::backend::records::Failure;

/// How soon after its start a client thinks of it.
pub(super) const FIRST: Duration = Duration::from_secs(60);
/// How often a client considers it. Of several clients, one does it.
pub(super) const INTERVAL: Duration = Duration::from_secs(60 * 60);
/// How long a record is kept that nobody uses.
const IDLE: Duration = Duration::from_secs(24 * 60 * 60);
/// How often a node may be written before it is replaced as soon as nobody uses it: versions have 32 bits.
const REPLACE_AT_VERSION: i32 = 1 << 30;
const TOGETHER: usize = 256;

impl Shared {
    pub(super) async fn sweep(self: Arc<Self>) {
        if let Err(failure) = self.try_to_sweep().await {
            tracing::debug!(store = %self.settings.address, %failure, "idle nodes were not removed");
        }
    }

    /// Removes unused records, unless another client has done so within the last hour.
    async fn try_to_sweep(&self) -> Result<(), Failure> {
        let root = &self.settings.root;
        let now = self.clock().await?.now();
        if !self.is_turn(now).await? {
            return Ok(());
        }
        let replies = self.send_all(vec![Op::Children { path: root.clone(), watch: false }]).await?.replies;
        let Some(Ok(Reply::Children(names, _))) = replies.into_iter().next() else { return Ok(()) };
        let records: Vec<_> = names.into_iter().filter(|name| names::is_record(name)).collect();
        for some in records.chunks(TOGETHER) {
            let paths: Vec<_> = some.iter().map(|name| format!("{root}/{name}")).collect();
            let reads = paths.iter().map(|path| Op::Get { path: path.clone(), watch: false }).collect();
            let replies = self.send_all(reads).await?.replies;
            for (path, reply) in paths.iter().zip(replies) {
                // A record that cannot be parsed may belong to another program, and is kept.
                let Ok(Reply::Data(data, stat)) = reply else { continue };
                let Some(record) = Record::read(&data, stat).filter(|record| is_idle(record, stat, now))
                else {
                    continue;
                };
                self.remove(path, &record, now).await?;
            }
        }
        Ok(())
    }

    /// Whether this client is to do it now.
    async fn is_turn(&self, now: u64) -> Result<bool, Failure> {
        let path = names::swept(&self.settings.root);
        let read = Op::Get { path: path.clone(), watch: false };
        let turn = match self.send_all(vec![read]).await?.replies.into_iter().next() {
            Some(Ok(Reply::Data(_, stat))) => {
                let due = millis(stat.mtime).saturating_add(micros(INTERVAL));
                (due <= now).then_some(Op::Set { path, data: Vec::new(), version: stat.version })
            }
            Some(Err(Code::NO_NODE)) => Some(Op::Create { path, data: Vec::new(), mode: Mode::Persistent }),
            _ => None,
        };
        let Some(turn) = turn else { return Ok(false) };
        Ok(matches!(self.send_all(vec![turn]).await?.replies.first(), Some(Ok(_))))
    }

    /// Removes a record and its children, unless a client uses it after all.
    async fn remove(&self, path: &str, record: &Record, now: u64) -> Result<(), Failure> {
        let replies =
            self.send_all(vec![Op::Children { path: path.to_owned(), watch: false }]).await?.replies;
        let Some(Ok(Reply::Children(nodes, _))) = replies.into_iter().next() else { return Ok(()) };
        let child = |node: &str| format!("{path}/{node}");
        let reads: Vec<_> = nodes.iter().map(|node| Op::Get { path: child(node), watch: false }).collect();
        let replies = self.send_all(reads).await?.replies;
        let mut ops = Vec::new();
        for (node, reply) in nodes.iter().zip(replies) {
            // It is gone, or belongs to another user: then the record is in use.
            let Ok(Reply::Data(data, stat)) = reply else { return Ok(()) };
            if *node != names::generation(&record.generation) && !has_ended(node, &data, stat, now) {
                return Ok(());
            }
            ops.push(Op::Delete { path: child(node), version: stat.version });
        }
        ops.push(Op::Delete { path: path.to_owned(), version: record.version });
        let is_removed = self.send_all(vec![Op::Multi(ops)]).await?.replies;
        if let Some(Err(code)) = is_removed.first() {
            tracing::debug!(store = %self.settings.address, path, ?code, "an idle node was not removed");
        }
        Ok(())
    }
}

/// Numbers issued later are above the clock, and those of this record must be below it.
fn is_idle(record: &Record, stat: Stat, now: u64) -> bool {
    let is_old = millis(stat.mtime).saturating_add(micros(IDLE)) < now || record.version > REPLACE_AT_VERSION;
    is_old && !record.ledger.is_in_use(Stamp::new(now, now, 0)) && record.ledger.last_number() < now
}

/// Whether a child is the node of a lease whose place has ended.
fn has_ended(node: &str, data: &[u8], stat: Stat, now: u64) -> bool {
    let Some(name) = ChildName::parse(node, &Arc::from("")) else { return false };
    let child = Child { node: node.to_owned(), name, seen: Some(Seen::of(data, stat)) };
    child.ends() < now
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
