//! A Redlock keeps every point of the contract, as far as it claims to. In a program of its own: each client of it is one of five servers,
//! and what else runs at the same time must leave time for that.
#![cfg(all(feature = "_redis", feature = "conformance"))]

mod support;

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use leasehold::backend::Kind;
use leasehold::backend::conformance::{self, Harness};
use leasehold::{Backend, RedlockBackend};
use support::Nodes;
use tokio::sync::{Semaphore, SemaphorePermit};

/// How many tests run at a time.
static TURNS: Semaphore = Semaphore::const_new(2);

struct Redlock {
    nodes: Nodes,
    _turn: SemaphorePermit<'static>,
}

impl Redlock {
    async fn start_or_skip(point: &str, nodes: usize) -> Option<Self> {
        let turn = TURNS.acquire().await.expect("never closed");
        let nodes = Nodes::start_or_skip(&format!("a Redlock on {nodes} nodes keeps {point}"), nodes)?;
        Some(Self { nodes, _turn: turn })
    }
}

impl Harness for Redlock {
    fn client(&self) -> BoxFuture<'_, Arc<dyn Backend>> {
        async {
            let backend = RedlockBackend::connect(&self.nodes.url()).await;
            Arc::new(backend.expect("the nodes accept clients")) as Arc<dyn Backend>
        }
        .boxed()
    }

    fn lose_memory(&self) -> BoxFuture<'_, ()> {
        async {
            for server in &self.nodes.0 {
                server.raw().send(&["FLUSHALL"]);
                server.raw().send(&["SCRIPT", "FLUSH"]);
            }
        }
        .boxed()
    }

    fn work(&self) -> BoxFuture<'_, u64> {
        async { unreachable!("a Redlock does not claim that its hand-overs take constant work") }.boxed()
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(1500)
    }

    fn slack(&self) -> Duration {
        Duration::from_secs(1)
    }
}

/// One test per numbered point, for both kinds of locks.
macro_rules! every_point {
    ($($point:ident),* $(,)?) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $point() {
            let Some(store) = Redlock::start_or_skip(stringify!($point), 5).await else { return };
            for kind in [Kind::Mutex, Kind::Reentrant] {
                conformance::$point(&store, kind).await;
            }
        })*
    };
}

every_point! {
    point_1_every_operation_can_be_repeated,
    point_2_release_removes_a_lease_wherever_it_is,
    point_3_tokens_increase_in_every_case,
    point_3_two_alternating_clients_exclude_each_other,
    point_4_a_lease_is_measured_from_before_its_grant,
    point_4_every_place_has_its_own_ticket,
    point_4_a_grant_reported_late_is_not_accepted,
    point_5_release_and_renewal_affect_only_their_own_lease,
    point_6_renewal_distinguishes_renewed_lost_and_unknown,
    point_7_a_dead_waiter_blocks_no_other_waiter,
    point_7_all_places_of_a_dead_client_are_gone_within_one_ttl,
    point_8_requests_are_served_in_order_of_arrival,
    point_10_the_store_decides_when_a_lease_ends,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn point_6_renewals_are_answered_individually() {
    let point = "point_6_renewals_are_answered_individually";
    let Some(store) = Redlock::start_or_skip(point, 5).await else { return };
    conformance::point_6_renewals_are_answered_individually(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn point_11_an_owner_can_re_enter() {
    let Some(store) = Redlock::start_or_skip("point_11_an_owner_can_re_enter", 5).await else { return };
    conformance::point_11_an_owner_can_re_enter(&store).await;
}

/// With an even number of nodes clients often have half of them each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_point_on_two_nodes() {
    let Some(store) = Redlock::start_or_skip("every point", 2).await else { return };
    conformance::run_all(&store).await;
}
