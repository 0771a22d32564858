//! Resources as Python declares them: `{"GPU": [[0, 1], [2, 3]], "NIC": 2, "MEMORY": 64e9}`.

use std::collections::BTreeMap;

use backhaul_placement::resources::{Coupled, Declaration, IDS_MAX, Indexed, UnitId};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyString};

/// Reads what is declared, and what is coupled to what: `{"GPU": {0: {"NIC": [1]}}}`
///
/// Ids of the same pool have seconds a byte: `{"GPU": {0: {"GPU": {1: 5e-11}}}}`.
pub(crate) fn read(
    declared: &Bound<'_, PyDict>,
    coupled: Option<&Bound<'_, PyDict>>,
) -> PyResult<BTreeMap<String, Declaration>> {
    let mut pools = BTreeMap::new();
    for (name, value) in declared {
        let name: String = name.extract()?;
        let pool = pool(&name, &value)?;
        pools.insert(name, pool);
    }
    let Some(coupled) = coupled else {
        return Ok(pools);
    };
    for (name, ids) in coupled {
        let name: String = name.extract()?;
        let Some(Declaration::Indexed(pool)) = pools.get_mut(&name) else {
            return Err(PyValueError::new_err(format!(
                "{name} has no ids that could be coupled to anything"
            )));
        };
        let ids: BTreeMap<UnitId, BTreeMap<String, Bound<'_, PyAny>>> = ids.extract()?;
        for (id, others) in ids {
            let mut near = Vec::new();
            for (resource, ids) in others {
                if resource == name {
                    let ways: BTreeMap<UnitId, f64> = ids.extract()?;
                    let ways = ways.into_iter();
                    pool.ways
                        .extend(ways.map(|(to, seconds)| ((id, to), seconds)));
                    continue;
                }
                let ids: Vec<UnitId> = ids.extract()?;
                near.extend(ids.into_iter().map(|id| Coupled {
                    resource: resource.clone(),
                    id,
                }));
            }
            pool.coupled.insert(id, near);
        }
    }
    Ok(pools)
}

/// A whole number counts ids from zero, unless it is too large for that; a float is an amount
fn pool(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Declaration> {
    let wrong = || {
        let shown = value
            .repr()
            .map_or_else(|_| "it".to_owned(), |text| text.to_string());
        PyTypeError::new_err(format!(
            "{name} must be a number, ids like [0, 1] or groups of ids like [[0, 1], [2, 3]], got \
             {shown}"
        ))
    };
    if value.is_instance_of::<PyBool>() || value.is_instance_of::<PyString>() {
        return Err(wrong());
    }
    if value.is_instance_of::<PyInt>() {
        let units: f64 = value.extract()?;
        let ids_max = IDS_MAX as f64;
        return Ok(if (0.0..=ids_max).contains(&units) {
            Declaration::Indexed(Indexed::counted(value.extract()?))
        } else {
            Declaration::Sum(units)
        });
    }
    if value.is_instance_of::<PyFloat>() {
        return Ok(Declaration::Sum(value.extract()?));
    }
    if let Ok(units) = value.extract::<f64>() {
        return Ok(Declaration::Sum(units));
    }
    if let Ok(ids) = value.extract::<Vec<UnitId>>() {
        return Ok(Declaration::Indexed(Indexed::grouped(vec![ids])));
    }
    let groups: Vec<Vec<UnitId>> = value.extract().map_err(|_| wrong())?;
    Ok(Declaration::Indexed(Indexed::grouped(groups)))
}
