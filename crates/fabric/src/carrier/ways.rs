//! Which way long private messages come, learned from how long they took.
//!
//! Between two processes of one host there are three ways for a message in private memory: through
//! the lane (two copies that overlap), one copy straight out of the sender's memory, or one copy
//! into memory that can be lent. Which one is faster depends on the two CPUs, on the size and on
//! the kernel, so the receiver, who can time all three from the same moment (when it is ready for
//! the bytes) to the same moment (when the last is in its place), tries them in use and keeps to the
//! fastest, by size. Now and then it tries another one again: processes move between CPUs. A way is
//! tried several times in a row, and the first times do not count: the caches still hold what the way
//! before it left there, and a ring that was not used lately takes twice its time.
//!
//! Shorter messages need not be announced, and these are compared by more than their copies
//! ([`super::announcing`]); one that is announced all the same does not come through the lane.

use std::time::Duration;

use super::announcing::{Advice, InPlace};

/// A way for a long private message
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Way {
    /// In frames, through the lane
    Lane,
    /// Read once from the sender's memory
    Fetch,
    /// Copied once by the sender, and lent
    CopyAndLend,
}

/// Measurements of the ways from one peer
#[derive(Debug)]
pub struct Ways {
    classes: [Class; CLASSES],
    /// Of those that need not be announced
    advice: Advice,
    /// Reading the sender's memory does not work
    is_fetch_forbidden: bool,
    /// Longest message that the peer sends eagerly: as long as ours, unless it has sent a longer one
    eager_bytes_max: u64,
}

/// Measurements of one size
#[derive(Clone, Copy, Debug, Default)]
struct Class {
    samples: [Samples; 3],
    /// The way that is being tried, and for how many more messages
    trial: Option<(Way, u32)>,
    /// Messages until another way is tried again
    until_trial: u32,
    /// Messages from one trial to the next
    pause: u32,
    /// Trials that there were, to have each way's turn come
    trials: u32,
    /// The way of the last messages, and how many came it in a row
    run: Option<(Way, u32)>,
}

/// The last times of one way, in nanoseconds for each KiB
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Samples {
    nanos_per_kib: [u32; KEPT],
    count: u32,
}

/// Measurements of one way for one size, for reports
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct WayStatistics {
    /// The way
    pub way: Way,
    /// Smallest message of the class, in bytes
    pub bytes_min: u64,
    /// Messages timed
    pub samples: u32,
    /// Median of the last times, as bytes per second
    pub bytes_per_second: f64,
    /// True if messages of the class come this way now
    pub is_chosen: bool,
}

impl Way {
    /// All of them
    pub const ALL: [Self; 3] = [Self::Lane, Self::Fetch, Self::CopyAndLend];

    /// Name in reports
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lane => "lane",
            Self::Fetch => "single copy",
            Self::CopyAndLend => "copy and lend",
        }
    }

    const fn index(self) -> usize {
        match self {
            Self::Lane => 0,
            Self::Fetch => 1,
            Self::CopyAndLend => 2,
        }
    }
}

impl Ways {
    /// Begins with nothing known; `eager_bytes_max` is the longest message that this side sends
    /// eagerly
    #[must_use]
    pub fn new(eager_bytes_max: u64) -> Self {
        Self {
            classes: Default::default(),
            advice: Advice::default(),
            is_fetch_forbidden: false,
            eager_bytes_max,
        }
    }

    /// Chooses a way for a message of so many bytes that was announced; `may_lend`: it may be lent
    pub fn choose(&mut self, bytes: u64, may_lend: bool) -> Way {
        let is_fetch_forbidden = self.is_fetch_forbidden;
        let eager_bytes_max = self.eager_bytes_max;
        let class = &mut self.classes[class_of(bytes)];
        let is_possible = |way: &Way| match way {
            // It could have come through the lane without being announced.
            Way::Lane => bytes > eager_bytes_max || is_fetch_forbidden,
            Way::Fetch => !is_fetch_forbidden,
            Way::CopyAndLend => may_lend,
        };
        let possible = || Way::ALL.into_iter().filter(is_possible);
        if let Some((way, left)) = class.trial {
            class.trial = (left > 1).then_some((way, left - 1));
            if is_possible(&way) {
                return way;
            }
        }
        let untried = possible().min_by_key(|way| class.samples[way.index()].count);
        if let Some(way) = untried.filter(|way| class.samples[way.index()].count < TRIALS) {
            return class.begin_trial(way);
        }
        let best = class.best(possible());
        class.until_trial = class.until_trial.saturating_sub(1);
        if class.until_trial > 0 {
            return best;
        }
        let others = || possible().filter(|way| *way != best);
        let nth = class.trials as usize % others().count().max(1);
        let Some(other) = others().nth(nth) else {
            return best;
        };
        class.begin_pause(best, other);
        class.begin_trial(other)
    }

