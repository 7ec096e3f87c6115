//! The marketplace: what a lock is worth compared with optimistic transactions, on a market with sellers and buyers.
//!
//! `cargo bench -p leasehold-benches --bench marketplace` starts its own `redis-server` (or uses `--port`). Sellers
//! list their items one after another, as fast as they can; each buyer looks for any of the items on sale
//! (`ZRANDMEMBER`), tries to buy it at the price it saw, and looks again if it did not get it. There are no pauses
//! between attempts. A listing takes the item out of the seller's inventory and puts it on the market; a purchase takes
//! it off the market, moves the money, and puts it into the buyer's inventory. Three methods to make such a move
//! atomic, in turn on the same server, for every number of traders:
//!
//! * **WATCH/MULTI**: WATCH and the checks in one flight, then the move in MULTI and EXEC, repeated if EXEC is refused.
//!   A buyer watches the market and its funds, a seller its inventory. Every trader has its own connection.
//! * **one lock**: a mutex on the whole market around the checks (one flight) and the move (another).
//! * **lock per item**: the same with a mutex on the item. A buyer that finds it locked looks for another one.
//!   Purchases of different items share only the funds of a seller, which `HINCRBY` changes in one step.
//!
//! With locks, the traders are spread over `--clients` (2) clients of this crate, as if over that many processes, each
//! with one more connection that its traders share for their work.
//!
//! Per round of `--seconds` (10): items listed and bought; attempts refused (EXEC refused, item locked, sold or
//! changed) and attempts that found nothing on sale; mean and 99th percentile of the time from wanting to list or buy
//! until it is done, including all attempts. A wait that is cut short by the end of the round counts with the time it
//! lasted, so that traders that never get their turn are not left out.
//!
//! After each round everything is counted: money, items (each in exactly one place), listings and purchases. A round
//! that does not add up ends the run with exit code 1.

use std::time::{Duration, Instant};

use clap::Parser;
use comfy_table::Table;
use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use leasehold::Client;
use tokio::task::JoinSet;

mod common;
#[path = "marketplace/market.rs"]
mod market;
#[path = "marketplace/methods.rs"]
mod methods;

use common::{Bare, Place, Result, table, url};
use market::{Market, buyer_name};
use methods::{Access, Attempt, Exclusion, Method};

/// Sellers and buyers.
const TRADERS: [(usize, usize); 4] = [(1, 1), (5, 1), (5, 5), (5, 20)];
/// More than a seller can list in a second: it takes two flights at least.
const ITEMS_PER_SECOND: f64 = 15_000.0;

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    place: Place,
    /// How long each round takes.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Over how many clients of this crate the traders are spread.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..))]
    clients: u8,
}

/// What one round is made of.
struct Round {
    port: u16,
    method: Method,
    sellers: usize,
    buyers: usize,
    clients: usize,
    length: Duration,
}

/// The result of one round, or of one trader in it.
struct Tally {
    done: u64,
    refused: u64,
    nothing_listed: u64,
    /// In ns.
    waits: Histogram<u64>,
}

