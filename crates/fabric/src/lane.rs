//! Lanes: ordered ways to move the bytes of frames to one peer.
//!
//! A lane is a byte stream in each direction that never blocks. What the bytes mean is the
//! business of the protocol; how a sleeping reader is woken is the lane's.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use backhaul_proto::LaneKind;
use backhaul_shm::channel::Duplex;
use backhaul_shm::ring::RingError;
use thiserror::Error;

use crate::runtime::notify;

/// One way to move frames to a peer
pub(crate) enum Lane {
    /// The first socket carries the frames too
    Tcp(TcpLane),
    /// Two rings, in shared or in private memory; the first socket is the sentinel
    Ring(RingLane),
}

/// The socket, watched level-triggered
pub(crate) struct TcpLane {
    pub(crate) socket: Arc<TcpStream>,
    /// The last read left nothing: what comes next wakes whoever watches
    drained: bool,
}

/// Two rings and the bells that wake their readers and writers
pub(crate) struct RingLane {
    pub(crate) kind: LaneKind,
    pub(crate) rings: Duplex,
    /// Rings the peer
    pub(crate) peer_bell: OwnedFd,
}

/// What became of a read or write
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Moved {
    /// So many bytes, more than zero
    Bytes(usize),
    /// Nothing now
    Blocked,
    /// The peer's end of the stream
    End,
}

/// A lane is broken
#[derive(Debug, Error)]
pub(crate) enum LaneError {
    /// The system reported an error on the socket
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The peer wrote nonsense into the ring's indices
    #[error(transparent)]
    Ring(#[from] RingError),
}

impl Lane {
    /// A lane over a connected socket
    pub(crate) fn tcp(socket: Arc<TcpStream>) -> Self {
        Self::Tcp(TcpLane {
            socket,
            drained: false,
        })
    }

    /// Whether another read would find nothing, without asking
    pub(crate) fn is_drained(&self) -> bool {
        match self {
            Self::Tcp(lane) => lane.drained,
            Self::Ring(lane) => !lane.rings.consumer.has_news(),
        }
    }

    /// Whether a read may find something; a socket cannot tell without a system call
    #[inline]
    pub(crate) fn may_have_news(&self) -> bool {
        match self {
            Self::Tcp(_) => true,
            Self::Ring(lane) => lane.rings.consumer.has_news(),
        }
    }

    pub(crate) fn kind(&self) -> LaneKind {
        match self {
            Self::Tcp(_) => LaneKind::Tcp,
            Self::Ring(lane) => lane.kind,
        }
    }

    /// Fills the buffers in order with what has arrived
    pub(crate) fn read(&mut self, buffers: &mut [IoSliceMut<'_>]) -> Result<Moved, LaneError> {
        match self {
            Self::Tcp(lane) => {
                let asked: usize = buffers.iter().map(|buffer| buffer.len()).sum();
                let moved = of_io((&*lane.socket).read_vectored(buffers))?;
                lane.drained = moved != Moved::Bytes(asked);
                Ok(match moved {
                    Moved::Bytes(0) => Moved::End,
                    moved => moved,
                })
            }
            Self::Ring(lane) => {
                let read = lane.rings.consumer.read_vectored(buffers)?;
                if read == 0 {
                    return Ok(Moved::Blocked);
                }
                if lane.rings.consumer.take_peer_waiting() {
                    notify(lane.peer_bell.as_fd());
                }
                Ok(Moved::Bytes(read))
            }
        }
    }

    /// Whether a write of that many bytes would take them all; not told for a socket
    pub(crate) fn has_room(&mut self, bytes: usize) -> bool {
        match self {
            Self::Tcp(_) => false,
            Self::Ring(lane) => lane.rings.producer.has_room(bytes),
        }
    }

    /// Sends what fits now of the buffers, in order
    pub(crate) fn write(&mut self, buffers: &[IoSlice<'_>]) -> Result<Moved, LaneError> {
        match self {
            Self::Tcp(lane) => Ok(match of_io((&*lane.socket).write_vectored(buffers))? {
                Moved::Bytes(0) => Moved::Blocked,
                moved => moved,
            }),
            Self::Ring(lane) => {
                let written = lane.rings.producer.write_vectored(buffers)?;
                if written == 0 {
                    return Ok(Moved::Blocked);
                }
                if lane.rings.producer.take_peer_waiting() {
                    notify(lane.peer_bell.as_fd());
                }
                Ok(Moved::Bytes(written))
            }
        }
    }

    /// Asks for the bell when something arrives; `false` if something is there already
    pub(crate) fn arm_read(&mut self) -> Result<bool, LaneError> {
        match self {
            Self::Tcp(_) => Ok(true),
            Self::Ring(lane) => Ok(lane.rings.consumer.arm()?),
        }
    }

    /// Asks for the bell when there is room; `false` if there is room already
    pub(crate) fn arm_write(&mut self) -> Result<bool, LaneError> {
        match self {
            Self::Tcp(_) => Ok(true),
            Self::Ring(lane) => Ok(lane.rings.producer.arm()?),
        }
    }

    /// Mutes the bell while a caller polls
    pub(crate) fn disarm_read(&mut self) {
        if let Self::Ring(lane) = self {
            lane.rings.consumer.disarm();
        }
    }
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
