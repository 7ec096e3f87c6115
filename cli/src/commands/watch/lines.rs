//! Snapshots as text or JSON, one after the other, where there is no terminal.

use leasehold::Client;
use tokio::time::sleep_until;

use super::{Seen, away, look};
use crate::args::{Args, Watch};
use crate::commands::list::{self, Row};
use crate::exit::Failure;
use crate::output;
use crate::report::{self, Item, Snapshot};
use crate::signals::Signals;

/// Prints until a signal arrives, or nobody reads.
pub(super) async fn print(
    client: &Client,
    args: &Args,
    wanted: &Watch,
    signals: &mut Signals,
) -> Result<(), Failure> {
    loop {
        let look = tokio::select! {
            _ = signals.end() => return Ok(()),
            look = look(client, &wanted.prefix, None) => look,
        };
        let next = look.next(wanted.every);
        let found = look.found;
        let error = found.as_ref().err().map(|error| away(client).unwrap_or_else(|| error.clone()));
        let seen = found.ok();
        let text = if args.json {
            output::to_json(&snapshot(client, seen, error))?
        } else {
            lines(client, seen, error)
        };
        if !output::line_if_read(&text)? {
            return Ok(());
        }
        tokio::select! {
            _ = signals.end() => return Ok(()),
            () = sleep_until(next) => {}
        }
    }
}

fn snapshot(client: &Client, seen: Option<Seen>, error: Option<String>) -> Snapshot {
    Snapshot {
        at: report::now(),
        store: client.store().to_owned(),
        connected: error.is_none(),
        error,
        items: seen.map(|seen| seen.all.iter().map(Item::of).collect()),
    }
}

fn lines(client: &Client, seen: Option<Seen>, error: Option<String>) -> String {
    let (now, store) = (report::now(), client.store());
    let Some(Seen { all, .. }) = seen else {
        return format!("{now}  {store}: {}", error.unwrap_or_default());
    };
    let mut rows: Vec<_> = all.iter().map(Row::of).collect();
    list::sort(&mut rows);
    let head = format!("{now}  {store}: {} held or awaited", rows.len());
    if rows.is_empty() { head } else { format!("{head}\n{}", list::table(&rows, false)) }
}
