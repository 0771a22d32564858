//! Which way copies within a device take, by how long they took.
//!
//! A device that other processes use, too, may keep a copy waiting until it has turned to ours:
//! then the way by the host is faster, and otherwise it is slower. No interface reports which case
//! applies, so both ways are measured, for each size, and again from time to time.

use std::time::Duration;

/// A way from one place of a device to another
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Way {
    /// As the device copies it
    Direct,
    /// Through memory of the host
    ByHost,
}

/// Measurements of each way
#[derive(Debug, Default)]
pub(super) struct Ways {
    /// By the power of two below the size
    sizes: Vec<Times>,
    /// The way by the host has failed
    is_direct_only: bool,
}

#[derive(Clone, Debug, Default)]
struct Times {
    direct: Last,
    by_host: Last,
    chosen: u32,
}

/// How long the last copies took, of which the shortest counts: a thread that was kept from looking makes
/// others longer
#[derive(Clone, Debug, Default)]
struct Last {
    times: [Duration; SAMPLES],
    count: usize,
}

impl Ways {
    /// The way that a copy of so many bytes is to take
    pub(super) fn choose(&mut self, bytes: u64) -> Way {
        if self.is_direct_only {
            return Way::Direct;
        }
        let times = self.times(bytes);
        match times.direct.shortest() {
            Some(direct) if direct > QUICK => {}
            _ => return Way::Direct,
        }
        let faster = match times.by_host.shortest() {
            Some(by_host) if by_host >= times.direct.shortest().unwrap_or_default() => Way::Direct,
            _ => Way::ByHost,
        };
        times.chosen += 1;
        if !times.chosen.is_multiple_of(LOOK_EVERY) {
            return faster;
        }
        match faster {
            Way::Direct => Way::ByHost,
            Way::ByHost => Way::Direct,
        }
    }

    /// A copy took so long
    pub(super) fn learn(&mut self, way: Way, bytes: u64, took: Duration) {
        let times = self.times(bytes);
        match way {
            Way::Direct => times.direct.add(took),
            Way::ByHost => times.by_host.add(took),
        }
    }

    /// A copy took longer than this; what is no news is not learned
    pub(super) fn learn_at_least(&mut self, way: Way, bytes: u64, took: Duration) {
        let times = self.times(bytes);
        let last = match way {
            Way::Direct => &times.direct,
            Way::ByHost => &times.by_host,
        };
        if took > last.shortest().unwrap_or(QUICK) {
            self.learn(way, bytes, took);
        }
    }

    /// The way by the host cannot be taken
    pub(super) fn forbid_host(&mut self) {
        self.is_direct_only = true;
    }

    fn times(&mut self, bytes: u64) -> &mut Times {
        let index = bytes.max(1).ilog2() as usize;
        if index >= self.sizes.len() {
            self.sizes.resize(index + 1, Times::default());
        }
        &mut self.sizes[index]
    }
}

impl Last {
    fn add(&mut self, took: Duration) {
        self.times[self.count % SAMPLES] = took;
        self.count += 1;
    }

    /// `None` until there are enough
    fn shortest(&self) -> Option<Duration> {
        let times = self.times.iter().min().copied();
        times.filter(|_| self.count >= SAMPLES)
    }
}

/// A copy that took no longer met nothing on its way (H100: 12 us, and 25 us by way of the host at least)
const QUICK: Duration = Duration::from_micros(60);

/// How many of the last copies count
const SAMPLES: usize = 3;

/// One of so many takes the other way
const LOOK_EVERY: u32 = 128;

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn learn_all(ways: &mut Ways, way: Way, times_us: [u64; SAMPLES]) {
        for took in times_us.map(Duration::from_micros) {
            ways.learn(way, MIB, took);
        }
    }

    /// How many of so many copies would go by the host
    fn chosen(ways: &mut Ways, count: u32) -> u32 {
        (0..count)
            .map(|_| u32::from(ways.choose(MIB) == Way::ByHost))
            .sum()
    }

    #[test]
    fn where_nothing_is_in_the_way_copies_are_direct() {
        let mut ways = Ways::default();
        assert_eq!(ways.choose(MIB), Way::Direct);
        // Two late looks.
        learn_all(&mut ways, Way::Direct, [300, 12, 4000]);
        assert_eq!(chosen(&mut ways, 1000), 0);
    }

    #[test]
    fn where_the_device_has_to_turn_they_go_by_the_host_and_one_looks_again() {
        let mut ways = Ways::default();
        learn_all(&mut ways, Way::Direct, [150, 155, 149]);
        assert_eq!(chosen(&mut ways, 2), 2);
        learn_all(&mut ways, Way::ByHost, [50, 49, 51]);
        assert_eq!(chosen(&mut ways, LOOK_EVERY), LOOK_EVERY - 1);
        // The other process has left the device.
        ways.learn(Way::Direct, MIB, Duration::from_micros(12));
        assert_eq!(chosen(&mut ways, 1000), 0);
    }

    #[test]
    fn a_longer_way_by_the_host_is_not_taken_but_to_look_again() {
        let mut ways = Ways::default();
        learn_all(&mut ways, Way::Direct, [150, 155, 149]);
        learn_all(&mut ways, Way::ByHost, [170, 180, 175]);
        assert_eq!(chosen(&mut ways, 2 * LOOK_EVERY), 2);
    }

    #[test]
    fn a_way_that_has_become_so_long_that_nobody_waits_awake_is_left() {
        let mut ways = Ways::default();
        learn_all(&mut ways, Way::Direct, [150, 155, 149]);
        learn_all(&mut ways, Way::ByHost, [50, 49, 51]);
        // A caller that sleeps immediately gives no measurement.
        for _ in 0..SAMPLES {
            ways.learn_at_least(Way::ByHost, MIB, Duration::from_micros(3));
        }
        assert_eq!(chosen(&mut ways, 10), 10);
        for _ in 0..SAMPLES {
            ways.learn_at_least(Way::ByHost, MIB, Duration::from_micros(350));
        }
        assert_eq!(chosen(&mut ways, 10), 0);
    }

    #[test]
    fn each_size_is_known_by_itself() {
        let mut ways = Ways::default();
        learn_all(&mut ways, Way::Direct, [150, 155, 149]);
        assert_eq!(
            [8, MIB, 4 * MIB].map(|bytes| ways.choose(bytes) == Way::ByHost),
            [false, true, false]
        );
        ways.forbid_host();
        assert_eq!(ways.choose(MIB), Way::Direct);
    }
}
