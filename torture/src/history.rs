//! What happened in a run: every operation, on one monotonic clock, and every fault.
//!
//! A worker writes one line for each [`Event`], when it happens, so that nothing is lost if the worker is killed.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

/// A moment on the clock that all processes of the machine share, or a duration, in microseconds.
pub type Micros = u64;

/// The number of a request, and of the hold that comes of it. No two of a run have the same.
pub type HoldId = u64;

/// Something that a worker saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When. For what is invoked, before; for what returns, after.
    pub at: Micros,
    /// Which request or hold it is about.
    pub hold: HoldId,
    /// What it was.
    pub what: What,
}

/// What happens to a request and its hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum What {
    /// It is about to be requested.
    Asked(Asked),
    /// It is held, under this token.
    Granted {
        /// The token.
        token: u64,
    },
    /// The request has ended otherwise.
    Refused(Refusal),
    /// The holder has seen that it holds, until then if nothing is renewed.
    Held {
        /// When the lease ends, as the holder knows.
        until: Micros,
    },
    /// The holder was told that its lease is lost, and why.
    Lost(Loss),
    /// The release was invoked, or the guard dropped.
    Releasing,
    /// The release was confirmed.
    Released,
    /// Its holder has made a ticket of it, by which somebody else can go on.
    HandedOver,
}

/// Why a lease is lost, as the holder is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// It was released by force.
    Revoked,
    /// The store does not have it any more.
    Missing,
    /// Somebody else has what was held.
    Taken,
    /// It ended because no renewal was confirmed.
    Ended,
    /// It was held for as long as it may be.
    HeldTooLong,
    /// The client was shut down.
    Closed,
}

impl Loss {
    const ALL: [Self; 6] =
        [Self::Revoked, Self::Missing, Self::Taken, Self::Ended, Self::HeldTooLong, Self::Closed];

    const fn name(self) -> &'static str {
        match self {
            Self::Revoked => "revoked",
            Self::Missing => "missing",
            Self::Taken => "taken",
            Self::Ended => "ended",
            Self::HeldTooLong => "held-too-long",
            Self::Closed => "closed",
        }
    }
}

impl FromStr for Loss {
    type Err = NotAnEvent;

    fn from_str(name: &str) -> Result<Self, NotAnEvent> {
        let named = Self::ALL.into_iter().find(|loss| loss.name() == name);
        named.ok_or_else(|| NotAnEvent(name.to_owned()))
    }
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Of what: the index in [`History::sites`].
    pub site: usize,
    /// By which client: its number.
    pub client: u32,
    /// For which owner of a reentrant lock.
    pub owner: Option<u32>,
    /// How many permits.
    pub permits: u32,
    /// Whether it waits without a limit of time.
    pub waits_forever: bool,
    /// In which hold of the same owner and client it is nested.
    pub within: Option<HoldId>,
    /// If several were asked for at once, all of them or none: the first of these requests.
    pub together: Option<HoldId>,
    /// Which hold goes on in this one, under its token: it was handed over by a ticket, or downgraded.
    pub continues: Option<HoldId>,
}

/// How a request ends without a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// Somebody else holds it, and it does not wait.
    Busy,
    /// Its time is up.
    TimedOut,
    /// Its future was dropped.
    Dropped,
    /// It failed.
    Failed,
    /// What it had of several was lost again and again while it waited for the others.
    Lost,
}

/// Something that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// What it is called.
    pub name: String,
    /// How many permits there are, by the time from which that is so.
    pub limits: Vec<Limit>,
    /// The lease of its holders.
    pub lease: Micros,
    /// Which order of grants is promised.
    pub order: Order,
    /// Whether tokens show the order of grants.
    pub ordered_tokens: bool,
    /// Whether an owner that asks in several tasks at once gets a lease for each. Then it enters the one with the
    /// greatest token, which may be greater than that of the hold in which it does so.
    pub lease_per_request: bool,
}

/// How many permits there are for some time. While that is being changed, two limits may be in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// How many.
    pub permits: u32,
    /// From when: somebody is about to change it to this.
    pub from: Micros,
    /// Until when: somebody has changed it to another one.
    pub to: Micros,
}

