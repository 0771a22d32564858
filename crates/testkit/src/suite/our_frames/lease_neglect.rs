//! Peers that break off, take nothing, give nothing back, or say that they have: what is lent is
//! bounded, and comes back.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use backhaul::{Arena, ArenaConfig, Bytes, Request, Segments, SendError, Tag, TagMask};
use backhaul_proto::{FrameHeader, FrameKind};
use backhaul_shm::completion::SLOTS;
use rustix::io::Errno;
use rustix::net::Shutdown;

use super::still_accepts;
use crate::lending::{BLOCK_BYTES, block, blocks};
use crate::manual_peer::{ManualExporter, ManualPeer, packet, sealed, ticket};
use crate::{Finish, Harness, assert_becomes, assert_matches, pattern, wait_until};

/// Keep-alive descriptors of a third process's memory are open as long as the memory is held, and
/// then closed
pub fn keep_alive_descriptors_are_open_as_long_as_what_came_with_them(harness: &Harness) {
    let Some(mut manual) = ManualPeer::new(harness) else {
        return;
    };
    let bytes = BLOCK_BYTES as u64;
    let exporter = ManualExporter::new(1);
    let keep_alives: Vec<(UnixStream, UnixStream)> =
        (0..7).map(|_| UnixStream::pair().unwrap()).collect();
    let posted = manual.endpoint.recv_message(Tag(1), TagMask::FULL);
    manual.write_request(0, 1, &[bytes, bytes]);
    manual.read_frame_of(FrameKind::Accept);
    for _ in 0..2 {
        let lease = exporter.lease(0, bytes);
        let mut descriptors = vec![lease.descriptor()];
        descriptors.extend(keep_alives.iter().map(|(theirs, _)| theirs.as_fd()));
        let said = packet(lease.offset(), bytes);
        manual.send_packet(&said, &descriptors).unwrap();
        let ticket = manual.table.exported.issue(lease).unwrap();
        manual.write_lease(0, ticket.into(), bytes);
    }
    let mut message = posted.done().unwrap();
    let ours: Vec<UnixStream> = keep_alives.into_iter().map(|(_, ours)| ours).collect();
    let are_open = || {
        ours.iter().all(|end| {
            end.set_nonblocking(true).unwrap();
            rustix::io::read(end, &mut [0; 1]) == Err(Errno::AGAIN)
        })
    };
    assert!(are_open());
    drop(message.segments.pop());
    assert!(are_open());
    manual.endpoint.abort();
    pattern::check(1, &message.segments[0]);
    assert!(are_open());
    drop(message);
    wait_until(|| {
        ours.iter()
            .all(|end| rustix::io::read(end, &mut [0; 1]) == Ok(0))
    });
}

/// A message that is lent in part when its sender dies: what came of it goes back immediately
pub fn a_message_that_breaks_off_returns_what_was_lent_of_it(harness: &Harness) {
    let Some(mut manual) = ManualPeer::new(harness) else {
        return;
    };
    let bytes = BLOCK_BYTES as u64;
    let exporter = ManualExporter::new(1);
    let posted = manual.endpoint.recv_message(Tag(1), TagMask::FULL);
    manual.write_request(0, 1, &[bytes, 100]);
    manual.read_frame_of(FrameKind::Accept);
    exporter.export(&mut manual, 0, 0, bytes);
    drop(manual.peer);
    posted.done().unwrap_err();
    wait_until(|| manual.table.exported.sweep() == 1);
}

