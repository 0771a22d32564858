//! Offers that a killed peer could still fetch: every send ends, and its memory is back,
//! immediately.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use backhaul::{Bytes, CloseReason, SendError, Tag};
use backhaul_testkit::peer::Scenario;
use backhaul_testkit::ucx::Transport;
use backhaul_testkit::watchdog::Watchdog;
use backhaul_testkit::{Finish, Harness, Spin, assert_matches, wait_until};

/// Memory that says when it is released
struct Counted {
    bytes: Vec<u8>,
    held: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.held.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Kills a peer that receives nothing while it has `SENDS` offers of this side
fn kill_with_offers_out(transport: Transport) {
    let harness = Harness::over_ucx(transport, Spin::Polling)
        .with_peer_program(env!("CARGO_BIN_EXE_backhaul-testkit-peer"));
    if let Some(why) = &harness.skipped {
        println!("skipped: {why}");
        return;
    }
    let _watchdog = Watchdog::start("a peer killed with offers out");
    let (mut process, endpoint) = harness.peer_process(&harness.context(), Scenario::Idle);
    let held = Arc::new(AtomicUsize::new(SENDS));
    let sends: Vec<_> = (0..SENDS)
        .map(|_| {
            let memory = Counted {
                bytes: vec![7; BYTES],
                held: Arc::clone(&held),
            };
            endpoint.send(Tag(1), Bytes::from_owner(memory))
        })
        .collect();
    // They are announced, and no receive takes them.
    wait_until(|| endpoint.info().protocol.is_some());
    assert_eq!(held.load(Ordering::SeqCst), SENDS);
    process.kill();
    let reason = endpoint.watch_close().done().unwrap();
    let ended = Instant::now();
    assert_matches!(reason, CloseReason::PeerGone { .. });
    for send in sends {
        assert_matches!(
            send.done().unwrap_err(),
            SendError::Closed(CloseReason::PeerGone { .. })
        );
    }
    wait_until(|| held.load(Ordering::SeqCst) == 0);
    println!(
        "{transport:?}: all back {:?} after the end was told",
        ended.elapsed()
    );
}

#[test]
fn what_was_offered_to_a_killed_peer_is_back_over_tcp() {
    kill_with_offers_out(Transport::Tcp);
}

#[test]
fn what_was_offered_to_a_killed_peer_is_back_over_shared_memory() {
    kill_with_offers_out(Transport::Posix);
}

const SENDS: usize = 16;
const BYTES: usize = 1 << 20;
