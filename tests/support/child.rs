//! Child processes that end with the test process, however that ends, and ports for them.

use std::collections::hash_map::RandomState;
use std::ffi::OsStr;
use std::fs;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Becomes the program, and leaves a watcher behind that reads the pipe to the test process: a line means that
/// the program was stopped in an orderly way, the end of the pipe that the test process is gone.
const SCRIPT: &str = r#"exec 3<&0
(read -r _ <&3 || { kill -9 $$; [ -z "$LEASEHOLD_CHILD_DIR" ] || rm -rf "$LEASEHOLD_CHILD_DIR"; }) >/dev/null 2>&1 &
exec "$@" </dev/null 3<&-"#;

/// In the program's environment, names a directory that goes with the test process as well.
pub const CHILD_DIR: &str = "LEASEHOLD_CHILD_DIR";

/// A running program. Killed when dropped, also if it is stopped by a signal.
#[derive(Debug)]
pub struct ChildProcess {
    child: Child,
}

impl ChildProcess {
    /// Starts `program` with `args`; `prepare` may add to the command, such as its environment or its output.
    pub fn start<I, S>(program: &OsStr, args: I, prepare: impl FnOnce(&mut Command)) -> Self
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        let mut command = Command::new("sh");
        command.arg("-c").arg(SCRIPT).arg("child").arg(program).args(args);
        prepare(&mut command);
        let child = command.stdin(Stdio::piped()).spawn().expect("sh starts");
        Self { child }
    }

    /// The program's own process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn take_stdout(&mut self) -> ChildStdout {
        self.child.stdout.take().expect("stdout was piped and is taken once")
    }

    /// Whether the program still runs, or is paused.
    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().expect("a child can be asked").is_none()
    }

    /// SIGSTOP: nothing of the program runs until [`resume`](Self::resume). Waits until it has stopped: the signal
    /// reaches one of its threads, which stops the others, and on a busy machine that takes a while.
    pub fn pause(&self) {
        self.signal("STOP");
        let (threads, begin) = (format!("/proc/{}/task", self.pid()), Instant::now());
        while Path::new(&threads).exists() && !stand_still(&threads).unwrap_or(false) {
            assert!(begin.elapsed() < STOP_TIMEOUT, "it does not stop");
            sleep(Duration::from_micros(200));
        }
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.signal("CONT");
    }

    /// SIGQUIT, and waits until the program is gone.
    pub fn quit(&mut self) {
        self.signal("QUIT");
        self.wait();
    }

    /// SIGKILL, and waits until the program is gone.
    pub fn kill(&mut self) -> ExitStatus {
        // An error means that it is gone already.
        let _ = self.child.kill();
        self.wait()
    }

    /// Waits until the program ends by itself.
    pub fn wait(&mut self) -> ExitStatus {
        // `Child::wait` would close the pipe first, and the watcher would take that for our end.
        let mut pipe = self.child.stdin.take();
        let status = self.child.wait().expect("a child can be waited for");
        if let Some(pipe) = &mut pipe {
            let _ = pipe.write_all(b"\n");
        }
        status
    }

    fn signal(&self, signal: &str) {
        let pid = self.pid().to_string();
        let status = Command::new("kill").args(["-s", signal, &pid]).status().expect("kill starts");
        assert!(status.success(), "SIG{signal} was delivered to {pid}");
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A port of 127.0.0.1 on which nobody listens now. It is not one of those that the system gives to connections, so
/// that a server that is restarted finds it free.
pub fn free_port() -> u16 {
    free_port_below(32_000)
}

pub fn free_port_below(limit: u16) -> u16 {
    const FIRST: u16 = 10_000;
    loop {
        let random = RandomState::new().build_hasher().finish();
        let port = FIRST + u16::try_from(random % u64::from(limit - FIRST)).expect("less than the limit");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Whether every thread listed in the directory `threads` is stopped; an error if one ends meanwhile.
fn stand_still(threads: &str) -> io::Result<bool> {
    for thread in fs::read_dir(threads)? {
        let stat = fs::read_to_string(thread?.path().join("stat"))?;
        // The state follows the program's name, which is in brackets.
        if !stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T')) {
            return Ok(false);
        }
    }
    Ok(true)
}
