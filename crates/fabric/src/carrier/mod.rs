//! Carriers: ways to move the payload of an accepted message beside the lane.
//!
//! Frames go on the lane, in order; a carrier moves payload by other means, and what the frames say
//! of it is a number, the *ticket*, that only the carrier understands. The sender *offers* memory
//! that the receiver may fetch by itself when a message is announced, or *gives* it once the message
//! is accepted; the receiver *takes* it, in its own time, and is then *done*, by dropping what it has
//! taken. If either side dies the other side's carrier notices by itself and lets go. Matching, credit
//! and order are the protocol's on all of them.
//!
//! Which carriers a pair of peers has is agreed on in the handshake; which one a segment goes by
//! follows from the kind of its memory, and where there is a choice, from [`ways`].

mod announcing;
pub(crate) mod cuda;
pub(crate) mod lease;
pub(crate) mod packets;
pub(crate) mod single_copy;
pub(crate) mod ucx;
mod ways;

use std::io::IoSliceMut;
use std::time::Duration;

use backhaul_proto::{CarrierKind, MemoryKind};
use backhaul_shm::pool::PoolBuf;
use smallvec::SmallVec;
use thiserror::Error;

use crate::link::CarrierReach;
use crate::memory::{DeviceMemory, Segment};

pub(crate) use self::announcing::{Announcing, CHOICE_BYTES_MIN, InPlace};
pub use self::cuda::CudaPackets;
pub use self::lease::LeasePackets;
pub use self::ways::{Way, WayStatistics, Ways};

/// A way to move payload to and from one peer
pub trait Carrier: Send {
    /// Which one it is
    fn kind(&self) -> CarrierKind;

    /// Returns the test by which the carrier accepts a kind of memory
    fn takes(&self) -> fn(MemoryKind) -> bool;

    /// Lets the peer fetch a segment by itself, returning the ticket
    ///
    /// The segment stays as it is until the message is over. `None`: the peer cannot.
    ///
    /// # Errors
    ///
    /// Why the memory is not what it is said to be: the message is refused.
    fn offer(&mut self, segment: &Segment) -> Result<Option<u64>, String> {
        let _ = segment;
        Ok(None)
    }

    /// The send of an offered segment is over: it was fetched, or it came another way, or not at all
    fn handle_offer_over(&mut self, ticket: u64) {
        let _ = ticket;
    }

    /// Hands a segment over to the peer, returning the ticket
    ///
    /// From then on the carrier keeps what it needs of the memory, whatever becomes of the message.
    /// `is_asked`: the peer asks for this carrier, so it may be worth a copy. `None`: the segment
    /// goes another way.
    fn give(&mut self, segment: &Segment, is_asked: bool) -> Option<u64> {
        let _ = (segment, is_asked);
        None
    }

    /// How long the peer is waited for awake, beyond what the bytes that it fetches take
    fn patience(&self) -> Duration {
        Duration::ZERO
    }

    /// Takes what the peer has offered or given
    ///
    /// # Errors
    ///
    /// [`TakeError`].
    fn take(&mut self, ticket: u64, bytes: u64) -> Result<Box<dyn Payload>, TakeError>;
}

/// Payload that the peer has offered or given
pub trait Payload: Send {
    /// Looks whether it can be adopted or read; `false` while it is under way by itself
    ///
    /// Then the lane's doorbell is rung when it has come.
    ///
    /// # Errors
    ///
    /// [`TakeError`].
    fn check_here(&mut self) -> Result<bool, TakeError> {
        Ok(true)
    }

    /// The memory itself, to become that of the message; `None` if it is to be copied
    ///
    /// Called once, when it [is here](Self::check_here), before the first [`read`](Self::read).
    ///
    /// # Errors
    ///
    /// [`TakeError`].
    fn adopt(&mut self) -> Result<Option<PoolBuf>, TakeError> {
        Ok(None)
    }

