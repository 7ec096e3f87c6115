//! A lock on one store: every order in which its clients, the store, the network and the clock can take their steps.

use super::Variant;
use super::client::{Call, Client, Draft, Phase};
use super::store::{Answer, Lease, Number, Operation, Outcome, Push, Store, TOKENS, TTL, Ticks};

/// A lock and its clients. The numbers say how large the model is, and how often each fault may occur.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Lock {
    /// What is planted.
    pub variant: Variant,
    /// How many clients there are.
    pub clients: u8,
    /// How many leases each of them requests.
    pub leases: u8,
    /// How many ticks pass.
    pub ticks: Ticks,
    /// How often a connection is cut.
    pub cuts: u8,
    /// Whether the store may still execute, at any time, what was sent on a connection before it was cut. (The clients
    /// have the server close it before they use another one, if they may.)
    pub late_calls: bool,
    /// How often a client dies. Another one takes its place.
    pub deaths: u8,
    /// How often the store loses its memory.
    pub losses: u8,
    /// How often the store's clock jumps, by a TTL.
    pub jumps: u8,
    /// How many requests of a client are in flight at most.
    pub requests: usize,
    /// Whether leases are renewed.
    pub renewals: bool,
    /// Whether leases are passed on within a client.
    pub hand_over: bool,
    /// Whether holders change data, which checks tokens.
    pub data: bool,
}

impl Lock {
    /// Without faults.
    #[must_use]
    pub const fn new(variant: Variant, clients: u8, leases: u8, ticks: Ticks) -> Self {
        Self {
            variant,
            clients,
            leases,
            ticks,
            cuts: 0,
            late_calls: false,
            deaths: 0,
            losses: 0,
            jumps: 0,
            requests: 1,
            renewals: false,
            hand_over: false,
            data: false,
        }
    }
}

/// A moment of all.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub(super) now: Ticks,
    /// The store's time.
    pub(super) clock: Ticks,
    pub(super) store: Store,
    pub(super) clients: Vec<Client>,
    /// Calls of clients that have died, and, if there are such, of connections that were cut.
    pub(super) late: Vec<Call>,
    pub(super) data: Data,
    pub(super) past: Past,
}

/// Data that is changed under the lock: it accepts no smaller token than it has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Data {
    pub(super) value: u8,
    token: Number,
    /// How many changes it has accepted.
    pub(super) changes: u8,
}

/// What has happened, for the properties.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Past {
    cuts: u8,
    deaths: u8,
    pub(super) losses: u8,
    pub(super) jumps: u8,
    /// The leases of clients that have died.
    pub(super) abandoned: Vec<Lease>,
    /// The greatest token that was reserved.
    newest: Number,
    pub(super) went_back: bool,
    /// Who waits, in order of arrival, and until when.
    arrivals: Vec<(Lease, Ticks)>,
    pub(super) overtook: bool,
}

/// A step of one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Action {
    /// A client requests a lease.
    Ask(u8),
    /// It repeats its request.
    Repeat(u8),
    /// It renews its lease.
    Renew(u8),
    /// It passes its lease on to another of its tasks.
    PassOn(u8),
    /// It releases its lease, or gives its request up.
    Release(u8),
    /// It repeats a release that was not confirmed.
    ReleaseAgain(u8),
    /// It reads the data under its token.
    Read(u8),
    /// It writes the data that it has changed.
    Write(u8),
    /// The store executes the client's next call.
    Execute(u8),
    /// The client receives its next answer.
    Receive(u8),
    /// The client receives the next pushed grant.
    Notify(u8),
    /// Calls and answers on their way are lost.
    Cut(u8),
    /// Pushed grants on their way are lost.
    CutPushes(u8),
    /// The store executes a late call.
    ExecuteLate(usize),
    /// A client dies, and another one takes its place.
    Die(u8),
    /// The store loses its memory, and is back a tick later.
    LoseMemory,
    /// The store's clock is set forward by a TTL.
    JumpAhead,
    /// The store's clock is set back by a TTL.
    JumpBack,
    /// Time passes.
    Tick,
}

