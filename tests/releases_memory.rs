//! How often a release is sent, for how long, and what its caller is told, by what happens to it on its way to the store.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::FutureExt;
use leasehold::backend::{Backend, LeaseRef, Released};
use leasehold::{BackendError, Client, DistMutex, Error, Guard, LossReason, MemoryBackend};
use leasehold_support::intercept::{Intercept, Intercepted, Reply};
use leasehold_support::{begun, options, within};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

const TTL: Duration = Duration::from_secs(20);
const SECOND: Duration = Duration::from_secs(1);
/// How long a release is repeated that somebody waits for.
const PERSIST: Duration = Duration::from_secs(4);

/// What happens to a release.
#[derive(Clone, Debug)]
enum Fate {
    Answered,
    /// It is not carried out.
    Fails(BackendError),
    /// It is carried out all the same, or what it would release is gone.
    FailsAndIsGone(BackendError),
}

/// The fates of the next releases, and that of all others.
#[derive(Debug)]
struct Fates {
    next: Mutex<VecDeque<Fate>>,
    then: Mutex<Fate>,
    attempts: AtomicUsize,
}

impl Fates {
    /// A client of the store, its fates, and a lock that it holds.
    async fn held(store: &MemoryBackend) -> (Client, Arc<Intercepted<Self>>, Guard) {
        let (next, then) = (Mutex::default(), Mutex::new(Fate::Answered));
        let fates = Intercepted::new(store, Self { next, then, attempts: AtomicUsize::new(0) });
        let client = Client::with_backend(Arc::<Intercepted<Self>>::clone(&fates));
        let guard = mutex(&client).lock().await.expect("free");
        (client, fates, guard)
    }

    fn all(&self, fate: Fate) {
        *self.then.lock() = fate;
    }
}

impl Intercept for Fates {
    fn release<'a>(&'a self, store: &'a MemoryBackend, lease: &'a LeaseRef) -> Reply<'a, Released> {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        let fate = self.next.lock().pop_front().unwrap_or_else(|| self.then.lock().clone());
        async move {
            match fate {
                Fate::Answered => store.release(lease).await,
                Fate::Fails(error) => Err(error),
                Fate::FailsAndIsGone(error) => {
                    store.release(lease).await?;
                    Err(error)
                }
            }
        }
        .boxed()
    }
}

fn unanswered() -> BackendError {
    BackendError::Unanswered { source: "as the test wants it".into() }
}

fn refused_for_now() -> BackendError {
    BackendError::RefusedForNow { source: "BUSY as the test wants it".into() }
}

fn refused() -> BackendError {
    BackendError::Refused { source: "NOPERM as the test wants it".into() }
}

fn mutex(client: &Client) -> DistMutex {
    client.mutex_with("machine:42", options().ttl(TTL)).expect("valid")
}

