//! What all primitives of one client share, and the task that works for them.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::cohort::{Cohorts, Handed};
use super::held::{Lease, Leaving, Tenure};
use super::owners::Owners;
use super::reaper::{Obligation, Reaper};
use super::watchdog::Watchdog;
use crate::backend::{Backend, BackendError, Released, Whose};
use crate::closing::Closing;
use crate::error::{Error, LossReason};
use crate::name::Name;
use crate::sync::Mutex;

/// How long a shutdown waits for releases to be confirmed before it leaves them to expire.
const DRAIN: Duration = Duration::from_secs(5);

/// The shared engine of a client. Its background task ends when the last handle to the client is gone.
#[derive(Debug)]
pub(crate) struct Engine {
    backend: Arc<dyn Backend>,
    watchdog: Arc<Watchdog>,
    reaper: Arc<Reaper>,
    owners: Owners,
    cohorts: Arc<Cohorts<Arc<Lease>>>,
    task: Mutex<Option<JoinHandle<()>>>,
    closing: Closing,
    /// Cancelled with the last handle, when nobody can take on an obligation any more.
    abandoned: CancellationToken,
}

impl Engine {
    pub(crate) fn new(backend: Arc<dyn Backend>) -> Self {
        Self {
            backend,
            watchdog: Arc::default(),
            reaper: Arc::default(),
            owners: Owners::default(),
            cohorts: Arc::default(),
            task: Mutex::default(),
            closing: Closing::default(),
            abandoned: CancellationToken::new(),
        }
    }

    pub(crate) const fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    pub(crate) const fn watchdog(&self) -> &Arc<Watchdog> {
        &self.watchdog
    }

    pub(crate) const fn reaper(&self) -> &Arc<Reaper> {
        &self.reaper
    }

    pub(crate) const fn owners(&self) -> &Owners {
        &self.owners
    }

    pub(crate) const fn cohorts(&self) -> &Arc<Cohorts<Arc<Lease>>> {
        &self.cohorts
    }

    pub(crate) const fn closing(&self) -> &Closing {
        &self.closing
    }

    /// Starts the background task, unless one runs. The first request does so, on its own runtime, and a later
    /// one does so again if that runtime has ended in between. Must be called within a runtime.
    pub(crate) fn ensure_running(&self) {
        let mut task = self.task.lock();
        if task.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let watchdog = Arc::clone(&self.watchdog).run(Arc::clone(&self.backend));
        let reaper = Arc::clone(&self.reaper).run(Arc::clone(&self.backend), self.abandoned.clone());
        *task = Some(tokio::spawn(async move {
            // The watchdog has no end of its own: it is over when the reaper has nothing left to do.
            tokio::select! {
                () = watchdog => {}
                () = reaper => {}
            }
        }));
    }

    /// A guard goes, and its permits with it: the store is told now, or the next one in this client.
    pub(crate) async fn release(&self, lease: &Lease, permits: u32) -> Result<(), Error> {
        let obligation = match self.leave(lease, permits) {
            Leaving::Last(tenure) => match pass_on(lease, tenure) {
                Some(obligation) => obligation,
                None => return Ok(()),
            },
            Leaving::Keeping(keep) => self.oblige_to_shrink(lease, keep),
            Leaving::Sharing => return Ok(()),
            Leaving::Ended => {
                let reason = lease.loss(Instant::now()).unwrap_or(LossReason::Expired);
                return Err(lease.loss_error(reason));
            }
        };
        let name = lease.name();
        let part = matches!(obligation.whose(), Whose::AllBut(..));
        match self.backend.release(name.resource(), obligation.whose()).await {
            Ok(released) => {
                obligation.settle();
                // A part may find nothing because the rest of the lease was released meanwhile, and got there first.
                let overtaken = part && lease.is_released();
                match lost_before(released, lease.ends()).filter(|_| !overtaken) {
                    None => {
                        tracing::debug!(name = %name, token = lease.token().get(), "released");
                        Ok(())
                    }
                    Some(reason) => Err(lease.loss_error(lease.found_lost(reason))),
                }
            }
            // The obligation is dropped: the reaper goes on trying.
            Err(error) => Err(self.error(error, "release", Some(name))),
        }
    }

