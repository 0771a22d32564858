//! Graphs as Python gives them.

use std::sync::Arc;

use backhaul_dask::scheduler::{Graph, GraphTask, Payload, Requirements, Spec};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::{key, keys};

/// Number of the key, group, prefix, run spec, numbers of dependencies, place in the order, the
/// user's priority, what its annotations ask for, whether it produces data
type TaskTuple<'py> = (
    u32,
    String,
    String,
    Vec<u8>,
    Vec<u32>,
    f64,
    Option<f64>,
    Option<Bound<'py, PyDict>>,
    bool,
);

/// Reads a graph; see the stub of `SchedulerCore.handle_graph`
pub(super) fn graph(options: &Bound<'_, PyDict>) -> PyResult<Graph> {
    let mut graph = Graph::default();
    for (name, value) in options {
        let name: String = name.extract()?;
        match name.as_str() {
            "keys" => graph.keys = keys(&value.extract::<Vec<String>>()?),
            "tasks" => {
                for one in value.try_iter()? {
                    graph.tasks.push(task(one?.extract()?)?);
                }
            }
            "wanted" => graph.wanted = value.extract()?,
            "client" => graph.client = Arc::from(value.extract::<String>()?),
            "user_priority" => graph.user_priority = value.extract()?,
            "submitting_task" => {
                let submitting: Option<String> = value.extract()?;
                graph.submitting_task = submitting.as_deref().map(key);
            }
            "fifo_timeout_s" => graph.fifo_timeout_s = value.extract()?,
            "actors" => graph.actors = value.extract()?,
            _ => {
                return Err(PyValueError::new_err(format!(
                    "no part of a graph: {name:?}"
                )));
            }
        }
    }
    Ok(graph)
}

fn task(
    (key, group, prefix, spec, dependencies, order, user_priority, asks, data_producer): TaskTuple<
        '_,
    >,
) -> PyResult<GraphTask> {
    Ok(GraphTask {
        key,
        group: Arc::from(group),
        prefix: Arc::from(prefix),
        spec: Spec::from(&*spec),
        dependencies,
        order,
        user_priority,
        requirements: asks
            .map(|asks| requirements(&asks).map(Box::new))
            .transpose()?,
        data_producer,
    })
}

pub(super) fn requirements(asks: &Bound<'_, PyDict>) -> PyResult<Requirements> {
    let mut requirements = Requirements::default();
    for (name, value) in asks {
        let name: String = name.extract()?;
        match name.as_str() {
            "hosts" => requirements.hosts = texts(&value)?,
            "workers" => requirements.workers = texts(&value)?,
            "resources" if value.is_none() => requirements.resources = None,
            "resources" => requirements.resources = Some(amounts(&value)?),
            "threads" => requirements.threads = value.extract()?,
            "loose" => requirements.loose = value.extract()?,
            "priority" => requirements.priority = value.extract()?,
            "retries" => requirements.retries = value.extract()?,
            "annotations" => {
                let annotations: Option<Vec<u8>> = value.extract()?;
                requirements.annotations = annotations.map(Payload::from);
            }
            _ => return Err(PyValueError::new_err(format!("no requirement: {name:?}"))),
        }
    }
    Ok(requirements)
}

fn texts(value: &Bound<'_, PyAny>) -> PyResult<Option<Vec<Arc<str>>>> {
    let texts: Option<Vec<String>> = value.extract()?;
    Ok(texts.map(|texts| texts.into_iter().map(Arc::from).collect()))
}

/// Amounts by name, in the order of the dict
pub(super) fn amounts(value: &Bound<'_, PyAny>) -> PyResult<Vec<(Arc<str>, f64)>> {
    let dict = value.cast::<PyDict>()?;
    dict.iter()
        .map(|(name, amount)| Ok((Arc::from(name.extract::<String>()?), amount.extract()?)))
        .collect()
}
