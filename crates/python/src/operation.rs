//! Description of a request's operation, for a caller that finds it not done.

use std::fmt;

/// Description of a request's operation
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    /// A send of so many bytes, on an endpoint that may ask the peer before it sends more
    /// than `unasked_bytes_max`
    Send {
        bytes: u64,
        unasked_bytes_max: u64,
    },
    /// A receive of a tagged message
    Recv {
        tag: u64,
        mask: u64,
    },
    /// A receive of an untagged message
    RecvFrames,
    Accept,
    Connect,
    Close,
}

impl Operation {
    /// Returns the most likely reason why it is not done
    pub(crate) fn cause(self) -> Option<String> {
        match self {
            Self::Send {
                bytes,
                unasked_bytes_max,
            } if bytes > unasked_bytes_max => Some(format!(
                "a message of more than {unasked_bytes_max} bytes may wait until the peer \
                 receives it"
            )),
            Self::Send { .. } => Some(
                "the peer has as many messages waiting as it keeps, and has to receive some first"
                    .to_owned(),
            ),
            Self::Recv { .. } | Self::RecvFrames => {
                Some("no such message has come from the peer".to_owned())
            }
            Self::Accept => Some("no peer has connected".to_owned()),
            Self::Connect | Self::Close => None,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Send { bytes, .. } => write!(f, "send of {bytes} bytes"),
            Self::Recv { mask: 0, .. } => f.write_str("receive of any tag"),
            Self::Recv {
                tag,
                mask: u64::MAX,
            } => write!(f, "receive of tag {tag}"),
            Self::Recv { tag, mask } => write!(f, "receive of tag {tag:#x} under mask {mask:#x}"),
            Self::RecvFrames => f.write_str("receive of untagged frames"),
            Self::Accept => f.write_str("accept"),
            Self::Connect => f.write_str("connect"),
            Self::Close => f.write_str("close"),
        }
    }
}
