//! Time that is divided equally among what is going on.

use std::time::{Duration, Instant};

/// Divides time equally among what is going on
///
/// Parts that overlap add up to the time in which anything went on. A clock that jumps
/// back adds nothing.
#[derive(Debug)]
pub struct BusyClock {
    /// Number of operations under way
    active: u32,
    /// The time of one that would have been going on for ever
    share: Duration,
    /// When `share` was right
    at: Instant,
}

impl BusyClock {
    /// A clock on which nothing goes on
    #[must_use]
    pub const fn new(now: Instant) -> Self {
        Self {
            active: 0,
            share: Duration::ZERO,
            at: now,
        }
    }

    /// Something begins; returns what [`BusyClock::end`] must be given
    pub fn begin(&mut self, now: Instant) -> Duration {
        self.advance(now);
        self.active += 1;
        self.share
    }

    /// It ends; returns its part of the time since then
    ///
    /// # Panics
    ///
    /// If nothing goes on.
    pub fn end(&mut self, now: Instant, began: Duration) -> Duration {
        self.advance(now);
        assert!(self.active > 0, "what ends has begun");
        self.active -= 1;
        self.share.saturating_sub(began)
    }

    /// How many go on
    #[must_use]
    pub const fn active(&self) -> u32 {
        self.active
    }

    fn advance(&mut self, now: Instant) {
        if self.active > 0 {
            self.share += now.saturating_duration_since(self.at) / self.active;
        }
        self.at = self.at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_messages_share_time_that_is_counted_once() {
        let start = Instant::now();
        let at = |micros| start + Duration::from_micros(micros);
        let mut clock = BusyClock::new(start);
        // One alone for 10, two for 20, the second alone for 5; then nothing for 65; then one for 40.
        let first = clock.begin(at(100));
        let second = clock.begin(at(110));
        assert_eq!(clock.end(at(130), first), Duration::from_micros(20));
        assert_eq!(clock.end(at(135), second), Duration::from_micros(15));
        let third = clock.begin(at(200));
        assert_eq!(clock.end(at(240), third), Duration::from_micros(40));
    }

    #[test]
    fn two_mebibytes_in_a_tenth_of_a_millisecond_are_20_gigabytes_a_second() {
        // No time is too short to be believed: there is no floor.
        let start = Instant::now();
        let mut clock = BusyClock::new(start);
        let began = clock.begin(start);
        let took = clock.end(start + Duration::from_micros(100), began);
        assert_eq!(took, Duration::from_micros(100));
    }

    #[test]
    fn a_clock_that_jumps_back_adds_nothing() {
        let start = Instant::now();
        let at = |micros| start + Duration::from_micros(micros);
        let mut clock = BusyClock::new(start);
        let began = clock.begin(at(100));
        let other = clock.begin(at(20));
        assert_eq!(clock.end(at(10), other), Duration::ZERO);
        assert_eq!(clock.end(at(130), began), Duration::from_micros(30));
    }

    #[test]
    fn shares_add_up_to_the_time_in_which_anything_went_on() {
        // A fixed but irregular sequence of beginnings and ends, against a count by the microsecond.
        let start = Instant::now();
        let mut clock = BusyClock::new(start);
        let mut going_on = Vec::new();
        let (mut total, mut busy, mut seed) = (Duration::ZERO, 0_u32, 7_u32);
        for micros in 0..2000 {
            let now = start + Duration::from_micros(micros);
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            match seed >> 30 {
                0 => going_on.push(clock.begin(now)),
                1 if !going_on.is_empty() => {
                    let began = going_on.swap_remove((seed >> 8) as usize % going_on.len());
                    total += clock.end(now, began);
                }
                _ => {}
            }
            busy += u32::from(!going_on.is_empty());
        }
        let end = start + Duration::from_micros(2000);
        for began in going_on {
            total += clock.end(end, began);
        }
        let busy = Duration::from_micros(busy.into());
        // Each division may lose a nanosecond for each that goes on.
        assert!(busy.abs_diff(total) < busy / 100, "{total:?} of {busy:?}");
    }
}
