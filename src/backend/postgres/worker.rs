//! What a worker does with its session: it opens it, carries out changes on it, and sweeps.

use std::time::Duration;

use super::connector::Connector;
use super::exchange::{change_contended, change_uncontended};
use super::record::Written;
use super::session::Session;
use super::sweep;
use crate::backend::records::{Connection, Failure, Outcome, Round};

impl Connection for Session {
    type Settings = Connector;
    type Written = Written;

    const SWEEP_INTERVAL: Duration = sweep::INTERVAL;

    async fn open(connector: &Connector) -> Result<Self, Failure> {
        connector.open().await
    }

    fn is_closed(&self) -> bool {
        self.is_closed()
    }

    async fn carry_out(&mut self, round: Round<Written>) -> Outcome<Written> {
        match round {
            Round::Uncontended(batches) => change_uncontended(self, batches).await,
            Round::Contended(batch) => change_contended(self, batch).await,
        }
    }

    async fn sweep(&mut self) -> Result<(), Failure> {
        sweep::sweep(self).await
    }
}
