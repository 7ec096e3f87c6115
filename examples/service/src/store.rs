//! The store of a trial, which is started for it and can be restarted.

use std::net::SocketAddr;

use clap::ValueEnum;
use leasehold::MemoryBackend;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

use crate::Result;
use crate::postgres::PostgresServer;
use crate::replica::Replica;
use leasehold_support::{RedisServer, Setup};

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum StoreKind {
    Memory,
    Redis,
    Postgres,
}

pub(crate) enum Store {
    /// The instances are in this process, which has one set of metrics.
    Memory(MemoryBackend, PrometheusHandle),
    Redis(RedisServer),
    Postgres(PostgresServer),
}

impl Store {
    pub(crate) fn start(kind: StoreKind) -> Result<Self> {
        let missing = || format!("{kind:?} is not installed: see scripts/test.sh");
        Ok(match kind {
            StoreKind::Memory => {
                Self::Memory(MemoryBackend::new(), PrometheusBuilder::new().install_recorder()?)
            }
            StoreKind::Redis => Self::Redis(
                RedisServer::start_with_or_skip("the trial", Setup::on_disk()).ok_or_else(missing)?,
            ),
            StoreKind::Postgres => {
                Self::Postgres(PostgresServer::start_or_skip("the trial").ok_or_else(missing)?)
            }
        })
    }

    pub(crate) async fn start_replica(&self, name: String, world: SocketAddr) -> Result<Replica> {
        match self {
            Self::Memory(store, metrics) => Replica::tasks(name, store, world, metrics).await,
            Self::Redis(server) => Replica::process(name, &server.url(), world),
            Self::Postgres(server) => Replica::process(name, &server.url(), world),
        }
    }

    /// Kills the server and starts it again. It has forgotten nothing.
    pub(crate) fn restart(&mut self) {
        match self {
            // It would be gone with this process.
            Self::Memory(..) => {}
            Self::Redis(server) => server.restart(),
            Self::Postgres(server) => server.restart(),
        }
    }
}
