//! Estimates by one receiver for the link to one peer over one lane.

use thiserror::Error;

use super::class::{Memory, SizeClass, TIMED_BYTES_MIN};
use super::estimate::{BYTES_PER_S_MAX, BYTES_PER_S_MIN, Estimate, LATENCY_S_MAX, LinkEstimate};
use super::ring::{Ring, Sample};

/// Estimates of one link, by memory and class of sizes
///
/// Keeps a ring of the last messages of each class that came, a few hundred bytes.
#[derive(Clone, Debug, Default)]
pub struct Estimator {
    rings: Vec<(Memory, SizeClass, Ring)>,
    ignored: u32,
}

impl Estimator {
    /// Handles a message that came
    ///
    /// `bytes` are all of it, and `lent_bytes` those that were read where they lay: they say what a
    /// loan costs, not what the link can move. `seconds` is what it would have taken alone.
    ///
    /// # Errors
    ///
    /// [`SampleError`] if no link can have done that, as when a clock jumped. The message is
    /// counted in [`Estimator::ignored`], and nothing else changes.
    pub fn handle_message(
        &mut self,
        memory: Memory,
        bytes: u64,
        lent_bytes: u64,
        seconds: f64,
    ) -> Result<(), SampleError> {
        let sample = match sample(bytes, lent_bytes, seconds) {
            Ok(sample) => sample,
            Err(error) => {
                self.ignored = self.ignored.saturating_add(1);
                return Err(error);
            }
        };
        let class = SizeClass::of(bytes);
        let at = (memory, class);
        let place = self.rings.iter().position(|ring| (ring.0, ring.1) == at);
        let place = place.unwrap_or_else(|| {
            self.rings.push((memory, class, Ring::default()));
            self.rings.sort_by_key(|ring| (ring.0, ring.1));
            let place = self.rings.iter().position(|ring| (ring.0, ring.1) == at);
            place.expect("it has just been put there")
        });
        self.rings[place].2.push(sample);
        Ok(())
    }

    /// Returns the estimates, by memory and class
    pub fn estimates(&self) -> impl Iterator<Item = LinkEstimate> {
        self.rings.iter().enumerate().filter_map(|(place, ring)| {
            let &(memory, class, ref ring) = ring;
            let bytes_per_s = ring.bytes_per_s()?;
            // Time beyond that of the bytes: at the bandwidth of larger messages, as that of
            // the same ones has it in it.
            let larger = self.rings[place + 1..]
                .iter()
                .filter(|other| other.0 == memory && !ring.is_lent())
                .filter_map(|other| other.2.bytes_per_s())
                .find(|rate| rate.is_finite());
            let latency_s = match larger {
                Some(larger) => ring.latency_s(larger.max(bytes_per_s)),
                None if ring.is_lent() => ring.latency_s(f64::INFINITY),
                None => None,
            };
            let estimate = Estimate {
                bytes_per_s,
                latency_s: latency_s.unwrap_or(0.0).min(LATENCY_S_MAX),
                samples: ring.count(),
            };
            Some(LinkEstimate {
                memory,
                class,
                estimate,
            })
        })
    }

    /// Messages that were left out because no link can have moved them so
    #[must_use]
    pub const fn ignored(&self) -> u32 {
        self.ignored
    }
}

fn sample(bytes: u64, lent_bytes: u64, seconds: f64) -> Result<Sample, SampleError> {
    if lent_bytes > bytes {
        return Err(SampleError::Lent { bytes, lent_bytes });
    }
    if bytes < TIMED_BYTES_MIN {
        return Err(SampleError::Small { bytes });
    }
    if seconds.is_nan() || seconds <= 0.0 || seconds.is_infinite() {
        return Err(SampleError::Time { seconds });
    }
    let moved = (bytes - lent_bytes) as f64;
    // The headers beside what is lent move, but say nothing of the link.
    if lent_bytes > bytes / 2 && bytes - lent_bytes < TIMED_BYTES_MIN {
        return Ok(Sample {
            bytes_per_s: f64::INFINITY,
            seconds,
            bytes: moved,
        });
    }
    let bytes_per_s = moved / seconds;
    if !(BYTES_PER_S_MIN..=BYTES_PER_S_MAX).contains(&bytes_per_s) {
        return Err(SampleError::Rate { bytes_per_s });
    }
    Ok(Sample {
        bytes_per_s,
        seconds,
        bytes: moved,
    })
}

