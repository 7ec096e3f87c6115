//! The common part of all primitives: a name, the terms of its leases, and how one is acquired.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;

use crate::backend::{Claim, Detail, Inspection, Kind, Resource};
use crate::error::Error;
use crate::guard::Guard;
use crate::label;
use crate::lease::{Engine, Observed, StatedLimit, Wait, Waiter};
use crate::options::Settings;

/// A named thing that can be held under leases.
#[derive(Clone)]
pub(crate) struct Primitive {
    pub(crate) engine: Arc<Engine>,
    pub(crate) resource: Resource,
    pub(crate) settings: Arc<Settings>,
    /// The limit that the handle of a semaphore states.
    pub(crate) limit: Option<Arc<StatedLimit>>,
    /// What its acquisitions are for.
    pub(crate) note: Option<Arc<str>>,
}

impl Primitive {
    /// Rejects what the store does not support, before anything is sent.
    pub(crate) fn new(engine: Arc<Engine>, resource: Resource, settings: Settings) -> Result<Self, Error> {
        check_kind(&engine, resource.kind)?;
        let settings = settings.fit(engine.backend().capabilities())?.share();
        Ok(Self { engine, resource, settings, limit: None, note: None })
    }

    /// From now on its acquisitions carry this note, which they check.
    pub(crate) fn set_note(&mut self, note: &str) {
        self.note = label::text(note);
    }

    /// The name, without prefix.
    pub(crate) fn name(&self) -> &str {
        self.resource.name()
    }

    /// Acquires what is claimed. Fails with [`Error::TimedOut`] if it was not available for as long as this waits.
    pub(crate) async fn acquire(&self, claim: &Claim, wait: Wait) -> Result<Guard, Error> {
        let Self { engine, resource, settings, limit, note } = self;
        if let Some(note) = note {
            label::check_note(note)?;
        }
        let waiter = Waiter::new(engine, resource, settings, claim, note.as_ref(), limit.as_deref(), wait);
        let acquiring = pin!(waiter.acquire());
        let hold = match engine.audience() {
            None => acquiring.await?,
            Some(audience) => {
                let waits = wait != Wait::No;
                Observed::new(engine, audience, resource, claim.permits(), waits, acquiring).await?
            }
        };
        Ok(Guard::new(Arc::clone(engine), hold, claim.permits()))
    }

    /// The error of a call that has waited for as long as it may, and does not know who stood in the way.
    pub(crate) fn timed_out(&self, wait: Wait) -> Error {
        let (name, waited) = (self.name().to_owned(), wait.so_far());
        Error::TimedOut { name, waited, holder_never_expires: false, contention: None }
    }

    /// The error of a request that the store has not answered in time.
    pub(crate) fn unanswered(&self) -> Error {
        self.engine.error(self.engine.unanswered(), "acquire", Some(self.name()))
    }

    /// Acquires what is claimed if that is possible without waiting.
    pub(crate) async fn try_acquire(&self, claim: &Claim) -> Result<Option<Guard>, Error> {
        match self.acquire(claim, Wait::No).await {
            Err(Error::TimedOut { .. }) => Ok(None),
            acquired => acquired.map(Some),
        }
    }

    /// Re-enters a lock that `owner` holds in this client, without a request to the store.
    pub(crate) fn reenter(&self, owner: &Arc<str>) -> Option<Guard> {
        // The request that follows says why.
        self.engine.check_process("acquire", None).ok()?;
        let hold = self.engine.owners().enter(&self.resource.key, owner)?;
        Some(Guard::new(Arc::clone(&self.engine), hold, 1))
    }

    pub(crate) async fn inspect(&self, detail: Detail) -> Result<Inspection, Error> {
        inspect(&self.engine, &self.resource, detail).await
    }

    /// Ends all holds. `false` if there was none.
    pub(crate) async fn force_release(&self) -> Result<bool, Error> {
        force_release(&self.engine, &self.resource).await
    }

    /// Prints the name and the store of a handle of this type, which may add fields. Leaves out the client's leases,
    /// which may be megabytes.
    pub(crate) fn debug<'a, 'f>(
        &self,
        handle: &str,
        formatter: &'a mut fmt::Formatter<'f>,
    ) -> fmt::DebugStruct<'a, 'f> {
        let mut output = formatter.debug_struct(handle);
        output.field("name", &self.name()).field("store", &self.engine.backend().capabilities().store);
        output
    }
}

/// Rejects a kind that the store does not support.
pub(crate) fn check_kind(engine: &Engine, kind: Kind) -> Result<(), Error> {
    let capabilities = engine.backend().capabilities();
    if capabilities.kinds.contains(&kind) {
        return Ok(());
    }
    let mut reason = format!("this store has no resources of the kind `{}`", kind.as_str());
    if let Some(why) = &capabilities.unsupported {
        reason.extend([": ", why]);
    }
    Err(Error::Unsupported { store: capabilities.store.clone(), reason })
}

/// Who holds something and who waits for it.
pub(crate) async fn inspect(
    engine: &Engine,
    resource: &Resource,
    detail: Detail,
) -> Result<Inspection, Error> {
    let name = Some(resource.name());
    engine.check_process("inspect", name)?;
    let answer = engine.backend().inspect(resource, detail).await;
    answer.map_err(|error| engine.error(error, "inspect", name))
}

/// Ends all holds of a lock. `false` if there was none.
pub(crate) async fn force_release(engine: &Engine, resource: &Resource) -> Result<bool, Error> {
    let name = resource.name();
    engine.check_process("force release", Some(name))?;
    let answer = engine.backend().force_release(resource).await;
    let released = answer.map_err(|error| engine.error(error, "force release", Some(name)))?;
    tracing::warn!(target: "leasehold::lease", name, released, "released by force");
    Ok(released)
}
