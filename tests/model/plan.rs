//! What may happen: the steps of a sequence, and how sequences are made up and shrunk.
//!
//! A step names leases by labels and everything else by small numbers, so that it means the same on both sides, and so
//! that a sequence can be pasted from a failure into a test.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::ops::Range;
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::Union;
use proptest_state_machine::ReferenceStateMachine;

/// Names a lease.
pub(crate) type Label = usize;

/// How many clients a store has at any time.
pub(crate) const CLIENTS: usize = 3;
/// How long a sequence is.
pub(crate) const LENGTH: Range<usize> = 10..40;

/// The unit in which time passes, for both stores alike. Whatever ends does so at least a quarter of it before or after
/// a tick, which is an eternity against the time that the steps themselves take; and whoever waits asks again at every
/// tick or every second one, before the shortest lease is over.
pub(crate) const TICK: Duration = Duration::from_secs(400);
const SHORT: Duration = Duration::from_secs(1_100);
const LONG: Duration = Duration::from_secs(2_700);
/// Longer than a fence is kept.
pub(crate) const TWO_DAYS: Duration = Duration::from_secs(2 * 24 * 60 * 60);

const OWNERS: [&str; 2] = ["a", "b"];
/// The limits that the handles of a semaphore state before they know the one in force; the first is the usual one.
pub(crate) const LIMITS: [u32; 2] = [4, 6];

/// Something that happens to both stores.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A request for a lease of its own.
    Ask(Label, Request),
    /// The name for a lease is made, and its request is not sent, or is late.
    Name(Label, Request),
    /// The request is sent again, as when its answer was lost.
    AskAgain(Label),
    Renew(Label, Term),
    /// The lease is over; if it still waits, its future is dropped first.
    Release(Label),
    /// The lease keeps so many permits and gives back the rest.
    Keep(Label, u32),
    /// The holders of the site are removed by force.
    Force {
        client: usize,
        site: usize,
    },
    Resize {
        client: usize,
        site: usize,
        handle: usize,
        permits: u32,
        term: Term,
    },
    /// Both inspect the site and compare; `numbers` without the lists.
    Look {
        client: usize,
        site: usize,
        numbers: bool,
    },
    /// A client dies without releasing anything, and another takes its place.
    Crash(usize),
    /// The stores forget everything.
    LoseData,
    /// So many [`TICK`]s pass.
    Pass(u32),
    /// Everybody who waits gives up, and nothing happens for two days: longer than fences are kept.
    Idle,
}

/// What a lease is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) client: usize,
    pub(crate) site: usize,
    pub(crate) claim: Wanted,
    pub(crate) term: Term,
    pub(crate) waits: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Wanted {
    /// A mutex.
    Sole,
    /// A reentrant lock for this owner.
    Owner(&'static str),
    /// Permits of a semaphore, with the limit that this handle of the client states.
    Permits { permits: u32, handle: usize },
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Term {
    Short,
    Long,
}

impl Term {
    pub(crate) const fn duration(self) -> Duration {
        match self {
            Self::Short => SHORT,
            Self::Long => LONG,
        }
    }
}

/// What is asked for at a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nature {
    Lock,
    Counting,
    Fair,
}

/// Which sites there are, and how rough life is.
pub(crate) trait Mix: Debug + 'static {
    const SITES: &'static [Nature];
    /// How much of what happens is faults.
    const FAULTS: u32;
    /// Whether time passes other than by days.
    const TIME_PASSES: bool = true;
}

/// The same on a store whose clock the test cannot set.
#[cfg(feature = "etcd")]
#[derive(Debug)]
pub(crate) struct Timeless<M>(PhantomData<M>);

#[cfg(feature = "etcd")]
impl<M: Mix> Mix for Timeless<M> {
    const SITES: &'static [Nature] = M::SITES;
    const FAULTS: u32 = M::FAULTS;
    const TIME_PASSES: bool = false;
}

/// Sequences of the steps that make sense in a [`Mix`].
#[derive(Debug)]
pub(crate) struct Plan<M>(PhantomData<M>);

/// What is known of a sequence while it is generated, which is not what was granted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memo {
    leases: BTreeMap<Label, Known>,
    next: Label,
}

#[derive(Clone, Debug)]
struct Known {
    ask: Request,
    released: bool,
}

impl Memo {
    fn labels(&self, meant: impl Fn(&Known) -> bool) -> Vec<Label> {
        self.leases.iter().filter(|(_, known)| meant(known)).map(|(label, _)| *label).collect()
    }
}

impl<M: Mix> ReferenceStateMachine for Plan<M> {
    type State = Memo;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<Memo> {
        Just(Memo::default()).boxed()
    }

    fn transitions(memo: &Memo) -> BoxedStrategy<Step> {
        let mut choices = of_requests::<M>(memo);
        choices.extend(of_leases::<M>(memo));
        choices.extend(of_sites::<M>());
        choices.extend(of_faults::<M>());
        Union::new_weighted(choices).boxed()
    }

