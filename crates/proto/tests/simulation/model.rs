//! Reference model of one side's receives and messages, as plain as possible.

use std::collections::HashMap;

use backhaul_proto::{FrameHeader, FrameKind, MessageKind, RecvId, Selector};

/// Matching as the standard of MPI words it, with no thought for speed
#[derive(Debug, Default)]
pub(crate) struct Model {
    /// Receives that wait, oldest first
    pub(crate) posted: Vec<(Selector, RecvId)>,
    /// Messages that wait, in the order they were sent
    pub(crate) unexpected: Vec<Waiting>,
    /// The message of each receive that has met one
    pub(crate) matched: HashMap<RecvId, Waiting>,
}

/// A message that has come, or is on its way
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    pub(crate) kind: MessageKind,
    /// Number of the message, in the order they were sent
    pub(crate) message: usize,
    pub(crate) is_eager: bool,
    pub(crate) bytes: u64,
    /// Credit that it holds while it waits: messages, and bytes
    pub(crate) cost: (u64, u64),
    /// True if a withdrawn receive had it
    pub(crate) is_returned: bool,
}

impl Waiting {
    /// A message that starts, where the window for messages has that size
    pub(crate) fn new(header: &FrameHeader, window: u64) -> Self {
        let segments = u64::from(header.segment_count);
        let bytes = header.payload_bytes;
        let is_eager = header.kind == FrameKind::Eager;
        let cost_bytes = if is_eager && bytes > 0 {
            bytes + 128 * (segments - 1)
        } else {
            0
        };
        Self {
            kind: header.message_kind(),
            message: header.message as usize,
            is_eager,
            bytes,
            cost: (cost_in_messages(segments, window), cost_bytes),
            is_returned: false,
        }
    }
}

/// Credit for messages that one takes, where the window has that size
pub(crate) fn cost_in_messages(segments: u64, window: u64) -> u64 {
    let quarter = (window / 4).max(1);
    (1 + segments / 64).min(quarter)
}

impl Model {
    /// A message starts; returns the receive that it meets
    pub(crate) fn arrive(&mut self, waiting: Waiting) -> Option<RecvId> {
        let wants = |posted: &(Selector, RecvId)| wants(posted.0, waiting.kind);
        if let Some(index) = self.posted.iter().position(wants) {
            let (_, recv) = self.posted.remove(index);
            self.matched.insert(recv, waiting);
            return Some(recv);
        }
        self.unexpected.push(waiting);
        self.unexpected.sort_by_key(|waiting| waiting.message);
        None
    }

    /// A message whose receive was withdrawn is there for others
    pub(crate) fn put_back(&mut self, waiting: Waiting) {
        self.arrive(Waiting {
            is_returned: true,
            ..waiting
        });
    }

    /// Credit that waiting messages hold: messages, and bytes
    pub(crate) fn held_credit(&self) -> (u64, u64) {
        let costs = self.unexpected.iter().map(|waiting| waiting.cost);
        costs.fold((0, 0), |sum, cost| (sum.0 + cost.0, sum.1 + cost.1))
    }

    /// As [`held_credit`](Self::held_credit), but for messages whose receive was withdrawn
    ///
    /// Those come on top of the window: what they had given back was granted.
    pub(crate) fn first_held_credit(&self) -> (u64, u64) {
        let first = self
            .unexpected
            .iter()
            .filter(|waiting| !waiting.is_returned);
        let costs = first.map(|waiting| waiting.cost);
        costs.fold((0, 0), |sum, cost| (sum.0 + cost.0, sum.1 + cost.1))
    }

    /// Bytes of waiting messages that were not fetched early
    pub(crate) fn stored_bytes(&self) -> u64 {
        let stored = |waiting: &&Waiting| waiting.is_eager || waiting.is_returned;
        let stored = self.unexpected.iter().filter(stored);
        stored.map(|waiting| waiting.bytes).sum()
    }

    /// Returns whether a message waits for such a receive
    pub(crate) fn has(&self, selector: Selector) -> bool {
        self.unexpected.iter().any(|m| wants(selector, m.kind))
    }

    pub(crate) fn post(&mut self, selector: Selector, recv: RecvId) {
        match self.unexpected.iter().position(|m| wants(selector, m.kind)) {
            Some(index) => {
                let waiting = self.unexpected.remove(index);
                self.matched.insert(recv, waiting);
            }
            None => self.posted.push((selector, recv)),
        }
    }

    /// Takes back a receive, returning whether it waited
    pub(crate) fn cancel(&mut self, recv: RecvId) -> bool {
        let before = self.posted.len();
        self.posted.retain(|posted| posted.1 != recv);
        self.posted.len() < before
    }
}

fn wants(selector: Selector, kind: MessageKind) -> bool {
    match (selector, kind) {
        (Selector::Tagged { tag, mask }, MessageKind::Tagged(sent)) => {
            sent.0 & mask.0 == tag.0 & mask.0
        }
        (Selector::Untagged, MessageKind::Untagged) => true,
        _ => false,
    }
}