    /// Fills memory of the host with the next bytes, returning how many; 0 means that they are still
    /// under way
    ///
    /// # Errors
    ///
    /// [`TakeError`].
    fn read(&mut self, targets: &mut [IoSliceMut<'_>]) -> Result<usize, TakeError>;

    /// As [`read`](Self::read), for memory of a device
    ///
    /// # Errors
    ///
    /// [`TakeError`].
    fn read_to_device(&mut self, target: &DeviceMemory) -> Result<usize, TakeError> {
        Err(TakeError::OutOfReach {
            detail: format!("this carrier does not reach {}", target.device()),
        })
    }

    /// Prepares for a while without looks: payload that moves by itself then rings the lane's
    /// doorbell
    ///
    /// It may do so without having been asked.
    fn arm(&mut self) {}

    /// How long it is waited for awake, beyond what an answer is
    fn patience(&self) -> Duration {
        Duration::ZERO
    }
}

/// Payload could not be taken
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TakeError {
    /// The ticket is not what it must be, by the peer's fault
    #[error("{detail}")]
    Broken {
        /// Fault of the payload
        detail: String,
    },
    /// This process, or its system, cannot reach the memory; another way may help
    #[error("{detail}")]
    OutOfReach {
        /// Error of the system
        detail: String,
    },
}

/// The carriers that a connection has
#[derive(Default)]
pub struct Carriers(SmallVec<[Box<dyn Carrier>; 2]>);

impl Carriers {
    /// Adds one
    pub fn push(&mut self, carrier: Box<dyn Carrier>) {
        self.0.push(carrier);
    }

    /// Returns the reach of the carriers, for the link
    pub fn reach(&self) -> SmallVec<[CarrierReach; 2]> {
        let carriers = self.0.iter();
        let reach = carriers.map(|carrier| CarrierReach {
            kind: carrier.kind(),
            takes: carrier.takes(),
        });
        reach.collect()
    }

    /// Returns whether there are no carriers
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Lets the peer fetch a segment by itself: the carrier's number, and the ticket
    ///
    /// # Errors
    ///
    /// Why the memory is not what it is said to be.
    pub fn offer(&mut self, segment: &Segment) -> Result<Option<(u8, u64)>, String> {
        let kind = segment.kind();
        for carrier in self.0.iter_mut().filter(|carrier| carrier.takes()(kind)) {
            if let Some(ticket) = carrier.offer(segment)? {
                return Ok(Some((carrier.kind().code(), ticket)));
            }
        }
        Ok(None)
    }

    /// Tells a carrier that the send of an offer is over
    pub fn handle_offer_over(&mut self, carrier: u8, ticket: u64) {
        let mut carriers = self.0.iter_mut();
        if let Some(carrier) = carriers.find(|other| other.kind().code() == carrier) {
            carrier.handle_offer_over(ticket);
        }
    }

    /// How long the peer is waited for awake, beyond what the bytes that it fetches take
    pub fn patience(&self) -> Duration {
        let carriers = self.0.iter();
        carriers
            .map(|carrier| carrier.patience())
            .max()
            .unwrap_or_default()
    }

    /// Hands a segment over: the carrier's number, and the ticket
    pub fn give(&mut self, segment: &Segment, asked: u8) -> Option<(u8, u64)> {
        let kind = segment.kind();
        self.0
            .iter_mut()
            .filter(|carrier| carrier.takes()(kind))
            .find_map(|carrier| {
                let code = carrier.kind().code();
                Some((code, carrier.give(segment, asked == code)?))
            })
    }

    /// Takes what the peer has offered or given
    ///
    /// # Errors
    ///
    /// [`TakeError`].
    pub fn take(
        &mut self,
        carrier: u8,
        ticket: u64,
        bytes: u64,
    ) -> Result<Box<dyn Payload>, TakeError> {
        let mut carriers = self.0.iter_mut();
        match carriers.find(|other| other.kind().code() == carrier) {
            Some(carrier) => carrier.take(ticket, bytes),
            None => Err(TakeError::Broken {
                detail: format!("carrier {carrier} was not agreed on"),
            }),
        }
    }

    /// Releases all carriers, because the connection has ended
    pub fn clear(&mut self) {
        self.0.clear();
    }
}
