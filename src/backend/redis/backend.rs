//! The operations of the contract on one Redis server.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::calls::{self, read_released};
use super::descriptions::{Sent, describe};
use super::protocol::TOKENS_PER_GRANT;
use super::transport::{Transport, until_answered};
use super::{RedisBackend, renewals};
use crate::backend::{
    Answer, Answered, Backend, BackendError, Capabilities, Cause, Claim, Detail, Event, Finding, Inspection,
    LeaseId, LeaseRef, Limit, Listed, Released, Renew, Renewal, Request, Resource, Severity, StoreState,
};
use crate::background;
use crate::error::LossReason;
use crate::home::Home;
use crate::runtime::{spawn, spawn_on};

/// How long a request waits for its label and its note to be confirmed, after it was answered.
const DESCRIBED_WITHIN: Duration = Duration::from_millis(50);

impl Backend for RedisBackend {
    fn lease_id(&self) -> LeaseId {
        LeaseId::next(self.client)
    }

    fn request<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<Answer, BackendError>> {
        self.at_home(move || async move {
            let transport = self.ready(&request.lease.resource).await?;
            let described = self.descriptions.send_with_request(&self.commands, request);
            let asked = self.ask(&transport, request).await;
            written(described).await;
            if let Some(removed) = self.descriptions.send_unless_known(&self.commands, request, &asked) {
                written(Some(removed)).await;
            }
            let answer = self.polled(request, asked?);
            if let (Answer::Granted(_), Some(replicas)) = (&answer, &self.replicas)
                && let Err(error) = replicas.acknowledge(&request.lease.resource).await
            {
                self.release_in_background(&request.lease);
                return Err(error);
            }
            self.notifications.answered(request.lease.id, &answer);
            Ok(answer)
        })
    }

    fn renew<'a>(&'a self, renewals: &'a [Renew]) -> BoxStream<'a, Answered> {
        match self.check_open() {
            Ok(()) => {
                if let Some(described) = self.descriptions.send_with_renewals(&self.renewing, renewals)
                    && let Ok(here) = Handle::try_current()
                {
                    spawn_on(&here, described);
                }
                let descriptions = &self.descriptions;
                let answers = renewals::renew_all(&self.renewing, renewals);
                let is_lost =
                    |(_, answer): &Answered| matches!(answer, Ok(Renewal::Lost(LossReason::Expired)));
                answers
                    .inspect(move |answer| {
                        if is_lost(answer) {
                            descriptions.may_be_lost()
                        }
                    })
                    .boxed()
            }
            Err(_) => stream::iter((0..renewals.len()).map(|n| (n, Err(BackendError::Closed)))).boxed(),
        }
    }

    fn release<'a>(&'a self, lease: &'a LeaseRef) -> BoxFuture<'a, Result<Released, BackendError>> {
        self.at_home(move || async move {
            if self.never_connected() && self.has_requested(lease) {
                return self.check_open().map(|()| Released::Absent);
            }
            self.notifications.forget(lease.id);
            let described = self.descriptions.send_with_release(&self.commands, lease);
            let released = self.release_until_answered(lease, 0).await;
            written(described).await;
            released
        })
    }