impl Limit {
    /// From the beginning.
    #[must_use]
    pub const fn always(permits: u32) -> Self {
        Self { permits, from: 0, to: Micros::MAX }
    }
}

impl Site {
    /// It has so many permits from now on: some time between these moments, this was changed.
    pub fn resize(&mut self, began: Micros, ended: Micros, permits: u32) {
        if let Some(last) = self.limits.last_mut() {
            last.to = ended;
        }
        self.limits.push(Limit { permits, from: began, to: Micros::MAX });
    }

    /// The greatest limit that was in force at any of these moments.
    #[must_use]
    pub fn greatest_limit(&self, from: Micros, to: Micros) -> u32 {
        let all = self.limits.iter().filter(|limit| limit.from <= to && from <= limit.to);
        all.map(|limit| limit.permits).max().unwrap_or_default()
    }

    /// The smallest limit that may have been in force at this moment.
    #[must_use]
    pub fn least_limit(&self, at: Micros) -> u32 {
        let all = self.limits.iter().filter(|limit| limit.from <= at && at < limit.to);
        all.map(|limit| limit.permits).min().unwrap_or_default()
    }

    /// Whether only one can hold it.
    #[must_use]
    pub fn is_lock(&self) -> bool {
        self.limits.iter().all(|limit| limit.permits == 1)
    }
}

/// Which requests are granted in the order in which they arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// None.
    Free,
    /// Those of one client: it passes its leases on.
    WithinClients,
    /// All.
    Arrival,
}

/// Something that went wrong, on purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// From when.
    pub began: Micros,
    /// Until when.
    pub ended: Micros,
    /// What.
    pub what: String,
    /// What it does to the promises.
    pub effect: Effect,
}

/// What a fault does to the promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect {
    /// It delays.
    Delays,
    /// For a while, the store refuses what writes, for all. Then whoever waits for what was released meanwhile need not wait
    /// until leases have ended: a release is repeated.
    Refuses,
    /// Exclusion is not promised until a lease after its end: the store forgets, or its clock is set.
    Forgets,
    /// An operator releases by force what is held there, which its holder is told.
    Breaks {
        /// The index of what was held in [`History::sites`].
        site: usize,
    },
    /// An operator changes a limit.
    Resizes {
        /// The index of what it is the limit of in [`History::sites`].
        site: usize,
        /// How many permits there are from now on.
        permits: u32,
    },
    /// Nothing, as it turned out.
    Nothing,
    /// A client is stopped.
    Pauses {
        /// Its number.
        client: u32,
    },
    /// A client does not run for a moment, because the machine has other things to do.
    Stalls {
        /// Its number.
        client: u32,
    },
    /// A client is killed.
    Kills {
        /// Its number. The client that takes its place has another one.
        client: u32,
    },
}

impl Effect {
    /// Whether anything may go wrong: what an operator does delays nobody, and loses no place.
    #[must_use]
    pub const fn is_fault(self) -> bool {
        !matches!(self, Self::Breaks { .. } | Self::Resizes { .. } | Self::Nothing)
    }
}

/// An attempt to change data under a token, in the order in which the data decided on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// When the data decided.
    pub at: Micros,
    /// Which data: its number.
    pub data: u32,
    /// Whether it checks tokens.
    pub is_fenced: bool,
    /// Under which token.
    pub token: u64,
    /// The value that was read before.
    pub read: u64,
    /// The value that is to be stored.
    pub value: u64,
    /// Whether it was accepted.
    pub is_accepted: bool,
}

/// What a run uses, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The keys, rows or nodes in the store other than fences.
    pub records: Vec<String>,
    /// Connections at the server.
    pub connections: u64,
    /// Tasks of the workers' runtimes.
    pub tasks: u64,
    /// Open descriptors.
    pub descriptors: u64,
    /// Memory of the workers, in bytes: the most in the first third of their time, and in the last one.
    pub memory: u64,
}

/// What hand-overs cost the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// How many waited.
    pub waiters: u64,
    /// How often the lock was handed over.
    pub hand_overs: u64,
    /// How many commands the store executed for that.
    pub commands: u64,
}

