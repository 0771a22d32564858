//! Trust of this side in peers whose certificate one of its authorities has signed, whatever name
//! the certificate is for.
//!
//! As Dask has it (`check_hostname` is off, and both sides must show a certificate): a cluster has an
//! authority of its own, and its hosts are known by addresses. Three kinds of certificates prove a
//! peer:
//!
//! - one with a chain to an authority, as `webpki` checks it;
//! - one that is itself among the authorities, which OpenSSL allows too: a self-signed certificate that
//!   all share. A peer that shows it proves to have its key;
//! - one of X.509 version 1, which `webpki` does not read, if an authority itself has signed it.
//!
//! In the last two cases nothing but signature and time is looked at: there are no further fields.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, PeerMisbehaved,
    RootCertStore, SignatureScheme,
};

use super::certificate::Certificate;

/// Checks of a peer's certificate, as that of a client or of a server
#[derive(Debug)]
pub(super) struct Trust {
    authorities: Vec<CertificateDer<'static>>,
    roots: Arc<RootCertStore>,
    of_clients: Arc<dyn ClientCertVerifier>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Trust {
    /// Believes what these authorities have signed
    ///
    /// # Errors
    ///
    /// Why one of them cannot be used.
    pub(super) fn new(
        authorities: Vec<CertificateDer<'static>>,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Arc<Self>, String> {
        let mut roots = RootCertStore::empty();
        for authority in &authorities {
            roots
                .add(authority.clone())
                .map_err(|error| error.to_string())?;
        }
        let roots = Arc::new(roots);
        let of_clients =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(provider))
                .build()
                .map_err(|error| error.to_string())?;
        Ok(Arc::new(Self {
            authorities,
            roots,
            of_clients,
            algorithms: provider.signature_verification_algorithms,
        }))
    }

    /// Checks a certificate that `webpki` has refused with `error`
    fn check_otherwise(
        &self,
        shown: &CertificateDer<'_>,
        now: UnixTime,
        error: Error,
    ) -> Result<(), Error> {
        let Some(certificate) = Certificate::read(shown) else {
            return Err(error);
        };
        let is_authority = self.authorities.iter().any(|one| one == shown);
        let is_trusted = is_authority
            || (certificate.is_version_1
                && certificate.is_signed_by(&self.roots.roots, self.algorithms.all));
        if is_trusted {
            return certificate.check_time(now).map_err(refused);
        }
        // In our words where it says more.
        match certificate.check_time(now) {
            Err(why) => Err(refused(why)),
            Ok(()) if certificate.is_version_1 => Err(CertificateError::UnknownIssuer.into()),
            Ok(()) => Err(error),
        }
    }

    /// Checks the signature of a handshake by the key of a certificate that `webpki` does not read
    fn check_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
        is_tls13: bool,
    ) -> Result<HandshakeSignatureValid, Error> {
        if !read_by_webpki(shown)
            && let Some((_, key)) = Certificate::read(shown).and_then(|read| read.public_key())
        {
            let mut mapping = self.algorithms.mapping.iter();
            let known = mapping.find(|(scheme, _)| *scheme == dss.scheme);
            let algorithms = known.map_or(&[][..], |(_, algorithms)| *algorithms);
            // As `rustls` has it for other certificates: RFC 8446, section 4.2.3, allows fewer.
            let algorithms = match is_tls13 {
                true if is_of_tls13(dss.scheme) => algorithms.get(..1).unwrap_or_default(),
                true => &[],
                false => algorithms,
            };
            let is_valid = algorithms.iter().any(|algorithm| {
                algorithm
                    .verify_signature(key, message, dss.signature())
                    .is_ok()
            });
            return match is_valid {
                true => Ok(HandshakeSignatureValid::assertion()),
                false if algorithms.is_empty() => {
                    Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into())
                }
                false => Err(CertificateError::BadSignature.into()),
            };
        }
        match is_tls13 {
            true => rustls::crypto::verify_tls13_signature(message, shown, dss, &self.algorithms),
            false => rustls::crypto::verify_tls12_signature(message, shown, dss, &self.algorithms),
        }
    }
}

impl ServerCertVerifier for Trust {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        ParsedCertificate::try_from(end_entity)
            .and_then(|parsed| {
                let (roots, all) = (&self.roots, self.algorithms.all);
                verify_server_cert_signed_by_trust_anchor(&parsed, roots, intermediates, now, all)
            })
            .or_else(|error| self.check_otherwise(end_entity, now, error))
            .map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, cert, dss, false)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, cert, dss, true)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for Trust {
    /// Returns none, because untrusted peers need not learn which authorities this side believes
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.of_clients
            .verify_client_cert(end_entity, intermediates, now)
            .or_else(|error| {
                self.check_otherwise(end_entity, now, error)
                    .map(|()| ClientCertVerified::assertion())
            })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, cert, dss, false)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, cert, dss, true)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

fn read_by_webpki(certificate: &CertificateDer<'_>) -> bool {
    ParsedCertificate::try_from(certificate).is_ok()
}

fn is_of_tls13(scheme: SignatureScheme) -> bool {
    matches!(
        scheme,
        SignatureScheme::ECDSA_NISTP256_SHA256
            | SignatureScheme::ECDSA_NISTP384_SHA384
            | SignatureScheme::ECDSA_NISTP521_SHA512
            | SignatureScheme::RSA_PSS_SHA256
            | SignatureScheme::RSA_PSS_SHA384
            | SignatureScheme::RSA_PSS_SHA512
            | SignatureScheme::ED25519
    )
}

fn refused(why: String) -> Error {
    CertificateError::Other(OtherError(Arc::new(Refused(why)))).into()
}

/// Why a certificate is refused, in our words
#[derive(Debug)]
struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}
