//! How long tasks of each prefix take, and how many of them are processing: what occupancies are
//! added up from.

use super::bounded_sum::BoundedSum;
use super::ids::PrefixId;

/// One prefix
#[derive(Clone, Copy, Debug)]
struct Load {
    /// How long a task computes, in seconds, as far as is known
    duration_s: f64,
    /// Tasks that all workers are processing, long-running ones not counted; see `occupancy.rs`
    processing: i64,
}

/// All prefixes by number, in little memory, as a worker may have tasks of hundreds
#[derive(Debug, Default)]
pub(super) struct Loads {
    loads: Vec<Load>,
    /// How long all that is processing computes
    sum_s: BoundedSum,
    /// How often a duration has changed
    changes: u64,
}

impl Loads {
    pub(super) fn add(&mut self, duration_s: f64) {
        self.loads.push(Load {
            duration_s,
            processing: 0,
        });
    }

    /// How long a task of a prefix computes, in seconds, as far as is known
    pub(super) fn duration_s(&self, prefix: PrefixId) -> f64 {
        self.loads[prefix.index()].duration_s
    }

    pub(super) fn set_duration(&mut self, prefix: PrefixId, duration_s: f64) {
        let load = self.loads[prefix.index()];
        if load.duration_s.to_bits() != duration_s.to_bits() {
            self.changes += 1;
            self.replace(prefix, Load { duration_s, ..load });
        }
    }

    /// Tasks of a prefix that all workers are processing, long-running ones not counted
    pub(super) fn processing(&self, prefix: PrefixId) -> i64 {
        self.loads[prefix.index()].processing
    }

    pub(super) fn set_processing(&mut self, prefix: PrefixId, processing: i64) {
        let load = self.loads[prefix.index()];
        self.replace(prefix, Load { processing, ..load });
    }

    fn replace(&mut self, prefix: PrefixId, load: Load) {
        let place = &mut self.loads[prefix.index()];
        self.sum_s.remove(place.compute_s());
        self.sum_s.add(load.compute_s());
        *place = load;
    }

    /// How long tasks of a prefix compute, in seconds
    pub(super) fn compute_s(&self, prefix: PrefixId, count: i64) -> f64 {
        self.duration_s(prefix) * count as f64
    }

    /// Bounds of what adding up all that is processing gives, in seconds; see [`BoundedSum::bounds`]
    pub(super) fn bounds_s(&self, prefixes: usize) -> Option<[f64; 2]> {
        self.sum_s.bounds(prefixes)
    }

    /// Changes whenever a duration does
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }
}

impl Load {
    fn compute_s(&self) -> f64 {
        self.duration_s * self.processing as f64
    }
}
