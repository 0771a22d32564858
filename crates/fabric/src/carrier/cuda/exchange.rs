//! The channel of the CUDA carrier: what has been offered, by either side, and what is back.
//!
//! The engine reads the channel, so that it never stays full for long; a caller that takes reads it
//! first. A thread of the driver says when a device has finished: it sends a packet, or rings a
//! doorbell, and takes no lock under which CUDA is called, since CUDA may wait for that very
//! thread.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use backhaul_cuda::Transfer;
use backhaul_shm::doorbell::Doorbell;
use rustix::event::epoll::EventFlags;

use super::packet::{Encoded, Offered, PACKET_BYTES, Packet};
use super::slots::{Known, Ticket};
use super::ways::{Way, Ways};
use crate::carrier::packets;
use crate::runtime::{Engine, Source, SourceId, lock};

/// State that one end of the carrier shares with the engine, and with payloads under way
pub(super) struct Exchange {
    pub(super) outbox: Arc<Outbox>,
    /// The peer is a context of this process
    pub(super) is_same_process: bool,
    /// Wakes the connection
    doorbell: Arc<Doorbell>,
    state: Mutex<State>,
    engine: Weak<Engine>,
    id: OnceLock<SourceId>,
}

/// Packets to be sent; threads of the driver may use it
pub(super) struct Outbox {
    socket: OwnedFd,
    /// Packets that the socket has not taken
    late: Mutex<VecDeque<Encoded>>,
    /// Has the engine look at `late`
    wake: Doorbell,
}

#[derive(Default)]
struct State {
    /// Offers of the peer, by ticket
    came: BTreeMap<u64, Came>,
    /// Allocations of the peer that its tickets may name
    known: Known,
    /// Offers and gifts of this side, by ticket
    held: BTreeMap<u64, Held>,
    next_ticket: u64,
    /// Payloads that a device is moving here, by number
    moving: BTreeSet<u64>,
    next_move: u64,
    /// How long those took
    ways: Ways,
    is_scheduled: bool,
    /// The connection is over
    is_left: bool,
    /// So is the peer, or this side's engine
    is_ended: bool,
}

/// State of one ticket as the peer reports it
pub(super) enum Came {
    Offer {
        bytes: u64,
        is_given: bool,
        place: Offered,
    },
    Failed(String),
}

/// Work that a device does before the peer may take a segment, and the memory to keep meanwhile
struct Held {
    transfer: Option<Transfer>,
    is_given: bool,
    /// It has been found to have failed, or to be over
    is_settled: bool,
}

impl Exchange {
    /// Has the engine watch a socket
    pub(super) fn start(
        engine: &Arc<Engine>,
        socket: OwnedFd,
        doorbell: Doorbell,
        is_same_process: bool,
    ) -> io::Result<Arc<Self>> {
        let exchange = Arc::new(Self {
            is_same_process,
            outbox: Arc::new(Outbox {
                socket,
                late: Mutex::default(),
                wake: Doorbell::new()?,
            }),
            doorbell: Arc::new(doorbell),
            state: Mutex::default(),
            engine: Arc::downgrade(engine),
            id: OnceLock::new(),
        });
        let id = engine.register(Arc::clone(&exchange) as Arc<dyn Source>);
        exchange.id.get_or_init(|| id);
        let outbox = &exchange.outbox;
        let watched = engine
            .watch(id, PORT_SOCKET, &outbox.socket, EventFlags::IN)
            .and_then(|()| engine.watch(id, PORT_WAKE, &outbox.wake, EventFlags::IN));
        if let Err(error) = watched {
            engine.unwatch(&outbox.socket);
            engine.deregister(id);
            return Err(error);
        }
        Ok(exchange)
    }

    /// Returns the doorbell of the connection
    pub(super) fn doorbell(&self) -> Arc<Doorbell> {
        Arc::clone(&self.doorbell)
    }

    /// Numbers a segment that is going to be offered, returning also the lowest number that is not over
    pub(super) fn next_ticket(&self) -> (u64, u64) {
        let mut state = lock(&self.state);
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        let lowest = state.held.first_key_value();
        (ticket, lowest.map_or(ticket, |(lowest, _)| *lowest))
    }

