//! Receives that are withdrawn before, while and after bytes come, and messages that come back

use super::*;

const MET: Withdrawn = Withdrawn::Met(ArrivalId(0));

impl Bench {
    fn withdraw(&mut self, recv: usize) -> Withdrawn {
        self.half.withdraw(RecvId(recv), &mut self.events)
    }

    /// Checks that the only event is the end of a receive with that message
    fn assert_complete(&mut self, recv: usize, message: u64) {
        let ends: Vec<_> = self
            .events
            .drain(..)
            .map(|event| match event {
                Event::RecvComplete { recv, message, .. } => (recv.0, message),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(ends, [(recv, message)]);
        assert_eq!(self.half.unexpected_bytes(), 0);
        assert!(self.half.arrivals.is_empty());
    }
}

#[test]
fn a_receive_that_waits_is_gone() {
    let mut bench = Bench::new();
    bench.post(5, Selector::Untagged, Capacity::Allocate);
    assert_eq!(bench.withdraw(6), Withdrawn::No);
    assert_eq!(bench.withdraw(5), Withdrawn::Waiting);
    bench.start(FrameKind::Eager, true, 0);
    assert_eq!(bench.stores(), [Store::Allocate]);
    assert_eq!(bench.half.unexpected_len(), 1);
}

#[test]
fn an_eager_message_whose_receive_is_withdrawn_waits_for_the_next() {
    for stored_before in [false, true] {
        let mut bench = Bench::new();
        bench.post(5, ANY, Capacity::Into(10));
        bench.start(FrameKind::Eager, false, 10);
        assert_eq!(bench.stores(), [Store::Into(RecvId(5))]);
        assert_eq!(bench.withdraw(5), MET);
        assert_eq!(bench.half.unexpected_bytes(), 10);
        assert_eq!(bench.withdraw(5), Withdrawn::No);
        if stored_before {
            bench.half.handle_payload(ArrivalId(0), &mut bench.events);
            assert_eq!(bench.half.unexpected_len(), 1);
            bench.post(6, ANY, Capacity::Allocate);
        } else {
            bench.post(6, ANY, Capacity::Allocate);
            assert!(bench.events.is_empty());
            bench.half.handle_payload(ArrivalId(0), &mut bench.events);
        }
        bench.assert_complete(6, 0);
    }
}

/// How far a long message has come
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
enum Progress {
    Asked,
    Accepted,
    Halfway,
    Carrying,
    Over,
}

const LONG: [Progress; 5] = [
    Progress::Asked,
    Progress::Accepted,
    Progress::Halfway,
    Progress::Carrying,
    Progress::Over,
];

/// Drives a message of 100 bytes, with number and arrival 0, from one point to a later one
fn advance(bench: &mut Bench, from: Progress, to: Progress) {
    let arrival = ArrivalId(0);
    for progress in LONG.into_iter().filter(|p| *p > from && *p <= to) {
        match progress {
            Progress::Asked => unreachable!("it is the first"),
            Progress::Accepted => bench.half.accept(arrival, 0, 0),
            Progress::Halfway => bench.data(0, 50).unwrap(),
            Progress::Carrying => {
                let header = FrameHeader {
                    carrier: 1,
                    payload_bytes: 50,
                    ..FrameHeader::bare(FrameKind::Carried, 0)
                };
                bench.half.handle_piece(&header).unwrap();
            }
            Progress::Over => bench.half.handle_stored(arrival, 50, &mut bench.events),
        }
    }
}

/// Each point at which a receive is withdrawn, and each later one at which another is posted
#[test]
fn a_long_message_whose_receive_is_withdrawn_at_any_point_is_received_by_the_next() {
    for untagged in [false, true] {
        let selector = if untagged { Selector::Untagged } else { ANY };
        for (at, withdrawn) in LONG[..4].iter().enumerate() {
            for posted in &LONG[at..] {
                let mut bench = Bench::new();
                bench.post(5, selector, Capacity::Into(100));
                bench.start(FrameKind::Request, untagged, 100);
                bench.events.clear();
                advance(&mut bench, Progress::Asked, *withdrawn);
                assert_eq!(bench.withdraw(5), MET);
                assert_eq!(bench.half.unexpected_len(), 1);
                assert_eq!(bench.half.unexpected_bytes(), 100);
                advance(&mut bench, *withdrawn, *posted);
                assert!(bench.events.is_empty(), "{withdrawn:?} {posted:?}");
                bench.post(6, selector, Capacity::Into(100));
                advance(&mut bench, *posted, Progress::Over);
                bench.assert_complete(6, 0);
            }
        }
    }
}

#[test]
fn a_fetch_goes_on_when_its_receive_is_withdrawn() {
    for (falls_back, over_before) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut bench = Bench::new();
        bench.post(5, ANY, Capacity::Into(100));
        bench.start(FrameKind::Request, false, 100);
        bench.events.clear();
        let arrival = ArrivalId(0);
        bench.half.fetch(arrival);
        assert_eq!(bench.withdraw(5), MET);
        if !over_before {
            bench.post(6, ANY, Capacity::Into(100));
        }
        if falls_back {
            advance(&mut bench, Progress::Asked, Progress::Over);
        } else {
            bench.half.handle_fetched(arrival, 0, &mut bench.events);
            assert_eq!(bench.answers(), [(FrameKind::Fetched, 0)]);
        }
        if over_before {
            assert_eq!((bench.half.unexpected_len(), bench.events.len()), (1, 0));
            bench.post(6, ANY, Capacity::Into(100));
        }
        bench.assert_complete(6, 0);
    }
}

#[test]
fn a_message_whose_receive_is_withdrawn_goes_to_the_next_that_waits() {
    let mut bench = Bench::new();
    bench.post(5, ANY, Capacity::Into(100));
    bench.post(6, Selector::Untagged, Capacity::Into(100));
    bench.post(7, ANY, Capacity::Into(99));
    bench.start(FrameKind::Request, false, 100);
    bench.events.clear();
    advance(&mut bench, Progress::Asked, Progress::Carrying);
    assert_eq!(bench.withdraw(5), MET);
    assert_eq!(bench.half.unexpected_len(), 0);
    assert_eq!(bench.half.posted_len(), 1);
    advance(&mut bench, Progress::Carrying, Progress::Over);
    let truncated = Event::RecvTruncated {
        recv: RecvId(7),
        arrival: ArrivalId(0),
        message_bytes: 100,
        capacity_bytes: 99,
    };
    assert_eq!(bench.events, [truncated]);
    assert!(bench.half.arrivals.is_empty());
}

#[test]
fn a_message_passes_through_receives_that_are_withdrawn_one_after_the_other() {
    let mut bench = Bench::new();
    for recv in 0..3 {
        bench.post(recv, ANY, Capacity::Into(100));
    }
    bench.start(FrameKind::Request, false, 100);
    bench.events.clear();
    for recv in 0..3 {
        assert_eq!(bench.withdraw(recv), MET);
    }
    assert_eq!(bench.half.unexpected_len(), 1);
    bench.post(3, ANY, Capacity::Into(100));
    advance(&mut bench, Progress::Asked, Progress::Over);
    bench.assert_complete(3, 0);
}

#[test]
fn a_receive_whose_message_is_dropped_or_skipped_ends_by_itself() {
    let mut bench = Bench::new();
    bench.post(5, ANY, Capacity::Into(9));
    bench.start(FrameKind::Eager, false, 10);
    assert_eq!(bench.stores(), [Store::Discard]);
    assert_eq!(bench.withdraw(5), Withdrawn::No);
    bench.half.handle_payload(ArrivalId(0), &mut bench.events);
    assert_eq!(bench.withdraw(5), Withdrawn::No);
    bench.post(6, ANY, Capacity::Into(9));
    bench.start(FrameKind::Request, false, 10);
    assert_eq!(bench.withdraw(6), Withdrawn::No);
    assert_eq!(bench.half.unexpected_len(), 0);
}

#[test]
fn a_message_that_was_too_long_for_a_receive_which_is_withdrawn_fits_the_next() {
    let mut bench = Bench::new();
    bench.start(FrameKind::Eager, false, 10);
    bench.events.clear();
    bench.post(5, ANY, Capacity::Into(9));
    assert_eq!(bench.withdraw(5), MET);
    bench.half.handle_payload(ArrivalId(0), &mut bench.events);
    bench.post(6, ANY, Capacity::Into(10));
    bench.assert_complete(6, 0);
}

#[test]
fn withdrawn_messages_are_received_in_the_order_they_were_sent() {
    let mut bench = Bench::new();
    for recv in 0..3 {
        bench.post(recv, Selector::Untagged, Capacity::Into(100));
    }
    // The fourth and fifth wait for a receive, the last without having been accepted.
    for _ in 0..3 {
        bench.start(FrameKind::Request, true, 100);
    }
    bench.start(FrameKind::Request, true, 400);
    bench.start(FrameKind::Request, true, 200);
    bench.stores();
    for recv in [1, 0, 2] {
        assert!(matches!(bench.withdraw(recv), Withdrawn::Met(_)));
    }
    for message in 0..3 {
        bench.data(message, 100).unwrap();
    }
    bench.data(3, 400).unwrap();
    for message in 0..4 {
        bench.post(9, Selector::Untagged, Capacity::Allocate);
        let end = bench.events.pop_front();
        let Some(Event::RecvComplete { message: ended, .. }) = end else {
            panic!("{end:?}");
        };
        assert_eq!(ended, message);
    }
    assert_eq!(bench.stores(), [Store::Allocate]);
    bench.post(9, Selector::Untagged, Capacity::Allocate);
    bench.data(4, 200).unwrap();
    bench.assert_complete(9, 4);
}

#[test]
fn what_was_withdrawn_does_not_count_as_fetched_early() {
    let mut bench = Bench::new();
    bench.post(5, Selector::Untagged, Capacity::Into(500));
    bench.start(FrameKind::Request, true, 500);
    bench.stores();
    assert!(matches!(bench.withdraw(5), Withdrawn::Met(_)));
    bench.start(FrameKind::Request, true, 500);
    assert_eq!(bench.stores(), [Store::Allocate]);
    assert_eq!(bench.half.unexpected_bytes(), 1000);
    for recv in [6, 7] {
        bench.post(recv, Selector::Untagged, Capacity::Into(500));
    }
    assert_eq!(bench.half.unexpected_bytes(), 0);
    bench.start(FrameKind::Request, true, 500);
    assert_eq!(bench.stores(), [Store::Allocate]);
}

#[test]
fn a_message_holds_credit_again_when_its_receive_is_withdrawn() {
    let mut bench = Bench::new();
    for _ in 0..2 {
        bench.post(0, ANY, Capacity::Into(10));
        received(&mut bench, false);
    }
    let credit = bench.half.poll_control().unwrap();
    assert_eq!((credit.message, credit.tag), (10, 1020));
    bench.post(0, ANY, Capacity::Into(10));
    bench.start(FrameKind::Eager, false, 10);
    assert!(matches!(bench.withdraw(0), Withdrawn::Met(_)));
    bench.half.handle_payload(ArrivalId(0), &mut bench.events);
    bench.events.clear();
    bench.post(1, ANY, Capacity::Into(10));
    bench.assert_complete(1, 2);
    bench.post(1, ANY, Capacity::Into(10));
    received(&mut bench, false);
    let credit = bench.half.poll_control().unwrap();
    assert_eq!((credit.message, credit.tag), (12, 1040));
    assert_eq!(bench.half.poll_control(), None);
}

#[test]
fn messages_that_are_given_up_each_time_do_not_pile_up() {
    for restores in [false, true] {
        let mut bench = Bench::new();
        let mut granted = 8;
        while bench.next_message < granted {
            // Each receive is for this message alone.
            let tag = Tag(bench.next_message);
            let mask = TagMask::FULL;
            bench.post(0, Selector::Tagged { tag, mask }, Capacity::Into(100));
            let kind = MessageKind::Tagged(tag);
            let header = FrameHeader {
                segment_count: 1,
                payload_bytes: 100,
                tag: tag.0,
                ..FrameHeader::bare(FrameKind::Request, bench.next_message)
            };
            let segment_bytes = smallvec![100];
            let frame = Frame {
                header,
                segment_bytes,
                sources: None,
            };
            bench.half.handle_start(frame, &mut bench.events).unwrap();
            let Some(Event::Prepare { arrival, .. }) = bench.events.pop_front() else {
                panic!("it has a receive");
            };
            bench.half.fetch(arrival);
            if restores {
                bench.half.handle_fetched(arrival, 0, &mut bench.events);
                let message = bench.next_message;
                bench.half.restore(message, kind, 100, &mut bench.events);
                bench.events.clear();
            } else {
                assert_eq!(bench.withdraw(0), Withdrawn::Met(arrival));
            }
            bench.next_message += 1;
            while let Some(header) = bench.half.poll_control() {
                if header.kind == FrameKind::Credit {
                    granted = header.message;
                }
            }
        }
        assert_eq!((granted, bench.half.unexpected_len()), (8, 8));
    }
}

/// Receives an eager message that no caller looks at, returning its number
fn received(bench: &mut Bench, untagged: bool) -> u64 {
    if let Incoming::Payload { arrival, .. } = bench.start(FrameKind::Eager, untagged, 10) {
        bench.half.handle_payload(arrival, &mut bench.events);
    }
    let end = bench.events.pop_back();
    bench.events.clear();
    match end {
        Some(Event::RecvComplete { message, .. }) => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn restored_messages_are_received_in_the_order_they_were_sent() {
    for (untagged, selector, kind) in [
        (false, ANY, MessageKind::Tagged(Tag(7))),
        (true, Selector::Untagged, MessageKind::Untagged),
    ] {
        let mut bench = Bench::new();
        let mut numbers = Vec::new();
        for recv in 0..3 {
            bench.post(recv, selector, Capacity::Into(10));
            numbers.push(received(&mut bench, untagged));
        }
        bench.start(FrameKind::Eager, untagged, 0);
        bench.events.clear();
        for number in [1, 0, 2] {
            bench.half.restore(number, kind, 10, &mut bench.events);
        }
        assert!(bench.events.is_empty());
        assert_eq!((bench.half.unexpected_len(), numbers), (4, vec![0, 1, 2]));
        assert_eq!(bench.half.unexpected_bytes(), 30);
        for message in 0..4 {
            bench.post(9, selector, Capacity::Allocate);
            let end = bench.events.pop_front();
            let expected = Event::RecvComplete {
                recv: RecvId(9),
                // Not compared: what it is called depends on what went before.
                arrival: match end {
                    Some(Event::RecvComplete { arrival, .. }) => arrival,
                    _ => panic!("{end:?}"),
                },
                kind,
                message,
                bytes: if message == 3 { 0 } else { 10 },
            };
            assert_eq!(end, Some(expected));
        }
        assert!(bench.half.arrivals.is_empty());
    }
}

#[test]
fn a_restored_message_goes_to_a_receive_that_waits() {
    let mut bench = Bench::new();
    bench.post(0, ANY, Capacity::Into(10));
    let kind = MessageKind::Tagged(Tag(7));
    let message = received(&mut bench, false);
    bench.post(1, ANY, Capacity::Into(9));
    let arrival = bench.half.restore(message, kind, 10, &mut bench.events);
    let truncated = Event::RecvTruncated {
        recv: RecvId(1),
        arrival,
        message_bytes: 10,
        capacity_bytes: 9,
    };
    assert_eq!(bench.events, [truncated]);
    bench.events.clear();
    bench.post(2, ANY, Capacity::Into(10));
    let message = received(&mut bench, false);
    bench.post(3, ANY, Capacity::Allocate);
    bench.half.restore(message, kind, 10, &mut bench.events);
    bench.assert_complete(3, 1);
}

#[test]
fn a_restored_message_can_be_received_after_the_peer_has_closed() {
    let mut bench = Bench::new();
    bench.post(0, ANY, Capacity::Into(10));
    let message = received(&mut bench, false);
    bench.half.handle_close(&mut bench.events).unwrap();
    bench.events.clear();
    let kind = MessageKind::Tagged(Tag(7));
    bench.half.restore(message, kind, 10, &mut bench.events);
    bench.post(1, ANY, Capacity::Allocate);
    bench.assert_complete(1, 0);
}
