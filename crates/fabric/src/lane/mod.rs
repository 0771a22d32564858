//! Lanes: ordered ways to move the bytes of frames to one peer.
//!
//! A lane is a byte stream in each direction that never blocks, and a way to wake a sleeping reader
//! when something comes. The protocol gives the bytes their meaning. The strengths of a lane are in
//! its [`LaneTraits`]: nothing outside this folder asks which lane it is.

mod ring;
mod tcp;
mod tls;
mod ucx;

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::time::Instant;

use backhaul_proto::LaneKind;
use backhaul_shm::ring::RingError;
use backhaul_sys::tcp_info;
use thiserror::Error;

pub(crate) use ring::RingLane;
pub(crate) use tcp::TcpLane;
pub(crate) use tls::TlsLane;
pub(crate) use ucx::UcxLane;

/// One way to move frames to a peer
pub trait Lane: Send {
    /// Which one it is
    fn kind(&self) -> LaneKind;

    /// Returns the properties of the lane; the same on each call
    fn traits(&self) -> LaneTraits;

    /// Fills the buffers in order with what has arrived
    ///
    /// # Errors
    ///
    /// [`LaneError`]: the lane is of no further use.
    fn read(&mut self, buffers: &mut [IoSliceMut<'_>]) -> Result<Moved, LaneError>;

    /// Sends what fits now of the buffers, in order
    ///
    /// # Errors
    ///
    /// [`LaneError`]: nothing more can be sent, though there may be something to read.
    fn write(&mut self, buffers: &[IoSlice<'_>]) -> Result<Moved, LaneError>;

    /// Looks whether a write of that many bytes would take them all; `false` if that is not known
    fn check_room(&mut self, bytes: usize) -> bool;

    /// How many bytes it can do something with at once, where that is more than usual
    fn write_bytes(&self) -> usize {
        0
    }

    /// Looks whether a read may find something, as far as that is known without asking the system
    fn look_for_news(&self) -> bool;

    /// Takes the note that looks have moved something, be it for a carrier
    ///
    /// A caller that waits stays awake for it, as the peer is at work.
    fn take_moved_else(&self) -> bool {
        false
    }

    /// Returns whether another read would find nothing, as the last one has shown
    fn is_drained(&self) -> bool;

    /// Returns whether something lies there to be read, without a read; `false` if the lane cannot
    /// tell
    ///
    /// Called now and then, to find data for which no thread was woken; so it may take a system
    /// call.
    fn has_unread(&self) -> bool {
        false
    }

    /// Handles that the next so many bytes are of one payload, as the last read has shown
    ///
    /// A thread that is woken before they are here has little to do yet, and sleeps again.
    fn handle_due(&mut self, bytes: usize) {
        let _ = bytes;
    }

    /// Asks to be woken when something arrives; `false` if something is there already
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    fn arm_read(&mut self) -> Result<bool, LaneError>;

    /// Asks to be woken when there is room; `false` if there is room already
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    fn arm_write(&mut self) -> Result<bool, LaneError>;

    /// Asks not to be woken, while a caller looks by itself
    fn disarm_read(&mut self);

    /// Ends the lane's part of the connection, returning the bytes for the peer on the first
    /// socket, if any
    fn farewell(&mut self) -> Option<Farewell> {
        None
    }

    /// Handles that the first socket has ended, with the last that came on it
    ///
    /// `true`: what the peer sent before may still come, and then [`read`](Self::read) says
    /// [`Moved::End`]. `false`: all of it is here already.
    fn handle_sentinel_end(&mut self, farewell: Option<Farewell>) -> bool {
        let _ = farewell;
        false
    }

    /// When the peer's host last showed that it is there, though its process may do nothing
    ///
    /// Asked when a peer has left a ping unanswered. It is `now` if the host owes no answer to
    /// anything, and `None` if the lane does not know.
    fn last_heard(&self, now: Instant) -> Option<Instant> {
        let _ = now;
        None
    }
}

/// The last bytes that one side sends on the first socket; what they say is for its lane to know
pub type Farewell = [u8; 8];

/// How long a lane may bring what the peer sent before the first socket ended
pub(crate) const FAREWELL_PATIENCE: std::time::Duration = std::time::Duration::from_secs(1);

/// Properties of a lane
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LaneTraits {
    /// A sleeping reader is woken by a doorbell; else by the connection's first socket, which then
    /// carries the frames too
    pub has_doorbell: bool,
    /// To look for news takes no call of the system, so it may be done in a loop
    pub looks_are_free: bool,
    /// In the middle of a message it pays to wait for the peer awake: it works on another CPU
    pub waits_awake: bool,
    /// Both ends are on one host, whose kernel reports a dead peer: no keep-alive is needed
    pub is_local: bool,
}

impl LaneTraits {
    /// Of lanes whose frames the first socket carries
    pub(crate) const OF_SOCKET: Self = Self {
        has_doorbell: false,
        looks_are_free: false,
        waits_awake: false,
        is_local: false,
    };
}

/// Result of a read or write
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Moved {
    /// So many bytes, more than zero
    Bytes(usize),
    /// Nothing now
    Blocked,
    /// The peer's end of the stream
    End,
}

/// A lane is broken
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LaneError {
    /// The system reported an error on the socket
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The indices that the peer wrote into the ring are impossible
    #[error(transparent)]
    Ring(#[from] RingError),
    /// UCX has given the peer up, or the peer sends what it must not
    #[error("ucx: {detail}")]
    Ucx {
        /// Error that the system reported
        detail: String,
    },
}

/// Sorts the outcome of a socket call
fn of_io(outcome: io::Result<usize>) -> io::Result<Moved> {
    match outcome {
        Ok(bytes) => Ok(Moved::Bytes(bytes)),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
            ) =>
        {
            Ok(Moved::Blocked)
        }
        Err(error) => Err(error),
    }
}

/// When the peer's host was last there, going by what the kernels of both hosts have said to each
/// other on a socket
fn heard_by_kernel(socket: BorrowedFd<'_>, now: Instant) -> Option<Instant> {
    match tcp_info::last_heard(socket) {
        // The ping has been acknowledged, or waits with the rest for room at the peer.
        Ok(heard) if !heard.owes_answer => Some(now),
        Ok(heard) => now.checked_sub(heard.ago),
        Err(error) => {
            tracing::debug!(%error, "the system does not tell when the peer was heard");
            None
        }
    }
}
