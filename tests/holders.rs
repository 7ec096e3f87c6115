//! Holders have names: labels, notes and ids, what a call that gives up says about them, and what `list` finds.

use std::collections::BTreeSet;
use std::future::pending;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use futures::future::join_all;
use futures::{FutureExt, StreamExt, TryStreamExt};
use leasehold::backend::{Answer, Backend, Detail, Request};
use leasehold::{
    Client, DistMutex, Error, Inspection, MAX_LABEL_BYTES, MAX_NOTE_BYTES, MemoryBackend, MutexOptions,
    Purpose, SemaphoreOptions,
};
use leasehold_support::intercept::{Intercept, Intercepted, Reply};
use tokio::time::{Instant, sleep};

type Outcome = Result<(), Error>;

const SECOND: Duration = Duration::from_secs(1);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A client of this store with a label.
async fn client(store: &MemoryBackend, label: &str) -> Result<Client, Error> {
    Client::builder_with_backend(Arc::new(store.peer())).label(label).connect().await
}

/// The note of the only holder.
async fn note(mutex: &DistMutex) -> Result<Option<String>, Error> {
    let mut found = mutex.inspect().await?;
    assert_eq!(found.holders.len(), 1);
    Ok(found.holders.remove(0).note)
}

async fn until_waiting(mutex: &DistMutex, count: usize) -> Outcome {
    while mutex.inspect().await?.waiters.len() != count {
        sleep(ms(1)).await;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn another_client_sees_who_holds_since_when_and_who_waits() -> Outcome {
    let store = MemoryBackend::new();
    let (api, job) = (client(&store, "api-7").await?, client(&store, "").await?);
    let guard = api.mutex("a")?.with_note("order 42").lock().await?;
    let waiting = job.mutex("a")?.with_note("nightly");
    let waiting = tokio::spawn(async move { waiting.lock().await.map(drop) });
    until_waiting(&job.mutex("a")?, 1).await?;
    let before = Instant::now();
    sleep(SECOND * 12).await;
    let found = job.mutex("a")?.inspect().await?;
    let holder = found.holder().expect("it is held");
    assert_eq!((holder.label.as_deref(), holder.note.as_deref()), (Some("api-7"), Some("order 42")));
    assert!(holder.held_for >= Some(before.elapsed()) && holder.held_for < Some(SECOND * 13), "{holder:?}");
    assert_eq!(holder.short_id(), Some(guard.lease_id()));
    assert!(guard.lease_id().starts_with(&api.id()) && !guard.lease_id().starts_with(&job.id()));
    assert!(!holder.id.starts_with(&guard.lease_id()), "only as much of it as logs show");
    let waiter = &found.waiters[0];
    assert_eq!((waiter.label.as_deref(), waiter.note.as_deref()), (None, Some("nightly")));
    guard.release().await?;
    waiting.await.expect("it does not panic")
}

#[tokio::test]
async fn a_client_is_called_like_its_process_by_default_however_it_is_made() -> Outcome {
    let pid = format!(" (pid {})", process::id());
    let with_backend = Client::with_backend(Arc::new(MemoryBackend::new()));
    for client in
        [Client::memory(), Client::connect("memory:").await?, Client::connect_lazy("memory:")?, with_backend]
    {
        let _guard = client.fair_semaphore("a", 1)?.acquire().await?;
        let found = client.fair_semaphore("a", 1)?.inspect().await?;
        assert!(found.holders[0].label.as_ref().is_some_and(|label| label.ends_with(&pid)), "{found:?}");
        assert_eq!(found.holders[0].label.as_deref(), client.label());
    }
    Ok(())
}

#[tokio::test]
async fn bad_labels_and_notes_are_refused() -> Outcome {
    let long = "é".repeat(MAX_LABEL_BYTES / 2);
    assert_eq!(Client::builder("memory:").label(long.clone()).connect_lazy()?.label(), Some(&*long));
    for label in [format!("{long}x"), "a\nb".to_owned()] {
        for error in [
            Client::builder("memory:").label(label.clone()).connect().await.expect_err("refused"),
            Client::builder("memory:").label(label.clone()).connect_lazy().expect_err("refused"),
        ] {
            assert!(matches!(error, Error::InvalidArgument { argument: "label", .. }), "{error:?}");
        }
    }
    let client = Client::memory();
    for note in ["n".repeat(MAX_NOTE_BYTES + 1), "a\tb".to_owned()] {
        let mutex = client.mutex("a")?.with_note(note.clone());
        let semaphore = client.counting_semaphore("a", 1)?.with_note(note.clone());
        let reentrant = client.reentrant_lock("b", "me")?.with_note(note);
        for error in [
            mutex.lock().await.expect_err("refused"),
            mutex.try_lock().await.expect_err("refused"),
            semaphore.acquire_timeout(SECOND).await.expect_err("refused"),
            reentrant.lock().await.expect_err("refused"),
        ] {
            assert!(matches!(error, Error::InvalidArgument { argument: "note", .. }), "{error:?}");
        }
        assert!(mutex.inspect().await?.holder().is_none());
    }
    Ok(())
}

#[tokio::test]
async fn a_note_belongs_to_a_handle_and_an_empty_one_is_none() -> Outcome {
    let mutex = Client::memory().mutex("a")?;
    for (handle, expected) in [
        (mutex.clone(), None),
        (mutex.with_note("one"), Some("one")),
        (mutex.with_note("one").with_note("two").clone(), Some("two")),
        (mutex.with_note("one").with_note(""), None),
    ] {
        let guard = handle.lock().await?;
        assert_eq!(note(&mutex).await?.as_deref(), expected);
        guard.release().await?;
    }
    Ok(())
}

/// Whoever holds, the store has that holder's note: nothing is passed on to or from an acquisition with a note. Those
/// without one pass a lease on among them as ever.
#[tokio::test(start_paused = true)]
async fn no_lease_is_passed_on_to_or_from_an_acquisition_with_a_note() -> Outcome {
    let mutex = Client::memory().mutex("a")?;
    let first = mutex.lock().await?;
    let notes = [None, Some("one"), None, Some("two"), Some("two"), None];
    let holders = notes.into_iter().enumerate().map(|(n, own)| {
        let (all, own) = (mutex.clone(), own.map(str::to_owned));
        async move {
            // They arrive in this order.
            sleep(ms(n as u64 + 1)).await;
            let handle = own.as_ref().map_or_else(|| all.clone(), |own| all.with_note(own.clone()));
            let guard = handle.lock().await?;
            assert_eq!(note(&all).await?, own);
            let lease = guard.lease_id();
            guard.release().await?;
            Ok::<_, Error>((own, lease))
        }
    });
    let first_lease = first.lease_id();
    let release = async {
        sleep(ms(20)).await;
        first.release().await
    };
    let (held, released) = futures::join!(join_all(holders), release);
    released?;
    let held = held.into_iter().collect::<Result<Vec<_>, _>>()?;
    let leases =
        |has_note| held.iter().filter(move |(note, _)| note.is_some() == has_note).map(|(_, lease)| lease);
    assert!(leases(false).all(|lease| *lease == first_lease), "within 30 ms of the grant: {held:?}");
    assert_eq!(leases(true).collect::<BTreeSet<_>>().len(), 3, "each has its own: {held:?}");
    Ok(())
}

/// The requests that keep a place carry label and note, too.
#[derive(Debug, Default)]
struct Requests(std::sync::Mutex<Vec<Request>>);

impl Intercept for Requests {
    fn request<'a>(&'a self, store: &'a MemoryBackend, request: &'a Request) -> Reply<'a, Answer> {
        self.0.lock().expect("it does not panic").push(request.clone());
        store.request(request)
    }
}

