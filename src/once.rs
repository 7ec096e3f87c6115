//! A job that is to run once per tick, although several schedulers follow the same timetable.
//!
//! # How it works
//!
//! Ticks are numbered: the tick `n` of a timetable is due at the same instant everywhere, and every scheduler can tell
//! by its own clock which ticks are due. Two leases do the rest, both of them ordinary leases of a mutex:
//!
//! * The *run* (`once:run:NAME`): whoever holds it runs one tick. So no two ticks of a name are run at the same time.
//! * The *mark* of a tick (`once:done:NAME:n`): a lease that nobody renews or releases, so the store keeps it for its
//!   TTL, `at_least_for`. It is granted to one client only. A tick with a mark is not run.
//!
//! With [`OnDeadRunner::LeaveOut`] the mark is set before the job begins, with [`OnDeadRunner::RunAgain`] after it has
//! ended.
//!
//! # Why a tick is not run twice
//!
//! Let R be `at_least_for`, W `at_most_late`, and D the greatest difference between the clocks of two schedulers, with
//! D <= R - W. A scheduler B begins the job of a tick only after this, in this order: it holds the run; it finds no
//! mark, or sets it; and its clock, read after that, is before `due + W`. Suppose that A has set the mark of this tick
//! at the time m, so A's clock was at `due` or later by then.
//!
//! 1. From m to m + R, nobody finds that the mark is missing, or sets it: the store has granted it to A.
//! 2. If B finds it missing, or sets it, at a time t >= m + R, then A's clock is at `due + R` or later, so B's is at
//!    `due + R - D >= due + W` or later when it is read, and B does not run the tick.
//! 3. If B finds it missing before m, B was first. With `LeaveOut`, that cannot be: to find it missing is to set it.
//!    With `RunAgain`, both hold the run one after the other, so A's began after B's had ended, and A has looked for
//!    B's mark.
//!
//! Case 3 fails if B has lost the run: then A may run the tick again, which is what `RunAgain` says. So `LeaveOut` is
//! at most once, whatever happens to schedulers, and `RunAgain` at least once, and exactly once unless a runner dies or
//! loses its lease. A store that forgets leases (Redis after a failover, or a restart without persistence) forgets
//! marks too: then a tick can be run again as long as it is not later than W.

use std::fmt;
use std::future::ready;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::{Instant, sleep};

use crate::backend::{Answer, Claim, Detail, Kind, LeaseRef, MAX_TTL, Request, Resource};
use crate::client::Client;
use crate::error::{Error, LossReason};
use crate::fence::FencingToken;
use crate::guard::Guard;
use crate::lease::Wait;
use crate::name;
use crate::options::within;
use crate::primitive::Primitive;
use crate::retry::{self, BackOff};

/// A mark may not depend on the session of the client that has set it, and ZooKeeper's sessions last for up to 40 s.
const MIN_MARK: Duration = Duration::from_secs(60);
/// The clock of a scheduler is read again after this, because it may have been set.
const NAP: Duration = Duration::from_secs(10);

/// A timetable: one tick every period, counted from the Unix epoch.
///
/// ```
/// use std::time::Duration;
/// use leasehold::Ticks;
///
/// let hour = Duration::from_secs(3600);
/// let nightly = Ticks::every(24 * hour).offset(hour / 2); // half past midnight, UTC
/// assert!(nightly.due(20_000).is_some());
/// ```
#[doc(alias = "schedule")]
#[doc(alias = "timetable")]
#[doc(alias = "interval")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "a timetable does nothing until it is passed to `Client::once`"]
pub struct Ticks {
    period: Duration,
    offset: Duration,
}

impl Ticks {
    /// A tick every `period`, of which one was at the Unix epoch: `every(86400 s)` is midnight UTC.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::Ticks;
    /// let ticks = Ticks::every(Duration::from_secs(300)); // at :00, :05, :10, …
    /// # drop(ticks);
    /// ```
    pub const fn every(period: Duration) -> Self {
        Self { period, offset: Duration::ZERO }
    }

    /// The same, `offset` later: half past two, for instance. Default: zero.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::Ticks;
    /// let ticks = Ticks::every(Duration::from_secs(300)).offset(Duration::from_secs(60)); // at :01, :06, :11, …
    /// # drop(ticks);
    /// ```
    pub const fn offset(mut self, offset: Duration) -> Self {
        self.offset = offset;
        self
    }

