//! Proof of life: asks a silent peer, and gives it up after a while.

use std::time::{Duration, Instant};

use thiserror::Error;

use crate::limits::KeepAlive;

/// Watches how long the peer has been silent
///
/// A peer is given up only after it had time to answer a question. So a process that was stopped
/// for an hour asks first, instead of calling its peer dead.
#[derive(Debug)]
pub(crate) struct Liveness {
    policy: Option<KeepAlive>,
    heard: Instant,
    /// Questions since the peer was heard
    asked: Option<Asked>,
    /// Token of a question that has not been transmitted
    ping_due: Option<u64>,
    next_token: u64,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    first: Instant,
    last: Instant,
}

impl Liveness {
    pub(crate) const fn new(policy: Option<KeepAlive>, now: Instant) -> Self {
        Self {
            policy,
            heard: now,
            asked: None,
            ping_due: None,
            next_token: 0,
        }
    }

    /// Notes a sign of life
    ///
    /// One that is reported late answers no question that was asked after it.
    pub(crate) fn handle_heard(&mut self, at: Instant) {
        self.heard = self.heard.max(at);
        if self.asked.is_some_and(|asked| asked.first <= at) {
            self.asked = None;
        }
    }

    /// Returns whether the next step is due with a question unanswered
    ///
    /// A driver that can notice the peer in another way than by its answer looks there first.
    pub(crate) fn is_answer_overdue(&self, now: Instant) -> bool {
        self.asked.is_some() && self.poll_timeout().is_some_and(|at| now >= at)
    }

    /// Asks, or gives the peer up, if it is time
    pub(crate) fn handle_timeout(&mut self, now: Instant) -> Result<(), KeepAliveExpired> {
        let Some(policy) = self.policy else {
            return Ok(());
        };
        if self.expiry(policy).is_some_and(|expiry| now >= expiry) {
            return Err(KeepAliveExpired {
                silent: now.saturating_duration_since(self.heard),
                limit: policy.timeout,
            });
        }
        if self.next_ping(policy).is_some_and(|at| now >= at) {
            let first = self.asked.map_or(now, |asked| asked.first);
            self.asked = Some(Asked { first, last: now });
            self.ping_due = Some(self.next_token);
            self.next_token += 1;
        }
        Ok(())
    }

    /// The token of a question to transmit
    pub(crate) const fn poll_ping(&mut self) -> Option<u64> {
        self.ping_due.take()
    }

    /// Returns whether a question waits to be transmitted
    pub(crate) const fn has_ping(&self) -> bool {
        self.ping_due.is_some()
    }

    /// When to call `handle_timeout`
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let policy = self.policy?;
        let times = [self.next_ping(policy), self.expiry(policy)];
        times.into_iter().flatten().min()
    }

    /// `None` beyond the end of time, as for an expiry
    fn next_ping(&self, policy: KeepAlive) -> Option<Instant> {
        let since = self.asked.map_or(self.heard, |asked| asked.last);
        since.checked_add(patience(policy))
    }

    fn expiry(&self, policy: KeepAlive) -> Option<Instant> {
        let asked = self.asked?;
        let silent = self.heard.checked_add(policy.timeout)?;
        let unanswered = asked.first.checked_add(patience(policy))?;
        Some(silent.max(unanswered))
    }
}

/// How long to wait for a sign of life before the next step
fn patience(policy: KeepAlive) -> Duration {
    // Not zero: each call would ask again.
    let interval = policy.interval.max(Duration::from_millis(1));
    interval.min(policy.timeout)
}

