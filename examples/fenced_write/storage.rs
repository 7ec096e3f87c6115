//! The storage: keeps one record, refuses tokens older than the newest it has seen, and remembers what it saw.
//!
//! It sees the token of each *read* too: if only writes were checked, a late write could still slip in between the
//! read and the write of the next holder, and vanish.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use leasehold::{Fence, FencingToken};
use tokio::sync::watch;

use crate::failure::Failure;
use crate::fenced::{admitted, refused};
use crate::loopback::{Answer, Connection};

/// Who has added themselves.
pub(crate) type Record = BTreeSet<u32>;

const OK: &str = "accepted";

/// A writer's way to the storage, under one token.
#[derive(Debug)]
pub(crate) struct Access {
    connection: Connection,
    token: FencingToken,
    writer: u32,
}

impl Access {
    pub(crate) async fn open(storage: SocketAddr, token: FencingToken, writer: u32) -> Result<Self, Failure> {
        Ok(Self { connection: Connection::open(storage).await?, token, writer })
    }

    pub(crate) async fn read(&mut self) -> Result<Record, Failure> {
        let answer = self.ask("read", "").await?;
        parse(&answer).ok_or(Failure::Protocol(answer))
    }

    pub(crate) async fn write(&mut self, record: &Record) -> Result<(), Failure> {
        let answer = self.ask("write", &display(record)).await?;
        if answer == OK { Ok(()) } else { Err(Failure::Protocol(answer)) }
    }

    /// Reports how this writer was notified that its lease was lost.
    pub(crate) async fn told(&mut self, how: &str) -> Result<(), Failure> {
        self.ask("told", how).await.map(drop)
    }

    async fn ask(&mut self, verb: &str, rest: &str) -> Result<String, Failure> {
        let Self { connection, token, writer } = self;
        admitted(connection.ask(&format!("{verb} {token} {writer} {rest}")).await?, *token)
    }
}

/// How far the story has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scene {
    Beginning,
    /// The first writer is sure of its lease and about to write.
    Sure,
    /// It may continue.
    GoingOn,
    /// Its write has arrived.
    Late,
}

/// The storage itself.
#[derive(Debug)]
pub(crate) struct Storage {
    started: Instant,
    state: Mutex<State>,
    scene: watch::Sender<Scene>,
}

/// Check and write are one step because both happen under the mutex around this.
#[derive(Debug)]
struct State {
    record: Record,
    fence: Option<Fence>,
    /// The token of the writer that was held up.
    held_up: Option<FencingToken>,
    events: Vec<Event>,
}

/// Something that the storage saw.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) at: Duration,
    pub(crate) token: FencingToken,
    pub(crate) writer: u32,
    pub(crate) what: What,
}

#[derive(Clone, Debug)]
pub(crate) enum What {
    Read,
    /// About to write.
    Sure,
    /// What was written, and whether it was accepted.
    Write(Record, bool),
    /// How the writer learned of its loss.
    Told(String),
}

impl Storage {
    pub(crate) fn new(fenced: bool) -> Self {
        let fence = fenced.then(Fence::new);
        let state = State { record: Record::new(), fence, held_up: None, events: Vec::new() };
        let scene = watch::Sender::new(Scene::Beginning);
        Self { started: Instant::now(), state: Mutex::new(state), scene }
    }

    /// What was seen, and what is in the record.
    pub(crate) fn contents(&self) -> (Vec<Event>, Record) {
        let state = self.state();
        (state.events.clone(), state.record.clone())
    }

    /// The token under which a write came too late, and whether it was accepted.
    pub(crate) fn late_write(&self) -> Option<(FencingToken, bool)> {
        let state = self.state();
        let held_up = state.held_up?;
        state.events.iter().find_map(|event| match event.what {
            What::Write(_, accepted) if event.token == held_up => Some((held_up, accepted)),
            _ => None,
        })
    }

    /// Waits until the story has come to a scene.
    pub(crate) async fn reached(&self, scene: Scene) {
        let mut scenes = self.scene.subscribe();
        // Fails only without a sender, and that is part of this.
        let _ = scenes.wait_for(|reached| *reached >= scene).await;
    }

