//! Encryption: the identity of this side, the authorities it believes, and a session with one peer.
//!
//! Both sides show a certificate, as in Dask. The protocol and all of its cryptography are those of
//! `rustls` with `ring`; here is what a user sets, and bytes that go in and out. The session begins
//! right after the TCP connection, before our own handshake, which travels inside it.

mod buffer;
mod buffered;
mod certificate;
mod ciphers;
mod error;
mod fuzzing;
mod helpers;
mod outlet;
mod pem;
mod records;
mod session;
mod sharing;
mod trust;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::server::NoServerSessionStorage;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, ServerConfig, SupportedProtocolVersion};

use self::certificate::Certificate;
use self::trust::Trust;

pub use self::error::{TlsError, TlsFailure};
pub use self::fuzzing::{TlsBeliefs, TlsSession, tls_with_short_keys};
pub use self::helpers::tls_buffers_helped;
pub use self::pem::Pem;
pub(crate) use self::session::{Arrived, Session};
pub use self::sharing::TlsHelpers;

/// Certificates that a side needs to encrypt: authorities that it believes, and its own
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TlsOptions {
    /// Certificates of the authorities that have signed those of peers
    pub authorities: Pem,
    /// The certificate of this side, with the chain behind it if there is one. Backhaul's peers ask
    /// for one, and so only tests do without.
    pub certificate: Option<Pem>,
    /// The private key of the certificate; by default it is with the certificate
    pub key: Option<Pem>,
    /// Oldest version that may be spoken
    pub min_version: TlsVersion,
    /// Newest version that may be spoken
    pub max_version: TlsVersion,
    /// Names of ciphers, as OpenSSL or IANA has them, with colons between. Of a version of which none
    /// is named, TLS 1.3 keeps all of its own. Without such a list all are allowed.
    pub ciphers: Option<String>,
}

/// A version of TLS
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[non_exhaustive]
pub enum TlsVersion {
    /// TLS 1.2
    V1_2,
    /// TLS 1.3
    V1_3,
}

/// Settings of TLS that have been read and checked, for listeners and connections
///
/// Cheap to clone. Files are read once: when they change, make another one.
#[derive(Clone)]
pub struct Tls {
    client: Arc<ClientConfig>,
    server: Option<Arc<ServerConfig>>,
}

/// Facts about the encryption of a connection
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct TlsInfo {
    /// Version spoken
    pub version: TlsVersion,
    /// Cipher agreed on, by the name that OpenSSL has for it
    pub cipher: &'static str,
    /// Bits of the cipher's key
    pub cipher_bits: u32,
    /// Certificate of the peer, in DER
    pub peer_certificate: Option<Arc<[u8]>>,
}

impl TlsOptions {
    /// Believes what the authorities have signed, and shows no certificate
    #[must_use]
    pub fn new(authorities: Pem) -> Self {
        Self {
            authorities,
            certificate: None,
            key: None,
            min_version: TlsVersion::V1_2,
            max_version: TlsVersion::V1_3,
            ciphers: None,
        }
    }
}

impl Tls {
    /// Reads and checks what is named
    ///
    /// # Errors
    ///
    /// [`TlsError`] with the file and what is wrong with it, or the value that cannot be used.
    pub fn new(options: &TlsOptions) -> Result<Self, TlsError> {
        Self::with_provider(options, ring::default_provider())
    }

