//! Operations that arrive while calls are under way go together in the next one, and none of them notices.
#![cfg(feature = "_redis")]

use std::future::{Future, poll_fn, ready};
use std::mem;
use std::ops::Range;
use std::pin::pin;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use futures::FutureExt;
use futures::future::{join, join_all, join3};
use futures::poll;
use futures::stream::{FuturesOrdered, StreamExt};
use leasehold::backend::{Answer, Backend, Claim, Kind, LeaseRef, Released, Request, Resource};
use leasehold::redis::RedisBackend;
use leasehold::{Client, DistMutex, Error, Guard, Inspection, SemaphoreOptions};
use leasehold_support::locks::{SECOND, SOON, connect, left, ms, named, nothing_left, polled, queued_named};
use tokio::runtime::Builder;
use tokio::sync::watch;
use tokio::task::{consume_budget, yield_now};

use leasehold_support::{
    Proxy, Raw, RedisServer, Reply, Setup, assert_is_never_lowered, eventually, options, within,
};

const MANY: usize = 200;

fn name(n: usize) -> String {
    format!("machine:{n}")
}

/// Locks all of `names` at once.
async fn lock_all(client: &Client, names: Range<usize>) -> Vec<Result<Guard, Error>> {
    let mutexes: Vec<_> = names.map(|n| named(client, &name(n), SECOND * 30)).collect();
    join_all(mutexes.iter().map(|mutex| mutex.lock())).await
}

/// The same, without waiting for those that are held.
async fn try_lock_all(client: &Client, names: Range<usize>) -> Vec<Result<Option<Guard>, Error>> {
    let mutexes: Vec<_> = names.map(|n| named(client, &name(n), SECOND * 30)).collect();
    join_all(mutexes.iter().map(|mutex| mutex.try_lock())).await
}

async fn release_all(guards: Vec<Result<Guard, Error>>) {
    for released in join_all(guards.into_iter().flatten().map(Guard::release)).await {
        released.expect("held to the end");
    }
}

/// Script calls since the last CONFIG RESETSTAT.
fn calls(raw: &mut Raw) -> u64 {
    let calls = raw.info_commandstats();
    ["evalsha", "eval"].iter().filter_map(|command| calls.get(*command)).sum()
}

