#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::ids::Tag;

const EAGER: MessageKind = MessageKind::Tagged(Tag(1));

fn half(credit_messages: u64, credit_bytes: u64) -> SendHalf {
    let limits = Limits {
        eager_bytes_max: 100,
        data_chunk_bytes: 200,
        sends_max: 4,
        ..Limits::default()
    };
    let peer = PeerLimits {
        credit_bytes,
        credit_messages,
        message_bytes_max: 5000,
        segments_max: 3,
        data_chunk_bytes: 200,
    };
    SendHalf::new(&limits, peer)
}

fn kind(transmit: &Transmit) -> FrameKind {
    let header = transmit.header.first_chunk().unwrap();
    FrameHeader::decode(header).unwrap().kind
}

#[test]
fn what_the_peer_does_not_take_is_refused() {
    let mut half = half(8, 1000);
    let too_large = SendRefused::TooLarge {
        bytes: 5001,
        max: 5000,
    };
    assert_eq!(half.send(SendId(0), EAGER, &[5000, 1], &[]), Err(too_large));
    let overflow = SendRefused::TooLarge {
        bytes: u64::MAX,
        max: 5000,
    };
    assert_eq!(
        half.send(SendId(0), EAGER, &[u64::MAX, 1], &[]),
        Err(overflow)
    );
    let many = SendRefused::TooManySegments {
        segments: 4,
        max: 3,
    };
    assert_eq!(half.send(SendId(0), EAGER, &[1; 4], &[]), Err(many));
    for id in 0..4 {
        half.send(SendId(id), EAGER, &[1], &[]).unwrap();
    }
    let full = SendRefused::QueueFull { max: 4 };
    assert_eq!(half.send(SendId(9), EAGER, &[1], &[]), Err(full));
    half.close();
    assert_eq!(
        half.send(SendId(9), EAGER, &[1], &[]),
        Err(SendRefused::Closed)
    );
}

#[test]
fn without_bytes_of_credit_a_short_message_is_requested() {
    let mut half = half(8, 150);
    for id in 0..3 {
        half.send(SendId(id), EAGER, &[100 - 50 * (id as u64 % 2)], &[])
            .unwrap();
    }
    let first = half.poll_transmit(&mut |_| None).unwrap();
    assert_eq!(
        (kind(&first), first.completes),
        (FrameKind::Eager, Some(SendId(0)))
    );
    let second = half.poll_transmit(&mut |_| None).unwrap();
    assert_eq!(kind(&second), FrameKind::Eager);
    let third = half.poll_transmit(&mut |_| None).unwrap();
    assert_eq!((kind(&third), third.payload), (FrameKind::Request, None));
    assert_eq!(third.completes, None);
}

#[test]
fn without_messages_of_credit_everything_waits() {
    let mut half = half(1, 1000);
    half.send(SendId(0), EAGER, &[1], &[]).unwrap();
    half.send(SendId(1), EAGER, &[], &[]).unwrap();
    assert!(half.poll_transmit(&mut |_| None).is_some());
    assert_eq!(half.poll_transmit(&mut |_| None), None);
    half.handle_credit(2, 1000);
    let empty = half.poll_transmit(&mut |_| None).unwrap();
    assert_eq!((empty.payload, empty.completes), (None, Some(SendId(1))));
}

#[test]
fn a_queued_send_can_be_cancelled_and_a_started_one_cannot() {
    let mut half = half(1, 1000);
    half.send(SendId(0), EAGER, &[4000], &[]).unwrap();
    half.send(SendId(1), EAGER, &[1], &[]).unwrap();
    half.poll_transmit(&mut |_| None).unwrap();
    assert!(!half.cancel(SendId(0)));
    assert!(half.cancel(SendId(1)));
    assert!(!half.cancel(SendId(1)));
}

#[test]
fn long_messages_take_turns_and_short_ones_go_between() {
    let mut half = half(8, 1000);
    half.send(SendId(0), EAGER, &[300], &[]).unwrap();
    half.send(SendId(1), EAGER, &[300], &[]).unwrap();
    while half.poll_transmit(&mut |_| None).is_some() {}
    half.handle_accept(0).unwrap();
    half.handle_accept(1).unwrap();
    half.send(SendId(2), EAGER, &[1], &[]).unwrap();
    let mut order = Vec::new();
    while let Some(transmit) = half.poll_transmit(&mut |_| None) {
        let payload = transmit.payload.unwrap();
        order.push((payload.send.0, payload.offset, payload.bytes));
    }
    assert_eq!(
        order,
        [
            (2, 0, 1),
            (0, 0, 200),
            (1, 0, 200),
            (0, 200, 100),
            (1, 200, 100)
        ]
    );
    assert!(half.is_flushed());
}

