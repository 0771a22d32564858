//! Units with ids, in groups: which of them a task gets.

use std::collections::BTreeMap;

use super::UnitId;
use super::declare::Indexed;
use super::quantity::Quantity;
use super::request::Unmeetable;
use super::taste::{RanOn, Taste, Ways};

/// Units chosen for one task, with how much of each
pub type Choice = Vec<(UnitId, Quantity)>;

/// The units of one resource on one worker, and how much of each is free
///
/// No unit is ever held beyond one. A unit that is no longer declared, but held, stays until it is
/// given back.
#[derive(Clone, Debug, Default)]
pub struct IndexedPool {
    units: BTreeMap<UnitId, Unit>,
    /// Number of units by group, without those that are gone
    sizes: Vec<usize>,
    ways: Ways,
}

#[derive(Clone, Copy, Debug)]
struct Unit {
    /// Which group it belongs to; `None` once it is no longer declared
    group: Option<usize>,
    free: Quantity,
    /// True if it is kept for one request
    is_kept: bool,
}

impl IndexedPool {
    /// A pool of units that are all free
    pub fn new(declared: &Indexed) -> Self {
        let mut pool = Self::default();
        pool.declare(declared);
        pool
    }

    /// Has other units from now on; what is held stays with its holder
    pub fn declare(&mut self, declared: &Indexed) {
        self.sizes = declared.groups.iter().map(Vec::len).collect();
        self.ways.clone_from(&declared.ways);
        for unit in self.units.values_mut() {
            unit.group = None;
        }
        for (group, ids) in declared.groups.iter().enumerate() {
            for &id in ids {
                let unit = self.units.entry(id).or_insert(Unit {
                    group: None,
                    free: Quantity::ONE,
                    is_kept: false,
                });
                unit.group = Some(group);
            }
        }
        self.units
            .retain(|_, unit| unit.group.is_some() || unit.free < Quantity::ONE);
    }

    /// Chooses units; `None` if they are not free now
    ///
    /// A share comes from one unit: of those that have it, the one that is the least free. Whole
    /// units come from one group wherever there is a group large enough, free or not; of those that
    /// have them, the one that is the least free, so that others stay whole. Only what no group
    /// could hold is taken from several, as few as can be.
    ///
    /// Before all that, units are chosen to which `inputs` come soonest: those that they ran on, then
    /// those of their groups, unless it is known what a byte takes between two units; then those in
    /// `near`. Ids that are not there are no preference. Units that are kept are chosen only if
    /// `keeps` says that they are for this one.
    ///
    /// To be asked only for what is not `refused`.
    pub fn choose(
        &self,
        wanted: Quantity,
        inputs: &[RanOn],
        near: &[UnitId],
        keeps: bool,
    ) -> Option<Choice> {
        let group_of = |id: UnitId| self.units.get(&id)?.group;
        let taste = Taste::new(inputs, &self.ways, near, keeps, group_of);
        match wanted.whole_units() {
            Some(count) => self.choose_whole(usize::try_from(count).ok()?, &taste),
            None => self.choose_share(wanted, &taste),
        }
    }

    /// Says why a request can never be met here; `None` if it can
    pub fn refused(&self, resource: &str, wanted: Quantity) -> Option<Unmeetable> {
        let there = Quantity::whole(u32::try_from(self.count()).unwrap_or(u32::MAX));
        if wanted > there {
            return Some(Unmeetable::TooMuch {
                resource: resource.to_owned(),
                wanted,
                there,
            });
        }
        if wanted > Quantity::ONE && wanted.whole_units().is_none() {
            return Some(Unmeetable::FractionAboveOne {
                resource: resource.to_owned(),
                wanted,
            });
        }
        None
    }

