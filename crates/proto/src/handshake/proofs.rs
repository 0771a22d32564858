//! The proofs of one handshake: each message of it proves the secret, over all that was said before.

use super::Role;
use super::error::{HandshakeError, HandshakePhase};
use crate::secret::{PROOF_BYTES, Proof, Proves, Secret};

/// Secret of both sides, and the messages that their proofs cover
///
/// A message ends with its proof, which covers every byte before it: of both Hellos, and of what
/// followed. So who repeats a Hello that it has heard gets no further than that, and a lane that was
/// selected or answered cannot be changed on the way.
#[derive(Debug)]
pub(super) struct Proofs {
    secret: Secret,
    /// All messages so far, with their proofs; never longer than two Hellos and two choices
    said: Vec<u8>,
}

impl Proofs {
    pub(super) fn new(secret: Secret) -> Self {
        Self {
            secret,
            said: Vec::new(),
        }
    }

    /// Puts the proof into the last bytes of a message of this side, which is the next one said
    pub(super) fn sign(&mut self, role: Role, phase: HandshakePhase, message: &mut [u8]) {
        let (before, proof) = split(message.len());
        let made = self
            .secret
            .prove(proves(role, phase), &[&self.said, &message[before]]);
        message[proof].copy_from_slice(&made);
        self.said.extend_from_slice(message);
    }

    /// Checks a message of the peer, which has that role
    ///
    /// # Errors
    ///
    /// [`HandshakeError::WrongProof`].
    pub(super) fn check(
        &mut self,
        role: Role,
        phase: HandshakePhase,
        message: &[u8],
    ) -> Result<(), HandshakeError> {
        let (before, proof) = split(message.len());
        let said = [&self.said[..], &message[before]];
        let proof = Proof::try_from(&message[proof]).expect("split at its size");
        if !self.secret.is_proved(proves(role, phase), &said, &proof) {
            return Err(HandshakeError::WrongProof { phase });
        }
        self.said.extend_from_slice(message);
        Ok(())
    }
}

/// Returns the claim that a message of a side in a phase proves
fn proves(role: Role, phase: HandshakePhase) -> Proves {
    match (role, phase) {
        (Role::Connector, HandshakePhase::Hello) => Proves::ConnectorHello,
        (Role::Acceptor, HandshakePhase::Hello) => Proves::AcceptorHello,
        (Role::Connector, _) => Proves::Select,
        (Role::Acceptor, _) => Proves::Answer,
    }
}

/// Where a message ends and its proof begins
fn split(message_bytes: usize) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
    let at = message_bytes - PROOF_BYTES;
    (0..at, at..message_bytes)
}
