//! Where the bytes of a long message come from: frames, carriers, or a fetch of the driver

use super::*;
use crate::memory::{Offer, SegmentSource};

const OFFERED: SegmentSource = SegmentSource {
    memory: crate::memory::MemoryKind::Host,
    offer: Some(Offer {
        carrier: 3,
        token: 99,
    }),
};

impl Bench {
    /// Handles a request of which a receive asks for the bytes, returning its arrival
    fn asked(&mut self, recv: usize, bytes: u64) -> ArrivalId {
        self.post(recv, ANY, Capacity::Into(bytes));
        self.start(FrameKind::Request, false, bytes);
        match self.events.pop_front() {
            Some(Event::Prepare {
                arrival,
                store: Store::Into(RecvId(to)),
                asks: true,
                ..
            }) if to == recv => arrival,
            other => panic!("{other:?}"),
        }
    }

    /// Handles a Carried frame, returning where its bytes belong
    fn carried(&mut self, message: u64, bytes: u64) -> Result<u64, ProtocolError> {
        let header = FrameHeader {
            carrier: 2,
            tag: 5,
            payload_bytes: bytes,
            ..FrameHeader::bare(FrameKind::Carried, message)
        };
        match self.half.handle_piece(&header)? {
            Incoming::Carried {
                offset,
                bytes: announced,
                carrier: 2,
                ticket: 5,
                ..
            } if announced == bytes => Ok(offset),
            other => panic!("{other:?}"),
        }
    }

    fn is_complete(&mut self, recv: usize) -> bool {
        let event = self.events.pop_front();
        matches!(event, Some(Event::RecvComplete { recv: RecvId(of), .. }) if of == recv)
    }
}

#[test]
fn carried_parts_may_finish_in_any_order() {
    // Parts of 10, 20 and 30 bytes, and 40 on the lane.
    for order in [
        [10, 20, 30],
        [10, 30, 20],
        [20, 10, 30],
        [20, 30, 10],
        [30, 10, 20],
        [30, 20, 10],
    ] {
        for on_the_lane in 0..=3 {
            let mut bench = Bench::new();
            let arrival = bench.asked(5, 100);
            bench.half.accept(arrival, 0, 0);
            assert_eq!(bench.carried(0, 10), Ok(0));
            assert_eq!(bench.carried(0, 20), Ok(10));
            assert_eq!(bench.carried(0, 30), Ok(30));
            for (index, bytes) in order.into_iter().enumerate() {
                if index == on_the_lane {
                    bench.data(0, 40).unwrap();
                }
                assert!(bench.events.is_empty());
                bench.half.handle_stored(arrival, bytes, &mut bench.events);
            }
            if on_the_lane == 3 {
                assert!(bench.events.is_empty());
                bench.data(0, 40).unwrap();
            }
            assert!(bench.is_complete(5));
        }
    }
}

#[test]
fn carried_bytes_come_in_parts_while_others_come_on_the_lane() {
    let mut bench = Bench::new();
    let arrival = bench.asked(5, 100);
    bench.half.accept(arrival, 0, 0);
    bench.data(0, 10).unwrap();
    assert_eq!(bench.carried(0, 50), Ok(10));
    bench.half.handle_stored(arrival, 1, &mut bench.events);
    let header = FrameHeader {
        payload_bytes: 40,
        ..FrameHeader::bare(FrameKind::Data, 0)
    };
    let payload = Incoming::Payload { arrival, bytes: 40 };
    assert_eq!(bench.half.handle_piece(&header), Ok(payload));
    bench.half.handle_stored(arrival, 48, &mut bench.events);
    bench.half.handle_payload(arrival, &mut bench.events);
    assert!(bench.events.is_empty());
    bench.half.handle_stored(arrival, 1, &mut bench.events);
    assert!(bench.is_complete(5));
}

