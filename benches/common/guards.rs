//! Many guards of one client, and what they cost this process.

use std::fs;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use leasehold::{Client, Guard, MutexOptions};

use super::Result;

/// Requests under way at a time while locks are taken and released.
const UNDER_WAY: usize = 512;

/// Takes locks of different names.
pub(crate) async fn take(
    client: &Client,
    options: &MutexOptions,
    name: &str,
    count: usize,
) -> Result<Vec<Guard>> {
    let locks = (0..count).map(|n| {
        let mutex = client.mutex_with(&format!("{name}:{n}"), options.clone());
        async move { mutex?.lock().await }
    });
    let mut guards = Vec::with_capacity(count);
    let mut granted = stream::iter(locks).buffer_unordered(UNDER_WAY);
    while let Some(guard) = granted.next().await {
        guards.push(guard?);
    }
    Ok(guards)
}

/// Releases all of them; fails if one did not last until here.
pub(crate) async fn give_back(guards: Vec<Guard>) -> Result<()> {
    let releases = guards.into_iter().map(Guard::release);
    Ok(stream::iter(releases).buffer_unordered(UNDER_WAY).try_collect().await?)
}

/// What this process has used of a processor, all threads together.
pub(crate) fn processor_time() -> Result<Duration> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<_> = stat.rsplit(')').next().ok_or("no fields")?.split_whitespace().collect();
    let ticks: u64 = fields.get(11).ok_or("no utime")?.parse::<u64>()?
        + fields.get(12).ok_or("no stime")?.parse::<u64>()?;
    // The kernel counts in hundredths of a second here, whatever its own clock does.
    Ok(Duration::from_millis(ticks * 10))
}
