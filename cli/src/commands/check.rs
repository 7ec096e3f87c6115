//! `check`: the server, with its findings.

use std::process::ExitCode;

use leasehold::Severity;
use serde::Serialize;

use crate::args::Args;
use crate::exit::{Failure, NO};
use crate::{output, store};

/// One finding, as JSON.
#[derive(Serialize)]
pub(crate) struct Line<'a> {
    pub(crate) severity: &'a str,
    pub(crate) text: &'a str,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Failure> {
    let client = store::connect(args).await?;
    let findings = client.check().await?;
    for finding in &findings {
        let severity = match finding.severity {
            Severity::Info => "info",
            Severity::Refused => "refused",
            _ => "warning",
        };
        let line = Line { severity, text: &finding.text };
        if args.json { output::json(&line)? } else { output::line(&format!("{severity}: {}", line.text))? }
    }
    if findings.is_empty() && !args.json {
        output::line(&format!("no findings at {}", client.store()))?;
    }
    client.shutdown().await?;
    let is_bad = findings.iter().any(|finding| finding.severity > Severity::Info);
    Ok(ExitCode::from(if is_bad { NO } else { 0 }))
}
