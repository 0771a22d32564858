//! Frames: headers and segment tables.

use backhaul_proto::{
    Frame, FrameDecoder, HEADER_BYTES, Limits, MemoryKind, ProtocolError, SegmentSource,
};

use crate::Input;

/// The same frames come of the same bytes in any pieces, and each is written as it was read
pub(super) fn frames(data: &[u8]) {
    let mut input = Input::new(data);
    let piece_bytes = 1 + input.below(40);
    let bytes = input.take(usize::MAX);
    let whole = decode(bytes, usize::MAX);
    assert_eq!(whole, decode(bytes, piece_bytes));
    let (frames, _) = whole;
    let mut at = 0;
    for frame in frames {
        assert!(frame.segment_bytes.len() <= limits().segments_max as usize);
        assert!(frame.header.payload_bytes <= limits().message_bytes_max);
        let encoded = encode(&frame);
        assert_eq!(bytes[at..at + encoded.len()], encoded);
        at += encoded.len() + payload_bytes(&frame);
    }
}

/// The frames, and why there are no more
fn decode(bytes: &[u8], piece_bytes: usize) -> (Vec<Frame>, Option<ProtocolError>) {
    let limits = limits();
    let mut decoder = FrameDecoder::new();
    let mut frames = Vec::new();
    let mut skip = 0;
    for mut piece in bytes.chunks(piece_bytes) {
        while !piece.is_empty() {
            let skipped = skip.min(piece.len());
            (piece, skip) = (&piece[skipped..], skip - skipped);
            if piece.is_empty() {
                break;
            }
            match decoder.handle(&limits, piece) {
                Ok((used, frame)) => {
                    assert!(used > 0 && (frame.is_some() || used == piece.len()));
                    skip = frame.as_ref().map_or(0, payload_bytes);
                    frames.extend(frame);
                    piece = &piece[used..];
                }
                Err(error) => return (frames, Some(error)),
            }
        }
    }
    (frames, None)
}

/// Bytes that follow a frame on the lane
fn payload_bytes(frame: &Frame) -> usize {
    if frame.header.kind.carries_payload() {
        usize::try_from(frame.header.payload_bytes).unwrap()
    } else {
        0
    }
}

/// A frame as docs/design/wire-format.md, section 3, says it is written
fn encode(frame: &Frame) -> Vec<u8> {
    let mut bytes = frame.header.encode().to_vec();
    assert_eq!(bytes.len(), HEADER_BYTES);
    if let Some(sources) = &frame.sources {
        assert_eq!(sources.len(), frame.segment_bytes.len());
        for (size, source) in frame.segment_bytes.iter().zip(sources) {
            bytes.extend(size.to_le_bytes());
            bytes.extend(encode_source(source));
        }
    } else if frame.segment_bytes.len() > 1 {
        bytes.extend(
            frame
                .segment_bytes
                .iter()
                .flat_map(|size| size.to_le_bytes()),
        );
    }
    bytes
}

fn encode_source(source: &SegmentSource) -> [u8; 16] {
    let mut entry = [0; 16];
    if let MemoryKind::Device(device) = source.memory {
        entry[0] = 1;
        entry[1] = match device.vendor {
            backhaul_proto::Vendor::Nvidia => 1,
            backhaul_proto::Vendor::Experimental => 240,
        };
        entry[2..4].copy_from_slice(&device.ordinal.to_le_bytes());
    }
    if let Some(offer) = source.offer {
        entry[4] = offer.carrier;
        entry[8..].copy_from_slice(&offer.token.to_le_bytes());
    }
    entry
}

fn limits() -> Limits {
    Limits {
        message_bytes_max: 1 << 20,
        segments_max: 64,
        ..Limits::default()
    }
}
