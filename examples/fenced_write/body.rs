//! What a writer runs in: a thread with a runtime of its own, or a process.

use std::io;
use std::process::Stdio;
use std::thread;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use crate::failure::Failure;
use crate::process::{self, Process};
use crate::store::Store;
use crate::writer::Writer;

#[derive(Debug)]
pub(crate) enum Body {
    Thread(oneshot::Receiver<Result<(), Failure>>),
    Process(Box<Process>),
}

impl Body {
    pub(crate) fn start(store: &Store, writer: Writer) -> Result<Self, Failure> {
        match store {
            Store::Memory(_) => Ok(Self::Thread(start_thread(store.clone(), writer))),
            Store::Server(url) => {
                let process = Process::start(process::command(url)?.args(writer.args()))?;
                Ok(Self::Process(Box::new(process)))
            }
        }
    }

    /// Its process id, if it is a process.
    pub(crate) fn process_id(&self) -> Option<u32> {
        match self {
            Self::Thread(_) => None,
            Self::Process(process) => process.child.id(),
        }
    }

    pub(crate) async fn ended(self) -> Result<(), Failure> {
        match self {
            Self::Thread(outcome) => {
                outcome.await.unwrap_or_else(|_| Err(io::Error::other("a writer panicked").into()))
            }
            Self::Process(mut process) => match process.ended().await? {
                status if status.success() => Ok(()),
                status => Err(Failure::Ended(status)),
            },
        }
    }
}

/// A thread that blocks runs nothing else: no renewal, no timer.
fn start_thread(store: Store, writer: Writer) -> oneshot::Receiver<Result<(), Failure>> {
    let (done, outcome) = oneshot::channel();
    thread::spawn(move || {
        let work = async { writer.work(store.client().await?).await };
        let runtime = Builder::new_current_thread().enable_all().build();
        let ended = runtime.map_err(Failure::from).and_then(|runtime| runtime.block_on(work));
        let _ = done.send(ended); // the receiver is gone only if the story has failed
    });
    outcome
}

/// Stops a process, waits for permission to continue it, and also continues it if that can no longer come.
const KEEPER: &str = "trap '' INT TERM; kill -s STOP $1 && echo stopped && read -r _; kill -s CONT $1";

/// A process that is stopped. Continued when this is dropped, and also if this program is killed meanwhile.
#[derive(Debug)]
pub(crate) struct Pause {
    keeper: Child,
}

impl Pause {
    pub(crate) async fn of(process_id: u32) -> io::Result<Self> {
        let mut keeper = Command::new("sh")
            .args(["-c", KEEPER, "keeper", &process_id.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = keeper.stdout.take().ok_or_else(|| io::Error::other("the keeper has no output"))?;
        match BufReader::new(stdout).lines().next_line().await? {
            Some(_) => Ok(Self { keeper }),
            None => Err(io::Error::other(format!("process {process_id} could not be stopped"))),
        }
    }

    /// Waits until the process runs again.
    pub(crate) async fn end(mut self) -> io::Result<()> {
        if let Some(mut leave) = self.keeper.stdin.take() {
            leave.write_all(b"\n").await?;
        }
        self.keeper.wait().await.map(drop)
    }
}
