//! Of several candidates one leads and writes, and when it is killed, the next one does: never two under one token, and
//! nothing that a replaced leader writes late is accepted.
//!
//! ```text
//! cargo run --release --example leader
//! cargo run --release --example leader -- --url redis://127.0.0.1:6379 --candidates 5 --kills 4
//! ```
//!
//! The first command needs nothing installed: the candidates are tasks, and the one that leads is cut off from the
//! store and dropped. With the URL of a server the candidates are processes, and the leader is killed (SIGKILL).
//!
//! The output is a table of all leaders, followed by the line `leader: OK: ...`. The exit status is 1 if two candidates
//! wrote under the same token, or a killed leader was replaced later than a second after its TTL, and 2 if something
//! else went wrong.
//!
//! To see all that an application has to write, read `lead` below.

#[path = "shared/failure.rs"]
mod failure;
#[path = "shared/fenced.rs"]
mod fenced;
#[path = "shared/loopback.rs"]
mod loopback;
#[path = "shared/process.rs"]
mod process;
#[path = "leader/register.rs"]
mod register;
#[path = "shared/table.rs"]
mod table;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use leasehold::{Client, Leader, MemoryBackend, MutexOptions};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::failure::Failure;
use crate::fenced::admitted;
use crate::loopback::{Connection, Service};
use crate::process::Process;
use crate::register::{Register, Reign};

/// All that an application has to write so that one of its processes leads.
async fn lead(client: &Client, me: u32, register: SocketAddr) -> Result<(), Failure> {
    let election = client.election("leader")?;
    Ok(election.run(&me.to_string(), |leader| write(register, leader)).await?)
}

/// The work of the leader, for as long as it leads. The register compares tokens.
async fn write(register: SocketAddr, me: Leader) -> Result<(), Failure> {
    let mut register = Connection::open(register).await?;
    loop {
        admitted(register.ask(&format!("{} {}", me.value, me.token)).await?, me.token)?;
        sleep(Duration::from_millis(5)).await;
    }
}

/// Kills one leader after the other, and shows who led.
#[derive(Parser, Clone, Debug)]
struct Args {
    /// Where the election is: `memory:`, or the URL of a store that processes share
    #[arg(long, default_value = "memory:")]
    url: String,
    /// How many candidates there are: tasks in memory, otherwise processes
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=64))]
    candidates: u32,
    /// How many leaders are killed; fewer than there are candidates
    #[arg(long, default_value_t = 3)]
    kills: u32,
    /// The TTL of the leadership, in milliseconds
    #[arg(long, default_value_t = 1000)]
    ttl: u64,
    /// The candidate that this process is, and its register
    #[arg(long, hide = true, requires = "register")]
    candidate: Option<u32>,
    #[arg(long, hide = true)]
    register: Option<SocketAddr>,
}

impl Args {
    const fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl)
    }

    fn options(&self) -> MutexOptions {
        MutexOptions::new().ttl(self.ttl())
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    if args.kills >= args.candidates {
        Args::command().error(ErrorKind::ValueValidation, "--kills must be less than --candidates").exit();
    }
    let outcome = match (process::url_from_parent(), args.candidate, args.register) {
        (Some(url), Some(me), Some(register)) => campaign_at(&url, &args, me, register).await,
        _ => show(&args).await,
    };
    outcome.unwrap_or_else(|failure| {
        eprintln!("leader: {failure}");
        ExitCode::from(2)
    })
}

/// Campaigns in this process, which was started for it.
async fn campaign_at(url: &str, args: &Args, me: u32, register: SocketAddr) -> Result<ExitCode, Failure> {
    process::end_with_parent();
    let client = Client::connect(url).await?.with_mutex_options(args.options());
    lead(&client, me, register).await?;
    Ok(ExitCode::SUCCESS)
}

async fn show(args: &Args) -> Result<ExitCode, Failure> {
    let reigns = go(args).await?;
    let rows = reigns.iter().map(|reign| {
        let after = reign.after.map_or_else(String::new, |after| format!("{after:.0?}"));
        [reign.by.to_string(), reign.token.to_string(), reign.writes.to_string(), after]
    });
    println!("{}", table::table(["leader", "token", "writes", "led after"], rows));
    Ok(match disproof(args, &reigns) {
        None => {
            println!(
                "leader: OK: {} candidates, {} leaders killed, each replaced within its TTL + 1 s",
                args.candidates, args.kills
            );
            ExitCode::SUCCESS
        }
        Some(why) => {
            println!("leader: FAILED: {why}");
            ExitCode::FAILURE
        }
    })
}

