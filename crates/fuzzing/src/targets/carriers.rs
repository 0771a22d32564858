//! Data beside the lane: the bootstrap's packet, leases, messages of UCX, packets of CUDA; and
//! addresses.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use backhaul::fuzzing::{CudaPackets, LeasePackets, UcxMessages, read_address, take_offer};
use backhaul::seams::{Doorbell, TakeError};
use backhaul_shm::completion::{Ticket, table_in_process};
use backhaul_shm::{channel, completion};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use super::segments::some_file;
use crate::Input;

/// The packet that hands memory over is taken whole, or refused
pub(super) fn bootstrap(data: &[u8]) {
    let mut input = Input::new(data);
    let (ours, theirs) = sockets();
    let bytes = input.choose(&[16, 40, 0, 15, 41, 100]);
    let mut packet = input.take(bytes).to_vec();
    packet.resize(bytes, 0);
    let descriptors: Vec<OwnedFd> = (0..input.below(7))
        .map(|place| match (input.below(8), place) {
            (0, _) => some_file(&mut input),
            (1, _) => sockets().0,
            (_, 0) => channel::create(4096).expect("a small segment").1,
            (_, 1) => completion::create_table().expect("three pages").1,
            _ => doorbell(),
        })
        .collect();
    if !send(&theirs, &packet, &descriptors) {
        return;
    }
    let taken = take_offer(ours);
    let is_good = matches!((bytes, descriptors.len()), (16 | 40, 4 | 5));
    assert!(
        taken.as_ref().is_err_and(|why| !why.is_empty()) || is_good,
        "{taken:?}"
    );
}

/// A lease gives the bytes that its packet says, or an error
pub(super) fn lease(data: &[u8]) {
    let mut input = Input::new(data);
    let (ours, theirs) = sockets();
    let (_exported, imported) = table_in_process().expect("three pages");
    let leases = LeasePackets::new(ours, imported.imported);
    while !input.is_empty() {
        let bytes = input.choose(&[16, 300, 4096, 12_000, input.clone().number() % (1 << 17)]);
        let (offset, said) = match input.below(8) {
            0 => (input.number(), bytes),
            1 => (0, input.number()),
            _ => (u64::from(input.byte()), bytes),
        };
        let packet = [offset.to_le_bytes(), said.to_le_bytes()].concat();
        let cut = if input.below(8) == 0 {
            input.below(40)
        } else {
            16
        };
        let mut packet = packet;
        packet.resize(cut, 0);
        let descriptors: Vec<OwnedFd> = (0..[1, 1, 1, 0, 2, 3, 8][input.below(7)])
            .map(|place| match place {
                0 => some_file(&mut input),
                _ if input.below(4) == 0 => some_file(&mut input),
                _ => sockets().0,
            })
            .collect();
        if input.below(8) > 0 {
            send(&theirs, &packet, &descriptors);
        }
        let ticket = match input.below(4) {
            0 => input.number(),
            _ => u64::from(Ticket {
                slot: input.byte().into(),
                generation: 1 + u32::from(input.byte()),
            }),
        };
        take(&leases, ticket, bytes, input.flag());
    }
}

fn take(leases: &LeasePackets, ticket: u64, bytes: u64, adopts: bool) {
    let mut payload = match leases.take(ticket, bytes) {
        Ok(payload) => payload,
        Err(TakeError::Broken { detail } | TakeError::OutOfReach { detail }) => {
            return assert!(!detail.is_empty());
        }
        Err(error) => panic!("{error}"),
    };
    if adopts {
        if let Ok(Some(memory)) = payload.adopt() {
            assert_eq!(memory.len() as u64, bytes);
            let _ = memory
                .iter()
                .fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
        }
        return;
    }
    let mut buffer = vec![0; usize::try_from(bytes).unwrap()];
    if let Ok(read) = payload.read(&mut [IoSliceMut::new(&mut buffer)]) {
        assert_eq!(read as u64, bytes);
    }
}

