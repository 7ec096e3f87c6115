//! The memory store, as if it were far away: others go on before and after it does what it is asked, and it may lose what it has
//! answered.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::{BoxFuture, ready};
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use shuttle::future::yield_now;
use shuttle::rand::{Rng, thread_rng};

use crate::backend::{
    Answer, Answered, Backend, BackendError, Capabilities, Detail, Event, Inspection, LeaseId, LeaseRef,
    Limit, MemoryBackend, Released, Renew, Request, Resource,
};

/// One of how many answers is lost, if any are.
const LOST: u32 = 8;

/// One client's connection to it.
pub(super) struct Far {
    memory: MemoryBackend,
    capabilities: Capabilities,
    loses_answers: bool,
    ends: Arc<Ends>,
    sent: Line,
}

/// The calls that were sent, and are not executed yet.
#[derive(Default)]
struct Line(Mutex<(u64, VecDeque<u64>)>);

/// A place in it, until the call is executed, or dropped.
struct Place<'a>(&'a Line, u64);

impl Line {
    fn join(&self) -> Place<'_> {
        let (next, line) = &mut *self.0.lock().expect("nobody panics under it");
        line.push_back(*next);
        *next += 1;
        Place(self, *next - 1)
    }
}

impl Place<'_> {
    fn is_first(&self) -> bool {
        self.0.0.lock().expect("nobody panics under it").1.front() == Some(&self.1)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.0.lock().expect("nobody panics under it").1.retain(|place| *place != self.1);
    }
}

/// The leases that were released while they were held.
#[derive(Debug, Default)]
pub(super) struct Ends(Mutex<HashSet<LeaseId>>);

impl Ends {
    fn record(&self, lease: &LeaseRef, answer: &Result<Released, BackendError>) {
        if matches!(answer, Ok(Released::Held)) {
            let is_first = self.0.lock().expect("nobody panics under it").insert(lease.id);
            assert!(is_first, "{:?} was held again after its release", lease.id);
        }
    }
}

/// How a client reaches the store.
#[derive(Clone, Copy, Default)]
pub(super) struct Link {
    /// Whether the crate's own threads may use it.
    pub(super) own_thread: bool,
    pub(super) loses_answers: bool,
}

impl Far {
    pub(super) fn new(memory: MemoryBackend, ends: Arc<Ends>, link: Link) -> Self {
        let capabilities = Capabilities { own_thread: link.own_thread, ..memory.capabilities().clone() };
        Self { memory, capabilities, loses_answers: link.loses_answers, ends, sent: Line::default() }
    }

    /// Calls of a client are executed in the order in which they were sent, as over one connection.
    async fn call<T>(
        &self,
        execute: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        let sent = self.sent.join();
        on_its_way().await;
        while !sent.is_first() {
            yield_now().await;
        }
        let answer = execute.await;
        drop(sent);
        on_its_way().await;
        if self.loses_answers && thread_rng().gen_range(0..LOST) == 0 {
            return Err(BackendError::Unanswered { source: "the answer was lost".into() });
        }
        answer
    }
}

/// Others may go on, for any time.
async fn on_its_way() {
    while thread_rng().gen_bool(0.5) {
        yield_now().await;
    }
}

impl Backend for Far {
    fn lease_id(&self) -> LeaseId {
        self.memory.lease_id()
    }

    fn request<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<Answer, BackendError>> {
        self.call(self.memory.request(request)).boxed()
    }

    fn renew<'a>(&'a self, renewals: &'a [Renew]) -> BoxStream<'a, Answered> {
        let executed = stream::once(self.call(ready(Ok(())))).flat_map(move |sent| match sent {
            Ok(()) => self.memory.renew(renewals),
            Err(error) => stream::iter(0..renewals.len()).map(move |n| (n, Err(error.clone()))).boxed(),
        });
        executed.then(|answered| on_its_way().map(|()| answered)).boxed()
    }

    fn release<'a>(&'a self, lease: &'a LeaseRef) -> BoxFuture<'a, Result<Released, BackendError>> {
        let execute = async {
            let answer = self.memory.release(lease).await;
            self.ends.record(lease, &answer);
            answer
        };
        self.call(execute).boxed()
    }

    fn release_permits<'a>(
        &'a self,
        lease: &'a LeaseRef,
        keep: u32,
    ) -> BoxFuture<'a, Result<Released, BackendError>> {
        self.call(self.memory.release_permits(lease, keep)).boxed()
    }

    fn force_release<'a>(&'a self, resource: &'a Resource) -> BoxFuture<'a, Result<bool, BackendError>> {
        self.call(self.memory.force_release(resource)).boxed()
    }

    fn set_limit<'a>(
        &'a self,
        resource: &'a Resource,
        permits: u32,
        ttl: Duration,
    ) -> BoxFuture<'a, Result<Limit, BackendError>> {
        self.call(self.memory.set_limit(resource, permits, ttl)).boxed()
    }

    fn inspect<'a>(
        &'a self,
        resource: &'a Resource,
        detail: Detail,
    ) -> BoxFuture<'a, Result<Inspection, BackendError>> {
        self.call(self.memory.inspect(resource, detail)).boxed()
    }

    fn events(&self) -> BoxStream<'static, Event> {
        self.memory.events().then(|event| on_its_way().map(|()| event)).boxed()
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.memory.close()
    }
}

impl fmt::Debug for Far {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Far").finish_non_exhaustive()
    }
}
