//! Where a client lives, and its moves, with threads that settle, end runtimes, and move it at once.

use std::sync::{Arc, Mutex};

use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;

use super::explore::explore;
use super::runtime::{Handle, Id, Runtime};
use super::world::World;
use crate::background;
use crate::home::{Home, Resident};

/// Lives where it was last told to settle.
#[derive(Default)]
struct Noting(Mutex<Noted>);

#[derive(Default)]
struct Noted {
    lives_at: Option<Id>,
    ends: usize,
    ends_over: usize,
}

impl Noting {
    fn note(&self, note: impl FnOnce(&mut Noted)) {
        note(&mut self.0.lock().expect("nobody panics under it"));
    }
}

impl Resident for Noting {
    fn settle(&self, runtime: &Handle) {
        self.note(|noted| noted.lives_at = Some(runtime.id()));
        // As tasks that are started: others may go on before `settle` returns.
        thread::yield_now();
    }

    fn before_end(&self) {
        self.note(|noted| noted.ends += 1);
    }

    fn after_end(&self) {
        self.note(|noted| noted.ends_over += 1);
    }
}

/// One thread uses the client on another runtime while its home ends; a resident comes in.
fn scene_of_a_home(may_move: bool) {
    let (first, second) = (Runtime::new("first"), Runtime::new("second"));
    let (home, resident) = (Arc::<Home>::default(), Arc::<Noting>::default());
    home.take_in(&resident);
    if may_move {
        home.may_move(&background::handle().expect("it runs"));
    }
    first.handle().within(|| home.settle());
    let using = {
        let (home, here) = (Arc::clone(&home), second.handle().clone());
        thread::spawn(move || {
            here.within(|| home.settle());
            here.within(|| home.settle());
        })
    };
    let coming = {
        let (home, late) = (Arc::clone(&home), Arc::<Noting>::default());
        thread::spawn(move || {
            home.take_in(&late);
            late
        })
    };
    let moving = {
        let (home, restarts) = (Arc::clone(&home), Arc::clone(&resident));
        let first = first.handle().clone();
        thread::spawn(move || match thread_rng().gen_range(0..3) {
            0 => home.move_away(),
            1 => home.task_was_dropped(&first),
            _ => home.settle_again(Arc::as_ptr(&restarts).cast()),
        })
    };
    let ended = first.handle().id();
    let ending = thread::spawn(move || first.end());
    for thread in [using, moving, ending] {
        thread.join().expect("no panic");
    }
    let late = coming.join().expect("no panic");
    let lives_at = home.runtime().map(|runtime| runtime.id());
    assert_ne!(lives_at, Some(ended), "nobody lives where everything is over");
    for resident in [resident, late] {
        let noted = resident.0.lock().expect("nobody panics under it");
        if let Some(lives_at) = lives_at {
            assert_eq!(noted.lives_at, Some(lives_at), "all live where the client does");
        }
        assert!(!may_move || noted.ends <= noted.ends_over, "the end is waited for");
        assert!(noted.ends <= 1);
    }
    assert_eq!(home.has_moved(), may_move);
    second.end();
    drop(home);
}

#[test]
fn after_a_move_nobody_lives_at_the_old_home() {
    explore(|| World::play(|_| scene_of_a_home(true)));
}

#[test]
fn a_client_that_must_not_move_leaves_a_runtime_that_ends() {
    explore(|| World::play(|_| scene_of_a_home(false)));
}