    /// Keeps what belongs to a ticket, until its send is over or, if it is given, the peer has it
    pub(super) fn hold(&self, ticket: u64, transfer: Option<Transfer>, is_given: bool) {
        let is_settled = transfer.is_none();
        let held = Held {
            transfer,
            is_given,
            is_settled,
        };
        lock(&self.state).held.insert(ticket, held);
        if !is_settled {
            self.schedule();
        }
    }

    /// Releases what belongs to an offer
    pub(super) fn release(&self, ticket: u64) {
        let mut state = lock(&self.state);
        let released = state.held.remove(&ticket);
        drop(state);
        drop(released);
    }

    /// Takes the peer's report on a ticket of so many bytes; a second call finds none
    pub(super) fn take(&self, ticket: u64, bytes: u64) -> Option<Came> {
        let ticket = Ticket::decode(ticket);
        if let Some(came) = lock(&self.state).take(ticket, bytes) {
            return Some(came);
        }
        self.drain();
        let mut state = lock(&self.state);
        let came = state.take(ticket, bytes);
        let is_ended = state.is_ended;
        came.or_else(|| is_ended.then(|| Came::Failed("its channel has ended".to_owned())))
    }

    /// A device moves a payload here, from now on; gives its number among them
    pub(super) fn begin_move(&self) -> u64 {
        let mut state = lock(&self.state);
        let number = state.next_move;
        state.next_move += 1;
        state.moving.insert(number);
        drop(state);
        self.schedule();
        number
    }

    /// The way that a payload is to take which a device is to move within itself
    ///
    /// `None` among others, which wait for the device together: direct.
    pub(super) fn choose_way(&self, bytes: u64) -> Option<Way> {
        let mut state = lock(&self.state);
        let is_alone = state.moving.is_empty();
        is_alone.then(|| state.ways.choose(bytes))
    }

    /// A payload that moved alone took so long
    pub(super) fn learn_way(&self, way: Way, bytes: u64, took: Duration) {
        lock(&self.state).ways.learn(way, bytes, took);
    }

    /// Records that a payload took longer than this, because no caller looked when it was over
    pub(super) fn learn_at_least(&self, way: Way, bytes: u64, took: Duration) {
        lock(&self.state).ways.learn_at_least(way, bytes, took);
    }

    /// Nothing can go by the host
    pub(super) fn forbid_host(&self) {
        lock(&self.state).ways.forbid_host();
    }

    /// The first of the payloads that a device is moving here
    pub(super) fn first_move(&self) -> Option<u64> {
        lock(&self.state).moving.first().copied()
    }

    pub(super) fn end_move(&self, number: u64) {
        lock(&self.state).moving.remove(&number);
    }

    /// Returns whether the peer may be about to fetch an offer, and has not said that it has
    pub(super) fn is_anything_held(&self) -> bool {
        !lock(&self.state).held.is_empty()
    }

    /// The connection is over
    pub(super) fn leave(&self) {
        let mut state = lock(&self.state);
        state.is_left = true;
        let held = std::mem::take(&mut state.held).into_iter();
        let (given, over): (BTreeMap<_, _>, Vec<_>) = {
            let (given, over): (Vec<_>, Vec<_>) = held.partition(|(_, held)| held.is_given);
            (given.into_iter().collect(), over)
        };
        state.held = given;
        state.came.clear();
        state.known.clear();
        drop(state);
        drop(over);
        self.end_if_done();
    }

    /// Looks from time to time, in case that a device fails and says nothing
    fn schedule(&self) {
        let mut state = lock(&self.state);
        if !std::mem::replace(&mut state.is_scheduled, true)
            && let (Some(engine), Some(id)) = (self.engine.upgrade(), self.id.get())
        {
            drop(state);
            engine.schedule(*id, Instant::now() + LOOK_INTERVAL);
        }
    }

