//! When the host at the other end of a TCP connection was last heard, as the kernel knows it.
//!
//! A host acknowledges what it receives whatever its processes do, so it is heard while the process
//! at the other end is stopped. The kernel tells by `TCP_INFO` (`tcp(7)`; the layout is that of
//! `struct tcp_info` in `linux/tcp.h`, whose first part, read here, is that of Linux 2.6).

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Kernel's record of the host at the other end
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Heard {
    /// How long ago data or an acknowledgement came
    pub ago: Duration,
    /// Something was sent since then that the host has not acknowledged
    ///
    /// Otherwise its silence means nothing: all it was sent it has answered, and more may wait for
    /// room at its end, about which the kernel asks it at growing intervals of up to two minutes.
    pub owes_answer: bool,
}

/// Asks the kernel when the host at the other end of a TCP socket was last heard
///
/// # Errors
///
/// Errors that the system reports, such as `EOPNOTSUPP` or `ENOPROTOOPT` for a socket of another
/// kind.
pub fn last_heard(socket: BorrowedFd<'_>) -> io::Result<Heard> {
    Ok(ask(socket)?.heard())
}

/// How often the kernel has doubled the time to its next try
#[cfg(test)]
pub(crate) fn backoff(socket: BorrowedFd<'_>) -> io::Result<u8> {
    Ok(ask(socket)?.backoff)
}

fn ask(socket: BorrowedFd<'_>) -> io::Result<TcpInfo> {
    let mut info = TcpInfo::default();
    let mut bytes = INFO_BYTES;
    // SAFETY: the kernel writes at most `bytes` bytes, the size of `info`, which is made of integers
    // only, so any bytes are valid; the descriptor is open as long as it is borrowed.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut bytes,
        )
    };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    if bytes != INFO_BYTES {
        let message = format!("TCP_INFO has {bytes} bytes, {INFO_BYTES} are needed");
        return Err(io::Error::new(io::ErrorKind::Unsupported, message));
    }
    Ok(info)
}

/// The first part of the kernel's `struct tcp_info`; all times are "so long ago"
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct TcpInfo {
    state: u8,
    congestion_state: u8,
    retransmits: u8,
    /// Questions for room that have not been answered
    probes: u8,
    /// How often the time to the next transmission has been doubled
    backoff: u8,
    options: u8,
    window_scales: u8,
    flags: u8,
    /// Time from a transmission to the next, doubled each time
    retransmit_us: u32,
    delayed_ack_us: u32,
    send_segment_bytes: u32,
    receive_segment_bytes: u32,
    /// Segments on their way
    unacknowledged: u32,
    selectively_acknowledged: u32,
    lost: u32,
    retransmitted: u32,
    forward_acknowledged: u32,
    /// Counts what was sent again too, but no questions for room
    last_data_sent_ms: u32,
    /// Always zero: the kernel does not remember it
    last_ack_sent_ms: u32,
    last_data_received_ms: u32,
    /// Not counted: what comes with data and acknowledges nothing new
    last_ack_received_ms: u32,
}

impl TcpInfo {
    fn heard(&self) -> Heard {
        let ago_ms = self.last_ack_received_ms.min(self.last_data_received_ms);
        let ago = Duration::from_millis(ago_ms.into());
        Heard {
            ago,
            owes_answer: self.has_unanswered_probe(ago) || self.has_unanswered_data(ago_ms),
        }
    }

    /// Returns whether the host has left a question for room unanswered
    fn has_unanswered_probe(&self, ago: Duration) -> bool {
        self.probes > 1 || (self.probes == 1 && ago > PROBE_IGNORED_MAX)
    }

    /// Returns whether the host has left data unanswered
    fn has_unanswered_data(&self, ago_ms: u32) -> bool {
        if self.unacknowledged == 0 {
            return false;
        }
        // Where the route is gone the kernel tries in vain, and nothing counts as sent then. It first
        // tried after a time that it has doubled `backoff` times since; so it has tried since the
        // host was heard if that was longer ago than what it waits now, less that first time.
        let waits_us = u64::from(self.retransmit_us);
        let first_us = waits_us >> self.backoff.min(63);
        self.last_data_sent_ms < ago_ms || u64::from(ago_ms) * 1000 > waits_us - first_us
    }
}

/// A living host leaves a question unanswered that comes within half a second of another
/// (`tcp_invalid_ratelimit`); the next one, after twice the time, it answers
const PROBE_IGNORED_MAX: Duration = Duration::from_secs(2);