    /// When the tick with this number is due. `None` if that is too far in the future for the clock.
    ///
    /// ```
    /// # use std::time::{Duration, UNIX_EPOCH};
    /// # use leasehold::Ticks;
    /// let ticks = Ticks::every(Duration::from_secs(300));
    /// assert_eq!(ticks.due(2), Some(UNIX_EPOCH + Duration::from_secs(600)));
    /// ```
    #[must_use]
    pub fn due(&self, number: u64) -> Option<SystemTime> {
        let nanos = self.period.as_nanos().checked_mul(number.into())?;
        let seconds = u64::try_from(nanos / NANOS).ok()?;
        let rest = u32::try_from(nanos % NANOS).ok()?;
        UNIX_EPOCH.checked_add(self.offset)?.checked_add(Duration::new(seconds, rest))
    }

    /// The number of the first tick that is due after `now`.
    fn first_after(&self, now: SystemTime) -> u64 {
        let since = now.duration_since(UNIX_EPOCH).ok().and_then(|since| since.checked_sub(self.offset));
        since.map_or(0, |since| {
            u64::try_from(since.as_nanos() / self.period.as_nanos() + 1).unwrap_or(u64::MAX)
        })
    }
}

const NANOS: u128 = 1_000_000_000;

/// One tick of a timetable.
///
/// ```
/// async fn bill(tick: leasehold::Tick) {
///     println!("INSERT INTO bills (run) VALUES ({}) ON CONFLICT DO NOTHING", tick.number);
/// }
/// # drop(bill);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Tick {
    /// Its number. Pass it as an idempotency key to what the job acts on.
    pub number: u64,
    /// When it is due.
    pub due: SystemTime,
    /// The fencing token of this run, greater than that of every earlier run of the same name, of this tick or another.
    pub token: FencingToken,
}

/// What happens to a tick whose runner died, was dropped, panicked, or lost its lease before the job had ended.
///
/// ```
/// # use leasehold::{OnDeadRunner, OnceOptions};
/// let options = OnceOptions::new().on_dead_runner(OnDeadRunner::LeaveOut); // rather not at all than twice
/// # drop(options);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnDeadRunner {
    /// Another scheduler runs it again from the start, when the lease of the runner has ended, unless it is too late by
    /// then. So a job can be begun more than once, and only one that has ended is not run again. The default.
    #[default]
    RunAgain,
    /// It is left out. So a job is begun at most once, and may not have ended.
    LeaveOut,
}

/// Options of a schedule: see [`Client::once_with`].
///
/// ```
/// use std::time::Duration;
/// use leasehold::{Client, OnceOptions, Ticks};
///
/// let hour = Duration::from_secs(3600);
/// let options = OnceOptions::new().at_most_late(hour).at_least_for(2 * hour).at_most_for(hour / 2);
/// let nightly = Client::memory().once_with("nightly", Ticks::every(24 * hour), options)?;
/// # drop(nightly);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[doc(alias = "ShedLock")]
#[doc(alias = "lockAtLeastFor")]
#[doc(alias = "lockAtMostFor")]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use = "options do nothing until they are passed to `Client::once_with`"]
pub struct OnceOptions {
    at_least_for: Duration,
    at_most_late: Option<Duration>,
    at_most_for: Option<Duration>,
    on_dead_runner: OnDeadRunner,
}

impl Default for OnceOptions {
    fn default() -> Self {
        let at_least_for = Duration::from_secs(60 * 60);
        Self { at_least_for, at_most_late: None, at_most_for: None, on_dead_runner: OnDeadRunner::default() }
    }
}

impl OnceOptions {
    /// The default options.
    ///
    /// ```
    /// # use leasehold::OnceOptions;
    /// let options = OnceOptions::new();
    /// assert_eq!(options, OnceOptions::default());
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// For how long the store remembers that a tick was run, however quick the job was; ShedLock's `lockAtLeastFor`.
    /// Must be longer than [`at_most_late`](Self::at_most_late): the rest is how much the clocks of the schedulers may
    /// differ. The store has one small record per name and tick for this time. From 1 minute to 24 hours. Default: 1
    /// hour.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::OnceOptions;
    /// let options = OnceOptions::new().at_least_for(Duration::from_secs(2 * 3600));
    /// # drop(options);
    /// ```
    pub const fn at_least_for(mut self, time: Duration) -> Self {
        self.at_least_for = time;
        self
    }

