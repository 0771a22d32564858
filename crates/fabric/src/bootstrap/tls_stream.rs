//! A stream that encrypts what a handshake says, and the frames behind it.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::BorrowedFd;

use rustix::event::epoll::EventFlags;

use super::stream::{PlainStream, Stream};
use crate::tls::{Arrived, Session, Tls};

/// A TCP socket and the session of TLS over it
pub(crate) struct TlsStream {
    plain: PlainStream,
    session: Box<Session>,
    is_connected: bool,
}

impl TlsStream {
    /// Encrypts towards a listener
    pub(crate) fn connect(plain: PlainStream, tls: &Tls, peer: SocketAddr) -> io::Result<Self> {
        Ok(Self::new(plain, Session::connect(tls, peer.ip())?))
    }

    /// Encrypts towards who has called
    pub(crate) fn accept(plain: PlainStream, tls: &Tls) -> io::Result<Self> {
        Ok(Self::new(plain, Session::accept(tls)?))
    }

    fn new(plain: PlainStream, session: Session) -> Self {
        Self {
            plain,
            session: Box::new(session),
            is_connected: false,
        }
    }
}

impl Stream for TlsStream {
    fn open(&mut self) -> io::Result<bool> {
        if !self.is_connected {
            self.is_connected = self.plain.open()?;
        }
        Ok(self.is_connected && self.session.shake_hands(self.plain.socket())?)
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut buffers = [IoSliceMut::new(buffer)];
        match self.session.read(self.plain.socket(), &mut buffers)? {
            Arrived::Bytes(bytes) => Ok(bytes),
            Arrived::Blocked => Err(io::ErrorKind::WouldBlock.into()),
            Arrived::End => Ok(0),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.session
            .write(self.plain.socket(), &[IoSlice::new(bytes)])
    }

    fn interest(&self, has_output: bool) -> EventFlags {
        self.plain.interest(has_output || self.session.has_output())
    }

    fn has_heard(&self) -> bool {
        self.session.has_heard()
    }

    fn is_encrypted(&self) -> bool {
        true
    }

    fn shutdown(&self) {
        self.plain.shutdown();
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.plain.descriptor()
    }

    fn into_parts(self: Box<Self>) -> (TcpStream, Option<Box<Session>>) {
        let (socket, _) = Box::new(self.plain).into_parts();
        (socket, Some(self.session))
    }
}
