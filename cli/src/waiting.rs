//! Showing who holds what is awaited.

use std::io::{self, IsTerminal};
use std::pin::pin;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use leasehold::Error;
use tokio::time::sleep;

use crate::job::say;
use crate::wording::clean;

/// Who waits for less than this is told nothing, on a terminal.
const BRIEF: Duration = Duration::from_millis(300);
/// How often the store is asked; and who waits for less is told nothing if that is not on a terminal.
const LOOK: Duration = Duration::from_secs(1);
const FRAME: Duration = Duration::from_millis(100);

/// The output of `acquiring`. Meanwhile, a terminal shows who holds `name`; without one, a line says so once. `look` asks the store.
pub(crate) async fn show<T>(
    name: &str,
    acquiring: impl Future<Output = T>,
    look: impl AsyncFn() -> Result<String, Error>,
) -> T {
    let name = &*clean(name);
    let showing = async {
        if io::stderr().is_terminal() { animate(name, &look).await } else { tell(name, &look).await }
    };
    let (acquiring, showing) = (pin!(acquiring), pin!(showing));
    tokio::select! {
        biased;
        output = acquiring => output,
        never = showing => match never {},
    }
}

/// What never is.
enum Never {}

async fn animate(name: &str, look: &impl AsyncFn() -> Result<String, Error>) -> Never {
    sleep(BRIEF).await;
    let line = Line::new(name);
    loop {
        // It is tried again, and whether the store answers is said by who waits for the lock.
        if let Ok(now) = look().await {
            line.0.set_message(format!("`{name}`: {}", clean(&now)));
        }
        sleep(LOOK).await;
    }
}

async fn tell(name: &str, look: &impl AsyncFn() -> Result<String, Error>) -> Never {
    sleep(LOOK).await;
    match look().await {
        Ok(now) => say(&format!("waiting for `{name}`: {now}")),
        Err(error) => say(&format!("waiting for `{name}`: {error}")),
    }
    std::future::pending().await
}

/// A line of the terminal that is removed when this is dropped.
pub(crate) struct Line(ProgressBar);

impl Line {
    pub(crate) fn new(name: &str) -> Self {
        let bar = ProgressBar::new_spinner().with_message(format!("waiting for `{name}`"));
        // The template is a constant, and a default is no loss.
        let style = ProgressStyle::with_template("{spinner} {wide_msg} {elapsed}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.enable_steady_tick(FRAME);
        Self(bar)
    }

    pub(crate) fn show(&self, text: &str) {
        self.0.set_message(text.to_owned());
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
