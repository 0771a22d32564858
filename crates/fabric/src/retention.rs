//! Retention policy: how much free memory an arena keeps, by demand and by shortage
//!
//! A freed block is worth its pages if a block of its size is taken soon after, since new pages cost
//! a page fault and zeroes for each. It costs memory that the process would not have otherwise. The
//! policy keeps free blocks only
//!
//! 1. below the most that the process used within the last [`RetentionConfig::window`], so that free
//!    blocks never make the process larger than its use has made it lately;
//! 2. up to the bytes that were taken within that time: a process that allocates little reuses
//!    little;
//! 3. below [`RetentionConfig::limit_bytes`] of the whole process;
//! 4. while the host has memory.
//!
//! A floor is exempt from 1 and 2, until nothing has been taken for
//! [`RetentionConfig::idle`]. No I/O, no clock.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use backhaul_shm::arena::{Demand, Kept};

/// Bounds and times of a [`Retention`]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetentionConfig {
    /// Memory of the process above which it keeps no free blocks; `usize::MAX` for none
    pub(crate) limit_bytes: usize,
    /// Free blocks that are kept whatever the demand is
    pub(crate) floor_bytes: usize,
    /// Time for which a peak counts as demand
    pub(crate) window: Duration,
    /// The floor is 0 once nothing has been taken for so long
    pub(crate) idle: Duration,
}

/// Chooses how much free memory an arena keeps
#[derive(Debug)]
pub(crate) struct Retention {
    config: RetentionConfig,
    /// By time, of the last window
    looks: VecDeque<Look>,
    /// When a block was taken last, as far as looks tell
    taken_at: Option<Instant>,
}

/// Use of the process between two looks
#[derive(Clone, Copy, Debug)]
struct Look {
    at: Instant,
    /// Memory outside the arena and the most of the arena that was in use
    peak_bytes: usize,
    /// Most of the arena that was in use
    arena_peak_bytes: usize,
    taken_bytes: usize,
}

impl Retention {
    /// Creates a policy that has seen no demand
    pub(crate) fn new(config: RetentionConfig) -> Self {
        Self {
            config,
            looks: VecDeque::new(),
            taken_at: None,
        }
    }

