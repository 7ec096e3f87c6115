//! What the user of a server should know about it.

use super::failure::Failure;
use super::session::Session;
use crate::backend::{Finding, Severity};

const UNLOGGED: &str = "SELECT count(*) FROM pg_class WHERE relpersistence = 'u' AND \
     oid IN (to_regclass('leasehold'), to_regclass('leasehold_meta'))";

pub(super) async fn findings(session: &Session) -> Result<Vec<Finding>, Failure> {
    let mut findings = Vec::new();
    if session.value("SHOW fsync").await?.as_deref() == Some("off") {
        let text = "`fsync` is off: a crash of the machine may damage the database or make it forget leases that are still held";
        findings.push(Finding::new(Severity::Warning, text));
    }
    if session.value("SHOW synchronous_commit").await?.as_deref() == Some("off") {
        let text = "`synchronous_commit` is off: a crash of the server may make it forget the latest grants, whose holders are told by \
             their next renewals";
        findings.push(Finding::new(Severity::Info, text));
    }
    if session.value(UNLOGGED).await?.as_deref() != Some("0") {
        let text = "a table is unlogged: a crash of the server makes it forget all leases, also those that are still held";
        findings.push(Finding::new(Severity::Warning, text));
    }
    Ok(findings)
}
