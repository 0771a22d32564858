#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::IoSliceMut;
use std::sync::atomic::{AtomicU32, Ordering};

use backhaul_proto::{KeepAlive, LaneKind};

use super::*;
use crate::config::Config;
use crate::context::Context;
use crate::error::CloseReason;
use crate::lane::LaneError;

/// A lane to a process that does nothing, on a host that may
struct Unresponsive {
    /// When the host vanishes; `None` if the lane cannot tell
    vanishes: Option<Instant>,
    asked: Arc<AtomicU32>,
}

impl Lane for Unresponsive {
    fn kind(&self) -> LaneKind {
        LaneKind::Tcp
    }

    fn traits(&self) -> LaneTraits {
        LaneTraits::OF_SOCKET
    }

    fn read(&mut self, _buffers: &mut [IoSliceMut<'_>]) -> Result<Moved, LaneError> {
        Ok(Moved::Blocked)
    }

    fn write(&mut self, _buffers: &[IoSlice<'_>]) -> Result<Moved, LaneError> {
        Ok(Moved::Blocked)
    }

    fn check_room(&mut self, _bytes: usize) -> bool {
        false
    }

    fn look_for_news(&self) -> bool {
        false
    }

    fn is_drained(&self) -> bool {
        true
    }

    fn arm_read(&mut self) -> Result<bool, LaneError> {
        Ok(true)
    }

    fn arm_write(&mut self) -> Result<bool, LaneError> {
        Ok(true)
    }

    fn disarm_read(&mut self) {}

    fn last_heard(&self, now: Instant) -> Option<Instant> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Some(now.min(self.vanishes?))
    }
}

/// How long a peer that says nothing is waited for, and how often the lane is asked about it
fn patience_with(vanishes_after: Option<Duration>) -> (Duration, u32) {
    let config = Config {
        lanes: vec![LaneKind::Tcp],
        keep_alive: Some(KEEP_ALIVE),
        ..Config::default()
    };
    let context = Context::new(config).unwrap();
    let listener = context.listen("127.0.0.1:0").unwrap();
    let accept = listener.accept();
    let near = context.connect(&listener.local_address().to_string());
    let near = near.wait(Some(PATIENCE)).unwrap().unwrap();
    let _far = accept.wait(Some(PATIENCE)).unwrap().unwrap();

    let conn = near.conn();
    let asked = Arc::new(AtomicU32::new(0));
    let mut next = conn.with_port(|port| {
        let next = port.link.poll_timeout()?;
        port.lane = Some(Box::new(Unresponsive {
            vanishes: vanishes_after.map(|after| next - KEEP_ALIVE.interval + after),
            asked: Arc::clone(&asked),
        }));
        Some(next)
    });
    while let Some(now) = next {
        next = conn.with_port(|port| port.handle_timeout(now));
    }
    match conn.close_reason() {
        Some(CloseReason::Silent { waited, .. }) => (*waited, asked.load(Ordering::Relaxed)),
        other => panic!("not given up: {other:?}"),
    }
}

#[test]
fn a_peer_whose_host_is_there_is_waited_for_until_the_host_vanishes() {
    let (waited, asked) = patience_with(Some(KEEP_ALIVE.interval * 100));
    assert!(waited >= KEEP_ALIVE.timeout, "{waited:?}");
    assert!(
        waited <= KEEP_ALIVE.interval + KEEP_ALIVE.timeout,
        "{waited:?}"
    );
    // Once for each ping that was not answered, and at most as often until the host is given up.
    assert!((50..=110).contains(&asked), "{asked}");
}

#[test]
fn a_peer_of_whose_host_nothing_is_known_is_given_up() {
    // After the interval it is pinged, which asks nothing of the lane; then twice more, and the end.
    assert_eq!(patience_with(None), (KEEP_ALIVE.timeout, 3));
}

/// Far beyond what the test takes, so that the engine's own timer never fires
const KEEP_ALIVE: KeepAlive = KeepAlive {
    interval: Duration::from_secs(3600),
    timeout: Duration::from_secs(4 * 3600),
};

const PATIENCE: Duration = Duration::from_secs(20);