    /// Handles a look at the process, returning how much the arena keeps until the next one
    ///
    /// `outside_bytes` is the memory of the process outside the arena, and `is_host_short` tells
    /// whether the host or the control group has hardly any memory left.
    pub(crate) fn handle_look(
        &mut self,
        now: Instant,
        demand: Demand,
        outside_bytes: usize,
        is_host_short: bool,
    ) -> Kept {
        let Demand {
            used_bytes,
            used_peak_bytes,
            taken_bytes,
        } = demand;
        if taken_bytes > 0 || self.taken_at.is_none() {
            self.taken_at = Some(now);
        }
        self.looks.push_back(Look {
            at: now,
            peak_bytes: outside_bytes.saturating_add(used_peak_bytes),
            arena_peak_bytes: used_peak_bytes,
            taken_bytes,
        });
        while self
            .looks
            .front()
            .is_some_and(|look| now.saturating_duration_since(look.at) >= self.config.window)
        {
            self.looks.pop_front();
        }
        let left_bytes = self
            .config
            .limit_bytes
            .saturating_sub(outside_bytes)
            .saturating_sub(used_bytes);
        if is_host_short || left_bytes == 0 {
            return Kept {
                committed_bytes: 0,
                floor_bytes: 0,
            };
        }
        let most = |of: fn(&Look) -> usize| self.looks.iter().map(of).max().unwrap_or(0);
        let taken_bytes = self
            .looks
            .iter()
            .fold(0_usize, |sum, look| sum.saturating_add(look.taken_bytes));
        let demanded_bytes = most(|look| look.arena_peak_bytes)
            .min(most(|look| look.peak_bytes).saturating_sub(outside_bytes))
            .saturating_sub(used_bytes)
            .min(taken_bytes)
            .min(left_bytes);
        let is_idle = self
            .taken_at
            .is_some_and(|at| now.saturating_duration_since(at) >= self.config.idle);
        let floor_bytes = if is_idle { 0 } else { self.config.floor_bytes };
        Kept {
            committed_bytes: used_bytes + demanded_bytes,
            floor_bytes: floor_bytes.min(left_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;
    const LOOK: Duration = Duration::from_millis(100);

    /// A process without limits, and the time that has passed
    struct Simulated {
        retention: Retention,
        now: Instant,
        outside_bytes: usize,
        is_host_short: bool,
    }

    impl Simulated {
        fn new(limit_bytes: usize) -> Self {
            Self {
                retention: Retention::new(RetentionConfig {
                    limit_bytes,
                    floor_bytes: 16 * MIB,
                    window: Duration::from_secs(1),
                    idle: Duration::from_secs(10),
                }),
                now: Instant::now(),
                outside_bytes: 100 * MIB,
                is_host_short: false,
            }
        }

        /// Looks after 100 ms in which so many MiB were in use at most, are now, and were taken
        fn look(&mut self, peak: usize, used: usize, taken: usize) -> (usize, usize) {
            self.now += LOOK;
            let demand = Demand {
                used_bytes: used * MIB,
                used_peak_bytes: peak * MIB,
                taken_bytes: taken * MIB,
            };
            let kept = self.retention.handle_look(
                self.now,
                demand,
                self.outside_bytes,
                self.is_host_short,
            );
            (kept.committed_bytes / MIB, kept.floor_bytes / MIB)
        }
    }

    #[test]
    fn recent_peak_is_kept_for_one_window() {
        let mut process = Simulated::new(usize::MAX);
        assert_eq!(process.look(500, 20, 900), (500, 16));
        for _ in 0..9 {
            assert_eq!(process.look(20, 20, 0), (500, 16));
        }
        // A second after the peak all but the floor goes.
        assert_eq!(process.look(20, 20, 0), (20, 16));
    }

    #[test]
    fn steady_demand_keeps_its_peak() {
        let mut process = Simulated::new(usize::MAX);
        for _ in 0..100 {
            assert_eq!(process.look(300, 100, 400), (300, 16));
        }
    }

    #[test]
    fn process_that_takes_little_keeps_little() {
        let mut process = Simulated::new(usize::MAX);
        assert_eq!(process.look(500, 500, 500), (500, 16));
        for _ in 0..10 {
            process.look(500, 500, 1);
        }
        // The memory that is freed now was not asked for in the last second.
        assert_eq!(process.look(500, 50, 1), (60, 16));
    }

    #[test]
    fn floor_goes_once_nothing_is_taken() {
        let mut process = Simulated::new(usize::MAX);
        process.look(50, 0, 50);
        for _ in 0..99 {
            assert_eq!(process.look(0, 0, 0).1, 16);
        }
        assert_eq!(process.look(0, 0, 0), (0, 0));
        assert_eq!(process.look(5, 5, 5), (5, 16));
    }

    #[test]
    fn memory_outside_takes_the_place_of_free_blocks() {
        let mut process = Simulated::new(usize::MAX);
        assert_eq!(process.look(500, 100, 500), (500, 16));
        // The process as a whole does not exceed its peak of 600 MiB.
        process.outside_bytes = 300 * MIB;
        assert_eq!(process.look(100, 100, 10), (300, 16));
        process.outside_bytes = 600 * MIB;
        assert_eq!(process.look(100, 100, 10), (100, 16));
    }

    #[test]
    fn free_blocks_go_before_the_limit_is_reached() {
        let mut process = Simulated::new(400 * MIB);
        assert_eq!(process.look(200, 50, 500), (200, 16));
        assert_eq!(process.look(250, 250, 200), (250, 16));
        assert_eq!(process.look(290, 285, 200), (290, 15));
        process.outside_bytes = 110 * MIB;
        assert_eq!(process.look(290, 290, 10), (0, 0));
        // With room again, demand counts as before.
        assert_eq!(process.look(290, 100, 10), (290, 16));
    }

    #[test]
    fn host_without_memory_gets_everything() {
        let mut process = Simulated::new(usize::MAX);
        process.is_host_short = true;
        assert_eq!(process.look(500, 100, 500), (0, 0));
        process.is_host_short = false;
        assert_eq!(process.look(100, 100, 10), (500, 16));
    }
}