/// The server has run both scripts and the batch.
async fn warm_up(client: &Client, raw: &mut Raw) {
    for _ in 0..2 {
        release_all(lock_all(client, 0..16).await).await;
    }
    raw.send(&["CONFIG", "RESETSTAT"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_that_arrive_during_a_call_share_the_next_one() {
    let Some(server) = RedisServer::start_or_skip("batches") else { return };
    let (client, mut raw) = (connect(&server.url()).await, server.raw());
    warm_up(&client, &mut raw).await;
    let guards = lock_all(&client, 0..MANY).await;
    assert!(guards.iter().all(Result::is_ok), "{guards:?}");
    let locking = calls(&mut raw);
    assert!(locking <= MANY as u64 / 4, "{locking} calls for {MANY} locks");
    release_all(guards).await;
    let both = calls(&mut raw);
    assert!(both <= MANY as u64 / 2, "{both} calls for {MANY} locks and releases");
    nothing_left(&server, SECOND).await;
}

/// The server's memory, in bytes.
fn used_memory(raw: &mut Raw) -> u64 {
    let info = raw.send(&["INFO", "memory"]).text().expect("text");
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")).expect("in the answer");
    used.trim().parse().expect("a number")
}

/// However many names there have been.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_thousand_locks_that_were_released_leave_one_fence_and_no_memory() {
    let Some(server) = RedisServer::start_or_skip("names left behind") else { return };
    let (client, mut raw) = (connect(&server.url()).await, server.raw());
    let lock_and_release = async |names: Range<usize>| {
        for from in names.step_by(MANY) {
            release_all(lock_all(&client, from..from + MANY).await).await;
        }
    };
    // Buffers and scripts have their size then.
    lock_and_release(0..2_000).await;
    let before = used_memory(&mut raw);
    lock_and_release(2_000..52_000).await;
    assert_eq!(raw.keys("*"), [leasehold_support::locks::FENCE]);
    let fence: u64 = raw.get(leasehold_support::locks::FENCE).expect("a token").parse().expect("a number");
    assert!(fence <= raw.now_us(), "however many grants, tokens stay behind the clock");
    // The buffers of connections shrink when they are idle.
    eventually(SOON * 4, || ready(used_memory(&mut raw) <= before + before / 100)).await;
}

/// Whoever gets a lock gets a token that the store remembers, or nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fence_that_may_be_read_but_not_written_grants_nothing() {
    let Some(server) = RedisServer::start_or_skip("fences that cannot be written") else { return };
    let mut raw = server.raw();
    let fences = [leasehold_support::locks::FENCE, "{semaphore:}:fence"];
    let allowed =
        ["~lock:*", "~semaphore:*", "~{lock:m*", "~{semaphore:m*", "+@all", "resetchannels", "&leasehold:*"];
    let fences_only_read = fences.map(|fence| format!("%R~{fence}"));
    let rules = [&["on", ">pw"], &allowed[..], &fences_only_read.each_ref().map(|rule| &**rule)].concat();
    if raw.send(&[&["ACL", "SETUSER", "limited"], &rules[..]].concat()) != Reply::ok() {
        // Before Redis 7, who may read a key may write it.
        return;
    }
    for fence in fences {
        raw.send(&["SET", fence, "1000000000000000"]);
    }
    let client = connect(&format!("redis://limited:pw@127.0.0.1:{}", server.port())).await;
    let refused = |error: &Error| matches!(error, Error::StoreRefused { .. });
    for many in [1, MANY] {
        for _ in 0..3 {
            let locks = lock_all(&client, 0..many).await;
            assert!(locks.iter().all(|lock| lock.as_ref().is_err_and(refused)), "{locks:?}");
            let semaphore = client.counting_semaphore("machine", 3).expect("valid");
            let permits = join_all((0..many).map(|_| semaphore.acquire())).await;
            assert!(permits.iter().all(|permit| permit.as_ref().is_err_and(refused)), "{permits:?}");
        }
    }
    assert_eq!(left(&mut raw), Vec::<String>::new());
    for fence in fences {
        assert_eq!(raw.get(fence).as_deref(), Some("1000000000000000"));
    }
}

/// A server that has no memory left refuses to write, but not to a script that has written: so what a batch gives back
/// lets it grant something. It does not grant what its fence cannot tell.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_store_grants_no_token_above_its_fence() {
    let Some(server) = RedisServer::start_or_skip("batches on a full store") else { return };
    // Not a client, which would repeat what is refused for a while.
    let (store, mut raw) = (RedisBackend::connect(&server.url()).await.expect("a server"), server.raw());
    warm_up(&connect(&server.url()).await, &mut raw).await;
    let requests = |names: Range<usize>| -> Vec<Request> {
        let resources = names.map(|n| Resource::new(format!("lock:{}", name(n)), Kind::Mutex));
        let leases = resources.map(|resource| LeaseRef::new(store.lease_id(), resource));
        leases.map(|lease| Request::new(lease, Claim::Sole, SECOND * 30)).collect()
    };
    let ask = async |requests: &[Request]| join_all(requests.iter().map(|one| store.request(one))).await;
    let release = async |requests: &[Request]| {
        for released in join_all(requests.iter().map(|one| store.release(&one.lease))).await {
            released.expect("answered");
        }
    };
    let (mut granted, mut refused) = (0, 0);
    for round in 0..20 {
        let (held, wanted) = (requests(0..MANY), requests(MANY..2 * MANY));
        assert!(ask(&held).await.iter().all(|answer| matches!(answer, Ok(Answer::Granted(_)))));
        // The next tokens do not come from the clock.
        let ahead = 5_000_000_000_000_000 + round * 1_000_000;
        raw.send(&["SET", leasehold_support::locks::FENCE, &ahead.to_string()]);
        raw.send(&["CONFIG", "SET", "maxmemory", "1"]);
        let (answers, ()) = join(ask(&wanted), release(&held)).await;
        let fence: u64 =
            raw.get(leasehold_support::locks::FENCE).expect("a token").parse().expect("a number");
        for answer in &answers {
            match answer {
                Ok(Answer::Granted(grant)) => {
                    let token = grant.token.get();
                    assert!(ahead < token && token <= fence, "{ahead} {token} {fence}");
                    granted += 1;
                }
                Ok(other) => panic!("nobody else holds it: {other:?}"),
                Err(error) => {
                    assert!(format!("{error:?}").contains("OOM"), "{error:?}");
                    refused += 1;
                }
            }
        }
        raw.send(&["CONFIG", "SET", "maxmemory", "0"]);
        release(&wanted).await;
        nothing_left(&server, SECOND).await;
    }
    assert!(refused > 0, "{granted} granted");
}