async fn is_free(store: &MemoryBackend) -> bool {
    mutex(&Client::with_backend(Arc::new(store.peer())))
        .inspect()
        .await
        .expect("it answers")
        .holders
        .is_empty()
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_awaited_is_repeated_for_four_seconds_and_then_in_the_background() {
    for failure in [unanswered(), refused_for_now()] {
        let store = MemoryBackend::new();
        let (client, fates, guard) = Fates::held(&store).await;
        fates.all(Fate::Fails(failure));
        let begin = Instant::now();
        let error = within(SECOND * 10, guard.release()).await.expect_err("it was not confirmed");
        let took = begin.elapsed();
        assert!(took >= PERSIST && took < PERSIST + SECOND, "after {took:?}");
        assert!(matches!(error, Error::StoreUnavailable { .. }), "{error:?}");
        assert!(!is_free(&store).await);
        fates.all(Fate::Answered);
        sleep(SECOND).await;
        assert!(is_free(&store).await, "sent again in the background");
        client.shutdown().await.expect("nothing is left");
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_refused_for_good_says_so_at_once() {
    let store = MemoryBackend::new();
    let (_client, fates, guard) = Fates::held(&store).await;
    fates.all(Fate::Fails(refused()));
    let begin = Instant::now();
    let error = within(SECOND * 10, guard.release()).await.expect_err("it was refused");
    assert!(begin.elapsed() < SECOND / 2 && error.to_string().contains("NOPERM"), "{error}");
}

/// Whether it may have been its own first attempt that has released the lease.
#[tokio::test(start_paused = true)]
async fn a_repeated_release_that_finds_nothing_is_a_loss_only_if_the_first_attempt_cannot_have_been_carried_out()
 {
    let not_sent = BackendError::NotSent { source: "Connection refused".into() };
    for (failure, is_loss) in [(unanswered(), false), (not_sent, true), (refused_for_now(), true)] {
        let store = MemoryBackend::new();
        let (_client, fates, guard) = Fates::held(&store).await;
        fates.next.lock().push_back(Fate::FailsAndIsGone(failure.clone()));
        let released = guard.release().await;
        assert_eq!(fates.attempts.load(Ordering::Relaxed), 2);
        match released {
            Ok(()) => assert!(!is_loss, "{failure}"),
            Err(Error::Lost { reason: LossReason::Missing, .. }) => assert!(is_loss, "{failure}"),
            Err(error) => panic!("{error:?} after {failure}"),
        }
    }
}

/// The waiter's request goes first, and the release behind it is sent by a task of the client.
#[tokio::test(start_paused = true)]
async fn a_release_behind_a_request_of_its_client_says_as_soon_that_it_is_not_confirmed() {
    for (failure, after) in
        [(unanswered(), PERSIST), (refused_for_now(), PERSIST), (refused(), Duration::ZERO)]
    {
        let store = MemoryBackend::new();
        let (client, fates, guard) = Fates::held(&store).await;
        let waiting = mutex(&client);
        let waiter = begun(async move { waiting.lock().await }).await;
        // It is not passed on within the client any more.
        sleep(SECOND).await;
        fates.all(Fate::Fails(failure.clone()));
        let begin = Instant::now();
        within(SECOND * 10, guard.release()).await.expect_err("it was not confirmed");
        let took = begin.elapsed();
        assert!(took >= after && took < after + SECOND, "after {took:?}: {failure}");
        fates.all(Fate::Answered);
        let guard = within(SECOND * 2, waiter).await.expect("no panic").expect("released in the background");
        guard.release().await.expect("held");
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_refused_for_now_is_sent_again_but_not_too_often() {
    let store = MemoryBackend::new();
    let (_client, fates, guard) = Fates::held(&store).await;
    fates.all(Fate::Fails(refused_for_now()));
    drop(guard);
    sleep(SECOND * 10).await;
    let attempts = fates.attempts.load(Ordering::Relaxed);
    assert!((40..=60).contains(&attempts), "{attempts} in ten seconds");
    assert!(!is_free(&store).await);
    fates.all(Fate::Answered);
    sleep(SECOND).await;
    assert!(is_free(&store).await);
}

/// A minute after the guard was dropped, the lease has ended.
#[tokio::test(start_paused = true)]
async fn a_shutdown_reports_the_releases_that_are_given_up_while_it_waits_and_none_before() {
    for (after, says) in [(SECOND * 58, Some("1 release was not confirmed")), (SECOND * 61, None)] {
        for failure in [unanswered(), refused()] {
            let store = MemoryBackend::new();
            let (client, fates, guard) = Fates::held(&store).await;
            fates.all(Fate::Fails(failure));
            drop(guard);
            sleep(after).await;
            let shutdown = client.shutdown().await;
            match says {
                Some(says) => {
                    let error = shutdown.expect_err("one is given up meanwhile");
                    assert!(error.to_string().contains(says), "{error}");
                }
                None => shutdown.expect("nothing is left to be released"),
            }
            let attempts = fates.attempts.load(Ordering::Relaxed);
            sleep(SECOND * 10).await;
            assert_eq!(fates.attempts.load(Ordering::Relaxed), attempts, "it was given up");
        }
    }
}
