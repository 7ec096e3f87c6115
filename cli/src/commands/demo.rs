//! `demo`: three workers pass a lock to each other, on the store in memory, for 20 seconds. One dies while it holds the
//! lock, and one is paused for longer than its lease and then writes late.
//!
//! Each worker is a client of its own, as in a process of its own. What would happen to a process that is killed or
//! stopped happens to its connection: from then on, nothing of it reaches the store.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{join_all, pending};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use leasehold::{Client, DistMutex, Error, Fence, Guard, MemoryBackend, MutexOptions};
use tokio::sync::Mutex;
use tokio::time::{Instant, interval, sleep, sleep_until, timeout_at};

use crate::args::Args;
use crate::exit::{Failure, LOST};
use crate::output;
use crate::report::{Event, seconds};
use crate::wording;

const LENGTH: Duration = Duration::from_secs(20);
const TTL: Duration = Duration::from_secs(3);
/// How long a worker works.
const WORK: Duration = Duration::from_millis(500);
/// When the first worker dies, and the second one is paused: at the first grant from then on.
const DIES: Duration = Duration::from_secs(4);
const IS_PAUSED: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_secs(5);
/// How much later than at the end of a lease the next one may be granted.
const LATE: Duration = Duration::from_secs(1);
const WORKERS: usize = 3;
/// A character of the picture. All of them fit into a line of 80, behind the name of a worker.
const FRAME: Duration = Duration::from_millis(300);
const _: () = assert!("worker 1 ".len() as u128 + LENGTH.as_millis() / FRAME.as_millis() <= 80);

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Failure> {
    let stage = Arc::new(Stage::new(args.json));
    stage.tell(None, "three workers want one lock; a lease lasts for 3 s unless it is renewed").await;
    let store = MemoryBackend::new();
    let end = stage.begun + LENGTH;
    let workers = (0..WORKERS).map(|number| {
        let worker = Worker { number, backend: Arc::new(store.peer()), stage: Arc::clone(&stage) };
        async move { timeout_at(end, worker.work()).await.unwrap_or(Ok(())) }
    });
    let show = timeout_at(end, stage.paint());
    let (outcomes, _) = tokio::join!(join_all(workers), show);
    stage.picture.end();
    outcomes.into_iter().collect::<Result<Vec<_>, _>>()?;
    stage.verdict().await
}

/// What a worker is doing.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Doing {
    Waits,
    Holds,
    Paused,
    Dead,
}

/// What everybody sees.
struct Stage {
    begun: Instant,
    is_json: bool,
    picture: Picture,
    /// The resource that the lock protects: it compares tokens.
    storage: Fence,
    seen: Mutex<Seen>,
}

/// What has happened.
#[derive(Default)]
struct Seen {
    doing: [Option<Doing>; WORKERS],
    /// How often each was granted the lock.
    grants: [u32; WORKERS],
    newest_token: u64,
    died: Option<Instant>,
    /// Since when a worker is paused that still holds the lock.
    paused: Option<Instant>,
    /// From the death of the holder to the next grant.
    taken_over_after: Option<Duration>,
    late_write_was_refused: bool,
    /// What should not have happened.
    wrong: Vec<String>,
}

impl Stage {
    fn new(is_json: bool) -> Self {
        let picture = Picture::new(output::is_terminal() && !is_json);
        Self { begun: Instant::now(), is_json, picture, storage: Fence::new(), seen: Mutex::default() }
    }

    /// Prints what happens. Nobody need read it.
    async fn tell(&self, worker: Option<usize>, text: &str) {
        let elapsed = self.begun.elapsed();
        let worker = worker.map(name);
        let line = if self.is_json {
            let event = Event { seconds: seconds(elapsed), worker, text: text.to_owned() };
            output::to_json(&event)
        } else {
            let who = worker.map(|worker| format!("{worker} ")).unwrap_or_default();
            Ok(format!("{:5.1} s  {who}{text}", elapsed.as_secs_f64()))
        };
        let written = line.and_then(|line| self.picture.print(&line));
        if let Err(failure) = written {
            self.seen.lock().await.wrong.push(failure.to_string());
        }
    }