/// A request, and what came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Its number.
    pub id: HoldId,
    /// What was asked.
    pub request: Asked,
    /// When.
    pub asked: Micros,
    /// When it returned, and with what.
    pub returned: Option<(Micros, Result<u64, Refusal>)>,
    /// Until when it is held without a renewal, as the holder saw last.
    pub until: Option<Micros>,
    /// When the holder was told of its loss.
    pub lost: Option<Micros>,
    /// Why it was lost.
    pub loss: Option<Loss>,
    /// When its release was invoked, or it was handed over.
    pub releasing: Option<Micros>,
    /// Whether it was handed over.
    pub is_handed_over: bool,
    /// When its release was confirmed.
    pub released: Option<Micros>,
}

impl Operation {
    /// When it was granted, and under which token.
    #[must_use]
    pub const fn granted(&self) -> Option<(Micros, u64)> {
        match self.returned {
            Some((at, Ok(token))) => Some((at, token)),
            _ => None,
        }
    }
}

/// All of a run.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// What could be held.
    pub sites: Vec<Site>,
    /// In the order in which they were asked.
    pub operations: Vec<Operation>,
    /// In the order in which they began.
    pub faults: Vec<Fault>,
    /// In the order in which the data decided.
    pub writes: Vec<Write>,
    /// Before the run and after it.
    pub usage: Option<(Usage, Usage)>,
    /// For different numbers of waiters.
    pub costs: Vec<Cost>,
    /// When recording ended.
    pub end: Micros,
}

impl History {
    /// Joins the events of all workers, in any order.
    ///
    /// # Errors
    ///
    /// If something happens to a hold that nobody has asked for.
    pub fn of(sites: Vec<Site>, mut events: Vec<Event>) -> Result<Self, UnknownHold> {
        // What is asked at some moment comes before its answer at the same moment.
        events.sort_by_key(|event| (event.at, !matches!(event.what, What::Asked(_))));
        let mut history = Self { sites, ..Self::default() };
        let mut known = HashMap::with_capacity(events.len() / 4);
        for Event { at, hold, what } in events {
            history.end = at;
            if let What::Asked(request) = what {
                known.insert(hold, history.operations.len());
                history.operations.push(Operation::asked(hold, request, at));
                continue;
            }
            let index = *known.get(&hold).ok_or(UnknownHold(hold))?;
            history.operations[index].follow(at, what);
        }
        Ok(history)
    }

    /// With these faults, and the limits that follow from them.
    #[must_use]
    pub fn under(mut self, mut faults: Vec<Fault>) -> Self {
        faults.sort_by_key(|fault| fault.began);
        for fault in &faults {
            if let Effect::Resizes { site, permits } = fault.effect {
                self.sites[site].resize(fault.began, fault.ended, permits);
            }
        }
        self.faults = faults;
        self
    }
}

impl Operation {
    const fn asked(id: HoldId, request: Asked, asked: Micros) -> Self {
        let (returned, until, lost, loss, releasing, released) = (None, None, None, None, None, None);
        Self { id, request, asked, returned, until, lost, loss, releasing, is_handed_over: false, released }
    }

    const fn follow(&mut self, at: Micros, what: What) {
        match what {
            What::Asked(_) => {}
            What::Granted { token } => self.returned = Some((at, Ok(token))),
            What::Refused(refusal) => self.returned = Some((at, Err(refusal))),
            What::Held { until } => self.until = Some(until),
            What::Lost(loss) => (self.lost, self.loss) = (Some(at), Some(loss)),
            What::Releasing => self.releasing = Some(at),
            What::Released => self.released = Some(at),
            What::HandedOver => (self.releasing, self.is_handed_over) = (Some(at), true),
        }
    }
}

/// An event is about a hold that nobody has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownHold(pub HoldId);

impl fmt::Display for UnknownHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hold {} was never asked for", self.0)
    }
}

impl std::error::Error for UnknownHold {}

