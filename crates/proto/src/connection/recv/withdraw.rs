//! Withdrawal of receives: a receive gives back its place in the queue, or its message.

use std::collections::VecDeque;

use super::{Arrival, Posted, RecvHalf, Stage, UNTAGGED};
use crate::connection::event::{Event, Withdrawn};
use crate::ids::{ArrivalId, MessageKind, RecvId};
use crate::queue::Ticket;

/// Where a receive is that is not over
#[derive(Clone, Copy, Debug)]
pub(super) enum Whereabouts {
    /// It waits, among those for tagged messages
    Tagged(Ticket),
    /// It waits, among those for untagged messages
    Untagged(Ticket),
    /// It has met a message
    Met(ArrivalId),
}

impl RecvHalf {
    /// Withdraws a receive
    pub(in crate::connection) fn withdraw(
        &mut self,
        recv: RecvId,
        events: &mut VecDeque<Event>,
    ) -> Withdrawn {
        let waiting = match self.whereabouts.get(recv.0) {
            None => None,
            Some(Whereabouts::Tagged(ticket)) => self.tagged.cancel(ticket),
            Some(Whereabouts::Untagged(ticket)) => self.untagged.cancel(ticket),
            Some(Whereabouts::Met(arrival)) => return self.withdraw_met(recv, arrival, events),
        };
        match waiting {
            Some(_) => Withdrawn::Waiting,
            None => Withdrawn::No,
        }
    }

    /// Withdraws a receive that has met a message, unless it is over
    fn withdraw_met(
        &mut self,
        recv: RecvId,
        arrival: ArrivalId,
        events: &mut VecDeque<Event>,
    ) -> Withdrawn {
        let met = self.arrivals.get_mut(arrival.0);
        let met = met.filter(|state| state.claim.is_some_and(|posted| posted.recv == recv));
        let Some(state) = met.filter(|state| !state.is_discarded) else {
            return Withdrawn::No;
        };
        state.claim = None;
        self.offer(arrival, events);
        Withdrawn::Met(arrival)
    }

    /// Notes that a receive has met a message
    pub(super) fn note_met(&mut self, posted: Posted, arrival: ArrivalId) {
        self.whereabouts
            .put(posted.recv.0, Whereabouts::Met(arrival));
    }

    /// Takes back a message that a receive had got and no caller has seen
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
        if let Some(posted) = met {
            self.note_met(posted, arrival);
            self.arrivals[arrival.0].claim = met;
            self.finish_if_over(arrival, events);
        } else {
            self.unexpected_bytes += bytes;
            self.credit.reclaim(cost);
        }
    }
}
