//! How long a caller polls before it sleeps, learned from whether polling has paid.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Bounded, adaptive polling
///
/// After [`MISSES_FREE`] polls in vain, fewer and fewer waits poll, until one finds what it waits
/// for. The counts steer effort and order nothing, hence `Relaxed`.
#[derive(Debug)]
pub(super) struct SpinPolicy {
    budget: Duration,
    /// Polls in vain since the last that paid
    misses: AtomicU32,
    /// Waits to let pass before one polls again
    pause: AtomicU32,
}

/// What a look at a connection came to
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Look {
    /// Bytes moved
    pub(super) moved: bool,
    /// The peer may be at work for so long without anything moving here
    pub(super) awaits: Duration,
}

impl SpinPolicy {
    pub(super) fn new(budget: Duration) -> Self {
        Self {
            budget,
            misses: AtomicU32::new(0),
            pause: AtomicU32::new(0),
        }
    }

    /// Whether to poll for this wait
    pub(super) fn allows(&self) -> bool {
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

    /// Polls until `step` says that it is done, or nothing has moved for the budget
    pub(super) fn until(&self, mut step: impl FnMut() -> (bool, Look)) -> bool {
        // The clock is first read when the first step was in vain: most steps are not.
        let mut times = None;
        loop {
            let (done, look) = step();
            if done {
                self.misses.store(0, Ordering::Relaxed);
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
            }
            if now - *idle_since >= self.budget + look.awaits || now - *started >= TRANSFER_MAX {
                self.miss();
                return false;
            }
        }
    }

    /// How long polling goes on without anything moving
    pub(super) fn budget(&self) -> Duration {
        self.budget
    }
}

/// Polls in vain before polling becomes rare
const MISSES_FREE: u32 = 4;

/// Longest pause, in waits
const PAUSE_MAX: u32 = 1024;

/// Polling longer than this gives way to whoever wants the CPU
///
/// The kernel likes to run a thread where it was woken from; a poll that never yields would keep
/// the peer from answering until the poll has failed.
const YIELD_AFTER: Duration = Duration::from_micros(5);

/// Longest time that a caller moves data itself; the engine goes on from there
const TRANSFER_MAX: Duration = Duration::from_millis(5);