#[test]
fn many_short_messages_do_not_starve_a_long_one() {
    let mut half = half(1000, 100_000);
    half.send(SendId(0), EAGER, &[400], &[]).unwrap();
    half.poll_transmit(&mut |_| None).unwrap();
    half.handle_accept(0).unwrap();
    let mut frames = 0;
    loop {
        half.send(SendId(1), EAGER, &[68], &[]).unwrap();
        let transmit = half.poll_transmit(&mut |_| None).unwrap();
        frames += 1;
        if transmit.completes == Some(SendId(0)) {
            break;
        }
    }
    assert!(frames <= 8, "two pieces took {frames} frames");
}

#[test]
fn close_goes_out_after_the_last_send_is_done() {
    let mut half = half(8, 1000);
    half.send(SendId(0), EAGER, &[300], &[]).unwrap();
    half.close();
    assert_eq!(
        kind(&half.poll_transmit(&mut |_| None).unwrap()),
        FrameKind::Request
    );
    assert_eq!(half.poll_transmit(&mut |_| None), None);
    assert!(!half.is_flushed());
    assert_eq!(half.handle_skip(0), Ok(SendId(0)));
    assert!(!half.is_flushed());
    assert_eq!(
        kind(&half.poll_transmit(&mut |_| None).unwrap()),
        FrameKind::Close
    );
    assert!(half.is_flushed());
    assert_eq!(half.poll_transmit(&mut |_| None), None);
}

#[test]
fn an_accept_that_is_not_awaited_is_refused() {
    let mut half = half(8, 1000);
    half.send(SendId(0), EAGER, &[300], &[]).unwrap();
    half.handle_accept(0).unwrap_err();
    half.poll_transmit(&mut |_| None).unwrap();
    half.handle_accept(0).unwrap();
    half.handle_accept(0).unwrap_err();
    half.handle_skip(0).unwrap_err();
}

/// What a Data or Lease frame says: kind, payload bytes and ticket
fn piece(transmit: &Transmit) -> (FrameKind, u64, u64) {
    let header = FrameHeader::decode(transmit.header.first_chunk().unwrap()).unwrap();
    (header.kind, header.payload_bytes, header.tag)
}

const SPANS: [Span; 2] = [
    Span {
        offset: 50,
        bytes: 1000,
    },
    Span {
        offset: 1050,
        bytes: 300,
    },
];

#[test]
fn what_can_be_lent_is_lent_whole_and_the_rest_is_sent() {
    let mut half = half(8, 1000);
    half.send(SendId(0), EAGER, &[50, 1000, 350], &SPANS)
        .unwrap();
    half.poll_transmit(&mut |_| None).unwrap();
    half.handle_accept(0).unwrap();
    let mut asked = Vec::new();
    let mut lend = |range: PayloadRange| {
        asked.push((range.offset, range.bytes));
        Some(range.offset + 7)
    };
    let mut sent = Vec::new();
    while let Some(transmit) = half.poll_transmit(&mut lend) {
        let (kind, bytes, ticket) = piece(&transmit);
        assert_eq!(transmit.payload.is_some(), kind == FrameKind::Data);
        sent.push((kind, bytes, ticket, transmit.completes));
    }
    let done = Some(SendId(0));
    assert_eq!(
        sent,
        [
            (FrameKind::Data, 50, 0, None),
            (FrameKind::Lease, 1000, 57, None),
            (FrameKind::Lease, 300, 1057, None),
            (FrameKind::Data, 50, 0, done),
        ]
    );
    assert_eq!(asked, [(50, 1000), (1050, 300)]);
    assert!(half.is_flushed());
}

#[test]
fn what_is_not_lent_is_sent_and_not_asked_for_again() {
    let mut half = half(8, 1000);
    half.send(SendId(0), EAGER, &[50, 1000, 300], &SPANS)
        .unwrap();
    half.poll_transmit(&mut |_| None).unwrap();
    half.handle_accept(0).unwrap();
    let mut asked = 0;
    let mut lend = |range: PayloadRange| {
        asked += 1;
        (range.offset == 1050).then_some(1)
    };
    let mut offset = 0;
    let mut leases = 0;
    while let Some(transmit) = half.poll_transmit(&mut lend) {
        let (kind, bytes, _) = piece(&transmit);
        if kind == FrameKind::Data {
            assert_eq!(transmit.payload.unwrap().offset, offset);
            assert!(bytes <= 200);
        } else {
            leases += 1;
            assert_eq!((offset, bytes), (1050, 300));
        }
        offset += bytes;
    }
    assert_eq!((offset, asked, leases), (1350, 2, 1));
}

#[test]
fn an_eager_message_is_sent_whatever_could_be_lent_of_it() {
    let mut half = half(8, 1000);
    let all = Span {
        offset: 0,
        bytes: 100,
    };
    half.send(SendId(0), EAGER, &[100], &[all]).unwrap();
    let transmit = half
        .poll_transmit(&mut |_| panic!("nobody should be asked"))
        .unwrap();
    assert_eq!(kind(&transmit), FrameKind::Eager);
}
