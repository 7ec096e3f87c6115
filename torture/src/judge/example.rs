//! Histories made by hand, for the tests of the rules.

use std::ops::Range;

use super::{Bounds, Rule, Verdict};
use crate::history::*;

pub(crate) const LEASE: Micros = 1_000_000;
/// A lock whose requests are granted in order. (The next one is another.)
pub(crate) const LOCK: usize = 0;
/// Two permits, in any order.
pub(crate) const FAIR: usize = 2;
/// A reentrant lock.
pub(crate) const OWNED: usize = 3;
/// A lock that is passed on within its clients.
pub(crate) const PASSED_ON: usize = 4;
/// Two permits, in order.
pub(crate) const IN_TURN: usize = 5;
/// A reentrant lock whose owners get a lease for each of the requests that they make at once.
pub(crate) const ENTERED: usize = 6;

/// A run.
pub(crate) struct Example {
    events: Vec<Event>,
    faults: Vec<Fault>,
    history: History,
    next: HoldId,
}

impl Default for Example {
    fn default() -> Self {
        let site = |limit, order| Site {
            name: "stock".to_owned(),
            limits: vec![Limit::always(limit)],
            lease: LEASE,
            order,
            ordered_tokens: true,
            lease_per_request: false,
        };
        let sites = vec![
            site(1, Order::Arrival),
            site(1, Order::Arrival),
            site(2, Order::Free),
            site(1, Order::Arrival),
            site(1, Order::WithinClients),
            site(2, Order::Arrival),
            Site { lease_per_request: true, ..site(1, Order::Arrival) },
        ];
        let history = History { sites, ..History::default() };
        Self { events: Vec::new(), faults: Vec::new(), history, next: 0 }
    }
}

impl Example {
    /// Asks and is granted at once, and releases.
    pub(crate) fn hold(&mut self, site: usize, client: u32, held: Range<Micros>, token: u64) -> &mut Self {
        self.wait(site, client, held.start, held, token)
    }

    pub(crate) fn wait(
        &mut self,
        site: usize,
        client: u32,
        asked: Micros,
        held: Range<Micros>,
        token: u64,
    ) -> &mut Self {
        self.ask(site, client, asked).grant(held.start, token).happens(held.end, What::Releasing)
    }

    pub(super) fn hold_as(
        &mut self,
        site: usize,
        client: u32,
        owner: u32,
        held: Range<Micros>,
        token: u64,
    ) -> &mut Self {
        self.wait_as(site, client, owner, held.start, held, token)
    }

    pub(super) fn wait_as(
        &mut self,
        site: usize,
        client: u32,
        owner: u32,
        asked: Micros,
        held: Range<Micros>,
        token: u64,
    ) -> &mut Self {
        self.request(asked, Asked { owner: Some(owner), ..request(site, client) });
        self.grant(held.start, token).happens(held.end, What::Releasing)
    }

    /// Asks for several at once, and is granted all of them.
    pub(super) fn wait_together(
        &mut self,
        sites: &[usize],
        client: u32,
        asked: Micros,
        held: Range<Micros>,
        token: u64,
    ) -> &mut Self {
        let first = self.next + 1;
        for site in sites {
            self.request(asked, Asked { together: Some(first), ..request(*site, client) });
            self.grant(held.start, token).happens(held.end, What::Releasing);
        }
        self
    }

    /// The last hold is handed over, and goes on for another client.
    pub(super) fn hand_over(
        &mut self,
        site: usize,
        at: Micros,
        client: u32,
        asked: Micros,
        held: Range<Micros>,
        token: u64,
    ) -> &mut Self {
        let last = self.next;
        self.happens(at, What::HandedOver);
        self.request(asked, Asked { continues: Some(last), waits_forever: false, ..request(site, client) });
        self.grant(held.start, token).happens(held.end, What::Releasing)
    }

    /// It is handed over, and nobody goes on.
    pub(super) fn lose_ticket(&mut self, at: Micros) -> &mut Self {
        self.happens(at, What::HandedOver)
    }

    /// The release of the last hold is confirmed.
    pub(super) fn is_released(&mut self, at: Micros) -> &mut Self {
        self.happens(at, What::Released)
    }

    /// Holds this many permits, and then one of them.
    pub(super) fn downgrade(
        &mut self,
        site: usize,
        client: u32,
        permits: u32,
        held: Range<Micros>,
        until: Micros,
        token: u64,
    ) -> &mut Self {
        self.request(held.start, Asked { permits, ..request(site, client) }).grant(held.start, token);
        let last = self.next;
        self.happens(held.end, What::Releasing);
        self.request(
            held.end,
            Asked { continues: Some(last), waits_forever: false, ..request(site, client) },
        );
        self.grant(held.end, token).happens(until, What::Releasing)
    }

    /// Within the hold that was asked for first.
    pub(super) fn within_last(
        &mut self,
        site: usize,
        client: u32,
        owner: u32,
        held: Range<Micros>,
        token: u64,
    ) -> &mut Self {
        self.request(held.start, Asked { owner: Some(owner), within: Some(1), ..request(site, client) });
        self.grant(held.start, token).happens(held.end, What::Releasing)
    }

