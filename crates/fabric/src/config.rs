//! Configuration of a context, with the reason for each default.

use std::sync::Arc;
use std::time::Duration;

use backhaul_proto::{CarrierKind, KeepAlive, LaneKind, Limits, Secret};
use backhaul_shm::arena::Arena;
use backhaul_ucx::Search;
use thiserror::Error;

use crate::experiments::Experiments;
use crate::memory::DeviceAllocator;
use crate::tls::{Tls, TlsError, TlsHelpers};

/// Settings of a [`Context`](crate::Context)
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Lanes that may be used, best first. Tcp is always possible: it is the first socket.
    ///
    /// Where ucx is named it is loaded, or the context is not made; where it is and tcp is not, peers
    /// without it are refused. The default names it not, and uses it between hosts with RDMA.
    pub lanes: Vec<LaneKind>,
    /// How connections are encrypted where nothing else is said for them: all listeners ask for it
    /// then, and so does who connects. Without it nothing is encrypted.
    pub tls: Option<Tls>,
    /// Use of other threads that write to the sockets of encrypted connections, while one encrypts
    pub tls_helpers: TlsHelpers,
    /// Settings of UCX, used if a lane or carrier of UCX is
    pub ucx: UcxConfig,
    /// Carriers that may move the payload of accepted messages beside the lane. Without any, all
    /// of it travels on the lane. Where cuda is named it is loaded, or the context is not made; the
    /// default names it not, and uses it on hosts that seem to have such devices. Of ucx-cuda the same is
    /// asked of libucp; it is used where it is named only.
    pub carriers: Vec<CarrierKind>,
    /// Limits of the protocol: sizes, counts and windows
    pub limits: Limits,
    /// Bytes of one shared-memory ring; each pair of peers has two. A power of two.
    pub ring_bytes: usize,
    /// Bytes of freed receive buffers that stay mapped for reuse
    pub pool_cached_bytes_max: usize,
    /// Memory that peers on this host can map. Large receive buffers are taken from it, and what
    /// is sent from it as shared is lent. Without one nothing is lent; a peer may still lend to us.
    pub arena: Option<Arena>,
    /// Gives memory of devices to what arrives. Without one, and without the carrier cuda, which brings one
    /// for device 0, messages in memory of a device are refused to receives that bring no memory of
    /// their own.
    pub device_allocator: Option<Arc<dyn DeviceAllocator>>,
    /// Segments shorter than this are copied even if they could be lent: to map them would take
    /// longer
    pub lease_bytes_min: usize,
    /// Maps the pages of what is lent to us at once, rather than each when it is first touched.
    /// Pays where most of what is received is read.
    pub populate_leases: bool,
    /// How long a waiting caller polls before it sleeps. Zero on a machine with one CPU, where the
    /// peer cannot run meanwhile.
    pub spin: Duration,
    /// How long a peer may take to say who it is and agree on a lane
    pub handshake_timeout: Duration,
    /// How long the peer's host may be silent, on lanes that cross hosts; on one host the kernel
    /// reports a dead peer at once. A process that is stopped on a host that answers is not silent.
    pub keep_alive: Option<KeepAlive>,
    /// How long a closing endpoint waits for the peer to take what was sent
    pub linger: Duration,
    /// Connections the kernel queues for a listener, and accepted endpoints that wait in ours
    pub backlog: u32,
    /// Handshakes a listener has open at once. When there are more, connections that say nothing give
    /// way, those of an address that has many of them first; the rest wait in the kernel's queue.
    pub handshakes_max: usize,
    /// Secret that each peer has to prove, and this side proves to the peer. Without a secret, each
    /// process that reaches a listener is a peer.
    pub secret: Option<Secret>,
    /// Users, beside that of this process, with whose processes memory may be shared. Both sides have to
    /// allow it, and the kernel says who they are.
    pub shared_memory_uids: Vec<u32>,
    /// A lane and a carrier from outside, which may change with any release
    #[doc(hidden)]
    pub experiments: Experiments,
}

/// Which UCX is used, and how
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UcxConfig {
    /// Where to look for libucp
    pub library: Search,
    /// Settings of UCX by their names without the `UCX_` in front, which go before those in the
    /// environment
    pub settings: Vec<(String, String)>,
}

impl Default for UcxConfig {
    fn default() -> Self {
        Self {
            library: Search::from_environment(),
            settings: Vec::new(),
        }
    }
}

impl Config {
    /// Checks values against each other
    ///
    /// # Errors
    ///
    /// [`ConfigError`] naming the value and what is allowed.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let bounds: [(&'static str, u64, u64, u64); 7] = [
            ("ring_bytes", self.ring_bytes as u64, 4096, 1 << 30),
            ("backlog", u64::from(self.backlog), 1, 1 << 16),
            ("handshakes_max", self.handshakes_max as u64, 1, 1 << 16),
            (
                "segments_max",
                u64::from(self.limits.segments_max),
                1,
                1 << 20,
            ),
            ("credit_messages", self.limits.credit_messages, 4, u64::MAX),
            (
                "message_bytes_max",
                self.limits.message_bytes_max,
                1,
                1 << 62,
            ),
            ("data_chunk_bytes", self.limits.data_chunk_bytes, 1, 1 << 62),
        ];
        for (name, value, min, max) in bounds {
            if !(min..=max).contains(&value) {
                return Err(ConfigError::OutOfRange {
                    name,
                    value,
                    min,
                    max,
                });
            }
        }
        let keep_alive = self.keep_alive.map(|keep_alive| keep_alive.timeout);
        let durations = [
            ("linger", Some(self.linger)),
            ("handshake_timeout", Some(self.handshake_timeout)),
            ("keep_alive_timeout", keep_alive),
            (
                "keep_alive_interval",
                self.keep_alive.map(|keep_alive| keep_alive.interval),
            ),
            ("spin", Some(self.spin)),
        ];
        for (name, duration) in durations {
            if duration.is_some_and(|duration| duration > DURATION_MAX) {
                return Err(ConfigError::OutOfRange {
                    name,
                    value: duration.map_or(0, |duration| duration.as_secs()),
                    min: 0,
                    max: DURATION_MAX.as_secs(),
                });
            }
        }
        check_lanes(&self.lanes)?;
        // Without any, they may come with each listener and connection.
        if let Some(tls) = &self.tls {
            check_encryption(&self.lanes, true)?;
            tls.check_listener()?;
        }
        check_count("number of carriers", &self.carriers, CarrierKind::ALL.len())?;
        if !self.ring_bytes.is_power_of_two() {
            return Err(ConfigError::NotPowerOfTwo {
                name: "ring_bytes",
                value: self.ring_bytes as u64,
            });
        }
        if self.limits.eager_bytes_max > self.limits.credit_bytes {
            return Err(ConfigError::OutOfRange {
                name: "eager_bytes_max",
                value: self.limits.eager_bytes_max,
                min: 0,
                max: self.limits.credit_bytes,
            });
        }
        Ok(())
    }
}

