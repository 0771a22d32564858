//! Cases for this project's frames, handshake, rings and leases: peers that speak them by hand, and
//! the choice among the lanes that this crate has.

use backhaul::{Listener, Tag, TagMask};

use crate::{Finish, Harness};

pub mod doorbells;
pub mod lanes;
pub mod lease_neglect;
pub mod lease_strangers;
pub mod neglect;
pub mod secrets;
pub mod shared_memory;
pub mod strangers;
pub mod violations;

/// Makes a test of each case about our frames, given an expression that makes a harness
///
/// Names in the expression are those of the crate, not of the module: write whole paths.
#[macro_export]
macro_rules! conformance_of_our_frames {
    ($harness:expr) => {
        $crate::tests_of_cases! {
            our_frames, $harness;
            doorbells {
                a_doorbell_that_is_none_falls_back_to_tcp
                a_doorbell_that_blocks_holds_nobody_up
            }
            lanes {
                an_unknown_lane_is_an_error_with_the_name
                a_lane_asked_for_by_the_connector_is_used_if_both_have_it
                peers_without_a_common_lane_fall_back_to_tcp
            }
            lease_neglect {
                keep_alive_descriptors_are_open_as_long_as_what_came_with_them
                a_message_that_breaks_off_returns_what_was_lent_of_it
                what_an_endpoint_had_not_taken_at_its_end_is_back
                messages_lent_by_a_peer_that_dies_with_unread_packets_arrive
                a_peer_that_takes_no_packets_gets_copies
                a_peer_that_returns_nothing_holds_a_bounded_amount_until_its_end
                garbage_in_the_completion_table_does_no_harm
                a_flood_of_packets_does_not_grow_and_ends_with_the_endpoint
                a_peer_that_ends_its_direction_early_gets_copies
            }
            lease_strangers {
                memory_lent_by_hand_arrives
                leases_of_what_is_not_there_are_violations
                a_lease_of_memory_without_pages_makes_none
                a_ticket_that_is_out_already_is_a_violation
                leases_for_messages_that_do_not_await_them_are_violations
                a_lease_on_the_tcp_lane_is_a_violation
            }
            neglect {
                a_silent_peer_whose_host_answers_stays
                a_half_closed_peer_is_gone
                what_never_comes_takes_no_time
            }
            secrets {
                sides_with_one_secret_are_peers
                sides_without_one_secret_are_not_peers
                strangers_without_the_secret_hear_nothing
                a_recorded_hello_opens_nothing
                who_answers_without_the_secret_is_refused
            }
            shared_memory {
                memory_offered_by_hand_is_a_lane
                memory_that_is_none_falls_back_to_tcp
                garbage_on_the_bootstrap_socket_is_ignored
                ruined_indices_end_the_endpoint
                garbage_in_the_ring_is_a_violation
                bytes_on_the_sentinel_are_ignored_until_it_ends
                what_is_read_of_a_peer_that_has_ended_is_no_message
                memory_of_a_send_is_kept_until_the_peer_can_see_the_end
            }
            strangers {
                random_bytes_are_rejected
                an_http_request_is_rejected
                connections_closed_at_once_are_rejected
                a_hello_that_breaks_off_is_rejected
                a_peer_that_falls_silent_is_rejected_in_time
                silent_peers_do_not_hold_up_others
                silent_strangers_give_way_to_peers
                another_version_is_rejected_by_number
                an_oversized_hello_is_rejected_at_once
                a_malformed_hello_is_rejected
                a_bad_selection_is_rejected
                repeated_and_reordered_steps_are_rejected
                strangers_hear_nothing
                a_lane_unknown_here_is_named_in_the_reason
                a_flood_before_the_handshake_is_over_is_not_stored
                connecting_to_a_stranger_is_an_error_that_shows_its_words
                connecting_to_silence_times_out
            }
            violations {
                garbage_instead_of_frames_is_a_violation
                headers_out_of_bounds_are_violations
                frames_about_unknown_messages_are_violations
                segments_that_do_not_add_up_are_a_violation
                exceeding_the_credit_is_a_violation
                a_data_frame_longer_than_any_chunk_is_a_violation
                messages_after_a_close_do_no_harm
                a_stream_that_breaks_off_is_a_peer_gone
                messages_before_a_violation_are_received
                frames_that_come_byte_by_byte_are_understood
                a_peer_by_hand_and_an_endpoint_understand_each_other
            }
        }
    };
}

/// Asserts that a listener serves others as before
fn still_accepts(harness: &Harness, listener: &Listener) {
    let (near, far) = harness.connect(&harness.context(), listener);
    let posted = far.recv_message(Tag(1), TagMask::FULL);
    near.send(Tag(1), &b"welcome"[..]).done().unwrap();
    assert_eq!(posted.done().unwrap().segments[0][..], *b"welcome");
}
