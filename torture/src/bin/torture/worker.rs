//! A worker: one client of the store, in a process of its own, whose tasks take everything there is again and again, and
//! write down what happens to them.

use std::fs;
use std::future::pending;
use std::io;
use std::ops::Deref;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use clap::{Args, ValueEnum};
use futures::future::join_all;
use leasehold::{
    Client, CountingSemaphore, DistMutex, Error, FairSemaphore, Guard, MutexOptions, ReentrantLock, RwLock,
    SemaphoreOptions, WriteGuard,
};
use leasehold_torture::history::{Asked, HoldId, Micros, Refusal, What};
use tokio::runtime::Handle as Runtime;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::clock::{micros, now};
use crate::log::Log;
use crate::random::Random;
use crate::register::Registered;
use crate::sites::{self, Kind, OWNERS, PERMITS, READERS, Taken};

/// How often a holder looks until when it holds.
const LOOK: Duration = Duration::from_millis(10);
/// How often a worker looks whether it runs at all.
const BEAT: Duration = Duration::from_millis(4);
/// What is later than that is written down: less than what a lease has in reserve for timers and scheduling.
const LATE: Micros = 8_000;
/// How long requests may take that were open at the end, when nothing goes wrong any more.
const AFTERWARDS: Duration = Duration::from_secs(15);

/// What a worker is told by the harness.
#[derive(Args, Clone, Debug)]
pub(crate) struct Orders {
    /// The store, through this worker's own line.
    #[arg(long)]
    pub(crate) url: String,
    /// The port of the register.
    #[arg(long)]
    pub(crate) register: u16,
    /// Where to write events.
    #[arg(long)]
    pub(crate) log: PathBuf,
    /// The number of its client.
    #[arg(long)]
    pub(crate) client: u32,
    #[arg(long)]
    pub(crate) seed: u64,
    /// When to end, on the clock that all processes share.
    #[arg(long)]
    pub(crate) end: Micros,
    /// Of all leases, in milliseconds.
    #[arg(long)]
    pub(crate) lease: u64,
    /// How many there are of each kind.
    #[arg(long)]
    pub(crate) each: usize,
    /// How many tasks ask for each of them.
    #[arg(long)]
    pub(crate) tasks: usize,
    /// One of how many sections is long.
    #[arg(long)]
    pub(crate) long: u64,
    /// Whether the store has semaphores.
    #[arg(long)]
    pub(crate) semaphores: bool,
    /// A mistake of this worker.
    #[arg(long)]
    pub(crate) planted: Option<Planted>,
}

/// A mistake that the judge must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Planted {
    /// Workers go on when their lease is lost.
    Deaf,
    /// Workers that are told that somebody else holds go on as if they did.
    Impatient,
    /// The register does not check tokens.
    NoFence,
    /// The store is emptied, and nobody is told that promises end with that.
    SecretFlush,
    /// Workers forget some of what they hold.
    Leaking,
}

impl Planted {
    /// As it is written on the command line.
    pub(crate) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// What the tasks of a worker share.
struct Shared {
    orders: Orders,
    client: Client,
    register: Registered,
    log: Log,
    sites: Vec<Taken>,
    /// How many requests there were.
    requests: AtomicU32,
}

impl Shared {
    /// The number of the next request: no two clients have the same.
    fn next_hold(&self) -> HoldId {
        let n = self.requests.fetch_add(1, Ordering::Relaxed);
        HoldId::from(self.orders.client) << 32 | HoldId::from(n)
    }

