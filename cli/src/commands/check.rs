//! `check`: the server, with its findings.

use std::process::ExitCode;

use leasehold::{Client, Error, Finding, Severity};
use serde::Serialize;

use crate::args::Args;
use crate::exit::{Failure, NO};
use crate::{output, store, visit};

/// One finding, as JSON.
#[derive(Serialize)]
pub(crate) struct Line<'a> {
    pub(crate) severity: &'a str,
    pub(crate) text: &'a str,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Failure> {
    match store::builder(args)?.connect().await {
        Ok(client) => visit::with(&client, async |client| print(args, client).await).await,
        // That is what a finding of this severity means.
        Err(Error::StoreRefused { source, .. }) => {
            say(args, &[Finding::new(Severity::Refused, source.to_string())])
        }
        Err(error) => Err(error.into()),
    }
}

async fn print(args: &Args, client: &Client) -> Result<ExitCode, Failure> {
    let findings = client.check().await?;
    if findings.is_empty() && !args.json {
        output::line(&format!("no findings at {}", client.store()))?;
    }
    say(args, &findings)
}

fn say(args: &Args, findings: &[Finding]) -> Result<ExitCode, Failure> {
    for finding in findings {
        let severity = match finding.severity {
            Severity::Info => "info",
            Severity::Refused => "refused",
            _ => "warning",
        };
        let line = Line { severity, text: &finding.text };
        if args.json { output::json(&line)? } else { output::line(&format!("{severity}: {}", line.text))? }
    }
    let is_bad = findings.iter().any(|finding| finding.severity > Severity::Info);
    Ok(ExitCode::from(if is_bad { NO } else { 0 }))
}
