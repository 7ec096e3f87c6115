//! Many operations, one call.
//!
//! A client with nothing to do sends at once. While [`EAGER_CALLS`] calls are under way, whatever comes in waits for a moment,
//! and goes together in the next call: a script that carries the operations out one after another, each answering for itself. So a client with
//! thousands of tasks is bound neither by system calls nor by round trips, and one with a single task loses nothing.
//!
//! * Calls with many operations are made by tasks of their own. No operation depends on whether
//!   somebody else's future is polled.
//! * Operations leave in the order in which they came in. Otherwise the release of a request that was given up could
//!   reach the server before the request.
//! * A task that gives up while its operation is queued takes it back.
//! * What a release grants to another request of this client comes with the answer, which saves a message. Should the answer
//!   get lost, whoever waits asks again as soon as the server answers.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fred::bytes::Bytes;
use fred::error::{Error as FredError, ErrorKind};
use fred::types::Value;
use futures::FutureExt;
use futures::future::{BoxFuture, Either, join_all, ready};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::operation::{Operation, pack_prefix};
use super::protocol::{FAILED, WITH_GRANT};
use super::script::{BATCH, Call};
use super::wake::Wake;
use super::wire::{Wire, is_unknown_script, sort};
use crate::backend::BackendError;
use crate::sync::Mutex;

/// Calls that are under way at once however little is queued.
const EAGER_CALLS: usize = 2;
/// Calls that are under way at once if each of the others takes [`WORTH_A_CALL`] operations or more: while the server works on
/// one, others are on their way there and back.
const MAX_CALLS: usize = 4;
const WORTH_A_CALL: usize = 16;
/// Operations in one call: the server does nothing else meanwhile, for about half a millisecond.
const MAX_OPERATIONS: usize = 128;
/// Bytes that one of them takes, more or less.
const USUAL_SIZE: usize = 128;

/// What is under way, and what waits for its turn.
#[derive(Debug)]
pub(super) struct Batches {
    wire: Arc<Wire>,
    wake: Arc<Wake>,
    /// An answer that may have told of grants got lost.
    unheard: AtomicBool,
    /// Where calls are made that nobody waits for alone.
    runtime: Handle,
    state: Mutex<State>,
    /// Held from when operations are taken out of the queue until they are on their way.
    sending: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Queued>,
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

/// An operation that waits for its turn.
#[derive(Debug)]
struct Queued {
    code: &'static str,
    operation: Operation,
    answer: oneshot::Sender<Result<Value, FredError>>,
}

/// Operations that have left.
struct UnderWay<'a> {
    operations: Vec<Queued>,
    answer: BoxFuture<'a, Result<Value, FredError>>,
}

impl Batches {
    /// Must be called within the runtime on which the connection lives.
    pub(super) fn new(wire: Arc<Wire>, wake: Arc<Wake>) -> Arc<Self> {
        Arc::new(Self {
            wire,
            wake,
            unheard: AtomicBool::new(false),
            runtime: Handle::current(),
            state: Mutex::default(),
            sending: Mutex::default(),
        })
    }

