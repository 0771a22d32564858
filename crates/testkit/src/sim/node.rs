//! One side: the link that production runs, and a driver for it that is made of small steps.

use std::io::IoSlice;
use std::time::{Duration, Instant};

use backhaul::CloseReason;
use backhaul::seams::{
    Carriers, Delivery, Link, LinkEvent, Now, Payload, ReadTargets, TakeError, TakeRequest,
    TakeTarget,
};
use backhaul_proto::{Given, MessageKind, Offer, SegmentSource, Sources};
use smallvec::SmallVec;

use super::carrier::Exchange;
use super::lane::{Moved, Wire};
use super::model::Direction;
use crate::random::Random;

/// One side of the connection
pub(super) struct Node {
    pub(super) link: Link<u64, u64>,
    pub(super) carriers: Carriers,
    payloads: Vec<(TakeRequest, Box<dyn Payload>)>,
    /// Gifts and offers of this side
    pub(super) exchange: Exchange,
    pub(super) closed: Option<CloseReason>,
    /// A close was begun here
    pub(super) is_closing: bool,
    /// Deliveries that may still go back
    pub(super) deliveries: Vec<Delivery>,
    pub(super) next_operation: u64,
    /// Gifts of the peer that were lost, as the model has them
    losses_told: usize,
}

/// Surroundings that a step of a node works with
pub(super) struct Surroundings<'a> {
    pub(super) now: u64,
    pub(super) started: Instant,
    pub(super) random: &'a mut Random,
    pub(super) incoming: &'a mut Wire,
    pub(super) outgoing: &'a mut Wire,
    /// Of what this side sends
    pub(super) sends: &'a mut Direction,
    /// Of what this side receives
    pub(super) recvs: &'a mut Direction,
    pub(super) their_exchange: &'a Exchange,
    /// Incoming bytes may be wrong
    pub(super) is_corrupt: bool,
}

impl Surroundings<'_> {
    pub(super) fn now(&self) -> Now {
        Now::at(self.instant())
    }

    pub(super) fn instant(&self) -> Instant {
        self.started + Duration::from_micros(self.now)
    }
}

impl Node {
    pub(super) fn new(link: Link<u64, u64>, carriers: Carriers, exchange: Exchange) -> Self {
        Self {
            link,
            carriers,
            payloads: Vec::new(),
            exchange,
            closed: None,
            is_closing: false,
            deliveries: Vec::new(),
            next_operation: 0,
            losses_told: 0,
        }
    }

    pub(super) fn operation(&mut self) -> u64 {
        self.next_operation += 1;
        self.next_operation
    }

    /// Returns whether carriers have something to bring
    pub(super) fn is_taking(&self) -> bool {
        !self.payloads.is_empty()
    }

    /// How the peer may fetch the segments, if it may fetch all of them
    pub(super) fn offers(&mut self, segments: &backhaul::Segments) -> Sources {
        let mut sources = Sources::new();
        let is_on_device = segments.iter().any(|segment| segment.kind().is_device());
        if self.carriers.is_empty() || !(self.link.choose_offers(segments.bytes()) || is_on_device)
        {
            return sources;
        }
        for segment in segments.iter() {
            let mut offer = None;
            if !segment.is_empty() {
                let offered = self.carriers.offer(segment).expect("memory that is there");
                let Some((carrier, token)) = offered else {
                    return Sources::new();
                };
                offer = Some(Offer { carrier, token });
            }
            sources.push(SegmentSource {
                memory: segment.kind(),
                offer,
            });
        }
        sources
    }

