//! What a worker writes down when it happens, one line each, in a file of its own: the system keeps what was written
//! when the worker is killed.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use leasehold_torture::history::{Event, HoldId, Micros, What};

use crate::clock::now;

/// The log of this process.
#[derive(Clone, Debug)]
pub(crate) struct Log(Arc<File>);

impl Log {
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        Ok(Self(Arc::new(OpenOptions::new().create_new(true).append(true).open(path)?)))
    }

    /// Something happened just now, or is about to.
    pub(crate) fn event(&self, hold: HoldId, what: What) {
        self.event_at(now(), hold, what);
    }

    pub(crate) fn event_at(&self, at: Micros, hold: HoldId, what: What) {
        self.line(&Event { at, hold, what }.to_string());
    }

    /// A call failed.
    pub(crate) fn error(&self, what: &str, error: &leasehold::Error) {
        let text = error.to_string().replace(['\n', '\t'], " ");
        self.line(&format!("error {what}: {}\t{text}", error.kind().as_str()));
    }

    /// This process did not run, though it should have.
    pub(crate) fn late(&self, from: Micros, to: Micros) {
        self.line(&format!("late {from} {to}"));
    }

    /// What this process uses.
    pub(crate) fn uses(&self, tasks: usize, descriptors: usize) {
        self.line(&format!("uses {tasks} {descriptors}"));
    }

    /// How much memory is in use now, in bytes.
    pub(crate) fn memory(&self, bytes: usize) {
        self.line(&format!("memory {} {bytes}", now()));
    }

    /// In one call, so that it is there whole or not at all.
    fn line(&self, line: &str) {
        let written = (&*self.0).write_all(format!("{line}\n").as_bytes());
        written.expect("the file of events is writable");
    }
}

/// How many samples of memory are compared with as many.
const SAMPLES: usize = 20;

/// What a worker wrote down.
#[derive(Debug, Default)]
pub(crate) struct Read {
    pub(crate) events: Vec<Event>,
    pub(crate) late: Vec<(Micros, Micros)>,
    /// How often calls failed, by their kind, and how one of them did.
    pub(crate) errors: BTreeMap<String, (usize, String)>,
    /// Tasks and descriptors before the first client, and after the last one, if the worker lived to see it.
    pub(crate) uses: Vec<(u64, u64)>,
    /// How much memory it used when, in bytes.
    pub(crate) memory: Vec<(Micros, u64)>,
}

impl Read {
    pub(crate) fn of(path: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut read = Self::default();
        // A last line without an end is one that the worker was killed in.
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            read.line(line).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        Ok(read)
    }

    /// The most memory in the first third of the worker's time, and in the last one, if these are long enough to
    /// compare.
    pub(crate) fn peaks(&self) -> Option<(u64, u64)> {
        let third = self.memory.len() / 3;
        let peak = |samples: &[(Micros, u64)]| samples.iter().map(|(_, bytes)| *bytes).max();
        let first = peak(&self.memory[..third])?;
        (third >= SAMPLES).then_some(first).zip(peak(&self.memory[2 * third..]))
    }

    fn line(&mut self, line: &str) -> Result<(), String> {
        let wrong = || format!("not a line of a worker: {line:?}");
        match line.split_once(' ') {
            Some(("late", span)) => self.late.push(pair(span).ok_or_else(wrong)?),
            Some(("uses", counts)) => self.uses.push(pair(counts).ok_or_else(wrong)?),
            Some(("memory", sample)) => self.memory.push(pair(sample).ok_or_else(wrong)?),
            Some(("error", error)) => {
                let (kind, text) = error.split_once('\t').ok_or_else(wrong)?;
                self.errors.entry(kind.to_owned()).or_insert_with(|| (0, text.to_owned())).0 += 1;
            }
            _ => self.events.push(line.parse().map_err(|error| format!("{error}"))?),
        }
        Ok(())
    }
}

fn pair(text: &str) -> Option<(u64, u64)> {
    let (one, other) = text.split_once(' ')?;
    Some((one.parse().ok()?, other.parse().ok()?))
}
