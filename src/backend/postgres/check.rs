//! What the user of a server should know about it.

use super::session::Session;
use super::settings::Settings;
use crate::backend::records::Failure;
use crate::backend::{Finding, Severity};

const PROBE_INTERVAL: &str = "SELECT current_setting('fsync'), current_setting('synchronous_commit'), \
     (SELECT count(*) FROM pg_class WHERE relpersistence = 'u' AND \
     oid IN (to_regclass('leasehold'), to_regclass('leasehold_meta'))), \
     (SELECT string_agg(quote_ident(n.nspname), ', ') FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace \
     WHERE c.relname = 'leasehold' AND c.relkind IN ('r', 'p') AND c.oid IS DISTINCT FROM to_regclass('leasehold') \
     AND n.nspname NOT LIKE 'pg\\_%'), \
     (SELECT quote_ident(n.nspname) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace \
     WHERE c.oid = to_regclass('leasehold'))";

pub(super) async fn findings(session: &Session, settings: &Settings) -> Result<Vec<Finding>, Failure> {
    let found = session.row(PROBE_INTERVAL).await?;
    let is = |n: usize, value: &str| found.get(n).is_some_and(|found| found.as_deref() == Some(value));
    let mut findings = Vec::new();
    if is(0, "off") {
        let text = "`fsync` is off: a crash of the machine may damage the database or make it forget leases that are still held";
        findings.push(Finding::new(Severity::Warning, text));
    }
    if is(1, "off") {
        let text = "`synchronous_commit` is off: a crash of the server may make it forget the latest grants, whose holders are notified at \
             their next renewals";
        findings.push(Finding::new(Severity::Info, text));
    }
    if !is(2, "0") {
        let text = "a table is unlogged: a crash of the server makes it forget all leases, even those that are still held";
        findings.push(Finding::new(Severity::Warning, text));
    }
    // Unless it is clear which one is meant.
    if let (None, Some(Some(others))) = (&settings.target.schema, found.get(3)) {
        let used = found.get(4).and_then(Option::as_deref).unwrap_or_default();
        let text = format!(
            "there is another table `leasehold`, in the schema {others}, but this client uses the one in the schema {used}: clients of different \
             tables do not exclude each other. `schema=` in the URL settles which one is used"
        );
        findings.push(Finding::new(Severity::Warning, text));
    }
    Ok(findings)
}
