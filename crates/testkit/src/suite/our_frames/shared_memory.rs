//! Peers that offer memory which is none, or ruin it later; only the lane of shared memory.

use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc;

use backhaul::{Bytes, CarrierKind, CloseReason, LaneKind, RecvError, SendError, Tag, TagMask};
use backhaul_proto::{FrameHeader, FrameKind, Hello};

use super::still_accepts;
use crate::harness::LOOPBACK;
use crate::manual_peer::{ManualPeer, doorbell};
use crate::raw::{RawPeer, hand_over, hello};
use crate::{Finish, Harness, assert_matches, pattern, wait_until};

/// The peer by hand can do what an honest one does
pub fn memory_offered_by_hand_is_a_lane(harness: &Harness) {
    let Some(mut manual) = ManualPeer::new(harness) else {
        return;
    };
    let posted = manual.endpoint.recv_message(Tag(3), TagMask::FULL);
    let header = FrameHeader {
        segment_count: 1,
        tag: 3,
        payload_bytes: 500,
        ..FrameHeader::bare(FrameKind::Eager, 0)
    };
    manual.write(&header.encode());
    manual.write(&pattern::make(1, 500));
    pattern::check(1, &posted.done().unwrap().segments[0]);
    drop(manual.peer);
    assert_matches!(
        manual.endpoint.watch_close().done().unwrap(),
        CloseReason::PeerGone { .. }
    );
}

/// Descriptors that are no memory of a channel: the peers stay on TCP, and the answer says why
pub fn memory_that_is_none_falls_back_to_tcp(harness: &Harness) {
    if harness.lane != LaneKind::Shm {
        return;
    }
    let context = harness.context();
    let listener = context.listen(LOOPBACK).unwrap();
    let file = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
    let doorbell = doorbell();
    let accept = listener.accept();
    let (peer, lane, reason) =
        RawPeer::shake_hands_over(listener.local_address(), LaneKind::Shm, |hello| {
            let descriptors = [
                file.as_fd(),
                file.as_fd(),
                doorbell.as_fd(),
                doorbell.as_fd(),
            ];
            hand_over(&hello.unix_name, &hello.nonce, &descriptors);
        });
    assert_eq!(lane, LaneKind::Tcp);
    assert!(reason.contains("shm"), "{reason}");
    assert_eq!(accept.done().unwrap().lane(), LaneKind::Tcp);
    drop(peer);
    still_accepts(harness, &listener);
}

/// Callers of the Unix socket that hand over nonsense are ignored, and others are served
pub fn garbage_on_the_bootstrap_socket_is_ignored(harness: &Harness) {
    if harness.lane != LaneKind::Shm {
        return;
    }
    let context = harness.context();
    let listener = context.listen(LOOPBACK).unwrap();
    let doorbell = doorbell();
    let talk = |nonce: &dyn Fn(&Hello) -> Vec<u8>, count: usize| {
        let mut peer = RawPeer::connect(listener.local_address());
        peer.say(&hello(&[LaneKind::Shm]).encode());
        let hello = peer.hear_hello();
        hand_over(
            &hello.unix_name,
            &nonce(&hello),
            &vec![doorbell.as_fd(); count],
        );
    };
    talk(&|_| vec![0; 16], 4);
    talk(&|_| vec![0; 1], 4);
    talk(&|_| vec![0; 100], 4);
    talk(&|hello| hello.nonce.to_vec(), 0);
    talk(&|hello| hello.nonce.to_vec(), 3);
    talk(&|hello| hello.nonce.to_vec(), 5);
    talk(&|hello| hello.nonce.to_vec(), 8);
    wait_until(|| listener.statistics().rejected == 7);
    still_accepts(harness, &listener);
}

/// Indices overwritten while the lane is in use end this endpoint, with an error
pub fn ruined_indices_end_the_endpoint(harness: &Harness) {
    for fill in [0xff, 0x55, 0x01] {
        let Some(manual) = ManualPeer::new(harness) else {
            return;
        };
        let posted = manual.endpoint.recv_message(Tag(3), TagMask::FULL);
        rustix::io::pwrite(&manual.memory, &[fill; 4096], 0).unwrap();
        manual.notify();
        let send = manual.endpoint.send(Tag(1), vec![1; 4 << 20]);
        assert_matches!(
            posted.done().unwrap_err(),
            RecvError::Closed(CloseReason::PeerGone { .. } | CloseReason::Violation { .. })
        );
        assert_matches!(
            send.done().unwrap_err(),
            SendError::Closed(CloseReason::PeerGone { .. } | CloseReason::Violation { .. })
        );
        still_accepts(harness, &manual.listener);
    }
}

