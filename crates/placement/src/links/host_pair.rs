//! Common estimate of many links: of two hosts, or of all links of a kind.

use super::class::{Memory, SizeClass};
use super::estimate::LinkEstimate;
use super::ring::LAST;

/// Seconds as a line for each class of sizes, ready to be asked
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Profile {
    /// Seconds of no bytes, and bytes a second
    lines: [(f64, f64); SizeClass::COUNT],
    /// Messages behind it
    pub(super) samples: u32,
}

impl Profile {
    /// From what is known of one memory, or of none
    ///
    /// A class of which nothing is known is as the next larger one that is, or the next smaller.
    pub(super) fn of(said: &[LinkEstimate], memory: Memory) -> Option<Self> {
        let mut known = [None; SizeClass::COUNT];
        let (mut samples, mut latency_s) = (0_u32, 0.0_f64);
        for said in said.iter().filter(|said| said.memory == memory) {
            known[said.class.index()] = Some(said.estimate);
            samples = samples.saturating_add(said.estimate.samples);
        }
        // Of the smallest messages that tell.
        for estimate in known.iter().rev().flatten() {
            if estimate.latency_s > 0.0 {
                latency_s = estimate.latency_s;
            }
        }
        let lines = std::array::from_fn(|class| {
            let larger = known[class..].iter().flatten().next();
            let nearest = larger.or_else(|| known[..class].iter().rev().flatten().next())?;
            let latency_s = match known[class] {
                // There is nothing else to it.
                _ if nearest.bytes_per_s.is_infinite() => nearest.latency_s,
                // It has its latency in its bandwidth.
                Some(_) => 0.0,
                None => latency_s,
            };
            Some((latency_s, nearest.bytes_per_s))
        });
        lines.iter().all(Option::is_some).then(|| Self {
            lines: lines.map(|line: Option<(f64, f64)>| line.unwrap_or_default()),
            samples,
        })
    }

    /// From one bandwidth and one latency
    pub(super) fn plain(bytes_per_s: f64, latency_s: f64) -> Self {
        Self {
            lines: [(latency_s, bytes_per_s); SizeClass::COUNT],
            samples: 0,
        }
    }

    pub(super) fn seconds(&self, bytes: u64) -> f64 {
        let (bytes_per_s, latency_s) = self.line(bytes);
        latency_s + bytes as f64 / bytes_per_s
    }

    /// Bytes a second and latency of a message of a size
    pub(super) fn line(&self, bytes: u64) -> (f64, f64) {
        let (latency_s, bytes_per_s) = self.lines[SizeClass::of(bytes).index()];
        (bytes_per_s, latency_s)
    }
}

/// Latest estimates of links that are alike
#[derive(Clone, Debug)]
pub(super) struct Alike<K> {
    /// The newest last
    said: Vec<(K, Vec<LinkEstimate>)>,
}

impl<K> Default for Alike<K> {
    fn default() -> Self {
        Self { said: Vec::new() }
    }
}

impl<K: Eq> Alike<K> {
    /// Takes what is said of one of them in the place of what was said before
    pub(super) fn handle(&mut self, link: K, said: &[LinkEstimate]) {
        self.said.retain(|(other, _)| *other != link);
        if self.said.len() == ALIKE_MAX {
            self.said.remove(0);
        }
        self.said.push((link, said.to_vec()));
    }

    /// Returns the abilities of two hosts: for each class the second fastest message of their links
    ///
    /// A link that only starved processes used does not say what the hosts can do. Each counts as
    /// many messages as it remembers.
    pub(super) fn second_fastest(&self) -> Vec<LinkEstimate> {
        self.each_class(|slowest_first| {
            let mut messages = 0;
            let mut fastest_first = slowest_first.iter().rev();
            let second = fastest_first.find(|said| {
                messages += said.estimate.samples.min(LAST as u32);
                messages >= 2
            });
            *second.unwrap_or(&slowest_first[0])
        })
    }

    /// Returns the usual figures of links of a kind: for each class the median
    pub(super) fn median(&self) -> Vec<LinkEstimate> {
        self.each_class(|slowest_first| slowest_first[slowest_first.len() / 2])
    }

    /// Picks from what is said of each class, of which there is something
    fn each_class(&self, pick: impl Fn(&[LinkEstimate]) -> LinkEstimate) -> Vec<LinkEstimate> {
        let mut by_class: [Vec<LinkEstimate>; CLASSES] = Default::default();
        for said in self.said.iter().flat_map(|(_, said)| said) {
            let class = &mut by_class[said.class.index() + SizeClass::COUNT * said.memory as usize];
            let faster = |other: &LinkEstimate| {
                other
                    .estimate
                    .bytes_per_s
                    .total_cmp(&said.estimate.bytes_per_s)
                    .is_le()
            };
            class.insert(class.partition_point(faster), *said);
        }
        let used = by_class.iter().filter(|found| !found.is_empty());
        used.map(|found| {
            let sum = |total: u32, said: &LinkEstimate| total.saturating_add(said.estimate.samples);
            let mut picked = pick(found);
            picked.estimate.samples = found.iter().fold(0, sum);
            picked
        })
        .collect()
    }
}

/// Returns whether two lists agree, except for differences that no policy would act upon
pub(super) fn is_much_alike(one: &[LinkEstimate], other: &[LinkEstimate]) -> bool {
    let alike = |one: f64, other: f64| one == other || (one / other - 1.0).abs() < 0.02;
    one.len() == other.len()
        && one.iter().zip(other).all(|(one, other)| {
            (one.memory, one.class) == (other.memory, other.class)
                && alike(one.estimate.bytes_per_s, other.estimate.bytes_per_s)
                && alike(one.estimate.latency_s, other.estimate.latency_s)
        })
}

/// Of memory and sizes
const CLASSES: usize = SizeClass::COUNT * Memory::ALL.len();

/// Links that are remembered, those reported last
const ALIKE_MAX: usize = 8;
