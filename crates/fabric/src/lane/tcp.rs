//! The lane over the first socket, watched level-triggered.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use backhaul_proto::LaneKind;
use backhaul_sys::low_water;
use smallvec::SmallVec;

use super::{Lane, LaneError, LaneTraits, Moved, heard_by_kernel, of_io};

/// The first socket carries the frames too
#[derive(Debug)]
pub(crate) struct TcpLane {
    socket: Arc<TcpStream>,
    /// The last read left nothing: the next arrival wakes the watcher
    drained: bool,
    /// Bytes of a payload that come next
    due: usize,
    /// From how many bytes on the kernel wakes a watching thread; never more than are due, or 1
    low_water: usize,
}

impl TcpLane {
    /// A lane over a connected socket that does not block
    pub(crate) fn new(socket: Arc<TcpStream>) -> Self {
        Self {
            socket,
            drained: false,
            due: 0,
            low_water: 1,
        }
    }

    /// Sets from how many bytes on the kernel wakes a watching thread
    fn set_low_water(&mut self, bytes: usize) {
        if bytes == self.low_water {
            return;
        }
        match low_water::set(self.socket.as_fd(), bytes) {
            Ok(()) => self.low_water = bytes,
            // Then they are woken more often.
            Err(error) => tracing::debug!(%error, "the system sets no low-water mark"),
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
        let piece = first_bytes(buffers, WRITE_BYTES_MAX);
        Ok(match of_io((&*self.socket).write_vectored(&piece))? {
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
        let found = rustix::io::ioctl_fionread(&*self.socket);
        found.is_ok_and(|bytes| bytes >= self.low_water as u64)
    }

    fn is_drained(&self) -> bool {
        self.drained
    }

    fn handle_due(&mut self, bytes: usize) {
        self.due = bytes;
        // A mark above the bytes that still come would never be reached.
        if self.low_water > bytes.max(1) {
            self.set_low_water(1);
        }
    }

    // The engine watches the socket; see `connection::interest`.
    fn arm_read(&mut self) -> Result<bool, LaneError> {
        self.set_low_water(match self.due {
            LOW_WATER_MIN.. => self.due.min(LOW_WATER_MAX),
            _ => 1,
        });
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

/// Returns slices over the first bytes of some slices, at most so many
fn first_bytes<'a>(buffers: &'a [IoSlice<'a>], bytes_max: usize) -> SmallVec<[IoSlice<'a>; 16]> {
    let mut left = bytes_max;
    buffers
        .iter()
        .map_while(|buffer| {
            let bytes = buffer.len().min(left);
            left -= bytes;
            (bytes > 0 || buffer.is_empty()).then(|| IoSlice::new(&buffer[..bytes]))
        })
        .collect()
}

/// Bytes that one call gives to the socket
///
/// The call holds the socket while it copies, so that the acknowledgements of the reader wait. With
/// 256 KiB a call, the writer and the reader of one host take turns more than they work at one time.
/// `docs/benchmarks/two-processes.md` has the figures for 64 to 256 KiB.
const WRITE_BYTES_MAX: usize = 112 << 10;

/// Shorter rests of payloads are not waited for as a whole: about what one packet has between two
/// processes of a host
const LOW_WATER_MIN: usize = 64 << 10;

/// Nor is more waited for than two packets, whose wake-up is paid for by what is copied: a longer
/// wait would leave the reader idle while the writer copies
const LOW_WATER_MAX: usize = 96 << 10;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

    use std::net::{Ipv4Addr, TcpListener};
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    /// Returns whether a thread that watches the socket is woken before so long has passed
    fn wakes(lane: &TcpLane, patience: Duration) -> bool {
        let mut watched = [PollFd::new(&*lane.socket, PollFlags::IN)];
        let patience = Timespec::try_from(patience).unwrap();
        poll(&mut watched, Some(&patience)).unwrap() == 1
    }

    #[test]
    fn a_call_gives_the_first_bytes_of_its_slices_to_the_socket() {
        let bytes = [[1_u8; 3], [2; 3], [3; 3]];
        let slices = bytes.each_ref().map(|part| IoSlice::new(part));
        for (bytes_max, expected) in [
            (1, vec![&[1_u8][..]]),
            (3, vec![&[1; 3][..]]),
            (5, vec![&[1; 3], &[2; 2]]),
            (9, vec![&[1; 3], &[2; 3], &[3; 3]]),
            (100, vec![&[1; 3], &[2; 3], &[3; 3]]),
        ] {
            let first = first_bytes(&slices, bytes_max);
            let first: Vec<&[u8]> = first.iter().map(|slice| &slice[..]).collect();
            assert_eq!(first, expected);
        }
        let with_empty = [IoSlice::new(&[]), IoSlice::new(&[4])];
        assert_eq!(first_bytes(&with_empty, 1).len(), 2);
    }

    #[test]
    fn a_watcher_is_woken_when_all_bytes_of_a_payload_are_here_and_not_before() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = listener.accept().unwrap().0;
        socket.set_nonblocking(true).unwrap();
        let mut lane = TcpLane::new(Arc::new(socket));
        let read = |lane: &mut TcpLane, bytes: usize, due: usize| {
            let mut buffer = vec![0; bytes];
            let moved = lane.read(&mut [IoSliceMut::new(&mut buffer)]).unwrap();
            assert_eq!(moved, Moved::Bytes(bytes));
            lane.handle_due(due);
        };

        lane.handle_due(90_000);
        lane.arm_read().unwrap();
        peer.write_all(&[7; 60_000]).unwrap();
        assert!(!wakes(&lane, SHORT) && !lane.has_unread());
        peer.write_all(&[7; 30_000]).unwrap();
        assert!(wakes(&lane, LONG) && lane.has_unread());

        // As a caller leaves it that has read some, and does not arm.
        read(&mut lane, 60_000, 30_000);
        assert!(wakes(&lane, LONG) && lane.has_unread());
        lane.arm_read().unwrap();
        assert!(wakes(&lane, LONG), "so little is not waited for");

        read(&mut lane, 30_000, 300_000);
        lane.arm_read().unwrap();
        peer.write_all(&[7; 100_000]).unwrap();
        assert!(wakes(&lane, LONG), "more is not waited for");
        read(&mut lane, 100_000, 200_000);
        lane.arm_read().unwrap();
        peer.write_all(b"the last").unwrap();
        assert!(!wakes(&lane, SHORT));
        drop(peer);
        assert!(wakes(&lane, LONG), "nothing more comes");
    }

    const SHORT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(100);
}
