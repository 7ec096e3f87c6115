//! Many operations in one call.
//!
//! A client with little to do sends an operation at once. While others are in flight, further operations are queued for
//! a moment and sent together in the next call: a script that executes them one after another and answers each
//! separately. A call is added to those in flight if it is as large as they are on average, up to [`MAX_CALLS`]: while
//! the server executes one, others are in transit, and small calls, whose fixed cost few operations share, grow with
//! the next turn. So a client with thousands of tasks is limited neither by system calls nor by round trips, and one
//! with a single task loses nothing.
//!
//! * Separate tasks send queued operations, where the client lives. No operation depends on whether another caller's
//!   future is polled.
//! * Operations are sent in the order in which they were called, and one whose future is dropped while it is queued is
//!   not sent. Otherwise the release of a request that was given up could reach the server before the request.
//! * If a release grants permits to another request of this client, the grant is part of the answer, which saves a
//!   message. (A lease that another client has handed over is released in a call of its own: its id names that client,
//!   to which this answer does not go.) If the answer is lost, all waiting requests of the client are repeated as soon
//!   as the server answers again.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, Either, join_all, ready};
use scopeguard::guard;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::connection::Connection;
use super::keys;
use super::link::{CallError, Link, Reply, Value};
use super::msgpack::{FALSE, TRUE, pack_text, unpack_list};
use super::protocol::{FAILED, USE_FENCE, WITH_GRANT};
use super::script::{Arguments, BATCH, Operation, Script};
use super::transport::{Queued, Transport, is_unknown_script};
use crate::backend::{BackendError, Kind, Resource};
use crate::runtime::spawn_on;

/// The usual size of an operation, in bytes.
const USUAL_SIZE: usize = 128;

/// Operations that have been sent.
struct InFlight<'a> {
    operations: Vec<Queued>,
    connection: Arc<Connection>,
    /// The link on which they were sent, or why they were not.
    link: &'a Result<Arc<dyn Link>, CallError>,
    sent: Instant,
    answer: Reply<'a>,
}

