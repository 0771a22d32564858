//! Hello: who a peer is, what it offers and what it allows.
//!
//! ```text
//! u64 bytes that follow | "backhaul" | u16 version | u16 reserved | fields: u16 type, u16 bytes, value
//! ```
//!
//! Little-endian. Fields of unknown type are skipped, so that a later version can say more; a
//! known field twice, of the wrong size, or absent is an error. The reserved bytes are ignored.
//! The length comes first because Dask's `tcp://` reads the first eight bytes as one. Where there is a
//! proof of a shared secret it is the last field, for it covers what comes before.

use thiserror::Error;

use crate::carrier::CarrierKind;
use crate::lane::LaneKind;
use crate::limits::PeerLimits;
use crate::secret::PROOF_BYTES;

/// Longest body of a Hello, in bytes: its fields
pub const HELLO_BODY_BYTES_MAX: usize = 4096;

/// Longest address of a UCX worker in a Hello, in bytes; those of hosts with many devices take some
/// hundred
pub const UCX_ADDRESS_BYTES_MAX: usize = 2048;

/// Where the magic begins, behind the length
pub(crate) const MAGIC_OFFSET: usize = 8;

/// First bytes that distinguish a Hello from anything else
pub(crate) const MAGIC: &[u8; 8] = b"backhaul";

/// The version spoken here
pub(crate) const VERSION: u16 = 3;

/// Bytes in front of the body
pub(crate) const PREFIX_BYTES: usize = 20;

/// Identity of a peer, its offers and its limits
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Hello {
    /// The kernel's id of this boot of the host
    pub boot_id: [u8; 16],
    /// Identity of the namespaces that decide who can be reached; at most 64 bytes
    pub host_token: Vec<u8>,
    /// Random, one per process
    pub process_token: [u8; 16],
    /// Random, one per connection; proves that a second socket belongs to the first
    pub nonce: [u8; 16],
    /// Process id in its own namespace
    pub pid: u32,
    /// User id in its own namespace
    pub uid: u32,
    /// Lanes offered, best first
    pub lanes: Vec<LaneKind>,
    /// Numbers of lanes offered that this version does not know
    pub lanes_unknown: Vec<u8>,
    /// Name of an abstract Unix socket without the NUL in front, at most 107 bytes; empty if there
    /// is none
    pub unix_name: String,
    /// Bytes of eager messages that may wait there
    pub credit_bytes: u64,
    /// Messages that may wait there
    pub credit_messages: u64,
    /// Longest message it receives, in bytes
    pub message_bytes_max: u64,
    /// Most segments of one message it receives
    pub segments_max: u32,
    /// Carriers it can use
    pub carriers: Vec<CarrierKind>,
    /// Numbers of carriers it can use that this version does not know
    pub carriers_unknown: Vec<u8>,
    /// Longest piece of a message that it receives in one data frame, in bytes
    pub data_chunk_bytes: u64,
    /// Address of its UCX worker, at most [`UCX_ADDRESS_BYTES_MAX`]; empty if it has none
    pub ucx_address: Vec<u8>,
}

impl Hello {
    /// Reads the body of a Hello
    ///
    /// # Errors
    ///
    /// [`HelloError`] naming the field.
    pub fn decode_body(body: &[u8]) -> Result<Self, HelloError> {
        Ok(Self::decode_proved(body)?.0)
    }

