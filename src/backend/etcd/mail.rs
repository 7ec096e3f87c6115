//! What is put into a mailbox.

use prost::Message;

use super::keys::KeysOf;
use super::proto::RangeResponse;
use super::view::View;

/// A message from one client to another.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Mail {
    #[prost(string, repeated, tag = "1")]
    pub(super) events: Vec<String>,
    /// What is stored after the transaction that has put this here, so that it need not be read. Its revision is
    /// written as 0.
    #[prost(message, optional, tag = "2")]
    pub(super) seen: Option<RangeResponse>,
}

impl Mail {
    /// What is known of a resource by a message that was put there at this revision.
    pub(super) fn view(self, keys: &KeysOf, revision: i64) -> Option<View> {
        let mut seen = self.seen?;
        for kv in &mut seen.kvs {
            for unknown in [&mut kv.create_revision, &mut kv.mod_revision] {
                if *unknown == 0 {
                    *unknown = revision;
                }
            }
        }
        let known = seen.header.map_or(0, |header| header.revision);
        let view = View::read(keys, seen.kvs, if known == 0 { revision } else { known });
        view.ok().filter(|view| view.record.is_some()).map(|view| view.remembered())
    }
}
