//! What one side should do with receives and messages, said as plainly as possible.

use std::collections::HashMap;

use backhaul_proto::{MessageKind, RecvId, Selector};

/// Matching as the standard of MPI words it, with no thought for speed
#[derive(Debug, Default)]
pub(crate) struct Model {
    /// Receives that wait, oldest first
    pub(crate) posted: Vec<(Selector, RecvId)>,
    /// Messages that wait, oldest first
    pub(crate) unexpected: Vec<Waiting>,
    /// Number of the message of each receive that has met one
    pub(crate) matched: HashMap<RecvId, usize>,
}

#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) kind: MessageKind,
    /// Number of the message, in the order they were sent
    pub(crate) message: usize,
    pub(crate) is_eager: bool,
    pub(crate) bytes: u64,
}

impl Model {
    pub(crate) fn arrive(&mut self, waiting: Waiting) {
        let wants = |posted: &(Selector, RecvId)| wants(posted.0, waiting.kind);
        match self.posted.iter().position(wants) {
            Some(index) => {
                let (_, recv) = self.posted.remove(index);
                self.matched.insert(recv, waiting.message);
            }
            None => self.unexpected.push(waiting),
        }
    }

    /// Bytes of credit that waiting messages hold
    pub(crate) fn eager_bytes(&self) -> u64 {
        let eager = self.unexpected.iter().filter(|waiting| waiting.is_eager);
        eager.map(|waiting| waiting.bytes).sum()
    }

    /// Whether a message waits for such a receive
    pub(crate) fn has(&self, selector: Selector) -> bool {
        self.unexpected.iter().any(|m| wants(selector, m.kind))
    }

    pub(crate) fn post(&mut self, selector: Selector, recv: RecvId) {
        match self.unexpected.iter().position(|m| wants(selector, m.kind)) {
            Some(index) => {
                let waiting = self.unexpected.remove(index);
                self.matched.insert(recv, waiting.message);
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
