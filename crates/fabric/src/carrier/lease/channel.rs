//! The lease channel: one packet, with descriptors, for each lease.

use std::io;
use std::os::fd::OwnedFd;

use super::reexport::Descriptors;
use crate::carrier::packets::{self, DESCRIPTORS_MAX};

/// Packet that goes with a descriptor on the socket: docs/design/wire-format.md, section 2
pub(super) struct Packet {
    /// Where the lease begins in the memory, in bytes
    pub(super) offset: u64,
    /// How many bytes are leased
    pub(super) bytes: u64,
}

impl Packet {
    fn encode(&self) -> [u8; PACKET_BYTES] {
        let mut encoded = [0; PACKET_BYTES];
        encoded[..8].copy_from_slice(&self.offset.to_le_bytes());
        encoded[8..].copy_from_slice(&self.bytes.to_le_bytes());
        encoded
    }

    fn decode(encoded: &[u8; PACKET_BYTES]) -> Self {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| encoded[at + index]));
        Self {
            offset: word(0),
            bytes: word(8),
        }
    }
}

/// Sends what belongs to a lease; an error means that the peer has nothing of it
pub(super) fn send(
    socket: &OwnedFd,
    packet: &Packet,
    descriptors: &Descriptors<'_>,
) -> io::Result<()> {
    packets::send(socket, &packet.encode(), descriptors)
}

/// Receives what belongs to the next lease, the memory first; `None` if a descriptor was lost
pub(super) fn receive(socket: &OwnedFd) -> io::Result<(Packet, Option<Vec<OwnedFd>>)> {
    let mut bytes = [0; PACKET_BYTES];
    let received = packets::receive(socket, &mut bytes)?;
    let descriptors = received.descriptors;
    let is_lost = received.is_descriptor_lost;
    let are_said = if is_lost {
        descriptors.len() < DESCRIPTORS_MAX
    } else {
        !descriptors.is_empty()
    };
    if received.bytes != PACKET_BYTES || received.is_cut || !are_said {
        let what = format!(
            "a packet of {}{} bytes and {} descriptors",
            received.bytes,
            if received.is_cut { " or more" } else { "" },
            descriptors.len()
        );
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok((Packet::decode(&bytes), (!is_lost).then_some(descriptors)))
}

const PACKET_BYTES: usize = 16;
