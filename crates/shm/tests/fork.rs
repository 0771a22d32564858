//! An arena, a completion table and a probe in a process that forks
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::io::{Read, Write, pipe};
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use backhaul_shm::arena::{Arena, ArenaBuf, ArenaConfig, ArenaStatistics, ForkGuard};
use backhaul_shm::completion::{CompletionTable, attach_table, create_table};
use backhaul_shm::leased::Leased;
use backhaul_shm::peer_memory::Probe;
use rustix::process::{Pid, WaitOptions, waitpid};

const MIB: usize = 1 << 20;

#[test]
fn child_keeps_what_it_inherited_and_parent_sees_none_of_its_changes() {
    let arena = Arena::new(ArenaConfig::default());
    let mut buffer = arena.take(MIB).unwrap();
    buffer.fill(1);
    let cached = arena.take(4 * MIB).unwrap();
    drop(cached);
    let (mut child_reads, mut parent_writes) = pipe().unwrap();
    let (mut parent_reads, mut child_writes) = pipe().unwrap();
    let child = fork_with(arena.before_fork(), || {
        buffer.fill(2);
        child_writes.write_all(b"x").unwrap();
        buffer[MIB / 2..].fill(1);
        child_reads.read_exact(&mut [0]).unwrap();
        let kept = |bytes: &[u8], value| bytes.iter().all(|byte| *byte == value);
        kept(&buffer[..MIB / 2], 2) && kept(&buffer[MIB / 2..], 1)
    });
    parent_reads.read_exact(&mut [0]).unwrap();
    assert!(buffer.iter().all(|byte| *byte == 1));
    drop(buffer);
    let mut others: Vec<_> = (0..70).map(|_| arena.take(MIB).unwrap()).collect();
    for other in &mut others {
        other.fill(3);
    }
    parent_writes.write_all(b"x").unwrap();
    assert_success(child);
}

#[test]
fn block_freed_in_the_parent_is_not_recycled_under_a_child_that_only_reads() {
    let arena = Arena::new(ArenaConfig::default());
    let mut buffer = arena.take(MIB).unwrap();
    buffer.fill(1);
    let (mut child_reads, mut parent_writes) = pipe().unwrap();
    let child = fork_with(arena.before_fork(), || {
        child_reads.read_exact(&mut [0]).unwrap();
        buffer.iter().all(|byte| *byte == 1)
    });
    drop(buffer);
    assert_eq!(arena.statistics().orphaned_bytes, MIB);
    for _ in 0..3 {
        arena.take(MIB).unwrap().fill(3);
    }
    parent_writes.write_all(b"x").unwrap();
    assert_success(child);
}

#[test]
fn blocks_are_used_again_when_the_children_that_inherited_them_have_ended() {
    let arena = Arena::new(ArenaConfig::default());
    let mut freed = Vec::new();
    for _ in 0..3 {
        let buffers: Vec<_> = (0..4).map(|_| arena.take(MIB).unwrap()).collect();
        let (mut child_reads, mut parent_writes) = pipe().unwrap();
        let first = fork_with(arena.before_fork(), || true);
        let second = fork_with(arena.before_fork(), || {
            child_reads.read_exact(&mut [0]).is_ok()
        });
        assert_success(first);
        let mut addresses: Vec<_> = buffers.iter().map(ArenaBuf::as_ptr).collect();
        addresses.sort_unstable();
        freed.push(addresses);
        drop(buffers);
        assert_eq!(arena.statistics().orphaned_bytes, 4 * MIB);
        parent_writes.write_all(b"x").unwrap();
        assert_success(second);
        // A thread notices the end.
        while arena.statistics().orphaned_bytes > 0 {
            std::thread::yield_now();
        }
    }
    assert!(freed.iter().all(|addresses| *addresses == freed[0]));
    assert_eq!(arena.statistics().abandoned_bytes, 0);
}

