//! Descriptors of untrusted peers: `attach` refuses some, and a corrupted segment does no harm
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use backhaul_shm::channel::{self, AttachError, CreateError, Duplex};
use backhaul_shm::ring::RingError;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

const CAPACITY: usize = 4096;
const SEGMENT_BYTES: u64 = 4096 + 2 * CAPACITY as u64;
const VERSION_AT: u64 = 8;
const CAPACITY_AT: u64 = 16;
/// Head and tail of the ring that the creator writes to
const HEAD_AT: u64 = 128;
const TAIL_AT: u64 = 256;

#[test]
fn both_ends_hear_each_other() {
    let (mut creator, fd) = channel::create(CAPACITY).unwrap();
    creator.producer.write(b"before attach").unwrap();
    let mut attacher = channel::attach(fd).unwrap();
    let mut buffer = [0; 32];
    assert_eq!(attacher.consumer.read(&mut buffer), Ok(13));
    assert_eq!(&buffer[..13], b"before attach");
    attacher.producer.write(b"answer").unwrap();
    assert_eq!(creator.consumer.read(&mut buffer), Ok(6));
    assert_eq!(creator.consumer.capacity_bytes(), CAPACITY);
    assert_eq!(attacher.producer.capacity_bytes(), CAPACITY);
}

#[test]
fn producer_and_consumer_each_keep_the_segment_when_the_other_is_dropped() {
    let (creator, fd) = channel::create(CAPACITY).unwrap();
    let attacher = channel::attach(fd).unwrap();
    let Duplex { mut producer, .. } = creator;
    let Duplex { mut consumer, .. } = attacher;
    producer.write(b"still here").unwrap();
    drop(producer);
    assert_eq!(consumer.read(&mut [0; 32]), Ok(10));
}

#[test]
fn capacity_of_no_power_of_two_or_out_of_bounds_is_not_created() {
    for bytes in [0, 1, 2048, 5000, 3 << 20, 1 << 31, usize::MAX] {
        for result in [
            channel::create(bytes).map(drop),
            channel::in_process(bytes).map(drop),
        ] {
            assert!(
                matches!(result, Err(CreateError::Capacity { capacity_bytes }) if capacity_bytes == bytes)
            );
        }
    }
}

#[test]
fn unsealed_segment_is_refused() {
    let required = (SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).bits();
    for seals in [
        SealFlags::empty(),
        SealFlags::SHRINK,
        SealFlags::GROW | SealFlags::SEAL,
    ] {
        let fd = segment(SEGMENT_BYTES, seals, |_| ());
        let error = channel::attach(fd).unwrap_err();
        let AttachError::NotSealed {
            seals: found,
            required: needed,
        } = error
        else {
            panic!("{error}");
        };
        assert_eq!((found, needed), (seals.bits(), required));
    }
}

#[test]
fn descriptor_that_is_no_memfd_is_refused() {
    let (pipe, _writing) = std::io::pipe().unwrap();
    let file = File::open(std::env::current_exe().unwrap()).unwrap();
    for fd in [OwnedFd::from(pipe), OwnedFd::from(file)] {
        let error = channel::attach(fd).unwrap_err();
        assert!(
            matches!(error, AttachError::NotSealed { seals: 0 | 1, .. }),
            "{error}"
        );
    }
}

#[test]
fn truncated_segment_is_refused() {
    for bytes in [0, 8, 23] {
        let fd = sealed(bytes, |_| ());
        let error = channel::attach(fd).unwrap_err();
        assert!(
            matches!(error, AttachError::Truncated { file_bytes, header_bytes: 24 } if file_bytes == bytes),
            "{error}"
        );
    }
}

#[test]
fn wrong_magic_is_refused_with_what_was_there() {
    let fd = sealed(SEGMENT_BYTES, |file| {
        file.write_all_at(b"GET / HT", 0).unwrap();
    });
    let error = channel::attach(fd).unwrap_err();
    assert!(matches!(error, AttachError::Magic { magic } if magic == *b"GET / HT"));
    assert_eq!(
        error.to_string(),
        "not a backhaul segment: it starts with \"GET / HT\""
    );
}

#[test]
fn unknown_version_is_refused() {
    let fd = sealed(SEGMENT_BYTES, |file| {
        file.write_all_at(&9_u32.to_ne_bytes(), VERSION_AT).unwrap();
    });
    let error = channel::attach(fd).unwrap_err();
    assert!(
        matches!(
            error,
            AttachError::Version {
                version: 9,
                supported: 1
            }
        ),
        "{error}"
    );
}

