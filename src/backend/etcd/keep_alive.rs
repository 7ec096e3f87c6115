//! What is asked and answered on the stream on which all leases of a client are kept alive. A renewal is a message on
//! it, and costs the server no commit.

use std::collections::VecDeque;

use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::proto::{LeaseKeepAliveResponse, LeaseRequest};
use crate::backend::records::Failure;

/// The renewals of a connection. The stream for them is opened when it is first needed.
#[derive(Default)]
pub(super) struct KeepAlive(Mutex<Requests>);

#[derive(Default)]
struct Requests {
    send: Option<UnboundedSender<LeaseRequest>>,
    has_ended: bool,
    /// Answers arrive in the order of the requests, so none is mistaken for the answer to a later request for the same
    /// lease.
    unanswered: VecDeque<(i64, oneshot::Sender<bool>)>,
}

impl KeepAlive {
    /// Keeps leases alive. The result for each says whether there is such a lease. The first call opens the stream:
    /// `open` is given what is to be sent on it.
    pub(super) fn ask(
        &self,
        leases: &[i64],
        open: impl FnOnce(UnboundedReceiver<LeaseRequest>),
    ) -> Vec<oneshot::Receiver<bool>> {
        let mut requests = self.0.lock();
        let send = requests.send.get_or_insert_with(|| {
            let (send, sent) = unbounded();
            open(sent);
            send
        });
        let send = send.clone();
        let ask = |lease: &i64| {
            let (answer, answered) = oneshot::channel();
            if requests.has_ended {
                return answered;
            }
            requests.unanswered.push_back((*lease, answer));
            // It fails only after the stream has ended, and then nobody waits.
            drop(send.unbounded_send(LeaseRequest { id: *lease }));
            answered
        };
        leases.iter().map(ask).collect()
    }

    /// Passes the next answer on to the call that waits for it.
    pub(super) fn answer(&self, answer: LeaseKeepAliveResponse) -> Result<(), Failure> {
        match self.0.lock().unanswered.pop_front() {
            Some((lease, sender)) if lease == answer.id => {
                // An error means that nobody waits for it any more.
                let _ = sender.send(answer.ttl > 0);
                Ok(())
            }
            _ => Err(Failure::unavailable("the answer to a keep-alive is for another lease")),
        }
    }

    /// Fails all calls that still wait.
    pub(super) fn end(&self) {
        let mut requests = self.0.lock();
        requests.has_ended = true;
        requests.unanswered.clear();
    }
}