    /// From how many bytes on the sender should announce messages that could go eagerly; `None` if
    /// that is not known yet
    #[must_use]
    pub fn advice_bytes(&self) -> Option<u64> {
        if self.is_fetch_forbidden {
            return Some(self.eager_bytes_max.saturating_add(1));
        }
        self.advice.bytes()
    }

    /// Notes that a message is in its place, and how it came
    pub(crate) fn handle_in_place(&mut self, way: Way, message: &InPlace) {
        self.record(way, message.bytes, message.took);
        if !message.is_announced {
            self.eager_bytes_max = self.eager_bytes_max.max(message.bytes);
        }
        self.advice.record(message, self.eager_bytes_max);
    }

    /// Notes how long a message took
    pub fn record(&mut self, way: Way, bytes: u64, took: Duration) {
        let class = &mut self.classes[class_of(bytes)];
        let (_, length) = class.run.filter(|run| run.0 == way).unwrap_or((way, 0));
        class.run = Some((way, length.saturating_add(1)));
        if length < UNCOUNTED {
            return;
        }
        class.samples[way.index()].record(bytes, took);
    }

    /// Notes that reading the sender's memory does not work
    pub fn forbid_fetch(&mut self) {
        self.is_fetch_forbidden = true;
    }

    /// Which of the ways that were tried messages of a size come
    fn best_of(&self, index: usize, tried: &[Way]) -> Way {
        let bytes_min = bytes_min_of(index);
        let class = &self.classes[index];
        if bytes_min > self.eager_bytes_max {
            return class.best(tried.iter().copied());
        }
        let is_announced = self
            .advice_bytes()
            .is_some_and(|advice| bytes_min >= advice);
        let others = tried.iter().copied().filter(|way| *way != Way::Lane);
        if is_announced {
            class.best(others)
        } else {
            Way::Lane
        }
    }

    /// Returns the measurements, for reports; leaves out ways that were never tried
    #[must_use]
    pub fn statistics(&self) -> Vec<WayStatistics> {
        let mut all = Vec::new();
        for (index, class) in self.classes.iter().enumerate() {
            let tried = |way: &Way| class.samples[way.index()].count > 0;
            let tried: Vec<_> = Way::ALL.into_iter().filter(tried).collect();
            let best = self.best_of(index, &tried);
            all.extend(tried.into_iter().map(|way| {
                let samples = &class.samples[way.index()];
                let nanos = f64::from(samples.median().max(1));
                WayStatistics {
                    way,
                    bytes_min: bytes_min_of(index),
                    samples: samples.count,
                    bytes_per_second: 1024.0 * 1e9 / nanos,
                    is_chosen: way == best,
                }
            }));
        }
        all
    }
}

impl Class {
    fn best(&self, ways: impl Iterator<Item = Way>) -> Way {
        let median = |way: &Way| self.samples[way.index()].median();
        ways.min_by_key(median).unwrap_or(Way::Lane)
    }

    fn begin_trial(&mut self, way: Way) -> Way {
        self.trials = self.trials.wrapping_add(1);
        self.trial = Some((way, TRIAL - 1));
        way
    }

    /// Chooses when to try again: a way that was far slower is tried more and more rarely
    fn begin_pause(&mut self, best: Way, other: Way) {
        let nanos = |way: Way| u64::from(self.samples[way.index()].median());
        let is_far = 2 * nanos(other) > 3 * nanos(best);
        self.pause = if is_far {
            (2 * self.pause).clamp(TRY_AGAIN_EVERY, TRY_AGAIN_EVERY_MAX)
        } else {
            TRY_AGAIN_EVERY
        };
        self.until_trial = self.pause;
    }
}

impl Samples {
    /// Notes a time
    pub(super) fn record(&mut self, bytes: u64, took: Duration) {
        let kib = (bytes >> 10).max(1);
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX) / kib;
        let at = self.count as usize % KEPT;
        self.nanos_per_kib[at] = u32::try_from(nanos).unwrap_or(u32::MAX);
        self.count = self.count.saturating_add(1);
    }

    /// How many times were noted
    pub(super) const fn count(&self) -> u32 {
        self.count
    }

    /// The median of what is kept; without any, more than any
    pub(super) fn median(&self) -> u32 {
        let kept = (self.count as usize).min(KEPT);
        let mut sorted = self.nanos_per_kib;
        let sorted = &mut sorted[..kept];
        sorted.sort_unstable();
        sorted.get(kept / 2).copied().unwrap_or(u32::MAX)
    }
}