    /// Keeps units for one request, free or not: those of which the most is free
    ///
    /// They are such as [`IndexedPool::choose`] gives once they are free: one unit for a share,
    /// units of one group wherever there is a group large enough.
    pub fn keep(&mut self, wanted: Quantity) {
        self.keep_nothing();
        let count = wanted.whole_units().unwrap_or(1);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let mut groups: Vec<Vec<(Quantity, UnitId)>> = vec![Vec::new(); self.sizes.len()];
        for (&id, unit) in &self.units {
            if let Some(group) = unit.group {
                groups[group].push((unit.free, id));
            }
        }
        for units in &mut groups {
            units.sort_by_key(|&(free, id)| (Quantity::ONE - free, id));
        }
        let free_of = |units: &[(Quantity, UnitId)]| -> Quantity {
            units.iter().take(count).map(|&(free, _)| free).sum()
        };
        let is_large_enough = |units: &Vec<(Quantity, UnitId)>| units.len() >= count;
        let kept: Vec<UnitId> = if groups.iter().any(is_large_enough) {
            groups
                .iter()
                .filter(|units| is_large_enough(units))
                // Of equals the first, which is the last when it is turned round.
                .rev()
                .max_by_key(|units| free_of(units))
                .into_iter()
                .flat_map(|units| units.iter().take(count).map(|&(_, id)| id))
                .collect()
        } else {
            groups.sort_by_key(|units| std::cmp::Reverse(free_of(units)));
            let units = groups.iter().flatten();
            units.take(count).map(|&(_, id)| id).collect()
        };
        for id in kept {
            if let Some(unit) = self.units.get_mut(&id) {
                unit.is_kept = true;
            }
        }
    }

    /// Keeps no unit any longer
    pub fn keep_nothing(&mut self) {
        for unit in self.units.values_mut() {
            unit.is_kept = false;
        }
    }

    /// Takes what was just chosen
    pub fn take(&mut self, choice: &Choice) {
        for (id, amount) in choice {
            let unit = self.units.get_mut(id).expect("it was chosen from here");
            unit.free -= *amount;
        }
    }

    /// Gives back what was taken
    pub fn give_back(&mut self, choice: &Choice) {
        for (id, amount) in choice {
            let unit = self
                .units
                .get_mut(id)
                .expect("a unit that is held is not forgotten");
            unit.free += *amount;
            assert!(unit.free <= Quantity::ONE, "a unit is one");
            if unit.group.is_none() && unit.free == Quantity::ONE {
                self.units.remove(id);
            }
        }
    }

    /// How much of each unit is free, of those that are declared
    pub fn free(&self) -> impl Iterator<Item = (UnitId, Quantity)> + '_ {
        self.units
            .iter()
            .filter(|(_, unit)| unit.group.is_some())
            .map(|(&id, unit)| (id, unit.free))
    }

    /// Returns whether so much is free of some units, were they alone; all of them, where they are
    /// fewer
    pub fn has_free(&self, wanted: Quantity, ids: impl Iterator<Item = UnitId>) -> bool {
        let one = wanted.min(Quantity::ONE);
        let count = usize::try_from(wanted.whole_units().unwrap_or(1)).unwrap_or(usize::MAX);
        let (mut there, mut free) = (0_usize, 0_usize);
        for id in ids {
            if let Some(unit) = self.units.get(&id) {
                there += 1;
                free += usize::from(unit.free >= one);
            }
        }
        there > 0 && free >= count.min(there)
    }

    /// How many units are declared
    pub fn count(&self) -> usize {
        self.sizes.iter().sum()
    }

    /// How many units are declared
    pub fn total(&self) -> Quantity {
        self.free().map(|_| Quantity::ONE).sum()
    }

    fn choose_share(&self, wanted: Quantity, taste: &Taste<'_>) -> Option<Choice> {
        self.units
            .iter()
            .filter(|(_, unit)| may_take(unit, taste))
            .filter_map(|(&id, unit)| Some((id, unit.group?, unit.free)))
            .filter(|(_, _, free)| *free >= wanted)
            .min_by_key(|&(id, group, free)| (taste.rank(id, group), free, id))
            .map(|(id, _, _)| vec![(id, wanted)])
    }

    fn choose_whole(&self, count: usize, taste: &Taste<'_>) -> Option<Choice> {
        let mut free: Vec<Vec<UnitId>> = vec![Vec::new(); self.sizes.len()];
        for (&id, unit) in &self.units {
            if let Some(group) = unit.group
                && unit.free == Quantity::ONE
                && may_take(unit, taste)
            {
                free[group].push(id);
            }
        }
        let mut order: Vec<usize> = (0..free.len()).filter(|&g| !free[g].is_empty()).collect();
        if self.sizes.iter().any(|&size| size >= count) {
            let group = order
                .into_iter()
                .filter(|&group| free[group].len() >= count)
                .min_by_key(|&group| {
                    let liked = taste.liked(group, &free[group], count);
                    (liked, free[group].len(), group)
                })?;
            return Some(best_of(&free[group], count, group, taste));
        }
        if free.iter().map(Vec::len).sum::<usize>() < count {
            return None;
        }
        // The most free first: so are there the fewest.
        order.sort_by_key(|&group| {
            let liked = taste.liked(group, &free[group], count);
            (usize::MAX - free[group].len(), liked, group)
        });
        let mut chosen = Vec::with_capacity(count);
        for group in order {
            let left = count - chosen.len();
            chosen.extend(best_of(
                &free[group],
                left.min(free[group].len()),
                group,
                taste,
            ));
            if chosen.len() == count {
                break;
            }
        }
        chosen.sort_unstable();
        Some(chosen)
    }
}