/// Why the run does not show what it should show.
fn disproof(args: &Args, reigns: &[Reign]) -> Option<String> {
    let late = |reign: &&Reign| reign.after.is_some_and(|after| after > args.ttl() + Duration::from_secs(1));
    if let Some(reign) = reigns.iter().find(late) {
        return Some(format!("{} led {:?} after the leader before it was killed", reign.by, reign.after));
    }
    if let Some(pair) = reigns.windows(2).find(|pair| pair[0].token >= pair[1].token) {
        return Some(format!("{} and {} led at the same time", pair[0].by, pair[1].by));
    }
    (reigns.len() <= args.kills as usize)
        .then(|| format!("{} leaders, after {} kills", reigns.len(), args.kills))
}

/// Lets the candidates campaign, and kills the one that leads, again and again.
async fn go(args: &Args) -> Result<Vec<Reign>, Failure> {
    let register = Arc::new(Register::default());
    let service = Service::start(Arc::clone(&register)).await?;
    let memory = (args.url == "memory:").then(MemoryBackend::new);
    let doom = watch::Sender::new(None);
    let mut candidates = JoinSet::new();
    for me in 0..args.candidates {
        let peer = memory.as_ref().map(|store| Arc::new(store.peer()));
        candidates.spawn(supervise(peer, args.clone(), me, service.address(), doom.subscribe()));
    }
    let mut leads = register.leads();
    let mut killed = None;
    for kill in 0..=args.kills {
        // Ends early if a candidate fails, and its failure is the outcome.
        let leader = tokio::select! {
            led = timeout(Duration::from_secs(60), leads.wait_for(|leader| leader.is_some() && *leader != killed)) => {
                led.ok().and_then(Result::ok).and_then(|leader| *leader)
            }
            Err(failure) = failure_of(&mut candidates) => return Err(failure),
        };
        let Some(leader) = leader else { return Err(Failure::Protocol("nobody leads".to_owned())) };
        sleep(args.ttl() / 2).await; // it writes
        if kill < args.kills {
            register.killed(Instant::now());
            killed = Some(leader);
            doom.send_replace(killed);
        }
    }
    Ok(register.reigns())
}

/// The first failure of a candidate. Pending if all of those that ended were killed.
async fn failure_of(candidates: &mut JoinSet<Result<(), Failure>>) -> Result<(), Failure> {
    while let Some(ended) = candidates.join_next().await {
        ended??;
    }
    std::future::pending().await
}

/// Runs a candidate, as a process where the store is a server and as a task otherwise, until it is doomed.
async fn supervise(
    memory: Option<Arc<MemoryBackend>>,
    args: Args,
    me: u32,
    register: SocketAddr,
    mut doomed: watch::Receiver<Option<u32>>,
) -> Result<(), Failure> {
    let doom = doomed.wait_for(|doomed| *doomed == Some(me));
    if let Some(backend) = memory {
        let client = Client::with_backend(Arc::clone(&backend) as _).with_mutex_options(args.options());
        return tokio::select! {
            ended = lead(&client, me, register) => ended,
            Ok(_) = doom => {
                backend.crash();
                Ok(())
            }
        };
    }
    let arguments =
        [format!("--candidate={me}"), format!("--register={register}"), format!("--ttl={}", args.ttl)];
    let mut process = Process::start(process::command(&args.url)?.args(arguments))?;
    tokio::select! {
        status = process.ended() => return Err(Failure::Ended(status?)),
        Ok(_) = doom => {}
    }
    Ok(process.child.kill().await?) // SIGKILL: it gets no chance to resign
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_killed_leader_is_replaced() {
        let args = Args::parse_from(["leader", "--candidates=3", "--kills=2", "--ttl=300"]);
        let reigns = go(&args).await.expect("memory does not fail");
        assert_eq!(reigns.len(), 3, "{reigns:?}");
        assert!(
            reigns.windows(2).all(|pair| pair[0].token < pair[1].token && pair[0].by != pair[1].by),
            "{reigns:?}"
        );
    }
}
