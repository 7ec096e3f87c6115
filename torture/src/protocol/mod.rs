//! The protocol as models of which every state is visited, at small sizes.
//!
//! | module | content |
//! |---|---|
//! | [`lock`] | a lock on one store: its clients, the network, the clocks, and all faults |
//! | `client` | what a client knows of its lease, and makes of answers and messages |
//! | [`redlock`] | a lock on a majority of several stores |
//! | [`store`] | what the store keeps, and what each operation does to it |
//! | `calm` | I5: from every state, everybody is served in time if nothing more goes wrong |
//! | `explore` | visiting all states, and a short way to the first one that breaks a property |
//! | `variant` | the mistakes that can be planted |
//!
//! The properties are those by which runs on real stores are judged, as far as each is promised under the faults of a
//! model:
//!
//! * **I1** No two clients believe that they hold the lock. Not promised if the store has lost its memory, or its clock
//!   was set.
//! * **I2** Tokens increase from grant to grant.
//! * **I3** Data that checks tokens loses no change.
//! * **I5** Everybody who waits is served: at once if all leases that the store knows have a client, otherwise when the
//!   last of the others has ended.
//! * **I7** Grants follow the order of arrival, among those who are still there.
//!
//! What is left out, because it adds nothing to what can happen: several operations in one call (the store executes them
//! one after another, which is one of the orders in which they can arrive), and the client's margin before the end of a
//! lease (all clocks of the model run at the same speed). Semaphores and re-entering are compared with the ledger in
//! `tests/model`.

#[cfg(test)]
mod against_ledger;
mod calm;
mod client;
mod explore;
pub mod lock;
mod model;
pub mod redlock;
pub mod store;
mod variant;

pub use explore::{Explored, break_property, explore};
pub use variant::Variant;

#[cfg(test)]
mod tests {
    use super::lock::Lock;
    use super::redlock::Redlock;
    use super::*;

    /// All states are visited, and nothing is broken.
    fn holds(what: &str, lock: Lock) {
        let explored = explore(lock);
        println!("{what:<24} {explored}");
        assert!(explored.broken.is_none(), "{what}: {explored}");
        assert!(explored.missing.is_empty(), "{what}: nothing shows {:?}", explored.missing);
    }

    /// The mistake breaks the property; at the same size, the protocol as it is breaks nothing.
    fn breaks(property: &'static str, variant: Variant, lock: Lock) {
        holds(&format!("without {variant:?}"), lock);
        let explored = break_property(Lock { variant, ..lock }, property);
        println!("{variant:?}: {explored}");
        assert!(explored.broken.is_some(), "{variant:?} was not found: {explored}");
    }

    const fn lock(clients: u8, leases: u8, ticks: store::Ticks) -> Lock {
        Lock::new(Variant::Correct, clients, leases, ticks)
    }

    #[test]
    fn a_renewal_that_does_not_compare_breaks_exclusion() {
        breaks("I1", Variant::RenewsWithoutComparing, Lock { renewals: true, ..lock(2, 2, 2) });
    }

    #[test]
    fn a_release_that_does_not_compare_breaks_exclusion() {
        breaks("I1", Variant::ReleasesWithoutComparing, lock(2, 2, 1));
    }

    #[test]
    fn a_lease_that_is_measured_from_the_answer_breaks_exclusion() {
        breaks("I1", Variant::MeasuresFromTheAnswer, lock(2, 1, 2));
    }

    #[test]
    fn tokens_that_are_counted_go_back_and_lose_changes_when_memory_is_lost() {
        let losses = Lock { losses: 1, ..lock(2, 1, 2) };
        breaks("I2", Variant::CountsTokens, losses);
        breaks("I3", Variant::CountsTokens, Lock { data: true, ..losses });
    }

    #[test]
    fn tokens_without_a_fence_go_back_with_the_clock() {
        breaks("I2", Variant::KeepsNoFence, Lock { jumps: 1, ..lock(2, 1, 2) });
    }

