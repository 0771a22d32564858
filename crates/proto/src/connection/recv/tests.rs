//! The receiving half, frame by frame

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use smallvec::smallvec;

use super::*;
use crate::connection::Withdrawn;

mod bytes;
mod withdraw;

const ANY: Selector = Selector::Tagged {
    tag: Tag(0),
    mask: TagMask::ANY,
};

/// A receiving half with the events that no test has looked at
struct Bench {
    half: RecvHalf,
    events: VecDeque<Event>,
    next_message: u64,
}

impl Bench {
    fn new() -> Self {
        let limits = Limits {
            credit_messages: 8,
            credit_bytes: 1000,
            recvs_max: 3,
            early_accept_bytes_max: 500,
            data_chunk_bytes: 1000,
            ..Limits::default()
        };
        Self {
            half: RecvHalf::new(&limits),
            events: VecDeque::new(),
            next_message: 0,
        }
    }

    fn start(&mut self, kind: FrameKind, untagged: bool, bytes: u64) -> Incoming {
        let header = FrameHeader {
            untagged,
            segment_count: 1,
            payload_bytes: bytes,
            tag: if untagged { 0 } else { 7 },
            ..FrameHeader::bare(kind, self.next_message)
        };
        self.next_message += 1;
        let frame = Frame {
            header,
            segment_bytes: smallvec![bytes],
            sources: None,
        };
        self.half.handle_start(frame, &mut self.events).unwrap()
    }

    /// Handles a piece of a long message and its payload
    fn data(&mut self, message: u64, bytes: u64) -> Result<(), ProtocolError> {
        let header = FrameHeader {
            payload_bytes: bytes,
            ..FrameHeader::bare(FrameKind::Data, message)
        };
        let Incoming::Payload { arrival, .. } = self.half.handle_piece(&header)? else {
            panic!("data without payload");
        };
        self.half.handle_payload(arrival, &mut self.events);
        Ok(())
    }

    fn post(&mut self, recv: usize, selector: Selector, capacity: Capacity) {
        self.half
            .post(RecvId(recv), selector, capacity, &mut self.events)
            .unwrap();
    }

    /// Takes the events: where bytes are to go, accepting every message that asks
    fn stores(&mut self) -> Vec<Store> {
        let mut stores = Vec::new();
        for event in self.events.drain(..) {
            if let Event::Prepare {
                arrival,
                store,
                asks,
                ..
            } = event
            {
                stores.push(store);
                if asks {
                    self.half.accept(arrival, 0, 0);
                }
            }
        }
        stores
    }

    fn answers(&mut self) -> Vec<(FrameKind, u64)> {
        let answers = std::mem::take(&mut self.half.answers);
        answers.iter().map(|a| (a.kind, a.message)).collect()
    }
}

#[test]
fn a_posted_receive_gets_its_bytes_without_detour() {
    let mut bench = Bench::new();
    bench.post(5, ANY, Capacity::Into(10));
    let incoming = bench.start(FrameKind::Eager, false, 10);
    let arrival = ArrivalId(0);
    assert_eq!(incoming, Incoming::Payload { arrival, bytes: 10 });
    assert_eq!(bench.stores(), [Store::Into(RecvId(5))]);
    bench.half.handle_payload(arrival, &mut bench.events);
    let complete = Event::RecvComplete {
        recv: RecvId(5),
        arrival,
        kind: MessageKind::Tagged(Tag(7)),
        message: 0,
        bytes: 10,
    };
    assert_eq!(bench.events, [complete]);
    assert!(bench.half.arrivals.is_empty());
}

#[test]
fn an_unexpected_message_that_meets_its_receive_halfway_completes_at_its_end() {
    let mut bench = Bench::new();
    let Incoming::Payload { arrival, .. } = bench.start(FrameKind::Eager, false, 10) else {
        panic!("ten bytes follow");
    };
    bench.post(5, ANY, Capacity::Into(9));
    assert_eq!(bench.stores(), [Store::Allocate]);
    bench.half.handle_payload(arrival, &mut bench.events);
    let truncated = Event::RecvTruncated {
        recv: RecvId(5),
        arrival,
        message_bytes: 10,
        capacity_bytes: 9,
    };
    assert_eq!(bench.events, [truncated]);
    assert_eq!(bench.half.unexpected_bytes(), 0);
}

#[test]
fn an_empty_message_is_over_immediately() {
    let mut bench = Bench::new();
    assert_eq!(bench.start(FrameKind::Eager, false, 0), Incoming::Control);
    assert_eq!(bench.stores(), [Store::Allocate]);
    bench.post(5, ANY, Capacity::Into(0));
    assert!(matches!(
        bench.events.pop_front(),
        Some(Event::RecvComplete { bytes: 0, .. })
    ));
}

