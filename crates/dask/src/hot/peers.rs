//! Workers and clients whose streams are handled: joining, leaving, and waiting for other messages.

use std::sync::Arc;

use super::HotCore;
use super::outgoing::{Batch, Unsayable};
use crate::scheduler::Message;

/// A worker or a client whose stream is handled here
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct PeerId(pub usize);

/// Kind of a peer
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PeerKind {
    /// A worker, by its address
    Worker,
    /// A client, by its name
    Client,
}

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) kind: PeerKind,
    pub(super) name: Arc<str>,
    /// A client that keeps results
    pub(super) keeps_results: bool,
    /// The event loop handles its stream again
    pub(super) is_gone: bool,
    /// The event loop has messages for it that come first
    pub(super) is_held: bool,
    /// It is to have what has no form here first
    pub(super) has_unsaid: bool,
    pub(super) batch: Batch,
}

impl HotCore {
    /// Handles the stream of a peer from now on
    ///
    /// # Panics
    ///
    /// If no streams are handled.
    pub fn add_peer(&mut self, kind: PeerKind, name: &str) -> PeerId {
        let streams = self.streams.as_mut().expect("streams are handled");
        let peer = PeerId(streams.peers.len());
        let name: Arc<str> = Arc::from(name);
        let place = match kind {
            PeerKind::Worker => &mut streams.workers,
            PeerKind::Client => &mut streams.clients,
        };
        place.insert(Arc::clone(&name), peer);
        // Messages to the peer from before its stream was handled here come first.
        let mut unsaid = streams.notes.unsaid.iter();
        let has_unsaid = unsaid.any(|message| match (message, kind) {
            (Message::ToWorker(to, _), PeerKind::Worker)
            | (Message::ToClient(to, _), PeerKind::Client) => *to == name,
            (Message::ToClients(_), PeerKind::Client) => true,
            _ => false,
        });
        streams.peers.push(Peer {
            kind,
            name,
            keeps_results: false,
            is_gone: false,
            is_held: false,
            has_unsaid,
            batch: Batch::default(),
        });
        peer
    }

    /// Handles the stream of a peer no more: what is for it has no form here from now on
    pub fn remove_peer(&mut self, peer: PeerId) {
        let Some(streams) = &mut self.streams else {
            return;
        };
        let gone = &mut streams.peers[peer.0];
        gone.is_gone = true;
        gone.keeps_results = false;
        gone.batch = Batch::default();
        let name = Arc::clone(&gone.name);
        let place = match gone.kind {
            PeerKind::Worker => &mut streams.workers,
            PeerKind::Client => &mut streams.clients,
        };
        // Another may have its name by now.
        if place.get(&name) == Some(&peer) {
            place.remove(&name);
            if let Some(window) = &mut streams.window {
                window.forget(&name);
            }
        }
    }

    /// Says which clients keep results
    pub fn set_keepers(&mut self, clients: &[String]) {
        if let Some(streams) = &mut self.streams {
            for peer in &mut streams.peers {
                peer.keeps_results = peer.kind == PeerKind::Client
                    && clients.iter().any(|client| **client == *peer.name);
            }
        }
    }

    /// Records whether the event loop has messages for a peer that come before the core's
    pub fn hold(&mut self, peer: PeerId, hold: bool) {
        if let Some(streams) = &mut self.streams {
            streams.peers[peer.0].is_held = hold;
        }
    }

    /// Returns whether the event loop has messages for a peer that come before the core's
    pub fn is_held(&self, peer: PeerId) -> bool {
        let streams = self.streams.as_ref();
        streams.is_some_and(|streams| streams.peers[peer.0].is_held)
    }
}

impl Peer {
    /// Writes a message, unless the event loop has yet to send messages that come first
    pub(super) fn say(
        &mut self,
        say: impl FnOnce(&mut Batch) -> Result<(), Unsayable>,
    ) -> Result<(), Unsayable> {
        let said = if self.has_unsaid {
            Err(Unsayable)
        } else {
            say(&mut self.batch)
        };
        self.has_unsaid |= said.is_err();
        said
    }
}
