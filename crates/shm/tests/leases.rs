//! Leases of untrusted peers: which are refused, and the state after a refused mapping
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use backhaul_shm::arena::{Arena, ArenaBuf, ArenaConfig};
use backhaul_shm::completion::{CompletionTable, Receipt, table_in_process};
use backhaul_shm::leased::{LeaseError, Leased, MapError, ReadError, SealError, read_leased};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;

const MIB: usize = 1 << 20;

#[test]
fn lease_from_any_byte_shows_exactly_its_bytes() {
    let arena = Arena::new(ArenaConfig::default());
    for bytes in [100_000, 3 * MIB, 9 * MIB] {
        let mut buffer = arena.take(bytes).unwrap();
        for (at, byte) in buffer.iter_mut().enumerate() {
            *byte = byte_at(at);
        }
        let cuts = [
            (0, bytes),
            (1, bytes - 1),
            (4095, 2),
            (5000, bytes - 70_000),
        ];
        for (from, length) in cuts {
            let lease = arena.lease(&raw const buffer[from], length).unwrap();
            let fd = lease.descriptor().try_clone_to_owned().unwrap();
            let mut leased = Leased::map(fd, lease.offset(), length, false, receipt()).unwrap();
            let expected = (from..from + length).map(byte_at);
            assert!(leased.iter().copied().eq(expected.clone()));
            let mut copy = vec![0; length];
            read_leased(lease.descriptor(), lease.offset(), &mut copy).unwrap();
            assert_eq!(*leased, *copy);
            leased.fill(0);
            assert!(buffer[from..from + length].iter().copied().eq(expected));
        }
    }
}

#[test]
fn receiver_of_a_recycled_block_sees_its_new_content_and_not_what_it_wrote_there() {
    let arena = Arena::new(ArenaConfig::default());
    let (mut exporter, importer) = table_in_process().unwrap();
    let mut starts = Vec::new();
    for round in 1..10 {
        let mut buffer = arena.take(3 * MIB).unwrap();
        starts.push(buffer.as_ptr());
        buffer.fill(round);
        let mut leased = lease(&buffer, &mut exporter, &importer);
        // Freed first, received first: in turn.
        let mut buffer = (round % 2 == 0).then_some(buffer);
        assert!(leased.iter().all(|byte| *byte == round));
        leased[..2 * MIB].fill(99);
        drop(leased);
        if let Some(buffer) = &mut buffer {
            assert!(buffer.iter().all(|byte| *byte == round));
        }
        drop(buffer);
        assert_eq!(exporter.exported.sweep(), 1);
    }
    starts.dedup();
    assert_eq!(starts.len(), 1, "the block was not recycled");
    assert_eq!(arena.statistics().leased_bytes, 0);
}

#[test]
fn unsealed_memory_is_refused_and_the_lease_is_returned() {
    for seals in [
        SealFlags::empty(),
        SealFlags::SHRINK,
        SealFlags::GROW | SealFlags::SEAL,
    ] {
        let (mut exporter, importer) = table_in_process().unwrap();
        let buffer = Arena::new(ArenaConfig::default()).take(MIB).unwrap();
        let ticket = exporter.exported.issue(buffer.lease().unwrap()).unwrap();
        let receipt = importer.imported.receipt(ticket, Arc::new(())).unwrap();
        let error = Leased::map(memory(8192, seals), 0, 4096, false, receipt).unwrap_err();
        assert!(
            matches!(
                error,
                MapError::Refused(LeaseError::Seal(SealError::NotSealed { seals: found, .. }))
                    if found == seals.bits()
            ),
            "{error}"
        );
        assert_eq!(exporter.exported.sweep(), 1);
        let error = read_leased(memory(8192, seals).as_fd(), 0, &mut [0; 8]).unwrap_err();
        assert!(matches!(
            error,
            ReadError::Refused(LeaseError::Seal(SealError::NotSealed { .. }))
        ));
    }
}

#[test]
fn descriptor_that_is_no_memfd_is_refused() {
    let (pipe, _writing) = std::io::pipe().unwrap();
    let file = File::open(std::env::current_exe().unwrap()).unwrap();
    for fd in [OwnedFd::from(pipe), OwnedFd::from(file)] {
        assert!(read_leased(fd.as_fd(), 0, &mut [0; 8]).is_err());
        let error = Leased::map(fd, 0, 8, false, receipt()).unwrap_err();
        assert!(matches!(error, MapError::Refused(_)), "{error}");
    }
}

