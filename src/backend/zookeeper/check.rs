//! What the user of the servers should know about them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::Shared;
use super::op::Access;
use crate::backend::records::Failure;
use crate::backend::{Finding, Severity};

/// Clocks that differ by more are worth a word: if the server that leads is replaced, another clock counts.
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
                "the clock of the server that leads differs from this machine's by {off:?}: if those of the servers differ from each \
                 other, leases end too early or too late when another one takes the lead"
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
        if self.settings.access() == Access::Anybody {
            let text = "there are no credentials, so anybody who can connect may change the nodes";
            findings.push(Finding::new(Severity::Info, text));
        }
        Ok(findings)
    }
}
