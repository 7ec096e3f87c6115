//! Draws the pictures of `docs/performance.md` from the tables in `benches/results`:
//!
//! ```text
//! cargo bench -p leasehold-benches --bench plots
//! ```
//!
//! So what is drawn is what was measured, and a plot can be changed without another run.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const FONT: &str = "sans-serif";
const OURS: RGBColor = RGBColor(0, 114, 178);
const OTHERS: RGBColor = RGBColor(165, 165, 165);
const GRID: RGBColor = RGBColor(228, 228, 228);
const WIDTH: i32 = 1080;

fn main() -> Result<()> {
    uncontended()?;
    contended()?;
    waiters()?;
    semaphores()?;
    stores()?;
    marketplace()?;
    libraries()
}

fn uncontended() -> Result<()> {
    let (one, many) = (Table::read("uncontended", "one task")?, Table::read("uncontended", "bare pairs/s")?);
    let names =
        ["SET NX PX, compare and delete", "rslock", "leasehold, guard released", "leasehold, guard dropped"];
    let rows = ["SET NX PX", "rslock", "leasehold, lock + release", "leasehold, lock + drop"];
    let pairs = |tasks: &str| -> Result<Vec<f64>> {
        let columns = ["bare pairs/s", "rslock pairs/s", "leasehold pairs/s"];
        let mut rates =
            columns.iter().map(|of| many.number(&[("tasks", tasks)], of)).collect::<Result<Vec<_>>>()?;
        rates.push(f64::NAN);
        Ok(rates)
    };
    let times = rows.iter().map(|row| one.number(&[("one task", row)], "p50 us")).collect::<Result<_>>()?;
    bars(
        "uncontended",
        "Locks that nobody else wants, on Redis",
        &names,
        &[
            Panel::new("one task: time of a lock and its release", times, micros),
            Panel::new("64 tasks: locks per second", pairs("64")?, count),
            Panel::new("1 024 tasks: locks per second", pairs("1024")?, count),
        ],
    )
}

/// How the strategies are called in tables and in plots.
const STRATEGIES: [(&str, &str); 8] = [
    ("leasehold", "leasehold"),
    ("leasehold, via store", "leasehold, each turn from Redis"),
    ("rslock, default", "rslock"),
    ("rslock, 10 ms", "rslock, delays of 10 ms"),
    ("polling, 10 ms", "SET NX every 10 ms"),
    ("polling, 1 ms", "SET NX every 1 ms"),
    ("notify, all retry", "release notifies, all retry"),
    ("WATCH/MULTI", "WATCH and MULTI, no lock"),
];

fn contended() -> Result<()> {
    let table = Table::read("contended", "hand-overs/s")?;
    let column = |section: &str, column: &str, part: usize| -> Result<Vec<f64>> {
        let number = |(of, _): &(&str, &str)| {
            let row = [("section", section), ("waiters", "1000"), ("strategy", of)];
            table.numbers(&row, column).map(|numbers| numbers.get(part).copied().unwrap_or(f64::NAN))
        };
        STRATEGIES.iter().map(number).collect()
    };
    let names = STRATEGIES.map(|(_, name)| name);
    bars(
        "contended",
        "1 000 tasks of two processes want one lock on Redis",
        &names,
        &[
            Panel::new("turns per second", column("0ns", "hand-overs/s", 0)?, count),
            Panel::new("99 of 100 waits are shorter than", column("0ns", "wait p50/p99 ms", 1)?, millis),
            Panel::new("commands to Redis for each turn", column("0ns", "commands", 0)?, few),
        ],
    )
}

fn waiters() -> Result<()> {
    let table = Table::read("contended", "hand-overs/s")?;
    let waiters = ["2", "16", "128", "1000", "10000"];
    let mut lines = Vec::new();
    for (of, name) in STRATEGIES.iter().filter(|(of, _)| *of != "polling, 1 ms") {
        let rate = |waiters: &&str| {
            table.number(&[("section", "0ns"), ("waiters", waiters), ("strategy", of)], "hand-overs/s")
        };
        lines.push((*name, waiters.iter().map(rate).collect::<Result<Vec<_>>>()?));
    }
    lines_by_waiters(
        "waiters",
        "Turns per second at one lock, by the number of tasks that want it",
        &waiters,
        &lines,
    )
}

