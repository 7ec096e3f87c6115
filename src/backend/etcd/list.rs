//! Which resources there are.

use std::sync::Arc;

use super::keys::Keys;
use super::proto::RangeRequest;
use super::shared::Shared;
use crate::backend::records::Failure;

/// How many keys of etcd are read at once: those of the holds and places are among them.
const PAGE: i64 = 1024;

/// From where to read on.
pub(super) struct Next {
    begin: Vec<u8>,
    end: Vec<u8>,
}

impl Next {
    /// All keys that begin with `prefix`.
    pub(super) fn all(keys: &Keys, prefix: &str) -> Self {
        let (begin, end) = keys.beginning_with(prefix);
        Self { begin, end }
    }

    /// The keys of a page, and where the next one begins, unless this is the last.
    pub(super) async fn page(self, shared: &Shared) -> Result<(Vec<Arc<str>>, Option<Self>), Failure> {
        let connection = shared.link.open().await?;
        let Self { begin, end } = self;
        let range = RangeRequest {
            key: begin,
            range_end: end.clone(),
            limit: PAGE,
            keys_only: true,
            ..RangeRequest::default()
        };
        let page = connection.range(range).await?;
        let mut keys: Vec<Arc<str>> = Vec::new();
        let mut begin = end.clone();
        for kv in &page.kvs {
            begin = [kv.key.as_slice(), b"\0"].concat();
            let Some((key, behind)) = shared.keys.resource_of(&kv.key) else { continue };
            if keys.last().is_none_or(|last| **last != *key) {
                keys.push(key.into());
            }
            begin = behind;
        }
        Ok((keys, page.more.then_some(Self { begin, end })))
    }
}
