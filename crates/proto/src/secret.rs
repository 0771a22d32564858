//! A secret that peers share, and how each proves to the other that it has it.
//!
//! A *proof* is a message authentication code over all that both sides have said so far: HMAC-SHA256
//! (RFC 2104, FIPS 180-4). Each message of a handshake has a key of its own, derived from the secret
//! by the same function, so that no proof can stand for another, nor be sent back to who made it. The
//! secret itself is kept no longer than it takes to derive them, and is never sent. No I/O, no clock.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use thiserror::Error;

/// Shortest secret, in bytes: who hears a handshake may try guesses at leisure
pub const SECRET_BYTES_MIN: usize = 16;

/// Longest secret, in bytes: longer ones are files that were meant for something else
pub const SECRET_BYTES_MAX: usize = 1024;

/// Bytes of a proof
pub(crate) const PROOF_BYTES: usize = 32;

/// A proof that a side has the secret
pub(crate) type Proof = [u8; PROOF_BYTES];

/// A secret that all peers of a cluster share
///
/// Its `Debug` shows nothing of it.
#[derive(Clone)]
pub struct Secret {
    /// In the order of [`Proves`]
    keys: [[u8; PROOF_BYTES]; LABELS.len()],
}

impl Secret {
    /// Takes a secret: random bytes, or a text of them
    ///
    /// # Errors
    ///
    /// [`SecretError`] if it is too short to protect anything, or too long for a secret.
    pub fn new(secret: &[u8]) -> Result<Self, SecretError> {
        if !(SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&secret.len()) {
            return Err(SecretError {
                bytes: secret.len(),
            });
        }
        let keys = LABELS.map(|label| code(secret, &[label.as_bytes()]));
        Ok(Self { keys })
    }

    /// Proves that this side has the secret, over all that has been said, in order
    pub(crate) fn prove(&self, what: Proves, said: &[&[u8]]) -> Proof {
        code(&self.keys[what as usize], said)
    }

    /// Returns whether a proof is the one expected, in a time that does not depend on either
    pub(crate) fn is_proved(&self, what: Proves, said: &[&[u8]], proof: &Proof) -> bool {
        mac(&self.keys[what as usize], said)
            .verify_slice(proof)
            .is_ok()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Which message a proof belongs to
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Proves {
    ConnectorHello,
    AcceptorHello,
    Select,
    Answer,
}

/// Labels from which the keys are derived beside the secret, in the order of [`Proves`]
const LABELS: [&str; 4] = [
    "backhaul secret 1: connector hello",
    "backhaul secret 1: acceptor hello",
    "backhaul secret 1: select",
    "backhaul secret 1: answer",
];

fn code(key: &[u8], parts: &[&[u8]]) -> Proof {
    mac(key, parts).finalize().into_bytes().into()
}

fn mac(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any length will do");
    for part in parts {
        mac.update(part);
    }
    mac
}

/// A secret of a size that cannot be right; the secret is not in the message
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error(
    "the secret has {bytes} bytes; it takes {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX}, drawn at random"
)]
pub struct SecretError {
    /// Its size, in bytes
    pub bytes: usize,
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_rfc_4231() {
        // Its test cases 1 and 2.
        for (key, text, expected) in [
            (
                &[0x0b; 20][..],
                &b"Hi There"[..],
                "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
            ),
            (
                b"Jefe",
                b"what do ya want for nothing?",
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
            ),
        ] {
            let found: String = code(key, &[text])
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_proof_stands_for_one_message_of_one_secret() {
        let secret = Secret::new(&[7; 16]).unwrap();
        let proof = secret.prove(Proves::ConnectorHello, &[b"hel", b"lo"]);
        assert!(secret.is_proved(Proves::ConnectorHello, &[b"hello"], &proof));
        assert!(!secret.is_proved(Proves::AcceptorHello, &[b"hello"], &proof));
        assert!(!secret.is_proved(Proves::ConnectorHello, &[b"hellp"], &proof));
        let other = Secret::new(&[8; 16]).unwrap();
        assert!(!other.is_proved(Proves::ConnectorHello, &[b"hello"], &proof));
    }

    #[test]
    fn a_secret_is_neither_short_nor_shown() {
        for bytes in [0, SECRET_BYTES_MIN - 1, SECRET_BYTES_MAX + 1] {
            assert_eq!(
                Secret::new(&vec![0x2a; bytes]).unwrap_err(),
                SecretError { bytes }
            );
        }
        let secret = Secret::new(b"not to be shown!").unwrap();
        assert_eq!(format!("{secret:?}"), "Secret(..)");
    }
}
