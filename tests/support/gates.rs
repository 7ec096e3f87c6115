//! A store behind gates: what becomes of the calls for a lock is chosen by the test.

use std::collections::HashMap;
use std::future::Future;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use leasehold::backend::{
    Answer, Answered, Backend, Capabilities, Detail, Event, LeaseId, LeaseRef, Limit, Released, Renew,
    Request, Resource,
};
use leasehold::{BackendError, Inspection, StoreState};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::sleep;

/// How late a slow answer is.
const LATE: Duration = Duration::from_millis(40);

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// It is carried out and answered.
    Open,
    /// It does not reach the store, and the client is told so.
    NotSent,
    /// It is carried out, and the client is told that there was no answer.
    Unanswered,
    /// It is carried out, and answered late.
    Slow,
    /// It is carried out, and not answered before the gate is opened.
    Never,
    /// It does not reach the store, and is not answered before the gate is opened.
    Swallowed,
}

pub const GATES: [Gate; 6] =
    [Gate::Open, Gate::NotSent, Gate::Unanswered, Gate::Slow, Gate::Never, Gate::Swallowed];

/// The calls that pass a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Request,
    Renew,
    Release,
}

/// A store with a gate for some calls of some locks.
#[derive(Debug)]
pub struct Gated {
    store: Arc<dyn Backend>,
    gates: Mutex<HashMap<Arc<str>, (Call, Gate)>>,
    /// How often gates were opened.
    opened: watch::Sender<u64>,
}

impl Gated {
    pub fn new(store: Arc<dyn Backend>) -> Arc<Self> {
        Arc::new(Self { store, gates: Mutex::default(), opened: watch::Sender::default() })
    }

    pub fn close_for(&self, key: &str, call: Call, gate: Gate) {
        self.gates.lock().insert(key.into(), (call, gate));
    }

    pub fn open(&self, key: &str) {
        self.gates.lock().remove(key);
        self.opened.send_modify(|opened| *opened += 1);
    }

    fn gate(&self, lease: &LeaseRef, call: Call) -> Gate {
        let gates = self.gates.lock();
        let gate = gates.get(&lease.resource.key).filter(|(gated, _)| *gated == call);
        gate.map_or(Gate::Open, |(_, gate)| *gate)
    }

    /// What becomes of this call.
    async fn pass<T>(
        &self,
        lease: &LeaseRef,
        call: Call,
        carried_out: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        let unanswered = || BackendError::Unanswered { source: "the answer is lost".into() };
        match self.gate(lease, call) {
            Gate::Open => carried_out.await,
            Gate::NotSent => Err(BackendError::NotSent { source: "the gate is closed".into() }),
            Gate::Unanswered => {
                carried_out.await?;
                Err(unanswered())
            }
            Gate::Slow => {
                let answer = carried_out.await;
                sleep(LATE).await;
                answer
            }
            gate => {
                if gate == Gate::Never {
                    carried_out.await?;
                }
                let mut opened = self.opened.subscribe();
                while self.gate(lease, call) == gate {
                    opened.changed().await.expect("it lives as long as the store");
                }
                Err(unanswered())
            }
        }
    }
}

impl Backend for Gated {
    fn request<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<Answer, BackendError>> {
        self.pass(&request.lease, Call::Request, self.store.request(request)).boxed()
    }

    fn renew<'a>(&'a self, renewals: &'a [Renew]) -> BoxStream<'a, Answered> {
        let each = renewals.iter().enumerate().map(move |(n, renewal)| {
            let renewed = async move {
                let mut answers = self.store.renew(slice::from_ref(renewal));
                answers.next().await.expect("each is answered").1
            };
            self.pass(&renewal.lease, Call::Renew, renewed).map(move |answer| (n, answer))
        });
        stream::iter(each).buffer_unordered(renewals.len().max(1)).boxed()
    }

    fn release<'a>(&'a self, lease: &'a LeaseRef) -> BoxFuture<'a, Result<Released, BackendError>> {
        self.pass(lease, Call::Release, self.store.release(lease)).boxed()
    }

    fn release_from_own_thread<'a>(
        &'a self,
        lease: &'a LeaseRef,
        keep: u32,
    ) -> BoxFuture<'a, Result<Released, BackendError>> {
        self.pass(lease, Call::Release, self.store.release_from_own_thread(lease, keep)).boxed()
    }

    // Always passed on.

    fn lease_id(&self) -> LeaseId {
        self.store.lease_id()
    }

    fn release_permits<'a>(
        &'a self,
        lease: &'a LeaseRef,
        keep: u32,
    ) -> BoxFuture<'a, Result<Released, BackendError>> {
        self.store.release_permits(lease, keep)
    }

    fn force_release<'a>(&'a self, resource: &'a Resource) -> BoxFuture<'a, Result<bool, BackendError>> {
        self.store.force_release(resource)
    }

    fn set_limit<'a>(
        &'a self,
        resource: &'a Resource,
        permits: u32,
        ttl: Duration,
    ) -> BoxFuture<'a, Result<Limit, BackendError>> {
        self.store.set_limit(resource, permits, ttl)
    }

    fn inspect<'a>(
        &'a self,
        resource: &'a Resource,
        detail: Detail,
    ) -> BoxFuture<'a, Result<Inspection, BackendError>> {
        self.store.inspect(resource, detail)
    }

    fn events(&self) -> BoxStream<'static, Event> {
        self.store.events()
    }

    fn capabilities(&self) -> &Capabilities {
        self.store.capabilities()
    }

    fn state(&self) -> StoreState {
        self.store.state()
    }

    fn state_changes(&self) -> BoxStream<'static, StoreState> {
        self.store.state_changes()
    }

    fn handed_over(&self, lease: LeaseId) {
        self.store.handed_over(lease);
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.store.close()
    }
}
