//! A lock on a majority of three nodes, with the greatest token written back before it is used; nodes that lose their
//! memory or whose clocks jump.
//!
//! A node executes a call at any time after it was sent, or never; its answer arrives at once. Nobody queues: a request
//! that finds no majority is given up and made again, as another lease.

use stateright::{Model, Property};

use super::Variant;
use super::store::{Lease, Number, TTL, Ticks, floor};

const NODES: usize = 3;
const MAJORITY: usize = 2;

/// The lock. The numbers say how large the model is, and how often each fault may occur.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Redlock {
    /// What is planted.
    pub variant: Variant,
    /// How many clients there are.
    pub clients: u8,
    /// How many leases each of them requests.
    pub leases: u8,
    /// How many ticks pass.
    pub ticks: Ticks,
    /// How often a node loses its memory, or its clock jumps ahead by a TTL.
    pub faults: u8,
    /// Whether leases are renewed.
    pub renewals: bool,
}

impl Redlock {
    /// Without faults.
    #[must_use]
    pub const fn new(variant: Variant, clients: u8, leases: u8, ticks: Ticks) -> Self {
        Self { variant, clients, leases, ticks, faults: 0, renewals: false }
    }
}

/// A moment of all.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    now: Ticks,
    nodes: [Node; NODES],
    clients: Vec<Client>,
    faults: u8,
    /// The tokens under which the lock was held.
    used: Vec<Number>,
    went_back: bool,
    /// A lease was renewed after another one had been granted.
    revived: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Node {
    hold: Option<(Lease, Number, Ticks)>,
    last: Number,
    ahead: Ticks,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Client {
    lease: Lease,
    phase: Phase,
    /// Since when, on which nodes, and with which votes there is a round of calls.
    round: Round,
    /// The token, and until when the lock is trusted, from the first grant on.
    token: Number,
    until: Ticks,
    /// The greatest token under which the lock had been held when it was requested.
    newest: Number,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    Requesting,
    /// A majority has granted it, under different tokens.
    Settling,
    Held,
    Renewing,
    Releasing,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Round {
    at: Ticks,
    asked: [bool; NODES],
    votes: [Option<Number>; NODES],
    /// Whether another lease had been granted when a renewal was sent.
    is_late: bool,
}

/// A step of one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Action {
    /// A client requests a lease of all nodes.
    Ask(u8),
    /// It renews its lease on all nodes.
    Renew(u8),
    /// It releases its lease, or gives it up.
    Release(u8),
    /// A node executes the call of a client.
    Call(u8, usize),
    /// A node loses its memory, and is back a tick later.
    LoseMemory(usize),
    /// The clock of a node jumps ahead by a TTL.
    Jump(usize),
    /// Time passes.
    Tick,
}

impl Model for Redlock {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let client = |client| Client {
            lease: Lease { client, number: 0 },
            phase: Phase::Idle,
            round: Round::default(),
            token: 0,
            until: 0,
            newest: 0,
        };
        let clients = (0..self.clients).map(client).collect();
        let (nodes, used) = (<[Node; NODES]>::default(), Vec::new());
        vec![State { now: 0, nodes, clients, faults: 0, used, went_back: false, revived: false }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (number, client) in (0..).zip(&state.clients) {
            let may_renew = self.renewals && state.now < client.until && client.until < state.now + TTL;
            match client.phase {
                Phase::Idle if client.lease.number < self.leases => actions.push(Action::Ask(number)),
                Phase::Idle => {}
                Phase::Held if may_renew => actions.extend([Action::Renew(number), Action::Release(number)]),
                Phase::Releasing => {}
                _ => actions.push(Action::Release(number)),
            }
            if !matches!(client.phase, Phase::Idle | Phase::Held) {
                let open = (0..NODES).filter(|node| !client.round.asked[*node]);
                // In which order nodes are released matters to nobody, so one is enough.
                let most = if client.phase == Phase::Releasing { 1 } else { NODES };
                actions.extend(open.take(most).map(|node| Action::Call(number, node)));
            }
        }
        if state.now < self.ticks {
            actions.push(Action::Tick);
        }
        if state.faults < self.faults {
            actions.extend((0..NODES).map(Action::Jump));
            if state.now < self.ticks {
                actions.extend((0..NODES).map(Action::LoseMemory));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        match action {
            Action::Ask(number) => next.client(number).ask(last.now, last.newest(), self.variant),
            Action::Renew(number) => {
                let is_late = last.newest() > last.clients[usize::from(number)].token;
                let round = Round { at: last.now, is_late, ..Round::default() };
                next.client(number).begin(Phase::Renewing, round);
            }
            Action::Release(number) => next.client(number).release(self.variant),
            Action::Call(number, node) => next.call(number, node, self.variant),
            Action::LoseMemory(node) => {
                let ahead = last.nodes[node].ahead;
                next.nodes[node] = Node { ahead, ..Node::default() };
                next.faults += 1;
                next.now += 1;
            }
            Action::Jump(node) => {
                next.nodes[node].ahead += TTL;
                next.faults += 1;
            }
            Action::Tick => next.now += 1,
        }
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::<Self>::always("I1", |_, state| state.excludes() && !state.revived),
            Property::<Self>::always("I2", |_, state| !state.went_back),
            Property::<Self>::sometimes("a token is written back", |_, state| {
                state.clients.iter().any(|client| client.phase == Phase::Settling)
            }),
        ]
    }
}

impl State {
    fn newest(&self) -> Number {
        self.used.last().copied().unwrap_or_default()
    }

    fn client(&mut self, number: u8) -> &mut Client {
        &mut self.clients[usize::from(number)]
    }

    /// A node executes what a client has sent, and the client decides.
    fn call(&mut self, number: u8, node: usize, variant: Variant) {
        let now = self.now;
        let client = &mut self.clients[usize::from(number)];
        let at = &mut self.nodes[node];
        client.round.asked[node] = true;
        let vote = match client.phase {
            Phase::Requesting => at.request(client.lease, floor(client.round.at), now),
            Phase::Settling => at.settle(client.lease, client.token, now),
            Phase::Renewing => at.renew(client.lease, client.token, now, variant),
            _ => {
                at.release(client.lease);
                None
            }
        };
        client.round.votes[node] = vote.or(client.round.votes[node]);
        let was = client.phase;
        client.decide(now, variant);
        let has_begun = client.phase == Phase::Held && matches!(was, Phase::Requesting | Phase::Settling);
        let is_renewed = client.phase == Phase::Held && was == Phase::Renewing;
        self.revived |= is_renewed && client.round.is_late;
        if has_begun {
            self.went_back |= client.token <= client.newest || self.used.contains(&client.token);
            self.used.push(client.token);
            self.used.sort_unstable();
        }
    }

    /// No two hold the lock. After a fault that is promised only from the next renewal on.
    fn excludes(&self) -> bool {
        let holds = |client: &&Client| {
            matches!(client.phase, Phase::Held | Phase::Renewing) && self.now < client.until
        };
        self.clients.iter().filter(holds).count() <= 1 || self.faults > 0
    }
}

impl Node {
    /// The lease that is held there, and has not ended.
    fn held(&mut self, now: Ticks) -> Option<Lease> {
        let clock = now + self.ahead;
        self.hold.take_if(|(_, _, ends)| *ends <= clock);
        self.hold.map(|(lease, ..)| lease)
    }

    fn request(&mut self, lease: Lease, proposal: Number, now: Ticks) -> Option<Number> {
        match self.held(now) {
            Some(held) if held != lease => None,
            Some(_) => self.hold.map(|(_, token, _)| token),
            None => {
                self.last = proposal.max(self.last + 1).max(floor(now + self.ahead));
                self.hold = Some((lease, self.last, now + self.ahead + TTL));
                Some(self.last)
            }
        }
    }

    /// Gives the lease the final token, if it is still held.
    fn settle(&mut self, lease: Lease, token: Number, now: Ticks) -> Option<Number> {
        self.held(now).filter(|held| *held == lease)?;
        self.last = self.last.max(token);
        self.hold = self.hold.map(|(lease, _, ends)| (lease, token, ends));
        Some(token)
    }

    /// A node that holds nothing receives the lease again. That does not count: another client may have held the lock
    /// in between.
    fn renew(&mut self, lease: Lease, token: Number, now: Ticks, variant: Variant) -> Option<Number> {
        let held = self.held(now);
        if held.is_some_and(|held| held != lease) {
            return None;
        }
        self.last = self.last.max(token);
        self.hold = Some((lease, token, now + self.ahead + TTL));
        (held.is_some() || variant == Variant::CountsRestoredNodes).then_some(token)
    }

    fn release(&mut self, lease: Lease) {
        self.hold.take_if(|(held, ..)| *held == lease);
    }
}

impl Client {
    fn begin(&mut self, phase: Phase, round: Round) {
        (self.phase, self.round) = (phase, round);
    }

    fn ask(&mut self, now: Ticks, newest: Number, variant: Variant) {
        self.newest = newest;
        let votes = if variant == Variant::CountsEarlierVotes { self.round.votes } else { [None; NODES] };
        self.begin(Phase::Requesting, Round { at: now, votes, ..Round::default() });
    }

    fn release(&mut self, variant: Variant) {
        let votes = if variant == Variant::CountsEarlierVotes { self.round.votes } else { [None; NODES] };
        self.begin(Phase::Releasing, Round { votes, ..Round::default() });
    }

    /// Whether a majority has said so.
    fn has_majority(&self) -> bool {
        self.round.votes.iter().flatten().count() >= MAJORITY
    }

    fn decide(&mut self, now: Ticks, variant: Variant) {
        let is_complete = self.round.asked.iter().all(|asked| *asked);
        match self.phase {
            Phase::Releasing if is_complete => {
                self.phase = Phase::Idle;
                self.lease.number += 1;
            }
            Phase::Requesting if self.has_majority() => {
                let votes: Vec<_> = self.round.votes.into_iter().flatten().collect();
                self.token = votes.iter().copied().max().unwrap_or_default();
                self.until = self.round.at + TTL;
                let agreeing = votes.iter().filter(|vote| **vote == self.token).count();
                if agreeing >= MAJORITY || variant == Variant::KeepsTokensToItself {
                    self.hold(now, variant);
                } else {
                    let at = self.round.at;
                    self.begin(Phase::Settling, Round { at, ..Round::default() });
                }
            }
            Phase::Settling if self.has_majority() => self.hold(now, variant),
            Phase::Renewing if self.has_majority() => {
                self.phase = Phase::Held;
                if now < self.until {
                    self.until = self.until.max(self.round.at + TTL);
                }
            }
            Phase::Renewing if is_complete => self.release(variant),
            _ => {}
        }
    }

    /// A lease that is over by then is given up.
    fn hold(&mut self, now: Ticks, variant: Variant) {
        if now < self.until {
            self.phase = Phase::Held;
        } else {
            self.release(variant);
        }
    }
}
