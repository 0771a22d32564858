//! Authorities, certificates and keys for tests, made when they are wanted; and the lane over TLS.

use std::sync::OnceLock;

use backhaul::{Config, LaneKind, Pem, Tls, TlsHelpers, TlsOptions};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair,
    PublicKeyData, SigningKey,
};

/// Signs certificates
#[derive(Debug)]
pub struct Authority {
    name: &'static str,
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate
    pub pem: String,
}

/// A certificate and its key
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate
    pub certificate: String,
    /// The key
    pub key: String,
}

impl Authority {
    /// A new one, of that name
    pub fn new(name: &'static str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name = named(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            name,
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    /// Signs a certificate
    pub fn sign(&self) -> Identity {
        self.sign_with(|_| {})
    }

    /// Signs a certificate with changes
    pub fn sign_with(&self, change: impl FnOnce(&mut CertificateParams)) -> Identity {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["somebody".to_owned()]).unwrap();
        params.distinguished_name = named("somebody");
        change(&mut params);
        Identity {
            certificate: params.signed_by(&key, &self.issuer).unwrap().pem(),
            key: key.serialize_pem(),
        }
    }

    /// Signs a certificate of X.509 version 1, as `openssl x509 -req` does
    pub fn sign_version_1(&self) -> Identity {
        let key = KeyPair::generate().unwrap();
        // ecdsa-with-SHA256, as is what rcgen makes by default.
        let algorithm = der(
            0x30,
            &[&der(
                0x06,
                &[&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02]],
            )],
        );
        let validity = der(
            0x30,
            &[
                &der(0x17, &[b"200101000000Z"]),
                &der(0x18, &[b"29990101000000Z"]),
            ],
        );
        let signed = der(
            0x30,
            &[
                &der(0x02, &[&[7]]),
                &algorithm,
                &name_der(self.name),
                &validity,
                &name_der("somebody"),
                &key.subject_public_key_info(),
            ],
        );
        let signature = self.issuer.key().sign(&signed).unwrap();
        let certificate = der(
            0x30,
            &[&signed, &algorithm, &der(0x03, &[&[0], &signature])],
        );
        Identity {
            certificate: pem("CERTIFICATE", &certificate),
            key: key.serialize_pem(),
        }
    }

    /// Settings of a side that believes this authority, and shows an identity
    pub fn options(&self, identity: &Identity) -> TlsOptions {
        let mut options = TlsOptions::new(Pem::Text(self.pem.clone()));
        options.certificate = Some(Pem::Text(identity.certificate.clone()));
        options.key = Some(Pem::Text(identity.key.clone()));
        options
    }

    /// A side that believes this authority, and shows an identity of it
    pub fn side(&self) -> Tls {
        Tls::new(&self.options(&self.sign())).unwrap()
    }
}

/// Has two contexts meet on the lane over TLS
pub fn configure(config: &mut Config) {
    static SIDE: OnceLock<Tls> = OnceLock::new();
    let side = SIDE.get_or_init(|| {
        let [authority, certificate, key] = shared();
        let mut options = TlsOptions::new(Pem::Text(authority.clone()));
        options.certificate = Some(Pem::Text(certificate.clone()));
        options.key = Some(Pem::Text(key.clone()));
        Tls::new(&options).unwrap()
    });
    config.lanes = vec![LaneKind::Tls];
    config.tls = Some(side.clone());
}

/// The same, with the work of each connection shared with another thread, be it little
pub fn configure_helped(config: &mut Config) {
    configure(config);
    config.tls_helpers = TlsHelpers::Forced;
}

/// Environment of a peer program, to be of the same authority
pub fn environment() -> Vec<(&'static str, String)> {
    VARIABLES.into_iter().zip(shared().clone()).collect()
}

/// Authority, certificate and key of this process and of peers that it starts
fn shared() -> &'static [String; 3] {
    static SHARED: OnceLock<[String; 3]> = OnceLock::new();
    SHARED.get_or_init(|| {
        if std::env::var_os(VARIABLES[0]).is_some() {
            return VARIABLES.map(|variable| std::env::var(variable).unwrap());
        }
        let authority = Authority::new("authority");
        let identity = authority.sign();
        [authority.pem, identity.certificate, identity.key]
    })
}

fn named(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

/// A name of one common name, as `rcgen` writes it
fn name_der(name: &str) -> Vec<u8> {
    let common_name = der(0x06, &[&[0x55, 0x04, 0x03]]);
    let text = der(0x0c, &[name.as_bytes()]);
    der(0x30, &[&der(0x31, &[&der(0x30, &[&common_name, &text])])])
}

/// An element of DER
fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let mut bytes = vec![tag];
    match u8::try_from(content.len()) {
        Ok(short) if short < 0x80 => bytes.push(short),
        _ => {
            bytes.push(0x82);
            bytes.extend(u16::try_from(content.len()).unwrap().to_be_bytes());
        }
    }
    bytes.extend(content);
    bytes
}

fn pem(label: &str, der: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for (line, bytes) in der.chunks(48).enumerate() {
        if line > 0 {
            text.push('\n');
        }
        for three in bytes.chunks(3) {
            let mut group = [0; 4];
            group[1..=three.len()].copy_from_slice(three);
            let group = u32::from_be_bytes(group);
            for place in 0..4 {
                match place <= three.len() {
                    true => {
                        let digit = group >> (18 - 6 * place) & 63;
                        text.push(DIGITS[digit as usize].into());
                    }
                    false => text.push('='),
                }
            }
        }
    }
    format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
}

const VARIABLES: [&str; 3] = [
    "BACKHAUL_TESTKIT_TLS_AUTHORITY",
    "BACKHAUL_TESTKIT_TLS_CERTIFICATE",
    "BACKHAUL_TESTKIT_TLS_KEY",
];
