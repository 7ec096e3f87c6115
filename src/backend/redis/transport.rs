//! Calling scripts: an operation in, a classified answer out. Operations that are called while others are in flight are
//! sent together (`batch`): `State` says which of them wait, and when there is a call for them. Everything is sent
//! through the `connection`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{fmt, mem};

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use super::connection::Connection;
use super::link::{CallError, Link, Value};
use super::notifications::Notifications;
use super::script::{Arguments, Operation, Script};
use crate::backend::{BackendError, Kind};
use crate::home::Home;

/// The pause before a request that was not answered is sent again.
pub(super) const RETRY: Duration = Duration::from_millis(25);
/// How many redirections one call follows. Two nodes that each consider the other one the owner of a slot could
/// redirect forever.
const MOST_REDIRECTIONS: usize = 5;
/// How many calls may be in flight.
const MAX_CALLS: usize = 4;
/// How many operations on permits justify a call of their own. The fewer calls, the better: each reads and writes the
/// state of a semaphore once.
const PERMITS_WORTH_A_CALL: usize = 8;
/// How many operations one call may take: the server does nothing else while it executes them, for about half a
/// millisecond.
const MAX_OPERATIONS: usize = 128;

/// Where calls go.
pub(super) trait Destination: fmt::Debug + Send + Sync {
    /// The slot to which all calls belong, in a cluster.
    fn slot(&self) -> Option<u16>;

    /// The current connection for calls.
    fn connection(&self) -> Arc<Connection>;

    /// The current link for calls. Waits for one for as long as an answer may take.
    fn link(&self) -> BoxFuture<'_, Result<Arc<dyn Link>, CallError>>;

    /// A call was not answered: perhaps other calls should go elsewhere.
    fn on_unanswered(&self);

    /// How a call is repeated after this error of the server, if it is a redirection.
    fn redirected<'a>(&'a self, error: &'a str) -> BoxFuture<'a, Option<Result<Again, CallError>>>;
}

/// How a call is repeated.
#[derive(Debug)]
pub(super) enum Again {
    /// On the node that serves the slot by now.
    There,
    /// On a node to which the slot is being moved.
    Asking(Arc<dyn Link>),
}

/// All calls go to one server.
impl Destination for Arc<Connection> {
    fn slot(&self) -> Option<u16> {
        None
    }

    fn connection(&self) -> Arc<Connection> {
        Self::clone(self)
    }

    fn link(&self) -> BoxFuture<'_, Result<Arc<dyn Link>, CallError>> {
        Connection::link(self).boxed()
    }

    fn on_unanswered(&self) {}

    fn redirected<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Option<Result<Again, CallError>>> {
        ready(None).boxed()
    }
}

/// Whether the server does not know a script, or no longer does.
pub(super) fn is_unknown_script(answer: &Result<Value, CallError>) -> bool {
    matches!(answer, Err(error) if error.answers("NOSCRIPT"))
}

/// Calls scripts on a connection: at once, or together with others.
#[derive(Debug)]
pub(super) struct Transport {
    destination: Arc<dyn Destination>,
    pub(super) reply_timeout: Duration,
    pub(super) notifications: Arc<Notifications>,

    /// Where the tasks run that send what is queued.
    pub(super) home: Arc<Home>,

    // For `batch`.
    pub(super) state: Mutex<State>,
    /// Held from when operations are taken out of the queue until they have been passed to the client library.
    pub(super) sending: Mutex<()>,
    /// Whether an answer was lost that may have contained grants.
    pub(super) missed_grants: AtomicBool,
}

impl Transport {
    /// All calls to one server.
    pub(super) fn new(
        connection: Arc<Connection>,
        notifications: Arc<Notifications>,
        home: &Arc<Home>,
    ) -> Arc<Self> {
        let reply_timeout = connection.timeouts().reply;
        Self::at(Arc::new(connection), reply_timeout, notifications, home)
    }

    pub(super) fn at(
        destination: Arc<dyn Destination>,
        reply_timeout: Duration,
        notifications: Arc<Notifications>,
        home: &Arc<Home>,
    ) -> Arc<Self> {
        Arc::new(Self {
            destination,
            reply_timeout,
            notifications,
            home: Arc::clone(home),
            state: Mutex::default(),
            sending: Mutex::default(),
            missed_grants: AtomicBool::default(),
        })
    }

    /// The slot to which all calls belong, in a cluster.
    pub(super) fn slot(&self) -> Option<u16> {
        self.destination.slot()
    }