#[test]
fn a_tagged_request_waits_for_its_receive() {
    let mut bench = Bench::new();
    bench.start(FrameKind::Request, false, 300);
    bench.start(FrameKind::Request, false, 300);
    assert_eq!((bench.stores(), bench.answers()), (vec![], vec![]));
    bench.data(0, 1).unwrap_err();
    bench.post(5, ANY, Capacity::Into(299));
    assert_eq!(bench.answers(), [(FrameKind::Skip, 0)]);
    bench.data(0, 1).unwrap_err();
    bench.events.clear();
    bench.post(6, ANY, Capacity::Allocate);
    assert_eq!(bench.stores(), [Store::Into(RecvId(6))]);
    assert_eq!(bench.answers(), [(FrameKind::Accept, 1)]);
    bench.data(1, 200).unwrap();
    let too_much = ProtocolError::TooMuchData {
        message: 1,
        bytes: 101,
        left: 100,
    };
    assert_eq!(bench.data(1, 101), Err(too_much));
    bench.data(1, 100).unwrap();
    assert!(matches!(
        bench.events.pop_front(),
        Some(Event::RecvComplete { bytes: 300, .. })
    ));
    bench.data(1, 1).unwrap_err();
}

#[test]
fn an_untagged_request_is_fetched_early_and_the_next_when_it_is_received() {
    let mut bench = Bench::new();
    bench.start(FrameKind::Request, true, 300);
    bench.start(FrameKind::Request, true, 300);
    assert_eq!(bench.stores(), [Store::Allocate]);
    assert_eq!(bench.answers(), [(FrameKind::Accept, 0)]);
    bench.post(5, Selector::Untagged, Capacity::Allocate);
    assert_eq!(bench.stores(), [Store::Allocate]);
    assert_eq!(bench.answers(), [(FrameKind::Accept, 1)]);
    bench.post(6, Selector::Untagged, Capacity::Into(299));
    assert_eq!(bench.half.unexpected_bytes(), 0);
    bench.data(0, 300).unwrap();
    bench.data(1, 300).unwrap();
    let [complete, truncated] = [(); 2].map(|()| bench.events.pop_front());
    assert!(matches!(complete, Some(Event::RecvComplete { .. })));
    assert!(matches!(truncated, Some(Event::RecvTruncated { .. })));
    assert!(bench.half.arrivals.is_empty());
}

#[test]
fn a_message_out_of_order_is_refused() {
    let mut bench = Bench::new();
    bench.next_message = 1;
    let header = FrameHeader::bare(FrameKind::Eager, 1);
    let frame = Frame {
        header,
        segment_bytes: SegmentBytes::new(),
        sources: None,
    };
    let error = bench.half.handle_start(frame, &mut bench.events);
    let expected = ProtocolError::OutOfOrder {
        message: 1,
        expected: 0,
    };
    assert_eq!(error, Err(expected));
}

#[test]
fn close_ends_posted_receives_and_leaves_what_has_arrived() {
    let mut bench = Bench::new();
    bench.start(FrameKind::Eager, false, 0);
    bench.post(5, Selector::Untagged, Capacity::Allocate);
    bench.events.clear();
    bench.half.handle_close(&mut bench.events).unwrap();
    let recv = RecvId(5);
    assert_eq!(
        bench.events,
        [Event::RecvClosed { recv }, Event::PeerClosed]
    );
    bench.post(6, ANY, Capacity::Allocate);
    let refused = bench
        .half
        .post(RecvId(7), ANY, Capacity::Allocate, &mut bench.events);
    assert_eq!(refused, Err(RecvRefused::Closed));
    let again = bench.half.handle_close(&mut bench.events);
    assert_eq!(again, Err(ProtocolError::AfterClose { kind: 9 }));
}

#[test]
fn close_with_a_message_unfinished_is_refused() {
    let mut bench = Bench::new();
    bench.start(FrameKind::Request, false, 300);
    let error = bench.half.handle_close(&mut bench.events);
    assert_eq!(error, Err(ProtocolError::CloseTooEarly { unfinished: 1 }));
}

#[test]
fn receives_beyond_the_limit_are_refused() {
    let mut bench = Bench::new();
    for recv in 0..3 {
        bench.post(recv, ANY, Capacity::Allocate);
    }
    let refused = bench.half.post(
        RecvId(3),
        Selector::Untagged,
        Capacity::Allocate,
        &mut bench.events,
    );
    assert_eq!(refused, Err(RecvRefused::QueueFull { max: 3 }));
    let mut withdraw = || bench.half.withdraw(RecvId(1), &mut bench.events);
    assert_eq!(withdraw(), Withdrawn::Waiting);
    assert_eq!(withdraw(), Withdrawn::No);
    bench.post(3, Selector::Untagged, Capacity::Allocate);
}
