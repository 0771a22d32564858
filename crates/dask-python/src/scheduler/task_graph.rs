//! `TaskGraph`: a graph of tasks, as a client sent it.

use std::sync::Arc;

use backhaul_dask::codec::graph::Tasks;
use backhaul_dask::hot::{
    CallGraph, graph_of_tasks, groups_of_tasks, keys_are_texts, needs_are_known,
};
use backhaul_dask::msgpack::Writer;
use backhaul_dask::scheduler::GraphOutcome;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use super::{Core, key, refusal};

#[doc = stub_doc!("TaskGraph")]
#[pyclass(frozen, module = "backhaul._native")]
pub(crate) struct TaskGraph(Py<PyBytes>);

/// Name and prefix of a group, and msgpack of the key of one of its tasks
type GroupTuple<'py> = (String, String, Bound<'py, PyBytes>);

#[pymethods]
impl TaskGraph {
    #[new]
    fn new(data: &Bound<'_, PyBytes>) -> PyResult<Self> {
        Tasks::read(data.as_bytes()).ok_or_else(malformed)?;
        Ok(Self(data.clone().unbind()))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(read(self.0.as_bytes(py))?.len())
    }

    #[doc = stub_doc!("TaskGraph.keys")]
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let tasks = read(self.0.as_bytes(py))?;
        let mut writer = Writer::default();
        let count = tasks.keys().len();
        writer.array(count).map_err(|_| malformed())?;
        tasks.keys().iter().for_each(|key| writer.extend(key));
        Ok(PyBytes::new(py, writer.as_bytes()))
    }

    #[doc = stub_doc!("TaskGraph.wanted")]
    fn wanted(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        Ok(read(self.0.as_bytes(py))?.wanted().to_vec())
    }

    #[doc = stub_doc!("TaskGraph.groups")]
    fn groups<'py>(&self, py: Python<'py>) -> PyResult<Option<Vec<GroupTuple<'py>>>> {
        let tasks = read(self.0.as_bytes(py))?;
        Ok(groups_of_tasks(&tasks).map(|groups| {
            let groups = groups.into_iter();
            groups
                .map(|(name, prefix, key)| (name, prefix, PyBytes::new(py, key)))
                .collect()
        }))
    }

    #[doc = stub_doc!("TaskGraph.are_texts")]
    fn are_texts(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(keys_are_texts(&read(self.0.as_bytes(py))?))
    }

    #[doc = stub_doc!("TaskGraph.tasks")]
    fn tasks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let tasks = read(self.0.as_bytes(py))?;
        let list = PyList::empty(py);
        for task in tasks.iter() {
            let pickle = tasks.pickle(&task).ok_or_else(malformed)?;
            let pickle = PyBytes::new(py, &pickle);
            let needs = PyTuple::new(py, &task.needs)?;
            let (is_call, producer) = (task.is_call(), task.is_data_producer());
            list.append((pickle, needs, task.order, is_call, producer))?;
        }
        Ok(list)
    }
}

#[pymethods]
impl Core {
    #[doc = stub_doc!("SchedulerCore.knows_needs_of_graph")]
    fn knows_needs_of_graph(&self, py: Python<'_>, graph: &TaskGraph) -> PyResult<bool> {
        let tasks = read(graph.0.as_bytes(py))?;
        Ok(needs_are_known(&tasks, &self.core()))
    }

    #[doc = stub_doc!("SchedulerCore.handle_task_graph")]
    #[expect(clippy::too_many_arguments, reason = "the fields of one message")]
    #[pyo3(signature = (
        stimulus, now_s, graph, /, *, spans, client, submitting_task, fifo_timeout_s
    ))]
    fn handle_task_graph(
        &self,
        py: Python<'_>,
        stimulus: &str,
        now_s: f64,
        graph: &TaskGraph,
        spans: Vec<(String, Option<String>)>,
        client: &str,
        submitting_task: Option<&str>,
        fifo_timeout_s: f64,
    ) -> PyResult<(usize, usize)> {
        let tasks = read(graph.0.as_bytes(py))?;
        let of = CallGraph {
            client: Arc::from(client),
            submitting_task: submitting_task.map(key),
            fifo_timeout_s,
        };
        let stimulus = Arc::from(stimulus);
        // As for calls: other threads have work meanwhile.
        let outcome = py.detach(|| {
            let graph = graph_of_tasks(&tasks, &spans, &of).ok_or_else(malformed)?;
            PyResult::Ok(self.core().handle_graph(&graph, &stimulus, now_s))
        })?;
        match outcome.map_err(refusal)? {
            GraphOutcome::Accepted {
                new_tasks,
                collisions,
            } => Ok((new_tasks, collisions)),
            GraphOutcome::LostDependencies => Ok((0, 0)),
        }
    }
}

/// Reads bytes that were checked when the object was made
fn read(data: &[u8]) -> PyResult<Tasks<'_>> {
    Tasks::read_head(data).ok_or_else(malformed)
}

fn malformed() -> PyErr {
    PyValueError::new_err("malformed graph in a message")
}
