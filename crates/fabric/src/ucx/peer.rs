//! The one endpoint to a worker of a peer, which all connections to that worker share.
//!
//! UCX pairs the endpoints of two workers by the order in which they were made, so of several
//! connections that come and go each side might pair others, and to close one endpoint would break a
//! connection that has nothing to do with it. So there is one, and it is closed when the peer is known
//! to be dead, or when the context ends.

use std::sync::{Arc, Mutex, OnceLock, Weak};

use backhaul_ucx::endpoint::ShortMessage;
use backhaul_ucx::{Endpoint, Failed, Header, Status, Worker};

use super::inbox::Inbox;
use crate::runtime::lock;

/// The way to a worker of a peer
#[derive(Debug)]
pub(crate) struct PeerEnd {
    endpoint: Endpoint,
    connections: Arc<Connections>,
}

/// The connections over an endpoint
#[derive(Debug, Default)]
struct Connections {
    inboxes: Mutex<Vec<Weak<Inbox>>>,
    /// Why the endpoint is of no further use
    failure: OnceLock<String>,
}

impl PeerEnd {
    /// Connects; nothing is waited for
    pub(super) fn connect(worker: &Worker, address: &[u8]) -> Result<Arc<Self>, Failed> {
        let connections = Arc::new(Connections::default());
        let told = Arc::clone(&connections);
        let on_error = move |status: Status| told.fail(&status.to_string());
        let endpoint = worker.connect(address, on_error)?;
        Ok(Arc::new(Self {
            endpoint,
            connections,
        }))
    }

    /// Returns whether connections can be made over it
    pub(super) fn is_usable(&self) -> bool {
        self.connections.failure.get().is_none()
    }

    /// Returns whether a connection has it
    pub(super) fn is_in_use(&self) -> bool {
        let inboxes = lock(&self.connections.inboxes);
        inboxes.iter().any(|inbox| inbox.strong_count() > 0)
    }

    /// Has a connection told when the endpoint fails
    pub(super) fn join(&self, inbox: &Arc<Inbox>) {
        let mut inboxes = lock(&self.connections.inboxes);
        inboxes.retain(|inbox| inbox.strong_count() > 0);
        inboxes.push(Arc::downgrade(inbox));
        drop(inboxes);
        if let Some(why) = self.connections.failure.get() {
            inbox.fail(why.clone());
        }
    }

    /// The endpoint
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Sends a message that has a header only; an error shows as the failure of the endpoint
    pub(crate) fn tell(&self, header: Header) {
        self.tell_text(header, &[]);
    }

    /// As [`tell`](Self::tell), with a few bytes
    pub(crate) fn tell_text(&self, header: Header, text: &[u8]) {
        let message = ShortMessage {
            header,
            bytes: text.to_vec(),
            ..ShortMessage::default()
        };
        if let Err(error) = self.endpoint().send_short(Box::new(message)) {
            tracing::debug!(%error, "a message of UCX was not sent");
        }
    }

    /// Ends everything over it; what is under way ends as the worker makes progress
    pub(super) fn kill(&self, why: &str) {
        self.connections.fail(why);
        self.endpoint().close();
    }
}

impl Connections {
    fn fail(&self, why: &str) {
        self.failure.get_or_init(|| why.to_owned());
        // Not under the lock: inboxes have their own.
        let inboxes = std::mem::take(&mut *lock(&self.inboxes));
        for inbox in inboxes.iter().filter_map(Weak::upgrade) {
            inbox.fail(why.to_owned());
        }
    }
}