#[test]
fn child_does_not_see_what_the_parent_writes_after_the_fork() {
    let arena = Arena::new(ArenaConfig::default());
    let mut buffers = [MIB, 64 << 10, 5 * MIB].map(|bytes| arena.take(bytes).unwrap());
    buffers.iter_mut().for_each(|buffer| buffer.fill(1));
    let lease = buffers[1].lease().unwrap();
    buffers[1][0] = 7;
    let (mut child_reads, mut parent_writes) = pipe().unwrap();
    let child = fork_with(arena.before_fork(), || {
        child_reads.read_exact(&mut [0]).unwrap();
        let own = std::mem::replace(&mut buffers[1][0], 1);
        own == 7
            && buffers
                .iter()
                .all(|buffer| buffer.iter().all(|byte| *byte == 1))
    });
    // After the fork, and before the child looks.
    buffers.iter_mut().for_each(|buffer| buffer.fill(2));
    parent_writes.write_all(b"x").unwrap();
    assert_success(child);
    assert!(
        buffers
            .iter()
            .flat_map(|buffer| buffer.iter())
            .all(|byte| *byte == 2)
    );
    drop(lease);
}

#[test]
fn lease_that_a_child_inherited_is_returned_when_the_child_ends() {
    let arena = Arena::new(ArenaConfig::default());
    let mut buffer = arena.take(MIB).unwrap();
    buffer.fill(1);
    let (mut exporter, fd) = create_table().unwrap();
    let importer = attach_table(fd).unwrap();
    let leased = import(&buffer, &mut exporter, &importer);
    let (mut child_reads, mut parent_writes) = pipe().unwrap();
    let child = fork(|| {
        let pipe = child_reads.as_raw_fd() as u32;
        // As a daemon does. SAFETY: what owned the descriptors is not used in the child.
        unsafe {
            c::close_range(3, pipe - 1, 0);
            c::close_range(pipe + 1, u32::MAX, 0);
        }
        child_reads.read_exact(&mut [0]).unwrap();
        leased.iter().all(|byte| *byte == 1)
    });
    drop(leased);
    drop(buffer);
    assert_eq!(exporter.exported.sweep(), 0, "the child still looks at it");
    let mut others: Vec<_> = (0..70).map(|_| arena.take(MIB).unwrap()).collect();
    others.iter_mut().for_each(|other| other.fill(3));
    parent_writes.write_all(b"x").unwrap();
    assert_success(child);
    let mut returned = 0;
    while returned == 0 {
        std::thread::yield_now();
        returned = exporter.exported.sweep();
    }
    assert_eq!(returned, 1);
}

#[test]
fn lease_imported_after_a_fork_is_returned_although_the_child_lives() {
    let arena = Arena::new(ArenaConfig::default());
    let (mut exporter, fd) = create_table().unwrap();
    let importer = attach_table(fd).unwrap();
    let import_one = |exporter: &mut CompletionTable| {
        let buffer = arena.take_copy(&[1; MIB]).unwrap();
        import(&buffer, exporter, &importer)
    };
    let inherited = import_one(&mut exporter);
    let (mut child_reads, mut parent_writes) = pipe().unwrap();
    let child = fork(|| child_reads.read_exact(&mut [0]).is_ok());
    drop(import_one(&mut exporter));
    assert_eq!(exporter.exported.sweep(), 1);
    parent_writes.write_all(b"x").unwrap();
    assert_success(child);
    drop(inherited);
}

#[test]
fn child_takes_and_gives_back_nothing_even_if_nobody_said_that_it_would_fork() {
    let arena = Arena::new(ArenaConfig::default());
    let mut buffer = arena.take(MIB).unwrap();
    buffer.fill(1);
    let before = arena.statistics();
    let (mut exporter, fd) = create_table().unwrap();
    let importer = attach_table(fd).unwrap();
    let ticket = exporter.exported.issue(buffer.lease().unwrap()).unwrap();
    let mut receipt = Some(importer.imported.receipt(ticket, Arc::new(())).unwrap());
    let mut buffer = Some(buffer);
    let child = fork(|| {
        let refused = arena.take(MIB).is_none()
            && buffer.as_ref().unwrap().lease().is_none()
            && arena.unavailable().is_some();
        drop(receipt.take());
        drop(buffer.take());
        // One of its own is another matter.
        refused && Arena::new(ArenaConfig::default()).take(MIB).is_some()
    });
    assert_success(child);
    assert_eq!(exporter.exported.sweep(), 0);
    assert!(
        buffer
            .as_ref()
            .unwrap()
            .deref()
            .iter()
            .all(|byte| *byte == 1)
    );
    drop(receipt);
    assert_eq!(exporter.exported.sweep(), 1);
    let after = ArenaStatistics {
        // From the first lease on, until it is freed.
        copy_on_write_bytes: MIB,
        ..before
    };
    assert_eq!(arena.statistics(), after);
}

