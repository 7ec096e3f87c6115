//! How long connecting and replies may take: the default, and the bounds of what can be set.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::error::Error;

/// Unless something else is set.
pub(in crate::backend) const TIMEOUT: Duration = Duration::from_secs(2);
const TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(60 * 60);

pub(in crate::backend) fn check_timeouts(connect: Duration, reply: Duration) -> Result<(), Error> {
    check_timeout("connect_timeout", connect, &TIMEOUTS)?;
    check_timeout("reply_timeout", reply, &TIMEOUTS)
}

pub(in crate::backend) fn check_timeout(
    argument: &'static str,
    timeout: Duration,
    bounds: &RangeInclusive<Duration>,
) -> Result<(), Error> {
    if bounds.contains(&timeout) {
        return Ok(());
    }
    let reason = format!("{timeout:?} is not between {:?} and {:?}", bounds.start(), bounds.end());
    Err(Error::invalid(argument, reason))
}