#[test]
fn reserved_huge_pages_are_refused() {
    let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    let file = match memfd_create("huge", flags) {
        Ok(file) => file,
        Err(errno) => {
            eprintln!("skipped: no reserved huge pages here: {errno}");
            return;
        }
    };
    ftruncate(&file, 2 << 20).unwrap();
    fcntl_add_seals(&file, SEALS).unwrap();
    let error = Leased::map(file, 0, 8, false, receipt()).unwrap_err();
    assert!(
        matches!(
            error,
            MapError::Refused(LeaseError::Seal(SealError::HugePages))
        ),
        "{error}"
    );
}

#[test]
fn lease_that_is_not_within_the_memory_is_refused() {
    let outside = [
        (8192, 1),
        (8191, 2),
        (0, 8193),
        (0, usize::MAX),
        (1, usize::MAX),
        (u64::MAX, 1),
        (u64::MAX, usize::MAX),
        (1 << 63, 1 << 63),
    ];
    for (offset, bytes) in outside {
        let error = Leased::map(memory(8192, SEALS), offset, bytes, false, receipt()).unwrap_err();
        assert!(
            matches!(
                error,
                MapError::Refused(LeaseError::Outside { offset: from, bytes: length, file_bytes: 8192 })
                    if (from, length) == (offset, bytes)
            ),
            "{error}"
        );
    }
    let error = Leased::map(memory(8192, SEALS), 0, 0, false, receipt()).unwrap_err();
    assert!(matches!(error, MapError::Refused(LeaseError::Empty)));
    let error = read_leased(memory(8192, SEALS).as_fd(), 8190, &mut [0; 4]).unwrap_err();
    assert!(matches!(
        error,
        ReadError::Refused(LeaseError::Outside { .. })
    ));
    read_leased(memory(8192, SEALS).as_fd(), 8192, &mut []).unwrap();
}

#[test]
fn what_the_system_does_not_map_can_still_be_copied() {
    // More than there are addresses for, and nothing of it there.
    let bytes = 1 << 60;
    let fd = memory(bytes, SEALS);
    let file = File::from(fd);
    let error = Leased::map(file.into(), 0, bytes as usize, false, receipt()).unwrap_err();
    let MapError::System { fd, receipt, .. } = error else {
        panic!("{error}");
    };
    let mut some = [1; 100];
    read_leased(fd.as_fd(), bytes - 100, &mut some).unwrap();
    assert_eq!(some, [0; 100]);
    drop(receipt);
}

#[test]
fn hole_punched_by_a_peer_reads_as_zeroes() {
    let fd = memory(3 << 20, SEALS);
    let file = File::from(fd.try_clone().unwrap());
    file.write_all_at(&vec![1; 3 << 20], 0).unwrap();
    let leased = Leased::map(fd, 100, MIB, false, receipt()).unwrap();
    assert!(leased.iter().all(|byte| *byte == 1));
    let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, flags, 0, 3 << 20).unwrap();
    assert!(leased.iter().all(|byte| *byte == 0));
}

#[test]
fn peer_is_given_memory_for_reading_only() {
    let buffer = Arena::new(ArenaConfig::default()).take(MIB).unwrap();
    let lease = buffer.lease().unwrap();
    let file = File::from(lease.descriptor().try_clone_to_owned().unwrap());
    assert!(file.write_all_at(b"?", 0).is_err());
    assert_eq!(ftruncate(&file, 0), Err(Errno::INVAL));
}

/// Gives a lease on all of a buffer, and maps it
fn lease(buffer: &ArenaBuf, exporter: &mut CompletionTable, importer: &CompletionTable) -> Leased {
    let lease = buffer.lease().unwrap();
    let fd = lease.descriptor().try_clone_to_owned().unwrap();
    let (offset, bytes) = (lease.offset(), lease.bytes());
    let ticket = exporter.exported.issue(lease).unwrap();
    let receipt = importer.imported.receipt(ticket, Arc::new(())).unwrap();
    Leased::map(fd, offset, bytes, false, receipt).unwrap()
}

/// A receipt that no test waits for
fn receipt() -> Receipt {
    let (_, CompletionTable { imported, .. }) = table_in_process().unwrap();
    imported.receipt((1 << 32).into(), Arc::new(())).unwrap()
}

/// Memory as a peer may send it
fn memory(bytes: u64, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("forged", flags).unwrap();
    ftruncate(&file, bytes).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file
}

/// Repeats at no power of two
fn byte_at(position: usize) -> u8 {
    (position % 251) as u8
}

const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);
