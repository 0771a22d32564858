//! Peers that shake hands and then break the protocol: the error says how, and only they suffer.

use backhaul::{
    CloseReason, Endpoint, Listener, ProtocolError, RecvError, SendError, Tag, TagMask,
};
use backhaul_proto::{FrameHeader, FrameKind};

use super::still_accepts;
use crate::harness::LOOPBACK;
use crate::random::Random;
use crate::raw::RawPeer;
use crate::{Finish, Harness, assert_matches, pattern};

/// Bytes that are no frames
pub fn garbage_instead_of_frames_is_a_violation(harness: &Harness) {
    let mut random = Random::new(3);
    for bytes in [32, 1000, 100_000] {
        let mut garbage = random.bytes(bytes);
        // No kind has this number.
        garbage[0] |= 0x80;
        assert_violates(
            harness,
            |peer| peer.say(&garbage),
            |error| matches!(error, ProtocolError::UnknownKind { kind } if *kind >= 0x80),
        );
    }
}

/// Values that a header must not have
pub fn headers_out_of_bounds_are_violations(harness: &Harness) {
    let eager = FrameHeader {
        segment_count: 1,
        payload_bytes: 10,
        ..FrameHeader::bare(FrameKind::Eager, 0)
    };
    let too_long = FrameHeader {
        payload_bytes: u64::MAX,
        ..eager
    };
    assert_frame_violates(harness, too_long);
    let over_the_window = FrameHeader {
        payload_bytes: 1 << 30,
        ..eager
    };
    assert_frame_violates(harness, over_the_window);
    let request = FrameHeader {
        kind: FrameKind::Request,
        payload_bytes: 1 << 40,
        ..eager
    };
    assert_frame_violates(harness, request);
    let segments = FrameHeader {
        segment_count: u32::MAX,
        ..eager
    };
    assert_frame_violates(harness, segments);
    let skipped_a_number = FrameHeader {
        message: 5,
        ..eager
    };
    assert_frame_violates(harness, skipped_a_number);
    for flags_or_reserved in 1..4 {
        let mut bytes = eager.encode();
        bytes[flags_or_reserved] = 0x80;
        assert_violates(harness, |peer| peer.say(&bytes), |_| true);
    }
}

/// Answers to questions that were never asked
pub fn frames_about_unknown_messages_are_violations(harness: &Harness) {
    for kind in [FrameKind::Accept, FrameKind::Skip] {
        assert_violates(
            harness,
            |peer| peer.say_frame(FrameHeader::bare(kind, 3)),
            |error| matches!(error, ProtocolError::NotAwaited { message: 3, .. }),
        );
    }
    let data = FrameHeader {
        payload_bytes: 8,
        ..FrameHeader::bare(FrameKind::Data, 3)
    };
    assert_frame_violates(harness, data);
}

/// A table that does not add up
pub fn segments_that_do_not_add_up_are_a_violation(harness: &Harness) {
    let header = FrameHeader {
        segment_count: 2,
        payload_bytes: 10,
        ..FrameHeader::bare(FrameKind::Eager, 0)
    };
    for table in [[10, 1], [u64::MAX, 11], [1, 1]] {
        assert_violates(
            harness,
            |peer| {
                peer.say_frame(header);
                peer.say(&table.map(u64::to_le_bytes).concat());
            },
            |error| matches!(error, ProtocolError::SegmentsDisagree { .. }),
        );
    }
}

/// More messages than were granted
pub fn exceeding_the_credit_is_a_violation(harness: &Harness) {
    assert_violates(
        harness,
        |peer| {
            let granted = peer.peer.as_ref().unwrap().credit_messages;
            let mut bytes = Vec::new();
            for message in 0..=granted {
                let header = FrameHeader {
                    segment_count: 1,
                    ..FrameHeader::bare(FrameKind::Eager, message)
                };
                bytes.extend_from_slice(&header.encode());
            }
            peer.say(&bytes);
        },
        |error| matches!(error, ProtocolError::MessageCreditExceeded { .. }),
    );
}

