//! Encryption without a connection: bytes of an untrusted peer, and the certificates that it shows;
//! and with keys that are soon used up.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::danger::ClientCertVerifier;
use rustls::{CipherSuiteCommon, SupportedCipherSuite, Tls12CipherSuite, Tls13CipherSuite};

use super::certificate::{self, Certificate};
use super::session::{Arrived, Session};
use super::trust::Trust;
use super::{AUTHORITIES, Pem, Tls, TlsError, TlsFailure, TlsHelpers, TlsOptions};

/// One end of an encrypted connection over a socket that does not block
pub struct TlsSession {
    session: Session,
    socket: Arc<TcpStream>,
}

/// Checks of certificates, with the authorities that they trust
pub struct TlsBeliefs {
    trust: Arc<Trust>,
}

/// Settings of a side whose keys are used up after so many records, not after millions
///
/// Each call leaks a little memory.
///
/// # Errors
///
/// As [`Tls::new`].
pub fn tls_with_short_keys(options: &TlsOptions, records_max: u64) -> Result<Tls, TlsError> {
    let mut provider = ring::default_provider();
    let common = |common: &CipherSuiteCommon| CipherSuiteCommon {
        suite: common.suite,
        hash_provider: common.hash_provider,
        confidentiality_limit: records_max,
    };
    for suite in &mut provider.cipher_suites {
        *suite = match *suite {
            SupportedCipherSuite::Tls13(known) => {
                SupportedCipherSuite::Tls13(Box::leak(Box::new(Tls13CipherSuite {
                    common: common(&known.common),
                    ..*known
                })))
            }
            SupportedCipherSuite::Tls12(known) => {
                SupportedCipherSuite::Tls12(Box::leak(Box::new(Tls12CipherSuite {
                    common: common(&known.common),
                    ..*known
                })))
            }
        };
    }
    Tls::with_provider(options, provider)
}

impl TlsSession {
    /// The side that connects
    ///
    /// # Errors
    ///
    /// None that a test has: settings that cannot be used.
    pub fn connect(tls: &Tls, socket: TcpStream) -> Result<Self, TlsFailure> {
        let session = Session::connect(tls, IpAddr::V4(Ipv4Addr::LOCALHOST))?;
        let socket = Arc::new(socket);
        Ok(Self { session, socket })
    }

    /// The side that is called
    ///
    /// # Errors
    ///
    /// If the settings have no certificate.
    pub fn accept(tls: &Tls, socket: TcpStream) -> io::Result<Self> {
        let session = Session::accept(tls)?;
        let socket = Arc::new(socket);
        Ok(Self { session, socket })
    }

    /// Has other threads write from now on, as `helpers` says
    pub fn share(&mut self, helpers: TlsHelpers) {
        self.session.share(&self.socket, helpers);
    }

    /// Goes on with the handshake; whether it is over
    ///
    /// # Errors
    ///
    /// As those of production: a [`TlsFailure`] within, or what the system reports.
    pub fn shake_hands(&mut self) -> io::Result<bool> {
        self.session.shake_hands(&self.socket)
    }

    /// Reads what has come: `None` at the end, and 0 bytes where there is nothing now
    ///
    /// # Errors
    ///
    /// As [`shake_hands`](Self::shake_hands).
    pub fn read(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        Ok(match self.session.read(&self.socket, buffers)? {
            Arrived::Bytes(bytes) => Some(bytes),
            Arrived::Blocked => Some(0),
            Arrived::End => None,
        })
    }

    /// Sends what fits now, returning how much that was
    ///
    /// # Errors
    ///
    /// As [`shake_hands`](Self::shake_hands), and [`io::ErrorKind::WouldBlock`].
    pub fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.session.write(&self.socket, parts)
    }

    /// Says that nothing more comes
    pub fn say_end(&mut self) {
        self.session.say_end(&self.socket);
    }

    /// Returns whether a read finds something without asking the socket
    pub fn holds_news(&self) -> bool {
        self.session.holds_news()
    }
}

impl TlsBeliefs {
    /// Believes what these authorities have signed
    ///
    /// # Errors
    ///
    /// [`TlsError`] if they cannot be used.
    pub fn new(authorities: &Pem) -> Result<Self, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let trust = Trust::new(authorities.certificates(AUTHORITIES)?, &provider)
            .map_err(|detail| authorities.unusable(AUTHORITIES, detail))?;
        Ok(Self { trust })
    }

    /// The certificates in a text, in DER
    ///
    /// # Errors
    ///
    /// [`TlsError`] if there are none.
    pub fn certificates(text: &Pem) -> Result<Vec<Vec<u8>>, TlsError> {
        let read = text.certificates(AUTHORITIES)?;
        Ok(read.into_iter().map(|one| one.to_vec()).collect())
    }

    /// Why a peer that shows these certificates is refused where it listens, and where it connects:
    /// `None` in a place if it is believed there, and as a whole if it shows none
    pub fn refusals(&self, chain: &[&[u8]]) -> Option<[Option<String>; 2]> {
        let chain: Vec<_> = chain.iter().map(|one| CertificateDer::from(*one)).collect();
        let (first, behind) = chain.split_first()?;
        let name = ServerName::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST).into());
        let now = certificate::now();
        let trust = &self.trust;
        let listening = trust
            .verify_server_cert(first, behind, &name, &[], now)
            .map(|_| ());
        let connecting = trust.verify_client_cert(first, behind, now).map(|_| ());
        Some([listening, connecting].map(|outcome| outcome.err().map(|error| error.to_string())))
    }

    /// Returns whether this crate's own reader knows its outline
    pub fn is_read_by_us(der: &[u8]) -> bool {
        Certificate::read(der).is_some()
    }
}
