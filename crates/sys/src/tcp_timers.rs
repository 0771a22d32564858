//! How long the kernel waits at most before it tries to reach a silent host again.
//!
//! It sends again what is not acknowledged, and asks a peer without room whether it has some, after
//! times that it doubles up to two minutes. Since Linux 6.15 a socket may have a lower bound
//! (`TCP_RTO_MAX_MS` in `linux/tcp.h`).

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Has the kernel try again after at most so long, between one second and two minutes
///
/// It still tries as often before it gives the connection up (`tcp_retries2` in `tcp(7)`, 15 times
/// unless it was changed), so with a low bound it does so sooner.
///
/// # Errors
///
/// Errors that the system reports: `ENOPROTOOPT` before Linux 6.15, or for a socket of another
/// kind.
pub fn set_retry_max(socket: BorrowedFd<'_>, max: Duration) -> io::Result<()> {
    let max_ms = i32::try_from(max.clamp(RETRY_MIN, RETRY_MAX).as_millis()).unwrap_or(i32::MAX);
    // SAFETY: the kernel reads as many bytes as an `i32` has, from one that is there.
    let status = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            TCP_RTO_MAX_MS,
            (&raw const max_ms).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// `linux/tcp.h`; libc does not have it yet
const TCP_RTO_MAX_MS: libc::c_int = 44;

/// Lowest bound that the kernel takes
const RETRY_MIN: Duration = Duration::from_secs(1);

/// The bound that it has without us
const RETRY_MAX: Duration = Duration::from_secs(120);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

    use std::io::Write;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    /// `None` where the kernel does not have it
    fn set(socket: &TcpStream, max: Duration) -> Option<i32> {
        match set_retry_max(socket.as_fd(), max) {
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => None,
            outcome => {
                outcome.unwrap();
                let (mut found, mut bytes) = (0_i32, 4);
                // SAFETY: there is room for what the kernel writes.
                let status = unsafe {
                    let option = (&raw mut found).cast();
                    let fd = socket.as_raw_fd();
                    libc::getsockopt(
                        fd,
                        libc::IPPROTO_TCP,
                        TCP_RTO_MAX_MS,
                        option,
                        &raw mut bytes,
                    )
                };
                assert_eq!(status, 0);
                Some(found)
            }
        }
    }

    #[test]
    fn the_kernel_takes_any_bound_within_its_own() {
        let (near, _far) = pair();
        for (asked_ms, got_ms) in [(15_000, 15_000), (20, 1_000), (1 << 30, 120_000)] {
            let got = set(&near, Duration::from_millis(asked_ms));
            assert!(got.is_none() || got == Some(got_ms), "{got:?}");
        }
        let (unix, _other) = UnixStream::pair().unwrap();
        set_retry_max(unix.as_fd(), Duration::from_secs(1)).unwrap_err();
    }

    #[test]
    #[ignore = "takes eight seconds"]
    fn a_peer_without_room_is_asked_once_in_so_long_however_long_it_has_none() {
        let (mut near, _far) = pair();
        if set(&near, Duration::from_secs(1)).is_none() {
            return;
        }
        near.set_nonblocking(true).unwrap();
        let began = Instant::now();
        // 51 seconds, were each gap twice the one before.
        while crate::tcp_info::backoff(near.as_fd()).unwrap() < 8 {
            while near.write(&[7; 1 << 16]).is_ok() {}
            assert!(began.elapsed() < Duration::from_secs(25));
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
