//! Encryption: the texts that a user gives, the certificates that a peer shows, and the bytes of an
//! untrusted peer.

use std::io::{Read, Write};
use std::mem::{Discriminant, discriminant};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::LazyLock;

use backhaul::fuzzing::{TlsBeliefs, TlsSession};
use backhaul::{Pem, Tls, TlsError, TlsFailure, TlsOptions, TlsVersion};

use crate::Input;

/// Texts become settings, or an error that shows nothing of a key
pub(super) fn pem(data: &[u8]) {
    let mut input = Input::new(data);
    let (min_version, max_version) = (input.choose(&VERSIONS), input.choose(&VERSIONS));
    let rest = String::from_utf8_lossy(input.take(usize::MAX)).into_owned();
    let mut texts = rest.split('\0').map(str::to_owned);
    let mut next = |otherwise: &str| match texts.next() {
        Some(text) if !text.is_empty() => text,
        _ => otherwise.to_owned(),
    };
    let mut options = TlsOptions::new(Pem::Text(next(AUTHORITY)));
    options.certificate = Some(Pem::Text(next(PEER)));
    let key = next(KEY);
    options.key = Some(Pem::Text(key.clone()));
    options.ciphers = texts.next();
    (options.min_version, options.max_version) = (min_version, max_version);
    match Tls::new(&options) {
        Ok(tls) => {
            let (_, socket) = sockets();
            assert!(TlsSession::accept(&tls, socket).is_ok());
        }
        Err(error) => {
            let message = error.to_string();
            assert!(!message.is_empty());
            // It shows a name, whatever that may be.
            if matches!(error, TlsError::Cipher { .. }) {
                return;
            }
            let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=".contains(byte);
            for part in key.as_bytes().windows(SHOWN_BYTES_MAX) {
                let is_shown = part.iter().all(is_digit)
                    && message
                        .as_bytes()
                        .windows(part.len())
                        .any(|text| text == part);
                assert!(
                    !is_shown,
                    "{message:?} has {:?} of the key",
                    part.escape_ascii()
                );
            }
        }
    }
}

/// Only what an authority has signed proves a peer, whatever stands around it
pub(super) fn certificate(data: &[u8]) {
    let mut input = Input::new(data);
    let mut chain = Vec::new();
    while !input.is_empty() {
        let bytes = input.short() as usize;
        chain.push(input.take(bytes));
    }
    for one in &chain {
        TlsBeliefs::is_read_by_us(one);
    }
    let Some(refusals) = BELIEFS.refusals(&chain) else {
        return;
    };
    for refusal in refusals {
        match refusal {
            Some(why) => assert!(!why.is_empty()),
            // The authority's key is gone, so the certificate is one of those that the authority
            // has signed.
            None => assert!(
                SIGNED
                    .iter()
                    .any(|signed| chain[0].windows(signed.len()).any(|part| part == signed)),
                "{:?} is believed",
                chain[0].escape_ascii()
            ),
        }
    }
}

/// An untrusted peer gets no session, and the same kind of refusal for any pieces
pub(super) fn stranger(data: &[u8]) {
    let mut input = Input::new(data);
    let accepts = input.flag();
    let piece_bytes = 1 + input.below(64);
    let says = input.take(usize::MAX);
    let (whole, said) = hear(accepts, says, usize::MAX);
    assert_eq!(whole, hear(accepts, says, piece_bytes).0);
    let may_be_tls = says.starts_with(&[0x16, 3]);
    let is_ours = says.get(8..16) == Some(b"backhaul");
    assert!(
        !accepts || may_be_tls || is_ours || said.is_empty(),
        "a listener says nothing to who speaks something else"
    );
}

/// Feeds one side all bytes of an untrusted peer, returning the failure and the answer
fn hear(accepts: bool, says: &[u8], piece_bytes: usize) -> (Discriminant<TlsFailure>, Vec<u8>) {
    let (mut peer, socket) = sockets();
    let mut session = match accepts {
        true => TlsSession::accept(&SIDE, socket).unwrap(),
        false => TlsSession::connect(&SIDE, socket).unwrap(),
    };
    let mut said = Vec::new();
    let mut failure = None;
    let mut pieces = says.chunks(piece_bytes);
    while failure.is_none() {
        match pieces.next() {
            // A peer that has been refused may have been hung up on.
            Some(piece) => assert_eq!(peer.write(piece).unwrap(), piece.len()),
            None => peer.shutdown(Shutdown::Write).unwrap(),
        }
        match session.shake_hands() {
            Ok(is_done) => assert!(!is_done, "a stranger has a session"),
            Err(error) => {
                assert!(!error.to_string().is_empty());
                let inner = error.into_inner().expect("a failure of TLS");
                failure = inner.downcast::<TlsFailure>().ok();
                assert!(failure.is_some());
            }
        }
        let _ = peer.read_to_end(&mut said);
    }
    (
        discriminant(&failure.expect("the loop ends with one")),
        said,
    )
}

/// Two sockets that know each other and do not block
pub(super) fn sockets() -> (TcpStream, TcpStream) {
    let (near, far) = UnixStream::pair().unwrap();
    // Read and written as any other: what is of TCP alone is not asked of them.
    let [near, far] = [near, far].map(|socket| {
        socket.set_nonblocking(true).unwrap();
        TcpStream::from(OwnedFd::from(socket))
    });
    (near, far)
}

/// Settings of a side that has a certificate, for these versions
pub(super) fn side(versions: [TlsVersion; 2]) -> Tls {
    let text = |text: &str| Pem::Text(text.to_owned());
    let mut options = TlsOptions::new(text(AUTHORITY));
    options.certificate = Some(text(PEER));
    options.key = Some(text(KEY));
    [options.min_version, options.max_version] = versions;
    Tls::new(&options).unwrap()
}

pub(super) const VERSIONS: [TlsVersion; 2] = [TlsVersion::V1_2, TlsVersion::V1_3];

static SIDE: LazyLock<Tls> = LazyLock::new(|| side(VERSIONS));

static BELIEFS: LazyLock<TlsBeliefs> =
    LazyLock::new(|| TlsBeliefs::new(&Pem::Text(AUTHORITY.to_owned())).unwrap());

/// Certificates that the authority has signed, itself included
static SIGNED: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let certificates = [AUTHORITY, PEER, VERSION_1].map(|text| {
        let read = TlsBeliefs::certificates(&Pem::Text(text.to_owned())).unwrap();
        signed_part(&read[0]).to_vec()
    });
    certificates.into()
});

/// The part of a certificate that its signature covers, which is the first within it
fn signed_part(certificate: &[u8]) -> &[u8] {
    let inside = &certificate[lengths(certificate).0..];
    let (header, content) = lengths(inside);
    &inside[..header + content]
}

/// Bytes of the header and of the content of an element of DER that is shorter than 64 KiB
fn lengths(der: &[u8]) -> (usize, usize) {
    match der[1] {
        0x82 => (4, usize::from(u16::from_be_bytes([der[2], der[3]]))),
        0x81 => (3, der[2].into()),
        short => (2, short.into()),
    }
}

/// An authority whose key is gone, and two that it has signed for one key: of X.509 version 3 and 1
const AUTHORITY: &str = include_str!("../../certificates/authority.pem");
const PEER: &str = include_str!("../../certificates/peer.pem");
const VERSION_1: &str = include_str!("../../certificates/version_1.pem");
const KEY: &str = include_str!("../../certificates/peer.key");

/// As much as an error may share with a key by chance: no word that it has is as long
const SHOWN_BYTES_MAX: usize = 24;
