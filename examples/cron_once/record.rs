//! The record: the next tick to run, kept where the job's results go.
//!
//! In a database it is one row, and [`finish`](Access::finish) one statement beside those that write the result, in
//! one transaction; it must change a row, or all is rolled back:
//!
//! ```sql
//! UPDATE timetable SET next = next + 1, token = :token WHERE next = :tick AND token <= :token
//! ```
//!
//! Here it is a service of the process that you start, and a witness as well: it records every beginning and every end
//! that is reported to it, whether or not it accepts them.

use std::collections::BTreeMap;
use std::fmt;
use std::future;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use indicatif::ProgressBar;
use leasehold::{Fence, FencingToken};
use tokio::sync::watch;

use crate::failure::Failure;
use crate::fenced::{admitted, refused};
use crate::loopback::{Answer, Connection};
use crate::scheduler::due;

/// What is asked of the record, and under which token: `<verb> <scheduler> <token> <tick>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    verb: Verb,
    by: u32,
    token: FencingToken,
    tick: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    /// Which tick is next?
    Next,
    /// The job of this tick is about to begin.
    Begin,
    /// It has run to its end: take its result.
    Finish,
}

const OK: &str = "ok";

/// A scheduler's way to the record, under one token.
#[derive(Debug)]
pub(crate) struct Access {
    connection: Connection,
    token: FencingToken,
    by: u32,
}

impl Access {
    pub(crate) async fn open(record: SocketAddr, token: FencingToken, by: u32) -> Result<Self, Failure> {
        Ok(Self { connection: Connection::open(record).await?, token, by })
    }

    pub(crate) async fn next(&mut self) -> Result<u64, Failure> {
        let answer = self.ask(Verb::Next, 0).await?;
        answer.parse().map_err(|_| Failure::Protocol(answer))
    }

    pub(crate) async fn begin(&mut self, tick: u64) -> Result<(), Failure> {
        self.report(Verb::Begin, tick).await
    }

    pub(crate) async fn finish(&mut self, tick: u64) -> Result<(), Failure> {
        self.report(Verb::Finish, tick).await
    }

    async fn report(&mut self, verb: Verb, tick: u64) -> Result<(), Failure> {
        let answer = self.ask(verb, tick).await?;
        if answer == OK { Ok(()) } else { Err(Failure::Protocol(answer)) }
    }

    /// The token goes along with every request, the reading ones too.
    async fn ask(&mut self, verb: Verb, tick: u64) -> Result<String, Failure> {
        let request = Request { verb, by: self.by, token: self.token, tick };
        admitted(self.connection.ask(&request.to_string()).await?, self.token)
    }
}

/// The record itself.
#[derive(Debug)]
pub(crate) struct Record {
    first: u64,
    period: u32,
    state: Mutex<State>,
    /// The first scheduler to begin this tick is killed.
    fatal: u64,
    doomed: watch::Sender<Option<u32>>,
    bar: ProgressBar,
}

/// Check and change are one step because both happen under the mutex around this.
#[derive(Debug)]
struct State {
    fence: Fence,
    next: u64,
    /// What was reported, by number of the tick, counted from 0.
    ticks: BTreeMap<u64, Tick>,
}

/// What was reported about one tick.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tick {
    pub(crate) begun: Vec<Attempt>,
    /// Who reported that the job had run to its end.
    pub(crate) run_by: Vec<u32>,
}

#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) by: u32,
    pub(crate) token: FencingToken,
    /// How long after the tick was due, in milliseconds, by the clock of the record.
    pub(crate) late: i64,
}

impl Record {
    pub(crate) fn new(first: u64, fatal: u64, period: u32, bar: ProgressBar) -> Self {
        let state = State { fence: Fence::new(), next: first, ticks: BTreeMap::new() };
        Self { first, period, state: Mutex::new(state), fatal, doomed: watch::Sender::default(), bar }
    }

    /// Whom to kill, once that is known.
    pub(crate) fn doomed(&self) -> watch::Receiver<Option<u32>> {
        self.doomed.subscribe()
    }

