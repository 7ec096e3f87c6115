//! The operations that wait for a call, and when there is one for them.
//!
//! Each runtime on which calls are made has a queue and tasks of its own: one that is no longer driven holds up no other.

use std::collections::VecDeque;
use std::mem;

use tokio::runtime::Id;
use tokio::sync::oneshot;

use super::link::CallError;
use super::operation::Operation;
use super::value::Value;
use crate::backend::Kind;

/// How many calls may be in flight.
const MAX_CALLS: usize = 4;
/// How many operations on permits justify a call of their own. The fewer calls, the better: each reads and writes the
/// state of a semaphore once.
const PERMITS_WORTH_A_CALL: usize = 8;
/// How many operations one call may take: the server does nothing else while it executes them, for about half a millisecond.
const MAX_OPERATIONS: usize = 128;

/// The calls in flight, and the queue of operations.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) queue: VecDeque<Queued>,
    /// How many callers send their own operation at the moment.
    pub(super) direct: usize,
    /// How many tasks send what is queued. There is at least one whenever something is queued.
    pub(super) drains: usize,
    /// How many operations are in flight.
    pub(super) in_flight: usize,
}

/// The states of all runtimes on which calls are made.
pub(super) type States = Vec<(Option<Id>, State)>;

/// The state of a runtime.
#[inline]
pub(super) fn state_of(states: &mut States, runtime: Option<Id>) -> &mut State {
    // Nearly always there is no other.
    let is_first = states.first().is_some_and(|(of, _)| *of == runtime);
    let position = if is_first { 0 } else { find_or_add(states, runtime) };
    &mut states[position].1
}

/// Where the state of a runtime is. Those of others that have nothing to do are forgotten when one is added.
fn find_or_add(states: &mut States, runtime: Option<Id>) -> usize {
    states.iter().position(|(of, _)| *of == runtime).unwrap_or_else(|| {
        states.retain(|(_, state)| !state.is_idle());
        states.push((runtime, State::default()));
        states.len() - 1
    })
}

impl State {
    fn is_idle(&self) -> bool {
        self.calls() == 0 && self.queue.is_empty()
    }

    pub(super) fn calls(&self) -> usize {
        self.direct + self.drains
    }

    /// Takes the operations of a call out of the queue.
    pub(super) fn take(&mut self) -> Vec<Queued> {
        let queued = self.queue.len();
        if queued > MAX_OPERATIONS {
            return self.queue.drain(..MAX_OPERATIONS).collect();
        }
        // All of them, without copying them one by one.
        Vec::from(mem::replace(&mut self.queue, VecDeque::with_capacity(queued)))
    }

    /// Whether to send this many operations, the first of them of this kind, in a separate call while this many other
    /// calls are in flight.
    pub(super) fn are_worth_a_call(&self, operations: usize, kind: Kind, others: usize) -> bool {
        let is_large = if kind.is_semaphore() {
            operations >= PERMITS_WORTH_A_CALL
        } else {
            operations * others >= self.in_flight
        };
        others == 0 || (others < MAX_CALLS && is_large)
    }
}

/// An operation in the queue.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) code: &'static str,
    pub(super) operation: Operation,
    /// The channel to its caller. It can be taken without moving the operation.
    pub(super) caller: Option<oneshot::Sender<Result<Value, CallError>>>,
}

impl Queued {
    pub(super) fn is_given_up(&self) -> bool {
        self.caller.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    pub(super) fn answer(&mut self, answer: Result<Value, CallError>) {
        if let Some(caller) = self.caller.take() {
            let _ = caller.send(answer);
        }
    }
}
