//! What Linux is asked for that no safe wrapper offers.
//!
//! - [`tcp_info`]: when the host at the other end of a TCP connection was last heard.

pub mod tcp_info;
