//! Cipher suites by the names that users give and Python shows.

use rustls::SupportedCipherSuite;
use rustls::crypto::ring::cipher_suite as suites;

use super::TlsError;

/// A suite, its name in OpenSSL, and that in the registry of IANA
struct Named {
    suite: SupportedCipherSuite,
    openssl: &'static str,
    iana: &'static str,
    /// Bits of its key
    bits: u32,
}

/// Takes from `all` what a list of ciphers allows
///
/// The list is one of names with colons between them, as OpenSSL has it. As in Python, whose
/// `SSLContext.set_ciphers` leaves TLS 1.3 alone, all suites of TLS 1.3 stay unless one is named.
///
/// # Errors
///
/// [`TlsError::Cipher`] with the first name that is not known: keywords of OpenSSL such as `HIGH` are
/// not.
pub(super) fn chosen(
    list: &str,
    all: &[SupportedCipherSuite],
) -> Result<Vec<SupportedCipherSuite>, TlsError> {
    let mut named = Vec::new();
    for name in list.split([':', ',', ' ']).filter(|name| !name.is_empty()) {
        let found = NAMED
            .iter()
            .find(|known| known.openssl == name || known.iana == name);
        let found = found.ok_or_else(|| TlsError::Cipher {
            name: name.to_owned(),
        })?;
        named.push(found.suite);
    }
    if named.is_empty() {
        return Err(TlsError::Cipher {
            name: list.to_owned(),
        });
    }
    if !named.iter().any(is_tls13) {
        let of_tls13 = all.iter().copied().filter(is_tls13);
        named.splice(0..0, of_tls13);
    }
    Ok(named)
}

/// The name of a suite as OpenSSL, and so Python, shows it, and the bits of its key
pub(super) fn shown(suite: SupportedCipherSuite) -> (&'static str, u32) {
    let named = NAMED
        .iter()
        .find(|known| known.suite.suite() == suite.suite());
    named.map_or(("unknown", 0), |known| (known.openssl, known.bits))
}

/// All names, for an error
pub(super) fn names() -> String {
    let names: Vec<_> = NAMED.iter().map(|known| known.openssl).collect();
    names.join(" ")
}

fn is_tls13(suite: &SupportedCipherSuite) -> bool {
    suite.tls13().is_some()
}

/// Suites of the provider; names from `openssl ciphers -stdname`
const NAMED: [Named; 9] = [
    Named {
        suite: suites::TLS13_AES_256_GCM_SHA384,
        openssl: "TLS_AES_256_GCM_SHA384",
        iana: "TLS_AES_256_GCM_SHA384",
        bits: 256,
    },
    Named {
        suite: suites::TLS13_AES_128_GCM_SHA256,
        openssl: "TLS_AES_128_GCM_SHA256",
        iana: "TLS_AES_128_GCM_SHA256",
        bits: 128,
    },
    Named {
        suite: suites::TLS13_CHACHA20_POLY1305_SHA256,
        openssl: "TLS_CHACHA20_POLY1305_SHA256",
        iana: "TLS_CHACHA20_POLY1305_SHA256",
        bits: 256,
    },
    Named {
        suite: suites::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        openssl: "ECDHE-ECDSA-AES256-GCM-SHA384",
        iana: "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        bits: 256,
    },
    Named {
        suite: suites::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        openssl: "ECDHE-ECDSA-AES128-GCM-SHA256",
        iana: "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        bits: 128,
    },
    Named {
        suite: suites::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        openssl: "ECDHE-ECDSA-CHACHA20-POLY1305",
        iana: "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        bits: 256,
    },
    Named {
        suite: suites::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        openssl: "ECDHE-RSA-AES256-GCM-SHA384",
        iana: "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        bits: 256,
    },
    Named {
        suite: suites::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        openssl: "ECDHE-RSA-AES128-GCM-SHA256",
        iana: "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        bits: 128,
    },
    Named {
        suite: suites::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        openssl: "ECDHE-RSA-CHACHA20-POLY1305",
        iana: "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        bits: 256,
    },
];

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
    use rustls::crypto::ring::{ALL_CIPHER_SUITES, DEFAULT_CIPHER_SUITES};

    use super::*;

    #[test]
    fn every_suite_of_the_provider_has_a_name() {
        for suite in ALL_CIPHER_SUITES {
            assert!(shown(*suite).1 > 0, "{suite:?}");
        }
    }

    #[test]
    fn a_cipher_of_the_older_version_leaves_the_newer_ones_as_they_are() {
        let named = "ECDHE-RSA-AES128-GCM-SHA256";
        let chosen = chosen(named, DEFAULT_CIPHER_SUITES).unwrap();
        let names: Vec<_> = chosen.into_iter().map(|suite| shown(suite).0).collect();
        assert_eq!(names.len(), 4);
        assert_eq!(names[3], named);
    }

    #[test]
    fn ciphers_of_the_newer_version_are_taken_by_name() {
        let named = "TLS_AES_128_GCM_SHA256:TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256";
        let chosen = chosen(named, DEFAULT_CIPHER_SUITES).unwrap();
        let names: Vec<_> = chosen.into_iter().map(|suite| shown(suite).0).collect();
        assert_eq!(
            names,
            ["TLS_AES_128_GCM_SHA256", "ECDHE-ECDSA-AES128-GCM-SHA256"]
        );
    }

    #[test]
    fn what_maps_to_no_suite_is_named_in_the_error() {
        for (list, name) in [
            ("ECDHE-RSA-AES128-GCM-SHA256:HIGH", "HIGH"),
            ("!aNULL", "!aNULL"),
            ("AES256-SHA", "AES256-SHA"),
            (" : ", " : "),
        ] {
            let error = chosen(list, DEFAULT_CIPHER_SUITES).unwrap_err();
            assert_eq!(
                error,
                TlsError::Cipher {
                    name: name.to_owned()
                }
            );
            assert!(error.to_string().contains("ECDHE-RSA-AES128-GCM-SHA256"));
        }
    }
}
