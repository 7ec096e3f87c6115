//! The connection that looks at the records of the keys that the client waits for, and holds the named locks of its leases.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::stream::BoxStream;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::failure::is_declined;
use super::record::Stored;
use super::session::{Answer, Session, value};
use super::settings::Settings;
use super::view::View;
use super::waiters::Waiters;
use super::watch::{Todo, Watch};
use super::{check, connect, named_locks, statement};
use crate::backend::records::{Failure, Health, Purpose};
use crate::backend::{Event, LeaseId};
use crate::runtime::spawn_on;

/// How often a connection is tried on which nothing else is to be done,
const HEARTBEAT: Duration = Duration::from_secs(5);
/// and how often if it holds named locks, which end with it.
const HEARTBEAT_WITH_LOCKS: Duration = Duration::from_secs(2);
/// The pause between attempts to connect.
const PAUSE: Duration = Duration::from_millis(200);

/// The connection is opened with the first stream of events, and again whenever it is lost.
pub(super) struct Watcher {
    settings: Arc<Settings>,
    health: Arc<Health>,
    watch: Arc<Watch>,
    waiters: Arc<Waiters>,
    started: Mutex<Started>,
    closing: CancellationToken,
    /// The latest attempt to connect: `None` before the first, and how it went.
    attempt: watch::Sender<Option<Result<(), Failure>>>,
}

#[derive(Default)]
struct Started {
    is_started: bool,
    /// Whether the server has been looked at for what its user should know.
    is_looked_at: bool,
}

impl Watcher {
    pub(super) fn new(settings: Arc<Settings>, health: Arc<Health>) -> Self {
        let (closing, watch) = (CancellationToken::new(), Arc::clone(&settings.watch));
        let waiters = Arc::new(Waiters::new(Arc::clone(&settings), closing.clone()));
        let attempt = watch::Sender::new(None);
        Self { settings, health, watch, waiters, started: Mutex::default(), closing, attempt }
    }

    /// The events from now on, for the client with this id, which never changes. A later stream replaces an earlier one.
    pub(super) fn open(self: &Arc<Self>, client: Uuid, runtime: &Handle) -> BoxStream<'static, Event> {
        let events = self.watch.open(client);
        self.start(runtime);
        events
    }

    /// Connects, unless it has begun to.
    pub(super) fn start(self: &Arc<Self>, runtime: &Handle) {
        if std::mem::replace(&mut self.started.lock().is_started, true) {
            return;
        }
        let watcher = Arc::clone(self);
        spawn_on(runtime, async move {
            let closing = watcher.closing.clone();
            closing.run_until_cancelled(watcher.work()).await;
        });
    }

    /// How the first attempt to connect went.
    pub(super) async fn connected(&self) -> Result<(), Failure> {
        let mut attempt = self.attempt.subscribe();
        match attempt.wait_for(Option::is_some).await {
            Ok(known) => known.clone().unwrap_or(Ok(())),
            Err(_) => Err(Failure::closed()),
        }
    }

    pub(super) fn close(&self) {
        self.closing.cancel();
    }

    async fn work(&self) {
        loop {
            match self.connect().await {
                Ok(mut session) => {
                    let connected = Instant::now();
                    let failure = self.drive(&mut session).await;
                    drop(session);
                    self.watch.do_without_locks();
                    // It is replaced at once. Nobody needs to know, unless that fails.
                    tracing::debug!(store = %self.settings.address, %failure, "the connection that watches records has ended");
                    sleep(PAUSE.saturating_sub(connected.elapsed())).await;
                }
                Err(failure) => {
                    self.health.failed(Purpose::Notifications, &failure.why);
                    self.attempt.send_replace(Some(Err(failure)));
                    sleep(PAUSE).await;
                }
            }
        }
    }

    async fn connect(&self) -> Result<Session, Failure> {
        let mut session = connect::open(&self.settings).await?;
        if !std::mem::replace(&mut self.started.lock().is_looked_at, true) {
            check::warn(&mut session, &self.settings.address).await?;
        }
        self.health.succeeded(Purpose::Notifications);
        self.attempt.send_replace(Some(Ok(())));
        self.watch.use_locks();
        // What happened meanwhile was not seen.
        self.watch.send(Event::Resync);
        Ok(session)
    }

    /// Does what is to be done, until the connection is lost.
    async fn drive(&self, session: &mut Session) -> Failure {
        loop {
            self.watch.use_locks_again();
            self.waiters.call();
            let heartbeat = if self.watch.has_locks() { HEARTBEAT_WITH_LOCKS } else { HEARTBEAT };
            let todo = self.watch.next(heartbeat).await;
            if let Err(failure) = self.carry_out(session, &todo).await {
                return failure;
            }
        }
    }

    async fn carry_out(&self, session: &mut Session, todo: &Todo) -> Result<(), Failure> {
        let Todo { release, take, look } = todo;
        let mut statements = Vec::new();
        // There are waiters for these.
        if !release.is_empty() {
            statements.push(named_locks::release(release));
        }
        if !look.is_empty() {
            statements.push(statement::changed_since(look.iter().map(|look| (&*look.key, look.version))));
        }
        if statements.is_empty() && take.is_empty() {
            statements.push("DO 0".to_owned());
        }
        if !statements.is_empty() {
            let mut answers = session.run_in_time(&statements).await?;
            if !look.is_empty() {
                self.looked(todo, answers.pop())?;
            }
        }
        if take.is_empty() {
            return Ok(());
        }
        match session.run_in_time(&[named_locks::take(take)]).await {
            Ok(mut answers) => self.took(take, answers.pop()),
            Err(failure) if is_declined(&failure) => {
                self.watch.give_up_locks(&failure);
                Ok(())
            }
            Err(failure) if failure.is_broken => Err(failure),
            // Once more, with those that are wanted then.
            Err(_) => {
                take.iter().for_each(|lease| self.watch.took(*lease, false));
                Ok(())
            }
        }
    }

    fn looked(&self, todo: &Todo, answer: Option<Answer>) -> Result<(), Failure> {
        let rows = answer.map(|answer| answer.rows).unwrap_or_default();
        let stored: Result<HashMap<_, _>, Failure> =
            rows.iter().map(|row| Stored::of(row).map(|stored| (stored.key.clone(), stored))).collect();
        let (mut stored, client) = (stored?, self.watch.client());
        for look in &todo.look {
            let found = stored.remove(look.key.as_bytes()).and_then(|stored| {
                // Callers get the error for an unreadable record when they request it.
                let ledger = stored.ledger().ok()?;
                Some((stored.version, View::of(&ledger, client)))
            });
            self.watch.looked(look, found);
        }
        Ok(())
    }

    fn took(&self, leases: &[LeaseId], answer: Option<Answer>) -> Result<(), Failure> {
        let rows = answer.map(|answer| answer.rows).unwrap_or_default();
        let Some(row) = rows.first() else { return Err(Failure::unavailable("an answer is missing")) };
        let each = (0..leases.len()).map(|column| value::<Option<i64>>(row, column));
        let each = each.collect::<Result<Vec<_>, _>>()?;
        for (lease, taken) in leases.iter().zip(&each) {
            self.watch.took(*lease, *taken == Some(1));
        }
        if each.contains(&None) {
            self.watch.give_up_locks(&Failure::unavailable("`GET_LOCK` returns NULL"));
        }
        Ok(())
    }
}