#[tokio::test(start_paused = true)]
async fn repeated_requests_carry_label_and_note() -> Outcome {
    let store = MemoryBackend::new();
    let _guard = client(&store, "holder").await?.mutex("a")?.lock().await?;
    let seen = Intercepted::new(&store, Requests::default());
    let waiter = Client::builder_with_backend(seen.clone()).label("waiter").connect().await?;
    for own in [None, Some("note")] {
        let mutex = waiter.mutex("a")?;
        let mutex = own.map_or_else(|| mutex.clone(), |own| mutex.with_note(own));
        let late = mutex.lock_timeout(SECOND * 40).await.expect_err("held");
        assert!(matches!(late, Error::TimedOut { .. }), "{late:?}");
        let requests = std::mem::take(&mut *seen.0.lock().expect("it does not panic"));
        assert!(requests.len() > 3, "{}", requests.len());
        for request in requests {
            assert_eq!((request.label.as_deref(), request.note.as_deref()), (Some("waiter"), own));
        }
    }
    Ok(())
}

/// The text of the error of a call that waits for `limit`, which takes exactly that long.
async fn timed_out(mutex: &DistMutex, limit: Duration) -> String {
    let begun = Instant::now();
    let error = mutex.lock_timeout(limit).await.expect_err("held");
    assert_eq!(begun.elapsed(), limit);
    assert!(matches!(error, Error::TimedOut { .. }), "{error:?}");
    error.to_string()
}

