//! One operation on all nodes at once.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::backend::BackendError;

/// The call of one node.
pub(super) type Call<T> = BoxFuture<'static, (usize, Result<T, BackendError>)>;

/// The calls to several nodes in progress, and their deadline. Dropped calls are given up.
pub(super) struct Round<T> {
    calls: FuturesUnordered<Call<T>>,
    /// The nodes that have not answered, as bits.
    open: u32,
    time_limit: Duration,
    ends: Instant,
    alarm: Option<Pin<Box<Sleep>>>,
}

impl<T> Round<T> {
    pub(super) fn new(sent: Instant, time_limit: Duration) -> Self {
        let (calls, ends) = (FuturesUnordered::new(), sent + time_limit);
        Self { calls, open: 0, time_limit, ends, alarm: None }
    }

    pub(super) fn push(&mut self, node: usize, call: Call<T>) {
        self.open |= 1 << node;
        self.calls.push(call);
    }

    /// Whether all nodes have answered, or were too late.
    pub(super) const fn is_over(&self) -> bool {
        self.open == 0
    }

    /// The nodes that have not answered, as bits.
    pub(super) const fn open(&self) -> u32 {
        self.open
    }

    /// Gives up all calls that have not been answered, with an error for each.
    pub(super) fn give_up(&mut self) -> impl Iterator<Item = (usize, Result<T, BackendError>)> + use<T> {
        self.calls.clear();
        let open = std::mem::take(&mut self.open);
        let nodes = (0..u32::BITS as usize).filter(move |n| open & (1 << n) != 0);
        nodes.map(|n| (n, Err(BackendError::Unanswered { source: "the call was abandoned".into() })))
    }

    /// The next answer, or that a node did not answer in time. `None` if there are no more.
    pub(super) async fn next(&mut self) -> Option<(usize, Result<T, BackendError>)> {
        if self.open != 0 && !self.calls.is_empty() {
            let answer = poll_fn(|context| match self.calls.poll_next_unpin(context) {
                Poll::Ready(answer) => Poll::Ready(answer),
                Poll::Pending => {
                    let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep_until(self.ends)));
                    alarm.as_mut().poll(context).map(|()| None)
                }
            });
            if let Some((node, answer)) = answer.await {
                self.open &= !(1 << node);
                return Some((node, answer));
            }
            // Whatever has not been sent yet is no longer sent.
            self.calls.clear();
        }
        if self.open == 0 {
            return None;
        }
        let node = self.open.trailing_zeros() as usize;
        self.open &= self.open - 1;
        let source = format!("no answer within {:?}", self.time_limit).into();
        Some((node, Err(BackendError::Unanswered { source })))
    }
}
