//! Peers that hand over what is no doorbell, or one that would block a notification: they stay on
//! TCP, or harm only themselves, and the engine goes on.

use std::os::fd::{AsFd, OwnedFd};

use backhaul::{Endpoint, LaneKind, Listener, Tag, TagMask};
use backhaul_shm::channel::{self, Duplex};
use backhaul_shm::completion;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::pipe;

use super::still_accepts;
use crate::harness::LOOPBACK;
use crate::manual_peer::{doorbell, memfd};
use crate::raw::{RawPeer, hand_over};
use crate::{Finish, Harness};

/// With any other kind of descriptor, as either of the two
pub fn a_doorbell_that_is_none_falls_back_to_tcp(harness: &Harness) {
    if harness.lane != LaneKind::Shm {
        return;
    }
    let kinds: [fn() -> OwnedFd; 6] = [
        || rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty()).unwrap(),
        || rustix::fs::open("/", OFlags::DIRECTORY, Mode::empty()).unwrap(),
        || memfd(4096, MemfdFlags::CLOEXEC).unwrap(),
        || pipe().unwrap().0,
        || pipe().unwrap().1,
        || {
            let (kind, flags) = (SocketType::STREAM, SocketFlags::CLOEXEC);
            socketpair(AddressFamily::UNIX, kind, flags, None)
                .unwrap()
                .0
        },
    ];
    for make in kinds {
        for is_theirs in [true, false] {
            let (bad, good) = (make(), doorbell());
            let doorbells = if is_theirs { [bad, good] } else { [good, bad] };
            let Connected {
                peer,
                endpoint,
                listener,
                ..
            } = connect(harness, &doorbells);
            assert_eq!(endpoint.lane(), LaneKind::Tcp, "{}", endpoint.info().reason);
            drop((peer, endpoint));
            still_accepts(harness, &listener);
        }
    }
}

/// One that is full already, or that is made to block later
pub fn a_doorbell_that_blocks_holds_nobody_up(harness: &Harness) {
    if harness.lane != LaneKind::Shm {
        return;
    }
    for is_theirs in [true, false] {
        for is_full in [true, false] {
            let blocking = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
            if is_full {
                let most = u64::MAX - 1;
                rustix::io::write(&blocking, &most.to_ne_bytes()).unwrap();
            }
            let good = doorbell();
            let doorbells = if is_theirs {
                [blocking, good]
            } else {
                [good, blocking]
            };
            let mut connected = connect(harness, &doorbells);
            let mut sends = Vec::new();
            for seed in 0..10 {
                // Sleeping, so that the endpoint notifies.
                connected.rings.consumer.arm().unwrap();
                connected.rings.producer.arm().unwrap();
                sends.push(connected.endpoint.send(Tag(seed), vec![1; 10_000]));
                still_accepts(harness, &connected.listener);
            }
            let Connected {
                peer: _peer,
                endpoint,
                listener,
                ..
            } = connected;
            let posted = endpoint.recv_message(Tag(1), TagMask::FULL);
            drop(endpoint);
            posted.done().unwrap_err();
            drop(sends);
            still_accepts(harness, &listener);
        }
    }
}

/// A peer by hand and the endpoint it is connected to, on whichever lane
struct Connected {
    peer: RawPeer,
    endpoint: Endpoint,
    listener: Listener,
    rings: Duplex,
}

/// Offers good memory with these doorbells: that of the endpoint, and that of the peer by hand
fn connect(harness: &Harness, doorbells: &[OwnedFd; 2]) -> Connected {
    let listener = harness.context().listen(LOOPBACK).unwrap();
    let (rings, memory) = channel::create(1 << 16).unwrap();
    let (_, table_memory) = completion::create_table().unwrap();
    let accept = listener.accept();
    let (peer, lane, _) =
        RawPeer::shake_hands_over(listener.local_address(), LaneKind::Shm, |hello| {
            let descriptors =
                [&memory, &table_memory, &doorbells[0], &doorbells[1]].map(AsFd::as_fd);
            hand_over(&hello.unix_name, &hello.nonce, &descriptors);
        });
    let endpoint = accept.done().unwrap();
    assert_eq!(endpoint.lane(), lane);
    Connected {
        peer,
        endpoint,
        listener,
        rings,
    }
}
