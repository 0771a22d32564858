//! The ways to move the payload of an accepted message beside the lane.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A way to move the payload of an accepted message beside the lane
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum CarrierKind {
    /// The receiver maps memory of the sender, and gives it back when it is done
    Lease,
    /// The receiver copies out of the sender's memory, through the kernel
    SingleCopy,
    /// The receiver fetches by a rendezvous of UCX
    Ucx,
    /// A device of the receiver copies out of memory of a device of the sender, which it has opened
    Cuda,
    /// As ucx, for memory of devices: libucp of both sides moves it
    UcxCuda,
    /// A carrier from outside, for experiments and tests
    Experimental,
}

impl CarrierKind {
    /// All carriers that come with this crate
    pub const ALL: [Self; 5] = [
        Self::Lease,
        Self::SingleCopy,
        Self::Ucx,
        Self::Cuda,
        Self::UcxCuda,
    ];

    /// Carriers that are used by default; cuda joins them on hosts with such devices, and ucx-cuda
    /// where libucp moves their memory
    pub const DEFAULT: [Self; 3] = [Self::Lease, Self::SingleCopy, Self::Ucx];

    /// The name in settings and reports
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lease => "lease",
            Self::SingleCopy => "single-copy",
            Self::Ucx => "ucx",
            Self::Cuda => "cuda",
            Self::UcxCuda => "ucx-cuda",
            Self::Experimental => "experimental",
        }
    }

    /// The number on the wire; never 0
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Lease => 1,
            Self::SingleCopy => 2,
            Self::Ucx => 3,
            Self::Cuda => 4,
            Self::UcxCuda => 5,
            Self::Experimental => 240,
        }
    }

    /// The carrier with this number, unless a newer version invented it
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        let mut known = Self::ALL.into_iter().chain([Self::Experimental]);
        known.find(|carrier| carrier.code() == code)
    }
}

impl fmt::Display for CarrierKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CarrierKind {
    type Err = ParseCarrierError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|carrier| carrier.name() == text)
            .ok_or_else(|| ParseCarrierError { text: text.into() })
    }
}

/// A text that names no carrier
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("unknown carrier {text:?}: expected lease, single-copy, ucx, cuda or ucx-cuda")]
pub struct ParseCarrierError {
    /// The text
    pub text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_carrier_is_found_by_its_name_and_its_code() {
        for carrier in CarrierKind::ALL {
            assert_eq!(carrier.name().parse(), Ok(carrier));
            assert_eq!(CarrierKind::from_code(carrier.code()), Some(carrier));
        }
        assert_eq!(CarrierKind::from_code(0), None);
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_carriers() {
        let error = "pigeon"
            .parse::<CarrierKind>()
            .expect_err("a pigeon is none");
        for carrier in CarrierKind::ALL {
            assert!(error.to_string().contains(carrier.name()), "{error}");
        }
    }
}
