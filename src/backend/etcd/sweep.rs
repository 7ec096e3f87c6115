//! Records that nobody has used for a day are removed.
//!
//! etcd has no clock, but its leases expire: a key with a TTL of one day shows that a client has swept within the last
//! day. When that key is gone, one client removes the idle records that were last written before the previous sweep.

use std::sync::Arc;

use super::connection::Connection;
use super::keys::KeysOf;
use super::proto::{RangeRequest, TxnRequest};
use super::shared::Shared;
use super::transaction::{delete, put};
use super::view::View;
use crate::backend::records::Failure;

/// In seconds.
const DAY: u32 = 24 * 60 * 60;
/// How many records are read at once.
const PAGE: i64 = 512;

/// Removes idle records, unless a client has done so within the last day.
pub(super) async fn sweep(shared: &Shared) {
    let swept = async {
        let connection = shared.link.open().await?;
        if let Some(until) = take_turn(shared, &connection).await? {
            remove_idle(shared, &connection, until).await?;
        }
        Ok::<_, Failure>(())
    };
    if let Err(failure) = swept.await {
        tracing::debug!(store = %shared.settings.address, %failure, "idle records were not removed");
    }
}

/// The revision up to which idle records are to be removed; `None` if it is not time yet, or another client does it.
async fn take_turn(shared: &Shared, connection: &Arc<Connection>) -> Result<Option<i64>, Failure> {
    let (turn, swept) = (shared.keys.turn(), shared.keys.swept());
    let read = |key: &[u8]| RangeRequest { key: key.to_vec(), ..RangeRequest::default() };
    if !connection.range(read(&turn)).await?.kvs.is_empty() {
        return Ok(None);
    }
    let before = connection.range(read(&swept)).await?;
    let until = before.kvs.first().and_then(|kv| std::str::from_utf8(&kv.value).ok()?.parse().ok());
    let now = before.header.map_or(0, |header| header.revision);
    let lease = connection.grant(DAY).await?.id;
    let request = TxnRequest {
        compare: vec![KeysOf::is_new(turn.clone())],
        success: vec![put(turn, Vec::new(), lease), put(swept, now.to_string().into_bytes(), 0)],
        failure: Vec::new(),
    };
    if connection.change(request).await?.succeeded {
        return Ok(until);
    }
    connection.revoke(lease).await?;
    Ok(None)
}

async fn remove_idle(shared: &Shared, connection: &Arc<Connection>, until: i64) -> Result<(), Failure> {
    let (mut key, range_end) = shared.keys.all();
    loop {
        let page = RangeRequest {
            key,
            range_end: range_end.clone(),
            limit: PAGE,
            max_mod_revision: until,
            ..RangeRequest::default()
        };
        let page = connection.range(page).await?;
        let revision = page.header.map_or(0, |header| header.revision);
        for kv in &page.kvs {
            let Some(keys) = KeysOf::of_record(&kv.key) else { continue };
            // A record that cannot be parsed may belong to another program, and is kept.
            let Ok(record) = View::read(&keys, vec![kv.clone()], revision) else { continue };
            if record.is_forgettable() {
                remove(connection, &keys, kv.mod_revision).await?;
            }
        }
        match page.kvs.last() {
            Some(last) if page.more => key = [last.key.as_slice(), b"\0"].concat(),
            _ => return Ok(()),
        }
    }
}

/// Removes a record if nobody has changed it, holds or waits.
async fn remove(connection: &Arc<Connection>, keys: &KeysOf, mod_revision: i64) -> Result<(), Failure> {
    let compare = vec![keys.is_of(mod_revision), keys.has_none_after(0), KeysOf::is_new(keys.limit())];
    let success = vec![delete(keys.record())];
    connection.change(TxnRequest { compare, success, failure: Vec::new() }).await?;
    Ok(())
}
