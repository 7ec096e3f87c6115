//! Transfers between accounts, each under the locks of both: none deadlocks, although they name the accounts in any
//! order, and no money is made or lost. An audit excludes all transfers by the write lock of a lock that they hold for
//! reading.
//!
//! ```sh
//! cargo run --release --example transfer
//! cargo run --release --example transfer -- --url redis://127.0.0.1:6379
//! ```

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use clap::Parser;
use leasehold::{Client, Error};
use tokio::task::JoinSet;
use tokio::time::timeout;

const ACCOUNTS: usize = 5;
const WORKERS: usize = 10;
const EACH: i64 = 100;
/// How long all of it may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// Transfers money between accounts under the locks of both.
#[derive(Parser)]
struct Arguments {
    /// The store of the locks.
    #[arg(long, default_value = "memory:")]
    url: String,
    /// How many transfers each of ten workers makes.
    #[arg(long, default_value_t = 50)]
    transfers: usize,
}

type Accounts = Arc<[AtomicI64; ACCOUNTS]>;

/// Reads both balances, and writes them later: without the locks, another transfer would come in between.
async fn transfer(client: &Client, accounts: &Accounts, from: usize, to: usize) -> Result<(), Error> {
    // Anybody may transfer while nobody audits.
    let _no_audit = client.rw_lock("example:audit")?.read().await?;
    let both =
        client.lock_all([from, to].map(|account| format!("example:account:{account}")))?.lock().await?;
    let [payer, payee] = [from, to].map(|account| accounts[account].load(Ordering::SeqCst));
    tokio::task::yield_now().await;
    if from != to {
        accounts[from].store(payer - 1, Ordering::SeqCst);
        accounts[to].store(payee + 1, Ordering::SeqCst);
    }
    Ok(both.release().await?)
}

/// The sum of all accounts, while nobody transfers.
async fn audit(client: &Client, accounts: &Accounts) -> Result<i64, Error> {
    let audit = client.rw_lock("example:audit")?.write().await?;
    let mut sum = 0;
    for account in accounts.iter() {
        sum += account.load(Ordering::SeqCst);
        tokio::task::yield_now().await;
    }
    audit.release().await?;
    Ok(sum)
}

async fn run(Arguments { url, transfers }: Arguments) -> Result<bool, Error> {
    let (client, accounts) = (Client::connect(&url).await?, Accounts::default());
    accounts.iter().for_each(|account| account.store(EACH, Ordering::SeqCst));
    let mut workers = JoinSet::new();
    for worker in 0..WORKERS {
        let (client, accounts) = (client.clone(), Arc::clone(&accounts));
        workers.spawn(async move {
            let mut is_right = true;
            for turn in 0..transfers {
                transfer(&client, &accounts, (worker + turn) % ACCOUNTS, (worker * turn) % ACCOUNTS).await?;
                if turn % 10 == 0 {
                    is_right &= audit(&client, &accounts).await? == EACH * ACCOUNTS as i64;
                }
            }
            Ok::<_, Error>(is_right)
        });
    }
    let mut are_right = true;
    for is_right in workers.join_all().await {
        are_right &= is_right?;
    }
    let sum = audit(&client, &accounts).await?;
    println!(
        "{} transfers by {WORKERS} workers: {sum} before and after, in every audit: {are_right}",
        WORKERS * transfers
    );
    client.shutdown().await?;
    Ok(are_right && sum == EACH * ACCOUNTS as i64)
}

#[tokio::main]
async fn main() -> ExitCode {
    match timeout(PATIENCE, run(Arguments::parse())).await {
        Ok(Ok(true)) => return ExitCode::SUCCESS,
        Ok(Ok(false)) => eprintln!("money was made or lost"),
        Ok(Err(error)) => eprintln!("{error}"),
        Err(_) => eprintln!("not done within {PATIENCE:?}: a deadlock?"),
    }
    ExitCode::FAILURE
}
