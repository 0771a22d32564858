//! Peers that lend what is not there: each ends its own endpoint, as a violation.

use std::os::fd::{AsFd, BorrowedFd};

use backhaul::{CloseReason, ProtocolError, RecvError, Tag, TagMask};
use backhaul_proto::{FrameHeader, FrameKind};
use backhaul_shm::completion::{SLOTS, Ticket};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat};
use rustix::net::Shutdown;

use super::still_accepts;
use crate::lending::BLOCK_BYTES;
use crate::manual_peer::{ManualExporter, ManualPeer, SEALS, memfd, packet, sealed, ticket};
use crate::raw::RawPeer;
use crate::{Finish, Harness, LaneKind, assert_matches, pattern};

/// The peer by hand can do what an honest one does, and what one may do though it has no reason
pub fn memory_lent_by_hand_arrives(harness: &Harness) {
    let Some(mut manual) = ManualPeer::new(harness) else {
        return;
    };
    let bytes = BLOCK_BYTES as u64;
    // Segments of a message, and the pieces in which they are lent.
    let cases: [(&[u64], &[u64]); 6] = [
        (&[bytes], &[bytes]),
        (&[bytes], &[1000, bytes - 1000]),
        (&[bytes], &[1, 1, bytes - 2]),
        (&[1000, 0, bytes - 1000], &[bytes]),
        (&[0, 1000, bytes - 1000, 0], &[1000, bytes - 1000]),
        (&[1000, bytes - 1000], &[900, 200, bytes - 1100]),
    ];
    for (message, (layout, pieces)) in (0..).zip(cases) {
        let posted = manual.endpoint.recv_message(Tag(1), TagMask::FULL);
        manual.write_request(message, 1, layout);
        manual.read_frame_of(FrameKind::Accept);
        let exporter = ManualExporter::new(message);
        let mut offset = 0;
        for &piece in pieces {
            exporter.export(&mut manual, message, offset, piece);
            offset += piece;
        }
        let received = posted.done().unwrap();
        let lengths: Vec<_> = received
            .segments
            .iter()
            .map(|part| part.len() as u64)
            .collect();
        assert_eq!(lengths, layout);
        let mut at = 0;
        for segment in &received.segments {
            pattern::check_at(message, at, segment);
            at += segment.len();
        }
        drop(received);
        manual.table.exported.sweep();
        assert_eq!(manual.table.exported.outstanding(), 0);
    }
}

