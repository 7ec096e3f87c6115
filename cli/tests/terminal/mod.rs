//! A real terminal: a tmux of its own, in which the program runs under a shell.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::PROGRAM;
use leasehold_support::redis::REQUIRE;
use leasehold_support::say;

/// The pause between two looks: tmux does not tell of changes.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Clock ticks a second in `/proc`, on all common systems.
const TICKS: f64 = 100.0;

/// One window. Killed when dropped.
pub(crate) struct Terminal {
    directory: TempDir,
}

impl Terminal {
    /// A window of this size in which the program runs with these arguments; then its status is shown, and how the
    /// terminal is set. `None` if this machine has no tmux.
    #[track_caller]
    pub(crate) fn start(
        url: &str,
        args: &str,
        variables: &[(&str, &str)],
        width: u16,
        height: u16,
    ) -> Option<Self> {
        if Command::new("tmux").arg("-V").output().is_err() {
            assert!(std::env::var_os(REQUIRE).is_none_or(|value| value != "1"), "no tmux for: {args}");
            say(&format!("\nLEFT OUT: {args} in a terminal: no tmux\n"));
            return None;
        }
        let directory =
            tempfile::Builder::new().prefix("leasehold-").tempdir().expect("room for a directory");
        let mut script =
            format!("export LEASEHOLD_URL='{url}'\nunset NO_COLOR LEASEHOLD_CONFIG LEASEHOLD_LABEL\n");
        for (name, value) in variables {
            script += &format!("export {name}='{value}'\n");
        }
        script += &format!("'{PROGRAM}' {args}\necho \"status $?\"\n");
        script += "echo \"terminal: $(stty -a | grep -o -- '-*icanon')\"\nexec sleep 1000\n";
        let file = directory.path().join("script");
        fs::write(&file, script).expect("the directory is writable");
        let terminal = Self { directory };
        let (width, height) = (width.to_string(), height.to_string());
        let shell = format!("sh '{}'", file.display());
        let output = terminal.tmux(&["new-session", "-d", "-x", &width, "-y", &height, &shell]);
        assert!(output.status.success(), "{output:?}");
        Some(terminal)
    }

    fn tmux(&self, args: &[&str]) -> Output {
        let socket: PathBuf = self.directory.path().join("tmux");
        let mut command = Command::new("tmux");
        command.arg("-f").arg("/dev/null").arg("-S").arg(socket).args(args);
        command.env_remove("TMUX").env("LC_ALL", "C.UTF-8").current_dir(self.directory.path());
        command.output().expect("tmux starts")
    }

    fn text_of(&self, args: &[&str]) -> String {
        String::from_utf8_lossy(&self.tmux(args).stdout).into_owned()
    }

    /// What the window shows.
    pub(crate) fn text(&self) -> String {
        self.text_of(&["capture-pane", "-p"])
    }

    /// The same, with the codes for colors.
    pub(crate) fn colored(&self) -> String {
        self.text_of(&["capture-pane", "-p", "-e"])
    }

    /// What the window shows as soon as this is true of it.
    #[track_caller]
    pub(crate) fn until(
        &self,
        deadline: Duration,
        is_right: impl Fn(&str) -> bool,
    ) -> impl Future<Output = String> {
        let caller = std::panic::Location::caller();
        async move {
            let end = Instant::now() + deadline;
            loop {
                let text = self.text();
                if is_right(&text) {
                    return text;
                }
                assert!(Instant::now() < end, "not within {deadline:?}, at {caller}:\n{text}");
                sleep(LOOK_AGAIN).await;
            }
        }
    }

    /// Presses keys, called as tmux does.
    pub(crate) fn send(&self, keys: &[&str]) {
        for key in keys {
            assert!(self.tmux(&["send-keys", key]).status.success(), "{key}");
        }
    }

    pub(crate) fn resize(&self, width: u16, height: u16) {
        let (width, height) = (width.to_string(), height.to_string());
        let output = self.tmux(&["resize-window", "-x", &width, "-y", &height]);
        assert!(output.status.success(), "{output:?}");
    }

    /// The process of the program, which is the only child of the shell.
    fn process(&self) -> String {
        let shell = self.text_of(&["display-message", "-p", "#{pane_pid}"]).trim().to_owned();
        let children = fs::read_to_string(format!("/proc/{shell}/task/{shell}/children")).expect("it runs");
        children.trim().to_owned()
    }

    /// Sends a signal to the program.
    pub(crate) fn signal(&self, signal: &str) {
        let status =
            Command::new("kill").args(["-s", signal, &self.process()]).status().expect("kill starts");
        assert!(status.success());
    }

    /// How much time of a processor the program has used so far.
    pub(crate) fn cpu_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process())).expect("it runs");
        // The program's name is in brackets; the times are the 12th and 13th field behind it.
        let rest = stat.rsplit(')').next().expect("a name in brackets");
        let ticks = |n| rest.split_whitespace().nth(n).and_then(|ticks: &str| ticks.parse::<f64>().ok());
        let used = ticks(11).zip(ticks(12)).map(|(user, system)| user + system).expect("numbers");
        Duration::from_secs_f64(used / TICKS)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}
