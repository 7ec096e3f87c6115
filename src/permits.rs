//! The common part of both semaphores; they differ only in the order in which waiters are served.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::backend::{Claim, Detail, Inspection, Kind, Limit};
use crate::error::Error;
use crate::guard::Guard;
use crate::lease::{Engine, StatedLimit, Wait};
use crate::name;
use crate::options::{OnOtherLimit, SemaphoreOptions};
use crate::primitive::Primitive;

/// A semaphore: permits under one name.
#[derive(Clone)]
pub(crate) struct Permits {
    primitive: Primitive,
    limit: Arc<StatedLimit>,
    /// The limit that the handle was created with, until it has put it in force.
    own: Arc<Mutex<Option<u32>>>,
    on_other_limit: OnOtherLimit,
}

/// How often a request follows a limit that has changed again by the time it is repeated.
const FOLLOW: u32 = 16;

impl Permits {
    pub(crate) fn new(
        engine: Arc<Engine>,
        name: &str,
        limit: u32,
        kind: Kind,
        options: &SemaphoreOptions,
    ) -> Result<Self, Error> {
        let resource = name::resource(options.key_prefix(kind), name, kind)?;
        let primitive = Primitive::new(engine, resource, options.validate(kind)?)?;
        let own = Arc::new(Mutex::new(Some(at_least_one("limit", limit)?)));
        let limit = Arc::new(StatedLimit::new(Limit::stated(limit)));
        let primitive = Primitive { limit: Some(Arc::clone(&limit)), ..primitive };
        Ok(Self { primitive, limit, own, on_other_limit: options.choice_on_other_limit() })
    }

    pub(crate) fn set_note(&mut self, note: &str) {
        self.primitive.set_note(note);
    }

    pub(crate) fn name(&self) -> &str {
        self.primitive.name()
    }

    pub(crate) fn limit(&self) -> u32 {
        self.limit.get().permits
    }

    pub(crate) async fn acquire(&self, permits: u32) -> Result<Guard, Error> {
        self.request(permits, Wait::Forever).await
    }

    pub(crate) async fn try_acquire(&self, permits: u32) -> Result<Option<Guard>, Error> {
        match self.request(permits, Wait::No).await {
            Err(Error::TimedOut { .. }) => Ok(None),
            acquired => acquired.map(Some),
        }
    }

    pub(crate) async fn acquire_timeout(&self, permits: u32, timeout: Duration) -> Result<Guard, Error> {
        self.request(permits, Wait::timeout(timeout)).await
    }

    /// Requests permits, again if another limit is in force and this handle is to do something about it: a request that
    /// was refused for it has no place in the queue yet.
    async fn request(&self, permits: u32, wait: Wait) -> Result<Guard, Error> {
        let mut followed = 0;
        loop {
            match self.primitive.acquire(&self.claim(permits)?, wait).await {
                Err(Error::LimitDiffers { in_force, .. }) if self.may_follow(followed) => {
                    followed += 1;
                    self.settle(in_force).await?;
                }
                acquired => return acquired,
            }
        }
    }

    fn may_follow(&self, times: u32) -> bool {
        self.on_other_limit != OnOtherLimit::Refuse && times < FOLLOW
    }

    /// Does what this handle is to do about another limit. Once it has set its own, it follows others.
    async fn settle(&self, in_force: u32) -> Result<(), Error> {
        let own = *self.own.lock();
        match own.filter(|_| self.on_other_limit == OnOtherLimit::Set) {
            Some(own) => {
                self.resize(own).await?;
                *self.own.lock() = None;
            }
            None => self.limit.restate(in_force),
        }
        Ok(())
    }

    pub(crate) async fn available(&self) -> Result<u32, Error> {
        let now = self.primitive.inspect(Detail::Counts).await?;
        Ok(now.limit.unwrap_or_else(|| self.limit()).saturating_sub(now.in_use))
    }

    pub(crate) async fn inspect(&self) -> Result<Inspection, Error> {
        self.primitive.inspect(Detail::Full).await
    }

    pub(crate) async fn resize(&self, limit: u32) -> Result<(), Error> {
        let limit = at_least_one("limit", limit)?;
        let Primitive { engine, resource, settings, .. } = &self.primitive;
        engine.check_process("resize", Some(self.primitive.name()))?;
        let answer = engine.backend().set_limit(resource, limit, settings.ttl).await;
        self.limit.follow(answer.map_err(|error| engine.error(error, "resize", Some(self.name())))?);
        tracing::info!(target: "leasehold::lease", name = %self.name(), limit, "resized");
        Ok(())
    }

    /// Prints a handle of this type.
    pub(crate) fn debug(&self, handle: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.primitive.debug(handle, f).field("limit", &self.limit()).finish_non_exhaustive()
    }

    /// A request that can never be granted is rejected here, unless the store may know a larger limit.
    fn claim(&self, permits: u32) -> Result<Claim, Error> {
        let permits = at_least_one("permits", permits)?;
        let stated = self.limit.get();
        if stated.version == 0 && permits > stated.permits {
            return Err(Error::permits_above(permits, stated.permits));
        }
        Ok(Claim::Permits(permits, stated))
    }
}

fn at_least_one(what: &'static str, n: u32) -> Result<u32, Error> {
    if n == 0 { Err(Error::invalid(what, "it is 0")) } else { Ok(n) }
}