/// The peer has been silent for too long
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("no sign of life for {silent:?}, limit {limit:?}")]
pub struct KeepAliveExpired {
    /// How long nothing has been heard
    pub silent: Duration,
    /// The limit
    pub limit: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: KeepAlive = KeepAlive {
        interval: Duration::from_secs(15),
        timeout: Duration::from_secs(60),
    };

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_silent_peer_is_asked_each_interval_and_then_given_up() {
        let start = Instant::now();
        let mut liveness = Liveness::new(Some(POLICY), start);
        for (at, token) in [(15, 0), (30, 1), (45, 2)] {
            assert_eq!(liveness.poll_timeout(), Some(start + seconds(at)));
            assert_eq!(liveness.handle_timeout(start + seconds(at)), Ok(()));
            assert_eq!(liveness.poll_ping(), Some(token));
            assert_eq!(liveness.poll_ping(), None);
        }
        let expired = liveness.handle_timeout(start + seconds(60));
        let silent = seconds(60);
        let limit = seconds(60);
        assert_eq!(expired, Err(KeepAliveExpired { silent, limit }));
    }

    #[test]
    fn a_sign_of_life_starts_anew() {
        let start = Instant::now();
        let mut liveness = Liveness::new(Some(POLICY), start);
        assert_eq!(liveness.handle_timeout(start + seconds(50)), Ok(()));
        liveness.handle_heard(start + seconds(51));
        assert_eq!(liveness.poll_timeout(), Some(start + seconds(66)));
        assert_eq!(liveness.handle_timeout(start + seconds(60)), Ok(()));
    }

    #[test]
    fn a_sign_of_life_that_is_reported_late_answers_only_what_was_asked_before() {
        let start = Instant::now();
        let mut liveness = Liveness::new(Some(POLICY), start);
        assert_eq!(liveness.handle_timeout(start + seconds(20)), Ok(()));
        assert!(!liveness.is_answer_overdue(start + seconds(34)));
        assert!(liveness.is_answer_overdue(start + seconds(35)));
        liveness.handle_heard(start + seconds(10));
        liveness.handle_heard(start + seconds(5));
        assert!(liveness.is_answer_overdue(start + seconds(35)));
        assert_eq!(liveness.handle_timeout(start + seconds(69)), Ok(()));
        let silent = seconds(60);
        let limit = seconds(60);
        let expired = liveness.handle_timeout(start + seconds(70));
        assert_eq!(expired, Err(KeepAliveExpired { silent, limit }));
        liveness.handle_heard(start + seconds(20));
        assert!(!liveness.is_answer_overdue(start + seconds(70)));
    }

    #[test]
    fn who_is_heard_beside_its_answers_is_given_up_in_time_when_that_ends() {
        let start = Instant::now();
        let mut liveness = Liveness::new(Some(POLICY), start);
        let last = start + seconds(600);
        let expired = loop {
            let now = liveness.poll_timeout().expect("there is a policy");
            if liveness.is_answer_overdue(now) {
                liveness.handle_heard(now.min(last));
            }
            if let Err(expired) = liveness.handle_timeout(now) {
                break expired;
            }
        };
        assert!(
            expired.silent <= POLICY.interval + POLICY.timeout,
            "{expired}"
        );
        assert_eq!(liveness.heard, last);
    }

    #[test]
    fn a_timer_that_comes_an_hour_late_asks_first() {
        let start = Instant::now();
        let late = start + seconds(3600);
        let mut liveness = Liveness::new(Some(POLICY), start);
        assert_eq!(liveness.handle_timeout(late), Ok(()));
        assert_eq!(liveness.poll_ping(), Some(0));
        assert_eq!(liveness.poll_timeout(), Some(late + seconds(15)));
        assert_eq!(liveness.handle_timeout(late + seconds(14)), Ok(()));
        assert!(liveness.handle_timeout(late + seconds(15)).is_err());
    }

    #[test]
    fn an_early_call_does_nothing() {
        let start = Instant::now();
        let mut liveness = Liveness::new(Some(POLICY), start);
        assert_eq!(liveness.handle_timeout(start + seconds(14)), Ok(()));
        assert_eq!(liveness.poll_ping(), None);
        let silent = Liveness::new(None, start);
        assert_eq!(silent.poll_timeout(), None);
    }
}
