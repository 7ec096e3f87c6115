//! What has changed since another revision: every figure of the tables that benchmarks have printed, old beside new.
//!
//! `scripts/compare.sh REVISION` runs the benchmarks of both revisions in turns on one machine, and then this on what
//! they have printed: `cargo bench -p leasehold-benches --bench compare -- OLD NEW`, with a folder each, in which
//! `contended.2.txt` is the second run of `contended`.
//!
//! A figure is a cell of a table, or one of several numbers in a cell, of a row of this crate. Its value is the median
//! of the runs. The ratio is above 1 if the new revision is better, whatever the unit: rates divide new by old, and
//! times, sizes and shares old by new. What is printed beside it are the least and the greatest ratio of runs of the
//! same number, which were made one after the other: if these are on both sides of 1, the runs have not shown which
//! revision is better.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser;
use comfy_table::{Table, presets};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[derive(Parser)]
struct Options {
    /// What the benchmarks of the old revision have printed.
    old: Option<PathBuf>,
    /// What those of the new one have printed.
    new: Option<PathBuf>,
    /// Figures whose ratio is below this are listed once more at the end.
    #[arg(long, default_value_t = 0.97)]
    least: f64,
    /// Given by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let (Some(old), Some(new)) = (options.old, options.new) else {
        return read_an_example();
    };
    let (old, new) = (read_all(&old)?, read_all(&new)?);
    let mut worse = Vec::new();
    for (benchmark, figures) in &new {
        let Some(before) = old.get(benchmark) else { continue };
        let mut table = Table::new();
        table.load_preset(presets::ASCII_MARKDOWN).set_header([
            &**benchmark,
            "old",
            "new",
            "ratio",
            "in each run",
        ]);
        for (figure, runs) in figures {
            let Some(compared) = before.get(figure).and_then(|before| Compared::of(figure, before, runs))
            else {
                continue;
            };
            table.add_row(compared.cells(figure));
            if compared.ratio < options.least {
                worse.push(format!("{benchmark}: {}: {:.3}", figure.name, compared.ratio));
            }
        }
        println!("{table}\n");
    }
    println!("{} figures below {}", worse.len(), options.least);
    worse.iter().for_each(|figure| println!("  {figure}"));
    Ok(())
}

/// Of each benchmark, all figures, with their values in each run.
type Figures = BTreeMap<String, BTreeMap<Figure, Vec<f64>>>;

fn read_all(folder: &Path) -> Result<Figures> {
    let mut files = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    // The runs of both revisions in the same order.
    files.sort();
    let mut all = Figures::new();
    for file in files {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some((benchmark, _)) = name.split_once('.') else { continue };
        let figures = all.entry(benchmark.to_owned()).or_default();
        for (figure, value) in read(&fs::read_to_string(&file)?) {
            figures.entry(figure).or_default().push(value);
        }
    }
    Ok(all)
}

/// What a number in a table stands for.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Figure {
    name: String,
    /// Whether more of it is better.
    is_rate: bool,
}

/// The figures of all tables in the output of a benchmark.
fn read(output: &str) -> Vec<(Figure, f64)> {
    let mut figures = Vec::new();
    let mut header: Option<Vec<String>> = None;
    for line in output.lines() {
        if !line.starts_with('|') {
            header = None;
            continue;
        }
        let row = cells(line);
        match &header {
            None => header = Some(row),
            Some(_) if row.iter().all(|cell| cell.chars().all(|c| c == '-')) => {}
            Some(header) => figures.extend(of_row(header, &row)),
        }
    }
    figures
}

fn cells(line: &str) -> Vec<String> {
    line.trim().trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
}

/// The figures of a row. Its first cells, up to the first column that is measured, say what it is about. Goals are
/// figures of other tables.
fn of_row(header: &[String], row: &[String]) -> Vec<(Figure, f64)> {
    let first = header.iter().position(|column| directions(column, 1).is_some()).unwrap_or(header.len());
    let about = row[..first.min(row.len())].join(" ");
    let of_others =
        ["naive", "poll", "SET NX", "rslock", "PING", "GET_LOCK", "advisory", "Curator", "watch on"];
    if header.iter().any(|column| column == "goal") || of_others.iter().any(|other| about.contains(other)) {
        return Vec::new();
    }
    let cells = header.iter().zip(row).skip(first).filter(|(column, _)| is_ours(column));
    let figures = cells.flat_map(|(column, cell)| {
        let numbers = numbers(cell);
        let directions = directions(column, numbers.len()).unwrap_or_default();
        let several = numbers.len() > 1;
        let figure = |n: usize, is_rate| {
            let nth = if several { format!(" [{}]", n + 1) } else { String::new() };
            Figure { name: format!("{about}: {column}{nth}"), is_rate }
        };
        let figures = numbers.into_iter().zip(directions).enumerate();
        figures.map(|(n, (number, is_rate))| (figure(n, is_rate), number)).collect::<Vec<_>>()
    });
    figures.collect()
}

