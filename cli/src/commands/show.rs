//! `show`: who holds something, and who waits for it.

use std::fmt::Write;
use std::process::ExitCode;

use leasehold::{Holder, Inspection, Purpose, RwLock, Waiter};

use super::list::who;
use crate::args::{Args, Show};
use crate::exit::{Failure, NO};
use crate::find::Found;
use crate::report::{self, Details};
use crate::{find, output, visit, wording};

pub(crate) async fn run(args: &Args, wanted: &Show) -> Result<ExitCode, Failure> {
    visit::connected(args, async |client| {
        let found = find::in_use(client, &wanted.which).await?;
        let name = &wanted.which.name;
        for one in &found {
            if args.json {
                output::json(&Details::of(name, one))?
            } else {
                output::line(text(name, one).trim_end())?
            }
        }
        if found.is_empty() {
            let name = wording::clean(name);
            output::note(&format!("nobody holds {name} or waits for it at {}", client.store()));
        }
        Ok(ExitCode::from(if found.is_empty() { NO } else { 0 }))
    })
    .await
}

/// For people: several lines.
pub(crate) fn text(name: &str, found: &Found) -> String {
    let Found { purpose, now } = found;
    let mut text = format!("{purpose} {}\n", wording::clean(name));
    if now.holders.is_empty() {
        text += "  held by   nobody\n";
    }
    for holder in &now.holders {
        describe(&mut text, *purpose, holder);
    }
    if let Some(limit) = now.limit.filter(|_| *purpose != Purpose::RwLock) {
        add(&mut text, "limit", &format!("{limit}, of which {} are in use", now.in_use));
    }
    add(&mut text, "waiting", &now.waiters.len().to_string());
    for (n, waiter) in now.waiters.iter().enumerate() {
        add(&mut text, "", &format!("{}. {}", n + 1, waits(*purpose, waiter)));
    }
    for node in &now.nodes {
        let view = match &node.view {
            Ok(view) => one_line(*purpose, view),
            Err(error) => wording::clean(error).into_owned(),
        };
        add(&mut text, "node", &format!("{}: {view}", node.store));
    }
    text
}

fn describe(text: &mut String, purpose: Purpose, holder: &Holder) {
    add(text, "held by", &who(purpose, holder));
    if let Some(held_for) = holder.held_for {
        let since = report::ago(held_for).unwrap_or_default();
        add(text, "  since", &format!("{since}, for {}", wording::time(held_for)));
    }
    let ends = match holder.remaining {
        Some(remaining) => format!("in {} unless it is renewed", wording::time(remaining)),
        None => "never: the key has no expiry".to_owned(),
    };
    add(text, "  ends", &ends);
    if let Some(token) = holder.token {
        add(text, "  token", &token.to_string());
    }
    if let Some(note) = &holder.note {
        add(text, "  note", &wording::clean(note));
    }
    if let Some(id) = holder.short_id() {
        add(text, "  lease", &id);
    }
}

fn add(text: &mut String, what: &str, value: &str) {
    // Nothing fails that writes to a string.
    let _ = writeln!(text, "  {what:<9} {value}");
}

fn waits(purpose: Purpose, waiter: &Waiter) -> String {
    let mut text = match &waiter.label {
        Some(label) => wording::clean(label).into_owned(),
        None => format!("lease {:?}", waiter.id),
    };
    if purpose == Purpose::RwLock {
        text += if waiter.permits == RwLock::MAX_READERS { " (to write)" } else { " (to read)" };
    } else if waiter.permits > 1 {
        text += &format!(" ({} permits)", waiter.permits);
    }
    if let Some(note) = &waiter.note {
        text += &format!(": {}", wording::clean(note));
    }
    text
}

fn one_line(purpose: Purpose, view: &Inspection) -> String {
    let holders: Vec<_> = view.holders.iter().map(|holder| who(purpose, holder)).collect();
    let held_by = if holders.is_empty() { "nobody".to_owned() } else { holders.join(", ") };
    format!("held by {held_by}, {}", wording::waiters(view.waiters.len()))
}