    fn apply(mut memo: Memo, step: &Step) -> Memo {
        match step {
            Step::Ask(label, ask) | Step::Name(label, ask) => {
                memo.leases.insert(*label, Known { ask: ask.clone(), released: false });
                memo.next = memo.next.max(label + 1);
            }
            Step::Release(label) => {
                if let Some(known) = memo.leases.get_mut(label) {
                    known.released = true;
                }
            }
            // Nobody knows the leases of a dead client any more.
            Step::Crash(client) => memo.leases.retain(|_, known| known.ask.client != *client),
            _ => {}
        }
        memo
    }

    /// For shrinking: a lease that is spoken of must have been named, and only once, and only permits have parts.
    fn preconditions(memo: &Memo, step: &Step) -> bool {
        match step {
            Step::Ask(label, _) | Step::Name(label, _) => *label >= memo.next,
            Step::AskAgain(label) | Step::Renew(label, _) | Step::Release(label) => {
                memo.leases.contains_key(label)
            }
            Step::Keep(label, _) => {
                memo.leases.get(label).is_some_and(|known| M::SITES[known.ask.site] != Nature::Lock)
            }
            _ => true,
        }
    }
}

type Choice = (u32, BoxedStrategy<Step>);

fn of_requests<M: Mix>(memo: &Memo) -> Vec<Choice> {
    let label = memo.next;
    let ask = || (0..M::SITES.len()).prop_flat_map(ask_at::<M>);
    vec![
        (80, ask().prop_map(move |ask| Step::Ask(label, ask)).boxed()),
        (3, ask().prop_map(move |ask| Step::Name(label, ask)).boxed()),
    ]
}

fn ask_at<M: Mix>(site: usize) -> impl Strategy<Value = Request> {
    let claim = match M::SITES[site] {
        Nature::Lock => prop_oneof![
            2 => Just(Wanted::Sole),
            3 => select(&OWNERS[..]).prop_map(Wanted::Owner),
        ]
        .boxed(),
        Nature::Counting | Nature::Fair => {
            (permits(), handle()).prop_map(|(permits, handle)| Wanted::Permits { permits, handle }).boxed()
        }
    };
    let waits = prop_oneof![3 => Just(true), 1 => Just(false)];
    (0..CLIENTS, claim, term(), waits).prop_map(move |(client, claim, term, waits)| Request {
        client,
        site,
        claim,
        term,
        waits,
    })
}

fn of_leases<M: Mix>(memo: &Memo) -> Vec<Choice> {
    let mut choices = Vec::new();
    for (weight, labels) in [(8, memo.labels(|known| !known.released)), (1, memo.labels(|_| true))] {
        if labels.is_empty() {
            continue;
        }
        let label = || select(labels.clone());
        choices.extend([
            (weight * 5, label().prop_map(Step::Release).boxed()),
            (weight * 2, (label(), term()).prop_map(|(label, term)| Step::Renew(label, term)).boxed()),
            (weight, label().prop_map(Step::AskAgain).boxed()),
        ]);
    }
    // Only semaphores give back a part.
    let parts = memo.labels(|known| M::SITES[known.ask.site] != Nature::Lock);
    if !parts.is_empty() {
        let keep = (select(parts), 1_u32..4).prop_map(|(label, permits)| Step::Keep(label, permits));
        choices.push((6, keep.boxed()));
    }
    choices
}

fn of_sites<M: Mix>() -> Vec<Choice> {
    let at = || (0..CLIENTS, 0..M::SITES.len());
    let look =
        (at(), any::<bool>()).prop_map(|((client, site), numbers)| Step::Look { client, site, numbers });
    let force = at().prop_map(|(client, site)| Step::Force { client, site });
    let mut choices = vec![(6, look.boxed()), (4, force.boxed())];
    let semaphores: Vec<_> = (0..M::SITES.len()).filter(|site| M::SITES[*site] != Nature::Lock).collect();
    if !semaphores.is_empty() {
        let resize = (0..CLIENTS, select(semaphores), handle(), 1_u32..8, term()).prop_map(
            |(client, site, handle, permits, term)| Step::Resize { client, site, handle, permits, term },
        );
        choices.push((6, resize.boxed()));
    }
    choices
}

fn of_faults<M: Mix>() -> Vec<Choice> {
    let mut choices = vec![
        (M::FAULTS * 3, (0..CLIENTS).prop_map(Step::Crash).boxed()),
        (M::FAULTS, Just(Step::LoseData).boxed()),
        (1, Just(Step::Idle).boxed()),
    ];
    if M::TIME_PASSES {
        choices.push((22, prop_oneof![8 => 1_u32..3, 1 => 5_u32..15].prop_map(Step::Pass).boxed()));
    }
    choices
}

/// Mostly few, at times as many as the limits that handles state, or more.
fn permits() -> impl Strategy<Value = u32> {
    prop_oneof![6 => Just(1_u32), 4 => Just(2_u32), 3 => Just(3_u32), 1 => 4_u32..7]
}

fn handle() -> impl Strategy<Value = usize> {
    prop_oneof![12 => Just(0_usize), 1 => Just(1_usize)]
}

fn term() -> impl Strategy<Value = Term> {
    prop_oneof![Just(Term::Short), Just(Term::Long)]
}