#[test]
fn carried_bytes_may_finish_after_the_peer_has_closed() {
    let mut bench = Bench::new();
    let arrival = bench.asked(5, 100);
    bench.half.accept(arrival, 0, 0);
    bench.carried(0, 100).unwrap();
    bench.half.handle_close(&mut bench.events).unwrap();
    assert_eq!(bench.events.pop_front(), Some(Event::PeerClosed));
    bench.half.handle_stored(arrival, 100, &mut bench.events);
    assert!(bench.is_complete(5));
}

#[test]
#[should_panic(expected = "11 bytes of ArrivalId(0) were not announced")]
fn bytes_that_were_not_announced_cannot_be_stored() {
    let mut bench = Bench::new();
    let arrival = bench.asked(5, 100);
    bench.half.accept(arrival, 0, 0);
    bench.carried(0, 10).unwrap();
    bench.half.handle_stored(arrival, 11, &mut bench.events);
}

#[test]
fn carried_bytes_of_a_message_that_was_not_accepted_are_refused() {
    let mut bench = Bench::new();
    let not_awaited = ProtocolError::NotAwaited {
        kind: FrameKind::Carried.code(),
        message: 0,
    };
    assert_eq!(bench.carried(0, 1), Err(not_awaited.clone()));
    let arrival = bench.asked(5, 100);
    assert_eq!(bench.carried(0, 1), Err(not_awaited.clone()));
    bench.half.accept(arrival, 0, 0);
    let too_much = ProtocolError::TooMuchData {
        message: 0,
        bytes: 101,
        left: 100,
    };
    assert_eq!(bench.carried(0, 101), Err(too_much));
    assert_eq!(bench.carried(0, 100), Ok(0));
    assert_eq!(bench.carried(0, 1), Err(not_awaited));
}

#[test]
fn a_piece_on_the_lane_has_a_limit_and_one_by_a_carrier_has_none() {
    let mut bench = Bench::new();
    let arrival = bench.asked(5, 3000);
    bench.half.accept(arrival, 0, 0);
    let too_large = ProtocolError::PieceTooLarge {
        message: 0,
        bytes: 1001,
        max: 1000,
    };
    assert_eq!(bench.data(0, 1001), Err(too_large));
    bench.data(0, 1000).unwrap();
    assert_eq!(bench.carried(0, 2000), Ok(1000));
}

#[test]
fn the_carrier_that_the_driver_prefers_is_in_the_accept() {
    let mut bench = Bench::new();
    let arrival = bench.asked(5, 100);
    assert!(bench.half.poll_control().is_none());
    bench.half.accept(arrival, 9, 0);
    let accept = FrameHeader {
        carrier: 9,
        ..FrameHeader::bare(FrameKind::Accept, 0)
    };
    assert_eq!(bench.half.poll_control(), Some(accept));
}

#[test]
fn the_event_says_where_segments_lie() {
    let mut bench = Bench::new();
    bench.post(5, ANY, Capacity::Allocate);
    let header = FrameHeader {
        has_sources: true,
        segment_count: 2,
        payload_bytes: 30,
        ..FrameHeader::bare(FrameKind::Request, 0)
    };
    let sent: SourceTable = Box::new([OFFERED, SegmentSource::default()]);
    let frame = Frame {
        header,
        segment_bytes: smallvec![10, 20],
        sources: Some(sent.clone()),
    };
    bench.half.handle_start(frame, &mut bench.events).unwrap();
    let prepare = Event::Prepare {
        arrival: ArrivalId(0),
        segment_bytes: smallvec![10, 20],
        sources: Some(sent),
        store: Store::Into(RecvId(5)),
        asks: true,
    };
    assert_eq!(bench.events, [prepare]);
}

