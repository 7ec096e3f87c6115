//! A custom store: a directory of files shared by the processes of one machine. Nothing needs to be installed.
//!
//! ```text
//! cargo run --release --example own_store
//! cargo run --release --example own_store -- --directory /tmp/leases --processes 8 --rounds 200
//! ```
//!
//! Several processes repeatedly add one to a number in a file: they read it, and write it back. Without a lock, most
//! of these updates would be lost. The last line of the output is `own_store: OK: ...`, with the time taken; the exit
//! status is 1 if the number is wrong.
//!
//! A store has to do little: [`LedgerStore`](leasehold::backend::LedgerStore) asks it to change one record as a
//! whole. [`Ledger`](leasehold::backend::Ledger) defines what the record says and how it changes, and
//! [`LedgerBackend`](leasehold::backend::LedgerBackend) makes a complete store of the two: queues, owners, permits,
//! tokens. To write one for your database, read `own_store/directory.rs`, and run the contract's tests on your store
//! as at the end of this file.

#[path = "own_store/directory.rs"]
mod directory;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Instant;
use std::{env, fs, process};

use clap::Parser;
use leasehold::backend::LedgerBackend;
use leasehold::{BoxError, Client};

use crate::directory::Directory;

#[derive(Debug, Parser)]
struct Options {
    /// Where the leases are kept; by default, a new directory that is removed at the end
    #[arg(long)]
    directory: Option<PathBuf>,
    /// How many processes share it
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    processes: u32,
    /// How often each of them adds one
    #[arg(long, default_value_t = 50)]
    rounds: u32,
    /// The file with the number, for one of the processes
    #[arg(long, hide = true)]
    add_to: Option<PathBuf>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let outcome = match &options.add_to {
        Some(number) => add(&options, number),
        None => share(&options),
    };
    outcome.map_or_else(
        |error| {
            eprintln!("own_store: {error}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

/// Starts the processes, and checks the resulting number.
fn share(options: &Options) -> Result<(), BoxError> {
    let own = env::temp_dir().join(format!("own_store-{}", process::id()));
    let directory = options.directory.as_deref().unwrap_or(&own);
    fs::create_dir_all(directory)?;
    let number = directory.join("number");
    fs::write(&number, "0")?;
    let began = Instant::now();
    let start = |_| {
        let mut process = Command::new(env::current_exe()?);
        process.arg("--directory").arg(directory).arg("--add-to").arg(&number);
        process.args(["--rounds", &options.rounds.to_string()]).spawn()
    };
    let processes: Vec<_> = (0..options.processes).map(start).collect::<Result<_, _>>()?;
    let mut failed = 0;
    for mut process in processes {
        failed += u32::from(!process.wait()?.success());
    }
    let (found, expected) = (read(&number)?, u64::from(options.processes) * u64::from(options.rounds));
    fs::remove_file(&number)?;
    if options.directory.is_none() {
        fs::remove_dir_all(&own)?;
    }
    if failed > 0 || found != expected {
        return Err(
            format!("{failed} processes failed, and the number is {found} instead of {expected}").into()
        );
    }
    println!("own_store: OK: {} processes counted to {found} in {:.1?}", options.processes, began.elapsed());
    Ok(())
}

/// Adds one again and again, under a lock.
#[tokio::main]
async fn add(options: &Options, number: &Path) -> Result<(), BoxError> {
    let directory = options.directory.as_deref().ok_or("--directory is missing")?;
    let client = Client::with_backend(Arc::new(LedgerBackend::on(Directory::open(directory)?)));
    let mutex = client.mutex("number")?;
    for _ in 0..options.rounds {
        let guard = mutex.lock().await?;
        fs::write(number, (read(number)? + 1).to_string())?;
        guard.release().await?;
    }
    Ok(client.shutdown().await?)
}

fn read(number: &Path) -> Result<u64, BoxError> {
    Ok(fs::read_to_string(number)?.parse()?)
}

#[cfg(all(test, feature = "conformance"))]
mod tests {
    use std::time::Duration;

    use futures::FutureExt;
    use futures::future::BoxFuture;
    use leasehold::backend::Backend;
    use leasehold::backend::conformance::{self, Harness};

    use super::*;

    struct InDirectory(PathBuf);

    impl Harness for InDirectory {
        fn client(&self) -> BoxFuture<'_, Arc<dyn Backend>> {
            let store = Directory::open(&self.0).expect("the directory can be used");
            async { Arc::new(LedgerBackend::on(store)) as Arc<dyn Backend> }.boxed()
        }

        fn lose_data(&self) -> BoxFuture<'_, ()> {
            for file in fs::read_dir(&self.0).expect("the directory can be read") {
                fs::remove_file(file.expect("an entry").path()).expect("a file");
            }
            async {}.boxed()
        }

        fn work(&self) -> BoxFuture<'_, u64> {
            unreachable!("it does not claim that its work is constant")
        }

        // The disk may be busy.
        fn slack(&self) -> Duration {
            Duration::from_secs(5)
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn it_keeps_the_contract() {
        let directory = env::temp_dir().join(format!("own_store-test-{}", process::id()));
        conformance::run_all(&InDirectory(directory.clone())).await;
        // A semaphore's limit stays in force for two TTLs, and the tests use leases of up to 20 times the shortest.
        let deadline = Instant::now() + InDirectory(directory.clone()).ttl() * 60;
        let mut left = records(&directory);
        while !left.is_empty() {
            assert!(Instant::now() < deadline, "left behind: {left:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
            directory::remove_unused(&directory).expect("the directory can be read");
            left = records(&directory);
        }
        fs::remove_dir_all(directory).expect("no process uses it now");
    }
    /// What is in the directory, without its lock files.
    fn records(directory: &Path) -> Vec<std::ffi::OsString> {
        let files = fs::read_dir(directory).expect("the directory can be read");
        let names = files.map(|file| file.expect("an entry").file_name());
        names.filter(|name| !name.to_string_lossy().ends_with(".lock")).collect()
    }
}