    /// Reads the body of a Hello, returning also whether it ends with a proof
    pub(crate) fn decode_proved(body: &[u8]) -> Result<(Self, bool), HelloError> {
        let mut values: [Option<&[u8]>; FIELDS.len()] = [None; FIELDS.len()];
        let mut rest = body;
        while !rest.is_empty() {
            let (field_type, value) = split_field(&mut rest)?;
            let Some(index) = FIELDS.iter().position(|field| *field as u16 == field_type) else {
                continue;
            };
            let field = FIELDS[index];
            let (bytes_min, bytes_max) = field.value_bytes();
            if !(bytes_min..=bytes_max).contains(&value.len()) {
                return Err(HelloError::FieldSize {
                    field: field.name(),
                    bytes: value.len(),
                    min: bytes_min,
                    max: bytes_max,
                });
            }
            if values[index].replace(value).is_some() {
                return Err(HelloError::Duplicate {
                    field: field.name(),
                });
            }
            if field == Field::Proof && !rest.is_empty() {
                return Err(HelloError::ProofNotLast { bytes: rest.len() });
            }
        }
        let values = Values(values);
        let is_proved = values.0[Field::Proof as usize - 1].is_some();
        let (lanes, lanes_unknown) =
            sort_codes(values.required(Field::Lanes)?, LaneKind::from_code);
        let (carriers, carriers_unknown) =
            sort_codes(values.optional(Field::Carriers), CarrierKind::from_code);
        let hello = Self {
            boot_id: values.array(Field::BootId)?,
            host_token: values.required(Field::HostToken)?.to_vec(),
            process_token: values.array(Field::ProcessToken)?,
            nonce: values.array(Field::Nonce)?,
            pid: values.array(Field::Pid).map(u32::from_le_bytes)?,
            uid: values.array(Field::Uid).map(u32::from_le_bytes)?,
            lanes,
            lanes_unknown,
            unix_name: values.text(Field::UnixName)?,
            credit_bytes: values.array(Field::CreditBytes).map(u64::from_le_bytes)?,
            credit_messages: values
                .array(Field::CreditMessages)
                .map(u64::from_le_bytes)?,
            message_bytes_max: values
                .array(Field::MessageBytesMax)
                .map(u64::from_le_bytes)?,
            segments_max: values.array(Field::SegmentsMax).map(u32::from_le_bytes)?,
            carriers,
            carriers_unknown,
            data_chunk_bytes: values
                .array(Field::DataChunkBytes)
                .map(u64::from_le_bytes)?,
            ucx_address: values.optional(Field::UcxAddress).to_vec(),
        };
        Ok((hello, is_proved))
    }

    /// Writes the whole Hello, from its length on
    ///
    /// # Panics
    ///
    /// If a field is longer than documented, or there are more than 32 lanes or carriers.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.encode_fields(false)
    }

    /// The same with a proof at the end, whose bytes are to be filled in
    pub(crate) fn encode_with_room_for_proof(&self) -> Vec<u8> {
        self.encode_fields(true)
    }

    fn encode_fields(&self, has_proof: bool) -> Vec<u8> {
        let mut lanes: Vec<u8> = self.lanes.iter().map(|lane| lane.code()).collect();
        lanes.extend_from_slice(&self.lanes_unknown);
        let mut carriers: Vec<u8> = self.carriers.iter().map(|kind| kind.code()).collect();
        carriers.extend_from_slice(&self.carriers_unknown);
        let mut body = Vec::with_capacity(256);
        let mut put = |field: Field, value: &[u8]| {
            let (bytes_min, bytes_max) = field.value_bytes();
            assert!(
                (bytes_min..=bytes_max).contains(&value.len()),
                "{} of {} bytes, limit {bytes_max}",
                field.name(),
                value.len(),
            );
            let bytes = u16::try_from(value.len()).expect("checked against the limit");
            body.extend_from_slice(&(field as u16).to_le_bytes());
            body.extend_from_slice(&bytes.to_le_bytes());
            body.extend_from_slice(value);
        };
        put(Field::BootId, &self.boot_id);
        put(Field::HostToken, &self.host_token);
        put(Field::ProcessToken, &self.process_token);
        put(Field::Nonce, &self.nonce);
        put(Field::Pid, &self.pid.to_le_bytes());
        put(Field::Uid, &self.uid.to_le_bytes());
        put(Field::Lanes, &lanes);
        put(Field::UnixName, self.unix_name.as_bytes());
        put(Field::CreditBytes, &self.credit_bytes.to_le_bytes());
        put(Field::CreditMessages, &self.credit_messages.to_le_bytes());
        put(
            Field::MessageBytesMax,
            &self.message_bytes_max.to_le_bytes(),
        );
        put(Field::SegmentsMax, &self.segments_max.to_le_bytes());
        put(Field::Carriers, &carriers);
        // Nothing is said by who has none, as before there was such a field.
        if !self.ucx_address.is_empty() {
            put(Field::UcxAddress, &self.ucx_address);
        }
        put(Field::DataChunkBytes, &self.data_chunk_bytes.to_le_bytes());
        if has_proof {
            put(Field::Proof, &[0; PROOF_BYTES]);
        }

        let bytes_behind = (PREFIX_BYTES - MAGIC_OFFSET + body.len()) as u64;
        let mut bytes = Vec::with_capacity(PREFIX_BYTES + body.len());
        bytes.extend_from_slice(&bytes_behind.to_le_bytes());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&[0; 2]);
        bytes.extend_from_slice(&body);
        bytes
    }

    /// The limits it announces
    #[must_use]
    pub const fn peer_limits(&self) -> PeerLimits {
        PeerLimits {
            credit_bytes: self.credit_bytes,
            credit_messages: self.credit_messages,
            message_bytes_max: self.message_bytes_max,
            segments_max: self.segments_max,
            data_chunk_bytes: self.data_chunk_bytes,
        }
    }
}

