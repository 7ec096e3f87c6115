//! One operation on a lock or a semaphore: a script, a resource and arguments. It becomes a separate call, or part of a
//! batch, only when it is sent.

use std::iter;
use std::ops::Range;

use bytes::Bytes;
use smallvec::SmallVec;

use super::keys;
use super::link::Arguments;
use super::msgpack::{FALSE, TRUE, pack_text};
use super::protocol::USE_FENCE;
use super::script::Script;
use crate::backend::{LeaseId, Resource};

/// The usual size of all arguments: a lease id and a TTL.
const USUAL_SIZE: usize = 64;
/// As many as a request for permits has.
const USUAL_ARGS: usize = 7;

/// A script, the resource from whose key the script's keys are derived, and its arguments.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub(super) script: &'static Script,
    pub(super) resource: Resource,
    /// Never part of a batch.
    is_alone: bool,
    /// The arguments, one after another, and where each ends: an allocation for each would cost more than everything
    /// else.
    args: SmallVec<[u8; USUAL_SIZE]>,
    ends: SmallVec<[u32; USUAL_ARGS]>,
}

impl Operation {
    pub(super) fn new(script: &'static Script, resource: &Resource) -> Self {
        let (args, ends) = (SmallVec::new(), SmallVec::new());
        Self { script, resource: resource.clone(), is_alone: false, args, ends }
    }

    pub(super) const fn alone(mut self) -> Self {
        self.is_alone = true;
        self
    }

    /// What stands for it in a batch, if it can be part of one.
    pub(super) const fn code(&self) -> Option<&'static str> {
        if self.is_alone { None } else { self.script.code() }
    }

    pub(super) fn lease(mut self, id: LeaseId) -> Self {
        self.arg(id.text(&mut [0; LeaseId::MAX_LENGTH]));
        self
    }

    pub(super) fn number(mut self, number: impl itoa::Integer) -> Self {
        self.arg(itoa::Buffer::new().format(number).as_bytes());
        self
    }

    pub(super) fn word(mut self, word: &str) -> Self {
        self.arg(word.as_bytes());
        self
    }

    fn arg(&mut self, arg: &[u8]) {
        self.args.extend_from_slice(arg);
        // The server accepts no longer arguments.
        self.ends.push(u32::try_from(self.args.len()).unwrap_or(u32::MAX));
    }

    /// Where each argument is in `args`.
    fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        let starts = iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| start as usize..*end as usize)
    }

    /// As a call of its own, in the `slot` of a cluster.
    pub(super) fn arguments(&self, slot: Option<u16>) -> Arguments {
        let mut keys = match (self.script.keys(), slot) {
            (1, _) => keys::locks(iter::once(&*self.resource.key)),
            (3, None) => keys::underivable(&self.resource),
            _ => keys::of(&self.resource, slot),
        };
        // Only the scripts with a fourth key use that of revoked leases.
        if self.script.keys() > 3 {
            keys.push(keys::revoked(&self.resource.key));
        }
        let args = Bytes::copy_from_slice(&self.args);
        Arguments { keys, args: self.ranges().map(|range| args.slice(range)).collect() }
    }

    /// As a part of a batch, in MessagePack: its code, its key (unless the operation before has the same one), the
    /// number of its arguments, its arguments (`batch.lua`).
    pub(super) fn pack(&self, code: &'static str, same_key: bool, packed: &mut Vec<u8>) {
        pack_text(code.as_bytes(), packed);
        let key = &*self.resource.key;
        if same_key {
            packed.push(FALSE);
        } else {
            if let Some(tag) = self.resource.has_brace.then(|| keys::tag_beside(key)).flatten() {
                packed.push(TRUE);
                pack_text(format!("{{{tag}}}:").as_bytes(), packed);
            }
            pack_text(key.as_bytes(), packed);
        }
        // A number below 128 is encoded as itself.
        packed.push(self.ends.len() as u8);
        self.ranges().for_each(|range| pack_text(&self.args[range], packed));
    }
}

/// Says in a batch to which prefix the following operations belong.
pub(super) fn pack_prefix(prefix: &str, slot: Option<u16>, packed: &mut Vec<u8>) {
    let mut fence = String::new();
    keys::write_fence(&mut fence, prefix, slot);
    pack_text(USE_FENCE.as_bytes(), packed);
    pack_text(fence.as_bytes(), packed);
}
