//! The rings of shared memory, with a peer that writes anything anywhere into the segment.

use std::os::fd::{AsFd, OwnedFd};

use backhaul_shm::channel::{self, Duplex};
use backhaul_shm::ring::{Consumer, Producer};
use rustix::io::pwrite;

use crate::Input;

/// No more is read or written than fits, and what an honest peer writes arrives as it is
pub(super) fn ring(data: &[u8]) {
    let mut input = Input::new(data);
    let (ours, fd) = channel::create(CAPACITY).expect("a segment of two small rings");
    let copy = fd.as_fd().try_clone_to_owned().unwrap();
    let Duplex { producer, consumer } = channel::attach(fd).expect("as it was made");
    let mut world = World {
        ours,
        peer: Peer {
            fd: copy,
            producer,
            consumer,
        },
        sent: 0,
        received: 0,
        taken_by_peer: 0,
        given_to_peer: 0,
        is_honest: true,
    };
    while !input.is_empty() {
        if world.step(&mut input).is_none() {
            // The connection is dropped, but nothing must fall over what comes late.
            world.is_honest = false;
        }
    }
}

struct World {
    ours: Duplex,
    peer: Peer,
    /// Bytes that an honest peer has written, and that were read here
    sent: u64,
    received: u64,
    /// Bytes that an honest peer has read, and that were written here
    taken_by_peer: u64,
    given_to_peer: u64,
    /// The peer has kept to the rules so far
    is_honest: bool,
}

/// The other end, which may also write to the memory under it
struct Peer {
    fd: OwnedFd,
    producer: Producer,
    consumer: Consumer,
}

impl World {
    /// `None` if this side has found out that the peer is not honest
    fn step(&mut self, input: &mut Input<'_>) -> Option<()> {
        match input.below(12) {
            0 | 1 => self.read(usize::from(input.short())),
            2 | 3 => self.write(usize::from(input.short())),
            4 => self.found(|ours| ours.consumer.arm().map(drop)),
            5 => self.found(|ours| ours.producer.arm().map(drop)),
            6 => {
                self.ours.consumer.disarm();
                self.ours.producer.disarm();
                let _ = self.ours.consumer.has_news();
                let _ = self.ours.consumer.take_peer_waiting();
                let _ = self.ours.producer.take_peer_waiting();
                let capacity = self.ours.consumer.capacity_bytes();
                assert_eq!(capacity, CAPACITY);
                self.found(|ours| {
                    let available = ours.consumer.available()?;
                    assert!(available <= CAPACITY);
                    let free = ours.producer.free_bytes()?;
                    assert!(free <= CAPACITY);
                    Ok(())
                })
            }
            7 => {
                self.peer_writes(usize::from(input.short()));
                Some(())
            }
            8 => {
                self.peer_reads(usize::from(input.short()));
                Some(())
            }
            _ => {
                self.peer_lies(input);
                Some(())
            }
        }
    }

    /// Runs something that finds out what the peer has done
    fn found(
        &mut self,
        look: impl FnOnce(&mut Duplex) -> Result<(), backhaul_shm::ring::RingError>,
    ) -> Option<()> {
        let looked = look(&mut self.ours);
        assert!(looked.is_ok() || !self.is_honest, "{looked:?}");
        looked.ok()
    }

    fn read(&mut self, bytes_max: usize) -> Option<()> {
        let mut buffer = vec![0; bytes_max];
        let read = self.ours.consumer.read(&mut buffer);
        assert!(read.is_ok() || !self.is_honest, "{read:?}");
        let read = read.ok()?;
        if self.is_honest {
            for (at, byte) in (self.received..).zip(&buffer[..read]) {
                assert_eq!(*byte, pattern(at));
            }
            self.received += read as u64;
            assert!(self.received <= self.sent);
        }
        Some(())
    }

    fn write(&mut self, bytes: usize) -> Option<()> {
        let bytes: Vec<u8> = (self.given_to_peer..).map(pattern).take(bytes).collect();
        let written = self.ours.producer.write(&bytes);
        assert!(written.is_ok() || !self.is_honest, "{written:?}");
        let written = written.ok()?;
        assert!(written <= bytes.len());
        if self.is_honest {
            self.given_to_peer += written as u64;
            assert!(self.given_to_peer - self.taken_by_peer <= CAPACITY as u64);
        }
        Some(())
    }

    fn peer_writes(&mut self, bytes: usize) {
        let bytes: Vec<u8> = (self.sent..).map(pattern).take(bytes).collect();
        if let Ok(written) = self.peer.producer.write(&bytes) {
            self.sent += written as u64;
        }
    }

    fn peer_reads(&mut self, bytes_max: usize) {
        let mut buffer = vec![0; bytes_max];
        if let Ok(read) = self.peer.consumer.read(&mut buffer)
            && self.is_honest
        {
            for (at, byte) in (self.taken_by_peer..).zip(&buffer[..read]) {
                assert_eq!(*byte, pattern(at));
            }
            self.taken_by_peer += read as u64;
        }
    }

    /// The peer writes where it should not, or what it should not
    fn peer_lies(&mut self, input: &mut Input<'_>) {
        self.is_honest = false;
        let (at, bytes) = match input.below(8) {
            // A word of either ring: heads, tails, flags.
            0..=5 => {
                let ring = input.choose(&[128, 640]);
                let word = input.choose(&[0, 128, 256, 384]);
                let near = input.choose(&[0, self.sent, self.given_to_peer]);
                let value = near.wrapping_add(input.number());
                (ring + word, value.to_le_bytes())
            }
            // Its header, which was read once.
            6 => (u64::from(input.byte()) % 121, input.word().to_le_bytes()),
            _ => (4096 + input.number() % 8000, input.word().to_le_bytes()),
        };
        pwrite(&self.peer.fd, &bytes, at).expect("within the segment");
    }
}

fn pattern(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

const CAPACITY: usize = 4096;
