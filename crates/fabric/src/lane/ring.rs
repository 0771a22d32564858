//! The lanes over two rings, in shared or in private memory; the first socket is the sentinel.

use std::io::{IoSlice, IoSliceMut};

use backhaul_proto::LaneKind;
use backhaul_shm::channel::Duplex;
use backhaul_shm::doorbell::Doorbell;

use super::{Lane, LaneError, LaneTraits, Moved};

/// Two rings and the doorbell that wakes the peer
pub(crate) struct RingLane {
    kind: LaneKind,
    rings: Duplex,
    peer_doorbell: Doorbell,
    traits: LaneTraits,
}

impl RingLane {
    /// A lane between two processes of a host
    pub(crate) fn shared(rings: Duplex, peer_doorbell: Doorbell) -> Self {
        Self::new(LaneKind::Shm, rings, peer_doorbell, true)
    }

    /// A lane between two contexts of this process
    pub(crate) fn in_process(rings: Duplex, peer_doorbell: Doorbell) -> Self {
        // The other end may be driven by the thread that would wait.
        Self::new(LaneKind::Inproc, rings, peer_doorbell, false)
    }

    fn new(kind: LaneKind, rings: Duplex, peer_doorbell: Doorbell, waits_awake: bool) -> Self {
        Self {
            kind,
            rings,
            peer_doorbell,
            traits: LaneTraits {
                has_doorbell: true,
                looks_are_free: true,
                waits_awake,
                is_local: true,
            },
        }
    }
}

impl Lane for RingLane {
    fn kind(&self) -> LaneKind {
        self.kind
    }

    fn traits(&self) -> LaneTraits {
        self.traits
    }

    fn read(&mut self, buffers: &mut [IoSliceMut<'_>]) -> Result<Moved, LaneError> {
        let read = self.rings.consumer.read_vectored(buffers)?;
        if read == 0 {
            return Ok(Moved::Blocked);
        }
        if self.rings.consumer.take_peer_waiting() {
            self.peer_doorbell.notify();
        }
        Ok(Moved::Bytes(read))
    }

    fn write(&mut self, buffers: &[IoSlice<'_>]) -> Result<Moved, LaneError> {
        let written = self.rings.producer.write_vectored(buffers)?;
        if written == 0 {
            return Ok(Moved::Blocked);
        }
        if self.rings.producer.take_peer_waiting() {
            self.peer_doorbell.notify();
        }
        Ok(Moved::Bytes(written))
    }

    fn check_room(&mut self, bytes: usize) -> bool {
        self.rings.producer.check_room(bytes)
    }

    #[inline]
    fn look_for_news(&self) -> bool {
        self.rings.consumer.has_news()
    }

    fn has_unread(&self) -> bool {
        self.rings.consumer.has_news()
    }

    fn is_drained(&self) -> bool {
        !self.rings.consumer.has_news()
    }

    fn arm_read(&mut self) -> Result<bool, LaneError> {
        Ok(self.rings.consumer.arm()?)
    }

    fn arm_write(&mut self) -> Result<bool, LaneError> {
        Ok(self.rings.producer.arm()?)
    }

    fn disarm_read(&mut self) {
        self.rings.consumer.disarm();
    }
}
