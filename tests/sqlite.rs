//! What may happen to the file of the SQLite store, and what its users are told: locked by somebody else, deleted,
//! read-only, no space left, no database; messages that get lost or are forged.
#![cfg(feature = "sqlite")]

#[path = "support/sqlite.rs"]
mod file;

use std::error::Error as _;
use std::fs;
use std::future::ready;
use std::net::{Ipv4Addr, UdpSocket};
use std::thread;
use std::time::Duration;

use file::{SmallDisk, SqliteFile};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use leasehold::backend::{Event, Kind, LeaseId, LeaseRef, Resource};
use leasehold::{Client, Error, Guard, LossReason, MutexOptions, sqlite};
use leasehold_support::faults::{NAME, SECOND, SOON, brief_mutex, ms, mutex, until_waiting, waiter};
use leasehold_support::refusals::nothing_fails_during;
use leasehold_support::{Worker, assert_pending, eventually, say, within, worker_args};
use tokio::runtime::Builder;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

/// The error of connecting to `url`, which is not accepted to take long.
async fn refused(url: &str) -> Error {
    let begun = Instant::now();
    let error = Client::connect(url).await.map(drop).expect_err("it is refused");
    assert!(begun.elapsed() < SECOND, "{:?}: {error}", begun.elapsed());
    error
}

#[track_caller]
fn assert_refused(error: &Error, path: &str, why: &str) {
    assert!(matches!(error, Error::StoreRefused { .. }), "{error:?}");
    assert_says(error, path, why);
}

#[track_caller]
fn assert_unavailable(error: &Error, path: &str, why: &str) {
    assert!(matches!(error, Error::StoreUnavailable { .. }), "{error:?}");
    assert_says(error, path, why);
}

#[track_caller]
fn assert_says(error: &Error, path: &str, why: &str) {
    let text = error.to_string();
    assert!(text.contains(path) && text.contains(why), "{text}");
    assert!(error.source().is_none(), "it says its causes already: {error:?}");
}

// Opening

#[tokio::test]
async fn unusable_files_are_refused_with_an_explanation() {
    let file = SqliteFile::new();
    let directory = file.directory().display().to_string();
    assert_refused(&refused(&format!("sqlite:{directory}")).await, &directory, "it is a directory");
    let missing = format!("{directory}/missing/locks.db");
    let error = refused(&format!("sqlite:{missing}")).await;
    assert_refused(&error, &missing, "there is no directory");
    assert!(!file.directory().join("missing").exists());

    let text = file.directory().join("text");
    fs::write(&text, "This is no database, but it is long enough to be one. ".repeat(100)).expect("room");
    let error = refused(&format!("sqlite:{}", text.display())).await;
    assert_refused(&error, "/text", "it is not an SQLite database");

    let error = refused(&format!("{}?create=false", file.url())).await;
    assert_refused(&error, "locks.db", "does not exist, and `create` is off");
    assert!(!file.path().exists());
}

#[tokio::test]
async fn a_lazy_client_waits_for_its_file_and_says_so() {
    let file = SqliteFile::new();
    let directory = file.directory().join("later");
    let url = format!("sqlite:{}", directory.join("locks.db").display());
    let client = Client::connect_lazy(&url).expect("it opens nothing yet");
    assert!(!client.state().status.is_connected());
    let error = client.ping(SECOND).await.expect_err("there is no directory");
    assert_refused(&error, "later", "there is no directory");
    let reason = client.state().nodes[0].reason.clone().expect("a reason");
    assert!(reason.contains("there is no directory"), "{reason}");
    let other = Client::connect_lazy(&url).expect("valid");
    mutex(&other).try_lock().await.map(drop).expect_err("there is no directory");
    within(SECOND, other.shutdown()).await.expect("nothing of it is there");

    fs::create_dir(&directory).expect("room");
    client.ping(SECOND).await.expect("it is there");
    assert!(client.state().status.is_connected());
    mutex(&client).lock().await.expect("free").release().await.expect("held");
    client.shutdown().await.expect("released");
}

