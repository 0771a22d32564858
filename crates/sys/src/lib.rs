//! Linux system calls that no safe wrapper offers.
//!
//! - [`forks`]: descriptors and locks that forked children do not get.
//! - [`low_water`]: from how many bytes on a socket counts as readable.
//! - [`peer`]: who is at the other end of a Unix socket.
//! - [`tcp_info`]: when the host at the other end of a TCP connection was last heard.
//! - [`tcp_timers`]: how long the kernel waits before it tries to reach that host again.

pub mod forks;
pub mod low_water;
pub mod peer;
pub mod tcp_info;
pub mod tcp_timers;
