//! A connection for changes: carries out what the client is asked to change, and removes unused records.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::exchange::Exchange;
use super::record::Written;
use super::store::Dialect;
use super::sweep;
use crate::backend::records::{Connection, Failure, Outcome, Phase, Round, Workers, failed};

pub(super) struct Worker<D: Dialect> {
    server: Arc<D>,
    session: D::Session,
    workers: Weak<Workers<Self>>,
}

/// What is needed to open one.
pub(super) struct Opening<D: Dialect> {
    pub(super) server: Arc<D>,
    /// All workers of the client, which share a schedule.
    pub(super) workers: Weak<Workers<Worker<D>>>,
}

impl<D: Dialect> Connection for Worker<D> {
    type Settings = Opening<D>;
    type Written = Written<D>;

    const SWEEP_INTERVAL: Duration = sweep::INTERVAL;

    async fn open(Opening { server, workers }: &Opening<D>) -> Result<Self, Failure> {
        let session = server.open().await?;
        Ok(Self { server: Arc::clone(server), session, workers: Weak::clone(workers) })
    }

    fn is_closed(&self) -> bool {
        D::is_closed(&self.session)
    }

    async fn carry_out(&mut self, round: Round<Written<D>>) -> Outcome<Written<D>> {
        let Self { server, session, workers } = self;
        let probed = if writes_first(&round) { server.probe(session).await } else { Ok(()) };
        let workers = workers.upgrade();
        let schedule = workers.as_ref().map(|workers| &workers.schedule);
        let mut exchange = Exchange { server: &**server, session, schedule };
        let outcome = match (probed, round) {
            (Err(failure), round) => failed(round.into_batches(), failure, Phase::Reading),
            (Ok(()), Round::Uncontended(batches)) => exchange.change_uncontended(batches).await,
            (Ok(()), Round::Contended(batch)) => exchange.change_contended(batch).await,
        };
        if outcome.1.as_ref().is_some_and(|failure| failure.is_broken) {
            server.has_lost_session();
        }
        outcome
    }

    async fn sweep(&mut self) -> Result<(), Failure> {
        sweep::sweep(&*self.server, &mut self.session).await
    }
}

/// Whether a round begins with a write, whose outcome would be unknown if the connection were lost. One that begins with a read needs no
/// probe.
fn writes_first<D>(round: &Round<Written<D>>) -> bool {
    matches!(round, Round::Uncontended(batches) if batches.iter().all(|batch| batch.written.is_some()))
}