    /// Runs a script, at once or with others. What is returned is small, since many wait at a time.
    pub(super) fn run(
        self: &Arc<Self>,
        operation: Operation,
    ) -> impl Future<Output = Result<Value, FredError>> + Send + use<'_> {
        let code = operation.script.code();
        let direct = code.and_then(|_| self.go_direct());
        match code {
            // Not in vain: the calls before it have a timeout, after which the queue is turned away.
            Some(code) if direct.is_none() => {
                let answered = self.enqueue(code, operation);
                Either::Left(answered.map(|answer| answer.unwrap_or_else(|_| Err(gone()))))
            }
            _ => Either::Right(Box::pin(async move {
                let _direct = direct;
                self.run_apart(|| operation.call()).await
            })),
        }
    }

    /// Runs a script that is never part of a batch.
    pub(super) async fn run_apart(&self, call: impl Fn() -> Call) -> Result<Value, FredError> {
        let answer = self.wire.run(call).await;
        self.make_up(&answer);
        answer
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
        code: &'static str,
        operation: Operation,
    ) -> oneshot::Receiver<Result<Value, FredError>> {
        let (answer, answered) = oneshot::channel();
        let mut state = self.state.lock();
        state.queue.push_back(Queued { code, operation, answer });
        let start = state.drains == 0 || state.is_worth_another_call();
        if start {
            state.drains += 1;
        }
        drop(state);
        if start {
            let drain = Drain { batches: Arc::clone(self), working: true };
            self.runtime.spawn(drain.work_off());
        }
        answered
    }

    /// Sends what goes in the next call, if there is anything. The answer may be there before this returns, so nothing is done
    /// with it here.
    fn send(&self) -> Option<UnderWay<'_>> {
        let _sending = self.sending.lock();
        let operations = self.next()?;
        let answer = started(self.wire.evalsha(together(&operations)));
        Some(UnderWay { operations, answer })
    }

    /// What goes in the next call. If there is nothing, there is one drain less.
    fn next(&self) -> Option<Vec<Queued>> {
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

    /// Waits for the answers, and tells them to those who wait for them. If one gave up meanwhile, nobody listens.
    async fn hear(&self, UnderWay { mut operations, answer }: UnderWay<'_>) {
        let mut answer = answer.await;
        if is_unknown_script(&answer) {
            let Some(again) = self.send_text(&mut operations) else { return };
            answer = again.await;
        }
        self.make_up(&answer);
        match answer {
            Ok(answer) if operations.len() == 1 => tell(operations, [Ok(answer)]),
            Ok(Value::Array(answers)) if answers.len() == operations.len() => {
                tell(operations, answers.into_iter().map(|answer| self.read(answer)));
            }
            Ok(_) => {
                self.unheard.store(true, Ordering::Relaxed);
                tell_all(operations, &FredError::new(ErrorKind::Protocol, "a batch gave no list of answers"))
            }
            // Refused as a whole, with nothing carried out: this user may not use one of the keys, say. Each on its own, then.
            Err(error) if operations.len() > 1 && is_refusal(&error) => {
                join_all(operations.into_iter().map(|operation| self.call_alone(operation))).await;
            }
            Err(error) => {
                if operations.len() > 1 && is_unknown(&error) {
                    self.unheard.store(true, Ordering::Relaxed);
                }
                tell_all(operations, &error);
                if *error.kind() == ErrorKind::Timeout {
                    self.turn_away();
                }
            }
        }
    }

    /// Sends the text of a script that the server does not know. What was given up meanwhile is left out: its release may
    /// have been carried out by now.
    fn send_text(&self, operations: &mut Vec<Queued>) -> Option<BoxFuture<'_, Result<Value, FredError>>> {
        let _sending = self.sending.lock();
        operations.retain(|operation| !operation.answer.is_closed());
        if operations.is_empty() {
            return None;
        }
        Some(started(self.wire.eval(together(operations))))
    }

    /// The answer of one operation of a batch.
    fn read(&self, answer: Value) -> Result<Value, FredError> {
        let Value::Array(mut parts) = answer else { return Ok(answer) };
        let mark = parts.first().and_then(Value::as_bytes);
        let is = |known: &str| mark == Some(known.as_bytes());
        match &parts[..] {
            [_, text] if is(FAILED) => {
                Err(FredError::new(ErrorKind::Unknown, text.as_string().unwrap_or_default()))
            }
            [_, _, grant] if is(WITH_GRANT) => {
                self.wake.tell(&grant.as_bytes_str().unwrap_or_default());
                Ok(parts.swap_remove(1))
            }
            _ => Ok(Value::Array(parts)),
        }
    }

    /// If grants were not heard of and the server answers again, now is the time to ask.
    fn make_up(&self, answer: &Result<Value, FredError>) {
        if answer.is_ok()
            && self.unheard.load(Ordering::Relaxed)
            && self.unheard.swap(false, Ordering::Relaxed)
        {
            self.wake.lapse();
        }
    }

    /// What was given up meanwhile is left out, as in `send_text`.
    async fn call_alone(&self, Queued { operation, answer, .. }: Queued) {
        if answer.is_closed() {
            return;
        }
        let _ = answer.send(self.wire.run(|| operation.call()).await);
    }

    /// The server does not answer: what is queued need not wait for its own call to find that out.
    fn turn_away(&self) {
        let queue = mem::take(&mut self.state.lock().queue);
        tell_all(
            queue,
            &FredError::new(ErrorKind::Backpressure, "not sent: the calls before it were not answered"),
        );
    }
}

