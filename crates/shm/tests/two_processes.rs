//! A channel between two processes, one of which may be killed at any instant
//!
//! The other process is this test binary, started again for `other_process` alone; it inherits the
//! descriptor as its standard input.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::hash::{DefaultHasher, Hasher};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};

use backhaul_shm::channel::{self, Duplex};

const PART: &str = "BACKHAUL_SHM_TEST_PART";
const TOTAL_BYTES: usize = 64 << 20;

#[test]
fn stream_to_another_process_arrives_whole() {
    let (mut duplex, fd) = channel::create(1 << 18).unwrap();
    let mut child = start("stream", fd);
    let mut buffer = vec![0; 100_000];
    let mut hasher = DefaultHasher::new();
    let mut received = 0;
    while received < TOTAL_BYTES {
        let read = duplex.consumer.read(&mut buffer).unwrap();
        hasher.write(&buffer[..read]);
        received += read;
        if read == 0 {
            assert_running(&mut child);
        }
    }
    assert_eq!(received, TOTAL_BYTES);
    let sum = hasher.finish().to_ne_bytes();
    assert_eq!(duplex.producer.write(&sum), Ok(sum.len()));
    assert!(child.wait().unwrap().success());
}

#[test]
fn survivor_of_a_killed_writer_sees_only_valid_indices() {
    for round in 0..8 {
        let (mut duplex, fd) = channel::create(1 << 16).unwrap();
        let mut child = start("write for ever", fd);
        let mut buffer = vec![0; 10_007];
        let mut received = 0;
        let mut check = |duplex: &mut Duplex| {
            let available = duplex.consumer.available().unwrap();
            assert!(available <= duplex.consumer.capacity_bytes());
            let read = duplex.consumer.read(&mut buffer).unwrap();
            let expected = (received..received + read).map(byte_at);
            assert!(buffer[..read].iter().copied().eq(expected));
            received += read;
            received
        };
        // At another place each time; whatever the writer does then, it does not finish it.
        while check(&mut duplex) < 1_000_000 + round * 12_345 {
            assert_running(&mut child);
        }
        child.kill().unwrap();
        let status: ExitStatus = child.wait().unwrap();
        assert!(!status.success());
        while duplex.consumer.available().unwrap() > 0 {
            check(&mut duplex);
        }
        assert_eq!(duplex.consumer.arm(), Ok(true));
        // No process reads, which is a full ring and no error.
        while duplex.producer.write(&[0; 5000]).unwrap() > 0 {}
        assert_eq!(duplex.producer.arm(), Ok(true));
    }
}

#[test]
#[ignore = "the other process of these tests"]
fn other_process() {
    let Ok(part) = std::env::var(PART) else {
        return;
    };
    let fd = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let mut duplex = channel::attach(fd).unwrap();
    match part.as_str() {
        "stream" => {
            let mut hasher = DefaultHasher::new();
            write_until(&mut duplex, TOTAL_BYTES, |bytes| hasher.write(bytes));
            let mut sum = [0; 8];
            while duplex.consumer.available().unwrap() < sum.len() {
                std::thread::yield_now();
            }
            duplex.consumer.read(&mut sum).unwrap();
            assert_eq!(u64::from_ne_bytes(sum), hasher.finish());
        }
        "write for ever" => write_until(&mut duplex, usize::MAX, |_| ()),
        other => panic!("unknown part {other:?}"),
    }
}

fn write_until(duplex: &mut Duplex, total_bytes: usize, mut written: impl FnMut(&[u8])) {
    // One period more than a chunk, to start a chunk at any place of the pattern.
    let pattern: Vec<u8> = (0..200_000 + PERIOD).map(byte_at).collect();
    let mut sent = 0;
    while sent < total_bytes {
        let chunk_bytes = (1 + sent % 199_999).min(total_bytes - sent);
        let chunk = &pattern[sent % PERIOD..][..chunk_bytes];
        let bytes = duplex.producer.write(chunk).unwrap();
        written(&chunk[..bytes]);
        sent += bytes;
        if bytes == 0 {
            std::thread::yield_now();
        }
    }
}

/// Position in the stream, told by its bytes
fn byte_at(position: usize) -> u8 {
    (position % PERIOD) as u8
}

const PERIOD: usize = 251;

fn start(part: &str, fd: OwnedFd) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "other_process"])
        .env(PART, part)
        .stdin(Stdio::from(fd))
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

fn assert_running(child: &mut Child) {
    assert_eq!(child.try_wait().unwrap(), None, "the other process ended");
    std::thread::yield_now();
}