/// Leases on their way when their receiver ended are back, though the receiver holds more of that
/// peer
pub fn what_an_endpoint_had_not_taken_at_its_end_is_back(harness: &Harness) {
    let Some(mut manual) = ManualPeer::new(harness) else {
        return;
    };
    let bytes = BLOCK_BYTES as u64;
    let exporters = [ManualExporter::new(1), ManualExporter::new(2)];
    let posted = manual.endpoint.recv_message(Tag(1), TagMask::FULL);
    manual.write_request(0, 1, &[bytes, bytes]);
    manual.read_frame_of(FrameKind::Accept);
    exporters[0].export(&mut manual, 0, 0, bytes);
    exporters[0].export(&mut manual, 0, 0, bytes);
    let held = posted.done().unwrap();
    exporters[1].send_packet(&mut manual, 0, bytes);
    assert_eq!(manual.table.exported.sweep(), 0);
    manual.endpoint.abort();
    manual.endpoint.watch_close().done().unwrap();
    assert_eq!(manual.table.exported.sweep(), 1);
    // And what is given after that.
    exporters[1].send_packet(&mut manual, 0, bytes);
    assert_eq!(manual.table.exported.sweep(), 1);
    pattern::check(1, &held.segments[0]);
    drop(held);
    assert_eq!(manual.table.exported.sweep(), 2);
}

/// A peer may die with unread packets from here: messages that it lent before that arrive
pub fn messages_lent_by_a_peer_that_dies_with_unread_packets_arrive(harness: &Harness) {
    let arena = Arena::new(ArenaConfig::default());
    let context = harness.context_with(|config| config.arena = Some(arena.clone()));
    let Some(mut manual) = ManualPeer::with(harness, &context) else {
        return;
    };
    let unread = lend_to(&mut manual, &arena, 0);
    let posted = [1, 2].map(|tag| manual.endpoint.recv_message(Tag(tag), TagMask::FULL));
    for (message, tag) in [(0, 1), (1, 2)] {
        manual.write_request(message, tag, &[BLOCK_BYTES as u64]);
        manual.read_frame_of(FrameKind::Accept);
    }
    let exporters = [ManualExporter::new(1), ManualExporter::new(2)];
    // The packets first, then the end of the socket, then the frames.
    let tickets =
        [0, 1].map(|index| exporters[index].send_packet(&mut manual, 0, BLOCK_BYTES as u64));
    let ManualPeer {
        lease_channel,
        endpoint,
        mut rings,
        their_doorbell,
        peer,
        ..
    } = manual;
    drop(lease_channel);
    for (message, ticket) in (0..).zip(tickets) {
        let header = FrameHeader {
            tag: ticket.into(),
            payload_bytes: BLOCK_BYTES as u64,
            carrier: 1,
            ..FrameHeader::bare(FrameKind::Carried, message)
        };
        rings.producer.write(&header.encode()).unwrap();
    }
    rustix::io::write(&their_doorbell, &1_u64.to_ne_bytes()).unwrap();
    for (seed, request) in (1..).zip(posted) {
        pattern::check(seed, &request.done().unwrap().segments[0]);
    }
    drop((peer, endpoint));
    drop(unread);
    wait_until(|| blocks(&arena) == (0, 0, 0));
}

/// Packets that wait for their reader fill the socket: from there on, copies are sent
pub fn a_peer_that_takes_no_packets_gets_copies(harness: &Harness) {
    let arena = Arena::new(ArenaConfig::default());
    let context = harness.context_with(|config| config.arena = Some(arena.clone()));
    let Some(mut manual) = ManualPeer::with(harness, &context) else {
        return;
    };
    let mut lent = 0;
    loop {
        let memory = block(&arena, lent, BLOCK_BYTES);
        let send = send_frames(&manual, memory);
        let request = manual.read_frame_of(FrameKind::Request);
        manual.write_frame(FrameHeader::bare(FrameKind::Accept, request.message));
        let piece = manual.read_frame();
        if piece.kind == FrameKind::Carried {
            send.done().unwrap();
            lent += 1;
            continue;
        }
        let mut payload = vec![0; piece.payload_bytes as usize];
        manual.read(&mut payload);
        pattern::check(lent, &payload);
        send.done().unwrap();
        break;
    }
    assert!(lent > 0 && lent <= SLOTS as u64, "{lent} were lent");
    assert_eq!(blocks(&arena), (0, lent as usize, lent as usize));
    // The messages that it takes then are right, and it is lent to again.
    for seed in 0..lent {
        let (offset, bytes, memory) = manual.receive_packet();
        assert_eq!(bytes, BLOCK_BYTES as u64);
        let mut found = vec![0; BLOCK_BYTES];
        rustix::io::pread(&memory, &mut found, offset).unwrap();
        pattern::check(seed, &found);
    }
    drop(lend_to(&mut manual, &arena, lent + 1));
    drop(manual.lease_channel);
    wait_until(|| blocks(&arena) == (0, 0, 0));
}

