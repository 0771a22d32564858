//! Payload that carriers bring: what is to be taken, and what has been.
//!
//! The holder of the link takes each [`TakeRequest`] to its carrier, and tells the link how it
//! goes. Any number may be under way, and they may end in any order.

use backhaul_proto::{ArrivalId, CarrierKind, ProtocolError};
use backhaul_shm::pool::PoolBuf;
use slab::Slab;

use super::Link;
use super::arrival::{Cursor, Memory, Targets};
use super::ending::LinkError;
use super::event::Now;
use crate::memory::DeviceMemory;

/// Payload that a carrier is to bring
#[derive(Clone, Copy, Debug)]
pub struct TakeRequest {
    /// Id of the take in the link
    pub id: TakeId,
    /// Number of the carrier
    pub carrier: u8,
    /// Ticket by which the carrier finds the bytes
    pub ticket: u64,
    /// How many bytes
    pub bytes: u64,
    /// The peer has not given them away, and keeps them only while it is connected: what is read when
    /// it has ended may be anything
    pub is_fetch: bool,
}

/// Payload that is being taken, as the link calls it
///
/// It is not used again: what a carrier still has of a take that is over goes nowhere.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct TakeId {
    index: usize,
    number: u64,
}

/// Payloads that carriers are taking
#[derive(Default)]
pub(super) struct Takes {
    live: Slab<Take>,
    /// Requests that the holder has not polled
    due: std::collections::VecDeque<TakeRequest>,
    /// Number of the next one
    next: u64,
}

struct Take {
    number: u64,
    arrival: ArrivalId,
    at: Cursor,
    left: u64,
    bytes: u64,
    /// Part of a message that this side fetches, rather than of one that the peer gives
    is_fetch: bool,
    /// Memory of the peer is used in its place
    is_lent: bool,
}

impl Takes {
    pub(super) fn clear(&mut self) {
        self.live.clear();
        self.due.clear();
    }

    fn get(&self, id: TakeId) -> Option<&Take> {
        let take = self.live.get(id.index);
        take.filter(|take| take.number == id.number)
    }

    fn get_mut(&mut self, id: TakeId) -> Option<&mut Take> {
        let take = self.live.get_mut(id.index);
        take.filter(|take| take.number == id.number)
    }

    /// How much is being taken
    pub(super) fn len(&self) -> usize {
        self.live.len()
    }

    /// Returns whether nothing is being taken
    pub(super) fn is_empty(&self) -> bool {
        self.live.is_empty()
    }
}

/// Where the next bytes go that a carrier brings
#[expect(clippy::large_enum_variant, reason = "made for one read, on the stack")]
pub enum TakeTarget<'a> {
    /// To memory of the host
    Host(Targets<'a>),
    /// To memory of a device
    Device(DeviceMemory),
    /// Nowhere: no receive wants them
    Nowhere,
}

impl<S, R> Link<S, R> {
    /// Payload that a carrier is to bring, each once
    pub fn poll_take(&mut self) -> Option<TakeRequest> {
        self.takes.due.pop_front()
    }

    /// Returns whether there is payload that no carrier has been asked for
    pub fn has_takes_due(&self) -> bool {
        !self.takes.due.is_empty()
    }

    /// Bytes of the payload that no carrier has been asked for
    pub fn takes_due_bytes(&self) -> u64 {
        self.takes.due.iter().map(|due| due.bytes).sum()
    }

    /// Returns whether a carrier may hand over its own memory for all that is to be taken
    pub fn wants_whole(&self, take: TakeId) -> bool {
        self.takes.get(take).is_some_and(|take| {
            let arrival = self.arrivals.get(take.arrival);
            take.left == take.bytes
                && arrival.is_some_and(|arrival| arrival.wants_whole(&take.at, take.bytes))
        })
    }

    /// Handles that a carrier has handed over its own memory for all that is to be taken
    pub fn handle_adopted(&mut self, now: &Now, take: TakeId, memory: PoolBuf) {
        if let Some(state) = self.takes.get_mut(take) {
            if let Some(arrival) = self.arrivals.get_mut(state.arrival) {
                arrival.adopt(&state.at, memory);
            }
            let bytes = state.left;
            self.handle_taken(now, take, bytes);
        }
    }

    /// How many bytes are still to be taken
    pub fn take_left(&self, take: TakeId) -> u64 {
        self.takes.get(take).map_or(0, |take| take.left)
    }

    /// Returns whether there is still something to be taken
    pub fn is_taking_it(&self, take: TakeId) -> bool {
        self.takes.get(take).is_some()
    }

