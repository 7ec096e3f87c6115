//! What each database does in its own way: a server, and its sessions.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::notifier::Notifications;
use super::record::{Changed, Read, Written};
use super::settings::Settings;
use super::sweep::Sweep;
use crate::backend::records::{self, Failure};
use crate::backend::{Finding, Ledger, Stamp};

pub(in crate::backend) type KeyBatch = records::KeyBatch<Written>;

/// A server, as one client sees it.
pub(in crate::backend) trait Server: Sized + Send + Sync + 'static {
    /// What is connected to, and how.
    type Target;
    type Session: Session<Server = Self>;
    type Notifications: Notifications;

    /// Whether holders are told at once when their holds are ended by force.
    const PUSHES_LOSSES: bool;

    fn settings(&self) -> &Settings<Self::Target>;

    /// How many connections are for changes at most.
    fn max_workers(&self) -> usize;

    fn open(&self) -> impl Future<Output = Result<Self::Session, Failure>> + Send;

    /// What the client learns through its other connection, or connections, until it is `closing`.
    fn notifications(self: Arc<Self>, closing: &CancellationToken) -> Self::Notifications;

    /// What the user of the server should know about it.
    fn findings(&self) -> impl Future<Output = Result<Vec<Finding>, Failure>> + Send;
}

/// What became of a record that was to be written.
pub(in crate::backend) enum Wrote {
    /// It was not: another client was first, or it was too late.
    Nothing,
    /// It was, and may be cached.
    Stored(Option<Written>),
}

/// A session of the server that can use the tables. Everything on it has a time limit.
pub(in crate::backend) trait Session: Sweep {
    type Server: Server<Session = Self>;
    /// What a change of a record means for clients.
    type Effects: Send + Sync;

    /// How long a record counts as contended after another client has changed it first.
    const CONTENDED: Duration;
    /// Whether changes that are requested while a record is read are carried out with it.
    const JOIN_LATE: bool;

    /// Whether it is known to have ended.
    fn is_closed(&self) -> bool;

    /// Tries it before something is written, if it has not been used for so long that it may have ended unnoticed.
    fn probe(&mut self) -> impl Future<Output = Result<(), Failure>> + Send {
        ready(Ok(()))
    }

    /// Notified that it is of no use any more.
    fn has_broken(&self) {}

    /// Runs the changes of a batch.
    fn run(&self, batch: &KeyBatch, ledger: &mut Ledger, stamp: Stamp) -> Self::Effects;

    /// Whether the record must be written even if it stays the same, because it is written together with messages.
    fn must_be_told(_: &Self::Effects) -> bool {
        false
    }

    /// Notified of what is known of a record after a change: its version, if it is known, and what the change means.
    fn note(&self, _: &Arc<str>, _: Option<i64>, _: Self::Effects) {}

    /// The records of these batches, in one exchange and in their order.
    fn read(&mut self, batches: &[KeyBatch]) -> impl Future<Output = Result<Vec<Read>, Failure>> + Send;

    /// Writes those of these records that no other client has changed or is about to, in one exchange.
    fn write(
        &mut self,
        changed: &[(KeyBatch, Changed<Self::Effects>)],
    ) -> impl Future<Output = Result<Vec<Wrote>, Failure>> + Send;

    /// The first keys that are not less than this one, in order, and at most so many.
    fn keys(&mut self, from: &str, limit: usize)
    -> impl Future<Output = Result<Vec<String>, Failure>> + Send;

    /// Waits until it is this client's turn to change a contended record, and reads it in the same exchange. `None` if
    /// the server does not take part in turns.
    fn begin_turn(&mut self, key: &str) -> impl Future<Output = Result<Option<Read>, Failure>> + Send;

    /// Writes the record and ends the turn in one exchange. It may be written although the turn was not ended.
    fn write_in_turn(
        &mut self,
        key: &str,
        record: &Changed<Self::Effects>,
    ) -> impl Future<Output = Result<(Wrote, Option<Failure>), Failure>> + Send;

    /// Ends the turn without a change, also if it was not begun.
    fn end_turn(&mut self, key: &str) -> impl Future<Output = Result<(), Failure>> + Send;
}
