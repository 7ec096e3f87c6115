//! What semaphores promise real processes: that are many, that are killed, that are paused, and whose clocks are wrong.
//! Each worker is this test binary once more, as a process of its own.
#![cfg(feature = "_redis")]

#[path = "support/semaphores.rs"]
mod semaphores;

use std::future::{Future, pending, ready};
use std::slice::from_ref;
use std::time::Duration;

use futures::StreamExt;
use futures::future::join_all;
use futures::stream;
use leasehold::backend::Kind;
use leasehold::{Client, CountingSemaphore, Error, FairSemaphore, FencingToken, Guard, SemaphoreOptions};
use leasehold_support::locks::left;
use leasehold_support::naive::{Naive, now_us};
use leasehold_support::{Clock, Raw, Reply, Worker, eventually, say, url_of, within, worker_args};
use semaphores::*;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};

/// The lease of workers that die.
const LEASE: Duration = SECOND;
/// The lease of workers that are to keep what they have, on a busy machine.
const KEPT: Duration = Duration::from_secs(3);
/// A holder that has died is replaced within this time: its lease, and a second.
const REPLACED: Duration = Duration::from_secs(2);
const ROUNDS: usize = 20;
/// How many rounds run at a time.
const SIDE_BY_SIDE: usize = 4;

/// Counts so many more permits as in use, or fewer, and remembers the most there ever were.
const USE: &str = "
    local now = redis.call('INCRBY', KEYS[1], ARGV[1])
    if now > tonumber(redis.call('GET', KEYS[2]) or 0) then redis.call('SET', KEYS[2], now) end
    return now";

/// Makes a test of a function for each kind.
macro_rules! promise {
    ($promise:ident) => {
        mod $promise {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn counting() {
                let Some(site) = Site::redis(stringify!($promise)) else { return };
                super::$promise::<CountingSemaphore>(site).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn fair() {
                let Some(site) = Site::redis(stringify!($promise)) else { return };
                super::$promise::<FairSemaphore>(site).await;
            }
        }
    };
}

// Workers

/// What a worker has been told.
struct Orders {
    client: Client,
    port: u16,
    kind: String,
    name: String,
    limit: u32,
    permits: u32,
    lease: Duration,
}

impl Orders {
    async fn receive() -> Option<Self> {
        let args = worker_args()?;
        let words: Vec<_> = args.split(' ').collect();
        let [port, kind, name, limit, permits, lease] = words[..] else { panic!("no orders: {args:?}") };
        let number = |word: &str| word.parse::<u32>().expect("a number");
        let port = port.parse().expect("a port");
        let client = connect(&url_of(port)).await;
        let (kind, name) = (kind.to_owned(), name.to_owned());
        let (limit, permits, lease) = (number(limit), number(permits), ms(number(lease).into()));
        Some(Self { client, port, kind, name, limit, permits, lease })
    }

    fn semaphore<S: Semaphore>(&self) -> S {
        let options = SemaphoreOptions::new().ttl(self.lease);
        S::make(&self.client, &self.name, self.limit, options).expect("valid")
    }

    fn raw(&self) -> Raw {
        Raw::connect(self.port).expect("the server accepts connections")
    }
}

/// A semaphore with the lease of the workers that die.
fn brief<S: Semaphore>(client: &Client, name: &str, limit: u32) -> S {
    S::make(client, name, limit, SemaphoreOptions::new().ttl(LEASE)).expect("valid")
}

fn orders<S: Semaphore>(site: &Site, name: &str, limit: u32, permits: u32, lease: Duration) -> String {
    let (port, kind, lease) = (site.server().port(), S::KIND.as_str(), lease.as_millis());
    format!("{port} {kind} {name} {limit} {permits} {lease}")
}

/// Makes a worker of a function.
macro_rules! worker {
    ($worker:ident = $work:ident) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $worker() {
            let Some(orders) = Orders::receive().await else { return };
            if orders.kind == Kind::Counting.as_str() {
                $work::<CountingSemaphore>(orders).await;
            } else {
                $work::<FairSemaphore>(orders).await;
            }
        }
    };
}

