//! Credentials of the process at the other end of a Unix socket, as the kernel knows them.
//!
//! `SO_PEERCRED` (`unix(7)`) says 0 for a process that has no id in our process id namespace, as
//! one in another container. The safe wrapper that the project uses elsewhere has an id that cannot
//! be 0, and gives an error 0 then.

use std::io;
use std::mem::size_of;
use std::num::NonZero;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Process that had connected, or listened, at the other end
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PeerCredentials {
    /// Id of the process in our process id namespace; `None` if it has none there
    pub pid: Option<NonZero<u32>>,
    /// Id of its user in our user namespace
    pub uid: u32,
}

/// Asks the kernel who is at the other end of a Unix socket
///
/// # Errors
///
/// Errors that the system reports, such as `ENOPROTOOPT` for a socket of another kind.
pub fn credentials(socket: BorrowedFd<'_>) -> io::Result<PeerCredentials> {
    let mut found = libc::ucred {
        pid: 0,
        uid: libc::uid_t::MAX,
        gid: libc::gid_t::MAX,
    };
    let mut bytes = CREDENTIAL_BYTES;
    // SAFETY: the kernel writes at most `bytes` bytes, the size of `found`, which is made of integers
    // only, so any bytes are valid; the descriptor is open as long as it is borrowed.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut bytes,
        )
    };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    if bytes != CREDENTIAL_BYTES {
        let message = format!("SO_PEERCRED has {bytes} bytes, not {CREDENTIAL_BYTES}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    Ok(PeerCredentials {
        pid: u32::try_from(found.pid).ok().and_then(NonZero::new),
        uid: found.uid,
    })
}

const CREDENTIAL_BYTES: libc::socklen_t = size_of::<libc::ucred>() as libc::socklen_t;

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_socket_of_this_process_leads_to_this_process() {
        let (ours, _theirs) = UnixStream::pair().expect("two descriptors");
        let peer = credentials(ours.as_fd()).expect("a Unix socket");
        assert_eq!(peer.pid.map(NonZero::get), Some(std::process::id()));
        // SAFETY: it has no preconditions, and always succeeds.
        assert_eq!(peer.uid, unsafe { libc::getuid() });
    }

    #[test]
    fn a_socket_of_another_kind_tells_nobody() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let stream = TcpStream::connect(address).expect("it listens");
        // The kernel gives no process and an invalid user there, rather than an error.
        if let Ok(peer) = credentials(stream.as_fd()) {
            assert_eq!((peer.pid, peer.uid), (None, u32::MAX));
        }
    }
}
