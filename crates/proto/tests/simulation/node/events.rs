//! Reports of a connection to its driver, checked against the model.

use backhaul_proto::{ArrivalId, Capacity, Event, RecvId, SegmentBytes, SourceTable, Store};

use super::{Arrival, Node, Work};
use crate::message::Message;
use crate::model::Waiting;

impl Node {
    pub(super) fn drain_events(&mut self) {
        while let Some(event) = self.connection.poll_event() {
            self.handle_event(event);
        }
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Prepare {
                arrival,
                segment_bytes,
                sources,
                store,
                asks,
            } => self.prepare(arrival, &segment_bytes, sources, store, asks),
            Event::RecvComplete {
                recv,
                arrival,
                kind,
                message: number,
                bytes,
            } => {
                let (waiting, message) = self.take_matched(recv);
                let stored = self.arrivals.remove(&arrival).expect("was prepared");
                assert_eq!((kind, number as usize), (message.kind, waiting.message));
                assert_eq!(bytes as usize, message.content.len());
                stored.check(&message);
                assert!(
                    matches!(stored.store, Store::Into(to) if to == recv)
                        || stored.store == Store::Allocate
                );
                if let Capacity::Into(capacity_bytes) = self.recvs.remove(recv.0) {
                    assert!(bytes <= capacity_bytes);
                }
                if self.rng.chance(10) {
                    self.restore(stored, waiting);
                } else {
                    self.tally.received += 1;
                }
            }
            Event::RecvTruncated {
                recv,
                arrival,
                message_bytes,
                capacity_bytes,
            } => {
                let (_, message) = self.take_matched(recv);
                assert_eq!(message_bytes as usize, message.content.len());
                assert!(message_bytes > capacity_bytes);
                let capacity = self.recvs.remove(recv.0);
                assert_eq!(capacity, Capacity::Into(capacity_bytes));
                if let Some(stored) = self.arrivals.remove(&arrival) {
                    stored.check(&message);
                    assert!(matches!(stored.store, Store::Discard | Store::Allocate));
                }
                self.dropped.remove(&recv);
                self.tally.truncated += 1;
            }
            Event::SendComplete { send } => {
                self.sends.remove(send.0);
                self.tally.sent += 1;
            }
            Event::RecvClosed { recv } => {
                assert!(!self.peer_closed, "comes before PeerClosed");
                assert!(self.model.cancel(recv), "had met a message");
                self.recvs.remove(recv.0);
                self.tally.closed += 1;
            }
            Event::PeerClosed => {
                assert!(self.model.posted.is_empty());
                self.peer_closed = true;
            }
        }
    }

    fn prepare(
        &mut self,
        arrival: ArrivalId,
        segment_bytes: &SegmentBytes,
        sources: Option<SourceTable>,
        store: Store,
        asks: bool,
    ) {
        if let Store::Into(recv) = store {
            assert!(self.model.matched.contains_key(&recv));
        }
        assert!(asks || sources.is_none(), "only a request has sources");
        let bytes = segment_bytes.iter().sum::<u64>() as usize;
        let state = Arrival {
            segment_bytes: segment_bytes.to_vec(),
            sources: sources.map(|sources| sources.to_vec()),
            asks,
            store,
            content: vec![0; bytes],
            announced: 0,
            missing: bytes,
        };
        let prepared = self.arrivals.insert(arrival, state);
        assert!(prepared.is_none(), "{arrival:?} is prepared twice");
        if !asks {
            return;
        }
        if self.rng.chance(50) {
            self.answer(arrival);
        } else {
            self.works.push(Work::Answer(arrival));
        }
    }

    /// Withdraws a receive that is over, and whose message no caller has seen
    fn restore(&mut self, mut stored: Arrival, mut waiting: Waiting) {
        let (message, kind) = (waiting.message as u64, waiting.kind);
        let arrival = self.connection.restore(message, kind, waiting.bytes);
        stored.store = Store::Allocate;
        let other = self.arrivals.insert(arrival, stored);
        assert!(other.is_none(), "{arrival:?} is another message");
        // The cost that it took is forgotten.
        waiting.cost = (1, 0);
        self.model.put_back(waiting);
        self.tally.restored += 1;
        self.tally.cancelled += 1;
    }

    /// The message that the model says a receive has met
    fn take_matched(&mut self, recv: RecvId) -> (Waiting, Message) {
        let matched = self.model.matched.remove(&recv);
        let waiting = matched.expect("ends only with a message");
        let message = self.incoming.borrow()[waiting.message].clone();
        (waiting, message)
    }
}

impl Arrival {
    /// Checks that all of a message has come, unchanged
    fn check(&self, message: &Message) {
        assert_eq!(self.missing, 0, "is over, but not complete");
        assert_eq!(self.segment_bytes, message.segment_bytes);
        assert!(self.content == message.content, "content differs");
        let sent = (self.asks && !message.sources.is_empty()).then_some(&message.sources);
        assert_eq!(self.sources.as_ref(), sent);
    }
}
