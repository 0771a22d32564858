//! Memory of an arena that is lent to the receiver of a message.
//!
//! On a lane that lends none the same messages arrive as copies.

use backhaul::{
    Arena, ArenaConfig, Bytes, CarrierKind, Message, RecvError, Segments, Tag, TagMask,
};

use crate::lending::{BLOCK_BYTES, block, blocks, deliver};
use crate::{Finish, Harness, assert_becomes, assert_matches, pattern};

/// Right content, aligned, for the receiver to write to, and none of that comes back
pub fn lent_memory_arrives_and_what_is_written_there_stays_the_receivers(harness: &Harness) {
    for populate in [false, true] {
        let lending = harness.lending_with(|config| config.populate_leases = populate);
        let lent = lending.block(1);
        for round in 0..3 {
            let mut message = lending.deliver([lent.clone()]);
            let segment = &mut message.segments[0];
            lending.assert_blocks(1, 1, 0);
            assert!(segment.as_ptr().addr().is_multiple_of(64));
            pattern::check(1, segment);
            segment.copy_from_slice(&pattern::make(100 + round, BLOCK_BYTES));
            pattern::check(1, &lent);
            pattern::check(100 + round, segment);
        }
        lending.assert_blocks(1, 0, 0);
    }
}

/// Lengths that are not those of pages or blocks
pub fn lent_memory_of_any_length_arrives(harness: &Harness) {
    let lending = harness.lending();
    for bytes in [
        128 << 10,
        (128 << 10) + 1,
        200_001,
        (1 << 20) - 1,
        5_000_003,
    ] {
        let lent = block(&lending.arena, 3, bytes);
        let message = lending.deliver([lent]);
        let leased = lending.arena.statistics().leased_bytes;
        assert_eq!(leased >= bytes, harness.lends(), "{leased} bytes leased");
        assert_eq!(message.segments[0].len(), bytes);
        pattern::check(3, &message.segments[0]);
    }
    lending.assert_all_back();
}

/// The sender may free its memory at once
pub fn a_block_that_its_sender_frees_first_is_not_reused_before_the_receiver_drops_it(
    harness: &Harness,
) {
    let lending = harness.lending();
    let lent = lending.block(1);
    let start = lent.as_ptr();
    let message = lending.deliver([lent]);
    lending.assert_blocks(0, 1, 1);
    let others: Vec<_> = (2..12).map(|seed| lending.block(seed)).collect();
    lending.assert_blocks(10, 1, 1);
    if lending.lends {
        assert!(others.iter().all(|other| other.as_ptr() != start));
    }
    pattern::check(1, &message.segments[0]);
    drop(message);
    lending.assert_blocks(10, 0, 0);
    assert!(!lending.lends || lending.would_reuse(start));
    for (seed, other) in (2..).zip(&others) {
        pattern::check(seed, other);
    }
}

/// The receiver may drop what it got while the sender goes on with it
pub fn a_block_that_its_receiver_drops_first_stays_with_its_sender(harness: &Harness) {
    let lending = harness.lending();
    let lent = lending.block(1);
    let start = lent.as_ptr();
    drop(lending.deliver([lent.clone()]));
    lending.assert_blocks(1, 0, 0);
    assert!(!lending.would_reuse(start));
    pattern::check(1, &lent);
    drop(lent);
    lending.assert_blocks(0, 0, 0);
    assert!(lending.would_reuse(start));
}

/// Twice to one peer, and to another peer as well
pub fn a_block_lent_several_times_is_reused_after_the_last_of_them(harness: &Harness) {
    let lending = harness.lending();
    let listener = lending.pair.far_context.listen("127.0.0.1:0").unwrap();
    let (near, far) = harness.connect(&lending.pair.near_context, &listener);
    let other_context = harness.context();
    let listener = other_context.listen("127.0.0.1:0").unwrap();
    let (other_near, other_far) = harness.connect(&lending.pair.near_context, &listener);
    let lent = lending.block(1);
    let start = lent.as_ptr();
    let mut held: Vec<Message> = vec![
        lending.deliver([lent.clone()]),
        lending.deliver([lent.clone(), lent.clone()]),
        deliver(&near, &far, [lent.clone()]),
        deliver(&other_near, &other_far, [lent.clone()]),
    ];
    lending.assert_blocks(1, 1, 0);
    held[1].segments[0].fill(0xee);
    pattern::check(1, &held[1].segments[1]);
    drop(lent);
    while let Some(message) = held.pop() {
        lending.assert_blocks(0, 1, 1);
        assert!(!lending.lends || !lending.would_reuse(start));
        for other in &held {
            pattern::check(1, &other.segments[other.segments.len() - 1]);
        }
        drop(message);
    }
    lending.assert_blocks(0, 0, 0);
    assert!(!lending.lends || lending.would_reuse(start));
}

