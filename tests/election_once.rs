//! Elections, and jobs that run once per tick: on the store in memory, whose time passes when nothing else is to do,
//! and then on every store that processes share, with leaders and runners that are killed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::StreamExt;
use leasehold::{
    Client, Error, FencingToken, Leader, LossReason, MemoryBackend, MutexOptions, OnDeadRunner, Once,
    OnceOptions, Tick, Ticks,
};
use leasehold_support::{assert_pending, begun, within};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);
/// The default.
const TTL: Duration = Duration::from_secs(30);
const MINUTE: Duration = Duration::from_secs(60);

fn client(store: &MemoryBackend) -> Client {
    Client::with_backend(Arc::new(store.peer()))
}

/// A client whose connection is in the hands of the test.
fn in_hand(store: &MemoryBackend) -> (Arc<MemoryBackend>, Client) {
    let backend = Arc::new(store.peer());
    (Arc::clone(&backend), Client::with_backend(backend))
}

fn value_of(leader: &Option<Leader>) -> Option<&str> {
    leader.as_ref().map(|leader| leader.value.as_str())
}

mod election {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_leads_and_the_next_one_leads_when_it_resigns() {
        let store = MemoryBackend::new();
        let (one, two) =
            (client(&store).election("a").expect("valid"), client(&store).election("a").expect("valid"));
        assert_eq!(two.leader().await.expect("answered"), None);
        let first = one.campaign("one").await.expect("nobody leads");
        let second = begun({
            let two = two.clone();
            async move { two.campaign("two").await }
        })
        .await;
        let leader = two.leader().await.expect("answered").expect("one leads");
        assert_eq!((&*leader.value, leader.token), ("one", first.token()));
        assert!(leader.label.is_some_and(|label| label.contains("pid")));
        assert_pending(TTL * 3, first.lost()).await;
        first.resign().await.expect("it led until the end");
        let second = within(SECOND, second).await.expect("no panic").expect("it leads");
        assert_eq!(second.value(), "two");
        let leader = one.leader().await.expect("answered").expect("two leads");
        assert_eq!((&*leader.value, leader.token), ("two", second.token()));
    }