impl Lock {
    pub(super) fn actions_of(&self, number: u8, client: &Client, state: &State, actions: &mut Vec<Action>) {
        let now = state.now;
        match &client.phase {
            Phase::Idle if client.lease.number < self.leases => actions.push(Action::Ask(number)),
            Phase::Idle => {}
            Phase::Waiting { .. } => {
                if self.may_repeat(client) {
                    actions.push(Action::Repeat(number));
                }
                actions.push(Action::Release(number));
            }
            Phase::Held(held) => {
                let is_renewed = now < held.until && held.until < now + TTL;
                if self.renewals && is_renewed && client.in_flight(Operation::Renew) == 0 {
                    actions.push(Action::Renew(number));
                }
                if self.hand_over && client.may_pass_on(now, self.variant) {
                    actions.push(Action::PassOn(number));
                }
                if self.data && now < held.until && !held.has_read && client.draft.is_none() {
                    actions.push(Action::Read(number));
                }
                actions.push(Action::Release(number));
            }
            Phase::Releasing => {
                if self.may_release_again(client) {
                    actions.push(Action::ReleaseAgain(number));
                }
            }
        }
        let is_under_way = !client.calls.is_empty() || !client.answers.is_empty();
        let may_cut = state.past.cuts < self.cuts;
        let may_die = state.past.deaths < self.deaths && client.phase != Phase::Idle;
        let steps = [
            (client.draft.is_some(), Action::Write(number)),
            (!client.calls.is_empty(), Action::Execute(number)),
            (!client.answers.is_empty(), Action::Receive(number)),
            (!client.pushes.is_empty(), Action::Notify(number)),
            (may_cut && is_under_way, Action::Cut(number)),
            (may_cut && !client.pushes.is_empty(), Action::CutPushes(number)),
            (may_die, Action::Die(number)),
        ];
        actions.extend(steps.into_iter().filter(|(is_possible, _)| *is_possible).map(|(_, step)| step));
    }

    pub(super) fn may_repeat(&self, client: &Client) -> bool {
        self.variant != Variant::NeitherPushesNorRepeats
            && client.in_flight(Operation::Request) < self.requests
    }

    pub(super) fn may_release_again(&self, client: &Client) -> bool {
        client.in_flight(Operation::Release) == 0
    }
}

impl State {
    pub(super) fn take(&mut self, action: Action, variant: Variant, late_calls: bool) {
        let now = self.now;
        match action {
            Action::Ask(number) => self.client(number).ask(now),
            Action::Repeat(number) => self.client(number).send(Operation::Request, now),
            Action::Renew(number) => self.client(number).send(Operation::Renew, now),
            Action::PassOn(number) => self.client(number).pass_on(now, variant),
            Action::Release(number) => self.client(number).release(now),
            Action::ReleaseAgain(number) => self.client(number).send(Operation::Release, now),
            Action::Read(number) => self.read(number),
            Action::Write(number) => self.write(number),
            Action::Execute(number) => {
                let call = self.client(number).calls.remove(0);
                let outcome = self.execute(call, variant);
                self.client(number).answer(call, outcome.answer);
            }
            Action::Receive(number) => {
                let (call, answer) = self.client(number).answers.remove(0);
                self.client(number).receive(call, answer, now, variant);
            }
            Action::Notify(number) => {
                let push = self.client(number).pushes.remove(0);
                self.client(number).notify(push, now, variant);
            }
            Action::Cut(number) => self.cut(number, variant, late_calls),
            Action::CutPushes(number) => {
                self.past.cuts += 1;
                self.client(number).pushes.clear();
            }
            Action::ExecuteLate(which) => {
                let call = self.late.remove(which);
                self.execute(call, variant);
            }
            Action::Die(number) => self.die(number),
            Action::LoseMemory => {
                self.past.losses += 1;
                self.past.arrivals.clear();
                self.store = Store::default();
                self.tick();
            }
            Action::JumpAhead => (self.clock, self.past.jumps) = (self.clock + TTL, self.past.jumps + 1),
            Action::JumpBack => (self.clock, self.past.jumps) = (self.clock - TTL, self.past.jumps + 1),
            Action::Tick => self.tick(),
        }
    }

