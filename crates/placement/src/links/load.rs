//! Load of a NIC by other processes.
//!
//! A receiver sees the messages of its own process alone. The bytes that the others receive at that
//! time, or what the same host sends to others, only the scheduler can tell, from the bytes and the
//! busy time that reports bring: for the time between two of them, not for one message. So it is an
//! estimate of a likely load: a process that was busy for half of the time counts as present for
//! half of any message.

/// Average load of a NIC in one direction
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Load {
    /// How many are busy
    pub(super) busy: f64,
    /// Bytes a second
    pub(super) bytes_per_s: f64,
}

impl Load {
    pub(super) fn add(&mut self, other: Self) {
        self.busy += other.busy;
        self.bytes_per_s += other.bytes_per_s;
    }

    /// Takes away what was added; what rounding leaves is no load
    pub(super) fn take_away(&mut self, other: Self) {
        self.busy = (self.busy - other.busy).max(0.0);
        self.bytes_per_s = (self.bytes_per_s - other.bytes_per_s).max(0.0);
    }

    pub(super) fn less(mut self, other: Self) -> Self {
        self.take_away(other);
        self
    }
}

/// Amounts that one process received from another one, since both started
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Bytes of messages that are timed, without those that were lent
    pub moved_bytes: u64,
    /// Time in which any of these messages were on their way, in seconds
    pub busy_s: f64,
}

/// Amounts that came between two reports
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Window {
    pub(super) load: Load,
    /// Bytes a second while it was busy
    pub(super) while_busy: f64,
}

impl Window {
    /// `None` if too little came to tell, or counts went backwards
    pub(super) fn between(before: Traffic, after: Traffic, window_s: f64) -> Option<Self> {
        let bytes = after.moved_bytes.checked_sub(before.moved_bytes)?;
        let busy_s = after.busy_s - before.busy_s;
        if bytes < BYTES_MIN || busy_s.is_nan() || busy_s <= 0.0 || window_s <= 0.0 {
            return None;
        }
        let while_busy = bytes as f64 / busy_s;
        // A message that began long ago counts when it ends.
        let busy = (busy_s / window_s).min(1.0);
        Some(Self {
            load: Load {
                busy,
                bytes_per_s: while_busy * busy,
            },
            while_busy,
        })
    }

    /// Bytes a second that it would have had without the others
    ///
    /// As [`super::NicClock`] has it: who got much less than an equal part was held up elsewhere, and
    /// no process is faster than all together.
    pub(super) fn alone(&self, others: Load) -> f64 {
        let all = self.while_busy + others.bytes_per_s;
        let sharers = 1.0 + others.busy;
        if all > EQUAL_ENOUGH * sharers * self.while_busy {
            return self.while_busy;
        }
        all.min(sharers * self.while_busy)
    }
}

/// Less says nothing of a bandwidth
pub(super) const BYTES_MIN: u64 = 1 << 20;

/// As in `nic.rs`
const EQUAL_ENOUGH: f64 = 1.5;

/// Reports that follow each other faster than this are one, in seconds
pub(super) const WINDOW_S_MIN: f64 = 0.25;

#[cfg(test)]
mod tests {
    use super::*;

    fn traffic(moved_bytes: u64, busy_s: f64) -> Traffic {
        Traffic {
            moved_bytes,
            busy_s,
        }
    }

    #[test]
    fn four_that_were_busy_all_the_time_had_a_quarter_each() {
        let window = Window::between(traffic(0, 0.0), traffic(15_625_000, 0.5), 0.5)
            .expect("enough has come");
        assert_eq!(window.load.busy, 1.0);
        let mut others = Load::default();
        for _ in 0..3 {
            others.add(window.load);
        }
        assert_eq!(window.alone(others), 1.25e8);
        assert_eq!(window.alone(Load::default()), 31_250_000.0);
        assert_eq!(others.less(others), Load::default());
    }

    #[test]
    fn who_is_slow_for_itself_stays_slow_beside_others() {
        let slow = Window::between(traffic(0, 0.0), traffic(2_000_000, 1.0), 1.0).expect("enough");
        let others = Load {
            busy: 1.0,
            bytes_per_s: 1e8,
        };
        assert_eq!(slow.alone(others), 2e6);
    }

    #[test]
    fn too_little_and_counts_that_go_backwards_say_nothing() {
        let before = traffic(10_000_000, 1.0);
        for after in [
            before,
            traffic(10_000_100, 1.1),
            traffic(5, 2.0),
            traffic(20_000_000, 0.5),
            traffic(20_000_000, f64::NAN),
        ] {
            assert_eq!(Window::between(before, after, 1.0), None, "{after:?}");
        }
        assert_eq!(Window::between(before, traffic(20_000_000, 2.0), 0.0), None);
    }

    #[test]
    fn a_message_that_took_longer_than_the_window_was_there_all_the_time() {
        let long = Window::between(traffic(0, 0.0), traffic(1_000_000_000, 8.0), 0.5).expect("it");
        assert_eq!(long.load.busy, 1.0);
        assert_eq!(long.load.bytes_per_s, 1.25e8);
    }
}