#[tokio::test(start_paused = true)]
async fn a_call_that_gives_up_says_who_holds_since_when_and_how_many_wait() -> Outcome {
    let store = MemoryBackend::new();
    let (api, job, other) = (
        client(&store, "api-7 (pid 4711)").await?,
        client(&store, "job").await?,
        client(&store, "other").await?,
    );
    let guard = api.mutex("a")?.lock().await?;
    sleep(SECOND * 11).await;
    let waiting = other.mutex("a")?;
    let waiting = tokio::spawn(async move { waiting.lock().await.map(drop) });
    let mutex = job.mutex("a")?;
    until_waiting(&mutex, 1).await?;
    let text = timed_out(&mutex, SECOND).await;
    assert!(text.ends_with("waiting for `a`, held by api-7 (pid 4711) for 12 s, 2 wait"), "{text}");
    let text = timed_out(&mutex, ms(1)).await;
    assert!(text.contains(", held by api-7 (pid 4711) for 12 s, "), "{text}");
    let Err(Error::TimedOut { contention, .. }) = mutex.lock_timeout(Duration::ZERO).await else {
        panic!("held")
    };
    // There was no time to ask a store that takes any.
    assert!(contention.is_none_or(|found| found.holders[0].label.as_deref() == Some("api-7 (pid 4711)")));
    guard.release().await?;
    waiting.await.expect("it does not panic")
}

#[tokio::test(start_paused = true)]
async fn a_call_for_permits_names_their_holders() -> Outcome {
    let store = MemoryBackend::new();
    let (one, two) = (client(&store, "one").await?, client(&store, "two").await?);
    let _one = one.counting_semaphore("a", 2)?.acquire().await?;
    let _two = two.counting_semaphore("a", 2)?.with_note("batch").acquire().await?;
    let error = one.counting_semaphore("a", 2)?.acquire_timeout(SECOND).await.expect_err("held");
    let text = error.to_string();
    assert!(text.contains("one for 1.0 s") && text.contains("two for 1.0 s (batch)"), "{text}");
    assert!(text.ends_with(", 1 waits"), "{text}");
    Ok(())
}

/// Counts what a client asks, and does not answer who holds.
#[derive(Debug, Default)]
struct Silent {
    requests: AtomicUsize,
    inspections: AtomicUsize,
}

impl Intercept for Silent {
    fn request<'a>(&'a self, store: &'a MemoryBackend, request: &'a Request) -> Reply<'a, Answer> {
        self.requests.fetch_add(1, Relaxed);
        store.request(request)
    }

    fn inspect<'a>(&'a self, _: Reply<'a, Inspection>, _: Detail) -> Reply<'a, Inspection> {
        self.inspections.fetch_add(1, Relaxed);
        pending().boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn who_holds_is_not_waited_for_and_a_call_that_does_not_wait_does_not_ask() -> Outcome {
    let store = MemoryBackend::new();
    let _guard = client(&store, "holder").await?.mutex("a")?.lock().await?;
    let silent = Intercepted::new(&store, Silent::default());
    let mutex = Client::with_backend(silent.clone()).mutex("a")?;
    assert!(mutex.try_lock().await?.is_none());
    assert_eq!((silent.requests.load(Relaxed), silent.inspections.load(Relaxed)), (1, 0));
    for limit in [ms(1), ms(50), ms(150)] {
        let text = timed_out(&mutex, limit).await;
        assert!(text.ends_with("waiting for `a`"), "{text}");
    }
    assert_eq!(silent.inspections.load(Relaxed), 3);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn of_many_calls_that_give_up_at_once_few_ask_who_holds() -> Outcome {
    let store = MemoryBackend::new();
    let _guard = client(&store, "holder").await?.mutex("a")?.lock().await?;
    let silent = Intercepted::new(&store, Silent::default());
    let mutex = Client::with_backend(silent.clone()).mutex("a")?;
    let late = join_all((0..100).map(|_| mutex.lock_timeout(ms(150)))).await;
    assert!(late.iter().all(|late| matches!(late, Err(Error::TimedOut { contention: None, .. }))));
    let asked = silent.inspections.load(Relaxed);
    assert!((1..=8).contains(&asked), "{asked}");
    Ok(())
}

/// Answers late, and says at first that what is wanted is not free.
#[derive(Debug)]
struct Slow {
    requests: Duration,
    inspections: Duration,
    /// How much was asked about the holders.
    details: std::sync::Mutex<Vec<Detail>>,
}

impl Slow {
    fn new(requests: Duration, inspections: Duration) -> Self {
        Self { requests, inspections, details: std::sync::Mutex::default() }
    }
}

impl Intercept for Slow {
    fn request<'a>(&'a self, store: &'a MemoryBackend, request: &'a Request) -> Reply<'a, Answer> {
        async {
            sleep(self.requests).await;
            if request.waits { store.request(request).await } else { Ok(Answer::Busy { limit: None }) }
        }
        .boxed()
    }

    fn inspect<'a>(&'a self, answer: Reply<'a, Inspection>, detail: Detail) -> Reply<'a, Inspection> {
        self.details.lock().expect("it does not panic").push(detail);
        async move {
            sleep(self.inspections).await;
            answer.await
        }
        .boxed()
    }
}

