//! Whatever happens to a store, by operations, time, drops and crashes in any order, it answers as `MemoryBackend`
//! does.
//!
//! Sequences of steps are made up at random and taken by both sides; a sequence on which they differ is shrunk and
//! shown. `PROPTEST_CASES` sets how many there are per test, 64 by default.
//!
//! | file | holds |
//! |---|---|
//! | `plan` | the steps, and how sequences are made up |
//! | `side` | one side: a store, its clients, its leases; carries out steps |
//! | `stores` | the stores as a side needs them |
//! | `comparison` | both sides, and the comparison |

mod comparison;
#[cfg(feature = "etcd")]
#[path = "../support/etcd.rs"]
mod etcd_server;
#[cfg(feature = "sqlite")]
#[path = "../support/sqlite.rs"]
mod file;
#[cfg(feature = "mysql")]
#[path = "../support/mysql.rs"]
mod mysql_server;
mod plan;
#[cfg(feature = "postgres")]
#[path = "../support/postgres.rs"]
mod server;
mod side;
mod stores;
#[cfg(feature = "zookeeper")]
#[path = "../support/zookeeper.rs"]
mod zookeeper_server;

use std::cell::RefCell;
use std::env;
use std::sync::atomic::Ordering;

use proptest::test_runner::{Config, FileFailurePersistence, TestCaseError, TestError, TestRunner};
use proptest_state_machine::ReferenceStateMachine;

use comparison::Comparison;
use plan::{LENGTH, Mix, Nature, Plan};
use stores::{Memory, Store};

#[derive(Debug)]
struct Locks;

impl Mix for Locks {
    const SITES: &'static [Nature] = &[Nature::Lock, Nature::Lock];
    const FAULTS: u32 = 1;
}

#[derive(Debug)]
struct Counting;

impl Mix for Counting {
    const SITES: &'static [Nature] = &[Nature::Counting];
    const FAULTS: u32 = 1;
}

#[derive(Debug)]
struct Fair;

impl Mix for Fair {
    const SITES: &'static [Nature] = &[Nature::Fair];
    const FAULTS: u32 = 1;
}

#[derive(Debug)]
struct Rough;

impl Mix for Rough {
    const SITES: &'static [Nature] = &[Nature::Lock, Nature::Counting, Nature::Fair];
    const FAULTS: u32 = 4;
}

/// How many sequences are made up per test, if `PROPTEST_CASES` does not say otherwise.
const CASES: u32 = 64;

/// For how long a sequence is shrunk, in milliseconds, if `PROPTEST_MAX_SHRINK_TIME` does not say otherwise.
const SHRINKING: u32 = 5 * 60 * 1000;

/// Makes up sequences, until the sides differ on one.
fn agree<M: Mix>(store: impl Store) {
    agree_on_one_of::<M>(1, store);
}

/// The same with one of so many sequences only, as each step takes long on this store.
fn agree_on_one_of<M: Mix>(several: u32, store: impl Store) {
    let regressions = concat!(env!("CARGO_MANIFEST_DIR"), "/regressions.txt");
    let mut config = Config {
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(regressions))),
        ..Config::default()
    };
    if env::var_os("PROPTEST_CASES").is_none() {
        config.cases = CASES;
    }
    config.cases = config.cases.div_ceil(several);
    if config.max_shrink_time == 0 {
        config.max_shrink_time = SHRINKING;
    }
    let comparison = RefCell::new(Comparison::new(store));
    let found = TestRunner::new(config).run(&Plan::<M>::sequential_strategy(LENGTH), |(_, steps, taken)| {
        let on_step = || {
            // For the shrinking: what comes after the step that failed has no part in it.
            if let Some(taken) = &taken {
                taken.fetch_add(1, Ordering::SeqCst);
            }
        };
        comparison.borrow_mut().run(M::SITES, &steps, on_step).map_err(TestCaseError::fail)
    });
    match found {
        Ok(()) => {}
        Err(TestError::Fail(why, (_, steps, _))) => {
            let steps: String = steps.iter().map(|step| format!("    {step:?},\n")).collect();
            panic!("{why}\nafter the steps\n{steps}");
        }
        Err(error) => panic!("{error}"),
    }
}

/// The machinery itself finds no difference where there is none.
mod on_memory {
    use super::*;