    fn release_permits<'a>(
        &'a self,
        lease: &'a LeaseRef,
        keep: u32,
    ) -> BoxFuture<'a, Result<Released, BackendError>> {
        self.at_home(move || async move {
            if self.never_connected() && self.has_requested(lease) {
                return self.check_open().map(|()| Released::Absent);
            }
            self.release_until_answered(lease, keep).await
        })
    }

    fn handed_over(&self, lease: LeaseId) {
        self.descriptions.forget(lease);
        self.notifications.forget(lease);
    }

    fn force_release<'a>(&'a self, resource: &'a Resource) -> BoxFuture<'a, Result<bool, BackendError>> {
        self.at_home(move || async move {
            if resource.kind.is_semaphore() {
                return Err(BackendError::many_holders());
            }
            // Not repeated once it may have been executed.
            let not_sent = |error: &BackendError| {
                matches!(error, BackendError::NotSent { .. } | BackendError::RefusedForNow { .. })
            };
            let force = || async { calls::force(&self.ready(resource).await?, resource).await };
            Ok(until_answered(self.repeat_for, not_sent, force).await?.0)
        })
    }

    fn set_limit<'a>(
        &'a self,
        resource: &'a Resource,
        permits: u32,
        ttl: Duration,
    ) -> BoxFuture<'a, Result<Limit, BackendError>> {
        self.at_home(move || async move {
            let resize =
                || async { calls::set_limit(&self.ready(resource).await?, resource, permits, ttl).await };
            Ok(until_answered(self.repeat_for, BackendError::is_transient, resize).await?.0)
        })
    }

    fn inspect<'a>(
        &'a self,
        resource: &'a Resource,
        detail: Detail,
    ) -> BoxFuture<'a, Result<Inspection, BackendError>> {
        self.at_home(move || async move {
            let inspect = || async { calls::inspect(&self.ready(resource).await?, resource, detail).await };
            let (mut inspection, _) =
                until_answered(self.repeat_for, BackendError::is_transient, inspect).await?;
            if detail != Detail::Counts {
                let Inspection { holders, waiters, .. } = &mut inspection;
                describe(&self.commands, resource, holders, waiters).await;
            }
            Ok(inspection)
        })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxStream<'a, Result<Listed, BackendError>> {
        self.list_in_steps(vec![prefix])
    }

    fn list_any<'a>(&'a self, prefixes: &'a [String]) -> BoxStream<'a, Result<Listed, BackendError>> {
        self.list_in_steps(prefixes.iter().map(|prefix| &**prefix).collect())
    }

    fn events(&self) -> BoxStream<'static, Event> {
        self.notifications.events()
    }

    fn changes(&self, resource: &Resource) -> BoxStream<'static, ()> {
        if !resource.is_of_election() {
            // Nobody publishes them.
            return stream::pending().boxed();
        }
        self.notifications.observed.observe(&resource.key)
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn state(&self) -> StoreState {
        self.statuses.state()
    }

    fn state_changes(&self) -> BoxStream<'static, StoreState> {
        self.statuses.changes()
    }

    fn ping(&self) -> BoxFuture<'_, Result<(), BackendError>> {
        self.at_home(move || async move {
            self.connections.ready().await?;
            self.connections.ping().await
        })
    }

    fn check(&self) -> BoxFuture<'_, Result<Vec<Finding>, BackendError>> {
        self.at_home(move || async move {
            match self.connections.ready().await {
                Err(BackendError::Refused { source }) if !self.connections.are_subscribed() => {
                    Ok(vec![Finding::new(Severity::Refused, source.to_string())])
                }
                // The findings of a first check are found again.
                Ok(()) | Err(BackendError::Refused { .. }) => self.connections.check().await,
                Err(error) => Err(error),
            }
        })
    }

    fn release_from_own_thread<'a>(
        &'a self,
        lease: &'a LeaseRef,
        keep: u32,
    ) -> BoxFuture<'a, Result<Released, BackendError>> {
        async move {
            self.check_open()?;
            self.notifications.forget(lease.id);
            let whole = (keep == 0).then_some(lease);
            let described =
                whole.and_then(|lease| self.descriptions.send_with_release(&self.renewing, lease));
            let renewing = self.renewing.of(&lease.resource);
            let released = release(&renewing, lease, keep, self.gap()).await;
            written(described).await;
            released
        }
        .boxed()
    }

    fn home(&self) -> Option<Arc<Home>> {
        Some(Arc::clone(&self.home))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.close_connections().boxed()
    }
}

