//! From the bytes of a lane to frames.

use smallvec::SmallVec;

use crate::error::ProtocolError;
use crate::frame::FrameHeader;
use crate::limits::Limits;

/// Sizes of the segments of a message, in bytes; inline for as many as most messages have
pub type SegmentBytes = SmallVec<[u64; 4]>;

/// A header with its segment table
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Frame {
    /// The header
    pub header: FrameHeader,
    /// Sizes of the segments if a message starts here, else empty; they add up to the message
    pub segment_bytes: SegmentBytes,
}

/// Collects the bytes of a lane into frames
#[derive(Debug, Default)]
pub struct FrameDecoder {}

impl FrameDecoder {
    /// Starts before the first frame
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Feeds bytes, returning how many were used and the frame if one is complete
    ///
    /// # Errors
    ///
    /// todo
    pub fn handle(
        &mut self,
        limits: &Limits,
        bytes: &[u8],
    ) -> Result<(usize, Option<Frame>), ProtocolError> {
        let _ = (limits, bytes);
        todo!()
    }
}
