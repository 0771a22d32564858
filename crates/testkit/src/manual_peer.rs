//! A peer by hand on the lane of shared memory: it has the rings, the completion table and the lease
//! channel, and does with them what no honest peer would.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use backhaul::{Arena, ArenaConfig, Bytes, Context, Endpoint, LaneKind, Listener};
use backhaul_proto::{FrameHeader, FrameKind, HEADER_BYTES};
use backhaul_shm::arena::Lease;
use backhaul_shm::channel::{self, Duplex};
use backhaul_shm::completion::{self, CompletionTable, Ticket};
use backhaul_shm::peer_memory::Probe;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use crate::harness::LOOPBACK;
use crate::lending::{BLOCK_BYTES, block};
use crate::raw::{RawPeer, hand_over};
use crate::{Finish, Harness};

/// A peer by hand on the lane of shared memory
#[derive(Debug)]
pub struct ManualPeer {
    /// The first socket, which is the sentinel
    pub peer: RawPeer,
    /// The other end of it all
    pub endpoint: Endpoint,
    /// Where `endpoint` came from
    pub listener: Listener,
    /// The rings
    pub rings: Duplex,
    /// Memory of the rings
    pub memory: OwnedFd,
    /// Wakes the endpoint
    pub their_doorbell: OwnedFd,
    /// The side of the peer
    pub table: CompletionTable,
    /// Memory of the completion table
    pub table_memory: OwnedFd,
    /// Carries descriptors; a side that ends its direction has given back what it had
    pub lease_channel: OwnedFd,
}

impl ManualPeer {
    /// Connects to an endpoint of a context of its own; `None` on other lanes
    pub fn new(harness: &Harness) -> Option<Self> {
        Self::with(harness, &harness.context())
    }

    /// Connects to an endpoint of `context`; `None` on other lanes
    pub fn with(harness: &Harness, context: &Context) -> Option<Self> {
        Self::introduced(harness, context, &[])
    }

    /// As [`ManualPeer::new`], with memory of this process that the endpoint may read
    pub fn readable(harness: &Harness) -> Option<Self> {
        let probe = Probe::of_this_process().unwrap();
        let introduction = [&probe.address().to_le_bytes()[..], &probe.token()].concat();
        Self::introduced(harness, &harness.context(), &introduction)
    }

    fn introduced(harness: &Harness, context: &Context, introduction: &[u8]) -> Option<Self> {
        if harness.lane != LaneKind::Shm {
            return None;
        }
        let listener = context.listen(LOOPBACK).unwrap();
        let (rings, memory) = channel::create(1 << 16).unwrap();
        let (table, table_memory) = completion::create_table().unwrap();
        let (their_doorbell, our_doorbell) = (doorbell(), doorbell());
        let mut lease_channel = None;
        let accept = listener.accept();
        let (peer, lane, reason) =
            RawPeer::shake_hands_over(listener.local_address(), LaneKind::Shm, |hello| {
                let descriptors =
                    [&memory, &table_memory, &their_doorbell, &our_doorbell].map(AsFd::as_fd);
                let packet = [&hello.nonce[..], introduction].concat();
                lease_channel = Some(hand_over(&hello.unix_name, &packet, &descriptors));
            });
        assert_eq!(lane, LaneKind::Shm, "{reason}");
        Some(Self {
            peer,
            endpoint: accept.done().unwrap(),
            listener,
            rings,
            memory,
            their_doorbell,
            table,
            table_memory,
            lease_channel: lease_channel.unwrap(),
        })
    }

    /// Writes bytes, for which there must be room
    pub fn write(&mut self, bytes: &[u8]) {
        assert_eq!(self.rings.producer.write(bytes).unwrap(), bytes.len());
        self.notify();
    }

    /// Writes a header
    pub fn write_frame(&mut self, header: FrameHeader) {
        self.write(&header.encode());
    }

    /// Announces a long tagged message of some segments
    pub fn write_request(&mut self, message: u64, tag: u64, segment_bytes: &[u64]) {
        let header = FrameHeader {
            segment_count: segment_bytes.len() as u32,
            tag,
            payload_bytes: segment_bytes.iter().sum(),
            ..FrameHeader::bare(FrameKind::Request, message)
        };
        let mut frame = header.encode().to_vec();
        if segment_bytes.len() != 1 {
            frame.extend(segment_bytes.iter().flat_map(|bytes| bytes.to_le_bytes()));
        }
        self.write(&frame);
    }

    /// Says that bytes of a message are lent
    pub fn write_lease(&mut self, message: u64, ticket: u64, bytes: u64) {
        self.write_frame(FrameHeader {
            tag: ticket,
            payload_bytes: bytes,
            carrier: 1,
            ..FrameHeader::bare(FrameKind::Carried, message)
        });
    }

