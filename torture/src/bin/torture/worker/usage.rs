//! What the process of a worker uses: it must not grow, and what its client used is gone with it.

use std::fs;
use std::io;
use std::time::Duration;

use tokio::runtime::Handle as Runtime;
use tokio::time::{Instant, sleep};

use super::lease::LOOK;
use crate::HEAP;
use crate::log::Log;

/// How often memory is noted.
const NOTED: Duration = Duration::from_secs(1);
/// How long what a client leaves behind may take to go.
const SETTLED: Duration = Duration::from_secs(5);

/// What is used once it is no more than before.
pub(super) async fn settled(before: (usize, usize)) -> io::Result<(usize, usize)> {
    let end = Instant::now() + SETTLED;
    loop {
        let now = usage()?;
        if now.0 <= before.0 && now.1 <= before.1 || Instant::now() > end {
            return Ok(now);
        }
        sleep(LOOK).await;
    }
}

/// Tasks of this runtime, and open descriptors.
pub(super) fn usage() -> io::Result<(usize, usize)> {
    Ok((Runtime::current().metrics().num_alive_tasks(), fs::read_dir("/proc/self/fd")?.count()))
}

/// Notes how much memory is in use, again and again. What the allocator keeps for later does not count: it depends on the
/// sizes of what was there before.
pub(super) async fn watch_memory(log: Log) {
    loop {
        log.memory(HEAP.allocated());
        sleep(NOTED).await;
    }
}