impl RedisBackend {
    /// A call, which depends on the home. It is created within the future that is returned: a future that takes another
    /// one by value has room for it twice.
    pub(super) fn at_home<'a, T: Send, F: Future<Output = T> + Send>(
        &'a self,
        call: impl FnOnce() -> F + Send + 'a,
    ) -> BoxFuture<'a, T> {
        async move { self.home.awaiting(pin!(call())).await }.boxed()
    }

    /// The transport for a call. While there is no connection to the server of `resource`, calls that should fail fast
    /// do so here.
    async fn ready(&self, resource: &Resource) -> Result<Arc<Transport>, BackendError> {
        let fast = |source: Cause| BackendError::FailedFast { source };
        match self.connections.ready().await {
            Err(error) if self.fail_fast && error.is_transient() => return Err(fast(error.into())),
            ready => ready?,
        }
        let transport = self.commands.of(resource);
        if self.fail_fast && transport.connection().is_unreachable() {
            return Err(fast(transport.connection().not_connected().into()));
        }
        Ok(transport)
    }

    /// Releases all permits but `keep`, repeatedly until the server answers or the time limit has passed.
    async fn release_until_answered(&self, lease: &LeaseRef, keep: u32) -> Result<Released, BackendError> {
        let release = || async {
            let transport = self.transport_of_releases(&lease.resource).await?;
            release(&transport, lease, keep, self.gap()).await
        };
        let repeat_for = self.repeat_for;
        #[cfg(leasehold_planted)]
        let repeat_for = crate::planted::repeat_for(repeat_for);
        let released = until_answered(repeat_for, BackendError::is_transient, release).await?;
        Ok(found(released))
    }

    /// Whether its store has refused this client so far, or has never been reached. Then no request has ever been sent,
    /// and there is nothing to release.
    fn never_connected(&self) -> bool {
        !self.connections.are_accepted()
    }

    /// Whether this client is the one that has requested a lease, not one that renews it for another client, which
    /// needs no more than the connections of the crate's own thread.
    fn has_requested(&self, lease: &LeaseRef) -> bool {
        lease.id.client() == self.client
    }

    async fn ask(&self, transport: &Arc<Transport>, request: &Request) -> Result<Answer, BackendError> {
        if u64::from(request.tokens) > TOKENS_PER_GRANT {
            let reason =
                format!("{} tokens were requested, but a grant has {TOKENS_PER_GRANT}", request.tokens);
            return Err(BackendError::Unsupported { reason });
        }
        match &request.claim {
            Claim::Permits(permits, limit) => {
                calls::acquire_permits(transport, request, *permits, *limit).await
            }
            Claim::Sole | Claim::Owner(_) => calls::acquire(transport, request, self.repair, None).await,
        }
    }

    /// The answer of a store that is polled, if the settings say so.
    pub(super) fn polled(&self, request: &Request, mut answer: Answer) -> Answer {
        let interval = self.poll_interval.filter(|_| !request.lease.resource.kind.is_semaphore());
        if let (Answer::Queued(queued), Some(interval)) = (&mut answer, interval) {
            let pause = queued.ask_again_in.map_or(interval, |pause| pause.min(interval));
            queued.ask_again_in = Some(pause);
        }
        answer
    }

    /// The transport of this thread: what is sent from the crate's own thread while the client lives elsewhere depends
    /// on no connection there.
    pub(super) async fn transport_of_releases(
        &self,
        resource: &Resource,
    ) -> Result<Arc<Transport>, BackendError> {
        if background::is_current() && !self.home.has_moved() {
            self.check_open()?;
            return Ok(self.renewing.of(resource));
        }
        self.connections.ready().await?;
        Ok(self.commands.of(resource))
    }

    /// Releases in the background what was granted, but does not count.
    fn release_in_background(&self, lease: &LeaseRef) {
        let (transport, lease) = (self.commands.of(&lease.resource), lease.clone());
        let (gap, time_limit) = (self.gap(), self.repeat_for);
        spawn(async move {
            let release = || release(&transport, &lease, 0, gap);
            if let Err(error) = until_answered(time_limit, BackendError::is_transient, release).await {
                tracing::warn!(target: "leasehold::store", name = lease.resource.name(), %error, "a lease could not be released; it ends when it expires");
            }
        });
    }

    /// For how long a release leaves a lock free when that is due: a quarter longer than the interval at which others
    /// poll for it, and 1 ms longer at least, because they are sometimes late.
    fn gap(&self) -> Option<Duration> {
        self.poll_interval.map(|interval| interval + (interval / 4).max(Duration::from_millis(1)))
    }

    fn check_open(&self) -> Result<(), BackendError> {
        if self.closing.is_closed() { Err(BackendError::Closed) } else { Ok(()) }
    }
}

/// Waits for a moment until descriptions have been written, so that whoever has been granted something finds its label.
/// They have been sent, and on a single server they have arrived before the answer to the request.
pub(super) async fn written(described: Option<Sent>) {
    if let Some(described) = described
        && timeout(DESCRIBED_WITHIN, described).await.is_err()
    {
        tracing::debug!("a label or a note has not been confirmed yet");
    }
}

/// What a release has found. An earlier attempt, whose answer was lost, may have released the lease.
const fn found((released, repeated): (Released, bool)) -> Released {
    if repeated { released.by_repetition() } else { released }
}

/// Releases all permits except `keep`, once. A lock is not divisible: keeping one permit keeps all of it.
async fn release(
    transport: &Arc<Transport>,
    lease: &LeaseRef,
    keep: u32,
    gap: Option<Duration>,
) -> Result<Released, BackendError> {
    if keep > 0 && !lease.resource.kind.is_semaphore() {
        return Ok(Released::Held);
    }
    let operation = calls::to_release(lease, keep, gap);
    // The answer to a batch has what its leases' clients are told (batch.rs).
    let operation = if transport.notifications.are_for(lease.id) { operation } else { operation.alone() };
    transport.ask(operation, transport.reply_timeout, read_released).await
}
