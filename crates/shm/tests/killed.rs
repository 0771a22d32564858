//! Leases between two processes, one of which is killed, and processes that run out of descriptors
//! or memory
//!
//! The other process is this test binary, started again for `other_process` alone; it inherits a
//! Unix socket as its standard input, over which descriptors go.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use backhaul_shm::arena::{Arena, ArenaConfig, ArenaStatistics};
use backhaul_shm::completion::{
    CompletionTable, Receipt, TableError, Ticket, attach_table, create_table, table_in_process,
};
use backhaul_shm::doorbell::{Doorbell, DoorbellError};
use backhaul_shm::leased::Leased;
use backhaul_shm::pool::{OutOfMemory, Pool, PoolBuf};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const PART: &str = "BACKHAUL_SHM_TEST_PART";
const MIB: usize = 1 << 20;

#[test]
fn blocks_leased_to_a_killed_receiver_are_recycled() {
    for round in 0..20 {
        let arena = Arena::new(ArenaConfig {
            cached_bytes_max: 20 * MIB,
            ..ArenaConfig::default()
        });
        let (socket, mut child) = start("receive for ever");
        let (mut table, fd) = create_table().unwrap();
        send(socket.as_fd(), &[], fd.as_fd());
        drop(fd);
        // At another place each time; whatever the receiver does then, it does not finish it.
        for message in 0..40 + round * 7 {
            let bytes = (1 + message % 5) * 300_000;
            let mut buffer = arena.take(bytes).unwrap();
            buffer.fill(message as u8);
            let lease = buffer.lease().unwrap();
            let (fd, offset) = (
                lease.descriptor().try_clone_to_owned().unwrap(),
                lease.offset(),
            );
            drop(buffer);
            let ticket = loop {
                table.exported.sweep();
                if table.exported.outstanding() < 8 {
                    break table.exported.issue(lease).unwrap();
                }
                assert_running(&mut child);
            };
            let words = [ticket.into(), offset, bytes as u64, message as u64];
            send(socket.as_fd(), &words, fd.as_fd());
        }
        child.kill().unwrap();
        // It had not ended before, as it would if it had seen other bytes than those leased.
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        table.exported.sweep();
        let outstanding = table.exported.outstanding();
        let statistics = arena.statistics();
        assert_eq!(statistics.leased_bytes, statistics.orphaned_bytes);
        assert_eq!(statistics.leased_bytes > 0, outstanding > 0);
        table.exported.return_all();
        arena.trim(0);
        let ArenaStatistics {
            live_bytes,
            leased_bytes,
            orphaned_bytes,
            abandoned_bytes,
            mapped_bytes,
            ..
        } = arena.statistics();
        let left = [live_bytes, leased_bytes, orphaned_bytes, abandoned_bytes];
        assert_eq!((left, mapped_bytes), ([0; 4], 0));
    }
}

