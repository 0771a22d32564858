//! The first bytes on a connection: both sides say who they are and agree on a lane.
//!
//! ```text
//! connector  Hello (see `hello`)
//! acceptor   Hello, once the connector's has begun with the magic
//! connector  Select:  u8 0x51 | u8 lane | u16 reason_bytes | reason, UTF-8
//! acceptor   Answer:  u8 0x52 | u8 lane | u16 reason_bytes | reason, UTF-8
//! ```
//!
//! The acceptor answers the lane selected, or falls back to the socket that carries the handshake:
//! Tcp, or Tls where that is encrypted. An acceptor that is called by another protocol says
//! nothing.
//!
//! Where the sides share a [`Secret`], each message ends with a proof of it (`proofs`), and who is
//! called says nothing before the first of them.

mod error;
mod proofs;
mod wire;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use self::proofs::Proofs;
use self::wire::{ANSWER, SELECT, choice_bytes, decode_choice, encode_choice, hello_bytes};
use crate::hello::{Hello, PREFIX_BYTES};
use crate::lane::LaneKind;
use crate::secret::{PROOF_BYTES, Secret};

pub use self::error::{HandshakeError, HandshakePhase};

/// Which side of the connection this is
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Role {
    /// Called; selects the lane
    Connector,
    /// Was called; answers the selection
    Acceptor,
}

/// The handshake of one connection
///
/// After any input, drain [`poll_transmit`](Self::poll_transmit) and
/// [`poll_event`](Self::poll_event) to `None`. The connector answers
/// [`HandshakeEvent::PeerHello`] with [`select`](Self::select), the acceptor
/// [`HandshakeEvent::LaneSelected`] with [`answer`](Self::answer), whenever they have decided. It
/// is over with [`HandshakeEvent::Done`] or the first error.
#[derive(Debug)]
pub struct Handshake {
    role: Role,
    phase: HandshakePhase,
    /// Lanes of our Hello; once the peer's is known, only those in both
    lanes: Vec<LaneKind>,
    /// The lane over the socket that carries the handshake, which is always possible
    socket_lane: LaneKind,
    /// Lane selected, from [`HandshakePhase::Answer`] on, and in the end the lane agreed on
    selected: Option<LaneKind>,
    /// Our Hello, until the connector has shown that it speaks our protocol, or has our secret
    withheld: Option<Vec<u8>>,
    /// Where this side has a secret
    proofs: Option<Proofs>,
    /// Received part of the message that is awaited; never longer than that message
    received: Vec<u8>,
    transmits: VecDeque<Vec<u8>>,
    events: VecDeque<HandshakeEvent>,
    started: Instant,
    deadline: Option<Instant>,
}

impl Handshake {
    /// Starts: the peer's Hello is awaited, and the connector's is ready to transmit
    ///
    /// # Panics
    ///
    /// If a field of `local` is longer than [`Hello`] allows.
    #[must_use]
    pub fn new(role: Role, local: Hello, now: Instant, timeout: Duration) -> Self {
        Self::with_secret(role, local, None, now, timeout)
    }

    /// As [`new`](Self::new), with a secret that the peer must have too
    ///
    /// # Panics
    ///
    /// As `new`.
    #[must_use]
    pub fn with_secret(
        role: Role,
        local: Hello,
        secret: Option<Secret>,
        now: Instant,
        timeout: Duration,
    ) -> Self {
        let mut proofs = secret.map(Proofs::new);
        let mut hello = match proofs {
            Some(_) => local.encode_with_room_for_proof(),
            None => local.encode(),
        };
        if let (Role::Connector, Some(proofs)) = (role, &mut proofs) {
            proofs.sign(role, HandshakePhase::Hello, &mut hello);
        }
        let (transmits, withheld) = match role {
            Role::Connector => (VecDeque::from([hello]), None),
            Role::Acceptor => (VecDeque::new(), Some(hello)),
        };
        Self {
            role,
            phase: HandshakePhase::Hello,
            transmits,
            withheld,
            proofs,
            lanes: local.lanes,
            socket_lane: LaneKind::Tcp,
            selected: None,
            received: Vec::new(),
            events: VecDeque::new(),
            started: now,
            deadline: now.checked_add(timeout),
        }
    }

    /// Says that the handshake travels on an encrypted socket: no lane in clear text may be selected
    #[must_use]
    pub fn encrypted(mut self) -> Self {
        self.socket_lane = LaneKind::Tls;
        self.lanes.retain(|lane| !lane.is_clear_text());
        self
    }

