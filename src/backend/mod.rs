//! What a store must do to manage leases: the [`Backend`] trait and its contract.
//!
//! A store never waits for another client: it answers every call at once, and reports later grants as
//! [events](Backend::events). The client keeps track of its waiters. It repeats the request of every waiting lease at
//! least every third of its TTL, and learns from the events when a lease is granted before that.
//!
//! A [`Resource`] is a key and the rules under which it is held ([`Kind`]); a request says how much of that resource
//! it [claims](Claim). A mutex and a reentrant lock of one key are the same lock, with one queue of waiters.
//!
//! A store on a database that can change one record atomically need not implement any of this: see [`LedgerStore`].
//!
//! # The contract
//!
//! Every point is checked by one or more functions in `conformance` (with the feature of that name), which are run
//! against every backend. Points that not every store can guarantee apply only as far as the store's [`Capabilities`]
//! claim them.
//!
//! 1. Every acquisition has its own [`LeaseId`], created before anything is sent. Every operation on a lease is
//!    idempotent per lease id, so it can be repeated when an answer is lost: a repeated request is answered with its
//!    earlier grant, or keeps its place.
//! 2. `release` of a lease id removes it wherever it is: held, queued or unknown. The operations of one client on one
//!    lease are executed in the order in which they were called, even if their futures were dropped: for instance, a
//!    request that was given up, and then its release.
//! 3. A grant carries a fencing token, issued in the same atomic step and strictly greater than every earlier token for
//!    that key, even after the key was idle or expired, or its store was restarted. It reserves as many consecutive
//!    tokens as its request says, for the holders to which the lease may be passed on within a client.
//! 4. Every place in the queue has a [`Ticket`] that is never used again. Both the answer [`Queued`](Answer::Queued)
//!    and the event of the grant contain it: a client accepts that event only if it has the ticket of the last answer.
//!    Such a grant ends when the place would have ended, a TTL after the last request for it, so a client never trusts
//!    a lease for longer than the store keeps it.
//! 5. Release and renewal affect their own lease only, never another holder's.
//! 6. A renewal is answered with renewed, lost, or (as an error) unknown. Unknown neither extends nor ends the lease.
//!    Leases that are renewed together are answered individually, and a failure of one does not affect the others.
//! 7. A place whose request is not repeated is gone within one TTL. All places of a client that died are gone within
//!    one TTL in total, and block those behind them for no longer than that.
//! 8. If the store says so, requests are served in order of arrival at the store. A counting semaphore keeps that order
//!    among the requests that fit: a smaller request may overtake a larger one, so that no permit is idle while a
//!    waiter could use it.
//! 9. If the store says so, the work per hand-over does not grow with the number of waiters. (For a counting semaphore
//!    it grows with the number of different request sizes among them.)
//! 10. The store's time, or the store's own leases, decide when a lease ends; the clients' clocks do not.
//! 11. A lock's owner is admitted again at once, ahead of all waiters, under the same token; each hold is a separate
//!     lease, and the lock is free when the last of them has ended.
//! 12. Permits held never exceed the limit in force when they were granted. A release hands them to exactly those
//!     waiters that now fit, and may return only part of a lease's permits.
//! 13. The limit in force is the one stated by the first request; a request that states a different one is refused,
//!     with both limits. It stays in force while there are holders or waiters, and for one to two TTLs afterwards.
//!     `set_limit` changes it for all clients at once, including those that know its version, and revokes nothing.
//! 14. A lease that was released by force is remembered until it would have ended: its renewal is answered with lost
//!     for the reason [`Revoked`](crate::LossReason::Revoked), whether or not the event has arrived, and whoever holds
//!     the lock by then. Its release may be answered with [`Released::Revoked`]; after any other answer that it is
//!     gone, the client sends a renewal to find out why. A store that has lost its data does not know. If there are
//!     more than a few dozen, it may forget those that end first.
//! 15. If the store says so, `inspect` reports the label and the note of the first request of each lease, as they were
//!     given, and for how long it has been held: by the store's clock, or by those of the clients if it has none. They
//!     decide nothing.
//! 16. If the store says so, `list` reports what is held or awaited.

use std::fmt;

use futures::future::{BoxFuture, ready};
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};

