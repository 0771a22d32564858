//! Ends of connections and contexts while memory is lent.

use backhaul::{Message, Segments, Tag, TagMask};

use crate::lending::{BLOCK_BYTES, Lending, block, blocks, deliver};
use crate::{Finish, Harness, pattern, wait_until};

/// The end is said right behind what is lent
pub fn what_was_lent_before_a_close_arrives(harness: &Harness) {
    const COUNT: u64 = 4;
    for _ in 0..20 {
        let lending = harness.lending();
        let posted: Vec<_> = (0..COUNT)
            .map(|_| lending.pair.far.recv_message(Tag(1), TagMask::FULL))
            .collect();
        let sends: Vec<_> = (0..COUNT)
            .map(|seed| {
                let segments = Segments::from_iter([lending.block(seed), lending.block(seed)]);
                lending.pair.near.send_segments_shared(Tag(1), segments)
            })
            .collect();
        lending.pair.near.close().done().unwrap();
        for send in sends {
            send.done().unwrap();
        }
        for (seed, request) in (0..).zip(posted) {
            for segment in request.done().unwrap().segments {
                pattern::check(seed, &segment);
            }
        }
    }
}

/// However the connection ends, from either side
pub fn a_block_stays_lent_after_the_end_of_the_connection_until_the_receiver_drops_it(
    harness: &Harness,
) {
    let ends: [fn(&Lending); 4] = [
        |lending| lending.pair.near.close().done().unwrap(),
        |lending| lending.pair.far.close().done().unwrap(),
        |lending| lending.pair.near.abort(),
        |lending| lending.pair.far.abort(),
    ];
    for end in ends {
        let lending = harness.lending();
        let kept = lending.block(2);
        let message = lending.deliver([lending.block(1), kept.clone()]);
        end(&lending);
        lending.pair.near.watch_close().done().unwrap();
        lending.pair.far.watch_close().done().unwrap();
        holds_and_returns(&lending, message, 1);
        pattern::check(2, &kept);
        drop(kept);
        lending.assert_blocks(0, 0, 0);
    }
}

/// The receiver's endpoint goes, or the sender's, or both
pub fn a_block_stays_lent_after_its_endpoints_are_dropped(harness: &Harness) {
    for (keep_near, keep_far) in [(false, true), (true, false), (false, false)] {
        let lending = harness.lending();
        let Lending {
            pair, arena, lends, ..
        } = lending;
        let kept = block(&arena, 2, BLOCK_BYTES);
        let lent = [block(&arena, 1, BLOCK_BYTES), kept.clone()];
        let message = deliver(&pair.near, &pair.far, lent);
        let near = keep_near.then_some(pair.near);
        let far = keep_far.then_some(pair.far);
        for end in near.iter().chain(&far) {
            end.watch_close().done().unwrap();
        }
        let lent = usize::from(lends);
        assert_eq!(blocks(&arena), (1, 2 * lent, lent));
        pattern::check(1, &message.segments[0]);
        pattern::check(2, &message.segments[1]);
        drop((message, kept));
        wait_until(|| blocks(&arena) == (0, 0, 0));
    }
}

/// The receiver's context ends: what it borrowed it still has
pub fn a_block_stays_lent_after_the_context_of_the_receiver_is_closed(harness: &Harness) {
    for drop_all in [false, true] {
        let lending = harness.lending();
        let kept = lending.block(2);
        let message = lending.deliver([lending.block(1), kept.clone()]);
        let Lending {
            pair, arena, lends, ..
        } = lending;
        pair.far_context.close();
        pair.near.watch_close().done().unwrap();
        let rest = if drop_all {
            drop((pair.far, pair.far_context));
            None
        } else {
            Some((pair.far, pair.far_context))
        };
        let lent = usize::from(lends);
        assert_eq!(blocks(&arena), (1, 2 * lent, lent));
        pattern::check(1, &message.segments[0]);
        drop((message, kept));
        wait_until(|| blocks(&arena) == (0, 0, 0));
        drop(rest);
    }
}

/// The sender's context ends: no engine listens for the return, so the block is never used again
pub fn a_block_is_used_no_more_after_the_context_of_its_sender_is_closed(harness: &Harness) {
    for drop_all in [false, true] {
        let lending = harness.lending();
        let other = lending.block(3);
        let lent = lending.block(1);
        let start = lent.as_ptr();
        let message = lending.deliver([lent]);
        let Lending {
            pair, arena, lends, ..
        } = lending;
        pair.near_context.close();
        pair.far.watch_close().done().unwrap();
        let rest = if drop_all {
            drop((pair.near, pair.near_context));
            None
        } else {
            Some((pair.near, pair.near_context))
        };
        let abandoned = usize::from(lends) * BLOCK_BYTES;
        wait_until(|| arena.statistics().abandoned_bytes == abandoned);
        for seed in 10..30 {
            let recycled = block(&arena, seed, BLOCK_BYTES);
            assert!(!lends || recycled.as_ptr() != start);
            pattern::check(1, &message.segments[0]);
        }
        drop(message);
        assert_eq!(arena.statistics().abandoned_bytes, abandoned);
        // Its segment goes with the last block that is in use there.
        drop(other);
        let found = arena.statistics();
        assert_eq!((found.live_bytes, found.leased_bytes), (0, 0));
        assert_eq!(found.abandoned_bytes, 0);
        drop(rest);
    }
}