/// Sizes are classed by powers of two from 16 KiB; the last class has no upper end
pub(super) const fn class_of(bytes: u64) -> usize {
    let bits = (bytes | 1).ilog2().saturating_sub(CLASS_BITS_MIN) as usize;
    if bits < CLASSES { bits } else { CLASSES - 1 }
}

pub(super) const fn bytes_min_of(class: usize) -> u64 {
    1 << (CLASS_BITS_MIN + class as u32)
}

const CLASS_BITS_MIN: u32 = 14;
pub(super) const CLASSES: usize = 14;

/// Times kept of each way and size: a few, so that a change shows soon
const KEPT: usize = 5;

/// Times that each way must have counted before one is preferred
pub(super) const TRIALS: u32 = 3;

/// Messages at the beginning of a run that do not count
pub(super) const UNCOUNTED: u32 = 2;

/// Messages that come a way in a row when it is tried
pub(super) const TRIAL: u32 = UNCOUNTED + TRIALS;

/// Messages from one trial of another way than the fastest to the next
pub(super) const TRY_AGAIN_EVERY: u32 = 256;

/// The same, where the others are far slower
const TRY_AGAIN_EVERY_MAX: u32 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 1 << 20;
    const EAGER_BYTES_MAX: u64 = 64 << 10;

    /// Uses the ways `times` times, each taking what `cost` says, and counts those chosen
    fn used(ways: &mut Ways, times: u32, cost: impl Fn(Way) -> u64) -> [u32; 3] {
        let mut counts = [0; 3];
        for _ in 0..times {
            let way = ways.choose(BYTES, true);
            counts[way.index()] += 1;
            ways.record(way, BYTES, Duration::from_micros(cost(way)));
        }
        counts
    }

    #[test]
    fn the_fastest_way_is_found_and_kept_to() {
        for fastest in Way::ALL {
            let mut ways = Ways::new(EAGER_BYTES_MAX);
            let cost = |way| if way == fastest { 50 } else { 80 };
            used(&mut ways, 3 * TRIAL, cost);
            let counts = used(&mut ways, 1024, cost);
            assert!(counts[fastest.index()] >= 1000, "{fastest:?}: {counts:?}");
        }
    }

    #[test]
    fn what_a_way_leaves_in_the_caches_does_not_count_against_the_next() {
        let mut ways = Ways::new(EAGER_BYTES_MAX);
        let mut last = None;
        let mut counts = [0; 3];
        for _ in 0..2000 {
            let way = ways.choose(BYTES, true);
            counts[way.index()] += 1;
            let is_cold = last.replace(way) != Some(way);
            let took = [50, 60, 90][way.index()] * if is_cold { 4 } else { 1 };
            ways.record(way, BYTES, Duration::from_micros(took));
        }
        assert!(counts[Way::Lane.index()] > 1900, "{counts:?}");
    }

    #[test]
    fn a_way_that_is_far_slower_is_tried_rarely() {
        let mut ways = Ways::new(EAGER_BYTES_MAX);
        let counts = used(&mut ways, 100_000, |way| [50, 200, 200][way.index()]);
        let others = counts[Way::Fetch.index()] + counts[Way::CopyAndLend.index()];
        assert!((50..250).contains(&others), "{counts:?}");
    }

    #[test]
    fn a_way_that_becomes_faster_is_noticed() {
        let mut ways = Ways::new(EAGER_BYTES_MAX);
        used(&mut ways, 100, |way| [50, 60, 65][way.index()]);
        used(&mut ways, 1000, |way| [50, 20, 65][way.index()]);
        let counts = used(&mut ways, 100, |way| [50, 20, 65][way.index()]);
        assert!(counts[Way::Fetch.index()] > 90, "{counts:?}");
    }

    #[test]
    fn a_way_that_does_not_work_is_not_tried() {
        let mut ways = Ways::new(EAGER_BYTES_MAX);
        ways.forbid_fetch();
        for _ in 0..200 {
            let way = ways.choose(BYTES, false);
            assert_eq!(way, Way::Lane);
            ways.record(way, BYTES, Duration::from_micros(1));
        }
    }
}