pub(crate) mod by_url;
#[cfg(feature = "conformance")]
pub mod conformance;
mod delegate;
#[cfg(any(feature = "_records", feature = "_redis"))]
mod dial;
#[cfg(feature = "etcd")]
pub(crate) mod etcd;
mod event_sender;
mod event_text;
mod fail_fast;
#[cfg(all(any(test, fuzzing), feature = "all-stores"))]
pub mod fuzzing;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod key_pages;
mod lease_id;
mod ledger;
mod ledger_backend;
pub(crate) mod memory;
#[cfg(feature = "mysql")]
pub(crate) mod mysql;
#[cfg(any(feature = "_redis", feature = "postgres", feature = "zookeeper"))]
mod observed;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(feature = "_records")]
mod records;
#[cfg(feature = "_redis")]
pub(crate) mod redis;
#[cfg(feature = "_redis")]
pub(crate) mod redlock;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod sql;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
pub(crate) mod state;
#[cfg(any(feature = "_records", feature = "_redis"))]
pub(crate) mod tls;
pub(crate) mod types;
#[cfg(any(feature = "_records", feature = "_redis", feature = "sqlite"))]
mod url_parts;
#[cfg(feature = "zookeeper")]
pub(crate) mod zookeeper;

use delegate::delegate;
use event_sender::EventSender;
pub use fail_fast::FailFast;
pub use lease_id::LeaseId;
pub use ledger::{Effects, Ledger, Stamp};
pub use ledger_backend::{LedgerBackend, LedgerStore};
pub use types::{
    Answer, Answered, Capabilities, Claim, Detail, Event, Grant, Kind, LeaseRef, Limit, Listed, Queued,
    Released, Renew, Renewal, Request, Resource, SUMMARY_HOLDERS, Ticket, Wakes,
};

// What users of a client see as well is in the crate's root, and what belongs to one store in a module of its own.
#[cfg(feature = "_redis")]
pub(crate) use self::redis::{RedisBackend, RedisBuilder};
#[cfg(feature = "_redis")]
pub(crate) use self::redlock::RedlockBackend;
pub(crate) use crate::error::*;
pub(crate) use memory::MemoryBackend;
pub(crate) use state::*;
pub(crate) use types::*;

