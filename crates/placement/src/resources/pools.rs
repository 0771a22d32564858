//! All that one worker lends to its tasks.

mod choose;
mod waiting;

use std::collections::BTreeMap;
use std::fmt;

use thiserror::Error;

use super::UnitId;
use super::declare::{Declaration, DeclareError, check};
use super::indexed::{Choice, IndexedPool};
use super::near::Near;
use super::quantity::Quantity;
use super::request::{Request, Unmeetable};
use super::taste::RanOn;
use super::turns::Turns;

pub use self::waiting::Kind;

/// The pools of one worker, and who holds what of them
///
/// Taken resources are a lease, given back once. Nothing is lent twice: of an indexed pool no unit
/// beyond one, of a sum no more than there is.
///
/// A request for much may wait for ever while requests for little take each unit as it gets free.
/// [`Pools::keep_for`] ends that: from then on the units that it needs are lent to no other
/// request. [`Pools::granted`] does so once others have gone past a request too often.
#[derive(Clone, Debug, Default)]
pub struct Pools {
    pools: BTreeMap<String, Pool>,
    near: Near,
    leases: BTreeMap<LeaseId, Held>,
    last: u64,
    kept_for: Option<Request>,
    turns: Turns<Kind, Vec<f64>>,
}

#[derive(Clone, Debug)]
enum Pool {
    Indexed(IndexedPool),
    Sum {
        total: Quantity,
        used: Quantity,
        /// Amount that only the request may take for which it is kept
        kept: Quantity,
    },
}

/// Number of one lease; never used twice
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct LeaseId(pub u64);

/// Units that one lease holds
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Held {
    /// Units by name of the resource, with how much of each
    pub units: BTreeMap<String, Choice>,
    /// Amounts by name of the resource
    pub amounts: BTreeMap<String, Quantity>,
}

impl Held {
    /// Holds an amount of what has no ids any longer, and nothing of what is gone or has some now
    fn follow(&mut self, declared: &BTreeMap<String, Declaration>) {
        let units = std::mem::take(&mut self.units);
        let is_indexed =
            |name: &String| matches!(declared.get(name), Some(Declaration::Indexed(_)));
        self.amounts
            .retain(|name, _| declared.contains_key(name) && !is_indexed(name));
        for (name, choice) in units {
            if is_indexed(&name) {
                self.units.insert(name, choice);
            } else if declared.contains_key(&name) {
                let amount = choice.iter().map(|(_, amount)| *amount).sum();
                self.amounts.insert(name, amount);
            }
        }
    }
}

impl Pools {
    /// Makes the pools that are declared; all is free
    ///
    /// # Errors
    ///
    /// [`DeclareError`] if the declaration makes no sense.
    pub fn new(declared: &BTreeMap<String, Declaration>) -> Result<Self, DeclareError> {
        let mut pools = Self::default();
        pools.declare(declared)?;
        Ok(pools)
    }

    /// Has what is declared from now on, in the place of all that was; leases go on
    ///
    /// # Errors
    ///
    /// [`DeclareError`] if the declaration makes no sense. Nothing has changed then.
    pub fn declare(
        &mut self,
        declared: &BTreeMap<String, Declaration>,
    ) -> Result<(), DeclareError> {
        check(declared)?;
        self.keep_no_longer();
        // Requests for what has other ids now may never be made again.
        self.turns.clear();
        self.near = Near::new(declared);
        let mut before = std::mem::take(&mut self.pools);
        for lease in self.leases.values_mut() {
            lease.follow(declared);
        }
        for (name, declaration) in declared {
            let pool = match declaration {
                Declaration::Indexed(indexed) => {
                    let mut pool = match before.remove(name) {
                        Some(Pool::Indexed(pool)) => pool,
                        _ => IndexedPool::default(),
                    };
                    pool.declare(indexed);
                    Pool::Indexed(pool)
                }
                Declaration::Sum(units) => Pool::Sum {
                    total: Quantity::from_f64(*units).expect("it was checked"),
                    used: self.leased(name),
                    kept: Quantity::ZERO,
                },
            };
            self.pools.insert(name.clone(), pool);
        }
        Ok(())
    }