/// No link can have moved a message so
#[derive(Clone, Copy, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum SampleError {
    /// The time is zero, negative or no number
    #[error("no message takes {seconds} s")]
    Time {
        /// Value that was given
        seconds: f64,
    },
    /// It is too fast or too slow
    #[error("no link moves {bytes_per_s} bytes per second")]
    Rate {
        /// Bandwidth that follows from it
        bytes_per_s: f64,
    },
    /// More was lent than there was
    #[error("{lent_bytes} of {bytes} bytes cannot have been lent")]
    Lent {
        /// All of it
        bytes: u64,
        /// Lent bytes that were given
        lent_bytes: u64,
    },
    /// Its time was not taken
    #[error("messages of {bytes} bytes are not timed, only those of {TIMED_BYTES_MIN} or more")]
    Small {
        /// All of it
        bytes: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn only(estimator: &Estimator) -> LinkEstimate {
        let all: Vec<_> = estimator.estimates().collect();
        assert_eq!(all.len(), 1, "{all:?}");
        all[0]
    }

    #[test]
    fn nonsense_is_ignored_counted_and_named() {
        let mut estimator = Estimator::default();
        let mut handle = |bytes, lent_bytes, seconds| {
            estimator
                .handle_message(Memory::Host, bytes, lent_bytes, seconds)
                .map_err(|error| error.to_string())
        };
        assert_eq!(handle(MIB, 0, 0.0), Err("no message takes 0 s".into()));
        assert_eq!(handle(MIB, 0, -1.0), Err("no message takes -1 s".into()));
        assert_eq!(
            handle(MIB, 0, f64::NAN),
            Err("no message takes NaN s".into())
        );
        assert!(handle(MIB, 0, f64::INFINITY).is_err());
        assert!(handle(MIB, 0, 1e-9).is_err(), "a petabyte a second");
        assert!(handle(MIB, 0, 1e9).is_err(), "a message of thirty years");
        assert!(handle(MIB, 2 * MIB, 1.0).is_err());
        assert!(handle(100, 0, 1.0).is_err());
        assert_eq!(estimator.ignored(), 8);
        assert_eq!(estimator.estimates().count(), 0);
    }

    #[test]
    fn what_is_lent_tells_of_latency_only() {
        let mut estimator = Estimator::default();
        for micros in [50.0, 20.0, 30.0] {
            estimator
                .handle_message(Memory::Host, 64 * MIB, 64 * MIB - 500, micros * 1e-6)
                .expect("a message that may be");
        }
        let LinkEstimate { estimate, .. } = only(&estimator);
        assert_eq!(estimate.bytes_per_s, f64::INFINITY);
        assert!((estimate.latency_s - 30e-6).abs() < 1e-9);
        // Of a message half of which is moved, that half counts.
        for _ in 0..6 {
            estimator
                .handle_message(Memory::Host, 64 * MIB, 32 * MIB, 0.032)
                .expect("a message that may be");
        }
        let LinkEstimate { estimate, .. } = only(&estimator);
        assert!((estimate.bytes_per_s - 1000.0 * MIB as f64).abs() < 1.0);
    }

    #[test]
    fn latency_is_what_small_messages_take_beyond_their_bytes() {
        let mut estimator = Estimator::default();
        let link = |bytes: u64| 2e-3 + bytes as f64 / 1e9;
        for _ in 0..6 {
            for bytes in [64 << 10, 100 * MIB] {
                estimator
                    .handle_message(Memory::Host, bytes, 0, link(bytes))
                    .expect("a message that may be");
            }
        }
        let all: Vec<_> = estimator.estimates().collect();
        assert_eq!(all.len(), 2);
        assert!(
            (all[0].estimate.latency_s / 2e-3 - 1.0).abs() < 0.01,
            "{all:?}"
        );
        assert!(
            (all[1].estimate.bytes_per_s / 1e9 - 1.0).abs() < 0.03,
            "{all:?}"
        );
    }

    #[test]
    fn memory_of_a_device_is_a_link_of_its_own() {
        let mut estimator = Estimator::default();
        for (memory, seconds) in [(Memory::Device, 1e-4), (Memory::Host, 1e-3)] {
            estimator
                .handle_message(memory, 10 * MIB, 0, seconds)
                .expect("a message that may be");
        }
        let kinds: Vec<_> = estimator.estimates().map(|said| said.memory).collect();
        assert_eq!(kinds, [Memory::Host, Memory::Device]);
    }
}
