//! Keep-alive: who is silent, and who is gone.

use std::time::Duration;

use backhaul::{Config, KeepAlive, Tag, TagMask};

use crate::{Finish, Harness};

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
