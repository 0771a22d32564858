//! Tasks of one worker by prefix, in the order in which prefixes came: `WorkerState.task_prefix_count`.
//!
//! A look-up costs the same however many prefixes there are, as users choose keys.

use super::ids::PrefixId;
use crate::hashing::Map;
use crate::ordered_set::OrderedSet;

/// Tasks by prefix
#[derive(Debug, Default)]
pub(super) struct PrefixCounts {
    order: OrderedSet<PrefixId>,
    counts: Map<PrefixId, i64>,
}

impl PrefixCounts {
    /// Adds tasks of a prefix
    pub(super) fn add(&mut self, prefix: PrefixId, tasks: i64) {
        *self.counts.entry(prefix).or_insert(0) += tasks;
        self.order.insert(prefix);
    }

    /// Takes a task of a prefix, which loses its place if that was the last
    ///
    /// A prefix that has none has one less than none then, as upstream's.
    pub(super) fn take(&mut self, prefix: PrefixId) {
        if self.counts.get(&prefix) == Some(&1) {
            self.counts.remove(&prefix);
            self.order.remove(prefix);
        } else {
            self.add(prefix, -1);
        }
    }

    /// Returns the prefixes in their order, each with its tasks
    pub(super) fn iter(&self) -> impl Iterator<Item = (PrefixId, i64)> + '_ {
        self.order.iter().map(|prefix| {
            (
                prefix,
                self.counts.get(&prefix).copied().unwrap_or_default(),
            )
        })
    }
}