    /// Reads what has come
    fn drain(&self) {
        let mut bytes = [0; PACKET_BYTES];
        loop {
            let received = match packets::receive(&self.outbox.socket, &mut bytes) {
                Ok(received) if received.bytes == 0 => return self.handle_end(),
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => return self.handle_end(),
            };
            if received.bytes != PACKET_BYTES || received.is_cut {
                tracing::warn!(
                    bytes = received.bytes,
                    "a packet of no size that was agreed on"
                );
                return self.handle_end();
            }
            let packet = match Packet::decode(&bytes, received.descriptors) {
                Err(_) if received.is_descriptor_lost => {
                    let detail = "this process can hold no more descriptors".to_owned();
                    if let Ok(Some(slot)) = Packet::slot(&bytes) {
                        lock(&self.state).known.learn(slot, Err(detail.clone()));
                    }
                    let ticket = Packet::ticket(&bytes);
                    Ok(Packet::Failed { ticket, detail })
                }
                packet => packet,
            };
            if let Err(why) = packet.and_then(|packet| self.handle_packet(packet)) {
                tracing::warn!(why, "the peer's CUDA carrier says what it must not");
                return self.handle_end();
            }
        }
    }

    fn handle_packet(&self, packet: Packet) -> Result<(), String> {
        let mut state = lock(&self.state);
        let is_returned = matches!(packet, Packet::Returned { .. });
        let over = state.handle(packet);
        drop(state);
        // May call CUDA.
        drop(over?);
        if is_returned {
            self.end_if_done();
        }
        Ok(())
    }

    /// The peer has ended, or says nonsense: nothing comes back
    fn handle_end(&self) {
        let mut state = lock(&self.state);
        let was_ended = std::mem::replace(&mut state.is_ended, true);
        let held = std::mem::take(&mut state.held);
        drop(state);
        drop(held);
        if !was_ended {
            self.unwatch();
        }
        self.doorbell.notify();
    }

    fn end_if_done(&self) {
        let mut state = lock(&self.state);
        let is_done = state.is_left && state.held.is_empty() && lock(&self.outbox.late).is_empty();
        if is_done && !std::mem::replace(&mut state.is_ended, true) {
            drop(state);
            self.unwatch();
        }
    }

    fn unwatch(&self) {
        if let (Some(engine), Some(id)) = (self.engine.upgrade(), self.id.get()) {
            engine.unwatch(&self.outbox.socket);
            engine.unwatch(&self.outbox.wake);
            engine.deregister(*id);
        }
    }

    /// Tells the peer of devices that have failed
    fn look_at_held(&self) -> bool {
        let mut state = lock(&self.state);
        let mut is_waiting = !state.moving.is_empty();
        let mut failed = Vec::new();
        for (ticket, held) in &mut state.held {
            let Some(transfer) = held.transfer.as_ref().filter(|_| !held.is_settled) else {
                continue;
            };
            match transfer.ask_over() {
                Ok(is_over) => held.is_settled = is_over,
                Err(error) => {
                    held.is_settled = true;
                    failed.push((*ticket, error.to_string()));
                }
            }
            is_waiting |= !held.is_settled;
        }
        state.is_scheduled = is_waiting;
        drop(state);
        for (ticket, detail) in failed {
            self.outbox.post(&Packet::Failed { ticket, detail });
        }
        is_waiting
    }
}

impl State {
    /// Takes the peer's report on a ticket, if it has come
    fn take(&mut self, ticket: Ticket, bytes: u64) -> Option<Came> {
        let place = match ticket {
            Ticket::Counted(ticket) => return self.came.remove(&ticket),
            Ticket::Local(address) => Offered::Local(address),
            Ticket::Known(slot, offset) => match self.known.find(slot, offset)? {
                Ok(export) => Offered::Exported(export),
                Err(detail) => return Some(Came::Failed(detail)),
            },
        };
        Some(Came::Offer {
            bytes,
            is_given: false,
            place,
        })
    }

    /// Takes in what the peer says, returning what is over with it, to be dropped without a lock
    ///
    /// # Errors
    ///
    /// Packets that a correct peer does not send.
    fn handle(&mut self, packet: Packet) -> Result<Option<Held>, String> {
        let (ticket, came) = match packet {
            Packet::Offer {
                ticket,
                lowest,
                bytes,
                is_given,
                slot,
                place,
            } => {
                self.forget_below(lowest);
                if let (Some(slot), Offered::Exported(export)) = (slot, &place) {
                    self.known.learn(slot, Ok(export.clone()));
                }
                let came = Came::Offer {
                    bytes,
                    is_given,
                    place,
                };
                (ticket, came)
            }
            Packet::Failed { ticket, detail } => (ticket, Came::Failed(detail)),
            Packet::Returned { ticket } => {
                let is_given = self.held.get(&ticket).is_some_and(|held| held.is_given);
                return Ok(is_given.then(|| self.held.remove(&ticket)).flatten());
            }
        };
        // No receive is going to ask for it.
        if self.is_left {
            return Ok(None);
        }
        if self.came.len() >= OFFERS_MAX {
            return Err(format!("more than {OFFERS_MAX} segments at once"));
        }
        self.came.insert(ticket, came);
        Ok(None)
    }

