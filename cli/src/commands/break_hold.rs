//! `break`: ends the hold of a lock by force.

use std::io::{self, BufRead, IsTerminal};
use std::process::ExitCode;

use leasehold::{Client, Purpose};

use super::list::who;
use super::show;
use crate::args::{Args, Break, Which};
use crate::exit::{Failure, NO, USAGE};
use crate::find::Found;
use crate::report::{Broken, Holder};
use crate::{find, output, visit, wording};

pub(crate) async fn run(args: &Args, wanted: &Break) -> Result<ExitCode, Failure> {
    visit::connected(args, async |client| look_and_break(client, args, wanted).await).await
}

async fn look_and_break(client: &Client, args: &Args, wanted: &Break) -> Result<ExitCode, Failure> {
    let name = wording::clean(&wanted.which.name);
    let report = |held: Option<&Found>, broken, text: &str| report(client, args, wanted, held, broken, text);
    let Some(held) = held(client, &wanted.which).await? else {
        return report(None, false, &format!("nobody holds {name}: there is nothing to break"));
    };
    let shown = format!("{}{}", show::text(&wanted.which.name, &held), consequences(client, &held));
    if !wanted.yes {
        // Whoever is asked sees it, wherever the output goes.
        output::beside(&shown);
        if !is_agreed(&held, &name)? {
            return report(Some(&held), false, "nothing was changed");
        }
    } else if !args.json {
        output::line(&shown)?;
    }
    // Somebody may have thought about it for a while.
    let now = find::ask(client, &wanted.which).await?.found;
    let Some(now) = now.iter().find(|now| now.purpose == held.purpose && now.is_held()) else {
        return report(None, false, &format!("{name} has been released: there is nothing to break any more"));
    };
    if now.ids() != held.ids() {
        let text = "nothing was changed: it is no longer held by the holder that was shown";
        return report(Some(now), false, text);
    }
    let broken = client.force_release(held.purpose, &wanted.which.name).await?;
    let text = match now.now.waiters.first() {
        _ if !broken => format!("{name} has just been released: there was nothing to break"),
        Some(_) => format!("{name} was broken, and goes to the next waiter"),
        None => format!("{name} was broken, and is free"),
    };
    report(Some(now), broken, &text)
}

/// The only thing of this name that is held and can be broken.
async fn held(client: &Client, which: &Which) -> Result<Option<Found>, Failure> {
    let mut held = find::in_use(client, which).await?;
    held.retain(Found::is_held);
    let name = wording::clean(&which.name);
    let (mut can, cannot): (Vec<_>, Vec<_>) =
        held.into_iter().partition(|found| found.purpose.can_be_force_released());
    match (can.pop(), can.len(), cannot.first()) {
        (None, _, Some(found)) => Err(unbreakable(&name, found)),
        (Some(last), 1.., _) => {
            let kinds: Vec<_> = can.iter().chain([&last]).map(|found| found.purpose.as_str()).collect();
            let failure =
                Failure::new(USAGE, format!("several things called {name} are held: {}", kinds.join(", ")));
            Err(failure.hint("Say which of them to break, with --kind."))
        }
        (one, ..) => Ok(one),
    }
}

/// No store can take permits away.
fn unbreakable(name: &str, found: &Found) -> Failure {
    let Found { purpose, now } = found;
    let holders: Vec<_> = now.holders.iter().map(|holder| who(*purpose, holder)).collect();
    let what = match purpose {
        Purpose::RwLock => "a read/write lock",
        _ => "a semaphore",
    };
    let text = format!("{name} is {what}, which cannot be broken; it is held by {}", holders.join(", "));
    let ends = match now.holders.iter().filter_map(|holder| holder.remaining).max() {
        Some(last) => format!(
            "End the programs that hold it: what they hold ends when they release it, and that of a program that is \
             dead in {} at the latest.",
            wording::time(last)
        ),
        None => "End the programs that hold it: what they hold ends when they release it.".to_owned(),
    };
    Failure::new(USAGE, text).hint(ends)
}

/// What happens to the holder, and when it notices.
fn consequences(client: &Client, held: &Found) -> String {
    let Some(holder) = held.now.holders.first() else { return String::new() };
    let name = who(held.purpose, holder);
    let when = match (holder.short_id(), are_told_at_once(client, held), holder.remaining) {
        (None, ..) => format!("{name} is not told, and goes on."),
        (_, true, _) => format!("{name} is told at once."),
        (_, false, Some(remaining)) => format!(
            "{name} is told by its next renewal: within a third of its TTL, and within {} in any case.",
            wording::time(remaining)
        ),
        (_, false, None) => format!("{name} is told by its next renewal."),
    };
    let until = "Until it has stopped, it works beside the next holder, and only fencing tokens reject what it writes.";
    format!("{when} {until}")
}

/// Whether all holders learn of it before they ask the store. Nobody tells a client of another library.
fn are_told_at_once(client: &Client, held: &Found) -> bool {
    let mut holders = held.now.holders.iter();
    client.capabilities().pushes_losses && holders.all(|holder| holder.short_id().is_some())
}

fn is_agreed(held: &Found, name: &str) -> Result<bool, Failure> {
    if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        let failure =
            Failure::new(USAGE, format!("{name} was not broken: nobody can be asked, without a terminal"));
        return Err(failure.hint("To break it without a question, add --yes."));
    }
    anstream::eprint!("Take the {} {name} away from its holder? [y/N] ", held.purpose);
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).map_err(|error| {
        Failure::new(USAGE, format!("{name} was not broken: the answer cannot be read: {error}"))
    })?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

fn report(
    client: &Client,
    args: &Args,
    wanted: &Break,
    held: Option<&Found>,
    broken: bool,
    text: &str,
) -> Result<ExitCode, Failure> {
    if args.json {
        let holders = held.map(|held| held.now.holders.iter().map(|holder| Holder::of(held.purpose, holder)));
        output::json(&Broken {
            name: wanted.which.name.clone(),
            kind: held.map(|held| held.purpose.as_str()),
            broken,
            holders: holders.into_iter().flatten().collect(),
            told_at_once: held.is_some_and(|held| are_told_at_once(client, held)),
        })?;
    } else if broken {
        output::line(text)?;
    } else {
        output::note(text);
    }
    Ok(ExitCode::from(if broken { 0 } else { NO }))
}