    /// The current connection for calls.
    pub(super) fn connection(&self) -> Arc<Connection> {
        self.destination.connection()
    }

    /// The current link for calls. Waits for one for as long as an answer may take.
    pub(super) async fn link(&self) -> Result<Arc<dyn Link>, CallError> {
        if let Some(link) = self.connection().current_link() {
            return Ok(link);
        }
        self.destination.link().await
    }

    /// Calls a script once, until it is answered or the timeout has passed. Follows redirections.
    pub(super) async fn deliver(
        &self,
        script: &'static Script,
        arguments: impl Fn() -> Arguments + Send + Sync,
    ) -> Result<Value, CallError> {
        let deadline = Instant::now() + self.reply_timeout;
        let mut answer = self.deliver_once(script, &arguments).await;
        let mut redirections = 0;
        while let Err(CallError::Answer(text)) = &answer {
            if redirections > 2 {
                // The nodes disagree, and may soon agree.
                sleep(RETRY).await;
            }
            let Some(again) = self.destination.redirected(text).await else { break };
            let is_elsewhere = answer.as_ref().is_err_and(CallError::is_redirection);
            redirections = if is_elsewhere { redirections + 1 } else { 0 };
            if redirections > MOST_REDIRECTIONS || Instant::now() >= deadline {
                let last = format!("no node serves the slot; the last answer was {text}");
                return if is_elsewhere { Err(CallError::NotSent(last)) } else { answer };
            }
            answer = match again {
                Ok(Again::There) => self.deliver_once(script, &arguments).await,
                Ok(Again::Asking(link)) => {
                    let answer = link.eval_asking(script.variant(true), arguments()).await;
                    self.resync_after_loss(&answer);
                    answer
                }
                Err(error) => Err(error),
            };
        }
        answer
    }

    /// The script is sent with its text if the server does not know it, after a restart or SCRIPT FLUSH.
    async fn deliver_once(
        &self,
        script: &'static Script,
        arguments: &(impl Fn() -> Arguments + Sync),
    ) -> Result<Value, CallError> {
        let (link, script) = (self.link().await?, script.variant(self.slot().is_some()));
        let (connection, sent) = (self.connection(), Instant::now());
        let mut answer = link.evalsha(script, arguments()).await;
        if is_unknown_script(&answer) {
            answer = link.eval(script, arguments()).await;
        }
        self.received(&connection, sent, answer)
    }

    /// What follows from the answer to a call on this connection, apart from its content. Returns the answer if it
    /// counts.
    pub(super) fn received(
        &self,
        connection: &Arc<Connection>,
        sent: Instant,
        answer: Result<Value, CallError>,
    ) -> Result<Value, CallError> {
        connection.record_answer(&answer, sent);
        if matches!(answer, Err(CallError::Timeout(_))) {
            self.notifications.suspect();
        }
        if answer.as_ref().is_err_and(CallError::is_unanswered) {
            self.destination.on_unanswered();
        }
        // A primary that was replaced while it hung may execute what it was sent, and no other node knows about that.
        if answer.is_ok() && !Arc::ptr_eq(connection, &self.connection()) {
            return Err(CallError::Lost("another node now serves the slot".to_owned()));
        }
        self.resync_after_loss(&answer);
        answer
    }

    /// If grants may have been lost and the server answers again, makes all waiting requests repeat.
    fn resync_after_loss(&self, answer: &Result<Value, CallError>) {
        if answer.is_ok()
            && self.missed_grants.load(Ordering::Relaxed)
            && self.missed_grants.swap(false, Ordering::Relaxed)
        {
            self.notifications.resync();
        }
    }