/// A peer that gives nothing back has what there are slots for, which can be seen, until it ends
pub fn a_peer_that_returns_nothing_holds_a_bounded_amount_until_its_end(harness: &Harness) {
    let arena = Arena::new(ArenaConfig::default());
    let context = harness.context_with(|config| {
        config.arena = Some(arena.clone());
        config.limits.eager_bytes_max = 0;
        config.lease_bytes_min = SMALL_BYTES;
    });
    let Some(mut manual) = ManualPeer::with(harness, &context) else {
        return;
    };
    let mut kinds = Vec::new();
    for seed in 0..SLOTS as u64 + 5 {
        let send = send_frames(&manual, block(&arena, seed, SMALL_BYTES));
        let request = manual.read_frame_of(FrameKind::Request);
        manual.write_frame(FrameHeader::bare(FrameKind::Accept, request.message));
        let piece = manual.read_frame();
        if piece.kind == FrameKind::Carried {
            // Taken, and kept though the descriptor is not.
            drop(manual.receive_packet());
        } else {
            let mut payload = vec![0; piece.payload_bytes as usize];
            manual.read(&mut payload);
            pattern::check(seed, &payload);
        }
        send.done().unwrap();
        kinds.push(piece.kind);
    }
    let (lent, copied) = kinds.split_at(SLOTS);
    assert!(lent.iter().all(|kind| *kind == FrameKind::Carried));
    assert!(copied.iter().all(|kind| *kind == FrameKind::Data));
    let found = arena.statistics();
    assert_eq!(found.leased_bytes, SLOTS * SMALL_BYTES);
    assert_eq!(found.orphaned_bytes, SLOTS * SMALL_BYTES);
    manual.endpoint.abort();
    manual.endpoint.watch_close().done().unwrap();
    // It may have everything mapped still.
    assert_eq!(arena.statistics().leased_bytes, SLOTS * SMALL_BYTES);
    drop(manual.lease_channel);
    wait_until(|| arena.statistics().leased_bytes == 0);
    assert_eq!(arena.statistics().abandoned_bytes, 0);
}

/// A peer that gives back what it has, or has not, harms itself at most
pub fn garbage_in_the_completion_table_does_no_harm(harness: &Harness) {
    for fill in [0xff, 0x00, 0x55, 0x01] {
        let arena = Arena::new(ArenaConfig::default());
        let context = harness.context_with(|config| config.arena = Some(arena.clone()));
        let Some(mut manual) = ManualPeer::with(harness, &context) else {
            return;
        };
        for seed in 0..5 {
            rustix::io::pwrite(&manual.table_memory, &[fill; 3 * 4096], 0).unwrap();
            drop(lend_to(&mut manual, &arena, seed));
            let (_, bytes, _memory) = manual.receive_packet();
            assert_eq!(bytes, BLOCK_BYTES as u64);
            let posted = manual.endpoint.recv_message(Tag(1), TagMask::FULL);
            manual.write_request(seed, 1, &[BLOCK_BYTES as u64]);
            manual.read_frame_of(FrameKind::Accept);
            // Not by the table, in which nothing is sure any more.
            let memory = ManualExporter::new(seed);
            let lease = memory.lease(0, BLOCK_BYTES as u64);
            let said = packet(lease.offset(), lease.bytes() as u64);
            manual.send_packet(&said, &[lease.descriptor()]).unwrap();
            manual.write_lease(seed, ticket(seed as u32, 1).into(), BLOCK_BYTES as u64);
            pattern::check(seed, &posted.done().unwrap().segments[0]);
        }
        // All ones for a moment, in case some generation is that.
        for word in 1..6_u32 {
            let words = word.to_ne_bytes().repeat(2 * SLOTS);
            rustix::io::pwrite(&manual.table_memory, &words, 4096).unwrap();
            arena.statistics();
        }
        assert_becomes(|| blocks(&arena), &(0, 0, 0));
        still_accepts(harness, &manual.listener);
    }
}