/// A field by its type on the wire
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u16)]
enum Field {
    BootId = 1,
    HostToken = 2,
    ProcessToken = 3,
    Nonce = 4,
    Pid = 5,
    Uid = 6,
    Lanes = 7,
    UnixName = 8,
    CreditBytes = 9,
    CreditMessages = 10,
    MessageBytesMax = 11,
    SegmentsMax = 12,
    Carriers = 13,
    DataChunkBytes = 14,
    UcxAddress = 15,
    Proof = 16,
}

impl Field {
    const fn name(self) -> &'static str {
        match self {
            Self::BootId => "boot_id",
            Self::HostToken => "host_token",
            Self::ProcessToken => "process_token",
            Self::Nonce => "nonce",
            Self::Pid => "pid",
            Self::Uid => "uid",
            Self::Lanes => "lanes",
            Self::UnixName => "unix_name",
            Self::CreditBytes => "credit_bytes",
            Self::CreditMessages => "credit_messages",
            Self::MessageBytesMax => "message_bytes_max",
            Self::SegmentsMax => "segments_max",
            Self::Carriers => "carriers",
            Self::DataChunkBytes => "data_chunk_bytes",
            Self::UcxAddress => "ucx_address",
            Self::Proof => "proof",
        }
    }

    /// Smallest and largest size of the value, in bytes
    const fn value_bytes(self) -> (usize, usize) {
        match self {
            Self::BootId | Self::ProcessToken | Self::Nonce => (16, 16),
            Self::HostToken => (0, 64),
            Self::Lanes | Self::Carriers => (0, 32),
            // Longest name that fits into sockaddr_un after the NUL.
            Self::UnixName => (0, 107),
            Self::UcxAddress => (0, UCX_ADDRESS_BYTES_MAX),
            Self::Proof => (PROOF_BYTES, PROOF_BYTES),
            Self::Pid | Self::Uid | Self::SegmentsMax => (4, 4),
            Self::CreditBytes
            | Self::CreditMessages
            | Self::MessageBytesMax
            | Self::DataChunkBytes => (8, 8),
        }
    }
}

/// Values found, in the order of [`FIELDS`]; each of a size that its field allows
struct Values<'a>([Option<&'a [u8]>; FIELDS.len()]);

