//! `run`: a command while holding a lock.

use std::process::ExitCode;
use std::time::Duration;

use crate::args::{Args, Run};
use crate::exit::{End, Failure, LOST, NOT_OBTAINED};
use crate::job::{Ended, Job, say};
use crate::signals::Signals;
use crate::watcher::Watcher;
use crate::{output, report, store, waiting};
use leasehold::{
    Client, Contention, CountingSemaphore, DistMutex, Error, FencingToken, Guard, Inspection, Lost, Purpose,
    RwLock, WriteGuard,
};

pub(crate) async fn run(args: &Args, run: &Run) -> Result<ExitCode, Failure> {
    Ok(hold(args, run).await?.finish())
}

async fn hold(args: &Args, run: &Run) -> Result<End, Failure> {
    let builder = store::builder(args)?;
    let mut signals = Signals::that_end()?;
    // It gets ready while the store is asked.
    let mut watcher = Watcher::start()?;
    let client = tokio::select! {
        client = builder.connect() => client?,
        signal = signals.end() => return Ok(End::Signal(signal)),
    };
    let lock = Lock::new(&client, run)?;
    let held = tokio::select! {
        held = acquire(&lock, run) => held,
        // What was dropped with the future is given back below.
        signal = signals.end() => {
            shut_down(&client, &mut signals).await;
            return Ok(End::Signal(signal));
        }
    };
    // The program ends now, and with it what is still on its way.
    let held = match held {
        Ok(held) => held,
        Err(failure) => {
            shut_down(&client, &mut signals).await;
            return Err(failure);
        }
    };
    let ended = work(args, run, &lock, &held, &mut watcher, &mut signals).await;
    let released = signals.unless_asked_again(held.release()).await;
    how(&run.name, ended?, released)
}

/// What was given up is released now rather than when its lease expires. How this program ends has been decided.
pub(crate) async fn shut_down(client: &Client, signals: &mut Signals) {
    if let Some(Err(error)) = signals.unless_asked_again(client.shutdown()).await {
        say(&format!("what was held will be free when its lease expires: {error}"));
    }
}

async fn work(
    args: &Args,
    run: &Run,
    lock: &Lock,
    held: &Held,
    watcher: &mut Watcher,
    signals: &mut Signals,
) -> Result<Ended, Failure> {
    let token = held.guard().token();
    if run.stdout_token {
        match args.json {
            true => output::json(&lock.token(&run.name, token))?,
            false => output::line(&token.to_string())?,
        }
    }
    let environment = vec![("LEASEHOLD_NAME", run.name.clone()), ("LEASEHOLD_TOKEN", token.to_string())];
    Job { job: &run.job, environment }.run(watcher, signals, lost(&run.name, held.guard().lost())).await
}

/// Completes with a text when the lease is lost.
pub(crate) async fn lost(name: &str, lost: Lost) -> String {
    format!("the lease of `{name}` was lost: {}", lost.await)
}

/// How this program ends, if the release went like this.
fn how(name: &str, ended: Ended, released: Option<Result<(), Error>>) -> Result<End, Failure> {
    let Ended { end, is_lost, .. } = ended;
    match released {
        _ if is_lost => {
            let why = format!("the lease of `{name}` was lost, and the command was ended");
            Err(Failure::new(LOST, why).hint(START_AGAIN))
        }
        Some(Ok(())) => Ok(end),
        Some(Err(error @ Error::Lost { .. })) => {
            let status = end.status();
            let why = format!(
                "the command has ended with status {status}, but it did not hold the lock the whole time: {error}"
            );
            Err(Failure::new(LOST, why).hint(START_AGAIN))
        }
        Some(Err(error)) => {
            say(&format!("the lock was not released, and will be free when its lease expires: {error}"));
            Ok(end)
        }
        None => {
            say("interrupted: the lock was not released, and will be free when its lease expires");
            Ok(end)
        }
    }
}

pub(crate) const START_AGAIN: &str = "Another holder may have worked at the same time: check what both have done, or \
     let what they write to compare LEASEHOLD_TOKEN.";

