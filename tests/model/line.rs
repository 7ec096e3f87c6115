//! The requests of one side that are on their way.

use std::mem::replace;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
use leasehold::backend::{AcquireRequest, Acquired, BackendError};

use crate::plan::Label;
use crate::reply::Reply;
use crate::side::Client;

type Asking = BoxFuture<'static, Result<Acquired, BackendError>>;

/// The requests on their way, in order of arrival.
#[derive(Default)]
pub(crate) struct Line(pub(crate) Vec<Waiting>);

/// A request on its way.
pub(crate) struct Waiting {
    pub(crate) label: Label,
    pub(crate) client: Client,
    pub(crate) request: Arc<AcquireRequest>,
    future: Asking,
    /// The same request sent before: it is given up when this one is on its way.
    before: Option<Asking>,
    /// Whether it has been seen in line, since it last asked.
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "memory knows without looking"))]
    pub(crate) stood: bool,
}

impl Line {
    /// Its future is dropped.
    pub(crate) fn drop_where(&mut self, mut doomed: impl FnMut(&Waiting) -> bool) {
        self.0.retain(|waiting| !doomed(waiting));
    }

    /// Sends a request, perhaps once more: then it keeps the place it had.
    pub(crate) fn send(&mut self, label: Label, client: Client, request: Arc<AcquireRequest>) {
        if let Some(waiting) = self.get(label) {
            waiting.ask_again();
        } else {
            let future = acquire(Arc::clone(&client), Arc::clone(&request));
            self.0.push(Waiting { label, client, request, future, before: None, stood: false });
        }
    }

    pub(crate) fn labels(&self) -> Vec<Label> {
        self.labels_where(|_| true)
    }

    pub(crate) fn labels_where(&self, meant: impl Fn(&Waiting) -> bool) -> Vec<Label> {
        self.0.iter().filter(|waiting| meant(waiting)).map(|waiting| waiting.label).collect()
    }

    /// The answer to one request, if it is there: then the request is no longer in line.
    pub(crate) fn poll(&mut self, label: Label, cx: &mut Context<'_>) -> Option<Reply> {
        let place = self.0.iter().position(|waiting| waiting.label == label)?;
        let waiting = &mut self.0[place];
        let answer = waiting.future.poll_unpin(cx);
        waiting.before = None;
        let Poll::Ready(answer) = answer else { return None };
        self.0.remove(place);
        Some(answer.into())
    }

    pub(crate) fn get(&mut self, label: Label) -> Option<&mut Waiting> {
        self.0.iter_mut().find(|waiting| waiting.label == label)
    }
}

impl Waiting {
    /// Sends the request again.
    pub(crate) fn ask_again(&mut self) {
        let again = acquire(Arc::clone(&self.client), Arc::clone(&self.request));
        self.before = Some(replace(&mut self.future, again));
        self.stood = false;
    }
}

fn acquire(client: Client, request: Arc<AcquireRequest>) -> Asking {
    async move { client.acquire(&request).await }.boxed()
}
