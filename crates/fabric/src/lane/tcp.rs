//! The lane over the first socket, watched level-triggered.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use backhaul_proto::LaneKind;

use super::{Lane, LaneError, LaneTraits, Moved, heard_by_kernel, of_io};

/// The first socket carries the frames too
#[derive(Debug)]
pub(crate) struct TcpLane {
    socket: Arc<TcpStream>,
    /// The last read left nothing: what comes next wakes whoever watches
    drained: bool,
}

impl TcpLane {
    /// A lane over a connected socket that does not block
    pub(crate) fn new(socket: Arc<TcpStream>) -> Self {
        Self {
            socket,
            drained: false,
        }
    }
}

impl Lane for TcpLane {
    fn kind(&self) -> LaneKind {
        LaneKind::Tcp
    }

    fn traits(&self) -> LaneTraits {
        LaneTraits::OF_SOCKET
    }

    fn read(&mut self, buffers: &mut [IoSliceMut<'_>]) -> Result<Moved, LaneError> {
        let asked: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        let moved = of_io((&*self.socket).read_vectored(buffers))?;
        self.drained = moved != Moved::Bytes(asked);
        Ok(match moved {
            Moved::Bytes(0) => Moved::End,
            moved => moved,
        })
    }

    fn write(&mut self, buffers: &[IoSlice<'_>]) -> Result<Moved, LaneError> {
        Ok(match of_io((&*self.socket).write_vectored(buffers))? {
            Moved::Bytes(0) => Moved::Blocked,
            moved => moved,
        })
    }

    fn check_room(&mut self, _bytes: usize) -> bool {
        false
    }

    fn look_for_news(&self) -> bool {
        true
    }

    fn has_unread(&self) -> bool {
        rustix::io::ioctl_fionread(&*self.socket).is_ok_and(|bytes| bytes > 0)
    }

    fn is_drained(&self) -> bool {
        self.drained
    }

    // The engine watches the socket; see `connection::interest`.
    fn arm_read(&mut self) -> Result<bool, LaneError> {
        Ok(true)
    }

    fn arm_write(&mut self) -> Result<bool, LaneError> {
        Ok(true)
    }

    fn disarm_read(&mut self) {}

    fn last_heard(&self, now: Instant) -> Option<Instant> {
        heard_by_kernel(self.socket.as_fd(), now)
    }
}
