//! The first bytes on a connection: both sides say who they are and agree on a lane.

use std::fmt;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::hello::{Hello, HelloError};
use crate::lane::LaneKind;

/// Which side of the connection this is
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Role {
    /// Called; selects the lane
    Connector,
    /// Was called; answers the selection
    Acceptor,
}

/// The handshake of one connection
#[derive(Debug)]
pub struct Handshake {}

impl Handshake {
    /// Starts
    #[must_use]
    pub fn new(role: Role, local: Hello, now: Instant, timeout: Duration) -> Self {
        let _ = (role, local, now, timeout);
        todo!()
    }

    /// Handles bytes
    ///
    /// # Errors
    ///
    /// todo
    pub fn handle_bytes(&mut self, now: Instant, bytes: &[u8]) -> Result<usize, HandshakeError> {
        let _ = (now, bytes);
        todo!()
    }

    /// Handles time
    ///
    /// # Errors
    ///
    /// todo
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), HandshakeError> {
        let _ = now;
        todo!()
    }

    /// Selects
    pub fn select(&mut self, lane: LaneKind, reason: &str) {
        let _ = (lane, reason);
        todo!()
    }

    /// Answers
    pub fn answer(&mut self, lane: LaneKind, reason: &str) {
        let _ = (lane, reason);
        todo!()
    }

    /// Bytes to write
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        todo!()
    }

    /// What happened
    pub fn poll_event(&mut self) -> Option<HandshakeEvent> {
        todo!()
    }

    /// When to call `handle_timeout`
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        todo!()
    }
}

/// What happened during a handshake
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum HandshakeEvent {
    /// The peer said who it is; the connector now calls [`Handshake::select`]
    PeerHello(Hello),
    /// The connector selected a lane; the acceptor now calls [`Handshake::answer`]
    LaneSelected {
        /// Lane selected
        lane: LaneKind,
        /// Why, in the connector's words
        reason: String,
    },
    /// Both sides agree; what follows on the lane are frames
    Done {
        /// Lane agreed on
        lane: LaneKind,
        /// Why, in the acceptor's words
        reason: String,
    },
}

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
    /// The peer speaks another version
    #[error("the peer speaks version {peer}, supported is {supported}")]
    Version {
        /// Version of the peer
        peer: u16,
        /// Version of this side
        supported: u16,
    },
    /// The peer's Hello cannot be understood
    #[error("bad hello from the peer")]
    Hello(#[from] HelloError),
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
    /// It took too long
    #[error("handshake not finished after {waited:?}, it waits for: {phase}")]
    TimedOut {
        /// Time since the start
        waited: Duration,
        /// What it was waiting for
        phase: HandshakePhase,
    },
}
