//! `MemoryBackend`, driven by hand: nothing runs but what is polled here, and time passes when it is told to.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures::FutureExt;
use leasehold::MemoryBackend;
use leasehold::backend::{Backend, Detail, Resource};
use tokio::runtime::{Builder, Runtime};
use tokio::time::advance;

use crate::line::{Line, Waiting};
use crate::plan::Label;
use crate::reply::{Answers, Reply};
use crate::side::{Client, Failed, Store};

/// The model.
pub(crate) struct Memory {
    store: MemoryBackend,
    runtime: Runtime,
}

impl Memory {
    pub(crate) fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        Self {
            store: MemoryBackend::new(),
            runtime: runtime.expect("a runtime needs nothing that may be missing"),
        }
    }
}

impl Memory {
    /// Asks a request for its answer. Each in a turn of its own, with a task's whole budget.
    fn poll(&self, line: &mut Line, label: Label) -> Option<Reply> {
        self.runtime.block_on(poll_fn(|cx| Poll::Ready(line.poll(label, cx))))
    }

    /// Asks all in line, once.
    fn poll_all(&self, line: &mut Line) -> Answers {
        let mut answers = Answers::new();
        for label in line.labels() {
            answers.extend(self.poll(line, label).map(|answer| (label, answer)));
        }
        answers
    }
}

impl Store for Memory {
    fn connect(&mut self) -> Client {
        Arc::new(self.store.peer())
    }

    fn crash(&mut self, client: Client) {
        drop(client);
    }

    fn lose_memory(&mut self) {
        self.store.flush();
    }

    fn pass(&mut self, time: Duration) {
        self.runtime.block_on(advance(time));
    }

    /// Nothing is waited for, so the paused clock has no reason to move by itself.
    fn run<T>(&mut self, verb: impl Future<Output = T>) -> T {
        self.runtime.block_on(async { verb.now_or_never() }).expect("memory answers at once")
    }

    fn ask_again(&mut self, line: &mut Line, meant: fn(&Waiting) -> bool) -> Result<Answers, Failed> {
        let mut answers = Answers::new();
        for label in line.labels_where(meant) {
            if let Some(waiting) = line.get(label) {
                waiting.ask_again();
            }
            answers.extend(self.poll(line, label).map(|answer| (label, answer)));
        }
        Ok(answers)
    }

    fn settle(
        &mut self,
        line: &mut Line,
        touched: Option<&Resource>,
        _: &Answers,
    ) -> Result<Answers, Failed> {
        let mut answers = self.poll_all(line);
        if let Some(resource) = touched {
            // To look is to notice whose time is over. After a step of time that is left to the steps that follow.
            let store = self.store.peer();
            self.run(store.inspect(resource, Detail::Numbers))
                .map_err(|error| format!("no inspection: {error}"))?;
        }
        // Whoever is asked later may have served one who was asked before.
        loop {
            let more = self.poll_all(line);
            if more.is_empty() {
                return Ok(answers);
            }
            answers.extend(more);
        }
    }

    /// It has no keys; what it holds and who waits there is seen by inspection.
    fn leftovers(&mut self, _: &str) -> Vec<String> {
        Vec::new()
    }
}
