//! The page of guarantees: a table of faults and stores, whose words say what is promised, and in which runs have counted
//! what happened.
//!
//! The words are written by hand, and they are kept. A run adds its figures to the row of its scenario and the column of
//! its store, and a row to the list of runs. A run that contradicts its word is an error.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::outcome::Outcome;

/// Before and after what is written.
const TABLE: (&str, &str) =
    ("<!-- Written by `torture guarantees`: the table. -->\n", "<!-- The end of the table. -->\n");
const RUNS: (&str, &str) =
    ("<!-- Written by `torture guarantees`: the runs. -->\n", "<!-- The end of the runs. -->\n");
/// What is said where more than the limit may be held at once.
const NOT_PROMISED: &str = "**two**";
/// Between the word of a cell and its figure.
const COUNT: &str = " · ";

/// Which scenario shows what a row says.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    /// The section that explains the row.
    pub fault: &'static str,
    /// The scenario.
    pub scenario: &'static str,
    /// The stores on which it does; all, if there are none.
    pub stores: &'static [&'static str],
}

/// The stores of which a server, of several, can be stopped.
const SEVERAL: &[&str] = &["redlock", "etcd-cluster", "zookeeper-ensemble"];
/// Those with a standby, which has each change, but where one takes over that lags.
const PAIRS: &[&str] = &["postgres-standby", "mysql-replica"];
/// Those of which a majority, or the standby, has each change.
const AGREEING: &[&str] = &["etcd-cluster", "zookeeper-ensemble", "postgres-standby", "mysql-replica"];
/// Those whose replicas may lag.
const REPLICATED: &[&str] = &["sentinel", "cluster"];
/// Those of which the only one is stopped then.
const ONE: &[&str] = &["redis", "postgres", "mysql", "etcd", "zookeeper"];

/// All rows that scenarios show. Others name tests.
pub const SHOWN: &[Shown] = &[
    shown("the-holder-dies", "killed-holder", &[]),
    shown("the-holder-is-paused-for-longer-than-its-lease", "paused-holder", &[]),
    shown("a-waiter-dies", "killed-holder", &[]),
    shown("one-server-hangs-or-dies-and-another-one-works", "stopped-server", SEVERAL),
    shown("the-store-hangs-or-is-unreachable", "stopped-server", ONE),
    shown("the-store-hangs-or-is-unreachable", "partition", &[]),
    shown("the-store-hangs-or-is-unreachable", "late-messages", &[]),
    shown("the-store-hangs-or-is-unreachable", "slow-network", &[]),
    shown("the-store-restarts-and-has-its-disk", "server-restart", &[]),
    shown("the-store-loses-its-data", "server-restart-without-disk", &[]),
    shown("the-store-loses-its-data", "flush", &[]),
    shown("the-store-loses-its-data", "ended-sessions", &[]),
    shown("the-store-refuses-requests-for-some-seconds", "refusals", &[]),
    shown("the-store-hangs-or-is-unreachable", "cut-messages", &[]),
    shown("the-store-hangs-or-is-unreachable", "ended-connections", &[]),
    shown("one-server-hangs-or-dies-and-another-one-works", "killed-minority", &[]),
    shown("one-server-hangs-or-dies-and-another-one-works", "moved-leader", &[]),
    shown("one-server-hangs-or-dies-and-another-one-works", "stopped-follower", &["zookeeper-ensemble"]),
    shown("the-store-hangs-or-is-unreachable", "stopped-follower", PAIRS),
    shown("failover-where-a-majority-or-a-replica-has-each-change", "failover", AGREEING),
    shown("failover-where-the-replica-lags", "failover", REPLICATED),
    shown("failover-where-the-replica-lags", "failover-behind", PAIRS),
    shown("failover-where-the-replica-lags", "mixed", REPLICATED),
    shown("failover-where-the-replica-lags", "paused-writes", &["sentinel"]),
    shown("the-clock-of-the-store-jumps-forward", "clock-ahead", &[]),
    shown("the-clock-of-the-store-jumps-forward", "clock-back", &[]),
    shown("the-clock-of-the-store-jumps-back", "clock-set-back", &[]),
    shown("somebody-breaks-it-by-force", "released-by-force", &[]),
    shown("semaphores-and-readwrite-locks", "resized", &[]),
];

