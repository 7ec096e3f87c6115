//! Visiting every state of a model.

use std::fmt::{self, Debug};
use std::hash::Hash;
use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model, Property};

/// What came of visiting the states of a model.
#[derive(Debug)]
#[non_exhaustive]
pub struct Explored {
    /// How many states were visited.
    pub states: usize,
    /// How many steps the longest of the shortest ways to a state has.
    pub depth: usize,
    /// How long that took.
    pub time: Duration,
    /// The property that was found broken, and a shortest way to that: the steps, one a line. With `None`, all states
    /// were visited, and no property is broken.
    pub broken: Option<(&'static str, String)>,
    /// What should happen somewhere in the model, and does not.
    pub missing: Vec<&'static str>,
}

/// Visits every state of a model, or those up to the first one that breaks a property.
pub fn explore<M>(model: M) -> Explored
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq,
{
    visit(model, HasDiscoveries::AnyFailures, |_| true)
}

/// Visits the states of a model up to the first one that breaks this property, whatever happens to others.
pub fn break_property<M>(model: M, name: &'static str) -> Explored
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq,
{
    visit(model, HasDiscoveries::AnyOf([name].into()), |found| found == name)
}

fn visit<M>(model: M, until: HasDiscoveries, is_sought: impl Fn(&str) -> bool) -> Explored
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq,
{
    let began = Instant::now();
    let checker = model.checker().finish_when(until).spawn_bfs().join();
    let (model, mut found) = (checker.model(), checker.discoveries());
    let (mut broken, mut missing) = (None, Vec::new());
    for property in model.properties() {
        match (found.remove(property.name), property.expectation.discovery_is_failure()) {
            (Some(path), true) if is_sought(property.name) => {
                let steps = shorten(model, path.into_actions(), &property);
                broken = Some((property.name, steps.iter().map(|step| format!("    {step:?}\n")).collect()));
            }
            (None, false) => missing.push(property.name),
            _ => {}
        }
    }
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    Explored { states, depth, time: began.elapsed(), broken, missing }
}

/// Leaves out steps as long as the property is still broken: the way that the library finds is not always a shortest
/// one.
fn shorten<M>(model: &M, mut steps: Vec<M::Action>, property: &Property<M>) -> Vec<M::Action>
where
    M: Model,
    M::Action: Clone + PartialEq,
{
    for at in (0..steps.len()).rev() {
        let mut fewer = steps.clone();
        // Those behind it may have been left out by now.
        fewer.drain(at.min(steps.len())..steps.len().min(at + 1));
        if let Some(needed) = breaks_after(model, &fewer, property) {
            fewer.truncate(needed);
            steps = fewer;
        }
    }
    steps
}

/// After how many of these steps the property is broken. `None` if it is not, or if they cannot be taken.
fn breaks_after<M>(model: &M, steps: &[M::Action], property: &Property<M>) -> Option<usize>
where
    M: Model,
    M::Action: Clone + PartialEq,
{
    let mut state = model.init_states().into_iter().next()?;
    for (taken, step) in (1..).zip(steps) {
        let mut possible = Vec::new();
        model.actions(&state, &mut possible);
        if !possible.contains(step) {
            return None;
        }
        state = model.next_state(&state, step.clone())?;
        if !(property.condition)(model, &state) {
            return Some(taken);
        }
    }
    None
}

impl fmt::Display for Explored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} states, depth {}, {:.1?}", self.states, self.depth, self.time)?;
        match &self.broken {
            Some((property, steps)) => write!(f, ": {property} is broken by\n{steps}"),
            None => Ok(()),
        }
    }
}
