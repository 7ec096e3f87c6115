//! Waiters that take turns, in this process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use tokio::sync::Barrier;
use uuid::Uuid;

use super::recipes::Recipe;
use super::site::Site;
use crate::common::Result;
use crate::common::turns::{Contender, Held, Spread, Turn, hand_overs, now};

/// Connections that are opened at a time.
const AT_A_TIME: usize = 8;

/// How long a race takes.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    /// Until all have queued up; not counted.
    pub(crate) warm_up: Duration,
    pub(crate) window: Duration,
}

#[derive(Clone, Copy)]
pub(crate) struct Raced {
    pub(crate) per_second: f64,
    /// From the call of a release to the next grant. `None` if several hold at a time, or nobody was granted.
    pub(crate) hand_over: Option<Spread>,
}

/// So many clients, each with one waiter.
pub(crate) async fn among_clients<R: Recipe>(site: &Site, clients: usize, times: Times) -> Result<Raced> {
    let name = format!("bench:{}", Uuid::new_v4());
    let connecting = (0..clients).map(|_| R::connect(site, &name));
    let contenders: Vec<R> = stream::iter(connecting).buffered(AT_A_TIME).try_collect().await?;
    race(contenders, times, true).await
}

/// `are_exclusive`: whether one holds at a time; then it fails if two holds overlap.
pub(crate) async fn race<C: Contender>(
    contenders: Vec<C>,
    times: Times,
    are_exclusive: bool,
) -> Result<Raced> {
    let start = Arc::new(Barrier::new(contenders.len() + 1));
    let length = times.warm_up + times.window + times.warm_up / 4;
    let waiters = contenders.into_iter().enumerate().map(|(waiter, contender)| {
        let start = Arc::clone(&start);
        tokio::spawn(async move {
            start.wait().await;
            turns(&contender, waiter, Instant::now() + length).await
        })
    });
    let waiters: Vec<_> = waiters.collect();
    start.wait().await;
    let from = now() + u64::try_from(times.warm_up.as_nanos())?;
    let window = from..from + u64::try_from(times.window.as_nanos())?;
    let mut turns = Vec::new();
    for waiter in waiters {
        turns.extend(waiter.await??);
    }
    turns.sort_unstable_by_key(|turn| turn.held.map(|held| held.granted));
    let grants = turns.iter().filter(|turn| turn.held.is_some_and(|held| window.contains(&held.granted)));
    Ok(Raced {
        per_second: grants.count() as f64 / times.window.as_secs_f64(),
        hand_over: if are_exclusive { hand_overs(&turns, &window)? } else { None },
    })
}

/// Asks, releases at once and asks again, until the time is over.
async fn turns<C: Contender>(contender: &C, waiter: usize, until: Instant) -> Result<Vec<Turn>> {
    let mut turns = Vec::new();
    while Instant::now() < until {
        let asked = now();
        let Some(hold) = contender.acquire(until).await? else { break };
        let granted = now();
        let released = now();
        contender.release(hold).await?;
        turns.push(Turn { waiter, asked, held: Some(Held { granted, released }) });
    }
    Ok(turns)
}