    /// The story comes to a scene, if it is the next one.
    pub(crate) fn go_on(&self, scene: Scene) {
        self.scene.send_if_modified(|reached| {
            let next = *reached < scene;
            *reached = scene.max(*reached);
            next
        });
    }

    fn read(&self, token: FencingToken, writer: u32) -> String {
        let mut state = self.state();
        if let Some(refusal) = state.refusal(token) {
            return refusal;
        }
        state.events.push(self.event(token, writer, What::Read));
        display(&state.record)
    }

    fn write(&self, token: FencingToken, writer: u32, record: Record) -> String {
        let mut state = self.state();
        let refusal = state.refusal(token);
        let accepted = refusal.is_none();
        state.events.push(self.event(token, writer, What::Write(record.clone(), accepted)));
        if state.held_up == Some(token) {
            self.go_on(Scene::Late);
        }
        if accepted {
            state.record = record;
        }
        refusal.unwrap_or_else(|| OK.to_owned())
    }

    /// The first writer that is sure of its lease is held up, the others are not.
    async fn sure(&self, token: FencingToken, writer: u32) -> String {
        let first = {
            let mut state = self.state();
            state.events.push(self.event(token, writer, What::Sure));
            *state.held_up.get_or_insert(token) == token
        };
        if first {
            self.go_on(Scene::Sure);
            self.reached(Scene::GoingOn).await;
        }
        OK.to_owned()
    }

    /// The writer that was held up may not start over before its late write has arrived.
    async fn told(&self, token: FencingToken, writer: u32, how: &str) -> String {
        let held_up = self.state().held_up == Some(token);
        if held_up {
            self.reached(Scene::Late).await;
        }
        self.state().events.push(self.event(token, writer, What::Told(how.to_owned())));
        OK.to_owned()
    }

    fn event(&self, token: FencingToken, writer: u32, what: What) -> Event {
        Event { at: self.started.elapsed(), token, writer, what }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn refusal(&self, token: FencingToken) -> Option<String> {
        self.fence.as_ref()?.admit(token).err().map(refused)
    }
}

impl Answer for Storage {
    async fn answer(&self, request: &str) -> String {
        let mut words = request.splitn(4, ' ');
        let mut word = || words.next().unwrap_or_default();
        let (verb, token, writer, rest) = (word(), word().parse(), word().parse(), word());
        match (verb, token.map(FencingToken::new), writer, parse(rest)) {
            ("read", Ok(token), Ok(writer), _) => self.read(token, writer),
            ("write", Ok(token), Ok(writer), Some(record)) => self.write(token, writer, record),
            ("sure", Ok(token), Ok(writer), _) => self.sure(token, writer).await,
            ("told", Ok(token), Ok(writer), _) => self.told(token, writer, rest).await,
            _ => format!("what is {request}?"),
        }
    }
}

/// `1+2`; empty for an empty record.
pub(crate) fn display(record: &Record) -> String {
    record.iter().map(u32::to_string).collect::<Vec<_>>().join("+")
}

/// Reads what [`display`] wrote.
fn parse(text: &str) -> Option<Record> {
    text.split('+').filter(|number| !number.is_empty()).map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: FencingToken = FencingToken::new(33);
    const NEW: FencingToken = FencingToken::new(34);

    #[test]
    fn a_record_survives_being_written_and_read() {
        for record in [Record::new(), Record::from([1]), Record::from([1, 2])] {
            assert_eq!(parse(&display(&record)), Some(record));
        }
        assert_eq!(parse("1+x"), None);
    }

    #[test]
    fn a_read_under_a_newer_token_is_enough_to_refuse_an_older_write() {
        let storage = Storage::new(true);
        assert_eq!(storage.read(OLD, 1), "");
        assert_eq!(storage.read(NEW, 2), "");
        assert_eq!(storage.write(OLD, 1, Record::from([1])), "stale 34");
        assert_eq!(storage.write(NEW, 2, Record::from([2])), OK);
        assert_eq!(storage.contents().1, Record::from([2]));
    }

    #[test]
    fn without_a_fence_whoever_writes_last_wins() {
        let storage = Storage::new(false);
        assert_eq!(storage.write(NEW, 2, Record::from([2])), OK);
        assert_eq!(storage.write(OLD, 1, Record::from([1])), OK);
        assert_eq!(storage.contents().1, Record::from([1]));
    }
}
