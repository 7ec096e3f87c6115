//! A time of day that a test can shift, for one process or several: a server's, a worker's.
//!
//! It is a small library that is loaded before libc and adds an offset; the monotonic clock stays as it is.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use super::preload::{compile, leave_out, new_path};
use super::resp::Raw;

const SOURCE: &str = include_str!("clock.c");
/// Tells the library where the offset is.
const OFFSET: &str = "LEASEHOLD_CLOCK";

/// A clock, and the processes that live by it. Clones are one clock.
#[derive(Clone, Debug)]
pub struct Clock(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    library: &'static Path,
    path: PathBuf,
    file: File,
    /// In microseconds.
    offset: Mutex<i64>,
}

impl Clock {
    /// A clock that is right until it is shifted, or `None` where there can be none: then standard error tells what
    /// was left out. With `LEASEHOLD_REQUIRE_SERVERS=1` the test fails instead.
    ///
    /// ```ignore
    /// let Some(clock) = Clock::new_or_skip("skewed clocks") else { return };
    /// let Some(server) = RedisServer::start_with_or_skip("skewed clocks", Setup::under(&clock)) else { return };
    /// let worker = Worker::start_under(&clock, "skewed_worker", &server.url());
    /// clock.shift(Duration::from_secs(31));
    /// ```
    #[track_caller]
    pub fn new_or_skip(left_out: &str) -> Option<Self> {
        static LIBRARY: LazyLock<Result<PathBuf, String>> = LazyLock::new(|| compile("clock", SOURCE));
        match &*LIBRARY {
            Ok(library) => Some(Self::new(library)),
            Err(why) => {
                leave_out(left_out, why);
                None
            }
        }
    }

    fn new(library: &'static Path) -> Self {
        let path = new_path("clock", "offset");
        let file = File::create_new(&path).expect("the directory for temporary files is writable");
        let clock = Self(Arc::new(Shared { library, path, file, offset: Mutex::default() }));
        clock.change(|_| 0);
        clock
    }

    /// What a process needs in its environment to live by this clock, also the processes it starts.
    pub fn environment(&self) -> [(OsString, OsString); 2] {
        [("LD_PRELOAD".into(), self.0.library.into()), (OFFSET.into(), self.0.path.clone().into())]
    }

    /// Lets time jump ahead.
    pub fn shift(&self, by: Duration) {
        self.change(|offset| offset + micros(by));
    }

    /// Sets the clock back.
    pub fn set_back(&self, by: Duration) {
        self.change(|offset| offset - micros(by));
    }

    /// Waits until a server that lives by this clock goes by it: Valkey looks at its clock once in a millisecond or
    /// two.
    pub fn is_followed_by(&self, server: &mut Raw) {
        let tolerance = micros(Duration::from_secs(5));
        let end = Instant::now() + Duration::from_secs(5);
        loop {
            let time: Vec<i64> =
                server.send(&["TIME"]).words().iter().map(|part| part.parse().expect("a number")).collect();
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a time after 1970");
            let behind = micros(now) + self.offset() - (time[0] * 1_000_000 + time[1]);
            if behind.abs() < tolerance {
                return;
            }
            assert!(Instant::now() < end, "the server's clock is off by {behind} us");
        }
    }

    /// How far the clock is from the right time, in microseconds: ahead if that is positive.
    pub fn offset(&self) -> i64 {
        *self.0.offset()
    }

    fn change(&self, change: impl FnOnce(i64) -> i64) {
        let mut offset = self.0.offset();
        *offset = change(*offset);
        // In place: processes have mapped it.
        let mut file = &self.0.file;
        let written = file.rewind().and_then(|()| file.write_all(&offset.to_ne_bytes()));
        written.expect("eight bytes can be written");
    }
}

impl Shared {
    fn offset(&self) -> std::sync::MutexGuard<'_, i64> {
        self.offset.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).expect("less than 292 000 years")
}
