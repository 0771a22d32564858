//! The ways to move frames between two peers.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A way to move frames to a peer
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum LaneKind {
    /// Memory of one process
    Inproc,
    /// Rings in memory that two processes of one host share
    Shm,
    /// Active messages of UCX: over RDMA, or whatever `UCX_TLS` says
    Ucx,
    /// The first socket; always possible
    Tcp,
    /// The first socket, encrypted: in the place of tcp where the peers met over TLS
    Tls,
    /// A lane from outside, for experiments and tests
    Experimental,
}

impl LaneKind {
    /// All lanes that are not experimental, fastest first
    pub const ALL: [Self; 5] = [Self::Inproc, Self::Shm, Self::Ucx, Self::Tcp, Self::Tls];

    /// Lanes that need nothing but this crate, fastest first
    pub const DEFAULT: [Self; 3] = [Self::Inproc, Self::Shm, Self::Tcp];

    /// The name in addresses, settings and reports
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Inproc => "inproc",
            Self::Shm => "shm",
            Self::Ucx => "ucx",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Experimental => "experimental",
        }
    }

    /// Returns whether an observer on the way between two hosts can read what travels on the lane
    #[must_use]
    pub const fn is_clear_text(self) -> bool {
        matches!(self, Self::Tcp | Self::Ucx)
    }

    /// The number on the wire; never 0
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Inproc => 1,
            Self::Shm => 2,
            Self::Ucx => 4,
            Self::Tcp => 3,
            Self::Tls => 5,
            Self::Experimental => 240,
        }
    }

    /// The lane with this number, unless a newer version invented it
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        let mut all = Self::ALL.into_iter().chain([Self::Experimental]);
        all.find(|lane| lane.code() == code)
    }
}

impl fmt::Display for LaneKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for LaneKind {
    type Err = ParseLaneError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|lane| lane.name() == text)
            .ok_or_else(|| ParseLaneError { text: text.into() })
    }
}

/// A text that names no lane
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("unknown lane {text:?}: expected inproc, shm, ucx, tcp or tls")]
pub struct ParseLaneError {
    /// The text
    pub text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lane_is_found_by_its_name_and_its_code() {
        for lane in LaneKind::ALL {
            assert_eq!(lane.name().parse(), Ok(lane));
            assert_eq!(LaneKind::from_code(lane.code()), Some(lane));
        }
        assert_eq!(LaneKind::from_code(0), None);
    }

    #[test]
    fn the_experimental_lane_is_found_by_its_code_alone() {
        let lane = LaneKind::Experimental;
        assert_eq!(LaneKind::from_code(lane.code()), Some(lane));
        assert!(lane.name().parse::<LaneKind>().is_err());
        assert!(!LaneKind::ALL.contains(&lane));
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_lanes() {
        let error = "rdma".parse::<LaneKind>().expect_err("rdma is no lane");
        for lane in LaneKind::ALL {
            assert!(error.to_string().contains(lane.name()), "{error}");
        }
    }
}