// As text: the moment, the hold, what it was, and its details; `-` for what there is not.

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ", self.at, self.hold)?;
        match self.what {
            What::Asked(Asked {
                site,
                client,
                owner,
                permits,
                waits_forever,
                within,
                together,
                continues,
            }) => {
                let (owner, within, together, continues) =
                    (or(owner), or(within), or(together), or(continues));
                write!(
                    f,
                    "asked {site} {client} {owner} {permits} {waits_forever} {within} {together} {continues}"
                )
            }
            What::Granted { token } => write!(f, "granted {token}"),
            What::Refused(Refusal::Busy) => write!(f, "busy"),
            What::Refused(Refusal::TimedOut) => write!(f, "timed-out"),
            What::Refused(Refusal::Dropped) => write!(f, "dropped"),
            What::Refused(Refusal::Failed) => write!(f, "failed"),
            What::Refused(Refusal::Lost) => write!(f, "lost-meanwhile"),
            What::Held { until } => write!(f, "held {until}"),
            What::Lost(loss) => write!(f, "lost {}", loss.name()),
            What::Releasing => write!(f, "releasing"),
            What::Released => write!(f, "released"),
            What::HandedOver => write!(f, "handed-over"),
        }
    }
}

fn or<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// A line is not an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAnEvent(pub String);

impl fmt::Display for NotAnEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not an event: {:?}", self.0)
    }
}

impl std::error::Error for NotAnEvent {}

impl FromStr for Event {
    type Err = NotAnEvent;

    fn from_str(line: &str) -> Result<Self, NotAnEvent> {
        read(line).ok_or_else(|| NotAnEvent(line.to_owned()))
    }
}

fn read(line: &str) -> Option<Event> {
    let mut words = line.split(' ');
    let (at, hold) = (next(&mut words)?, next(&mut words)?);
    let what = match words.next()? {
        "asked" => What::Asked(Asked {
            site: next(&mut words)?,
            client: next(&mut words)?,
            owner: next_or(&mut words)?,
            permits: next(&mut words)?,
            waits_forever: next(&mut words)?,
            within: next_or(&mut words)?,
            together: next_or(&mut words)?,
            continues: next_or(&mut words)?,
        }),
        "granted" => What::Granted { token: next(&mut words)? },
        "busy" => What::Refused(Refusal::Busy),
        "timed-out" => What::Refused(Refusal::TimedOut),
        "dropped" => What::Refused(Refusal::Dropped),
        "failed" => What::Refused(Refusal::Failed),
        "lost-meanwhile" => What::Refused(Refusal::Lost),
        "held" => What::Held { until: next(&mut words)? },
        "lost" => What::Lost(next(&mut words)?),
        "releasing" => What::Releasing,
        "released" => What::Released,
        "handed-over" => What::HandedOver,
        _ => return None,
    };
    words.next().is_none().then_some(Event { at, hold, what })
}

fn next<'a, T: FromStr>(words: &mut impl Iterator<Item = &'a str>) -> Option<T> {
    words.next()?.parse().ok()
}

fn next_or<'a, T: FromStr>(words: &mut impl Iterator<Item = &'a str>) -> Option<Option<T>> {
    match words.next()? {
        "-" => Some(None),
        word => word.parse().ok().map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_read_as_it_was_written() {
        let asked = |owner, within, together, continues| {
            let (site, client, permits, waits_forever) = (1, 2, 3, true);
            What::Asked(Asked { site, client, owner, permits, waits_forever, within, together, continues })
        };
        let all = [
            asked(None, None, None, None),
            asked(Some(4), Some(5), Some(6), Some(7)),
            What::HandedOver,
            What::Granted { token: 6 },
            What::Refused(Refusal::Busy),
            What::Refused(Refusal::TimedOut),
            What::Refused(Refusal::Dropped),
            What::Refused(Refusal::Failed),
            What::Refused(Refusal::Lost),
            What::Held { until: 7 },
            What::Releasing,
            What::Released,
        ];
        for what in all.into_iter().chain(Loss::ALL.map(What::Lost)) {
            let event = Event { at: 8, hold: 9, what };
            assert_eq!(event.to_string().parse(), Ok(event));
        }
        for line in ["", "1 2", "1 2 held", "1 2 held x", "1 2 lost", "1 2 lost 3", "1 2 stolen", "x 2 busy"]
        {
            assert!(line.parse::<Event>().is_err(), "{line}");
        }
    }

    #[test]
    fn what_happens_to_a_hold_that_nobody_asked_for_is_an_error() {
        let events = vec![Event { at: 1, hold: 2, what: What::Releasing }];
        assert_eq!(History::of(Vec::new(), events).err(), Some(UnknownHold(2)));
    }
}