    /// Reads bytes, as many as asked for
    pub fn read(&mut self, mut target: &mut [u8]) {
        while !target.is_empty() {
            let read = self.rings.consumer.read(target).unwrap();
            if read == 0 {
                std::thread::yield_now();
            } else {
                self.notify();
            }
            target = &mut target[read..];
        }
    }

    /// Reads the next header that is not about credit
    pub fn read_frame(&mut self) -> FrameHeader {
        loop {
            let mut header = [0; HEADER_BYTES];
            self.read(&mut header);
            let header = FrameHeader::decode(&header).unwrap();
            if header.kind != FrameKind::Credit {
                return header;
            }
        }
    }

    /// Reads the next header, which is of a kind
    pub fn read_frame_of(&mut self, kind: FrameKind) -> FrameHeader {
        let header = self.read_frame();
        assert_eq!(header.kind, kind, "{header:?}");
        header
    }

    /// Sends what belongs to a lease, or something like it; an error is that of the system
    pub fn send_packet(&self, packet: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::sendmsg(
            &self.lease_channel,
            &[IoSlice::new(packet)],
            &mut control,
            flags,
        )
        .map(drop)
    }

    /// Receives what belongs to a lease of the endpoint: offset, bytes, memory
    pub fn receive_packet(&self) -> (u64, u64, OwnedFd) {
        let mut packet = [0; 16];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::net::recvmsg(
            &self.lease_channel,
            &mut [std::io::IoSliceMut::new(&mut packet)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
        )
        .unwrap();
        assert_eq!(received.bytes, packet.len());
        let memory = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
            _ => None,
        });
        let (words, _) = packet.as_chunks();
        let [offset, bytes] = [words[0], words[1]].map(u64::from_le_bytes);
        (offset, bytes, memory.unwrap())
    }

    /// Notifies the endpoint's doorbell
    pub fn notify(&self) {
        rustix::io::write(&self.their_doorbell, &1_u64.to_ne_bytes()).unwrap();
    }
}

/// Leases that a peer by hand exports, each message in one block
#[derive(Debug)]
pub struct ManualExporter {
    arena: Arena,
    memory: Bytes,
}

impl ManualExporter {
    /// Makes a block of a pattern
    pub fn new(seed: u64) -> Self {
        let arena = Arena::new(ArenaConfig::default());
        let memory = block(&arena, seed, BLOCK_BYTES);
        Self { arena, memory }
    }

    /// Leases a part
    pub fn lease(&self, offset: u64, bytes: u64) -> Lease {
        let start = self.memory[offset as usize..].as_ptr();
        self.arena.lease(start, bytes as usize).unwrap()
    }

    /// Sends the packet of a lease of a part
    pub fn send_packet(&self, manual: &mut ManualPeer, offset: u64, bytes: u64) -> Ticket {
        let lease = self.lease(offset, bytes);
        let said = packet(lease.offset(), bytes);
        manual.send_packet(&said, &[lease.descriptor()]).unwrap();
        manual.table.exported.issue(lease).unwrap()
    }

    /// Exports a part: the packet, and the frame
    pub fn export(&self, manual: &mut ManualPeer, message: u64, offset: u64, bytes: u64) -> Ticket {
        let ticket = self.send_packet(manual, offset, bytes);
        manual.write_lease(message, ticket.into(), bytes);
        ticket
    }
}

/// Returns the packet that goes with the descriptor of a lease
pub fn packet(offset: u64, bytes: u64) -> [u8; 16] {
    let mut packet = [0; 16];
    packet[..8].copy_from_slice(&offset.to_le_bytes());
    packet[8..].copy_from_slice(&bytes.to_le_bytes());
    packet
}

/// A doorbell
pub fn doorbell() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

/// Names a lease
pub fn ticket(slot: u32, generation: u32) -> Ticket {
    Ticket { slot, generation }
}

/// Memory as it must be
pub fn sealed(bytes: usize) -> OwnedFd {
    let memory = memfd(bytes, MemfdFlags::ALLOW_SEALING).unwrap();
    fcntl_add_seals(&memory, SEALS).unwrap();
    memory
}

/// Memory of some kind
pub fn memfd(bytes: usize, flags: MemfdFlags) -> Result<OwnedFd, Errno> {
    let memory = memfd_create("stranger", MemfdFlags::CLOEXEC | flags)?;
    ftruncate(&memory, bytes as u64)?;
    Ok(memory)
}

/// Seals that memory must have
pub const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);