#[test]
fn impossible_capacity_is_refused() {
    for capacity in [0, 1, 2048, 5000, 1 << 31, 1 << 63, u64::MAX] {
        let fd = sealed(SEGMENT_BYTES, |file| {
            file.write_all_at(&capacity.to_ne_bytes(), CAPACITY_AT)
                .unwrap();
        });
        let error = channel::attach(fd).unwrap_err();
        assert!(
            matches!(error, AttachError::Capacity { capacity_bytes } if capacity_bytes == capacity),
            "{error}"
        );
    }
}

#[test]
fn size_that_does_not_follow_from_the_capacity_is_refused() {
    for bytes in [24, SEGMENT_BYTES - 1, SEGMENT_BYTES + 1, 1 << 40] {
        let fd = sealed(bytes, |_| ());
        let error = channel::attach(fd).unwrap_err();
        assert!(
            matches!(
                error,
                AttachError::Size { file_bytes, expected_bytes: SEGMENT_BYTES } if file_bytes == bytes
            ),
            "{error}"
        );
    }
}

#[test]
fn read_only_descriptor_is_refused_by_the_system() {
    let (_creator, fd) = channel::create(CAPACITY).unwrap();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
    let read_only = File::open(path).unwrap();
    let error = channel::attach(read_only.into()).unwrap_err();
    assert!(matches!(error, AttachError::System(_)), "{error}");
}

#[test]
fn second_attach_is_refused() {
    let (_creator, fd) = channel::create(CAPACITY).unwrap();
    let again = fd.try_clone().unwrap();
    let _attacher = channel::attach(fd).unwrap();
    let error = channel::attach(again).unwrap_err();
    assert!(matches!(error, AttachError::AlreadyAttached), "{error}");
}

#[test]
fn corrupted_head_is_reported_to_the_consumer() {
    for head in [4097, u64::MAX, 1 << 63] {
        let (_creator, mut attacher, file) = channel_and_file();
        file.write_all_at(&head.to_ne_bytes(), HEAD_AT).unwrap();
        let corrupt = RingError::Corrupt {
            head,
            tail: 0,
            capacity: CAPACITY as u64,
        };
        assert_eq!(attacher.consumer.available(), Err(corrupt));
        assert_eq!(attacher.consumer.read(&mut [0; 8]), Err(corrupt));
        assert_eq!(attacher.consumer.arm(), Err(corrupt));
    }
}

#[test]
fn corrupted_tail_is_reported_to_the_producer() {
    for tail in [11, u64::MAX] {
        let (mut creator, _attacher, file) = channel_and_file();
        assert_eq!(creator.producer.write(b"0123456789"), Ok(10));
        file.write_all_at(&tail.to_ne_bytes(), TAIL_AT).unwrap();
        let corrupt = RingError::Corrupt {
            head: 10,
            tail,
            capacity: CAPACITY as u64,
        };
        assert_eq!(creator.producer.free_bytes(), Err(corrupt));
        assert_eq!(creator.producer.arm(), Err(corrupt));
    }
}

#[test]
fn hole_punched_by_a_peer_reads_as_zeroes() {
    let (mut creator, mut attacher, file) = channel_and_file();
    creator.producer.write(b"0123456789").unwrap();
    let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, flags, 4096, SEGMENT_BYTES - 4096).unwrap();
    let mut buffer = [1; 10];
    assert_eq!(attacher.consumer.read(&mut buffer), Ok(10));
    assert_eq!(buffer, [0; 10]);
}

fn channel_and_file() -> (Duplex, Duplex, File) {
    let (creator, fd) = channel::create(CAPACITY).unwrap();
    let file = File::from(fd.try_clone().unwrap());
    (creator, channel::attach(fd).unwrap(), file)
}

fn sealed(bytes: u64, change: impl FnOnce(&File)) -> OwnedFd {
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    segment(bytes, seals, change)
}

/// A segment of `CAPACITY` as `create` makes it, but of `bytes` bytes, with a change, and sealed so
fn segment(bytes: u64, seals: SealFlags, change: impl FnOnce(&File)) -> OwnedFd {
    let (_creator, honest) = channel::create(CAPACITY).unwrap();
    let mut header = [0; 24];
    File::from(honest).read_exact_at(&mut header, 0).unwrap();
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(memfd_create("forged", flags).unwrap());
    file.write_all_at(&header, 0).unwrap();
    change(&file);
    ftruncate(&file, bytes).unwrap();
    fcntl_add_seals(file.as_fd(), seals).unwrap();
    file.into()
}
