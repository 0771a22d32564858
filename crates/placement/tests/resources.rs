//! Pools against a plain model that knows only what each unit has left: no unit has two holders
//! beyond one, nothing is lost or made, and a request waits exactly when it must.

use std::collections::BTreeMap;

use backhaul_placement::resources::{
    Declaration, Held, Indexed, LeaseId, PER_ONE, Places, Pools, Quantity, Request, UnitId,
};
use proptest::prelude::*;

/// One step of a worker's life
#[derive(Clone, Debug)]
enum Step {
    /// A task asks for parts of the units, and parts of the sum; its inputs ran on a unit
    Take { units: u64, sum: u64, input: UnitId },
    /// The task that has run for the longest, counted so, ends
    GiveBack(usize),
}

/// Rest of each unit and of the sum, in parts
struct Model {
    groups: Vec<Vec<UnitId>>,
    units: BTreeMap<UnitId, u64>,
    sum: u64,
}

impl Model {
    fn new(sizes: &[u32], sum: u64) -> Self {
        let mut next = 0;
        let groups: Vec<Vec<UnitId>> = sizes
            .iter()
            .map(|size| {
                let ids = (next..next + size).collect();
                next += size;
                ids
            })
            .collect();
        let units = groups.iter().flatten().map(|&id| (id, PER_ONE)).collect();
        Self { groups, units, sum }
    }

    fn whole_free(&self, ids: &[UnitId]) -> u64 {
        ids.iter().filter(|id| self.units[*id] == PER_ONE).count() as u64
    }

    fn ever(&self, units: u64) -> bool {
        let fraction = !units.is_multiple_of(PER_ONE);
        units <= self.units.len() as u64 * PER_ONE && !(units > PER_ONE && fraction)
    }

    fn now(&self, units: u64, sum: u64) -> bool {
        if sum > self.sum {
            return false;
        }
        if !units.is_multiple_of(PER_ONE) {
            return self.units.values().any(|&free| free >= units);
        }
        let count = units / PER_ONE;
        if count == 0 {
            return true;
        }
        let fits = |ids: &Vec<UnitId>| ids.len() as u64 >= count;
        if self.groups.iter().any(fits) {
            self.groups.iter().any(|ids| self.whole_free(ids) >= count)
        } else {
            self.groups
                .iter()
                .map(|ids| self.whole_free(ids))
                .sum::<u64>()
                >= count
        }
    }

    fn take(&mut self, held: &Held) {
        for &(id, amount) in held.units.get("GPU").into_iter().flatten() {
            let left = self.units[&id].checked_sub(amount.parts());
            self.units
                .insert(id, left.expect("no unit is held beyond one"));
        }
        let amount = held
            .amounts
            .get("MEMORY")
            .map_or(0, |amount| amount.parts());
        self.sum = self
            .sum
            .checked_sub(amount)
            .expect("no more is lent than there is");
    }

