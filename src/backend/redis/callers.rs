//! The connections on the caller's runtime: those for commands, and one that is subscribed. If that runtime ends, or is not
//! driven, the next call reopens them on its own runtime.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::Shared;
use parking_lot::Mutex;
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::acceptance::{accept, findings};
use super::check::Expected;
use super::connection::Connection;
use super::notifications::Notifications;
use super::runtime;
use super::servers::Commands;
use crate::backend::{BackendError, Finding};
use crate::runtime::{Cancel, PROBE_INTERVAL, is_stuck, spawn_cancelable};

/// The pause before a server that declines for now is asked again.
const RETRY: Duration = Duration::from_millis(50);

/// The connections on the caller's runtime.
#[derive(Debug)]
pub(super) struct CallersConnections {
    commands: Vec<Commands>,
    subscriber: Arc<Connection>,
    notifications: Arc<Notifications>,
    expected: Expected,
    closed: CancellationToken,
    tasks: Mutex<Tasks>,
    /// Whether the servers have been checked and accepted. No request is sent before that.
    accepted: AtomicBool,
    /// What the servers have said last when they declined for now.
    declined: Mutex<Option<BackendError>>,
    /// Whether message delivery has been verified once.
    delivery_verified: AtomicBool,
    /// The runtime on which all of them live.
    runtime: Mutex<Option<Handle>>,
    /// The last attempt to connect.
    attempt: Mutex<Option<Attempt>>,
    /// How many attempts there have been.
    attempts: AtomicU64,
}

#[derive(Debug, Default)]
struct Tasks {
    drivers: Vec<JoinHandle<()>>,
    subscription: Option<AbortOnDropHandle<()>>,
}

/// An attempt to connect, for which any number of callers wait.
#[derive(Debug)]
struct Attempt {
    number: u64,
    runtime: Handle,
    /// Whether a caller on another runtime waits for it.
    is_awaited_elsewhere: bool,
    task: Cancel,
    connected: Connected,
}

/// The result of an attempt; an error of the channel if the attempt is given up, or ends with its runtime.
type Connected = Shared<oneshot::Receiver<Result<(), Arc<BackendError>>>>;

impl Attempt {
    fn is_over(&self) -> bool {
        self.task.is_over() || self.connected.peek().is_some()
    }
}

impl CallersConnections {
    pub(super) fn new(
        commands: Vec<Commands>,
        subscriber: Arc<Connection>,
        notifications: Arc<Notifications>,
        expected: Expected,
        closed: CancellationToken,
    ) -> Arc<Self> {
        Arc::new(Self {
            commands,
            subscriber,
            notifications,
            expected,
            closed,
            tasks: Mutex::default(),
            accepted: AtomicBool::default(),
            declined: Mutex::default(),
            delivery_verified: AtomicBool::default(),
            runtime: Mutex::default(),
            attempt: Mutex::default(),
            attempts: AtomicU64::default(),
        })
    }

    /// Connects for the first time, verifies that messages are delivered, and checks the servers.
    pub(super) async fn connect(&self) -> Result<(), BackendError> {
        self.move_here();
        for commands in &self.commands {
            self.keep(commands.connect(self.closed.clone()).await?);
        }
        self.keep(Some(self.subscriber.connect(self.closed.clone()).await?));
        self.until_not_refused_for_now(|| self.subscribe()).await?;
        self.until_not_refused_for_now(|| self.accept()).await
    }

    /// Does this again while the server declines for a reason that can be over within seconds. Whoever connects has a time limit.
    async fn until_not_refused_for_now<F: Future<Output = Result<(), BackendError>>>(
        &self,
        step: impl Fn() -> F,
    ) -> Result<(), BackendError> {
        loop {
            match step().await {
                Err(error @ BackendError::RefusedForNow { .. }) => {
                    *self.declined.lock() = Some(error);
                    sleep(RETRY).await;
                }
                done => return done,
            }
        }
    }

    /// What the server has said last if it declined for now while this connected for the first time.
    pub(super) fn declined(&self) -> Option<BackendError> {
        let connections = self.connections().into_iter().chain([Arc::clone(&self.subscriber)]);
        let refusal = connections.filter_map(|connection| connection.refusal_for_now()).next();
        let refusal = refusal.map(|text| BackendError::RefusedForNow { source: text.into() });
        refusal.or_else(|| self.declined.lock().take())
    }

    async fn subscribe(&self) -> Result<(), BackendError> {
        let publisher = match &self.commands[..] {
            [Commands::Server(connection, _), ..] => Some(&**connection),
            _ => None,
        };
        let subscription = self.notifications.subscribe(&self.subscriber, publisher).await?;
        self.tasks.lock().subscription = Some(subscription);
        self.delivery_verified.store(true, Ordering::Release);
        Ok(())
    }

