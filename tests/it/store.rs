//! The conformance suite of the store: every test is a function over a store and its harness, and runs on every backend. A
//! bug of one backend is fixed by a case here.
#![expect(clippy::unwrap_used, reason = "these functions are tests, though only macros call them so")]

pub mod harness;

mod bytes;
mod counts;
mod divergent;
mod duplicates;
mod ids;
mod intake;
mod outbox;
mod quarantine;
mod restart;
mod shards;
mod sources;
mod sqlite_only;
mod suspect;
mod upkeep;

macro_rules! on_backend {
    ($backend:ident: $($module:ident::$test:ident,)*) => {
        mod $backend {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    let (store, h) = crate::support::$backend::fresh_store().await;
                    super::$module::$test(store, &h).await;
                    h.finish().await;
                }
            )*
        }
    };
}

macro_rules! conformance {
    ($($tests:tt)*) => {
        on_backend!(sqlite: $($tests)*);
        on_backend!(postgres: $($tests)*);
    };
}

conformance! {
    bytes::every_byte_comes_back_as_it_was_sent,
    bytes::an_item_of_a_batch_is_its_own_slice,
    bytes::headers_are_bytes_and_dropped_ones_leave_their_name,
    bytes::nul_in_a_text_costs_no_event,
    counts::counters_equal_a_real_count_after_random_deliveries,
    counts::the_hourly_correction_repairs_a_counter_that_is_off,
    counts::status_of_an_empty_store_is_empty,
    divergent::other_content_under_a_known_key_is_kept_beside,
    divergent::at_most_sixteen_variants_are_kept_and_all_are_counted,
    divergent::receipts_from_the_providers_list_are_never_compared,
    duplicates::a_second_delivery_is_a_duplicate_with_the_same_id,
    duplicates::two_hundred_copies_at_once_make_one_receipt_and_one_job,
    duplicates::two_batches_in_opposite_order_both_end,
    duplicates::overlapping_batches_store_each_event_once,
    duplicates::a_redelivery_changes_nothing_of_a_finished_job,
    duplicates::thirty_two_redeliveries_are_kept_and_all_are_counted,
    duplicates::a_resend_arms_a_given_up_job_again,
    ids::the_same_id_of_other_providers_and_accounts_is_another_event,
    ids::very_long_ids_become_their_digest,
    ids::ids_compare_by_exact_bytes,
    ids::every_delivery_is_a_receipt_where_the_source_says_so,
    ids::unknown_rows_are_not_found,
    intake::a_first_delivery_is_a_receipt_with_its_jobs,
    intake::a_receipt_is_readable_once_it_is_answered,
    intake::malformed_events_are_held_with_one_job_in_review,
    intake::an_event_that_nobody_takes_is_flagged,
    intake::a_refused_row_fails_no_neighbour,
    intake::dropping_the_waiter_changes_nothing,
    intake::an_imported_key_has_no_body_and_no_jobs,
    intake::pages_go_from_new_to_old,
    outbox::rows_come_with_their_messages_oldest_first,
    outbox::held_rows_and_lanes_that_back_off_are_left_out,
    outbox::rows_of_paused_subscriptions_stay,
    outbox::a_look_is_bounded_by_bytes,
    outbox::confirmed_rows_go_and_counters_follow,
    outbox::returned_rows_are_due_later,
    outbox::fresh_rows_reach_the_relay_of_the_process_after_commit,
    quarantine::bounds_of_count_bytes_and_age_hold,
    restart::everything_outlives_a_restart,
    shards::relays_share_and_take_over_what_ran_out,
    shards::a_relay_gives_back_only_its_own,
    sources::a_second_source_adds_the_jobs_that_only_it_brings,
    sources::a_second_source_in_the_same_batch_adds_them_too,
    sources::a_missing_job_of_the_first_source_is_not_made_up_for,
    sources::held_and_imported_receipts_get_no_jobs_from_other_sources,
    sources::a_divergent_delivery_of_another_source_waits_for_a_person,
    suspect::the_same_signed_content_under_a_new_id_is_held,
    suspect::suspicion_holds_within_one_batch,
    suspect::a_batch_of_events_is_not_suspect_of_itself,
    suspect::items_with_a_proof_of_their_own_are_guarded_one_by_one,
    suspect::sources_that_share_no_secret_are_guarded_apart,
    suspect::without_the_guard_nothing_is_suspect,
    upkeep::old_bodies_go_and_receipts_stay,
    upkeep::removed_subscriptions_are_retired_and_come_back,
    upkeep::check_writes_and_reads_back,
    upkeep::the_token_key_stays_the_same,
    upkeep::impossible_rows_are_refused,
}
