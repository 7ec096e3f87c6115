//! Many operations, one call.
//!
//! A client with nothing to do sends at once. While [`MAX_CALLS`] calls are under way, whatever comes in waits for a moment,
//! and goes together in the next call: a script that carries the operations out one after another, each answering for itself. So a client with
//! thousands of tasks is bound neither by system calls nor by round trips, and one with a single task loses nothing.
//!
//! * Calls with many operations are made by tasks of their own. No operation depends on whether
//!   somebody else's future is polled.
//! * Operations leave in the order in which they came in. Otherwise the release of a request that was given up could
//!   reach the server before the request.
//! * A task that gives up while its operation is queued takes it back.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use fred::error::{Error as FredError, ErrorKind};
use fred::types::{Key, Value};
use futures::FutureExt;
use futures::future::{BoxFuture, maybe_done};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::script::{BATCH, Script};
use super::transport::Wire;
use crate::sync::Mutex;

/// Calls under way at once: while the server works on one, others are on their way there and back.
/// So many are made however little is queued; more only for [`WORTH_A_CALL`] operations.
const EAGER_CALLS: usize = 2;
const MAX_CALLS: usize = 4;
const WORTH_A_CALL: usize = 32;
/// Operations in one call: the server does nothing else meanwhile, for about half a millisecond.
const MAX_OPERATIONS: usize = 128;

/// What is under way, and what waits for its turn.
#[derive(Debug)]
pub(super) struct Batches {
    wire: Arc<Wire>,
    /// Where calls are made that nobody waits for alone.
    runtime: Handle,
    state: Mutex<State>,
    /// Held from when operations are taken out of the queue until they are on their way.
    sending: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Operation>,
    /// Callers that send their own operation.
    direct: usize,
    /// Tasks that work the queue off. There is one whenever something is queued.
    drains: usize,
}

impl State {
    fn calls(&self) -> usize {
        self.direct + self.drains
    }

    fn is_worth_another_call(&self) -> bool {
        self.calls() < EAGER_CALLS || (self.calls() < MAX_CALLS && self.queue.len() >= WORTH_A_CALL)
    }
}

/// A script call that waits for its turn.
#[derive(Debug)]
struct Operation {
    script: &'static Script,
    letter: char,
    keys: Vec<Key>,
    args: Vec<Value>,
    answer: oneshot::Sender<Result<Value, FredError>>,
}

impl Batches {
    /// Must be called within the runtime on which the connection lives.
    pub(super) fn new(wire: Arc<Wire>) -> Arc<Self> {
        Arc::new(Self {
            wire,
            runtime: Handle::current(),
            state: Mutex::default(),
            sending: Mutex::default(),
        })
    }

    /// Runs a script, at once or with others.
    pub(super) async fn run(
        self: &Arc<Self>,
        script: &'static Script,
        keys: Vec<Key>,
        args: Vec<Value>,
    ) -> Result<Value, FredError> {
        let _direct = match script.letter() {
            None => None,
            Some(letter) => match self.go_direct() {
                // Not in vain: the call with which it goes has a timeout, and if that is over, so is the wait in the queue.
                None => {
                    return self.enqueue(script, letter, keys, args).await.unwrap_or_else(|_| Err(gone()));
                }
                direct => direct,
            },
        };
        self.wire.run(script, keys, args).await
    }