const fn shown(fault: &'static str, scenario: &'static str, stores: &'static [&'static str]) -> Shown {
    Shown { fault, scenario, stores }
}

/// The columns, and the stores of the harness that are in each.
const COLUMNS: &[(&str, &[&str])] = &[
    ("SQLite", &["sqlite"]),
    ("PostgreSQL", &["postgres", "postgres-standby"]),
    ("MySQL", &["mysql", "mysql-replica"]),
    ("etcd", &["etcd", "etcd-cluster"]),
    ("ZooKeeper", &["zookeeper", "zookeeper-ensemble"]),
    ("Redis", &["redis", "sentinel", "cluster"]),
    ("Redlock", &["redlock"]),
];

/// The page, with the figures of these runs, and with links to these reports: store and file.
///
/// # Errors
///
/// If a run contradicts what the page says, or the page lacks the places for what is written.
pub fn written(page: &str, runs: &[Outcome], reports: &[(String, String)]) -> Result<String, String> {
    let broken: Vec<_> = runs.iter().filter(|run| run.broken() > 0).map(name).collect();
    if !broken.is_empty() {
        return Err(format!("violations in {}", broken.join(", ")));
    }
    let table = Table::of(between(page, TABLE)?)?;
    table.agrees(runs)?;
    let page = replaced(page, TABLE, &table.with(runs))?;
    replaced(&page, RUNS, &list(&table, runs, reports))
}

/// Runs of what is not promised in which it was kept all the same, by chance: they show nothing.
///
/// # Errors
///
/// If the page has no table.
pub fn in_vain(page: &str, runs: &[Outcome]) -> Result<Vec<String>, String> {
    let table = Table::of(between(page, TABLE)?)?;
    let harmless = runs.iter().filter(|run| run.overlaps + run.lost_changes == 0);
    Ok(harmless.filter(|run| !table.is_promised(runs, run)).map(name).collect())
}

fn name(run: &Outcome) -> String {
    format!("{} on {}", run.scenario, run.store)
}

fn between<'a>(page: &'a str, (begin, end): (&str, &str)) -> Result<&'a str, String> {
    let after = page.split_once(begin).ok_or_else(|| format!("no line {}", begin.trim_end()))?.1;
    Ok(after.split_once(end).ok_or_else(|| format!("no line {}", end.trim_end()))?.0)
}

fn replaced(page: &str, marks: (&str, &str), text: &str) -> Result<String, String> {
    let old = between(page, marks)?;
    Ok(page.replacen(&format!("{}{old}{}", marks.0, marks.1), &format!("{}{text}{}", marks.0, marks.1), 1))
}

/// The words.
#[derive(Debug)]
struct Table {
    /// As it is: the header, and the line under it.
    head: String,
    stores: Vec<&'static [&'static str]>,
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    title: String,
    fault: String,
    cells: Vec<String>,
}

impl Table {
    fn of(text: &str) -> Result<Self, String> {
        let mut lines = text.lines().filter(|line| line.starts_with('|'));
        let (Some(header), Some(line)) = (lines.next(), lines.next()) else {
            return Err("there is no table".to_owned());
        };
        let stores = cells(header).skip(1).map(|cell| {
            let name = cell.trim_matches(['[', '`']).split([']', ':']).next().unwrap_or_default();
            COLUMNS.iter().find(|(column, _)| *column == name).map_or(&[][..], |(_, stores)| stores)
        });
        let rows = lines.map(Row::of).collect::<Result<_, _>>()?;
        Ok(Self { head: format!("{header}\n{line}\n"), stores: stores.collect(), rows })
    }

