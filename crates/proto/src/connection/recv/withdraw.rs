//! What a receive gives back: its place in the queue, or the message that it has met or got.

use std::collections::VecDeque;

use super::{Arrival, Posted, RecvHalf, Stage, UNTAGGED};
use crate::connection::event::{Event, Withdrawn};
use crate::ids::{ArrivalId, MessageKind, RecvId};

impl RecvHalf {
    /// Withdraws a receive; linear in the number of receives and of messages under way
    pub(in crate::connection) fn withdraw(
        &mut self,
        recv: RecvId,
        events: &mut VecDeque<Event>,
    ) -> Withdrawn {
        let is_it = |posted: &Posted| posted.recv == recv;
        if self.tagged.cancel(is_it).is_some() || self.untagged.cancel(is_it).is_some() {
            return Withdrawn::Waiting;
        }
        let mut met = self.arrivals.iter_mut();
        let met = met.find(|(_, state)| state.claim.as_ref().is_some_and(is_it));
        let Some((index, state)) = met.filter(|(_, state)| !state.is_discarded) else {
            return Withdrawn::No;
        };
        state.claim = None;
        let arrival = ArrivalId(index);
        self.offer(arrival, events);
        Withdrawn::Met(arrival)
    }

    /// Takes back a message that a receive had got and nobody has seen
    pub(in crate::connection) fn restore(
        &mut self,
        message: u64,
        kind: MessageKind,
        bytes: u64,
        events: &mut VecDeque<Event>,
    ) -> ArrivalId {
        // How many segments it has, and whether it came eagerly, is forgotten: it counts as a short
        // one, so that at least the number of messages that wait is bounded.
        let cost = self.credit.cost_of_request(1);
        let arrival = ArrivalId(self.arrivals.insert(Arrival {
            message,
            kind,
            bytes,
            unannounced_bytes: 0,
            missing_bytes: 0,
            stage: Stage::Accepted,
            cost,
            early_bytes: 0,
            claim: None,
            is_discarded: false,
        }));
        self.offer(arrival, events);
        arrival
    }

    /// Gives a message that has no receive to the first that wants it, or keeps it in its order
    fn offer(&mut self, arrival: ArrivalId, events: &mut VecDeque<Event>) {
        let state = &self.arrivals[arrival.0];
        let (message, bytes, cost) = (state.message, state.bytes, state.cost);
        let met = match state.kind {
            MessageKind::Tagged(tag) => self.tagged.arrive(tag, message, arrival),
            MessageKind::Untagged => self.untagged.arrive(UNTAGGED, message, arrival),
        };
        if met.is_some() {
            self.arrivals[arrival.0].claim = met;
            self.finish_if_over(arrival, events);
        } else {
            self.unexpected_bytes += bytes;
            self.credit.reclaim(cost);
        }
    }
}