/// Pieces of the lane are read in their order, and what waits is bounded, whatever messages come
pub(super) fn ucx(data: &[u8]) {
    let mut input = Input::new(data);
    let messages = UcxMessages::new(KEY).expect("a doorbell");
    let mut read = 0_u64;
    // Pieces that an honest sender has sent: the number of each, and the bytes before it
    let mut sent: Vec<(u64, Vec<u8>)> = Vec::new();
    let (mut next, mut sent_bytes, mut is_honest) = (0, 0, true);
    while !input.is_empty() {
        match input.below(8) {
            0 | 1 => {
                let bytes: Vec<u8> = (sent_bytes..)
                    .map(pattern)
                    .take(1 + input.below(200))
                    .collect();
                sent_bytes += bytes.len() as u64;
                sent.push((next, bytes));
                next += 1;
            }
            2 | 3 if !sent.is_empty() => {
                // In any order.
                let index = input.below(sent.len().min(256));
                let (number, bytes) = sent.swap_remove(index);
                messages.receive(&header(KEY, 1, number), &bytes);
            }
            4 => {
                let mut buffer = vec![0; usize::from(input.short())];
                let bytes = messages.read(&mut buffer);
                if is_honest {
                    for (at, byte) in (read..).zip(&buffer[..bytes]) {
                        assert_eq!(*byte, pattern(at));
                    }
                }
                read += bytes as u64;
            }
            5 => {
                messages.look(input.flag());
            }
            6 => {
                is_honest = false;
                let key = if input.below(4) == 0 {
                    input.word()
                } else {
                    KEY
                };
                let (kind, number) = (input.byte() % 6, input.number());
                messages.receive(&header(key, kind, number), input.piece());
            }
            _ => {
                is_honest = false;
                // Many at once, all before their turn.
                let first = 1 + input.number() % (1 << 40);
                let bytes = input.piece();
                for number in first..first + 500 {
                    messages.receive(&header(KEY, 1, number), bytes);
                }
            }
        }
        let (bytes, pieces, tickets) = messages.held();
        assert!(bytes <= 1 << 20, "{bytes} bytes wait");
        assert!(
            pieces as u64 <= bytes && pieces <= 1 << 16,
            "{pieces} pieces wait"
        );
        assert!(tickets <= 1 << 20);
        let failure = messages.failure();
        assert!(!is_honest || failure.is_none(), "{failure:?}");
    }
}

/// A packet is read as it was written, and the packets that wait are bounded
pub(super) fn cuda(data: &[u8]) {
    let mut input = Input::new(data);
    let mut packets = CudaPackets::default();
    let mut most = 0;
    while !input.is_empty() {
        let mut packet = [0; 136];
        let head = [input.byte() % 5, input.byte() % 6, input.byte() % 3];
        packet[..3].copy_from_slice(&head);
        if input.below(16) == 0 {
            packet[3 + input.below(5)] = input.byte();
        }
        for at in (8..56).step_by(8) {
            packet[at..at + 8].copy_from_slice(&input.number().to_le_bytes());
        }
        let blob = input.piece();
        packet[56..56 + blob.len().min(80)].copy_from_slice(&blob[..blob.len().min(80)]);
        let descriptors: Vec<_> = (0..input.below(3)).map(|_| doorbell()).collect();
        if let Ok(written) = packets.receive(&packet, descriptors) {
            most += 1;
            // Fields that a kind does not use are not kept, and a text is kept as text.
            assert_eq!(written[0], packet[0]);
            assert_eq!(written[8..16], packet[8..16]);
            if packet[0] == 1 {
                assert_eq!(written[..32], packet[..32]);
            }
        }
        if input.flag() {
            packets.take(input.number());
        }
        assert!(packets.held() <= most);
    }
}

/// An address is refused, or read the same again
pub(super) fn address(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else {
        return;
    };
    match read_address(text) {
        Ok(address) => assert_eq!(read_address(&address).unwrap(), address),
        Err(error) => assert!(error.to_string().contains("host:port")),
    }
}

fn header(key: u64, kind: u8, number: u64) -> [u8; 24] {
    let mut header = [0; 24];
    header[..8].copy_from_slice(&key.to_le_bytes());
    header[8..16].copy_from_slice(&(number << 8 | u64::from(kind)).to_le_bytes());
    header
}

fn pattern(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn sockets() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .expect("descriptors")
}

fn doorbell() -> OwnedFd {
    static DOORBELL: OnceLock<Doorbell> = OnceLock::new();
    let doorbell = DOORBELL.get_or_init(|| Doorbell::new().expect("a descriptor"));
    doorbell.as_fd().try_clone_to_owned().expect("a descriptor")
}

/// Sends a packet with descriptors, returning whether it is on its way
fn send(socket: &OwnedFd, packet: &[u8], descriptors: &[OwnedFd]) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    let slices = [IoSlice::new(packet)];
    rustix::net::sendmsg(socket, &slices, &mut control, SendFlags::NOSIGNAL).is_ok()
}

const KEY: u64 = 0x0102_0304_0506_0708;
