//! Makes things go wrong, as a seed says, and writes down when.

use std::time::Duration;

use leasehold_torture::history::{self, Effect, Micros};
use tokio::task::block_in_place;
use tokio::time::sleep;

use crate::clock::now;
use crate::fault::Fault;
use crate::fleet::Fleet;
use crate::random::Random;
use crate::scenario::{Scenario, length};
use crate::servers::{Server, Strike};
use crate::store::{Store, is_back};

/// How late each answer is on a line that is slow.
const SLOW: Duration = Duration::from_millis(20);

/// A connection is cut after fewer bytes: mostly within one message.
const BYTES: usize = 200;

pub(crate) struct Injector<'a> {
    pub(crate) store: Store,
    pub(crate) scenario: &'a Scenario,
    pub(crate) faults: &'a [Fault],
    pub(crate) lease: Duration,
    pub(crate) random: Random,
    /// The planted mistake: nobody is told that the store was emptied.
    pub(crate) is_secret: bool,
}

impl Injector<'_> {
    /// Until a moment from which what began last has ended.
    pub(crate) async fn run(
        &mut self,
        server: &mut dyn Server,
        fleet: &mut Fleet,
        end: Micros,
    ) -> Result<Vec<history::Fault>, String> {
        let mut done = Vec::new();
        loop {
            let (least, most) = self.scenario.calm;
            sleep(self.random.millis(least..most)).await;
            if now() >= end {
                return Ok(done);
            }
            if self.faults.is_empty() {
                continue;
            }
            let fault = *self.random.choose(self.faults);
            let (least, most) = *self.random.choose(self.scenario.lasts);
            let lasts = length(self.random.within(least..most), self.lease);
            let worker = self.random.within(0..fleet.len() as u64) as usize;
            let client = fleet.client(worker);
            let began = now();
            let which = self.random.within(0..1_000) as usize;
            let hit = Hit { fault, lasts, worker, which };
            hit.cause(server, fleet).await?;
            let what = fault.name();
            let effect = match fault.effect(self.store, client) {
                Effect::Forgets if self.is_secret => Effect::Delays,
                effect => effect,
            };
            // The moment at which a worker that is gone was killed is all that there is.
            let ended = if fault == Fault::KillWorker { began } else { now() };
            println!("{:>10.3} s  {what}, for {} ms", fleet.since(began), (ended - began) / 1_000);
            done.push(history::Fault { began, ended, what, effect });
        }
    }
}

/// One time that a fault hits.
struct Hit {
    fault: Fault,
    lasts: Duration,
    worker: usize,
    /// A random number: which of several servers, and the like.
    which: usize,
}

impl Hit {
    /// From its beginning to its end.
    async fn cause(&self, server: &mut dyn Server, fleet: &mut Fleet) -> Result<(), String> {
        let Self { fault, lasts, worker, which } = *self;
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
            Fault::Slow => fleet.line(worker).delay(SLOW),
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
            _ => {}
        }
        Ok(())
    }
}