    /// How late a tick may begin, by the scheduler's clock: later, it is left out. After an outage, all ticks that are
    /// not too late are run, one after another. Default: one period, so only the latest tick is made up for; half of
    /// [`at_least_for`](Self::at_least_for) if that is less.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::OnceOptions;
    /// let options = OnceOptions::new().at_most_late(Duration::from_secs(60));
    /// # drop(options);
    /// ```
    pub const fn at_most_late(mut self, time: Duration) -> Self {
        self.at_most_late = Some(time);
        self
    }

    /// How long the job of a tick may take. Then it is dropped at its current await point, and the tick counts as one
    /// whose runner has died. Default: no limit, because the lease of a runner is renewed while it lives, and expires
    /// when it dies. That is what ShedLock's `lockAtMostFor` is for; here it is the TTL of the client's locks. At least
    /// 10 ms.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::OnceOptions;
    /// let options = OnceOptions::new().at_most_for(Duration::from_secs(300));
    /// # drop(options);
    /// ```
    pub const fn at_most_for(mut self, time: Duration) -> Self {
        self.at_most_for = Some(time);
        self
    }

    /// What happens to a tick whose runner died. Default: it is run again.
    ///
    /// ```
    /// # use leasehold::OnceOptions;
    /// let options = OnceOptions::new().on_dead_runner(leasehold::OnDeadRunner::RunAgain);
    /// # drop(options);
    /// ```
    pub const fn on_dead_runner(mut self, choice: OnDeadRunner) -> Self {
        self.on_dead_runner = choice;
        self
    }

    /// The longest lateness, and for how long a tick is remembered.
    fn validate(&self, ticks: Ticks) -> Result<(Duration, Duration), Error> {
        let Self { at_least_for, at_most_late, .. } = *self;
        if ticks.period < Duration::from_millis(1) {
            return Err(Error::invalid("period", format!("{:?} is below 1ms", ticks.period)));
        }
        if at_least_for < MIN_MARK || at_least_for > MAX_TTL {
            let why = format!("{at_least_for:?} is not between {MIN_MARK:?} and {MAX_TTL:?}");
            return Err(Error::invalid("at least for", why));
        }
        let late = at_most_late.unwrap_or_else(|| ticks.period.min(at_least_for / 2));
        if late.is_zero() || late >= at_least_for {
            let why = format!(
                "{late:?} is not greater than zero and less than the {at_least_for:?} for which a tick is remembered"
            );
            return Err(Error::invalid("at most late", why));
        }
        Ok((late, at_least_for))
    }
}

type Clock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// A schedule: of all schedulers in all processes that follow it, one runs each tick. See [`Client::once`].
///
/// ```
/// # use std::time::Duration;
/// # use leasehold::Ticks;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::memory();
/// let reports = client.once("reports", Ticks::every(Duration::from_secs(300)))?;
/// let runs = tokio::spawn(async move { reports.run(|tick| async move { println!("tick {}", tick.number) }).await });
/// # tokio::task::yield_now().await;
/// client.close(Duration::from_secs(30)).await?; // after the tick that is being run
/// runs.await.expect("it does not panic")?;
/// # Ok(()) }
/// ```
///
/// Cheap to clone. All schedules with the same prefix and name on the same store are the same schedule; they must have
/// the same timetable and options. Ticks of one schedule are never run at the same time; a tick whose turn comes too
/// late is left out.
///
/// # What is guaranteed
///
/// | what happens | what follows |
/// |---|---|
/// | clocks differ, by up to [`at_least_for`](OnceOptions::at_least_for) less [`at_most_late`](OnceOptions::at_most_late) | a tick is run once, when it is due by the clock that is ahead |
/// | they differ by more | a tick can be run twice |
/// | a runner dies | see [`OnDeadRunner`] |
/// | a runner is paused for longer than its lease | the same. With `RunAgain`, the job may go on for a moment beside that of the next runner: only [tokens](Tick::token) reject what it writes |
/// | a scheduler is paused | it leaves out what is too late by its clock |
/// | the store is unreachable | ticks are made up for when it is back, unless they are too late |
/// | the store forgets leases (Redis without persistence, or in a failover) | a tick of the last [`at_most_late`](OnceOptions::at_most_late) can be run again |
///
/// If what the job acts on can compare numbers, pass it the number of the [`Tick`]: nothing else makes a job exactly
/// once whose runner dies after its last step.
#[doc(alias = "cron")]
#[doc(alias = "scheduler")]
#[doc(alias = "ShedLock")]
#[derive(Clone)]
pub struct Once {
    run: Primitive,
    mark_prefix: Arc<str>,
    mark_ttl: Duration,
    ticks: Ticks,
    late: Duration,
    on_dead_runner: OnDeadRunner,
    clock: Clock,
}