worker!(holding_worker = hold);
/// Waits for permits, and holds them forever; says when it loses them.
async fn hold<S: Semaphore>(orders: Orders) {
    let mut guard = orders.semaphore::<S>().acquire_many(orders.permits).await.expect("granted");
    say(&format!("held {}", guard.token()));
    let part = guard.split(1);
    let reason = guard.lost().await;
    say(&format!("lost {reason}"));
    for part in part.into_iter().chain([guard]) {
        assert!(!part.is_held() && matches!(part.release().await, Err(Error::Lost { .. })));
    }
    say("told");
    pending::<()>().await;
}

worker!(crowding_worker = crowd);
/// Comes and goes in several tasks, as soon as it is told to go.
async fn crowd<S: Semaphore>(orders: Orders) {
    const TASKS: usize = 6;
    const TURNS: usize = 12;
    say("ready");
    let go = orders.raw().send(&["BLPOP", "go", "10"]);
    assert_ne!(go, Reply::nil(), "no signal to start");
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (semaphore, mut raw, limit) = (orders.semaphore::<S>(), orders.raw(), orders.limit);
        tasks.spawn(async move {
            for turn in 0..TURNS {
                let guard = semaphore.acquire_many(1 + size(task + turn) % limit).await.expect("granted");
                let permits = guard.permits().to_string();
                let now = raw.send(&["EVAL", USE, "2", "in use", "most", &permits]).int();
                assert!(now <= limit.into(), "{now} permits are in use");
                raw.send(&["RPUSH", "tokens", &guard.token().to_string()]);
                sleep(ms(3)).await;
                raw.send(&["EVAL", USE, "2", "in use", "most", &format!("-{permits}")]);
                assert!(guard.is_held());
                guard.release().await.expect("held to the end");
            }
        });
    }
    tasks.join_all().await;
    orders.client.shutdown().await.expect("drained");
    say("done");
}

worker!(queueing_worker = queue_up_on_command);
/// Queues one more request whenever it is told to, and holds what it gets forever.
async fn queue_up_on_command<S: Semaphore>(orders: Orders) {
    let options = SemaphoreOptions::new().ttl(orders.lease);
    let (semaphore, mut raw) = (S::strict(&orders.client, &orders.name, orders.limit, options), orders.raw());
    say("ready");
    loop {
        // BLPOP blocks one of the two worker threads; the other is enough for the requests.
        if raw.send(&["BLPOP", "queue up", "9"]) == Reply::nil() {
            continue;
        }
        let semaphore = semaphore.clone();
        tokio::spawn(async move {
            let guard = semaphore.acquire().await.expect("granted");
            say(&format!("held {}", guard.token()));
            pending::<()>().await;
        });
    }
}

worker!(trying_worker = try_on_command);
/// Takes permits one by one whenever it is told to, by the recipe and by ours, and keeps what it gets.
async fn try_on_command<S: Semaphore>(orders: Orders) {
    let (semaphore, mut todo) = (orders.semaphore::<S>(), orders.raw());
    let mut naive = Naive::new(orders.raw(), "naive", orders.limit, orders.lease);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    say(&format!("clock {}", now_us()));
    loop {
        let order = todo.send(&["BLPOP", &orders.name_of_list(), "9"]);
        match order.words().get(1).map(String::as_str) {
            None => continue,
            Some("ours") => {
                let guard = semaphore.try_acquire().await.expect("answered");
                say(if guard.is_some() { "got" } else { "none" });
                ours.extend(guard);
            }
            Some("naive") => {
                let id = naive.try_acquire();
                say(if id.is_some() { "got" } else { "none" });
                theirs.extend(id);
            }
            Some("held") => say(&ours.iter().filter(|guard| guard.is_held()).count().to_string()),
            Some("give back") => {
                theirs.drain(..).for_each(|id| naive.release(&id));
                for guard in ours.drain(..) {
                    guard.release().await.expect("held to the end");
                }
                say("given back");
            }
            Some(other) => panic!("no such order: {other}"),
        }
    }
}

impl Orders {
    /// The list from which the worker takes its orders, named by its number of permits, which differs from worker to
    /// worker.
    fn name_of_list(&self) -> String {
        todo(self.permits)
    }
}

fn todo(worker: u32) -> String {
    format!("todo {worker}")
}

// What workers say

/// A request, in a task of its own, and when it was granted.
fn timed<S: Semaphore>(semaphore: &S, permits: u32) -> JoinHandle<(Guard, Instant)> {
    let semaphore = semaphore.clone();
    tokio::spawn(async move { (semaphore.acquire_many(permits).await.expect("granted"), Instant::now()) })
}

