//! The common part of all primitives: a name, the terms of its leases, and three methods to acquire one.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::backend::{Claim, Detail, Inspection, Resource};
use crate::error::Error;
use crate::guard::Guard;
use crate::lease::{Engine, FollowsLimit, Unavailable, Wait, Waiter};
use crate::options::Settings;

/// A named thing that can be held under leases.
#[derive(Clone)]
pub(crate) struct Primitive {
    pub(crate) engine: Arc<Engine>,
    pub(crate) resource: Resource,
    pub(crate) settings: Arc<Settings>,
}

impl Primitive {
    /// Rejects what the store does not support, before anything is sent.
    pub(crate) fn new(engine: Arc<Engine>, resource: Resource, settings: Settings) -> Result<Self, Error> {
        let capabilities = engine.backend().capabilities();
        let kind = resource.kind;
        if !capabilities.kinds.contains(&kind) {
            let mut reason = format!("this store has no resources of the kind `{}`", kind.as_str());
            if let Some(why) = &capabilities.unsupported {
                reason.extend([": ", why]);
            }
            return Err(Error::Unsupported { store: capabilities.store.clone(), reason });
        }
        let settings = settings.fit(capabilities)?.share();
        Ok(Self { engine, resource, settings })
    }

    /// The name, without prefix.
    pub(crate) fn name(&self) -> &str {
        self.resource.name()
    }

    /// Waits in the queue for as long as it takes.
    pub(crate) async fn acquire(
        &self,
        claim: &Claim,
        follower: Option<&dyn FollowsLimit>,
    ) -> Result<Guard, Error> {
        // A request that waits ends with a guard or an error.
        let guard = self.ask(claim, Wait::Forever, follower).await?;
        guard.map_err(|unavailable| self.timed_out(Instant::now(), unavailable))
    }

    /// Does not wait.
    pub(crate) async fn try_acquire(
        &self,
        claim: &Claim,
        follower: Option<&dyn FollowsLimit>,
    ) -> Result<Option<Guard>, Error> {
        Ok(self.ask(claim, Wait::No, follower).await?.ok())
    }

    /// Waits in the queue for at most `timeout`.
    pub(crate) async fn acquire_timeout(
        &self,
        claim: &Claim,
        timeout: Duration,
        follower: Option<&dyn FollowsLimit>,
    ) -> Result<Guard, Error> {
        let started = Instant::now();
        let wait = started.checked_add(timeout).map_or(Wait::Forever, Wait::Until);
        let guard = self.ask(claim, wait, follower).await?;
        guard.map_err(|unavailable| self.timed_out(started, unavailable))
    }

    /// Re-enters a lock that `owner` holds in this client, without a request to the store.
    pub(crate) fn reenter(&self, owner: &Arc<str>) -> Option<Guard> {
        let hold = self.engine.owners().enter(&self.resource.key, owner)?;
        Some(Guard::new(Arc::clone(&self.engine), hold, 1))
    }

    pub(crate) async fn inspect(&self, detail: Detail) -> Result<Inspection, Error> {
        let answer = self.engine.backend().inspect(&self.resource, detail).await;
        answer.map_err(|error| self.engine.error(error, "inspect", Some(self.name())))
    }

    /// Ends all holds. `false` if there was none.
    pub(crate) async fn force_release(&self) -> Result<bool, Error> {
        let answer = self.engine.backend().force_release(&self.resource).await;
        let released =
            answer.map_err(|error| self.engine.error(error, "force release", Some(self.name())))?;
        tracing::warn!(name = %self.name(), released, "released by force");
        Ok(released)
    }

    async fn ask(
        &self,
        claim: &Claim,
        wait: Wait,
        follower: Option<&dyn FollowsLimit>,
    ) -> Result<Result<Guard, Unavailable>, Error> {
        let waiter = Waiter::new(&self.engine, &self.resource, &self.settings, claim, follower, wait);
        let hold = waiter.acquire().await?;
        Ok(hold.map(|hold| Guard::new(Arc::clone(&self.engine), hold, claim.permits())))
    }

    /// Prints the name and the store of a handle of this type, which may add fields. Leaves out the client's leases, which may be
    /// megabytes.
    pub(crate) fn debug<'a, 'f>(
        &self,
        handle: &str,
        formatter: &'a mut fmt::Formatter<'f>,
    ) -> fmt::DebugStruct<'a, 'f> {
        let mut output = formatter.debug_struct(handle);
        output.field("name", &self.name()).field("store", &self.engine.backend().capabilities().store);
        output
    }

    fn timed_out(&self, started: Instant, unavailable: Unavailable) -> Error {
        let Unavailable { holder_never_expires } = unavailable;
        Error::TimedOut { name: self.name().to_owned(), waited: started.elapsed(), holder_never_expires }
    }
}