    fn with_provider(options: &TlsOptions, mut provider: CryptoProvider) -> Result<Self, TlsError> {
        let versions = versions(options.min_version, options.max_version)?;
        if let Some(list) = &options.ciphers {
            provider.cipher_suites = ciphers::chosen(list, &provider.cipher_suites)?;
        }
        let provider = Arc::new(provider);
        let unusable = |error: rustls::Error| TlsError::Unusable {
            what: "the ciphers",
            origin: options.ciphers.clone().unwrap_or_default(),
            detail: error.to_string(),
        };

        let authorities = options.authorities.certificates(AUTHORITIES)?;
        let trust = Trust::new(authorities, &provider)
            .map_err(|detail| options.authorities.unusable(AUTHORITIES, detail))?;
        let identity = match &options.certificate {
            Some(certificate) => {
                let key = options.key.as_ref().unwrap_or(certificate);
                Some(Arc::new(SingleCertAndKey::from(identity(
                    certificate,
                    key,
                    &provider,
                )?)))
            }
            None => None,
        };

        let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&versions)
            .map_err(unusable)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::clone(&trust) as Arc<_>);
        let mut client = match &identity {
            Some(identity) => client.with_client_cert_resolver(Arc::clone(identity) as Arc<_>),
            None => client.with_no_client_auth(),
        };
        // A session is not resumed: each proves both sides anew, and no ticket stands for that.
        client.resumption = rustls::client::Resumption::disabled();
        client.enable_sni = false;

        let server = match identity {
            Some(identity) => {
                let mut server = ServerConfig::builder_with_provider(provider)
                    .with_protocol_versions(&versions)
                    .map_err(unusable)?
                    .with_client_cert_verifier(trust)
                    .with_cert_resolver(identity);
                server.session_storage = Arc::new(NoServerSessionStorage {});
                server.send_tls13_tickets = 0;
                Some(Arc::new(server))
            }
            None => None,
        };
        Ok(Self {
            client: Arc::new(client),
            server,
        })
    }

    /// Checks that it has everything that a listener needs
    pub(crate) fn check_listener(&self) -> Result<(), TlsError> {
        match self.server {
            Some(_) => Ok(()),
            None => Err(TlsError::NoCertificate),
        }
    }
}

/// The certificate of this side with its key, checked as far as peers will check it
fn identity(
    certificate: &Pem,
    key: &Pem,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, TlsError> {
    let chain = certificate.certificates(CERTIFICATE)?;
    let own = chain.first().and_then(|first| Certificate::read(first));
    let own = own.ok_or_else(|| {
        certificate.unusable(CERTIFICATE, "it is no X.509 certificate".to_owned())
    })?;
    // Every peer would refuse it.
    own.check_time(certificate::now())
        .map_err(|detail| certificate.unusable(CERTIFICATE, detail))?;
    let signing = provider
        .key_provider
        .load_private_key(key.private_key()?)
        .map_err(|error| key.unusable(pem::KEY, error.to_string()))?;
    if let Some(public) = signing.public_key()
        && &*public != own.public_key_info
    {
        return Err(TlsError::KeyMismatch {
            certificate: certificate.origin(),
            key: key.origin(),
        });
    }
    Ok(CertifiedKey::new(chain, signing))
}

fn versions(
    min: TlsVersion,
    max: TlsVersion,
) -> Result<Vec<&'static SupportedProtocolVersion>, TlsError> {
    let known = [
        (TlsVersion::V1_3, &rustls::version::TLS13),
        (TlsVersion::V1_2, &rustls::version::TLS12),
    ];
    let allowed: Vec<_> = known
        .into_iter()
        .filter(|(version, _)| (min..=max).contains(version))
        .map(|(_, version)| version)
        .collect();
    if allowed.is_empty() {
        return Err(TlsError::Versions { min, max });
    }
    Ok(allowed)
}

impl TlsVersion {
    /// The name that Python's `ssl` has for it
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::V1_2 => "TLSv1.2",
            Self::V1_3 => "TLSv1.3",
        }
    }
}

impl fmt::Display for TlsVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for TlsVersion {
    type Err = TlsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "1.2" | "TLSv1.2" => Ok(Self::V1_2),
            "1.3" | "TLSv1.3" => Ok(Self::V1_3),
            _ => Err(TlsError::UnknownVersion {
                text: text.to_owned(),
            }),
        }
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Nothing of the key.
        f.debug_struct("Tls")
            .field("has_certificate", &self.server.is_some())
            .finish_non_exhaustive()
    }
}

/// Name of the certificates of authorities in errors
const AUTHORITIES: &str = "the certificates of the authorities";

/// Name of the certificate of this side in errors
const CERTIFICATE: &str = "the certificate";
