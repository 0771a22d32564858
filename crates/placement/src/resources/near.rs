//! Which ids of other pools are near to an id, as the machine has them.

use std::collections::{BTreeMap, BTreeSet};

use super::UnitId;
use super::declare::Declaration;

/// Ids that are near to each other, across the pools of one worker
///
/// Nearness is mutual: a NIC that is near to a GPU has that GPU near to it, whichever of them was
/// declared to be coupled.
#[derive(Clone, Debug, Default)]
pub(super) struct Near {
    by_unit: BTreeMap<(String, UnitId), BTreeMap<String, BTreeSet<UnitId>>>,
    pools: BTreeSet<(String, String)>,
}

impl Near {
    /// Reads what is coupled in a declaration that was checked
    pub(super) fn new(declared: &BTreeMap<String, Declaration>) -> Self {
        let mut near = Self::default();
        for (name, declaration) in declared {
            let Declaration::Indexed(indexed) = declaration else {
                continue;
            };
            for (&id, others) in &indexed.coupled {
                for other in others {
                    near.insert((name, id), (&other.resource, other.id));
                    near.insert((&other.resource, other.id), (name, id));
                }
            }
        }
        near
    }

    fn insert(&mut self, one: (&str, UnitId), other: (&str, UnitId)) {
        self.by_unit
            .entry((one.0.to_owned(), one.1))
            .or_default()
            .entry(other.0.to_owned())
            .or_default()
            .insert(other.1);
        self.pools.insert((one.0.to_owned(), other.0.to_owned()));
    }

    /// Returns whether nothing is near to anything
    pub(super) fn is_empty(&self) -> bool {
        self.pools.is_empty()
    }

    /// Returns whether any id of one pool is near to any of another one
    pub(super) fn couples(&self, resource: &str, other: &str) -> bool {
        self.pools
            .contains(&(resource.to_owned(), other.to_owned()))
    }

    /// The ids of another pool that are near to an id
    pub(super) fn of(
        &self,
        resource: &str,
        id: UnitId,
        other: &str,
    ) -> impl Iterator<Item = UnitId> + '_ {
        self.by_unit
            .get(&(resource.to_owned(), id))
            .and_then(|pools| pools.get(other))
            .into_iter()
            .flatten()
            .copied()
    }
}
