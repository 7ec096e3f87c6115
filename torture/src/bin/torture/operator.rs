//! What operators do while others hold and wait: each time as a client of its own, without a line that can be harmed.

use std::time::Duration;

use leasehold::{Client, Error, OnOtherLimit, Purpose, SemaphoreOptions};
use leasehold_torture::history::Effect;
use tokio::time::{Instant, sleep};

use crate::own_client::client;
use crate::servers::Server;
use crate::sites::{Kind, PERMITS, Taken};

/// How long an operator tries.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long it waits before it tries again.
const PAUSE: Duration = Duration::from_millis(20);
/// Limits are changed to one of these. Nobody asks for more than the least.
const LIMITS: [u32; 3] = [PERMITS, PERMITS + 1, PERMITS + 2];

/// Releases one of the locks by force.
pub(crate) async fn release_by_force(
    server: &dyn Server,
    sites: &[Taken],
    which: usize,
) -> Result<Effect, String> {
    let (site, taken) = one_of(sites, which, Kind::is_lock)?;
    let released =
        acting(server, async |client| client.force_release(Purpose::Mutex, &taken.name).await).await?;
    Ok(if released { Effect::Breaks { site } } else { Effect::Nothing })
}

/// Changes the limit of one of the semaphores.
pub(crate) async fn resize(server: &dyn Server, sites: &[Taken], which: usize) -> Result<Effect, String> {
    let (site, Taken { kind, name, lease }) = one_of(sites, which, Kind::has_permits)?;
    let permits = LIMITS[which / sites.len() % LIMITS.len()];
    let options = SemaphoreOptions::new().ttl(*lease).on_other_limit(OnOtherLimit::Follow);
    acting(server, async |client| match kind {
        Kind::Fair => client.fair_semaphore_with(name, permits, options.clone())?.resize(permits).await,
        _ => client.counting_semaphore_with(name, permits, options.clone())?.resize(permits).await,
    })
    .await?;
    Ok(Effect::Resizes { site, permits })
}

fn one_of(sites: &[Taken], which: usize, is_meant: fn(Kind) -> bool) -> Result<(usize, &Taken), String> {
    let all: Vec<_> = sites.iter().enumerate().filter(|(_, taken)| is_meant(taken.kind)).collect();
    all.get(which % all.len().max(1)).copied().ok_or_else(|| "an operator finds nothing".to_owned())
}

async fn acting<T>(server: &dyn Server, act: impl AsyncFn(&Client) -> Result<T, Error>) -> Result<T, String> {
    let (end, words) = (Instant::now() + PATIENCE, |error: Error| format!("an operator: {error}"));
    let client = client(server).await.map_err(words)?;
    // Of several servers, it needs more than the one that answered first.
    while client.ping(PATIENCE).await.is_err() && Instant::now() < end {
        sleep(PAUSE).await;
    }
    let done = loop {
        match act(&client).await {
            Err(Error::StoreUnavailable { .. }) if Instant::now() < end => {}
            done => break done.map_err(words)?,
        }
    };
    client.shutdown().await.map_err(words)?;
    Ok(done)
}
