//! The CUDA carrier, between processes and within one, on a driver that is not one (`examples/fake_cuda`,
//! which says what that cannot show).
//!
//! Each test runs in a process of its own, as the driver is found by its environment.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
#![allow(unsafe_code, reason = "a program's own calls of CUDA")]

mod by_host;
mod driver;
mod inside;
mod peer;

/// Tests of [`inside`], with the environments that each is run with
macro_rules! with_driver {
    ($($name:ident $([$($variable:literal = $value:literal),*])+;)+) => {
        $(
            #[test]
            fn $name() {
                if driver::is_within() {
                    inside::$name();
                } else {
                    driver::run_in(stringify!($name), &[$(&[$(($variable, $value)),*]),*]);
                }
            }
        )+
    };
}

with_driver! {
    memory_of_each_kind_goes_to_another_process
        ["SPIN" = "1"] ["FAKE_CUDA_DELAY_US" = "2000"] ["FAKE_CUDA_NO_IPC_FLAG" = "1"]
        ["LANE" = "ucx", "SPIN" = "1"]
        ["LANE" = "ucx", "UCX_TLS" = "posix,cma,cuda_copy", "FAKE_CUDA_DELAY_US" = "2000"];
    memory_of_each_kind_comes_from_another_process
        ["SPIN" = "1"] ["FAKE_CUDA_DELAY_US" = "2000"] ["LANE" = "ucx", "SPIN" = "1"]
        ["LANE" = "ucx", "UCX_TLS" = "posix,cma,cuda_copy", "FAKE_CUDA_DELAY_US" = "2000"]
        // UCX does not see allocations.
        ["LANE" = "ucx", "UCX_MEM_CUDA_HOOK_MODE" = "reloc"];
    contexts_of_one_process_need_no_handles ["SPIN" = "1"] ["FAKE_CUDA_DELAY_US" = "2000"];
    what_the_producer_has_under_way_is_waited_for
        ["FAKE_CUDA_DELAY_US" = "30000"] ["LANE" = "ucx", "FAKE_CUDA_DELAY_US" = "30000"];
    what_the_consumer_has_under_way_is_waited_for
        ["FAKE_CUDA_DELAY_US" = "30000"] ["LANE" = "ucx", "FAKE_CUDA_DELAY_US" = "30000"];
    a_send_is_over_when_its_memory_has_been_fetched
        ["FAKE_CUDA_DELAY_US" = "5000"] ["LANE" = "ucx", "FAKE_CUDA_DELAY_US" = "5000"];
    host_and_device_segments_keep_their_places
        [] ["LANE" = "ucx"];
    more_segments_than_can_be_offered_are_given
        [] ["FAKE_CUDA_DELAY_US" = "2000"] ["LANE" = "ucx"]
        ["LANE" = "ucx", "FAKE_CUDA_DELAY_US" = "2000"];
    more_messages_than_the_channel_holds_wait_in_order
        [] ["LANE" = "ucx"];
    a_killed_peer_gives_everything_back
        [] ["LANE" = "ucx"];
    freed_memory_is_refused_before_anything_is_sent
        [] ["LANE" = "ucx"];
    memory_is_lent_again_after_its_allocation_was_replaced
        [] ["LANE" = "ucx"];
    without_a_carrier_on_the_other_side_it_is_refused [];
    a_receive_that_is_given_up_while_its_bytes_come
        ["FAKE_CUDA_DELAY_US" = "20000"] ["LANE" = "ucx", "FAKE_CUDA_DELAY_US" = "20000"];
    a_result_that_nobody_took_is_told_to_the_next_receive ["SPIN" = "1"] ["FAKE_CUDA_DELAY_US" = "2000"];
    memory_that_is_freed_during_its_send_fails_one_message ["SPIN" = "1"];
    two_devices_reach_each_other
        ["FAKE_CUDA_DEVICES" = "2"]
        ["FAKE_CUDA_DEVICES" = "2", "FAKE_CUDA_NO_PEER" = "1"];
    a_device_that_the_peer_does_not_see_is_named
        ["FAKE_CUDA_DEVICES" = "2"]
        ["FAKE_CUDA_DEVICES" = "2", "FAKE_CUDA_UNSEEN" = "open"];
    what_cannot_be_exported_is_copied_first
        ["FAKE_CUDA_FAIL" = "cuIpcGetMemHandle=801"]
        ["FAKE_CUDA_FAIL" = "cuMemPoolExportToShareableHandle=801"];
    what_can_be_shared_is_not_copied_first
        ["FAKE_CUDA_FAIL" = "cuMemCreate=2"]
        ["FAKE_CUDA_FAIL" = "cuMemCreate=2", "FAKE_CUDA_NO_IPC_FLAG" = "1"];
    memory_that_was_mapped_beside_or_after_other_memory [];
    a_capture_goes_on ["SPIN" = "1"] ["FAKE_CUDA_DELAY_US" = "2000"];
    what_does_not_open_is_asked_for_in_another_way [];
    a_device_that_fails_fails_the_message ["FAKE_CUDA_FAIL" = "cuMemcpyAsync=719"];
    an_arena_gives_its_blocks_back [];
    what_goes_by_the_host_arrives_as_it_was [] ["FAKE_CUDA_DELAY_US" = "200"];
    where_a_device_is_slow_to_turn_copies_go_by_the_host ["SPIN" = "1", "FAKE_CUDA_TURN_US" = "100"];
    where_nothing_can_be_pinned_copies_do_not_go_by_the_host
        ["SPIN" = "1", "FAKE_CUDA_TURN_US" = "100", "FAKE_CUDA_FAIL" = "cuMemHostAlloc=2"];
}

/// The far side of the other tests, which start it; alone it has no test to serve
#[test]
fn peer() {
    if driver::is_within() {
        peer::serve();
    }
}

/// Without the driver
#[test]
fn without_a_driver_it_is_refused_by_name() {
    use backhaul::{CarrierKind, Config, Context};
    if backhaul::cuda::allocate(0, 1).is_ok() {
        // This machine has one.
        return;
    }
    let mut config = Config::default();
    config.carriers.push(CarrierKind::Cuda);
    let error = Context::new(config).unwrap_err().to_string();
    assert!(error.contains("libcuda"), "{error}");
    Context::new(Config::default()).unwrap();
}
