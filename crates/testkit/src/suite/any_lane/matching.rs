//! Which receive gets which message.

use backhaul::{Endpoint, Tag, TagMask};

use crate::{Finish, Harness};

/// A receive that waits gets what comes
pub fn a_receive_posted_before_arrival_gets_the_message(harness: &Harness) {
    let pair = harness.pair();
    for bytes in [3, 1 << 17] {
        let into = pair.far.recv(Tag(5), TagMask::FULL, vec![0; bytes]);
        let allocated = pair.far.recv_message(Tag(6), TagMask::FULL);
        let payload = vec![bytes as u8 ^ 9; bytes];
        pair.near.send(Tag(5), payload.clone()).done().unwrap();
        pair.near.send(Tag(6), payload.clone()).done().unwrap();
        let received = into.done().unwrap();
        assert_eq!((received.tag, received.bytes), (Tag(5), bytes));
        assert!(received.into_buffer::<Vec<u8>>().unwrap() == payload);
        let message = allocated.done().unwrap();
        assert_eq!(message.tag, Some(Tag(6)));
        assert_eq!(message.segments.len(), 1);
        assert!(message.segments[0][..] == payload);
    }
}

/// A message that comes too early is kept
pub fn an_unexpected_message_waits_for_its_receive(harness: &Harness) {
    let pair = harness.pair();
    for bytes in [3, 1 << 17] {
        let payload = vec![bytes as u8 ^ 9; bytes];
        let sends = [
            pair.near.send(Tag(5), payload.clone()),
            pair.near.send(Tag(6), payload.clone()),
        ];
        // Both are here once a later message is.
        mark(&pair.near, &pair.far);
        let received = pair.far.recv(Tag(5), TagMask::FULL, vec![0; bytes]);
        let received = received.done().unwrap();
        assert_eq!((received.tag, received.bytes), (Tag(5), bytes));
        assert!(received.into_buffer::<Vec<u8>>().unwrap() == payload);
        let message = pair.far.recv_message(Tag(6), TagMask::FULL).done().unwrap();
        assert_eq!(message.tag, Some(Tag(6)));
        assert!(message.segments[0][..] == payload);
        for send in sends {
            send.done().unwrap();
        }
    }
}

/// Only the bits of the mask count
pub fn a_mask_selects_bits_of_the_tag(harness: &Harness) {
    let pair = harness.pair();
    for early in [true, false] {
        let high = TagMask(0xffff_ffff_0000_0000);
        let post = || pair.far.recv_message(Tag(7 << 32), high);
        let posted = early.then(post);
        send(&pair.near, 8 << 32 | 1, b"other");
        send(&pair.near, 7 << 32 | 2, b"wanted");
        let message = posted.unwrap_or_else(post).done().unwrap();
        assert_eq!(message.tag, Some(Tag(7 << 32 | 2)));
        assert_eq!(&message.segments[0][..], b"wanted");
        let other = pair.far.recv_message(Tag(1), TagMask(1)).done().unwrap();
        assert_eq!(&other.segments[0][..], b"other");
    }
}

/// A receive for one tag does not touch messages of others
pub fn other_tags_are_left_alone(harness: &Harness) {
    let pair = harness.pair();
    let posted = pair.far.recv_message(Tag(1), TagMask::FULL);
    send(&pair.near, 2, b"two");
    send(&pair.near, 3, b"three");
    mark(&pair.near, &pair.far);
    assert!(!posted.is_done());
    assert_eq!(receive(&pair.far, 3, TagMask::FULL), (3, b"three".to_vec()));
    assert_eq!(receive(&pair.far, 2, TagMask::FULL), (2, b"two".to_vec()));
    send(&pair.near, 1, b"one");
    assert_eq!(&posted.done().unwrap().segments[0][..], b"one");
}

/// Of several waiting messages that match, the one sent first is taken
pub fn the_oldest_unexpected_match_comes_first(harness: &Harness) {
    let pair = harness.pair();
    for (tag, text) in [(0x11, "a"), (0x21, "b"), (0x11, "c"), (0x12, "d")] {
        send(&pair.near, tag, text.as_bytes());
    }
    mark(&pair.near, &pair.far);
    assert_eq!(receive(&pair.far, 0x10, TagMask(0xf0)), (0x11, b"a".into()));
    assert_eq!(receive(&pair.far, 0x12, TagMask::FULL), (0x12, b"d".into()));
    assert_eq!(receive(&pair.far, 0x01, TagMask(0x0f)), (0x21, b"b".into()));
    assert_eq!(receive(&pair.far, 0, TagMask::ANY), (0x11, b"c".into()));
}

/// Of several waiting receives that match, the one posted first gets the message
pub fn the_first_posted_match_gets_the_message(harness: &Harness) {
    let pair = harness.pair();
    let exact = pair.far.recv_message(Tag(1), TagMask::FULL);
    let any = pair.far.recv_message(Tag(0), TagMask::ANY);
    let later = pair.far.recv_message(Tag(1), TagMask::FULL);
    send(&pair.near, 1, b"first");
    send(&pair.near, 1, b"second");
    send(&pair.near, 1, b"third");
    for (request, expected) in [(exact, "first"), (any, "second"), (later, "third")] {
        let message = request.done().unwrap();
        assert_eq!(&message.segments[0][..], expected.as_bytes());
    }
}

/// Tagged and untagged messages are two worlds
pub fn a_wildcard_takes_no_untagged_message(harness: &Harness) {
    let pair = harness.pair();
    let any = pair.far.recv_message(Tag(0), TagMask::ANY);
    pair.near
        .send_frames([&b"frames"[..]].into_iter().collect())
        .done()
        .unwrap();
    let frames = pair.far.recv_frames().done().unwrap();
    assert_eq!(frames.tag, None);
    assert_eq!(&frames.segments[0][..], b"frames");
    let next_frames = pair.far.recv_frames();
    send(&pair.near, 0, b"tagged");
    assert_eq!(any.done().unwrap().tag, Some(Tag(0)));
    assert!(!next_frames.is_done());
    pair.near
        .send_frames([&b"more"[..]].into_iter().collect())
        .done()
        .unwrap();
    assert_eq!(&next_frames.done().unwrap().segments[0][..], b"more");
}

/// No tag has a meaning of its own
pub fn extreme_tags_are_tags_like_others(harness: &Harness) {
    let pair = harness.pair();
    for tag in [0, 1, u64::MAX, 1 << 63, u64::MAX - 1] {
        send(&pair.near, tag, &tag.to_le_bytes());
    }
    for tag in [u64::MAX - 1, 1 << 63, 0, u64::MAX, 1] {
        let expected = (tag, tag.to_le_bytes().to_vec());
        assert_eq!(receive(&pair.far, tag, TagMask::FULL), expected);
    }
}

/// Sends a short message
fn send(endpoint: &Endpoint, tag: u64, payload: &[u8]) {
    endpoint.send(Tag(tag), payload.to_vec()).done().unwrap();
}

/// Receives a message, returning tag and payload
fn receive(endpoint: &Endpoint, tag: u64, mask: TagMask) -> (u64, Vec<u8>) {
    let message = endpoint.recv_message(Tag(tag), mask).done().unwrap();
    (message.tag.unwrap().0, message.segments[0].to_vec())
}

/// Sends something and waits until it is there, and so all that was sent before
fn mark(from: &Endpoint, to: &Endpoint) {
    let marker = Tag(0xfeed_0000_0000);
    from.send(marker, &b"marker"[..]).done().unwrap();
    to.recv(marker, TagMask::FULL, vec![0; 6]).done().unwrap();
}
