//! The lock as a model: where it begins, what may happen next, and what must hold.

use stateright::{Model, Property};

use super::calm;
use super::client::Client;
use super::lock::{Action, Data, Lock, Past, State};
use super::store::{Store, TTL};

impl Model for Lock {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            now: 0,
            // It may be set back.
            clock: if self.jumps > 0 { TTL } else { 0 },
            store: Store::default(),
            clients: (0..self.clients).map(Client::new).collect(),
            late: Vec::new(),
            data: Data::default(),
            past: Past::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (number, client) in (0..).zip(&state.clients) {
            self.actions_of(number, client, state, actions);
        }
        actions.extend((0..state.late.len()).map(Action::ExecuteLate));
        if state.now < self.ticks {
            actions.push(Action::Tick);
            if state.past.losses < self.losses {
                actions.push(Action::LoseMemory);
            }
        }
        if state.past.jumps < self.jumps {
            actions.push(Action::JumpAhead);
            if state.clock >= TTL {
                actions.push(Action::JumpBack);
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        next.take(action, self.variant, self.late_calls);
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::<Self>::always("I1", |_, state| state.excludes()),
            Property::<Self>::always("I2", |_, state| !state.past.went_back),
            Property::<Self>::always("I3", |_, state| state.data.value == state.data.changes),
            Property::<Self>::always("I5", calm::ends),
            Property::<Self>::always("I7", |_, state| !state.past.overtook),
            // The model is not so small that nothing happens in it.
            Property::<Self>::sometimes("a waiter is granted the lock", |_, state| {
                state.clients.iter().any(|client| !client.pushes.is_empty())
            }),
        ]
    }
}
