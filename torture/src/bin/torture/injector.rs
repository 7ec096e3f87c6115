//! Makes things go wrong, as a seed says, and writes down when.

use std::time::Duration;

use leasehold_torture::history::{self, Effect, Micros};
use tokio::task::block_in_place;
use tokio::time::sleep;

use crate::clock::now;
use crate::fleet::Fleet;
use crate::random::Random;
use crate::scenario::{Fault, Scenario, length};
use crate::store::Server;
use crate::support::Direction;

/// How late each answer is on a line that is slow.
const SLOW: Duration = Duration::from_millis(20);

pub(crate) struct Injector<'a> {
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
        server: &mut Server,
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
            self.cause(fault, lasts, worker, server, fleet).await?;
            let what = fault.name();
            let effect = match fault {
                Fault::StopWorker => Effect::Pauses { client },
                Fault::KillWorker => Effect::Kills { client },
                Fault::Flush if self.is_secret => Effect::Delays,
                Fault::EmptyServer | Fault::Flush => Effect::Forgets,
                Fault::Refuse(..) => Effect::Refuses,
                _ => Effect::Delays,
            };
            // The moment at which a worker that is gone was killed is all that there is.
            let ended = if fault == Fault::KillWorker { began } else { now() };
            println!("{:>10.3} s  {what}, for {} ms", fleet.since(began), (ended - began) / 1_000);
            done.push(history::Fault { began, ended, what, effect });
        }
    }

    /// From the beginning of a fault to its end.
    async fn cause(
        &self,
        fault: Fault,
        lasts: Duration,
        worker: usize,
        server: &mut Server,
        fleet: &mut Fleet,
    ) -> Result<(), String> {
        match fault {
            Fault::StopWorker => block_in_place(|| fleet.pause(worker)),
            Fault::KillWorker => block_in_place(|| fleet.replace(worker))?,
            Fault::StopServer => block_in_place(|| server.pause(worker)),
            Fault::RestartServer | Fault::EmptyServer => {
                block_in_place(|| {
                    server.kill();
                    server.restart();
                });
                server.is_back().await.map_err(|error| format!("the server does not come back: {error}"))?;
            }
            Fault::Flush => server.command(&["FLUSHALL"]),
            Fault::ForgetScripts => server.command(&["SCRIPT", "FLUSH"]),
            Fault::EndConnections => {
                server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
                server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
            }
            Fault::SetClockBack => server.set_clock_back(lasts),
            Fault::PauseWrites => {
                server.command(&["CLIENT", "PAUSE", &lasts.as_millis().to_string(), "WRITE"]);
            }
            Fault::Refuse(setting, value, _) => server.command(&["CONFIG", "SET", setting, value]),
            Fault::Hold(direction) => fleet.line(worker).hold(direction),
            Fault::HoldTraffic(traffic, direction) => fleet.line(worker).hold_traffic(traffic, direction),
            Fault::Partition(direction) => fleet.lines().for_each(|line| line.hold(direction)),
            Fault::Cut => fleet.line(worker).cut(),
            Fault::Slow => fleet.line(worker).delay(SLOW),
            Fault::SlowThenHold => {
                fleet.line(worker).delay(self.lease / 16);
                sleep(self.lease).await;
                fleet.line(worker).hold(Direction::Both);
            }
        }
        if !fault.is_instant() {
            sleep(lasts).await;
        }
        match fault {
            Fault::StopWorker => fleet.resume(worker),
            Fault::StopServer => server.resume(worker),
            Fault::Refuse(setting, _, value) => server.command(&["CONFIG", "SET", setting, value]),
            Fault::Hold(_) | Fault::HoldTraffic(..) => fleet.line(worker).resume(),
            Fault::Partition(_) => fleet.lines().for_each(|line| line.resume()),
            Fault::Slow => fleet.line(worker).delay(Duration::ZERO),
            Fault::SlowThenHold => {
                fleet.line(worker).delay(Duration::ZERO);
                fleet.line(worker).resume();
            }
            _ => {}
        }
        Ok(())
    }
}
