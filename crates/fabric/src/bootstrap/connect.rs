//! A TCP connection that is made without waiting for it.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::stream::PlainStream;

/// Starts to connect
///
/// # Errors
///
/// Errors that the system reports immediately; the stream reports the others when it is opened.
pub(crate) fn connect(peer: SocketAddr) -> io::Result<PlainStream> {
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
    Ok(PlainStream::connecting(TcpStream::from(socket)))
}
