//! Choice of units for a request: the order of its pools, and units that are near to others.

use std::collections::BTreeMap;

use super::{Held, IndexedPool, Pool, Pools, TakeError};
use crate::resources::{Quantity, RanOn, Request, UnitId};

impl Pools {
    /// Returns the units that a request would get now
    pub(super) fn choose(
        &self,
        request: &Request,
        inputs: &BTreeMap<String, Vec<RanOn>>,
    ) -> Result<Option<Held>, TakeError> {
        self.meetable(request)?;
        let keeps = self.kept_for.as_ref() == Some(request);
        let mut held = Held::default();
        for (name, wanted, preferred) in self.in_turn(request, inputs) {
            match &self.pools[name] {
                Pool::Indexed(pool) => {
                    let near = self.near_to_others(name, request, &held);
                    let Some(choice) = pool.choose(wanted, preferred, &near, keeps) else {
                        return Ok(None);
                    };
                    held.units.insert(name.to_owned(), choice);
                }
                Pool::Sum { total, used, kept } => {
                    let kept = if keeps { Quantity::ZERO } else { *kept };
                    if *used + kept + wanted > *total {
                        return Ok(None);
                    }
                    held.amounts.insert(name.to_owned(), wanted);
                }
            }
        }
        Ok(Some(held))
    }

    /// Returns the needs of a request in the order of choice, with the units that it prefers
    fn in_turn<'a>(
        &self,
        request: &'a Request,
        inputs: &'a BTreeMap<String, Vec<RanOn>>,
    ) -> Vec<(&'a str, Quantity, &'a [RanOn])> {
        let mut turns: Vec<_> = request
            .needs()
            .iter()
            .map(|(name, wanted)| {
                let preferred: &[RanOn] = match inputs.get(name) {
                    Some(ids) if request.prefers(name) => ids,
                    _ => &[],
                };
                (name.as_str(), *wanted, preferred)
            })
            .collect();
        if !self.near.is_empty() && turns.len() > 1 {
            turns.sort_by_key(|(name, _, preferred)| {
                let units = match &self.pools[*name] {
                    Pool::Indexed(pool) => pool.count(),
                    Pool::Sum { .. } => 0,
                };
                (preferred.is_empty(), units)
            });
        }
        turns
    }

    /// Units of a pool near to what is held; where that says nothing, those that have near to them
    /// what is still to be chosen
    fn near_to_others(&self, name: &str, request: &Request, held: &Held) -> Vec<UnitId> {
        if self.near.is_empty() {
            return Vec::new();
        }
        let mut found: Vec<UnitId> = Vec::new();
        for (other, choice) in &held.units {
            for (id, _) in choice {
                found.extend(self.near.of(other, *id, name));
            }
        }
        if !found.is_empty() {
            return found;
        }
        let Some(Pool::Indexed(pool)) = self.pools.get(name) else {
            return found;
        };
        let coupled: Vec<(&str, Quantity, &IndexedPool)> = request
            .needs()
            .iter()
            .filter(|(other, _)| !held.units.contains_key(other) && self.near.couples(name, other))
            .filter_map(|(other, wanted)| match &self.pools[other] {
                Pool::Indexed(there) => Some((other.as_str(), *wanted, there)),
                Pool::Sum { .. } => None,
            })
            .collect();
        if !coupled.is_empty() {
            found.extend(pool.free().map(|(id, _)| id).filter(|&id| {
                coupled.iter().all(|(other, wanted, there)| {
                    there.has_free(*wanted, self.near.of(name, id, other))
                })
            }));
        }
        found
    }
}
