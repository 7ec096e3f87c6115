//! The connections for changes, each with a task that executes them. There is one, and there are more while it is held
//! up.
//!
//! Work goes to the oldest connection that is idle, so that those which are not needed any more are unused for long
//! enough to be closed. As long as one connection works, nothing fails because another one cannot be opened: the work
//! is left to those that there are.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::cache::Cached;
use super::crew::Crew;
use super::failure::Failure;
use super::health::Health;
use super::round::{Outcome, Round};
use super::schedule::Schedule;
use crate::backend::{BackendError, Effects, Ledger, Stamp};

/// A connection to the server that carries out changes.
pub(in crate::backend) trait Connection: Sized + Send + Sync + 'static {
    /// What is needed to open one.
    type Settings: Send + Sync + 'static;
    /// A record as it was written.
    type Written: Cached;

    /// How often idle records are looked for.
    const SWEEP_INTERVAL: Duration;
    /// How long a record counts as contended after another client has changed it first.
    const CONTENDED: Duration;

    fn open(settings: &Self::Settings) -> impl Future<Output = Result<Self, Failure>> + Send;

    fn is_closed(&self) -> bool;

    /// Changes that are requested in the meantime are in the schedule.
    fn carry_out(
        &mut self,
        round: Round<Self::Written>,
        schedule: &Schedule<Self::Written>,
    ) -> impl Future<Output = Outcome<Self::Written>> + Send;

    /// Removes records that nobody has used for a day.
    fn sweep(&mut self) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// The connections of a client for changes.
pub(in crate::backend) struct Workers<C: Connection> {
    pub(super) settings: Arc<C::Settings>,
    /// How many there are at most.
    pub(super) max: usize,
    /// How long opening a connection and a change on it take together at most.
    time_limit: Duration,
    pub(super) health: Arc<Health>,
    pub(in crate::backend) schedule: Schedule<C::Written>,
    pub(super) runtime: Handle,
    pub(super) crew: Mutex<Crew>,
    /// Whether there has been a connection.
    pub(super) was_reached: AtomicBool,
    /// Cancelled when the client is closed: no further connection is opened.
    pub(super) closing: CancellationToken,
    /// Notified when one has ended.
    pub(super) ended: Notify,
}

impl<C: Connection> Workers<C> {
    pub(in crate::backend) fn new(
        settings: Arc<C::Settings>,
        max: usize,
        time_limit: Duration,
        health: Arc<Health>,
        runtime: Handle,
    ) -> Self {
        let (crew, ended, was_reached, closing) = Default::default();
        let schedule = Schedule::with_contended(C::CONTENDED);
        Self { settings, max, time_limit, health, schedule, runtime, crew, was_reached, closing, ended }
    }

    pub(in crate::backend) fn was_reached(&self) -> bool {
        self.was_reached.load(Ordering::SeqCst)
    }

    /// See [`Schedule::transact`].
    pub(in crate::backend) fn transact<T: Send + 'static>(
        self: &Arc<Self>,
        keys: &[Arc<str>],
        change: impl FnMut(usize, &mut Ledger, Stamp) -> (T, Effects) + Send + 'static,
    ) -> impl Future<Output = Result<Vec<T>, BackendError>> + Send {
        self.schedule.transact(keys, change, || self.ensure_worker())
    }

    /// Wakes the oldest worker that is idle and older than this one. `false` if there is none.
    pub(super) fn wakes_older(&self, number: u64) -> bool {
        let crew = self.crew.lock();
        let idle = crew.members.range(..number).find_map(|(_, member)| member.idle.as_ref());
        idle.inspect(|idle| idle.notify_one()).is_some()
    }

    pub(super) fn is_oldest(&self, number: u64) -> bool {
        self.crew.lock().members.first_key_value().is_some_and(|(oldest, _)| *oldest == number)
    }

    /// Nothing new is begun, and no further connection is opened. What has been asked for is done if there is one.
    pub(in crate::backend) fn close(&self) {
        self.schedule.close();
        self.closing.cancel();
    }

    /// Returns when all have ended, after they were closed.
    pub(in crate::backend) async fn ended(&self) {
        let all = async {
            loop {
                let ended = self.ended.notified();
                if self.crew.lock().members.is_empty() {
                    return;
                }
                ended.await;
            }
        };
        // Those that hang end by their own time limits.
        let _ = timeout(self.time_limit * 2, all).await;
        self.schedule.abandon();
    }
}
