//! Cases that hold for any lane and any carrier, by subject.
//!
//! A case knows endpoints, contexts and listeners, as any user of the crate `backhaul` does, and
//! nothing of frames, rings or sockets: a lane that is made elsewhere can be held to it. Where a
//! case depends on what a lane can do, it asks the harness for that property by its name.

pub mod cancel;
pub mod closing;
pub mod contexts;
pub mod executors;
pub mod flows;
pub mod given_up;
pub mod lease_ends;
pub mod lease_kills;
pub mod leases;
pub mod listening;
pub mod liveness;
pub mod matching;
pub mod order;
pub mod pressure;
pub mod processes;
pub mod random;
pub mod reexported;
pub mod segments;
pub mod sizes;
pub mod threads;
pub mod truncation;

/// Makes a test of each case that any lane passes, given an expression that makes a harness
///
/// Names in the expression are those of the crate, not of the module: write whole paths.
#[macro_export]
macro_rules! conformance_of_any_lane {
    ($harness:expr) => {
        $crate::tests_of_cases! {
            any_lane, $harness;
            cancel {
                a_send_dropped_at_any_await_is_whole_or_absent
                a_cancelled_receive_tells_the_truth
                a_cancelled_send_tells_the_truth
                a_send_that_waits_for_credit_is_withdrawn
                a_dropped_long_receive_does_not_block_the_lane
                a_connect_dropped_at_any_await_leaves_the_listener_whole
                an_accept_dropped_at_any_await_leaves_the_listener_whole
                a_close_dropped_at_any_await_closes
            }
            closing {
                what_was_sent_before_a_close_arrives
                unexpected_messages_outlive_a_close_of_the_peer
                sends_after_a_close_fail
                sends_to_a_closed_peer_fail
                both_sides_close_with_messages_on_the_way
                a_closing_side_still_receives
                a_close_gives_up_on_a_peer_that_takes_nothing
                closing_twice_is_harmless
                an_abort_fails_what_is_in_flight
                an_abort_in_the_middle_of_a_message_fails_it
                dropping_an_endpoint_ends_the_connection
                unexpected_messages_outlive_an_abort_of_the_peer
                every_watcher_hears_of_the_end
            }
            contexts {
                a_context_connects_to_itself
                endpoints_outlive_the_handles_of_their_context
                the_end_of_one_context_spares_another
                closing_a_context_fails_what_is_in_flight
                a_closed_context_refuses
                closing_a_context_races_with_connects
            }
            executors {
                a_parking_executor_completes_requests
                an_executor_of_many_tasks_completes_requests
                a_request_is_awaited_on_another_thread
                a_request_that_moves_between_tasks_wakes_the_last
                waiting_again_after_a_timeout_gets_the_result
                stepping_completes_a_request
                the_engine_completes_what_nobody_waits_for
                the_engine_brings_what_was_announced_before
                a_detached_send_arrives
            }
            flows {
                what_comes_is_counted_by_size
                connections_of_one_peer_are_one_flow
                what_was_lent_is_told_apart
            }
            given_up {
                a_receive_dropped_at_any_await_leaves_its_message
                a_receive_dropped_when_it_is_over_leaves_its_message
                a_receive_dropped_in_the_middle_of_its_message_leaves_it_whole
                messages_are_left_in_the_order_of_sending
                a_message_that_is_left_goes_to_the_receive_that_waits_for_it
                a_message_may_be_left_many_times
                receives_that_time_out_lose_nothing
                messages_that_are_left_outlive_the_end_of_their_sender
                a_receive_dropped_after_the_end_of_its_sender_leaves_its_message
                lent_messages_that_are_left_stay_lent_until_they_are_received
                lent_messages_that_are_left_and_never_received_return_with_the_endpoint
                a_detached_receive_takes_its_message
            }
            lease_ends {
                a_block_stays_lent_after_the_end_of_the_connection_until_the_receiver_drops_it
                a_block_stays_lent_after_its_endpoints_are_dropped
                a_block_stays_lent_after_the_context_of_the_receiver_is_closed
                a_block_is_used_no_more_after_the_context_of_its_sender_is_closed
                a_block_that_is_back_when_the_context_of_its_sender_is_closed_is_reused
                lent_messages_that_are_never_received_return_with_the_endpoint
                lent_messages_outlive_an_abort_of_their_sender
                what_was_lent_before_a_close_arrives
                an_end_in_the_middle_of_lent_messages_loses_no_block
                an_exporter_that_is_cut_off_at_any_moment_loses_no_block
            }
            leases {
                lent_memory_arrives_and_what_is_written_there_stays_the_receivers
                lent_memory_of_any_length_arrives
                a_block_that_its_sender_frees_first_is_not_reused_before_the_receiver_drops_it
                a_block_that_its_receiver_drops_first_stays_with_its_sender
                a_block_lent_several_times_is_reused_after_the_last_of_them
                a_block_that_is_lent_returned_and_reused_shows_its_new_content
                parts_of_a_block_arrive_and_only_aligned_ones_are_lent
                messages_of_lent_and_sent_segments_arrive
                a_receive_into_a_buffer_copies_what_is_lent
                a_receive_into_a_short_buffer_is_truncated_and_leaves_nothing_lent
                lent_messages_that_nobody_expects_wait_for_their_receive
                a_send_that_is_cancelled_in_time_lends_nothing
                more_leases_than_there_are_slots_fall_back_to_copies
                a_flood_of_lent_messages_arrives
                segments_below_the_threshold_are_copied
                what_is_not_sent_as_shared_is_copied
                memory_outside_the_arena_of_the_context_is_copied
                both_sides_lend_at_once
                past_the_bound_of_an_arena_memory_is_private
            }
            reexported {
                borrowed_memory_that_is_sent_on_stays_lent_until_the_last_drops_it
                borrowed_memory_may_come_back_and_go_on
                borrowed_memory_that_was_changed_is_sent_on_as_it_is
                parts_of_borrowed_memory_are_exported_again
                borrowed_memory_outlives_the_one_who_exported_it_again
            }
            listening {
                many_accepts_at_once_get_a_peer_each
                peers_that_nobody_accepted_yet_are_kept
                more_peers_than_the_backlog_are_served_in_the_end
                a_closed_listener_accepts_no_more
                peers_not_accepted_are_disconnected_by_a_close
                a_busy_port_is_an_error_with_the_address
                a_refused_connection_is_an_error_with_the_address
                a_bad_address_is_an_error_with_the_text
                a_name_that_does_not_resolve_is_an_error_with_the_name
                names_and_wildcards_are_addresses
                a_setting_out_of_range_is_an_error_with_the_value
            }
            liveness {
                an_idle_peer_that_answers_stays
            }
            matching {
                a_receive_posted_before_arrival_gets_the_message
                an_unexpected_message_waits_for_its_receive
                a_mask_selects_bits_of_the_tag
                other_tags_are_left_alone
                the_oldest_unexpected_match_comes_first
                the_first_posted_match_gets_the_message
                a_wildcard_takes_no_untagged_message
                extreme_tags_are_tags_like_others
            }
            order {
                messages_of_one_tag_arrive_in_the_order_sent
                messages_of_many_tags_keep_the_order_of_each
                a_wildcard_sees_the_order_of_sending
                a_long_message_is_not_overtaken_on_its_tag
                untagged_messages_arrive_in_the_order_sent
                both_directions_keep_their_order
            }
            pressure {
                a_flood_from_both_sides_does_not_deadlock
                a_flood_through_the_smallest_windows_does_not_deadlock
                a_full_send_queue_refuses
                a_full_receive_queue_refuses
                a_peer_that_receives_nothing_stores_a_bounded_amount
                short_messages_pass_long_ones_that_wait
                statistics_count_messages_and_bytes
            }
            random {
                random_operations_match_the_model
                #[ignore = "stress, with BACKHAUL_STRESS_SEEDS rounds; `make test` runs a few"]
                random_operations_match_the_model_for_long
                random_leases_match_the_model
                #[ignore = "stress, with BACKHAUL_STRESS_SEEDS rounds; `make test` runs a few"]
                random_leases_match_the_model_for_long
            }
            segments {
                a_message_of_no_segments_arrives
                a_message_of_one_segment_arrives
                a_message_of_a_thousand_mixed_segments_arrives
                bytes_behind_many_empty_segments_arrive
                long_segments_keep_their_bounds
                segments_land_one_behind_the_other_in_a_buffer
                a_table_longer_than_the_ring_arrives
                too_many_segments_are_refused
                too_long_a_message_is_refused
            }
            sizes {
                empty_messages_arrive
                sizes_around_every_threshold_arrive_whole
                a_ring_of_one_page_carries_everything
                a_buffer_longer_than_the_message_keeps_its_rest
                a_huge_message_arrives
            }
            threads {
                several_threads_share_one_endpoint
                receivers_that_compete_get_each_message_once
                many_endpoints_work_at_once
                connections_come_and_go_while_others_work
            }
            truncation {
                a_short_buffer_posted_early_truncates_an_eager_message
                a_short_buffer_posted_late_truncates_an_eager_message
                a_short_buffer_posted_early_truncates_a_long_message
                a_short_buffer_posted_late_truncates_a_long_message
                an_empty_buffer_truncates_all_but_empty_messages
            }
        }
    };
}

