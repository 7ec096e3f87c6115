//! A connection for changes: carries out what the client is asked to change, and removes unused records.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::exchange::Exchange;
use super::record::Written;
use super::session::Session;
use super::settings::Settings;
use super::watch::Watch;
use super::{connect, sweep};
use crate::backend::records::{Connection, Failure, Outcome, Phase, Round, Workers, failed};

pub(super) struct Worker {
    session: Session,
    watch: Arc<Watch>,
    workers: Weak<Workers<Self>>,
}

/// What is needed to open one.
pub(super) struct WorkerSettings {
    pub(super) settings: Arc<Settings>,
    /// All workers of the client, which share a schedule.
    pub(super) workers: Weak<Workers<Worker>>,
}

impl Connection for Worker {
    type Settings = WorkerSettings;
    type Written = Written;

    const SWEEP_INTERVAL: Duration = sweep::INTERVAL;

    async fn open(settings: &WorkerSettings) -> Result<Self, Failure> {
        let WorkerSettings { settings, workers } = settings;
        let session = connect::open(settings).await?;
        Ok(Self { session, watch: Arc::clone(&settings.watch), workers: Weak::clone(workers) })
    }

    /// That shows when it is tried.
    fn is_closed(&self) -> bool {
        false
    }

    async fn carry_out(&mut self, round: Round<Written>) -> Outcome<Written> {
        let probed = if writes_first(&round) { self.session.probe().await } else { Ok(()) };
        let workers = self.workers.upgrade();
        let schedule = workers.as_ref().map(|workers| &workers.schedule);
        let mut exchange = Exchange { session: &mut self.session, watch: &self.watch, schedule };
        let outcome = match (probed, round) {
            (Err(failure), round) => failed(round.into_batches(), failure, Phase::Reading),
            (Ok(()), Round::Uncontended(batches)) => exchange.change_uncontended(batches).await,
            (Ok(()), Round::Contended(batch)) => exchange.change_contended(batch).await,
        };
        if outcome.1.as_ref().is_some_and(|failure| failure.is_broken) {
            self.watch.check_now();
        }
        outcome
    }

    async fn sweep(&mut self) -> Result<(), Failure> {
        sweep::sweep(&mut self.session).await
    }
}

/// Whether a round begins with a write, whose outcome would be unknown if the connection were lost. One that begins with a read needs no
/// probe.
fn writes_first(round: &Round<Written>) -> bool {
    matches!(round, Round::Uncontended(batches) if batches.iter().all(|batch| batch.written.is_some()))
}
