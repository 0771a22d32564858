//! Expected figures of a link before anything has moved.

use super::super::class::Memory;
use super::super::host_pair::Profile;

/// One bandwidth and one latency
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prior {
    /// Bytes a second
    pub bytes_per_s: f64,
    /// Seconds beside that
    pub latency_s: f64,
}

/// Expected figures of links of each kind
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Priors {
    /// Between processes of one host
    pub same_host: Prior,
    /// Between hosts of whose NICs nothing is known
    pub other_host: Prior,
    /// To or from memory of a device
    pub device: Prior,
}

/// Kinds of links
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    SameHost,
    OtherHost,
    /// On one host
    Device,
    DeviceOfOtherHost,
}

impl Kind {
    pub(super) const COUNT: usize = 4;

    pub(super) const fn of(is_same_host: bool, memory: Memory) -> Self {
        match (is_same_host, memory) {
            (true, Memory::Host) => Self::SameHost,
            (false, Memory::Host) => Self::OtherHost,
            (true, Memory::Device) => Self::Device,
            (false, Memory::Device) => Self::DeviceOfOtherHost,
        }
    }

    pub(super) const fn index(self) -> usize {
        self as usize
    }
}

impl Priors {
    pub(super) fn profile(&self, kind: Kind) -> Profile {
        self.between(kind, (None, None))
    }

    /// With the speeds of the NICs of both hosts, where they are known
    pub(super) fn between(&self, kind: Kind, nics: (Option<f64>, Option<f64>)) -> Profile {
        let prior = match kind {
            Kind::SameHost => self.same_host,
            Kind::OtherHost | Kind::DeviceOfOtherHost => Prior {
                bytes_per_s: match nics {
                    (Some(one), Some(other)) => one.min(other),
                    _ => self.other_host.bytes_per_s,
                },
                ..self.other_host
            },
            Kind::Device => self.device,
        };
        Profile::plain(prior.bytes_per_s, prior.latency_s)
    }
}
