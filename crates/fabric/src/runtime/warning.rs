//! Warnings that could come a thousand times a second: one is written now and then.

use std::num::NonZeroU64;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::lock;

/// Says which of the warnings of one kind are written
#[derive(Debug, Default)]
pub(crate) struct RepeatedWarning(Mutex<Count>);

#[derive(Debug, Default)]
struct Count {
    written_at: Option<Instant>,
    left_out: u64,
}

impl RepeatedWarning {
    /// Returns whether to write a warning now, and how many were left out before it
    ///
    /// The count is `None` where it is zero, so that `tracing` writes no field of it.
    pub(crate) fn admit(&self, now: Instant) -> Option<Option<NonZeroU64>> {
        let mut count = lock(&self.0);
        let is_recent = |at: Instant| now.saturating_duration_since(at) < INTERVAL;
        if count.written_at.is_some_and(is_recent) {
            count.left_out += 1;
            return None;
        }
        count.written_at = Some(now);
        Some(NonZeroU64::new(std::mem::take(&mut count.left_out)))
    }
}

/// Time between two warnings of one kind: a log stays readable, and shows that it goes on
const INTERVAL: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_warning_in_ten_seconds_is_written_and_the_others_are_counted() {
        let warning = RepeatedWarning::default();
        let now = Instant::now();
        assert_eq!(warning.admit(now), Some(None));
        for _ in 0..1000 {
            assert_eq!(warning.admit(now + INTERVAL / 2), None);
        }
        assert_eq!(warning.admit(now + INTERVAL), Some(NonZeroU64::new(1000)));
        assert_eq!(warning.admit(now + INTERVAL), None);
    }
}