    /// Allows to send at once, if little is under way and nothing could be overtaken.
    fn go_direct(&self) -> Option<Direct<'_>> {
        let _sending = self.sending.try_lock()?;
        let mut state = self.state.lock();
        if state.calls() >= EAGER_CALLS || !state.queue.is_empty() {
            return None;
        }
        state.direct += 1;
        Some(Direct(self))
    }

    fn enqueue(
        self: &Arc<Self>,
        script: &'static Script,
        letter: char,
        keys: Vec<Key>,
        args: Vec<Value>,
    ) -> oneshot::Receiver<Result<Value, FredError>> {
        let (answer, answered) = oneshot::channel();
        let mut state = self.state.lock();
        state.queue.push_back(Operation { script, letter, keys, args, answer });
        let start = state.drains == 0 || state.is_worth_another_call();
        if start {
            state.drains += 1;
        }
        drop(state);
        if start {
            let batches = Arc::clone(self);
            self.runtime.spawn(async move { batches.work_off().await });
        }
        answered
    }

    /// Makes calls until nothing is queued.
    async fn work_off(&self) {
        while let Some(call) = self.send() {
            call.await;
        }
    }

    /// Sends what goes in the next call, if there is anything. The call is to be awaited.
    fn send(&self) -> Option<BoxFuture<'_, ()>> {
        let _sending = self.sending.lock();
        let operations = self.next()?;
        let mut call = maybe_done(self.call(operations)).boxed();
        // fred passes a command on when its future is polled for the first time.
        let _ = (&mut call).now_or_never();
        Some(call)
    }

    /// What goes in the next call. If there is nothing, there is one drain less.
    fn next(&self) -> Option<Vec<Operation>> {
        let mut state = self.state.lock();
        let mut operations = Vec::new();
        // One that is not needed any more leaves what there is to the others.
        let needed = state.drains == 1 || state.calls() <= EAGER_CALLS || state.queue.len() >= WORTH_A_CALL;
        while needed && operations.len() < MAX_OPERATIONS {
            match state.queue.pop_front() {
                Some(operation) if operation.answer.is_closed() => {}
                Some(operation) => operations.push(operation),
                None => break,
            }
        }
        if operations.is_empty() {
            state.drains -= 1;
            return None;
        }
        Some(operations)
    }

    /// Carries operations out, and tells the answers to those who wait for them. If one gave up meanwhile, nobody listens.
    async fn call(&self, mut operations: Vec<Operation>) {
        if operations.len() == 1 {
            for Operation { script, keys, args, answer, .. } in operations {
                let answered = self.wire.run(script, keys, args).await;
                if let Err(error) = &answered {
                    self.fail_queued_after(error);
                }
                let _ = answer.send(answered);
            }
            return;
        }
        let (mut keys, mut args) = (Vec::new(), Vec::new());
        for operation in &mut operations {
            args.push(Value::from(header(operation)));
            keys.append(&mut operation.keys);
            args.append(&mut operation.args);
        }
        let waiting = operations.into_iter().map(|operation| operation.answer);
        match self.wire.run(&BATCH, keys, args).await {
            Ok(Value::Array(answers)) if answers.len() == waiting.len() => {
                for (waiting, answer) in waiting.zip(answers) {
                    let _ = waiting.send(read(answer));
                }
            }
            failed => {
                let error = failed.err().unwrap_or_else(|| {
                    FredError::new(ErrorKind::Protocol, "a batch gave an answer of no known form")
                });
                for waiting in waiting {
                    let _ = waiting.send(Err(error.clone()));
                }
                self.fail_queued_after(&error);
            }
        }
    }

    /// A call was not answered in time: what was queued meanwhile is as late, and each decides for itself what to do.
    fn fail_queued_after(&self, error: &FredError) {
        if *error.kind() != ErrorKind::Timeout {
            return;
        }
        let late = mem::take(&mut self.state.lock().queue);
        for operation in late {
            let _ = operation.answer.send(Err(error.clone()));
        }
    }
}

/// Counts a caller that sends its own operation.
struct Direct<'a>(&'a Batches);

impl Drop for Direct<'_> {
    fn drop(&mut self) {
        self.0.state.lock().direct -= 1;
    }
}

/// Letter, number of keys, number of arguments.
fn header(operation: &Operation) -> String {
    let digit = |n: usize| char::from_digit(u32::try_from(n).unwrap_or(u32::MAX), 10).unwrap_or('0');
    [operation.letter, digit(operation.keys.len()), digit(operation.args.len())].iter().collect()
}

/// The answer of one operation of a batch.
fn read(answer: Value) -> Result<Value, FredError> {
    match &answer {
        Value::Array(parts) => match &parts[..] {
            [mark, text] if mark.as_bytes() == Some(b"!") => {
                Err(FredError::new(ErrorKind::Unknown, text.as_string().unwrap_or_default()))
            }
            _ => Ok(answer),
        },
        _ => Ok(answer),
    }
}

fn gone() -> FredError {
    FredError::new(ErrorKind::Canceled, "the runtime on which the client lives has ended")
}