/// No page of an earlier lease of the same block is ever seen
pub fn a_block_that_is_lent_returned_and_reused_shows_its_new_content(harness: &Harness) {
    let lending = harness.lending();
    let mut starts = Vec::new();
    for seed in 0..20 {
        let lent = lending.block(seed);
        starts.push(lent.as_ptr());
        let mut message = lending.deliver([lent]);
        pattern::check(seed, &message.segments[0]);
        // On half of the pages, so that some of the next are private, were they kept.
        message.segments[0][..BLOCK_BYTES / 2].fill(0xee);
        drop(message);
        lending.assert_blocks(0, 0, 0);
    }
    assert!(starts.iter().all(|start| *start == starts[0]));
}

/// A part of a block is lent where its address suits the receiver, else copied
pub fn parts_of_a_block_arrive_and_only_aligned_ones_are_lent(harness: &Harness) {
    let lending = harness.lending();
    let lent = block(&lending.arena, 1, 4 * BLOCK_BYTES);
    let leased = || lending.arena.statistics().leased_bytes > 0;
    for (start, is_aligned) in [(64, true), (4096, true), (100_032, true), (1, false)] {
        let message = lending.deliver([lent.slice(start..start + BLOCK_BYTES)]);
        assert_eq!(leased(), is_aligned && lending.lends, "from {start}");
        let segment = &message.segments[0];
        assert!(segment.as_ptr().addr().is_multiple_of(64));
        pattern::check_at(1, start, segment);
        drop(message);
        assert!(!leased());
    }
    let halves = [lent.slice(..2 * BLOCK_BYTES), lent.slice(2 * BLOCK_BYTES..)];
    let mut message = lending.deliver(halves);
    let second = message.segments.pop().unwrap();
    drop(message);
    assert_eq!(leased(), lending.lends);
    pattern::check_at(1, 2 * BLOCK_BYTES, &second);
}

/// Each segment on its own: lent, sent, short, empty
pub fn messages_of_lent_and_sent_segments_arrive(harness: &Harness) {
    for data_chunk_bytes in [1000, 256 << 10] {
        let lending = harness.lending_with(|config| {
            config.limits.data_chunk_bytes = data_chunk_bytes;
        });
        let private = |seed, bytes| Bytes::from(pattern::make(seed, bytes));
        let layouts: [&[(bool, usize)]; 6] = [
            &[(true, BLOCK_BYTES), (true, BLOCK_BYTES)],
            &[(false, 10), (true, BLOCK_BYTES), (false, 300_000)],
            &[(true, BLOCK_BYTES), (false, 0), (true, BLOCK_BYTES)],
            &[(false, 0), (false, 0), (true, BLOCK_BYTES), (false, 0)],
            &[(false, 70_000), (true, 65_536), (false, 1), (true, 200_001)],
            &[(false, 300_000), (true, 4 * BLOCK_BYTES), (false, 300_000)],
        ];
        for layout in layouts {
            let segments = (0..).zip(layout).map(|(seed, &(lent, bytes))| match lent {
                true => block(&lending.arena, seed, bytes),
                false => private(seed, bytes),
            });
            let message = lending.deliver(segments);
            let lengths: Vec<usize> = message.segments.iter().map(|part| part.len()).collect();
            let expected: Vec<usize> = layout.iter().map(|(_, bytes)| *bytes).collect();
            assert_eq!(lengths, expected);
            for (seed, segment) in (0..).zip(&message.segments) {
                pattern::check(seed, segment);
            }
            drop(message);
            lending.assert_all_back();
        }
    }
}

/// The caller's own buffer gets a copy, and the lease goes back before the receive is over
pub fn a_receive_into_a_buffer_copies_what_is_lent(harness: &Harness) {
    let lending = harness.lending();
    let (near, far) = (&lending.pair.near, &lending.pair.far);
    for blocks in [1, 3, 20] {
        for early in [true, false] {
            let segments = (0..blocks).map(|seed| lending.block(seed));
            let bytes = blocks as usize * BLOCK_BYTES;
            let post = || far.recv(Tag(1), TagMask::FULL, vec![0xcc; bytes + 5]);
            let posted = early.then(post);
            let send = near.send_segments_shared(Tag(1), segments.collect());
            let received = posted.unwrap_or_else(post).done().unwrap();
            assert_becomes(|| lending.arena.statistics().leased_bytes, &0);
            assert_eq!(received.bytes, bytes);
            let buffer = received.into_buffer::<Vec<u8>>().unwrap();
            for (seed, part) in (0..).zip(buffer[..bytes].chunks(BLOCK_BYTES)) {
                pattern::check(seed, part);
            }
            assert_eq!(buffer[bytes..], [0xcc; 5]);
            send.done().unwrap();
            lending.assert_blocks(0, 0, 0);
        }
    }
}

