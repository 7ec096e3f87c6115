//! One lease: what its guard, its renewals, the events of the store, and the keeper make of it at once. A module of `lease`,
//! whose types these are.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;
use tokio::sync::oneshot;
use tokio::time::Instant;
use uuid::Uuid;

use super::known::Known;
use super::lease::{Hold, Lease, List, Message, Outcome, PushOutcome, Step};
use super::reentry::Owners;
use crate::backend::{
    Answer, BackendError, Claim, Grant, Kind, LeaseId, LeaseRef, Queued, Renewal, Request, Resource, Ticket,
};
use crate::error::LossReason;
use crate::fence::FencingToken;
use crate::interleavings::explore::explore;
use crate::options::Settings;

const TTL: Duration = Duration::from_secs(10);

fn requested(claim: Claim) -> Arc<Lease> {
    let asked = LeaseRef::new(LeaseId::next(Uuid::nil()), Resource::new("lock:a", Kind::Mutex));
    let terms = Settings::new(TTL, TTL / 3, None, false);
    Lease::new(Request::new(asked, claim, TTL).waiting(), Arc::new(terms), None)
}

fn granted() -> Result<Answer, BackendError> {
    Ok(Answer::Granted(Grant::new(FencingToken::new(42), None)))
}

fn held(claim: Claim, now: Instant) -> (Arc<Lease>, Hold) {
    let lease = requested(claim);
    assert!(matches!(lease.answered(granted(), now, now), Outcome::Granted));
    let hold = lease.hand().expect("it is granted");
    hold.begin(now);
    (lease, hold)
}

/// How often the release of a lease has begun.
#[derive(Default)]
struct Releases(AtomicUsize);

impl Releases {
    fn begin(&self, begins: bool) {
        self.0.fetch_add(begins.into(), Ordering::Relaxed);
    }
}

/// A guard is dropped. Returns whether it was the one that has ended the lease.
fn drop_guard(hold: &Hold, releases: &Releases, now: Instant) -> bool {
    let left = hold.lease.leave(hold.token, 1, now);
    let has_ended = matches!(left, Ok(Some(0))) && hold.lease.end(false, now).is_some();
    releases.begin(has_ended);
    has_ended
}

/// The keeper looks at a lease, as it does again when something is due.
fn keep(lease: &Arc<Lease>, releases: &Releases, now: Instant) {
    if lease.step(List::Held, now) == Step::Release {
        releases.begin(true);
    }
    lease.file();
}

/// A renewal is sent and answered.
fn renew(
    lease: &Lease,
    releases: &Releases,
    sent: Instant,
    answer: Result<Renewal, BackendError>,
    now: Instant,
) {
    match lease.step(List::Held, sent) {
        Step::Send if lease.renewal(sent).is_some() => lease.renewed(answer, sent, now),
        step => releases.begin(step == Step::Release),
    }
}

fn scene_of_its_end() {
    let start = Instant::now();
    let (lease, hold) = held(Claim::Sole, start);
    let end = hold.ends().expect("it is held");
    let late = if thread_rng().gen_bool(0.5) { end } else { start + TTL / 2 };
    let answer = match thread_rng().gen_range(0..3) {
        0 => Ok(Renewal::Renewed),
        1 => Ok(Renewal::Lost(LossReason::Missing)),
        _ => Err(BackendError::Unanswered { source: "silence".into() }),
    };
    let releases = Arc::<Releases>::default();
    let guard = {
        let (hold, releases) = (hold.clone(), Arc::clone(&releases));
        thread::spawn(move || drop_guard(&hold, &releases, late))
    };
    let watcher = {
        let hold = hold.clone();
        // As a guard's `lost`: a loss that came before the token is found by asking.
        thread::spawn(move || (hold.lost().clone(), hold.loss(late).is_some()))
    };
    let renewing = {
        let (lease, releases) = (Arc::clone(&lease), Arc::clone(&releases));
        thread::spawn(move || renew(&lease, &releases, start + TTL / 2, answer, late))
    };
    let keeper = {
        let (lease, releases) = (Arc::clone(&lease), Arc::clone(&releases));
        thread::spawn(move || keep(&lease, &releases, late))
    };
    let closing = {
        let (lease, releases) = (Arc::clone(&lease), Arc::clone(&releases));
        thread::spawn(move || match thread_rng().gen_range(0..3) {
            0 => {
                lease.lose(LossReason::ClientClosed);
                releases.begin(lease.claim_release());
            }
            1 => drop(lease.revoke(FencingToken::new(42), late)),
            _ => {}
        })
    };
    let was_released = guard.join().expect("no panic");
    let (lost, was_seen) = watcher.join().expect("no panic");
    for thread in [renewing, keeper, closing] {
        thread.join().expect("no panic");
    }
    // Whatever is left to be done, the keeper does.
    keep(&lease, &releases, end + TTL);
    keep(&lease, &releases, end + TTL * 2);
    assert_eq!(releases.0.load(Ordering::Relaxed), 1, "it is released once");
    let loss = hold.loss(end + TTL * 3);
    assert_eq!(loss.is_some(), !was_released, "{loss:?}");
    let is_told = lost.is_cancelled() || was_seen;
    assert_eq!(is_told, loss.is_some(), "those that wait are told of a loss, and of nothing else");
    assert!(hold.ends().is_none() && !lease.is_filed(), "nothing is kept of it");
}

