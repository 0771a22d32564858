//! The state of a scheduler as Python says it, in the form of `SchedulerCore.dump`.

use std::sync::Arc;

use backhaul_dask::scheduler::{Inherited, Spec, TaskState, TaskView};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::attributes::{self, part, read};
use super::graph::requirements;

/// Reads the whole state; `streams` are the clients that have a stream
pub(super) fn inherited(said: &Bound<'_, PyDict>, streams: Vec<String>) -> PyResult<Inherited> {
    Ok(Inherited {
        cluster: attributes::cluster::read(said, 0.0)?,
        workers: named(said, "workers", |address, one| {
            attributes::worker::read(one, 0.0, address)
        })?,
        prefixes: named(said, "task_prefixes", |name, one| {
            let common = attributes::collection::read(one, name)?;
            attributes::prefix::read(one, common)
        })?,
        groups: listed(said, "groups", |one| {
            let common = attributes::collection::read(one, read(one, "name")?)?;
            attributes::group::read(one, Vec::new(), common, read(one, "gone")?)
        })?,
        tasks: listed(said, "tasks", task)?,
        streams: streams.into_iter().map(Arc::from).collect(),
    })
}

/// Reads each dict of a list
fn listed<T>(
    said: &Bound<'_, PyDict>,
    name: &str,
    read: impl Fn(&Bound<'_, PyDict>) -> PyResult<T>,
) -> PyResult<Vec<T>> {
    let list = part(said, name)?;
    let list = list.try_iter()?;
    list.map(|one| read(one?.cast::<PyDict>()?)).collect()
}

/// Reads each dict of a dict, with its name there
fn named<T>(
    said: &Bound<'_, PyDict>,
    name: &str,
    read: impl Fn(Arc<str>, &Bound<'_, PyDict>) -> PyResult<T>,
) -> PyResult<Vec<T>> {
    let dict = part(said, name)?;
    let dict = dict.cast::<PyDict>()?;
    dict.iter()
        .map(|(name, one)| {
            let name: String = name.extract()?;
            read(Arc::from(name), one.cast::<PyDict>()?)
        })
        .collect()
}

/// A task: what it has beyond key, state and group is named only if there is any
fn task(said: &Bound<'_, PyDict>) -> PyResult<TaskView> {
    let state: TaskState = read(said, "state")?;
    let mut view = TaskView::new(
        read(said, "key")?,
        state,
        read(said, "group")?,
        Arc::from(""),
    );
    for (name, value) in said {
        let name: String = name.extract()?;
        match name.as_str() {
            "key" | "state" | "group" => {}
            "run_spec" => {
                let payload: Vec<u8> = value.extract()?;
                view.run_spec = Some(Spec::from(&*payload));
            }
            "data_producer" => view.data_producer = value.extract()?,
            // It has no serial here: a new one is made.
            "blame_is_forgotten" => view.forgotten_blame = value.extract::<bool>()?.then_some(0),
            "requirements" => view.requirements = Some(requirements(value.cast::<PyDict>()?)?),
            name if attributes::task::set(&mut view, name, &value)? => {}
            _ => {
                return Err(PyValueError::new_err(format!(
                    "no part of a task: {name:?}"
                )));
            }
        }
    }
    Ok(view)
}
