#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::connection::{Event, Incoming, Outgoing};
use crate::decoder::FrameDecoder;
use crate::ids::{Capacity, Selector, SendId, Tag, TagMask};
use crate::limits::Limits;

/// A sender and a receiver, and what is on the lanes between them
///
/// Payloads are not carried: only their sizes are.
struct Pair {
    /// True if the inline path is taken where possible
    inline: bool,
    taken: usize,
    limits: Limits,
    now: Instant,
    ends: [Connection; 2],
    /// Frames on their way from each end
    lanes: [VecDeque<Vec<u8>>; 2],
    next_id: usize,
    /// Receives and sends in the order in which they ended, and how
    log: Vec<String>,
}

impl Pair {
    fn new(inline: bool, now: Instant) -> Self {
        let limits = Limits {
            eager_bytes_max: 100,
            credit_bytes: 700,
            credit_messages: 6,
            data_chunk_bytes: 60,
            ..Limits::default()
        };
        let end = || Connection::new(limits.clone(), limits.announced(), now);
        Self {
            inline,
            taken: 0,
            ends: [end(), end()],
            limits,
            now,
            lanes: [VecDeque::new(), VecDeque::new()],
            next_id: 0,
            log: Vec::new(),
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Send {
                from,
                tag,
                ref segment_bytes,
            } => {
                let id = SendId(self.next_id);
                self.next_id += 1;
                let kind = tag.map_or(MessageKind::Untagged, MessageKind::Tagged);
                let header = if self.inline {
                    self.ends[from].send_inline(kind, segment_bytes)
                } else {
                    None
                };
                if let Some(header) = header {
                    self.taken += 1;
                    self.lanes[from].push_back(header.to_vec());
                    self.log.push(format!("{id:?} is out"));
                } else if let Err(refused) = self.ends[from].send(id, kind, segment_bytes) {
                    self.log.push(format!("{id:?} is refused: {refused}"));
                }
            }
            Step::Post {
                at,
                selector,
                capacity,
            } => {
                let id = RecvId(self.next_id);
                self.next_id += 1;
                if let Err(refused) = self.ends[at].post_recv(id, selector, capacity) {
                    self.log.push(format!("{id:?} is refused: {refused}"));
                }
            }
            Step::Deliver { to } => {
                if let Some(frame) = self.lanes[1 - to].pop_front() {
                    self.deliver(to, &frame);
                }
            }
            Step::Close { from } => self.ends[from].close(self.now),
        }
        self.drain();
    }

    fn deliver(&mut self, to: usize, frame: &[u8]) {
        let (used, decoded) = FrameDecoder::default().handle(&self.limits, frame).unwrap();
        assert_eq!(used, frame.len());
        let decoded = decoded.unwrap();
        if self.inline
            && let Some(inline) = self.ends[to].handle_inline(self.now, &decoded).unwrap()
        {
            self.taken += 1;
            let header = decoded.header;
            let (kind, bytes) = (header.message_kind(), header.payload_bytes);
            if let Inline::Received { recv, message } = inline {
                self.log
                    .push(format!("{recv:?} has {message}, {bytes} of {kind:?}"));
            }
            return;
        }
        let incoming = self.ends[to].handle_frame(self.now, decoded).unwrap();
        self.drain();
        if let Incoming::Payload { arrival, .. } = incoming {
            self.ends[to].handle_payload(self.now, arrival);
        }
    }

    /// Takes events and frames, as a driver whose lane is never full
    fn drain(&mut self) {
        for end in 0..2 {
            while let Some(event) = self.ends[end].poll_event() {
                match event {
                    Event::RecvComplete {
                        recv,
                        kind,
                        message,
                        bytes,
                        ..
                    } => self
                        .log
                        .push(format!("{recv:?} has {message}, {bytes} of {kind:?}")),
                    Event::Prepare {
                        arrival,
                        asks: true,
                        ..
                    } => self.ends[end].accept(arrival, 0, 0),
                    Event::Prepare { .. } => {}
                    other => self.log.push(format!("{other:?}")),
                }
            }
            if self.ends[end].receiving.awaits_payload() {
                continue;
            }
            while let Some(outgoing) = self.ends[end].poll_transmit() {
                let Outgoing::Frame(transmit) = outgoing else {
                    panic!("no carrier was offered anything");
                };
                self.lanes[end].push_back(transmit.header.to_vec());
                if let Some(send) = transmit.completes {
                    self.log.push(format!("{send:?} is out"));
                }
            }
        }
    }

    fn state(&self) -> String {
        format!(
            "{:?} {:?}",
            self.ends.each_ref().map(Connection::statistics),
            self.lanes
        )
    }
}

#[derive(Clone, Debug)]
enum Step {
    Send {
        from: usize,
        tag: Option<Tag>,
        segment_bytes: Vec<u64>,
    },
    Post {
        at: usize,
        selector: Selector,
        capacity: Capacity,
    },
    Deliver {
        to: usize,
    },
    Close {
        from: usize,
    },
}

