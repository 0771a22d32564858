//! Suite of any lane, on one that is made outside the fabric, with a carrier and a device that
//! are too.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use backhaul::{
    CarrierKind, Config, Context, Device, DeviceMemory, LaneKind, MemoryKind, RecvError,
    RecvRefused, Segment, Segments, SendError, SendRefused, Tag, TagMask, Vendor,
};
use backhaul_testkit::harness::LOOPBACK;
use backhaul_testkit::toy::carrier::segments_held;
use backhaul_testkit::toy::device::download;
use backhaul_testkit::toy::{ToyCarriers, ToyDevice, configure, configure_lane};
use backhaul_testkit::watchdog::Watchdog;
use backhaul_testkit::{Finish, Harness, Pair, Spin, assert_matches, pattern};

/// The toy lane, with the toy carrier for whatever it can carry
fn carried(spin: Spin) -> Harness {
    Harness::of_lane(LaneKind::Experimental, spin)
}

/// The toy lane alone, so narrow that every message is in pieces
fn narrow(spin: Spin) -> Harness {
    Harness {
        configure: |config| configure_lane(config, 4096),
        ..carried(spin)
    }
}

mod carried {
    mod polling {
        backhaul_testkit::conformance_of_any_lane!(crate::carried(backhaul_testkit::Spin::Polling));
    }
    mod sleeping {
        backhaul_testkit::conformance_of_any_lane!(crate::carried(
            backhaul_testkit::Spin::Sleeping
        ));
    }
}
mod narrow {
    backhaul_testkit::conformance_of_any_lane!(crate::narrow(backhaul_testkit::Spin::Sleeping));
}

/// Two contexts on the toy lane, the far one with a device, and what its carriers count
fn pair_with_device(device: &ToyDevice) -> (Pair, ToyCarriers) {
    let carriers = ToyCarriers::default();
    let harness = carried(Spin::Polling);
    let near = harness.context();
    let far = harness.context_with(|config| {
        config.device_allocator = Some(Arc::new(device.clone()));
        config.experiments.carrier = Some(Arc::new(carriers.clone()));
    });
    (harness.pair_of(near, far), carriers)
}

fn toy(ordinal: u16) -> MemoryKind {
    MemoryKind::Device(Device {
        vendor: Vendor::Experimental,
        ordinal,
    })
}

#[test]
fn segments_of_host_and_device_arrive_where_they_came_from() {
    let _watchdog = Watchdog::start("segments_of_host_and_device_arrive_where_they_came_from");
    let (theirs, ours) = (ToyDevice::new(3, 1 << 24), ToyDevice::new(3, 1 << 24));
    let (pair, carriers) = pair_with_device(&ours);
    let sizes = [0, 1 << 20, 100, 0, 300_000, 0, 17];
    let on_device = [false, true, false, true, true, false, true];
    for is_posted_first in [true, false] {
        let posted = is_posted_first.then(|| pair.far.recv_message(Tag(1), TagMask::FULL));
        let segments: Segments = (0..)
            .zip(sizes)
            .zip(on_device)
            .map(|((seed, bytes), on_device)| {
                let bytes = pattern::make(seed, bytes);
                match on_device {
                    true => Segment::Device(theirs.upload(&bytes)),
                    false => Segment::from(bytes),
                }
            })
            .collect();
        let sent = pair.near.send_segments(Tag(1), segments);
        let posted = posted.unwrap_or_else(|| pair.far.recv_message(Tag(1), TagMask::FULL));
        let message = posted.done().unwrap();
        sent.done().unwrap();
        assert_eq!(message.segments.len(), sizes.len());
        let mut devices = message.device_segments.iter();
        for (index, (bytes, on_device)) in sizes.into_iter().zip(on_device).enumerate() {
            if on_device && bytes > 0 {
                let (at, memory) = devices.next().unwrap();
                assert_eq!((*at, memory.device()), (index, ours.device()));
                pattern::check(index as u64, &download(memory));
                assert!(message.segments[index].is_empty());
            } else {
                assert_eq!(message.segments[index].len(), bytes);
                pattern::check(index as u64, &message.segments[index]);
            }
        }
        assert!(devices.next().is_none());
        assert_eq!(ours.blocks_held(), 3);
        drop(message);
        assert_eq!((ours.blocks_held(), segments_held()), (0, 0));
    }
    let moved = carriers.counts.device_bytes.load(Ordering::Relaxed);
    assert_eq!(moved, 2 * ((1 << 20) + 300_000 + 17));
    let statistics = pair.far.statistics();
    let bytes = 2 * sizes.iter().sum::<usize>() as u64;
    assert_eq!(
        (statistics.received_messages, statistics.received_bytes),
        (2, bytes)
    );
    assert_eq!(pair.near.statistics().sent_bytes, bytes);
    assert_eq!(pair.near.statistics().sent_device_bytes, moved);
    assert_eq!(statistics.received_device_bytes, moved);
    assert_eq!(theirs.blocks_held(), 0);
}

