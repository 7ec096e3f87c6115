//! The operations that wait for a call, and when there is one for them.

use std::collections::VecDeque;
use std::mem;

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
/// How many operations one call may take: the server does nothing else while it executes them, for about half a
/// millisecond.
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
    /// How often this was begun anew. What was in flight before is not counted any more.
    pub(super) generation: u32,
}

impl State {
    /// Begins anew, without what is queued and in flight.
    pub(super) fn restarted(&self) -> Self {
        Self { generation: self.generation + 1, ..Self::default() }
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
