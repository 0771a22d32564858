//! Counts of a context for the data that each peer process sends.

use std::time::Duration;

use backhaul::{FlowStatistics, SizeClass, Tag, TagMask, process_token};

use crate::harness::LOOPBACK;
use crate::{Finish, Harness, Pair, wait_until};

/// Each message is counted once, with its bytes, where it is received; long ones are timed
pub fn what_comes_is_counted_by_size(harness: &Harness) {
    let pair = harness.pair();
    // Posted before and after it comes; one and many segments; tagged and not.
    for bytes in SIZES {
        let posted = pair.far.recv(Tag(1), TagMask::FULL, vec![0; bytes]);
        pair.near.send(Tag(1), vec![1; bytes]).done().unwrap();
        posted.done().unwrap();
        let sending = pair
            .near
            .send_frames([vec![2; bytes]].into_iter().collect());
        pair.far.recv_frames().done().unwrap();
        sending.done().unwrap();
    }
    let flow = only_flow(&pair);
    assert_eq!(flow.lane, harness.lane);
    assert_eq!(flow.peer_process, Some(process_token().unwrap()));
    assert_eq!(flow.peer_pid, std::process::id());
    assert!(flow.peer_host.is_loopback());
    assert_eq!(flow.connections, 1);
    for class in SizeClass::all() {
        let of_class = SIZES
            .iter()
            .filter(|&&bytes| SizeClass::of(bytes as u64) == class);
        let bytes: usize = of_class.clone().sum();
        let counted = flow.sizes[SizeClass::all().position(|other| other == class).unwrap()];
        assert_eq!(counted.messages, 2 * of_class.count() as u64, "{class:?}");
        assert_eq!(counted.bytes, 2 * bytes as u64, "{class:?}");
        assert_eq!(counted.lent_bytes, 0, "{class:?}");
        let is_timed = class.is_timed() && counted.messages > 0;
        assert_eq!(counted.time > Duration::ZERO, is_timed, "{class:?}");
    }
    // Two messages of each size; a message that was there when it was seen took no time, and says
    // nothing.
    let timed = SizeClass::all().filter(|class| class.is_timed()).count() - 1;
    assert!(flow.links.len() <= timed, "{:?}", flow.links);
    for link in &flow.links {
        assert!(link.class.is_timed(), "{link:?}");
        assert!(
            link.estimate.bytes_per_s > 0.0 && link.estimate.samples > 0,
            "{link:?}"
        );
    }
    let samples: u32 = flow.links.iter().map(|link| link.estimate.samples).sum();
    let of_timed = |&&bytes: &&usize| SizeClass::of(bytes as u64).is_timed();
    let sent = 2 * SIZES.iter().filter(of_timed).count();
    assert_eq!((samples + flow.ignored) as usize, sent);
    let back = pair.near_context.flows();
    assert!(
        back.iter()
            .all(|flow| flow.sizes.iter().all(|size| size.messages == 0))
    );
}

/// A flow is what a process sends, over however many connections, also when these have ended
pub fn connections_of_one_peer_are_one_flow(harness: &Harness) {
    let pair = harness.pair();
    let listener = pair.far_context.listen(LOOPBACK).unwrap();
    for _ in 0..3 {
        let (near, far) = harness.connect(&pair.near_context, &listener);
        let sending = near.send(Tag(1), vec![0; 100_000]);
        far.recv_message(Tag(1), TagMask::FULL).done().unwrap();
        sending.done().unwrap();
    }
    wait_until(|| only_flow(&pair).connections == 1);
    let flow = only_flow(&pair);
    assert_eq!((flow.sizes[2].messages, flow.sizes[2].bytes), (3, 300_000));
}

/// Lent bytes count as bytes, and are counted apart, too
pub fn what_was_lent_is_told_apart(harness: &Harness) {
    let lending = harness.lending();
    drop(lending.deliver([lending.block(1)]));
    let flow = only_flow(&lending.pair);
    let (mut bytes, mut lent_bytes) = (0, 0);
    for size in &flow.sizes {
        bytes += size.bytes;
        lent_bytes += size.lent_bytes;
    }
    assert_eq!(bytes, crate::lending::BLOCK_BYTES as u64);
    assert_eq!(lent_bytes, if lending.lends { bytes } else { 0 });
}

fn only_flow(pair: &Pair) -> FlowStatistics {
    let mut flows = pair.far_context.flows();
    assert_eq!(flows.len(), 1, "{flows:?}");
    flows.remove(0)
}

/// One of each class but the last, and one at an edge
const SIZES: [usize; 6] = [100, 5000, 64 << 10, 100_000, 2 << 20, 17 << 20];
