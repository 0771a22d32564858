//! Resources that lent memory takes, and leaves: descriptors, mappings and pages, on the lanes that
//! lend.
//!
//! In a program of its own, one test at a time, since it counts what the whole process holds.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::{Mutex, PoisonError};

use backhaul::{
    Arena, ArenaConfig, Config, Context, LaneKind, Message, RecvError, Segments, Tag, TagMask,
};
use backhaul_testkit::lending::{BLOCK_BYTES, block, blocks, deliver};
use backhaul_testkit::resources::{
    address_bytes, arena_mappings, assert_leaves_nothing, descriptors, resident_bytes,
};
use backhaul_testkit::suite::any_lane::{lease_ends, lease_kills};
use backhaul_testkit::suite::our_frames::{lease_neglect, lease_strangers};
use backhaul_testkit::{
    Finish, Harness, Spin, assert_becomes, assert_matches, pattern, run, wait_until,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn what_is_borrowed_takes_few_descriptors() {
    on_lending_lanes("what_is_borrowed_takes_few_descriptors", |harness| {
        let lending = harness.lending();
        drop(lending.deliver([lending.block(0)]));
        let before = (descriptors(), arena_mappings());
        let held: Vec<Message> = (0..100)
            .map(|seed| lending.deliver([lending.block(seed)]))
            .collect();
        // One for each file of the arena, to lend it on, and one that the arena has itself.
        assert!(descriptors() <= before.0 + 10);
        assert!(arena_mappings() > before.1);
        lending.assert_blocks(0, 100, 100);
        drop(held);
        assert!(descriptors() <= before.0 + 5);
        lending.assert_blocks(0, 0, 0);
        drop(lending);
        wait_until(|| arena_mappings() == 0);
    });
}

#[test]
fn connections_that_lend_leave_nothing() {
    on_lending_lanes("connections_that_lend_leave_nothing", |harness| {
        let arena = Arena::new(ArenaConfig::default());
        let near = harness.context_with(|config| config.arena = Some(arena.clone()));
        let far = harness.context();
        let listener = far.listen("127.0.0.1:0").unwrap();
        let mut round = 0;
        assert_leaves_nothing(60, || {
            round += 1;
            let (near, far) = harness.connect(&near, &listener);
            let held = deliver(&near, &far, [block(&arena, round, BLOCK_BYTES)]);
            let unexpected = Segments::from_iter([block(&arena, 1, BLOCK_BYTES)]);
            near.send_frames_shared(unexpected).done().unwrap();
            match round % 3 {
                0 => near.close().done().unwrap(),
                1 => drop(near),
                _ => far.abort(),
            }
            drop(far);
            pattern::check(round, &held.segments[0]);
            drop(held);
            wait_until(|| blocks(&arena) == (0, 0, 0));
        });
        drop((arena, near, far, listener));
        wait_until(|| arena_mappings() == 0);
    });
}

#[test]
fn ends_while_memory_is_lent_leave_nothing() {
    on_lending_lanes("ends_while_memory_is_lent_leave_nothing", |harness| {
        assert_leaves_nothing(8, || {
            lease_ends::a_block_stays_lent_after_its_endpoints_are_dropped(harness);
            lease_ends::a_block_is_used_no_more_after_the_context_of_its_sender_is_closed(harness);
            lease_ends::a_block_stays_lent_after_the_context_of_the_receiver_is_closed(harness);
            lease_ends::lent_messages_that_are_never_received_return_with_the_endpoint(harness);
            lease_ends::an_end_in_the_middle_of_lent_messages_loses_no_block(harness);
        });
        wait_until(|| arena_mappings() == 0);
    });
}

#[test]
fn peers_that_break_the_rules_of_leases_leave_nothing() {
    let name = "peers_that_break_the_rules_of_leases_leave_nothing";
    on_lanes(name, &[LaneKind::Shm], |harness| {
        assert_leaves_nothing(6, || {
            lease_strangers::leases_of_what_is_not_there_are_violations(harness);
            lease_strangers::a_ticket_that_is_out_already_is_a_violation(harness);
            lease_strangers::leases_for_messages_that_do_not_await_them_are_violations(harness);
            lease_neglect::a_message_that_breaks_off_returns_what_was_lent_of_it(harness);
            lease_neglect::a_peer_that_takes_no_packets_gets_copies(harness);
            lease_neglect::a_flood_of_packets_does_not_grow_and_ends_with_the_endpoint(harness);
            lease_neglect::a_peer_that_ends_its_direction_early_gets_copies(harness);
        });
        wait_until(|| arena_mappings() == 0);
    });
}

#[test]
fn killed_processes_leave_nothing_lent_or_borrowed() {
    let name = "killed_processes_leave_nothing_lent_or_borrowed";
    on_lanes(name, &[LaneKind::Shm], |harness| {
        assert_leaves_nothing(6, || {
            lease_kills::kills_at_random_moments_lose_no_block(harness);
        });
        wait_until(|| arena_mappings() == 0);
    });
}

/// Where a process can have no more descriptors, what was lent to it is out of its reach; that message
/// fails, and no other.
#[test]
fn a_lease_that_finds_no_free_descriptor_fails_its_message_only() {
    let name = "a_lease_that_finds_no_free_descriptor_fails_its_message_only";
    on_lending_lanes(name, |harness| {
        let lending = harness.lending();
        let (near, far) = (&lending.pair.near, &lending.pair.far);
        drop(lending.deliver([lending.block(0)]));
        for into_buffer in [false, true] {
            let segments = Segments::from_iter([lending.block(1), lending.block(2)]);
            let failed = with_limit(Resource::Nofile, 0, || {
                let buffer = vec![0; 2 * BLOCK_BYTES];
                let posted = into_buffer.then(|| far.recv(Tag(1), TagMask::FULL, buffer));
                let message = (!into_buffer).then(|| far.recv_message(Tag(1), TagMask::FULL));
                near.send_segments_shared(Tag(1), segments).done().unwrap();
                match (posted, message) {
                    (Some(request), _) => request.done().unwrap_err(),
                    (None, request) => request.unwrap().done().unwrap_err(),
                }
            });
            assert_matches!(failed, RecvError::OutOfMemory { .. });
            lending.assert_blocks(0, 0, 0);
            pattern::check(3, &lending.deliver([lending.block(3)]).segments[0]);
        }
    });
}

#[test]
fn a_lease_that_finds_no_address_space_is_copied() {
    on_lending_lanes("a_lease_that_finds_no_address_space_is_copied", |harness| {
        let bytes = 64 << 20;
        let lending = harness.lending();
        // A buffer of that size is free, in private memory, and blocks are there.
        let private = backhaul::Bytes::from(pattern::make(1, bytes));
        drop(lending.deliver([private]));
        let lent = [1, 2].map(|seed| block(&lending.arena, seed, bytes));
        drop(lending.deliver([lent[0].clone()]));
        let message = with_limit(Resource::As, address_bytes() as u64, || {
            lending.deliver([lent[1].clone()])
        });
        assert_becomes(|| lending.arena.statistics().leased_bytes, &0);
        pattern::check(2, &message.segments[0]);
    });
}

/// Blocks that are back, and freed, give their pages up though no code asks the arena for memory
#[test]
fn what_is_back_is_noticed_in_time_though_nobody_allocates() {
    let name = "what_is_back_is_noticed_in_time_though_nobody_allocates";
    on_lending_lanes(name, |harness| {
        let arena = Arena::new(ArenaConfig {
            cached_bytes_max: 0,
            ..ArenaConfig::default()
        });
        let near = harness.context_with(|config| config.arena = Some(arena.clone()));
        let pair = harness.pair_of(near, harness.context());
        let bytes = 64 << 20;
        let message = deliver(&pair.near, &pair.far, [block(&arena, 1, bytes)]);
        let held = resident_bytes();
        drop(message);
        wait_until(|| resident_bytes() < held - bytes / 2);
        assert_becomes(|| arena.statistics().leased_bytes, &0);
    });
}

/// Runs something while this process may have only so much, or what it has if that is more
fn with_limit<T>(resource: Resource, most: u64, work: impl FnOnce() -> T) -> T {
    let before = getrlimit(resource);
    setrlimit(
        resource,
        Rlimit {
            current: Some(most),
            ..before
        },
    )
    .unwrap();
    let result = work();
    setrlimit(resource, before).unwrap();
    result
}

fn on_lending_lanes(name: &str, case: fn(&Harness)) {
    on_lanes(name, &[LaneKind::Inproc, LaneKind::Shm], case);
}

fn on_lanes(name: &str, lanes: &[LaneKind], case: fn(&Harness)) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    // Descriptors that the process opens once, with any test.
    drop(Context::new(Config::default()).unwrap());
    for &lane in lanes {
        for spin in [Spin::Polling, Spin::Sleeping] {
            let harness = Harness::of_lane(lane, spin)
                .with_peer_program(env!("CARGO_BIN_EXE_backhaul-testkit-peer"));
            run(name, &harness, case);
        }
    }
}
