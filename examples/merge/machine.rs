//! The parts of the record: what this machine says about itself.

use std::env;
use std::process;
use std::thread;

/// Name and file of every part.
const PARTS: [(&str, &str); 8] = [
    ("hostname", "/proc/sys/kernel/hostname"),
    ("cpuinfo", "/proc/cpuinfo"),
    ("meminfo", "/proc/meminfo"),
    ("mounts", "/proc/mounts"),
    ("net/dev", "/proc/net/dev"),
    ("loadavg", "/proc/loadavg"),
    ("uptime", "/proc/uptime"),
    ("version", "/proc/version"),
];

/// Machines with many processors or mounts have much to say; this much is kept of it.
const MAX_LINES: usize = 60;

/// Reads one part, in turn, as it is now.
pub(crate) async fn part(turn: u32) -> (&'static str, String) {
    let (name, file) = PARTS[turn as usize % PARTS.len()];
    match tokio::fs::read_to_string(file).await {
        Ok(text) => (name, text.lines().take(MAX_LINES).collect::<Vec<_>>().join("\n")),
        Err(_) => ("process", process_facts()), // not Linux
    }
}

/// What every platform can tell.
fn process_facts() -> String {
    let (os, arch, id) = (env::consts::OS, env::consts::ARCH, process::id());
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let program = env::current_exe().unwrap_or_default();
    format!("system {os} {arch}\nprocessors {processors}\nprocess {id}\nprogram {}", program.display())
}