/// A store that manages leases. See the [module documentation](self) for the contract.
///
/// ```
/// # use std::time::Duration;
/// # use leasehold::MemoryBackend;
/// # use leasehold::backend::{Answer, Backend, Claim, Kind, LeaseRef, Released, Request, Resource};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::BackendError> {
/// let store = MemoryBackend::new();
/// let resource = Resource::new("lock:cart:7", Kind::Mutex);
/// let lease = LeaseRef::new(store.lease_id(), resource);
/// let answer = store.request(&Request::new(lease.clone(), Claim::Sole, Duration::from_secs(30))).await?;
/// assert!(matches!(answer, Answer::Granted(_)));
/// assert_eq!(store.release(&lease).await?, Released::Held);
/// # Ok(()) }
/// ```
///
/// Every future may be dropped at any point, on any thread. The outcome is then unknown, and the caller repeats the
/// call or releases the lease.
///
/// All calls fail with [`BackendError::NotSent`] if the store has certainly not received the call, with
/// [`BackendError::Unanswered`] if the outcome is unknown, with [`BackendError::RefusedForNow`] if the store declined
/// for a reason that can be over within seconds (nothing was executed), with [`BackendError::Refused`] if it declined
/// for another reason, with [`BackendError::WrongType`] if something else is stored under the key, and with
/// [`BackendError::Closed`] after `close`.
///
/// If [`Capabilities::own_thread`] is set, `renew` is called on the crate's own thread, except after a release that has
/// found nothing (point 14 of the contract), and when a lease is resumed that another process has handed over. So are `release` and `release_permits` when a guard is dropped outside a
/// runtime. Everything else is called on the runtimes of the application, and, once the first of them has ended or was
/// found to make no progress, also on that thread.
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Creates the id of a new acquisition: usually [`LeaseId::next`], with a random UUID for this client. Ids cannot
    /// be guessed and are never used again, nor is the sequence number in them.
    fn lease_id(&self) -> LeaseId;

    /// Requests a resource, for the first time or again. Answers at once, without waiting for other clients.
    fn request<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<Answer, BackendError>>;

    /// Extends held leases to a full TTL from now, by the store's clock: any number of them, of any kinds and TTLs.
    /// Every request is answered once, with its index, in any order, and independently of the others.
    fn renew<'a>(&'a self, renewals: &'a [Renew]) -> BoxStream<'a, Answered>;

    /// Ends one lease, whether it is held or queued, and grants what becomes free to the next waiters in the queue.
    fn release<'a>(&'a self, lease: &'a LeaseRef) -> BoxFuture<'a, Result<Released, BackendError>>;

    /// Returns all permits of a lease except `keep` of them, which is at least 1. Never gives a lease more permits than
    /// it has.
    fn release_permits<'a>(
        &'a self,
        lease: &'a LeaseRef,
        keep: u32,
    ) -> BoxFuture<'a, Result<Released, BackendError>>;

    /// Ends all holds of a lock, and notifies the holders at once if the store can push. Returns whether there were
    /// any. Not available for semaphores. Not idempotent: it is never repeated.
    fn force_release<'a>(&'a self, resource: &'a Resource) -> BoxFuture<'a, Result<bool, BackendError>>;

    /// Changes the limit of a semaphore to `permits` for all clients. Permits that become free are granted at once;
    /// nothing is revoked. The limit stays in force for one to two times `ttl` if the semaphore is not used.
    fn set_limit<'a>(
        &'a self,
        resource: &'a Resource,
        permits: u32,
        ttl: std::time::Duration,
    ) -> BoxFuture<'a, Result<Limit, BackendError>>;

    /// Returns who holds a resource and who waits for it, in as much detail as `detail` says. Changes nothing.
    fn inspect<'a>(
        &'a self,
        resource: &'a Resource,
        detail: Detail,
    ) -> BoxFuture<'a, Result<Inspection, BackendError>>;

    /// What is held or awaited under keys that begin with `prefix`, in no guaranteed order, in small steps that hold up
    /// no other client: what is held or awaited throughout is reported once, and what begins or ends meanwhile may be
    /// missing or reported. A resource of which no live hold or place is left is not reported. Changes nothing. Stores
    /// that cannot do it fail with [`BackendError::Unsupported`].
    fn list<'a>(&'a self, prefix: &'a str) -> BoxStream<'a, Result<Listed, BackendError>> {
        let _ = prefix;
        stream::iter([Err(BackendError::no_list())]).boxed()
    }

    /// As [`list`](Self::list) for each of these prefixes, none of which begins with another one: for stores to which
    /// one pass over all of them costs less.
    fn list_any<'a>(&'a self, prefixes: &'a [String]) -> BoxStream<'a, Result<Listed, BackendError>> {
        stream::iter(prefixes).flat_map(move |prefix| self.list(prefix)).boxed()
    }

    /// The events for this client from now on. A later stream replaces an earlier one. The stream of a store without
    /// events stays pending forever; it must not end.
    fn events(&self) -> BoxStream<'static, Event>;

    /// Yields whenever who holds this resource may have changed, as far as the store can push that to clients that
    /// neither hold it nor wait for it; some stores push only what concerns the locks of elections. Whoever must not
    /// miss a change also inspects the resource from time to time. Never ends. By default, nothing is pushed.
    fn changes(&self, resource: &Resource) -> BoxStream<'static, ()> {
        let _ = resource;
        stream::pending().boxed()
    }

    /// The store's address and what it supports.
    fn capabilities(&self) -> &Capabilities;

    /// Whether the store can currently be reached. A store without connections is always connected.
    fn state(&self) -> StoreState {
        StoreState::of(vec![NodeState::new(self.capabilities().store.clone(), Status::Connected)])
    }

    /// A stream of state changes; if several follow each other quickly, only the last is reported. It need not end.
    fn state_changes(&self) -> BoxStream<'static, StoreState> {
        stream::pending().boxed()
    }

    /// Returns when the store has answered.
    fn ping(&self) -> BoxFuture<'_, Result<(), BackendError>> {
        ready(Ok(())).boxed()
    }

    /// Checks the servers of the store for problems and risky settings.
    fn check(&self) -> BoxFuture<'_, Result<Vec<Finding>, BackendError>> {
        ready(Ok(Vec::new())).boxed()
    }

    /// As `release` and `release_permits`, from the crate's own thread: depends on no runtime of the application. May
    /// come before a request for the lease that is on its way, so only [`Released::Held`] says that nothing is left.
    #[doc(hidden)]
    fn release_from_own_thread<'a>(
        &'a self,
        lease: &'a LeaseRef,
        keep: u32,
    ) -> BoxFuture<'a, Result<Released, BackendError>> {
        if keep == 0 { self.release(lease) } else { self.release_permits(lease, keep) }
    }

    /// Another client has this lease by now: nothing more is to be kept for it. Whatever is stored stays there.
    #[doc(hidden)]
    fn handed_over(&self, lease: LeaseId) {
        let _ = lease;
    }

    /// Where the connections of this crate's own stores live, if they depend on a runtime of the application.
    #[doc(hidden)]
    fn home(&self) -> Option<std::sync::Arc<crate::home::Home>> {
        None
    }

    /// Closes connections and ends background work. Later calls fail with [`BackendError::Closed`].
    fn close(&self) -> BoxFuture<'_, ()>;
}
