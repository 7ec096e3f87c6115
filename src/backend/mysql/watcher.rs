//! The connection that looks at the records of the keys that the client waits for, and holds the named locks of its
//! leases.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::stream::BoxStream;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::exchange::stored;
use super::failure::is_declined;
use super::session::{Answer, Session, value};
use super::shared::Mysql;
use super::view::View;
use super::waiters::Waiters;
use super::watch::Todo;
use super::{check, named_locks, statement};
use crate::backend::records::Failure;
use crate::backend::sql::{self, Notifications, Server};
use crate::backend::{Event, LeaseId};

/// How often a connection is tried on which nothing else is to be done,
const HEARTBEAT: Duration = Duration::from_secs(5);
/// and how often if it holds named locks, which end with it.
const HEARTBEAT_WITH_LOCKS: Duration = Duration::from_secs(2);
/// What is looked at.
pub(super) struct Watcher {
    server: Arc<Mysql>,
    waiters: Arc<Waiters>,
}

impl Notifications for Watcher {
    type Connection = Session;

    fn events(&self, client: Uuid) -> BoxStream<'static, Event> {
        self.server.watch.open(client)
    }

    async fn open(&self, is_first: &AtomicBool) -> Result<Session, Failure> {
        let mut session = self.server.open().await?;
        if is_first.swap(false, Ordering::SeqCst) {
            sql::trace_risks(&self.server.settings.address, &check::settings(&mut session).await?);
        }
        self.server.watch.use_locks();
        // What happened meanwhile was not seen.
        self.server.watch.send(Event::Resync);
        Ok(session)
    }

    async fn drive(&self, mut session: Session) -> Failure {
        let watch = &self.server.watch;
        loop {
            watch.use_locks_again();
            self.waiters.call();
            let heartbeat = if watch.has_locks() { HEARTBEAT_WITH_LOCKS } else { HEARTBEAT };
            let todo = watch.next(heartbeat).await;
            if let Err(failure) = self.carry_out(&mut session, &todo).await {
                return failure;
            }
        }
    }

    fn has_ended(&self) {
        self.server.watch.do_without_locks();
    }
}

impl Watcher {
    /// For a client that is `closing` one day.
    pub(super) fn new(server: Arc<Mysql>, closing: CancellationToken) -> Self {
        let waiters = Arc::new(Waiters::new(Arc::clone(&server), closing));
        Self { server, waiters }
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
                self.server.watch.give_up_locks(&failure);
                Ok(())
            }
            Err(failure) if failure.is_broken => Err(failure),
            // Once more, with those that are wanted then.
            Err(_) => {
                take.iter().for_each(|lease| self.server.watch.took(*lease, false));
                Ok(())
            }
        }
    }

    fn looked(&self, todo: &Todo, answer: Option<Answer>) -> Result<(), Failure> {
        let rows = answer.map(|answer| answer.rows).unwrap_or_default();
        let mut found = rows.iter().map(stored).collect::<Result<HashMap<_, _>, _>>()?;
        let client = self.server.watch.client();
        for look in &todo.look {
            let found = found.remove(look.key.as_bytes()).and_then(|stored| {
                // Callers get the error for an unreadable record when they request it.
                let ledger = stored.ledger().ok()?;
                Some((stored.version, View::of(&ledger, client)))
            });
            self.server.watch.looked(look, found);
        }
        Ok(())
    }

    fn took(&self, leases: &[LeaseId], answer: Option<Answer>) -> Result<(), Failure> {
        let rows = answer.map(|answer| answer.rows).unwrap_or_default();
        let Some(row) = rows.first() else { return Err(sql::missing()) };
        let each = (0..leases.len()).map(|column| value::<Option<i64>>(row, column));
        let each = each.collect::<Result<Vec<_>, _>>()?;
        for (lease, taken) in leases.iter().zip(&each) {
            self.server.watch.took(*lease, *taken == Some(1));
        }
        if each.contains(&None) {
            self.server.watch.give_up_locks(&Failure::unavailable("`GET_LOCK` returns NULL"));
        }
        Ok(())
    }
}