/// A tick that a client may run now.
struct Turn {
    guard: Guard,
    tick: Tick,
}

impl Client {
    /// A schedule called `name` with default options. No I/O. Its leases have the options of this client's locks
    /// ([`mutex_options`](Self::mutex_options)).
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error, Ticks};
    /// # async fn send_reports(tick: leasehold::Tick) {}
    /// # async fn example() -> Result<(), Error> {
    /// let client = Client::connect("redis://127.0.0.1").await?;
    /// client.once("reports", Ticks::every(Duration::from_secs(300)))?.run(send_reports).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the name is empty or longer than 491 bytes, the period is below 1 ms, or an option
    /// is out of bounds.
    pub fn once(&self, name: &str, ticks: Ticks) -> Result<Once, Error> {
        self.once_with(name, ticks, OnceOptions::new())
    }

    /// A schedule called `name` with the given options. No I/O.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{OnceOptions, Ticks};
    /// # let client = leasehold::Client::memory();
    /// let options = OnceOptions::new().at_most_late(Duration::from_secs(60));
    /// let reports = client.once_with("reports", Ticks::every(Duration::from_secs(300)), options)?;
    /// assert_eq!(reports.name(), "reports");
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`once`](Self::once).
    pub fn once_with(&self, name: &str, ticks: Ticks, options: OnceOptions) -> Result<Once, Error> {
        let (late, at_least_for) = options.validate(ticks)?;
        let marks = self.mutex_options().within(within::TICK_DONE).ttl(at_least_for);
        mark(marks.key_prefix(), name, u64::MAX)?;
        let mark_ttl = marks.validate()?.fit(self.engine.backend().capabilities())?.ttl;
        let runs = self.mutex_options().within(within::TICK_RUN);
        let runs = options.at_most_for.map_or(runs.clone(), |limit| runs.max_hold(limit));
        let resource = name::resource(runs.key_prefix(), name, Kind::Mutex)?;
        let run = Primitive::new(Arc::clone(&self.engine), resource, runs.validate()?)?;
        let (mark_prefix, clock) = (marks.key_prefix().into(), Arc::new(SystemTime::now));
        Ok(Once { run, mark_prefix, mark_ttl, ticks, late, on_dead_runner: options.on_dead_runner, clock })
    }
}

/// What is held when a tick is done.
fn mark(prefix: &str, name: &str, tick: u64) -> Result<Resource, Error> {
    name::resource(prefix, &format!("{name}:{tick}"), Kind::Mutex)
}