    pub(super) fn client(&mut self, number: u8) -> &mut Client {
        &mut self.clients[usize::from(number)]
    }

    /// Time passes for all alike. Who waits has come before those who come later, as long as its place lasts.
    pub(super) fn tick(&mut self) {
        (self.now, self.clock) = (self.now + 1, self.clock + 1);
    }

    /// The store executes a call, and the properties are told.
    fn execute(&mut self, call: Call, variant: Variant) -> Outcome {
        let outcome = self.store.execute(call.operation, call.lease, self.clock, variant);
        self.past.arrive(call, outcome.answer, self.clock);
        if let Some((lease, token)) = outcome.granted {
            self.past.grant(lease, token);
        }
        if let Some(push) = outcome.push.filter(|_| variant != Variant::NeitherPushesNorRepeats) {
            self.push(push);
        }
        outcome
    }

    fn push(&mut self, push: Push) {
        self.client(push.lease.client).push(push);
    }

    fn cut(&mut self, number: u8, variant: Variant, late_calls: bool) {
        self.past.cuts += 1;
        let client = self.client(number);
        client.answers.clear();
        let calls = std::mem::take(&mut client.calls);
        if variant == Variant::GivesUpReleases && client.phase == Phase::Releasing {
            client.forget();
        }
        if late_calls {
            self.delay(calls);
        }
    }

    fn die(&mut self, number: u8) {
        self.past.deaths += 1;
        let client = self.client(number);
        let (lease, calls) = (client.lease, std::mem::take(&mut client.calls));
        client.answers.clear();
        client.pushes.clear();
        client.forget();
        self.past.abandoned.push(lease);
        self.delay(calls);
    }

    fn delay(&mut self, calls: Vec<Call>) {
        self.late.extend(calls);
        self.late.sort_unstable();
    }

    fn read(&mut self, number: u8) {
        let Phase::Held(held) = &mut self.clients[usize::from(number)].phase else { return };
        held.has_read = true;
        let token = held.token;
        if token >= self.data.token {
            self.data.token = token;
            let value = self.data.value;
            self.client(number).draft = Some(Draft { token, value });
        }
    }

    fn write(&mut self, number: u8) {
        let Some(draft) = self.client(number).draft.take() else { return };
        if draft.token >= self.data.token {
            (self.data.value, self.data.token) = (draft.value + 1, draft.token);
            self.data.changes += 1;
        }
    }

    /// No two hold the lock. That is not promised after the store has lost its memory, or its clock was set.
    pub(super) fn excludes(&self) -> bool {
        let holders = self.clients.iter().filter(|client| client.held(self.now).is_some());
        holders.count() <= 1 || self.past.losses > 0 || self.past.jumps > 0
    }
}

impl Past {
    /// Whoever is told to wait has arrived, and keeps its place for a TTL.
    fn arrive(&mut self, call: Call, answer: Answer, clock: Ticks) {
        self.arrivals.retain(|(_, ends)| *ends > clock);
        let known = self.arrivals.iter_mut().find(|(lease, _)| *lease == call.lease);
        match (answer, known) {
            (Answer::Queued { .. }, Some((_, ends))) => *ends = clock + TTL,
            (Answer::Queued { .. }, None) => self.arrivals.push((call.lease, clock + TTL)),
            (Answer::Released, _) => self.arrivals.retain(|(lease, _)| *lease != call.lease),
            _ => {}
        }
    }

    fn grant(&mut self, lease: Lease, token: Number) {
        self.went_back |= token <= self.newest;
        self.newest = self.newest.max(token + TOKENS - 1);
        self.overtook |= self.arrivals.first().is_some_and(|(first, _)| *first != lease);
        self.arrivals.retain(|(waits, _)| *waits != lease);
    }
}