#[test]
fn bytes_leased_from_a_killed_sender_stay() {
    let (socket, mut child) = start("send for ever");
    let (_, fd) = receive(socket.as_fd());
    let table = attach_table(fd).unwrap();
    let mut kept = Vec::new();
    for message in 0..6 {
        let (words, fd) = receive(socket.as_fd());
        let (leased, mark) = map(&table, words, fd);
        assert_eq!(mark, message);
        kept.push((leased, mark));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    for (leased, mark) in &mut kept {
        assert!(leased.iter().all(|byte| *byte == *mark));
        leased.fill(99);
    }
    // The completion table has no reader any more.
    drop(kept);
}

#[test]
fn process_out_of_descriptors_uses_memory_of_its_own() {
    let (_socket, mut child) = start("run out of descriptors");
    assert!(child.wait().unwrap().success());
}

#[test]
fn process_out_of_descriptors_still_checks_a_doorbell() {
    let (_socket, mut child) = start("check a doorbell");
    assert!(child.wait().unwrap().success());
}

#[test]
fn process_out_of_memory_is_told_so() {
    let (_socket, mut child) = start("run out of memory");
    assert!(child.wait().unwrap().success());
}

#[test]
#[ignore = "the other process of these tests"]
fn other_process() {
    let Ok(part) = std::env::var(PART) else {
        return;
    };
    let socket = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    match part.as_str() {
        "receive for ever" => receive_for_ever(socket.as_fd()),
        "send for ever" => send_for_ever(socket.as_fd()),
        "run out of descriptors" => run_out_of_descriptors(),
        "run out of memory" => run_out_of_memory(),
        "check a doorbell" => check_a_doorbell(),
        other => panic!("unknown part {other:?}"),
    }
}

/// Keeps the last few leases, and checks that each shows what was leased
fn receive_for_ever(socket: BorrowedFd<'_>) {
    let (_, fd) = receive(socket);
    let table = attach_table(fd).unwrap();
    let mut kept: Vec<(Leased, u8)> = Vec::new();
    loop {
        let (words, fd) = receive(socket);
        kept.push(map(&table, words, fd));
        if kept.len() == 5 {
            let (mut leased, mark) = kept.swap_remove(usize::from(kept[0].1) % 5);
            assert!(
                leased.iter().all(|byte| *byte == mark),
                "leased bytes changed"
            );
            leased.fill(99);
        }
    }
}

fn send_for_ever(socket: BorrowedFd<'_>) {
    let arena = Arena::new(ArenaConfig::default());
    let (mut table, fd) = create_table().unwrap();
    send(socket, &[], fd.as_fd());
    for message in 0_u8..=255 {
        let mut buffer = arena.take(3 * MIB).unwrap();
        buffer.fill(message);
        let lease = buffer.lease().unwrap();
        let (fd, offset) = (
            lease.descriptor().try_clone_to_owned().unwrap(),
            lease.offset(),
        );
        let Ok(ticket) = table.exported.issue(lease) else {
            break;
        };
        let words = [ticket.into(), offset, buffer.len() as u64, message.into()];
        send(socket, &words, fd.as_fd());
    }
    loop {
        std::thread::park();
    }
}

fn run_out_of_descriptors() {
    let arena = Arena::new(ArenaConfig::default());
    let kept = arena.take(MIB).unwrap();
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let few = Rlimit {
        current: Some(4),
        maximum,
    };
    setrlimit(Resource::Nofile, few).unwrap();
    assert!(arena.take(40 * MIB).is_none());
    let reason = arena.unavailable().unwrap();
    assert_eq!(reason.raw_os_error(), Some(24), "{reason}");
    assert_eq!(arena.statistics().refused, 1);
    // A request that needs none is served.
    drop(kept);
    assert!(arena.take(MIB).is_some());
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    assert!(arena.take(40 * MIB).is_some());
    assert!(arena.unavailable().is_none());
}

fn run_out_of_memory() {
    let pool = Pool::new(0);
    let sizes = vec![1; 1 << 20];
    let Rlimit { current, maximum } = getrlimit(Resource::As);
    let none = Rlimit {
        current: Some(1 << 20),
        maximum,
    };
    setrlimit(Resource::As, none).unwrap();
    let refused = pool.take_many(&sizes).map(drop);
    let tables = table_in_process().map(drop);
    setrlimit(Resource::As, Rlimit { current, maximum }).unwrap();
    // The list, or, where the heap has room for that, the first block.
    let OutOfMemory { bytes } = refused.unwrap_err();
    assert!([sizes.len() * size_of::<PoolBuf>(), 256 << 10].contains(&bytes));
    let error = tables.unwrap_err();
    assert!(matches!(error, TableError::System(_)), "{error}");
    assert_eq!(pool.take_many(&sizes).unwrap().len(), sizes.len());
}

fn check_a_doorbell() {
    let passed = eventfd(0, EventfdFlags::empty()).unwrap();
    let (pipe, _writing) = std::io::pipe().unwrap();
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let few = Rlimit {
        current: Some(16),
        maximum,
    };
    setrlimit(Resource::Nofile, few).unwrap();
    let _all: Vec<_> = std::iter::from_fn(|| Doorbell::new().ok()).collect();
    let doorbell = Doorbell::from_peer(passed).unwrap();
    doorbell.notify();
    doorbell.clear();
    for error in [doorbell.try_clone(), Doorbell::new()].map(Result::unwrap_err) {
        assert_eq!(error.raw_os_error(), Some(24), "{error}");
    }
    let refused = Doorbell::from_peer(pipe.into()).unwrap_err();
    assert!(matches!(refused, DoorbellError::NotAnEventfd { .. }));
}

/// Maps what a message says, returning it with its mark
fn map(table: &CompletionTable, words: [u64; 4], fd: OwnedFd) -> (Leased, u8) {
    let [ticket, offset, bytes, mark] = words;
    let receipt: Receipt = table
        .imported
        .receipt(Ticket::from(ticket), Arc::new(()))
        .unwrap();
    let leased = Leased::map(fd, offset, bytes as usize, false, receipt).unwrap();
    (leased, mark as u8)
}

/// Sends up to four words, the rest zero, and a descriptor
fn send(socket: BorrowedFd<'_>, words: &[u64], fd: BorrowedFd<'_>) {
    let mut message = [0; 32];
    for (word, place) in words.iter().zip(message.chunks_exact_mut(8)) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    let slices = [IoSlice::new(&message)];
    let sent = sendmsg(socket, &slices, &mut control, SendFlags::NOSIGNAL).unwrap();
    assert_eq!(sent, message.len());
}

fn receive(socket: BorrowedFd<'_>) -> ([u64; 4], OwnedFd) {
    let mut message = [0; 32];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [IoSliceMut::new(&mut message)];
    let received = recvmsg(socket, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
    if received.bytes == 0 {
        // The other side is gone.
        std::process::exit(0);
    }
    let mut fds = control.drain().flat_map(|ancillary| match ancillary {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
        _ => Vec::new(),
    });
    let fd = fds.next().unwrap();
    drop(fds);
    let words =
        std::array::from_fn(|at| u64::from_ne_bytes(message[8 * at..][..8].try_into().unwrap()));
    (words, fd)
}

fn start(part: &str) -> (OwnedFd, Child) {
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "other_process"])
        .env(PART, part)
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    (ours, child)
}

fn assert_running(child: &mut Child) {
    assert_eq!(child.try_wait().unwrap(), None, "the other process ended");
    std::thread::yield_now();
}