impl Once {
    /// The name, without prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        self.run.name()
    }

    /// The same schedule by another clock than the system's: for tests, such as one on tokio's paused time.
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    /// use leasehold::{Client, Ticks};
    ///
    /// let reports = Client::memory().once("reports", Ticks::every(Duration::from_secs(300)))?;
    /// let frozen = reports.by_clock(|| UNIX_EPOCH + Duration::from_secs(1_000_000));
    /// # drop(frozen);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use = "the schedule itself keeps its clock"]
    pub fn by_clock(mut self, clock: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Runs `job` for every tick that is due from now on and that no other scheduler runs, for ever. Returns `Ok` when
    /// the client is [closed](Client::close), after the tick that is being run, or [shut down](Client::shutdown).
    ///
    /// It begins with the ticks that are due already, are not too late, and were not run: on the first start of all,
    /// that may be the latest one. While the store does not answer, or refuses a request, the same tick is tried again,
    /// after pauses of up to 30 s, and the errors are logged at WARN.
    ///
    /// The job handles its own errors: a tick whose job has ended is done.
    ///
    /// ```
    /// # use std::time::{Duration, SystemTime};
    /// # use leasehold::{Client, Error, Ticks};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Error> {
    /// let client = Client::memory();
    /// let schedule = client.once("nightly", Ticks::every(Duration::from_millis(5)))?;
    /// let stop = client.clone();
    /// schedule
    ///     .run(|tick| {
    ///         let stop = stop.clone();
    ///         async move {
    ///             assert!(tick.due <= SystemTime::now());
    ///             tokio::spawn(async move { stop.shutdown().await });
    ///         }
    ///     })
    ///     .await
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Forked`], and others that a repetition cannot change, such as [`Error::Unsupported`].
    ///
    /// # Panics
    ///
    /// When it is polled outside a tokio runtime, or in one without timers.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the job. The tick counts as one whose runner has died, and its run is released in the
    /// background.
    pub async fn run<W>(&self, mut job: impl FnMut(Tick) -> W + Send) -> Result<(), Error>
    where
        W: Future<Output = ()> + Send,
    {
        let (mut next, mut back_off) = (0, BackOff::default());
        loop {
            let now = (self.clock)();
            next = self.not_before(next, now);
            let Some(due) = self.ticks.due(next) else { return Err(self.too_far(next)) };
            let pause = match due.duration_since(now) {
                Ok(early) if !early.is_zero() => early.min(NAP),
                _ => match self.attempt(next, true, &mut job).await {
                    Ok(_) => {
                        (next, back_off) = (next + 1, BackOff::default());
                        continue;
                    }
                    Err(error) if is_closed(&error) => return Ok(()),
                    Err(error) if retry::is_final(&error) => return Err(error),
                    Err(error) => {
                        tracing::warn!(target: "leasehold::client", name = %self.name(), tick = next, %error, "a tick was not run to its end");
                        back_off.pause()
                    }
                },
            };
            if self.run.engine.draining().unless(pin!(sleep(pause))).await.is_none() {
                return Ok(());
            }
        }
    }

    /// Runs `job` for the latest tick that is due, unless that was run, or is too late: for a program that is started
    /// by cron on several machines. Returns the output of `job`, or `None` if it was not run here. If another scheduler
    /// is running it, or another tick of the same name, the call waits for that to end; with
    /// [`OnDeadRunner::LeaveOut`], only for another tick.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error, Ticks};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Error> {
    /// # let client = Client::memory();
    /// let nightly = client.once("nightly", Ticks::every(Duration::from_secs(24 * 60 * 60)))?;
    /// # let nightly = nightly.by_clock(|| std::time::UNIX_EPOCH + Duration::from_secs(5));
    /// assert_eq!(nightly.try_run(async |tick| tick.number).await?, Some(0));
    /// assert_eq!(nightly.try_run(async |tick| tick.number).await?, None); // it was run
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`] if the lease was lost before `job` had ended, or [`at_most_for`](OnceOptions::at_most_for) was
    ///   over: `job` was dropped.
    /// * [`Error::StoreUnavailable`], [`Error::StoreRefused`] and [`Error::Closed`] as for
    ///   [`DistMutex::lock`](crate::DistMutex::lock). The job may have ended if that it was done could not be stored,
    ///   even though this was repeated until nobody would have run it any more.
    ///
    /// # Panics
    ///
    /// As for [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// As for [`run`](Self::run).
    pub async fn try_run<T, W>(&self, job: impl FnOnce(Tick) -> W + Send) -> Result<Option<T>, Error>
    where
        T: Send,
        W: Future<Output = T> + Send,
    {
        match self.ticks.first_after((self.clock)()).checked_sub(1) {
            Some(latest) => self.attempt(latest, true, job).await,
            None => ready(Ok(None)).await,
        }
    }

    /// As [`try_run`](Self::try_run) for the tick of this number, which the caller has chosen by a rule of its own,
    /// whatever its clock says. No tick is too late then, so it is not run twice as long as all call this within
    /// [`at_least_for`](OnceOptions::at_least_for).
    ///
    /// # Errors
    ///
    /// As for [`try_run`](Self::try_run), and [`Error::InvalidArgument`] if the tick is too far in the future for the
    /// clock.
    ///
    /// # Panics
    ///
    /// As for [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// As for [`run`](Self::run).
    pub async fn try_run_tick<T, W>(
        &self,
        number: u64,
        job: impl FnOnce(Tick) -> W + Send,
    ) -> Result<Option<T>, Error>
    where
        T: Send,
        W: Future<Output = T> + Send,
    {
        self.attempt(number, false, job).await
    }

    /// The tick to run next, if that is not `next` or a later one any more: the others are too late, or the clock was
    /// set back by more than what is remembered.
    fn not_before(&self, next: u64, now: SystemTime) -> u64 {
        let in_time = now.checked_sub(self.late).map_or(0, |limit| self.ticks.first_after(limit));
        let far = now.checked_add(self.mark_ttl.saturating_add(self.ticks.period));
        let is_set_back = far.is_some_and(|far| self.ticks.due(next).is_none_or(|due| due > far));
        if is_set_back { in_time } else { next.max(in_time) }
    }

    /// Runs the tick, unless it was run, or is too late.
    async fn attempt<T, W>(
        &self,
        number: u64,
        by_clock: bool,
        job: impl FnOnce(Tick) -> W + Send,
    ) -> Result<Option<T>, Error>
    where
        T: Send,
        W: Future<Output = T> + Send,
    {
        let mark = mark(&self.mark_prefix, self.name(), number)?;
        let Some(turn) = self.turn(number, by_clock, &mark).await? else { return Ok(None) };
        tracing::debug!(name = %self.name(), tick = number, token = %turn.tick.token, "runs");
        let output = turn.guard.protect(job(turn.tick)).await?;
        if self.on_dead_runner == OnDeadRunner::RunAgain && !self.set(&mark).await? {
            // Another scheduler has run it, because the lease was lost, which has not been noticed yet.
            return Err(self.lost(&turn));
        }
        turn.end().await;
        Ok(Some(output))
    }

    /// Waits until this client may run the tick. The order of the steps is that of the proof above.
    async fn turn(&self, number: u64, by_clock: bool, mark: &Resource) -> Result<Option<Turn>, Error> {
        let due = self.ticks.due(number).ok_or_else(|| self.too_far(number))?;
        if self.is_set(mark).await? {
            return Ok(None);
        }
        let guard = self.run.acquire(&Claim::Sole, Wait::Forever).await?;
        let turn = Turn { tick: Tick { number, due, token: guard.token() }, guard };
        let is_done = match self.on_dead_runner {
            OnDeadRunner::RunAgain => self.is_set(mark).await?,
            OnDeadRunner::LeaveOut => !turn.guard.try_protect(self.set(mark)).await?,
        };
        let is_late = || by_clock && due.checked_add(self.late).is_some_and(|end| (self.clock)() >= end);
        if is_done || is_late() {
            tracing::debug!(name = %self.name(), tick = number, is_done, "not run");
            turn.end().await;
            return Ok(None);
        }
        Ok(Some(turn))
    }

    /// Whether the mark is set.
    async fn is_set(&self, mark: &Resource) -> Result<bool, Error> {
        let engine = &self.run.engine;
        let asked = engine.backend().inspect(mark, Detail::Counts);
        let answer = engine.closing().unless(pin!(asked)).await.ok_or_else(|| self.closed())?;
        answer
            .map(|now| now.in_use > 0)
            .map_err(|error| engine.error(error, "look for a mark", Some(self.name())))
    }

    /// Sets the mark. `false` if another client has. It is repeated until nobody runs this tick any more, even without
    /// a mark.
    async fn set(&self, mark: &Resource) -> Result<bool, Error> {
        let engine = &self.run.engine;
        let lease = LeaseRef::new(engine.backend().lease_id(), mark.clone());
        let mut request = Request::new(lease, Claim::Sole, self.mark_ttl);
        request.label = engine.label().cloned();
        let (give_up, mut back_off) = (Instant::now() + self.mark_ttl, BackOff::default());
        loop {
            let asked = engine.backend().request(&request);
            match engine.closing().unless(pin!(asked)).await.ok_or_else(|| self.closed())? {
                Ok(answer) => return Ok(matches!(answer, Answer::Granted(_))),
                Err(error) if error.is_transient() && Instant::now() < give_up => {
                    tracing::warn!(target: "leasehold::client", name = %self.name(), key = &*mark.key, %error, "a mark is not set yet");
                }
                Err(error) => return Err(engine.error(error, "set a mark", Some(self.name()))),
            }
            engine.closing().unless(pin!(sleep(back_off.pause()))).await.ok_or_else(|| self.closed())?;
        }
    }

    fn lost(&self, turn: &Turn) -> Error {
        let (name, token) = (self.name().to_owned(), turn.tick.token);
        Error::Lost { name, token, reason: LossReason::Taken, detail: None }
    }

    fn closed(&self) -> Error {
        Error::Closed { name: Some(self.name().to_owned()), operation: "run a tick" }
    }

    fn too_far(&self, number: u64) -> Error {
        Error::invalid("tick", format!("{number} of `{}` is too far in the future", self.name()))
    }
}

