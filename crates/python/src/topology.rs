//! Machines and launch plans as JSON: `backhaul.topology` makes them Python's

use backhaul_topology::distance::{Device, distance};
use backhaul_topology::plan::plan;
use backhaul_topology::read::{self, Format};
use backhaul_topology::{Machine, Options};
use pyo3::prelude::*;
use serde::Serialize;

use crate::errors::{IntoException as _, config_error};

/// Reads a machine from a text, and gives it as JSON
#[pyfunction]
#[pyo3(signature = (text, format = None))]
pub(crate) fn topology_parse(py: Python<'_>, text: &str, format: Option<&str>) -> PyResult<String> {
    let format = format
        .map(str::parse::<Format>)
        .transpose()
        .map_err(|error| error.into_exception(py))?;
    py.detach(|| read::parse(text, format).map(|machine| to_json(&machine)))
        .map_err(|error| error.into_exception(py))
}

/// Plans for a machine, all of it JSON
#[pyfunction]
pub(crate) fn topology_plan(py: Python<'_>, machine: &str, options: &str) -> PyResult<String> {
    let machine = machine_of(py, machine)?;
    let options: Options = serde_json::from_str(options).map_err(|error| {
        // The text was made of arguments: where in it means nothing to who gave them
        let error = error.to_string();
        let what = error.split(" at line ").next().unwrap_or(&error);
        config_error(py, format!("an option of the plan cannot be used: {what}"))
    })?;
    py.detach(|| plan(&machine, &options).map(|plan| to_json(&plan)))
        .map_err(|error| error.into_exception(py))
}

/// Tells what lies between two devices, as JSON
#[pyfunction]
pub(crate) fn topology_distance(
    py: Python<'_>,
    machine: &str,
    one: &str,
    other: &str,
) -> PyResult<String> {
    let machine = machine_of(py, machine)?;
    py.detach(|| {
        let one = Device::find(&machine, one)?;
        let other = Device::find(&machine, other)?;
        distance(&machine, &one, &other).map(|distance| to_json(&distance))
    })
    .map_err(|error| error.into_exception(py))
}

fn machine_of(py: Python<'_>, text: &str) -> PyResult<Machine> {
    py.detach(|| read::parse(text, Some(Format::Json)))
        .map_err(|error| error.into_exception(py))
}

fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain data with text for keys")
}
