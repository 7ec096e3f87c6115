//! The connections that wait for named locks of other clients. Each waits for one at a time. They are opened when they
//! are needed.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::named_locks;
use super::session::{Session, value};
use super::shared::Mysql;
use super::watch::{Wait, Waited};
use crate::backend::LeaseId;
use crate::backend::records::Failure;
use crate::backend::sql::Server;
use crate::runtime::spawn;

/// For how long a lock is waited for with one statement, in seconds. Whether it still has to be is seen after that.
const WAIT: u64 = 4;
/// How long a connection is kept that is not needed.
const IDLE: Duration = Duration::from_secs(30);

pub(super) struct Waiters {
    server: Arc<Mysql>,
    count: Mutex<Count>,
    /// Told when there may be something to wait for.
    called: Notify,
    closing: CancellationToken,
}

#[derive(Default)]
struct Count {
    all: usize,
    idle: usize,
}

impl Waiters {
    pub(super) fn new(server: Arc<Mysql>, closing: CancellationToken) -> Self {
        Self { server, count: Mutex::default(), called: Notify::new(), closing }
    }

    /// Makes sure that connections wait for all requested named locks. Called on the runtime on which the connections
    /// run.
    pub(super) fn call(self: &Arc<Self>) {
        if !self.server.watch.has_to_wait_for() {
            return;
        }
        let mut count = self.count.lock();
        if count.idle > 0 {
            self.called.notify_one();
            return;
        }
        if count.all >= self.server.max_waiters() {
            return;
        }
        count.all += 1;
        let waiters = Arc::clone(self);
        spawn(async move {
            let closing = waiters.closing.clone();
            closing.run_until_cancelled(waiters.work()).await;
            waiters.count.lock().all -= 1;
        });
    }

    async fn work(self: &Arc<Self>) {
        let mut session = None;
        while let Some(wait) = self.next().await {
            // There may be more.
            self.call();
            sleep(wait.pause).await;
            let waited = self.wait(&mut session, wait.lease).await;
            let outcome = waited.unwrap_or_else(|failure| {
                tracing::debug!(store = %self.server.settings.address, %failure, "could not wait for a named lock");
                Waited::Failed
            });
            if outcome == Waited::Failed {
                session = None;
            }
            self.server.watch.waited(&wait, outcome);
        }
    }

    /// What is to be waited for next; `None` if this connection is not needed any more.
    async fn next(&self) -> Option<Wait> {
        loop {
            self.count.lock().idle += 1;
            let next = self.server.watch.next_to_wait_for();
            let is_over = next.is_none() && timeout(IDLE, self.called.notified()).await.is_err();
            self.count.lock().idle -= 1;
            if next.is_some() || is_over {
                return next;
            }
        }
    }

    async fn wait(&self, session: &mut Option<Session>, lease: LeaseId) -> Result<Waited, Failure> {
        let session = match session {
            Some(session) => session,
            None => session.insert(self.server.open().await?),
        };
        let limit = session.reply_timeout() + Duration::from_secs(WAIT);
        let mut answers = session.run_within(&[named_locks::wait(lease, WAIT)], limit).await?;
        let row = answers.pop().and_then(|mut answer| answer.rows.pop());
        let had = row.map(|row| value::<Option<i64>>(&row, 0)).transpose()?.flatten();
        Ok(match had {
            Some(1) => Waited::Acquired,
            Some(_) => Waited::TimedOut,
            // The session may have lost its place in the server.
            None => Waited::Failed,
        })
    }
}