    /// Says why a request can never be met here
    ///
    /// # Errors
    ///
    /// [`Unmeetable`], naming what there is.
    pub fn meetable(&self, request: &Request) -> Result<(), Unmeetable> {
        for (name, wanted) in request.needs() {
            match self.pools.get(name) {
                None => {
                    return Err(Unmeetable::NoSuchResource {
                        resource: name.clone(),
                        there: self.to_string(),
                    });
                }
                Some(Pool::Indexed(pool)) => {
                    if let Some(refused) = pool.refused(name, *wanted) {
                        return Err(refused);
                    }
                }
                Some(Pool::Sum { total, .. }) => {
                    if request.prefers(name) {
                        return Err(Unmeetable::AffinityToSum {
                            resource: name.clone(),
                        });
                    }
                    if wanted > total {
                        return Err(Unmeetable::TooMuch {
                            resource: name.clone(),
                            wanted: *wanted,
                            there: *total,
                        });
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes all that a request asks for, or nothing; `None` if it is not free now
    ///
    /// `inputs` has the units that the inputs of the task ran on, with their bytes, by name of the
    /// resource; they count where the request has an affinity to it. Such resources are chosen first, then those of
    /// which there is the least; what is chosen later is near to what was chosen before, and what is
    /// chosen before has something free near to it, wherever that can be had.
    ///
    /// # Errors
    ///
    /// [`TakeError`] if it can never be met.
    pub fn take(
        &mut self,
        request: &Request,
        inputs: &BTreeMap<String, Vec<RanOn>>,
    ) -> Result<Option<LeaseId>, TakeError> {
        let Some(held) = self.choose(request, inputs)? else {
            return Ok(None);
        };
        for (name, choice) in &held.units {
            if let Some(Pool::Indexed(pool)) = self.pools.get_mut(name) {
                pool.take(choice);
            }
        }
        for (name, amount) in &held.amounts {
            if let Some(Pool::Sum { used, .. }) = self.pools.get_mut(name) {
                *used += *amount;
            }
        }
        if self.kept_for.as_ref() == Some(request) {
            self.keep_no_longer();
        }
        self.last += 1;
        let lease = LeaseId(self.last);
        self.leases.insert(lease, held);
        Ok(Some(lease))
    }

    /// Returns whether all that a request asks for is free, and may be taken by it
    ///
    /// # Errors
    ///
    /// [`TakeError`] if it can never be met.
    pub fn is_free(&self, request: &Request) -> Result<bool, TakeError> {
        Ok(self.choose(request, &BTreeMap::new())?.is_some())
    }

    /// Lends what a request needs to no other one from now on, until it has taken it
    ///
    /// Units that others hold stay with them. Units are kept in the group, or of the groups, that
    /// have the most free; of resources that are not in `only`, where that is given, nothing is.
    /// Returns whether something is kept for it now: not while it is for another one, so that two
    /// that need the same never keep it from each other.
    ///
    /// # Errors
    ///
    /// [`TakeError`] if it can never be met.
    pub fn keep_for(
        &mut self,
        request: &Request,
        only: Option<&[String]>,
    ) -> Result<bool, TakeError> {
        self.meetable(request)?;
        if let Some(kept_for) = &self.kept_for {
            return Ok(kept_for == request);
        }
        for (name, wanted) in request.needs() {
            if only.is_some_and(|only| !only.contains(name)) {
                continue;
            }
            match self.pools.get_mut(name) {
                Some(Pool::Indexed(pool)) => pool.keep(*wanted),
                Some(Pool::Sum { kept, .. }) => *kept = *wanted,
                None => {}
            }
        }
        self.kept_for = Some(request.clone());
        Ok(true)
    }

    /// Lends to all again the units that were kept for one request, because that request does not
    /// wait any more
    pub fn keep_no_longer(&mut self) {
        self.turns.kept = None;
        if self.kept_for.take().is_some() {
            for pool in self.pools.values_mut() {
                match pool {
                    Pool::Indexed(pool) => pool.keep_nothing(),
                    Pool::Sum { kept, .. } => *kept = Quantity::ZERO,
                }
            }
        }
    }

    /// The request that something is kept for
    pub fn kept_for(&self) -> Option<&Request> {
        self.kept_for.as_ref()
    }

    /// Gives back all that a lease holds
    ///
    /// # Errors
    ///
    /// [`UnknownLease`] if it was given back before, or never taken.
    pub fn give_back(&mut self, lease: LeaseId) -> Result<Held, UnknownLease> {
        let held = self.leases.remove(&lease).ok_or(UnknownLease { lease })?;
        for (name, choice) in &held.units {
            if let Some(Pool::Indexed(pool)) = self.pools.get_mut(name) {
                pool.give_back(choice);
            }
        }
        for (name, amount) in &held.amounts {
            if let Some(Pool::Sum { used, .. }) = self.pools.get_mut(name) {
                *used -= *amount;
            }
        }
        Ok(held)
    }

    /// Returns the units that a lease holds
    ///
    /// # Errors
    ///
    /// [`UnknownLease`] if it was given back before, or never taken.
    pub fn held(&self, lease: LeaseId) -> Result<&Held, UnknownLease> {
        self.leases.get(&lease).ok_or(UnknownLease { lease })
    }

    /// How many leases there are
    pub fn leases(&self) -> usize {
        self.leases.len()
    }

    /// Names of the pools with how much there is, and how much of it is free
    pub fn amounts(&self) -> impl Iterator<Item = (&str, Quantity, Quantity)> + '_ {
        self.pools.iter().map(|(name, pool)| match pool {
            Pool::Indexed(pool) => {
                let free = pool.free().map(|(_, free)| free).sum();
                (name.as_str(), pool.total(), free)
            }
            // The rest may be less than nothing after a new declaration.
            Pool::Sum { total, used, .. } => (name.as_str(), *total, *total - *(used.min(total))),
        })
    }

    /// The units of a pool, with how much of each is free; `None` if it is a sum, or not there
    pub fn units(&self, resource: &str) -> Option<Vec<(UnitId, Quantity)>> {
        match self.pools.get(resource) {
            Some(Pool::Indexed(pool)) => Some(pool.free().collect()),
            _ => None,
        }
    }

    fn leased(&self, resource: &str) -> Quantity {
        self.leases
            .values()
            .filter_map(|lease| lease.amounts.get(resource))
            .copied()
            .sum()
    }
}

impl fmt::Display for Pools {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pools.is_empty() {
            return formatter.write_str("nothing");
        }
        for (place, (name, total, _)) in self.amounts().enumerate() {
            let comma = if place == 0 { "" } else { ", " };
            write!(formatter, "{comma}{name}={total}")?;
        }
        Ok(())
    }
}

/// Why nothing can be taken
#[non_exhaustive]
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum TakeError {
    /// However long one waits
    #[error(transparent)]
    Never(#[from] Unmeetable),
}

/// A lease is not there
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("lease {} was given back, or never taken", lease.0)]
pub struct UnknownLease {
    /// Its number
    pub lease: LeaseId,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::{Coupled, Indexed};

    fn declared(pools: &[(&str, Declaration)]) -> BTreeMap<String, Declaration> {
        pools
            .iter()
            .map(|(name, pool)| ((*name).to_owned(), pool.clone()))
            .collect()
    }

    fn islands() -> Pools {
        let groups = vec![vec![0, 1], vec![2, 3]];
        Pools::new(&declared(&[
            ("GPU", Declaration::Indexed(Indexed::grouped(groups))),
            ("MEMORY", Declaration::Sum(64e9)),
        ]))
        .expect("it makes sense")
    }

    fn request(needs: &[(&str, f64)]) -> Request {
        Request::new(needs.iter().copied(), []).expect("it makes sense")
    }

    fn take(pools: &mut Pools, request: &Request) -> Option<LeaseId> {
        pools
            .take(request, &BTreeMap::new())
            .expect("it can be met")
    }

    #[test]
    fn all_is_taken_or_nothing() {
        let mut pools = islands();
        let first = take(&mut pools, &request(&[("MEMORY", 60e9)])).expect("it is free");
        let both = request(&[("GPU", 1.0), ("MEMORY", 5e9)]);
        assert_eq!(take(&mut pools, &both), None);
        assert!(
            pools
                .units("GPU")
                .expect("it has ids")
                .iter()
                .all(|(_, free)| *free == Quantity::ONE)
        );
        pools.give_back(first).expect("it was taken");
        assert!(take(&mut pools, &both).is_some());
    }

    #[test]
    fn a_lease_is_given_back_once() {
        let mut pools = islands();
        let lease = take(&mut pools, &request(&[("GPU", 2.0)])).expect("it is free");
        pools.give_back(lease).expect("it was taken");
        let error = pools.give_back(lease).expect_err("it is gone");
        assert_eq!(error.to_string(), "lease 1 was given back, or never taken");
    }

    #[test]
    fn what_can_never_be_met_names_what_is_there() {
        let pools = islands();
        for (needs, message) in [
            (
                ("NIC", 1.0),
                "there is no NIC; there is GPU=4, MEMORY=64000000000",
            ),
            (("GPU", 5.0), "5 of GPU are more than the 4 that there are"),
            (
                ("MEMORY", 1e12),
                "1000000000000 of MEMORY are more than the 64000000000 that there are",
            ),
        ] {
            let error = pools
                .meetable(&request(&[needs]))
                .expect_err("it cannot be met");
            assert_eq!(error.to_string(), message);
        }
        let prefers = Request::new([("MEMORY", 1.0)], ["MEMORY"]).expect("it makes sense");
        let error = pools.meetable(&prefers).expect_err("it has no ids");
        assert_eq!(
            error.to_string(),
            "affinity to MEMORY, of which there is an amount and no ids"
        );
    }

    #[test]
    fn declarations_that_make_no_sense_say_why() {
        let grouped = |groups| Declaration::Indexed(Indexed::grouped(groups));
        let mut coupled = Indexed::counted(1);
        let to = |resource: &str, id| Coupled {
            resource: resource.to_owned(),
            id,
        };
        coupled.coupled.insert(0, vec![to("NIC", 7)]);
        let nics = Declaration::Indexed(Indexed::counted(2));
        for (pools, message) in [
            (
                declared(&[("GPU", grouped(vec![vec![0, 1], vec![1]]))]),
                "GPU 1 is in two groups, number 0 and number 1",
            ),
            (
                declared(&[("GPU", grouped(vec![vec![3, 3]]))]),
                "GPU 3 is there twice",
            ),
            (
                declared(&[("GPU", grouped(vec![vec![0], vec![]]))]),
                "group number 1 of GPU is empty",
            ),
            (
                declared(&[("MEMORY", Declaration::Sum(f64::NAN))]),
                "there cannot be that much of MEMORY: NaN is no amount",
            ),
            (
                declared(&[
                    ("GPU", Declaration::Indexed(coupled.clone())),
                    ("NIC", nics),
                ]),
                "there is no NIC 7; there are 0, 1",
            ),
            (
                declared(&[("GPU", Declaration::Indexed(coupled))]),
                "GPU 0 is coupled to NIC, which has no ids here",
            ),
        ] {
            let error = Pools::new(&pools).expect_err("it makes no sense");
            assert_eq!(error.to_string(), message);
        }
    }

    #[test]
    fn a_new_declaration_forgets_nothing_that_is_held() {
        let mut pools = islands();
        let memory = take(&mut pools, &request(&[("MEMORY", 40e9)])).expect("it is free");
        let gpu = take(&mut pools, &request(&[("GPU", 1.0)])).expect("it is free");
        pools
            .declare(&declared(&[
                ("GPU", Declaration::Indexed(Indexed::counted(1))),
                ("MEMORY", Declaration::Sum(50e9)),
            ]))
            .expect("it makes sense");
        assert_eq!(take(&mut pools, &request(&[("MEMORY", 20e9)])), None);
        assert_eq!(take(&mut pools, &request(&[("GPU", 1.0)])), None);
        pools.give_back(memory).expect("it was taken");
        pools.give_back(gpu).expect("it was taken");
        assert!(take(&mut pools, &request(&[("MEMORY", 50e9), ("GPU", 1.0)])).is_some());
    }
}