    /// Sends a short message if it goes at once, returning whether it is out
    pub(super) fn send_inline(
        &mut self,
        kind: MessageKind,
        sizes: &[u64],
        bytes: &[u8],
        around: &mut Surroundings<'_>,
    ) -> bool {
        let payload_bytes = sizes.iter().sum();
        if self.link.would_offer(payload_bytes) {
            return false;
        }
        let Some(frame_bytes) = self.link.inline_frame_bytes(sizes.len(), payload_bytes) else {
            return false;
        };
        let room = around.outgoing.room();
        if self.closed.is_some() || room < frame_bytes || around.outgoing.is_read_off {
            return false;
        }
        if around.outgoing.is_broken {
            return false;
        }
        let Some(header) = self.link.send_inline(kind, sizes) else {
            return false;
        };
        assert_eq!(header.len() + bytes.len(), frame_bytes);
        let slices = [IoSlice::new(&header), IoSlice::new(bytes)];
        let written = around
            .outgoing
            .write(around.now, around.random, &slices, usize::MAX);
        assert_eq!(written, Moved::Bytes(frame_bytes));
        self.link.handle_not_offered(payload_bytes);
        true
    }

    /// Takes some of what has arrived, returning whether anything was there
    pub(super) fn read(&mut self, bytes_max: usize, around: &mut Surroundings<'_>) -> bool {
        if self.closed.is_some() {
            return false;
        }
        let mut targets = ReadTargets::new();
        self.link.read_targets(&mut targets);
        let moved = around.incoming.read(around.now, &mut targets, bytes_max);
        drop(targets);
        match moved {
            Moved::Bytes(bytes) => {
                while let Some(start) = around.incoming.poll_start() {
                    if !around.is_corrupt {
                        around.recvs.start(start);
                    }
                }
                self.link.handle_read(&around.now(), bytes);
            }
            Moved::Blocked => return false,
            Moved::End => self.link.handle_end(),
            Moved::Broken => self.link.handle_lane_error(reset()),
        }
        self.settle(around);
        // At the end there may be something left that carriers are to bring.
        matches!(moved, Moved::Bytes(_)) || self.closed.is_some()
    }