/// By how much a call may exceed its limit.
const LATE: Duration = Duration::from_millis(100);

#[tokio::test(start_paused = true)]
async fn a_limit_is_kept_however_slowly_the_store_answers() -> Outcome {
    let store = MemoryBackend::new();
    let holder = client(&store, "holder").await?;
    let _guard = holder.mutex("a")?.lock().await?;
    let _order = holder.reentrant_lock("b", "they")?.lock().await?;
    for (requests, inspections) in
        [(0, 300), (20, 20), (80, 80), (99, 99), (150, 150), (400, 10), (1000, 1000)]
    {
        let slow = Intercepted::new(&store, Slow::new(ms(requests), ms(inspections)));
        let client = Client::with_backend(slow.clone());
        let (mutex, lock) = (client.mutex("a")?, client.reentrant_lock("b", "me")?);
        for limit in [0, 1, 50, 99, 150, 400, 1100, 2500].map(ms) {
            for owned in [false, true] {
                let begun = Instant::now();
                let error = match owned {
                    false => mutex.lock_timeout(limit).await.expect_err("held"),
                    true => lock.lock_timeout(limit).await.expect_err("held"),
                };
                let late = begun.elapsed().saturating_sub(limit);
                assert!(late <= LATE, "{late:?} late after {limit:?}, {requests} {inspections}: {error}");
                let is_right = matches!(error, Error::TimedOut { .. } | Error::StoreUnavailable { .. });
                assert!(is_right, "{error:?}");
                let has_answered = limit > ms(2 * requests.max(inspections)) + PROBE;
                let says_who = error.to_string().contains("held by holder");
                assert!(says_who || !has_answered, "after {limit:?}, {requests} {inspections}: {error}");
            }
        }
        let details = slow.details.lock().expect("it does not panic").clone();
        assert!(!details.is_empty() && !details.contains(&Detail::Full), "{details:?}");
    }
    Ok(())
}

/// How long before the end of its limit a call asks who holds, at most.
const PROBE: Duration = Duration::from_millis(500);

#[tokio::test(start_paused = true)]
async fn the_limit_of_several_locks_is_one_for_all_of_them_however_slowly_the_store_answers() -> Outcome {
    let names: Vec<_> = (0..8).map(|n| format!("n{n}")).collect();
    for answer in [40, 80, 99, 150].map(ms) {
        let store = MemoryBackend::new();
        let slow = Client::with_backend(Intercepted::new(&store, Slow::new(answer, answer)));
        let all = slow.lock_all(&names)?;
        for limit in [0, 50, 120, 300, 500].map(ms) {
            let begun = Instant::now();
            let error = all.lock_timeout(limit).await.expect_err("two answers for each name take longer");
            let late = begun.elapsed().saturating_sub(limit);
            assert!(late <= LATE, "{late:?} late after {limit:?}, {answer:?}: {error}");
            let is_right = matches!(error, Error::TimedOut { .. } | Error::StoreUnavailable { .. });
            assert!(is_right, "{error:?}");
            // What it had is given back.
            let check = client(&store, "check").await?;
            let free = check.lock_all(&names)?.lock_timeout(SECOND * 5).await?;
            free.release().await?;
        }
        // With enough time, it gets all of them.
        let begun = Instant::now();
        all.lock_timeout(SECOND * 5).await?.release().await?;
        assert!(begun.elapsed() > answer * 8, "{:?}", begun.elapsed());
    }
    Ok(())
}