    /// What was reported, by number of the tick, counted from 0.
    pub(crate) fn ticks(&self) -> BTreeMap<u64, Tick> {
        self.state().ticks.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what is reported, admitted or not. Returns whether it is the fatal beginning.
    fn witness(&self, request: Request) -> bool {
        let Request { verb, by, token, tick } = request;
        let mut state = self.state();
        match verb {
            Verb::Next => false,
            Verb::Begin => {
                let late = unix_millis() - due(tick, self.period);
                let begun = &mut state.tick(tick.wrapping_sub(self.first)).begun;
                begun.push(Attempt { by, token, late });
                tick == self.fatal && begun.len() == 1
            }
            Verb::Finish => {
                state.tick(tick.wrapping_sub(self.first)).run_by.push(by);
                false
            }
        }
    }

    fn decide(&self, request: Request) -> String {
        let mut state = self.state();
        if let Err(stale) = state.fence.admit(request.token) {
            return refused(stale);
        }
        match request.verb {
            Verb::Next => state.next.to_string(),
            _ if request.tick != state.next => format!("next is {}", state.next),
            Verb::Begin => OK.to_owned(),
            Verb::Finish => {
                state.next += 1;
                self.bar.inc(1);
                OK.to_owned()
            }
        }
    }
}

impl Answer for Record {
    async fn answer(&self, request: &str) -> String {
        let Some(request) = Request::read(request) else { return format!("what is {request}?") };
        if self.witness(request) {
            self.doomed.send_replace(Some(request.by));
            future::pending::<()>().await; // a dead scheduler needs no answer
        }
        self.decide(request)
    }
}

impl State {
    fn tick(&mut self, number: u64) -> &mut Tick {
        self.ticks.entry(number).or_default()
    }
}

impl Request {
    fn read(line: &str) -> Option<Self> {
        let [verb, by, token, tick] = line.split(' ').collect::<Vec<_>>().try_into().ok()?;
        let verb = match verb {
            "next" => Verb::Next,
            "begin" => Verb::Begin,
            "finish" => Verb::Finish,
            _ => return None,
        };
        let token = FencingToken::new(token.parse().ok()?);
        Some(Self { verb, by: by.parse().ok()?, token, tick: tick.parse().ok()? })
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verb, by, token, tick } = self;
        let verb = match verb {
            Verb::Next => "next",
            Verb::Begin => "begin",
            Verb::Finish => "finish",
        };
        write!(f, "{verb} {by} {token} {tick}")
    }
}

/// The time of this machine's clock, in milliseconds since the beginning of 1970.
pub(crate) fn unix_millis() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(verb: Verb, token: u64, tick: u64) -> Request {
        Request { verb, by: 1, token: FencingToken::new(token), tick }
    }

    #[test]
    fn a_request_survives_being_written_and_read() {
        for verb in [Verb::Next, Verb::Begin, Verb::Finish] {
            let request = request(verb, 33, 7);
            assert_eq!(Request::read(&request.to_string()), Some(request));
        }
        assert_eq!(Request::read("finish 1 33"), None);
        assert_eq!(Request::read("stop 1 33 7"), None);
    }

    #[test]
    fn a_tick_is_taken_once_and_from_the_newest_leader_only() {
        let record = Record::new(5, 99, 10, ProgressBar::hidden());
        assert_eq!(record.decide(request(Verb::Next, 34, 0)), "5");
        assert_eq!(record.decide(request(Verb::Finish, 33, 5)), "stale 34");
        assert_eq!(record.decide(request(Verb::Finish, 34, 5)), OK);
        assert_eq!(record.decide(request(Verb::Finish, 34, 5)), "next is 6");
        assert_eq!(record.decide(request(Verb::Begin, 35, 7)), "next is 6");
    }

    #[test]
    fn what_is_refused_is_witnessed_all_the_same() {
        let record = Record::new(5, 6, 10, ProgressBar::hidden());
        assert!(!record.witness(request(Verb::Finish, 33, 5)));
        assert!(!record.witness(request(Verb::Finish, 34, 5)));
        assert_eq!(record.ticks()[&0].run_by, [1, 1]);
        assert!(record.witness(request(Verb::Begin, 34, 6)), "the first beginning of the fatal tick");
        assert!(!record.witness(request(Verb::Begin, 35, 6)), "the second one");
    }
}