/// The same, and given back at once.
fn a_turn<S: Semaphore>(semaphore: &S, permits: u32) -> JoinHandle<(FencingToken, Instant)> {
    let request = timed(semaphore, permits);
    tokio::spawn(async move {
        let (guard, granted) = request.await.expect("no panic");
        let token = guard.token();
        guard.release().await.expect("held to the end");
        (token, granted)
    })
}

/// Nothing but fences, and `data`, is left soon.
#[track_caller]
fn only_fences_and<'a>(raw: &'a mut Raw, data: &'a [&str]) -> impl Future<Output = ()> + use<'a> {
    eventually(SOON, move || {
        let mut keys = left(raw);
        keys.retain(|key| !data.contains(&key.as_str()));
        ready(keys.is_empty())
    })
}

// Exclusion

promise!(four_processes_never_use_more_permits_than_there_are);
async fn four_processes_never_use_more_permits_than_there_are<S: Semaphore>(site: Site) {
    const PROCESSES: usize = 4;
    const LIMIT: u32 = 3;
    let orders = orders::<S>(&site, NAME, LIMIT, 0, KEPT);
    let mut workers: Vec<_> = (0..PROCESSES).map(|_| Worker::start("crowding_worker", &orders)).collect();
    let raw = crowd_in(&site, &mut workers, LIMIT).await;
    assert_all_different(raw, PROCESSES * 6 * 12).await;
}

/// Tells the workers to go, and waits until they are done.
async fn crowd_in(site: &Site, workers: &mut [Worker], limit: u32) -> Raw {
    let mut raw = site.server().raw();
    for worker in &mut *workers {
        assert_eq!(worker.line().await.as_deref(), Some("ready"));
    }
    for _ in &*workers {
        raw.send(&["RPUSH", "go", "go"]);
    }
    for worker in workers {
        assert_eq!(worker.line().await.as_deref(), Some("done"));
        assert!(worker.wait().success());
    }
    assert_eq!(raw.get("in use").as_deref(), Some("0"));
    assert_eq!(raw.get("most"), Some(limit.to_string()), "all were in use at a time, and never more");
    raw
}

/// So many grants were counted, and no token was given twice.
async fn assert_all_different(mut raw: Raw, grants: usize) {
    let mut tokens = raw.send(&["LRANGE", "tokens", "0", "-1"]).words();
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), grants);
    only_fences_and(&mut raw, &["in use", "most", "tokens"]).await;
}

// Death

/// So many rounds, some of them side by side, each with a name of its own. Each tells how long after a death the others
/// were served.
async fn rounds<F: Future<Output = Duration> + Send>(round: impl Fn(String) -> F + Send + Sync) {
    let rounds =
        stream::iter(0..ROUNDS).map(|n| round(format!("service-{n}"))).buffer_unordered(SIDE_BY_SIDE);
    let mut delays: Vec<_> = rounds.collect().await;
    delays.sort();
    // A busy machine may hold some of them up.
    assert!(delays[ROUNDS * 3 / 4] <= REPLACED, "after {delays:?}");
}

promise!(a_killed_holder_is_replaced_within_its_lease_and_a_second);
async fn a_killed_holder_is_replaced_within_its_lease_and_a_second<S: Semaphore>(site: Site) {
    let client = site.client().await;
    rounds(async |name| {
        // Half a minute of lease: nothing here comes from a repeated request.
        let semaphore = S::named(&client, &name, 3);
        let own = taken(&semaphore, 1).await;
        let mut worker = Worker::start("holding_worker", &orders::<S>(&site, &name, 3, 2, LEASE));
        let token = worker.held().await;
        let waiter = timed(&semaphore, 2);
        until_waiting(&semaphore, 1).await;
        let killed = Instant::now();
        worker.kill();
        let (next, granted) = within(SOON, waiter).await.expect("no panic");
        assert!(next.token() > token && own.is_held());
        assert_eq!(holds(&semaphore).await, [1, 2], "{name}");
        give_back([own, next]).await;
        granted - killed
    })
    .await;
    only_fences_and(&mut site.server().raw(), &[]).await;
}