/// Locks that are granted in one call may share a token, but each grant of a lock has a greater one than that before
/// it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_granted_several_times_in_one_call_gets_a_greater_token_each_time() {
    let Some(server) = RedisServer::start_or_skip("tokens in batches") else { return };
    let (store, mut raw) = (RedisBackend::connect(&server.url()).await.expect("a server"), server.raw());
    warm_up(&connect(&server.url()).await, &mut raw).await;
    let resources = ["lock:a", "lock:b", "lock:c"].map(|key| Resource::new(key, Kind::Mutex));
    let leases: Vec<_> =
        (0..10).map(|_| resources.clone().map(|on| LeaseRef::new(store.lease_id(), on))).collect();
    let ask = async |lease: &LeaseRef| {
        let answer = store.request(&Request::new(lease.clone(), Claim::Sole, SECOND * 30)).await;
        match answer.expect("answered") {
            Answer::Granted(grant) => Some(grant.token.get()),
            other => panic!("not granted: {other:?}"),
        }
    };
    let give_back = async |lease: &LeaseRef| {
        assert_eq!(store.release(lease).await.expect("answered"), Released::Held);
        None
    };
    // How many operations share a call depends on how the machine schedules two threads.
    let mut shared = 0;
    for _ in 0..50 {
        raw.send(&["CONFIG", "RESETSTAT"]);
        let mut operations = Vec::new();
        for round in &leases {
            operations.extend(round.iter().map(|lease| ask(lease).boxed_local()));
            operations.extend(round.iter().rev().map(|lease| give_back(lease).boxed_local()));
        }
        let tokens: Vec<_> = join_all(operations).await.into_iter().flatten().collect();
        shared += u32::from(calls(&mut raw) < 30);
        for lock in 0..3 {
            let tokens: Vec<_> = tokens.iter().skip(lock).step_by(3).collect();
            assert_eq!(tokens.len(), leases.len());
            assert!(tokens.is_sorted_by(|before, after| **before + 16 <= **after), "{tokens:?}");
        }
        if shared == 2 {
            break;
        }
    }
    assert_eq!(shared, 2, "nearly every operation had a call of its own");
    assert_eq!(raw.keys("*"), [leasehold_support::locks::FENCE]);
}