/// A piece of a long message has a bound too, however long the message: it is what others wait for
pub fn a_data_frame_longer_than_any_chunk_is_a_violation(harness: &Harness) {
    const BYTES: u64 = 64 << 20;
    let (mut peer, endpoint, listener) = connect(harness);
    let posted = endpoint.recv_message(Tag(1), TagMask::FULL);
    peer.say_frame(FrameHeader {
        segment_count: 1,
        tag: 1,
        payload_bytes: BYTES,
        ..FrameHeader::bare(FrameKind::Request, 0)
    });
    while peer.hear_frame().kind != FrameKind::Accept {}
    peer.say_frame(FrameHeader {
        payload_bytes: BYTES,
        ..FrameHeader::bare(FrameKind::Data, 0)
    });
    assert_matches!(
        posted.done().unwrap_err(),
        RecvError::Closed(CloseReason::Violation { .. })
    );
    still_accepts(harness, &listener);
}

/// Messages after the one that was to be the last
pub fn messages_after_a_close_do_no_harm(harness: &Harness) {
    let (mut peer, endpoint, listener) = connect(harness);
    peer.say_frame(FrameHeader::bare(FrameKind::Close, 0));
    let late = FrameHeader {
        segment_count: 1,
        ..FrameHeader::bare(FrameKind::Eager, 0)
    };
    peer.say_frame(late);
    peer.finish();
    peer.hear_out();
    assert_matches!(
        endpoint.watch_close().done().unwrap(),
        CloseReason::Peer { .. } | CloseReason::Violation { .. }
    );
    still_accepts(harness, &listener);
}

/// The end of the stream in the middle of anything
pub fn a_stream_that_breaks_off_is_a_peer_gone(harness: &Harness) {
    let header = FrameHeader {
        segment_count: 3,
        payload_bytes: 900,
        ..FrameHeader::bare(FrameKind::Eager, 0)
    };
    let mut message = header.encode().to_vec();
    message.extend_from_slice(&[300_u64; 3].map(u64::to_le_bytes).concat());
    message.extend_from_slice(&[7; 900]);
    for bytes in [0, 1, 31, 32, 40, 55, 56, 57, message.len() - 1] {
        for early in [true, false] {
            let (mut peer, endpoint, _listener) = connect(harness);
            let post = || endpoint.recv(Tag(0), TagMask::FULL, vec![0; 900]);
            let posted = early.then(post);
            peer.say(&message[..bytes]);
            drop(peer);
            let reason = endpoint.watch_close().done().unwrap();
            assert_matches!(reason, CloseReason::PeerGone { .. });
            assert_matches!(
                posted.unwrap_or_else(post).done().unwrap_err(),
                RecvError::Closed(CloseReason::PeerGone { .. })
            );
        }
    }
}

/// A message that came whole before the violation is still there
pub fn messages_before_a_violation_are_received(harness: &Harness) {
    let (mut peer, endpoint, listener) = connect(harness);
    for message in 0..3 {
        let header = FrameHeader {
            segment_count: 1,
            payload_bytes: 100,
            tag: 5,
            ..FrameHeader::bare(FrameKind::Eager, message)
        };
        peer.say_frame(header);
        peer.say(&pattern::make(message, 100));
    }
    peer.say(&[0xff; 32]);
    let posted = endpoint.recv_message(Tag(9), TagMask::FULL);
    assert_matches!(
        posted.done().unwrap_err(),
        RecvError::Closed(CloseReason::Violation { .. })
    );
    let reason = endpoint.watch_close().done().unwrap();
    assert_matches!(reason, CloseReason::Violation { .. });
    for message in 0..3 {
        let request = endpoint.recv(Tag(5), TagMask::FULL, vec![0; 100]);
        let received = request.done().unwrap();
        pattern::check(message, &received.into_buffer::<Vec<u8>>().unwrap());
    }
    let send = endpoint.send(Tag(1), &b"x"[..]);
    assert_matches!(
        send.done().unwrap_err(),
        SendError::Closed(CloseReason::Violation { .. })
    );
    still_accepts(harness, &listener);
}

