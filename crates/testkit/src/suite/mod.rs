//! The cases, by subject.

pub mod matching;
pub mod order;
pub mod segments;
pub mod sizes;
pub mod truncation;

/// Makes a test of each case for a lane and a way to wait
#[macro_export]
macro_rules! conformance {
    ($lane:ident, $spin:ident) => {
        $crate::tests_of_cases! {
            $lane, $spin;
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
            segments {
                a_message_of_no_segments_arrives
                a_message_of_one_segment_arrives
                a_message_of_a_thousand_mixed_segments_arrives
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
                a_message_of_one_gibibyte_arrives
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

/// Makes tests of cases that are listed by subject
#[doc(hidden)]
#[macro_export]
macro_rules! tests_of_cases {
    ($lane:ident, $spin:ident; $($subject:ident { $($(#[$attribute:meta])* $case:ident)* })*) => {
        $(mod $subject {
            $(
                #[test]
                $(#[$attribute])*
                fn $case() {
                    let harness = $crate::Harness {
                        lane: $crate::LaneKind::$lane,
                        spin: $crate::Spin::$spin,
                        peer_program: env!("CARGO_BIN_EXE_backhaul-testkit-peer"),
                    };
                    $crate::run(
                        concat!(stringify!($subject), "::", stringify!($case)),
                        &harness,
                        $crate::suite::$subject::$case,
                    );
                }
            )*
        })*
    };
}
