//! One operation on a lock or a semaphore: a script, a key and arguments. It becomes a call of its own, or a part of a batch, only
//! when it is sent.

use std::sync::Arc;

use super::args::Args;
use super::keys::{self, Stem};
use super::script::{Call, Script};

/// A script, the key from which its other keys are derived, and its arguments.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub(super) script: &'static Script,
    pub(super) key: Arc<str>,
    pub(super) args: Args,
}

impl Operation {
    /// As a call of its own.
    pub(super) fn call(&self) -> Call {
        let (keys, args) = keys::with_args(&self.key, self.script.keys(), &self.args);
        Call { script: self.script, keys, args }
    }

    /// As a part of a batch, in MessagePack: its letter, the number of its arguments, its key (unless the operation before has the
    /// same one), its arguments.
    pub(super) fn pack(&self, letter: u8, same_key: bool, packed: &mut Vec<u8>) {
        pack_text(&[letter], packed);
        // A number below 128 is encoded as itself.
        packed.push(self.args.len());
        match Stem::of(&self.key) {
            _ if same_key => packed.push(FALSE),
            Stem::Whole => pack_text(self.key.as_bytes(), packed),
            stem => {
                packed.push(TRUE);
                let mut start = String::new();
                stem.write(&mut start, "");
                pack_text(start.as_bytes(), packed);
                pack_text(self.key.as_bytes(), packed);
            }
        }
        for arg in self.args.iter() {
            pack_text(arg.as_bytes(), packed);
        }
    }
}

const FALSE: u8 = 0xc2;
const TRUE: u8 = 0xc3;

/// Appends a text with its length.
fn pack_text(text: &[u8], packed: &mut Vec<u8>) {
    match u8::try_from(text.len()) {
        Ok(len @ ..0x20) => packed.push(0xa0 | len),
        Ok(len) => packed.extend([0xd9, len]),
        Err(_) => {
            packed.push(0xdb);
            // The server accepts no longer argument.
            packed.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
        }
    }
    packed.extend_from_slice(text);
}