    /// Handles bytes from the peer, returning how many belong to the handshake
    ///
    /// Bytes left over once the handshake is done on the socket itself are frames. While it is
    /// this side's turn to decide, and once another lane is agreed on, nothing may come.
    ///
    /// # Errors
    ///
    /// [`HandshakeError`]; the handshake has failed, and is of no further use but that
    /// [`poll_transmit`](Self::poll_transmit) may have something for the peer.
    pub fn handle_bytes(&mut self, now: Instant, bytes: &[u8]) -> Result<usize, HandshakeError> {
        self.handle_timeout(now)?;
        let mut used = 0;
        while self.is_awaiting() {
            let rest = &bytes[used..];
            let message_bytes = self.check_received()?;
            let count = rest.len().min(message_bytes - self.received.len());
            self.received.extend_from_slice(&rest[..count]);
            used += count;
            // Again with the rest: the first bytes of a message say how long it is.
            let message_bytes = self.check_received()?;
            if self.received.len() < message_bytes {
                if used == bytes.len() {
                    break;
                }
                continue;
            }
            let message = std::mem::take(&mut self.received);
            self.handle_message(&message)?;
        }
        let carries_frames =
            self.phase == HandshakePhase::Done && self.selected == Some(self.socket_lane);
        match bytes.get(used) {
            Some(&found) if !carries_frames => Err(HandshakeError::OutOfTurn {
                found,
                phase: self.phase,
            }),
            _ => Ok(used),
        }
    }

