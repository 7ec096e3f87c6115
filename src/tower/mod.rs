//! Layers for services of [tower](https://docs.rs/tower): one holds a permit for each request, one a lock.
//!
//! ```
//! # use leasehold::tower::{LockLayer, PermitLayer};
//! # use tower::{ServiceBuilder, ServiceExt, service_fn};
//! # #[derive(Debug)]
//! # struct Request { account: String }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower::BoxError> {
//! # let client = leasehold::Client::memory();
//! # let handler = service_fn(|request: Request| async move { Ok::<_, std::io::Error>(request.account) });
//! let service = ServiceBuilder::new()
//!     .layer(PermitLayer::new(client.counting_semaphore("payments", 20)?)) // 20 at a time in all processes
//!     .layer(LockLayer::new(client, |request: &Request| request.account.clone())) // and one for each account
//!     .service(handler);
//! # assert_eq!(service.oneshot(Request { account: "7".to_owned() }).await?, "7");
//! # Ok(()) }
//! ```
//!
//! # When what is held
//!
//! A layer acquires in the future that `call` returns, and holds until the response is there: until the future of the
//! inner service is done. A body that is streamed after that is not covered. If it has to be, acquire in the handler,
//! and move the guard into the body.
//!
//! If the lease is lost before, the future of the inner service is dropped, and the request fails with status 503:
//! see [`Guard::protect`](crate::Guard::protect).
//!
//! `poll_ready` is that of the inner service. Other than tower's `ConcurrencyLimit`, no permit is acquired there: a
//! service that is ready need not be called soon or at all, and while a permit of one process lies idle, the other
//! processes would wait for it; and a lock is not known before the request is. So requests wait in their futures, and
//! how many there are is not limited here. Set a `wait_limit`, and if requests can arrive faster than they give up, put
//! `LoadShed` and `ConcurrencyLimit` of tower before the layer.
//!
//! # Errors
//!
//! The error of the services is [`BoxError`], as that of tower's own. It is either that of the inner service,
//! unchanged, or a [`Rejected`], which says what to answer. [`status`] finds it:
//!
//! ```
//! # use leasehold::{BoxError, tower::status};
//! async fn answer(error: BoxError) -> (u16, String) {
//!     (status(&error).unwrap_or(500), error.to_string())
//! }
//! # drop(answer("".into()));
//! ```
//!
//! With axum, that is the function for `HandleErrorLayer`, with `StatusCode::from_u16`.
//!
//! # Cancel safety
//!
//! A request whose future is dropped leaves nothing behind: it gives up its place in the queue, or releases what it
//! holds in the background, as the future of [`lock`](crate::DistMutex::lock) and a dropped [`Guard`] do.

mod lock;
mod permit;
mod rejected;

use std::mem;

pub use lock::{Acquired, Ignored, Lock, LockLayer, OnAcquired};
pub use permit::{Permit, PermitLayer};
pub use rejected::{Rejected, status};

use crate::error::BoxError;
use crate::guard::Guard;

/// Takes the service that `poll_ready` was called on, and leaves one that was not.
fn take_ready<S: Clone>(service: &mut S) -> S {
    let other = service.clone();
    mem::replace(service, other)
}

/// Runs a request for as long as the lease is held.
async fn run_under<T, E: Into<BoxError>>(
    guard: Guard,
    request: impl Future<Output = Result<T, E>>,
) -> Result<T, BoxError> {
    match guard.protect(request).await {
        Ok(response) => response.map_err(Into::into),
        Err(lost) => Err(Rejected::lost(guard.name(), lost).into()),
    }
}
