//! The headers of our active messages: docs/design/wire-format.md, section 5.

use backhaul_ucx::{HEADER_BYTES, Header};

/// Kind of an active message
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    /// Bytes of the lane, of which it is the `number`-th piece
    Bytes = 1,
    /// No bytes: how many of the other direction have been read
    Taken = 2,
    /// A segment, to be fetched by a rendezvous; `number` is its ticket
    Offer = 3,
    /// The segment of that ticket is not to be fetched any more
    OfferOver = 4,
    /// In the place of an offer: why the segment of that ticket does not come
    OfferFailed = 5,
}

/// Content of a header
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Heading {
    /// The receiver's name of the connection
    pub(super) key: u64,
    pub(super) kind: Kind,
    pub(super) number: u64,
    /// Bytes of the lane that the sender has read, in all
    pub(super) taken_bytes: u64,
}

/// `u64 key | u8 kind, u56 number | u64 taken_bytes`
pub(crate) fn header(key: u64, kind: Kind, number: u64, taken_bytes: u64) -> Header {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&key.to_le_bytes());
    header[8..16].copy_from_slice(&(number << 8 | kind as u64).to_le_bytes());
    header[16..].copy_from_slice(&taken_bytes.to_le_bytes());
    header
}

/// Reads a header; `None` if there is no such kind
pub(super) fn read(header: &Header) -> Option<Heading> {
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| header[at + index]));
    let kind = match word(8) as u8 {
        1 => Kind::Bytes,
        2 => Kind::Taken,
        3 => Kind::Offer,
        4 => Kind::OfferOver,
        5 => Kind::OfferFailed,
        _ => return None,
    };
    Some(Heading {
        key: word(0),
        kind,
        number: word(8) >> 8,
        taken_bytes: word(16),
    })
}

/// Returns the receiver's key of a connection: the first bytes of the nonce of its Hello
///
/// Random, so a peer can name no connection but its own.
pub(super) fn key_of(nonce: &[u8; 16]) -> u64 {
    u64::from_le_bytes(*nonce.first_chunk().expect("16 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_comes_back() {
        for kind in [
            Kind::Bytes,
            Kind::Taken,
            Kind::Offer,
            Kind::OfferOver,
            Kind::OfferFailed,
        ] {
            let heading = Heading {
                key: u64::MAX - 1,
                kind,
                number: (1 << 56) - 2,
                taken_bytes: 77,
            };
            let encoded = header(heading.key, kind, heading.number, heading.taken_bytes);
            assert_eq!(read(&encoded), Some(heading));
        }
        assert_eq!(read(&[9; HEADER_BYTES]), None);
    }
}