/// A message that does not fit is not even lent
pub fn a_receive_into_a_short_buffer_is_truncated_and_leaves_nothing_lent(harness: &Harness) {
    let lending = harness.lending();
    let (near, far) = (&lending.pair.near, &lending.pair.far);
    for early in [true, false] {
        let segments = [lending.block(1), lending.block(2)];
        let post = || far.recv(Tag(1), TagMask::FULL, vec![0; 2 * BLOCK_BYTES - 1]);
        let posted = early.then(post);
        let send = near.send_segments_shared(Tag(1), segments.into_iter().collect());
        let error = posted.unwrap_or_else(post).done().unwrap_err();
        let message_bytes = 2 * BLOCK_BYTES as u64;
        assert_matches!(error, RecvError::Truncated { message_bytes: found, .. } if found == message_bytes);
        send.done().unwrap();
        lending.assert_blocks(0, 0, 0);
    }
    pattern::check(3, &lending.deliver([lending.block(3)]).segments[0]);
}

/// Untagged messages are fetched ahead; they are lent until a receive takes them
pub fn lent_messages_that_nobody_expects_wait_for_their_receive(harness: &Harness) {
    let lending = harness.lending();
    let (near, far) = (&lending.pair.near, &lending.pair.far);
    let send = |seed| {
        let segments = Segments::from_iter([lending.block(seed)]);
        near.send_frames_shared(segments).done().unwrap();
    };
    for seed in 0..4 {
        send(seed);
    }
    lending.assert_blocks(0, 4, 4);
    for seed in 0..4 {
        let message = far.recv_frames().done().unwrap();
        assert_eq!(message.tag, None);
        pattern::check(seed, &message.segments[0]);
    }
    lending.assert_blocks(0, 0, 0);
}

/// A message of which nothing has left is not lent, cancelled or not
pub fn a_send_that_is_cancelled_in_time_lends_nothing(harness: &Harness) {
    let lending = harness.lending_with(|config| config.limits.credit_messages = 4);
    let (near, far) = (&lending.pair.near, &lending.pair.far);
    let mut sends: Vec<_> = (0..12)
        .map(|seed| near.send_segments_shared(Tag(2), [lending.block(seed)].into_iter().collect()))
        .collect();
    lending.assert_blocks(12, 0, 0);
    for send in &sends {
        send.cancel();
    }
    let unknown = sends.split_off(4);
    for send in unknown {
        assert_matches!(send.done(), Err(backhaul::SendError::Cancelled));
    }
    // Of the others the peer knows.
    for (seed, send) in (0..).zip(sends) {
        let message = far.recv_message(Tag(2), TagMask::FULL).done().unwrap();
        pattern::check(seed, &message.segments[0]);
        send.done().unwrap();
    }
    lending.assert_blocks(0, 0, 0);
}

/// A peer that holds on to everything gets copies at some point, until it lets go
pub fn more_leases_than_there_are_slots_fall_back_to_copies(harness: &Harness) {
    const BYTES: usize = 64 << 10;
    let lending = harness.lending_with(|config| {
        config.limits.eager_bytes_max = 0;
        config.lease_bytes_min = BYTES;
    });
    let slots = harness.leases_max;
    // As many messages on a lane that lends none.
    let count = slots.max(1024);
    let leased = || lending.arena.statistics().leased_bytes / BYTES;
    let mut held = Vec::new();
    for seed in 0..count as u64 + 20 {
        held.push(lending.deliver([block(&lending.arena, seed, BYTES)]));
        if lending.lends {
            assert_eq!(leased(), held.len().min(slots));
        }
    }
    assert_eq!(leased(), slots);
    for (seed, message) in (0..).zip(&held) {
        pattern::check(seed, &message.segments[0]);
    }
    held.truncate(held.len() - 20);
    held.truncate(count - 1);
    let again = lending.deliver([block(&lending.arena, 7, BYTES)]);
    assert_becomes(leased, &slots);
    pattern::check(7, &again.segments[0]);
    drop((held, again));
    lending.assert_all_back();
}

/// Many at once, more than the socket between the peers carries
pub fn a_flood_of_lent_messages_arrives(harness: &Harness) {
    const COUNT: u64 = 600;
    let lending = harness.lending_with(|config| {
        config.limits.early_accept_bytes_max = u64::MAX;
    });
    let (near, far) = (&lending.pair.near, &lending.pair.far);
    let lent: Vec<_> = (0..4).map(|seed| lending.block(seed)).collect();
    let sends: Vec<_> = (0..COUNT)
        .map(|seed| {
            near.send_frames_shared([lent[seed as usize % 4].clone()].into_iter().collect())
        })
        .collect();
    for seed in 0..COUNT {
        let message = far.recv_frames().done().unwrap();
        pattern::check(seed % 4, &message.segments[0]);
    }
    for send in sends {
        send.done().unwrap();
    }
    lending.assert_blocks(4, 0, 0);
}