impl Turn {
    /// Lets others run the next tick.
    async fn end(self) {
        let (name, token) = (self.guard.name().to_owned(), self.tick.token);
        if let Err(error) = self.guard.release().await {
            // What matters is stored in the mark, and the lease ends on its own.
            tracing::debug!(%name, %token, %error, "the end of a run was not confirmed");
        }
    }
}

/// Whether this is what becomes of a job or a request when the client is closed.
fn is_closed(error: &Error) -> bool {
    matches!(error, Error::Closed { .. } | Error::Lost { reason: LossReason::ClientClosed, .. })
}

impl fmt::Debug for Once {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.run.debug("Once", f).field("ticks", &self.ticks).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn ticks_are_counted_from_the_epoch_and_the_offset() {
        let ticks = Ticks::every(Duration::from_secs(10)).offset(Duration::from_secs(3));
        assert_eq!(ticks.due(0), Some(at(3)));
        assert_eq!(ticks.due(7), Some(at(73)));
        for (now, first) in [(0, 0), (2, 0), (3, 1), (12, 1), (13, 2)] {
            assert_eq!(ticks.first_after(at(now)), first, "{now}");
        }
        assert_eq!(ticks.due(u64::MAX), None);
    }

    #[test]
    fn a_scheduler_skips_what_is_too_late_and_follows_a_clock_that_was_set_back_far() {
        let ticks = Ticks::every(Duration::from_secs(10));
        let options = OnceOptions::new().at_least_for(MIN_MARK).at_most_late(Duration::from_secs(25));
        let once = Client::memory().once_with("a", ticks, options).unwrap();
        assert_eq!(once.not_before(0, at(100)), 8, "the ticks of 80, 90 and 100 are in time");
        assert_eq!(once.not_before(11, at(100)), 11);
        assert_eq!(once.not_before(15, at(100)), 15, "what is remembered is not run twice");
        assert_eq!(once.not_before(1000, at(100)), 8);
        assert_eq!(once.not_before(0, at(5)), 0);
    }

    #[test]
    fn options_out_of_bounds_are_refused_by_name() {
        let client = Client::memory();
        let refusal = |ticks, options| client.once_with("a", ticks, options).unwrap_err().to_string();
        let (minute, second) = (Duration::from_secs(60), Duration::from_secs(1));
        let ticks = Ticks::every(minute);
        assert!(refusal(Ticks::every(Duration::ZERO), OnceOptions::new()).contains("period"));
        assert!(refusal(ticks, OnceOptions::new().at_least_for(minute - second)).contains("at least for"));
        assert!(refusal(ticks, OnceOptions::new().at_least_for(MAX_TTL + second)).contains("at least for"));
        assert!(
            refusal(ticks, OnceOptions::new().at_least_for(minute).at_most_late(minute))
                .contains("at most late")
        );
        assert!(refusal(ticks, OnceOptions::new().at_most_for(Duration::from_millis(9))).contains("hold"));
        assert!(client.once(&"n".repeat(491), ticks).is_ok());
        assert!(client.once(&"n".repeat(492), ticks).is_err());
        assert!(client.once("", ticks).is_err());
    }
}
