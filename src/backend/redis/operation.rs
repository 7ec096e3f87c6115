//! One operation on a lock or a semaphore: a script, a key and arguments. It becomes a call of its own, or a part of a batch, only
//! when it is sent.

use super::args::Args;
use super::keys::{self, Stem};
use super::msgpack::{FALSE, TRUE, pack_text};
use super::protocol::{ACQUIRE, ACQUIRE_WITH, RELEASE, RENEW, USE_FENCE};
use super::script::{Call, Script};
use crate::backend::Resource;

/// A script, the resource from whose key the script's keys are derived, and its arguments.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub(super) script: &'static Script,
    pub(super) resource: Resource,
    pub(super) args: Args,
}

impl Operation {
    /// As a call of its own.
    pub(super) fn call(&self) -> Call {
        let (keys, args) = keys::with_args(&self.resource, self.script.keys(), &self.args);
        Call { script: self.script, keys, args }
    }

    /// As a part of a batch, in MessagePack: its code, its key (unless the operation before has the same one), the number of its
    /// arguments (unless that follows from the code), its arguments (`batch.lua`).
    pub(super) fn pack(&self, code: &'static str, same_key: bool, packed: &mut Vec<u8>) {
        let args = self.args.len();
        let code = if code == ACQUIRE && args > 2 { ACQUIRE_WITH } else { code };
        pack_text(code.as_bytes(), packed);
        match Stem::of(&self.resource.key) {
            _ if same_key => packed.push(FALSE),
            Stem::Whole => pack_text(self.resource.key.as_bytes(), packed),
            stem => {
                packed.push(TRUE);
                let mut start = String::new();
                stem.write(&mut start, "");
                pack_text(start.as_bytes(), packed);
                pack_text(self.resource.key.as_bytes(), packed);
            }
        }
        if !matches!(code, ACQUIRE | RENEW | RELEASE) {
            // A number below 128 is encoded as itself.
            packed.push(args);
        }
        for arg in self.args.iter() {
            pack_text(arg.as_bytes(), packed);
        }
    }
}

/// Says in a batch to which prefix the operations belong that follow.
pub(super) fn pack_prefix(prefix: &str, packed: &mut Vec<u8>) {
    let mut fence = String::new();
    keys::write_fence(&mut fence, prefix);
    pack_text(USE_FENCE.as_bytes(), packed);
    pack_text(fence.as_bytes(), packed);
}