    async fn set(&self, worker: usize, doing: Doing) {
        self.seen.lock().await.doing[worker] = Some(doing);
    }

    /// A worker was granted the lock.
    async fn granted(&self, worker: usize, guard: &Guard) {
        let mut seen = self.seen.lock().await;
        let token = guard.token().get();
        let newest = seen.newest_token;
        if token <= newest {
            seen.wrong.push(format!("the token {token} is not greater than {newest}"));
        }
        if seen.doing.contains(&Some(Doing::Holds)) {
            seen.wrong.push("two workers held the lock at the same time".to_owned());
        }
        seen.newest_token = token;
        seen.grants[worker] += 1;
        seen.doing[worker] = Some(Doing::Holds);
        let taken_over_after =
            seen.died.filter(|_| seen.taken_over_after.is_none()).map(|died| died.elapsed());
        seen.taken_over_after = seen.taken_over_after.or(taken_over_after);
        let paused = seen.paused.take();
        drop(seen);
        if let Some(after) = taken_over_after {
            let text =
                format!("takes over {} after the death, when the lease has ended", wording::time(after));
            self.tell(Some(worker), &text).await;
        }
        if let Some(paused) = paused {
            let text = format!("takes over {} after the pause began", wording::time(paused.elapsed()));
            self.tell(Some(worker), &text).await;
        }
    }

    /// A write with the token of this guard, by its holder or late.
    async fn write(&self, worker: usize, guard: &Guard, is_late: bool) {
        let admitted = self.storage.admit(guard.token());
        match (admitted, is_late) {
            (Ok(()), false) => {}
            (Err(_), true) => {
                self.seen.lock().await.late_write_was_refused = true;
                let token = guard.token();
                self.tell(Some(worker), &format!("resumes, and writes late: refused, {token} is stale"))
                    .await;
            }
            (Ok(()), true) => self.seen.lock().await.wrong.push("the late write was not refused".to_owned()),
            (Err(stale), false) => self.seen.lock().await.wrong.push(format!("a write was refused: {stale}")),
        }
    }

    /// Whether this is the time for something that happens once.
    fn is_past(&self, time: Duration) -> bool {
        self.begun.elapsed() >= time
    }

    async fn paint(&self) {
        let mut frames = interval(FRAME);
        loop {
            frames.tick().await;
            let doing = self.seen.lock().await.doing;
            self.picture.add(&doing);
        }
    }

    /// Success only if what was shown held.
    async fn verdict(&self) -> Result<ExitCode, Failure> {
        let mut seen = std::mem::take(&mut *self.seen.lock().await);
        if seen.grants.iter().any(|grants| *grants < 2) {
            seen.wrong.push(format!("not all workers had their turns: {:?}", seen.grants));
        }
        match seen.taken_over_after {
            None => seen.wrong.push("nobody took over from the worker that died".to_owned()),
            Some(after) if after > TTL + LATE => {
                seen.wrong.push(format!("it took {} to take over from the dead", wording::time(after)));
            }
            Some(_) => {}
        }
        if !seen.late_write_was_refused {
            seen.wrong.push("there was no late write, or it was not refused".to_owned());
        }
        if !seen.wrong.is_empty() {
            let failure = Failure::new(LOST, format!("the demo has gone wrong: {}", seen.wrong.join("; ")));
            return Err(failure.hint("On a machine that is very busy, try again."));
        }
        let grants: u32 = seen.grants.iter().sum();
        let text = format!("{grants} grants, one holder at a time; the dead replaced, late writes refused");
        self.tell(None, &text).await;
        Ok(ExitCode::SUCCESS)
    }
}

/// A process that wants the lock again and again.
struct Worker {
    number: usize,
    backend: Arc<MemoryBackend>,
    stage: Arc<Stage>,
}

