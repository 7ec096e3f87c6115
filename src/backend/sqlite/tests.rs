//! The thread's work, without the thread: what a test cannot reach through a client.

use std::slice;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tempfile::TempDir;
use uuid::Uuid;

use super::builder::{Settings, SqliteBuilder};
use super::health::Health;
use super::inbox::Inbox;
use super::job::Change;
use super::sweep::{self, INTERVAL};
use super::worker::Worker;
use crate::backend::{
    Answer, BackendError, Claim, Effects, Kind, LeaseId, LeaseRef, Ledger, Released, Renew, Renewal, Request,
    Resource, Stamp,
};

const TTL: Duration = Duration::from_secs(10);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A worker on a file of its own, and the time of day by which it lives.
struct Site {
    _directory: TempDir,
    settings: Arc<Settings>,
    now: Arc<Mutex<SystemTime>>,
    client: Uuid,
    worker: Worker,
}

impl Site {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut settings = SqliteBuilder::new(directory.path().join("locks.db")).settings;
        let now = Arc::new(Mutex::new(UNIX_EPOCH + 20_000 * DAY));
        let time = Arc::clone(&now);
        settings.clock = Arc::new(move || *time.lock());
        let settings = Arc::new(settings);
        let worker = worker_of(&settings);
        Self { _directory: directory, settings, now, client: Uuid::new_v4(), worker }
    }

    fn pass(&self, time: Duration) {
        *self.now.lock() += time;
    }

    fn turn_back(&self, time: Duration) {
        *self.now.lock() -= time;
    }

    fn change<T: Send + 'static>(
        &mut self,
        key: &Arc<str>,
        mut change: impl FnMut(&mut Ledger, Stamp, &mut Effects) -> T + Send + 'static,
    ) -> Result<T, BackendError> {
        let change = move |_, ledger: &mut Ledger, stamp| {
            let mut effects = Effects::default();
            (change(ledger, stamp, &mut effects), effects)
        };
        let (job, mut answered) = Change::new(slice::from_ref(key).to_vec(), change);
        self.worker.carry_out(vec![Box::new(job)]);
        answered.try_recv().unwrap().map(|mut outcomes| outcomes.remove(0))
    }

    fn lock(&mut self, key: &str) -> Result<(LeaseRef, u64), BackendError> {
        let lease = LeaseRef::new(LeaseId::next(self.client), Resource::new(key, Kind::Mutex));
        let request = Request::new(lease.clone(), Claim::Sole, TTL);
        let answer = self.change(&lease.resource.key, move |ledger, stamp, effects| {
            ledger.request(&request, stamp, effects)
        });
        match answer?? {
            Answer::Granted(grant) => Ok((lease, grant.token.get())),
            other => panic!("{other:?}"),
        }
    }

    fn unlock(&mut self, lease: &LeaseRef) -> Released {
        let asked = lease.clone();
        let release = move |ledger: &mut Ledger, stamp, effects: &mut Effects| {
            ledger.release(&asked, 0, stamp, effects)
        };
        self.change(&lease.resource.key, release).unwrap().unwrap()
    }

    fn renew(&mut self, lease: &LeaseRef) -> Result<Renewal, BackendError> {
        let renew = Renew::new(lease.clone(), TTL);
        self.change(&lease.resource.key, move |ledger, stamp, _| ledger.renew(&renew, stamp))
    }

    /// Returns how many steps it took.
    fn sweep(&self) -> usize {
        let database = self.worker.database.as_ref().unwrap();
        if !sweep::begin(database, &self.settings).unwrap() {
            return 0;
        }
        let (mut after, mut steps) = (Some(String::new()), 0);
        while let Some(key) = after {
            after = sweep::go_on(database, &self.settings, &key).unwrap();
            steps += 1;
        }
        steps
    }

    fn count(&self, table: &str) -> u32 {
        let database = self.worker.database.as_ref().unwrap();
        let count = format!("SELECT count(*) FROM {table}");
        database.connection().query_row(&count, [], |row| row.get(0)).unwrap()
    }

    fn execute(&self, statement: &str) {
        self.worker.database.as_ref().unwrap().connection().execute_batch(statement).unwrap();
    }
}

fn worker_of(settings: &Arc<Settings>) -> Worker {
    let health = Arc::new(Health::new(settings.address()));
    Worker::new(Arc::clone(settings), health, Arc::new(Inbox::new()))
}

#[test]
fn a_row_that_nobody_uses_for_a_day_is_removed_and_its_numbers_are_not_issued_again() {
    let mut site = Site::new();
    let (unused, _) = site.lock("unused").unwrap();
    site.unlock(&unused);
    let (_, expired) = site.lock("expired").unwrap();
    site.pass(DAY - INTERVAL);
    site.sweep();
    assert_eq!(site.count("leasehold_leases"), 2, "not a day yet");
    site.lock("used").unwrap();
    site.pass(2 * INTERVAL);
    site.sweep();
    assert_eq!(site.count("leasehold_leases"), 1);
    // Another client, which has seen nothing, and a clock that was set back.
    site.worker = worker_of(&site.settings);
    site.turn_back(2 * DAY);
    assert!(site.lock("expired").unwrap().1 > expired);
    assert!(site.lock("never used").unwrap().1 > expired);
}

