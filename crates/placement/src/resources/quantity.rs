//! Amounts of a resource, in fixed point.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub, SubAssign};

use thiserror::Error;

/// Parts that a unit is divided into
pub const PER_ONE: u64 = 10_000;

/// Most that can be said, in units: above, an `f64` tells parts no longer apart, and sums may not
/// overflow
const UNITS_MAX: f64 = 1e15;

/// How far from a whole number of parts rounding errors may be, relatively
const ROUNDING: f64 = 1e-9;

/// An amount of a resource, in parts of 1/10,000
///
/// Fixed, so that what was taken and given back sums up to nothing, whatever the order.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Quantity(u64);

impl Quantity {
    /// Nothing
    pub const ZERO: Self = Self(0);
    /// One unit
    pub const ONE: Self = Self(PER_ONE);

    /// Amount of that many whole units
    pub fn whole(units: u32) -> Self {
        Self(u64::from(units) * PER_ONE)
    }

    /// Amount of so many units; what is finer than a part is left out, so that a third fits thrice
    ///
    /// # Errors
    ///
    /// [`QuantityError`] if it is negative, no number, too large, or positive and less than a part.
    pub fn from_f64(units: f64) -> Result<Self, QuantityError> {
        if !units.is_finite() {
            return Err(QuantityError::NoNumber { units });
        }
        if units < 0.0 {
            return Err(QuantityError::Negative { units });
        }
        if units > UNITS_MAX {
            return Err(QuantityError::TooLarge { units });
        }
        let parts = units * PER_ONE as f64;
        let nearest = parts.round();
        let parts = if (parts - nearest).abs() <= ROUNDING * parts.max(1.0) {
            nearest
        } else {
            parts.floor()
        };
        if parts == 0.0 && units > 0.0 {
            return Err(QuantityError::TooFine { units });
        }
        Ok(Self(parts as u64))
    }

    /// The amount in parts
    pub fn parts(self) -> u64 {
        self.0
    }

    /// The amount in units
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / PER_ONE as f64
    }

    /// How many whole units it is; `None` if there is a fraction
    pub fn whole_units(self) -> Option<u64> {
        self.0.is_multiple_of(PER_ONE).then_some(self.0 / PER_ONE)
    }
}

impl Add for Quantity {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for Quantity {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl Sub for Quantity {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl SubAssign for Quantity {
    fn sub_assign(&mut self, other: Self) {
        self.0 -= other.0;
    }
}

impl Sum for Quantity {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::ZERO, Self::add)
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.as_f64())
    }
}

/// Impossible amount
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Error, PartialEq)]
pub enum QuantityError {
    /// It is NaN or infinite
    #[error("{units} is no amount")]
    NoNumber {
        /// Value that was given
        units: f64,
    },
    /// It is below nothing
    #[error("{units} is negative")]
    Negative {
        /// Value that was given
        units: f64,
    },
    /// It is more than can be counted
    #[error("{units} is more than {UNITS_MAX}")]
    TooLarge {
        /// Value that was given
        units: f64,
    },
    /// It is something, but less than a part
    #[error("{units} is less than 1/{PER_ONE}, the smallest share")]
    TooFine {
        /// Value that was given
        units: f64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_that_f64_cannot_say_exactly_are_what_was_meant() {
        for (units, parts) in [
            (0.29, 2900),
            (0.1, 1000),
            (64e9, 640_000_000_000_000),
            (0.0, 0),
        ] {
            assert_eq!(Quantity::from_f64(units).map(Quantity::parts), Ok(parts));
        }
    }

    #[test]
    fn as_many_equal_shares_fit_into_one_as_were_asked_for() {
        for shares in 1..=1000_u32 {
            let share = Quantity::from_f64(1.0 / f64::from(shares)).expect("it is large enough");
            assert!(share.parts() * u64::from(shares) <= PER_ONE, "{shares}");
        }
    }

    #[test]
    fn what_is_no_amount_is_refused_with_its_value() {
        for (units, message) in [
            (f64::NAN, "NaN is no amount"),
            (f64::INFINITY, "inf is no amount"),
            (-0.5, "-0.5 is negative"),
            (1e16, "10000000000000000 is more than 1000000000000000"),
            (1e-5, "0.00001 is less than 1/10000, the smallest share"),
        ] {
            let error = Quantity::from_f64(units).expect_err("it is no amount");
            assert_eq!(error.to_string(), message);
        }
    }
}