    #[test]
    fn locks_agree_with_themselves() {
        agree::<Locks>(Memory::new());
    }

    #[test]
    fn counting_semaphores_agree_with_themselves() {
        agree::<Counting>(Memory::new());
    }

    #[test]
    fn fair_semaphores_agree_with_themselves() {
        agree::<Fair>(Memory::new());
    }

    #[test]
    fn all_of_them_agree_with_themselves_in_rough_times() {
        agree::<Rough>(Memory::new());
    }
}

/// The tests of a store: how it is started, if it can be, and how sequences are compared.
#[cfg(any(
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "fred",
    feature = "sqlite",
    feature = "zookeeper"
))]
macro_rules! agrees_with_the_model {
    ($module:ident, $start_or_skip:path, $agree:ident) => {
        mod $module {
            use super::*;

            #[test]
            fn locks_agree_with_the_model() {
                let Some(store) = $start_or_skip("locks like the model's") else { return };
                $agree::<Locks>(store);
            }

            #[test]
            fn counting_semaphores_agree_with_the_model() {
                let Some(store) = $start_or_skip("counting semaphores like the model's") else { return };
                $agree::<Counting>(store);
            }

            #[test]
            fn fair_semaphores_agree_with_the_model() {
                let Some(store) = $start_or_skip("fair semaphores like the model's") else { return };
                $agree::<Fair>(store);
            }

            #[test]
            fn all_of_them_agree_with_the_model_in_rough_times() {
                let Some(store) = $start_or_skip("stores like the model in rough times") else { return };
                $agree::<Rough>(store);
            }
        }
    };
}

/// Only days can pass on it, and then all is over: its clock cannot be set, which counts leases since the server was
/// started.
#[cfg(feature = "etcd")]
fn agree_without_time<M: Mix>(store: impl Store) {
    agree_on_one_of::<plan::Timeless<M>>(4, store);
}

#[cfg(any(feature = "mysql", feature = "postgres", feature = "zookeeper"))]
fn agree_on_one_of_two<M: Mix>(store: impl Store) {
    agree_on_one_of::<M>(2, store);
}

#[cfg(feature = "etcd")]
agrees_with_the_model!(on_etcd, stores::Etcd::start_or_skip, agree_without_time);
#[cfg(feature = "mysql")]
agrees_with_the_model!(on_mysql, stores::Mysql::start_or_skip, agree_on_one_of_two);
#[cfg(feature = "postgres")]
agrees_with_the_model!(on_postgres, stores::Postgres::start_or_skip, agree_on_one_of_two);
#[cfg(feature = "fred")]
agrees_with_the_model!(on_redis, stores::Redis::start_or_skip, agree);
#[cfg(feature = "sqlite")]
agrees_with_the_model!(on_sqlite, stores::Sqlite::start_or_skip, agree);
#[cfg(feature = "zookeeper")]
agrees_with_the_model!(on_zookeeper, stores::Zookeeper::start_or_skip, agree_on_one_of_two);

/// Sequences on which the sides once differed, shrunk.
#[cfg(any(
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "fred",
    feature = "sqlite",
    feature = "zookeeper"
))]
mod found {
    use std::any::type_name;

    use super::*;
    use crate::plan::Step::*;
    use crate::plan::Term::*;
    use crate::plan::Wanted::*;
    use crate::plan::{Label, Request, Step};

    /// On which both sides agree.
    trait Runs {
        fn run(&mut self, sites: &'static [Nature], steps: &[Step]);
    }

    impl<S: Store> Runs for Comparison<S> {
        fn run(&mut self, sites: &'static [Nature], steps: &[Step]) {
            Comparison::run(self, sites, steps, || ())
                .unwrap_or_else(|why| panic!("{}: {why}", type_name::<S>()));
        }
    }

    fn agree_on<M: Mix>(on: &mut dyn Runs, steps: &[Step]) {
        on.run(M::SITES, steps);
    }

    /// All of them on one server: to start it takes longer than they do.
    fn agree_on_all<S: Store>(start_or_skip: fn(&str) -> Option<S>) {
        agree_on_each(start_or_skip, [TIMELESS, TIMED].concat());
    }