    fn give_back(&mut self, held: &Held) {
        for &(id, amount) in held.units.get("GPU").into_iter().flatten() {
            *self.units.get_mut(&id).expect("it is declared") += amount.parts();
        }
        self.sum += held
            .amounts
            .get("MEMORY")
            .map_or(0, |amount| amount.parts());
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let units = prop_oneof![
        3 => (0..=6_u64).prop_map(|count| count * PER_ONE),
        3 => (1..PER_ONE).prop_map(|parts| parts),
        1 => (PER_ONE + 1..3 * PER_ONE).prop_map(|parts| parts),
    ];
    let step = prop_oneof![
        3 => (units, 0..30_u64, 0..12_u32)
            .prop_map(|(units, sum, input)| Step::Take { units, sum: sum * PER_ONE, input }),
        2 => (0..8_usize).prop_map(Step::GiveBack),
    ];
    prop::collection::vec(step, 1..60)
}

fn declared(model: &Model, sum: u64) -> BTreeMap<String, Declaration> {
    BTreeMap::from([
        (
            "GPU".to_owned(),
            Declaration::Indexed(Indexed::grouped(model.groups.clone())),
        ),
        (
            "MEMORY".to_owned(),
            Declaration::Sum((sum / PER_ONE) as f64),
        ),
    ])
}

fn in_units(parts: u64) -> f64 {
    parts as f64 / PER_ONE as f64
}

/// Checks that the chosen units are those that were asked for, from as few units and groups as must
/// be
fn check_choice(
    model: &Model,
    units: u64,
    input: UnitId,
    free: &BTreeMap<UnitId, u64>,
    held: &Held,
) {
    let chosen = held.units.get("GPU").cloned().unwrap_or_default();
    let sum: Quantity = chosen.iter().map(|(_, amount)| *amount).sum();
    assert_eq!(sum.parts(), units, "exactly what was asked for");
    if units == 0 {
        return;
    }
    let ids: Vec<UnitId> = chosen.iter().map(|(id, _)| *id).collect();
    let is_free = |id: &UnitId| free.get(id).is_some_and(|&left| left >= units.min(PER_ONE));
    if units <= PER_ONE {
        assert_eq!(ids.len(), 1, "a share comes from one unit");
        let group_of = |id: UnitId| model.groups.iter().find(|ids| ids.contains(&id));
        if is_free(&input) {
            assert_eq!(ids, [input], "the unit of the input was free");
        } else if let Some(group) = group_of(input)
            && group.iter().any(is_free)
        {
            assert!(group.contains(&ids[0]), "one of its group was free");
        }
        return;
    }
    let large_enough = |ids: &&Vec<UnitId>| ids.len() as u64 * PER_ONE >= units;
    if model.groups.iter().any(|ids| large_enough(&ids)) {
        let within = |group: &Vec<UnitId>| ids.iter().all(|id| group.contains(id));
        assert!(
            model.groups.iter().any(within),
            "no group is straddled: {ids:?}"
        );
    }
}

proptest! {
    #[test]
    fn pools_lend_what_the_plain_model_has(
        sizes in prop::collection::vec(1..5_u32, 1..4),
        sum in 1..100_u64,
        steps in steps(),
    ) {
        let sum = sum * PER_ONE;
        let mut model = Model::new(&sizes, sum);
        let mut pools = Pools::new(&declared(&model, sum)).expect("it makes sense");
        let mut leases: Vec<LeaseId> = Vec::new();
        for step in steps {
            match step {
                Step::Take { units, sum: wanted, input } => {
                    let needs = [("GPU", in_units(units)), ("MEMORY", in_units(wanted))];
                    let affinity: &[&str] = if units > 0 { &["GPU"] } else { &[] };
                    let request = Request::new(needs, affinity.iter().copied())
                        .expect("it makes sense");
                    let inputs = BTreeMap::from([("GPU".to_owned(), vec![(input, 1e6)])]);
                    let taken = pools.take(&request, &inputs);
                    let ever = model.ever(units) && wanted <= sum;
                    prop_assert_eq!(taken.is_ok(), ever);
                    let Ok(taken) = taken else { continue };
                    prop_assert_eq!(taken.is_some(), model.now(units, wanted));
                    if let Some(lease) = taken {
                        let held = pools.held(lease).expect("it was taken").clone();
                        check_choice(&model, units, input, &model.units, &held);
                        model.take(&held);
                        leases.push(lease);
                    }
                }
                Step::GiveBack(place) => {
                    if !leases.is_empty() {
                        let lease = leases.remove(place % leases.len());
                        model.give_back(&pools.give_back(lease).expect("it was taken"));
                        prop_assert!(pools.give_back(lease).is_err());
                    }
                }
            }
            for (id, free) in pools.units("GPU").expect("it has ids") {
                prop_assert_eq!(free.parts(), model.units[&id]);
            }
        }
        for lease in leases {
            pools.give_back(lease).expect("it was taken");
        }
        prop_assert_eq!(pools.leases(), 0);
        for (name, total, free) in pools.amounts() {
            prop_assert_eq!(total, free, "all of {} has come back", name);
        }
    }

    #[test]
    fn places_rank_as_if_each_worker_was_looked_at(
        totals in prop::collection::vec(1..5_u32, 1..6),
        steps in prop::collection::vec((0..3_usize, 0..6_usize, any::<bool>()), 1..60),
    ) {
        let needs = [1.0, 2.0, 0.5];
        let mut places = Places::default();
        let signatures: Vec<_> = needs
            .iter()
            .map(|&units| Request::new([("GPU", units)], []).expect("it makes sense"))
            .map(|request| places.signature(&request))
            .collect();
        for (place, &total) in totals.iter().enumerate() {
            let pool = Declaration::Indexed(Indexed::counted(total));
            let declared = BTreeMap::from([("GPU".to_owned(), pool)]);
            places.set_worker(place as u32, &declared).expect("it makes sense");
        }
        let mut used = vec![0.0; totals.len()];
        let mut booked: Vec<(usize, usize)> = Vec::new();
        for (kind, place, ends) in steps {
            let load = |place: usize| (used[place] + needs[kind]) / f64::from(totals[place]);
            let best = (0..totals.len())
                .filter(|&place| needs[kind] <= f64::from(totals[place]))
                .map(load)
                .fold(f64::INFINITY, f64::min);
            let first = places.ranked(signatures[kind]).expect("it is known").next();
            match first {
                Some(first) => prop_assert!((load(first as usize) - best).abs() < 1e-5),
                None => prop_assert_eq!(best, f64::INFINITY),
            }
            if ends && !booked.is_empty() {
                let (kind, place) = booked.swap_remove(place % booked.len());
                places.release(signatures[kind], place as u32).expect("it is booked");
                used[place] -= needs[kind];
            } else if let Some(place) = first {
                places.book(signatures[kind], place).expect("it is known");
                used[place as usize] += needs[kind];
                booked.push((kind, place as usize));
            }
        }
    }
}

#[test]
fn requests_of_all_sizes_stay_in_a_group_wherever_one_is_large_enough() {
    for sizes in [
        vec![1],
        vec![2, 2],
        vec![4, 4],
        vec![1, 2, 3],
        vec![2, 2, 2, 2],
        vec![8],
    ] {
        let total: u32 = sizes.iter().sum();
        for count in 1..=total {
            let model = Model::new(&sizes, PER_ONE);
            let mut pools = Pools::new(&declared(&model, PER_ONE)).expect("it makes sense");
            let request = Request::new([("GPU", f64::from(count))], []).expect("it makes sense");
            let lease = pools
                .take(&request, &BTreeMap::new())
                .expect("it can be met")
                .expect("all is free");
            let held = pools.held(lease).expect("it was taken");
            check_choice(&model, u64::from(count) * PER_ONE, 0, &model.units, held);
        }
    }
}