    /// Runs a script once, perhaps together with others, waits for its answer for at most `time_limit`, and reads it.
    /// If the limit is not shorter than the reply timeout, the client library's timeouts apply instead, those of the
    /// calls before this one and its own. The operation is queued, or counted as in flight, as soon as this returns.
    pub(super) fn ask<T>(
        self: &Arc<Self>,
        operation: Operation,
        time_limit: Duration,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> impl Future<Output = Result<T, BackendError>> {
        let (script, call) = (operation.script, self.run(operation));
        async move {
            let answer = self.call_within(call, time_limit).await?;
            read(&answer).ok_or_else(|| script.unreadable())
        }
    }

    /// Waits for an answer, as long as `time_limit` and the library's timeout allow.
    pub(super) async fn call_within(
        &self,
        call: impl Future<Output = Result<Value, CallError>>,
        time_limit: Duration,
    ) -> Result<Value, BackendError> {
        if time_limit >= self.reply_timeout {
            // The library's timeout comes first anyway, and a second timer would wake the runtime's driver once more
            // per call.
            return call.await.map_err(BackendError::from);
        }
        let (connection, sent) = (self.connection(), Instant::now());
        let answer = timeout(time_limit, Box::pin(call)).await.unwrap_or_else(|_| {
            let why = if connection.is_connected() {
                String::new()
            } else {
                format!(": {}", connection.not_connected())
            };
            let late = CallError::Timeout(format!("no answer within {time_limit:?}{why}"));
            self.received(&connection, sent, Err(late))
        });
        answer.map_err(BackendError::from)
    }

    /// How long one command for a lease with this TTL may take.
    pub(super) fn answer_timeout(&self, ttl: Duration) -> Duration {
        self.reply_timeout.min(ttl / 3)
    }
}

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

/// Makes a call, repeatedly while it fails with an error that `again` accepts, until `time_limit` has passed, and at
/// least twice: if the thread of the caller was blocked, the first attempt has timed out whatever the server has done.
/// Also returns whether an earlier attempt may have been executed.
pub(super) async fn until_answered<T, F: Future<Output = Result<T, BackendError>>>(
    time_limit: Duration,
    again: fn(&BackendError) -> bool,
    call: impl Fn() -> F,
) -> Result<(T, bool), BackendError> {
    let give_up = Instant::now() + time_limit;
    let (mut attempts, mut repeated) = (0, false);
    loop {
        attempts += 1;
        match call().await {
            Ok(answer) => return Ok((answer, repeated)),
            Err(error) if again(&error) && (attempts < 2 || Instant::now() + RETRY < give_up) => {
                repeated |= matches!(error, BackendError::Unanswered { .. });
                sleep(RETRY).await;
            }
            // An earlier attempt may have been executed, although this one was not sent.
            Err(BackendError::NotSent { source } | BackendError::RefusedForNow { source }) if repeated => {
                return Err(BackendError::Unanswered { source });
            }
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use uuid::Uuid;

    use super::super::connection::tests::unused_settings;
    use super::super::route::ToServer;
    use super::super::target::Server;
    use super::*;

    /// A slot that is served over one connection after another.
    #[derive(Debug)]
    struct Slot {
        connection: Mutex<Arc<Connection>>,
        unanswered: AtomicUsize,
    }

    impl Destination for Slot {
        fn slot(&self) -> Option<u16> {
            Some(1)
        }

        fn connection(&self) -> Arc<Connection> {
            Arc::clone(&self.connection.lock())
        }

        fn link(&self) -> BoxFuture<'_, Result<Arc<dyn Link>, CallError>> {
            unreachable!()
        }

        fn on_unanswered(&self) {
            self.unanswered.fetch_add(1, Ordering::Relaxed);
        }

        fn redirected<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Option<Result<Again, CallError>>> {
            unreachable!()
        }
    }

    /// Of calls on their own and of batches.
    #[tokio::test]
    async fn an_answer_counts_only_if_its_connection_still_serves_the_slot() {
        let settings = unused_settings();
        let connection = || {
            let server = Server::Tcp { host: "localhost".to_owned(), port: 7000 };
            Connection::new(&settings, Arc::new(ToServer(server)))
        };
        let (first, second) = (connection(), connection());
        let slot =
            Arc::new(Slot { connection: Mutex::new(Arc::clone(&first)), unanswered: AtomicUsize::new(0) });
        let notifications = Arc::new(Notifications::new(Uuid::new_v4(), false));
        let transport =
            Transport::at(Arc::<Slot>::clone(&slot), settings.timeouts.reply, notifications, &Arc::default());
        let received = |connection| transport.received(connection, Instant::now(), Ok(Value::Nil));
        assert_eq!(received(&first).expect("served there"), Value::Nil);
        *slot.connection.lock() = Arc::clone(&second);
        assert!(matches!(received(&first), Err(CallError::Lost(_))));
        assert_eq!(received(&second).expect("served there"), Value::Nil);
        assert_eq!(slot.unanswered.load(Ordering::Relaxed), 0);
        for error in [CallError::Timeout(String::new()), CallError::Lost(String::new())] {
            transport.received(&second, Instant::now(), Err(error)).expect_err("not answered");
        }
        assert_eq!(slot.unanswered.load(Ordering::Relaxed), 2);
    }
}