/// The sellers' tally and the buyers'.
struct Outcome {
    listed: Tally,
    bought: Tally,
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::parse();
    let Some((port, _server)) = options.place.server("the marketplace") else { return Ok(()) };
    let length = Duration::from_secs_f64(options.place.choose(options.seconds, 0.2));
    let progress = ProgressBar::new((TRADERS.len() * Method::ALL.len()) as u64);
    progress.tick();
    let mut outcomes = Vec::new();
    for (sellers, buyers) in TRADERS {
        for method in Method::ALL {
            let round = Round { port, method, sellers, buyers, clients: options.clients.into(), length };
            outcomes.push(round.run().await.map_err(|error| format!("{}: {error}", round.name()))?);
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    println!("{}", summary(&outcomes));
    println!("Money, items, listings and purchases add up in all {} rounds.", outcomes.len());
    Ok(())
}

impl Round {
    fn name(&self) -> String {
        format!("{} x {}, {}", self.sellers, self.buyers, self.method.name())
    }

    async fn run(&self) -> Result<Outcome> {
        let auditor = Bare::connection(&url(self.port)).await?;
        let items = (ITEMS_PER_SECOND * self.length.as_secs_f64()) as usize;
        let market = Market::open(&auditor, self.sellers, self.buyers, items).await?;
        let clients = self.clients().await?;
        let outcome = self.trade(self.accesses(&market, &clients).await?).await?;
        for (client, _) in clients {
            client.shutdown().await?;
        }
        market.audit(&auditor, outcome.listed.done, outcome.bought.done).await?;
        market.close(&auditor).await?;
        Ok(outcome)
    }

    /// Each with the connection its traders work on.
    async fn clients(&self) -> Result<Vec<(Client, fred::clients::Client)>> {
        let mut clients = Vec::new();
        for _ in 0..self.clients {
            let url = url(self.port);
            clients.push((Client::connect(&url).await?, Bare::connection(&url).await?));
        }
        Ok(clients)
    }

    /// One for every trader, the sellers first.
    async fn accesses(
        &self,
        market: &Market,
        clients: &[(Client, fred::clients::Client)],
    ) -> Result<Vec<Access>> {
        let mut accesses = Vec::new();
        for trader in 0..self.sellers + self.buyers {
            let (client, shared) = &clients[trader % clients.len()];
            let (connection, exclusion) = match self.method {
                Method::Watch => (Bare::connection(&url(self.port)).await?, Exclusion::Watch),
                Method::OneLock => (shared.clone(), Exclusion::OneLock(client.mutex(&market.lock_name())?)),
                Method::LockPerItem => (shared.clone(), Exclusion::LockPerItem(client.clone())),
            };
            accesses.push(Access { market: market.clone(), connection, exclusion });
        }
        Ok(accesses)
    }

    async fn trade(&self, mut accesses: Vec<Access>) -> Result<Outcome> {
        let end = Instant::now() + self.length;
        let mut buyers = JoinSet::new();
        for (buyer, access) in accesses.split_off(self.sellers).into_iter().enumerate() {
            buyers.spawn(buy(access, buyer, end));
        }
        let mut sellers = JoinSet::new();
        for (seller, access) in accesses.into_iter().enumerate() {
            sellers.spawn(sell(access, seller, end));
        }
        Ok(Outcome { listed: total(sellers).await?, bought: total(buyers).await? })
    }
}

async fn sell(access: Access, seller: usize, end: Instant) -> Result<Tally> {
    let mut tally = Tally::new()?;
    for offer in access.market.offers_of(seller) {
        if Instant::now() >= end {
            return Ok(tally);
        }
        tally.wait(end, || access.list(&offer)).await?;
    }
    Err("a seller has nothing left to list".into())
}

async fn buy(access: Access, buyer: usize, end: Instant) -> Result<Tally> {
    let (mut tally, buyer) = (Tally::new()?, buyer_name(buyer));
    while Instant::now() < end {
        tally.wait(end, || access.buy(&buyer)).await?;
    }
    Ok(tally)
}

async fn total(mut traders: JoinSet<Result<Tally>>) -> Result<Tally> {
    let mut total = Tally::new()?;
    while let Some(trader) = traders.join_next().await {
        total.add(&trader??)?;
    }
    Ok(total)
}

impl Tally {
    fn new() -> Result<Self> {
        Ok(Self { done: 0, refused: 0, nothing_listed: 0, waits: Histogram::new(3)? })
    }

    /// Attempts until it is done or the round is over.
    async fn wait<F>(&mut self, end: Instant, attempt: impl Fn() -> F) -> Result<()>
    where
        F: Future<Output = Result<Attempt>>,
    {
        let wanted = Instant::now();
        loop {
            match attempt().await? {
                Attempt::Done => {
                    self.done += 1;
                    break;
                }
                Attempt::Refused => self.refused += 1,
                Attempt::NothingListed => self.nothing_listed += 1,
            }
            if Instant::now() >= end {
                break;
            }
        }
        Ok(self.waits.record(u64::try_from(wanted.elapsed().as_nanos())?)?)
    }

    fn add(&mut self, other: &Self) -> Result<()> {
        self.done += other.done;
        self.refused += other.refused;
        self.nothing_listed += other.nothing_listed;
        Ok(self.waits.add(&other.waits)?)
    }

    fn mean_ms(&self) -> f64 {
        self.waits.mean() / 1e6
    }

    fn p99_ms(&self) -> f64 {
        self.waits.value_at_quantile(0.99) as f64 / 1e6
    }
}

fn summary(outcomes: &[Outcome]) -> Table {
    let mut table = table([
        "sellers x buyers",
        "method",
        "listed",
        "bought",
        "refused",
        "nothing on sale",
        "list mean ms",
        "list p99 ms",
        "buy mean ms",
        "buy p99 ms",
    ]);
    let rounds = TRADERS.iter().flat_map(|traders| Method::ALL.map(|method| (traders, method)));
    for (((sellers, buyers), method), Outcome { listed, bought }) in rounds.zip(outcomes) {
        table.add_row([
            format!("{sellers} x {buyers}"),
            method.name().to_owned(),
            listed.done.to_string(),
            bought.done.to_string(),
            (listed.refused + bought.refused).to_string(),
            bought.nothing_listed.to_string(),
            format!("{:.2}", listed.mean_ms()),
            format!("{:.2}", listed.p99_ms()),
            format!("{:.2}", bought.mean_ms()),
            format!("{:.2}", bought.p99_ms()),
        ]);
    }
    table
}
