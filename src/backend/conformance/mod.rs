//! The [contract](super) as functions, by topic. Each of them panics if a store breaks it.
//!
//! A store's tests implement [`Harness`] and call every function, or [`run_all`]. What a store does not claim in its
//! [`Capabilities`](super::Capabilities) is not checked. Points 1 to 10 are checked for one [`Kind`] at a time,
//! semaphores with a limit of one. Every function uses keys of its own, so they may run concurrently on one store,
//! except those of point 3, which erase its data, and of point 9, which measure its work.
//!
//! | file | points |
//! |---|---|
//! | `requests` | 1 idempotency, 2 release, 5 other holders' leases |
//! | `tokens` | 3 tokens, and two clients that alternate |
//! | `leases` | 4 from when a lease is measured, 6 renewal, 10 expiry |
//! | `delayed` | 4 a grant that is reported late |
//! | `queue` | 4 places and their tickets, 7 dead waiters, 8 order, 9 work |
//! | `owners` | 11 owners |
//! | `permits` | 12 permits, 13 limits |
//! | `holders` | 15 labels and notes, 16 listing |

mod delayed;
mod holders;
mod leases;
mod owners;
mod permits;
mod queue;
mod requests;
mod site;
mod tokens;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;

use super::{Backend, Kind};

pub use delayed::*;
pub use holders::*;
pub use leases::*;
pub use owners::*;
pub use permits::*;
pub use queue::*;
pub use requests::*;
pub use tokens::*;

/// All kinds of resources.
pub const KINDS: [Kind; 4] = Kind::ALL;

/// A store under test.
pub trait Harness: Send + Sync {
    /// A new client of the store, as another process would be.
    fn client(&self) -> BoxFuture<'_, Arc<dyn Backend>>;
    /// Erases the store's data, as a restart without persistence does.
    fn lose_data(&self) -> BoxFuture<'_, ()>;
    /// A measure of the work that the store has done so far, in any unit.
    fn work(&self) -> BoxFuture<'_, u64>;

    /// The TTL of the leases: much longer than a round trip, and short enough for a test.
    fn ttl(&self) -> Duration {
        Duration::from_millis(600)
    }

    /// The delay that timers, scheduling and a round trip may add.
    fn slack(&self) -> Duration {
        Duration::from_millis(500)
    }
}

/// Checks every point for everything that the store supports.
///
/// # Panics
///
/// If the store breaks the contract.
pub async fn run_all(store: &dyn Harness) {
    let kinds = store.client().await.capabilities().kinds.clone();
    for kind in kinds.iter().copied() {
        point_1_every_operation_can_be_repeated(store, kind).await;
        point_2_release_removes_a_lease_wherever_it_is(store, kind).await;
        point_3_tokens_increase_in_every_case(store, kind).await;
        point_3_two_alternating_clients_exclude_each_other(store, kind).await;
        point_4_a_lease_is_measured_from_before_its_grant(store, kind).await;
        point_4_every_place_has_its_own_ticket(store, kind).await;
        point_4_a_grant_reported_late_is_not_accepted(store, kind).await;
        point_5_release_and_renewal_affect_only_their_own_lease(store, kind).await;
        point_6_renewal_distinguishes_renewed_lost_and_unknown(store, kind).await;
        point_7_a_dead_waiter_blocks_no_other_waiter(store, kind).await;
        point_7_all_places_of_a_dead_client_are_gone_within_one_ttl(store, kind).await;
        point_8_requests_are_served_in_order_of_arrival(store, kind).await;
        point_9_hand_over_work_is_independent_of_the_number_of_waiters(store, kind).await;
        point_10_the_store_decides_when_a_lease_ends(store, kind).await;
        point_15_holders_and_waiters_have_names(store, kind).await;
    }
    point_6_renewals_are_answered_individually(store).await;
    point_16_what_is_held_or_awaited_is_listed(store).await;
    for kind in kinds.iter().copied().filter(|kind| !kind.is_semaphore()) {
        point_14_a_lease_released_by_force_is_remembered(store, kind).await;
    }
    if kinds.contains(&Kind::Reentrant) {
        point_11_an_owner_can_re_enter(store).await;
    }
    for kind in kinds.into_iter().filter(|kind| kind.is_semaphore()) {
        point_12_a_release_serves_exactly_those_that_fit(store, kind).await;
        point_13_one_limit_is_in_force(store, kind).await;
    }
}
