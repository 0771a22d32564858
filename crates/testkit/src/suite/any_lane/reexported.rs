//! Memory that was borrowed and is exported again, to a third context.
//!
//! On a lane that lends none the same messages arrive as copies.

use backhaul::{Bytes, Message};

use crate::lending::{BLOCK_BYTES, Lending, blocks, deliver};
use crate::{Harness, Pair, pattern, wait_until};

/// The third context maps the owner's memory, which stays lent until the last has given it back
pub fn borrowed_memory_that_is_sent_on_stays_lent_until_the_last_drops_it(harness: &Harness) {
    let lending = harness.lending();
    let on = onward(harness, &lending.pair);
    let first = memory_of(lending.deliver([lending.block(1)]));
    let second = memory_of(deliver(&on.near, &on.far, [first.clone()]));
    let back = memory_of(deliver(&on.far, &on.near, [second.clone()]));
    lending.assert_blocks(0, 1, 1);
    drop(first);
    still_lent_or_copied(&lending, &second);
    drop(second);
    still_lent_or_copied(&lending, &back);
    drop(back);
    wait_until(|| blocks(&lending.arena) == (0, 0, 0));
}

/// Back to its owner, or to and fro
pub fn borrowed_memory_may_come_back_and_go_on(harness: &Harness) {
    let lending = harness.lending();
    let pair = &lending.pair;
    let mut memory = lending.block(1);
    let mut all = Vec::new();
    // More often than a lease is exported again.
    for round in 0..12 {
        let (from, to) = if round % 2 == 0 {
            (&pair.near, &pair.far)
        } else {
            (&pair.far, &pair.near)
        };
        memory = memory_of(deliver(from, to, [memory]));
        pattern::check(1, &memory);
        all.push(memory.clone());
    }
    drop((memory, all));
    wait_until(|| blocks(&lending.arena) == (0, 0, 0));
}

/// The third context gets the bytes that the second one wrote, and the owner keeps its own
pub fn borrowed_memory_that_was_changed_is_sent_on_as_it_is(harness: &Harness) {
    let lending = harness.lending();
    let on = onward(harness, &lending.pair);
    let lent = lending.block(1);
    for at in [0, BLOCK_BYTES / 2, BLOCK_BYTES - 1] {
        let mut message = lending.deliver([lent.clone()]);
        let mut expected = pattern::make(1, BLOCK_BYTES);
        expected[at] ^= 1;
        message.segments[0][at] ^= 1;
        let received = memory_of(deliver(&on.near, &on.far, [memory_of(message)]));
        assert!(received == expected, "changed at {at}");
    }
    pattern::check(1, &lent);
    lending.assert_blocks(1, 0, 0);
}

/// Parts at places that are those of pages, or not
pub fn parts_of_borrowed_memory_are_exported_again(harness: &Harness) {
    let lending = harness.lending_with(|config| config.lease_bytes_min = 64);
    let on = onward(harness, &lending.pair);
    let received = memory_of(lending.deliver([lending.block(1).slice(128..)]));
    for (from, to) in [
        (0, 4096),
        (64, 100_000),
        (4096, BLOCK_BYTES - 128),
        (1, 5000),
    ] {
        let part = memory_of(deliver(&on.near, &on.far, [received.slice(from..to)]));
        pattern::check_at(1, 128 + from, &part);
    }
    drop(received);
    wait_until(|| blocks(&lending.arena) == (0, 0, 0));
}

/// The end of the second context changes nothing for the others
pub fn borrowed_memory_outlives_the_one_who_exported_it_again(harness: &Harness) {
    for closes in [false, true] {
        let lending = harness.lending();
        let on = onward(harness, &lending.pair);
        let first = memory_of(lending.deliver([lending.block(1)]));
        let received = memory_of(deliver(&on.near, &on.far, [first]));
        let Pair {
            near, near_context, ..
        } = on;
        if closes {
            near_context.close();
        }
        drop((near, near_context));
        still_lent_or_copied(&lending, &received);
        drop(received);
        // A closed context is not asked any more; that its process ends is another test.
        if !closes {
            wait_until(|| blocks(&lending.arena) == (0, 0, 0));
        }
    }
}

/// From the borrower to another context
fn onward(harness: &Harness, pair: &Pair) -> Pair {
    harness.pair_of(pair.far_context.clone(), harness.context())
}

fn memory_of(mut message: Message) -> Bytes {
    Bytes::from_owner(message.segments.remove(0))
}

/// The memory is whole, though its owner takes as many blocks as it likes
#[track_caller]
fn still_lent_or_copied(lending: &Lending, memory: &Bytes) {
    drop((2..12).map(|seed| lending.block(seed)).collect::<Vec<_>>());
    lending.assert_blocks(0, 1, 1);
    pattern::check(1, memory);
}
