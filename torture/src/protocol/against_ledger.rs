//! The store of the model does what the ledger does: the steps of the model are taken by both, and answers, messages and
//! records are the same, down to every number.

use std::cell::Cell;
use std::time::Duration;

use leasehold::backend::{Answer, Claim, Effects, Event, Kind, LeaseId, LeaseRef, Ledger};
use leasehold::backend::{Renew, Renewal, Request, Resource, Stamp};
use proptest::prelude::*;
use proptest::sample::Index;
use stateright::{Model, Property};
use uuid::Uuid;

use super::client::Call;
use super::lock::{Action, Lock, State};
use super::store::{self, Lease, Number, Operation, Outcome, Push, Store, TOKENS, TTL, Ticks, floor};
use super::{Variant, explore};

/// So many microseconds are a tick.
const TICK: u64 = 1_000_000;

fn duration(ticks: Ticks) -> Duration {
    Duration::from_micros(u64::from(ticks) * TICK)
}

fn id(lease: Lease) -> LeaseId {
    let client = Uuid::from_u128(u128::from(lease.client));
    LeaseId::parse(&format!("{client}.{}", lease.number)).expect("the text of an id")
}

fn lease_of(id: LeaseId) -> Lease {
    let client = u8::try_from(id.client().as_u128()).expect("a client of the model");
    Lease { client, number: u8::try_from(id.sequence()).expect("a lease of the model") }
}

fn number(n: u64) -> Number {
    Number::try_from(n).expect("as small as those of the model")
}

/// What the ledger answers and tells.
type Said = (store::Answer, Option<Push>);

fn execute(ledger: &mut Ledger, call: Call, clock: Ticks) -> Said {
    let lease = LeaseRef::new(id(call.lease), Resource::new("lock:model", Kind::Mutex));
    let now = u64::from(clock) * TICK;
    let stamp = Stamp::new(now, now, u64::from(floor(clock)));
    let mut effects = Effects::default();
    let answer = match call.operation {
        Operation::Request => {
            let mut request = Request::new(lease, Claim::Sole, duration(TTL)).waiting();
            request.tokens = u32::from(TOKENS);
            let answer = ledger.request(&request, stamp, &mut effects).expect("nothing is refused");
            answered(&answer)
        }
        Operation::Renew => match ledger.renew(&Renew::new(lease, duration(TTL)), stamp) {
            Renewal::Renewed => store::Answer::Renewed,
            Renewal::Lost(_) => store::Answer::Lost,
        },
        Operation::Release => {
            ledger.release(&lease, 0, stamp, &mut effects).expect("nothing is refused");
            store::Answer::Released
        }
    };
    assert!(effects.events.len() <= 1, "{:?}", effects.events);
    (answer, effects.events.first().map(pushed))
}

fn answered(answer: &Answer) -> store::Answer {
    match answer {
        Answer::Granted(grant) => {
            let left = grant.remaining.unwrap_or(duration(TTL)).as_micros() / u128::from(TICK);
            let left = Ticks::try_from(left).expect("a few ticks");
            store::Answer::Granted { token: number(grant.token.get()), left }
        }
        Answer::Queued(queued) => store::Answer::Queued { ticket: number(queued.ticket.get()) },
        other => panic!("{other:?}"),
    }
}

fn pushed(event: &Event) -> Push {
    let Event::Granted { lease, ticket, grant } = event else { panic!("{event:?}") };
    let (ticket, token) = (number(ticket.get()), number(grant.token.get()));
    Push { lease: lease_of(lease.id), ticket, token }
}

/// The record that says what the model's store knows. Since when something is held is not known to the model.
fn record(store: &Store) -> String {
    let mut text = format!("leasehold/1 mutex {} 0 0 LAPSES", store.last);
    if let Some(hold) = &store.hold {
        text += &format!("\nh {} 1 {} {} SINCE", id(hold.lease), hold.token, u64::from(hold.ends) * TICK);
    }
    for place in &store.queue {
        let ends = u64::from(place.ends) * TICK;
        text += &format!("\nq {} {} 1 {TOKENS} {ends}", place.ticket, id(place.lease));
    }
    text
}

