//! Messages that do not fit their receive.

use backhaul::{RecvError, Tag, TagMask};

use crate::{Finish, Harness, assert_matches, pattern};

/// Posted before an eager message comes
pub fn a_short_buffer_posted_early_truncates_an_eager_message(harness: &Harness) {
    truncate(harness, EAGER, true);
}

/// Posted after an eager message came
pub fn a_short_buffer_posted_late_truncates_an_eager_message(harness: &Harness) {
    truncate(harness, EAGER, false);
}

/// Posted before a long message is announced
pub fn a_short_buffer_posted_early_truncates_a_long_message(harness: &Harness) {
    truncate(harness, LONG, true);
}

/// Posted after a long message was announced
pub fn a_short_buffer_posted_late_truncates_a_long_message(harness: &Harness) {
    truncate(harness, LONG, false);
}

/// A buffer of no bytes is a buffer
pub fn an_empty_buffer_truncates_all_but_empty_messages(harness: &Harness) {
    let pair = harness.pair();
    let post = || pair.far.recv(Tag(1), TagMask::FULL, Vec::new());
    let (first, second) = (post(), post());
    pair.near.send(Tag(1), &b"x"[..]).done().unwrap();
    pair.near.send(Tag(1), &b""[..]).done().unwrap();
    assert_matches!(
        first.done().unwrap_err(),
        RecvError::Truncated {
            message_bytes: 1,
            capacity_bytes: 0
        }
    );
    assert_eq!(second.done().unwrap().bytes, 0);
}

/// The message is lost with an error that says the sizes; those before and after are whole
fn truncate(harness: &Harness, bytes: usize, early: bool) {
    let pair = harness.pair();
    let capacity = bytes - 1;
    let post = |bytes| pair.far.recv(Tag(1), TagMask::FULL, vec![0; bytes]);
    for round in 0..3 {
        let posted = early.then(|| [post(bytes), post(capacity), post(bytes), post(8)]);
        let sends: Vec<_> = [bytes, bytes, bytes, 8]
            .into_iter()
            .enumerate()
            .map(|(seed, bytes)| {
                let payload = pattern::make(seed as u64 + round, bytes);
                pair.near.send(Tag(1), payload)
            })
            .collect();
        let receives = posted
            .unwrap_or_else(|| [post(bytes), post(capacity), post(bytes), post(8)])
            .map(|request| request.done());
        let [first, second, third, fourth] = receives;
        for (seed, outcome, bytes) in [(0, first, bytes), (2, third, bytes), (3, fourth, 8)] {
            let received = outcome.unwrap();
            assert_eq!(received.bytes, bytes);
            pattern::check(seed + round, &received.into_buffer::<Vec<u8>>().unwrap());
        }
        assert_matches!(
            second.unwrap_err(),
            RecvError::Truncated { message_bytes, capacity_bytes }
                if (message_bytes, capacity_bytes) == (bytes as u64, capacity as u64)
        );
        for send in sends {
            send.done().unwrap();
        }
    }
}

const EAGER: usize = 1000;
const LONG: usize = 300_000;