/// Kills a waiter that is queued behind so many others, and lets everybody else have a turn.
async fn kill_waiters<S: Semaphore>(site: Site, ahead: usize) {
    let client = site.client().await;
    rounds(async |name| {
        let semaphore = brief::<S>(&client, &name, 3);
        let holder = taken(&S::named(&client, &name, 3), 3).await;
        let before = queue_up(from_ref(&semaphore), &[2, 3][..ahead]).await;
        let mut doomed = Worker::start("holding_worker", &orders::<S>(&site, &name, 3, 3, LEASE));
        until_waiting(&semaphore, ahead + 1).await;
        let after = [a_turn(&semaphore, 1), a_turn(&semaphore, 2)];
        until_waiting(&semaphore, ahead + 3).await;
        doomed.kill();
        let (killed, mut newest) = (Instant::now(), holder.token());
        holder.release().await.expect("held to the end");
        for before in before {
            let before = granted(before).await;
            newest = newest.max(before.token());
            before.release().await.expect("held to the end");
        }
        let mut delay = Duration::ZERO;
        for after in within(SOON, join_all(after)).await {
            let (token, granted) = after.expect("no panic");
            delay = delay.max(granted.saturating_duration_since(killed));
            assert!(S::KIND == Kind::Counting || token > newest, "{name}");
        }
        assert_eq!(doomed.unread(), None, "it never held");
        until_waiting(&semaphore, 0).await;
        delay
    })
    .await;
    only_fences_and(&mut site.server().raw(), &[]).await;
}

promise!(a_killed_waiter_in_the_middle_blocks_nobody_for_longer_than_a_lease);
async fn a_killed_waiter_in_the_middle_blocks_nobody_for_longer_than_a_lease<S: Semaphore>(site: Site) {
    kill_waiters::<S>(site, 2).await;
}

promise!(a_killed_waiter_at_the_head_blocks_nobody_for_longer_than_a_lease);
async fn a_killed_waiter_at_the_head_blocks_nobody_for_longer_than_a_lease<S: Semaphore>(site: Site) {
    kill_waiters::<S>(site, 0).await;
}

promise!(a_killed_first_waiter_for_many_permits_blocks_others_for_at_most_a_ttl);
async fn a_killed_first_waiter_for_many_permits_blocks_others_for_at_most_a_ttl<S: Semaphore>(site: Site) {
    let client = site.client().await;
    rounds(async |name| {
        let semaphore = brief::<S>(&client, &name, 3);
        let holder = taken(&S::named(&client, &name, 3), 1).await;
        let mut doomed = Worker::start("holding_worker", &orders::<S>(&site, &name, 3, 3, LEASE));
        until_waiting(&semaphore, 1).await;
        let behind = timed(&semaphore, 2);
        if S::KIND == Kind::Fair {
            until_waiting(&semaphore, 2).await;
        }
        let killed = Instant::now();
        doomed.kill();
        // Nobody releases anything.
        let (behind, granted) = within(SOON, behind).await.expect("no panic");
        give_back([holder, behind]).await;
        until_waiting(&semaphore, 0).await;
        granted.saturating_duration_since(killed)
    })
    .await;
    // A place that nobody was in the way of is remembered for two leases.
    only_fences_and(&mut site.server().raw(), &[]).await;
}

