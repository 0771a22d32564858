//! Machines and launch plans: each a native object, and a record of Python's with the same values.
//!
//! Questions about a machine go to the native object. The records are the frozen dataclasses
//! of `backhaul.topology`; a native object is made a record once, and of a record where that was
//! made by hand. JSON is for files alone.

mod field;
mod records;

use std::path::PathBuf;

use backhaul_topology::distance::{Device, distance};
use backhaul_topology::plan::plan;
use backhaul_topology::read::{self, DiscoverOptions, Format, ParseError};
use backhaul_topology::route::route;
use backhaul_topology::{Options, render};
use pyo3::prelude::*;

use self::field::{Field, Unfit};
use crate::errors::{self, IntoException as _, config_error};

#[doc = stub_doc!("Machine")]
#[pyclass(frozen, module = "backhaul._native")]
pub(crate) struct Machine {
    machine: backhaul_topology::Machine,
}

#[pymethods]
impl Machine {
    /// From a record, which is checked
    #[new]
    fn new(record: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = record.py();
        let machine = backhaul_topology::Machine::from_python(record)
            .map_err(|unfit| errors::machine_error(py, format!("not a machine: {unfit}")))?;
        machine
            .check()
            .map_err(|misfit| ParseError::from(misfit).into_exception(py))?;
        Ok(Self { machine })
    }

    #[doc = stub_doc!("Machine.discover")]
    #[staticmethod]
    #[pyo3(signature = (root = None))]
    fn discover(py: Python<'_>, root: Option<PathBuf>) -> PyResult<Self> {
        let options = DiscoverOptions {
            root,
            ..DiscoverOptions::default()
        };
        py.detach(|| read::discover(&options))
            .map(|machine| Self { machine })
            .map_err(|error| error.into_exception(py))
    }

    #[doc = stub_doc!("Machine.parse")]
    #[staticmethod]
    #[pyo3(signature = (text, format = None))]
    fn parse(py: Python<'_>, text: &str, format: Option<&str>) -> PyResult<Self> {
        let format = format
            .map(str::parse::<Format>)
            .transpose()
            .map_err(|error| error.into_exception(py))?;
        py.detach(|| read::parse(text, format))
            .map(|machine| Self { machine })
            .map_err(|error| error.into_exception(py))
    }

    #[doc = stub_doc!("Machine.record")]
    fn record<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.machine.to_python(py)
    }

    #[doc = stub_doc!("Machine.plan")]
    #[expect(
        clippy::too_many_arguments,
        reason = "the options of a plan, each by its name"
    )]
    #[pyo3(signature = (
        *, policy, n = None, threads_per_worker = None, memory_limit = None, memory_fraction = None,
        gpus = None, interface = None, nics = None, cpus = None, exclusive_cpus = None,
    ))]
    fn plan(
        &self,
        policy: Bound<'_, PyAny>,
        n: Option<Bound<'_, PyAny>>,
        threads_per_worker: Option<Bound<'_, PyAny>>,
        memory_limit: Option<Bound<'_, PyAny>>,
        memory_fraction: Option<Bound<'_, PyAny>>,
        gpus: Option<Bound<'_, PyAny>>,
        interface: Option<Bound<'_, PyAny>>,
        nics: Option<Bound<'_, PyAny>>,
        cpus: Option<Bound<'_, PyAny>>,
        exclusive_cpus: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Plan> {
        let py = policy.py();
        let options = Options {
            policy: option("policy", Some(policy))?.unwrap_or_default(),
            n: option("n", n)?,
            threads_per_worker: option("threads_per_worker", threads_per_worker)?,
            memory_limit_bytes: option("memory_limit", memory_limit)?,
            memory_fraction: option("memory_fraction", memory_fraction)?,
            gpus: option("gpus", gpus)?,
            interface: option("interface", interface)?,
            nics: option("nics", nics)?,
            cpus: option("cpus", cpus)?,
            exclusive_cpus: option("exclusive_cpus", exclusive_cpus)?.unwrap_or_default(),
        };
        py.detach(|| plan(&self.machine, &options))
            .map(|plan| Plan { plan })
            .map_err(|error| error.into_exception(py))
    }

    #[doc = stub_doc!("Machine.distance")]
    fn distance<'py>(
        &self,
        py: Python<'py>,
        one: &str,
        other: &str,
    ) -> PyResult<Bound<'py, PyAny>> {
        let found = py.detach(|| {
            let one = Device::find(&self.machine, one)?;
            let other = Device::find(&self.machine, other)?;
            distance(&self.machine, &one, &other)
        });
        let distance = found.map_err(|error| error.into_exception(py))?;
        records::of_distance(py, &distance)
    }

    #[doc = stub_doc!("Machine.route")]
    fn route<'py>(&self, py: Python<'py>, one: &str, other: &str) -> PyResult<Bound<'py, PyAny>> {
        let found = py.detach(|| {
            let one = Device::find(&self.machine, one)?;
            let other = Device::find(&self.machine, other)?;
            route(&self.machine, &one, &other)
        });
        let route = found.map_err(|error| error.into_exception(py))?;
        records::of_route(py, &route)
    }

    #[doc = stub_doc!("Machine.tree")]
    fn tree(&self, py: Python<'_>) -> String {
        py.detach(|| render::tree(&self.machine))
    }

    #[doc = stub_doc!("Machine.matrix")]
    fn matrix(&self, py: Python<'_>) -> String {
        py.detach(|| render::matrix(&self.machine))
    }

    #[doc = stub_doc!("Machine.svg")]
    #[pyo3(signature = (plan = None))]
    fn svg(&self, py: Python<'_>, plan: Option<&Bound<'_, Plan>>) -> String {
        let plan = plan.map(|plan| &plan.get().plan);
        py.detach(|| render::svg(&self.machine, plan))
    }
}

#[doc = stub_doc!("Plan")]
#[pyclass(frozen, module = "backhaul._native")]
pub(crate) struct Plan {
    plan: backhaul_topology::Plan,
}

#[pymethods]
impl Plan {
    /// From a record
    #[new]
    fn new(record: &Bound<'_, PyAny>) -> PyResult<Self> {
        backhaul_topology::Plan::from_python(record)
            .map(|plan| Self { plan })
            .map_err(|unfit| config_error(record.py(), format!("not a plan: {unfit}")))
    }

    #[doc = stub_doc!("Plan.parse")]
    #[staticmethod]
    fn parse(py: Python<'_>, text: &str) -> PyResult<Self> {
        py.detach(|| serde_json::from_str(text))
            .map(|plan| Self { plan })
            .map_err(|error| config_error(py, format!("not a plan in JSON: {error}")))
    }

    #[doc = stub_doc!("Plan.record")]
    fn record<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.plan.to_python(py)
    }

    #[doc = stub_doc!("Plan.table")]
    fn table(&self, py: Python<'_>) -> String {
        py.detach(|| render::workers(&self.plan))
    }
}

/// An option of a plan, if it is given
fn option<T: Field>(name: &str, value: Option<Bound<'_, PyAny>>) -> PyResult<Option<T>> {
    let Some(value) = value else {
        return Ok(None);
    };
    T::from_python(&value)
        .map(Some)
        .map_err(|unfit: Unfit| config_error(value.py(), unfit.of_field(name).to_string()))
}