    fn has(&self, mistake: Planted) -> bool {
        self.orders.planted == Some(mistake)
    }
}

/// The whole life of a worker.
pub(crate) async fn work(orders: Orders) -> io::Result<()> {
    let log = Log::create(&orders.log)?;
    let register = Registered::connect(orders.register).await?;
    // What the first client of a process makes, it keeps: only what comes later must go again.
    close(&connect(&orders, &log).await, &log).await;
    let before = usage()?;
    log.uses(before.0, before.1);
    let client = connect(&orders, &log).await;
    let sites = sites::all(orders.semaphores, Duration::from_millis(orders.lease), orders.each);
    let shared = Shared { orders, client, register, log, sites, requests: AtomicU32::new(0) };
    let shared = Arc::new(shared);
    let heart = tokio::spawn(beat(Arc::clone(&shared)));
    let users =
        (0..shared.sites.len()).flat_map(|site| (0..shared.orders.tasks).map(move |task| (site, task)));
    let users: Vec<_> =
        users.map(|(site, task)| tokio::spawn(User::new(&shared, site, task).run())).collect();
    let limit = Duration::from_micros(shared.orders.end.saturating_sub(now())) + AFTERWARDS;
    // What is not answered by then, the judge sees.
    let Ok(ended) = timeout(limit, join_all(users)).await else { return Ok(()) };
    for task in ended {
        task.map_err(io::Error::other)?.map_err(io::Error::other)?;
    }
    heart.abort();
    // What it was is of no interest.
    let _ = heart.await;
    close(&shared.client, &shared.log).await;
    let shared = Arc::into_inner(shared).ok_or_else(|| io::Error::other("a task goes on"))?;
    let Shared { client, log, register, .. } = shared;
    drop(client);
    let after = settled(before).await?;
    log.uses(after.0, after.1);
    drop(register);
    Ok(())
}

/// How long what a client leaves behind may take to go.
const SETTLED: Duration = Duration::from_secs(5);

/// What is used once it is no more than before.
async fn settled(before: (usize, usize)) -> io::Result<(usize, usize)> {
    let end = Instant::now() + SETTLED;
    loop {
        let now = usage()?;
        if now.0 <= before.0 && now.1 <= before.1 || Instant::now() > end {
            return Ok(now);
        }
        sleep(LOOK).await;
    }
}

/// Tasks of this runtime, and open descriptors.
fn usage() -> io::Result<(usize, usize)> {
    Ok((Runtime::current().metrics().num_alive_tasks(), fs::read_dir("/proc/self/fd")?.count()))
}

async fn connect(orders: &Orders, log: &Log) -> Client {
    loop {
        match Client::connect(&orders.url).await {
            Ok(client) => return client,
            Err(error) => log.error("connect", &error),
        }
        sleep(Duration::from_millis(50)).await;
    }
}

async fn close(client: &Client, log: &Log) {
    if let Err(error) = client.shutdown().await {
        log.error("shutdown", &error);
    }
}

/// Notes when nothing runs: such a time is judged as a pause of this client, because nobody can be told then.
async fn beat(shared: Arc<Shared>) {
    let mut last = now();
    loop {
        sleep(BEAT).await;
        let now = now();
        if now > last + micros(BEAT) + LATE {
            shared.log.late(last, now);
        }
        last = now;
    }
}

/// What is asked for.
enum Handle {
    Mutex(DistMutex),
    Reentrant(ReentrantLock),
    Counting(CountingSemaphore),
    Fair(FairSemaphore, u32),
    Read(RwLock),
    Write(RwLock),
}

/// What is held.
enum Held {
    Guard(Guard),
    Write(WriteGuard),
}

impl Deref for Held {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        match self {
            Self::Guard(guard) => guard,
            Self::Write(guard) => guard,
        }
    }
}

impl Held {
    async fn release(self) -> Result<(), Error> {
        match self {
            Self::Guard(guard) => guard.release().await,
            Self::Write(guard) => guard.release().await,
        }
    }

    /// In two parts at the same time, if it is more than one permit.
    fn split(self) -> (Self, Option<Guard>) {
        match self {
            Self::Guard(mut guard) => {
                let part = guard.split(1);
                (Self::Guard(guard), part)
            }
            whole => (whole, None),
        }
    }
}

impl Handle {
    const fn permits(&self) -> u32 {
        match self {
            Self::Fair(_, permits) => *permits,
            Self::Write(_) => READERS,
            _ => 1,
        }
    }

    async fn wait(&self) -> Result<Held, Error> {
        match self {
            Self::Mutex(mutex) => mutex.lock().await.map(Held::Guard),
            Self::Reentrant(lock) => lock.lock().await.map(Held::Guard),
            Self::Counting(semaphore) => semaphore.acquire().await.map(Held::Guard),
            Self::Fair(semaphore, permits) => semaphore.acquire_many(*permits).await.map(Held::Guard),
            Self::Read(lock) => lock.read().await.map(Held::Guard),
            Self::Write(lock) => lock.write().await.map(Held::Write),
        }
    }