    /// Where the next bytes go, at most `bytes_max` of them
    pub fn take_target(&mut self, take: TakeId, bytes_max: usize) -> TakeTarget<'_> {
        let Some(take) = self.takes.get(take) else {
            return TakeTarget::Nowhere;
        };
        let Some(arrival) = self.arrivals.get_mut(take.arrival) else {
            return TakeTarget::Nowhere;
        };
        let allocator = self.memory.device_allocator.as_deref();
        if let Some(device) = arrival.device_target(&mut self.recvs, allocator, &take.at, take.left)
        {
            return TakeTarget::Device(device);
        }
        let mut targets = Targets::new();
        let wanted = usize::try_from(take.left).map_or(bytes_max, |left| left.min(bytes_max));
        let pool = &self.memory.pool;
        if arrival.targets(&mut self.recvs, pool, &take.at, wanted, &mut targets) == 0 {
            return TakeTarget::Nowhere;
        }
        TakeTarget::Host(targets)
    }

    /// Handles that so many bytes are in their place, or, for [`TakeTarget::Nowhere`], dropped
    pub fn handle_taken(&mut self, now: &Now, take: TakeId, bytes: u64) {
        let Some(state) = self.takes.get_mut(take) else {
            return;
        };
        state.left -= bytes;
        let (arrival_id, is_fetch) = (state.arrival, state.is_fetch);
        let is_lent = state.is_lent;
        if let Some(arrival) = self.arrivals.get_mut(arrival_id) {
            arrival.filled_bytes += bytes;
            state.at.advance(&arrival.sizes, bytes);
        }
        let is_over = state.left == 0;
        if is_over {
            self.takes.live.remove(take.index);
        }
        self.record_way(now, arrival_id);
        self.meter.stored(now, arrival_id, bytes, is_lent);
        if !is_fetch {
            self.core.handle_carried(self.time(now), arrival_id, bytes);
        } else if is_over && !self.is_fetching(arrival_id) {
            let advice = self.advice_bytes();
            self.core.handle_fetched(arrival_id, advice);
        } else {
            self.core.handle_activity(self.time(now));
        }
        self.handle_events(now);
        self.finish_close();
    }

    /// Handles that a carrier cannot bring the bytes, for want of something on this side
    ///
    /// Payload that was to be fetched is asked for on the lane instead, and memory of a device from
    /// a carrier to which it is given; a payload that the peer gave is lost, and the receive fails.
    pub fn handle_take_failed(&mut self, now: &Now, take: TakeId, detail: String) {
        let Some(state) = self.takes.get(take) else {
            return;
        };
        let (arrival_id, left, is_fetch) = (state.arrival, state.left, state.is_fetch);
        if !is_fetch {
            if let Some(arrival) = self.arrivals.get_mut(arrival_id) {
                arrival.memory = Memory::Missing(arrival.out_of_reach(detail));
            }
            self.handle_taken(now, take, left);
            return;
        }
        self.takes
            .live
            .retain(|_, other| other.arrival != arrival_id);
        let live = &self.takes.live;
        self.takes.due.retain(|due| live.contains(due.id.index));
        if let Some(arrival) = self.arrivals.get_mut(arrival_id) {
            arrival.filled_bytes = 0;
            arrival.next = Cursor::begin(&arrival.sizes);
            arrival.way = None;
        }
        let arrival = self.arrivals.get(arrival_id);
        let is_on_device = arrival.is_some_and(|arrival| arrival.device().is_some());
        if !is_on_device {
            self.ways.forbid_fetch();
        }
        self.core.accept(arrival_id, 0, 0);
    }

    /// Handles that a carrier's ticket is not what it must be, by the peer's fault
    pub fn handle_bad_ticket(&mut self, ticket: u64, detail: String) {
        self.handle_error(LinkError::Protocol(ProtocolError::BadTicket {
            ticket,
            detail,
        }));
    }

    /// Begins to take what the peer has given to a carrier
    pub(super) fn begin_take(
        &mut self,
        arrival: ArrivalId,
        at: Cursor,
        bytes: u64,
        carrier: u8,
        ticket: u64,
    ) -> Result<(), LinkError> {
        if !self.memory.knows(carrier) {
            let message = 0;
            return Err(ProtocolError::UnknownCarrier { carrier, message }.into());
        }
        self.add_take(arrival, at, bytes, (carrier, ticket), false);
        Ok(())
    }

    /// Begins to fetch all segments of a message that the peer has offered
    pub(super) fn begin_fetch(&mut self, arrival: ArrivalId) {
        let Some(state) = self.arrivals.get(arrival) else {
            return;
        };
        let mut at = Cursor::default();
        let mut pieces = Vec::new();
        let sources = state.sources.iter().flatten();
        for (size, source) in state.sizes.iter().zip(sources) {
            if let Some(offer) = source.offer.filter(|_| *size > 0) {
                pieces.push((at, *size, (offer.carrier, offer.token)));
            }
            at.advance(&state.sizes, *size);
        }
        self.core.fetch(arrival);
        for (at, bytes, found) in pieces {
            self.add_take(arrival, at, bytes, found, true);
        }
    }

    fn add_take(
        &mut self,
        arrival: ArrivalId,
        at: Cursor,
        bytes: u64,
        (carrier, ticket): (u8, u64),
        is_fetch: bool,
    ) {
        let number = self.takes.next;
        self.takes.next += 1;
        let index = self.takes.live.insert(Take {
            number,
            arrival,
            at,
            left: bytes,
            bytes,
            is_fetch,
            is_lent: carrier == CarrierKind::Lease.code(),
        });
        self.takes.due.push_back(TakeRequest {
            id: TakeId { index, number },
            carrier,
            ticket,
            bytes,
            is_fetch,
        });
    }

    fn is_fetching(&self, arrival: ArrivalId) -> bool {
        let mut live = self.takes.live.iter();
        live.any(|(_, take)| take.arrival == arrival)
    }
}