/// Packets without a receive stay in the kernel, which bounds them, and end with the endpoint
pub fn a_flood_of_packets_does_not_grow_and_ends_with_the_endpoint(harness: &Harness) {
    let Some(mut manual) = ManualPeer::new(harness) else {
        return;
    };
    let memory = sealed(BLOCK_BYTES);
    let flood = |manual: &ManualPeer| {
        let mut count = 0;
        loop {
            match manual.send_packet(&packet(0, 1), &[memory.as_fd()]) {
                Ok(()) => count += 1,
                Err(error) => return (count, error),
            }
        }
    };
    let (count, error) = flood(&manual);
    assert_matches!(error, Errno::AGAIN | Errno::TOOMANYREFS);
    assert!(count < 10_000, "{count} packets were taken");
    // Messages pass as before.
    for message in 0..3 {
        let posted = manual.endpoint.recv_message(Tag(3), TagMask::FULL);
        manual.write_frame(FrameHeader {
            segment_count: 1,
            tag: 3,
            payload_bytes: 500,
            ..FrameHeader::bare(FrameKind::Eager, message)
        });
        manual.write(&pattern::make(message, 500));
        pattern::check(message, &posted.done().unwrap().segments[0]);
        assert_eq!(flood(&manual).0, 0);
    }
    manual.endpoint.abort();
    manual.endpoint.watch_close().done().unwrap();
    // Nothing is lent, so the other end does not wait for this one.
    wait_until(|| flood(&manual).1 == Errno::PIPE);
}

/// A peer that shuts its direction of the lease channel down gets no more leases, but messages
pub fn a_peer_that_ends_its_direction_early_gets_copies(harness: &Harness) {
    let arena = Arena::new(ArenaConfig::default());
    let context = harness.context_with(|config| config.arena = Some(arena.clone()));
    let Some(mut manual) = ManualPeer::with(harness, &context) else {
        return;
    };
    let lent = lend_to(&mut manual, &arena, 1);
    assert_eq!(blocks(&arena), (1, 1, 0));
    rustix::net::shutdown(&manual.lease_channel, Shutdown::Write).unwrap();
    wait_until(|| blocks(&arena) == (1, 0, 0));
    for _ in 0..3 {
        let send = send_frames(&manual, lent.clone());
        let request = manual.read_frame_of(FrameKind::Request);
        manual.write_frame(FrameHeader::bare(FrameKind::Accept, request.message));
        let piece = manual.read_frame_of(FrameKind::Data);
        let mut payload = vec![0; piece.payload_bytes as usize];
        manual.read(&mut payload);
        pattern::check(1, &payload);
        send.done().unwrap();
    }
    assert_eq!(blocks(&arena), (1, 0, 0));
    assert!(manual.endpoint.close_reason().is_none());
}

/// Has the endpoint lend a block, of which the packet is left in the socket
fn lend_to(manual: &mut ManualPeer, arena: &Arena, seed: u64) -> Bytes {
    let lent = block(arena, seed, BLOCK_BYTES);
    let send = send_frames(manual, lent.clone());
    let request = manual.read_frame_of(FrameKind::Request);
    manual.write_frame(FrameHeader::bare(FrameKind::Accept, request.message));
    manual.read_frame_of(FrameKind::Carried);
    send.done().unwrap();
    lent
}

fn send_frames(manual: &ManualPeer, segment: Bytes) -> Request<(), SendError> {
    let segments = Segments::from_iter([segment]);
    manual.endpoint.send_frames_shared(segments)
}

/// Smallest blocks of an arena
const SMALL_BYTES: usize = 64 << 10;
