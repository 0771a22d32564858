//! The driver's answers to the question how the bytes of a message are to come.

use std::collections::VecDeque;

use super::{RecvHalf, Stage};
use crate::connection::event::Event;
use crate::frame::{FrameHeader, FrameKind};
use crate::ids::ArrivalId;

impl RecvHalf {
    /// The driver wants the bytes of a message in frames
    pub(in crate::connection) fn accept(
        &mut self,
        arrival: ArrivalId,
        carrier: u8,
        advice_bytes: u64,
    ) {
        let state = &mut self.arrivals[arrival.0];
        assert!(
            matches!(state.stage, Stage::Asked | Stage::Fetching),
            "a message is accepted once, when it is asked for"
        );
        state.stage = Stage::Accepted;
        self.answers.push_back(FrameHeader {
            carrier,
            tag: advice_bytes,
            ..FrameHeader::bare(FrameKind::Accept, state.message)
        });
    }

    /// The driver has no place for the bytes of a message: its receive ends without them
    pub(in crate::connection) fn skip(&mut self, arrival: ArrivalId, events: &mut VecDeque<Event>) {
        let state = &mut self.arrivals[arrival.0];
        assert!(
            matches!(state.stage, Stage::Asked),
            "a message is skipped when it is asked for"
        );
        state.stage = Stage::Accepted;
        state.unannounced_bytes = 0;
        state.missing_bytes = 0;
        let message = state.message;
        self.unfinished.remove(&message);
        self.answers
            .push_back(FrameHeader::bare(FrameKind::Skip, message));
        self.finish_if_over(arrival, events);
    }

    /// The driver fetches the bytes of a message by itself
    pub(in crate::connection) fn fetch(&mut self, arrival: ArrivalId) {
        let state = &mut self.arrivals[arrival.0];
        assert!(
            matches!(state.stage, Stage::Asked),
            "a message is fetched once, when it is asked for"
        );
        state.stage = Stage::Fetching;
    }

    /// The driver has fetched all bytes of a message
    pub(in crate::connection) fn handle_fetched(
        &mut self,
        arrival: ArrivalId,
        advice_bytes: u64,
        events: &mut VecDeque<Event>,
    ) {
        let state = &mut self.arrivals[arrival.0];
        assert!(
            matches!(state.stage, Stage::Fetching),
            "a message is fetched after it was asked for"
        );
        state.stage = Stage::Accepted;
        state.unannounced_bytes = 0;
        state.missing_bytes = 0;
        let message = state.message;
        self.unfinished.remove(&message);
        self.answers.push_back(FrameHeader {
            tag: advice_bytes,
            ..FrameHeader::bare(FrameKind::Fetched, message)
        });
        self.finish_if_over(arrival, events);
    }
}