    async fn wait_for(&self, limit: Duration) -> Result<Held, Error> {
        match self {
            Self::Mutex(mutex) => mutex.lock_timeout(limit).await.map(Held::Guard),
            Self::Reentrant(lock) => lock.lock_timeout(limit).await.map(Held::Guard),
            Self::Counting(semaphore) => semaphore.acquire_timeout(limit).await.map(Held::Guard),
            Self::Fair(semaphore, permits) => {
                semaphore.acquire_many_timeout(*permits, limit).await.map(Held::Guard)
            }
            Self::Read(lock) => lock.read_timeout(limit).await.map(Held::Guard),
            Self::Write(lock) => lock.write_timeout(limit).await.map(Held::Write),
        }
    }

    async fn try_now(&self) -> Result<Option<Held>, Error> {
        Ok(match self {
            Self::Mutex(mutex) => mutex.try_lock().await?.map(Held::Guard),
            Self::Reentrant(lock) => lock.try_lock().await?.map(Held::Guard),
            Self::Counting(semaphore) => semaphore.try_acquire().await?.map(Held::Guard),
            Self::Fair(semaphore, permits) => semaphore.try_acquire_many(*permits).await?.map(Held::Guard),
            Self::Read(lock) => lock.try_read().await?.map(Held::Guard),
            Self::Write(lock) => lock.try_write().await?.map(Held::Write),
        })
    }
}

/// How something is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Wait,
    WaitFor(Duration),
    TryNow,
    /// Its future is dropped after that time.
    GiveUpAfter(Duration),
}

/// A task that asks for one of the sites again and again.
struct User {
    shared: Arc<Shared>,
    site: usize,
    random: Random,
    /// What goes on after a guard was forgotten.
    forgotten: JoinSet<()>,
}

impl User {
    fn new(shared: &Arc<Shared>, site: usize, task: usize) -> Self {
        let user = u64::from(shared.orders.client) << 20 | (site as u64) << 8 | task as u64;
        let random = Random::new(shared.orders.seed, user);
        Self { shared: Arc::clone(shared), site, random, forgotten: JoinSet::new() }
    }

    async fn run(mut self) -> Result<(), Error> {
        while now() < self.shared.orders.end {
            self.rest().await;
            self.take_once().await?;
        }
        while self.forgotten.join_next().await.is_some() {}
        Ok(())
    }

    fn taken(&self) -> &Taken {
        &self.shared.sites[self.site]
    }

    async fn rest(&mut self) {
        // An owner comes in past those who wait for it: its tasks must not keep the lock by turns.
        let pause = if self.taken().kind == Kind::Reentrant { 30..150 } else { 0..6 };
        sleep(self.random.millis(pause)).await;
    }

    async fn take_once(&mut self) -> Result<(), Error> {
        let forgets = self.taken().kind.is_exclusive() && self.random.one_in(2_000);
        let owner = (self.taken().kind == Kind::Reentrant)
            .then(|| u32::try_from(self.random.within(0..OWNERS.into())).unwrap_or_default());
        let handle = self.handle(owner, forgets)?;
        let way = self.way();
        let hold = self.shared.next_hold();
        let asked = Asked {
            site: self.site,
            client: self.shared.orders.client,
            owner,
            permits: handle.permits(),
            waits_forever: way == Way::Wait,
            within: None,
        };
        self.shared.log.event(hold, What::Asked(asked));
        match self.ask(&handle, way).await {
            Ok(held) if forgets => self.forget(hold, held),
            Ok(held) => self.hold(hold, held, &handle, asked).await,
            Err(Refusal::Busy) if self.shared.has(Planted::Impatient) => self.pretend(hold).await,
            Err(refusal) => self.shared.log.event(hold, What::Refused(refusal)),
        }
        Ok(())
    }