promise!(order_holds_among_the_rest_when_a_fifth_of_fifty_waiters_die_or_give_up);
async fn order_holds_among_the_rest_when_a_fifth_of_fifty_waiters_die_or_give_up<S: Semaphore>(site: Site) {
    const WAITERS: usize = 50;
    let (clients, mut raw) = (site.clients::<2>().await, site.server().raw());
    let semaphores =
        clients.clone().map(|client| S::strict(&client, NAME, 2, SemaphoreOptions::new().ttl(KEPT)));
    let [one, _] = &semaphores;
    let mut doomed = Worker::start("queueing_worker", &orders::<S>(&site, NAME, 2, 1, LEASE));
    assert_eq!(doomed.line().await.as_deref(), Some("ready"));
    let holder = taken(&S::of(&clients[0], 2), 2).await;
    let (mut rest, mut dropped) = (Vec::new(), Vec::new());
    for i in 0..WAITERS {
        let semaphore = semaphores[i % 2].clone();
        match i {
            // Two of five are in the process that will be killed, one times out, two are dropped.
            1 | 11 | 21 | 31 => drop(raw.send(&["RPUSH", "queue up", "once"])),
            6 | 26 => {
                drop(tokio::spawn(async move { semaphore.acquire_timeout(SECOND * 4).await.map(drop) }))
            }
            16 | 36 | 41 | 46 => dropped.push(waiter(&semaphore, 1)),
            _ => rest.push(waiter(&semaphore, 1)),
        }
        until_waiting(one, i + 1).await;
    }
    assert_eq!(rest.len(), WAITERS * 4 / 5);
    dropped.iter().for_each(JoinHandle::abort);
    // Until those with a time limit have given up as well.
    until_waiting(one, rest.len() + 4).await;
    doomed.kill();
    holder.release().await.expect("held to the end");
    let mut tokens = Vec::new();
    for waiter in rest {
        let guard = within(SOON * 2, waiter).await.expect("no panic");
        tokens.push(guard.token());
        guard.release().await.expect("held to the end");
    }
    assert_grow(&tokens);
    assert_eq!(doomed.unread(), None, "the dead never held");
    until_waiting(one, 0).await;
    // The places of the dead, which were set aside, are in nobody's way, and go with the queue after two leases.
    taken(one, 1).await.release().await.expect("held to the end");
    sleep(KEPT).await;
    only_fences_and(&mut raw, &[]).await;
}

promise!(a_process_paused_for_two_ttls_loses_its_permits_and_is_notified_when_it_resumes);
async fn a_process_paused_for_two_ttls_loses_its_permits_and_is_notified_when_it_resumes<S: Semaphore>(
    site: Site,
) {
    let semaphore = S::of(&site.client().await, 3);
    let own = taken(&semaphore, 1).await;
    let mut worker = Worker::start("holding_worker", &orders::<S>(&site, NAME, 3, 2, LEASE));
    let token = worker.held().await;
    let waiter = timed(&semaphore, 2);
    until_waiting(&semaphore, 1).await;
    worker.pause();
    let paused = Instant::now();
    let (next, granted) = within(SOON, waiter).await.expect("no panic");
    assert!(granted - paused <= LEASE + SLACK, "after {:?}", granted - paused);
    assert!(next.token() > token);
    sleep_until(paused + LEASE * 2).await;
    assert_eq!(worker.unread(), None);
    worker.resume();
    let said = worker.line().await.expect("it has not ended");
    assert!(said.starts_with("lost"), "{said}");
    assert_eq!(worker.line().await.as_deref(), Some("told"), "the release of each part is an error");
    assert_eq!(holds(&semaphore).await, [1, 2], "the holders of now are not disturbed");
    worker.kill();
    give_back([own, next]).await;
    only_fences_and(&mut site.server().raw(), &[]).await;
}

// Clocks that are wrong

const SKEW: Duration = Duration::from_secs(5);

/// A right clock, one that is five seconds ahead, and one that is five seconds behind.
fn clocks() -> Option<[Clock; 3]> {
    let clock = || Clock::new_or_skip("clients whose clocks are wrong");
    let [right, ahead, behind] = [clock()?, clock()?, clock()?];
    ahead.shift(SKEW);
    behind.set_back(SKEW);
    Some([right, ahead, behind])
}

/// A worker that takes permits when it is told to, under a clock.
struct Taker {
    worker: Worker,
    number: u32,
    raw: Raw,
}

impl Taker {
    async fn start<S: Semaphore>(
        site: &Site,
        clock: &Clock,
        number: u32,
        limit: u32,
        lease: Duration,
    ) -> Self {
        let orders = orders::<S>(site, NAME, limit, number, lease);
        let mut worker = Worker::start_under(clock, "trying_worker", &orders);
        let told = worker.line().await.expect("it has not ended");
        let theirs: i64 = told.strip_prefix("clock ").and_then(|us| us.parse().ok()).expect("its time");
        let error = theirs - clock.offset() - now_us();
        assert!(
            error.abs() < 2_000_000,
            "the clock of worker {number} is {error} us from where it should be"
        );
        Self { worker, number, raw: site.server().raw() }
    }

    async fn obey(&mut self, order: &str) -> String {
        self.raw.send(&["RPUSH", &todo(self.number), order]);
        self.worker.line().await.expect("it has not ended")
    }

