//! The ids of acquisitions.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use uuid::Uuid;

/// Identifies one acquisition: the client that made it, and a number.
///
/// Anyone who knows a lease id can end the lease, so `Debug` prints only enough of it to tell two ids apart.
///
/// ```
/// use leasehold::backend::LeaseId;
/// use uuid::Uuid;
///
/// let client = Uuid::new_v4();
/// let id = LeaseId::next(client);
/// assert_eq!(LeaseId::parse(&id.to_string()), Some(id)); // as it is stored
/// assert!(!format!("{id:?}").contains(&client.to_string())); // as it is logged
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeaseId {
    client: Uuid,
    sequence: u64,
}

/// The number of the next acquisition of this process.
static NEXT: AtomicU64 = AtomicU64::new(1);

impl LeaseId {
    /// The maximum length of an id's text.
    pub(crate) const MAX_LENGTH: usize = uuid::fmt::Hyphenated::LENGTH + ".18446744073709551615".len();

    /// The id of a new acquisition of this client.
    #[must_use]
    pub fn next(client: Uuid) -> Self {
        Self { client, sequence: NEXT.fetch_add(1, Ordering::Relaxed) }
    }

    /// The client that made the acquisition.
    #[must_use]
    pub const fn client(&self) -> Uuid {
        self.client
    }

    /// The acquisition's number, which no other one of this process has.
    #[must_use]
    pub const fn sequence(&self) -> u64 {
        self.sequence
    }

    /// As much of the client's id as `Debug` prints.
    pub(crate) fn short_client(&self) -> String {
        format!("{:08x}…", self.client.as_fields().0)
    }

    /// As much of this id as `Debug` prints.
    pub(crate) fn short(&self) -> String {
        format!("{}.{}", self.short_client(), self.sequence)
    }

    /// The text that `Display` writes. Avoids the formatting machinery, because this is done for every command.
    pub(crate) fn text(self, buffer: &mut [u8; Self::MAX_LENGTH]) -> &[u8] {
        const POINT: usize = uuid::fmt::Hyphenated::LENGTH;
        let mut number = itoa::Buffer::new();
        let number = number.format(self.sequence).as_bytes();
        let end = POINT + 1 + number.len();
        self.client.hyphenated().encode_lower(buffer);
        buffer[POINT] = b'.';
        buffer[POINT + 1..end].copy_from_slice(number);
        &buffer[..end]
    }

    /// Parses the text that `Display` writes; `None` for anything else, such as the value of another library.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (client, sequence) = text.split_once('.')?;
        let id = Self { client: client.parse().ok()?, sequence: sequence.parse().ok()? };
        // Uuids and numbers have several spellings; stores compare texts, so only ours is an id.
        (id.text(&mut [0; Self::MAX_LENGTH]) == text.as_bytes()).then_some(id)
    }
}

impl Hash for LeaseId {
    /// In one step, because a client looks up a lease with every operation. Equal numbers of several clients differ in
    /// the rest.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.sequence ^ self.client.as_u64_pair().1);
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.text(&mut [0; Self::MAX_LENGTH])))
    }
}

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseId({})", self.short())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_id_reads_back_and_foreign_values_do_not() {
        let id = LeaseId::next(Uuid::new_v4());
        for sequence in [id.sequence, 0, 9, 10, u64::MAX] {
            let id = LeaseId { sequence, ..id };
            assert_eq!(id.to_string(), format!("{}.{sequence}", id.client));
            assert_eq!(LeaseId::parse(&id.to_string()), Some(id));
        }
        for foreign in [
            "",
            "x",
            "1.2",
            "0bd7ff6ea7e311f0a9dd0242ac120002",
            "x.1",
            "-.",
            "0bd7ff6ea7e311f0a9dd0242ac120002.7",
            "0BD7FF6E-A7E3-11F0-A9DD-0242AC120002.7",
            "0bd7ff6e-a7e3-11f0-a9dd-0242ac120002.07",
            "0bd7ff6e-a7e3-11f0-a9dd-0242ac120002.+7",
        ] {
            assert_eq!(LeaseId::parse(foreign), None, "{foreign}");
        }
    }
}