/// A short segment is cheaper to copy
pub fn segments_below_the_threshold_are_copied(harness: &Harness) {
    let lending = harness.lending_with(|config| config.lease_bytes_min = BLOCK_BYTES);
    let lent = lending.block(1);
    for (bytes, expected) in [(BLOCK_BYTES - 1, 0), (1000, 0), (BLOCK_BYTES, 1)] {
        let message = lending.deliver([lent.slice(..bytes)]);
        lending.assert_blocks(1, expected, 0);
        pattern::check(1, &message.segments[0]);
    }
}

/// Only who says so lends: the memory may be written to once the send is complete
pub fn what_is_not_sent_as_shared_is_copied(harness: &Harness) {
    // Without a choice: else a copy of it may be lent.
    let lending = harness.lending_with(|config| config.carriers = vec![CarrierKind::Lease]);
    let (near, far) = (&lending.pair.near, &lending.pair.far);
    let lent = lending.block(1);
    let segments = || Segments::from_iter([lent.clone()]);
    let posted = [1, 2].map(|tag| far.recv_message(Tag(tag), TagMask::FULL));
    let frames = far.recv_frames();
    near.send(Tag(1), lent.clone()).done().unwrap();
    near.send_segments(Tag(2), segments()).done().unwrap();
    near.send_frames(segments()).done().unwrap();
    for request in posted.into_iter().chain([frames]) {
        let message = request.done().unwrap();
        pattern::check(1, &message.segments[0]);
        lending.assert_blocks(1, 0, 0);
    }
}

/// Memory from anywhere may be sent as shared; what the arena of the context does not have is copied
pub fn memory_outside_the_arena_of_the_context_is_copied(harness: &Harness) {
    let lending = harness.lending();
    let foreign = Arena::new(ArenaConfig::default());
    let private = Bytes::from(pattern::make(1, BLOCK_BYTES));
    for segment in [block(&foreign, 1, BLOCK_BYTES), private] {
        let message = lending.deliver([segment]);
        assert_becomes(|| blocks(&foreign), &(0, 0, 0));
        lending.assert_blocks(0, 0, 0);
        pattern::check(1, &message.segments[0]);
    }
}

/// Both sides have arenas, and lend at the same time
pub fn both_sides_lend_at_once(harness: &Harness) {
    let arenas = [(); 2].map(|()| Arena::new(ArenaConfig::default()));
    let [near, far] = arenas
        .clone()
        .map(|arena| harness.context_with(|config| config.arena = Some(arena)));
    let pair = harness.pair_of(near, far);
    std::thread::scope(|scope| {
        let ends = [(&pair.near, &pair.far), (&pair.far, &pair.near)];
        for ((from, to), arena) in ends.into_iter().zip(&arenas) {
            scope.spawn(move || {
                for seed in 0..200 {
                    let message = deliver(from, to, [block(arena, seed, BLOCK_BYTES)]);
                    pattern::check(seed, &message.segments[0]);
                }
            });
        }
    });
    for arena in &arenas {
        assert_eq!(blocks(arena), (0, 0, 0));
    }
}

/// Past the bound of an arena, memory is private: received there, and sent as a copy
pub fn past_the_bound_of_an_arena_memory_is_private(harness: &Harness) {
    let bounded = || {
        let config = ArenaConfig {
            bytes_max: BLOCK_BYTES,
            ..ArenaConfig::default()
        };
        Arena::new(config)
    };
    let arenas = [bounded(), bounded()];
    let [near, far] = arenas
        .clone()
        .map(|arena| harness.context_with(|config| config.arena = Some(arena)));
    let pair = harness.pair_of(near, far);
    let [ours, theirs] = &arenas;
    let lent = block(ours, 1, BLOCK_BYTES);
    assert!(ours.take(BLOCK_BYTES).is_none());
    let first = deliver(&pair.near, &pair.far, [lent]);
    let private = Bytes::from(pattern::make(2, BLOCK_BYTES));
    let second = deliver(&pair.near, &pair.far, [private.clone()]);
    let third = deliver(&pair.near, &pair.far, [private]);
    pattern::check(1, &first.segments[0]);
    pattern::check(2, &second.segments[0]);
    pattern::check(2, &third.segments[0]);
    // Copies come into the receiver's arena while it has room: one of the two, or the first of
    // the three where nothing is lent.
    assert_eq!(blocks(theirs), (1, 0, 0));
    assert!(theirs.statistics().refused > 0);
    let lent = usize::from(harness.lends());
    assert_eq!(blocks(ours), (0, lent, lent));
    drop((first, second, third));
    assert_eq!((blocks(ours), blocks(theirs)), ((0, 0, 0), (0, 0, 0)));
}