    /// Is granted at once, and lost, though nothing has gone wrong.
    pub(crate) fn lose(&mut self, site: usize, client: u32, held: Range<Micros>, token: u64) -> &mut Self {
        self.lose_by(site, client, held, token, Loss::HeldTooLong)
    }

    pub(super) fn lose_by(
        &mut self,
        site: usize,
        client: u32,
        held: Range<Micros>,
        token: u64,
        loss: Loss,
    ) -> &mut Self {
        self.forget(site, client, held.start, token).happens(held.end, What::Lost(loss))
    }

    /// Is granted at once, and neither released nor lost.
    pub(crate) fn forget(&mut self, site: usize, client: u32, from: Micros, token: u64) -> &mut Self {
        self.ask(site, client, from).grant(from, token)
    }

    pub(super) fn fail(&mut self, site: usize, client: u32, asked: Micros, at: Micros) -> &mut Self {
        self.refuse(site, client, asked, at, Refusal::Failed)
    }

    pub(super) fn drop_request(&mut self, site: usize, client: u32, asked: Micros, at: Micros) -> &mut Self {
        self.refuse(site, client, asked, at, Refusal::Dropped)
    }

    pub(super) fn refuse(
        &mut self,
        site: usize,
        client: u32,
        asked: Micros,
        at: Micros,
        refusal: Refusal,
    ) -> &mut Self {
        self.ask(site, client, asked).happens(at, What::Refused(refusal))
    }

    pub(crate) fn ask(&mut self, site: usize, client: u32, asked: Micros) -> &mut Self {
        self.request(asked, request(site, client))
    }

    /// The deadline of the last hold.
    pub(super) fn until(&mut self, until: Micros) -> &mut Self {
        self.happens(until.saturating_sub(LEASE), What::Held { until })
    }

    pub(crate) fn fault(&mut self, when: Range<Micros>, what: &str, effect: Effect) -> &mut Self {
        self.faults.push(Fault { began: when.start, ended: when.end, what: what.to_owned(), effect });
        self
    }

    pub(super) fn resize(&mut self, site: usize, when: Range<Micros>, permits: u32) -> &mut Self {
        self.fault(when, "resize", Effect::Resizes { site, permits })
    }

    /// What is held is released by force.
    pub(super) fn break_by_force(&mut self, site: usize, when: Range<Micros>) -> &mut Self {
        self.fault(when, "release by force", Effect::Breaks { site })
    }

    pub(crate) fn write(&mut self, is_fenced: bool, token: u64, read: u64, value: u64) -> &mut Self {
        let at = self.history.writes.len() as Micros;
        self.history.writes.push(Write { at, data: 0, is_fenced, token, read, value, is_accepted: true });
        self
    }

    pub(super) fn usage(&mut self, before: Usage, after: Usage) -> &mut Self {
        self.history.usage = Some((before, after));
        self
    }

    pub(super) fn cost(&mut self, cost: Cost) -> &mut Self {
        self.history.costs.push(cost);
        self
    }

    fn request(&mut self, at: Micros, request: Asked) -> &mut Self {
        self.next += 1;
        self.happens(at, What::Asked(request))
    }

    fn grant(&mut self, at: Micros, token: u64) -> &mut Self {
        self.happens(at, What::Granted { token })
    }

    fn happens(&mut self, at: Micros, what: What) -> &mut Self {
        self.events.push(Event { at, hold: self.next, what });
        self
    }

    fn verdict(&self) -> Verdict {
        self.judged().1
    }

    /// What happened, and what is found.
    pub(crate) fn judged(&self) -> (History, Verdict) {
        let history =
            History::of(self.history.sites.clone(), self.events.clone()).expect("all were asked for");
        let History { writes, usage, costs, .. } = self.history.clone();
        let history = History { writes, usage, costs, ..history }.under(self.faults.clone());
        let verdict = Verdict::of(&history, &Bounds::default());
        (history, verdict)
    }

    /// Nothing is broken.
    #[track_caller]
    pub(super) fn is_fine(&self) -> Verdict {
        let verdict = self.verdict();
        assert!(verdict.violations.is_empty(), "{verdict}");
        verdict
    }

    pub(super) fn count(&self, rule: Rule) -> usize {
        self.verdict().count(rule)
    }

    /// This rule is broken, and no other.
    #[track_caller]
    pub(super) fn breaks(&self, rule: Rule) {
        let verdict = self.verdict();
        assert!(verdict.count(rule) > 0, "{rule:?} was not found: {verdict}");
        assert_eq!(verdict.count(rule), verdict.violations.len(), "{verdict}");
    }
}

const fn request(site: usize, client: u32) -> Asked {
    Asked {
        site,
        client,
        owner: None,
        permits: 1,
        waits_forever: true,
        within: None,
        together: None,
        continues: None,
    }
}