#[tokio::test]
async fn the_schema_is_checked_and_can_be_created_by_hand() {
    let file = SqliteFile::new();
    let by_hand = format!("{}?create=false", file.url());
    file.open().execute_batch("CREATE TABLE orders (id INTEGER)").expect("a database of somebody else");
    assert_refused(&refused(&by_hand).await, "locks.db", "leasehold::sqlite::SCHEMA");

    file.open().execute_batch(sqlite::SCHEMA).expect("the schema can be executed");
    file.open().execute_batch(sqlite::SCHEMA).expect("also twice");
    let client = Client::connect(&by_hand).await.expect("the tables are there");
    mutex(&client).lock().await.expect("free").release().await.expect("held");
    client.shutdown().await.expect("released");

    file.open()
        .execute_batch("UPDATE leasehold_meta SET value = 99 WHERE name = 'version'")
        .expect("written");
    let error = refused(&file.url()).await;
    assert_refused(&error, "locks.db", "its tables have version 99");
}

#[tokio::test]
async fn nothing_is_left_of_a_client_but_idle_rows() {
    let file = SqliteFile::new();
    let (one, other) = (file.client().await, file.client().await);
    let guard = mutex(&one).lock().await.expect("free");
    let waiter = waiter(&mutex(&other));
    until_waiting(&mutex(&one), 1).await;
    assert_eq!(file.number("SELECT count(*) FROM leasehold_clients"), 2);
    guard.release().await.expect("held");
    within(SOON, waiter).await.expect("no panic").expect("granted").release().await.expect("held");
    one.shutdown().await.expect("released");
    other.shutdown().await.expect("released");
    assert_eq!(file.number("SELECT count(*) FROM leasehold_clients"), 0);
    assert_eq!(file.number("SELECT count(*) FROM leasehold_leases"), 1);
    let beside = fs::read_dir(file.directory()).expect("a directory").count();
    assert_eq!(beside, 1, "the files beside it are gone");
}

#[tokio::test]
async fn rows_that_nobody_has_used_for_a_day_are_removed_when_a_client_comes() {
    let file = SqliteFile::new();
    let client = file.client().await;
    let token = mutex(&client).lock().await.expect("free").token();
    client.shutdown().await.expect("released");
    let age =
        "UPDATE leasehold_leases SET used = 1; UPDATE leasehold_meta SET value = 1 WHERE name = 'swept'";
    file.open().execute_batch(age).expect("written");
    let client = file.client().await;
    eventually(SOON, || ready(file.number("SELECT count(*) FROM leasehold_leases") == 0)).await;
    assert!(mutex(&client).lock().await.expect("free").token() > token);
}

/// At any moment: while it is asked for, granted at once, queued, or granted later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_given_up_at_any_moment_leaves_nothing() {
    let file = SqliteFile::new();
    let (client, other) = (file.client().await, file.client().await);
    let (mutex, theirs) = (mutex(&client), mutex(&other));
    for round in 0..100 {
        let holder = if round % 2 == 0 { Some(theirs.lock().await.expect("free")) } else { None };
        let given_up = timeout(Duration::from_micros(round * 7), mutex.lock());
        let release = async {
            sleep(Duration::from_micros(round * 5)).await;
            drop(holder);
        };
        let (granted, ()) = tokio::join!(given_up, release);
        drop(granted);
        eventually(SOON, || async {
            let left = theirs.inspect().await.expect("it answers");
            left.holders.is_empty() && left.waiters.is_empty()
        })
        .await;
    }
}

