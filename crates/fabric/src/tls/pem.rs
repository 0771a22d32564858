//! Certificates and keys as users have them: files, or text in memory.

use std::fmt;
use std::path::PathBuf;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::TlsError;

/// Certificates or a key in the text form of RFC 7468
#[derive(Clone, Eq, PartialEq)]
pub enum Pem {
    /// A file that has it
    File(PathBuf),
    /// The text itself
    Text(String),
}

impl Pem {
    /// The certificates in it, one at least
    pub(super) fn certificates(
        &self,
        what: &'static str,
    ) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let text = self.read(what)?;
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
        let found = found.map_err(|error| self.unusable(what, pem_detail(&error)))?;
        if found.is_empty() {
            let detail = "there is no -----BEGIN CERTIFICATE----- in it".to_owned();
            return Err(self.unusable(what, detail));
        }
        Ok(found)
    }

    /// The private key in it
    pub(super) fn private_key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        let text = self.read(KEY)?;
        PrivateKeyDer::from_pem_slice(&text).map_err(|error| {
            let has = |part: &[u8]| text.windows(part.len()).any(|window| window == part);
            let detail = if has(b"ENCRYPTED") {
                "it is encrypted, and no password can be given: write it without one, with \
                 `openssl pkey`"
                    .to_owned()
            } else if matches!(error, pem::Error::NoItemsFound) {
                "there is no private key in it".to_owned()
            } else {
                pem_detail(&error)
            };
            self.unusable(KEY, detail)
        })
    }

    /// Where it is from, for an error
    pub(super) fn origin(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Text(_) => "the text given".to_owned(),
        }
    }

    /// The error that it cannot be used
    pub(super) fn unusable(&self, what: &'static str, detail: String) -> TlsError {
        TlsError::Unusable {
            what,
            origin: self.origin(),
            detail,
        }
    }

    fn read(&self, what: &'static str) -> Result<Vec<u8>, TlsError> {
        match self {
            Self::Text(text) => Ok(text.clone().into_bytes()),
            Self::File(path) => std::fs::read(path).map_err(|error| TlsError::Unreadable {
                what,
                origin: self.origin(),
                detail: error.to_string(),
            }),
        }
    }
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The text may be a key.
        f.write_str(&self.origin())
    }
}

/// Name of a private key in errors
pub(super) const KEY: &str = "the private key";

/// Describes the fault of a text, without a word of the text: it may be a key
fn pem_detail(error: &pem::Error) -> String {
    let detail = match error {
        pem::Error::MissingSectionEnd { .. } | pem::Error::IllegalSectionStart { .. } => {
            "each -----BEGIN …----- and -----END …----- has to have its partner, and a line for \
             itself"
        }
        pem::Error::Base64Decode(_) => "what is between the lines of dashes is not base64",
        pem::Error::SectionTooLarge => "it is too long",
        _ => "it has no part that is known here",
    };
    format!("it is no PEM: {detail}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
    use super::*;

    #[test]
    fn what_is_wrong_with_a_key_is_said_without_the_key() {
        let key = "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg";
        for (text, expected) in [
            (
                format!("-----BEGIN PRIVATE KEY----- {key} -----END PRIVATE KEY-----\n"),
                "a line for itself",
            ),
            (
                format!("-----BEGIN PRIVATE KEY----- {key}\n-----END PRIVATE KEY-----\n"),
                "a line for itself",
            ),
            (
                format!("-----BEGIN PRIVATE KEY-----\n{key}\n"),
                "a line for itself",
            ),
            (
                format!("-----BEGIN PRIVATE KEY-----\n{key}?\n-----END PRIVATE KEY-----\n"),
                "not base64",
            ),
            (format!("{key}\n"), "no private key"),
        ] {
            let message = Pem::Text(text).private_key().unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
            // In neither of the forms in which a library may show a line.
            assert!(!message.contains("MIGH"), "{message}");
            assert!(!message.contains("77, 73, 71, 72"), "{message}");
        }
    }
}
