//! Peers by hand that shake hands and then do less than they should.

use std::time::{Duration, Instant};

use backhaul::{CloseReason, KeepAlive, RecvError, SendError, Tag, TagMask};
use backhaul_proto::{FrameHeader, FrameKind};

use crate::harness::LOOPBACK;
use crate::raw::RawPeer;
use crate::{Finish, Harness, assert_matches};

/// A process that does nothing, as one that is stopped, is not dead while its host answers
pub fn a_silent_peer_whose_host_answers_stays(harness: &Harness) {
    const TIMEOUT: Duration = Duration::from_millis(100);
    let context = harness.context_with(|config| {
        config.keep_alive = Some(KeepAlive {
            interval: Duration::from_millis(10),
            timeout: TIMEOUT,
        });
    });
    let listener = context.listen(LOOPBACK).unwrap();
    let accept = listener.accept();
    let mut silent = RawPeer::shake_hands(listener.local_address());
    let endpoint = accept.done().unwrap();
    let posted = endpoint.recv_message(Tag(1), TagMask::FULL);
    assert!(!posted.wait_done(Some(5 * TIMEOUT)));
    assert!(endpoint.close_reason().is_none());
    silent.say_frame(FrameHeader {
        segment_count: 1,
        tag: 1,
        ..FrameHeader::bare(FrameKind::Eager, 0)
    });
    assert!(posted.done().unwrap().segments[0].is_empty());
}

/// A peer that will say no more is gone, though it goes on reading: nothing could be agreed with it
pub fn a_half_closed_peer_is_gone(harness: &Harness) {
    let context = harness.context();
    let listener = context.listen(LOOPBACK).unwrap();
    let accept = listener.accept();
    let mut half = RawPeer::shake_hands(listener.local_address());
    let endpoint = accept.done().unwrap();
    let posted = endpoint.recv_message(Tag(1), TagMask::FULL);
    // It is announced, and waits for an answer that cannot come.
    let announced = endpoint.send(Tag(1), vec![0; 1 << 20]);
    half.finish();
    assert_matches!(
        posted.done().unwrap_err(),
        RecvError::Closed(CloseReason::PeerGone { .. })
    );
    assert_matches!(
        announced.done().unwrap_err(),
        SendError::Closed(CloseReason::PeerGone { .. })
    );
    endpoint.watch_close().done().unwrap();
    // And it is notified: its own end comes.
    half.hear_out();
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
