//! What the user of the servers should know about them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::Shared;
use super::op::Access;
use crate::backend::records::Failure;
use crate::backend::{Finding, Severity};

/// A larger difference is reported: if the leader is replaced, the new leader's clock is used.
const CLOCK: Duration = Duration::from_secs(1);

impl Shared {
    pub(super) async fn findings(&self) -> Result<Vec<Finding>, Failure> {
        let clock = self.clock().await?;
        let (earliest, latest) = (clock.now(), clock.late());
        let ours = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (earliest, latest) = (Duration::from_micros(earliest), Duration::from_micros(latest));
        let off = earliest.saturating_sub(ours).max(ours.saturating_sub(latest));
        let mut findings = Vec::new();
        if off > CLOCK {
            let text = format!(
                "the leader's clock differs from this machine's by {off:?}: if the servers' clocks also differ from each other, leases \
                 end too early or too late when another server becomes the leader"
            );
            findings.push(Finding::new(Severity::Warning, text));
        }
        let (session, wanted) = (self.session.timeout(), self.settings.session_timeout);
        if session < wanted {
            let text = format!(
                "the servers end sessions after {session:?} of silence instead of {wanted:?} (`maxSessionTimeout`): the nodes of longer \
                 leases are not ephemeral"
            );
            findings.push(Finding::new(Severity::Info, text));
        }
        if self.settings.access() == Access::Anyone {
            let text = "no credentials are set, so any client that can connect may change the nodes";
            findings.push(Finding::new(Severity::Info, text));
        }
        Ok(findings)
    }
}
