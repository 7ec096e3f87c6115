//! The store inside the process: the embedded default, and the contract in readable form.
//!
//! All state sits behind one mutex that is never held across an await. Time is tokio's, so a paused clock
//! drives it. A waiter is a oneshot channel: a waiter whose future is gone has a closed channel, and the
//! hand-over skips it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{
    AcquireRequest, Acquired, Backend, BackendError, Capabilities, Grant, Holder, Inspection, LeaseId,
    LeaseIds, Released, RenewRequest, Renewal, Revocation, Wait, Waiter, Whose,
};
use crate::error::LossReason;
use crate::fence::FencingToken;
use crate::sync::Mutex;

/// Locks for the tasks of one process, and a stand-in for Redis in tests.
///
/// Everything is forgotten when the last client of the store is gone; tokens of a later store are greater all
/// the same, because they follow the clock.
#[derive(Debug)]
pub struct MemoryBackend {
    store: Arc<Mutex<Store>>,
    ids: LeaseIds,
    capabilities: Capabilities,
    closed: CancellationToken,
}

impl MemoryBackend {
    /// A new, empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::on(Arc::default())
    }

    /// Another client of the same store, as another process would be to Redis.
    #[must_use]
    pub fn peer(&self) -> Self {
        Self::on(Arc::clone(&self.store))
    }

    /// Forgets everything, as a server restarted without its disk does. Waiters find out by themselves.
    pub fn flush(&self) {
        *self.store.lock() = Store::default();
    }

    /// How many waiters all hand-overs so far have passed or served: what point 9 of the contract is about.
    #[cfg(feature = "conformance")]
    #[must_use]
    pub fn waiters_visited(&self) -> u64 {
        self.store.lock().waiters_visited
    }

    fn on(store: Arc<Mutex<Store>>) -> Self {
        Self {
            store,
            ids: LeaseIds::new(),
            capabilities: Capabilities::new("memory:", true),
            closed: CancellationToken::new(),
        }
    }

    async fn wait(&self, request: &AcquireRequest) -> Result<Acquired, BackendError> {
        let mut grants = match self.store.lock().request(request) {
            Requested::Granted(grant) => return Ok(Acquired::Granted(grant)),
            Requested::Busy => return Ok(Acquired::Busy),
            Requested::Queued(grants) => grants,
        };
        tracing::debug!(key = &*request.key, "waiting");
        loop {
            let look_again = self.store.lock().next_change(request);
            tokio::select! {
                biased;
                grant = &mut grants => match grant {
                    Ok(grant) => return Ok(Acquired::Granted(grant)),
                    // The queue was flushed from under this request: it stands in line again.
                    Err(_) => match self.store.lock().request(request) {
                        Requested::Granted(grant) => return Ok(Acquired::Granted(grant)),
                        Requested::Busy => return Ok(Acquired::Busy),
                        Requested::Queued(again) => grants = again,
                    },
                },
                () = self.closed.cancelled() => return Err(BackendError::Closed),
                () = sleep_until(look_again) => {
                    let mut store = self.store.lock();
                    store.expire_and_hand_over(&request.key);
                    let expired = request.wait.deadline().is_some_and(|end| end <= Instant::now());
                    if expired && store.withdraw(&request.key, request.lease) {
                        return Ok(Acquired::Busy);
                    }
                }
            }
        }
    }
}

impl Default for MemoryBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl Backend for MemoryBackend {
    fn lease_id(&self) -> LeaseId {
        self.ids.next()
    }

    fn acquire<'a>(&'a self, request: &'a AcquireRequest) -> BoxFuture<'a, Result<Acquired, BackendError>> {
        async move {
            self.open()?;
            self.wait(request).await
        }
        .boxed()
    }

    fn renew<'a>(&'a self, request: &'a RenewRequest) -> BoxFuture<'a, Result<Renewal, BackendError>> {
        async move {
            self.open()?;
            Ok(self.store.lock().renew(request))
        }
        .boxed()
    }

    fn release<'a>(
        &'a self,
        key: &'a Arc<str>,
        whose: Whose,
    ) -> BoxFuture<'a, Result<Released, BackendError>> {
        async move {
            self.open()?;
            Ok(self.store.lock().release(key, whose))
        }
        .boxed()
    }

    fn inspect<'a>(&'a self, key: &'a Arc<str>) -> BoxFuture<'a, Result<Inspection, BackendError>> {
        async move {
            self.open()?;
            Ok(self.store.lock().inspect(key))
        }
        .boxed()
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.closed.cancel();
        std::future::ready(()).boxed()
    }
}

impl MemoryBackend {
    fn open(&self) -> Result<(), BackendError> {
        if self.closed.is_cancelled() { Err(BackendError::Closed) } else { Ok(()) }
    }
}

/// All keys in use, and the newest token of any of them: one that is newer than all is newer than its key's.
#[derive(Debug, Default)]
struct Store {
    keys: HashMap<Arc<str>, Slot>,
    newest_token: u64,
    waiters_visited: u64,
}

