//! A holder: does endless work in small steps for as long as it holds the lock.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Error, LossReason, MutexOptions};
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::failure::Failure;
use crate::store::Store;

/// Between two steps of the work.
const STEP: Duration = Duration::from_millis(2);

/// How the work ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) at: Instant,
    pub(crate) reason: LossReason,
}

/// When each step of the work ran.
#[derive(Clone, Debug, Default)]
pub(crate) struct Steps(Arc<Mutex<Vec<Instant>>>);

impl Steps {
    pub(crate) fn so_far(&self) -> MutexGuard<'_, Vec<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn one_more(&self) {
        self.so_far().push(Instant::now());
    }
}

/// Where a holder finds its lock.
#[derive(Debug)]
pub(crate) enum Entrance {
    Store(Store),
    Client(Client),
}

/// A running holder. Its thread ends when this is dropped and its work is over.
#[derive(Debug)]
pub(crate) struct Holder {
    pub(crate) steps: Steps,
    /// When it got the lock.
    pub(crate) since: Instant,
    ended: oneshot::Receiver<Result<Ended, Error>>,
    block: UnboundedSender<Duration>,
}

impl Holder {
    /// Starts a holder in a thread with a runtime of its own, and waits until it has the lock.
    pub(crate) async fn start(
        entrance: Entrance,
        name: String,
        options: MutexOptions,
    ) -> Result<Self, Failure> {
        let (says_held, held) = oneshot::channel();
        let (says_ended, mut ended) = oneshot::channel();
        let (block, pauses) = unbounded_channel();
        let steps = Steps::default();
        let log = steps.clone();
        thread::spawn(move || {
            let Ok(runtime) = Builder::new_current_thread().enable_all().build() else { return };
            runtime.block_on(async {
                let blocker = tokio::spawn(be_blocked(pauses));
                let _ = says_ended.send(hold(entrance, &name, options, says_held, &log).await);
                // A step that is left over would still run, and be seen.
                let _ = blocker.await;
            });
        });
        match held.await {
            Ok(since) => Ok(Self { steps, since, ended, block }),
            Err(_) => Err(told(&mut ended).await.err().unwrap_or(Failure::Silent)),
        }
    }

    /// Blocks the holder's thread, soon.
    pub(crate) fn block(&self, pause: Duration) {
        let _ = self.block.send(pause); // fails only if it has ended, which will be seen
    }

    /// Waits until its work has ended, and tells how.
    pub(crate) async fn ended(&mut self) -> Result<Ended, Failure> {
        told(&mut self.ended).await
    }
}

async fn told(ended: &mut oneshot::Receiver<Result<Ended, Error>>) -> Result<Ended, Failure> {
    Ok(ended.await.map_err(|_| Failure::Silent)??)
}

async fn hold(
    entrance: Entrance,
    name: &str,
    options: MutexOptions,
    says_held: oneshot::Sender<Instant>,
    steps: &Steps,
) -> Result<Ended, Error> {
    let client = match entrance {
        Entrance::Store(store) => store.client().await?,
        Entrance::Client(client) => client,
    };
    let guard = client.mutex_with(name, options)?.lock().await?;
    let _ = says_held.send(Instant::now());
    match guard.protect(work(steps)).await {
        Ok(never) => match never {},
        Err(Error::Lost { reason, .. }) => Ok(Ended { at: Instant::now(), reason }),
        Err(error) => Err(error),
    }
}

/// Never ends by itself.
async fn work(steps: &Steps) -> Infallible {
    loop {
        steps.one_more();
        sleep(STEP).await;
    }
}

/// Another task of the same runtime that does what no task should do.
async fn be_blocked(mut pauses: UnboundedReceiver<Duration>) {
    while let Some(pause) = pauses.recv().await {
        thread::sleep(pause);
    }
}
