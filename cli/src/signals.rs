//! The signals that this program receives.

use std::fs;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::Poll;

use nix::sys::signal::Signal;
use tokio::signal::unix::{self, SignalKind};

use crate::exit::{Failure, LOST};
use crate::terminal;

/// What asks a program to end.
const ENDING: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// What else is passed on to a command.
const OTHERS: [Signal; 5] =
    [Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGWINCH, Signal::SIGTSTP, Signal::SIGCONT];

/// Signals of some kinds. They have no effect of their own any more from when this is made until the program ends.
#[derive(Debug)]
pub(crate) struct Signals {
    received: Vec<(Signal, unix::Signal)>,
    /// How often this program was asked to end.
    asked: u32,
}

impl Signals {
    /// Those that ask to end. Those that are ignored stay so, for instance HUP under `nohup`.
    pub(crate) fn that_end() -> Result<Self, Failure> {
        Self::of(&ENDING).map_err(|error| not_received(&error))
    }

    /// From now on also all others that can be passed on to a command.
    pub(crate) fn receive_others(&mut self) -> Result<(), Failure> {
        if self.received.iter().all(|(signal, _)| is_end(*signal)) {
            let others = Self::of(&OTHERS).map_err(|error| not_received(&error))?;
            self.received.extend(others.received);
        }
        Ok(())
    }

    fn of(wanted: &[Signal]) -> io::Result<Self> {
        let ignored = ignored();
        let wanted = wanted.iter().filter(|&&signal| ignored >> (signal as i32 - 1) & 1 == 0);
        let receive = |&signal| Ok((signal, unix::signal(SignalKind::from_raw(signal as i32))?));
        Ok(Self { received: wanted.map(receive).collect::<io::Result<_>>()?, asked: 0 })
    }

    /// Waits for the next one. Dropping the future loses none.
    pub(crate) async fn next(&mut self) -> Signal {
        let signal = poll_fn(|cx| {
            for (signal, received) in &mut self.received {
                if received.poll_recv(cx).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await;
        if is_end(signal) {
            self.have_asked();
        }
        signal
    }

    /// Counts a request to end that has not reached this program.
    pub(crate) const fn have_asked(&mut self) {
        self.asked = self.asked.saturating_add(1);
    }

    /// Waits for the next one that asks to end. Dropping the future loses none.
    pub(crate) async fn end(&mut self) -> Signal {
        loop {
            match self.next().await {
                signal if is_end(signal) => return signal,
                // What it would do by itself.
                Signal::SIGTSTP => {
                    terminal::stop();
                }
                _ => {}
            }
        }
    }

    /// The output of what is left to be done, or `None` if this program is asked to end meanwhile, and for the second
    /// time at least: what has ended the command may also be sent to this program, a little later.
    pub(crate) async fn unless_asked_again<T>(&mut self, rest: impl Future<Output = T>) -> Option<T> {
        let mut rest = pin!(rest);
        loop {
            tokio::select! {
                biased;
                output = &mut rest => return Some(output),
                _ = self.end() => if self.asked > 1 { return None },
            }
        }
    }
}

/// Whether it asks to end.
pub(crate) fn is_end(signal: Signal) -> bool {
    ENDING.contains(&signal)
}

/// Children that have ended, or were stopped or continued, since the last one.
pub(crate) fn of_children() -> Result<unix::Signal, Failure> {
    unix::signal(SignalKind::child()).map_err(|error| not_received(&error))
}

/// The signals that this process ignores, as a bit mask. On systems that do not tell, none.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn not_received(error: &io::Error) -> Failure {
    Failure::new(LOST, format!("signals cannot be received: {error}"))
}
