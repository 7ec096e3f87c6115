//! The stream on which all leases of a client are kept alive. A renewal is a message on it, and costs the server no commit.

use std::collections::VecDeque;
use std::sync::Arc;

use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::connection::Connection;
use super::proto::{LeaseKeepAliveResponse, LeaseRequest};
use crate::backend::records::Failure;

/// The stream of a connection, which is opened when it is first needed.
#[derive(Default)]
pub(super) struct KeepAlive(Mutex<Requests>);

#[derive(Default)]
struct Requests {
    send: Option<UnboundedSender<LeaseRequest>>,
    has_ended: bool,
    /// Answers arrive in the order of the requests, so none is mistaken for the answer to a later request for the same lease.
    unanswered: VecDeque<(i64, oneshot::Sender<bool>)>,
}

impl KeepAlive {
    /// Keeps leases alive. The result for each says whether there is such a lease.
    pub(super) fn ask(&self, connection: &Arc<Connection>, leases: &[i64]) -> Vec<oneshot::Receiver<bool>> {
        let mut requests = self.0.lock();
        let send = requests.send.get_or_insert_with(|| {
            let (send, sent) = unbounded();
            tokio::spawn(drive(Arc::clone(connection), sent));
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

    fn answer(&self, answer: LeaseKeepAliveResponse) -> Result<(), Failure> {
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
    fn end(&self) {
        let mut requests = self.0.lock();
        requests.has_ended = true;
        requests.unanswered.clear();
    }
}

/// Carries the stream of a connection until either ends.
async fn drive(connection: Arc<Connection>, requests: UnboundedReceiver<LeaseRequest>) {
    let answers = async {
        let mut answers = connection.keep_alive_stream(requests).await?;
        while let Some(answer) = connection.next(&mut answers).await? {
            connection.keep_alive.answer(answer)?;
        }
        Ok::<_, Failure>(())
    };
    tokio::select! {
        ended = answers => {
            if let Err(failure) = ended {
                tracing::debug!(%failure, "the stream of renewals has ended");
            }
            connection.give_up();
        }
        () = connection.broken() => {}
    }
    connection.keep_alive.end();
}