/// Tokio makes the resources of a task that has done a lot in one poll return `Pending`. The first four operations are
/// sent by the caller, the fifth by a task, and that must not overtake them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_keep_their_order_although_the_budget_of_their_task_is_used_up() {
    let Some(server) = RedisServer::start_or_skip("the order of operations") else { return };
    let (store, mut raw) = (RedisBackend::connect(&server.url()).await.expect("a server"), server.raw());
    warm_up(&connect(&server.url()).await, &mut raw).await;
    for _ in 0..20 {
        let leases = ["lock:a", "lock:b", "lock:c", "lock:d"]
            .map(|key| LeaseRef::new(store.lease_id(), Resource::new(key, Kind::Mutex)));
        let requests = leases.clone().map(|lease| Request::new(lease, Claim::Sole, SECOND * 30));
        let all =
            join(join_all(requests.iter().map(|request| store.request(request))), store.release(&leases[0]));
        let (mut all, mut is_first) = (pin!(all), true);
        let (answers, released) = poll_fn(|context| {
            if !mem::take(&mut is_first) {
                return all.as_mut().poll(context);
            }
            while consume_budget().now_or_never().is_some() {}
            let (before, begin) = (calls(&mut raw), Instant::now());
            let polled = all.as_mut().poll(context);
            // This thread does nothing else until something has been sent: by the task, if that overtakes.
            while calls(&mut raw) == before {
                assert!(begin.elapsed() < SOON, "nothing was sent");
            }
            polled
        })
        .await;
        assert!(answers.iter().all(|answer| matches!(answer, Ok(Answer::Granted(_)))), "{answers:?}");
        assert_eq!(released.expect("answered"), Released::Held);
        for lease in &leases[1..] {
            assert_eq!(store.release(lease).await.expect("answered"), Released::Held);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_operation_affects_no_other_in_its_batch() {
    let Some(server) = RedisServer::start_or_skip("failures in batches") else { return };
    let (client, mut raw) = (connect(&server.url()).await, server.raw());
    warm_up(&client, &mut raw).await;
    let broken = [7, 50, 51, MANY - 1];
    for n in broken {
        raw.send(&["HSET", &format!("lock:{}", name(n)), "something", "else"]);
    }
    let mut guards = lock_all(&client, 0..MANY).await;
    for (n, guard) in guards.iter().enumerate() {
        match guard {
            Ok(guard) => assert_eq!(guard.name(), name(n)),
            Err(Error::StoreRefused { name: named, .. }) => {
                assert!(broken.contains(&n), "{n} was refused");
                assert_eq!(named.as_deref(), Some(&*name(n)));
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(guards.iter().filter(|guard| guard.is_err()).count(), broken.len());
    guards.retain(Result::is_ok);
    release_all(guards).await;
    assert_eq!(left(&mut raw).len(), broken.len(), "what was there before is left alone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_kinds_of_operations_share_a_call() {
    let Some(server) = RedisServer::start_or_skip("mixed batches") else { return };
    let client = connect(&server.url()).await;
    let mut tasks = Vec::new();
    for n in 0..MANY {
        let client = client.clone();
        tasks.push(tokio::spawn(async move {
            let name = name(n % 20);
            let guard = match n % 4 {
                0 => client.mutex_with(&name, options())?.lock().await?,
                1 => client.reentrant_lock(&name, &n.to_string())?.lock().await?,
                2 => client.counting_semaphore(&name, 3)?.acquire_many(2).await?,
                _ => client.fair_semaphore(&name, 3)?.acquire_many(2).await?,
            };
            yield_now().await;
            guard.release().await
        }));
    }
    for task in tasks {
        within(SOON * 4, task).await.expect("no panic").expect("held to the end");
    }
    nothing_left(&server, SECOND).await;
}

/// Alone, a script is given all its keys; in a batch it makes them from one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_every_sort_have_the_same_keys_in_batches_as_alone() {
    let Some(server) = RedisServer::start_or_skip("names in batches") else { return };
    let (client, mut raw) = (connect(&server.url()).await, server.raw());
    warm_up(&client, &mut raw).await;
    let sorts = ["{tag}", "{", "}", "{}", "}{", "{a}{b}", "é", "two words", "line\r\nbreak", "'\"\\"];
    let mut names: Vec<_> = sorts.map(String::from).to_vec();
    // A length is written in one way up to 31, 127 and 255 bytes, and in another above.
    names.extend([1, 26, 27, 122, 123, 250, 251, 500].map(|length| "n".repeat(length)));
    names.extend(names.clone().iter().map(|name| format!("{name}}}!")));
    let mutexes: Vec<_> = names.iter().map(|name| queued_named(&client, name, SECOND * 30)).collect();
    raw.send(&["FLUSHALL"]);

    let (mut held, mut waiting) = (Vec::new(), Vec::new());
    for (n, mutex) in mutexes.iter().enumerate() {
        held.push(within(SOON, mutex.lock()).await);
        waiting.push(mutex.lock().boxed());
        assert!(poll!(waiting.last_mut().expect("one")).is_pending());
        // A lock, a queue and what is known of it; and the fence of all.
        eventually(SOON, || ready(raw.keys("*").len() == 3 * (n + 1) + 1)).await;
    }
    let alone = raw.keys("*");
    drop((held, waiting));
    nothing_left(&server, SOON).await;
    raw.send(&["FLUSHALL"]);

    raw.send(&["CONFIG", "RESETSTAT"]);
    let held = within(SOON, join_all(mutexes.iter().map(|mutex| mutex.lock()))).await;
    let mut waiting = join_all(mutexes.iter().map(|mutex| mutex.lock()));
    assert!(poll!(&mut waiting).is_pending());
    eventually(SOON, || ready(raw.keys("*").len() == 3 * names.len() + 1)).await;
    assert!(calls(&mut raw) < names.len() as u64, "{} calls", calls(&mut raw));
    assert_eq!(raw.keys("*"), alone);
    release_all(held).await;
    release_all(within(SOON, waiting).await).await;
    nothing_left(&server, SECOND).await;
}

/// A batch reads and writes what is known of a semaphore once: after it, the store must know what the holders know.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batched_operations_on_one_semaphore_have_the_same_effect_as_separate_ones() {
    let Some(server) = RedisServer::start_or_skip("batches on one semaphore") else { return };
    let (client, mut raw) = (connect(&server.url()).await, server.raw());
    warm_up(&client, &mut raw).await;
    let fair = client.fair_semaphore("one", 40).expect("valid");
    forty_at_a_time(&mut raw, "fair-semaphore", || fair.acquire(), || fair.inspect()).await;
    let counting = client.counting_semaphore("one", 40).expect("valid");
    forty_at_a_time(&mut raw, "semaphore", || counting.acquire(), || counting.inspect()).await;
    nothing_left(&server, SECOND).await;
}

async fn forty_at_a_time<F, I>(
    raw: &mut Raw,
    kind: &str,
    acquire: impl Fn() -> F,
    inspect: impl Fn() -> I + Sync,
) where
    F: Future<Output = Result<Guard, Error>>,
    I: Future<Output = Result<Inspection, Error>>,
{
    // The client has met the limit.
    acquire().await.expect("granted").release().await.expect("held");
    let beside = |suffix: &str| format!("{{{kind}:one}}:{suffix}");
    let (mut held, mut newest) = (Vec::new(), None);
    let mut waiting: FuturesOrdered<_> = (0..MANY).map(|_| acquire()).collect();
    while held.len() < 40 {
        held.push(within(SOON, waiting.next()).await.expect("one more").expect("granted"));
    }
    assert!(poll!(waiting.next()).is_pending(), "a permit too many");
    eventually(SOON, || ready(raw.send(&["ZCARD", &beside("queue")]).int() == (MANY - 40) as i64)).await;
    for (suffix, encoding) in [("queue", "skiplist"), ("waiters", "hashtable")] {
        let told = raw.send(&["OBJECT", "ENCODING", &beside(suffix)]);
        assert_eq!(told.text().as_deref(), Some(encoding), "a long queue has an index");
        assert!(raw.pttl(&beside(suffix)) > 0);
    }
    // As the state tells.
    let used = async || inspect().await.expect("inspected").in_use;
    for _ in 0..4 {
        assert_eq!(used().await, 40);
        let mut tokens: Vec<_> = held.iter().map(Guard::token).collect();
        tokens.sort_unstable();
        assert!(
            tokens.windows(2).all(|pair| pair[0] < pair[1]) && newest < tokens.first().copied(),
            "{tokens:?}"
        );
        newest = tokens.last().copied();
        for released in join_all(held.drain(..).map(Guard::release)).await {
            released.expect("held to the end");
        }
        while held.len() < 40 && !waiting.is_empty() {
            held.push(within(SOON, waiting.next()).await.expect("one more").expect("granted"));
        }
    }
    assert_eq!((held.len(), waiting.len()), (40, 0), "all of them, in order of arrival");
    drop(held);
    eventually(SOON, async || used().await == 0).await;
}

/// Grants to requests of the client that releases come with the answers to that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_granted_with_a_lost_answer_are_repeated_at_once() {
    let Some(server) = RedisServer::start_or_skip("grants in answers") else { return };
    let (proxy, mut raw) = (Proxy::start(server.port()).await, server.raw());
    let client = connect(&proxy.url()).await;
    warm_up(&client, &mut raw).await;
    let semaphore = client.fair_semaphore("one", 20).expect("valid");
    let acquire_all = || {
        let semaphore = semaphore.clone();
        async move { join_all((0..20).map(|_| semaphore.acquire())).await }
    };
    let mut held = within(SOON, acquire_all()).await;
    for lost in [false, true] {
        let waiting = tokio::spawn(acquire_all());
        eventually(SOON, || ready(raw.send(&["ZCARD", "{fair-semaphore:one}:queue"]).int() == 20)).await;
        raw.send(&["CONFIG", "RESETSTAT"]);
        // A batch with a release: in MessagePack, its code, that its key is the one before, and that it has three
        // arguments.
        let cut = lost.then(|| proxy.cut_after_next_request_matching(*b"\xa1s\xc2\x03"));
        let ((), next) = within(SOON, join(release_all(mem::take(&mut held)), waiting)).await;
        held = next.expect("no panic");
        if let Some(cut) = cut {
            within(SOON, cut).await.expect("an answer got lost");
        } else {
            let pushed = raw.info_commandstats().get("publish").copied().unwrap_or_default();
            assert!(pushed < 10, "{pushed} of 20 grants were pushed");
        }
    }
    release_all(held).await;
    nothing_left(&server, SECOND).await;
}

/// Waiters repeat their requests every third of a lease, those of one client at the same moments.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_requests_share_a_call_and_keep_their_places() {
    let Some(server) = RedisServer::start_or_skip("repetitions") else { return };
    let (holder, client, mut raw) =
        (connect(&server.url()).await, connect(&server.url()).await, server.raw());
    // Calls that find their script unknown go again, and may overtake each other.
    warm_up(&client, &mut raw).await;
    let guard = named(&holder, "one", SECOND * 30).lock().await.expect("free");
    let mutex = queued_named(&client, "one", SECOND * 3);
    let served = Arc::new(Mutex::new(Vec::new()));
    let wait = |n| {
        let (mutex, served) = (mutex.clone(), Arc::clone(&served));
        async move {
            let guard = mutex.lock().await.expect("granted");
            served.lock().expect("whole").push(n);
            guard.release().await.expect("held to the end");
        }
    };
    let waiting = tokio::spawn(join_all((0..MANY).map(wait)));
    eventually(SOON, || ready(raw.send(&["ZCARD", "{lock:one}:queue"]).int() == MANY as i64)).await;

    raw.send(&["CONFIG", "RESETSTAT"]);
    // Each request begins with one EXISTS. Each repeats itself four times at least, which takes longer than its lease.
    let mut requests = || raw.info_commandstats().get("exists").copied().unwrap_or_default() as usize;
    eventually(SOON * 3, || ready(requests() >= 5 * MANY)).await;
    assert!(calls(&mut raw) < MANY as u64, "{} calls", calls(&mut raw));
    guard.release().await.expect("held to the end");
    within(SOON * 3, waiting).await.expect("no panic");
    let served = mem::take(&mut *served.lock().expect("whole"));
    assert!(served.iter().copied().eq(0..MANY), "in order of arrival: {served:?}");
    nothing_left(&server, SECOND).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_type_is_reported_to_all_requests_repeated_in_one_call() {
    let Some(server) = RedisServer::start_or_skip("wrong types in batches") else { return };
    let (client, mut raw) = (connect(&server.url()).await, server.raw());
    warm_up(&client, &mut raw).await;
    let [guard, other] = ["one", "two"]
        .map(|name| named(&client, name, SECOND * 30))
        .map(|mutex| async move { mutex.lock().await.expect("free") });
    let (guard, other) = join(guard, other).await;
    let waiting = |name| {
        let mutex = queued_named(&client, name, SECOND * 3);
        tokio::spawn(async move { join_all((0..40).map(|_| mutex.lock())).await })
    };
    let (refused, served) = (waiting("one"), waiting("two"));
    for queue in ["{lock:one}:queue", "{lock:two}:queue"] {
        eventually(SOON, || ready(raw.send(&["ZCARD", queue]).int() == 40)).await;
    }
    raw.send(&["DEL", "lock:one"]);
    raw.send(&["RPUSH", "lock:one", "x"]);
    raw.send(&["PEXPIRE", "lock:one", "600000"]);
    for refused in within(SOON, refused).await.expect("no panic") {
        let error = refused.expect_err("it is no lock").to_string();
        assert!(error.contains("WRONGTYPE"), "{error}");
    }
    assert!(!served.is_finished(), "the other lock is held");
    served.abort();
    other.release().await.expect("held to the end");
    assert!(guard.release().await.is_err(), "it was taken away");
    raw.send(&["DEL", "lock:one"]);
    // Those who were refused left their places as they were: for two leases.
    nothing_left(&server, SECOND * 10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_survives_a_server_that_has_forgotten_the_scripts() {
    let Some(server) = RedisServer::start_or_skip("forgotten scripts") else { return };
    let (client, mut raw) = (connect(&server.url()).await, server.raw());
    for _ in 0..5 {
        raw.send(&["SCRIPT", "FLUSH"]);
        let guards = lock_all(&client, 0..MANY).await;
        raw.send(&["SCRIPT", "FLUSH"]);
        release_all(guards).await;
    }
    nothing_left(&server, SECOND).await;
}

/// The server refuses a call of which it may not touch one key, before it carries any of it out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_operation_affects_no_other_in_its_batch() {
    let Some(server) = RedisServer::start_or_skip("refusals in batches") else { return };
    let mut raw = server.raw();
    let rules = ["on", ">pw", "+@all", "resetchannels", "&leasehold:*", "~lock:*", "~{lock:*"];
    raw.send(&[&["ACL", "SETUSER", "limited"], &rules[..]].concat());
    let client = connect(&format!("redis://limited:pw@127.0.0.1:{}", server.port())).await;
    for _ in 0..5 {
        let elsewhere = client.mutex_with("private", options().prefix("elsewhere:")).expect("valid");
        let (guards, refused) =
            join(lock_all(&client, 0..MANY), join_all((0..10).map(|_| elsewhere.try_lock()))).await;
        assert!(guards.iter().all(Result::is_ok), "{guards:?}");
        assert!(
            refused.iter().all(|refused| matches!(refused, Err(Error::StoreRefused { .. }))),
            "{refused:?}"
        );
        release_all(guards).await;
    }
    nothing_left(&server, SECOND).await;
}

/// A script that the server does not know is sent a second time, as text. What was given up in between is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_given_up_while_the_server_learns_the_scripts_leave_nothing() {
    let Some(server) = RedisServer::start_or_skip("forgotten scripts and dropped requests") else { return };
    let (client, mut raw) = (connect(&server.url()).await, server.raw());
    for round in 0..60 {
        raw.send(&["SCRIPT", "FLUSH"]);
        let mutexes: Vec<_> = (0..64).map(|n| named(&client, &name(n), SECOND * 30)).collect();
        drop(polled(join_all(mutexes.iter().map(|mutex| mutex.lock())), 1 + round % 20).await);
    }
    nothing_left(&server, SOON).await;
}

/// The connection for commands lives on the runtime on which the client was made. When that ends, the next caller
/// connects again.
#[test]
fn requests_do_not_hang_when_the_runtime_of_the_connection_ends() {
    let Some(server) = RedisServer::start_or_skip("a runtime that ends under its requests") else { return };
    let runtime = || Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let (theirs, ours) = (runtime(), runtime());
    let client = theirs.block_on(connect(&server.url()));
    ours.block_on(async {
        release_all(lock_all(&client, 0..MANY).await).await;
        server.pause();
        let requests = tokio::spawn({
            let client = client.clone();
            async move { try_lock_all(&client, 0..MANY).await }
        });
        yield_now().await;
        theirs.shutdown_background();
        server.resume();
        within(SOON * 3, requests).await.expect("no panic");
        // Those that come later are served.
        let later = within(SOON * 3, try_lock_all(&client, MANY..MANY + 8)).await;
        assert!(later.iter().all(Result::is_ok), "{later:?}");
    });
}

/// An answer may be there as soon as its call has left, on a thread that was interrupted meanwhile. The client has more
/// threads than the machine has processors, so that this happens, and a runtime of its own, so that a standstill can be
/// seen.
#[test]
fn an_answer_that_is_there_at_once_holds_up_nobody() {
    const FLUSHES: usize = 1000;
    let Some(server) = RedisServer::start_or_skip("early answers") else { return };
    let runtime = Builder::new_multi_thread().worker_threads(8).enable_all().build().expect("a runtime");
    let (flushed, is_flushed) = watch::channel(false);
    let (done, is_done) = channel();
    let url = server.url();
    runtime.spawn(async move {
        let client = connect(&url).await;
        let until = |n| come_and_go(named(&client, &name(n), SECOND * 30), is_flushed.clone());
        join_all((0..64).map(until).map(tokio::spawn))
            .await
            .into_iter()
            .for_each(|task| task.expect("no panic"));
        done.send(()).expect("listened to");
    });
    let mut raw = server.raw();
    for _ in 0..FLUSHES {
        raw.send(&["SCRIPT", "FLUSH"]);
        assert_eq!(is_done.recv_timeout(ms(1)), Err(RecvTimeoutError::Timeout));
    }
    flushed.send_replace(true);
    let done = is_done.recv_timeout(SOON * 2);
    // A thread that hangs cannot be waited for.
    runtime.shutdown_background();
    done.expect("nobody waits forever");
}

async fn come_and_go(mutex: DistMutex, is_over: watch::Receiver<bool>) {
    while !*is_over.borrow() {
        mutex.lock().await.expect("free").release().await.expect("held to the end");
    }
}

/// Locks and semaphores with the same prefix share a fence. What a semaphore has written ahead into it stays there,
/// whatever locks are granted in the same call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_grant_lowers_a_fence_that_a_semaphore_has_raised() {
    let left_out = "locks and semaphores under one fence";
    let Some(mut server) = RedisServer::start_with_or_skip(left_out, Setup::with_a_log_of_writes()) else {
        return;
    };
    server.allow(&["~shop:*", "~{shop:*"].map(str::to_owned));
    let client = connect(&server.url()).await;
    let other = connect(&server.url()).await;
    // Each is wanted by both clients, so that calls that grant one name another one's token.
    let lock_often = |client: &Client, n: usize| {
        let mutex = client.mutex_with(&format!("lock-{}", n % 32), options().prefix("shop:")).expect("valid");
        async move {
            for _ in 0..100 {
                mutex.lock().await.expect("free").release().await.expect("held to the end");
            }
        }
    };
    let acquire_often = |n: usize| {
        let options = SemaphoreOptions::new().prefix("shop:");
        let semaphore =
            client.counting_semaphore_with(&format!("permits-{}", n % 4), 3, options).expect("valid");
        async move {
            for _ in 0..100 {
                semaphore.acquire().await.expect("free").release().await.expect("held to the end");
            }
        }
    };
    let of_one = join_all((0..32).map(|n| lock_often(&client, n)));
    let of_other = join_all((0..32).map(|n| lock_often(&other, n)));
    join3(of_one, of_other, join_all((0..16).map(acquire_often))).await;
    other.shutdown().await.expect("released");
    client.shutdown().await.expect("released");
    assert_is_never_lowered(&mut server, "{shop:}:fence");
}

/// The server is paused, so that what is asked for after the first four requests is queued in the client. On one thread
/// it is certain that these four are on their way by then.
#[tokio::test]
async fn a_request_given_up_while_it_is_queued_is_not_sent() {
    let Some(server) = RedisServer::start_or_skip("requests given up in the queue") else { return };
    let (client, mut raw) = (connect(&server.url()).await, server.raw());
    warm_up(&client, &mut raw).await;
    server.pause();
    let mutexes: Vec<_> = (0..MANY).map(|n| named(&client, &name(n), SECOND * 30)).collect();
    let mut first = pin!(join_all(mutexes[..4].iter().map(|mutex| mutex.lock())));
    assert!(poll!(first.as_mut()).is_pending());
    for _ in 0..10 {
        yield_now().await;
    }
    {
        let mut others = pin!(join_all(mutexes[4..].iter().map(|mutex| mutex.lock())));
        assert!(poll!(others.as_mut()).is_pending());
    }
    server.resume();
    for guard in within(SOON, first).await {
        guard.expect("free").release().await.expect("held to the end");
    }
    nothing_left(&server, SECOND).await;
    // Each grant, and nothing else, sets its lock; and a call that grants anything writes the fence, twice at most.
    let set = raw.info_commandstats().get("set").copied().unwrap_or_default();
    assert!(set <= 12, "granted to requests that had been given up: {set} keys were set");
}

/// `lock` makes its call itself if nothing else is under way. That must not make others wait for a task that has better
/// things to do than to poll it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_not_polled_holds_up_nobody() {
    let Some(server) = RedisServer::start_or_skip("requests that are not polled") else { return };
    let client = connect(&server.url()).await;
    let mutexes: Vec<_> = (0..4).map(|n| named(&client, &name(n), SECOND * 30)).collect();
    let mut idle: Vec<_> = mutexes.iter().map(|mutex| Box::pin(mutex.lock())).collect();
    server.pause();
    for request in &mut idle {
        assert!(poll!(request).is_pending());
    }
    server.resume();
    for _ in 0..3 {
        release_all(within(SECOND, lock_all(&client, 4..MANY)).await).await;
    }
    for guard in within(SOON, join_all(idle)).await {
        guard.expect("free").release().await.expect("held to the end");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_share_calls_and_keep_every_lease() {
    let Some(server) = RedisServer::start_or_skip("renewals in batches") else { return };
    let (client, mut raw) = (connect(&server.url()).await, server.raw());
    let mutexes: Vec<_> = (0..MANY).map(|n| named(&client, &name(n), ms(900))).collect();
    let guards = join_all(mutexes.iter().map(|mutex| mutex.lock())).await;
    raw.send(&["CONFIG", "RESETSTAT"]);
    let renewed = |calls: &std::collections::BTreeMap<String, u64>| {
        calls.get("pexpire").is_some_and(|extended| *extended >= 10 * MANY as u64)
    };
    eventually(SOON * 4, || ready(renewed(&raw.info_commandstats()))).await;
    let calls = calls(&mut raw);
    assert!(calls <= 10 * MANY as u64 / 4, "{calls} calls for ten renewals of {MANY} leases");
    assert!(guards.iter().all(|guard| guard.as_ref().is_ok_and(Guard::is_held)));
    release_all(guards).await;
    nothing_left(&server, SECOND).await;
}
