//! Long messages of which a carrier may bring a part

use super::*;
use crate::memory::{Device, MemoryKind, Offer, Vendor};

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

const DEVICE: MemoryKind = MemoryKind::Device(Device {
    vendor: Vendor::Nvidia,
    ordinal: 0x0203,
});

const OFFERED: SegmentSource = SegmentSource {
    memory: DEVICE,
    offer: Some(Offer {
        carrier: 4,
        token: 0x0908_0706_0504_0302,
    }),
};

/// A message of three segments that the peer has accepted, preferring carrier 6
fn accepted(spans: &[Span]) -> SendHalf {
    let mut half = half(8, 1000);
    let long = Long { spans, ..NOTHING };
    half.send(SendId(0), TAGGED, &[50, 1000, 350], &long)
        .unwrap();
    frame(&mut half).unwrap();
    half.handle_accept(&accept(0, 6)).unwrap();
    half
}

/// Next step of the driver, in short
#[derive(Debug, Eq, PartialEq)]
enum Next {
    /// Offset and size of a part
    Give(u64, u64),
    /// Size of a piece, and where its payload begins
    Data(u64, u64),
    /// Size of a piece, its carrier and ticket
    Carried(u64, u8, u64),
}

/// Polls, checking that the message ends with `is_last`
fn next(half: &mut SendHalf, is_last: bool) -> Next {
    match half.poll_transmit().unwrap() {
        Outgoing::Give(give) => {
            assert_eq!((give.range.send, give.carrier), (SendId(0), 6));
            Next::Give(give.range.offset, give.range.bytes)
        }
        Outgoing::Frame(transmit) => {
            assert_eq!(transmit.completes, is_last.then_some(SendId(0)));
            let header = FrameHeader::decode(transmit.header.first_chunk().unwrap()).unwrap();
            assert_eq!(header.message, 0);
            let bytes = header.payload_bytes;
            match header.kind {
                FrameKind::Data => Next::Data(bytes, transmit.payload.unwrap().offset),
                FrameKind::Carried => {
                    assert_eq!(transmit.payload, None);
                    Next::Carried(bytes, header.carrier, header.tag)
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn what_a_carrier_takes_is_carried_whole_and_the_rest_is_sent() {
    let mut half = accepted(&SPANS);
    assert_eq!(next(&mut half, false), Next::Data(50, 0));
    for (offset, bytes) in [(50, 1000), (1050, 300)] {
        assert_eq!(next(&mut half, false), Next::Give(offset, bytes));
        let ticket = offset + 7;
        half.given(Some(Given { carrier: 2, ticket }));
        assert_eq!(next(&mut half, false), Next::Carried(bytes, 2, ticket));
    }
    assert_eq!(next(&mut half, true), Next::Data(50, 1350));
    assert!(half.is_flushed());
}

#[test]
fn what_no_carrier_takes_is_sent_and_not_asked_for_again() {
    let mut half = accepted(&SPANS);
    assert_eq!(next(&mut half, false), Next::Data(50, 0));
    assert_eq!(next(&mut half, false), Next::Give(50, 1000));
    half.given(None);
    for offset in [50, 250, 450, 650, 850] {
        assert_eq!(next(&mut half, false), Next::Data(200, offset));
    }
    assert_eq!(next(&mut half, false), Next::Give(1050, 300));
    let (carrier, ticket) = (3, 1);
    half.given(Some(Given { carrier, ticket }));
    assert_eq!(next(&mut half, false), Next::Carried(300, 3, 1));
    assert_eq!(next(&mut half, true), Next::Data(50, 1350));
}

#[test]
fn a_piece_ends_where_a_part_ends_that_no_carrier_took() {
    let spans = [(0, 150), (150, 150)].map(|(offset, bytes)| Span { offset, bytes });
    let mut half = accepted(&spans);
    for offset in [0, 150] {
        assert_eq!(next(&mut half, false), Next::Give(offset, 150));
        half.given(None);
        assert_eq!(next(&mut half, false), Next::Data(150, offset));
    }
    assert_eq!(next(&mut half, false), Next::Data(200, 300));
}

#[test]
fn a_part_that_is_carried_may_end_the_message() {
    let all = Span {
        offset: 0,
        bytes: 1400,
    };
    let mut half = accepted(&[all]);
    assert_eq!(next(&mut half, false), Next::Give(0, 1400));
    let (carrier, ticket) = (u8::MAX, u64::MAX);
    half.given(Some(Given { carrier, ticket }));
    let last = Next::Carried(1400, carrier, ticket);
    assert_eq!(next(&mut half, true), last);
    assert!(half.is_flushed());
}

#[test]
fn a_short_message_may_go_between_what_a_carrier_took_and_its_frame() {
    let mut half = accepted(&SPANS);
    assert_eq!(next(&mut half, false), Next::Data(50, 0));
    assert_eq!(next(&mut half, false), Next::Give(50, 1000));
    let (carrier, ticket) = (1, 2);
    half.given(Some(Given { carrier, ticket }));
    half.send(SendId(1), TAGGED, &[1], &NOTHING).unwrap();
    assert_eq!(frame(&mut half).unwrap().completes, Some(SendId(1)));
    assert_eq!(next(&mut half, false), Next::Carried(1000, 1, 2));
}

#[test]
#[should_panic(expected = "what was asked for is answered first")]
fn a_question_that_is_not_answered_is_a_fault_of_the_driver() {
    let all = Span {
        offset: 0,
        bytes: 1400,
    };
    let mut half = accepted(&[all]);
    assert_eq!(next(&mut half, false), Next::Give(0, 1400));
    half.poll_transmit();
}

#[test]
#[should_panic(expected = "an answer belongs to a question")]
fn an_answer_without_a_question_is_a_fault_of_the_driver() {
    accepted(&SPANS).given(None);
}

#[test]
fn an_eager_message_is_sent_whatever_a_carrier_could_bring_of_it() {
    let mut half = half(8, 1000);
    let spans = &[Span {
        offset: 0,
        bytes: 100,
    }];
    let long = Long { spans, ..NOTHING };
    half.send(SendId(0), TAGGED, &[100], &long).unwrap();
    assert_eq!(kind(&frame(&mut half).unwrap()), FrameKind::Eager);
}

#[test]
fn a_message_that_is_to_be_announced_is_requested_whatever_its_size() {
    let mut half = half(8, 1000);
    let announce = Long {
        announce: true,
        ..NOTHING
    };
    half.send(SendId(0), TAGGED, &[1], &announce).unwrap();
    assert_eq!(kind(&frame(&mut half).unwrap()), FrameKind::Request);
    assert_eq!(half.credit().bytes_left(), 1000);
}

#[test]
fn an_empty_message_is_never_announced() {
    // A request of no bytes is refused by the peer: nothing would follow its Accept.
    let mut half = half(8, 0);
    let announce = Long {
        announce: true,
        ..NOTHING
    };
    half.send(SendId(0), TAGGED, &[0], &announce).unwrap();
    half.send(SendId(1), TAGGED, &[0; 3], &NOTHING).unwrap();
    for id in 0..2 {
        let transmit = frame(&mut half).unwrap();
        assert_eq!(kind(&transmit), FrameKind::Eager);
        assert_eq!(transmit.completes, Some(SendId(id)));
        FrameHeader::decode(transmit.header.first_chunk().unwrap()).unwrap();
    }
}

#[test]
fn a_table_of_sources_has_the_documented_bytes() {
    let mut half = half(8, 1000);
    let sources = &[OFFERED, SegmentSource::default()];
    let long = Long { sources, ..NOTHING };
    half.send(SendId(0), MessageKind::Untagged, &[0x0201, 3], &long)
        .unwrap();
    let request = frame(&mut half).unwrap();
    let (header, table) = request.header.split_first_chunk::<32>().unwrap();
    assert_eq!(header[..8], [2, 3, 0, 0, 2, 0, 0, 0]);
    let device = [1, 2, 0, 0, 0, 0, 0, 0, 1, 1, 3, 2, 4, 0, 0, 0];
    assert_eq!(table[..16], device);
    assert_eq!(table[16..24], [2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(table[24..32], [3, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(table[32..], [0; 16]);
}

#[test]
fn one_segment_has_a_table_too_where_its_source_is_sent() {
    let mut half = half(8, 1000);
    let long = Long {
        sources: &[OFFERED],
        ..NOTHING
    };
    half.send(SendId(0), TAGGED, &[700], &long).unwrap();
    let request = frame(&mut half).unwrap();
    assert_eq!(request.header.len(), 32 + 24);
    assert_eq!(request.header[1], 2);
}

#[test]
fn sources_of_an_eager_message_are_not_sent() {
    let mut half = half(8, 1000);
    let long = Long {
        sources: &[OFFERED],
        ..NOTHING
    };
    half.send(SendId(0), TAGGED, &[7], &long).unwrap();
    let eager = frame(&mut half).unwrap();
    assert_eq!((eager.header.len(), eager.header[1]), (32, 0));
}

#[test]
fn a_message_with_an_offer_may_be_fetched_once() {
    let mut half = half(8, 1000);
    let sources = &[SegmentSource::default(), OFFERED];
    let long = Long { sources, ..NOTHING };
    half.send(SendId(0), TAGGED, &[1, 700], &long).unwrap();
    let not_awaited = ProtocolError::NotAwaited {
        kind: FrameKind::Fetched.code(),
        message: 0,
    };
    assert_eq!(
        half.handle_fetched(&FrameHeader::bare(FrameKind::Fetched, 0)),
        Err(not_awaited.clone())
    );
    frame(&mut half).unwrap();
    assert_eq!(
        half.handle_fetched(&FrameHeader::bare(FrameKind::Fetched, 0)),
        Ok(SendId(0))
    );
    assert!(half.is_flushed());
    assert_eq!(
        half.handle_fetched(&FrameHeader::bare(FrameKind::Fetched, 0)),
        Err(not_awaited)
    );
}

#[test]
fn a_message_without_an_offer_may_not_be_fetched() {
    let unoffered = SegmentSource {
        memory: DEVICE,
        offer: None,
    };
    for sources in [&[][..], &[unoffered]] {
        let mut half = half(8, 1000);
        let long = Long { sources, ..NOTHING };
        half.send(SendId(0), TAGGED, &[700], &long).unwrap();
        frame(&mut half).unwrap();
        let not_awaited = ProtocolError::NotAwaited {
            kind: FrameKind::Fetched.code(),
            message: 0,
        };
        assert_eq!(
            half.handle_fetched(&FrameHeader::bare(FrameKind::Fetched, 0)),
            Err(not_awaited)
        );
    }
}

#[test]
fn an_accepted_message_may_not_be_fetched() {
    let mut half = half(8, 1000);
    let long = Long {
        sources: &[OFFERED],
        ..NOTHING
    };
    half.send(SendId(0), TAGGED, &[700], &long).unwrap();
    frame(&mut half).unwrap();
    half.handle_accept(&accept(0, 0)).unwrap();
    half.handle_fetched(&FrameHeader::bare(FrameKind::Fetched, 0))
        .unwrap_err();
}

#[test]
fn pieces_are_no_longer_than_the_peer_takes() {
    let limits = Limits {
        eager_bytes_max: 0,
        data_chunk_bytes: 200,
        ..Limits::default()
    };
    let peer = PeerLimits {
        data_chunk_bytes: 90,
        ..limits.announced()
    };
    let mut half = SendHalf::new(&limits, peer);
    half.send(SendId(0), TAGGED, &[200], &NOTHING).unwrap();
    frame(&mut half).unwrap();
    half.handle_accept(&accept(0, 0)).unwrap();
    let pieces = std::iter::from_fn(|| frame(&mut half));
    let pieces: Vec<u64> = pieces.map(|piece| piece.payload.unwrap().bytes).collect();
    assert_eq!(pieces, [90, 90, 20]);
}
