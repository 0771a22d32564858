//! Request of a task for resources.

use std::collections::BTreeMap;

use thiserror::Error;

use super::quantity::{Quantity, QuantityError};

/// Resources that one task holds while it runs
///
/// Needs of nothing are left out: a task that asks for zero of something asks for nothing.
#[derive(Clone, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Request {
    needs: Vec<(String, Quantity)>,
    affinity: Vec<String>,
}

impl Request {
    /// Makes a request of amounts in units, by name
    ///
    /// `affinity` names those of which the units are preferred that the inputs of the task ran on,
    /// or else units of the same group.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if an amount is none, or an affinity is to something that is not asked for.
    pub fn new<'a>(
        needs: impl IntoIterator<Item = (&'a str, f64)>,
        affinity: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, RequestError> {
        let mut amounts: BTreeMap<String, Quantity> = BTreeMap::new();
        for (name, units) in needs {
            if name.is_empty() {
                return Err(RequestError::Unnamed);
            }
            let amount = Quantity::from_f64(units).map_err(|source| RequestError::Quantity {
                resource: name.to_owned(),
                source,
            })?;
            amounts.insert(name.to_owned(), amount);
        }
        let mut preferred = Vec::new();
        for name in affinity {
            match amounts.get(name) {
                None => {
                    return Err(RequestError::AffinityToNothing {
                        resource: name.to_owned(),
                    });
                }
                Some(&amount) if amount > Quantity::ZERO => {
                    if !preferred.iter().any(|each| each == name) {
                        preferred.push(name.to_owned());
                    }
                }
                Some(_) => {}
            }
        }
        preferred.sort();
        amounts.retain(|_, amount| *amount > Quantity::ZERO);
        Ok(Self {
            needs: amounts.into_iter().collect(),
            affinity: preferred,
        })
    }

    /// The amounts, by name, in the order of the names
    pub fn needs(&self) -> &[(String, Quantity)] {
        &self.needs
    }

    /// Returns whether units are preferred that the inputs ran on
    pub fn prefers(&self, resource: &str) -> bool {
        self.affinity.iter().any(|each| each == resource)
    }
}

/// Impossible request, on any worker
#[non_exhaustive]
#[derive(Clone, Debug, Error, PartialEq)]
pub enum RequestError {
    /// A resource has no name
    #[error("a resource needs a name")]
    Unnamed,
    /// An amount is none
    #[error("a task cannot ask for that much {resource}: {source}")]
    Quantity {
        /// Name of the resource
        resource: String,
        /// Fault of the amount
        source: QuantityError,
    },
    /// Units of something are preferred that is not asked for
    #[error("affinity to {resource}, of which the task asks for nothing")]
    AffinityToNothing {
        /// Name of the resource
        resource: String,
    },
}

/// Why a worker can never run a task, however long it waits
#[non_exhaustive]
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum Unmeetable {
    /// The worker has nothing of that name
    #[error("there is no {resource}; there is {there}")]
    NoSuchResource {
        /// Resource that is asked for
        resource: String,
        /// Resources that the worker has
        there: String,
    },
    /// The worker has less
    #[error("{wanted} of {resource} are more than the {there} that there are")]
    TooMuch {
        /// Resource that is asked for
        resource: String,
        /// How much is asked for
        wanted: Quantity,
        /// How much there is
        there: Quantity,
    },
    /// More than one unit, but no whole number of them
    #[error(
        "{wanted} of {resource} is neither a share of one unit nor a whole number of units, and \
         each has an id"
    )]
    FractionAboveOne {
        /// Resource that is asked for
        resource: String,
        /// How much is asked for
        wanted: Quantity,
    },
    /// Units are preferred, but the pool has none
    #[error("affinity to {resource}, of which there is an amount and no ids")]
    AffinityToSum {
        /// Resource that is asked for
        resource: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_mean_the_same_are_equal() {
        let one = Request::new([("GPU", 1.0), ("CPU", 0.0)], ["GPU"]);
        let other = Request::new([("GPU", 1.0)], ["GPU", "GPU"]);
        assert_eq!(one, other);
    }

    #[test]
    fn affinity_needs_something_that_is_asked_for() {
        let error = Request::new([("GPU", 1.0)], ["NIC"]).expect_err("no NIC is asked for");
        assert_eq!(
            error.to_string(),
            "affinity to NIC, of which the task asks for nothing"
        );
    }

    #[test]
    fn amounts_that_are_none_name_the_resource() {
        let error = Request::new([("GPU", f64::NAN)], []).expect_err("NaN is no amount");
        assert_eq!(
            error.to_string(),
            "a task cannot ask for that much GPU: NaN is no amount"
        );
    }
}