#[test]
fn a_row_that_is_in_use_is_kept_however_old_it_is() {
    let mut site = Site::new();
    let (lease, _) = site.lock("a").unwrap();
    // As a lease of a day that is not renewed.
    site.execute("UPDATE leasehold_leases SET used = 0");
    site.sweep();
    assert_eq!(site.renew(&lease).unwrap(), Renewal::Renewed);
    site.execute("UPDATE leasehold_leases SET used = 0");
    site.pass(2 * INTERVAL);
    site.sweep();
    assert_eq!(site.count("leasehold_leases"), 0);
}

#[test]
fn of_several_clients_one_sweeps_within_an_hour() {
    let mut site = Site::new();
    site.lock("a").unwrap();
    site.sweep();
    site.pass(2 * DAY);
    assert_eq!(site.sweep(), 1);
    assert_eq!(site.count("leasehold_leases"), 0);
    site.lock("b").unwrap();
    site.execute("UPDATE leasehold_leases SET used = 0");
    site.pass(INTERVAL / 2);
    assert_eq!(site.sweep(), 0, "somebody has done it half an hour ago");
    assert_eq!(site.count("leasehold_leases"), 1);
}

#[test]
fn many_rows_are_swept_in_steps() {
    let mut site = Site::new();
    for n in 0..1200 {
        site.lock(&n.to_string()).unwrap();
    }
    site.pass(DAY + INTERVAL);
    site.lock("1000").unwrap();
    assert_eq!(site.sweep(), 3);
    assert_eq!(site.count("leasehold_leases"), 1);
}

#[test]
fn addresses_of_clients_that_died_are_removed() {
    let mut site = Site::new();
    site.lock("a").unwrap();
    let database = site.worker.database.as_ref().unwrap();
    let now = site.settings.now();
    let (dead, alive) = (Uuid::new_v4(), Uuid::new_v4());
    database.set_port(dead, 1, now).unwrap();
    site.pass(DAY + INTERVAL);
    let database = site.worker.database.as_ref().unwrap();
    database.set_port(alive, 2, site.settings.now()).unwrap();
    site.sweep();
    let database = site.worker.database.as_ref().unwrap();
    assert_eq!(database.port(dead).unwrap(), None);
    assert_eq!(database.port(alive).unwrap(), Some(2));
}

#[test]
fn tokens_grow_when_the_clock_is_set_back() {
    let mut site = Site::new();
    let (lease, first) = site.lock("a").unwrap();
    site.unlock(&lease);
    site.turn_back(10 * DAY);
    let (_, second) = site.lock("a").unwrap();
    assert!(second > first);
}

#[test]
fn a_client_that_has_seen_tokens_issues_greater_ones_after_the_file_was_deleted() {
    let mut site = Site::new();
    let (_, first) = site.lock("a").unwrap();
    for suffix in ["", "-wal", "-shm"] {
        std::fs::remove_file(format!("{}{suffix}", site.settings.path.display())).unwrap();
    }
    site.turn_back(DAY);
    let (_, second) = site.lock("a").unwrap();
    assert!(second > first);
}

#[test]
fn what_does_not_fit_on_the_disk_is_refused_and_nothing_of_it_remains() {
    let mut site = Site::new();
    let (held, _) = site.lock("held").unwrap();
    site.execute("PRAGMA max_page_count = 1");
    let name = "x".repeat(400);
    let mut refused = None;
    for n in 0..100 {
        match site.lock(&format!("{name}{n}")) {
            Ok(_) => {}
            Err(error) => {
                refused = Some((n, error));
                break;
            }
        }
    }
    let (n, error) = refused.expect("the disk is full");
    assert!(matches!(error, BackendError::RefusedForNow { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("no space is left") && text.contains("locks.db"), "{text}");
    // What is there can be changed, and there is room again some time later.
    assert_eq!(site.renew(&held).unwrap(), Renewal::Renewed);
    site.execute("PRAGMA max_page_count = 100000");
    assert!(site.lock(&format!("{name}{n}")).is_ok(), "the refused request was not stored");
}

#[test]
fn jobs_that_arrive_together_share_a_transaction_and_a_failing_one_affects_no_other() {
    let mut site = Site::new();
    site.lock("unreadable").unwrap();
    site.execute("UPDATE leasehold_leases SET record = 'x'");
    let inspect = |key: &str| {
        let key: Arc<str> = key.into();
        Change::new(vec![key], |_, ledger: &mut Ledger, _| (ledger.last_number(), Effects::default()))
    };
    let ((bad, mut bad_answer), (good, mut good_answer)) = (inspect("unreadable"), inspect("good"));
    site.worker.carry_out(vec![Box::new(bad), Box::new(good)]);
    let error = bad_answer.try_recv().unwrap().unwrap_err();
    assert!(matches!(error, BackendError::WrongType { .. }), "{error:?}");
    assert_eq!(good_answer.try_recv().unwrap().unwrap(), [0]);
}

#[test]
fn what_changes_nothing_writes_nothing() {
    let mut site = Site::new();
    let (lease, _) = site.lock("a").unwrap();
    let other = worker_of(&site.settings);
    let mut other = Site { worker: other, ..Site::new() };
    let version = |site: &Site| site.worker.database.as_ref().unwrap().version().unwrap();
    let before = version(&site);
    let look = |ledger: &mut Ledger, _: Stamp, _: &mut Effects| ledger.last_number();
    assert!(other.change(&lease.resource.key, look).unwrap() > 0);
    assert_eq!(other.change(&"nobody's".into(), look).unwrap(), 0);
    assert_eq!(version(&site), before);
    assert_eq!(site.count("leasehold_leases"), 1);
}
