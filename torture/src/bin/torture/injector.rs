//! Makes things go wrong, as a seed says, and writes down when.

use std::time::Duration;

use leasehold_torture::history::{self, Effect, Micros};
use tokio::task::block_in_place;
use tokio::time::sleep;

use crate::clock::now;
use crate::fault::Fault;
use crate::fleet::Fleet;
use crate::operator;
use crate::own_client::is_back;
use crate::schedule::{Chosen, Schedule, Scheduled};
use crate::servers::{Server, Strike};
use crate::sites::Taken;
use crate::store::Store;
use leasehold_support::Direction;

/// How late each answer is on a line that is slow.
const SLOW: Duration = Duration::from_millis(20);

/// A connection is cut after fewer bytes: mostly within one message.
const BYTES: usize = 200;

pub(crate) struct Injector<'a> {
    pub(crate) store: Store,
    pub(crate) schedule: Schedule<'a>,
    pub(crate) lease: Duration,
    /// What is held.
    pub(crate) sites: &'a [Taken],
    /// Which of them are caused; the others only take their time.
    pub(crate) chosen: Option<&'a Chosen>,
    /// Nothing is printed.
    pub(crate) is_quiet: bool,
    /// The planted mistake: nobody is told that the store was emptied.
    pub(crate) is_secret: bool,
}

/// A fault that was caused.
#[derive(Clone, Debug)]
pub(crate) struct Injected {
    pub(crate) number: usize,
    pub(crate) fault: history::Fault,
    /// Whom it concerns alone.
    pub(crate) client: Option<u32>,
}

impl Injector<'_> {
    /// Until a moment from which what began last has ended.
    pub(crate) async fn run(
        &self,
        server: &mut dyn Server,
        fleet: &mut Fleet,
        end: Micros,
    ) -> Result<Vec<Injected>, String> {
        let mut done = Vec::new();
        for scheduled in self.schedule.clone() {
            sleep(scheduled.calm).await;
            if now() >= end {
                return Ok(done);
            }
            if self.chosen.is_none_or(|chosen| chosen.has(scheduled.number)) {
                done.push(self.inject(&scheduled, server, fleet).await?);
            } else {
                sleep(scheduled.length()).await;
            }
        }
        sleep(Duration::from_micros(end.saturating_sub(now()))).await;
        Ok(done)
    }

    async fn inject(
        &self,
        scheduled: &Scheduled,
        server: &mut dyn Server,
        fleet: &mut Fleet,
    ) -> Result<Injected, String> {
        let Scheduled { number, fault, lasts, worker, which, .. } = *scheduled;
        let client = fleet.client(worker);
        let began = now();
        let hit = Hit { fault, lasts, worker, which, lease: self.lease, sites: self.sites };
        let found = hit.cause(server, fleet).await?;
        let what = fault.name();
        let effect = match found.unwrap_or(fault.effect(self.store, client)) {
            Effect::Forgets if self.is_secret => Effect::Delays,
            effect => effect,
        };
        // The moment at which a worker that is gone was killed is all that there is.
        let ended = if fault == Fault::KillWorker { began } else { now() };
        if !self.is_quiet {
            let (at, lasted) = (fleet.since(began), (ended - began) / 1_000);
            println!("{number:>4} {at:>10.3} s  {what}, for {lasted} ms");
        }
        let fault = history::Fault { began, ended, what, effect };
        Ok(Injected { number, fault, client: scheduled.fault.is_of_worker().then_some(client) })
    }
}

/// One time that a fault hits.
struct Hit<'a> {
    fault: Fault,
    lasts: Duration,
    worker: usize,
    /// A random number: which of several servers, and the like.
    which: usize,
    lease: Duration,
    sites: &'a [Taken],
}

impl Hit<'_> {
    /// From its beginning to its end. Its effect, if that depends on what it has found.
    async fn cause(&self, server: &mut dyn Server, fleet: &mut Fleet) -> Result<Option<Effect>, String> {
        let Self { fault, lasts, worker, which, lease, sites } = *self;
        match fault {
            Fault::StopWorker => block_in_place(|| fleet.pause(worker)),
            Fault::KillWorker => block_in_place(|| fleet.replace(worker))?,
            Fault::Server(fault) => server.begin(Strike { fault, lasts, which }).await?,
            Fault::Hold(direction) => fleet.line(worker).hold(direction),
            Fault::HoldTraffic(traffic, direction) => fleet.line(worker).hold_traffic(traffic, direction),
            Fault::Partition(direction) => fleet.lines().for_each(|line| line.hold(direction)),
            Fault::Cut => fleet.line(worker).cut(),
            Fault::CutRequest => fleet.line(worker).cut_after(true, which % BYTES),
            Fault::CutAnswer => fleet.line(worker).cut_after(false, which % BYTES),
            Fault::ForceRelease => return operator::release_by_force(server, sites, which).await.map(Some),
            Fault::Resize => return operator::resize(server, sites, which).await.map(Some),
            Fault::Slow => fleet.line(worker).delay(SLOW),
            Fault::SlowThenHold => {
                fleet.line(worker).delay(lease / 16);
                sleep(lease).await;
                fleet.line(worker).hold(Direction::Both);
            }
        }
        if !fault.is_instant() {
            sleep(lasts).await;
        }
        match fault {
            Fault::StopWorker => fleet.resume(worker),
            Fault::Server(fault) => {
                server.end(Strike { fault, lasts, which }).await?;
                if fault.ends_servers() {
                    is_back(server).await.map_err(|error| format!("after {fault:?}: {error}"))?;
                }
            }
            Fault::Hold(_) | Fault::HoldTraffic(..) => fleet.line(worker).resume(),
            Fault::Partition(_) => fleet.lines().for_each(|line| line.resume()),
            Fault::Slow => fleet.line(worker).delay(Duration::ZERO),
            Fault::SlowThenHold => {
                fleet.line(worker).delay(Duration::ZERO);
                fleet.line(worker).resume();
            }
            _ => {}
        }
        Ok(None)
    }
}
