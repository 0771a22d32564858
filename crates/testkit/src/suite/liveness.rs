//! Keep-alive, where the kernel does not tell of a dead peer: on the lane that crosses hosts.

use std::time::Duration;

use backhaul::{CloseReason, Config, KeepAlive, LaneKind, RecvError, Tag, TagMask};

use crate::harness::LOOPBACK;
use crate::raw::RawPeer;
use crate::{Finish, Harness, assert_matches};

/// A peer that answers nothing is given up
pub fn a_silent_peer_is_given_up(harness: &Harness) {
    if harness.lane != LaneKind::Tcp {
        return;
    }
    let context = harness.context_with(|config| keep_alive(config, 10, 100));
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

/// A peer that has nothing to say but answers stays
pub fn an_idle_peer_that_answers_stays(harness: &Harness) {
    // The timeout leaves a busy machine time to answer.
    let pair = harness.pair_with(|config| keep_alive(config, 5, 20_000));
    let posted = pair.far.recv_message(Tag(1), TagMask::FULL);
    assert!(!posted.wait_done(Some(Duration::from_millis(100))));
    assert!(pair.near.close_reason().is_none());
    pair.near.send(Tag(1), &b"still here"[..]).done().unwrap();
    assert_eq!(posted.done().unwrap().segments[0][..], *b"still here");
}

fn keep_alive(config: &mut Config, interval_ms: u64, timeout_ms: u64) {
    config.keep_alive = Some(KeepAlive {
        interval: Duration::from_millis(interval_ms),
        timeout: Duration::from_millis(timeout_ms),
    });
}