/// The purposes and names of what is listed.
async fn names(client: &Client, prefix: &str) -> Result<BTreeSet<(Purpose, String)>, Error> {
    let listed: Vec<_> = client.list(prefix).try_collect().await?;
    let names: BTreeSet<_> = listed.iter().map(|one| (one.purpose, one.name.clone())).collect();
    assert_eq!(names.len(), listed.len(), "each once");
    Ok(names)
}

#[tokio::test(start_paused = true)]
async fn a_client_lists_what_anybody_holds_or_awaits_under_its_prefixes() -> Outcome {
    let store = MemoryBackend::new();
    let (one, two) = (client(&store, "one").await?, client(&store, "two").await?);
    let (mut guards, mut expected) = (Vec::new(), BTreeSet::new());
    for n in 0..30 {
        let name = format!("shop:{n}");
        guards.push(one.mutex(&name)?.lock().await?);
        guards.push(one.counting_semaphore(&name, 2)?.acquire().await?);
        guards.push(two.fair_semaphore(&name, 2)?.acquire().await?);
        expected.extend(
            [Purpose::Mutex, Purpose::CountingSemaphore, Purpose::FairSemaphore]
                .map(|purpose| (purpose, name.clone())),
        );
        let ended = two.mutex(&format!("shop:ended:{n}"))?.lock().await?;
        ended.release().await?;
    }
    guards.push(one.mutex("other")?.lock().await?);
    let elsewhere = two.mutex_with("shop:elsewhere", MutexOptions::new().prefix("else:"))?;
    guards.push(elsewhere.lock().await?);
    assert_eq!(names(&two, "shop:").await?, expected);
    let begin_so = expected.iter().filter(|(_, name)| name.starts_with("shop:1")).cloned().collect();
    assert_eq!(names(&two, "shop:1").await?, begin_so);
    expected.insert((Purpose::Mutex, "other".to_owned()));
    assert_eq!(names(&two, "").await?, expected);
    assert_eq!(names(&two, "none").await?, BTreeSet::new());

    let mutex = two.mutex("shop:7")?;
    let waiting = tokio::spawn(async move { mutex.lock().await.map(drop) });
    until_waiting(&one.mutex("shop:7")?, 1).await?;
    let found: Vec<_> = one.list("shop:7").try_collect().await?;
    let lock = found.iter().find(|found| found.purpose == Purpose::Mutex).expect("it is held");
    assert_eq!((lock.waiters, lock.holders[0].label.as_deref()), (1, Some("one")));
    drop(guards);
    waiting.await.expect("it does not panic")
}

#[tokio::test]
async fn a_client_whose_kinds_share_a_prefix_lists_each_once_and_under_its_name() -> Outcome {
    let store = MemoryBackend::new();
    let plain = client(&store, "plain").await?;
    for prefix in ["shop:", ""] {
        let client = plain.clone().with_mutex_options(MutexOptions::new().prefix(prefix));
        let client = client.with_semaphore_options(SemaphoreOptions::new().prefix(prefix));
        let _lock = client.mutex("a")?.lock().await?;
        let _permit = client.fair_semaphore("ab", 1)?.acquire().await?;
        let _order = client.reentrant_lock("b", "me")?.lock().await?;
        let found = names(&client, "a").await?;
        assert_eq!(
            found,
            BTreeSet::from([(Purpose::Mutex, "a".to_owned()), (Purpose::FairSemaphore, "ab".to_owned())])
        );
        assert_eq!(names(&client, "").await?.len(), 3);
        assert_eq!(names(&plain, "").await?.len(), 0, "under its own prefixes");
    }
    Ok(())
}

#[tokio::test]
async fn a_client_that_is_shut_down_lists_nothing() -> Outcome {
    let client = Client::memory();
    client.shutdown().await?;
    let listed: Vec<_> = client.list("").collect().await;
    assert!(matches!(&listed[..], [Err(Error::Closed { operation: "list", .. })]), "{listed:?}");
    Ok(())
}

#[tokio::test]
async fn a_store_without_a_list_says_so() -> Outcome {
    let store = MemoryBackend::new();
    let client = Client::with_backend(Intercepted::new(&store, Silent::default()));
    let listed: Vec<_> = client.list("").collect().await;
    assert!(matches!(&listed[..], [Err(Error::Unsupported { .. })]), "{listed:?}");
    Ok(())
}
