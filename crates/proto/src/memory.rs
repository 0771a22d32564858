//! Kinds of memory, and what is said of the memory that a message lies in.

use std::fmt;

use smallvec::SmallVec;

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
    /// Who made it, and so whose library reaches it
    pub vendor: Vendor,
    /// Which of that vendor's devices, as the peer that owns the memory counts them
    pub ordinal: u16,
}

/// Who made a device
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Vendor {
    /// CUDA
    Nvidia,
    /// Devices that exist in tests only
    Experimental,
}

impl MemoryKind {
    /// Whether it is memory of a device
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

/// What the sender of a long message says of the memory of one segment
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
    /// What that carrier needs to find the bytes
    pub token: u64,
}

/// One entry for each segment of a message
pub type Sources = SmallVec<[SegmentSource; 1]>;

/// Bytes of an entry of a segment table that tells of memory
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

    /// Reads an entry
    ///
    /// # Errors
    ///
    /// The number of a kind of memory that this version does not know.
    pub(crate) fn decode(encoded: &[u8; SOURCE_ENTRY_BYTES]) -> Result<(u64, Self), u32> {
        let (bytes, rest) = encoded.split_first_chunk::<8>().expect("24 bytes");
        let (memory, rest) = rest.split_first_chunk::<4>().expect("16 bytes");
        let (carrier, token) = rest.split_first_chunk::<4>().expect("12 bytes");
        let code = u32::from_le_bytes(*memory);
        let memory = MemoryKind::from_code(code).ok_or(code)?;
        let token = u64::from_le_bytes(token.try_into().expect("8 bytes"));
        let offer = (carrier[0] != 0).then_some(Offer {
            carrier: carrier[0],
            token,
        });
        Ok((u64::from_le_bytes(*bytes), Self { memory, offer }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_comes_back() {
        let device = MemoryKind::Device(Device {
            vendor: Vendor::Nvidia,
            ordinal: 513,
        });
        let offer = Some(Offer {
            carrier: 2,
            token: u64::MAX - 7,
        });
        for memory in [MemoryKind::Host, device] {
            for offer in [None, offer] {
                let source = SegmentSource { memory, offer };
                assert_eq!(SegmentSource::decode(&source.encode(77)), Ok((77, source)));
            }
        }
    }

    #[test]
    fn memory_that_is_not_known_is_told_by_its_number() {
        let mut encoded = SegmentSource::default().encode(1);
        encoded[8] = 9;
        assert_eq!(SegmentSource::decode(&encoded), Err(9));
        encoded[8..10].copy_from_slice(&[1, 99]);
        assert_eq!(SegmentSource::decode(&encoded), Err(1 | 99 << 8));
    }
}
