//! Messages of several pieces.

use backhaul::{Bytes, Config, Message, Segments, SendError, SendRefused, Tag, TagMask};

use crate::{Finish, Harness, Pair, assert_matches, pattern};

/// Nothing is a message too
pub fn a_message_of_no_segments_arrives(harness: &Harness) {
    round_trips(harness, &[], |_| {});
}

/// The usual case
pub fn a_message_of_one_segment_arrives(harness: &Harness) {
    round_trips(harness, &[100], |_| {});
    round_trips(harness, &[0], |_| {});
    round_trips(harness, &[200_000], |_| {});
}

/// Many, among them empty ones, eager and not
pub fn a_message_of_a_thousand_mixed_segments_arrives(harness: &Harness) {
    let short: Vec<usize> = (0..1000).map(|index| index * 7 % 50).collect();
    round_trips(harness, &short, |_| {});
    let long: Vec<usize> = (0..1000).map(|index| index % 3 * 331).collect();
    round_trips(harness, &long, |_| {});
    let empty = [0; 1000];
    round_trips(harness, &empty, |_| {});
    let mut edges = [0; 1000];
    (edges[0], edges[999]) = (1, 70_000);
    round_trips(harness, &edges, |_| {});
}

/// More of them in front than one read fills, in messages of any way to come
pub fn bytes_behind_many_empty_segments_arrive(harness: &Harness) {
    for bytes in [100, 30_000, 300_000] {
        let mut layout = [0; 100];
        layout[99] = bytes;
        round_trips(harness, &layout, |_| {});
    }
}

/// Pieces that are longer than a chunk, a ring, and the threshold
pub fn long_segments_keep_their_bounds(harness: &Harness) {
    let long = [1 << 20, 0, 3, (1 << 20) + 1, 65_537, 0, 300_001];
    round_trips(harness, &long, |_| {});
}

/// A buffer gets all segments without gaps
pub fn segments_land_one_behind_the_other_in_a_buffer(harness: &Harness) {
    let pair = harness.pair();
    for layout in [&[3, 0, 5, 8][..], &[70_000, 1, 0, 130_000]] {
        let bytes: usize = layout.iter().sum();
        for early in [true, false] {
            let post = || pair.far.recv(Tag(1), TagMask::FULL, vec![0; bytes + 9]);
            let posted = early.then(post);
            let send = pair.near.send_segments(Tag(1), cut(1, layout));
            let received = posted.unwrap_or_else(post).done().unwrap();
            assert_eq!(received.bytes, bytes);
            let buffer = received.into_buffer::<Vec<u8>>().unwrap();
            pattern::check(1, &buffer[..bytes]);
            assert_eq!(buffer[bytes..], [0; 9]);
            send.done().unwrap();
        }
    }
}

/// A header with a table that no ring holds at once
pub fn a_table_longer_than_the_ring_arrives(harness: &Harness) {
    let layout: Vec<usize> = (0..3000).map(|index| index % 40).collect();
    round_trips(harness, &layout, |config| config.ring_bytes = 4096);
}

/// One too many is refused by name, and the endpoint goes on
pub fn too_many_segments_are_refused(harness: &Harness) {
    let pair = harness.pair_with(|config| config.limits.segments_max = 8);
    let send = pair.near.send_segments(Tag(1), cut(1, &[1; 9]));
    assert_matches!(
        send.done().unwrap_err(),
        SendError::Refused(SendRefused::TooManySegments {
            segments: 9,
            max: 8
        })
    );
    pair.near
        .send_segments(Tag(1), cut(2, &[1; 8]))
        .done()
        .unwrap();
    let message = pair.far.recv_message(Tag(1), TagMask::FULL).done().unwrap();
    check(2, &[1; 8], &message);

    // The limit of the receiver binds the sender.
    let far = harness.context_with(|config| config.limits.segments_max = 2);
    let pair = harness.pair_of(harness.context(), far);
    let send = pair.near.send_frames(cut(1, &[1; 3]));
    assert_matches!(
        send.done().unwrap_err(),
        SendError::Refused(SendRefused::TooManySegments {
            segments: 3,
            max: 2
        })
    );
}

/// The limit of the receiver on bytes binds the sender
pub fn too_long_a_message_is_refused(harness: &Harness) {
    let far = harness.context_with(|config| config.limits.message_bytes_max = 100_000);
    let pair = harness.pair_of(harness.context(), far);
    let send = pair.near.send(Tag(1), vec![0; 100_001]);
    assert_matches!(
        send.done().unwrap_err(),
        SendError::Refused(SendRefused::TooLarge {
            bytes: 100_001,
            max: 100_000
        })
    );
    let posted = pair.far.recv(Tag(1), TagMask::FULL, vec![0; 100_000]);
    pair.near.send(Tag(1), vec![7; 100_000]).done().unwrap();
    assert_eq!(posted.done().unwrap().bytes, 100_000);
    assert_eq!(pair.near.queued_bytes(), 0);
}

/// Sends a layout tagged and untagged, with the receive posted before and after
fn round_trips(harness: &Harness, layout: &[usize], change: impl Fn(&mut Config)) {
    let Pair { near, far, .. } = &harness.pair_with(change);
    for early in [true, false] {
        let post = || far.recv_message(Tag(1), TagMask::FULL);
        let posted = early.then(post);
        let send = near.send_segments(Tag(1), cut(1, layout));
        let message = posted.unwrap_or_else(post).done().unwrap();
        assert_eq!(message.tag, Some(Tag(1)));
        check(1, layout, &message);
        send.done().unwrap();

        let posted = early.then(|| far.recv_frames());
        let send = near.send_frames(cut(2, layout));
        let message = posted.unwrap_or_else(|| far.recv_frames()).done().unwrap();
        assert_eq!(message.tag, None);
        check(2, layout, &message);
        send.done().unwrap();
    }
}

/// Cuts a payload into segments
fn cut(seed: u64, layout: &[usize]) -> Segments {
    let mut payload = Bytes::from(pattern::make(seed, layout.iter().sum()));
    layout
        .iter()
        .map(|&bytes| payload.split_to(bytes))
        .collect()
}

#[track_caller]
fn check(seed: u64, layout: &[usize], message: &Message) {
    let found: Vec<usize> = message
        .segments
        .iter()
        .map(|segment| segment.len())
        .collect();
    assert_eq!(found, layout);
    let mut at = 0;
    for segment in &message.segments {
        assert!(
            (segment.as_ptr() as usize).is_multiple_of(64),
            "memory is aligned"
        );
        pattern::check_at(seed, at, segment);
        at += segment.len();
    }
}
