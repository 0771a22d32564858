//! One connection: commands and frames in, events and frames out.

mod event;

use std::time::Instant;

pub use event::{
    ConnectionStatistics, Event, HeaderBytes, Incoming, PayloadRange, Store, Transmit,
};

use crate::decoder::Frame;
use crate::error::{ProtocolError, RecvRefused, SendRefused};
use crate::ids::{ArrivalId, Capacity, MessageKind, RecvId, Selector, SendId};
use crate::limits::{Limits, PeerLimits};
use crate::liveness::KeepAliveExpired;

/// The protocol state of one connection
#[derive(Debug)]
pub struct Connection {}

#[allow(missing_docs, clippy::missing_errors_doc, unused_variables)]
impl Connection {
    #[must_use]
    pub fn new(limits: Limits, peer: PeerLimits, now: Instant) -> Self {
        todo!()
    }
    pub fn send(
        &mut self,
        id: SendId,
        kind: MessageKind,
        segment_bytes: &[u64],
    ) -> Result<(), SendRefused> {
        todo!()
    }
    pub fn post_recv(
        &mut self,
        id: RecvId,
        selector: Selector,
        capacity: Capacity,
    ) -> Result<(), RecvRefused> {
        todo!()
    }
    pub fn cancel_recv(&mut self, id: RecvId) -> bool {
        todo!()
    }
    pub fn cancel_send(&mut self, id: SendId) -> bool {
        todo!()
    }
    pub fn close(&mut self, now: Instant) {
        todo!()
    }
    pub fn handle_frame(&mut self, now: Instant, frame: Frame) -> Result<Incoming, ProtocolError> {
        todo!()
    }
    pub fn handle_payload(&mut self, now: Instant, arrival: ArrivalId) {
        todo!()
    }
    pub fn handle_activity(&mut self, now: Instant) {
        todo!()
    }
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), KeepAliveExpired> {
        todo!()
    }
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        todo!()
    }
    pub fn poll_event(&mut self) -> Option<Event> {
        todo!()
    }
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        todo!()
    }
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        todo!()
    }
    #[must_use]
    pub fn peer_closed(&self) -> bool {
        todo!()
    }
    #[must_use]
    pub fn limits(&self) -> &Limits {
        todo!()
    }
    #[must_use]
    pub fn statistics(&self) -> ConnectionStatistics {
        todo!()
    }
}