    #[test]
    fn a_queue_of_the_dead_keeps_the_living_waiting() {
        breaks("I5", Variant::IgnoresLiveness, Lock { deaths: 2, ..lock(1, 3, 2) });
    }

    #[test]
    fn a_grant_that_is_neither_pushed_nor_asked_for_is_never_noticed() {
        breaks("I5", Variant::NeitherPushesNorRepeats, lock(2, 1, 1));
    }

    #[test]
    fn a_release_that_is_given_up_keeps_waiters_waiting() {
        breaks("I5", Variant::GivesUpReleases, Lock { cuts: 1, ..lock(2, 1, 1) });
    }

    #[test]
    fn a_lease_that_is_passed_on_past_its_end_breaks_exclusion() {
        breaks("I1", Variant::PassesOnPastTheLease, Lock { hand_over: true, ..lock(2, 1, 2) });
    }

    #[test]
    fn a_late_grant_that_is_believed_breaks_exclusion() {
        breaks("I1", Variant::BelievesLateGrants, lock(2, 2, 2));
    }

    #[test]
    fn a_request_that_overtakes_breaks_the_order() {
        breaks("I7", Variant::OvertakesTheQueue, lock(2, 1, 2));
    }

    #[test]
    fn three_clients_keep_their_order() {
        holds("three clients", lock(3, 1, 1));
    }

    #[test]
    fn nothing_breaks_when_connections_are_cut() {
        holds("cuts", Lock { cuts: 1, ..lock(2, 1, 3) });
        holds("late calls", Lock { cuts: 1, late_calls: true, ..lock(2, 1, 2) });
    }

    #[test]
    fn nothing_breaks_when_clients_die() {
        holds("deaths", Lock { deaths: 1, ..lock(2, 1, 2) });
    }

    #[test]
    fn nothing_else_breaks_when_the_clock_of_the_store_is_set() {
        holds("jumps", Lock { jumps: 1, data: true, ..lock(2, 1, 2) });
    }

    /// As [`holds`].
    fn majority_holds(lock: Redlock) {
        let lock = Redlock { variant: Variant::Correct, ..lock };
        let explored = explore(lock);
        println!("{lock:?}: {explored}");
        assert!(
            explored.broken.is_none() && explored.missing.is_empty(),
            "{explored}, {:?}",
            explored.missing
        );
    }

    fn majority_breaks(property: &'static str, lock: Redlock) {
        let explored = break_property(lock, property);
        println!("{:?}: {explored}", lock.variant);
        assert!(explored.broken.is_some(), "{:?} was not found: {explored}", lock.variant);
    }

    const EARLIER_VOTES: Redlock = Redlock::new(Variant::CountsEarlierVotes, 2, 2, 0);
    const RESTORED_NODES: Redlock =
        Redlock { faults: 1, renewals: true, ..Redlock::new(Variant::CountsRestoredNodes, 2, 1, 1) };
    const OWN_TOKENS: Redlock = Redlock { faults: 1, ..Redlock::new(Variant::KeepsTokensToItself, 2, 1, 0) };

    #[test]
    fn a_majority_with_earlier_votes_breaks_exclusion() {
        majority_breaks("I1", EARLIER_VOTES);
    }

    #[test]
    fn a_majority_with_restored_nodes_breaks_exclusion() {
        majority_breaks("I1", RESTORED_NODES);
    }

    #[test]
    fn a_token_that_is_not_written_back_is_issued_again() {
        majority_holds(OWN_TOKENS);
        majority_breaks("I2", OWN_TOKENS);
    }

    /// Takes minutes: `cargo test --release -p torture -- --ignored --nocapture`.
    #[test]
    #[ignore = "visits millions of states"]
    fn a_majority_keeps_its_promises_at_larger_sizes() {
        majority_holds(EARLIER_VOTES);
        majority_holds(RESTORED_NODES);
    }
}
