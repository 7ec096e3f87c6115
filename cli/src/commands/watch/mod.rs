//! `watch`: what is held or awaited, live. `view` is what the user sees and does, `draw` paints it, `keyboard` reads
//! keys, and `lines` prints instead, where there is no terminal.

mod draw;
mod keyboard;
mod lines;
mod view;

use std::process::ExitCode;
use std::time::Duration;

use anstream::ColorChoice;
use futures::TryStreamExt;
use futures::future::{BoxFuture, FutureExt, OptionFuture};
use leasehold::{Client, Error, ListEntry, Status};
use ratatui::DefaultTerminal;
use tokio::time::{Instant, sleep_until};

use crate::args::{Args, Watch};
use crate::exit::{Failure, LOST};
use crate::find::Found;
use crate::signals::Signals;
use crate::{output, report, store, visit, wording};
use view::{Id, View, Wish};

/// Looking at a store with a great many locks takes time: at most one part in so many of all time.
const SHARE: u32 = 4;
/// While the store is away, its state is shown so often.
const WHILE_AWAY: Duration = Duration::from_secs(1);

pub(crate) async fn run(args: &Args, wanted: &Watch) -> Result<ExitCode, Failure> {
    let client = store::builder(args)?.fail_fast(true).connect().await?;
    visit::with(&client, async |client| {
        let mut signals = Signals::that_end()?;
        if output::is_terminal() && !args.json {
            let mut screen = Screen::open()?;
            live(client, wanted, &mut screen.0, &mut signals).await?;
        } else {
            lines::print(client, args, wanted, &mut signals).await?;
        }
        Ok(ExitCode::SUCCESS)
    })
    .await
}

/// The terminal, which is restored when this is dropped, and when the program panics.
struct Screen(DefaultTerminal);

impl Screen {
    fn open() -> Result<Self, Failure> {
        ratatui::try_init().map(Self).map_err(|error| no_terminal(&error))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

fn no_terminal(error: &std::io::Error) -> Failure {
    Failure::new(LOST, format!("the terminal cannot be used: {error}"))
}

async fn live(
    client: &Client,
    wanted: &Watch,
    terminal: &mut DefaultTerminal,
    signals: &mut Signals,
) -> Result<(), Failure> {
    let mut view = View::new(client.store(), &wanted.prefix, has_color());
    let mut keys = keyboard::read();
    let (mut looking, mut next): (Option<BoxFuture<'_, Look>>, _) = (None, Instant::now());
    let mut is_wished = false;
    loop {
        view.away = away(client);
        terminal.draw(|frame| draw::draw(frame, &mut view)).map_err(|error| no_terminal(&error))?;
        let repaint = Instant::now() + WHILE_AWAY;
        tokio::select! {
            _ = signals.end() => return Ok(()),
            key = keys.recv() => match key.map(|event| view.handle(&event)) {
                None | Some(Wish::Quit) => return Ok(()),
                // What is to be shown in detail is not known yet, and no part of a look that has begun.
                Some(Wish::Look) => (is_wished, next) = (true, Instant::now()),
                Some(Wish::Nothing) => {}
            },
            Some(look) = OptionFuture::from(looking.as_mut()) => {
                looking = None;
                next = if is_wished { Instant::now() } else { look.next(wanted.every) };
                view.update(look.found);
            }
            () = sleep_until(next), if looking.is_none() => {
                is_wished = false;
                looking = Some(look(client, &wanted.prefix, view.shown_in_detail()));
            }
            () = sleep_until(repaint), if view.away.is_some() => {}
        }
    }
}

/// What one look has found, and how long it took.
struct Look {
    found: Result<Seen, String>,
    begun: Instant,
    took: Duration,
}

impl Look {
    /// When the next one is due.
    fn next(&self, every: Duration) -> Instant {
        self.begun + every.max(self.took * SHARE)
    }
}

/// What the store has now, and the one that is shown in detail.
struct Seen {
    all: Vec<ListEntry>,
    detail: Option<(Id, Result<Found, Error>)>,
}

fn look<'a>(client: &'a Client, prefix: &'a str, detail: Option<Id>) -> BoxFuture<'a, Look> {
    async move {
        let begun = Instant::now();
        let found = see(client, prefix, detail).await.map_err(|error| error.to_string());
        Look { found, begun, took: begun.elapsed() }
    }
    .boxed()
}

async fn see(client: &Client, prefix: &str, detail: Option<Id>) -> Result<Seen, Error> {
    let all = client.list(prefix).try_collect().await?;
    let Some((purpose, name)) = detail else { return Ok(Seen { all, detail: None }) };
    let found = client.inspect(purpose, &name).await.map(|now| Found { purpose, now });
    Ok(Seen { all, detail: Some(((purpose, name), found)) })
}

/// Since when the store is away, and why; `None` while it is connected.
fn away(client: &Client) -> Option<String> {
    let state = client.state();
    let since = match state.status {
        Status::Silent { since } | Status::Disconnected { since } => since.elapsed(),
        _ => return None,
    };
    let why = state.nodes.iter().find_map(|node| node.reason.as_deref()).unwrap_or("it does not answer");
    let at = report::ago(since).unwrap_or_default();
    Some(format!("disconnected since {at} ({}): {}", wording::time(since), wording::clean(why)))
}

/// As for what is printed.
fn has_color() -> bool {
    match ColorChoice::global() {
        ColorChoice::Never => false,
        ColorChoice::Always | ColorChoice::AlwaysAnsi => true,
        ColorChoice::Auto => std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
    }
}
