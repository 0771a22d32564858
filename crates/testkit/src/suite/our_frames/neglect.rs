//! Peers by hand that shake hands and then do less than they should.

use std::time::{Duration, Instant};

use backhaul::{CloseReason, KeepAlive, LaneKind, RecvError, Tag, TagMask};
use backhaul_proto::{FrameHeader, FrameKind};

use crate::harness::LOOPBACK;
use crate::raw::RawPeer;
use crate::{Finish, Harness, assert_matches};

/// A peer that answers nothing is given up
pub fn a_silent_peer_is_given_up(harness: &Harness) {
    if harness.lane != LaneKind::Tcp {
        return;
    }
    let context = harness.context_with(|config| {
        config.keep_alive = Some(KeepAlive {
            interval: Duration::from_millis(10),
            timeout: Duration::from_millis(100),
        });
    });
    let listener = context.listen(LOOPBACK).unwrap();
    let accept = listener.accept();
    let _silent = RawPeer::shake_hands(listener.local_address());
    let endpoint = accept.done().unwrap();
    let posted = endpoint.recv_message(Tag(1), TagMask::FULL);
    assert_matches!(
        posted.done().unwrap_err(),
        RecvError::Closed(CloseReason::Silent { waited, .. })
            if waited >= Duration::from_millis(100)
    );
}

/// A long message that is received when its connection has ended never comes, and takes no part of
/// the time of those that do; on TCP whatever the lane of the harness
pub fn what_never_comes_takes_no_time(harness: &Harness) {
    const BYTES: usize = 100_000;
    let context = harness.context();
    let listener = context.listen(LOOPBACK).unwrap();
    let announce = || {
        let accept = listener.accept();
        let mut peer = RawPeer::shake_hands(listener.local_address());
        peer.say_frame(FrameHeader {
            segment_count: 1,
            tag: 1,
            payload_bytes: BYTES as u64,
            ..FrameHeader::bare(FrameKind::Request, 0)
        });
        (peer, accept.done().unwrap())
    };
    let (gone, ended) = announce();
    drop(gone);
    ended.watch_close().done().unwrap();
    let late = ended.recv(Tag(1), TagMask::FULL, vec![0; BYTES]);
    late.done().unwrap_err();

    let (mut peer, endpoint) = announce();
    let posted = endpoint.recv(Tag(1), TagMask::FULL, vec![0; BYTES]);
    assert_eq!(peer.hear_frame(), FrameHeader::bare(FrameKind::Accept, 0));
    let accepted = Instant::now();
    std::thread::sleep(Duration::from_millis(200));
    let waited = accepted.elapsed();
    peer.say_frame(FrameHeader {
        payload_bytes: BYTES as u64,
        ..FrameHeader::bare(FrameKind::Data, 0)
    });
    peer.say(&[0; BYTES]);
    posted.done().unwrap();
    let [flow] = &context.flows()[..] else {
        panic!("both connections are of one process");
    };
    let counted: Duration = flow.sizes.iter().map(|size| size.time).sum();
    assert!(counted >= waited, "{counted:?} of {waited:?}");
}