/// Whether a column is about this crate, and not about another contender or the machine.
fn is_ours(column: &str) -> bool {
    !["bare", "rslock", "PING", "commit us"].iter().any(|other| column.contains(other))
}

/// Whether each of so many numbers under this header is a rate, or a time or size. `None` if they are neither.
fn directions(column: &str, numbers: usize) -> Option<Vec<bool>> {
    if column.ends_with(", per s") {
        // Times, and a rate at the end.
        return Some((1..=numbers).map(|n| n == numbers).collect());
    }
    if column.contains("/s") {
        return Some(vec![true; numbers]);
    }
    let words: Vec<&str> = column.split([' ', ',', '(', ')']).collect();
    let units = ["us", "ms", "bytes", "%", "kB", "commands", "operations", "PEXPIRE", "instructions"];
    units.iter().any(|unit| words.contains(unit)).then(|| vec![false; numbers])
}

fn numbers(cell: &str) -> Vec<f64> {
    cell.split(|c: char| !c.is_ascii_digit() && c != '.').filter_map(|number| number.parse().ok()).collect()
}

/// A figure of both revisions.
struct Compared {
    old: f64,
    new: f64,
    ratio: f64,
    least: f64,
    greatest: f64,
}

impl Compared {
    /// `None` if it is zero, or there is no run of both.
    fn of(figure: &Figure, old: &[f64], new: &[f64]) -> Option<Self> {
        let ratio = |(old, new): (f64, f64)| if figure.is_rate { new / old } else { old / new };
        let ratios = old.iter().copied().zip(new.iter().copied()).map(ratio);
        let (least, greatest) = ratios.fold((f64::INFINITY, 0.0_f64), |(least, greatest), ratio| {
            (least.min(ratio), greatest.max(ratio))
        });
        let (old, new) = (median(old)?, median(new)?);
        let ratio = ratio((old, new));
        (ratio.is_finite() && ratio > 0.0).then_some(Self { old, new, ratio, least, greatest })
    }

    fn cells(&self, figure: &Figure) -> [String; 5] {
        let range = format!("{:.2} to {:.2}", self.least, self.greatest);
        [figure.name.clone(), self.old.to_string(), self.new.to_string(), format!("{:.3}", self.ratio), range]
    }
}

fn median(values: &[f64]) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let (below, above) = (values.get(values.len().checked_sub(1)? / 2)?, values.get(values.len() / 2)?);
    Some(f64::midpoint(*below, *above))
}

/// Without folders, as under `cargo test`: shows that tables are understood.
fn read_an_example() -> Result<()> {
    let output = "\
| section | strategy     | hand-overs/s | wait p50/p99 ms | Jain |
|---------|--------------|--------------|-----------------|------|
| 0ns     | leasehold    | 200          | 1.5 / 3         | 1    |
| 0ns     | poll1        | 100          | 9 / 9           | 1    |

| store | commit us | 2 clients: hand-over us p50 (x) / p99, per s |
|-------|-----------|----------------------------------------------|
| Redis | 70        | 73 (1.0) / 141, 13479                        |
";
    let figures = read(output);
    let said: Vec<_> =
        figures.iter().map(|(figure, value)| (&*figure.name, figure.is_rate, *value)).collect();
    let of_store = "Redis: 2 clients: hand-over us p50 (x) / p99, per s";
    let expected = [
        ("0ns leasehold: hand-overs/s".to_owned(), true, 200.0),
        ("0ns leasehold: wait p50/p99 ms [1]".to_owned(), false, 1.5),
        ("0ns leasehold: wait p50/p99 ms [2]".to_owned(), false, 3.0),
        (format!("{of_store} [1]"), false, 73.0),
        (format!("{of_store} [2]"), false, 1.0),
        (format!("{of_store} [3]"), false, 141.0),
        (format!("{of_store} [4]"), true, 13479.0),
    ];
    if said.iter().map(|(name, is_rate, value)| ((*name).to_owned(), *is_rate, *value)).ne(expected) {
        return Err(format!("the tables were read as {said:?}").into());
    }
    let (figure, _) = &figures[0];
    let compared = Compared::of(figure, &[100.0, 300.0, 200.0], &[200.0, 150.0, 400.0]).ok_or("no ratio")?;
    if (compared.ratio, compared.least, compared.greatest) != (1.0, 0.5, 2.0) {
        return Err(format!("{} in {} to {}", compared.ratio, compared.least, compared.greatest).into());
    }
    println!("give two folders: see --help");
    Ok(())
}
