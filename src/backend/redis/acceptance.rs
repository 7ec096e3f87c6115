//! Whether all servers of a client can be used for locks.

use std::sync::Arc;

use futures::future::join_all;

use super::check::{self, Expected};
use super::connection::Connection;
use super::link::CallError;
use super::refusal::of_connection_is_for_now;
use crate::backend::{BackendError, Finding, Severity};

/// Refuses servers that cannot be used for locks, and logs what else their user should know.
pub(super) async fn accept(connections: &[Arc<Connection>], expected: &Expected) -> Result<(), BackendError> {
    // If some of several do not answer, they are left out: they must not use up the time for connecting.
    let usable = |connection: &&Arc<Connection>| connection.is_connected() || connection.refusal().is_some();
    let connected: Vec<_> = connections.iter().filter(usable).cloned().collect();
    let connected = if connected.is_empty() { connections } else { &connected };
    let (refused, others): (Vec<_>, Vec<_>) = findings(connected, expected)
        .await?
        .into_iter()
        .partition(|finding| finding.severity == Severity::Refused);
    if !refused.is_empty() {
        let texts: Vec<_> = refused.into_iter().map(|finding| finding.text).collect();
        return Err(BackendError::Refused { source: texts.join("; ").into() });
    }
    let store = &expected.store;
    for finding in others {
        match finding.severity {
            Severity::Info => tracing::info!(target: "leasehold::store", %store, "{finding}"),
            _ => tracing::warn!(target: "leasehold::store", %store, "{finding}"),
        }
    }
    Ok(())
}

/// Checks all servers. If one of several does not answer, that is a finding.
pub(super) async fn findings(
    connections: &[Arc<Connection>],
    expected: &Expected,
) -> Result<Vec<Finding>, BackendError> {
    let checks = join_all(connections.iter().map(|connection| findings_of(connection, expected))).await;
    let (mut findings, mut failure) = (Vec::new(), None);
    let mut answered = false;
    for (connection, found) in connections.iter().zip(checks) {
        let found = match found {
            Ok(found) => {
                answered = true;
                found
            }
            Err(error) => {
                let text = format!("{} does not answer: {error}", connection.address());
                failure = Some(error);
                vec![Finding::new(Severity::Warning, text)]
            }
        };
        for finding in found {
            if !findings.contains(&finding) {
                findings.push(finding);
            }
        }
    }
    match failure {
        Some(error) if !answered => Err(error.into()),
        _ => Ok(findings),
    }
}

async fn findings_of(connection: &Connection, expected: &Expected) -> Result<Vec<Finding>, CallError> {
    match (connection.link().await, connection.refusal()) {
        (Ok(link), _) => check::findings(&*link, expected).await,
        (Err(_), Some(text)) if of_connection_is_for_now(&text) => Err(CallError::Answer(text)),
        (Err(_), Some(text)) => Ok(vec![Finding::new(Severity::Refused, text)]),
        (Err(error), None) => Err(error),
    }
}
