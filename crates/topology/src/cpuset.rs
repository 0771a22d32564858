//! Sets of CPUs, in the list format of Linux (`0-19,40-59`)
//!
//! The format is that of `cpulist` files in sysfs and of `taskset --cpu-list`.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Numbers of hardware threads as the operating system counts them; a string like `0-3,8` in JSON
#[derive(Clone, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuSet(BTreeSet<u32>);

impl CpuSet {
    /// Returns whether no CPU is in the set
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many CPUs are in the set
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether `cpu` is in the set
    #[must_use]
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// The CPUs in ascending order
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// The CPUs in both sets
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0).copied().collect())
    }

    /// The CPUs in either set
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self(self.0.union(&other.0).copied().collect())
    }

    /// The CPUs of this set that are not in `other`
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).copied().collect())
    }

    /// Returns whether every CPU of this set is in `other`
    #[must_use]
    pub fn is_subset(&self, other: &Self) -> bool {
        self.0.is_subset(&other.0)
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut comma = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if(|&next| next == last + 1) {
                last = next;
            }
            if first == last {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{first}-{last}")?;
            }
            comma = ",";
        }
        Ok(())
    }
}

impl FromStr for CpuSet {
    type Err = BadCpuList;

    /// Reads a list like `0-3,8`; blanks around it and an empty list are allowed, as in sysfs
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || BadCpuList {
            text: text.to_owned(),
        };
        let number = |text: &str| {
            let number: u32 = text.trim().parse().map_err(|_| bad())?;
            if number < CPUS_MAX {
                Ok(number)
            } else {
                Err(bad())
            }
        };
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let mut ranges = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(bad());
            }
            ranges.push((first, last));
        }
        // Each CPU once, or a long list of wide ranges would take minutes
        ranges.sort_unstable();
        let mut cpus = BTreeSet::new();
        let mut next = 0;
        for (first, last) in ranges {
            cpus.extend(first.max(next)..=last);
            next = next.max(last + 1);
        }
        Ok(Self(cpus))
    }
}

impl TryFrom<String> for CpuSet {
    type Error = BadCpuList;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<CpuSet> for String {
    fn from(cpus: CpuSet) -> Self {
        cpus.to_string()
    }
}

/// A list of CPUs that cannot be read
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("not a list of CPUs below {CPUS_MAX} such as 0-3,8: {text:?}")]
pub struct BadCpuList {
    /// Text that was to be read
    pub text: String,
}

/// Above what Linux can be built for (`CONFIG_NR_CPUS` is at most 8192), so that a list from a
/// file cannot ask for memory without end
pub const CPUS_MAX: u32 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written() {
        for (text, written) in [
            ("0-19,40-59", "0-19,40-59"),
            (" 3,1,2 \n", "1-3"),
            ("7", "7"),
            ("", ""),
            ("0,2,4-5", "0,2,4-5"),
            ("4-9,0-5,7,2-3", "0-9"),
        ] {
            let cpus: CpuSet = text.parse().expect(text);
            assert_eq!(cpus.to_string(), written);
        }
    }

    #[test]
    fn a_list_that_repeats_itself_costs_no_more_than_its_length() {
        let text = vec!["0-65535"; 100_000].join(",");
        let before = std::time::Instant::now();
        let cpus: CpuSet = text.parse().expect("a list");
        assert_eq!(cpus.len(), CPUS_MAX as usize);
        // To put each CPU in 100,000 times takes minutes.
        assert!(before.elapsed().as_secs() < 20, "{:?}", before.elapsed());
    }

    #[test]
    fn what_is_no_list_is_refused_with_its_text() {
        for text in [
            "a",
            "3-1",
            "1,,2",
            "-1",
            "1-2-3",
            "0-4294967295",
            "99999999999",
        ] {
            let error = text.parse::<CpuSet>().expect_err(text);
            assert_eq!(error.text, text);
        }
    }
}
