//! Errors before two peers agree.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

use crate::hello::HelloError;
use crate::lane::LaneKind;

/// How far a handshake is
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum HandshakePhase {
    /// Waits for the peer's Hello
    Hello,
    /// Waits for the connector's selection
    Select,
    /// Waits for the acceptor's answer
    Answer,
    /// Both sides agree
    Done,
}

impl fmt::Display for HandshakePhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hello => "hello",
            Self::Select => "select",
            Self::Answer => "answer",
            Self::Done => "done",
        })
    }
}

/// A handshake that failed; the socket is of no further use
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum HandshakeError {
    /// Something else than Backhaul is at the other end
    #[error("the peer does not speak backhaul: it began with \"{found}\"")]
    NotBackhaul {
        /// Its first bytes, escaped
        found: String,
    },
    /// The peer speaks Dask's own protocol for `tcp://` addresses
    #[error("the peer speaks dask's tcp:// protocol, not backhaul://")]
    SpeaksDask,
    /// The peer asks for an encrypted connection, or refuses one that is not
    #[error("the peer speaks TLS, and this side is not configured for TLS")]
    SpeaksTls,
    /// The peer speaks another version
    #[error("the peer speaks version {peer}, supported is {supported}")]
    Version {
        /// Version of the peer
        peer: u16,
        /// Version of this side
        supported: u16,
    },
    /// The peer's Hello cannot be understood
    #[error("bad hello from the peer: {0}")]
    Hello(#[from] HelloError),
    /// The peer takes nothing, so that it could never be talked to
    #[error("the peer allows 0 {limit}, so nothing could ever be sent to it")]
    ZeroLimit {
        /// Name of the field of its Hello
        limit: &'static str,
    },
    /// A lane was selected that is not in both Hellos
    #[error("the peer selected lane {lane}, which is not offered by both sides")]
    LaneNotOffered {
        /// Lane selected
        lane: LaneKind,
    },
    /// The answer is neither the selected lane nor the fallback
    #[error("selected lane {selected}, but the peer answered {answered}")]
    AnswerDisagrees {
        /// Lane selected
        selected: LaneKind,
        /// Lane answered
        answered: LaneKind,
    },
    /// A selection or answer of a lane that this version does not know
    #[error("the peer named lane {code}, which is unknown here")]
    UnknownLane {
        /// Its number
        code: u8,
    },
    /// Another message than the one whose turn it is
    #[error("expected a message of type {expected:#04x}, got {found:#04x}")]
    UnexpectedMessage {
        /// Type expected
        expected: u8,
        /// Type found
        found: u8,
    },
    /// The peer said hello again
    #[error("a second hello came where a message of type {expected:#04x} was expected")]
    RepeatedHello {
        /// Type expected
        expected: u8,
    },
    /// Bytes came while it was not the peer's turn
    #[error("bytes came out of turn, beginning with {found:#04x}, in the phase: {phase}")]
    OutOfTurn {
        /// The first of them
        found: u8,
        /// How far the handshake was
        phase: HandshakePhase,
    },
    /// The reason in a selection or answer is too long
    #[error("reason of {bytes} bytes, limit {max}")]
    ReasonTooLong {
        /// Its size, in bytes
        bytes: usize,
        /// Limit, in bytes
        max: usize,
    },
    /// The reason in a selection or answer is not text
    #[error("the reason of the peer is not UTF-8")]
    ReasonNotText,
    /// The peer has no secret, and this side has one
    #[error("the peer proves no secret, and this side has one: give all of a cluster the same")]
    NoProof,
    /// The peer has a secret, and this side has none
    #[error("the peer proves a secret, and this side has none: give all of a cluster the same")]
    UnexpectedProof,
    /// The peer has another secret, or what it said was changed on the way
    #[error(
        "the {phase} of the peer does not prove the secret of this side: it has another one, or the message was changed on its way"
    )]
    WrongProof {
        /// Phase of the message
        phase: HandshakePhase,
    },
    /// The peer hung up without a word, as a peer does if a secret was not proved to it
    #[error(
        "the peer hung up without a word; one that has a secret does so unless it is proved to it, and this side has {}",
        if *.has_secret { "one, so the two may differ" } else { "none" }
    )]
    ClosedUnheard {
        /// True if this side has a secret
        has_secret: bool,
    },
    /// It took too long
    #[error("handshake not finished after {waited:?}, it waits for: {phase}")]
    TimedOut {
        /// Time since the start
        waited: Duration,
        /// Phase that it was waiting in
        phase: HandshakePhase,
    },
}
