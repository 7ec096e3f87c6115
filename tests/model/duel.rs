//! Both sides take the same steps, and what came of them is compared.
//!
//! The model sees at once when nobody listens for a request any more; a store that has only the network to go by does
//! not. Where both keep the contract and differ all the same, for that reason, a comment says so:
//!
//! * the waiters of a dead client are listed for up to a lease ([`see`]);
//! * they keep a limit in force for as long ([`Duel::pin_limits`]);
//! * at the head of a line where nobody is passed they are in the way until somebody behind them asks (`Side::fault`);
//! * the place of a request whose future is gone may be forgotten before it is given up ([`same_reply`]).

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use leasehold::backend::{Detail, Inspection, Released};

use crate::memory::Memory;
use crate::plan::{Label, Nature, Step, Term};
use crate::reply::{Answers, Reply};
use crate::side::{Failed, Lease, Side, Store};

/// What two remaining times may differ by: the time that the steps take. Times that differ in truth do so by more.
const SLACK: Duration = Duration::from_secs(60);
/// How long a push may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The model and the store it is compared with.
pub(crate) struct Duel<S> {
    model: Side<Memory>,
    store: Side<S>,
    sequences: usize,
    tokens: Pairs,
    reigns: Pairs,
}

/// Numbers of the model and what they correspond to, by site. Both grow.
#[derive(Default)]
struct Pairs(BTreeMap<usize, Vec<(u64, u64)>>);

impl Pairs {
    /// Whether `theirs` stands for `ours`. New ones must be greater than all before.
    fn agree(&mut self, site: usize, ours: u64, theirs: u64) -> bool {
        let pairs = self.0.entry(site).or_default();
        if let Some(known) = pairs.iter().find(|pair| pair.0 == ours || pair.1 == theirs) {
            return *known == (ours, theirs);
        }
        let grows = pairs.last().is_none_or(|last| last.0 < ours && last.1 < theirs);
        pairs.push((ours, theirs));
        grows
    }
}

/// What an inspection says, in labels.
#[derive(Debug)]
struct Seen {
    limit: Option<u32>,
    in_use: u32,
    holders: BTreeMap<Label, Hold>,
    /// Whether the holders of a semaphore are listed by the time they end.
    in_order: bool,
    waiters: Vec<(Label, u32, Duration)>,
}

#[derive(Debug)]
struct Hold {
    permits: u32,
    owner: Option<String>,
    token: u64,
    remaining: Duration,
}

impl<S: Store> Duel<S> {
    pub(crate) fn new(store: S) -> Self {
        Self {
            model: Side::new(Memory::new()),
            store: Side::new(store),
            sequences: 0,
            tokens: Pairs::default(),
            reigns: Pairs::default(),
        }
    }

    /// Takes a sequence of steps, each of which is told to `on_step` before.
    pub(crate) fn fight(
        &mut self,
        sites: &[Nature],
        steps: &[Step],
        mut on_step: impl FnMut(),
    ) -> Result<(), Failed> {
        self.sequences += 1;
        let sequence = self.sequences.to_string();
        self.model.begin(&sequence, sites);
        self.store.begin(&sequence, sites);
        (self.tokens, self.reigns) = (Pairs::default(), Pairs::default());
        let mut taken = || {
            for (number, step) in steps.iter().enumerate() {
                on_step();
                self.take(step).map_err(|why| format!("step {number}, {step:?}: {why}"))?;
            }
            self.end(&sequence, sites.len()).map_err(|why| format!("at the end: {why}"))
        };
        let outcome = taken();
        if outcome.is_err() {
            self.model.clean();
            self.store.clean();
        }
        outcome
    }

    fn take(&mut self, step: &Step) -> Result<(), Failed> {
        match step {
            // Whoever waits asks again before its lease is over.
            Step::Pass(ticks @ 3..) => {
                self.take(&Step::Pass(2))?;
                return self.take(&Step::Pass(ticks - 2));
            }
            Step::Idle => {
                self.model.waiting().iter().try_for_each(|label| self.take(&Step::Release(*label)))?
            }
            Step::Crash(client) => self.pin_limits(*client)?,
            _ => {}
        }
        self.strike(step)?;
        self.model.site_of(step).map_or(Ok(()), |site| self.look(site))
    }

