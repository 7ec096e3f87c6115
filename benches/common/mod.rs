//! What the benchmarks share: a server, the bare recipe, worker processes, tables.

// Every bench includes all of it and uses a part.
#![allow(dead_code, unused_imports)]

mod bare;
pub(crate) mod guards;
mod ours;
pub(crate) mod polling;
pub(crate) mod turns;
pub(crate) mod workers;

use std::error::Error;
use std::time::{Duration, Instant};

use clap::Args;
use comfy_table::{Table, presets};
use hdrhistogram::Histogram;

pub(crate) use bare::Bare;
pub(crate) use leasehold_support::nodes::{Nodes, url as redlock_url};
pub(crate) use leasehold_support::proxy::Proxy;
pub(crate) use leasehold_support::{Raw, RedisServer, Setup};
pub(crate) use ours::Ours;
pub(crate) use polling::Polling;

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The lease of every lock in a comparison; no contender renews it, and none expires within a measurement.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// Where to measure.
#[derive(Args, Clone)]
pub(crate) struct Place {
    /// A server to use instead of starting one; nothing else should use it during the run.
    #[arg(long)]
    port: Option<u16>,
    /// Given by `cargo bench`; without it, as under `cargo test`, one short round shows that everything works.
    #[arg(long, hide = true)]
    bench: bool,
}

impl Place {
    /// The port of the server, and the server if it was started for this. `None` if there is none to start.
    pub(crate) fn server(&self, what: &str) -> Option<(u16, Option<RedisServer>)> {
        if let Some(port) = self.port {
            return Some((port, None));
        }
        RedisServer::start_with_or_skip(what, Setup::as_a_service())
            .map(|server| (server.port(), Some(server)))
    }

    /// `full` for a measurement, `short` for a round that only shows that it works.
    pub(crate) fn choose<T>(&self, full: T, short: T) -> T {
        if self.bench { full } else { short }
    }
}

pub(crate) fn url(port: u16) -> String {
    format!("redis://127.0.0.1:{port}")
}

pub(crate) fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    table.set_header(header);
    table
}

/// How long `work` took, in nanoseconds.
pub(crate) async fn timed(work: impl Future<Output = Result<()>>) -> Result<u64> {
    let started = Instant::now();
    work.await?;
    Ok(u64::try_from(started.elapsed().as_nanos())?)
}

pub(crate) fn micros(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    histogram.value_at_quantile(quantile) as f64 / 1000.0
}

/// The upper one, if there are two.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