/// Every way in which a packet, its descriptor, or its ticket can be wrong
pub fn leases_of_what_is_not_there_are_violations(harness: &Harness) {
    let bytes = BLOCK_BYTES as u64;
    let good = || sealed(BLOCK_BYTES);
    let send = |manual: &ManualPeer, packet: &[u8], descriptors: &[BorrowedFd<'_>]| {
        manual.send_packet(packet, descriptors).unwrap();
    };
    type Act<'a> = &'a dyn Fn(&mut ManualPeer) -> Ticket;
    let first = ticket(0, 1);
    let acts: &[(&str, Act<'_>)] = &[
        ("no descriptor as said", &|_| first),
        ("no descriptor as said", &|manual| {
            rustix::net::shutdown(&manual.lease_channel, Shutdown::Write).unwrap();
            first
        }),
        ("descriptor", &|manual| {
            send(manual, &packet(0, bytes), &[]);
            first
        }),
        ("descriptors", &|manual| {
            send(manual, &packet(0, bytes), &[good().as_fd(), good().as_fd()]);
            first
        }),
        ("descriptors", &|manual| {
            let memory = good();
            send(manual, &packet(0, bytes), &[memory.as_fd(); 8]);
            first
        }),
        ("no socket", &|manual| {
            let memory = good();
            let socket = manual.peer.socket.as_fd();
            let keep_alives = [memory.as_fd(), socket, manual.their_doorbell.as_fd()];
            send(manual, &packet(0, bytes), &keep_alives);
            first
        }),
        ("bytes", &|manual| {
            send(manual, &packet(0, bytes - 1), &[good().as_fd()]);
            first
        }),
        ("bytes", &|manual| {
            send(manual, &packet(0, u64::MAX), &[good().as_fd()]);
            first
        }),
        ("bytes", &|manual| {
            send(manual, &packet(0, bytes)[..15], &[good().as_fd()]);
            first
        }),
        ("bytes", &|manual| {
            let longer = [&packet(0, bytes)[..], &[0]].concat();
            send(manual, &longer, &[good().as_fd()]);
            first
        }),
        ("not sealed", &|manual| {
            let memory = memfd(BLOCK_BYTES, MemfdFlags::ALLOW_SEALING).unwrap();
            send(manual, &packet(0, bytes), &[memory.as_fd()]);
            first
        }),
        ("not sealed", &|manual| {
            let memory = memfd(BLOCK_BYTES, MemfdFlags::ALLOW_SEALING).unwrap();
            fcntl_add_seals(&memory, SealFlags::GROW | SealFlags::SEAL).unwrap();
            send(manual, &packet(0, bytes), &[memory.as_fd()]);
            first
        }),
        ("not sealed", &|manual| {
            let file = std::fs::File::open("/proc/self/exe").unwrap();
            send(manual, &packet(0, bytes), &[file.as_fd()]);
            first
        }),
        ("not sealed", &|manual| {
            send(manual, &packet(0, bytes), &[manual.their_doorbell.as_fd()]);
            first
        }),
        ("not sealed", &|manual| {
            send(manual, &packet(0, bytes), &[manual.peer.socket.as_fd()]);
            first
        }),
        ("outside", &|manual| {
            send(
                manual,
                &packet(0, bytes),
                &[sealed(BLOCK_BYTES - 1).as_fd()],
            );
            first
        }),
        ("outside", &|manual| {
            send(manual, &packet(0, bytes), &[sealed(0).as_fd()]);
            first
        }),
        ("outside", &|manual| {
            send(manual, &packet(1, bytes), &[good().as_fd()]);
            first
        }),
        ("outside", &|manual| {
            send(manual, &packet(u64::MAX, bytes), &[good().as_fd()]);
            first
        }),
        ("outside", &|manual| {
            send(
                manual,
                &packet(u64::MAX - bytes + 1, bytes),
                &[good().as_fd()],
            );
            first
        }),
        ("slot", &|manual| {
            send(manual, &packet(0, bytes), &[good().as_fd()]);
            ticket(SLOTS as u32, 1)
        }),
        ("slot", &|manual| {
            send(manual, &packet(0, bytes), &[good().as_fd()]);
            ticket(u32::MAX, u32::MAX)
        }),
        ("slot", &|manual| {
            send(manual, &packet(0, bytes), &[good().as_fd()]);
            ticket(0, 0)
        }),
    ];
    for &(expected, act) in acts {
        for into_buffer in [false, true] {
            let Some(manual) = ManualPeer::new(harness) else {
                return;
            };
            assert_bad_lease(harness, manual, into_buffer, expected, act);
        }
    }
    for flags in [
        MemfdFlags::HUGETLB,
        MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
    ] {
        let Ok(memory) = memfd(2 << 20, flags | MemfdFlags::ALLOW_SEALING) else {
            // A system without them.
            continue;
        };
        fcntl_add_seals(&memory, SEALS).unwrap();
        let manual = ManualPeer::new(harness).unwrap();
        assert_bad_lease(harness, manual, false, "huge", &|manual| {
            manual
                .send_packet(&packet(0, bytes), &[memory.as_fd()])
                .unwrap();
            ticket(0, 1)
        });
    }
}

/// Memory that the peer only says it has takes none here, though pages are mapped ahead otherwise
pub fn a_lease_of_memory_without_pages_makes_none(harness: &Harness) {
    let context = harness.context_with(|config| config.populate_leases = true);
    let Some(mut manual) = ManualPeer::with(harness, &context) else {
        return;
    };
    for (message, bytes) in [(0, 1 << 20), (1, 1 << 30)] {
        let memory = sealed(bytes as usize);
        let posted = manual.endpoint.recv_message(Tag(1), TagMask::FULL);
        manual.write_request(message, 1, &[bytes]);
        manual.read_frame_of(FrameKind::Accept);
        manual
            .send_packet(&packet(0, bytes), &[memory.as_fd()])
            .unwrap();
        manual.write_lease(message, ticket(message as u32, 1).into(), bytes);
        let received = posted.done().unwrap();
        let pages = || fstat(&memory).unwrap().st_blocks;
        assert_eq!(pages(), 0);
        assert_eq!(received.segments[0][bytes as usize - 1], 0);
        assert!(pages() > 0);
    }
}

/// The same ticket while it is out
pub fn a_ticket_that_is_out_already_is_a_violation(harness: &Harness) {
    let Some(mut manual) = ManualPeer::new(harness) else {
        return;
    };
    let exporter = ManualExporter::new(5);
    let posted = manual.endpoint.recv_message(Tag(2), TagMask::FULL);
    manual.write_request(0, 2, &[BLOCK_BYTES as u64]);
    manual.read_frame_of(FrameKind::Accept);
    let taken = exporter.export(&mut manual, 0, 0, BLOCK_BYTES as u64);
    let held = posted.done().unwrap();
    let memory = sealed(BLOCK_BYTES);
    let posted = manual.endpoint.recv_message(Tag(1), TagMask::FULL);
    manual.write_request(1, 1, &[BLOCK_BYTES as u64]);
    manual.read_frame_of(FrameKind::Accept);
    let bytes = BLOCK_BYTES as u64;
    manual
        .send_packet(&packet(0, bytes), &[memory.as_fd()])
        .unwrap();
    manual.write_lease(1, taken.into(), bytes);
    assert_violated(&manual, "slot");
    posted.done().unwrap_err();
    // Memory that was lent before, and well, is there.
    pattern::check(5, &held.segments[0]);
    assert_eq!(manual.table.exported.sweep(), 0);
    drop(held);
    assert_eq!(manual.table.exported.sweep(), 1);
    still_accepts(harness, &manual.listener);
}

/// Leases for messages that take none
pub fn leases_for_messages_that_do_not_await_them_are_violations(harness: &Harness) {
    let bytes = BLOCK_BYTES as u64;
    type Case = (fn(&mut ManualPeer), fn(&ProtocolError) -> bool);
    let cases: [Case; 4] = [
        // Unknown.
        (
            |_| {},
            |error| matches!(error, ProtocolError::NotAwaited { message: 0, .. }),
        ),
        // Not accepted.
        (
            |manual| manual.write_request(0, 9, &[BLOCK_BYTES as u64]),
            |error| matches!(error, ProtocolError::NotAwaited { message: 0, .. }),
        ),
        // Complete.
        (
            |manual| {
                let posted = manual.endpoint.recv_message(Tag(1), TagMask::FULL);
                manual.write_request(0, 1, &[BLOCK_BYTES as u64]);
                manual.read_frame_of(FrameKind::Accept);
                ManualExporter::new(1).export(manual, 0, 0, BLOCK_BYTES as u64);
                posted.done().unwrap();
            },
            |error| matches!(error, ProtocolError::NotAwaited { message: 0, .. }),
        ),
        // Longer than what is missing.
        (
            |manual| {
                manual.endpoint.recv_message(Tag(1), TagMask::FULL).detach();
                manual.write_request(0, 1, &[BLOCK_BYTES as u64 - 1]);
                manual.read_frame_of(FrameKind::Accept);
            },
            |error| matches!(error, ProtocolError::TooMuchData { message: 0, .. }),
        ),
    ];
    for (act, expected) in cases {
        let Some(mut manual) = ManualPeer::new(harness) else {
            return;
        };
        act(&mut manual);
        let memory = sealed(BLOCK_BYTES);
        manual
            .send_packet(&packet(0, bytes), &[memory.as_fd()])
            .unwrap();
        manual.write_lease(0, ticket(7, 1).into(), bytes);
        assert_matches!(
            manual.endpoint.watch_close().done().unwrap(),
            CloseReason::Violation { ref source, .. } if expected(source)
        );
        still_accepts(harness, &manual.listener);
    }
}

/// On a lane between hosts there is nothing to lend
pub fn a_lease_on_the_tcp_lane_is_a_violation(harness: &Harness) {
    if harness.lane != LaneKind::Tcp {
        return;
    }
    let listener = harness.context().listen(crate::harness::LOOPBACK).unwrap();
    let accept = listener.accept();
    let mut peer = RawPeer::shake_hands(listener.local_address());
    let endpoint = accept.done().unwrap();
    let posted = endpoint.recv_message(Tag(1), TagMask::FULL);
    peer.say_frame(FrameHeader {
        segment_count: 1,
        tag: 1,
        payload_bytes: 100_000,
        ..FrameHeader::bare(FrameKind::Request, 0)
    });
    while peer.hear_frame().kind != FrameKind::Accept {}
    peer.say_frame(FrameHeader {
        tag: ticket(0, 1).into(),
        payload_bytes: 100_000,
        carrier: 1,
        ..FrameHeader::bare(FrameKind::Carried, 0)
    });
    assert_matches!(
        posted.done().unwrap_err(),
        RecvError::Closed(CloseReason::Violation { ref source, .. })
            if matches!(**source, ProtocolError::UnknownCarrier { carrier: 1, .. })
    );
    still_accepts(harness, &listener);
}

/// Has a lease be bad for a message that awaits it
fn assert_bad_lease(
    harness: &Harness,
    mut manual: ManualPeer,
    into_buffer: bool,
    expected: &str,
    act: &dyn Fn(&mut ManualPeer) -> Ticket,
) {
    let endpoint = &manual.endpoint;
    let posted = into_buffer.then(|| endpoint.recv(Tag(1), TagMask::FULL, vec![0; BLOCK_BYTES]));
    let message = (!into_buffer).then(|| endpoint.recv_message(Tag(1), TagMask::FULL));
    manual.write_request(0, 1, &[BLOCK_BYTES as u64]);
    manual.read_frame_of(FrameKind::Accept);
    let ticket = act(&mut manual);
    manual.write_lease(0, ticket.into(), BLOCK_BYTES as u64);
    assert_violated(&manual, expected);
    let errors = [
        posted.map(|request| request.done().unwrap_err()),
        message.map(|request| request.done().unwrap_err()),
    ];
    for error in errors.into_iter().flatten() {
        assert_matches!(error, RecvError::Closed(CloseReason::Violation { .. }));
    }
    still_accepts(harness, &manual.listener);
}

#[track_caller]
fn assert_violated(manual: &ManualPeer, expected: &str) {
    let reason = manual.endpoint.watch_close().done().unwrap();
    let CloseReason::Violation { source, .. } = &reason else {
        panic!("expected a bad lease ({expected}), got {reason:?}");
    };
    let ProtocolError::BadTicket { detail, .. } = &**source else {
        panic!("expected a bad lease ({expected}), got {source}");
    };
    assert!(
        detail.contains(expected),
        "{detail:?} does not say {expected:?}"
    );
}
