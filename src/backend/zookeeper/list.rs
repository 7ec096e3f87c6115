//! Which records there are.

use std::sync::Arc;

use super::Shared;
use super::failure::{Code, Malformed};
use super::names;
use super::op::{Op, Reply};
use crate::backend::records::Failure;

impl Shared {
    /// The keys of all records that begin with `prefix`. The server has no pages: it sends the names of all of them.
    pub(super) async fn keys(&self, prefix: &str) -> Result<Vec<Arc<str>>, Failure> {
        let root = &self.settings.root;
        let read = vec![Op::Sync { path: root.clone() }, Op::Children { path: root.clone(), watch: false }];
        let names = match self.send_all(read).await?.replies.pop() {
            Some(Ok(Reply::Children(names, _))) => names,
            Some(Err(Code::NO_NODE)) => Vec::new(),
            Some(Err(code)) => return Err(code.failure(root)),
            _ => return Err(Malformed.into()),
        };
        let keys = names.iter().filter_map(|name| names::key(name));
        Ok(keys.filter(|key| key.starts_with(prefix)).map(Arc::from).collect())
    }
}