    fn handle(&mut self, owner: Option<u32>, forgets: bool) -> Result<Handle, Error> {
        let Taken { kind, name, lease } = self.taken().clone();
        let client = &self.shared.client;
        let mut locks = MutexOptions::new().ttl(lease);
        if forgets {
            locks = locks.max_hold(2 * lease);
        }
        let permits = SemaphoreOptions::new().ttl(lease);
        Ok(match kind {
            Kind::Mutex => Handle::Mutex(client.mutex_with(&name, locks)?),
            Kind::QueuedMutex => Handle::Mutex(client.mutex_with(&name, locks.local_handover(false))?),
            Kind::Reentrant => {
                let owner = format!("owner {}", owner.unwrap_or_default());
                Handle::Reentrant(client.reentrant_lock_with(&name, &owner, locks)?)
            }
            Kind::Counting => Handle::Counting(client.counting_semaphore_with(&name, PERMITS, permits)?),
            Kind::Fair => {
                let wanted = if self.random.one_in(3) { PERMITS } else { 1 };
                Handle::Fair(client.fair_semaphore_with(&name, PERMITS, permits)?, wanted)
            }
            // Its prefix is empty by default, and that of a mutex is not.
            Kind::ReadWrite if self.random.one_in(4) => {
                Handle::Write(client.rw_lock_with(&name, MutexOptions::new().prefix("").ttl(lease))?)
            }
            Kind::ReadWrite => {
                Handle::Read(client.rw_lock_with(&name, MutexOptions::new().prefix("").ttl(lease))?)
            }
        })
    }

    fn way(&mut self) -> Way {
        match self.random.within(0..100) {
            0..10 => Way::TryNow,
            10..20 => Way::WaitFor(self.random.millis(5..2_000)),
            20..35 => Way::GiveUpAfter(self.random.millis(0..30)),
            _ => Way::Wait,
        }
    }

    async fn ask(&self, handle: &Handle, way: Way) -> Result<Held, Refusal> {
        let answer = match way {
            Way::Wait => handle.wait().await,
            Way::WaitFor(limit) => handle.wait_for(limit).await,
            Way::TryNow => match handle.try_now().await {
                Ok(held) => return held.ok_or(Refusal::Busy),
                Err(error) => Err(error),
            },
            Way::GiveUpAfter(limit) => match timeout(limit, handle.wait()).await {
                Ok(answer) => answer,
                Err(_) => return Err(Refusal::Dropped),
            },
        };
        answer.map_err(|error| match error {
            Error::TimedOut { .. } => Refusal::TimedOut,
            error => {
                self.shared.log.error("request", &error);
                Refusal::Failed
            }
        })
    }

    async fn hold(&mut self, hold: HoldId, held: Held, handle: &Handle, asked: Asked) {
        let lease = Lease::granted(&self.shared, hold, &held);
        self.work(&lease, &held, handle, asked).await;
        self.let_go(hold, held).await;
    }

    /// What a holder does, until it is done or told that it no longer holds.
    async fn work(&mut self, lease: &Lease, held: &Held, handle: &Handle, asked: Asked) {
        let token = held.token().get();
        let long = self.shared.orders.long;
        let is_long = self.random.one_in(if asked.owner.is_some() { long.div_ceil(5) } else { long });
        let length = if is_long {
            self.taken().lease * 5 / 4
        } else {
            Duration::from_micros(self.random.within(0..3_000))
        };
        let writes = self.taken().kind.is_exclusive() && (is_long || self.random.one_in(8));
        let nests = asked.owner.is_some() && self.random.one_in(2);
        let is_deaf = self.shared.has(Planted::Deaf);
        let section = async {
            if nests {
                self.nest(lease.hold, held, handle, asked).await;
            }
            if writes { self.write(token, length).await } else { sleep(length).await }
        };
        let watch = async { if is_deaf { pending().await } else { lease.watch(held).await } };
        let (mut watch, mut section) = (pin!(watch), pin!(section));
        let is_told = tokio::select! {
            biased;
            () = &mut watch => true,
            () = &mut section => false,
        };
        // Half of them do not look whether they still hold before they write.
        if is_told && writes && lease.hold.is_multiple_of(2) {
            section.await;
        }
    }