fn best_of(free: &[UnitId], count: usize, group: usize, taste: &Taste<'_>) -> Choice {
    let mut ids = free.to_vec();
    ids.sort_by_key(|&id| (taste.rank(id, group), id));
    ids.truncate(count);
    ids.sort_unstable();
    ids.into_iter().map(|id| (id, Quantity::ONE)).collect()
}

fn may_take(unit: &Unit, taste: &Taste<'_>) -> bool {
    taste.keeps || !unit.is_kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(groups: &[&[UnitId]]) -> IndexedPool {
        IndexedPool::new(&Indexed::grouped(
            groups.iter().map(|ids| ids.to_vec()).collect(),
        ))
    }

    fn share(units: f64) -> Quantity {
        Quantity::from_f64(units).expect("it is an amount")
    }

    fn taken(pool: &mut IndexedPool, units: f64, preferred: &[UnitId]) -> Option<Vec<UnitId>> {
        let inputs: Vec<RanOn> = preferred.iter().map(|&id| (id, 1e6)).collect();
        let choice = pool.choose(share(units), &inputs, &[], false)?;
        pool.take(&choice);
        Some(choice.into_iter().map(|(id, _)| id).collect())
    }

    #[test]
    fn a_share_fills_up_the_unit_that_is_begun() {
        let mut pool = pool(&[&[0, 1]]);
        assert_eq!(taken(&mut pool, 0.5, &[]), Some(vec![0]));
        assert_eq!(taken(&mut pool, 0.6, &[]), Some(vec![1]));
        assert_eq!(taken(&mut pool, 0.4, &[]), Some(vec![1]));
        assert_eq!(taken(&mut pool, 0.5, &[]), Some(vec![0]));
        assert_eq!(taken(&mut pool, 0.0001, &[]), None);
    }

    #[test]
    fn a_share_never_comes_from_two_units() {
        let mut pool = pool(&[&[0, 1]]);
        assert_eq!(taken(&mut pool, 0.6, &[]), Some(vec![0]));
        assert_eq!(taken(&mut pool, 0.6, &[]), Some(vec![1]));
        assert_eq!(taken(&mut pool, 0.6, &[]), None);
    }

    #[test]
    fn a_group_that_is_large_enough_is_waited_for_rather_than_straddled() {
        let mut pool = pool(&[&[0, 1], &[2, 3]]);
        assert_eq!(taken(&mut pool, 1.0, &[1]), Some(vec![1]));
        assert_eq!(taken(&mut pool, 1.0, &[2]), Some(vec![2]));
        assert_eq!(taken(&mut pool, 2.0, &[]), None);
        pool.give_back(&vec![(2, Quantity::ONE)]);
        assert_eq!(taken(&mut pool, 2.0, &[]), Some(vec![2, 3]));
    }

    #[test]
    fn what_no_group_can_hold_takes_as_few_groups_as_can_be() {
        let mut pool = pool(&[&[0], &[1, 2], &[3, 4, 5]]);
        assert_eq!(taken(&mut pool, 5.0, &[0]), Some(vec![1, 2, 3, 4, 5]));
    }

    #[test]
    fn single_units_leave_other_groups_whole() {
        let mut pool = pool(&[&[0, 1], &[2, 3]]);
        assert_eq!(taken(&mut pool, 1.0, &[]), Some(vec![0]));
        assert_eq!(taken(&mut pool, 1.0, &[]), Some(vec![1]));
        assert_eq!(taken(&mut pool, 2.0, &[]), Some(vec![2, 3]));
    }

    #[test]
    fn the_unit_of_an_input_comes_first_and_then_its_group() {
        let mut pool = pool(&[&[0, 1], &[2, 3]]);
        assert_eq!(taken(&mut pool, 1.0, &[3]), Some(vec![3]));
        assert_eq!(taken(&mut pool, 1.0, &[3]), Some(vec![2]));
        assert_eq!(taken(&mut pool, 1.0, &[3]), Some(vec![0]));
        assert_eq!(taken(&mut pool, 1.0, &[77]), Some(vec![1]));
    }

    #[test]
    fn the_larger_input_stays_where_it_is() {
        let mut pool = pool(&[&[0, 1], &[2, 3]]);
        let inputs = [(0, 10.0), (3, 1e9), (0, 20.0)];
        let choice = pool.choose(share(1.0), &inputs, &[], false);
        assert_eq!(choice, Some(vec![(3, Quantity::ONE)]));
        pool.take(&choice.expect("it was free"));
        let choice = pool.choose(share(1.0), &inputs, &[], false);
        assert_eq!(choice, Some(vec![(2, Quantity::ONE)]), "of its group");
    }

    #[test]
    fn where_its_own_unit_is_busy_an_input_goes_the_fastest_way() {
        // Four GPUs of a DGX-1, in one group: two links from 0 to 3, one to 1 and to 2
        let mut declared = Indexed::counted(4);
        for (to, bytes_per_s) in [(1, 20e9), (2, 20e9), (3, 40e9)] {
            declared.ways.insert((0, to), 1.0 / bytes_per_s);
        }
        let mut pool = IndexedPool::new(&declared);
        let found: Vec<_> = (0..4).map(|_| taken(&mut pool, 1.0, &[0])).collect();
        let order = [0, 3, 1, 2].map(|id| Some(vec![id]));
        assert_eq!(found, order);
    }

    #[test]
    fn a_unit_that_is_gone_is_not_lent_again() {
        let mut pool = pool(&[&[0, 1]]);
        assert_eq!(taken(&mut pool, 1.0, &[1]), Some(vec![1]));
        pool.declare(&Indexed::counted(1));
        assert_eq!(pool.total(), Quantity::ONE);
        pool.give_back(&vec![(1, Quantity::ONE)]);
        assert_eq!(taken(&mut pool, 1.0, &[]), Some(vec![0]));
        assert_eq!(taken(&mut pool, 1.0, &[]), None);
    }

    #[test]
    fn more_than_one_unit_and_a_half_is_refused_in_words() {
        let refused = pool(&[&[0, 1]])
            .refused("GPU", share(1.5))
            .expect("it is refused");
        assert_eq!(
            refused.to_string(),
            "1.5 of GPU is neither a share of one unit nor a whole number of units, and each has \
             an id"
        );
    }
}