#[test]
fn a_receive_brings_memory_of_a_device() {
    let _watchdog = Watchdog::start("a_receive_brings_memory_of_a_device");
    let device = ToyDevice::new(0, 1 << 24);
    let harness = carried(Spin::Sleeping);
    // No allocator: the receive has the memory.
    let pair = harness.pair();
    let target = device.upload(&vec![0; 600_000]);
    let posted = pair.far.recv(Tag(1), TagMask::FULL, target);
    let source = device.upload(&pattern::make(5, 500_000));
    pair.near.send(Tag(1), source).done().unwrap();
    let received = posted.done().unwrap();
    assert_eq!(received.bytes, 500_000);
    let target: DeviceMemory = received.into_buffer().unwrap();
    pattern::check(5, &download(&target)[..500_000]);

    // From a device to the host.
    let posted = pair.far.recv(Tag(2), TagMask::FULL, vec![0; 600_000]);
    let source = device.upload(&pattern::make(6, 600_000));
    pair.near.send(Tag(2), source).done().unwrap();
    let host: Vec<u8> = posted.done().unwrap().into_buffer().unwrap();
    pattern::check(6, &host);

    // From the host to a device: nothing brings it there, and the next message is not in its way.
    for bytes in [100, 500_000] {
        let posted = pair
            .far
            .recv(Tag(3), TagMask::FULL, device.upload(&vec![0; bytes]));
        pair.near.send(Tag(3), vec![1; bytes]).done().unwrap();
        let error = posted.done().map(drop).unwrap_err();
        assert_matches!(
            &error,
            RecvError::Refused(RecvRefused::NoCarrier { memory, detail })
                if *memory == toy(0) && detail.contains("memory of the host")
        );
    }
    pair.near.send(Tag(3), vec![2; 10]).done().unwrap();
    let received = pair.far.recv(Tag(3), TagMask::FULL, vec![0; 10]).done();
    assert_eq!(received.unwrap().into_buffer(), Some(vec![2; 10]));
}

#[test]
fn without_memory_of_the_device_its_receive_is_told() {
    let _watchdog = Watchdog::start("without_memory_of_the_device_its_receive_is_told");
    let device = ToyDevice::new(7, 1 << 20);
    let pair = carried(Spin::Polling).pair();
    let posted = pair.far.recv_message(Tag(1), TagMask::FULL);
    let sent = pair.near.send(Tag(1), device.upload(&[1; 1000]));
    let error = posted.done().map(drop).unwrap_err();
    assert_matches!(
        &error,
        RecvError::Refused(RecvRefused::NoCarrier { memory, detail })
            if *memory == toy(7) && detail.contains("allocator")
    );
    sent.done().unwrap();

    let full = ToyDevice::new(7, 500);
    let (pair, _) = pair_with_device(&full);
    let posted = pair.far.recv_message(Tag(1), TagMask::FULL);
    let sent = pair.near.send(Tag(1), device.upload(&[1; 1000]));
    let error = posted.done().map(drop).unwrap_err().to_string();
    assert!(error.contains("the device is full"), "{error}");
    sent.done().unwrap();
    let posted = pair.far.recv_message(Tag(2), TagMask::FULL);
    pair.near
        .send(Tag(2), device.upload(&[1; 500]))
        .done()
        .unwrap();
    let message = posted.done().unwrap();
    assert_eq!(download(&message.device_segments[0].1), [1; 500]);
}

#[test]
fn what_no_carrier_takes_is_refused_before_anything_is_sent() {
    let _watchdog = Watchdog::start("what_no_carrier_takes_is_refused_before_anything_is_sent");
    let device = ToyDevice::new(2, 1 << 20);
    let without: [fn(&mut Config); 3] = [
        |config| configure_lane(config, 1 << 16),
        |config| config.experiments.carrier = None,
        |config| config.carriers = vec![CarrierKind::Lease],
    ];
    let harness = carried(Spin::Polling);
    for without in without {
        let pair = harness.pair_of(harness.context(), harness.context_with(without));
        for (near, far) in [(&pair.near, &pair.far), (&pair.far, &pair.near)] {
            let mut segments = Segments::from_iter([vec![0; 10]]);
            segments.push(device.upload(&[0; 10]));
            let error = near.send_segments(Tag(1), segments).done().unwrap_err();
            assert_matches!(
                &error,
                SendError::Refused(SendRefused::NoCarrier { memory, detail })
                    if *memory == toy(2) && detail.contains("no carriers")
            );
            let target = device.upload(&[0; 10]);
            let error = near.recv(Tag(1), TagMask::FULL, target).done();
            assert_matches!(
                error.map(drop).unwrap_err(),
                RecvError::Refused(RecvRefused::NoCarrier { .. })
            );
            near.send(Tag(2), vec![3; 10]).done().unwrap();
            let next = far.recv_message(Tag(0), TagMask::ANY).done().unwrap();
            assert_eq!(next.tag, Some(Tag(2)));
            assert_eq!(near.statistics().sent_messages, 1);
        }
    }
    // The lane is that of the harness all the same; a device of another make has no carrier at all.
    let other = Device {
        vendor: Vendor::Nvidia,
        ordinal: 0,
    };
    let pair = harness.pair();
    let memory = DeviceMemory::new(other, 4096, 10, None, Arc::new(()));
    let error = pair
        .near
        .send(Tag(1), memory)
        .done()
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("NVIDIA device 0") && error.contains("experimental"),
        "{error}"
    );
}

#[test]
fn a_lane_that_one_side_lacks_is_not_used() {
    let harness = carried(Spin::Polling);
    let mut without = harness.config();
    without.experiments.lane = None;
    let near = harness.context();
    let far = Context::new(without).unwrap();
    for (near, far) in [(&near, &far), (&far, &near)] {
        let listener = far.listen(LOOPBACK).unwrap();
        let accept = listener.accept();
        let address = listener.local_address().to_string();
        let near = near.connect(&address).done().unwrap();
        accept.done().unwrap();
        assert_eq!(near.lane(), LaneKind::Tcp);
    }
    let config = harness.config_with(configure);
    assert_eq!(config.lanes, [LaneKind::Experimental]);
}
