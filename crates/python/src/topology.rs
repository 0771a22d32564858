//! Machines and launch plans as JSON: `backhaul.topology` makes them Python's

use std::path::PathBuf;

use backhaul_topology::distance::{Device, distance};
use backhaul_topology::plan::plan;
use backhaul_topology::read::{self, DiscoverOptions, Format};
use backhaul_topology::{Machine, Options, Plan, render};
use pyo3::prelude::*;
use serde::Serialize;

use crate::errors::{IntoException as _, config_error};

/// Finds out what this machine is made of, or one whose `/sys` and `/proc` are below `root`
#[pyfunction]
#[pyo3(signature = (root = None))]
pub(crate) fn topology_discover(py: Python<'_>, root: Option<PathBuf>) -> PyResult<String> {
    let options = DiscoverOptions {
        root,
        ..DiscoverOptions::default()
    };
    py.detach(|| read::discover(&options).map(|machine| to_json(&machine)))
        .map_err(|error| error.into_exception(py))
}

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

/// Draws a machine as a tree of text
#[pyfunction]
pub(crate) fn topology_tree(py: Python<'_>, machine: &str) -> PyResult<String> {
    let machine = machine_of(py, machine)?;
    Ok(py.detach(|| render::tree(&machine)))
}

/// Writes the paths between all devices of a machine as a matrix
#[pyfunction]
pub(crate) fn topology_matrix(py: Python<'_>, machine: &str) -> PyResult<String> {
    let machine = machine_of(py, machine)?;
    Ok(py.detach(|| render::matrix(&machine)))
}

/// Draws a machine, and a plan for it, as SVG
#[pyfunction]
#[pyo3(signature = (machine, plan = None))]
pub(crate) fn topology_svg(py: Python<'_>, machine: &str, plan: Option<&str>) -> PyResult<String> {
    let machine = machine_of(py, machine)?;
    let plan = plan.map(|plan| plan_of(py, plan)).transpose()?;
    Ok(py.detach(|| render::svg(&machine, plan.as_ref())))
}

/// Writes a plan as a table with its explanation
#[pyfunction]
pub(crate) fn topology_workers(py: Python<'_>, plan: &str) -> PyResult<String> {
    let plan = plan_of(py, plan)?;
    Ok(py.detach(|| render::workers(&plan)))
}

/// Gives a plan as it was, if it is one
#[pyfunction]
pub(crate) fn topology_check_plan(py: Python<'_>, plan: &str) -> PyResult<String> {
    plan_of(py, plan).map(|plan| to_json(&plan))
}

fn plan_of(py: Python<'_>, text: &str) -> PyResult<Plan> {
    serde_json::from_str(text)
        .map_err(|error| config_error(py, format!("not a plan in JSON: {error}")))
}

fn machine_of(py: Python<'_>, text: &str) -> PyResult<Machine> {
    py.detach(|| read::parse(text, Some(Format::Json)))
        .map_err(|error| error.into_exception(py))
}

fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain data with text for keys")
}
