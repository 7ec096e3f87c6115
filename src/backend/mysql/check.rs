//! What the user of a server should know about it.

use super::connect;
use super::session::{Session, value};
use super::shared::Mysql;
use crate::backend::records::{Failure, Remedy};
use crate::backend::{Finding, Severity};

/// Not all servers have all of them.
const PROBE_INTERVAL: &str =
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('innodb_flush_log_at_trx_commit', 'wsrep_on')";
/// Whether the time stands still while a statement is carried out.
const TIME_STANDS_STILL: &str = "SELECT SYSDATE(6) = IF(SLEEP(0.002) = 0, SYSDATE(6), 0)";

pub(super) async fn findings(session: &mut Session) -> Result<Vec<Finding>, Failure> {
    let mut findings = settings(session).await?;
    let answers = session.run_in_time(&[TIME_STANDS_STILL.to_owned()]).await?;
    if let Some(row) = answers.first().and_then(|time| time.rows.first())
        && value::<i64>(row, 0)? != 0
    {
        let text = "the server was started with `sysdate-is-now`: a lease may be measured from up to a second before it was stored";
        findings.push(Finding::new(Severity::Info, text));
    }
    Ok(findings)
}

/// What of that is known from its settings.
pub(super) async fn settings(session: &mut Session) -> Result<Vec<Finding>, Failure> {
    let answers = session.run_in_time(&[PROBE_INTERVAL.to_owned()]).await?;
    let mut findings = Vec::new();
    for row in answers.iter().flat_map(|variables| &variables.rows) {
        let (name, set): (String, String) = (value(row, 0)?, value(row, 1)?);
        findings.extend(finding(&name, &set));
    }
    Ok(findings)
}

fn finding(name: &str, set: &str) -> Option<Finding> {
    match (name, set) {
        ("innodb_flush_log_at_trx_commit", "0" | "2") => Some(Finding::new(
            Severity::Info,
            format!(
                "`innodb_flush_log_at_trx_commit` is {set}: a crash of the machine may make the server forget the grants of the last second, \
                 whose holders are notified at their next renewals"
            ),
        )),
        ("wsrep_on", "ON") => Some(Finding::new(
            Severity::Warning,
            "the server is a node of a Galera cluster: named locks are local to one node, and changes on another node may be seen late. \
             Have all clients use the same node",
        )),
        _ => None,
    }
}

/// Which of several servers cannot be used now, and why. It is usual that all but one are read-only.
pub(super) async fn servers(server: &Mysql) -> Vec<Finding> {
    if server.settings.target.places.len() < 2 {
        return Vec::new();
    }
    let (mut findings, mut usable) = (Vec::new(), Vec::new());
    for (place, failure) in connect::try_each(server).await {
        match failure {
            None => usable.push(place.to_string()),
            Some(failure) => {
                let is_usual = failure.remedy == Remedy::NotNow;
                let severity = if is_usual { Severity::Info } else { Severity::Warning };
                findings.push(Finding::new(severity, format!("{place} is not used: {failure}")));
            }
        }
    }
    if usable.len() > 1 {
        let usable = usable.join(" and ");
        let text = format!(
            "{usable} accept changes: if they are not one server, clients that use different ones do not exclude each other"
        );
        findings.push(Finding::new(Severity::Warning, text));
    }
    findings
}