    /// Forgets offers that are over, which no receive is going to take
    fn forget_below(&mut self, lowest: u64) {
        while let Some(first) = self.came.first_entry()
            && *first.key() < lowest
        {
            first.remove();
        }
    }
}

impl Source for Exchange {
    fn on_ready(self: Arc<Self>, port: u8, flags: EventFlags) {
        let Some(engine) = self.engine.upgrade() else {
            return;
        };
        if port == PORT_WAKE {
            self.outbox.wake.clear();
        }
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR)
            && port == PORT_SOCKET
        {
            self.drain();
            // Receives that wait for one of them sleep on this doorbell.
            self.doorbell.notify();
        }
        if lock(&self.state).is_ended {
            return;
        }
        let wanted = if self.outbox.flush() {
            EventFlags::IN
        } else {
            EventFlags::IN | EventFlags::OUT
        };
        if let Some(id) = self.id.get() {
            // Watched since the start.
            let _ = engine.rewatch(*id, PORT_SOCKET, &self.outbox.socket, wanted);
        }
        self.end_if_done();
    }

    fn on_deadline(self: Arc<Self>, now: Instant) -> Option<Instant> {
        let is_waiting = self.look_at_held();
        if is_waiting {
            self.doorbell.notify();
        }
        is_waiting.then(|| now + LOOK_INTERVAL)
    }

    fn on_stop(self: Arc<Self>) {
        lock(&self.state).is_ended = true;
    }
}

impl Outbox {
    /// Sends a packet, now or when there is room
    pub(super) fn post(&self, packet: &Packet) {
        let encoded = packet.encode();
        let mut late = lock(&self.late);
        if late.is_empty() {
            match encoded.send(&self.socket) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // The peer has ended: no receive asks for it.
                _ => return,
            }
        }
        late.push_back(encoded);
        drop(late);
        self.wake.notify();
    }

    /// Sends what was late, returning whether nothing is left
    fn flush(&self) -> bool {
        let mut late = lock(&self.late);
        while let Some(encoded) = late.front() {
            match encoded.send(&self.socket) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                _ => late.pop_front(),
            };
        }
        true
    }
}

/// Handler of a peer's packets about memory of devices, without a device
#[derive(Default)]
pub struct CudaPackets(State);

impl CudaPackets {
    /// A packet comes, with its descriptors; gives it back as it would be sent
    ///
    /// # Errors
    ///
    /// Describes the fault of the packet, which ends the carrier.
    pub fn receive(
        &mut self,
        bytes: &[u8; PACKET_BYTES],
        descriptors: Vec<OwnedFd>,
    ) -> Result<[u8; PACKET_BYTES], String> {
        let packet = Packet::decode(bytes, descriptors)?;
        let encoded = packet.encode();
        self.0.handle(packet)?;
        Ok(encoded.bytes)
    }

    /// Takes what has come under a ticket, returning whether there was something
    pub fn take(&mut self, ticket: u64) -> bool {
        self.0.take(Ticket::decode(ticket), 0).is_some()
    }

    /// How much waits to be taken
    pub fn held(&self) -> usize {
        self.0.came.len()
    }
}

const PORT_SOCKET: u8 = 0;
const PORT_WAKE: u8 = 1;

/// Interval of the checks for a failed device, because no callback reports the failure
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Offers of a peer that wait at once: as many as sends and their segments can wait there
const OFFERS_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_peer_says_and_nobody_asks_for_is_bounded() {
        let mut state = State::default();
        let failed = |ticket| Packet::Failed {
            ticket,
            detail: String::new(),
        };
        for ticket in 0..OFFERS_MAX as u64 {
            assert!(state.handle(failed(ticket)).is_ok());
        }
        let refused = state.handle(failed(u64::MAX)).err();
        assert!(refused.is_some_and(|why| why.contains("segments at once")));
        assert_eq!(state.came.len(), OFFERS_MAX);
    }
}