/// A peer that dribbles its frames byte by byte is slow, not wrong
pub fn frames_that_come_byte_by_byte_are_understood(harness: &Harness) {
    let (mut peer, endpoint, _listener) = connect(harness);
    let header = FrameHeader {
        segment_count: 2,
        payload_bytes: 20,
        tag: 5,
        ..FrameHeader::bare(FrameKind::Eager, 0)
    };
    let posted = endpoint.recv_message(Tag(5), TagMask::FULL);
    let mut bytes = header.encode().to_vec();
    bytes.extend_from_slice(&[8_u64, 12].map(u64::to_le_bytes).concat());
    bytes.extend_from_slice(&pattern::make(1, 20));
    for byte in bytes {
        peer.say(&[byte]);
        std::thread::yield_now();
    }
    let message = posted.done().unwrap();
    assert_eq!(message.segments.len(), 2);
    pattern::check_at(1, 0, &message.segments[0]);
    pattern::check_at(1, 8, &message.segments[1]);
}

/// The conversation, frame by frame, is the documented one
pub fn a_peer_by_hand_and_an_endpoint_understand_each_other(harness: &Harness) {
    let (mut peer, endpoint, _listener) = connect(harness);
    let payload = pattern::make(1, 300_000);
    let send = endpoint.send(Tag(6), payload.clone());
    let request = peer.hear_frame();
    assert_eq!(
        request,
        FrameHeader {
            segment_count: 1,
            tag: 6,
            payload_bytes: 300_000,
            ..FrameHeader::bare(FrameKind::Request, 0)
        }
    );
    peer.say_frame(FrameHeader::bare(FrameKind::Accept, 0));
    let mut received = Vec::new();
    while received.len() < payload.len() {
        let data = peer.hear_frame();
        assert_eq!((data.kind, data.message), (FrameKind::Data, 0));
        let mut chunk = vec![0; usize::try_from(data.payload_bytes).unwrap()];
        std::io::Read::read_exact(&mut peer.socket, &mut chunk).unwrap();
        received.extend_from_slice(&chunk);
    }
    assert!(received == payload);
    send.done().unwrap();
    peer.say_frame(FrameHeader::bare(FrameKind::Ping, 42));
    assert_eq!(peer.hear_frame(), FrameHeader::bare(FrameKind::Pong, 42));
    let closing = endpoint.close();
    assert_eq!(peer.hear_frame(), FrameHeader::bare(FrameKind::Close, 0));
    peer.say_frame(FrameHeader::bare(FrameKind::Close, 0));
    closing.done().unwrap();
}

fn assert_frame_violates(harness: &Harness, header: FrameHeader) {
    assert_violates(
        harness,
        |peer| {
            peer.say_frame(header);
            peer.say(&[0; 64]);
        },
        |_| true,
    );
}

/// The endpoint ends with the violation, and whatever was in flight; the listener goes on
fn assert_violates(
    harness: &Harness,
    talk: impl FnOnce(&mut RawPeer),
    expected: impl FnOnce(&ProtocolError) -> bool,
) {
    let (mut peer, endpoint, listener) = connect(harness);
    let posted = endpoint.recv_message(Tag(77), TagMask::FULL);
    let stuck = endpoint.send(Tag(1), vec![0; 1 << 20]);
    talk(&mut peer);
    let CloseReason::Violation {
        peer: named,
        source,
    } = endpoint.watch_close().done().unwrap()
    else {
        panic!("{:?} is no violation", endpoint.close_reason());
    };
    assert_eq!(named, peer.socket.local_addr().unwrap());
    assert!(expected(&source), "{source}");
    assert_matches!(
        posted.done().unwrap_err(),
        RecvError::Closed(CloseReason::Violation { .. })
    );
    assert_matches!(
        stuck.done().unwrap_err(),
        SendError::Closed(CloseReason::Violation { .. })
    );
    peer.hear_out();
    still_accepts(harness, &listener);
}

/// A peer by hand, on TCP whatever the lane of the harness, and the endpoint it talks to
fn connect(harness: &Harness) -> (RawPeer, Endpoint, Listener) {
    let listener = harness.context().listen(LOOPBACK).unwrap();
    let accept = listener.accept();
    let peer = RawPeer::shake_hands(listener.local_address());
    (peer, accept.done().unwrap(), listener)
}
