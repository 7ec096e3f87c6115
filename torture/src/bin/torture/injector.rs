//! Makes things go wrong, as a seed says, and writes down when.

use std::time::Duration;

use leasehold_torture::history::{self, Effect, Micros};
use tokio::task::block_in_place;
use tokio::time::sleep;

use crate::clock::now;
use crate::fleet::Fleet;
use crate::scenario::Fault;
use crate::schedule::{Chosen, Schedule, Scheduled};
use crate::store::Server;

/// How late each answer is on a line that is slow.
const SLOW: Duration = Duration::from_millis(20);

pub(crate) struct Injector<'a> {
    pub(crate) schedule: Schedule<'a>,
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
        server: &mut Server,
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
        server: &mut Server,
        fleet: &mut Fleet,
    ) -> Result<Injected, String> {
        let Scheduled { number, fault, lasts, worker, .. } = *scheduled;
        let client = fleet.client(worker);
        let began = now();
        self.cause(fault, lasts, worker, server, fleet).await?;
        let what = fault.name();
        let effect = match fault {
            Fault::StopWorker => Effect::Pauses { client },
            Fault::KillWorker => Effect::Kills { client },
            Fault::Flush if self.is_secret => Effect::Delays,
            Fault::EmptyServer | Fault::Flush => Effect::Forgets,
            _ => Effect::Delays,
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
            Fault::PauseWrites => {
                server.command(&["CLIENT", "PAUSE", &lasts.as_millis().to_string(), "WRITE"]);
            }
            Fault::Refuse(setting, value, _) => server.command(&["CONFIG", "SET", setting, value]),
            Fault::Hold(direction) => fleet.line(worker).hold(direction),
            Fault::HoldTraffic(traffic, direction) => fleet.line(worker).hold_traffic(traffic, direction),
            Fault::Partition(direction) => fleet.lines().for_each(|line| line.hold(direction)),
            Fault::Cut => fleet.line(worker).cut(),
            Fault::Slow => fleet.line(worker).delay(SLOW),
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
            _ => {}
        }
        Ok(())
    }
}
