//! Addresses as people write them: `host:port`, `[ipv6]:port`, `:port` for every interface.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};

use crate::error::AddressError;

/// An address that may need a look-up
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Address {
    /// Numbers, or a wildcard
    Literal(SocketAddr),
    /// A name to look up, which may block
    Name {
        /// The host name
        host: String,
        /// The port
        port: u16,
    },
}

impl Address {
    /// Reads an address
    pub(crate) fn parse(text: &str) -> Result<Self, AddressError> {
        let error = |detail: &str| AddressError {
            address: text.to_owned(),
            detail: detail.to_owned(),
        };
        if text.contains("://") {
            return Err(error("it has a scheme"));
        }
        if let Ok(literal) = text.parse::<SocketAddr>() {
            return Ok(Self::Literal(literal));
        }
        let (host, port) = text
            .rsplit_once(':')
            .ok_or_else(|| error("it has no port"))?;
        let port = port
            .parse()
            .map_err(|_| error("its port is no number from 0 to 65535"))?;
        if host.is_empty() {
            return Ok(Self::Literal((Ipv4Addr::UNSPECIFIED, port).into()));
        }
        if host.contains(':') || host.contains(char::is_whitespace) || host.starts_with('[') {
            return Err(error("its host is neither a name nor an IP address"));
        }
        Ok(Self::Name {
            host: host.to_owned(),
            port,
        })
    }

    /// Looks the name up; blocks for as long as the system's resolver does
    pub(crate) fn resolve(&self) -> Result<Vec<SocketAddr>, AddressError> {
        match self {
            Self::Literal(address) => Ok(vec![*address]),
            Self::Name { host, port } => {
                let error = |detail: String| AddressError {
                    address: format!("{host}:{port}"),
                    detail,
                };
                let found: Vec<_> = (host.as_str(), *port)
                    .to_socket_addrs()
                    .map_err(|source| error(source.to_string()))?
                    .collect();
                if found.is_empty() {
                    return Err(error("its host has no address".to_owned()));
                }
                Ok(found)
            }
        }
    }
}

/// Reads an address, returning its host and port as text; nothing is looked up
///
/// # Errors
///
/// [`AddressError`].
pub fn read_address(text: &str) -> Result<String, AddressError> {
    Ok(match Address::parse(text)? {
        Address::Literal(address) => canonical(address).to_string(),
        Address::Name { host, port } => format!("{host}:{port}"),
    })
}

/// An address with IPv4 written as IPv4, also when it came through an IPv6 socket
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
    use super::*;

    #[test]
    fn literals_need_no_look_up() {
        for (text, expected) in [
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("[::1]:80", "[::1]:80"),
            (":80", "0.0.0.0:80"),
        ] {
            let expected = Address::Literal(expected.parse().unwrap());
            assert_eq!(Address::parse(text).unwrap(), expected);
        }
    }

    #[test]
    fn nonsense_is_refused_with_the_text_and_the_forms_allowed() {
        for text in [
            "",
            "host",
            "host:port",
            "a:70000",
            "tcp://a:1",
            "::1:80",
            "a b:1",
        ] {
            let error = Address::parse(text).unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
            assert!(error.contains("[ipv6]:port"), "{error}");
        }
    }
}
