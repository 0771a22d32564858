//! Admission of peers to a context: the proof that a peer has to show before it is accepted.

use std::net::SocketAddr;

use crate::address::canonical;
use crate::config::Config;

/// Proof that a peer has to show before it is accepted
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Trust {
    /// Nothing: each process that reaches the address is a peer
    Anyone,
    /// That it has the secret of this side
    Secret,
    /// A certificate that this side believes
    Certificate,
    /// Both
    CertificateAndSecret,
}

impl Trust {
    /// Returns the proof that a configuration asks of peers, with encryption or without
    pub(crate) const fn of(config: &Config, is_encrypted: bool) -> Self {
        match (is_encrypted, config.secret.is_some()) {
            (false, false) => Self::Anyone,
            (false, true) => Self::Secret,
            (true, false) => Self::Certificate,
            (true, true) => Self::CertificateAndSecret,
        }
    }

    /// Its name
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Anyone => "anyone",
            Self::Secret => "secret",
            Self::Certificate => "certificate",
            Self::CertificateAndSecret => "certificate and secret",
        }
    }

    /// Returns the warning for a listener that asks this of its peers, if others than users of this
    /// host reach its address
    pub(crate) fn warning(self, address: SocketAddr) -> Option<String> {
        let is_local = canonical(address).ip().is_loopback();
        match self {
            Self::Anyone if !is_local => Some(format!(
                "{address} is open to every process that reaches it: no secret and no \
                 certificate is set. Such a process becomes a peer, and can run code as this user \
                 if messages carry code, as those of Dask do (docs/security.md)"
            )),
            Self::Anyone | Self::Secret | Self::Certificate | Self::CertificateAndSecret => None,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn listener_that_any_process_reaches_gets_a_warning() {
        for (address, is_warned) in [
            ("127.0.0.1:1", false),
            ("127.1.2.3:1", false),
            ("[::1]:1", false),
            ("[::ffff:127.0.0.1]:1", false),
            ("0.0.0.0:1", true),
            ("[::]:1", true),
            ("10.0.0.1:1", true),
            ("[fe80::1]:1", true),
        ] {
            let address = address.parse().unwrap();
            let warning = Trust::Anyone.warning(address);
            assert_eq!(warning.is_some(), is_warned, "{address}");
            assert!(warning.is_none_or(|text| text.contains(&address.to_string())));
            assert_eq!(Trust::Secret.warning(address), None);
            assert_eq!(Trust::Certificate.warning(address), None);
        }
    }
}
