//! A lock for each request.

use std::fmt;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tower_layer::Layer;
use tower_service::Service;

use super::{Rejected, run_under, take_ready};
use crate::client::Client;
use crate::error::BoxError;
use crate::guard::Guard;

/// Conflict.
const TAKEN: u16 = 409;

/// Holds a lock while a request is served, so that requests with the same key are served one after another in all
/// processes: see [the module](crate::tower).
///
/// The key is the name of a [mutex](crate::DistMutex) with the client's [default
/// options](crate::ClientBuilder::mutex_options). The function that takes it from the request returns a `String`, or an
/// `Option<String>`: without a key, a request needs no lock.
///
/// ```
/// # use std::collections::HashMap;
/// # use std::time::Duration;
/// # use leasehold::tower::LockLayer;
/// # #[derive(Clone)]
/// # struct Request { method: &'static str, path: String }
/// # let client = leasehold::Client::memory();
/// let writes = |request: &Request| (request.method != "GET").then(|| request.path.clone());
/// let layer = LockLayer::new(client, writes).wait_limit(Duration::from_secs(2));
/// # drop(layer);
/// ```
#[derive(Clone)]
pub struct LockLayer<F, A = Ignored> {
    client: Client,
    key: F,
    wait_limit: Option<Duration>,
    on_acquired: A,
}

impl<F> LockLayer<F> {
    /// A layer with the locks whose names `key` takes from the requests. No I/O.
    pub const fn new(client: Client, key: F) -> Self {
        Self { client, key, wait_limit: None, on_acquired: Ignored }
    }
}

impl<F, A> LockLayer<F, A> {
    /// How long a request waits for the lock; then it fails with status 409. With zero, it does not join the queue.
    ///
    /// Default: none. A request waits as long as necessary, and while the store does not answer for as long as
    /// [`lock`](crate::DistMutex::lock) does.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::tower::LockLayer;
    /// let layer = LockLayer::new(leasehold::Client::memory(), |account: &String| account.clone());
    /// let layer = layer.wait_limit(Duration::from_secs(2)); // then 409
    /// # drop(layer);
    /// ```
    #[must_use]
    pub fn wait_limit(mut self, limit: Duration) -> Self {
        self.wait_limit = Some(limit);
        self
    }

    /// Calls `tell` with the request and the guard of its lock before the inner service is called, so that the handler
    /// can know the token:
    ///
    /// ```
    /// # use leasehold::{FencingToken, Guard, tower::LockLayer};
    /// # struct Request { account: String, token: Option<FencingToken> }
    /// # let client = leasehold::Client::memory();
    /// let layer = LockLayer::new(client, |request: &Request| request.account.clone())
    ///     .on_acquired(|request: &mut Request, guard: &Guard| request.token = Some(guard.token()));
    /// # drop(layer);
    /// ```
    ///
    /// With the requests of the crate `http`: `request.extensions_mut().insert(guard.token())`.
    pub fn on_acquired<T>(self, tell: T) -> LockLayer<F, Acquired<T>> {
        let Self { client, key, wait_limit, .. } = self;
        LockLayer { client, key, wait_limit, on_acquired: Acquired(tell) }
    }
}

impl<F, A> fmt::Debug for LockLayer<F, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockLayer")
            .field("client", &self.client)
            .field("wait_limit", &self.wait_limit)
            .finish_non_exhaustive()
    }
}

impl<S, F: Clone, A: Clone> Layer<S> for LockLayer<F, A> {
    type Service = Lock<S, F, A>;

    fn layer(&self, inner: S) -> Self::Service {
        Lock { inner, layer: self.clone() }
    }
}

