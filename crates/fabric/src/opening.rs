//! A TCP connection that is being made, without waiting for it.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::EventFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// A socket that is connected, or about to be
pub(crate) struct Opening {
    pub(crate) stream: TcpStream,
    pub(crate) peer: SocketAddr,
    /// `connect` has not been answered yet
    pub(crate) connecting: bool,
    /// What it is watched for
    pub(crate) flags: EventFlags,
}

impl Opening {
    /// Starts to connect
    pub(crate) fn connect(peer: SocketAddr) -> io::Result<Self> {
        let family = if peer.is_ipv4() {
            AddressFamily::INET
        } else {
            AddressFamily::INET6
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket: OwnedFd = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        match rustix::net::connect(&socket, &peer) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Self {
            stream: TcpStream::from(socket),
            peer,
            connecting: true,
            flags: EventFlags::OUT,
        })
    }

    /// Whether the connection is there by now
    pub(crate) fn finish_connect(&mut self) -> io::Result<bool> {
        rustix::net::sockopt::socket_error(self.stream.as_fd())??;
        match self.stream.peer_addr() {
            Ok(_) => {
                self.stream.set_nodelay(true)?;
                self.connecting = false;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
        }
    }
}