    /// Handles the passing of time; harmless when called early
    ///
    /// # Errors
    ///
    /// [`HandshakeError::TimedOut`] once the deadline has passed.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), HandshakeError> {
        if self.poll_timeout().is_some_and(|deadline| now >= deadline) {
            return Err(HandshakeError::TimedOut {
                waited: now.saturating_duration_since(self.started),
                phase: self.phase,
            });
        }
        Ok(())
    }

    /// Returns the meaning of the peer's hang-up at this point, if there is a reason to name
    ///
    /// Otherwise the end of the stream says all there is to say.
    #[must_use]
    pub fn handle_end(&self) -> Option<HandshakeError> {
        let is_unheard = self.role == Role::Connector
            && self.phase == HandshakePhase::Hello
            && self.received.is_empty();
        is_unheard.then_some(HandshakeError::ClosedUnheard {
            has_secret: self.proofs.is_some(),
        })
    }

    /// Selects the lane, as the connector, after [`HandshakeEvent::PeerHello`]
    ///
    /// The reason is cut at 512 bytes.
    ///
    /// # Panics
    ///
    /// If it is not the connector's turn, or the lane is not in both Hellos and not that over the
    /// socket.
    pub fn select(&mut self, lane: LaneKind, reason: &str) {
        assert!(
            self.role == Role::Connector && self.phase == HandshakePhase::Select,
            "select is for the connector after the peer's hello"
        );
        assert!(self.allows(lane), "lane {lane} is not in both hellos");
        self.say_choice(encode_choice(SELECT, lane, reason));
        self.selected = Some(lane);
        self.phase = HandshakePhase::Answer;
    }

    /// Answers the selection, as the acceptor, after [`HandshakeEvent::LaneSelected`]
    ///
    /// `lane` is the one selected, or that over the socket. The reason is cut at 512 bytes. The
    /// handshake is done.
    ///
    /// # Panics
    ///
    /// If it is not the acceptor's turn, or the lane is another one.
    pub fn answer(&mut self, lane: LaneKind, reason: &str) {
        assert!(
            self.role == Role::Acceptor && self.phase == HandshakePhase::Answer,
            "answer is for the acceptor after a selection"
        );
        assert!(
            lane == self.socket_lane || self.selected == Some(lane),
            "lane {lane} was not selected"
        );
        self.say_choice(encode_choice(ANSWER, lane, reason));
        self.finish(lane, reason.to_owned());
    }

    /// The next bytes to write
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        self.transmits.pop_front()
    }

    /// Returns the next event
    pub fn poll_event(&mut self) -> Option<HandshakeEvent> {
        self.events.pop_front()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout); `None` once done
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadline.filter(|_| self.phase != HandshakePhase::Done)
    }

    /// Returns whether the next move is the peer's
    fn is_awaiting(&self) -> bool {
        match self.phase {
            HandshakePhase::Hello => true,
            HandshakePhase::Select => self.role == Role::Acceptor,
            HandshakePhase::Answer => self.role == Role::Connector,
            HandshakePhase::Done => false,
        }
    }

    /// Checks what has come of a message, returning how long the message is at least
    ///
    /// Exactly, once as many bytes have come.
    fn check_received(&mut self) -> Result<usize, HandshakeError> {
        match self.phase {
            HandshakePhase::Hello => {
                let outcome = hello_bytes(&self.received);
                // A peer of another version gets our Hello; one of another protocol gets nothing, nor
                // does one that has not proved a secret that we have.
                let is_ours = self.proofs.is_none()
                    && self.received.len() >= PREFIX_BYTES
                    && !matches!(
                        outcome,
                        Err(HandshakeError::NotBackhaul { .. }
                            | HandshakeError::SpeaksDask
                            | HandshakeError::SpeaksTls)
                    );
                if is_ours {
                    self.transmits.extend(self.withheld.take());
                }
                outcome
            }
            HandshakePhase::Select => choice_bytes(&self.received, SELECT, self.proof_bytes()),
            HandshakePhase::Answer | HandshakePhase::Done => {
                choice_bytes(&self.received, ANSWER, self.proof_bytes())
            }
        }
    }

    /// Bytes of the proof behind a selection or answer
    fn proof_bytes(&self) -> usize {
        self.proofs.as_ref().map_or(0, |_| PROOF_BYTES)
    }

    fn say_choice(&mut self, mut message: Vec<u8>) {
        if let Some(proofs) = &mut self.proofs {
            message.extend_from_slice(&[0; PROOF_BYTES]);
            proofs.sign(self.role, self.phase, &mut message);
        }
        self.transmits.push_back(message);
    }

    /// Checks that a whole message of the peer proves the secret, where there is one
    fn check_proof(&mut self, message: &[u8]) -> Result<(), HandshakeError> {
        let peer = match self.role {
            Role::Connector => Role::Acceptor,
            Role::Acceptor => Role::Connector,
        };
        let proofs = self.proofs.as_mut();
        proofs.map_or(Ok(()), |proofs| proofs.check(peer, self.phase, message))
    }

    /// Says the Hello that was withheld, to a peer that has proved the secret
    fn say_hello(&mut self) {
        if let (Some(mut hello), Some(proofs)) = (self.withheld.take(), &mut self.proofs) {
            proofs.sign(self.role, self.phase, &mut hello);
            self.transmits.push_back(hello);
        }
    }

    fn handle_message(&mut self, message: &[u8]) -> Result<(), HandshakeError> {
        if self.phase == HandshakePhase::Hello {
            let (hello, is_proved) = Hello::decode_proved(&message[PREFIX_BYTES..])?;
            match (&self.proofs, is_proved) {
                (None, true) => return Err(HandshakeError::UnexpectedProof),
                (Some(_), false) => return Err(HandshakeError::NoProof),
                (None, false) | (Some(_), true) => self.check_proof(message)?,
            }
            self.say_hello();
            for (limit, value) in [
                ("credit_messages", hello.credit_messages),
                ("data_chunk_bytes", hello.data_chunk_bytes),
            ] {
                if value == 0 {
                    return Err(HandshakeError::ZeroLimit { limit });
                }
            }
            self.lanes.retain(|lane| hello.lanes.contains(lane));
            self.phase = HandshakePhase::Select;
            self.events
                .push_back(HandshakeEvent::PeerHello(Box::new(hello)));
            return Ok(());
        }
        self.check_proof(message)?;
        let message = &message[..message.len() - self.proof_bytes()];
        let (lane, reason) = decode_choice(message)?;
        if self.role == Role::Connector {
            let selected = self.selected.expect("set before the answer is awaited");
            if lane != selected && lane != self.socket_lane {
                return Err(HandshakeError::AnswerDisagrees {
                    selected,
                    answered: lane,
                });
            }
            self.finish(lane, reason);
            return Ok(());
        }
        if !self.allows(lane) {
            return Err(HandshakeError::LaneNotOffered { lane });
        }
        self.selected = Some(lane);
        self.phase = HandshakePhase::Answer;
        self.events
            .push_back(HandshakeEvent::LaneSelected { lane, reason });
        Ok(())
    }

    fn finish(&mut self, lane: LaneKind, reason: String) {
        self.phase = HandshakePhase::Done;
        self.selected = Some(lane);
        self.events.push_back(HandshakeEvent::Done { lane, reason });
    }

    fn allows(&self, lane: LaneKind) -> bool {
        // The lane over the first socket works whether or not they offer it.
        lane == self.socket_lane || self.lanes.contains(&lane)
    }
}

/// Event of a handshake
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum HandshakeEvent {
    /// The peer said who it is; the connector now calls [`Handshake::select`]
    PeerHello(Box<Hello>),
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod secret_tests;