    /// Releases it, or drops it.
    async fn let_go(&mut self, hold: HoldId, held: Held) {
        let log = &self.shared.log;
        if self.shared.has(Planted::Leaking) && self.random.one_in(50) {
            log.event(hold, What::Releasing);
            return std::mem::forget(held);
        }
        if self.random.one_in(2) {
            log.event(hold, What::Releasing);
            match held.release().await {
                Ok(()) => log.event(hold, What::Released),
                // That is what it is for.
                Err(Error::Lost { .. }) => {}
                Err(error) => log.error("release", &error),
            }
        } else {
            let (whole, part) = held.split();
            log.event(hold, What::Releasing);
            drop((whole, part));
        }
    }

    /// Once more within what is held.
    async fn nest(&self, outer: HoldId, held: &Held, handle: &Handle, asked: Asked) {
        let hold = self.shared.next_hold();
        let at = now();
        let answer = self.ask(handle, Way::WaitFor(self.taken().lease)).await;
        // Both are still held: it was within.
        let is_within = matches!(&answer, Ok(nested) if nested.is_held() && held.is_held());
        let within = is_within.then_some(outer);
        let log = &self.shared.log;
        log.event_at(at, hold, What::Asked(Asked { waits_forever: false, within, ..asked }));
        match answer {
            Ok(nested) => {
                log.event(hold, What::Granted { token: nested.token().get() });
                log.event(hold, What::Releasing);
                drop(nested);
            }
            Err(refusal) => log.event(hold, What::Refused(refusal)),
        }
    }

    /// Changes what the lock protects: reads, works, writes.
    async fn write(&self, token: u64, length: Duration) {
        let register = &self.shared.register;
        let unchecked = register.read(self.site, false, token).await;
        let checked = register.read(self.site, true, token).await;
        sleep(length).await;
        if let Some(read) = checked {
            register.write(self.site, true, token, read).await;
        }
        if let Some(read) = unchecked {
            register.write(self.site, false, token, read).await;
        }
    }

    /// Forgets what it holds: it is renewed, and ends with the longest time for which it may be held.
    fn forget(&mut self, hold: HoldId, held: Held) {
        let shared = Arc::clone(&self.shared);
        let most = now() + micros(2 * self.taken().lease);
        shared.log.event(hold, What::Granted { token: held.token().get() });
        shared.log.event(hold, What::Held { until: most });
        let lost = held.lost();
        std::mem::forget(held);
        self.forgotten.spawn(async move {
            lost.await;
            shared.log.event(hold, What::Lost);
        });
    }

    /// The planted mistake: it was told that somebody else holds.
    async fn pretend(&mut self, hold: HoldId) {
        self.shared.log.event(hold, What::Granted { token: u64::MAX - (hold & 0xffff_ffff) });
        sleep(Duration::from_millis(5)).await;
        self.shared.log.event(hold, What::Releasing);
    }
}

/// What a holder sees of its lease.
struct Lease {
    shared: Arc<Shared>,
    hold: HoldId,
}

impl Lease {
    fn granted(shared: &Arc<Shared>, hold: HoldId, guard: &Guard) -> Self {
        let token = guard.token().get();
        shared.log.event(hold, What::Granted { token });
        let lease = Self { shared: Arc::clone(shared), hold };
        lease.note(until(guard));
        lease
    }

    fn note(&self, until: Micros) {
        self.shared.log.event(self.hold, What::Held { until });
    }

    /// Until it is lost.
    async fn watch(&self, guard: &Guard) {
        let mut lost = guard.lost();
        let mut noted = until(guard);
        loop {
            tokio::select! {
                biased;
                _ = &mut lost => break,
                () = sleep(LOOK) => {
                    let until = until(guard);
                    // A renewal, not what rounding makes of it; not of what ends at this moment.
                    if guard.is_held() && until > noted + micros(LOOK) {
                        self.note(until);
                        noted = until;
                    }
                }
            }
        }
        self.shared.log.event(self.hold, What::Lost);
    }
}

fn until(guard: &Guard) -> Micros {
    now() + micros(guard.remaining())
}