    /// Writes some of what is to be written, returning whether the lane took any
    pub(super) fn write(&mut self, bytes_max: usize, around: &mut Surroundings<'_>) -> bool {
        if self.closed.is_some() {
            return false;
        }
        self.settle(around);
        let mut slices: SmallVec<[IoSlice<'_>; 16]> = SmallVec::new();
        self.link.write_slices(&mut slices);
        if slices.is_empty() {
            return false;
        }
        let moved = around
            .outgoing
            .write(around.now, around.random, &slices, bytes_max);
        drop(slices);
        match moved {
            Moved::Bytes(bytes) => self.link.handle_written(bytes),
            Moved::Blocked => return false,
            Moved::End | Moved::Broken => {
                // Bytes that the peer sent before it ended may still be here.
                while self.read(usize::MAX, around) {}
                self.link.handle_lane_error(reset());
            }
        }
        self.settle(around);
        matches!(moved, Moved::Bytes(_)) || self.closed.is_some()
    }

    /// Has one of the carriers bring something, returning whether it did
    pub(super) fn take(&mut self, around: &mut Surroundings<'_>) -> bool {
        if self.payloads.is_empty() {
            return false;
        }
        let index = around.random.below(self.payloads.len());
        let moved = self.take_from(index, around);
        self.settle(around);
        moved
    }

    /// As [`Node::take`], for all of them
    pub(super) fn take_all(&mut self, around: &mut Surroundings<'_>) -> bool {
        let mut moved = false;
        let mut index = self.payloads.len();
        while index > 0 {
            index = (index - 1).min(self.payloads.len().saturating_sub(1));
            if index < self.payloads.len() {
                moved |= self.take_from(index, around);
                self.settle(around);
            }
        }
        moved
    }

    fn take_from(&mut self, index: usize, around: &Surroundings<'_>) -> bool {
        let (request, payload) = &mut self.payloads[index];
        let id = request.id;
        let bytes_max = 1 << 20;
        let read = match self.link.take_target(id, bytes_max) {
            TakeTarget::Host(mut targets) => Some(payload.read(&mut targets)),
            TakeTarget::Device(memory) => Some(payload.read_to_device(&memory)),
            TakeTarget::Nowhere => None,
        };
        let now = around.now();
        match read {
            None => {
                let left = self.link.take_left(id);
                self.payloads.swap_remove(index);
                self.link.handle_taken(&now, id, left);
                true
            }
            Some(Ok(bytes)) => {
                let is_over = self.link.take_left(id) == bytes as u64;
                if is_over {
                    self.payloads.swap_remove(index);
                }
                self.link.handle_taken(&now, id, bytes as u64);
                bytes > 0
            }
            Some(Err(error)) => {
                let (request, _) = self.payloads.swap_remove(index);
                self.fail_take(&request, error, around);
                true
            }
        }
    }

    fn begin_take(&mut self, request: TakeRequest, around: &Surroundings<'_>) {
        let taken = self
            .carriers
            .take(request.carrier, request.ticket, request.bytes);
        let mut payload = match taken {
            Ok(payload) => payload,
            Err(error) => return self.fail_take(&request, error, around),
        };
        if self.link.wants_whole(request.id) {
            match payload.adopt() {
                Ok(None) => {}
                Ok(Some(memory)) => {
                    return self.link.handle_adopted(&around.now(), request.id, memory);
                }
                Err(error) => return self.fail_take(&request, error, around),
            }
        }
        self.payloads.push((request, payload));
    }

    fn fail_take(&mut self, request: &TakeRequest, error: TakeError, around: &Surroundings<'_>) {
        match error {
            TakeError::Broken { detail } => self.link.handle_bad_ticket(request.ticket, detail),
            TakeError::OutOfReach { .. } => {
                let detail = "the simulator says so".to_owned();
                self.link
                    .handle_take_failed(&around.now(), request.id, detail);
            }
            error => panic!("{error}"),
        }
    }

    /// Drains whatever the link has to say
    pub(super) fn settle(&mut self, around: &mut Surroundings<'_>) {
        self.settle_with(around, None);
    }

    /// As [`Node::settle`], after an operation was posted
    pub(super) fn settle_with(&mut self, around: &mut Surroundings<'_>, new: Option<u64>) {
        loop {
            let mut is_idle = true;
            while let Some(request) = self.link.poll_take() {
                is_idle = false;
                self.begin_take(request, around);
            }
            let lost = around.their_exchange.lost();
            around.recvs.losses += lost - self.losses_told;
            self.losses_told = lost;
            while let Some(request) = self.link.poll_give() {
                is_idle = false;
                let given = self.carriers.give(request.segment, request.carrier);
                let given = given.map(|(carrier, ticket)| Given { carrier, ticket });
                self.link.handle_given(given);
            }
            self.link.finish_close();
            while let Some(event) = self.link.poll_event() {
                is_idle = false;
                self.handle_event(event, around, new);
            }
            if is_idle {
                return;
            }
        }
    }

    fn handle_event(
        &mut self,
        event: LinkEvent<u64, u64>,
        around: &mut Surroundings<'_>,
        new: Option<u64>,
    ) {
        match event {
            LinkEvent::Closed(reason) => {
                assert!(self.closed.is_none(), "a link ends once");
                self.closed = Some(reason);
                around.incoming.is_read_off = true;
                around.outgoing.is_written_off = true;
                self.exchange.end();
                self.payloads.clear();
                self.carriers.clear();
            }
            LinkEvent::Sent { token, result } => {
                let is_closed = matches!(result, Err(backhaul::SendError::Closed(_)));
                assert!(
                    !is_closed || self.closed.is_some() || self.is_closing,
                    "send {token} fails before the link is said to have ended"
                );
                around.sends.sent(token, &result, new == Some(token));
            }
            LinkEvent::Received { token, .. } if around.is_corrupt => around.recvs.over(token),
            LinkEvent::Received { token, result } => match result {
                Ok(mut delivery) => {
                    around.recvs.received(token, &mut delivery, true);
                    if around.random.below(4) == 0 {
                        self.deliveries.push(delivery);
                    }
                }
                Err(error) => {
                    // A receive that is posted once the peer has closed fails at once.
                    let is_late = new == Some(token) && around.incoming.has_closed();
                    let has_ended = self.closed.is_some() || self.is_closing || is_late;
                    around.recvs.failed(token, &error, has_ended);
                }
            },
        }
    }
}

fn reset() -> backhaul::seams::LaneError {
    std::io::Error::from(std::io::ErrorKind::ConnectionReset).into()
}