    fn agree_on_each<S: Store>(start_or_skip: fn(&str) -> Option<S>, named: Vec<(&str, Known)>) {
        let Some(store) = start_or_skip("sequences that went wrong once") else { return };
        let mut on = Comparison::new(store);
        for (name, sequences) in named {
            println!("{name}");
            sequences(&mut on);
        }
    }

    #[cfg(feature = "etcd")]
    #[test]
    fn on_etcd() {
        agree_on_each(stores::Etcd::start_or_skip, TIMELESS.to_vec());
    }

    #[cfg(feature = "mysql")]
    #[test]
    fn on_mysql() {
        agree_on_all(stores::Mysql::start_or_skip);
    }

    #[cfg(feature = "postgres")]
    #[test]
    fn on_postgres() {
        agree_on_all(stores::Postgres::start_or_skip);
    }

    #[cfg(feature = "fred")]
    #[test]
    fn on_redis() {
        agree_on_all(stores::Redis::start_or_skip);
    }

    #[cfg(feature = "sqlite")]
    #[test]
    fn on_sqlite() {
        agree_on_all(stores::Sqlite::start_or_skip);
    }

    #[cfg(feature = "zookeeper")]
    #[test]
    fn on_zookeeper() {
        agree_on_all(stores::Zookeeper::start_or_skip);
    }

    /// A sequence that went wrong once.
    type Known = fn(&mut dyn Runs);

    macro_rules! named {
        ($($name:ident),*) => { &[$((stringify!($name), $name)),*] };
    }

    /// What went wrong, and the sequences that showed it: those in which no time passes but days.
    const TIMELESS: &[(&str, Known)] = named![
        a_dead_waiter_does_not_keep_a_limit_in_force,
        a_pushed_grant_contains_the_limit,
        a_request_sent_again_does_not_take_back_what_its_lease_gave_back,
        a_waiter_for_an_owner_is_prompted_by_a_client_that_does_not_know_it,
        a_lease_that_was_ended_by_force_and_is_granted_again_leaves_nothing
    ];

    /// The others.
    const TIMED: &[(&str, Known)] = named![
        a_limit_lapses_whether_or_not_it_is_inspected,
        a_limit_that_is_changed_after_it_lapsed_begins_a_version,
        a_limit_lapses_with_the_place_of_a_dead_waiter,
        an_inspection_shows_no_limit_that_has_lapsed,
        a_forced_release_notifies_no_holder_whose_lease_has_ended,
        what_serves_nobody_does_not_do_so_because_a_hold_has_ended,
        a_dead_waiter_for_many_permits_blocks_no_small_request
    ];

    /// A request of `client` that waits, by the handle that states the usual limit.
    fn ask(lease: Label, client: usize, permits: u32) -> Step {
        let claim = Permits { permits, handle: 0 };
        Ask(lease, Request { client, site: 0, claim, term: Short, waits: true })
    }

    fn enter(lease: Label) -> Step {
        Ask(lease, Request { client: 0, site: 0, claim: Owner("a"), term: Short, waits: true })
    }

    fn a_limit_lapses_whether_or_not_it_is_inspected(on: &mut dyn Runs) {
        agree_on::<Counting>(on, &[ask(0, 0, 1), Pass(6), ask(1, 0, 1)]);
        let other = Request {
            client: 0,
            site: 0,
            claim: Permits { permits: 1, handle: 1 },
            term: Short,
            waits: true,
        };
        agree_on::<Counting>(on, &[ask(0, 0, 1), Pass(6), Ask(1, other)]);
    }

    fn a_limit_that_is_changed_after_it_lapsed_begins_a_version(on: &mut dyn Runs) {
        let resize = Resize { client: 0, site: 0, handle: 0, permits: 2, term: Short };
        agree_on::<Fair>(on, &[ask(0, 0, 1), Pass(6), resize]);
    }

    fn a_dead_waiter_does_not_keep_a_limit_in_force(on: &mut dyn Runs) {
        agree_on::<Fair>(on, &[ask(0, 0, 2), ask(1, 1, 3), Crash(1), Idle, ask(2, 0, 1)]);
    }