    /// A guard goes, and its permits with it, without waiting: the store is told in the background.
    pub(crate) fn abandon(&self, lease: &Lease, permits: u32) {
        let obligation = match self.leave(lease, permits) {
            Leaving::Last(tenure) => pass_on(lease, tenure),
            Leaving::Keeping(keep) => Some(self.oblige_to_shrink(lease, keep)),
            Leaving::Sharing | Leaving::Ended => None,
        };
        let Some(obligation) = obligation else { return };
        tracing::debug!(name = %lease.name(), token = lease.token().get(), "guard dropped, release queued");
        drop(obligation);
    }

    fn leave(&self, lease: &Lease, permits: u32) -> Leaving {
        let leaving = lease.leave(permits, Instant::now());
        if lease.is_deserted() {
            self.watchdog.forget(lease);
            self.owners.forget(lease);
        }
        leaving
    }

    fn oblige_to_shrink(&self, lease: &Lease, keep: u32) -> Obligation {
        let whose = Whose::AllBut(lease.id(), keep);
        self.reaper.oblige(lease.name().clone(), whose, lease.term()).granted(lease.token())
    }

    /// Ends everything: waiting requests fail, live leases are lost, all of it is released, connections close.
    pub(crate) async fn shutdown(&self) -> Result<(), Error> {
        self.closing.close();
        self.ensure_running();
        self.watchdog.lose_all(LossReason::ClientClosed);
        let drained = timeout(DRAIN, self.reaper.drained()).await;
        self.backend.close().await;
        self.abandoned.cancel();
        let unconfirmed = match drained {
            Ok(true) => return Ok(()),
            Ok(false) => "the store did not confirm all releases".into(),
            Err(late) => late.into(),
        };
        Err(self.error(BackendError::Unanswered { source: unconfirmed }, "shutdown", None))
    }

    /// Puts a store's error into words.
    pub(crate) fn error(&self, error: BackendError, step: &'static str, name: Option<&Name>) -> Error {
        Error::from_backend(error, step, name.map(Name::as_str), &self.backend.capabilities().store)
    }
}

/// Passes a lease on to the next task of this client that waits for it. If there is none, or others are to have their
/// turn, what is owed to the store comes back.
fn pass_on(lease: &Lease, mut tenure: Tenure) -> Option<Obligation> {
    let now = Instant::now();
    while let Some(turn) = tenure.turn.as_mut().filter(|_| lease.is_fresh(now)) {
        let Some(heir) = turn.heir(now) else { break };
        let spent = tenure.turn.take_if(|turn| turn.is_spent());
        let passed = Arc::new(lease.succeed(tenure, now));
        let Err(Handed::Lease(back)) = heir.send(Handed::Lease(passed)) else {
            tracing::debug!(name = %lease.name(), token = lease.token().get(), "passed on within the client");
            // Whoever comes next stands in the store's line before the lease goes back there.
            drop(spent);
            return None;
        };
        drop(spent);
        // It was given up at this moment.
        match back.leave(1, now) {
            Leaving::Last(taken_back) => tenure = taken_back,
            _ => return None,
        }
    }
    Some(tenure.obligation)
}

/// Whether what a release found means that the lease was lost before. If nobody knows, the lease had not ended as long
/// as its time was not over.
fn lost_before(released: Released, ends: Instant) -> Option<LossReason> {
    match released {
        Released::Held => None,
        Released::Unknown if Instant::now() < ends => None,
        Released::Unknown => Some(LossReason::StoreUnreachable),
        Released::Taken => Some(LossReason::Taken),
        Released::Queued | Released::Absent => Some(LossReason::Expired),
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.abandoned.cancel();
    }
}
