//! Writes the page of guarantees from what was kept of runs, or checks that it says what they have shown.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use leasehold_torture::guarantees::{SHOWN, in_vain, written};
use leasehold_torture::outcome::Outcome;

use crate::scenario::Scenario;

#[derive(Args, Clone, Debug)]
pub(crate) struct Orders {
    /// Where the outcomes of runs are, and their reports.
    #[arg(long, default_value = "docs/internals/torture")]
    runs: PathBuf,
    /// The page.
    #[arg(long, default_value = "docs/guide/guarantees.md")]
    page: PathBuf,
    /// Leave it as it is, and say whether it says what the runs have shown.
    #[arg(long)]
    check: bool,
}

pub(crate) fn write(orders: &Orders) -> Result<ExitCode, String> {
    let Orders { runs, page, check } = orders;
    for shown in SHOWN {
        Scenario::named(shown.scenario)?;
    }
    let (outcomes, reports) = (outcomes(runs)?, reports(runs)?);
    for outcome in &outcomes {
        Scenario::named(&outcome.scenario).map_err(|error| format!("{}: {error}", outcome.scenario))?;
    }
    let old = fs::read_to_string(page).map_err(|error| of(page, error))?;
    let new = written(&old, &outcomes, &reports)?;
    if *check && old != new {
        return Err(format!(
            "{} does not say what the runs have shown: run `torture guarantees`",
            page.display()
        ));
    }
    if old != new {
        fs::write(page, new).map_err(|error| of(page, error))?;
    }
    println!("{}: {} runs", page.display(), outcomes.len());
    for run in in_vain(&old, &outcomes)? {
        println!(
            "{run}: nothing happened of what is not promised; a longer run, or another seed, may show it"
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn of(path: &Path, error: impl std::fmt::Display) -> String {
    format!("{}: {error}", path.display())
}

fn outcomes(runs: &Path) -> Result<Vec<Outcome>, String> {
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).map_err(|error| of(&path, error))?;
        text.parse().map_err(|error| of(&path, error))
    };
    files(runs, "txt")?.into_iter().map(read).collect()
}

/// The store, and the page's link to its report.
fn reports(runs: &Path) -> Result<Vec<(String, String)>, String> {
    let link = |path: PathBuf| {
        let store = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let link = format!("../internals/torture/{store}.html");
        (store, link)
    };
    Ok(files(runs, "html")?.into_iter().map(link).collect())
}

fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|error| of(folder, error))?;
    let mut found = Vec::new();
    for entry in entries {
        found.push(entry.map_err(|error| of(folder, error))?.path());
    }
    found.retain(|path| path.extension().is_some_and(|of| of == extension));
    found.sort();
    Ok(found)
}
