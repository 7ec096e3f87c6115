//! Inspection: each node's view, and what a majority says.

use std::sync::Arc;

use super::quorum::Quorum;
use crate::backend::{BackendError, Detail, Holder, Inspection, LeaseId, NodeInspection, Resource, Waiter};
use crate::hash::HashMap;

impl Quorum {
    /// Returns who holds a lock and who waits for it, as a majority sees it, and the view of each node.
    pub(super) async fn inspect(
        self: &Arc<Self>,
        resource: &Resource,
        detail: Detail,
    ) -> Result<Inspection, BackendError> {
        self.check_open()?;
        let shared = Arc::new(resource.clone());
        let mut round = self.round(self.all(), self.node_timeout, |_, node| {
            let resource = Arc::clone(&shared);
            async move { node.inspect(&resource, detail).await }
        });
        let mut views: Vec<_> = self.all().map(|_| None).collect();
        while let Some((n, view)) = round.next().await {
            views[n] = Some(view);
        }
        let answered = views.iter().flatten().filter(|view| view.is_ok()).count();
        if answered < self.majority() {
            let failures = views.into_iter().enumerate();
            let failures = failures.filter_map(|(n, view)| Some((n, view?.err()?)));
            return Err(self.no_quorum(failures.collect()));
        }
        let seen: Vec<&Inspection> = views.iter().flatten().flatten().collect();
        let mut inspection = merge(&seen, self.majority(), detail);
        inspection.nodes = views
            .into_iter()
            .flatten()
            .enumerate()
            .map(|(n, view)| NodeInspection::new(self.store_of(n), view.map_err(|error| error.to_string())))
            .collect();
        Ok(inspection)
    }
}

/// What a majority says. A lease is held as long as a majority holds it; a waiter waits if it has a place, or a grant
/// not made by a majority, on a majority of nodes.
fn merge(views: &[&Inspection], majority: usize, detail: Detail) -> Inspection {
    let (holders, holds) = held_by_majority(views.iter().map(|view| &*view.holders), majority);
    let mut places: HashMap<LeaseId, (usize, Vec<&Waiter>)> = HashMap::default();
    for view in views {
        for (place, waiter) in view.waiters.iter().enumerate() {
            let known = places.entry(waiter.id).or_default();
            known.0 += place + 1;
            known.1.push(waiter);
        }
    }
    let mut waiters: Vec<_> = places
        .into_iter()
        .filter_map(|(id, (places, waiters))| {
            let granted = holds.get(&*id.to_string()).map_or(0, Vec::len);
            let rank = (granted + waiters.len() >= majority).then_some(places)?;
            let label = waiters.iter().find_map(|waiter| waiter.label.clone());
            let note = waiters.iter().find_map(|waiter| waiter.note.clone());
            let last = waiters.into_iter().max_by_key(|waiter| waiter.remaining)?;
            Some((rank, Waiter { label, note, ..last.clone() }))
        })
        .collect();
    waiters.sort_unstable_by_key(|(places, waiter)| (*places, waiter.id));
    let in_use = match detail {
        Detail::Full | Detail::Summary => !holders.is_empty(),
        Detail::Counts => views.iter().filter(|view| view.in_use > 0).count() >= majority,
    };
    let waiters: Vec<_> = waiters.into_iter().map(|(_, waiter)| waiter).collect();
    let waiting = match detail {
        // A waiter has a place on most nodes.
        Detail::Summary => at_least(views.iter().map(|view| view.waiting), majority),
        Detail::Full | Detail::Counts => waiters.len(),
    };
    Inspection { waiting, ..Inspection::new(holders, waiters, None, u32::from(in_use)) }
}

/// The greatest number that a majority of these reaches.
fn at_least(numbers: impl Iterator<Item = usize>, majority: usize) -> usize {
    let mut numbers: Vec<_> = numbers.collect();
    numbers.sort_unstable_by(|a, b| b.cmp(a));
    numbers.get(majority - 1).copied().unwrap_or_default()
}

/// The leases that a majority holds, and the holds of the others, from the holders on each node.
pub(super) fn held_by_majority<'a>(
    nodes: impl Iterator<Item = &'a [Holder]>,
    majority: usize,
) -> (Vec<Holder>, HashMap<&'a str, Vec<&'a Holder>>) {
    let mut holds: HashMap<&str, Vec<&Holder>> = HashMap::default();
    for holder in nodes.flatten() {
        holds.entry(&holder.id).or_default().push(holder);
    }
    let mut holders = Vec::new();
    holds.retain(|_, holds| {
        let held = holds.len() >= majority;
        if held {
            holders.push(common(holds, majority));
        }
        !held
    });
    (holders, holds)
}

/// One lease as a majority of nodes holds it: for as long as a majority does, under the token that most of them have.
fn common(holds: &[&Holder], majority: usize) -> Holder {
    let mut remaining: Vec<_> = holds.iter().map(|hold| hold.remaining).collect();
    // A lease without an expiry lasts longest.
    remaining.sort_by_key(|left| std::cmp::Reverse(left.unwrap_or(std::time::Duration::MAX)));
    let same = |holder: &&&Holder| holds.iter().filter(|other| other.token == holder.token).count();
    let mut holder =
        holds.iter().max_by_key(same).map_or_else(|| Holder::new("", None, None), |hold| (**hold).clone());
    holder.remaining = remaining[majority - 1];
    // A node may not have them although it has the lease, because it could not be reached, or was restarted.
    holder.label = holds.iter().find_map(|hold| hold.label.clone());
    holder.note = holds.iter().find_map(|hold| hold.note.clone());
    holder
}
