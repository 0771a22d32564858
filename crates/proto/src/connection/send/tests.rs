#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::ids::Tag;

mod long;

const TAGGED: MessageKind = MessageKind::Tagged(Tag(1));

/// No carrier is offered anything
const NOTHING: Long<'_> = Long {
    spans: &[],
    sources: &[],
    announce: false,
};

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
        data_chunk_bytes: 1 << 20,
    };
    SendHalf::new(&limits, peer)
}

/// The next frame, where no carrier is asked
fn frame(half: &mut SendHalf) -> Option<Transmit> {
    match half.poll_transmit()? {
        Outgoing::Frame(transmit) => Some(transmit),
        Outgoing::Give(give) => panic!("nobody should be asked: {give:?}"),
    }
}

/// An accept that asks for a carrier
fn accept(message: u64, carrier: u8) -> FrameHeader {
    FrameHeader {
        carrier,
        ..FrameHeader::bare(FrameKind::Accept, message)
    }
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
    assert_eq!(
        half.send(SendId(0), TAGGED, &[5000, 1], &NOTHING),
        Err(too_large)
    );
    let overflow = SendRefused::TooLarge {
        bytes: u64::MAX,
        max: 5000,
    };
    assert_eq!(
        half.send(SendId(0), TAGGED, &[u64::MAX, 1], &NOTHING),
        Err(overflow)
    );
    let many = SendRefused::TooManySegments {
        segments: 4,
        max: 3,
    };
    assert_eq!(half.send(SendId(0), TAGGED, &[1; 4], &NOTHING), Err(many));
    for id in 0..4 {
        half.send(SendId(id), TAGGED, &[1], &NOTHING).unwrap();
    }
    let full = SendRefused::QueueFull { max: 4 };
    assert_eq!(half.send(SendId(9), TAGGED, &[1], &NOTHING), Err(full));
    half.close();
    assert_eq!(
        half.send(SendId(9), TAGGED, &[1], &NOTHING),
        Err(SendRefused::Closed)
    );
}

#[test]
fn without_bytes_of_credit_a_short_message_is_requested() {
    let mut half = half(8, 150);
    for id in 0..3 {
        half.send(SendId(id), TAGGED, &[100 - 50 * (id as u64 % 2)], &NOTHING)
            .unwrap();
    }
    let first = frame(&mut half).unwrap();
    assert_eq!(
        (kind(&first), first.completes),
        (FrameKind::Eager, Some(SendId(0)))
    );
    let second = frame(&mut half).unwrap();
    assert_eq!(kind(&second), FrameKind::Eager);
    let third = frame(&mut half).unwrap();
    assert_eq!((kind(&third), third.payload), (FrameKind::Request, None));
    assert_eq!(third.completes, None);
}

#[test]
fn without_messages_of_credit_everything_waits() {
    let mut half = half(1, 1000);
    half.send(SendId(0), TAGGED, &[1], &NOTHING).unwrap();
    half.send(SendId(1), TAGGED, &[], &NOTHING).unwrap();
    assert!(frame(&mut half).is_some());
    assert_eq!(frame(&mut half), None);
    half.handle_credit(2, 1000);
    let empty = frame(&mut half).unwrap();
    assert_eq!((empty.payload, empty.completes), (None, Some(SendId(1))));
}

#[test]
fn a_queued_send_can_be_cancelled_and_a_started_one_cannot() {
    let mut half = half(1, 1000);
    half.send(SendId(0), TAGGED, &[4000], &NOTHING).unwrap();
    half.send(SendId(1), TAGGED, &[1], &NOTHING).unwrap();
    frame(&mut half).unwrap();
    assert!(!half.cancel(SendId(0)));
    assert!(half.cancel(SendId(1)));
    assert!(!half.cancel(SendId(1)));
}

#[test]
fn long_messages_take_turns_and_short_ones_go_between() {
    let mut half = half(8, 1000);
    half.send(SendId(0), TAGGED, &[300], &NOTHING).unwrap();
    half.send(SendId(1), TAGGED, &[300], &NOTHING).unwrap();
    while frame(&mut half).is_some() {}
    half.handle_accept(&accept(0, 0)).unwrap();
    half.handle_accept(&accept(1, 0)).unwrap();
    half.send(SendId(2), TAGGED, &[1], &NOTHING).unwrap();
    let mut order = Vec::new();
    while let Some(transmit) = frame(&mut half) {
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
    half.send(SendId(0), TAGGED, &[400], &NOTHING).unwrap();
    frame(&mut half).unwrap();
    half.handle_accept(&accept(0, 0)).unwrap();
    let mut frames = 0;
    loop {
        half.send(SendId(1), TAGGED, &[68], &NOTHING).unwrap();
        let transmit = frame(&mut half).unwrap();
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
    half.send(SendId(0), TAGGED, &[300], &NOTHING).unwrap();
    half.close();
    assert_eq!(kind(&frame(&mut half).unwrap()), FrameKind::Request);
    assert_eq!(frame(&mut half), None);
    assert!(!half.is_flushed());
    assert_eq!(half.handle_skip(0), Ok(SendId(0)));
    assert!(!half.is_flushed());
    assert_eq!(kind(&frame(&mut half).unwrap()), FrameKind::Close);
    assert!(half.is_flushed());
    assert_eq!(frame(&mut half), None);
}

#[test]
fn an_accept_that_is_not_awaited_is_refused() {
    let mut half = half(8, 1000);
    half.send(SendId(0), TAGGED, &[300], &NOTHING).unwrap();
    half.handle_accept(&accept(0, 0)).unwrap_err();
    frame(&mut half).unwrap();
    half.handle_accept(&accept(0, 0)).unwrap();
    half.handle_accept(&accept(0, 0)).unwrap_err();
    half.handle_skip(0).unwrap_err();
}