/// Makes a test of each case of any lane that needs a second process
///
/// Not for a lane within a process. The harness needs a peer program.
#[macro_export]
macro_rules! conformance_between_processes {
    ($harness:expr) => {
        $crate::tests_of_cases! {
            any_lane, $harness;
            lease_kills {
                what_a_killed_receiver_held_comes_back
                what_is_on_its_way_to_a_killed_receiver_comes_back
                what_a_killed_sender_lent_stays_with_its_receiver
                kills_at_random_moments_lose_no_block
                two_hundred_kills_at_random_moments_lose_no_block
            }
            processes {
                messages_pass_between_processes
                a_peer_killed_while_idle_is_noticed
                a_peer_killed_with_posted_receives_is_noticed
                a_peer_killed_while_sending_long_messages_is_noticed
                a_peer_killed_while_receiving_long_messages_is_noticed
                a_peer_killed_in_a_flood_is_noticed
                a_peer_killed_under_a_flood_is_noticed
                messages_that_came_before_a_kill_are_received
                messages_still_in_the_lane_at_a_kill_are_received
                a_peer_that_closes_and_exits_delivers_everything
                a_peer_that_exits_without_a_goodbye_is_noticed
                a_stopped_peer_holds_its_sender_back_until_it_goes_on
                a_peer_that_is_stopped_for_longer_than_the_keep_alive_stays
                a_stopped_peer_that_is_killed_is_noticed
                a_killed_peer_does_not_disturb_others
            }
        }
    };
}