    fn keep(&self, driver: Option<JoinHandle<()>>) {
        self.tasks.lock().drivers.extend(driver);
    }

    /// The connections for commands to all servers.
    fn connections(&self) -> Vec<Arc<Connection>> {
        self.commands[0].connections()
    }

    /// Sends PING to all servers.
    pub(super) async fn ping(&self) -> Result<(), BackendError> {
        self.commands[0].ping().await
    }

    /// Checks all servers.
    pub(super) async fn check(&self) -> Result<Vec<Finding>, BackendError> {
        findings(&self.connections(), &self.expected).await
    }

    async fn accept(&self) -> Result<(), BackendError> {
        if !self.are_accepted() {
            accept(&self.connections(), &self.expected).await?;
            self.accepted.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Whether the servers have been checked and accepted.
    pub(super) fn are_accepted(&self) -> bool {
        self.accepted.load(Ordering::Acquire)
    }

    /// Whether connections have not been opened yet, or were given up, or the runtime on which they lived has ended.
    pub(super) fn are_missing(&self) -> bool {
        !self.delivery_verified.load(Ordering::Acquire)
            || self.subscriber.has_ended()
            || self.commands.iter().any(Commands::have_ended)
    }

    /// Whether the connections can be used as far as is known: they exist, accepted, and each call was answered in time.
    pub(super) fn are_ready(&self) -> bool {
        let is_unusable = |commands: &Commands| commands.have_ended() || commands.are_suspect();
        self.are_accepted() && !self.subscriber.has_ended() && !self.commands.iter().any(is_unusable)
    }

    /// Makes the connections ready from the current runtime, in a separate task: a caller that gives up, or is not polled, blocks no
    /// other caller, and neither does a runtime that is not driven.
    pub(super) async fn revive(self: &Arc<Self>) -> Result<(), BackendError> {
        if Handle::try_current().is_err() {
            runtime::check()?;
        }
        while !self.closed.is_cancelled() {
            let (runtime, connected) = self.join_attempt();
            let Some(connected) = self.closed.run_until_cancelled(connected).await else { break };
            match connected {
                Ok(connected) => return connected.map_err(|error| BackendError::clone(&error)),
                Err(_) if self.closed.is_cancelled() => break,
                Err(_) if runtime == Handle::current().id() => {
                    let why = "the runtime ended, or was not driven, while it connected";
                    return Err(BackendError::NotSent { source: why.into() });
                }
                // The next one is made from here.
                Err(_) => {}
            }
        }
        Err(BackendError::Closed)
    }

    /// The attempt that is in progress, or a new one: its runtime and its result.
    fn join_attempt(self: &Arc<Self>) -> (Id, Connected) {
        let mut attempt = self.attempt.lock();
        let attempt = match &mut *attempt {
            Some(current) if !current.is_over() => current,
            last => last.insert(self.begin_attempt()),
        };
        attempt.is_awaited_elsewhere |= attempt.runtime.id() != Handle::current().id();
        (attempt.runtime.id(), attempt.connected.clone())
    }

    fn begin_attempt(self: &Arc<Self>) -> Attempt {
        let ((sender, connected), callers) = (oneshot::channel(), Arc::clone(self));
        let (_, task) = spawn_cancelable(async move {
            let connected = callers.connect_missing().await;
            // Nobody may be waiting for it any more.
            let _ = sender.send(connected.map_err(Arc::new));
        });
        let number = self.attempts.fetch_add(1, Ordering::Relaxed);
        let (runtime, connected) = (Handle::current(), connected.shared());
        Attempt { number, runtime, is_awaited_elsewhere: false, task, connected }
    }

    /// Ends an attempt. Those that wait for it make another one.
    fn give_up_attempt(&self, number: u64) {
        let given_up = self.attempt.lock().take_if(|attempt| attempt.number == number);
        // When the mutex is free again.
        drop(given_up);
    }

    async fn connect_missing(&self) -> Result<(), BackendError> {
        // All of them are asked.
        let is_suspect = self.commands.iter().filter(|commands| commands.take_suspicion()).count() > 0;
        if is_suspect || !self.are_accepted() {
            self.abandon_if_stuck().await;
        }
        if self.are_missing() {
            self.open_missing().await?;
        }
        self.accept().await
    }

    async fn open_missing(&self) -> Result<(), BackendError> {
        runtime::check()?;
        self.move_here();
        self.tasks.lock().drivers.retain(|driver| !driver.is_finished());
        for commands in self.commands.iter().filter(|commands| commands.have_ended()) {
            tracing::debug!("connecting from this runtime");
            self.keep(commands.revive(self.closed.clone()).await?);
        }
        let delivery_verified = self.delivery_verified.load(Ordering::Acquire);
        if self.subscriber.has_ended() {
            self.keep(Some(self.subscriber.connect(self.closed.clone()).await?));
            if delivery_verified {
                self.tasks.lock().subscription = Some(self.notifications.resubscribe(&self.subscriber));
            }
        }
        if delivery_verified { Ok(()) } else { self.subscribe().await }
    }

    /// From here on the connections live on the current runtime. Those that are still on another one are given up.
    fn move_here(&self) {
        let (here, mut runtime) = (Handle::current(), self.runtime.lock());
        if runtime.replace(here.clone()).is_none_or(|before| before.id() != here.id()) {
            self.abandon();
        }
    }

    /// Gives the connections up if the runtime on which they live makes no progress. Returns whether it gave them up.
    pub(super) async fn abandon_if_stuck(&self) -> bool {
        let Some(runtime) = self.runtime.lock().clone() else { return false };
        // Finding that out takes a timer.
        if runtime::check().is_err() || !is_stuck(&runtime).await {
            return false;
        }
        let mut current = self.runtime.lock();
        let have_not_moved = current.take_if(|current| current.id() == runtime.id()).is_some();
        if have_not_moved {
            tracing::info!(
                "the runtime of the connections has run no task for half a second: it is blocked, busy, or not driven; they are opened \
                 again where the client is used next"
            );
            self.abandon();
        }
        drop(current);
        if have_not_moved {
            // An attempt there would go on.
            let attempt = self.attempt.lock().take_if(|attempt| attempt.runtime.id() == runtime.id());
            drop(attempt);
        }
        have_not_moved
    }

    /// Gives up the tasks of the connections, which end when their runtime is driven again, or is dropped. Called while `runtime` is locked.
    fn abandon(&self) {
        let tasks = mem::take(&mut *self.tasks.lock());
        tasks.drivers.iter().for_each(JoinHandle::abort);
        self.subscriber.abandon();
        self.commands.iter().for_each(Commands::abandon);
    }

    /// Watches the connections from the crate's own thread until they are closed.
    pub(super) async fn watch(self: Arc<Self>) {
        let both = async { tokio::join!(self.resubscribe(), self.watch_runtimes()) };
        self.closed.run_until_cancelled(both).await;
        // Nothing may be sent on them if their runtime is driven again.
        self.abandon_if_stuck().await;
    }

    /// Makes all waiting requests repeat whenever the subscription is gone with its runtime: the first of them opens it again, from
    /// a runtime that exists. Without it they would not be notified of their grants.
    async fn resubscribe(&self) {
        let mut links = self.subscriber.links();
        // The sender is in `subscriber`, so waiting cannot fail.
        while links.wait_for(Option::is_some).await.is_ok()
            && links.wait_for(|link| link.is_none() && self.subscriber.has_ended()).await.is_ok()
        {
            self.notifications.resync();
        }
    }

    /// Gives up what is on a runtime that makes no progress: an attempt to connect, and, while messages are awaited on another
    /// runtime, the subscription. Nobody else would notice, because each caller may give up before it is certain.
    async fn watch_runtimes(&self) {
        loop {
            sleep(PROBE_INTERVAL).await;
            let attempt = self.attempt_awaited_elsewhere();
            if let Some((number, runtime)) = attempt
                && is_stuck(&runtime).await
            {
                tracing::warn!(
                    "an attempt to connect is on a runtime that is not driven; connecting from another one"
                );
                self.give_up_attempt(number);
            }
            let runtime = self.runtime.lock().as_ref().map(Handle::id);
            if self.notifications.are_awaited_elsewhere(runtime) && self.abandon_if_stuck().await {
                self.notifications.resync();
            }
        }
    }

    /// The attempt for which callers on another runtime wait. One that is over is forgotten.
    fn attempt_awaited_elsewhere(&self) -> Option<(u64, Handle)> {
        let mut attempt = self.attempt.lock();
        let over = attempt.take_if(|attempt| attempt.is_over());
        let awaited = attempt.as_ref().filter(|attempt| attempt.is_awaited_elsewhere);
        let awaited = awaited.map(|attempt| (attempt.number, attempt.runtime.clone()));
        drop(attempt);
        drop(over);
        awaited
    }

    /// Ends an attempt that is in progress. To be called when the connections are closed.
    pub(super) fn end_attempt(&self) {
        let ended = self.attempt.lock().take();
        // When the mutex is free again.
        drop(ended);
    }

    /// The tasks that keep them connected until `closed`. Ends the subscription.
    pub(super) fn take_drivers(&self) -> Vec<JoinHandle<()>> {
        let mut tasks = self.tasks.lock();
        tasks.subscription = None;
        let mut drivers = mem::take(&mut tasks.drivers);
        drivers.extend(self.commands.iter().flat_map(Commands::take_drivers));
        drivers
    }
}