/// The service of a [`LockLayer`].
///
/// ```
/// use leasehold::tower::{Lock, LockLayer};
/// use tower::Layer;
///
/// let layer = LockLayer::new(leasehold::Client::memory(), |account: &String| account.clone());
/// let inner = tower::service_fn(|account: String| async move { Ok::<_, std::io::Error>(account) });
/// let service: Lock<_, _> = layer.layer(inner);
/// # drop(service);
/// ```
#[derive(Clone, Debug)]
pub struct Lock<S, F, A = Ignored> {
    inner: S,
    layer: LockLayer<F, A>,
}

impl<S, F, A, Key, Request> Service<Request> for Lock<S, F, A>
where
    S: Service<Request, Future: Send, Error: Into<BoxError>> + Clone + Send + 'static,
    F: Fn(&Request) -> Key,
    A: OnAcquired<Request> + Clone + Send + 'static,
    Key: Into<Option<String>>,
    Request: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        let mut inner = take_ready(&mut self.inner);
        let Some(name) = (self.layer.key)(&request).into() else {
            return inner.call(request).map(|response| response.map_err(Into::into)).boxed();
        };
        let LockLayer { client, wait_limit, on_acquired, .. } = &self.layer;
        let (client, wait_limit, on_acquired) = (client.clone(), *wait_limit, on_acquired.clone());
        async move {
            let guard = acquire(&client, &name, wait_limit).await?;
            on_acquired.tell(&mut request, &guard);
            run_under(guard, inner.call(request)).await
        }
        .boxed()
    }
}

async fn acquire(client: &Client, name: &str, wait_limit: Option<Duration>) -> Result<Guard, Rejected> {
    let locked = async {
        let mutex = client.mutex(name)?;
        match wait_limit {
            None => mutex.lock().await.map(Some),
            Some(Duration::ZERO) => mutex.try_lock().await,
            Some(limit) => mutex.lock_timeout(limit).await.map(Some),
        }
    };
    let locked = locked.await.map_err(|error| Rejected::not_acquired(name, error, TAKEN))?;
    locked.ok_or_else(|| Rejected::taken(name, TAKEN))
}

/// What a [`LockLayer`] does with a request whose lock was acquired. Implemented by [`Ignored`] and [`Acquired`].
///
/// ```
/// use leasehold::tower::{LockLayer, OnAcquired};
///
/// fn tells<F, A: OnAcquired<String>>(_: &LockLayer<F, A>) {}
///
/// let layer = LockLayer::new(leasehold::Client::memory(), |account: &String| account.clone());
/// tells(&layer);
/// tells(&layer.on_acquired(|account: &mut String, guard: &leasehold::Guard| *account += guard.name()));
/// ```
pub trait OnAcquired<Request> {
    /// The lock of `request` is held by `guard`.
    fn tell(&self, request: &mut Request, guard: &Guard);
}

/// Nothing: the handler is not told of the lock.
///
/// ```
/// use leasehold::tower::{Ignored, LockLayer};
///
/// let layer: LockLayer<_, Ignored> = LockLayer::new(leasehold::Client::memory(), |account: &String| account.clone());
/// # drop(layer);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Ignored;

impl<Request> OnAcquired<Request> for Ignored {
    fn tell(&self, _: &mut Request, _: &Guard) {}
}

/// Calls a function: see [`LockLayer::on_acquired`].
///
/// ```
/// use leasehold::tower::{Acquired, LockLayer};
///
/// let layer = LockLayer::new(leasehold::Client::memory(), |account: &String| account.clone());
/// let print = |_: &mut String, guard: &leasehold::Guard| println!("{guard:?}");
/// let layer: LockLayer<_, Acquired<_>> = layer.on_acquired(print);
/// # drop(layer);
/// ```
#[derive(Clone, Copy)]
pub struct Acquired<T>(T);

impl<Request, T: Fn(&mut Request, &Guard)> OnAcquired<Request> for Acquired<T> {
    fn tell(&self, request: &mut Request, guard: &Guard) {
        (self.0)(request, guard);
    }
}

impl<T> fmt::Debug for Acquired<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquired").finish_non_exhaustive()
    }
}
