//! What observers are told: every event, on the store in memory, in tokio's paused time.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::ready;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use leasehold::backend::{Answered, Backend, Kind, LeaseRef, Released, Renew, Renewal};
use leasehold::observer::{Event, Observer, ReleaseOutcome, RequestOutcome, Source};
use leasehold::{
    BackendError, Client, DistMutex, Error, ErrorKind, FencingToken, Guard, LossReason, MemoryBackend,
    MutexOptions, SemaphoreOptions, Status, StoreState,
};
use leasehold_support::intercept::{Intercept, Intercepted, Reply};
use tokio::time::{advance, sleep};

const NAME: &str = "machine:42";
const TTL: Duration = Duration::from_secs(3);
const MS: Duration = Duration::from_millis(1);

/// What was told, as text: `waiting`, `acquired 1 store 0ms`, ...
#[derive(Debug, Default)]
struct Told(Mutex<Vec<(String, Option<FencingToken>)>>);

impl Observer for Told {
    fn observe(&self, event: &Event<'_>) {
        let (text, token) = match *event {
            Event::Waiting { subject, .. } => {
                assert_eq!(subject.store, "memory:");
                ("waiting".to_owned(), None)
            }
            Event::Acquired { token, permits, waited, had_to_wait, source, .. } => {
                let waits = if had_to_wait { "waited" } else { "at once" };
                (format!("acquired {permits} {} {waits} {waited:?}", source.as_str()), Some(token))
            }
            Event::NotAcquired { waited, had_to_wait, outcome, .. } => {
                let waits = if had_to_wait { "waited" } else { "at once" };
                (format!("not acquired {} {waits} {waited:?}", outcome.as_str()), None)
            }
            Event::RenewalSent { late, .. } => (format!("renewal {late:?} late"), None),
            Event::RenewalAnswered { took, outcome, .. } => (format!("{} {took:?}", outcome.as_str()), None),
            Event::Lost { token, held, reason, .. } => {
                (format!("lost {} {held:?}", reason.as_str()), Some(token))
            }
            Event::Released { token, held, outcome, .. } => {
                (format!("released {} {held:?}", outcome.as_str()), Some(token))
            }
            Event::StoreState { state, .. } => (format!("store {}", state.status.as_str()), None),
            _ => ("another".to_owned(), None),
        };
        self.0.lock().expect("no panic").push((text, token));
    }
}

impl Told {
    /// What was told since the last call.
    fn take(&self) -> Vec<String> {
        self.take_with_tokens().into_iter().map(|(text, _)| text).collect()
    }

    fn take_with_tokens(&self) -> Vec<(String, Option<FencingToken>)> {
        self.0.lock().expect("no panic").drain(..).collect()
    }
}

/// A client of a new store in memory, and what it tells.
fn observed() -> (Client, Arc<Told>) {
    observed_on(Client::memory())
}

fn observed_on(client: Client) -> (Client, Arc<Told>) {
    let told = Arc::new(Told::default());
    let client = client.with_mutex_options(MutexOptions::new().ttl(TTL)).with_observer(told.clone());
    assert_eq!(told.take(), ["store connected"]);
    (client, told)
}

