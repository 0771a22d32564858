//! Peers that lend what is not there: each ends its own endpoint, as a violation.

use std::os::fd::{AsFd, BorrowedFd};

use backhaul::{CloseReason, ProtocolError, RecvError, Tag, TagMask};
use backhaul_proto::{FrameHeader, FrameKind};
use backhaul_shm::completion::{SLOTS, Ticket};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat};
use rustix::net::Shutdown;

use super::still_accepts;
use crate::lending::BLOCK_BYTES;
use crate::meeting::{Lender, Meeting, SEALS, memfd, packet, sealed, ticket};
use crate::raw::RawPeer;
use crate::{Finish, Harness, LaneKind, assert_matches, pattern};

/// The peer by hand can do what an honest one does, and what one may do though it has no reason
pub fn memory_lent_by_hand_arrives(harness: &Harness) {
    let Some(mut meeting) = Meeting::new(harness) else {
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
        let posted = meeting.endpoint.recv_message(Tag(1), TagMask::FULL);
        meeting.write_request(message, 1, layout);
        meeting.read_frame_of(FrameKind::Accept);
        let lender = Lender::new(message);
        let mut offset = 0;
        for &piece in pieces {
            lender.lend(&mut meeting, message, offset, piece);
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
        meeting.table.exported.sweep();
        assert_eq!(meeting.table.exported.outstanding(), 0);
    }
}

/// Every way in which a packet, its descriptor, or its ticket can be wrong
pub fn leases_of_what_is_not_there_are_violations(harness: &Harness) {
    let bytes = BLOCK_BYTES as u64;
    let good = || sealed(BLOCK_BYTES);
    let send = |meeting: &Meeting, packet: &[u8], descriptors: &[BorrowedFd<'_>]| {
        meeting.hand_in(packet, descriptors).unwrap();
    };
    type Act<'a> = &'a dyn Fn(&mut Meeting) -> Ticket;
    let first = ticket(0, 1);
    let acts: &[(&str, Act<'_>)] = &[
        ("no descriptor as said", &|_| first),
        ("no descriptor as said", &|meeting| {
            rustix::net::shutdown(&meeting.courier, Shutdown::Write).unwrap();
            first
        }),
        ("descriptor", &|meeting| {
            send(meeting, &packet(0, bytes), &[]);
            first
        }),
        ("descriptors", &|meeting| {
            send(
                meeting,
                &packet(0, bytes),
                &[good().as_fd(), good().as_fd()],
            );
            first
        }),
        ("descriptors", &|meeting| {
            let memory = good();
            send(meeting, &packet(0, bytes), &[memory.as_fd(); 8]);
            first
        }),
        ("no socket", &|meeting| {
            let memory = good();
            let socket = meeting.peer.socket.as_fd();
            let lifelines = [memory.as_fd(), socket, meeting.their_bell.as_fd()];
            send(meeting, &packet(0, bytes), &lifelines);
            first
        }),
        ("bytes", &|meeting| {
            send(meeting, &packet(0, bytes - 1), &[good().as_fd()]);
            first
        }),
        ("bytes", &|meeting| {
            send(meeting, &packet(0, u64::MAX), &[good().as_fd()]);
            first
        }),
        ("bytes", &|meeting| {
            send(meeting, &packet(0, bytes)[..15], &[good().as_fd()]);
            first
        }),
        ("bytes", &|meeting| {
            let longer = [&packet(0, bytes)[..], &[0]].concat();
            send(meeting, &longer, &[good().as_fd()]);
            first
        }),
        ("not sealed", &|meeting| {
            let memory = memfd(BLOCK_BYTES, MemfdFlags::ALLOW_SEALING).unwrap();
            send(meeting, &packet(0, bytes), &[memory.as_fd()]);
            first
        }),
        ("not sealed", &|meeting| {
            let memory = memfd(BLOCK_BYTES, MemfdFlags::ALLOW_SEALING).unwrap();
            fcntl_add_seals(&memory, SealFlags::GROW | SealFlags::SEAL).unwrap();
            send(meeting, &packet(0, bytes), &[memory.as_fd()]);
            first
        }),
        ("not sealed", &|meeting| {
            let file = std::fs::File::open("/proc/self/exe").unwrap();
            send(meeting, &packet(0, bytes), &[file.as_fd()]);
            first
        }),
        ("not sealed", &|meeting| {
            send(meeting, &packet(0, bytes), &[meeting.their_bell.as_fd()]);
            first
        }),
        ("not sealed", &|meeting| {
            send(meeting, &packet(0, bytes), &[meeting.peer.socket.as_fd()]);
            first
        }),
        ("outside", &|meeting| {
            send(
                meeting,
                &packet(0, bytes),
                &[sealed(BLOCK_BYTES - 1).as_fd()],
            );
            first
        }),
        ("outside", &|meeting| {
            send(meeting, &packet(0, bytes), &[sealed(0).as_fd()]);
            first
        }),
        ("outside", &|meeting| {
            send(meeting, &packet(1, bytes), &[good().as_fd()]);
            first
        }),
        ("outside", &|meeting| {
            send(meeting, &packet(u64::MAX, bytes), &[good().as_fd()]);
            first
        }),
        ("outside", &|meeting| {
            send(
                meeting,
                &packet(u64::MAX - bytes + 1, bytes),
                &[good().as_fd()],
            );
            first
        }),
        ("slot", &|meeting| {
            send(meeting, &packet(0, bytes), &[good().as_fd()]);
            ticket(SLOTS as u32, 1)
        }),
        ("slot", &|meeting| {
            send(meeting, &packet(0, bytes), &[good().as_fd()]);
            ticket(u32::MAX, u32::MAX)
        }),
        ("slot", &|meeting| {
            send(meeting, &packet(0, bytes), &[good().as_fd()]);
            ticket(0, 0)
        }),
    ];
    for &(expected, act) in acts {
        for into_buffer in [false, true] {
            let Some(meeting) = Meeting::new(harness) else {
                return;
            };
            assert_bad_lease(harness, meeting, into_buffer, expected, act);
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
        let meeting = Meeting::new(harness).unwrap();
        assert_bad_lease(harness, meeting, false, "huge", &|meeting| {
            meeting
                .hand_in(&packet(0, bytes), &[memory.as_fd()])
                .unwrap();
            ticket(0, 1)
        });
    }
}

/// Memory that the peer only says it has takes none here, though pages are mapped ahead otherwise
pub fn a_lease_of_memory_without_pages_makes_none(harness: &Harness) {
    let context = harness.context_with(|config| config.populate_leases = true);
    let Some(mut meeting) = Meeting::with(harness, &context) else {
        return;
    };
    for (message, bytes) in [(0, 1 << 20), (1, 1 << 30)] {
        let memory = sealed(bytes as usize);
        let posted = meeting.endpoint.recv_message(Tag(1), TagMask::FULL);
        meeting.write_request(message, 1, &[bytes]);
        meeting.read_frame_of(FrameKind::Accept);
        meeting
            .hand_in(&packet(0, bytes), &[memory.as_fd()])
            .unwrap();
        meeting.write_lease(message, ticket(message as u32, 1).into(), bytes);
        let received = posted.done().unwrap();
        let pages = || fstat(&memory).unwrap().st_blocks;
        assert_eq!(pages(), 0);
        assert_eq!(received.segments[0][bytes as usize - 1], 0);
        assert!(pages() > 0);
    }
}

/// The same ticket while it is out
pub fn a_ticket_that_is_out_already_is_a_violation(harness: &Harness) {
    let Some(mut meeting) = Meeting::new(harness) else {
        return;
    };
    let lender = Lender::new(5);
    let posted = meeting.endpoint.recv_message(Tag(2), TagMask::FULL);
    meeting.write_request(0, 2, &[BLOCK_BYTES as u64]);
    meeting.read_frame_of(FrameKind::Accept);
    let taken = lender.lend(&mut meeting, 0, 0, BLOCK_BYTES as u64);
    let held = posted.done().unwrap();
    let memory = sealed(BLOCK_BYTES);
    let posted = meeting.endpoint.recv_message(Tag(1), TagMask::FULL);
    meeting.write_request(1, 1, &[BLOCK_BYTES as u64]);
    meeting.read_frame_of(FrameKind::Accept);
    let bytes = BLOCK_BYTES as u64;
    meeting
        .hand_in(&packet(0, bytes), &[memory.as_fd()])
        .unwrap();
    meeting.write_lease(1, taken.into(), bytes);
    assert_violated(&meeting, "slot");
    posted.done().unwrap_err();
    // What was lent before, and well, is there.
    pattern::check(5, &held.segments[0]);
    assert_eq!(meeting.table.exported.sweep(), 0);
    drop(held);
    assert_eq!(meeting.table.exported.sweep(), 1);
    still_accepts(harness, &meeting.listener);
}

/// Leases for messages that take none
pub fn leases_for_messages_that_do_not_await_them_are_violations(harness: &Harness) {
    let bytes = BLOCK_BYTES as u64;
    type Case = (fn(&mut Meeting), fn(&ProtocolError) -> bool);
    let cases: [Case; 4] = [
        // Unknown.
        (
            |_| {},
            |error| matches!(error, ProtocolError::NotAwaited { message: 0, .. }),
        ),
        // Not accepted.
        (
            |meeting| meeting.write_request(0, 9, &[BLOCK_BYTES as u64]),
            |error| matches!(error, ProtocolError::NotAwaited { message: 0, .. }),
        ),
        // Complete.
        (
            |meeting| {
                let posted = meeting.endpoint.recv_message(Tag(1), TagMask::FULL);
                meeting.write_request(0, 1, &[BLOCK_BYTES as u64]);
                meeting.read_frame_of(FrameKind::Accept);
                Lender::new(1).lend(meeting, 0, 0, BLOCK_BYTES as u64);
                posted.done().unwrap();
            },
            |error| matches!(error, ProtocolError::NotAwaited { message: 0, .. }),
        ),
        // Longer than what is missing.
        (
            |meeting| {
                meeting
                    .endpoint
                    .recv_message(Tag(1), TagMask::FULL)
                    .detach();
                meeting.write_request(0, 1, &[BLOCK_BYTES as u64 - 1]);
                meeting.read_frame_of(FrameKind::Accept);
            },
            |error| matches!(error, ProtocolError::TooMuchData { message: 0, .. }),
        ),
    ];
    for (act, expected) in cases {
        let Some(mut meeting) = Meeting::new(harness) else {
            return;
        };
        act(&mut meeting);
        let memory = sealed(BLOCK_BYTES);
        meeting
            .hand_in(&packet(0, bytes), &[memory.as_fd()])
            .unwrap();
        meeting.write_lease(0, ticket(7, 1).into(), bytes);
        assert_matches!(
            meeting.endpoint.watch_close().done().unwrap(),
            CloseReason::Violation { ref source, .. } if expected(source)
        );
        still_accepts(harness, &meeting.listener);
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
    mut meeting: Meeting,
    into_buffer: bool,
    expected: &str,
    act: &dyn Fn(&mut Meeting) -> Ticket,
) {
    let endpoint = &meeting.endpoint;
    let posted = into_buffer.then(|| endpoint.recv(Tag(1), TagMask::FULL, vec![0; BLOCK_BYTES]));
    let message = (!into_buffer).then(|| endpoint.recv_message(Tag(1), TagMask::FULL));
    meeting.write_request(0, 1, &[BLOCK_BYTES as u64]);
    meeting.read_frame_of(FrameKind::Accept);
    let ticket = act(&mut meeting);
    meeting.write_lease(0, ticket.into(), BLOCK_BYTES as u64);
    assert_violated(&meeting, expected);
    let errors = [
        posted.map(|request| request.done().unwrap_err()),
        message.map(|request| request.done().unwrap_err()),
    ];
    for error in errors.into_iter().flatten() {
        assert_matches!(error, RecvError::Closed(CloseReason::Violation { .. }));
    }
    still_accepts(harness, &meeting.listener);
}

#[track_caller]
fn assert_violated(meeting: &Meeting, expected: &str) {
    let reason = meeting.endpoint.watch_close().done().unwrap();
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
