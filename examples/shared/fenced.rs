//! How a service that checks tokens refuses an older one, and how its client reads that.

use leasehold::{FencingToken, StaleToken};

use crate::failure::Failure;

const STALE: &str = "stale ";

/// The service's side: the answer to a holder that is too late.
pub(crate) fn refused(stale: StaleToken) -> String {
    format!("{STALE}{}", stale.newest())
}

/// The client's side: what was answered to a request under `token`, unless that was refused.
pub(crate) fn admitted(answer: String, token: FencingToken) -> Result<String, Failure> {
    let Some(newest) = answer.strip_prefix(STALE) else { return Ok(answer) };
    match newest.parse().map(FencingToken::new) {
        Ok(newest) => Err(StaleToken::new(token, newest).into()),
        Err(_) => Err(Failure::Protocol(answer)),
    }
}
