//! An instance of the program: a thread, or a process of its own.

use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::{env, fmt, panic};

use crate::{Failure, program};

/// The URL travels in the environment: command lines are public, and there may be a password in it.
const URL: &str = "LEASEHOLD_EXAMPLE_URL";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Works,
    RunsElsewhere,
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Works => "works",
            Self::RunsElsewhere => "runs elsewhere",
        })
    }
}

/// It says whether it works, and then works until it is to end.
#[derive(Debug)]
pub(crate) enum Instance {
    Thread { says: Receiver<Said>, end: Sender<()>, thread: JoinHandle<Result<(), Failure>> },
    Process { says: BufReader<ChildStdout>, process: Child },
}

impl Instance {
    pub(crate) fn start(url: &str) -> Result<Self, Failure> {
        if url == "memory:" {
            return Ok(Self::start_thread());
        }
        let mut command = Command::new(env::current_exe()?);
        command.env(URL, url).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn()?;
        let says = BufReader::new(process.stdout.take().ok_or(Failure::Silent)?);
        Ok(Self::Process { says, process })
    }

    fn start_thread() -> Self {
        let ((say, says), (end, ends)) = (channel(), channel());
        let thread = thread::spawn(move || {
            let said = program("memory:single-instance", |guard| {
                // The other side waits for it, and then ends this one.
                let _ = say.send(Said::Works);
                let _ = ends.recv();
                Ok(guard.check()?)
            })?;
            let _ = say.send(said);
            Ok(())
        });
        Self::Thread { says, end, thread }
    }

    /// What it says first.
    pub(crate) fn said(&mut self) -> Result<Said, Failure> {
        match self {
            Self::Thread { says, .. } => says.recv().map_err(|_| Failure::Silent),
            Self::Process { says, .. } => {
                let mut line = String::new();
                says.read_line(&mut line)?;
                [Said::Works, Said::RunsElsewhere]
                    .into_iter()
                    .find(|said| said.to_string() == line.trim_end())
                    .ok_or(Failure::Silent)
            }
        }
    }

    /// Has it end, and waits for it.
    pub(crate) fn ends(self) -> Result<(), Failure> {
        match self {
            Self::Thread { end, thread, .. } => {
                drop(end);
                thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
            }
            Self::Process { mut process, .. } => {
                // This also closes its input.
                let status = process.wait()?;
                if status.success() { Ok(()) } else { Err(Failure::Silent) }
            }
        }
    }
}

/// Where the lock is, if this process is an instance.
pub(crate) fn url_from_parent() -> Option<String> {
    env::var(URL).ok()
}

/// The main function of an instance. Its input ends when it is to end, or the process that has started it is gone.
pub(crate) fn run_as_a_process(url: &str) -> Result<(), Failure> {
    let said = program(url, |guard| {
        println!("{}", Said::Works);
        io::stdin().read_to_end(&mut Vec::new())?;
        Ok(guard.check()?)
    })?;
    if said == Said::RunsElsewhere {
        println!("{said}");
    }
    Ok(())
}
