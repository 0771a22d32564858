//! peer

/// Runs
pub fn main() {}
