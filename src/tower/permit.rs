//! A permit for each request.

use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tower_layer::Layer;
use tower_service::Service;

use super::{Rejected, run_under, take_ready};
use crate::error::BoxError;
use crate::fair_semaphore::FairSemaphore;
use crate::guard::Guard;
use crate::semaphore::CountingSemaphore;

/// Too Many Requests.
const TAKEN: u16 = 429;

/// Holds a permit of a semaphore while a request is served, so that all processes together serve no more than its limit
/// at a time: see [the module](crate::tower).
///
/// ```
/// # use std::time::Duration;
/// # use leasehold::tower::PermitLayer;
/// # fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::memory();
/// let layer = PermitLayer::new(client.fair_semaphore("slow-service", 5)?).wait_limit(Duration::from_secs(2));
/// # drop(layer);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct PermitLayer {
    semaphore: Semaphore,
    wait_limit: Option<Duration>,
}

#[derive(Clone, Debug)]
enum Semaphore {
    Counting(CountingSemaphore),
    Fair(FairSemaphore),
}

impl PermitLayer {
    /// A layer with the permits of a [`CountingSemaphore`] or a [`FairSemaphore`]. No I/O.
    pub fn new(semaphore: impl Into<Self>) -> Self {
        semaphore.into()
    }

    /// How long a request waits for a permit; then it fails with status 429. With zero, it does not join the queue.
    ///
    /// Default: none. A request waits as long as necessary, and while the store does not answer for as long as
    /// [`acquire`](CountingSemaphore::acquire) does.
    #[must_use]
    pub const fn wait_limit(mut self, limit: Duration) -> Self {
        self.wait_limit = Some(limit);
        self
    }

    async fn acquire(&self) -> Result<Guard, Rejected> {
        let acquired = match (&self.semaphore, self.wait_limit) {
            (Semaphore::Counting(calls), None) => calls.acquire().await.map(Some),
            (Semaphore::Counting(calls), Some(Duration::ZERO)) => calls.try_acquire().await,
            (Semaphore::Counting(calls), Some(limit)) => calls.acquire_timeout(limit).await.map(Some),
            (Semaphore::Fair(gate), None) => gate.acquire().await.map(Some),
            (Semaphore::Fair(gate), Some(Duration::ZERO)) => gate.try_acquire().await,
            (Semaphore::Fair(gate), Some(limit)) => gate.acquire_timeout(limit).await.map(Some),
        };
        acquired
            .map_err(|error| Rejected::not_acquired(self.name(), error, TAKEN))?
            .ok_or_else(|| Rejected::taken(self.name(), TAKEN))
    }

    fn name(&self) -> &str {
        match &self.semaphore {
            Semaphore::Counting(calls) => calls.name(),
            Semaphore::Fair(gate) => gate.name(),
        }
    }
}

impl From<CountingSemaphore> for PermitLayer {
    fn from(semaphore: CountingSemaphore) -> Self {
        Self { semaphore: Semaphore::Counting(semaphore), wait_limit: None }
    }
}

impl From<FairSemaphore> for PermitLayer {
    fn from(semaphore: FairSemaphore) -> Self {
        Self { semaphore: Semaphore::Fair(semaphore), wait_limit: None }
    }
}

impl<S> Layer<S> for PermitLayer {
    type Service = Permit<S>;

    fn layer(&self, inner: S) -> Permit<S> {
        Permit { inner, layer: self.clone() }
    }
}

/// The service of a [`PermitLayer`].
///
/// ```
/// use leasehold::tower::{Permit, PermitLayer};
/// use tower::Layer;
///
/// let layer = PermitLayer::new(leasehold::Client::memory().counting_semaphore("payments", 20)?);
/// let service: Permit<_> = layer.layer(tower::service_fn(|sum: u32| async move { Ok::<_, std::io::Error>(sum) }));
/// # drop(service);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Permit<S> {
    inner: S,
    layer: PermitLayer,
}

impl<S, Request> Service<Request> for Permit<S>
where
    S: Service<Request, Future: Send, Error: Into<BoxError>> + Clone + Send + 'static,
    Request: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let (mut inner, layer) = (take_ready(&mut self.inner), self.layer.clone());
        async move {
            let guard = layer.acquire().await?;
            run_under(guard, inner.call(request)).await
        }
        .boxed()
    }
}