    /// Every run, and the word of each cell that it is counted in.
    fn words<'a>(&'a self, runs: &'a [Outcome]) -> impl Iterator<Item = (&'a Outcome, &'a str)> {
        let cells =
            self.rows.iter().flat_map(|row| self.stores.iter().zip(&row.cells).map(move |cell| (row, cell)));
        cells.flat_map(move |(row, (stores, cell))| {
            runs.iter().filter(|run| row.counts(run, stores)).map(move |run| (run, &**cell))
        })
    }

    /// Whether more than the limit may be held at once in this run.
    fn is_promised(&self, runs: &[Outcome], of: &Outcome) -> bool {
        !self.words(runs).any(|(run, word)| run == of && word.contains(NOT_PROMISED))
    }

    fn agrees(&self, runs: &[Outcome]) -> Result<(), String> {
        for (run, word) in self.words(runs) {
            if word == "-" {
                return Err(format!("{}: the table says that it cannot happen", name(run)));
            }
        }
        for run in runs.iter().filter(|run| self.is_promised(runs, run)) {
            if run.overlaps > 0 {
                return Err(format!("{}: {} overlaps, and none are announced", name(run), run.overlaps));
            }
        }
        Ok(())
    }

    fn with(&self, runs: &[Outcome]) -> String {
        let mut text = self.head.clone();
        for row in &self.rows {
            let names: Vec<_> = row.scenarios().map(|scenario| format!("`{scenario}`")).collect();
            let names = if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) };
            let cells = self.stores.iter().zip(&row.cells).map(|(stores, word)| {
                let count: u64 =
                    runs.iter().filter(|run| row.counts(run, stores)).map(|run| figure(run, word)).sum();
                if count == 0 { word.clone() } else { format!("{word}{COUNT}{count}") }
            });
            let cells: Vec<_> = cells.collect();
            // Writing to a string does not fail.
            let _ = writeln!(text, "| {}{names} | {} |", row.title, cells.join(" | "));
        }
        text
    }
}

/// What is counted beside a word: the faults that did no harm, or the harm that was not excluded.
fn figure(run: &Outcome, word: &str) -> u64 {
    if word.contains(NOT_PROMISED) { run.overlaps + run.lost_changes } else { run.faults }
}

impl Row {
    fn of(line: &str) -> Result<Self, String> {
        let mut cells = cells(line).map(word);
        let title = cells.next().unwrap_or_default();
        let fault = title.split_once("](#").and_then(|(_, rest)| rest.split_once(')'));
        let (fault, _) = fault.ok_or_else(|| format!("{title}: it leads to no section"))?;
        Ok(Self { fault: fault.to_owned(), cells: cells.collect(), title })
    }

    fn scenarios(&self) -> impl Iterator<Item = &'static str> {
        SHOWN.iter().filter(|shown| shown.fault == self.fault).map(|shown| shown.scenario)
    }

    fn counts(&self, run: &Outcome, stores: &[&str]) -> bool {
        let is_shown = |shown: &Shown| {
            shown.fault == self.fault
                && shown.scenario == run.scenario
                && (shown.stores.is_empty() || shown.stores.contains(&&*run.store))
        };
        stores.contains(&&*run.store) && SHOWN.iter().any(is_shown)
    }
}

fn cells(line: &str) -> impl Iterator<Item = &str> {
    line.trim_matches('|').split(" | ").map(str::trim)
}

/// What is written by hand of a cell: a link, or that there is nothing.
fn word(cell: &str) -> String {
    let end = cell.split_once("](#").and_then(|(before, rest)| Some(before.len() + 3 + rest.find(')')?));
    end.map_or(cell, |end| &cell[..=end]).to_owned()
}