impl Default for Config {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            lanes: LaneKind::DEFAULT.to_vec(),
            tls: None,
            tls_helpers: TlsHelpers::Auto,
            ucx: UcxConfig::default(),
            carriers: CarrierKind::DEFAULT.to_vec(),
            limits: Limits::default(),
            ring_bytes: 1 << 20,
            pool_cached_bytes_max: 256 << 20,
            arena: None,
            device_allocator: None,
            lease_bytes_min: 128 << 10,
            populate_leases: false,
            spin: if cores > 1 {
                Duration::from_micros(100)
            } else {
                Duration::ZERO
            },
            handshake_timeout: Duration::from_secs(10),
            keep_alive: Some(KeepAlive {
                interval: Duration::from_secs(15),
                timeout: Duration::from_secs(60),
            }),
            linger: Duration::from_secs(5),
            backlog: 2048,
            handshakes_max: 1024,
            secret: None,
            shared_memory_uids: Vec::new(),
            experiments: Experiments::default(),
        }
    }
}

/// Checks lanes given in order of preference
pub(crate) fn check_lanes(lanes: &[LaneKind]) -> Result<(), ConfigError> {
    check_count("number of lanes", lanes, LaneKind::ALL.len())
}

/// Checks lanes against whether encryption is asked for, so that no wish is passed over in silence
pub(crate) fn check_encryption(lanes: &[LaneKind], is_encrypted: bool) -> Result<(), ConfigError> {
    let is_named = |lane| lanes.contains(&lane);
    if is_encrypted
        && is_named(LaneKind::Ucx)
        && !is_named(LaneKind::Tcp)
        && !is_named(LaneKind::Tls)
    {
        let lane = LaneKind::Ucx;
        return Err(ConfigError::ClearText { lane });
    }
    if !is_encrypted && is_named(LaneKind::Tls) && !is_named(LaneKind::Tcp) {
        return Err(ConfigError::NoCertificates);
    }
    Ok(())
}

/// Checks that a list is no longer than there are kinds, as a Hello carries it
fn check_count<Kind>(name: &'static str, kinds: &[Kind], max: usize) -> Result<(), ConfigError> {
    if kinds.len() > max {
        return Err(ConfigError::OutOfRange {
            name,
            value: kinds.len() as u64,
            min: 0,
            max: max as u64,
        });
    }
    Ok(())
}

/// Longest duration, a year: what is longer is a mistake, and could not be added to a clock
const DURATION_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// A setting that cannot work
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum ConfigError {
    /// A number is outside its range
    #[error("{name} must be between {min} and {max}, got {value}")]
    OutOfRange {
        /// Name of the setting
        name: &'static str,
        /// Value that was given
        value: u64,
        /// Smallest value allowed
        min: u64,
        /// Largest value allowed
        max: u64,
    },
    /// A size must be a power of two
    #[error("{name} must be a power of two, got {value}")]
    NotPowerOfTwo {
        /// Name of the setting
        name: &'static str,
        /// Value that was given
        value: u64,
    },
    /// Certificates, keys, versions or ciphers cannot be used
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Only a lane in clear text is allowed, and encryption is asked for
    #[error("lane {lane} is in clear text, and TLS is asked for: allow tls")]
    ClearText {
        /// The lane
        lane: LaneKind,
    },
    /// The encrypted lane is allowed by name, and there is nothing to encrypt with
    #[error("lane tls needs certificates, and none are given")]
    NoCertificates,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
    use super::*;

    #[test]
    fn what_no_clock_can_hold_is_refused_with_its_value() {
        let config = Config {
            linger: Duration::from_secs(1 << 62),
            ..Config::default()
        };
        let error = config.validate().unwrap_err().to_string();
        assert!(
            error.contains("linger") && error.contains("31536000"),
            "{error}"
        );
    }

    #[test]
    fn more_lanes_than_there_are_is_refused() {
        assert_eq!(check_lanes(&LaneKind::ALL), Ok(()));
        let error = check_lanes(&[LaneKind::Tcp; 6]).unwrap_err().to_string();
        assert!(error.contains("got 6"), "{error}");
    }

    #[test]
    fn more_carriers_than_there_are_is_refused() {
        let count = CarrierKind::ALL.len() + 1;
        let config = Config {
            carriers: vec![CarrierKind::Lease; count],
            ..Config::default()
        };
        let error = config.validate().unwrap_err().to_string();
        assert!(error.contains("carriers"), "{error}");
        assert!(error.contains(&format!("got {count}")), "{error}");
    }
}