/// Lets other tasks run until they all wait.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_free_is_acquired_at_once_and_held_until_its_release() -> Result<(), Error> {
    let (client, told) = observed();
    let guard = client.mutex(NAME)?.lock().await?;
    assert_eq!(told.take(), ["acquired 1 store at once 0ns"]);
    advance(7 * MS).await;
    guard.release().await?;
    assert_eq!(told.take(), ["released confirmed 7ms"]);
    let guard = client.fair_semaphore(NAME, 5)?.acquire_many(3).await?;
    advance(8 * MS).await;
    drop(guard);
    assert_eq!(told.take(), ["acquired 3 store at once 0ns", "released in_background 8ms"]);
    client.shutdown().await?;
    settle().await;
    assert_eq!(told.take(), ["store closed"]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn the_subject_and_the_token_are_those_of_the_hold() -> Result<(), Error> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let observer = {
        let seen = Arc::clone(&seen);
        move |event: &Event<'_>| {
            if let Event::Acquired { subject, token, .. } | Event::Released { subject, token, .. } = event {
                let text = (subject.name().to_owned(), subject.kind(), *token);
                seen.lock().expect("no panic").push(text);
            }
        }
    };
    let client = Client::builder("memory:").observer(Arc::new(observer)).connect().await?;
    let guard = client.counting_semaphore(NAME, 2)?.acquire().await?;
    let token = guard.token();
    guard.release().await?;
    let expected = (NAME.to_owned(), Kind::Counting, token);
    assert_eq!(*seen.lock().expect("no panic"), [expected.clone(), expected]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn requests_that_do_not_succeed_say_how_they_ended() -> Result<(), Error> {
    let (client, told) = observed();
    let (mutex, other) = (client.mutex(NAME)?, client.reentrant_lock(NAME, "me")?);
    let guard = mutex.lock().await?;
    told.take();

    assert!(mutex.try_lock().await?.is_none());
    assert_eq!(told.take(), ["not acquired busy at once 0ns"]);

    assert!(mutex.lock_timeout(50 * MS).await.is_err());
    assert_eq!(told.take(), ["waiting", "not acquired timed_out waited 50ms"]);

    assert!(tokio::time::timeout(20 * MS, mutex.lock()).await.is_err());
    assert_eq!(told.take(), ["waiting", "not acquired cancelled waited 20ms"]);
    drop(mutex.lock());
    assert_eq!(told.take(), Vec::<String>::new(), "it was never polled");

    let waiting = tokio::spawn(async move { other.lock().await });
    settle().await;
    client.shutdown().await?;
    assert!(matches!(waiting.await.expect("no panic"), Err(Error::Closed { .. })));
    let mut all = told.take();
    all.sort();
    let expected = ["lost client_closed 70ms", "not acquired closed waited 0ns", "store closed", "waiting"];
    assert_eq!(all, expected);
    drop(guard);
    assert_eq!(told.take(), Vec::<String>::new(), "it has ended once");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_passed_on_within_the_client_says_so() -> Result<(), Error> {
    let (client, told) = observed();
    let mutex = client.mutex(NAME)?;
    let guard = mutex.lock().await?;
    let next = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.lock().await }
    });
    settle().await;
    advance(5 * MS).await;
    guard.release().await?;
    let next = next.await.expect("no panic")?;
    assert_eq!(
        told.take(),
        ["acquired 1 store at once 0ns", "waiting", "released passed_on 5ms", "acquired 1 client waited 5ms"]
    );
    next.release().await?;
    assert_eq!(told.take(), ["released confirmed 0ns"]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_is_handed_over_to_another_client_ends_here_and_begins_there() -> Result<(), Error> {
    let store = MemoryBackend::new();
    let [(from, told), (to, told_there)] =
        [(), ()].map(|()| observed_on(Client::with_backend(Arc::new(store.peer()))));
    let guard = from.counting_semaphore(NAME, 3)?.acquire_many(2).await?;
    let token = guard.token();
    advance(5 * MS).await;
    let ticket = guard.into_ticket()?;
    assert_eq!(told.take(), ["acquired 2 store at once 0ns", "released handed_over 5ms"]);
    let guard = to.resume(&ticket).await?;
    assert_eq!(told_there.take_with_tokens(), [("acquired 2 store at once 0ns".to_owned(), Some(token))]);
    advance(7 * MS).await;
    guard.release().await?;
    assert_eq!(told_there.take(), ["released confirmed 7ms"]);
    assert_eq!(told.take(), Vec::<String>::new());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_another_client_releases_comes_from_the_store() -> Result<(), Error> {
    let store = MemoryBackend::new();
    let other = Client::with_backend(Arc::new(store.peer()));
    let (client, told) = observed_on(Client::with_backend(Arc::new(store)));
    let guard = other.mutex(NAME)?.lock().await?;
    let mutex = client.mutex(NAME)?;
    let waiting = tokio::spawn(async move { mutex.lock().await });
    settle().await;
    advance(5 * MS).await;
    guard.release().await?;
    let acquired = waiting.await.expect("no panic")?;
    assert_eq!(told.take(), ["waiting", "acquired 1 store waited 5ms"]);
    drop(acquired);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_loss_has_its_reason_and_is_told_once() -> Result<(), Error> {
    let (client, told) = observed();
    let mutex = client.mutex(NAME)?;
    let guard = mutex.lock().await?;
    advance(5 * MS).await;
    mutex.force_release().await?;
    assert_eq!(guard.lost().await, LossReason::Revoked);
    assert_eq!(told.take(), ["acquired 1 store at once 0ns", "lost revoked 5ms"]);
    assert!(guard.release().await.is_err());
    assert_eq!(told.take(), Vec::<String>::new());

    let brief = client.mutex_with(NAME, client.mutex_options().max_hold(100 * MS))?.lock().await?;
    assert_eq!(brief.lost().await, LossReason::HeldTooLong);
    drop(brief);
    assert_eq!(told.take(), ["acquired 1 store at once 0ns", "lost held_too_long 100ms"]);
    Ok(())
}

/// Does not answer renewals, or declines them; and finds no lease that is released.
#[derive(Debug)]
struct Faulty {
    renewals: fn() -> Result<Renewal, BackendError>,
}

impl Intercept for Faulty {
    fn renew<'a>(&'a self, _: &'a MemoryBackend, renewals: &'a [Renew]) -> BoxStream<'a, Answered> {
        stream::iter((0..renewals.len()).map(|n| (n, (self.renewals)()))).boxed()
    }

    fn release<'a>(&'a self, _: &'a MemoryBackend, _: &'a LeaseRef) -> Reply<'a, Released> {
        ready(Ok(Released::Absent)).boxed()
    }
}

