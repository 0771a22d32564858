//! Estimate of one link, and its encoding in 13 bytes.

use thiserror::Error;

use super::class::{Memory, SizeClass};

/// How fast one link is for messages of one class
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Bytes a second of a message of the class, its latency in it; infinite where the bytes are
    /// lent, and do not move
    pub bytes_per_s: f64,
    /// Time that passes whatever the size, in seconds; 0 where nothing small enough to tell has come
    pub latency_s: f64,
    /// Messages that came of the class; the estimate is of the last few
    pub samples: u32,
}

impl Estimate {
    fn check(self) -> Result<Self, EstimateError> {
        let Self {
            bytes_per_s,
            latency_s,
            samples,
        } = self;
        if bytes_per_s.is_nan() || bytes_per_s < BYTES_PER_S_MIN {
            return Err(EstimateError::Bandwidth { bytes_per_s });
        }
        if bytes_per_s.is_finite() && bytes_per_s > BYTES_PER_S_MAX {
            return Err(EstimateError::Bandwidth { bytes_per_s });
        }
        if !(0.0..=LATENCY_S_MAX).contains(&latency_s) {
            return Err(EstimateError::Latency { latency_s });
        }
        if samples == 0 {
            return Err(EstimateError::NoSamples);
        }
        Ok(self)
    }
}

/// An estimate, and of what
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkEstimate {
    /// Where the messages lie
    pub memory: Memory,
    /// How large they are
    pub class: SizeClass,
    /// How fast they come
    pub estimate: Estimate,
}

impl LinkEstimate {
    /// Bytes that one takes
    pub const BYTES: usize = 13;

    /// Writes it
    ///
    /// Little endian: the class, and 128 for memory of a device; samples (`u32`), bytes a second and
    /// latency (`f32`).
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let device = u8::from(self.memory == Memory::Device) * DEVICE;
        bytes[0] = self.class.index() as u8 | device;
        bytes[1..5].copy_from_slice(&self.estimate.samples.to_le_bytes());
        bytes[5..9].copy_from_slice(&(self.estimate.bytes_per_s as f32).to_le_bytes());
        bytes[9..].copy_from_slice(&(self.estimate.latency_s as f32).to_le_bytes());
        bytes
    }

    /// Reads one
    ///
    /// # Errors
    ///
    /// [`EstimateError`] for a class that there is not, and figures that no link has.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Result<Self, EstimateError> {
        let [kind, s0, s1, s2, s3, b0, b1, b2, b3, l0, l1, l2, l3] = *bytes;
        let class = SizeClass::at(kind & !DEVICE)
            .filter(|class| class.is_timed())
            .ok_or(EstimateError::Class { class: kind })?;
        let estimate = Estimate {
            bytes_per_s: f32::from_le_bytes([b0, b1, b2, b3]).into(),
            latency_s: f32::from_le_bytes([l0, l1, l2, l3]).into(),
            samples: u32::from_le_bytes([s0, s1, s2, s3]),
        };
        Ok(Self {
            memory: if kind & DEVICE == 0 {
                Memory::Host
            } else {
                Memory::Device
            },
            class,
            estimate: estimate.check()?,
        })
    }

    /// Reads as many as there are
    ///
    /// # Errors
    ///
    /// [`EstimateError`] if one cannot be read, or a part of one is left.
    pub fn read_all(bytes: &[u8]) -> Result<Vec<Self>, EstimateError> {
        let (whole, rest) = bytes.as_chunks::<{ Self::BYTES }>();
        if !rest.is_empty() {
            return Err(EstimateError::Length { bytes: bytes.len() });
        }
        if whole.len() > ESTIMATES_MAX {
            return Err(EstimateError::Length { bytes: bytes.len() });
        }
        whole.iter().map(Self::from_bytes).collect()
    }
}

/// Nonsensical estimate of a link
#[derive(Clone, Copy, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum EstimateError {
    /// No link has this bandwidth
    #[error("no link moves {bytes_per_s} bytes per second")]
    Bandwidth {
        /// Value that was given
        bytes_per_s: f64,
    },
    /// No link has this latency
    #[error("no link has a latency of {latency_s} s")]
    Latency {
        /// Value that was given
        latency_s: f64,
    },
    /// An estimate of nothing
    #[error("an estimate from 0 samples")]
    NoSamples,
    /// There is no such class, or it is not timed
    #[error("no class of timed messages is {class}")]
    Class {
        /// Value that was given
        class: u8,
    },
    /// No number of estimates has this length
    #[error(
        "{bytes} bytes are no list of estimates, each of {each}",
        each = LinkEstimate::BYTES
    )]
    Length {
        /// Length that was given
        bytes: usize,
    },
}

/// The bit of the first byte that says that messages lie in memory of a device
const DEVICE: u8 = 0x80;

/// One for each class and memory
const ESTIMATES_MAX: usize = SizeClass::COUNT * Memory::ALL.len();

/// Slower than this is no link, and what was measured is something else
pub(super) const BYTES_PER_S_MIN: f64 = 1.0;

/// Ten terabytes a second: a copy within the memory of one device is slower
pub(super) const BYTES_PER_S_MAX: f64 = 1e13;

/// An hour
pub(super) const LATENCY_S_MAX: f64 = 3600.0;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn estimate(bytes_per_s: f64, latency_s: f64, samples: u32) -> LinkEstimate {
        LinkEstimate {
            memory: Memory::Device,
            class: SizeClass::of(1 << 20),
            estimate: Estimate {
                bytes_per_s,
                latency_s,
                samples,
            },
        }
    }

    #[test]
    fn what_is_written_is_read_and_takes_less_than_32_bytes() {
        for said in [estimate(1.25e8, 0.0, 1), estimate(f64::INFINITY, 0.5, 9)] {
            let bytes = said.to_bytes();
            assert!(bytes.len() <= 32);
            assert_eq!(LinkEstimate::from_bytes(&bytes), Ok(said));
        }
    }

    #[test]
    fn nonsense_is_refused_and_named() {
        let read = |said: LinkEstimate| LinkEstimate::from_bytes(&said.to_bytes());
        for bytes_per_s in [f64::NAN, 0.0, -1.0, 1e30, f64::NEG_INFINITY] {
            let refused = read(estimate(bytes_per_s, 0.0, 1));
            assert!(
                matches!(refused, Err(EstimateError::Bandwidth { .. })),
                "{bytes_per_s}: {refused:?}"
            );
        }
        for latency_s in [f64::NAN, -1.0, 1e9, f64::INFINITY] {
            let refused = read(estimate(1e9, latency_s, 1));
            assert!(
                matches!(refused, Err(EstimateError::Latency { .. })),
                "{latency_s}: {refused:?}"
            );
        }
        assert_eq!(read(estimate(1e9, 0.0, 0)), Err(EstimateError::NoSamples));
        let mut bytes = estimate(1e9, 0.0, 1).to_bytes();
        bytes[0] = 1;
        assert_eq!(
            LinkEstimate::from_bytes(&bytes),
            Err(EstimateError::Class { class: 1 })
        );
        let text = EstimateError::Bandwidth { bytes_per_s: -1.0 }.to_string();
        assert_eq!(text, "no link moves -1 bytes per second");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(estimates) = LinkEstimate::read_all(&bytes) {
                prop_assert_eq!(estimates.len() * LinkEstimate::BYTES, bytes.len());
                for said in estimates {
                    prop_assert!(said.estimate.bytes_per_s >= BYTES_PER_S_MIN);
                    prop_assert!(said.estimate.latency_s >= 0.0);
                }
            }
        }
    }
}
