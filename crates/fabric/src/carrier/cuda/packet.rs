//! Packets between the two ends of the CUDA carrier: docs/design/cuda.md.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use backhaul_cuda::{Export, Handle, Uuid};

use super::slots::Slot;

/// One packet
#[derive(Clone, Debug)]
pub(super) enum Packet {
    /// A segment may be taken
    Offer {
        ticket: u64,
        /// Tickets below this are over
        lowest: u64,
        bytes: u64,
        /// The exporter waits to hear that it was taken
        is_given: bool,
        /// By which the allocation is known from now on
        slot: Option<Slot>,
        place: Offered,
    },
    /// The given memory has been taken, or is not wanted
    Returned { ticket: u64 },
    /// A segment will not come: its device has failed
    Failed { ticket: u64, detail: String },
}

/// Where an offered segment is
#[derive(Clone, Debug)]
pub(super) enum Offered {
    /// In this process, at this address
    Local(u64),
    /// In another
    Exported(Export),
}

/// Bytes on the socket, and the descriptor that goes along
pub(super) struct Encoded {
    pub(super) bytes: [u8; PACKET_BYTES],
    pub(super) descriptor: Option<Arc<OwnedFd>>,
}

/// `u8 kind | u8 handle | u8 given | u8 slot | u16 generation | 2 bytes 0 | u64 ticket | u64 lowest | u64 bytes | u64 id |
/// u64 allocation bytes | u64 offset | 16 bytes device | 64 bytes handle`
pub(super) const PACKET_BYTES: usize = 8 + 6 * 8 + 16 + HANDLE_BYTES;

const HANDLE_BYTES: usize = backhaul_cuda::export::HANDLE_BYTES;

const OFFER: u8 = 1;
const RETURNED: u8 = 2;
const FAILED: u8 = 3;

const LOCAL: u8 = 0;
const LEGACY: u8 = 1;
const DESCRIPTOR: u8 = 2;
const POOL: u8 = 3;

impl Packet {
    pub(super) fn encode(&self) -> Encoded {
        let mut fields = [0; 6];
        let mut head = [0; 6];
        let mut device = [0; 16];
        let mut blob = [0; HANDLE_BYTES];
        let mut descriptor = None;
        match self {
            Self::Offer {
                ticket,
                lowest,
                bytes,
                is_given,
                slot,
                place,
            } => {
                head[..3].copy_from_slice(&[OFFER, LOCAL, u8::from(*is_given)]);
                head[3..].copy_from_slice(&Slot::encode(*slot));
                fields[..3].copy_from_slice(&[*ticket, *lowest, *bytes]);
                match place {
                    Offered::Local(address) => fields[5] = *address,
                    Offered::Exported(export) => {
                        fields[3..].copy_from_slice(&[
                            export.id,
                            export.allocation_bytes,
                            export.offset,
                        ]);
                        device = export.device.0;
                        match &export.handle {
                            Handle::Legacy(handle) => {
                                head[1] = LEGACY;
                                blob = *handle;
                            }
                            Handle::Descriptor(fd) => {
                                head[1] = DESCRIPTOR;
                                descriptor = Some(Arc::clone(fd));
                            }
                            Handle::Pool { pool, pointer } => {
                                head[1] = POOL;
                                blob = *pointer;
                                descriptor = Some(Arc::clone(pool));
                            }
                        }
                    }
                }
            }
            Self::Returned { ticket } => {
                head[0] = RETURNED;
                fields[0] = *ticket;
            }
            Self::Failed { ticket, detail } => {
                head[0] = FAILED;
                fields[0] = *ticket;
                let text = detail.as_bytes();
                let kept = text.len().min(HANDLE_BYTES);
                blob[..kept].copy_from_slice(&text[..kept]);
            }
        }
        let mut bytes = [0; PACKET_BYTES];
        bytes[..6].copy_from_slice(&head);
        for (index, field) in fields.iter().enumerate() {
            bytes[8 + index * 8..16 + index * 8].copy_from_slice(&field.to_le_bytes());
        }
        bytes[56..72].copy_from_slice(&device);
        bytes[72..].copy_from_slice(&blob);
        Encoded { bytes, descriptor }
    }