/// A block that is back when the sender's context ends is reused, though no thread has looked yet
pub fn a_block_that_is_back_when_the_context_of_its_sender_is_closed_is_reused(harness: &Harness) {
    let ends: [fn(&Lending, Message); 2] = [
        |_, message| drop(message),
        |lending, message| {
            lending.pair.far.abort();
            lending.pair.near.watch_close().done().unwrap();
            drop(message);
        },
    ];
    for end in ends {
        let lending = harness.lending();
        let _kept = lending.block(3);
        let message = lending.deliver([lending.block(1)]);
        end(&lending, message);
        let Lending { pair, arena, .. } = lending;
        pair.near_context.close();
        pair.far.watch_close().done().unwrap();
        drop(pair);
        wait_until(|| blocks(&arena) == (1, 0, 0));
        assert_eq!(arena.statistics().abandoned_bytes, 0);
    }
}

/// A message that came, but that no receive took, goes with its endpoint
pub fn lent_messages_that_are_never_received_return_with_the_endpoint(harness: &Harness) {
    let ends: [fn(&Lending); 3] = [
        |lending| lending.pair.far.abort(),
        |lending| lending.pair.far_context.close(),
        |lending| lending.pair.near.abort(),
    ];
    for end in ends {
        let lending = harness.lending();
        send_frames(&lending, 3);
        lending.assert_blocks(0, 3, 3);
        end(&lending);
        lending.pair.near.watch_close().done().unwrap();
        let Lending { pair, arena, .. } = lending;
        drop((pair.far, pair.far_context));
        wait_until(|| blocks(&arena) == (0, 0, 0));
    }
}

/// A message that came before the end can be received after it, lent as it is
pub fn lent_messages_outlive_an_abort_of_their_sender(harness: &Harness) {
    let lending = harness.lending();
    send_frames(&lending, 3);
    let far = &lending.pair.far;
    // Complete there: what is not is lost with the connection.
    wait_until(|| {
        let protocol = far.info().protocol;
        protocol.is_some_and(|found| found.unexpected_bytes == 3 * BLOCK_BYTES as u64)
    });
    let tagged = far.recv_message(Tag(9), TagMask::FULL);
    lending.pair.near.abort();
    tagged.done().unwrap_err();
    for seed in 0..3 {
        let message = far.recv_frames().done().unwrap();
        pattern::check(seed, &message.segments[0]);
    }
    wait_until(|| blocks(&lending.arena) == (0, 0, 0));
}

/// Messages that are lent, on their way or waiting when either side ends: none of their blocks is lost
pub fn an_end_in_the_middle_of_lent_messages_loses_no_block(harness: &Harness) {
    for round in 0..30 {
        let lending = harness.lending();
        let _kept = lending.block(9);
        let (near, far) = (&lending.pair.near, &lending.pair.far);
        let receives: Vec<_> = (0..8)
            .map(|_| far.recv_message(Tag(1), TagMask::FULL))
            .collect();
        let sends: Vec<_> = (0..8)
            .map(|seed| {
                let segments = Segments::from_iter([lending.block(seed), lending.block(seed)]);
                near.send_segments_shared(Tag(1), segments)
            })
            .collect();
        for request in &receives[..round % 8] {
            request.wait_done(None);
        }
        if round % 2 == 0 {
            near.abort();
        } else {
            far.abort();
        }
        let messages: Vec<_> = receives
            .iter()
            .map_while(|request| request.done().ok())
            .collect();
        for (seed, message) in (0..).zip(&messages) {
            for segment in &message.segments {
                pattern::check(seed, segment);
            }
        }
        for send in sends {
            let _either = send.done();
        }
        drop((messages, receives));
        wait_until(|| blocks(&lending.arena) == (1, 0, 0));
        assert_eq!(lending.arena.statistics().abandoned_bytes, 0);
    }
}

/// The peer ends at any moment of a stream of messages that callers move along
pub fn an_exporter_that_is_cut_off_at_any_moment_loses_no_block(harness: &Harness) {
    for round in 0..300 {
        let lending = harness.lending();
        let (near, far) = (&lending.pair.near, &lending.pair.far);
        let lent = lending.block(1);
        // Else a block that is used no more would go unseen, with its segment.
        let _kept = lending.block(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let segments = || Segments::from_iter([lent.clone()]);
                while near.send_frames_shared(segments()).done().is_ok() {}
            });
            for _ in 0..round % 10 {
                pattern::check(1, &far.recv_frames().done().unwrap().segments[0]);
            }
            for _ in 0..round {
                std::hint::spin_loop();
            }
            far.abort();
        });
        drop(lent);
        let Lending { pair, arena, .. } = lending;
        drop((pair.far, pair.far_context));
        wait_until(|| blocks(&arena) == (1, 0, 0));
        assert_eq!(arena.statistics().abandoned_bytes, 0, "round {round}");
    }
}

/// Sends untagged messages of one block, which are fetched ahead
fn send_frames(lending: &Lending, count: u64) {
    for seed in 0..count {
        let segments = Segments::from_iter([lending.block(seed)]);
        let send = lending.pair.near.send_frames_shared(segments);
        send.done().unwrap();
    }
}

/// Asserts that a message of two blocks, the first of them freed, is there and goes back
#[track_caller]
fn holds_and_returns(lending: &Lending, mut message: Message, live: usize) {
    lending.assert_blocks(live, 2, 1);
    let other = lending.block(9);
    pattern::check(1, &message.segments[0]);
    pattern::check(2, &message.segments[1]);
    message.segments[0].fill(0xee);
    lending.assert_blocks(live + 1, 2, 1);
    drop(message);
    wait_until(|| blocks(&lending.arena) == (live + 1, 0, 0));
    pattern::check(9, &other);
}
