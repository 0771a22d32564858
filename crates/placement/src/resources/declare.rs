//! Declaration of a worker's resources.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use super::UnitId;
use super::quantity::{Quantity, QuantityError};
use super::taste::Ways;

/// Most ids in one pool; a larger whole number is an amount, of bytes for example
pub const IDS_MAX: usize = 4096;

/// One pool, as it is declared
#[derive(Clone, Debug, PartialEq)]
pub enum Declaration {
    /// Units with ids
    Indexed(Indexed),
    /// So much of something, in units
    Sum(f64),
}

/// Units with ids, in groups
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Indexed {
    /// Ids by group: units of one group belong together, as GPUs do that NVLink connects
    pub groups: Vec<Vec<UnitId>>,
    /// For some ids: the ids of other pools that are near to them, as the machine has them
    pub coupled: BTreeMap<UnitId, Vec<Coupled>>,
    /// Seconds a byte takes from one id to another one, where the machine tells
    pub ways: Ways,
}

/// An id of another pool
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Coupled {
    /// Name of the pool
    pub resource: String,
    /// Id in it
    pub id: UnitId,
}

impl Indexed {
    /// So many ids from zero, in one group
    pub fn counted(ids: UnitId) -> Self {
        Self::grouped(vec![(0..ids).collect()])
    }

    /// Ids in groups, coupled to nothing
    pub fn grouped(groups: Vec<Vec<UnitId>>) -> Self {
        Self {
            groups,
            ..Self::default()
        }
    }

    /// All ids
    pub fn ids(&self) -> impl Iterator<Item = UnitId> + '_ {
        self.groups.iter().flatten().copied()
    }
}

/// Checks what is declared of one worker
///
/// # Errors
///
/// [`DeclareError`] for the first thing that is wrong.
pub(super) fn check(declared: &BTreeMap<String, Declaration>) -> Result<(), DeclareError> {
    for (name, declaration) in declared {
        if name.is_empty() {
            return Err(DeclareError::Unnamed);
        }
        match declaration {
            Declaration::Sum(units) => {
                Quantity::from_f64(*units).map_err(|source| DeclareError::Quantity {
                    resource: name.clone(),
                    source,
                })?;
            }
            Declaration::Indexed(indexed) => check_indexed(name, indexed, declared)?,
        }
    }
    Ok(())
}

fn check_indexed(
    name: &str,
    indexed: &Indexed,
    declared: &BTreeMap<String, Declaration>,
) -> Result<(), DeclareError> {
    let count = indexed.ids().count();
    if count > IDS_MAX {
        return Err(DeclareError::TooMany {
            resource: name.to_owned(),
            count,
        });
    }
    let mut group_of: BTreeMap<UnitId, usize> = BTreeMap::new();
    for (group, ids) in indexed.groups.iter().enumerate() {
        if ids.is_empty() && indexed.groups.len() > 1 {
            return Err(DeclareError::EmptyGroup {
                resource: name.to_owned(),
                group,
            });
        }
        for &id in ids {
            match group_of.insert(id, group) {
                Some(first) if first == group => {
                    return Err(DeclareError::Repeated {
                        resource: name.to_owned(),
                        id,
                    });
                }
                Some(first) => {
                    return Err(DeclareError::Overlap {
                        resource: name.to_owned(),
                        id,
                        first,
                        second: group,
                    });
                }
                None => {}
            }
        }
    }
    check_ways(name, indexed, &group_of)?;
    for (&id, others) in &indexed.coupled {
        if !group_of.contains_key(&id) {
            return Err(DeclareError::UnknownId {
                resource: name.to_owned(),
                id,
                there: listed(indexed),
            });
        }
        for other in others {
            let there = match declared.get(&other.resource) {
                Some(Declaration::Indexed(pool)) => pool,
                _ => {
                    return Err(DeclareError::CoupledToNothing {
                        resource: name.to_owned(),
                        id,
                        other: other.resource.clone(),
                    });
                }
            };
            if !there.ids().any(|each| each == other.id) {
                return Err(DeclareError::UnknownId {
                    resource: other.resource.clone(),
                    id: other.id,
                    there: listed(there),
                });
            }
        }
    }
    Ok(())
}

fn check_ways(
    name: &str,
    indexed: &Indexed,
    group_of: &BTreeMap<UnitId, usize>,
) -> Result<(), DeclareError> {
    for (&(from, to), &seconds) in &indexed.ways {
        if let Some(id) = [from, to].into_iter().find(|id| !group_of.contains_key(id)) {
            return Err(DeclareError::UnknownId {
                resource: name.to_owned(),
                id,
                there: listed(indexed),
            });
        }
        if !(seconds >= 0.0 && seconds.is_finite()) {
            return Err(DeclareError::Way {
                resource: name.to_owned(),
                from,
                to,
                seconds,
            });
        }
    }
    Ok(())
}

fn listed(indexed: &Indexed) -> String {
    let ids: BTreeSet<UnitId> = indexed.ids().collect();
    let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
    ids.join(", ")
}

/// Impossible declaration
#[non_exhaustive]
#[derive(Clone, Debug, Error, PartialEq)]
pub enum DeclareError {
    /// A pool has no name
    #[error("a resource needs a name")]
    Unnamed,
    /// An amount is none
    #[error("there cannot be that much of {resource}: {source}")]
    Quantity {
        /// Name of the pool
        resource: String,
        /// Fault of the amount
        source: QuantityError,
    },
    /// One id is in two groups
    #[error("{resource} {id} is in two groups, number {first} and number {second}")]
    Overlap {
        /// Name of the pool
        resource: String,
        /// The id
        id: UnitId,
        /// The group that had it, counted from zero
        first: usize,
        /// The other
        second: usize,
    },
    /// One id is there twice
    #[error("{resource} {id} is there twice")]
    Repeated {
        /// Name of the pool
        resource: String,
        /// The id
        id: UnitId,
    },
    /// A group has no ids
    #[error("group number {group} of {resource} is empty")]
    EmptyGroup {
        /// Name of the pool
        resource: String,
        /// The group, counted from zero
        group: usize,
    },
    /// There are more ids than a pool has
    #[error("{count} ids of {resource} are more than {IDS_MAX}")]
    TooMany {
        /// Name of the pool
        resource: String,
        /// Number of ids
        count: usize,
    },
    /// An id is named that the pool has not
    #[error("there is no {resource} {id}; there are {there}")]
    UnknownId {
        /// Name of the pool
        resource: String,
        /// The id
        id: UnitId,
        /// The ids of the pool
        there: String,
    },
    /// The way between two ids takes no number of seconds from 0
    #[error("a byte cannot take {seconds} s from {resource} {from} to {to}")]
    Way {
        /// Name of the pool
        resource: String,
        /// The id where it is
        from: UnitId,
        /// The id where it goes
        to: UnitId,
        /// Value that was given
        seconds: f64,
    },
    /// An id is coupled to a pool that has no ids, or is not there
    #[error("{resource} {id} is coupled to {other}, which has no ids here")]
    CoupledToNothing {
        /// Name of the pool
        resource: String,
        /// The id
        id: UnitId,
        /// Name of the other pool
        other: String,
    },
}