    /// The ticket that a packet is about
    pub(super) fn ticket(bytes: &[u8; PACKET_BYTES]) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|byte| bytes[8 + byte]))
    }

    /// The slot that a packet names
    ///
    /// # Errors
    ///
    /// There is no such slot.
    pub(super) fn slot(bytes: &[u8; PACKET_BYTES]) -> Result<Option<Slot>, String> {
        Slot::decode([bytes[3], bytes[4], bytes[5]])
    }

    /// Reads a packet; an error says what is wrong with it
    pub(super) fn decode(
        bytes: &[u8; PACKET_BYTES],
        mut descriptors: Vec<OwnedFd>,
    ) -> Result<Self, String> {
        let word = |index: usize| {
            let at = 8 + index * 8;
            u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
        };
        let ticket = Self::ticket(bytes);
        let [kind, handle, is_given, ..] = *bytes;
        let slot = Self::slot(bytes)?;
        let may_have_slot = kind == OFFER && matches!(handle, LEGACY | DESCRIPTOR) && is_given == 0;
        let is_slot_out_of_place = slot.is_some() && !may_have_slot;
        if bytes[6..8] != [0; 2] || is_given > 1 || is_slot_out_of_place {
            return Err(format!("a packet that begins with {:?}", &bytes[..8]));
        }
        let mut blob = [0; HANDLE_BYTES];
        blob.copy_from_slice(&bytes[72..]);
        match kind {
            OFFER => {}
            RETURNED => return Ok(Self::Returned { ticket }),
            FAILED => {
                let text = String::from_utf8_lossy(&blob);
                let detail = text.trim_end_matches('\0').to_owned();
                return Ok(Self::Failed { ticket, detail });
            }
            _ => return Err(format!("a packet of kind {kind}")),
        }
        let mut descriptor = || {
            let descriptor = descriptors.pop();
            let descriptor =
                descriptor.ok_or_else(|| format!("handle {handle} without a descriptor"));
            descriptor.map(Arc::new)
        };
        let handle = match handle {
            LOCAL => None,
            LEGACY => Some(Handle::Legacy(blob)),
            DESCRIPTOR => Some(Handle::Descriptor(descriptor()?)),
            POOL => Some(Handle::Pool {
                pool: descriptor()?,
                pointer: blob,
            }),
            _ => return Err(format!("a handle of kind {handle}")),
        };
        let place = match handle {
            None => Offered::Local(word(5)),
            Some(handle) => Offered::Exported(Export {
                device: Uuid(std::array::from_fn(|index| bytes[56 + index])),
                id: word(3),
                allocation_bytes: word(4),
                offset: word(5),
                handle,
            }),
        };
        Ok(Self::Offer {
            ticket,
            lowest: word(1),
            bytes: word(2),
            is_given: is_given == 1,
            slot,
            place,
        })
    }
}

impl Encoded {
    /// Sends it
    pub(super) fn send(&self, socket: &OwnedFd) -> std::io::Result<()> {
        let descriptor = self
            .descriptor
            .as_ref()
            .map(|descriptor| descriptor.as_fd());
        super::super::packets::send(socket, &self.bytes, descriptor.as_slice())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
    use super::*;

    fn decoded(packet: &Packet) -> Result<Packet, String> {
        let encoded = packet.encode();
        let descriptors = encoded.descriptor.iter();
        let descriptors = descriptors.map(|fd| fd.try_clone().unwrap()).collect();
        Packet::decode(&encoded.bytes, descriptors)
    }

    fn export(handle: Handle) -> Packet {
        Packet::Offer {
            ticket: 7,
            lowest: 3,
            bytes: 100,
            is_given: false,
            slot: None,
            place: Offered::Exported(Export {
                device: Uuid([9; 16]),
                id: 4,
                allocation_bytes: 1 << 30,
                offset: 4096,
                handle,
            }),
        }
    }

    #[test]
    fn packets_come_back() {
        let fd = || Arc::new(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
        let pool = Handle::Pool {
            pool: fd(),
            pointer: [5; HANDLE_BYTES],
        };
        for handle in [
            Handle::Legacy([1; HANDLE_BYTES]),
            Handle::Descriptor(fd()),
            pool,
        ] {
            let packet = export(handle);
            let again = decoded(&packet).unwrap();
            assert_eq!(again.encode().bytes, packet.encode().bytes);
            let has_descriptor = |packet: &Packet| packet.encode().descriptor.is_some();
            assert_eq!(has_descriptor(&again), has_descriptor(&packet));
        }
        let failed = Packet::Failed {
            ticket: 1,
            detail: "gone".to_owned(),
        };
        assert!(matches!(decoded(&failed), Ok(Packet::Failed { detail, .. }) if detail == "gone"));
    }

    #[test]
    fn what_may_be_known_from_now_on_has_a_slot() {
        let mut packet = export(Handle::Legacy([1; HANDLE_BYTES]));
        let given = Slot {
            number: 9,
            generation: 300,
        };
        let Packet::Offer { slot, .. } = &mut packet else {
            panic!("it was made as an offer");
        };
        *slot = Some(given);
        let Ok(Packet::Offer { slot, .. }) = decoded(&packet) else {
            panic!("it came as something else");
        };
        assert_eq!(slot, Some(given));
        // An offer that is given, or opened anew each time, has no slot.
        let mut bytes = packet.encode().bytes;
        bytes[2] = 1;
        assert!(Packet::decode(&bytes, Vec::new()).is_err());
        bytes[1..3].copy_from_slice(&[LOCAL, 0]);
        assert!(Packet::decode(&bytes, Vec::new()).is_err());
    }

    #[test]
    fn what_is_no_packet_is_said() {
        let mut bytes = export(Handle::Legacy([1; HANDLE_BYTES])).encode().bytes;
        bytes[0] = 77;
        assert!(
            Packet::decode(&bytes, Vec::new())
                .unwrap_err()
                .contains("77")
        );
        bytes[..2].copy_from_slice(&[OFFER, DESCRIPTOR]);
        let error = Packet::decode(&bytes, Vec::new()).unwrap_err();
        assert!(error.contains("without a descriptor"), "{error}");
    }
}
