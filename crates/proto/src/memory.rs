//! Kinds of memory, and what is said of the memory that a message lies in.

use std::fmt;

use smallvec::SmallVec;

use crate::error::ProtocolError;
use crate::frame::FrameKind;

/// Where memory is
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub enum MemoryKind {
    /// Memory of the host, which any thread can read
    #[default]
    Host,
    /// Memory of a device, which only carriers for it can reach
    Device(Device),
}

/// A device of a host
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Device {
    /// Maker of the device, and so whose library reaches it
    pub vendor: Vendor,
    /// Which of that vendor's devices, as the peer that owns the memory counts them
    pub ordinal: u16,
}

/// Maker of a device
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Vendor {
    /// CUDA
    Nvidia,
    /// Devices that exist in tests only
    Experimental,
}

impl MemoryKind {
    /// Returns whether it is memory of a device
    #[must_use]
    pub const fn is_device(self) -> bool {
        matches!(self, Self::Device(_))
    }

    /// The number on the wire: kind, vendor and ordinal
    const fn code(self) -> u32 {
        match self {
            Self::Host => 0,
            Self::Device(device) => {
                1 | (device.vendor.code() as u32) << 8 | (device.ordinal as u32) << 16
            }
        }
    }

    fn from_code(code: u32) -> Option<Self> {
        let [kind, vendor, ordinal_low, ordinal_high] = code.to_le_bytes();
        match kind {
            0 if code == 0 => Some(Self::Host),
            1 => Some(Self::Device(Device {
                vendor: Vendor::from_code(vendor)?,
                ordinal: u16::from_le_bytes([ordinal_low, ordinal_high]),
            })),
            _ => None,
        }
    }
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host memory"),
            Self::Device(device) => write!(f, "memory of {device}"),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} device {}", self.vendor.name(), self.ordinal)
    }
}

impl Vendor {
    /// Name in reports
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nvidia => "NVIDIA",
            Self::Experimental => "experimental",
        }
    }

    const fn code(self) -> u8 {
        match self {
            Self::Nvidia => 1,
            Self::Experimental => 240,
        }
    }

    const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Nvidia),
            240 => Some(Self::Experimental),
            _ => None,
        }
    }
}

/// Description of the memory of one segment by the sender of a long message
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SegmentSource {
    /// Where the segment lies
    pub memory: MemoryKind,
    /// How the receiver may fetch it, if it may
    pub offer: Option<Offer>,
}

/// Lets the receiver fetch a segment by itself
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Offer {
    /// Number of the carrier; never 0
    pub carrier: u8,
    /// Token by which that carrier finds the bytes
    pub token: u64,
}

/// One entry for each segment of a message
pub type Sources = SmallVec<[SegmentSource; 1]>;

/// As [`Sources`], of a message that comes: most say nothing, and are moved a good deal
pub type SourceTable = Box<[SegmentSource]>;

/// Bytes of an entry of a segment table with memory kinds
pub(crate) const SOURCE_ENTRY_BYTES: usize = 24;

impl SegmentSource {
    /// Writes an entry: `u64 bytes | u32 memory | u8 carrier | 3 bytes 0 | u64 token`
    pub(crate) fn encode(&self, bytes: u64) -> [u8; SOURCE_ENTRY_BYTES] {
        let mut encoded = [0; SOURCE_ENTRY_BYTES];
        encoded[..8].copy_from_slice(&bytes.to_le_bytes());
        encoded[8..12].copy_from_slice(&self.memory.code().to_le_bytes());
        if let Some(offer) = self.offer {
            encoded[12] = offer.carrier;
            encoded[16..].copy_from_slice(&offer.token.to_le_bytes());
        }
        encoded
    }

