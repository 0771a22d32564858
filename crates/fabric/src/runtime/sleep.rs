//! How a thread sleeps on doorbells.

use std::time::Duration;

use backhaul_shm::doorbell::Doorbell;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smallvec::SmallVec;

/// Events that have woken a thread
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Woken {
    pub(crate) is_kicked: bool,
    /// The other doorbell was notified
    pub(crate) has_news: bool,
}

/// Sleeps until `kick` or `news` is notified, or `timeout` has passed; clears neither
///
/// May return without a reason, as when a signal comes.
pub(crate) fn sleep_on(
    kick: &Doorbell,
    news: Option<&Doorbell>,
    timeout: Option<Duration>,
) -> Woken {
    let mut watched = SmallVec::<[_; 2]>::new();
    watched.push(PollFd::new(kick, PollFlags::IN));
    watched.extend(news.map(|news| PollFd::new(news, PollFlags::IN)));
    // A timeout that no clock can count never ends.
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    if poll(&mut watched, timeout.as_ref()).is_err() {
        return Woken::default();
    }
    let is_ready = |fd: &PollFd<'_>| fd.revents().contains(PollFlags::IN);
    Woken {
        is_kicked: is_ready(&watched[0]),
        has_news: watched.get(1).is_some_and(is_ready),
    }
}
