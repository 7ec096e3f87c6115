//! `list`: what is held or awaited.

use std::process::ExitCode;
use std::time::Duration;

use comfy_table::{Attribute, Cell, CellAlignment, ContentArrangement, Table, presets};
use futures::TryStreamExt;
use leasehold::{Holder, ListEntry, Purpose, RwLock};

use crate::args::{Args, List};
use crate::exit::Failure;
use crate::report::Item;
use crate::{output, visit, wording};

const HEADER: [&str; 8] = ["NAME", "KIND", "HELD BY", "FOR", "ENDS IN", "TOKEN", "WAITING", "NOTE"];
/// Those of numbers.
const RIGHT: [usize; 4] = [3, 4, 5, 6];

pub(crate) async fn run(args: &Args, wanted: &List) -> Result<ExitCode, Failure> {
    visit::connected(args, async |client| {
        let mut found = client.list(&wanted.prefix);
        let mut rows = Vec::new();
        while let Some(entry) = found.try_next().await? {
            if !args.json {
                rows.push(Row::of(&entry));
            } else if !output::line_if_read(&output::to_json(&Item::of(&entry))?)? {
                break;
            }
        }
        if !args.json {
            sort(&mut rows);
            print(&rows)?;
        }
        Ok(ExitCode::SUCCESS)
    })
    .await
}

/// By name, and then by what they are.
pub(crate) fn sort(rows: &mut [Row]) {
    rows.sort_by(|a, b| a.id().cmp(&b.id()));
}

fn print(rows: &[Row]) -> Result<(), Failure> {
    if rows.is_empty() {
        output::note("nothing is held or awaited");
        return Ok(());
    }
    output::line_if_read(&table(rows, output::is_terminal())).map(drop)
}

/// Aligned columns, which fit into the window if there is one.
pub(crate) fn table(rows: &[Row], is_terminal: bool) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    if is_terminal {
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_header(HEADER.map(|text| Cell::new(text).add_attribute(Attribute::Bold)));
    } else {
        table.set_header(HEADER);
    }
    for row in rows {
        table.add_row(row.cells());
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    for column in RIGHT {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// One line of a table: what it is, and who holds it.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) purpose: Purpose,
    /// As it is, for requests.
    pub(crate) name: String,
    pub(crate) holder: String,
    /// Of the holder that has held it the longest.
    pub(crate) held_for: Option<Duration>,
    /// Of the holder whose lease ends last.
    pub(crate) remaining: Option<Duration>,
    pub(crate) token: Option<u64>,
    pub(crate) waiters: usize,
    pub(crate) note: String,
}

impl Row {
    pub(crate) fn of(entry: &ListEntry) -> Self {
        let ListEntry { purpose, name, holders, waiters, .. } = entry;
        let only = if let [holder] = &holders[..] { Some(holder) } else { None };
        let note = holders.iter().find_map(|holder| holder.note.as_deref()).unwrap_or_default();
        Self {
            purpose: *purpose,
            name: name.clone(),
            holder: held_by(*purpose, holders),
            held_for: holders.iter().filter_map(|holder| holder.held_for).max(),
            remaining: holders.iter().filter_map(|holder| holder.remaining).max(),
            token: only.and_then(|holder| holder.token).map(|token| token.get()),
            waiters: *waiters,
            note: wording::clean(note).into_owned(),
        }
    }

    /// What tells it from others, and sorts it among those that are otherwise equal.
    pub(crate) fn id(&self) -> (&str, Purpose) {
        (&self.name, self.purpose)
    }

    /// In the order of the header.
    pub(crate) fn cells(&self) -> [String; 8] {
        let time = |time: Option<Duration>| time.map(wording::short_time).unwrap_or_default();
        [
            wording::clean(&self.name).into_owned(),
            self.purpose.to_string(),
            self.holder.clone(),
            time(self.held_for),
            time(self.remaining),
            self.token.map(|token| token.to_string()).unwrap_or_default(),
            self.waiters.to_string(),
            self.note.clone(),
        ]
    }
}

/// Such as `api-7 (pid 4711)`, `a, b and 3 more`.
fn held_by(purpose: Purpose, holders: &[Holder]) -> String {
    let named = holders.iter().take(2).map(|holder| who(purpose, holder)).collect::<Vec<_>>().join(", ");
    match holders.len() {
        0 => "nobody".to_owned(),
        1 | 2 => named,
        more => format!("{named} and {} more", more - 2),
    }
}

/// What a holder is called.
pub(crate) fn who(purpose: Purpose, holder: &Holder) -> String {
    let label = match (&holder.label, holder.short_id()) {
        (Some(label), _) => wording::clean(label).into_owned(),
        (None, Some(id)) => format!("lease {id}"),
        (None, None) => "a client of another library".to_owned(),
    };
    match &holder.owner {
        Some(owner) => format!("{label}, owner {}", wording::clean(owner)),
        None if purpose == Purpose::RwLock && holder.permits == RwLock::MAX_READERS => {
            format!("{label} (writes)")
        }
        None if purpose == Purpose::RwLock => format!("{label} (reads)"),
        None if holder.permits > 1 => format!("{label} ({} permits)", holder.permits),
        None => label,
    }
}