fn semaphores() -> Result<()> {
    let table = Table::read("semaphores", "acquisitions/s")?;
    let kinds = [
        ("CountingSemaphore, hand-over", "leasehold, counting, local hand-over"),
        ("CountingSemaphore", "leasehold, counting"),
        ("FairSemaphore", "leasehold, fair"),
        ("naive, polling 10 ms", "sorted set, every 10 ms"),
        ("naive, polling 5 ms", "sorted set, every 5 ms"),
        ("naive, polling 1 ms", "sorted set, every 1 ms"),
    ];
    let column = |column: &str, part: usize| -> Result<Vec<f64>> {
        let number = |(of, _): &(&str, &str)| {
            let numbers = table.numbers(&[("tasks", "100"), ("semaphore", of)], column)?;
            Ok(numbers[part])
        };
        kinds.iter().map(number).collect()
    };
    bars(
        "semaphores",
        "100 tasks share a semaphore with a limit of 10",
        &kinds.map(|(_, name)| name),
        &[
            Panel::new("permits granted per second", column("acquisitions/s", 0)?, count),
            Panel::new("99 of 100 waits are shorter than", column("wait p50/p99 ms", 1)?, millis),
            Panel::new("most holders at the same time", column("most at once", 0)?, count),
        ],
    )
}

fn stores() -> Result<()> {
    const SIXTEEN: &str = "16 clients: hand-over us p50 (x) / p99, per s";
    let table = Table::read("stores", "lock + release us (x)")?;
    let recipes = [
        ("Redis", "leasehold", "Redis: leasehold"),
        ("Redis", "SET NX, polled every 10 ms", "Redis: SET NX every 10 ms"),
        ("PostgreSQL", "leasehold", "PostgreSQL: leasehold"),
        ("PostgreSQL", "pg_advisory_lock", "PostgreSQL: pg_advisory_lock"),
        ("MySQL", "leasehold", "MySQL: leasehold"),
        ("MySQL", "GET_LOCK", "MySQL: GET_LOCK"),
        ("etcd (2)", "leasehold", "etcd: leasehold"),
        ("etcd (2)", "watch on the predecessor", "etcd: its own lock"),
        ("ZooKeeper", "leasehold", "ZooKeeper: leasehold"),
        ("ZooKeeper", "Curator's lock", "ZooKeeper: Curator's lock"),
        ("SQLite", "leasehold", "SQLite: leasehold"),
        ("SQLite", "a row, polled every 10 ms", "SQLite: a row, every 10 ms"),
    ];
    let column = |column: &str, part: usize, unit: f64| -> Result<Vec<f64>> {
        let number = |(store, recipe, _): &(&str, &str, &str)| {
            Ok(table.numbers(&[("store", store), ("", recipe)], column)?[part] * unit)
        };
        recipes.iter().map(number).collect()
    };
    bars(
        "stores",
        "Each store, beside its own way to lock",
        &recipes.map(|(_, _, name)| name),
        &[
            Panel::new("lock and release, nobody waits", column("lock + release us (x)", 0, 1e-3)?, millis),
            Panel::new("16 clients: turns per second", column(SIXTEEN, 3, 1.0)?, count),
            Panel::new("99 of 100 turns begin within", column(SIXTEEN, 2, 1e-3)?, millis),
        ],
    )
}

fn marketplace() -> Result<()> {
    let table = Table::read("marketplace", "bought")?;
    let methods = [
        ("lock per item", "leasehold, a lock for each item"),
        ("one lock", "leasehold, one lock for all"),
        ("WATCH/MULTI", "WATCH and MULTI, no lock"),
    ];
    let column = |traders: &str, column: &str| -> Result<Vec<f64>> {
        let number =
            |(of, _): &(&str, &str)| table.number(&[("sellers x buyers", traders), ("method", of)], column);
        methods.iter().map(number).collect()
    };
    bars(
        "marketplace",
        "A market: 5 sellers, and 5 or 20 buyers",
        &methods.map(|(_, name)| name),
        &[
            Panel::new("5 buyers: items bought", column("5 x 5", "bought")?, count),
            Panel::new("20 buyers: items bought", column("5 x 20", "bought")?, count),
            Panel::new("20 buyers: 99 of 100 within", column("5 x 20", "buy p99 ms")?, millis),
        ],
    )
}

