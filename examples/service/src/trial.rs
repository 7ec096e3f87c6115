//! Three instances under load and faults.

use std::sync::Arc;
use std::time::Duration;

use comfy_table::{Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::{Instant, sleep, timeout};

use crate::load::{Answers, Load};
use crate::loopback::Service;
use crate::replica::{Replica, TTL};
use crate::store::{Store, StoreKind};
use crate::world::World;
use crate::{Result, exposition};

/// How soon after the load the metrics must say that nothing is held.
const SETTLED_WITHIN: Duration = Duration::from_secs(10);

/// Returns whether everything was as promised.
pub(crate) async fn run(kind: StoreKind, lasts: Duration, take_over: Duration) -> Result<bool> {
    let world = Arc::new(World::default());
    let service = Service::start(Arc::clone(&world)).await?;
    let mut trial = Trial {
        store: Store::start(kind)?,
        replicas: Vec::new(),
        started: 0,
        world,
        service,
        bar: progress(lasts),
        found: Vec::new(),
        take_over,
    };
    for _ in 0..3 {
        trial.start_replica().await?;
    }
    let load = Load::start(trial.addresses());
    let mut phases = Vec::new();
    let phase = lasts / 4;
    phases.push(("undisturbed", trial.undisturbed(&load, phase).await));
    phases.push(("the leader is killed", trial.kill_the_leader(&load, phase).await?));
    phases.push(("an instance is stopped for three TTLs", trial.stop_one(&load, phase).await));
    phases.push(("the store is restarted", trial.restart_the_store(&load, phase).await));
    load.stop().await;
    trial.check_metrics().await?;
    trial.bar.finish_and_clear();
    Ok(trial.judge(&phases))
}

struct Trial {
    store: Store,
    replicas: Vec<Replica>,
    started: u32,
    world: Arc<World>,
    service: Service,
    bar: ProgressBar,
    /// What was not as promised, besides what the world has seen.
    found: Vec<String>,
    /// How long another instance may take to lead after the leader was killed.
    take_over: Duration,
}

impl Trial {
    async fn start_replica(&mut self) -> Result<()> {
        self.started += 1;
        let name = format!("api-{}", self.started);
        self.replicas.push(self.store.start_replica(name, self.service.address()).await?);
        Ok(())
    }

    fn addresses(&self) -> Vec<std::net::SocketAddr> {
        self.replicas.iter().map(|replica| replica.address).collect()
    }

    async fn undisturbed(&mut self, load: &Load, lasts: Duration) -> Answers {
        self.pass(lasts).await;
        let answers = load.take();
        if !answers.failed.is_empty() {
            self.found.push(format!("requests failed although nothing was wrong: {:?}", answers.failed));
        }
        answers
    }

    /// Another instance leads soon, and a new one takes the place of the one that was killed.
    async fn kill_the_leader(&mut self, load: &Load, lasts: Duration) -> Result<Answers> {
        let end = Instant::now() + lasts;
        let (leader, terms) = self.world.leader();
        if let Some(n) = self.replicas.iter().position(|replica| replica.name == leader) {
            self.replicas.remove(n).kill();
        } else {
            self.found.push("nobody led".to_owned());
        }
        let killed = Instant::now();
        load.balance_over(self.addresses());
        let next = async {
            while self.world.leader().1 == terms {
                sleep(Duration::from_millis(5)).await;
            }
        };
        match timeout(self.take_over.max(lasts), next).await {
            Ok(()) => self.bar.println(format!("the next instance led after {:.1?}", killed.elapsed())),
            Err(_) => self.found.push(format!("nobody led for {lasts:?} after the leader was killed")),
        }
        if killed.elapsed() > self.take_over {
            self.found.push(format!("the next instance led only after {:.1?}", killed.elapsed()));
        }
        self.start_replica().await?;
        load.balance_over(self.addresses());
        self.pass(end.saturating_duration_since(Instant::now())).await;
        Ok(load.take())
    }

    /// What it holds goes to others in the meantime, and what it does afterwards changes nothing.
    async fn stop_one(&mut self, load: &Load, lasts: Duration) -> Answers {
        let end = Instant::now() + lasts;
        self.replicas[0].pause();
        self.pass(TTL * 3).await;
        self.replicas[0].resume();
        self.pass(end.saturating_duration_since(Instant::now())).await;
        load.take()
    }

    /// Ends with requests that succeed.
    async fn restart_the_store(&mut self, load: &Load, lasts: Duration) -> Answers {
        self.store.restart();
        let end = Instant::now() + lasts;
        // What was under way then may still fail.
        let calm = end - lasts / 4;
        self.pass(calm.saturating_duration_since(Instant::now())).await;
        let mut answers = load.take();
        self.pass(end.saturating_duration_since(Instant::now())).await;
        let late = load.take();
        if !late.failed.is_empty() || late.succeeded == 0 {
            let wrong =
                format!("long after the restart, {} requests succeeded: {:?}", late.succeeded, late.failed);
            self.found.push(wrong);
        }
        answers.add(late);
        answers
    }

    /// The instances say of themselves what they did.
    async fn check_metrics(&mut self) -> Result<()> {
        for replica in &self.replicas {
            // What was under way when the load ended is done in a moment.
            let end = Instant::now() + SETTLED_WITHIN;
            let problems = loop {
                let text = reqwest::get(format!("http://{}/metrics", replica.address)).await?.text().await?;
                let problems = exposition::problems(&replica.name, &text);
                if problems.is_empty() || Instant::now() >= end {
                    break problems;
                }
                sleep(Duration::from_millis(100)).await;
            };
            self.found.extend(problems);
        }
        Ok(())
    }

    async fn pass(&self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            sleep(Duration::from_millis(100).min(end.saturating_duration_since(Instant::now()))).await;
            self.bar.set_position(self.bar.elapsed().as_secs());
        }
    }

    fn judge(&self, phases: &[(&str, Answers)]) -> bool {
        let mut table = Table::new();
        table.load_preset(presets::UTF8_BORDERS_ONLY).set_header(["", "succeeded", "slowest", "failed"]);
        for (phase, answers) in phases {
            let failed = answers.failed.iter().map(|(cause, times)| format!("{times} x {cause}"));
            let failed = failed.collect::<Vec<_>>().join("\n");
            let slowest = format!("{:.2} s", answers.slowest.as_secs_f64());
            table.add_row([(*phase).to_owned(), answers.succeeded.to_string(), slowest, failed]);
        }
        println!("{table}");
        let seen = self.world.seen();
        println!(
            "{} updates, {} lost; {} calls upstream, at most {} at a time; {} reports of {} leaders; {} refused by their tokens",
            seen.writes,
            seen.lost_updates,
            seen.calls,
            seen.most_calls,
            seen.reports,
            seen.leaders,
            seen.refused
        );
        let wrong =
            seen.violations() + &self.found.iter().map(|found| format!("{found}\n")).collect::<String>();
        print!("{wrong}");
        wrong.is_empty()
    }
}

fn progress(lasts: Duration) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} s")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(lasts.as_secs()).with_style(style)
}