#[tokio::test]
async fn a_file_with_other_tables_is_shared_with_its_program() {
    let file = SqliteFile::new();
    file.open().execute_batch("CREATE TABLE orders (id INTEGER); PRAGMA user_version = 7").expect("written");
    let client = file.client().await;
    let guard = mutex(&client).lock().await.expect("free");
    file.open().execute_batch("INSERT INTO orders VALUES (1)").expect("written meanwhile");
    guard.release().await.expect("held");
    client.shutdown().await.expect("released");
    assert_eq!(file.number("PRAGMA user_version"), 7);
    assert_eq!(file.number("SELECT count(*) FROM orders"), 1);
}

// Locked by somebody else

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_program_that_writes_for_a_moment_is_waited_for() {
    let file = SqliteFile::new();
    let client = file.client().await;
    let stranger = file.open();
    stranger.execute_batch("BEGIN EXCLUSIVE").expect("nobody writes");
    let waiter = waiter(&mutex(&client));
    sleep(ms(300)).await;
    assert!(!waiter.is_finished());
    stranger.execute_batch("COMMIT").expect("it was the writer");
    let guard = within(SOON, waiter).await.expect("no panic").expect("granted");
    assert!(client.state().status.is_connected());
    guard.release().await.expect("held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_another_program_keeps_locked_is_named_and_nobody_loses_a_lease_that_lasts() {
    let file = SqliteFile::new();
    let url = format!("{}?busy_timeout=100ms", file.url());
    let client = Client::connect(&url).await.expect("free");
    let held = mutex(&client).lock().await.expect("free");
    let waiter = waiter(&mutex(&client));
    until_waiting(&mutex(&client), 1).await;
    let stranger = file.open();
    stranger.execute_batch("BEGIN IMMEDIATE").expect("nobody writes");

    let error = refused(&url).await;
    assert_unavailable(&error, "locks.db", "another program has kept it locked for");
    let error = client.ping(SECOND).await.expect_err("locked");
    assert_unavailable(&error, "locks.db", "another program has kept it locked for");
    let state = client.state();
    assert!(!state.status.is_connected());
    assert!(state.nodes[0].reason.as_ref().is_some_and(|reason| reason.contains("locked")), "{state:?}");

    // Nothing of a client that never got through is there to be released.
    let lazy = Client::connect_lazy(&url).expect("valid");
    mutex(&lazy).try_lock().await.map(drop).expect_err("locked");
    within(SECOND, lazy.shutdown()).await.expect("there is nothing to wait for");

    stranger.execute_batch("ROLLBACK").expect("it was the writer");
    client.ping(SECOND).await.expect("free again");
    assert!(client.state().status.is_connected());
    assert!(held.is_held());
    held.release().await.expect("held");
    within(SOON, waiter).await.expect("no panic").expect("granted").release().await.expect("held");
}

/// Renewals and the waiter's request are repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_cannot_be_renewed_is_lost_when_it_ends_and_waiters_continue() {
    let file = SqliteFile::new();
    let url = format!("{}?busy_timeout=50ms", file.url());
    let (one, other) =
        (Client::connect(&url).await.expect("free"), Client::connect(&url).await.expect("free"));
    let held = brief_mutex(&one).lock().await.expect("free");
    let waiter = waiter(&brief_mutex(&other));
    until_waiting(&brief_mutex(&one), 1).await;
    let stranger = file.open();
    stranger.execute_batch("BEGIN IMMEDIATE").expect("nobody writes");
    let begun = Instant::now();
    let reason = within(SOON, held.lost()).await;
    assert_eq!(reason, LossReason::StoreRefused, "SQLite has said that it is busy: {reason:?}");
    assert!(begun.elapsed() < SECOND * 2, "{:?}", begun.elapsed());
    assert!(!waiter.is_finished());
    stranger.execute_batch("ROLLBACK").expect("it was the writer");
    let next = within(SOON, waiter).await.expect("no panic").expect("granted");
    assert!(next.token() > held.token());
}

