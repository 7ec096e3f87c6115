//! How even round trips are while nothing else runs.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::common::turns::Spread;
use crate::common::{Bare, Result, timed};

/// So many times a span must fit into what is measured.
const SPANS: usize = 50;

/// PINGs, one after another, while nothing else runs: as many as usually take `span`, in microseconds, at any time
/// within `length`. What is done in strict order can hardly be expected to be more even. `None` if `span` is too long
/// for that.
pub(super) async fn spread(bare: &Bare, span: f64, length: Duration) -> Result<Option<Spread>> {
    let (mut times, started) = (Vec::new(), Instant::now());
    while started.elapsed() < length {
        times.push(timed(bare.ping()).await?);
    }
    let mean = times.iter().sum::<u64>() as f64 / times.len() as f64;
    let count = (span * 1000.0 / mean).ceil().max(1.0) as usize;
    if times.len() < count * SPANS {
        return Ok(None);
    }
    let mut spans = Histogram::new(3)?;
    for span in times.windows(count) {
        spans.record(span.iter().sum())?;
    }
    Ok(Some(Spread::of(&spans)))
}
