//! Proof of life: asks a silent peer, and gives it up after a while.

use std::time::Duration;

use thiserror::Error;

/// The peer has been silent for too long
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("no sign of life for {silent:?}, limit {limit:?}")]
pub struct KeepAliveExpired {
    /// How long nothing has been heard
    pub silent: Duration,
    /// The limit
    pub limit: Duration,
}