// Deleted

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_deleted_in_use_is_created_again_and_holders_are_notified() {
    let file = SqliteFile::new();
    let (one, other) = (file.client().await, file.client().await);
    let held = brief_mutex(&one).lock().await.expect("free");
    let queued = waiter(&brief_mutex(&other));
    until_waiting(&brief_mutex(&one), 1).await;
    file.delete();
    // A third client knows nothing of the file that was there.
    let third = file.client().await;
    let next = within(SOON, queued).await.expect("no panic").expect("granted");
    // The file says so, when it is renewed.
    let end = within(SOON, held.lost()).await;
    assert!(end == LossReason::Taken || end == LossReason::Missing, "{end:?}");
    assert!(next.token() > held.token());
    // All are on the new file.
    assert!(brief_mutex(&third).try_lock().await.expect("it answers").is_none());
    assert!(brief_mutex(&one).try_lock().await.expect("it answers").is_none());
    next.release().await.expect("held");
    assert!(brief_mutex(&third).try_lock().await.expect("it answers").is_some());
    for client in [one, other, third] {
        client.shutdown().await.expect("released");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_deleted_in_use_is_not_created_by_a_client_that_is_not_to() {
    let file = SqliteFile::new();
    file.client().await.shutdown().await.expect("created");
    let client = Client::connect(&format!("{}?create=false", file.url())).await.expect("it exists");
    let held = brief_mutex(&client).lock().await.expect("free");
    file.delete();
    let error = mutex(&client).try_lock().await.map(drop).expect_err("it is gone");
    assert_refused(&error, "locks.db", "does not exist, and `create` is off");
    assert_eq!(within(SOON, held.lost()).await, LossReason::StoreRefused);
    assert!(!file.path().exists());
}

/// Otherwise those who open it then would not see what is held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_of_which_a_part_was_deleted_in_use_is_not_used_until_all_have_closed_it() {
    for suffix in ["-wal", "-shm"] {
        let file = SqliteFile::new();
        let (client, other) = (file.client().await, file.client().await);
        mutex(&client).lock().await.expect("free").release().await.expect("held");
        file.delete_one(suffix);
        // The second time, the other one still has it open.
        for _ in 0..2 {
            let error = client.ping(SECOND).await.expect_err("it is torn");
            assert_unavailable(&error, "locks.db", "deleted while it was in use");
            assert!(error.to_string().contains(suffix), "{error}");
            assert!(!client.state().status.is_connected());
        }
        other.ping(SECOND).await.expect_err("it finds out, and closes it");
        let guard = within(SOON, mutex(&client).lock()).await.expect("it is opened anew");
        let mut worker = Worker::start("trying_worker", &file.url());
        assert_eq!(worker.line().await.as_deref(), Some("busy"), "they see the same");
        guard.release().await.expect("held");
    }
}

/// Says whether the lock is free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trying_worker() {
    let Some(url) = worker_args() else { return };
    let client = Client::connect(&url).await.expect("the file can be used");
    let free = mutex(&client).try_lock().await.expect("it answers").is_some();
    say(if free { "free" } else { "busy" });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_replaced_by_another_one_is_noticed() {
    let (file, other) = (SqliteFile::new(), SqliteFile::new());
    let client = file.client().await;
    let held = brief_mutex(&client).lock().await.expect("free");
    other.client().await.shutdown().await.expect("created");
    file.delete();
    fs::rename(other.path(), file.path()).expect("the same file system");
    within(SOON, held.lost()).await;
    let guard = brief_mutex(&client).lock().await.expect("free");
    assert!(guard.token() > held.token());
    assert_eq!(file.number("SELECT count(*) FROM leasehold_leases"), 1);
}

// Read-only, and no space left

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_on_a_read_only_disk_is_refused() {
    let Some(disk) = SmallDisk::new_or_skip("read-only files", 1024) else { return };
    let url = format!("sqlite:{}", disk.path().join("locks.db").display());
    let client = Client::connect(&url).await.expect("it can be created");
    client.shutdown().await.expect("closed");
    disk.make_read_only();
    let error = refused(&url).await;
    assert_refused(&error, "locks.db", "read-only");
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_without_write_permission_is_refused() {
    use std::os::unix::fs::PermissionsExt;

    let file = SqliteFile::new();
    file.client().await.shutdown().await.expect("created");
    fs::set_permissions(file.path(), fs::Permissions::from_mode(0o444)).expect("ours");
    if fs::OpenOptions::new().write(true).open(file.path()).is_ok() {
        eprintln!("left out, as this user may write to every file: files without the right to write");
        return;
    }
    assert_refused(&refused(&file.url()).await, "locks.db", "read-only");
}

/// It is copied into the file by the commit that makes it too long, which never comes if it does not fit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_only_changes_have_filled_is_used_again() {
    let Some(disk) = SmallDisk::new_or_skip("full disks", 512) else { return };
    let file = disk.path().join("locks.db");
    let client = Client::connect(&format!("sqlite:{}", file.display())).await.expect("it can be created");
    let mutex = mutex(&client);
    let checkpoint = "PRAGMA wal_checkpoint";
    let copied =
        rusqlite::Connection::open(&file).and_then(|file| file.query_row(checkpoint, [], |_| Ok(())));
    copied.expect("the file has the room that it needs");
    let mut written = 0;
    for _ in 0..1_000 {
        let guard = within(SOON, mutex.lock()).await.expect("free");
        within(SOON, guard.release()).await.expect("there is room");
        written = fs::metadata(file.with_extension("db-wal")).map_or(written, |wal| written.max(wal.len()));
    }
    assert!(written > 256 * 1024, "the disk was full: {written}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_reported_and_the_store_continues_when_there_is_room() {
    let Some(disk) = SmallDisk::new_or_skip("full disks", 512) else { return };
    let url = format!("sqlite:{}", disk.path().join("locks.db").display());
    let client = Client::connect(&url).await.expect("it can be created");
    let held = mutex(&client).lock().await.expect("free");
    disk.fill();
    let mut changes = client.state_changes();
    let mut refused = None;
    for n in 0..200 {
        let mutex = client.mutex(&format!("{n}:{}", "x".repeat(400))).expect("valid");
        match mutex.try_lock().await {
            // Its release is pending: it does not fit either.
            Ok(guard) => std::mem::forget(guard),
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    // After it was tried for some seconds.
    assert_unavailable(&refused.expect("the disk is full"), "locks.db", "no space is left");
    assert!(held.is_held());
    // What is there can still be read, which says nothing about space: the state changes once.
    for _ in 0..10 {
        assert!(mutex(&client).inspect().await.expect("it answers").holder().is_some());
    }
    let error = client.ping(SECOND).await.expect_err("nothing can be written");
    assert_unavailable(&error, "locks.db", "no space is left");
    let state = changes.next().await.expect("it changes");
    assert!(state.nodes[0].reason.as_ref().is_some_and(|reason| reason.contains("no space")), "{state:?}");
    assert_pending(ms(100), changes.next()).await;

    disk.empty();
    client.ping(SECOND).await.expect("there is space");
    assert!(changes.next().await.is_some_and(|state| state.status.is_connected()));
    let other = client.mutex("other").expect("valid").lock().await.expect("free");
    assert!(client.state().status.is_connected());
    other.release().await.expect("held");
    held.release().await.expect("held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_locked_or_has_no_space_for_some_seconds_is_waited_for() {
    let file = SqliteFile::new();
    let stranger = file.open();
    let locked = nothing_fails_during(
        "locked",
        file.client().await,
        file.client().await,
        async || stranger.execute_batch("BEGIN IMMEDIATE").expect("nobody writes"),
        async || stranger.execute_batch("ROLLBACK").expect("it was the writer"),
    );
    let full = async {
        let Some(disk) = SmallDisk::new_or_skip("full disks", 512) else { return };
        let url = format!("sqlite:{}", disk.path().join("locks.db").display());
        let client = async || Client::connect(&url).await.expect("it can be created");
        let (one, other) = (client().await, client().await);
        nothing_fails_during("full", one, other, async || disk.fill(), async || disk.empty()).await;
    };
    tokio::join!(locked, full);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_are_to_fail_fast_do_so_until_the_file_can_be_written_again() {
    let file = SqliteFile::new();
    let stranger = file.open();
    let locked = fails_fast_during(
        format!("{}?busy_timeout=50ms", file.url()),
        || stranger.execute_batch("BEGIN IMMEDIATE").expect("nobody writes"),
        || stranger.execute_batch("ROLLBACK").expect("it was the writer"),
    );
    let full = async {
        let Some(disk) = SmallDisk::new_or_skip("full disks", 512) else { return };
        let url = format!("sqlite:{}", disk.path().join("locks.db").display());
        fails_fast_during(url, || disk.fill(), || disk.empty()).await;
    };
    tokio::join!(locked, full);
}

async fn fails_fast_during(url: String, begin: impl FnOnce(), end: impl FnOnce()) {
    let client = Client::builder(url).fail_fast(true).connect().await.expect("it can be created");
    let held = mutex(&client).lock().await.expect("free");
    let queued = waiter(&mutex(&client));
    until_waiting(&mutex(&client), 1).await;
    begin();
    let other = client.mutex("other").expect("valid");
    let error = within(SOON, other.try_lock()).await.map(drop).expect_err("nothing can be written");
    assert!(matches!(error, Error::StoreUnavailable { .. }), "{error:?}");
    // It is known by now.
    for other in [within(SECOND, other.lock()).await, within(SECOND, queued).await.expect("no panic")] {
        let error = other.map(drop).expect_err("it does not wait");
        assert!(matches!(error, Error::StoreUnavailable { .. }), "{error:?}");
        assert!(error.to_string().contains("is disconnected"), "{error}");
    }
    end();
    eventually(SOON, || async { other.try_lock().await.is_ok_and(|guard| guard.is_some()) }).await;
    assert!(held.is_held());
    held.release().await.expect("held");
}

// Descriptors

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_are_gone_leave_no_descriptor_and_a_lack_of_descriptors_is_waited_for() {
    let file = SqliteFile::new();
    let mut worker = Worker::start("descriptors_worker", &file.url());
    while let Some(line) = worker.line().await {
        eprintln!("{line}");
    }
    assert!(worker.wait().success());
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn descriptors_worker() {
    let Some(url) = worker_args() else { return };
    let connect = || async { Client::connect(&url).await.expect("the file can be used") };
    let open = || fs::read_dir("/proc/self/fd").expect("Linux has it").count();
    let use_it =
        async |client: &Client| mutex(client).lock().await.expect("free").release().await.expect("held");
    // What the runtime and this crate open once.
    let first = connect().await;
    use_it(&first).await;
    first.shutdown().await.expect("released");
    let before = open();
    drop(first);
    let first = connect().await;
    for n in 0..10 {
        let client = connect().await;
        use_it(&client).await;
        if n % 2 == 0 {
            client.shutdown().await.expect("released");
        }
    }
    first.shutdown().await.expect("released");
    // Also while the client itself is still there.
    eventually(SOON, || ready(open() <= before)).await;

    let first = connect().await;
    let lazy = Client::connect_lazy(&url).expect("valid");
    let held = mutex(&first).lock().await.expect("free");
    let limit = ["--pid", &std::process::id().to_string(), "--nofile=256:"];
    let limited = std::process::Command::new("prlimit").args(limit).status();
    assert!(limited.is_ok_and(|status| status.success()), "`prlimit` is part of Linux");
    let mut all = Vec::new();
    while let Ok(file) = fs::File::open("/dev/null") {
        all.push(file);
    }
    // With one for `connect` to look at the mounts, too few are left for SQLite.
    for _ in 0..3 {
        let error = refused(&url).await;
        assert_unavailable(&error, "locks.db", "Too many open files");
        all.pop();
    }
    let waiters: Vec<_> = (0..20).map(|_| waiter(&mutex(&lazy))).collect();
    sleep(SECOND).await;
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
    held.release().await.expect("its file is open");
    drop(all);
    let mut waiters: FuturesUnordered<_> = waiters.into_iter().collect();
    while let Some(guard) = within(SOON, waiters.next()).await {
        let guard = guard.expect("no panic").expect("granted");
        guard.release().await.expect("held");
    }
}

// Messages

/// Locks the mutex, says so, and releases it when the lock `go` is free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn releasing_worker() {
    let Some(url) = worker_args() else { return };
    let client = Client::connect(&url).await.expect("the file can be used");
    let guard = mutex(&client).lock().await.expect("free");
    say("held");
    let go = client.mutex("go").expect("valid").lock().await.expect("free at some time");
    guard.release().await.expect("held");
    say("released");
    go.release().await.expect("held");
    client.shutdown().await.expect("released");
}

/// A holder in another process, and a waiter in this one that was there before it releases.
struct Pair {
    file: SqliteFile,
    client: Client,
    waiter: JoinHandle<Result<Guard, Error>>,
    worker: Worker,
    /// Kept until the holder is to release.
    go: Guard,
}

impl Pair {
    async fn new(options: &str) -> Self {
        let file = SqliteFile::new();
        let client =
            Client::connect(&format!("{}{options}", file.url())).await.expect("the file can be used");
        let go = client.mutex("go").expect("valid").lock().await.expect("free");
        let mut worker = Worker::start("releasing_worker", &file.url());
        assert_eq!(worker.line().await.as_deref(), Some("held"));
        let waiter = waiter(&mutex(&client));
        until_waiting(&mutex(&client), 1).await;
        Self { file, client, waiter, worker, go }
    }

    /// Where this process hears datagrams.
    fn port(&self) -> u16 {
        // The worker has announced itself later.
        let ports = "SELECT port FROM leasehold_clients ORDER BY seen LIMIT 1";
        self.file.number(ports).try_into().expect("a port")
    }

    /// Has the holder release, and waits until the waiter has been granted the lock.
    async fn release(mut self) {
        self.go.release().await.expect("held");
        assert_eq!(self.worker.line().await.as_deref(), Some("released"));
        let guard = within(SOON, self.waiter).await.expect("no panic").expect("granted");
        guard.release().await.expect("held");
        self.client.shutdown().await.expect("released");
        assert!(self.worker.wait().success());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_reaches_another_process_at_once() {
    // It would look only in a minute.
    Pair::new("?poll_interval=60s").await.release().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_whose_message_is_lost_is_found_by_polling() {
    let pair = Pair::new("?poll_interval=20ms").await;
    // What is sent to this process arrives here instead, and is a grant.
    let elsewhere = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    elsewhere.set_read_timeout(Some(SOON)).expect("a setting");
    let port = elsewhere.local_addr().expect("bound").port();
    let change = format!("UPDATE leasehold_clients SET port = {port} WHERE port = {}", pair.port());
    pair.file.open().execute_batch(&change).expect("written");
    pair.release().await;
    let mut buffer = [0; 4096];
    let granted = loop {
        let length = elsewhere.recv(&mut buffer).expect("a message within some seconds");
        let event = std::str::from_utf8(&buffer[..length]).expect("text").parse().expect("an event");
        if let Event::Granted { lease, .. } = event {
            break lease;
        }
    };
    assert_eq!(granted.resource.name(), NAME);
}

/// Otherwise it would count the lease as one that does not wait, and never look for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_whose_message_is_lost_is_found_by_the_next_transaction() {
    let mut pair = Pair::new("?poll_interval=60s").await;
    let nobody = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    let port = nobody.local_addr().expect("bound").port();
    let change = format!("UPDATE leasehold_clients SET port = {port} WHERE port = {}", pair.port());
    pair.file.open().execute_batch(&change).expect("written");
    pair.go.release().await.expect("held");
    assert_eq!(pair.worker.line().await.as_deref(), Some("released"));
    assert!(!pair.waiter.is_finished());
    assert!(mutex(&pair.client).try_lock().await.expect("it answers").is_none());
    within(SOON, pair.waiter).await.expect("no panic").expect("granted").release().await.expect("held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_messages_grant_nothing() {
    let pair = Pair::new("").await;
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    let place = mutex(&pair.client).inspect().await.expect("it answers").waiters[0].id;
    let guessed = LeaseRef::new(LeaseId::next(Uuid::new_v4()), Resource::named("lock:", NAME, Kind::Mutex));
    // Somebody who can read the file knows which lease waits, and still not its place.
    for lease in [guessed.id.to_string(), place.to_string()] {
        for message in [
            format!("g {lease} 1 9999999999999999 0 0 mutex 5 lock:{NAME}"),
            format!("r {lease} 1"),
            format!("a {lease}"),
        ] {
            socket.send_to(message.as_bytes(), (Ipv4Addr::LOCALHOST, pair.port())).expect("sent");
        }
    }
    for message in [b"".as_slice(), b"s", b"c lock:x", b"\xff\xfe", &[b'x'; 9000]] {
        socket.send_to(message, (Ipv4Addr::LOCALHOST, pair.port())).expect("sent");
    }
    // The request is repeated because of them, and is answered by the file.
    sleep(ms(200)).await;
    assert!(!pair.waiter.is_finished());
    assert_eq!(mutex(&pair.client).inspect().await.expect("it answers").waiters.len(), 1);
    pair.release().await;
}

// Runtimes

#[test]
fn a_runtime_without_sockets_polls() {
    let file = SqliteFile::new();
    let with_sockets = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let holder = with_sockets.block_on(file.client());
    let guard = with_sockets.block_on(mutex(&holder).lock()).expect("free");
    let release = thread::spawn(move || {
        thread::sleep(ms(300));
        with_sockets.block_on(guard.release()).expect("held");
    });
    let without = Builder::new_current_thread().enable_time().build().expect("a runtime");
    without.block_on(async {
        let client = Client::connect(&file.url()).await.expect("it needs no sockets");
        let guard = within(SOON, mutex(&client).lock()).await.expect("granted");
        guard.release().await.expect("held");
        client.shutdown().await.expect("released");
    });
    release.join().expect("no panic");
}

#[test]
fn a_client_whose_runtime_has_ended_gets_its_events_on_the_next_one() {
    let file = SqliteFile::new();
    let runtime = || Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let first = runtime();
    let client = first.block_on(async {
        let client = Client::connect(&format!("{}?poll_interval=60s", file.url())).await.expect("usable");
        mutex(&client).lock().await.expect("free").release().await.expect("held");
        client
    });
    drop(first);
    let url = file.url();
    runtime().block_on(async move {
        let go = client.mutex("go").expect("valid").lock().await.expect("free");
        let mut worker = Worker::start("releasing_worker", &url);
        assert_eq!(worker.line().await.as_deref(), Some("held"));
        let waiter = waiter(&mutex(&client));
        until_waiting(&mutex(&client), 1).await;
        Pair { file, client, waiter, worker, go }.release().await;
    });
}

#[test]
fn a_lease_is_kept_while_the_runtime_is_blocked() {
    let file = SqliteFile::new();
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = file.client().await;
        let options = MutexOptions::new().ttl(ms(500));
        let guard = client.mutex_with(NAME, options).expect("valid").lock().await.expect("free");
        thread::sleep(ms(1500));
        assert!(guard.is_held());
        guard.release().await.expect("held");
        client.shutdown().await.expect("released");
    });
}