    fn a_limit_lapses_with_the_place_of_a_dead_waiter(on: &mut dyn Runs) {
        let long = |handle| {
            let claim = Permits { permits: 4, handle };
            Request { client: 1, site: 0, claim, term: Long, waits: true }
        };
        let died_waiting = [ask(2, 0, 1), Ask(10, long(0)), Crash(1), Pass(7)];
        agree_on::<Counting>(on, &died_waiting);
        agree_on::<Fair>(on, &died_waiting);
        let mut other_limit = died_waiting.to_vec();
        other_limit.push(Ask(11, long(1)));
        agree_on::<Counting>(on, &other_limit);
        agree_on::<Fair>(on, &other_limit);
    }

    fn a_pushed_grant_contains_the_limit(on: &mut dyn Runs) {
        let resize = Resize { client: 1, site: 0, handle: 0, permits: 2, term: Short };
        agree_on::<Fair>(on, &[ask(0, 0, 3), ask(1, 0, 2), resize, Release(0)]);
    }

    fn an_inspection_shows_no_limit_that_has_lapsed(on: &mut dyn Runs) {
        let look = Look { client: 0, site: 0, numbers: true };
        agree_on::<Counting>(on, &[ask(0, 0, 1), Pass(6), look]);
    }

    fn a_request_sent_again_does_not_take_back_what_its_lease_gave_back(on: &mut dyn Runs) {
        agree_on::<Counting>(on, &[ask(0, 0, 3), Keep(0, 1), AskAgain(0), ask(1, 0, 3)]);
    }

    fn a_forced_release_notifies_no_holder_whose_lease_has_ended(on: &mut dyn Runs) {
        // The lease that led, and one that did not.
        agree_on::<Locks>(on, &[enter(0), Pass(2), enter(1), Pass(1), Force { client: 0, site: 0 }]);
        let long = Request { client: 0, site: 0, claim: Owner("a"), term: Long, waits: true };
        agree_on::<Locks>(on, &[Ask(0, long), enter(1), Pass(3), Force { client: 0, site: 0 }]);
    }

    fn a_waiter_for_an_owner_is_prompted_by_a_client_that_does_not_know_it(on: &mut dyn Runs) {
        let request = |client, claim| Request { client, site: 0, claim, term: Long, waits: true };
        let (holder, owner) = (request(1, Sole), request(2, Owner("b")));
        // The holder's client looks at the queue when the first of the owner's requests is in it.
        agree_on::<Locks>(
            on,
            &[Ask(0, holder.clone()), Ask(1, owner.clone()), Ask(2, holder), Ask(3, owner), Release(0)],
        );
    }

    fn a_lease_that_was_ended_by_force_and_is_granted_again_leaves_nothing(on: &mut dyn Runs) {
        let ask = |lease| Ask(lease, Request { client: 0, site: 0, claim: Sole, term: Short, waits: true });
        let force = || Force { client: 0, site: 0 };
        // At the end, it is released once more.
        agree_on::<Locks>(on, &[ask(0), force(), ask(1), AskAgain(0), force(), Release(0)]);
        agree_on::<Locks>(
            on,
            &[ask(0), force(), ask(1), AskAgain(0), Release(1), Renew(0, Short), Release(0)],
        );
        agree_on::<Locks>(on, &[ask(0), force(), AskAgain(0), Release(0)]);
    }

    fn what_serves_nobody_does_not_do_so_because_a_hold_has_ended(on: &mut dyn Runs) {
        let lock = |client| Request { client, site: 0, claim: Sole, term: Short, waits: true };
        let died =
            [Ask(0, lock(0)), Ask(1, lock(0)), Pass(1), Crash(0), Ask(2, lock(0)), Release(2), Pass(2)];
        // At the end, what was released before is released again.
        agree_on::<Locks>(on, &died);
        let steps = [ask(0, 0, 1), Pass(1), ask(1, 1, 1), ask(2, 0, 3), Crash(0), Pass(2), Renew(1, Short)];
        agree_on::<Fair>(on, &steps);
    }

    fn a_dead_waiter_for_many_permits_blocks_no_small_request(on: &mut dyn Runs) {
        let wants = |client, permits, term| {
            let claim = Permits { permits, handle: 0 };
            Request { client, site: 0, claim, term, waits: true }
        };
        agree_on::<Fair>(
            on,
            &[
                ask(0, 0, 3),
                Ask(1, wants(0, 2, Long)),
                Ask(2, wants(1, 4, Long)),
                Pass(1),
                ask(3, 2, 1),
                Crash(1),
                Pass(14),
            ],
        );
    }
}
