//! A Redlock keeps every point of the contract, as far as it claims to. In a program of its own: each client here is
//! connected to five servers, and tests that run at the same time would slow it down too much.
#![cfg(all(feature = "_redis", feature = "conformance"))]

#[macro_use]
#[path = "support/points.rs"]
mod points;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use leasehold::backend::conformance::{self, Harness};
use leasehold::backend::{Backend, Kind};
use leasehold::redlock::RedlockBackend;
use leasehold_support::{Nodes, more_rules};
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
        for server in &nodes.0 {
            server.allow(&more_rules("+scan"));
        }
        Some(Self { nodes, _turn: turn })
    }
}

impl Harness for Redlock {
    fn client(&self) -> BoxFuture<'_, Arc<dyn Backend>> {
        async {
            // On a busy machine a node is sometimes late, and of two nodes both are needed.
            let url = format!("{}?node_timeout=500ms&connect_timeout=10s", self.nodes.url());
            let backend = RedlockBackend::connect(&url).await;
            Arc::new(backend.expect("the nodes accept clients")) as Arc<dyn Backend>
        }
        .boxed()
    }

    fn lose_data(&self) -> BoxFuture<'_, ()> {
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

async fn of_five(point: &str) -> Option<Redlock> {
    Redlock::start_or_skip(point, 5).await
}

const fn one_kind_at_a_time(_: &Redlock) -> usize {
    1
}

points_of_every_store! { of_five, [Kind::Mutex, Kind::Reentrant], one_kind_at_a_time }

each_point! { of_five, [Kind::Mutex, Kind::Reentrant], one_kind_at_a_time =>
    point_14_a_lease_released_by_force_is_remembered,
}

/// With an even number of nodes clients often have half of them each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_point_on_two_nodes() {
    let Some(store) = Redlock::start_or_skip("every point", 2).await else { return };
    conformance::run_all(&store).await;
}