/// Bytes of [`TcpInfo`]
const INFO_BYTES: libc::socklen_t = size_of::<TcpInfo>() as libc::socklen_t;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

    use std::io::Write;
    use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    /// Asks until the answer is as wanted
    fn wait_until(socket: &TcpStream, is_wanted: impl Fn(Heard) -> bool) {
        let began = Instant::now();
        loop {
            let heard = last_heard(socket.as_fd()).unwrap();
            if is_wanted(heard) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{heard:?}");
            std::thread::yield_now();
        }
    }

    /// Waits until nothing has been heard for a moment, and then for what `speak` brings
    fn is_heard_by(socket: &TcpStream, speak: impl FnOnce()) {
        const SILENCE: Duration = Duration::from_millis(100);
        wait_until(socket, |heard| heard.ago >= SILENCE);
        let spoken = Instant::now();
        speak();
        let is_since = |heard: Heard| heard.ago < spoken.elapsed() + SILENCE / 2;
        wait_until(socket, |heard| is_since(heard) && !heard.owes_answer);
    }

    #[test]
    fn a_host_whose_process_reads_nothing_is_heard_by_what_it_acknowledges() {
        let (near, _far) = pair();
        is_heard_by(&near, || (&near).write_all(b"are you there?").unwrap());
    }

    #[test]
    fn a_host_is_heard_by_what_it_sends() {
        let (near, mut far) = pair();
        is_heard_by(&near, || far.write_all(b"nobody reads this").unwrap());
    }

    #[test]
    fn a_host_without_room_answers_the_questions_for_it() {
        let (mut near, _far) = pair();
        near.set_nonblocking(true).unwrap();
        let began = Instant::now();
        loop {
            while near.write(&[7; 1 << 16]).is_ok() {}
            let info = ask(near.as_fd()).unwrap();
            let heard = info.heard();
            assert!(
                !heard.owes_answer || heard.ago < PROBE_IGNORED_MAX,
                "{info:?}"
            );
            // Three questions, of which one at least was answered.
            if info.unacknowledged == 0 && info.backoff >= 3 && info.probes < 2 {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{info:?}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn other_sockets_are_refused() {
        let (unix, _other) = UnixStream::pair().unwrap();
        last_heard(unix.as_fd()).unwrap_err();
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        last_heard(udp.as_fd()).unwrap_err();
        let (read, _write) = std::io::pipe().unwrap();
        last_heard(read.as_fd()).unwrap_err();
    }

    #[test]
    fn who_was_sent_nothing_since_owes_nothing() {
        let idle = TcpInfo {
            retransmit_us: 200_000,
            last_data_sent_ms: 70_000,
            last_data_received_ms: 80_000,
            last_ack_received_ms: 69_990,
            ..TcpInfo::default()
        };
        assert_eq!(idle.heard().ago, Duration::from_millis(69_990));
        assert!(!idle.heard().owes_answer);
    }

    #[test]
    fn who_was_sent_data_since_owes_an_answer() {
        let vanished = TcpInfo {
            unacknowledged: 1,
            backoff: 6,
            retransmit_us: 12_800_000,
            last_data_sent_ms: 400,
            last_data_received_ms: 13_000,
            last_ack_received_ms: 13_000,
            ..TcpInfo::default()
        };
        assert!(vanished.heard().owes_answer);
    }

    #[test]
    fn who_has_answered_what_was_sent_again_owes_nothing_until_the_next_time() {
        // No room at the other end for what is on its way: sent again at growing intervals.
        let full = TcpInfo {
            unacknowledged: 3,
            backoff: 9,
            retransmit_us: 102_400_000,
            last_data_sent_ms: 70_000,
            last_data_received_ms: 300_000,
            last_ack_received_ms: 70_000,
            ..TcpInfo::default()
        };
        assert!(!full.heard().owes_answer);
        let late = TcpInfo {
            last_data_sent_ms: 110_000,
            last_ack_received_ms: 110_000,
            ..full
        };
        assert!(late.heard().owes_answer);
    }

    #[test]
    fn who_cannot_be_reached_any_more_owes_an_answer_at_any_time() {
        // The last of several segments is lost with the route; the kernel tries after 0.2, 0.6,
        // 1.4, 3.0 … seconds, and nothing of that counts as sent.
        let (mut tried_ms, mut wait_ms) = (0, 200);
        for backoff in 0..8 {
            for ago_ms in tried_ms + 1..=tried_ms + wait_ms {
                let lost = TcpInfo {
                    unacknowledged: 1,
                    backoff,
                    retransmit_us: wait_ms * 1000,
                    last_data_sent_ms: ago_ms,
                    last_data_received_ms: u32::MAX,
                    last_ack_received_ms: ago_ms,
                    ..TcpInfo::default()
                };
                assert!(lost.heard().owes_answer, "{lost:?}");
            }
            tried_ms += wait_ms;
            wait_ms *= 2;
        }
    }

    #[test]
    fn one_question_for_room_may_be_left_unanswered_for_a_moment() {
        let asked = |probes, ago_ms| TcpInfo {
            probes,
            last_data_received_ms: u32::MAX,
            last_ack_received_ms: ago_ms,
            ..TcpInfo::default()
        };
        assert!(!asked(0, 100_000).heard().owes_answer);
        assert!(!asked(1, 1_300).heard().owes_answer);
        assert!(asked(1, 2_001).heard().owes_answer);
        assert!(asked(2, 1_300).heard().owes_answer);
    }

    const PATIENCE: Duration = Duration::from_secs(300);
}
