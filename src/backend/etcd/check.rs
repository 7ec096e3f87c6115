//! What the user of a cluster should know about it.

use super::connection::Connection;
use super::link::Link;
use crate::backend::records::Failure;
use crate::backend::{Finding, Severity};

/// etcd refuses to write beyond 2 GiB, unless it is configured otherwise.
const WARN_BYTES: i64 = 3 << 29;

pub(super) async fn findings(link: &Link, connection: &Connection) -> Result<Vec<Finding>, Failure> {
    let status = connection.status().await?;
    let unreachable = link.unreachable().await.into_iter();
    let mut findings: Vec<_> = unreachable
        .map(|failure| Finding::new(Severity::Warning, format!("a member cannot be used: {failure}")))
        .collect();
    if status.errors.iter().any(|error| error.contains("NOSPACE")) {
        let text = "the alarm NOSPACE is on, so nothing can be written: compact and defragment the store or raise its quota, then \
             `etcdctl alarm disarm`";
        findings.push(Finding::new(Severity::Warning, text));
    } else if status.db_size > WARN_BYTES {
        let text = format!(
            "the database has {} MiB, and writing stops at the quota, which is 2 GiB unless it was raised: turn on auto-compaction",
            status.db_size >> 20
        );
        findings.push(Finding::new(Severity::Warning, text));
    }
    if status.version.starts_with("3.4.") {
        let text = format!(
            "the cluster runs etcd {}; versions before 3.5 have known bugs in leases",
            status.version
        );
        findings.push(Finding::new(Severity::Info, text));
    }
    Ok(findings)
}