/// Garbage in the ring is a violation, as it is on a socket
pub fn garbage_in_the_ring_is_a_violation(harness: &Harness) {
    let Some(mut manual) = ManualPeer::new(harness) else {
        return;
    };
    manual.write(&[0xee; 200]);
    assert_matches!(
        manual.endpoint.watch_close().done().unwrap(),
        CloseReason::Violation { .. }
    );
    still_accepts(harness, &manual.listener);
}

/// The socket is there to end: what it says is not looked at, only its end is
pub fn bytes_on_the_sentinel_are_ignored_until_it_ends(harness: &Harness) {
    let ping = FrameHeader::bare(FrameKind::Ping, 1).encode();
    let speeches: [&[u8]; 4] = [&[0], &ping, &[0xff; 1000], &[0x16; 1 << 20]];
    for says in speeches {
        let Some(mut manual) = ManualPeer::new(harness) else {
            return;
        };
        manual.peer.say(says);
        for message in 0..3 {
            let posted = manual.endpoint.recv_message(Tag(3), TagMask::FULL);
            let header = FrameHeader {
                segment_count: 1,
                tag: 3,
                payload_bytes: 500,
                ..FrameHeader::bare(FrameKind::Eager, message)
            };
            manual.write_frame(header);
            manual.write(&pattern::make(message, 500));
            pattern::check(message, &posted.done().unwrap().segments[0]);
            manual.peer.say(&[0]);
        }
        assert!(manual.endpoint.close_reason().is_none());
        drop(manual.peer);
        assert_matches!(
            manual.endpoint.watch_close().done().unwrap(),
            CloseReason::PeerGone { .. }
        );
        still_accepts(harness, &manual.listener);
    }
}

/// Its memory may hold anything by then; what it sent in the ring is as it was
pub fn what_is_read_of_a_peer_that_has_ended_is_no_message(harness: &Harness) {
    let Some(mut meeting) = ManualPeer::readable(harness) else {
        return;
    };
    let memory = pattern::make(1, 30_000);
    let bytes = memory.len() as u64;
    let mut source = [0; 24];
    source[..8].copy_from_slice(&bytes.to_le_bytes());
    source[12] = CarrierKind::SingleCopy.code();
    source[16..].copy_from_slice(&memory.as_ptr().addr().to_le_bytes());
    let header = FrameHeader {
        has_sources: true,
        segment_count: 1,
        tag: 3,
        payload_bytes: bytes,
        ..FrameHeader::bare(FrameKind::Request, 0)
    };
    let offer = [&header.encode()[..], &source].concat();

    let in_ring = FrameHeader {
        segment_count: 1,
        tag: 4,
        payload_bytes: 500,
        ..FrameHeader::bare(FrameKind::Eager, 1)
    };
    let read = meeting.endpoint.recv_message(Tag(3), TagMask::FULL);
    let sent = meeting.endpoint.recv_message(Tag(4), TagMask::FULL);
    let frames = [&offer[..], &in_ring.encode(), &pattern::make(2, 500)].concat();
    // Without a ring of the bell: it is looked at when the peer has ended.
    assert_eq!(meeting.rings.producer.write(&frames).unwrap(), frames.len());
    meeting.peer.socket.shutdown(Shutdown::Both).unwrap();
    assert_matches!(
        read.done().unwrap_err(),
        RecvError::Closed(CloseReason::PeerGone { .. })
    );
    pattern::check(2, &sent.done().unwrap().segments[0]);
}

/// Until then it may be reading it
pub fn memory_of_a_send_is_kept_until_the_peer_can_see_the_end(harness: &Harness) {
    /// Memory that notes whether the peer saw the end when it went
    struct Watched(Vec<u8>, TcpStream, mpsc::Sender<bool>);

    impl AsRef<[u8]> for Watched {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    impl Drop for Watched {
        fn drop(&mut self) {
            let ended = matches!(self.1.peek(&mut [0]), Ok(0));
            // The test may have failed before.
            let _ = self.2.send(ended);
        }
    }

    let Some(meeting) = ManualPeer::new(harness) else {
        return;
    };
    let socket = meeting.peer.socket.try_clone().unwrap();
    socket.set_nonblocking(true).unwrap();
    let (said, heard) = mpsc::channel();
    let memory = Bytes::from_owner(Watched(vec![7; 300_000], socket, said));
    let send = meeting.endpoint.send(Tag(1), memory);
    meeting.endpoint.abort();
    assert_matches!(
        send.done().unwrap_err(),
        SendError::Closed(CloseReason::Local)
    );
    assert_eq!(heard.recv(), Ok(true));
}
