//! A task that asks for one of the sites again and again.

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use leasehold::{Error, MutexOptions, OnOtherLimit, SemaphoreOptions};
use leasehold_torture::history::{Asked, HoldId, Refusal, What};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::handle::{Handle, Held, Request};
use super::lease::Lease;
use super::open::{Holding, Pending};
use super::{Planted, Shared};
use crate::clock::now;
use crate::sites::{Kind, OWNERS, PERMITS, Taken};
use leasehold_support::random::Random;

/// How something is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Wait,
    WaitFor(Duration),
    TryNow,
    /// Its future is dropped after that time.
    GiveUpAfter(Duration),
}

/// A task that asks for one of the sites again and again.
pub(super) struct User {
    pub(super) shared: Arc<Shared>,
    pub(super) site: usize,
    pub(super) random: Random,
    /// Whether it may be gone at any moment.
    is_guest: bool,
    /// What goes on after a guard was forgotten.
    forgotten: JoinSet<()>,
}

impl User {
    pub(super) fn new(shared: &Arc<Shared>, site: usize, task: usize) -> Self {
        let user = u64::from(shared.orders.client) << 20 | (site as u64) << 8 | task as u64;
        let random = Random::new(shared.orders.seed, user);
        Self { shared: Arc::clone(shared), site, random, is_guest: false, forgotten: JoinSet::new() }
    }

    pub(super) async fn run(mut self) -> Result<(), Error> {
        self.go_on().await?;
        while self.forgotten.join_next().await.is_some() {}
        Ok(())
    }

    /// The same, until its runtime ends, which may be at any moment.
    pub(super) async fn visit(mut self) -> Result<(), Error> {
        self.is_guest = true;
        self.go_on().await
    }

    async fn go_on(&mut self) -> Result<(), Error> {
        while now() < self.shared.orders.end {
            self.rest().await;
            if self.taken().kind == Kind::Several && self.random.one_in(2) {
                self.take_several().await?;
            } else {
                self.take_once().await?;
            }
        }
        Ok(())
    }

    /// Asks for one after another, and blocks its thread while it holds, sometimes for longer than a lease.
    pub(super) async fn block(mut self) -> Result<(), Error> {
        while now() < self.shared.orders.end {
            self.site = self.random.within(0..self.shared.sites.len() as u64) as usize;
            self.rest().await;
            let (handle, asked) = self.request(false)?;
            let hold = self.shared.next_hold();
            let asked = Asked { waits_forever: true, ..asked };
            self.shared.log.event(hold, What::Asked(asked));
            match self.ask(&handle, Way::Wait).await {
                Ok(held) => self.hold_and_block(hold, held, asked).await,
                Err(refusal) => self.shared.log.event(hold, What::Refused(refusal)),
            }
        }
        Ok(())
    }

    /// Its thread notices nothing meanwhile, so its loss is watched for on another one.
    async fn hold_and_block(&mut self, hold: HoldId, held: Held, asked: Asked) {
        let lease = Lease::granted(&self.shared, hold, &held);
        let held = Arc::new(held);
        let watched = Arc::clone(&held);
        let watching = self.shared.runtime.spawn(async move { lease.watch(&watched).await });
        let is_long = self.random.one_in(8);
        std::thread::sleep(if is_long { self.taken().lease * 5 / 4 } else { self.random.millis(0..20) });
        watching.abort();
        // It has been told of a loss, or will not be.
        let _ = watching.await;
        if let Some(held) = Arc::into_inner(held) {
            self.let_go(hold, held, asked).await;
        }
    }

    pub(super) fn taken(&self) -> &Taken {
        &self.shared.sites[self.site]
    }

    async fn rest(&mut self) {
        // An owner comes in past those who wait for it: its tasks must not keep the lock by turns.
        let rest = self.shared.orders.rest;
        let pause = if self.taken().kind == Kind::Reentrant { 30..rest.max(150) } else { 0..rest };
        sleep(self.random.millis(pause)).await;
    }

    async fn take_once(&mut self) -> Result<(), Error> {
        let forgets = !self.is_guest && self.taken().kind.is_exclusive() && self.random.one_in(2_000);
        let (handle, asked) = self.request(forgets)?;
        let way = self.way();
        let hold = self.shared.next_hold();
        let asked = Asked { waits_forever: way == Way::Wait, ..asked };
        self.shared.log.event(hold, What::Asked(asked));
        match self.ask_noting(vec![hold], &handle, way).await {
            Ok(held) if forgets => self.forget(hold, held),
            Ok(held) => self.hold(hold, held, &handle, asked).await,
            Err(Refusal::Busy) if self.shared.has(Planted::Impatient) => self.pretend(hold).await,
            Err(refusal) => self.shared.log.event(hold, What::Refused(refusal)),
        }
        Ok(())
    }

