//! Driver's work in its own time: answers to messages that ask, fetches, carried parts.

use std::time::Instant;

use backhaul_proto::{ArrivalId, Incoming};

use super::Node;
use crate::message::{Message, carrier_of};

/// Something that a driver has begun and not ended
#[derive(Debug)]
pub(crate) enum Work {
    /// Say how the bytes of a message are to come
    Answer(ArrivalId),
    /// Copy the bytes of a message from where they were offered
    Fetch(ArrivalId),
    /// Take the rest of a part that a carrier brings
    Carry {
        arrival: ArrivalId,
        /// Where the part begins in the message
        offset: usize,
        ticket: u64,
        /// Bytes of it that are stored
        stored: usize,
    },
}

impl Node {
    /// Goes on with anything, in any order, returning whether there was something
    pub(crate) fn work(&mut self, now: Instant) -> bool {
        if self.works.is_empty() {
            return false;
        }
        let index = self.rng.below(self.works.len() as u64) as usize;
        let is_carry = |work: &Work| matches!(work, Work::Carry { .. });
        if is_carry(&self.works[index]) && self.works[..index].iter().any(is_carry) {
            self.tally.overtaken += 1;
        }
        match self.works.remove(index) {
            Work::Answer(arrival) => self.answer(arrival),
            Work::Fetch(arrival) => self.finish_fetch(arrival),
            Work::Carry {
                arrival,
                offset,
                ticket,
                stored,
            } => {
                let part = self.borrowed.borrow()[ticket as usize].clone();
                let end = self.rng.between(stored as u64 + 1, part.len() as u64) as usize;
                self.store(arrival, offset + stored, &part[stored..end]);
                if end < part.len() {
                    self.works.push(Work::Carry {
                        arrival,
                        offset,
                        ticket,
                        stored: end,
                    });
                }
                let bytes = (end - stored) as u64;
                self.connection.handle_carried(now, arrival, bytes);
            }
        }
        self.drain_events();
        self.check();
        true
    }

    /// Takes note of a part that a carrier brings
    pub(super) fn begin_carry(&mut self, incoming: Incoming) {
        let Incoming::Carried {
            arrival,
            offset,
            bytes,
            carrier,
            ticket,
        } = incoming
        else {
            panic!("no carrier brings {incoming:?}");
        };
        assert_eq!(carrier, carrier_of(ticket));
        assert_eq!(self.borrowed.borrow()[ticket as usize].len() as u64, bytes);
        let state = self.arrivals.get_mut(&arrival).expect("was prepared");
        assert_eq!(state.announced, offset as usize);
        state.announced += bytes as usize;
        self.works.push(Work::Carry {
            arrival,
            offset: offset as usize,
            ticket,
            stored: 0,
        });
    }

    /// Says how the bytes of a message are to come
    pub(super) fn answer(&mut self, arrival: ArrivalId) {
        let state = &self.arrivals[&arrival];
        let sources = state.sources.as_deref().unwrap_or_default();
        if Message::may_be_fetched(&state.segment_bytes, sources) && self.rng.chance(60) {
            self.connection.fetch(arrival);
            self.works.push(Work::Fetch(arrival));
        } else {
            let carrier = self.rng.below(4) as u8;
            self.connection.accept(arrival, carrier, 0);
        }
    }

    /// Copies what was offered, or finds that it cannot
    fn finish_fetch(&mut self, arrival: ArrivalId) {
        if self.rng.chance(30) {
            self.tally.fell_back += 1;
            self.connection.accept(arrival, 0, 0);
            return;
        }
        let state = &self.arrivals[&arrival];
        let mut fetched = Vec::new();
        for source in state.sources.iter().flatten() {
            if let Some(offer) = source.offer {
                assert_eq!(offer.carrier, carrier_of(offer.token));
                fetched.extend_from_slice(&self.borrowed.borrow()[offer.token as usize]);
            }
        }
        self.store(arrival, 0, &fetched);
        self.tally.fetched += 1;
        self.connection.handle_fetched(arrival, 0);
    }

    /// Stores bytes of a message in their place
    pub(super) fn store(&mut self, arrival: ArrivalId, offset: usize, bytes: &[u8]) {
        let state = self.arrivals.get_mut(&arrival).expect("was prepared");
        state.content[offset..offset + bytes.len()].copy_from_slice(bytes);
        state.missing -= bytes.len();
    }
}