fn libraries() -> Result<()> {
    const NAME: &str = "one lock, 1 task and 16 tasks";
    let table = Table::read("libraries", NAME)?;
    let libraries = ["leasehold", "rslock 0.10", "rlock 0.2", "redis-py"];
    let column = |column: &str| -> Result<Vec<f64>> {
        libraries.iter().map(|of| table.number(&[(NAME, of)], column)).collect()
    };
    bars(
        "libraries",
        "Libraries for locks on Redis, each with its defaults",
        &libraries,
        &[
            Panel::new("lock and release, in round trips", column("in PINGs")?, tenths),
            Panel::new("16 tasks, one lock: turns per second", column("turns/s")?, count),
            Panel::new("16 tasks, one lock: longest wait", column("longest wait ms")?, millis),
        ],
    )
}

/// A column of bars.
struct Panel {
    title: &'static str,
    values: Vec<f64>,
    text: fn(f64) -> String,
}

impl Panel {
    const fn new(title: &'static str, values: Vec<f64>, text: fn(f64) -> String) -> Self {
        Self { title, values, text }
    }
}

/// Horizontal bars, a row for each name and a column for each panel, with their values; ours have our colour.
fn bars(file: &str, title: &str, names: &[&str], panels: &[Panel]) -> Result<()> {
    const TOP: i32 = 84;
    const ROW: i32 = 27;
    const NAMES: i32 = 262;
    const VALUE: i32 = 78;
    let file = plot(file);
    let height = TOP + ROW * i32::try_from(names.len())? + 14;
    let root = canvas(&file, title, height)?;
    let width = (WIDTH - NAMES - 14) / i32::try_from(panels.len())?;
    let middle = |row: usize| TOP + ROW / 2 + ROW * row as i32;
    for (row, name) in names.iter().enumerate() {
        write(&root, name, (NAMES - 14, middle(row)), HPos::Right, 15, name_colour(name))?;
    }
    for (n, panel) in panels.iter().enumerate() {
        let left = NAMES + width * n as i32;
        let longest =
            panel.values.iter().copied().filter(|value| value.is_finite()).fold(f64::MIN_POSITIVE, f64::max);
        write(&root, panel.title, (left, TOP - 18), HPos::Left, 14, BLACK)?;
        for (row, &value) in panel.values.iter().enumerate().filter(|(_, value)| value.is_finite()) {
            let y = middle(row);
            let right = left + ((value / longest * f64::from(width - VALUE)).round() as i32).max(2);
            let colour = if is_ours(names[row]) { OURS } else { OTHERS };
            root.draw(&Rectangle::new([(left, y - 9), (right, y + 9)], colour.filled()))?;
            write(&root, &(panel.text)(value), (right + 6, y), HPos::Left, 14, name_colour(names[row]))?;
        }
    }
    Ok(root.present()?)
}

/// A line for each name on a logarithmic scale, with its name and last value at its end.
fn lines_by_waiters(file: &str, title: &str, waiters: &[&str], lines: &[(&str, Vec<f64>)]) -> Result<()> {
    const LEFT: i32 = 90;
    const RIGHT: i32 = 690;
    const TOP: i32 = 70;
    const BOTTOM: i32 = 470;
    let file = plot(file);
    let root = canvas(&file, title, 520)?;
    let x = |n: usize| LEFT + (RIGHT - LEFT) * n as i32 / (waiters.len() as i32 - 1);
    let y = |value: f64| BOTTOM - ((value.log10() - 1.0) / 4.3 * f64::from(BOTTOM - TOP)) as i32;
    for power in 1..=5 {
        let value = 10_f64.powi(power);
        root.draw(&PathElement::new([(LEFT, y(value)), (RIGHT, y(value))], GRID.stroke_width(1)))?;
        write(&root, &count(value), (LEFT - 10, y(value)), HPos::Right, 14, BLACK)?;
    }
    for (n, waiters) in waiters.iter().enumerate() {
        let text = if n == 0 { format!("{waiters} tasks") } else { count(waiters.parse()?) };
        write(&root, &text, (x(n), BOTTOM + 24), HPos::Center, 14, BLACK)?;
    }
    for (name, values) in lines {
        let colour = if is_ours(name) { OURS } else { OTHERS };
        let points: Vec<_> = values.iter().enumerate().map(|(n, &value)| (x(n), y(value))).collect();
        root.draw(&PathElement::new(points.clone(), colour.stroke_width(3)))?;
        for &point in &points {
            root.draw(&Circle::new(point, 4, colour.filled()))?;
        }
        if let (Some(value), Some(&(x, y))) = (values.last(), points.last()) {
            write(
                &root,
                &format!("{}  {name}", count(*value)),
                (x + 12, y),
                HPos::Left,
                14,
                name_colour(name),
            )?;
        }
    }
    Ok(root.present()?)
}

