//! Names of things: tags, operations, arrivals.

use std::fmt;

/// Number that a sender writes on a message and a receiver asks for
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Tag(pub u64);

impl Tag {
    /// Returns whether a receive for `tag` under `mask` wants a message with this tag
    #[must_use]
    pub const fn matches(self, tag: Self, mask: TagMask) -> bool {
        (self.0 ^ tag.0) & mask.0 == 0
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Bits of a tag that a receive cares about
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct TagMask(pub u64);

impl TagMask {
    /// Every bit counts: one tag only
    pub const FULL: Self = Self(u64::MAX);
    /// No bit counts: any tag
    pub const ANY: Self = Self(0);
}

impl Default for TagMask {
    fn default() -> Self {
        Self::FULL
    }
}

/// A send, as the driver calls it; unique among the live sends of a connection
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SendId(pub usize);

/// A receive, as the driver calls it; unique among the live receives of a connection
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct RecvId(pub usize);

/// An incoming message, as the connection calls it
///
/// Small and dense, so a driver may use it as an index. It is reused once the message is over:
/// after [`Event::RecvComplete`](crate::Event::RecvComplete) or
/// [`Event::RecvTruncated`](crate::Event::RecvTruncated).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ArrivalId(pub usize);

/// Which of the two matching spaces a message belongs to
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum MessageKind {
    /// Matched by tag
    Tagged(Tag),
    /// Matched in order with untagged receives, apart from all tags
    Untagged,
}

/// Which messages a receive takes
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Selector {
    /// The first message whose tag equals `tag` in the bits of `mask`
    Tagged {
        /// Tag wanted
        tag: Tag,
        /// Bits of it that count
        mask: TagMask,
    },
    /// The next untagged message
    Untagged,
}

/// How much a receive can take
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Capacity {
    /// A buffer of that many bytes; a longer message is truncated
    Into(u64),
    /// Any size: the driver allocates it
    Allocate,
}

impl Capacity {
    /// The size of the buffer if `message_bytes` do not fit into it
    #[must_use]
    pub(crate) fn exceeded_by(self, message_bytes: u64) -> Option<u64> {
        match self {
            Self::Into(bytes) if message_bytes > bytes => Some(bytes),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_masked_bits_decide_a_match() {
        let tag = Tag(0x12_34);
        assert!(tag.matches(Tag(0x12_34), TagMask::FULL));
        assert!(!tag.matches(Tag(0x13_34), TagMask::FULL));
        assert!(tag.matches(Tag(0x13_34), TagMask(0xff)));
        assert!(tag.matches(Tag(77), TagMask::ANY));
    }

    #[test]
    fn a_message_as_long_as_the_buffer_fits() {
        assert_eq!(Capacity::Into(4).exceeded_by(4), None);
        assert_eq!(Capacity::Into(4).exceeded_by(5), Some(4));
        assert_eq!(Capacity::Allocate.exceeded_by(u64::MAX), None);
    }
}