/// The record of a ledger in the same form.
fn record_of(ledger: &Ledger) -> String {
    let text = ledger.to_string();
    let lines = text.lines().map(|line| match line.rsplit_once(' ') {
        Some((rest, _)) if line.starts_with("h ") => format!("{rest} SINCE"),
        Some((rest, _)) if line.starts_with("leasehold") => format!("{rest} LAPSES"),
        _ => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The calls that the store may execute next, in this state.
fn next_call(state: &State, action: Action) -> Option<Call> {
    match action {
        Action::Execute(number) => state.clients[usize::from(number)].calls.first().copied(),
        Action::ExecuteLate(which) => state.late.get(which).copied(),
        _ => None,
    }
}

/// Both execute a call. Returns what came of it.
fn compare(store: &mut Store, ledger: &mut Ledger, call: Call, clock: Ticks) -> Result<Outcome, String> {
    let outcome = store.execute(call.operation, call.lease, clock, Variant::Correct);
    let said = execute(ledger, call, clock);
    if said != (outcome.answer, outcome.push) {
        return Err(format!("{call:?} at {clock}: the model says {outcome:?}, the ledger {said:?}"));
    }
    let (ours, theirs) = (record(store), record_of(ledger));
    if ours != theirs {
        return Err(format!(
            "{call:?} at {clock} leaves the model with\n{ours}\nand the ledger with\n{theirs}"
        ));
    }
    Ok(outcome)
}

/// Larger than what is explored.
const WALKED: Lock = Lock {
    cuts: 5,
    late_calls: true,
    deaths: 5,
    losses: 2,
    jumps: 3,
    requests: 2,
    renewals: true,
    ..Lock::new(Variant::Correct, 4, 9, 40)
};

/// Takes steps of the model, one of those that are possible at each time. Returns how many messages were sent.
fn walk(steps: &[Index]) -> Result<usize, String> {
    let mut state = WALKED.init_states().remove(0);
    let (mut ledger, mut taken, mut pushes) = (Ledger::default(), Vec::new(), 0);
    for step in steps {
        let mut actions = Vec::new();
        WALKED.actions(&state, &mut actions);
        if actions.is_empty() {
            break;
        }
        let action = *step.get(&actions);
        taken.push(action);
        if let Some(call) = next_call(&state, action) {
            let outcome = compare(&mut state.store.clone(), &mut ledger, call, state.clock);
            pushes += usize::from(outcome.map_err(|why| format!("{why}\nafter {taken:#?}"))?.push.is_some());
        }
        if action == Action::LoseMemory {
            ledger = Ledger::default();
        }
        state.take(action, Variant::Correct, WALKED.late_calls);
    }
    Ok(pushes)
}

#[test]
fn the_ledger_does_what_the_model_does_whatever_steps_are_taken() {
    let pushes = Cell::new(0);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 512,
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..ProptestConfig::default()
    });
    let steps = prop::collection::vec(any::<Index>(), 1..250);
    runner
        .run(&steps, |steps| {
            pushes.set(pushes.get() + walk(&steps).map_err(TestCaseError::fail)?);
            Ok(())
        })
        .expect("both do the same");
    assert!(pushes.get() > 500, "hardly anything was handed over: {}", pushes.get());
}

/// The store alone: every operation on each of two leases, at every time.
struct Records;

/// More numbers than these are not issued in a tick.
const ISSUED: Number = 6;
const TICKS: Ticks = 3;

impl Model for Records {
    type State = (Store, Ticks);
    type Action = Option<(Operation, Lease)>;

    fn init_states(&self) -> Vec<Self::State> {
        vec![(Store::default(), 0)]
    }

    fn actions(&self, (_, now): &Self::State, actions: &mut Vec<Self::Action>) {
        for client in 0..2 {
            let operations = [Operation::Request, Operation::Renew, Operation::Release];
            actions.extend(operations.map(|operation| Some((operation, Lease { client, number: 0 }))));
        }
        actions.extend((*now < TICKS).then_some(None));
    }

    fn next_state(&self, (store, now): &Self::State, action: Self::Action) -> Option<Self::State> {
        let Some((operation, lease)) = action else { return Some((store.clone(), now + 1)) };
        let mut store = store.clone();
        store.execute(operation, lease, *now, Variant::Correct);
        Some((store, *now))
    }

    fn within_boundary(&self, (store, now): &Self::State) -> bool {
        store.last < floor(*now) + ISSUED
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::<Self>::always("the ledger does the same", |_, (store, now)| {
            all_are_the_same(store, *now) == Ok(())
        })]
    }
}

fn all_are_the_same(store: &Store, now: Ticks) -> Result<(), String> {
    let ledger: Ledger =
        record(store).replace("LAPSES", "0").replace("SINCE", "1").parse().expect("a record");
    let (mut steps, state) = (Vec::new(), (store.clone(), now));
    Records.actions(&state, &mut steps);
    for (operation, lease) in steps.into_iter().flatten() {
        let call = Call { operation, lease, at: now };
        compare(&mut store.clone(), &mut ledger.clone(), call, now)?;
    }
    Ok(())
}

#[test]
fn the_ledger_does_what_the_model_does_from_every_record() {
    let explored = explore(Records);
    println!("compared with the ledger: {explored}");
    assert!(explored.broken.is_none(), "{explored}");
}
