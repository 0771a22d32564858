//! Errors of the settings of TLS, and errors with a peer.

use std::io;

use rustls::{AlertDescription, CertificateError};
use thiserror::Error;

use super::TlsVersion;
use super::ciphers;

/// Settings of TLS that cannot be used
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read
    #[error("cannot read {what} from {origin}: {detail}")]
    Unreadable {
        /// Name of what was to be read
        what: &'static str,
        /// The file
        origin: String,
        /// Error that the system reported
        detail: String,
    },
    /// The text that was read cannot be used
    #[error("cannot use {what} in {origin}: {detail}")]
    Unusable {
        /// Name of what was read
        what: &'static str,
        /// The file, or that it was given as text
        origin: String,
        /// Fault of the text
        detail: String,
    },
    /// The key is another certificate's
    #[error("the private key in {key} is not that of the certificate in {certificate}")]
    KeyMismatch {
        /// Where the certificate is from
        certificate: String,
        /// Where the key is from
        key: String,
    },
    /// A listener has to show a certificate
    #[error("a listener needs a certificate and its private key, and none were given")]
    NoCertificate,
    /// A cipher that is not known here
    #[error(
        "cipher {name:?} cannot be used: expected some of {}, separated by colons",
        ciphers::names()
    )]
    Cipher {
        /// Its name
        name: String,
    },
    /// The oldest version allowed is newer than the newest
    #[error("no version of TLS is at least {min} and at most {max}")]
    Versions {
        /// Oldest version allowed
        min: TlsVersion,
        /// Newest version allowed
        max: TlsVersion,
    },
    /// A text that names no version
    #[error("{text:?} is no version of TLS that can be spoken: expected 1.2 or 1.3")]
    UnknownVersion {
        /// The text
        text: String,
    },
}

/// An encrypted connection that was not made, or that broke
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum TlsFailure {
    /// The peer speaks something else
    #[error("TLS is asked for here, and the peer began with {found}")]
    PeerIsPlain {
        /// Description of its first bytes
        found: String,
    },
    /// The peer closed before an agreement, as one does that does not speak TLS
    #[error("the peer closed the connection before TLS was agreed on; it may not speak TLS")]
    Ended,
    /// The peer's certificate proves nothing to this side
    #[error("the certificate of the peer is refused: {detail}")]
    Certificate {
        /// Why
        detail: String,
    },
    /// The peer does not accept this side: its certificate, its versions or its ciphers
    #[error("the peer refused this side: {detail}")]
    Refused {
        /// Text of the alert
        detail: String,
    },
    /// The bytes that came cannot be decrypted, or break the protocol
    #[error("encryption failed: {detail}")]
    Broken {
        /// Description of what came
        detail: String,
    },
}

impl TlsFailure {
    /// Returns the TLS failure inside an error of a stream, if there is one
    pub(crate) fn of_io(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

impl From<rustls::Error> for TlsFailure {
    fn from(error: rustls::Error) -> Self {
        match error {
            rustls::Error::NoCertificatesPresented => Self::Certificate {
                detail: "it has shown none".to_owned(),
            },
            rustls::Error::InvalidCertificate(error) => Self::Certificate {
                detail: certificate_detail(&error),
            },
            rustls::Error::AlertReceived(alert) => Self::Refused {
                detail: alert_detail(alert),
            },
            other => Self::Broken {
                detail: other.to_string(),
            },
        }
    }
}

impl From<TlsFailure> for io::Error {
    fn from(failure: TlsFailure) -> Self {
        Self::new(io::ErrorKind::InvalidData, failure)
    }
}

fn certificate_detail(error: &CertificateError) -> String {
    match error {
        CertificateError::UnknownIssuer => {
            "no certificate authority that this side trusts has signed it".to_owned()
        }
        CertificateError::Other(other) => other.to_string(),
        other => other.to_string(),
    }
}

/// Returns the meaning of an alert (RFC 8446, section 6.2), where that helps to find the cause
fn alert_detail(alert: AlertDescription) -> String {
    let meaning = match alert {
        AlertDescription::CertificateRequired => "it asks for a certificate, and got none",
        AlertDescription::UnknownCA => {
            "no certificate authority that it trusts has signed our certificate"
        }
        AlertDescription::CertificateExpired => {
            "our certificate has expired, or is not yet valid there"
        }
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::CertificateRevoked => "it does not accept our certificate",
        AlertDescription::ProtocolVersion => "no version of TLS is allowed by both sides",
        AlertDescription::HandshakeFailure => "no cipher is allowed by both sides",
        _ => return format!("alert {alert:?}"),
    };
    format!("{meaning} (alert {alert:?})")
}
