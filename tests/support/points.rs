//! The points of the contract as tests of a store.

/// One test per point, on one store, for all kinds named; `$at_once` says how many of them may be checked at the same
/// time.
macro_rules! each_point {
    ($store:path, $kinds:expr, $at_once:path => $($point:ident),* $(,)?) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $point() {
            let Some(store) = $store(stringify!($point)).await else { return };
            let checks = futures::stream::iter($kinds).map(|kind| conformance::$point(&store, kind));
            checks.buffered($at_once(&store)).collect::<Vec<()>>().await;
        })*
    };
}

/// The points that every store keeps.
macro_rules! points_of_every_store {
    ($store:path, $kinds:expr, $at_once:path) => {
        each_point! { $store, $kinds, $at_once =>
            point_1_every_operation_can_be_repeated,
            point_2_release_removes_a_lease_wherever_it_is,
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
            point_15_holders_and_waiters_have_names,
        }

        // It may have the store lose its data, so no two of them at the same time.
        each_point! { $store, $kinds, one_at_a_time => point_3_tokens_increase_in_every_case }

        fn one_at_a_time(_: &impl leasehold::backend::conformance::Harness) -> usize {
            1
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn point_6_renewals_are_answered_individually() {
            let point = "point_6_renewals_are_answered_individually";
            let Some(store) = $store(point).await else { return };
            conformance::point_6_renewals_are_answered_individually(&store).await;
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn point_16_what_is_held_or_awaited_is_listed() {
            let Some(store) = $store("point_16_what_is_held_or_awaited_is_listed").await else { return };
            conformance::point_16_what_is_held_or_awaited_is_listed(&store).await;
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn point_11_an_owner_can_re_enter() {
            let Some(store) = $store("point_11_an_owner_can_re_enter").await else { return };
            conformance::point_11_an_owner_can_re_enter(&store).await;
        }
    };
}