impl Transport {
    /// Runs a script, at once or together with others. The returned future is small, because many may wait at a time.
    pub(super) fn run(
        self: &Arc<Self>,
        operation: Operation,
    ) -> impl Future<Output = Result<Value, CallError>> + Send + use<'_> {
        let code = operation.code();
        let direct = code.and_then(|_| self.go_direct(operation.resource.kind));
        match code {
            // It does not wait forever: the calls before it have a timeout, and then the queue is rejected.
            Some(code) if direct.is_none() => {
                let answered = self.enqueue(code, operation);
                Either::Left(answered.map(|answer| answer.unwrap_or_else(|_| Err(gone()))))
            }
            _ => Either::Right(Box::pin(async move {
                let _direct = direct;
                self.deliver(operation.script, || operation.arguments(self.slot())).await
            })),
        }
    }

    /// Allows the caller to send at once if few calls are in flight and nothing would be overtaken. The caller is
    /// counted until the result is dropped.
    fn go_direct(&self, kind: Kind) -> Option<impl Drop + Send> {
        let _sending = self.sending.try_lock()?;
        let mut state = self.state.lock();
        // In this order, because most calls of many tasks find others in the queue.
        if !state.queue.is_empty()
            || !state.are_worth_a_call(1, kind, state.calls())
            || !self.connection().is_connected()
        {
            return None;
        }
        state.direct += 1;
        state.in_flight += 1;
        let generation = state.generation;
        Some(guard(self, move |transport| {
            let mut state = transport.state.lock();
            if state.generation == generation {
                state.direct -= 1;
                state.in_flight -= 1;
            }
        }))
    }

    fn enqueue(
        self: &Arc<Self>,
        code: &'static str,
        operation: Operation,
    ) -> oneshot::Receiver<Result<Value, CallError>> {
        let (caller, answered) = oneshot::channel();
        let mut state = self.state.lock();
        state.queue.push_back(Queued { code, operation, caller: Some(caller) });
        let kind = state.queue[0].operation.resource.kind;
        let start = state.drains == 0 || state.are_worth_a_call(state.queue.len(), kind, state.calls());
        if start {
            state.drains += 1;
        }
        let generation = state.generation;
        drop(state);
        if start {
            let drain = Drain { transport: Arc::clone(self), generation, working: true, in_flight: 0 };
            // Nothing is called before it is known where the client lives.
            if let Some(home) = self.home.runtime() {
                spawn_on(&home, drain.run());
            }
        }
        answered
    }

    /// Sends the next call, if there is anything to send. The answer may already be available when this returns, but it
    /// is not processed here.
    fn send<'a>(
        &'a self,
        generation: u32,
        link: &'a Result<Arc<dyn Link>, CallError>,
        answered: usize,
    ) -> Option<InFlight<'a>> {
        let _sending = self.sending.lock();
        let operations = self.next(generation, answered)?;
        let (connection, sent) = (self.connection(), Instant::now());
        let answer = match link {
            Ok(link) => {
                let (script, arguments) = self.together(&operations);
                started(link.evalsha(script, arguments))
            }
            Err(error) => ready(Err(error.clone())).boxed(),
        };
        Some(InFlight { operations, connection, link, sent, answer })
    }

    /// Takes the operations of the next call out of the queue, for a drain whose last call had `answered` operations.
    /// If there are none, the drain counts as finished.
    fn next(&self, generation: u32, answered: usize) -> Option<Vec<Queued>> {
        let mut state = self.state.lock();
        if state.generation != generation {
            return None;
        }
        state.in_flight -= answered;
        let mut operations = Vec::new();
        // A drain that is no longer needed leaves the rest to the others.
        let needed = state.queue.front().is_some_and(|first| {
            let kind = first.operation.resource.kind;
            state.drains == 1 || state.are_worth_a_call(state.queue.len(), kind, state.calls() - 1)
        });
        while needed && operations.is_empty() && !state.queue.is_empty() {
            operations = state.take();
            operations.retain(|operation| !operation.is_given_up());
        }
        if operations.is_empty() {
            state.drains -= 1;
            return None;
        }
        state.in_flight += operations.len();
        Some(operations)
    }

    /// Waits for the answers and passes them to the callers. A caller may have given up in the meantime.
    async fn receive(&self, InFlight { mut operations, connection, link, sent, answer }: InFlight<'_>) {
        let mut answer = answer.await;
        if let (true, Ok(link)) = (is_unknown_script(&answer), link) {
            let Some(again) = self.send_text(&**link, &mut operations) else { return };
            answer = again.await;
        }
        match self.received(&connection, sent, answer) {
            Ok(answer) if operations.len() == 1 => answer_all(&mut operations, [Ok(answer)]),
            Ok(answers) => match read_list(answers).filter(|answers| answers.len() == operations.len()) {
                Some(answers) => {
                    answer_all(&mut operations, answers.into_iter().map(|answer| self.read(answer)))
                }
                None => {
                    self.missed_grants.store(true, Ordering::Relaxed);
                    let text = "a batch did not return a list of answers";
                    tell_all(operations, &CallError::Lost(text.to_owned()));
                }
            },
            // The whole call was refused and nothing was executed, for instance because this user may not use one of
            // the keys. So each operation is sent on its own.
            Err(error) if self.are_sent_again(operations.len(), &error) => {
                join_all(operations.into_iter().map(|operation| self.call_alone(operation).boxed())).await;
            }
            Err(error) => {
                if operations.len() > 1 && error.is_unanswered() {
                    self.missed_grants.store(true, Ordering::Relaxed);
                }
                tell_all(operations, &error);
                match error {
                    CallError::Timeout(_) => self.reject_queued("the calls before it were not answered"),
                    CallError::NotSent(why) => self.reject_queued(&why),
                    CallError::Lost(_) | CallError::Answer(_) => {}
                }
            }
        }
    }

    /// Whether to send operations again, each on its own, after this error: the server has rejected the call as a
    /// whole, and said perhaps that another node serves the slot.
    fn are_sent_again(&self, operations: usize, error: &CallError) -> bool {
        match error {
            CallError::Answer(_) if self.slot().is_some() => true,
            _ => operations > 1 && is_refusal(error),
        }
    }

    /// The call for these operations: that of a single one, or a batch.
    fn together(&self, operations: &[Queued]) -> (&'static Script, Arguments) {
        let slot = self.slot();
        if let [Queued { operation, .. }] = operations {
            return (operation.script.variant(slot.is_some()), operation.arguments(slot));
        }
        let mut packed = Vec::with_capacity(operations.len() * USUAL_SIZE);
        let (mut last, mut prefix): (Option<&str>, Option<&str>) = (None, None);
        let mut keys = Vec::new();
        for Queued { code, operation, .. } in operations {
            let resource = &operation.resource;
            if prefix.replace(resource.prefix()) != Some(resource.prefix()) {
                pack_prefix(resource.prefix(), slot, &mut packed);
            }
            // Operations of many tasks on the same key often follow each other.
            let key = Some(&*resource.key);
            let same_key = mem::replace(&mut last, key) == key;
            pack(operation, code, same_key, &mut packed);
            if slot.is_some() && !same_key {
                keys.extend(keys::of(resource, slot));
            }
        }
        (BATCH.variant(slot.is_some()), Arguments { keys, args: vec![Bytes::from(packed)] })
    }

    /// Sends the text of a script that the server does not know. Operations that were given up in the meantime are left
    /// out: their releases may have been executed by now.
    fn send_text<'a>(&self, link: &'a dyn Link, operations: &mut Vec<Queued>) -> Option<Reply<'a>> {
        let _sending = self.sending.lock();
        operations.retain(|operation| !operation.is_given_up());
        if operations.is_empty() {
            return None;
        }
        let (script, arguments) = self.together(operations);
        Some(started(link.eval(script, arguments)))
    }

    /// The answer of one operation of a batch.
    fn read(&self, answer: Value) -> Result<Value, CallError> {
        let Value::List(mut parts) = answer else { return Ok(answer) };
        let mark = parts.first().and_then(Value::as_bytes);
        let is = |known: &str| mark == Some(known.as_bytes());
        match &parts[..] {
            [_, text] if is(FAILED) => Err(CallError::answer(text.as_str().unwrap_or_default())),
            [_, _, grant] if is(WITH_GRANT) => {
                self.notifications.send_message(grant.as_str().unwrap_or_default());
                Ok(parts.swap_remove(1))
            }
            _ => Ok(Value::List(parts)),
        }
    }

    /// Sends one operation on its own, unless it was given up in the meantime, as in `send_text`.
    async fn call_alone(&self, mut queued: Queued) {
        if !queued.is_given_up() {
            let operation = &queued.operation;
            let answer = self.deliver(operation.script, || operation.arguments(self.slot())).await;
            queued.answer(answer);
        }
    }

    /// The server does not answer, or cannot be reached: rejects what is queued, so that it need not wait for its own
    /// timeout.
    fn reject_queued(&self, why: &str) {
        let queue = mem::take(&mut self.state.lock().queue);
        tell_all(queue, &CallError::NotSent(why.to_owned()));
    }

    /// The client has moved: what is queued is not sent, and what is in flight is not waited for.
    pub(super) fn restart(&self) {
        let before = {
            let mut state = self.state.lock();
            let restarted = state.restarted();
            mem::replace(&mut *state, restarted)
        };
        if before.calls() > 0 {
            self.missed_grants.store(true, Ordering::Relaxed);
        }
    }
}