    /// Both sides take a step.
    fn strike(&mut self, step: &Step) -> Result<(), Failed> {
        let given_up = matches!(step, Step::Release(label) if self.model.waiting().contains(label));
        let ours = self.model.take(step, &Answers::new())?;
        let theirs = self.store.take(step, &ours.answers)?;
        if !same_reply(ours.reply.as_ref(), theirs.reply.as_ref(), given_up) {
            return Err(format!("the model says {:?}, the store {:?}", ours.reply, theirs.reply));
        }
        self.compare_answers(&ours.answers, &theirs.answers)?;
        self.compare_limits()?;
        match step {
            Step::Force { .. } => self.revocations_arrive()?,
            Step::Look { site, numbers, .. } => {
                let (ours, theirs) = (ours.seen.unwrap_or_default(), theirs.seen.unwrap_or_default());
                self.compare_sights(*site, *numbers, &ours, &theirs)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Releases everything, and sees that nothing is left: at once if nobody has died, else when time has passed.
    fn end(&mut self, sequence: &str, sites: usize) -> Result<(), Failed> {
        let alive = |(label, lease): (&Label, &Lease)| lease.crashed.is_none().then_some(*label);
        let alive: Vec<_> = self.model.leases.iter().filter_map(alive).collect();
        for label in &alive {
            self.take(&Step::Release(*label))?;
            if self.model.is_revoked(*label) != self.store.is_revoked(*label) {
                return Err(format!("lease {label} was released by force on one side only"));
            }
        }
        if alive.len() == self.model.leases.len() {
            self.nothing_is_left(sequence)?;
        }
        self.take(&Step::Idle)?;
        (0..sites).try_for_each(|site| self.look(site))?;
        self.nothing_is_left(sequence)
    }

    fn nothing_is_left(&mut self, sequence: &str) -> Result<(), Failed> {
        match &self.store.leftovers(sequence)[..] {
            [] => Ok(()),
            left => Err(format!("when all is over there is still {left:?}")),
        }
    }

    /// Those who wait keep a limit in force, the dead among them for as long as they count: not at all for the model, for a
    /// lease or two for a store that cannot see their end. So where some are about to die, it is kept in force for long.
    fn pin_limits(&mut self, client: usize) -> Result<(), Failed> {
        let waiting = self.model.waiting();
        let doomed =
            waiting.iter().map(|label| &self.model.leases[label]).filter(|lease| lease.client == client);
        let sites: BTreeSet<usize> = doomed.map(|lease| lease.site).collect();
        for site in sites {
            if let Some(permits) = self.model.look(client, site, Detail::Numbers)?.limit {
                self.strike(&Step::Resize { client, site, handle: 0, permits, term: Term::HalfADay })?;
            }
        }
        Ok(())
    }

    /// The same requests are answered, in the same way and in the same order.
    fn compare_answers(&mut self, ours: &Answers, theirs: &Answers) -> Result<(), Failed> {
        let differ = || format!("the model has answered {ours:?}, the store {theirs:?}");
        if !ours.keys().eq(theirs.keys()) {
            return Err(differ());
        }
        let mut grants = Vec::new();
        for (label, answer) in ours {
            match (answer, &theirs[label]) {
                (Reply::Granted(ours), Reply::Granted(theirs)) => grants.push((*ours, *theirs, *label)),
                (ours, theirs) if ours == theirs => {}
                _ => return Err(differ()),
            }
        }
        grants.sort_unstable();
        for (ours, theirs, label) in grants {
            if !self.tokens.agree(self.model.leases[&label].site, ours, theirs) {
                return Err(format!(
                    "token {theirs} for lease {label} does not fit {ours} after {:?}",
                    self.tokens.0
                ));
            }
        }
        Ok(())
    }

    /// The handles of both sides know the same of the limits.
    fn compare_limits(&mut self) -> Result<(), Failed> {
        let (ours, theirs) = (self.model.stated(), self.store.stated());
        for (handle, known) in &ours {
            let their = theirs[handle];
            let same_reign = match (known.reign, their.reign) {
                (0, 0) => true,
                (0, _) | (_, 0) => false,
                (ours, theirs) => self.reigns.agree(handle.1, ours, theirs),
            };
            if !same_reign || known.permits != their.permits {
                return Err(format!("the model's handles know {ours:?}, the store's {theirs:?}"));
            }
        }
        Ok(())
    }

    /// Whoever was thrown out on one side hears of it on the other.
    fn revocations_arrive(&mut self) -> Result<(), Failed> {
        let told = |(label, lease): (&Label, &Lease)| {
            (lease.crashed.is_none() && lease.request.revocation.is_revoked()).then_some(*label)
        };
        let end = Instant::now() + PATIENCE;
        for label in self.model.leases.iter().filter_map(told).collect::<Vec<_>>() {
            while !self.store.is_revoked(label) {
                if Instant::now() >= end {
                    return Err(format!("lease {label} is not told that it was released by force"));
                }
                self.store.breathe()?;
            }
        }
        Ok(())
    }

    fn look(&mut self, site: usize) -> Result<(), Failed> {
        let ours = self.model.look(0, site, Detail::Everybody)?;
        let theirs = self.store.look(0, site, Detail::Everybody)?;
        self.compare_sights(site, false, &ours, &theirs)
    }

    fn compare_sights(
        &self,
        site: usize,
        numbers: bool,
        ours: &Inspection,
        theirs: &Inspection,
    ) -> Result<(), Failed> {
        if numbers && !(theirs.holders.is_empty() && theirs.waiters.is_empty()) {
            return Err("an inspection of numbers has told names".to_owned());
        }
        let (ours, theirs) = (see(&self.model, ours)?, see(&self.store, theirs)?);
        if self.is_same(site, &ours, &theirs) {
            return Ok(());
        }
        Err(format!("the model shows\n{ours:#?}\nand the store\n{theirs:#?}"))
    }

    fn is_same(&self, site: usize, ours: &Seen, theirs: &Seen) -> bool {
        let same_hold = |(a, b): (&Hold, &Hold)| {
            (a.permits, &a.owner) == (b.permits, &b.owner)
                && a.remaining.abs_diff(b.remaining) < SLACK
                && self.tokens.0.get(&site).is_some_and(|pairs| pairs.contains(&(a.token, b.token)))
        };
        let same_waiter =
            |((a, wants, alive), (b, also_wants, also_alive)): (&(_, _, Duration), &(_, _, Duration))| {
                (a, wants) == (b, also_wants) && alive.abs_diff(*also_alive) < SLACK
            };
        (ours.limit, ours.in_use) == (theirs.limit, theirs.in_use)
            && ours.holders.keys().eq(theirs.holders.keys())
            && ours.holders.values().zip(theirs.holders.values()).all(same_hold)
            && theirs.in_order
            && ours.waiters.len() == theirs.waiters.len()
            && ours.waiters.iter().zip(&theirs.waiters).all(same_waiter)
    }
}

/// A place in line whose future is gone is `given_up`. The model may have forgotten it by then, since it sees that nobody
/// listens; a store that cannot see that finds the place.
fn same_reply(ours: Option<&Reply>, theirs: Option<&Reply>, given_up: bool) -> bool {
    let found = |reply: Option<&Reply>| match reply {
        Some(Reply::Released(released)) => Some(*released),
        _ => None,
    };
    let forgotten = matches!(found(ours), Some(Released::Absent | Released::Taken));
    ours == theirs || (given_up && forgotten && found(theirs) == Some(Released::Queued))
}

/// Puts an inspection into labels.
fn see<S: Store>(side: &Side<S>, seen: &Inspection) -> Result<Seen, Failed> {
    let label = |id: &str| {
        side.label_of(id).ok_or_else(|| "an inspection shows a lease nobody has asked for".to_owned())
    };
    let mut holders = BTreeMap::new();
    for holder in &seen.holders {
        let (Some(token), Some(remaining)) = (holder.token, holder.remaining) else {
            return Err(format!("a holder without token or end: {holder:?}"));
        };
        let hold =
            Hold { permits: holder.permits, owner: holder.owner.clone(), token: token.get(), remaining };
        if holders.insert(label(&holder.id)?, hold).is_some() {
            return Err("an inspection shows a holder twice".to_owned());
        }
    }
    let mut waiters = Vec::new();
    for waiter in &seen.waiters {
        let label = label(&waiter.id.to_string())?;
        match side.leases[&label].crashed {
            None => waiters.push((label, waiter.permits, waiter.remaining)),
            // A store that learns of a client's end by its silence goes on listing its waiters for up to a lease.
            Some(at) if side.elapsed < at + side.leases[&label].request.term => {}
            Some(_) => return Err(format!("{label} counts as waiting for more than a lease after its end")),
        }
    }
    let in_order = seen.limit.is_none() || seen.holders.is_sorted_by_key(|holder| holder.remaining);
    Ok(Seen { limit: seen.limit, in_use: seen.in_use, holders, in_order, waiters })
}