/// One key in use: it has a holder, or waiters, or both.
#[derive(Debug, Default)]
struct Slot {
    hold: Option<Hold>,
    queue: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Hold {
    lease: LeaseId,
    token: FencingToken,
    ends: Instant,
    revocation: Revocation,
}

#[derive(Debug)]
struct Waiting {
    lease: LeaseId,
    term: Duration,
    revocation: Revocation,
    granted: oneshot::Sender<Grant>,
}

enum Requested {
    Granted(Grant),
    Busy,
    Queued(oneshot::Receiver<Grant>),
}

impl Store {
    fn request(&mut self, request: &AcquireRequest) -> Requested {
        self.expire_and_hand_over(&request.key);
        let now = Instant::now();
        let token = self.next_token();
        let slot = self.keys.entry(Arc::clone(&request.key)).or_default();
        match &mut slot.hold {
            // Point 1: a request that is sent again finds what it was granted.
            Some(hold) if hold.lease == request.lease => {
                hold.ends = now + request.term;
                Requested::Granted(Grant::new(hold.token, now))
            }
            Some(_) if request.wait == Wait::No => Requested::Busy,
            Some(_) => Requested::Queued(slot.enqueue(request)),
            None => {
                slot.hold = Some(Hold {
                    lease: request.lease,
                    token,
                    ends: now + request.term,
                    revocation: request.revocation.clone(),
                });
                self.newest_token = token.get();
                Requested::Granted(Grant::new(token, now))
            }
        }
    }

    fn renew(&mut self, request: &RenewRequest) -> Renewal {
        self.expire_and_hand_over(&request.key);
        match self.keys.get_mut(&request.key).and_then(|slot| slot.hold.as_mut()) {
            Some(hold) if hold.lease == request.lease => {
                let now = Instant::now();
                hold.ends = now + request.term;
                Renewal::Renewed { counted_from: now }
            }
            Some(_) => Renewal::Lost(LossReason::Taken),
            None => Renewal::Lost(LossReason::Expired),
        }
    }

    fn release(&mut self, key: &Arc<str>, whose: Whose) -> Released {
        self.expire_and_hand_over(key);
        let Some(slot) = self.keys.get_mut(key) else { return Released::Absent };
        match (&slot.hold, whose) {
            (Some(hold), Whose::Lease(lease)) if hold.lease != lease => {}
            (None, _) => {}
            (Some(hold), whose) => {
                if whose == Whose::Anyone {
                    hold.revocation.revoke();
                }
                slot.hold = None;
                self.expire_and_hand_over(key);
                return Released::Held;
            }
        }
        let held = slot.hold.is_some();
        match whose {
            Whose::Lease(lease) if self.withdraw(key, lease) => Released::Queued,
            _ if held => Released::Taken,
            _ => Released::Absent,
        }
    }

    fn inspect(&mut self, key: &Arc<str>) -> Inspection {
        self.expire_and_hand_over(key);
        let Some(slot) = self.keys.get(key) else { return Inspection::default() };
        Inspection {
            holder: slot.hold.as_ref().map(|hold| Holder {
                id: hold.lease.to_string(),
                token: Some(hold.token),
                remaining: Some(hold.ends - Instant::now()),
            }),
            waiters: slot
                .queue
                .iter()
                .filter(|waiting| !waiting.granted.is_closed())
                .map(|waiting| Waiter { id: waiting.lease, remaining: waiting.term })
                .collect(),
        }
    }

    /// Takes `lease` out of the queue of `key`. `false` if it does not stand there.
    fn withdraw(&mut self, key: &Arc<str>, lease: LeaseId) -> bool {
        let Some(slot) = self.keys.get_mut(key) else { return false };
        let before = slot.queue.len();
        slot.queue.retain(|waiting| waiting.lease != lease);
        let withdrawn = slot.queue.len() < before;
        self.expire_and_hand_over(key);
        withdrawn
    }

    /// When a waiting request should look again if nothing is pushed to it: when the hold ends or its own
    /// patience does.
    fn next_change(&self, request: &AcquireRequest) -> Instant {
        let now = Instant::now();
        let hold = self.keys.get(&request.key).and_then(|slot| slot.hold.as_ref());
        let look = hold.map_or(now + request.term / 3, |hold| hold.ends);
        request.wait.deadline().map_or(look, |end| look.min(end))
    }

    /// Ends a hold whose time is over, and gives a free key to the oldest waiter that still waits. Amortised
    /// constant: every waiter is passed once.
    fn expire_and_hand_over(&mut self, key: &Arc<str>) {
        let now = Instant::now();
        let Some(slot) = self.keys.get_mut(key) else { return };
        if slot.hold.as_ref().is_some_and(|hold| hold.ends <= now) {
            slot.hold = None;
        }
        while slot.hold.is_none() {
            let Some(next) = slot.queue.pop_front() else {
                self.keys.remove(key);
                return;
            };
            self.waiters_visited += 1;
            let token = next_token_after(self.newest_token);
            if next.granted.send(Grant::new(token, now)).is_ok() {
                self.newest_token = token.get();
                slot.hold = Some(Hold {
                    lease: next.lease,
                    token,
                    ends: now + next.term,
                    revocation: next.revocation,
                });
            }
        }
    }

    fn next_token(&self) -> FencingToken {
        next_token_after(self.newest_token)
    }
}

impl Slot {
    /// Queues `request`, or lets it keep the place it has.
    fn enqueue(&mut self, request: &AcquireRequest) -> oneshot::Receiver<Grant> {
        let (granted, grants) = oneshot::channel();
        match self.queue.iter_mut().find(|waiting| waiting.lease == request.lease) {
            Some(waiting) => waiting.granted = granted,
            None => self.queue.push_back(Waiting {
                lease: request.lease,
                term: request.term,
                revocation: request.revocation.clone(),
                granted,
            }),
        }
        grants
    }
}

/// One above the newest, or the time in microseconds since 1970, whichever is greater.
fn next_token_after(newest: u64) -> FencingToken {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let micros = u64::try_from(clock.as_micros()).unwrap_or(u64::MAX);
    FencingToken::new(micros.max(newest + 1))
}