    /// What to ask for next.
    fn request(&mut self, forgets: bool) -> Result<(Handle, Asked), Error> {
        let owner = (self.taken().kind == Kind::Reentrant)
            .then(|| u32::try_from(self.random.within(0..OWNERS.into())).unwrap_or_default());
        let handle = self.handle(owner, forgets)?;
        let asked = Asked {
            site: self.site,
            client: self.shared.orders.client,
            owner,
            permits: handle.permits(),
            waits_forever: false,
            within: None,
            together: None,
            continues: None,
        };
        Ok((handle, asked))
    }

    fn handle(&mut self, owner: Option<u32>, forgets: bool) -> Result<Handle, Error> {
        let Taken { kind, name, lease } = self.taken().clone();
        let client = &self.shared.client;
        let mut locks = MutexOptions::new().ttl(lease);
        if forgets {
            locks = locks.max_hold(2 * lease);
        }
        // Whatever an operator has changed it to.
        let permits = SemaphoreOptions::new().ttl(lease).on_other_limit(OnOtherLimit::Follow);
        Ok(match kind {
            Kind::Mutex | Kind::Several => Handle::Mutex(client.mutex_with(&name, locks)?),
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

    pub(super) fn way(&mut self) -> Way {
        match self.random.within(0..100) {
            0..10 => Way::TryNow,
            10..20 => Way::WaitFor(self.random.millis(5..2_000)),
            20..35 => Way::GiveUpAfter(self.random.millis(0..30)),
            _ => Way::Wait,
        }
    }

    /// The same. If its runtime ends meanwhile, these requests are given up, which is noted before it happens: it may
    /// take a while.
    pub(super) async fn ask_noting<R: Request>(
        &self,
        holds: Vec<HoldId>,
        handle: &R,
        way: Way,
    ) -> Result<R::Held, Refusal> {
        let asking = pin!(self.ask(handle, way));
        // What comes last is dropped first.
        let pending = Pending::new(&self.shared, holds);
        let answer = asking.await;
        pending.answered();
        answer
    }

    async fn ask<R: Request>(&self, handle: &R, way: Way) -> Result<R::Held, Refusal> {
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
            Error::Lost { .. } => Refusal::Lost,
            error => {
                self.shared.log.error("request", &error);
                Refusal::Failed
            }
        })
    }

    async fn hold(&mut self, hold: HoldId, held: Held, handle: &Handle, asked: Asked) {
        let lease = Lease::granted(&self.shared, hold, &held);
        let holding = Holding::new(&self.shared, vec![hold], held);
        if let Some(held) = holding.get() {
            self.work(&lease, held, handle, asked).await;
        }
        if let Some(held) = holding.take() {
            self.let_go(hold, held, asked).await;
        }
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
            if writes { self.write(self.site, token, length).await } else { sleep(length).await }
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

    /// Releases it, or drops it, or goes on by reading or in somebody else's hands.
    pub(super) async fn let_go(&mut self, hold: HoldId, held: Held, asked: Asked) {
        match held {
            Held::Write(guard) if self.random.one_in(3) => self.downgrade(hold, guard, asked).await,
            Held::Guard(guard) if self.random.one_in(50) => self.hand_over(hold, guard, asked).await,
            held => self.release(hold, held).await,
        }
    }

    /// Releases it, or drops it.
    pub(super) async fn release(&mut self, hold: HoldId, held: Held) {
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
    pub(super) async fn write(&self, site: usize, token: u64, length: Duration) {
        let register = &self.shared.register;
        let unchecked = register.read(site, false, token).await;
        let checked = register.read(site, true, token).await;
        sleep(length).await;
        if let Some(read) = checked {
            register.write(site, true, token, read).await;
        }
        if let Some(read) = unchecked {
            register.write(site, false, token, read).await;
        }
    }

    /// Forgets what it holds: it is renewed, and ends with the longest time for which it may be held.
    fn forget(&mut self, hold: HoldId, held: Held) {
        let lease = Lease::granted(&self.shared, hold, &held);
        let held = Arc::new(held);
        self.shared.forget(Arc::clone(&held));
        self.forgotten.spawn(async move { lease.watch(&held).await });
    }

    /// The planted mistake: it was told that somebody else holds.
    async fn pretend(&mut self, hold: HoldId) {
        self.shared.log.event(hold, What::Granted { token: u64::MAX - (hold & 0xffff_ffff) });
        sleep(Duration::from_millis(5)).await;
        self.shared.log.event(hold, What::Releasing);
    }
}