/// A task that sends what is queued.
struct Drain {
    transport: Arc<Transport>,
    /// Of the state in which it is counted.
    generation: u32,
    working: bool,
    /// How many operations are in its call.
    in_flight: usize,
}

impl Drain {
    /// Makes calls until nothing is queued.
    async fn run(mut self) {
        loop {
            let link = self.transport.link().await;
            let answered = mem::take(&mut self.in_flight);
            let Some(call) = self.transport.send(self.generation, &link, answered) else { break };
            self.in_flight = call.operations.len();
            self.transport.receive(call).await;
        }
        self.working = false;
    }
}

impl Drop for Drain {
    /// If the task ended with its runtime and was the last one, nothing would send the queued operations, so they are
    /// dropped.
    fn drop(&mut self) {
        if !self.working {
            return;
        }
        self.transport.missed_grants.store(true, Ordering::Relaxed);
        let mut state = self.transport.state.lock();
        if state.generation != self.generation {
            return;
        }
        state.drains -= 1;
        state.in_flight -= self.in_flight;
        let left = if state.drains == 0 { mem::take(&mut state.queue) } else { VecDeque::new() };
        drop(state);
        drop(left);
    }
}

/// Adds an operation to a batch, in MessagePack: its code, its key (unless the operation before has the same one), the
/// number of its arguments, its arguments (`batch.lua`).
fn pack(operation: &Operation, code: &'static str, same_key: bool, packed: &mut Vec<u8>) {
    pack_text(code.as_bytes(), packed);
    let Resource { key, has_brace, .. } = &operation.resource;
    if same_key {
        packed.push(FALSE);
    } else {
        if let Some(tag) = has_brace.then(|| keys::tag_beside(key)).flatten() {
            packed.push(TRUE);
            pack_text(format!("{{{tag}}}:").as_bytes(), packed);
        }
        pack_text(key.as_bytes(), packed);
    }
    let args = operation.args();
    // A number below 128 is encoded as itself.
    packed.push(args.len() as u8);
    args.for_each(|arg| pack_text(arg, packed));
}

/// Says in a batch to which prefix the following operations belong.
fn pack_prefix(prefix: &str, slot: Option<u16>, packed: &mut Vec<u8>) {
    let mut fence = String::new();
    keys::write_fence(&mut fence, prefix, slot);
    pack_text(USE_FENCE.as_bytes(), packed);
    pack_text(fence.as_bytes(), packed);
}

/// The answers of a batch.
fn read_list(answers: Value) -> Option<Vec<Value>> {
    match answers {
        Value::Text(packed) => unpack_list(&packed),
        _ => None,
    }
}

fn answer_all(operations: &mut [Queued], answers: impl IntoIterator<Item = Result<Value, CallError>>) {
    for (operation, answer) in operations.iter_mut().zip(answers) {
        operation.answer(answer);
    }
}

fn tell_all(operations: impl IntoIterator<Item = Queued>, error: &CallError) {
    for mut operation in operations {
        operation.answer(Err(error.clone()));
    }
}

/// Polls a call once, which is when the library queues the command on its connection.
fn started<'a, T: Send + 'a>(mut call: BoxFuture<'a, T>) -> BoxFuture<'a, T> {
    match (&mut call).now_or_never() {
        Some(output) => ready(output).boxed(),
        None => call,
    }
}

/// Whether the server has rejected the call.
fn is_refusal(error: &CallError) -> bool {
    matches!(error.clone().into(), BackendError::Refused { .. } | BackendError::WrongType { .. })
}

fn gone() -> CallError {
    CallError::Lost("the runtime on which the client lives has ended".to_owned())
}