impl Worker {
    async fn work(&self) -> Result<(), Failure> {
        let builder = Client::builder_with_backend(self.backend.clone()).label(name(self.number));
        let client = builder.mutex_options(MutexOptions::new().ttl(TTL)).connect().await?;
        let mutex = client.mutex("demo")?;
        let mut has_paused = false;
        loop {
            let guard = self.lock(&mutex).await?;
            match self.number {
                0 if self.stage.is_past(DIES) => self.die().await,
                1 if self.stage.is_past(IS_PAUSED) && !has_paused => {
                    has_paused = true;
                    self.pause(guard).await;
                }
                _ => self.use_lock(guard).await?,
            }
        }
    }

    async fn lock(&self, mutex: &DistMutex) -> Result<Guard, Error> {
        self.stage.set(self.number, Doing::Waits).await;
        let guard = mutex.lock().await?;
        self.stage.granted(self.number, &guard).await;
        self.stage.write(self.number, &guard, false).await;
        Ok(guard)
    }

    async fn use_lock(&self, guard: Guard) -> Result<(), Error> {
        self.stage.tell(Some(self.number), &format!("works under token {}", guard.token())).await;
        guard.protect(sleep(WORK)).await?;
        self.stage.set(self.number, Doing::Waits).await;
        guard.release().await
    }

    /// As if by `kill -9`: for good.
    async fn die(&self) {
        self.backend.crash();
        let mut seen = self.stage.seen.lock().await;
        (seen.died, seen.doing[self.number]) = (Some(Instant::now()), Some(Doing::Dead));
        drop(seen);
        self.stage.tell(Some(self.number), "dies while it holds the lock: nobody releases it").await;
        pending().await
    }

    /// As if by `kill -STOP`, and `kill -CONT` when the lease is over: the worker does not look whether it is lost.
    async fn pause(&self, guard: Guard) {
        self.backend.cut_off();
        self.stage.set(self.number, Doing::Paused).await;
        self.stage.seen.lock().await.paused = Some(Instant::now());
        let text = "is paused for 5 s while it holds the lock: it renews nothing";
        self.stage.tell(Some(self.number), text).await;
        sleep_until(Instant::now() + PAUSE).await;
        self.stage.write(self.number, &guard, true).await;
        self.backend.restore();
    }
}

fn name(worker: usize) -> String {
    format!("worker {}", worker + 1)
}

/// A line for each worker, which grows to the right; what happens scrolls above.
struct Picture {
    lines: MultiProgress,
    /// None without a terminal.
    bars: Vec<ProgressBar>,
}

impl Picture {
    fn new(is_shown: bool) -> Self {
        let (lines, mut bars) = (MultiProgress::new(), Vec::new());
        if is_shown && let Ok(style) = ProgressStyle::with_template("{prefix} {wide_msg}") {
            for worker in 0..WORKERS {
                let bar = lines.add(ProgressBar::no_length());
                bar.set_style(style.clone());
                bar.set_prefix(name(worker));
                bars.push(bar);
            }
        }
        Self { lines, bars }
    }

    fn add(&self, doing: &[Option<Doing>; WORKERS]) {
        for (bar, doing) in self.bars.iter().zip(doing) {
            bar.set_message(format!("{}{}", bar.message(), sign(*doing)));
        }
    }

    fn print(&self, line: &str) -> Result<(), Failure> {
        if self.bars.is_empty() {
            return output::line_if_read(line).map(drop);
        }
        let printed = self.lines.println(line);
        printed.map_err(|error| Failure::new(LOST, format!("the terminal cannot be written: {error}")))
    }

    /// The last state remains.
    fn end(&self) {
        self.bars.iter().for_each(ProgressBar::abandon);
    }
}

/// A block for who holds the lock, a dot for who waits, a wave for who is paused, a cross for the dead.
const fn sign(doing: Option<Doing>) -> char {
    match doing {
        Some(Doing::Holds) => '█',
        Some(Doing::Paused) => '~',
        Some(Doing::Dead) => 'x',
        Some(Doing::Waits) | None => '.',
    }
}
