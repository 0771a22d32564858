//! The last few messages of one link and class, and what is picked from them.

/// Measurement of one message
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    /// Bytes that it would have moved a second alone; infinite if its bytes were lent
    pub(super) bytes_per_s: f64,
    /// Time that it would have taken alone
    pub(super) seconds: f64,
    /// Bytes that moved
    pub(super) bytes: f64,
}

/// The last [`LAST`] messages
///
/// Noise is one-sided: a process without a processor makes a message slow, nothing makes it faster
/// than the link but a buffer on the way that empties at once, which one message can profit from.
/// So the second fastest is picked. After a change for the worse it is a new one when five have come
/// since, after one for the better when two have.
#[derive(Clone, Debug, Default)]
pub(super) struct Ring {
    samples: [Sample; LAST],
    /// Where the next one goes
    next: usize,
    /// How many came, as far as it is counted
    count: u32,
}

impl Ring {
    pub(super) fn push(&mut self, sample: Sample) {
        self.samples[self.next] = sample;
        self.next = (self.next + 1) % LAST;
        self.count = self.count.saturating_add(1);
    }

    /// How many messages came, as far as it is counted
    pub(super) const fn count(&self) -> u32 {
        self.count
    }

    /// Returns whether most of the last messages were lent
    pub(super) fn is_lent(&self) -> bool {
        let kept = self.kept();
        let lent = kept
            .iter()
            .filter(|sample| sample.bytes_per_s.is_infinite());
        2 * lent.count() > kept.len()
    }

    /// Bytes a second of the second fastest, or of the only one; of those that moved, unless most
    /// were lent
    pub(super) fn bytes_per_s(&self) -> Option<f64> {
        if self.is_lent() {
            return Some(f64::INFINITY);
        }
        let rates = self.kept().iter().map(|sample| sample.bytes_per_s);
        second(rates.filter(|rate| rate.is_finite()).map(|rate| -rate)).map(|rate| -rate)
    }

    /// The second shortest time beyond that of the bytes at a bandwidth
    pub(super) fn latency_s(&self, bytes_per_s: f64) -> Option<f64> {
        let lent = self.is_lent();
        let samples = self.kept().iter();
        let of_kind = samples.filter(|sample| sample.bytes_per_s.is_infinite() == lent);
        second(of_kind.map(|sample| (sample.seconds - sample.bytes / bytes_per_s).max(0.0)))
    }

    fn kept(&self) -> &[Sample] {
        &self.samples[..(self.count as usize).min(LAST)]
    }
}

/// The second smallest of at most [`LAST`] numbers, or the only one
fn second(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let (mut first, mut second) = (None, None);
    for number in numbers {
        if first.is_none_or(|least| number < least) {
            second = first.replace(number);
        } else if second.is_none_or(|next| number < next) {
            second = Some(number);
        }
    }
    second.or(first)
}

/// How many messages are kept
pub(super) const LAST: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(bytes_per_s: f64) -> Sample {
        Sample {
            bytes_per_s,
            seconds: 1e6 / bytes_per_s,
            bytes: 1e6,
        }
    }

    #[test]
    fn the_second_fastest_of_the_last_six_is_picked() {
        let mut ring = Ring::default();
        assert_eq!(ring.bytes_per_s(), None);
        for (rate, picked) in [
            (50.0, 50.0),
            (90.0, 50.0),
            (80.0, 80.0),
            (10.0, 80.0),
            (20.0, 80.0),
            (30.0, 80.0),
            (40.0, 80.0),
            // 90 is forgotten, then 80.
            (40.0, 40.0),
            (41.0, 40.0),
        ] {
            ring.push(moved(rate));
            assert_eq!(ring.bytes_per_s(), Some(picked), "after {rate}");
        }
        assert_eq!(ring.count(), 9);
    }

    #[test]
    fn a_link_that_mostly_lends_has_no_bandwidth_but_a_latency() {
        let mut ring = Ring::default();
        let lent = |seconds| Sample {
            bytes_per_s: f64::INFINITY,
            seconds,
            bytes: 0.0,
        };
        ring.push(moved(100.0));
        ring.push(lent(3e-5));
        assert_eq!(ring.bytes_per_s(), Some(100.0));
        ring.push(lent(1e-5));
        ring.push(lent(2e-5));
        assert_eq!(ring.bytes_per_s(), Some(f64::INFINITY));
        assert_eq!(ring.latency_s(f64::INFINITY), Some(2e-5));
    }
}
