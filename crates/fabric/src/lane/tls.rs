//! The lane over the first socket, encrypted; watched as that in clear text is.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use backhaul_proto::LaneKind;

use super::{Farewell, Lane, LaneError, LaneTraits, Moved, heard_by_kernel};
use crate::tls::{Arrived, Session, TlsHelpers};

/// The first socket carries the frames too, in records
pub(crate) struct TlsLane {
    socket: Arc<TcpStream>,
    session: Box<Session>,
}

impl TlsLane {
    /// A lane over a connected socket that does not block, on which hands are shaken
    pub(crate) fn new(
        socket: Arc<TcpStream>,
        mut session: Box<Session>,
        helpers: TlsHelpers,
    ) -> Self {
        session.share(&socket, helpers);
        Self { socket, session }
    }
}

impl Lane for TlsLane {
    fn kind(&self) -> LaneKind {
        LaneKind::Tls
    }

    fn traits(&self) -> LaneTraits {
        LaneTraits::OF_SOCKET
    }

    fn read(&mut self, buffers: &mut [IoSliceMut<'_>]) -> Result<Moved, LaneError> {
        Ok(match self.session.read(&self.socket, buffers)? {
            Arrived::Bytes(bytes) => Moved::Bytes(bytes),
            Arrived::Blocked => Moved::Blocked,
            Arrived::End => Moved::End,
        })
    }

    fn write(&mut self, buffers: &[IoSlice<'_>]) -> Result<Moved, LaneError> {
        match self.session.write(&self.socket, buffers) {
            Ok(0) => Ok(Moved::Blocked),
            Ok(bytes) => Ok(Moved::Bytes(bytes)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Moved::Blocked),
            Err(error) => Err(error.into()),
        }
    }

    fn check_room(&mut self, _bytes: usize) -> bool {
        false
    }

    fn write_bytes(&self) -> usize {
        self.session.write_bytes()
    }

    fn look_for_news(&self) -> bool {
        true
    }

    fn is_drained(&self) -> bool {
        self.session.is_drained()
    }

    // The engine watches the socket, which knows nothing of what the session has read ahead.
    fn arm_read(&mut self) -> Result<bool, LaneError> {
        Ok(!self.session.holds_news())
    }

    fn arm_write(&mut self) -> Result<bool, LaneError> {
        Ok(true)
    }

    fn disarm_read(&mut self) {}

    /// Sends the end of the connection inside the session, not on the bare socket
    fn farewell(&mut self) -> Option<Farewell> {
        self.session.say_end(&self.socket);
        None
    }

    fn last_heard(&self, now: Instant) -> Option<Instant> {
        heard_by_kernel(self.socket.as_fd(), now)
    }
}