impl<'a> Values<'a> {
    fn required(&self, field: Field) -> Result<&'a [u8], HelloError> {
        self.0[field as usize - 1].ok_or_else(|| HelloError::Missing {
            field: field.name(),
        })
    }

    fn optional(&self, field: Field) -> &'a [u8] {
        self.0[field as usize - 1].unwrap_or_default()
    }

    fn array<const N: usize>(&self, field: Field) -> Result<[u8; N], HelloError> {
        let value = self.required(field)?;
        Ok(value.try_into().expect("the size was checked"))
    }

    fn text(&self, field: Field) -> Result<String, HelloError> {
        let text = str::from_utf8(self.required(field)?);
        text.map(str::to_owned).map_err(|_| HelloError::NotText {
            field: field.name(),
        })
    }
}

/// Takes the first field off `rest`, which is not empty
fn split_field<'a>(rest: &mut &'a [u8]) -> Result<(u16, &'a [u8]), HelloError> {
    let cut_off = || HelloError::CutOff { bytes: rest.len() };
    let (&[t0, t1, b0, b1], after) = rest.split_first_chunk::<4>().ok_or_else(cut_off)?;
    let bytes = usize::from(u16::from_le_bytes([b0, b1]));
    let (value, after) = after.split_at_checked(bytes).ok_or_else(cut_off)?;
    *rest = after;
    Ok((u16::from_le_bytes([t0, t1]), value))
}

/// The kinds that `codes` name, each once, and the codes that name none
fn sort_codes<Kind: Copy + PartialEq>(
    codes: &[u8],
    from_code: impl Fn(u8) -> Option<Kind>,
) -> (Vec<Kind>, Vec<u8>) {
    let (mut kinds, mut unknown) = (Vec::new(), Vec::new());
    for &code in codes {
        match from_code(code) {
            Some(kind) if !kinds.contains(&kind) => kinds.push(kind),
            None if !unknown.contains(&code) => unknown.push(code),
            Some(_) | None => {}
        }
    }
    (kinds, unknown)
}

/// A Hello that cannot be understood; the peer's fault
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum HelloError {
    /// The body is too long
    #[error("body of {bytes} bytes, limit {max}")]
    TooLong {
        /// Its size, in bytes
        bytes: u64,
        /// Limit, in bytes
        max: usize,
    },
    /// The body ends within a field
    #[error("the last {bytes} bytes are no whole field")]
    CutOff {
        /// Length of the rest, in bytes
        bytes: usize,
    },
    /// A field has a size that it cannot have
    #[error("{field} of {bytes} bytes, expected {min} to {max}")]
    FieldSize {
        /// Name of the field
        field: &'static str,
        /// Its size, in bytes
        bytes: usize,
        /// Smallest size, in bytes
        min: usize,
        /// Largest size, in bytes
        max: usize,
    },
    /// A field is there twice
    #[error("{field} is there twice")]
    Duplicate {
        /// Name of the field
        field: &'static str,
    },
    /// A field is absent
    #[error("{field} is missing")]
    Missing {
        /// Name of the field
        field: &'static str,
    },
    /// Something follows the proof, which covers only what comes before it
    #[error("{bytes} bytes follow the proof, which must be the last field")]
    ProofNotLast {
        /// Length of what follows, in bytes
        bytes: usize,
    },
    /// A field should be text and is not
    #[error("{field} is not UTF-8")]
    NotText {
        /// Name of the field
        field: &'static str,
    },
}

/// All fields, each at the index of its type less one
const FIELDS: [Field; 16] = [
    Field::BootId,
    Field::HostToken,
    Field::ProcessToken,
    Field::Nonce,
    Field::Pid,
    Field::Uid,
    Field::Lanes,
    Field::UnixName,
    Field::CreditBytes,
    Field::CreditMessages,
    Field::MessageBytesMax,
    Field::SegmentsMax,
    Field::Carriers,
    Field::DataChunkBytes,
    Field::UcxAddress,
    Field::Proof,
];

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
pub(crate) mod tests;
