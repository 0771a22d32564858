//! The stream that a handshake speaks to.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use backhaul_sys::forks::Uninherited;
use rustix::event::epoll::EventFlags;

use crate::tls::Session;

/// Bytes to a peer and from it, in order, without waiting
///
/// Calls that cannot go on now fail with [`io::ErrorKind::WouldBlock`].
pub(crate) trait Stream: Send {
    /// Goes on with opening the stream; `true` once bytes can be exchanged
    fn open(&mut self) -> io::Result<bool>;

    /// Reads what is there; 0 bytes are the end of the stream
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Writes what there is room for
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Returns whether the peer has sent something that was understood, before the stream is open
    fn has_heard(&self) -> bool {
        false
    }

    /// Returns whether the bytes are protected on the way from being read or changed
    fn is_encrypted(&self) -> bool {
        false
    }

    /// Returns the events to watch the descriptor for, with something to write or nothing
    fn interest(&self, has_output: bool) -> EventFlags;

    /// Ends the connection, even if another process holds a copy of the descriptor
    fn shutdown(&self);

    /// Returns the descriptor to watch
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Returns the socket below the stream, and the TLS session on it, to the caller that takes the
    /// connection over
    fn into_parts(self: Box<Self>) -> (TcpStream, Option<Box<Session>>);
}

/// A TCP socket that carries the bytes as they are
pub(crate) struct PlainStream {
    socket: Uninherited<TcpStream>,
    /// `connect` has not been answered yet
    is_connecting: bool,
}

impl PlainStream {
    /// A socket that is connected; it must not block
    pub(crate) fn connected(socket: TcpStream) -> Self {
        Self {
            socket: Uninherited::new(socket),
            is_connecting: false,
        }
    }

    /// A socket that is about to be connected; it must not block
    pub(super) fn connecting(socket: TcpStream) -> Self {
        Self {
            socket: Uninherited::new(socket),
            is_connecting: true,
        }
    }

    /// The socket, for what encrypts on it
    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket
    }
}

impl Stream for PlainStream {
    fn open(&mut self) -> io::Result<bool> {
        if !self.is_connecting {
            return Ok(true);
        }
        rustix::net::sockopt::socket_error(self.socket.as_fd())??;
        match self.socket.peer_addr() {
            Ok(_) => {
                self.socket.set_nodelay(true)?;
                self.is_connecting = false;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self.socket).read(buffer)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self.socket).write(bytes)
    }

    fn interest(&self, has_output: bool) -> EventFlags {
        let mut flags = EventFlags::IN;
        flags.set(EventFlags::OUT, has_output || self.is_connecting);
        flags
    }

    fn shutdown(&self) {
        // An error means that it has ended already.
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn into_parts(self: Box<Self>) -> (TcpStream, Option<Box<Session>>) {
        (self.socket.into_inner(), None)
    }
}
