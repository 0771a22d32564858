//! Doorbells: eventfds that wake one sleeper, however often they are written to.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// Makes a doorbell
///
/// # Errors
///
/// What the system reports, when it has no descriptor or memory left.
pub(crate) fn new_doorbell() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Wakes whoever watches a doorbell
pub(crate) fn notify(doorbell: BorrowedFd<'_>) {
    // The only error of a valid eventfd is a full counter, and then the sleeper is awake already.
    let _ = rustix::io::write(doorbell, &1_u64.to_ne_bytes());
}

/// Makes a doorbell quiet, until the next notification
pub(crate) fn clear(doorbell: BorrowedFd<'_>) {
    let mut count = [0; 8];
    // An error means that it was quiet.
    let _ = rustix::io::read(doorbell, &mut count);
}
