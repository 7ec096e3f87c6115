//! Records in a table of an SQL database: code shared by PostgreSQL and MySQL.
//!
//! | file | content |
//! |---|---|
//! | `settings` | the settings that both have, and their bounds |
//! | `reach` | trying all servers, and all addresses of each |
//! | `server` | what each database does in its own way |
//! | `store` | the connections of a client, as a `LedgerStore` |
//! | `notifier` | the connection through which a client learns that it is next |
//! | `exchange`, `record` | changing records, optimistically, or in turns if they are contended; a record as it is read, changed and written |
//! | `sweep` | records that nobody has used for a day |
//!
//! What a database does in its own way, it does as a [`Server`] with [`Session`]s and [`Notifications`]. In which order
//! changes are carried out, and by which connection, is in `backend::records`.
//!
//! All connections run on the crate's own thread, so leases are kept regardless of what the application's runtimes do.

#![cfg_attr(
    not(feature = "all-stores"),
    allow(dead_code, unused_imports, reason = "each store uses a part of it")
)]

mod exchange;
mod notifier;
mod reach;
mod record;
mod server;
mod settings;
mod store;
mod sweep;

use super::Finding;
use super::records::Failure;
use super::state::Severity;

pub(super) use notifier::Notifications;
pub(super) use reach::{Host, Place, reach, reach_one};
pub(super) use record::{Changed, Read, Stored, Written};
pub(super) use server::{KeyBatch, Server, Session, Wrote};
pub(super) use settings::Settings;
pub(super) use store::Store;
pub(super) use sweep::Sweep;

/// Why there is an answer with too little in it.
pub(super) fn missing() -> Failure {
    Failure::unavailable("an answer is missing")
}

/// Traces what limits what the store promises.
pub(super) fn trace_risks(store: &str, findings: &[Finding]) {
    for finding in findings.iter().filter(|finding| finding.severity >= Severity::Warning) {
        tracing::warn!(target: "leasehold::store", store, "{finding}");
    }
}

/// Whether tables of this version can be used.
pub(super) fn check_version(found: Option<i64>) -> Result<(), Failure> {
    /// The version that this crate reads and writes.
    const VERSION: i64 = 1;

    match found {
        Some(VERSION) => Ok(()),
        Some(version) => Err(Failure::refused(format!(
            "its tables have version {version}, but this version of the crate uses version {VERSION}"
        ))),
        None => Err(Failure::refused("the table leasehold_meta does not contain the version of the tables")),
    }
}