async fn acquire(lock: &Lock, run: &Run) -> Result<Held, Failure> {
    let name = &run.name;
    if run.no_wait {
        return match lock.try_acquire().await? {
            Some(held) => Ok(held),
            None => Err(taken(name, lock.inspect().await.ok())),
        };
    }
    let limit = run.wait.unwrap_or(Duration::MAX);
    Ok(waiting::show(name, lock.acquire(limit), async || {
        Ok(Contention::from(lock.inspect().await?).to_string())
    })
    .await?)
}

fn taken(name: &str, now: Option<Inspection>) -> Failure {
    let by = now.filter(|now| now.in_use > 0).map(|now| format!(": {}", Contention::from(now)));
    Failure::new(NOT_OBTAINED, format!("`{name}` is not free{}", by.unwrap_or_default()))
}

/// What is asked for.
enum Lock {
    Mutex(DistMutex),
    Semaphore(CountingSemaphore),
    Read(RwLock),
    Write(RwLock),
}

impl Lock {
    fn new(client: &Client, run: &Run) -> Result<Self, Failure> {
        let note = run.note.clone().unwrap_or_default();
        let (mut options, mut semaphore) = (client.mutex_options(), client.semaphore_options());
        if let Some(ttl) = run.ttl.ttl {
            (options, semaphore) = (options.ttl(ttl), semaphore.ttl(ttl));
        }
        let name = &run.name;
        Ok(match run.semaphore {
            Some(limit) => {
                Self::Semaphore(client.counting_semaphore_with(name, limit, semaphore)?.with_note(note))
            }
            None if run.read => Self::Read(client.rw_lock_with(name, options)?.with_note(note)),
            None if run.write => Self::Write(client.rw_lock_with(name, options)?.with_note(note)),
            None => Self::Mutex(client.mutex_with(name, options)?.with_note(note)),
        })
    }

    async fn try_acquire(&self) -> Result<Option<Held>, Error> {
        Ok(match self {
            Self::Mutex(mutex) => mutex.try_lock().await?.map(Held::Guard),
            Self::Semaphore(semaphore) => semaphore.try_acquire().await?.map(Held::Guard),
            Self::Read(lock) => lock.try_read().await?.map(Held::Guard),
            Self::Write(lock) => lock.try_write().await?.map(Held::Writing),
        })
    }

    async fn acquire(&self, limit: Duration) -> Result<Held, Error> {
        match self {
            Self::Mutex(mutex) => mutex.lock_timeout(limit).await.map(Held::Guard),
            Self::Semaphore(semaphore) => semaphore.acquire_timeout(limit).await.map(Held::Guard),
            Self::Read(lock) => lock.read_timeout(limit).await.map(Held::Guard),
            Self::Write(lock) => lock.write_timeout(limit).await.map(Held::Writing),
        }
    }

    fn token(&self, name: &str, token: FencingToken) -> report::Token {
        let kind = match self {
            Self::Mutex(_) => Purpose::Mutex,
            Self::Semaphore(_) => Purpose::CountingSemaphore,
            Self::Read(_) | Self::Write(_) => Purpose::RwLock,
        };
        report::Token { name: name.to_owned(), kind: kind.as_str(), token: token.get() }
    }

    async fn inspect(&self) -> Result<Inspection, Error> {
        match self {
            Self::Mutex(mutex) => mutex.inspect().await,
            Self::Semaphore(semaphore) => semaphore.inspect().await,
            Self::Read(lock) | Self::Write(lock) => lock.inspect().await,
        }
    }
}

/// What was obtained.
enum Held {
    Guard(Guard),
    Writing(WriteGuard),
}

impl Held {
    fn guard(&self) -> &Guard {
        match self {
            Self::Guard(guard) => guard,
            Self::Writing(guard) => guard,
        }
    }

    async fn release(self) -> Result<(), Error> {
        match self {
            Self::Guard(guard) => guard.release().await,
            Self::Writing(guard) => guard.release().await,
        }
    }
}