fn list(table: &Table, runs: &[Outcome], reports: &[(String, String)]) -> String {
    let mut sorted: BTreeMap<_, _> = BTreeMap::new();
    for run in runs {
        sorted.insert((&run.scenario, &run.store, run.seed), run);
    }
    let (promised, not): (Vec<_>, Vec<_>) =
        sorted.into_values().partition(|run| table.is_promised(runs, run));
    let mut text = String::from("\n");
    if !promised.is_empty() {
        text.push_str("Promised, and kept:\n\n| scenario | store | seed | seconds | operations | faults | violations |\n");
        text.push_str("|---|---|---:|---:|---:|---:|---:|\n");
    }
    for run in &promised {
        let Outcome { scenario, store, seed, seconds, operations, faults, .. } = run;
        let broken = run.broken();
        let _ = writeln!(
            text,
            "| `{scenario}` | {store} | {seed} | {seconds} | {operations} | {faults} | {broken} |"
        );
    }
    if !not.is_empty() {
        text.push_str("\nNot promised, and what came of it: how often two held at once, how many changes were lost by data that does not\n\
             check tokens, and how many were refused and lost by data that does:\n\n");
        text.push_str("| scenario | store | seed | seconds | operations | faults | overlaps | lost without tokens | refused by tokens | lost with tokens |\n");
        text.push_str("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|\n");
    }
    for run in &not {
        let Outcome {
            scenario,
            store,
            seed,
            seconds,
            operations,
            faults,
            refused,
            lost_changes,
            overlaps,
            ..
        } = run;
        let lost = run.violations.get("I3").copied().unwrap_or_default();
        let _ = writeln!(
            text,
            "| `{scenario}` | {store} | {seed} | {seconds} | {operations} | {faults} | {overlaps} | {lost_changes} | {refused} | {lost} |"
        );
    }
    if !reports.is_empty() {
        let links: Vec<_> = reports.iter().map(|(store, file)| format!("[{store}]({file})")).collect();
        let _ = writeln!(text, "\nWith pictures, a run on {}.", links.join(", "));
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Guarantees\n\n\
        <!-- Written by `torture guarantees`: the table. -->\n\
        | fault | `memory:` | [SQLite](../stores/sqlite.md) | [Redis](../stores/redis.md) |\n\
        |---|---|---|---|\n\
        | [the holder dies](#the-holder-dies) | [leaves](#the-holder-dies) | [TTL](#the-holder-dies) | [TTL](#the-holder-dies) |\n\
        | [the store loses its data](#the-store-loses-its-data) | - | - | [**two**](#the-store-loses-its-data) |\n\
        <!-- The end of the table. -->\n\
        \nBy hand.\n\
        <!-- Written by `torture guarantees`: the runs. -->\n\
        <!-- The end of the runs. -->\n";

    fn run(store: &str, scenario: &str) -> Outcome {
        let (store, scenario) = (store.to_owned(), scenario.to_owned());
        Outcome { store, scenario, seed: 1, seconds: 60, operations: 1_000, faults: 20, ..Outcome::default() }
    }

    #[test]
    fn a_run_is_counted_in_its_cell_and_in_the_list() {
        let flush = Outcome { overlaps: 12, lost_changes: 3, refused: 5, ..run("redis", "flush") };
        let runs = [run("redis", "killed-holder"), run("sentinel", "killed-holder"), flush];
        let page = written(PAGE, &runs, &[("redis".to_owned(), "redis.html".to_owned())]).expect("it agrees");
        assert!(page.contains("| [the holder dies](#the-holder-dies): `killed-holder` | [leaves](#the-holder-dies) | [TTL](#the-holder-dies) | [TTL](#the-holder-dies) · 40 |\n"), "{page}");
        assert!(page.contains("[**two**](#the-store-loses-its-data) · 15 |\n"), "{page}");
        assert!(page.contains("| `killed-holder` | sentinel | 1 | 60 | 1000 | 20 | 0 |\n"), "{page}");
        assert!(page.contains("| `flush` | redis | 1 | 60 | 1000 | 20 | 12 | 3 | 5 | 0 |\n"), "{page}");
        assert!(page.contains("[redis](redis.html)") && page.contains("\nBy hand.\n"), "{page}");
        // Once is enough, and other runs leave nothing of these.
        assert_eq!(
            written(&page, &runs, &[("redis".to_owned(), "redis.html".to_owned())]).as_ref(),
            Ok(&page)
        );
        let in_vain = [runs.as_slice(), &[run("cluster", "flush")]].concat();
        assert_eq!(super::in_vain(PAGE, &in_vain).expect("a table"), ["flush on cluster"]);
        let none = written(PAGE, &[], &[]).expect("it agrees");
        assert_eq!(written(&page, &[], &[]), Ok(none));
    }

    #[test]
    fn a_run_that_contradicts_the_page_is_an_error() {
        let broken = Outcome { violations: [("I1".to_owned(), 1)].into(), ..run("redis", "mixed") };
        let wrong = [
            (broken, "violations in mixed on redis"),
            (run("sqlite", "flush"), "flush on sqlite: the table says that it cannot happen"),
            (Outcome { overlaps: 1, ..run("redis", "killed-holder") }, "1 overlaps, and none are announced"),
        ];
        for (run, error) in wrong {
            let found = written(PAGE, &[run], &[]).expect_err("it contradicts the page");
            assert!(found.contains(error), "{found}");
        }
        assert!(written("nothing", &[], &[]).is_err());
    }
}