/// A task that works the queue off.
struct Drain {
    batches: Arc<Batches>,
    working: bool,
}

impl Drain {
    /// Makes calls until nothing is queued.
    async fn work_off(mut self) {
        while let Some(call) = self.batches.send() {
            self.batches.hear(call).await;
        }
        self.working = false;
    }
}

impl Drop for Drain {
    /// Stopped in the middle, with its runtime: if it was the last one, nobody else comes for what is queued.
    fn drop(&mut self) {
        if !self.working {
            return;
        }
        self.batches.unheard.store(true, Ordering::Relaxed);
        let mut state = self.batches.state.lock();
        state.drains -= 1;
        let left = if state.drains == 0 { mem::take(&mut state.queue) } else { VecDeque::new() };
        drop(state);
        drop(left);
    }
}

/// Counts a caller that sends its own operation.
struct Direct<'a>(&'a Batches);

impl Drop for Direct<'_> {
    fn drop(&mut self) {
        self.0.state.lock().direct -= 1;
    }
}

/// One operation as it is, or several as a batch.
fn together(operations: &[Queued]) -> Call {
    if let [only] = operations {
        return only.operation.call();
    }
    let mut packed = Vec::with_capacity(operations.len() * USUAL_SIZE);
    let (mut last, mut prefix): (Option<&str>, Option<&str>) = (None, None);
    for Queued { code, operation, .. } in operations {
        let resource = &operation.resource;
        if prefix.replace(resource.prefix()) != Some(resource.prefix()) {
            pack_prefix(resource.prefix(), &mut packed);
        }
        // Many tasks that want the same come here one after another.
        let key = Some(&*resource.key);
        operation.pack(code, mem::replace(&mut last, key) == key, &mut packed);
    }
    Call { script: &BATCH, keys: Vec::new(), args: vec![Value::Bytes(Bytes::from(packed))] }
}

fn tell(operations: Vec<Queued>, answers: impl IntoIterator<Item = Result<Value, FredError>>) {
    for (operation, answer) in operations.into_iter().zip(answers) {
        let _ = operation.answer.send(answer);
    }
}

fn tell_all(operations: impl IntoIterator<Item = Queued>, error: &FredError) {
    for operation in operations {
        let _ = operation.answer.send(Err(error.clone()));
    }
}

/// Polls a call once: that is when fred passes a command on.
fn started<'a, T: Send + 'a>(mut call: BoxFuture<'a, T>) -> BoxFuture<'a, T> {
    match (&mut call).now_or_never() {
        Some(output) => ready(output).boxed(),
        None => call,
    }
}

/// Whether the server itself has said no.
fn is_refusal(error: &FredError) -> bool {
    matches!(sort(error.clone()), BackendError::Refused { .. } | BackendError::WrongType { .. })
}

/// Whether the call may have been carried out.
fn is_unknown(error: &FredError) -> bool {
    matches!(sort(error.clone()), BackendError::Unanswered { .. })
}

fn gone() -> FredError {
    FredError::new(ErrorKind::Canceled, "the runtime on which the client lives has ended")
}