    /// Takes permits until there are no more, or as many as would be twice too many.
    async fn take_all(&mut self, how: &str, limit: u32) -> u32 {
        for taken in 0..limit * 2 {
            if self.obey(how).await == "none" {
                return taken;
            }
        }
        limit * 2
    }
}

promise!(between_clocks_that_differ_the_naive_recipe_admits_too_many_and_ours_never_does);
async fn between_clocks_that_differ_the_naive_recipe_admits_too_many_and_ours_never_does<S: Semaphore>(
    site: Site,
) {
    const LIMIT: u32 = 2;
    let Some(clocks) = clocks() else { return };
    let mut takers = Vec::new();
    for (number, clock) in clocks.iter().enumerate() {
        takers.push(Taker::start::<S>(&site, clock, size(number), LIMIT, KEPT).await);
    }
    let mut admitted_too_many = 0;
    for first in 0..3 {
        for second in 0..3 {
            for how in ["naive", "ours"] {
                assert_eq!(takers[first].take_all(how, LIMIT).await, LIMIT, "{how}: free for {first}");
                let too_many = takers[second].take_all(how, LIMIT).await;
                if how == "ours" {
                    assert_eq!(too_many, 0, "clock {second} was let in beside clock {first}");
                    assert_eq!(takers[first].obey("held").await, LIMIT.to_string());
                } else if first == second {
                    assert_eq!(too_many, 0, "the recipe works by one clock");
                } else {
                    admitted_too_many += u32::from(too_many > 0);
                }
                for taker in [first, second] {
                    assert_eq!(takers[taker].obey("give back").await, "given back");
                }
            }
        }
    }
    assert_eq!(admitted_too_many, 6, "of six pairs of clocks that differ");
}

promise!(clocks_that_are_wrong_and_jump_admit_nobody_too_many);
async fn clocks_that_are_wrong_and_jump_admit_nobody_too_many<S: Semaphore>(site: Site) {
    const LIMIT: u32 = 3;
    let Some(clocks) = clocks() else { return };
    let orders = orders::<S>(&site, NAME, LIMIT, 0, KEPT);
    let mut workers: Vec<_> =
        clocks.iter().map(|clock| Worker::start_under(clock, "crowding_worker", &orders)).collect();
    let jumps = async {
        let [_, ahead, behind] = &clocks;
        loop {
            sleep(ms(100)).await;
            // Past each other, again and again.
            ahead.set_back(SKEW * 2);
            behind.shift(SKEW * 2);
            sleep(ms(100)).await;
            ahead.shift(SKEW * 2);
            behind.set_back(SKEW * 2);
        }
    };
    let raw = tokio::select! {
        raw = crowd_in(&site, &mut workers, LIMIT) => raw,
        () = jumps => unreachable!("they jump for ever"),
    };
    assert_all_different(raw, 3 * 6 * 12).await;
}

promise!(a_holder_whose_clock_is_wrong_or_jumps_keeps_its_permits_while_it_lives_and_no_longer);
async fn a_holder_whose_clock_is_wrong_or_jumps_keeps_its_permits_while_it_lives_and_no_longer<
    S: Semaphore,
>(
    site: Site,
) {
    let Some(clocks) = clocks() else { return };
    let semaphore = S::of(&site.client().await, 3);
    let mut takers = Vec::new();
    for (number, clock) in clocks.iter().enumerate() {
        let mut taker = Taker::start::<S>(&site, clock, size(number), 3, KEPT).await;
        assert_eq!(taker.obey("ours").await, "got");
        takers.push(taker);
    }
    let waiter = timed(&semaphore, 3);
    until_waiting(&semaphore, 1).await;
    let half_way = Instant::now() + KEPT;
    sleep_until(half_way).await;
    // The one that was behind is ahead, and the other way round.
    clocks[1].set_back(SKEW * 2);
    clocks[2].shift(SKEW * 2);
    sleep_until(half_way + KEPT).await;
    for taker in &mut takers {
        assert_eq!(taker.obey("held").await, "1");
    }
    assert!(!waiter.is_finished());
    let killed = Instant::now();
    takers.iter_mut().for_each(|taker| taker.worker.kill());
    let (next, granted) = within(SOON, waiter).await.expect("no panic");
    assert!(granted - killed <= KEPT + SLACK, "after {:?}", granted - killed);
    next.release().await.expect("held to the end");
    only_fences_and(&mut site.server().raw(), &[]).await;
}
