//! Tests of copies within a device by way of the host, in a process that has the driver.

use std::sync::Arc;

use backhaul::{Context, LaneKind};
use backhaul_cuda::{Detour, DevicePointer, Driver, Order, Place, Stage, Transfer};

use crate::driver::{self, Kind, Memory};
use crate::inside::{device, filled};
use crate::peer::{Peer, config};

pub(crate) fn what_goes_by_the_host_arrives_as_it_was() {
    driver::enter(0);
    let driver = Driver::get().unwrap();
    let device = driver.device(0).unwrap();
    let small = (2..40).chain([511, 512, 513, 4096, 4097]);
    let large = [65_535, 65_536, 65_537, 1 << 20, (1 << 20) + 7, 2 << 20];
    for bytes in small.chain(large) {
        let (from, content) = filled(Kind::Plain, bytes as u64, bytes);
        // Bytes beside it stay.
        let to = Arc::new(Memory::new(Kind::Plain, bytes + 2));
        to.fill(&vec![0xEE; bytes + 2]);
        let place = |pointer| Place {
            memory: DevicePointer::of(driver, pointer, bytes as u64).unwrap(),
            order: Order::Any,
        };
        let (source, target) = (place(from.pointer()), place(to.pointer() + 1));
        let detour = Detour::of(bytes as u64).unwrap();
        let stage = Stage::take(driver, device).unwrap().unwrap();
        let kept = (Arc::clone(&from), Arc::clone(&to));
        let copy = Transfer::by_host(driver, &source, &target, detour, stage, kept).unwrap();
        copy.wait().unwrap();
        drop(copy);
        let got = to.read();
        assert!(got[1..=bytes] == content, "{bytes}");
        assert_eq!((got[0], got[bytes + 1]), (0xEE, 0xEE), "{bytes}");
    }
}

pub(crate) fn where_a_device_is_slow_to_turn_copies_go_by_the_host() {
    driver::enter(0);
    let context = Context::new(config(LaneKind::Shm)).unwrap();
    let peer = Peer::start(&context);
    // A thread that was kept from looking learns nothing, so it may take some.
    let is_pinned = (0..500).any(|round| {
        echo_sizes(&peer, round);
        peer.has_pinned()
    });
    assert!(is_pinned || driver::is_real());
    // There and back, as it is found now and then that the other way is shorter.
    for round in 0..200 {
        echo_sizes(&peer, round);
    }
}

pub(crate) fn where_nothing_can_be_pinned_copies_do_not_go_by_the_host() {
    driver::enter(0);
    let context = Context::new(config(LaneKind::Shm)).unwrap();
    let peer = Peer::start(&context);
    for round in 0..50 {
        echo_sizes(&peer, round);
        assert!(!peer.has_pinned());
    }
}

/// Has a peer copy messages of several sizes, one at a time
fn echo_sizes(peer: &Peer, seed: u64) {
    for bytes in [7, 4096, 70_001] {
        let (memory, content) = filled(Kind::Plain, seed, bytes);
        let echoed = peer.echo(&format!("into {bytes}"), device(memory.whole()));
        assert!(echoed.unwrap() == content, "{bytes}");
    }
}
