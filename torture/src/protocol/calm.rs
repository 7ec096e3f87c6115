//! I5: if nothing more goes wrong, everybody is served in time, from whatever state.

use super::client::Phase;
use super::lock::{Action, Lock, State};
use super::store::TTL;

/// Whether everybody who waits is served if from here on messages arrive, holders release, and nothing else happens: at
/// once if all leases that the store knows have a client that knows them, otherwise within a TTL.
pub(super) fn ends(lock: &Lock, state: &State) -> bool {
    let mut state = state.clone();
    let mut ticks = 0;
    loop {
        let settles = settles_at_once(lock, &mut state);
        let is_orphaned = !state.late.is_empty()
            || state.past.abandoned.iter().any(|lease| state.store.knows(*lease))
            || lock.late_calls;
        // The clock of the store may have been set back, and what it says may be long in coming.
        let bound = if is_orphaned { TTL * (1 + state.past.jumps) } else { 0 };
        if settles || ticks >= bound {
            return settles;
        }
        state.tick();
        ticks += 1;
    }
}

/// Whether all are served before time passes.
fn settles_at_once(lock: &Lock, state: &mut State) -> bool {
    // Each needs two: one to be told of its grant, one to release it.
    for _ in 0..2 * lock.clients + 2 {
        deliver(lock, state);
        if state.clients.iter().all(|client| client.phase == Phase::Idle) {
            return true;
        }
        for number in 0..lock.clients {
            if let Some(action) = next_of(lock, state, number) {
                state.take(action, lock.variant, lock.late_calls);
            }
        }
    }
    false
}

/// All that is under way arrives.
fn deliver(lock: &Lock, state: &mut State) {
    while let Some(action) = arrival(lock, state) {
        state.take(action, lock.variant, lock.late_calls);
    }
}

fn arrival(lock: &Lock, state: &State) -> Option<Action> {
    if !state.late.is_empty() {
        return Some(Action::ExecuteLate(0));
    }
    (0..lock.clients).zip(&state.clients).find_map(|(number, client)| {
        let under_way = [
            (client.calls.is_empty(), Action::Execute(number)),
            (client.answers.is_empty(), Action::Receive(number)),
            (client.pushes.is_empty(), Action::Notify(number)),
        ];
        under_way.into_iter().find(|(is_empty, _)| !is_empty).map(|(_, action)| action)
    })
}

/// What a client does of itself.
fn next_of(lock: &Lock, state: &State, number: u8) -> Option<Action> {
    let client = &state.clients[usize::from(number)];
    match client.phase {
        Phase::Idle => None,
        Phase::Waiting { .. } => lock.may_repeat(client).then_some(Action::Repeat(number)),
        Phase::Held(_) => Some(Action::Release(number)),
        Phase::Releasing => lock.may_release_again(client).then_some(Action::ReleaseAgain(number)),
    }
}
