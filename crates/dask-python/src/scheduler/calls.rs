//! `TaskCalls`: many calls of one function, as a client sent them.

use std::sync::Arc;

use backhaul_dask::codec::calls::Calls;
use backhaul_dask::hot::{CallGraph, depend_on_what_is_known, graphs_of_calls, groups_of_calls};
use backhaul_dask::msgpack::Writer;
use backhaul_dask::scheduler::GraphOutcome;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

use super::{Core, key, refusal};

#[doc = stub_doc!("TaskCalls")]
#[pyclass(frozen, module = "backhaul._native")]
pub(crate) struct TaskCalls(Py<PyBytes>);

#[pymethods]
impl TaskCalls {
    #[new]
    fn new(data: &Bound<'_, PyBytes>) -> PyResult<Self> {
        Calls::read(data.as_bytes()).ok_or_else(malformed)?;
        Ok(Self(data.clone().unbind()))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(read(self.0.as_bytes(py))?.len())
    }

    #[doc = stub_doc!("TaskCalls.keys")]
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let calls = read(self.0.as_bytes(py))?;
        let keys = PyList::empty(py);
        for call in calls.iter() {
            keys.append(PyString::new(py, call.key))?;
        }
        Ok(keys)
    }

    #[doc = stub_doc!("TaskCalls.groups")]
    fn groups(&self, py: Python<'_>) -> PyResult<Option<Vec<(String, String)>>> {
        let calls = read(self.0.as_bytes(py))?;
        Ok(groups_of_calls(&calls).map(|groups| {
            let groups = groups.into_iter();
            groups.map(|(name, key)| (name, key.to_owned())).collect()
        }))
    }

    #[doc = stub_doc!("TaskCalls.tasks")]
    fn tasks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let calls = read(self.0.as_bytes(py))?;
        let tasks = PyList::empty(py);
        for call in calls.iter() {
            let pickle = calls.pickle(&call).ok_or_else(malformed)?;
            let needs = call.dependencies();
            let dependencies = if needs.is_empty() {
                None
            } else {
                let mut writer = Writer::default();
                writer.array(needs.len()).map_err(|_| malformed())?;
                needs.iter().for_each(|key| writer.extend(key));
                Some(PyBytes::new(py, writer.as_bytes()))
            };
            tasks.append((call.key, PyBytes::new(py, &pickle), dependencies))?;
        }
        Ok(tasks)
    }
}

#[pymethods]
impl Core {
    #[doc = stub_doc!("SchedulerCore.knows_needs")]
    fn knows_needs(&self, py: Python<'_>, calls: &TaskCalls) -> PyResult<bool> {
        let calls = read(calls.0.as_bytes(py))?;
        Ok(depend_on_what_is_known(&calls, &self.core()))
    }

    #[doc = stub_doc!("SchedulerCore.handle_calls")]
    #[expect(clippy::too_many_arguments, reason = "the fields of one message")]
    #[pyo3(signature = (
        stimulus, now_s, calls, /, *, spans, client, submitting_task, fifo_timeout_s
    ))]
    fn handle_calls(
        &self,
        py: Python<'_>,
        stimulus: &str,
        now_s: f64,
        calls: &TaskCalls,
        spans: Vec<(String, Option<String>)>,
        client: &str,
        submitting_task: Option<&str>,
        fifo_timeout_s: f64,
    ) -> PyResult<(usize, usize)> {
        let calls = read(calls.0.as_bytes(py))?;
        let of = CallGraph {
            client: Arc::from(client),
            submitting_task: submitting_task.map(key),
            fifo_timeout_s,
        };
        let graphs = graphs_of_calls(&calls, &spans, &of).map_err(|_| malformed())?;
        let stimulus = Arc::from(stimulus);
        // A million take seconds, in which other threads have work, too. No other thread changes
        // the state meanwhile: only this thread may, and the engine is kept away.
        py.detach(|| {
            let (mut new, mut collided) = (0, 0);
            for graph in graphs {
                let outcome = self.core().handle_graph(&graph, &stimulus, now_s);
                if let GraphOutcome::Accepted {
                    new_tasks,
                    collisions,
                } = outcome.map_err(refusal)?
                {
                    new += new_tasks;
                    collided += collisions;
                }
            }
            Ok((new, collided))
        })
    }
}

/// Reads bytes that were checked when the object was made
fn read(data: &[u8]) -> PyResult<Calls<'_>> {
    Calls::read_head(data).ok_or_else(malformed)
}

fn malformed() -> PyErr {
    PyValueError::new_err("malformed calls in a message")
}