    #[tokio::test(start_paused = true)]
    async fn candidates_of_one_client_have_their_own_values_and_tokens() {
        let client = Client::memory();
        let election = client.election("a").expect("valid");
        let first = election.campaign("0").await.expect("nobody leads");
        let (led, mut leaders) = mpsc::unbounded_channel();
        let mut candidates = Vec::new();
        for n in 1..5 {
            let (election, led) = (election.clone(), led.clone());
            candidates.push(
                begun(async move {
                    let leadership = election.campaign(&n.to_string()).await.expect("it leads");
                    let shown = election.leader().await.expect("answered").expect("it leads");
                    led.send((leadership.token(), shown)).expect("the test listens");
                })
                .await,
            );
        }
        let mut last = first.token();
        drop(first);
        for n in 1..5 {
            let (token, shown) = within(SECOND, leaders.recv()).await.expect("a leader");
            assert_eq!((shown.value, shown.token), (n.to_string(), token));
            assert!(token > last);
            last = token;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_value_that_cannot_be_a_note_is_refused() {
        let election = Client::memory().election("a").expect("valid");
        for value in ["line\nbreak", &"v".repeat(leasehold::MAX_NOTE_BYTES + 1)] {
            let refused = election.campaign(value).await.map(drop);
            assert!(matches!(refused, Err(Error::InvalidArgument { .. })), "{refused:?}");
            let refused = election.run(value, async |_| Ok::<_, Error>(())).await;
            assert!(matches!(refused, Err(Error::InvalidArgument { .. })), "{refused:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_prefix_of_the_client_keeps_elections_apart_and_they_are_no_mutexes() {
        let store = MemoryBackend::new();
        let plain = client(&store);
        let other = client(&store).with_mutex_options(MutexOptions::new().prefix("shop:"));
        let one = plain.election("a").expect("valid").campaign("").await.expect("free");
        let two = other.election("a").expect("valid").campaign("").await.expect("free");
        let mutex = plain.mutex("a").expect("valid").try_lock().await.expect("answered");
        assert!(mutex.is_some());
        drop((one, two));
    }

    /// Whatever it has missed, and whatever its store has been through.
    #[tokio::test(start_paused = true)]
    async fn an_observer_sees_each_lasting_leader_once_and_goes_on_after_an_outage() {
        let store = MemoryBackend::new();
        let (link, watching) = in_hand(&store);
        let election = client(&store).election("a").expect("valid");
        let mut leaders = watching.election("a").expect("valid").observe();
        assert_eq!(within(SECOND, leaders.next()).await, Some(None));
        for n in 0..3 {
            let leadership = election.campaign(&n.to_string()).await.expect("free");
            let seen = within(SECOND * 2, leaders.next()).await.flatten().expect("a leader");
            assert_eq!((seen.value, seen.token), (n.to_string(), leadership.token()));
            assert_pending(TTL, leaders.next()).await;
            leadership.resign().await.expect("it led");
            assert_eq!(within(SECOND * 2, leaders.next()).await, Some(None));
        }
        link.cut_off();
        let unseen = election.campaign("unseen").await.expect("free");
        assert_pending(TTL, leaders.next()).await;
        unseen.resign().await.expect("it led");
        let last = election.campaign("last").await.expect("free");
        link.restore();
        let seen = within(SECOND * 2, leaders.next()).await.expect("it goes on");
        assert_eq!(value_of(&seen), Some("last"));
        watching.shutdown().await.expect("nothing is held");
        assert_eq!(within(SECOND, leaders.next()).await, None, "it ends with the client");
        drop(last);
    }

    /// It looks once a year, so what it sees has been pushed.
    #[tokio::test(start_paused = true)]
    async fn a_change_is_pushed_to_an_observer() {
        let store = MemoryBackend::new();
        let election = client(&store).election("a").expect("valid");
        let watching = client(&store).election("a").expect("valid");
        let mut leaders = watching.observe_looking_every(MINUTE * 525_600);
        assert_eq!(within(SECOND, leaders.next()).await, Some(None));
        for n in 0..3 {
            let leadership = election.campaign(&n.to_string()).await.expect("free");
            let seen = within(SECOND, leaders.next()).await.flatten().expect("a leader");
            assert_eq!((seen.value, seen.token), (n.to_string(), leadership.token()));
            leadership.resign().await.expect("it led");
            assert_eq!(within(SECOND, leaders.next()).await, Some(None));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn run_leads_again_after_an_error_and_returns_what_the_job_returns() {
        let election = Client::memory().election("a").expect("valid");
        let mut tokens = Vec::new();
        let outcome = election
            .run("me", |leader| {
                tokens.push(leader.token);
                let attempt = tokens.len();
                async move { if attempt < 4 { Err("not yet") } else { Ok(attempt) } }
            })
            .await;
        assert_eq!(outcome.expect("the fourth succeeds"), 4);
        assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "{tokens:?}");
        assert_eq!(election.leader().await.expect("answered"), None, "it has resigned");
    }

    #[tokio::test(start_paused = true)]
    async fn another_candidate_leads_while_the_one_whose_job_failed_pauses() {
        let store = MemoryBackend::new();
        let failing = client(&store).election("a").expect("valid");
        let other = client(&store).election("a").expect("valid");
        let (failed, mut failures) = mpsc::unbounded_channel();
        let runs = tokio::spawn(async move {
            failing
                .run("failing", |leader| {
                    failed.send(leader.token).expect("the test listens");
                    async { Err::<(), _>("always") }
                })
                .await
        });
        within(SECOND, failures.recv()).await.expect("it leads");
        let leadership = within(SECOND, other.campaign("other")).await.expect("it leads");
        assert!(failures.try_recv().is_err());
        leadership.resign().await.expect("it led");
        within(SECOND * 2, failures.recv()).await.expect("it leads again");
        runs.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn run_leads_again_after_a_loss_and_its_job_never_overlaps_that_of_the_next_leader() {
        let store = MemoryBackend::new();
        let (link, cut) = in_hand(&store);
        let (leads, mut leaders) = mpsc::unbounded_channel();
        let working = Arc::new(AtomicU32::new(0));
        let mut runs = Vec::new();
        for (name, client) in [("cut", cut), ("other", client(&store))] {
            let (leads, working) = (leads.clone(), Arc::clone(&working));
            let run = begun(async move {
                let election = client.election("a").expect("valid");
                let job = |leader: Leader| {
                    leads.send(leader.value).expect("the test listens");
                    let working = Arc::clone(&working);
                    async move {
                        assert_eq!(working.fetch_add(1, Ordering::SeqCst), 0, "two work at the same time");
                        let _ends = scopeguard(move || working.fetch_sub(1, Ordering::SeqCst));
                        std::future::pending::<Result<(), Error>>().await
                    }
                };
                election.run(name, job).await
            });
            runs.push(run.await);
        }
        assert_eq!(within(SECOND, leaders.recv()).await.as_deref(), Some("cut"));
        link.cut_off();
        assert_eq!(within(TTL + SECOND, leaders.recv()).await.as_deref(), Some("other"));
        link.restore();
        // It campaigns again, and leads when the other one is gone.
        let second = client(&store).election("a").expect("valid");
        sleep(MINUTE).await;
        assert_eq!(value_of(&second.leader().await.expect("answered")), Some("other"));
        runs[1].abort();
        assert_eq!(within(SECOND, leaders.recv()).await.as_deref(), Some("cut"));
        runs[0].abort();
    }

    /// Runs something when it is dropped.
    fn scopeguard<T>(end: impl FnOnce() -> T) -> impl Drop {
        struct AtEnd<T, F: FnOnce() -> T>(Option<F>);
        impl<T, F: FnOnce() -> T> Drop for AtEnd<T, F> {
            fn drop(&mut self) {
                self.0.take().map(|end| end());
            }
        }
        AtEnd(Some(end))
    }

    #[tokio::test(start_paused = true)]
    async fn run_steps_down_when_its_client_is_closed_or_shut_down_or_the_future_is_dropped() {
        let store = MemoryBackend::new();
        let other = client(&store).election("a").expect("valid");
        for end in ["close", "shut down", "drop"] {
            let client = client(&store);
            let (leads, mut leading) = mpsc::unbounded_channel();
            let run = tokio::spawn({
                let election = client.election("a").expect("valid");
                async move {
                    let job = |leader: Leader| {
                        leads.send(leader.token).expect("the test listens");
                        std::future::pending::<Result<(), Error>>()
                    };
                    election.run("me", job).await
                }
            });
            within(SECOND, leading.recv()).await.expect("it leads");
            match end {
                "close" => within(SECOND, client.close(MINUTE)).await.expect("it resigns at once"),
                "shut down" => within(SECOND, client.shutdown()).await.expect("it is released"),
                _ => run.abort(),
            }
            let next = within(SECOND, other.campaign("next")).await.expect("it leads");
            match run.await {
                Ok(ended) => assert!(matches!(ended, Err(Error::Closed { .. })), "{end}: {ended:?}"),
                Err(aborted) => assert!(aborted.is_cancelled() && end == "drop", "{end}: {aborted}"),
            }
            next.resign().await.expect("it led");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn run_survives_a_store_that_is_away_when_it_begins() {
        let store = MemoryBackend::new();
        let (link, cut) = in_hand(&store);
        link.cut_off();
        let run = tokio::spawn(async move {
            let election = cut.election("a").expect("valid");
            election.run("me", async |leader| Ok::<_, Error>(leader.token)).await
        });
        assert_pending(MINUTE * 5, std::future::pending::<()>()).await;
        assert!(!run.is_finished());
        link.restore();
        within(MINUTE * 2, run).await.expect("no panic").expect("it has led");
    }
}

mod once {
    use super::*;

    /// The time of day on tokio's clock, which is off by this many milliseconds.
    fn clock(off: i64) -> impl Fn() -> SystemTime + Send + Sync + 'static {
        clock_since(Instant::now(), off)
    }

    fn clock_since(start: Instant, off: i64) -> impl Fn() -> SystemTime + Send + Sync + 'static {
        let zero = UNIX_EPOCH + Duration::from_secs(1_000_000);
        let error = Duration::from_millis(off.unsigned_abs());
        let zero = if off < 0 { zero - error } else { zero + error };
        move || zero + start.elapsed()
    }

    fn schedule(client: &Client, options: OnceOptions, off: i64) -> Once {
        client.once_with("a", Ticks::every(SECOND), options).expect("valid").by_clock(clock(off))
    }

    /// How often each tick was begun and ended.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<BTreeMap<u64, (u32, u32)>>>);

    impl Log {
        async fn job(self, tick: Tick, takes: Duration) {
            self.0.lock().expect("no panic").entry(tick.number).or_default().0 += 1;
            sleep(takes).await;
            self.0.lock().expect("no panic").entry(tick.number).or_default().1 += 1;
        }

        fn ticks(&self) -> BTreeMap<u64, (u32, u32)> {
            self.0.lock().expect("no panic").clone()
        }
    }

    fn follow(schedule: Once, log: &Log, takes: Duration) -> tokio::task::JoinHandle<Result<(), Error>> {
        let log = log.clone();
        tokio::spawn(async move { schedule.run(|tick| log.clone().job(tick, takes)).await })
    }

    /// Half a minute of time to make up for what others did not run.
    fn patient() -> OnceOptions {
        OnceOptions::new().at_least_for(MINUTE * 2).at_most_late(MINUTE)
    }

    /// The ticks are without a gap, but for those at the end.
    fn assert_each_once(log: &Log, at_least: u64) {
        let ticks = log.ticks();
        let (first, last) = (*ticks.keys().next().expect("ticks"), *ticks.keys().last().expect("ticks"));
        assert!(last - first >= at_least, "{ticks:?}");
        for tick in first..last {
            assert_eq!(ticks.get(&tick), Some(&(1, 1)), "tick {tick} of {ticks:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn schedulers_whose_clocks_differ_by_seconds_run_each_tick_exactly_once() {
        let (store, log) = (MemoryBackend::new(), Log::default());
        for off in [-29_000, -3_100, -1_200, 0, 700, 2_500, 29_000] {
            follow(schedule(&client(&store), patient(), off), &log, Duration::from_millis(300));
        }
        sleep(MINUTE * 20).await;
        assert_each_once(&log, 1200);
    }

    /// The one that is ahead, which runs them, is gone after each minute; and then the next one.
    #[tokio::test(start_paused = true)]
    async fn each_tick_is_run_once_although_schedulers_leave() {
        for takes in [Duration::ZERO, Duration::from_millis(400)] {
            let (store, log) = (MemoryBackend::new(), Log::default());
            let offs = [9_000, 4_000, 1_000, -1_000, -8_000];
            let clients: Vec<_> = offs.iter().map(|_| client(&store)).collect();
            let runs: Vec<_> = clients
                .iter()
                .zip(offs)
                .map(|(client, off)| follow(schedule(client, patient(), off), &log, takes))
                .collect();
            for (client, run) in clients.iter().zip(runs) {
                sleep(MINUTE).await;
                client.close(TTL).await.expect("the tick that is run ends");
                run.await.expect("no panic").expect("closed");
            }
            assert_each_once(&log, 280);
            assert!(log.ticks().values().all(|times| *times == (1, 1)), "{:?}", log.ticks());
        }
    }

    /// Each of them dies in the middle of a job.
    async fn with_runners_that_die(choice: OnDeadRunner) -> (BTreeMap<u64, (u32, u32)>, Vec<u64>) {
        let (store, log) = (MemoryBackend::new(), Log::default());
        let options = OnceOptions::new().at_most_late(MINUTE * 5).on_dead_runner(choice);
        let start = Instant::now();
        let mut fatal = Vec::new();
        for _ in 0..3 {
            let (link, doomed) = in_hand(&store);
            let (begins, mut begun) = mpsc::unbounded_channel();
            let schedule = schedule(&doomed, options.clone(), 0).by_clock(clock_since(start, 1500));
            let (witness, runs) = (log.clone(), AtomicU32::new(0));
            let run = tokio::spawn(async move {
                let job = |tick: Tick| {
                    let is_last = tick.number > 1_000_005 && runs.fetch_add(1, Ordering::Relaxed) == 5;
                    let witness = witness.clone();
                    if is_last {
                        begins.send(tick.number).expect("the test listens");
                    }
                    witness.job(tick, if is_last { MINUTE * 60 } else { Duration::ZERO })
                };
                schedule.run(job).await
            });
            let tick = within(MINUTE * 5, begun.recv()).await.expect("it runs ticks");
            link.crash();
            run.abort();
            fatal.push(tick);
        }
        let last = schedule(&client(&store), options, 0).by_clock(clock_since(start, 0));
        follow(last, &log, Duration::ZERO);
        sleep(MINUTE * 3).await;
        (log.ticks(), fatal)
    }

    #[tokio::test(start_paused = true)]
    async fn a_tick_whose_runner_died_is_run_again() {
        let (ticks, fatal) = with_runners_that_die(OnDeadRunner::RunAgain).await;
        assert_eq!(fatal.len(), 3);
        let last = *ticks.keys().last().expect("ticks");
        for (tick, (begun, ended)) in ticks.range(..last) {
            assert_eq!(
                (*begun > 1, *ended),
                (fatal.contains(tick), 1),
                "tick {tick} of {ticks:?}, fatal: {fatal:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_tick_whose_runner_died_is_left_out() {
        let (ticks, fatal) = with_runners_that_die(OnDeadRunner::LeaveOut).await;
        assert_eq!(fatal.len(), 3);
        let last = *ticks.keys().last().expect("ticks");
        for (tick, (begun, ended)) in ticks.range(..last) {
            assert_eq!(
                (*begun, *ended == 0),
                (1, fatal.contains(tick)),
                "tick {tick} of {ticks:?}, fatal: {fatal:?}"
            );
        }
    }

    /// Its clock says so when it goes on, although it had decided to run the tick when it was due.
    #[tokio::test(start_paused = true)]
    async fn a_scheduler_that_was_away_for_longer_than_a_tick_is_remembered_runs_nothing_twice() {
        for choice in [OnDeadRunner::RunAgain, OnDeadRunner::LeaveOut] {
            let (store, log) = (MemoryBackend::new(), Log::default());
            let (link, away) = in_hand(&store);
            let options =
                OnceOptions::new().at_least_for(MINUTE).at_most_late(SECOND * 20).on_dead_runner(choice);
            link.cut_off();
            let ticks = Ticks::every(MINUTE * 5);
            let schedule = |client: &Client| {
                client.once_with("a", ticks, options.clone()).expect("valid").by_clock(clock(0))
            };
            let run = follow(schedule(&away), &log, Duration::ZERO);
            let other = follow(schedule(&client(&store)), &log, Duration::ZERO);
            while log.ticks().is_empty() {
                sleep(SECOND).await;
            }
            sleep(MINUTE * 2).await;
            link.restore();
            sleep(MINUTE * 20).await;
            assert!(
                log.ticks().len() >= 4 && log.ticks().values().all(|times| *times == (1, 1)),
                "{:?}",
                log.ticks()
            );
            run.abort();
            other.abort();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn ticks_missed_in_an_outage_are_made_up_for_unless_they_are_too_late() {
        let (store, log) = (MemoryBackend::new(), Log::default());
        let (link, cut) = in_hand(&store);
        follow(schedule(&cut, patient().at_most_late(SECOND * 40), 0), &log, Duration::ZERO);
        sleep(SECOND * 10).await;
        let before = log.ticks().len();
        link.cut_off();
        sleep(MINUTE * 5).await;
        assert_eq!(log.ticks().len(), before);
        link.restore();
        sleep(MINUTE * 2).await;
        let ticks: Vec<_> = log.ticks().into_keys().collect();
        let gaps: Vec<_> = ticks.windows(2).map(|pair| pair[1] - pair[0]).filter(|gap| *gap > 1).collect();
        // 300 s less 40 s, and the pauses between attempts.
        assert!(gaps.len() == 1 && (259..=300).contains(&gaps[0]), "{gaps:?}");
        assert!(log.ticks().values().all(|times| *times == (1, 1)));
    }

    #[tokio::test(start_paused = true)]
    async fn ticks_of_a_name_do_not_overlap_and_by_default_only_the_latest_is_made_up_for() {
        let (store, log) = (MemoryBackend::new(), Log::default());
        let working = Arc::new(AtomicU32::new(0));
        for off in [0, 400] {
            let (log, working) = (log.clone(), Arc::clone(&working));
            let schedule = schedule(&client(&store), OnceOptions::new(), off);
            tokio::spawn(async move {
                let job = |tick| {
                    let (log, working) = (log.clone(), Arc::clone(&working));
                    async move {
                        assert_eq!(working.fetch_add(1, Ordering::SeqCst), 0, "two at the same time");
                        log.job(tick, Duration::from_millis(3500)).await;
                        working.fetch_sub(1, Ordering::SeqCst);
                    }
                };
                schedule.run(job).await
            });
        }
        sleep(MINUTE).await;
        let ticks = log.ticks();
        assert!((12..=20).contains(&ticks.len()), "{ticks:?}");
        assert!(ticks.values().all(|(begun, _)| *begun == 1), "{ticks:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn try_run_runs_the_latest_tick_once_and_says_what_the_job_returned() {
        let store = MemoryBackend::new();
        let one = schedule(&client(&store), OnceOptions::new(), 0);
        let two = schedule(&client(&store), OnceOptions::new(), 0);
        assert_eq!(one.try_run(async |tick| tick.number).await.expect("run"), Some(1_000_000));
        assert_eq!(two.try_run(async |tick| tick.number).await.expect("answered"), None);
        sleep(SECOND).await;
        assert_eq!(two.try_run(async |tick| tick.number).await.expect("run"), Some(1_000_001));
    }

    #[tokio::test(start_paused = true)]
    async fn a_tick_is_remembered_for_as_long_as_was_said_after_its_client_is_gone() {
        let store = MemoryBackend::new();
        for choice in [OnDeadRunner::RunAgain, OnDeadRunner::LeaveOut] {
            let options = OnceOptions::new().at_least_for(MINUTE * 10).on_dead_runner(choice);
            let number = choice as u64;
            let first = client(&store);
            let ran = schedule(&first, options.clone(), 0).try_run_tick(number, async |_| ()).await;
            assert_eq!(ran.expect("run"), Some(()));
            first.shutdown().await.expect("nothing is left to release");
            let second = schedule(&client(&store), options, 0);
            sleep(MINUTE * 10 - SECOND).await;
            assert_eq!(second.try_run_tick(number, async |_| ()).await.expect("answered"), None);
            sleep(SECOND * 2).await;
            assert_eq!(second.try_run_tick(number, async |_| ()).await.expect("run"), Some(()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_that_takes_too_long_is_dropped_and_counts_as_one_whose_runner_died() {
        for (choice, expected) in [(OnDeadRunner::RunAgain, Some(())), (OnDeadRunner::LeaveOut, None)] {
            let client = Client::memory();
            let once =
                schedule(&client, OnceOptions::new().at_most_for(SECOND * 3).on_dead_runner(choice), 0);
            let since = Instant::now();
            let error = once.try_run_tick(7, |_| sleep(MINUTE)).await.expect_err("too long");
            assert!(matches!(error, Error::Lost { reason: LossReason::HeldTooLong, .. }), "{error:?}");
            assert_eq!(since.elapsed().as_secs(), 3);
            assert_eq!(once.try_run_tick(7, async |_| ()).await.expect("answered"), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_that_is_dropped_leaves_the_run_free_and_the_tick_as_was_chosen() {
        for (choice, expected) in [(OnDeadRunner::RunAgain, Some(())), (OnDeadRunner::LeaveOut, None)] {
            let store = MemoryBackend::new();
            let once = |off| schedule(&client(&store), OnceOptions::new().on_dead_runner(choice), off);
            let mine = once(0);
            assert_pending(SECOND, mine.try_run_tick(7, |_| sleep(MINUTE))).await;
            let next = within(SECOND, once(0).try_run_tick(7, async |_| ())).await.expect("answered");
            assert_eq!(next, expected, "{choice:?}");
            let other = within(SECOND, once(0).try_run_tick(8, async |_| ())).await.expect("answered");
            assert_eq!(other, Some(()));
        }
    }

    /// That it was done is stored when the store is back, although the run itself was lost by then.
    #[tokio::test(start_paused = true)]
    async fn a_job_that_ends_in_an_outage_is_not_run_again() {
        let store = MemoryBackend::new();
        let (link, cut) = in_hand(&store);
        let (mine, other) =
            (schedule(&cut, OnceOptions::new(), 0), schedule(&client(&store), OnceOptions::new(), 0));
        let end = link.clone();
        let ran = tokio::spawn(async move { mine.try_run_tick(7, |_| async move { end.cut_off() }).await });
        assert_pending(TTL / 2, std::future::pending::<()>()).await;
        assert!(!ran.is_finished(), "it has not been stored yet");
        link.restore();
        assert_eq!(within(MINUTE, ran).await.expect("no panic").expect("stored"), Some(()));
        assert_eq!(other.try_run_tick(7, async |_| ()).await.expect("answered"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_of_runs_increase_from_tick_to_tick() {
        let store = MemoryBackend::new();
        let mut last = FencingToken::new(0);
        for number in 0..20 {
            let once = schedule(&client(&store), OnceOptions::new(), 0);
            let token =
                once.try_run_tick(number, async |tick| tick.token).await.expect("run").expect("not run yet");
            assert!(token > last);
            last = token;
        }
    }
}
