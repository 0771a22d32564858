//! From how many bytes on a socket counts as readable.
//!
//! A thread that waits for more than one packet is otherwise woken for each (`SO_RCVLOWAT` in
//! `socket(7)`).
//! Reads are not affected: one that does not block takes what is there. The end of the stream, an
//! error, and a receive window that is full make a socket readable whatever the mark.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Has a socket count as readable from so many bytes on
///
/// The kernel gives it room for them, and lowers a mark that is above half of what it allows a
/// socket (`tcp_rmem` in `tcp(7)`).
///
/// # Errors
///
/// As the system reports them.
pub fn set(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    // SAFETY: the kernel reads as many bytes as an `i32` has, from one that is there.
    let status = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            (&raw const bytes).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;

    /// Returns whether `poll(2)` finds the socket readable before so long has passed
    fn is_readable(socket: &TcpStream, patience_ms: i32) -> bool {
        let mut polled = libc::pollfd {
            fd: socket.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: there is one entry, which outlives the call.
        let ready = unsafe { libc::poll(&raw mut polled, 1, patience_ms) };
        ready == 1 && polled.revents & libc::POLLIN != 0
    }

    #[test]
    fn a_socket_is_readable_from_the_mark_on_and_at_its_end() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut far = listener.accept().unwrap().0;
        set(far.as_fd(), 100_000).unwrap();
        near.write_all(&[7; 60_000]).unwrap();
        assert!(!is_readable(&far, 50));
        near.write_all(&[7; 60_000]).unwrap();
        assert!(is_readable(&far, 60_000));
        // The rest is below the mark, until that is lowered.
        let mut buffer = vec![0; 90_000];
        far.read_exact(&mut buffer).unwrap();
        assert!(!is_readable(&far, 50));
        set(far.as_fd(), 1).unwrap();
        assert!(is_readable(&far, 60_000));
        set(far.as_fd(), 100_000).unwrap();
        drop(near);
        assert!(is_readable(&far, 60_000));
    }
}