#[test]
fn a_lease_ends_once_whoever_ends_it() {
    explore(scene_of_its_end);
}

/// The answer that names the place, the grant to it, and a waiter that gives up, or that registers itself.
fn scene_of_a_grant() {
    let now = Instant::now();
    let lease = requested(Claim::Sole);
    let place = Ok(Answer::Queued(Queued::new(Ticket::new(7), None, None)));
    let answering = {
        let lease = Arc::clone(&lease);
        thread::spawn(move || {
            let outcome = lease.answered(place, now, now);
            (matches!(outcome, Outcome::Granted), matches!(outcome, Outcome::Over))
        })
    };
    let pushing = {
        let lease = Arc::clone(&lease);
        thread::spawn(move || {
            let grant = Grant::new(FencingToken::new(42), None);
            lease.pushed_grant(Ticket::new(7), grant, now) == PushOutcome::Granted
        })
    };
    let waiting = {
        let lease = Arc::clone(&lease);
        thread::spawn(move || {
            let (sender, receiver) = oneshot::channel::<Message>();
            let taken = lease.set_waiter(sender);
            let gives_up = taken.is_some_and(|hold| hold.is_none()) && thread_rng().gen_bool(0.5);
            (gives_up && lease.give_up(), receiver)
        })
    };
    let (by_answer, was_over) = answering.join().expect("no panic");
    let by_push = pushing.join().expect("no panic");
    let (was_given_up, _receiver) = waiting.join().expect("no panic");
    assert!(!(by_answer && by_push), "it is granted once");
    if was_given_up {
        assert!(!by_answer && !by_push && lease.is_released());
        assert!(lease.take_known() >= Known::Possible, "the store may have the grant");
    } else {
        assert!((by_answer || by_push) && !was_over, "whichever comes first, the grant is not lost");
        assert!(lease.end(false, now).is_some_and(Known::is_possible));
    }
}

#[test]
fn a_grant_is_taken_up_once_or_known_to_be_released() {
    explore(scene_of_a_grant);
}

fn scene_of_an_owner() {
    let now = Instant::now();
    let owner = Arc::<str>::from("order:7");
    let (lease, hold) = held(Claim::Owner(Arc::clone(&owner)), now);
    let (owners, releases) = (Arc::<Owners>::default(), Arc::<Releases>::default());
    owners.remember(&hold);
    let entering = [(); 2].map(|()| {
        let (owners, owner, releases) = (Arc::clone(&owners), Arc::clone(&owner), Arc::clone(&releases));
        thread::spawn(move || {
            let Some(entered) = owners.enter(&Arc::from("lock:a"), &owner) else { return };
            assert_eq!(releases.0.load(Ordering::Relaxed), 0, "not through a lease that is being released");
            assert!(entered.loss(now).is_none());
            if drop_guard(&entered, &releases, now) {
                owners.forget(&entered.lease);
            }
        })
    });
    if drop_guard(&hold, &releases, now) {
        owners.forget(&lease);
    }
    for thread in entering {
        thread.join().expect("no panic");
    }
    assert_eq!(releases.0.load(Ordering::Relaxed), 1, "with the last of its guards");
    assert!(owners.enter(&Arc::from("lock:a"), &owner).is_none());
}

#[test]
fn an_owner_re_enters_only_what_is_not_being_released() {
    explore(scene_of_an_owner);
}