fn canvas<'a>(file: &'a Path, title: &str, height: i32) -> Result<Area<'a>> {
    let root = SVGBackend::new(file, (WIDTH as u32, u32::try_from(height)?)).into_drawing_area();
    root.fill(&WHITE)?;
    write(&root, title, (14, 24), HPos::Left, 20, BLACK)?;
    Ok(root)
}

fn write(area: &Area<'_>, text: &str, at: (i32, i32), side: HPos, size: i32, colour: RGBColor) -> Result<()> {
    let style = (FONT, size).into_font().color(&colour).pos(Pos::new(side, VPos::Center));
    Ok(area.draw(&Text::new(text.to_owned(), at, style))?)
}

fn is_ours(name: &str) -> bool {
    name.contains("leasehold")
}

fn name_colour(name: &str) -> RGBColor {
    if is_ours(name) { OURS } else { BLACK }
}

/// With a space between thousands.
fn count(value: f64) -> String {
    let digits = format!("{value:.0}");
    let thousands: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    thousands.join("\u{a0}")
}

fn few(value: f64) -> String {
    if value < 10.0 { format!("{value:.2}") } else { count(value) }
}

fn tenths(value: f64) -> String {
    format!("{value:.1}")
}

fn micros(value: f64) -> String {
    format!("{value:.0} µs")
}

fn millis(value: f64) -> String {
    match value {
        ..1.0 => micros(value * 1000.0),
        ..10.0 => format!("{value:.1} ms"),
        ..1000.0 => format!("{value:.0} ms"),
        _ => format!("{:.1} s", value / 1000.0),
    }
}

/// A table that a benchmark has printed.
struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// The first one of the file that has this column.
    fn read(file: &str, column: &str) -> Result<Self> {
        let path = root().join("benches/results").join(file).with_extension("md");
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let cells = |line: &str| -> Vec<String> {
            line.trim().trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
        };
        let mut lines = text.lines().skip_while(|line| !cells(line).iter().any(|cell| cell == column));
        let header = lines.next().ok_or_else(|| format!("{}: no column {column:?}", path.display()))?;
        let rows = lines.skip(1).take_while(|line| line.starts_with('|')).map(cells).collect();
        Ok(Self { header: cells(header), rows })
    }

    /// All numbers in one cell: of the row whose cells begin with these texts, in order, and are them if any row's are.
    fn numbers(&self, row: &[(&str, &str)], column: &str) -> Result<Vec<f64>> {
        let index = |of: &str| {
            let found = self.header.iter().position(|cell| cell == of);
            found.ok_or_else(|| format!("no column {of:?} in {:?}", self.header))
        };
        let wanted = row.iter().map(|(of, text)| Ok((index(of)?, *text))).collect::<Result<Vec<_>>>()?;
        let exact = self.rows.iter().find(|cells| wanted.iter().all(|(n, text)| cells[*n] == *text));
        let begins =
            || self.rows.iter().find(|cells| wanted.iter().all(|(n, text)| cells[*n].starts_with(text)));
        let cells = exact.or_else(begins).ok_or_else(|| format!("no row {row:?}"))?;
        let numbers = cells[index(column)?].split(|c: char| !c.is_ascii_digit() && c != '.');
        Ok(numbers
            .filter(|number| !number.is_empty())
            .map(str::parse)
            .collect::<std::result::Result<_, _>>()?)
    }

    fn number(&self, row: &[(&str, &str)], column: &str) -> Result<f64> {
        let numbers = self.numbers(row, column)?;
        numbers.first().copied().ok_or_else(|| format!("no number in {column:?} of {row:?}").into())
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn plot(name: &str) -> PathBuf {
    root().join("docs/plots").join(name).with_extension("svg")
}