fn any_step() -> impl Strategy<Value = Step> {
    let end = || 0_usize..2;
    let tag = || (0_u64..3).prop_map(Tag);
    let selector = prop_oneof![
        3 => tag().prop_map(|tag| Selector::Tagged { tag, mask: TagMask::FULL }),
        1 => Just(Selector::Tagged { tag: Tag(0), mask: TagMask::ANY }),
        1 => Just(Selector::Untagged),
    ];
    let capacity = prop_oneof![
        4 => (0_u64..150).prop_map(Capacity::Into),
        1 => Just(Capacity::Allocate),
    ];
    let segments = prop_oneof![
        4 => (0_u64..130).prop_map(|bytes| vec![bytes]),
        1 => proptest::collection::vec(0_u64..40, 0..5),
        1 => (0_usize..200).prop_map(|segments| vec![0; segments]),
    ];
    let tag = prop_oneof![4 => tag().prop_map(Some), 1 => Just(None)];
    prop_oneof![
        20 => (end(), tag, segments).prop_map(|(from, tag, segment_bytes)| Step::Send {
            from,
            tag,
            segment_bytes,
        }),
        20 => (end(), selector, capacity).prop_map(|(at, selector, capacity)| Step::Post {
            at,
            selector,
            capacity,
        }),
        40 => end().prop_map(|to| Step::Deliver { to }),
        1 => end().prop_map(|from| Step::Close { from }),
    ]
}

proptest! {
    #[test]
    fn the_inline_path_comes_to_the_same(steps in proptest::collection::vec(any_step(), 0..150)) {
        let now = Instant::now();
        let mut inline = Pair::new(true, now);
        let mut long = Pair::new(false, now);
        for step in &steps {
            inline.step(step);
            long.step(step);
            prop_assert_eq!(inline.state(), long.state(), "after {:?}", step);
        }
        prop_assert_eq!(inline.log, long.log);
    }
}

#[test]
fn a_message_to_a_waiting_receive_takes_the_inline_path_at_both_ends() {
    let mut pair = Pair::new(true, Instant::now());
    let selector = Selector::Tagged {
        tag: Tag(1),
        mask: TagMask::FULL,
    };
    for segment_bytes in [&[0][..], &[8], &[100], &[], &[3, 0, 4]] {
        for allocates in [false, true] {
            let capacity = if allocates {
                Capacity::Allocate
            } else {
                Capacity::Into(segment_bytes.iter().sum())
            };
            pair.step(&Step::Post {
                at: 1,
                selector,
                capacity,
            });
            pair.step(&Step::Send {
                from: 0,
                tag: Some(Tag(1)),
                segment_bytes: segment_bytes.to_vec(),
            });
            pair.step(&Step::Deliver { to: 1 });
            pair.step(&Step::Deliver { to: 0 });
        }
    }
    assert_eq!(pair.taken, 20);
    assert_eq!(pair.log.len(), 20, "{:?}", pair.log);
}

#[test]
fn a_message_without_a_receive_takes_the_inline_path_and_waits_in_its_order() {
    let mut pair = Pair::new(true, Instant::now());
    for bytes in [8, 0, 9] {
        pair.step(&Step::Send {
            from: 0,
            tag: None,
            segment_bytes: vec![bytes],
        });
        pair.step(&Step::Deliver { to: 1 });
    }
    assert_eq!(pair.taken, 6);
    let statistics = pair.ends[1].statistics();
    let waiting = (statistics.unexpected_messages, statistics.unexpected_bytes);
    assert_eq!(waiting, (3, 17));
    for capacity in [Capacity::Into(8), Capacity::Allocate, Capacity::Into(8)] {
        pair.step(&Step::Post {
            at: 1,
            selector: Selector::Untagged,
            capacity,
        });
    }
    let got = &pair.log[3..];
    assert!(got[0].contains("has 0, 8"), "{got:?}");
    assert!(got[1].contains("has 1, 0"), "{got:?}");
    assert!(got[2].contains("RecvTruncated"), "{got:?}");
    assert_eq!(pair.ends[1].statistics().unexpected_bytes, 0);
}

#[test]
fn a_message_of_many_segments_takes_the_inline_path_only_with_credit_for_them() {
    let mut connection = Pair::new(true, Instant::now())
        .ends
        .into_iter()
        .next()
        .unwrap();
    let kind = MessageKind::Untagged;
    // Of 700 bytes, four further segments take 512.
    assert_eq!(connection.send_inline(kind, &[40; 5]), None);
    let header = connection.send_inline(kind, &[20; 5]).unwrap();
    assert_eq!(header.len(), 32 + 5 * 8);
    assert_eq!(connection.statistics().credit_bytes_left, 700 - 100 - 512);
    assert_eq!(connection.send_inline(kind, &[1, 1]), None);
    assert!(connection.send_inline(kind, &[88]).is_some());
}
