//! How long a thread polls before it sleeps, learned from whether polling has paid.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Bounded, adaptive polling
///
/// After [`MISSES_FREE`] polls in vain, fewer and fewer waits poll, until one finds what it waits
/// for. The counts steer effort and order nothing, hence `Relaxed`.
#[derive(Debug)]
pub(crate) struct SpinPolicy {
    budget: Duration,
    /// Polls in vain since the last that paid
    misses: AtomicU32,
    /// Waits to let pass before one polls again
    pause: AtomicU32,
    /// Polling is given up for a while once it has given way for so long: another thread needs the
    /// CPU
    held_up_max: Duration,
    /// For how long: [`HELD_UP`] more each time, one less for each poll that pays
    held_up: AtomicU32,
}

/// Result of a look at a connection
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Look {
    /// Bytes moved
    pub(crate) moved: bool,
    /// The peer may be at work for so long without anything moving here
    pub(crate) awaits: Duration,
}

impl SpinPolicy {
    pub(crate) fn new(budget: Duration) -> Self {
        Self {
            budget,
            misses: AtomicU32::new(0),
            pause: AtomicU32::new(0),
            held_up_max: Duration::MAX,
            held_up: AtomicU32::new(0),
        }
    }

    /// Creates the policy of a thread that waits for processes which others may keep from their
    /// CPUs
    ///
    /// The thread polls [`PATIENCE`] times as long as for an answer.
    ///
    /// Where other processes use the CPUs, a thread that polls and gives way comes after all of
    /// them, while one that sleeps is woken before most.
    pub(crate) fn patient(budget: Duration) -> Self {
        Self {
            held_up_max: HELD_UP_MAX,
            ..Self::new(budget.saturating_mul(PATIENCE))
        }
    }

    /// Counts a wait, returning whether it is one that polls
    pub(crate) fn take_turn(&self) -> bool {
        if self.budget.is_zero() {
            return false;
        }
        let pause = self.pause.load(Ordering::Relaxed);
        if pause > 0 {
            self.pause.store(pause - 1, Ordering::Relaxed);
        }
        pause == 0
    }

    /// A poll was in vain
    fn miss(&self) {
        let misses = self.misses.fetch_add(1, Ordering::Relaxed) + 1;
        if misses > MISSES_FREE {
            let pause = PAUSE_MAX.min(1 << (misses - MISSES_FREE).min(16));
            self.pause.store(pause, Ordering::Relaxed);
        }
    }

    /// Notes how long a poll gave way, returning whether that is too long: others poll no more
    fn note_held_up(&self, gave_way: Duration) -> bool {
        let is_held_up = gave_way >= self.held_up_max;
        if is_held_up {
            let held_up = HELD_UP_MOST.min(self.held_up.load(Ordering::Relaxed) + HELD_UP);
            self.held_up.store(held_up, Ordering::Relaxed);
            self.pause
                .store(1 << (2 * held_up / HELD_UP), Ordering::Relaxed);
        }
        is_held_up
    }

    /// Polls until `step` says that it is done, or nothing has moved for the budget
    pub(crate) fn until(&self, mut step: impl FnMut() -> (bool, Look)) -> bool {
        // The clock is first read when the first step was in vain: most steps are not.
        let mut times = None;
        loop {
            let (done, look) = step();
            if done {
                self.misses.store(0, Ordering::Relaxed);
                let held_up = self.held_up.load(Ordering::Relaxed);
                if held_up > 0 {
                    self.held_up.store(held_up - 1, Ordering::Relaxed);
                }
                return true;
            }
            std::hint::spin_loop();
            let now = Instant::now();
            let (started, idle_since) = times.get_or_insert((now, now));
            if look.moved {
                *idle_since = now;
            }
            if now - *idle_since >= YIELD_AFTER {
                // The peer may have been woken on this very CPU, and wait for us to leave it.
                std::thread::yield_now();
                if self.note_held_up(now.elapsed()) {
                    return step().0;
                }
            }
            if now - *idle_since >= self.budget + look.awaits || now - *started >= TRANSFER_MAX {
                self.miss();
                return false;
            }
        }
    }

    /// How long polling goes on without anything moving
    pub(crate) fn budget(&self) -> Duration {
        self.budget
    }
}

/// Polls in vain before polling becomes rare
const MISSES_FREE: u32 = 4;

/// Longest pause, in waits
const PAUSE_MAX: u32 = 1024;

/// Polling longer than this gives way to other threads that want the CPU
///
/// The kernel likes to run a thread where it was woken from; a poll that never yields would keep
/// the peer from answering until the poll has failed.
const YIELD_AFTER: Duration = Duration::from_micros(5);

/// Factor of the polling time of a patient policy over that for an answer of the peer: the peer
/// asks another process, and that may have a thread of its own to ask; or the peer is a program,
/// between a result and its use
const PATIENCE: u32 = 4;

/// More than processes of one job mostly keep a CPU for between two waits, less than a time slice
const HELD_UP_MAX: Duration = Duration::from_micros(500);

/// Polls that have to pay until one that was held up is forgotten
///
/// Waits without polling are 4 after the first, as a worker may have much to do at once, and four
/// times as many after each that follows: beside unrelated processes that is every other poll.
const HELD_UP: u32 = 8;

/// Most that are remembered: 1024 waits
const HELD_UP_MOST: u32 = 5 * HELD_UP;

/// Longest time that a caller moves data itself; the engine goes on from there
const TRANSFER_MAX: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits until one polls again
    fn waits_until_one_polls(policy: &SpinPolicy) -> u32 {
        (0..).find(|_| policy.take_turn()).expect("some wait polls")
    }

    #[test]
    fn polls_in_vain_become_rare_until_one_pays() {
        let policy = SpinPolicy::new(Duration::from_nanos(1));
        for _ in 0..=MISSES_FREE {
            assert_eq!(waits_until_one_polls(&policy), 0);
            assert!(!policy.until(|| (false, Look::default())));
        }
        assert_eq!(waits_until_one_polls(&policy), 2);
        assert!(!policy.until(|| (false, Look::default())));
        assert_eq!(waits_until_one_polls(&policy), 4);
        assert!(policy.until(|| (true, Look::default())));
        assert_eq!(waits_until_one_polls(&policy), 0);
    }

    #[test]
    fn patient_polls_that_are_kept_from_the_cpu_become_rare_until_some_pay() {
        let policy = SpinPolicy::patient(Duration::from_micros(100));
        assert!(!policy.note_held_up(HELD_UP_MAX / 2));
        assert_eq!(waits_until_one_polls(&policy), 0);
        for waits in [4, 16, 64, 256, 1024, 1024] {
            assert!(policy.note_held_up(HELD_UP_MAX));
            assert_eq!(waits_until_one_polls(&policy), waits);
        }
        for _ in 0..HELD_UP_MOST {
            assert!(policy.until(|| (true, Look::default())));
        }
        assert!(policy.note_held_up(HELD_UP_MAX));
        assert_eq!(waits_until_one_polls(&policy), 4);
        // Others wait for a peer that may be copying on this very CPU.
        let policy = SpinPolicy::new(Duration::from_micros(100));
        assert!(!policy.note_held_up(Duration::from_secs(1)));
    }
}