fn faulty(renewals: fn() -> Result<Renewal, BackendError>) -> (Client, Arc<Told>) {
    observed_on(Client::with_backend(Intercepted::new(&MemoryBackend::new(), Faulty { renewals })))
}

#[tokio::test(start_paused = true)]
async fn renewals_are_told_with_how_late_they_are() -> Result<(), Error> {
    let (client, told) = observed();
    let guard = client.mutex(NAME)?.lock().await?;
    told.take();
    sleep(TTL / 3 + 10 * MS).await;
    let renewals = told.take();
    assert_eq!(renewals.len(), 2, "{renewals:?}");
    assert!(renewals[0].starts_with("renewal ") && renewals[1].starts_with("renewed "), "{renewals:?}");
    // As if the thread had been blocked.
    advance(TTL / 3 + 200 * MS).await;
    settle().await;
    let renewals = told.take();
    assert_eq!(renewals.len(), 2, "{renewals:?}");
    let late = renewals[0].strip_suffix(" late").and_then(|text| text.strip_prefix("renewal "));
    let late: f64 = late.and_then(|text| text.strip_suffix("ms")?.parse().ok()).expect("milliseconds");
    assert!((200.0..250.0).contains(&late), "{renewals:?}");
    drop(guard);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn renewals_that_fail_are_told_until_the_lease_is_lost() -> Result<(), Error> {
    let (client, told) = faulty(|| Err(BackendError::Unanswered { source: "silence".into() }));
    let guard = client.mutex(NAME)?.lock().await?;
    assert_eq!(guard.lost().await, LossReason::StoreUnreachable);
    let all = told.take();
    let failed = all.iter().filter(|text| text.starts_with("failed ")).count();
    let sent = all.iter().filter(|text| text.starts_with("renewal ")).count();
    assert!(failed >= 2 && sent == failed, "{all:?}");
    assert_eq!(all.iter().filter(|text| text.starts_with("lost store_unreachable ")).count(), 1, "{all:?}");

    let (client, told) = faulty(|| Ok(Renewal::Lost(LossReason::Taken)));
    let guard = client.mutex(NAME)?.lock().await?;
    assert_eq!(guard.lost().await, LossReason::Taken);
    let all = told.take();
    assert!(all[2].starts_with("gone ") && all[3].starts_with("lost taken "), "{all:?}");
    assert_eq!(all.len(), 4, "{all:?}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_release_that_finds_the_lease_gone_tells_a_loss_and_no_release() -> Result<(), Error> {
    let (client, told) = faulty(|| Ok(Renewal::Renewed));
    let guard = client.mutex(NAME)?.lock().await?;
    let lost = guard.release().await;
    assert!(matches!(lost, Err(Error::Lost { reason: LossReason::Missing, .. })), "{lost:?}");
    assert_eq!(told.take(), ["acquired 1 store at once 0ns", "lost missing 0ns"]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn guards_that_share_a_hold_are_one_hold() -> Result<(), Error> {
    let (client, told) = observed();
    let lock = client.reentrant_lock(NAME, "me")?;
    let (outer, inner) = (lock.lock().await?, lock.lock().await?);
    outer.release().await?;
    assert_eq!(told.take(), ["acquired 1 store at once 0ns"]);
    drop(inner);
    assert_eq!(told.take(), ["released in_background 0ns"]);

    let mut three = client.counting_semaphore(NAME, 3)?.acquire_many(3).await?;
    let one = three.split(1).expect("three are more than one");
    three.release().await?;
    assert_eq!(told.take(), ["acquired 3 store at once 0ns"]);
    one.release().await?;
    assert_eq!(told.take(), ["released confirmed 0ns"]);
    Ok(())
}

/// With a mutex of its own locked, and with a guard that the observer itself asks and drops.
#[tokio::test(start_paused = true)]
async fn an_observer_may_use_the_client_and_its_guards() -> Result<(), Error> {
    let kept: Arc<Mutex<Vec<Guard>>> = Arc::default();
    let asked = Arc::new(Mutex::new(0));
    let observer = {
        let (kept, asked) = (Arc::clone(&kept), Arc::clone(&asked));
        move |event: &Event<'_>| {
            if matches!(event, Event::Lost { .. } | Event::Released { .. } | Event::RenewalSent { .. }) {
                let mut guards = std::mem::take(&mut *kept.lock().expect("no panic"));
                *asked.lock().expect("no panic") += guards.iter().filter(|guard| !guard.is_held()).count();
                drop(guards.pop());
            }
        }
    };
    let client = Client::memory().with_observer(Arc::new(observer));
    let mutex = client.mutex(NAME)?;
    let guard = mutex.lock().await?;
    let lost = guard.lost();
    kept.lock().expect("no panic").push(guard);
    mutex.force_release().await?;
    lost.await;
    assert_eq!(*asked.lock().expect("no panic"), 1, "it was told when nothing was locked");
    assert!(mutex.try_lock().await?.is_some());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn an_observer_that_panics_harms_nobody() -> Result<(), Error> {
    let (client, told) = observed();
    let client = client.with_observer(Arc::new(|_: &Event<'_>| panic!("as this test wants it")));
    let (client, later) = observed_on(client);
    let mutex = client.mutex_with(NAME, MutexOptions::new().ttl(TTL))?;
    let guard = mutex.lock().await?;
    sleep(TTL * 2).await;
    guard.release().await?;
    mutex.lock().await?.release().await?;
    let all = told.take();
    assert_eq!(all, later.take(), "each of them is told, whatever the others do");
    assert_eq!(all.iter().filter(|text| text.starts_with("released confirmed")).count(), 2, "{all:?}");
    Ok(())
}

/// How many holds and waiters the events leave.
#[derive(Debug, Default)]
struct Balance(Mutex<(i64, i64)>);

impl Observer for Balance {
    fn observe(&self, event: &Event<'_>) {
        let mut balance = self.0.lock().expect("no panic");
        let (held, waiting) = match event {
            Event::Waiting { .. } => (0, 1),
            Event::Acquired { had_to_wait, .. } => (1, -i64::from(*had_to_wait)),
            Event::NotAcquired { had_to_wait, .. } => (0, -i64::from(*had_to_wait)),
            Event::Lost { .. } | Event::Released { .. } => (-1, 0),
            _ => (0, 0),
        };
        balance.0 += held;
        balance.1 += waiting;
        assert!(balance.0 >= 0 && balance.1 >= 0, "an end comes after its beginning: {balance:?} {event:?}");
    }
}

/// An observer that is added later hears of the requests that begin from then on, and of nothing else.
#[tokio::test(start_paused = true)]
async fn an_observer_hears_no_end_of_which_it_did_not_hear_the_beginning() -> Result<(), Error> {
    let client = Client::memory().with_mutex_options(MutexOptions::new().ttl(TTL));
    let unobserved = client.mutex("unobserved")?.lock().await?;
    let (client, first) = observed_on(client);
    let (mutex, brief) = (client.mutex(NAME)?, client.mutex_options().max_hold(TTL));
    let (held, lost) = (mutex.lock().await?, client.mutex_with("lost", brief)?.lock().await?);
    let request = || {
        let mutex = mutex.clone();
        tokio::spawn(async move { mutex.lock().await })
    };
    let waiting = request();
    settle().await;
    let begun = ["acquired 1 store at once 0ns", "acquired 1 store at once 0ns", "waiting"];
    assert_eq!(first.take(), begun);

    let (client, second) = observed_on(client);
    let later = request();
    settle().await;
    assert_eq!((first.take(), second.take()), (vec!["waiting".to_owned()], vec!["waiting".to_owned()]));
    advance(5 * MS).await;
    held.release().await?;
    let waited = waiting.await.expect("no panic")?;
    assert_eq!(first.take(), ["released passed_on 5ms", "acquired 1 client waited 5ms"]);
    lost.lost().await;
    // Renewals of what was acquired before it was added included.
    assert_eq!(second.take(), Vec::<String>::new());
    assert!(first.take().iter().any(|told| told.starts_with("renewal ")));
    waited.release().await?;
    let last = later.await.expect("no panic")?;
    drop(unobserved);
    last.release().await?;
    assert_eq!(second.take(), ["acquired 1 store waited 3s", "released confirmed 0ns"]);
    let released = |told: &&String| told.starts_with("released confirmed");
    assert_eq!(first.take().iter().filter(released).count(), 2);
    drop(client);
    assert_eq!((first.take(), second.take()), (Vec::new(), Vec::new()), "a guard and a mutex are there");
    drop((lost, mutex));
    assert_eq!(
        (first.take(), second.take()),
        (vec!["store closed".to_owned()], vec!["store closed".to_owned()])
    );
    Ok(())
}

/// Is cut off while its state is subscribed to.
#[derive(Debug)]
struct CutOff;

impl Intercept for CutOff {
    fn state_changes(&self, store: &MemoryBackend) -> BoxStream<'static, StoreState> {
        store.cut_off();
        store.state_changes()
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_of_the_store_between_looking_at_it_and_watching_it_is_not_missed() {
    let (client, told) = observed_on(Client::with_backend(Intercepted::new(&MemoryBackend::new(), CutOff)));
    // From its first use on, a store in memory is watched.
    drop(client.mutex(NAME).expect("valid").try_lock().now_or_never());
    leasehold_support::eventually(TTL, || ready(told.take() == ["store disconnected"])).await;
}

#[tokio::test(start_paused = true)]
async fn the_store_is_told_with_what_was_told_before() -> Result<(), Error> {
    let told = Arc::new(Mutex::new(Vec::new()));
    let observer = || {
        let told = Arc::clone(&told);
        Arc::new(move |event: &Event<'_>| {
            if let Event::StoreState { state, previous, .. } = event {
                let name = |status: Status| status.as_str();
                told.lock().expect("no panic").push((previous.map(name), name(state.status)));
            }
        })
    };
    let next = async || {
        leasehold_support::eventually(TTL, || ready(!told.lock().expect("no panic").is_empty())).await;
        std::mem::take(&mut *told.lock().expect("no panic"))
    };
    let link = Arc::new(MemoryBackend::new());
    let backend: Arc<dyn Backend> = link.clone();
    let client = Client::with_backend(backend).with_observer(observer());
    assert_eq!(next().await, [(None, "connected")]);
    client.mutex(NAME)?.lock().await?.release().await?;
    link.cut_off();
    assert_eq!(next().await, [(Some("connected"), "disconnected")]);
    let client = client.with_observer(observer());
    assert_eq!(next().await, [(None, "disconnected")]);
    client.shutdown().await?;
    assert_eq!(next().await, [(Some("disconnected"), "closed"); 2]);
    drop(client.with_observer(observer()));
    assert_eq!(next().await, [(None, "closed")]);
    assert_eq!(*told.lock().expect("no panic"), []);
    Ok(())
}

/// Tasks lock, wait, give up, drop, release and lose at random; afterwards, and whenever all of them wait, the sums are
/// right.
#[tokio::test(start_paused = true)]
async fn acquired_less_lost_less_released_is_what_is_held() -> Result<(), Error> {
    for seed in 0..20_u64 {
        let balance = Arc::new(Balance::default());
        let options = SemaphoreOptions::new().ttl(TTL).local_handover(seed % 2 == 0);
        let client = Client::memory()
            .with_mutex_options(MutexOptions::new().ttl(TTL).max_hold(40 * MS))
            .with_semaphore_options(options)
            .with_observer(balance.clone());
        let (held, mutex) = (Arc::new(Mutex::new(0_i64)), client.mutex(NAME)?);
        let permits = client.counting_semaphore(NAME, 2)?;
        let tasks = (0..8).map(|task| {
            let (mutex, permits) = (mutex.clone(), permits.clone());
            let held = Arc::clone(&held);
            let mut random = seed * 1000 + task + 1;
            let mut below = move |end: u64| {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 33) % end
            };
            tokio::spawn(async move {
                for _ in 0..20 {
                    let acquired = match below(5) {
                        0 => mutex.lock_timeout(Duration::from_millis(below(20))).await.ok(),
                        1 => tokio::time::timeout(Duration::from_millis(below(20)), permits.acquire())
                            .await
                            .ok()
                            .and_then(Result::ok),
                        2 => mutex.try_lock().await.expect("the store answers"),
                        3 => Some(mutex.lock().await.expect("the store answers")),
                        _ => Some(permits.acquire().await.expect("the store answers")),
                    };
                    let Some(guard) = acquired else { continue };
                    *held.lock().expect("no panic") += 1;
                    sleep(Duration::from_millis(below(60))).await;
                    if below(8) == 0 {
                        force(&mutex).await;
                    }
                    *held.lock().expect("no panic") -= 1;
                    match below(2) {
                        0 => drop(guard),
                        // It may have been lost.
                        _ => drop(guard.release().await),
                    }
                }
            })
        });
        let tasks: Vec<_> = tasks.collect();
        for task in tasks {
            task.await.expect("no panic");
        }
        settle().await;
        assert_eq!(*balance.0.lock().expect("no panic"), (0, 0), "with seed {seed}");
        let guards = [mutex.lock().await?, permits.acquire().await?, permits.acquire().await?];
        assert_eq!(*balance.0.lock().expect("no panic"), (3, 0), "with seed {seed}");
        drop(guards);
        client.shutdown().await?;
        assert_eq!(*balance.0.lock().expect("no panic"), (0, 0), "with seed {seed}");
    }
    Ok(())
}

async fn force(mutex: &DistMutex) {
    mutex.force_release().await.expect("the store answers");
}

#[test]
fn names_for_programs_are_stable() {
    fn names<T: Copy + Debug>(all: &[T], name: impl Fn(T) -> &'static str) -> Vec<&'static str> {
        all.iter().map(|one| name(*one)).collect()
    }
    let kinds = [
        ErrorKind::InvalidArgument,
        ErrorKind::TimedOut,
        ErrorKind::Lost,
        ErrorKind::LimitDiffers,
        ErrorKind::StoreUnavailable,
        ErrorKind::StoreRefused,
        ErrorKind::Unsupported,
        ErrorKind::Forked,
        ErrorKind::Closed,
    ];
    let expected = [
        "invalid_argument",
        "timed_out",
        "lost",
        "limit_differs",
        "store_unavailable",
        "store_refused",
        "unsupported",
        "forked",
        "closed",
    ];
    assert_eq!(names(&kinds, ErrorKind::as_str), expected);
    assert_eq!(names(&kinds.map(RequestOutcome::Failed), RequestOutcome::as_str), expected);
    assert_eq!(names(&kinds.map(ReleaseOutcome::Failed), ReleaseOutcome::as_str), expected);
    let reasons = [
        LossReason::Expired,
        LossReason::Missing,
        LossReason::Taken,
        LossReason::StoreUnreachable,
        LossReason::StoreRefused,
        LossReason::Revoked,
        LossReason::HeldTooLong,
        LossReason::ClientClosed,
    ];
    let expected = [
        "expired",
        "missing",
        "taken",
        "store_unreachable",
        "store_refused",
        "revoked",
        "held_too_long",
        "client_closed",
    ];
    assert_eq!(names(&reasons, LossReason::as_str), expected);
    assert_eq!(names(&[Source::Store, Source::Client], Source::as_str), ["store", "client"]);
}