#[test]
fn a_message_that_the_driver_has_fetched_is_over_and_the_peer_gets_fetched() {
    let mut bench = Bench::new();
    let arrival = bench.asked(5, 100);
    bench.half.fetch(arrival);
    assert_eq!(bench.answers(), []);
    bench.data(0, 100).unwrap_err();
    bench.carried(0, 100).unwrap_err();
    let close = bench.half.handle_close(&mut bench.events);
    assert_eq!(close, Err(ProtocolError::CloseTooEarly { unfinished: 1 }));
    bench.half.handle_fetched(arrival, 0, &mut bench.events);
    assert_eq!(bench.answers(), [(FrameKind::Fetched, 0)]);
    assert!(bench.is_complete(5));
    bench.data(0, 100).unwrap_err();
    bench.half.handle_close(&mut bench.events).unwrap();
}

#[test]
fn a_fetch_that_comes_to_nothing_falls_back_to_frames() {
    let mut bench = Bench::new();
    let arrival = bench.asked(5, 100);
    bench.half.fetch(arrival);
    bench.half.accept(arrival, 0, 0);
    assert_eq!(bench.answers(), [(FrameKind::Accept, 0)]);
    bench.carried(0, 60).unwrap();
    bench.data(0, 40).unwrap();
    bench.half.handle_stored(arrival, 60, &mut bench.events);
    assert!(bench.is_complete(5));
}

#[test]
fn an_untagged_message_may_be_fetched_before_its_receive_is_posted() {
    let mut bench = Bench::new();
    bench.start(FrameKind::Request, true, 300);
    let Some(Event::Prepare {
        arrival,
        store: Store::Allocate,
        asks: true,
        ..
    }) = bench.events.pop_front()
    else {
        panic!("it may be fetched early");
    };
    bench.half.fetch(arrival);
    bench.half.handle_fetched(arrival, 0, &mut bench.events);
    assert_eq!(bench.answers(), [(FrameKind::Fetched, 0)]);
    assert_eq!(
        (bench.events.len(), bench.half.unexpected_bytes()),
        (0, 300)
    );
    bench.post(5, Selector::Untagged, Capacity::Allocate);
    assert!(bench.is_complete(5));
    assert_eq!(bench.half.unexpected_bytes(), 0);
}

#[test]
#[should_panic(expected = "a message is accepted once")]
fn a_message_is_accepted_once() {
    let mut bench = Bench::new();
    let arrival = bench.asked(5, 100);
    bench.half.accept(arrival, 0, 0);
    bench.half.accept(arrival, 0, 0);
}

#[test]
#[should_panic(expected = "a message is fetched once")]
fn a_message_that_was_accepted_is_not_fetched() {
    let mut bench = Bench::new();
    let arrival = bench.asked(5, 100);
    bench.half.accept(arrival, 0, 0);
    bench.half.fetch(arrival);
}

#[test]
#[should_panic(expected = "a message is fetched after it was asked for")]
fn a_fetch_that_was_not_begun_does_not_end() {
    let mut bench = Bench::new();
    let arrival = bench.asked(5, 100);
    bench.half.handle_fetched(arrival, 0, &mut bench.events);
}

#[test]
fn a_message_of_many_segments_takes_more_credit() {
    let mut bench = Bench::new();
    // Of 8 messages a quarter is the most that one costs.
    for message in 0..5 {
        let header = FrameHeader {
            segment_count: 64 * 5,
            payload_bytes: 1,
            tag: 7,
            ..FrameHeader::bare(FrameKind::Request, message)
        };
        let mut segment_bytes: SegmentBytes = smallvec![0; 64 * 5];
        segment_bytes[0] = 1;
        let frame = Frame {
            header,
            segment_bytes,
            sources: None,
        };
        let started = bench.half.handle_start(frame, &mut bench.events);
        let exceeded = ProtocolError::MessageCreditExceeded {
            message: 4,
            granted: 8,
        };
        assert_eq!(started.err(), (message == 4).then_some(exceeded));
    }
    assert_eq!(bench.half.poll_control(), None);
    bench.post(5, ANY, Capacity::Into(0));
    let grant = bench.half.poll_control().unwrap();
    assert_eq!((grant.kind, grant.message), (FrameKind::Credit, 10));
}