    /// Reads an entry of the table of that message
    ///
    /// # Errors
    ///
    /// [`ProtocolError`] for memory of a kind that this version does not know, and for what should
    /// be zero and is not.
    pub(crate) fn decode(
        encoded: &[u8; SOURCE_ENTRY_BYTES],
        message: u64,
    ) -> Result<(u64, Self), ProtocolError> {
        let (bytes, rest) = encoded.split_first_chunk::<8>().expect("24 bytes");
        let (memory, rest) = rest.split_first_chunk::<4>().expect("16 bytes");
        let (carrier, token) = rest.split_first_chunk::<4>().expect("12 bytes");
        let code = u32::from_le_bytes(*memory);
        let memory = MemoryKind::from_code(code).ok_or(ProtocolError::UnknownMemory {
            memory: code,
            message,
        })?;
        let token = u64::from_le_bytes(token.try_into().expect("8 bytes"));
        let [carrier, reserved @ ..] = *carrier;
        let [low, middle, high] = reserved;
        let reserved = u64::from(u32::from_le_bytes([low, middle, high, 0]));
        let unused = if carrier == 0 { token } else { 0 };
        for (field, value) in [("source_reserved", reserved), ("source_token", unused)] {
            if value != 0 {
                return Err(ProtocolError::NotZero {
                    field,
                    value,
                    kind: FrameKind::Request.code(),
                });
            }
        }
        let offer = (carrier != 0).then_some(Offer { carrier, token });
        Ok((u64::from_le_bytes(*bytes), Self { memory, offer }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DEVICE: MemoryKind = MemoryKind::Device(Device {
        vendor: Vendor::Nvidia,
        ordinal: 0x0201,
    });

    const OFFER: Offer = Offer {
        carrier: 2,
        token: u64::MAX - 7,
    };

    #[test]
    fn an_entry_comes_back() {
        for memory in [MemoryKind::Host, DEVICE] {
            for offer in [None, Some(OFFER)] {
                let source = SegmentSource { memory, offer };
                let decoded = SegmentSource::decode(&source.encode(77), 5);
                assert_eq!(decoded, Ok((77, source)));
            }
        }
    }

    #[test]
    fn the_layout_is_the_documented_one() {
        let source = SegmentSource {
            memory: DEVICE,
            offer: Some(OFFER),
        };
        let encoded = source.encode(0x0403_0201);
        assert_eq!(encoded[..8], [1, 2, 3, 4, 0, 0, 0, 0]);
        assert_eq!(encoded[8..16], [1, 1, 1, 2, 2, 0, 0, 0]);
        assert_eq!(encoded[16..], (u64::MAX - 7).to_le_bytes());
        assert_eq!(SegmentSource::default().encode(0), [0; 24]);
        let experimental = MemoryKind::Device(Device {
            vendor: Vendor::Experimental,
            ordinal: 0,
        });
        assert_eq!(experimental.code(), 0x0000_f001);
    }

    #[test]
    fn memory_that_is_not_known_is_told_by_its_number() {
        for (at, value, memory) in [(8, 2, 2), (9, 1, 1 << 8), (10, 1, 1 << 16)] {
            let mut encoded = SegmentSource::default().encode(1);
            encoded[at] = value;
            let unknown = ProtocolError::UnknownMemory { memory, message: 5 };
            assert_eq!(SegmentSource::decode(&encoded, 5), Err(unknown));
        }
        let mut encoded = SegmentSource::default().encode(1);
        encoded[8..10].copy_from_slice(&[1, 99]);
        let memory = 1 | 99 << 8;
        let unknown = ProtocolError::UnknownMemory { memory, message: 5 };
        assert_eq!(SegmentSource::decode(&encoded, 5), Err(unknown));
    }

    #[test]
    fn what_is_not_used_must_be_zero() {
        for (at, field, value) in [
            (13, "source_reserved", 3),
            (15, "source_reserved", 3 << 16),
            (16, "source_token", 3),
        ] {
            let mut encoded = SegmentSource::default().encode(1);
            encoded[at] = 3;
            let kind = FrameKind::Request.code();
            let not_zero = ProtocolError::NotZero { field, value, kind };
            assert_eq!(SegmentSource::decode(&encoded, 5), Err(not_zero));
        }
    }

    proptest! {
        #[test]
        fn what_decodes_encodes_to_the_same_bytes(
            bytes in any::<u64>(),
            memory in prop_oneof![Just([0_u8; 4]), Just([1, 1, 7, 0]), any::<[u8; 4]>()],
            carrier in prop_oneof![Just([0_u8; 4]), Just([9, 0, 0, 0]), any::<[u8; 4]>()],
            token in prop_oneof![Just(0_u64), any::<u64>()],
        ) {
            let mut encoded = [0; SOURCE_ENTRY_BYTES];
            encoded[..8].copy_from_slice(&bytes.to_le_bytes());
            encoded[8..12].copy_from_slice(&memory);
            encoded[12..16].copy_from_slice(&carrier);
            encoded[16..].copy_from_slice(&token.to_le_bytes());
            if let Ok((bytes, source)) = SegmentSource::decode(&encoded, 0) {
                prop_assert_eq!(source.encode(bytes), encoded);
            }
        }
    }
}
