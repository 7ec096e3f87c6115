//! What hand-over inside a client promises, on the store inside the process, in tokio's paused time.

#[macro_use]
#[path = "support/handover_promises.rs"]
mod handover_promises;

use std::sync::Arc;

use handover_promises::{granted, local, waiter};
use leasehold::{Client, MemoryBackend};
use leasehold_support::locks::*;
use leasehold_support::{begun, within};
use tokio::runtime::{Builder, Runtime};

/// Clients of one store.
struct Processes {
    clients: Vec<Client>,
    store: MemoryBackend,
}

impl Processes {
    #[expect(clippy::unused_async, reason = "a server takes a while to start")]
    async fn start(_left_out: &str, n: usize) -> Option<Self> {
        let store = MemoryBackend::new();
        let clients = (0..n).map(|_| Client::with_backend(Arc::new(store.peer()))).collect();
        Some(Self { clients, store })
    }

    async fn end(self) {
        for client in &self.clients {
            client.shutdown().await.expect("drained");
        }
    }
}

promises! {
    tokio::test(start_paused = true), Processes::start,
    tasks_of_one_client_are_served_in_order_of_arrival: 2,
    another_client_waits_for_sixteen_holds_at_most: 2,
    another_client_waits_for_thirty_milliseconds_of_long_holds_at_most: 2,
    clients_take_turns_in_order: 3,
    mutexes_with_other_options_exclude_each_other_and_pass_nothing_on: 1,
    a_dropped_guard_is_passed_on_as_a_released_one: 1,
    try_lock_neither_waits_nor_overtakes: 1,
    waiters_that_give_up_are_skipped: 1,
    the_first_waiter_that_is_dropped_leaves_its_place_to_the_next_one: 3,
    the_first_waiter_whose_time_is_over_leaves_its_place_to_the_next_one: 3,
    the_first_waiter_dropped_after_any_poll_while_it_is_granted_stalls_nobody: 2,
    the_first_waiter_dropped_after_any_poll_leaves_nothing_and_stalls_nobody: 2,
    a_local_waiter_dropped_at_any_poll_leaves_nothing_and_stalls_no_other: 2,
    a_first_waiter_that_is_not_polled_holds_the_others_up_for_two_leases_at_most: 2,
    a_first_waiter_that_is_never_polled_does_not_block_later_ones: 2,
    a_waiter_with_a_passed_on_lease_that_is_not_polled_blocks_others_for_at_most_two_ttls: 1,
    a_loss_is_reported_to_the_current_holder_only: 2,
    the_maximum_hold_time_counts_for_each_hold: 1,
    short_leases_are_passed_on_for_many_lease_lengths_and_none_is_lost: 2,
    a_shutdown_ends_holders_and_waiters: 2,
    a_shutdown_does_not_wait_for_ever_for_those_that_are_not_polled: 2,
}

promises! {
    tokio::test(flavor = "multi_thread", worker_threads = 4), Processes::start,
    a_hundred_tasks_exclude_each_other_under_growing_tokens: 4,
    a_waiter_dropped_while_the_lease_is_passed_to_it_stalls_no_other: 1,
    whatever_tasks_do_at_random_nothing_is_left: 2,
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_lease_is_reported_to_the_current_holder_only() {
    let Some(fixture) = Processes::start("", 2).await else { return };
    let store = fixture.store.peer();
    handover_promises::a_forgotten_lease_is_reported_to_the_current_holder_only(&fixture.clients, || {
        store.flush()
    })
    .await;
    fixture.end().await;
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().build().expect("a runtime")
}

#[test]
fn a_runtime_that_ends_while_some_hold_lead_and_wait_leaves_nothing() {
    for led in [false, true] {
        let store = MemoryBackend::new();
        let (client, other) =
            (Client::with_backend(Arc::new(store.peer())), Client::with_backend(Arc::new(store.peer())));
        let (mutex, elsewhere) = (local(&client, SOON), local(&other, SOON));
        let dying = runtime();
        dying.block_on(async {
            if led {
                let held = elsewhere.clone();
                begun(async move {
                    let _guard = held.lock().await.expect("free");
                    std::future::pending::<()>().await;
                })
                .await;
            }
            for _ in 0..4 {
                let mutex = mutex.clone();
                begun(async move {
                    let _guard = mutex.lock().await;
                    std::future::pending::<()>().await;
                })
                .await;
            }
        });
        drop(dying);
        runtime().block_on(async {
            // Both clients' tasks begin anew with their next requests, and give back what was left.
            let (one, two) = (waiter(&mutex).await, waiter(&elsewhere).await);
            let release = async |waiter| granted(waiter).await.release().await.expect("held to the end");
            within(SOON, async { tokio::join!(release(one), release(two)) }).await;
            handover_promises::nothing_left(&[client, other]).await;
        });
    }
}
