//! Worker processes: copies of this benchmark, all started at the same time, each sending a report.
//!
//! A worker says that it is ready, waits for the signal to start, writes its report to its standard output and ends. It
//! also ends when the process that started it ends, for any reason.

use std::env;
use std::io;
use std::process::Stdio;
use std::thread;

use futures::future::try_join_all;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::oneshot;

use super::Result;

const READY: &str = "ready\n";

/// The worker's side: says that it is ready and waits for the signal.
pub(crate) async fn ready() -> Result<()> {
    let told = wait_for_go();
    let mut out = tokio::io::stdout();
    out.write_all(READY.as_bytes()).await?;
    out.flush().await?;
    Ok(told.await?)
}

/// The worker's side: sends the report.
pub(crate) async fn report(bytes: &[u8]) -> Result<()> {
    let mut out = tokio::io::stdout();
    out.write_all(bytes).await?;
    Ok(out.flush().await?)
}

/// Receives the signal to start. This process ends when its standard input does.
fn wait_for_go() -> oneshot::Receiver<()> {
    let (go, told) = oneshot::channel();
    thread::spawn(move || {
        let mut line = String::new();
        if io::stdin().read_line(&mut line).is_ok_and(|read| read > 0) {
            // If nobody waits for it, the worker has failed and ends anyway.
            let _ = go.send(());
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
        }
        std::process::exit(1);
    });
    told
}

/// All workers of one measurement. Killed when dropped.
pub(crate) struct Workers {
    workers: Vec<Worker>,
}

struct Worker {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Workers {
    /// Starts one worker for each list of arguments, and waits until all are ready.
    pub(crate) async fn start(args: impl IntoIterator<Item = Vec<String>>) -> Result<Self> {
        Ok(Self { workers: try_join_all(args.into_iter().map(Worker::start)).await? })
    }

    /// Gives the signal.
    pub(crate) async fn go(&mut self) -> Result<()> {
        for worker in &mut self.workers {
            worker.input.write_all(b"go\n").await?;
        }
        Ok(())
    }

    /// The reports, when all have ended.
    pub(crate) async fn reports(self) -> Result<Vec<Vec<u8>>> {
        try_join_all(self.workers.into_iter().map(Worker::report)).await
    }
}

impl Worker {
    async fn start(args: Vec<String>) -> Result<Self> {
        let mut command = Command::new(env::current_exe()?);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn()?;
        let input = child.stdin.take().ok_or("stdin was piped")?;
        let mut output = BufReader::new(child.stdout.take().ok_or("stdout was piped")?);
        let mut line = String::new();
        output.read_line(&mut line).await?;
        if line == READY { Ok(Self { child, input, output }) } else { Err("a worker did not start".into()) }
    }

    async fn report(mut self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.output.read_to_end(&mut bytes).await?;
        let status = self.child.wait().await?;
        if status.success() { Ok(bytes) } else { Err(format!("a worker failed: {status}").into()) }
    }
}
