//! The process in which a client was made. A process that is forked from it has a copy of the client's memory and of its sockets, but none of
//! its threads: whatever the copy sent would be read as the parent's, and whatever it released would be the parent's lease.

use std::process;

use crate::error::Error;

/// The process in which something was made.
#[derive(Debug)]
pub(crate) struct Origin(u32);

impl Default for Origin {
    fn default() -> Self {
        Self(process::id())
    }
}

impl Origin {
    /// Whether this is another process. Asking the system costs some 0.1 us.
    pub(crate) fn is_elsewhere(&self) -> bool {
        process::id() != self.0
    }

    /// # Errors
    ///
    /// [`Error::Forked`] in another process.
    pub(crate) fn check(&self, operation: &'static str, name: Option<&str>) -> Result<(), Error> {
        let here = process::id();
        if here == self.0 {
            return Ok(());
        }
        Err(Error::Forked { name: name.map(str::to_owned), operation, origin: self.0, process: here })
    }
}
