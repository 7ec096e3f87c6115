//! Both sides take the same steps, and what came of them is compared.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Duration;

use leasehold::Inspection;
use leasehold::backend::Detail;
use tokio::time::sleep;

use crate::plan::{Label, Nature, Step};
use crate::side::{Failed, Sent, Side};
use crate::stores::{Memory, Store};

/// What two remaining times may differ by: the time that the steps take. Times that differ in truth do so by more.
const SLACK: Duration = Duration::from_secs(60);
/// How long to wait between two looks at what is about to change.
const PAUSE: Duration = Duration::from_millis(1);

/// The model and the store it is compared with.
pub(crate) struct Comparison<S> {
    model: Side<Memory>,
    store: Side<S>,
    sequences: usize,
    tokens: Pairs,
    versions: Pairs,
}

/// Numbers of the model and what they correspond to, by site. Both grow.
#[derive(Debug, Default)]
struct Pairs(BTreeMap<usize, Vec<(u64, u64)>>);

impl Pairs {
    /// Whether `theirs` corresponds to `ours`. New ones must be greater than all before.
    fn agree(&mut self, site: usize, ours: u64, theirs: u64) -> bool {
        let pairs = self.0.entry(site).or_default();
        if let Some(known) = pairs.iter().find(|pair| pair.0 == ours || pair.1 == theirs) {
            return *known == (ours, theirs);
        }
        let grows = pairs.iter().all(|pair| (pair.0 < ours) == (pair.1 < theirs));
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

impl<S: Store> Comparison<S> {
    pub(crate) fn new(store: S) -> Self {
        Self {
            model: Side::new(Memory::new()),
            store: Side::new(store),
            sequences: 0,
            tokens: Pairs::default(),
            versions: Pairs::default(),
        }
    }

    /// Takes a sequence of steps, before each of which `on_step` is called.
    pub(crate) fn run(
        &mut self,
        sites: &[Nature],
        steps: &[Step],
        mut on_step: impl FnMut(),
    ) -> Result<(), Failed> {
        self.sequences += 1;
        let sequence = self.sequences.to_string();
        self.model.begin(&sequence, sites);
        self.store.begin(&sequence, sites);
        (self.tokens, self.versions) = (Pairs::default(), Pairs::default());
        for (number, step) in steps.iter().enumerate() {
            on_step();
            self.take(step, sites.len()).map_err(|why| format!("step {number}, {step:?}: {why}"))?;
        }
        self.end(&sequence, sites.len()).map_err(|why| format!("at the end: {why}"))
    }

    fn take(&mut self, step: &Step, sites: usize) -> Result<(), Failed> {
        match step {
            // Whoever waits asks again before its lease is over.
            Step::Pass(ticks @ 3..) => {
                self.take(&Step::Pass(2), sites)?;
                return self.take(&Step::Pass(ticks - 2), sites);
            }
            Step::Idle => {
                for label in self.model.waiting() {
                    self.take(&Step::Release(label), sites)?;
                }
            }
            _ => {}
        }
        let (ours, theirs) = (self.model.take(step), self.store.take(step));
        if let Step::Ask(label, _) | Step::AskAgain(label) = step {
            self.compare_grants(*label)?;
        }
        if !self.same(ours.as_ref(), theirs.as_ref()) {
            return Err(format!("the model says {ours:?}, the store {theirs:?}"));
        }
        self.compare_events()?;
        if matches!(step, Step::Pass(_) | Step::LoseData) {
            for label in self.model.waiting() {
                self.ask_again(label)?;
            }
        }
        self.compare_limits()?;
        if let Step::Look { client, site, numbers: true } = step {
            let ours = self.model.look(*client, *site, Detail::Counts)?;
            self.store_comes_to_show(
                |this| this.store.look(*client, *site, Detail::Counts),
                |_, theirs| *theirs == ours,
                &ours,
            )?;
        }
        let touched = self.model.site_of(step);
        (0..sites)
            .filter(|site| touched.is_none_or(|touched| touched == *site))
            .try_for_each(|site| self.look(site))
    }

    /// Both clients of a lease ask again.
    fn ask_again(&mut self, label: Label) -> Result<(), Failed> {
        let (ours, theirs) = (self.model.ask(label), self.store.ask(label));
        self.compare_grants(label)?;
        if !self.same(Some(&ours), Some(&theirs)) {
            return Err(format!("lease {label} asks again: the model says {ours:?}, the store {theirs:?}"));
        }
        self.compare_events()
    }

    /// The store must send the events that the model sends. Whoever is asked to ask again does so.
    fn compare_events(&mut self) -> Result<(), Failed> {
        let ours = self.model.events(&BTreeSet::new())?;
        let pushes_revocations = self.store.store.pushes_revocations();
        let is_expected = |sent: &&Sent| pushes_revocations || !matches!(sent, Sent::Revoked(_));
        let theirs = self.store.events(&ours.iter().filter(is_expected).copied().collect())?;
        for sent in &theirs {
            match sent {
                Sent::Granted(label) if !ours.contains(sent) => {
                    return Err(format!("the store alone has granted to lease {label}"));
                }
                Sent::Granted(label) => self.compare_grants(*label)?,
                Sent::AskAgain(_) | Sent::Revoked(_) => {}
            }
        }
        for sent in &ours {
            if let Sent::AskAgain(label) = sent {
                self.ask_again(*label)?;
            }
        }
        Ok(())
    }

    fn same(&self, ours: Option<&crate::side::Reply>, theirs: Option<&crate::side::Reply>) -> bool {
        use leasehold::LossReason::Revoked;
        use leasehold::backend::Released;

        use crate::side::Reply::{Granted, Lost, Released as Answered};
        match (ours, theirs) {
            // Tokens are compared separately.
            (Some(Granted(_)), Some(Granted(_))) => true,
            // A release need not say why nothing was there: a client asks by a renewal.
            (Some(Answered(Released::Revoked)), Some(Answered(Released::Absent | Released::Taken))) => true,
            // Redis remembers a lease that was released by force until it would have ended, also if it has been granted
            // again since.
            (Some(Lost(_)), Some(Lost(Revoked))) => true,
            _ => ours == theirs,
        }
    }

    fn compare_grants(&mut self, label: Label) -> Result<(), Failed> {
        match (self.model.token(label), self.store.token(label)) {
            (Some(ours), Some(theirs)) => {
                let site = self.model.leases[&label].site;
                if !self.tokens.agree(site, ours, theirs) {
                    let known = &self.tokens.0;
                    return Err(format!(
                        "token {theirs} for lease {label} does not fit {ours} after {known:?}"
                    ));
                }
                Ok(())
            }
            (None, None) => Ok(()),
            (ours, theirs) => Err(format!("lease {label} has token {ours:?} and {theirs:?}")),
        }
    }

    /// Releases everything, and sees that nothing is left.
    fn end(&mut self, sequence: &str, sites: usize) -> Result<(), Failed> {
        let alive = self.model.leases.iter().filter(|(_, lease)| lease.died.is_none());
        let alive: Vec<_> = alive.map(|(label, _)| *label).collect();
        for label in &alive {
            self.take(&Step::Release(*label), sites)?;
        }
        if alive.len() == self.model.leases.len() {
            self.nothing_is_left(sequence)?;
        }
        self.take(&Step::Idle, sites)?;
        self.nothing_is_left(sequence)
    }

    fn nothing_is_left(&mut self, sequence: &str) -> Result<(), Failed> {
        match &self.store.leftovers(sequence)[..] {
            [] => Ok(()),
            left => Err(format!("when all is over there is still {left:?}")),
        }
    }

    /// The handles of both sides know the same limits.
    fn compare_limits(&mut self) -> Result<(), Failed> {
        let (ours, theirs) = (self.model.limits(), self.store.limits());
        for (handle, known) in &ours {
            let their = theirs[handle];
            let same_version = match (known.version, their.version) {
                (0, 0) => true,
                (0, _) | (_, 0) => false,
                (ours, theirs) => self.versions.agree(handle.1, ours, theirs),
            };
            if !same_version || known.permits != their.permits {
                return Err(format!("the model's handles know {ours:?}, the store's {theirs:?}"));
            }
        }
        Ok(())
    }

    fn look(&mut self, site: usize) -> Result<(), Failed> {
        let ours = self.model.look(0, site, Detail::Full)?;
        let ours = see(&self.model, &ours)?;
        let look = |this: &mut Self| {
            let theirs = this.store.look(0, site, Detail::Full)?;
            see(&this.store, &theirs)
        };
        self.store_comes_to_show(look, |this, theirs| this.is_same(site, &ours, theirs), &ours)
    }

    /// The store shows the same, soon if it serves later.
    fn store_comes_to_show<T: Debug>(
        &mut self,
        look: impl Fn(&mut Self) -> Result<T, Failed>,
        is_same: impl Fn(&mut Self, &T) -> bool,
        ours: &T,
    ) -> Result<(), Failed> {
        let store = &self.store.store;
        let mut left = if store.serves_later() { store.event_timeout() } else { Duration::ZERO };
        loop {
            let theirs = look(self)?;
            if is_same(self, &theirs) {
                return Ok(());
            }
            if left.is_zero() {
                return Err(format!("the model shows\n{ours:#?}\nand the store\n{theirs:#?}"));
            }
            left = left.saturating_sub(PAUSE);
            self.store.store.run(async { sleep(PAUSE).await });
        }
    }

    fn is_same(&mut self, site: usize, ours: &Seen, theirs: &Seen) -> bool {
        let tokens = &mut self.tokens;
        let mut same_hold = |(a, b): (&Hold, &Hold)| {
            (a.permits, &a.owner) == (b.permits, &b.owner)
                && a.remaining.abs_diff(b.remaining) < SLACK
                && tokens.agree(site, a.token, b.token)
        };
        let same_waiter =
            |((a, wants, alive), (b, also_wants, also_alive)): (&(_, _, Duration), &(_, _, Duration))| {
                (a, wants) == (b, also_wants) && alive.abs_diff(*also_alive) < SLACK
            };
        (ours.limit, ours.in_use) == (theirs.limit, theirs.in_use)
            && ours.holders.keys().eq(theirs.holders.keys())
            && ours.holders.values().zip(theirs.holders.values()).all(&mut same_hold)
            && theirs.in_order
            && ours.waiters.len() == theirs.waiters.len()
            && ours.waiters.iter().zip(&theirs.waiters).all(same_waiter)
    }
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
        let lease = &side.leases[&label];
        if lease.died.is_some_and(|at| side.elapsed >= at + lease.request.ttl) {
            return Err(format!("{label} counts as waiting for more than a lease after its end"));
        }
        waiters.push((label, waiter.permits, waiter.remaining));
    }
    let in_order = seen.limit.is_none() || seen.holders.is_sorted_by_key(|holder| holder.remaining);
    Ok(Seen { limit: seen.limit, in_use: seen.in_use, holders, in_order, waiters })
}