#[test]
fn watched_arena_is_ready_for_whoever_forks() {
    let arenas: Vec<_> = (0..3).map(|_| Arena::new(ArenaConfig::default())).collect();
    arenas.iter().for_each(Arena::watch_forks);
    let mut buffers: Vec<_> = arenas
        .iter()
        .map(|arena| arena.take(MIB).unwrap())
        .collect();
    buffers.iter_mut().for_each(|buffer| buffer.fill(1));
    let (mut child_reads, mut parent_writes) = pipe().unwrap();
    let child = fork(|| {
        child_reads.read_exact(&mut [0]).unwrap();
        let kept = |bytes: &[u8], value| bytes.iter().all(|byte| *byte == value);
        let inherited = buffers.iter().all(|buffer| kept(buffer, 1));
        buffers.iter_mut().for_each(|buffer| buffer.fill(2));
        let own = Arena::new(ArenaConfig::default());
        own.watch_forks();
        let mut fresh = own.take(MIB).unwrap();
        fresh.fill(1);
        // One that forks in its turn, with what it inherited and with its own.
        let grandchild = fork(|| {
            fresh.fill(3);
            buffers.iter().all(|buffer| kept(buffer, 2))
        });
        assert_success(grandchild);
        inherited && kept(&fresh, 1)
    });
    // Its memory is not recycled under the child, and what stays does not change.
    buffers.pop();
    for arena in &arenas {
        arena.take(MIB).unwrap().fill(4);
    }
    parent_writes.write_all(b"x").unwrap();
    assert_success(child);
    assert!(
        buffers
            .iter()
            .flat_map(|buffer| buffer.iter())
            .all(|byte| *byte == 1)
    );
}

#[test]
fn child_has_a_probe_of_its_own_and_the_parent_keeps_its() {
    let parents = Probe::of_this_process().unwrap();
    let child = fork(|| {
        let childs = Probe::of_this_process().unwrap();
        let same = Probe::of_this_process().unwrap();
        childs.token() != parents.token()
            && childs.address() != parents.address()
            && same.address() == childs.address()
    });
    assert_success(child);
    let still = Probe::of_this_process().unwrap();
    assert_eq!(still.address(), parents.address());
}

/// Lends a buffer and maps it, as a peer does
fn import(buffer: &ArenaBuf, exporter: &mut CompletionTable, importer: &CompletionTable) -> Leased {
    let lease = buffer.lease().unwrap();
    let file = lease.descriptor().try_clone_to_owned().unwrap();
    let offset = lease.offset();
    let ticket = exporter.exported.issue(lease).unwrap();
    let receipt = importer.imported.receipt(ticket, Arc::new(())).unwrap();
    Leased::map(file, offset, buffer.len(), true, receipt).unwrap()
}

/// Forks, with the guard released on both sides, and has the child say whether all is well
fn fork_with(guard: ForkGuard, child: impl FnOnce() -> bool) -> Pid {
    let mut guard = Some(guard);
    let pid = fork(|| guard.take().unwrap().in_child().is_ok() && child());
    drop(guard);
    pid
}

/// Forks, and has the child say whether all is well
fn fork(child: impl FnOnce() -> bool) -> Pid {
    // SAFETY: other threads of the tests may hold locks, of which the child takes none but those of
    // the allocator, which are free in it.
    match unsafe { c::fork() } {
        0 => {
            // Its parent may fail, and the child would wait for ever.
            // SAFETY: only sets a timer.
            unsafe { c::alarm(60) };
            let well = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
            // SAFETY: ends the process at once, as a child of a process with threads should.
            unsafe { c::_exit(i32::from(!well.unwrap_or(false))) }
        }
        pid => Pid::from_raw(pid).unwrap(),
    }
}

fn assert_success(child: Pid) {
    let (_, status) = waitpid(Some(child), WaitOptions::empty()).unwrap().unwrap();
    assert_eq!(status.exit_status(), Some(0), "{status:?}");
}

mod c {
    unsafe extern "C" {
        pub(super) fn alarm(seconds: u32) -> u32;
        pub(super) fn close_range(first: u32, last: u32, flags: i32) -> i32;
        pub(super) fn fork() -> i32;
        pub(super) fn _exit(status: i32) -> !;
    }
}
