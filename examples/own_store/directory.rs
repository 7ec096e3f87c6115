//! A store of leases in a directory: one file for each key, changed under an advisory lock of the operating system.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold::BackendError;
use leasehold::backend::{Capabilities, Effects, Ledger, LedgerStore, Stamp, Wakes};
use tokio::sync::oneshot;

/// How often a waiting client checks whether it has been served: nothing notifies it.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Keys share this many lock files, so that no key leaves one behind.
const LOCK_FILES: u32 = 64;
/// How long the store must be idle before unused records are removed.
const IDLE: Duration = Duration::from_secs(60);
/// File names may have 255 bytes, and each byte of a key takes two.
const MAX_KEY: usize = 120;

/// Leases of the processes of one machine that have agreed on a directory.
///
/// All of them must see the same time of day, so the directory must not be shared between machines, and the clock
/// should be adjusted slowly, as NTP does.
#[derive(Debug)]
pub(crate) struct Directory {
    path: Arc<Path>,
    jobs: Sender<Job>,
}

type Job = Box<dyn FnOnce() + Send>;

impl Directory {
    /// Opens the directory, which is created if it does not exist.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        fs::create_dir_all(path)?;
        // File operations block, and must be carried out in the order in which they were requested: a thread does
        // both.
        let (jobs, received) = channel::<Job>();
        let path = Arc::from(path);
        let directory = Arc::clone(&path);
        thread::Builder::new().name("directory".into()).spawn(move || work(&directory, &received))?;
        Ok(Self { path, jobs })
    }
}

impl LedgerStore for Directory {
    fn transact<T: Send + 'static>(
        &self,
        keys: &[Arc<str>],
        mut change: impl FnMut(usize, &mut Ledger, Stamp) -> (T, Effects) + Send + 'static,
    ) -> impl Future<Output = Result<Vec<T>, BackendError>> + Send {
        let (path, keys) = (Arc::clone(&self.path), keys.to_vec());
        let (answer, answered) = oneshot::channel();
        let job = move || {
            // One file after another: changing several at once would cost as much.
            let changes = keys
                .iter()
                .enumerate()
                .map(|(n, key)| transaction(&path, key, |ledger, stamp| change(n, ledger, stamp)));
            // If the future is dropped, nobody waits for the answer.
            drop(answer.send(changes.collect()));
        };
        let sent = self.jobs.send(Box::new(job)).map_err(|_| BackendError::Closed);
        async move {
            sent?;
            answered.await.unwrap_or_else(|gone| Err(BackendError::Unanswered { source: gone.into() }))
        }
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new(format!("directory:{}", self.path.display()));
        capabilities.wakes = Wakes::Polled(POLL_INTERVAL);
        // The whole queue is in the record.
        capabilities.constant_work = false;
        capabilities
    }
}

/// Carries out requests until the store is dropped.
fn work(directory: &Path, jobs: &Receiver<Job>) {
    loop {
        match jobs.recv_timeout(IDLE) {
            Ok(job) => job(),
            Err(RecvTimeoutError::Disconnected) => return,
            // What cannot be removed now can be later.
            Err(RecvTimeoutError::Timeout) => drop(remove_unused(directory)),
        }
    }
}

/// Removes records whose leases and limits have expired, which no release has done.
pub(crate) fn remove_unused(directory: &Path) -> io::Result<()> {
    let mut outcome = Ok(());
    for record in fs::read_dir(directory)? {
        let record = record?.file_name();
        if let Some(key) = record.to_str().and_then(key_of) {
            let removed = transaction(directory, &key, |_, _| ((), Effects::default()));
            // One that cannot be read must not keep the others.
            outcome = outcome.and(removed.map_err(io::Error::other));
        }
    }
    outcome
}

/// Changes the record of a key while no other process does.
fn transaction<T>(
    directory: &Path,
    key: &str,
    mut change: impl FnMut(&mut Ledger, Stamp) -> (T, Effects),
) -> Result<T, BackendError> {
    if key.len() > MAX_KEY {
        let source = format!("a key of {} bytes is too long for a file name", key.len()).into();
        return Err(BackendError::Refused { source });
    }
    let record = directory.join(file_name(key));
    let _locked = lock(directory, key).map_err(not_done)?;
    let mut ledger = read(&record)?;
    let stamp = now();
    // Events for other clients are dropped: those clients poll.
    let (outcome, _) = change(&mut ledger, stamp);
    // A record that is not in use may go if all numbers that it issued are below the clock, which later ones start
    // from.
    if ledger.is_in_use(stamp) || ledger.last_number() >= stamp.floor {
        write(&record, &ledger).map_err(not_done)?;
    } else if let Err(error) = fs::remove_file(&record)
        && error.kind() != ErrorKind::NotFound
    {
        return Err(not_done(error));
    }
    Ok(outcome)
}

/// Takes a lock that is released when the file is closed, also by the end of the process.
#[expect(clippy::incompatible_msrv, reason = "locks of files are newer than what the crate itself needs")]
fn lock(directory: &Path, key: &str) -> io::Result<File> {
    let number = key.bytes().map(u32::from).sum::<u32>() % LOCK_FILES;
    let file = File::create(directory.join(format!("{number}.lock")))?;
    file.lock()?;
    Ok(file)
}

fn read(record: &Path) -> Result<Ledger, BackendError> {
    match fs::read_to_string(record) {
        Ok(text) => text.parse().map_err(|_| BackendError::WrongType {
            source: format!("{} is not a record of leases", record.display()).into(),
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Ledger::default()),
        Err(error) => Err(not_done(error)),
    }
}

/// Replaces the record as a whole: a process that is killed here leaves the old one.
fn write(record: &Path, ledger: &Ledger) -> io::Result<()> {
    let new = record.with_extension("new");
    fs::write(&new, ledger.to_string())?;
    fs::rename(&new, record)
}

/// A time that all processes share, and numbers that increase even if all files are lost.
fn now() -> Stamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let micros = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
    Stamp::new(micros, micros, micros)
}

fn not_done(error: io::Error) -> BackendError {
    BackendError::NotSent { source: error.into() }
}

fn file_name(key: &str) -> PathBuf {
    let hex = key.bytes().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    });
    PathBuf::from(hex + ".leases")
}

/// The key whose record has this name. `None` if it is another file.
fn key_of(file_name: &str) -> Option<String> {
    let hex = file_name.strip_suffix(".leases")?.as_bytes().chunks(2);
    let bytes = hex.map(|byte| u8::from_str_radix(std::str::from_utf8(byte).ok()?, 16).ok());
    String::from_utf8(bytes.collect::<Option<_>>()?).ok()
}
