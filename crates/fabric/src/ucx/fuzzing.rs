//! The messages of a peer over UCX, without UCX.

use std::io::{self, IoSliceMut};
use std::sync::Arc;

use backhaul_shm::doorbell::Doorbell;
use backhaul_ucx::{HEADER_BYTES, Receiver};

use super::hub::Inboxes;
use super::inbox::Inbox;

/// One connection over UCX, as the active messages of its peer find it
pub struct UcxMessages {
    inboxes: Inboxes,
    inbox: Arc<Inbox>,
}

impl UcxMessages {
    /// A connection that its peer calls `key`
    ///
    /// # Errors
    ///
    /// The system's, which gives no doorbell.
    pub fn new(key: u64) -> io::Result<Self> {
        let inboxes = Inboxes::default();
        let inbox = Arc::new(Inbox::new(Doorbell::new()?));
        inboxes.insert(key, &inbox);
        Ok(Self { inboxes, inbox })
    }

    /// A message comes
    pub fn receive(&self, header: &[u8; HEADER_BYTES], bytes: &[u8]) {
        self.inboxes.receive(header, bytes);
    }

    /// Reads what has come of the lane, returning how many bytes
    pub fn read(&self, buffer: &mut [u8]) -> usize {
        self.inbox.begin_look();
        self.inbox.read(&mut [IoSliceMut::new(buffer)])
    }

    /// Sleeps or wakes; whether there is something to look for
    pub fn look(&self, sleeps: bool) -> bool {
        if sleeps {
            return !self.inbox.arm();
        }
        self.inbox.disarm();
        self.inbox.has_news()
    }

    /// Why nothing more comes, if so
    pub fn failure(&self) -> Option<String> {
        self.inbox.failure()
    }

    /// How many bytes, pieces before their turn, and tickets wait
    pub fn held(&self) -> (u64, usize, usize) {
        self.inbox.held()
    }
}
