//! Single values that watching programs read from a running scheduler.

use std::sync::Arc;

use backhaul_dask::scheduler::{EndedRun, Noted, TaskSet, TaskValue, Watched};
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use super::messages::priority;
use super::views::{group, prefix, task};
use super::{Core, refusal, text_of, texts_of};

/// Occupancy in seconds, bytes to fetch, and tasks that are processing by prefix
type WorkerLoad = (f64, u64, Vec<(String, i64)>);

fn task_set<'a>(name: &str, of: &'a str) -> PyResult<TaskSet<'a>> {
    Ok(match name {
        "processing" => TaskSet::Processing(of),
        "long_running" => TaskSet::LongRunning(of),
        "has_what" => TaskSet::HasWhat(of),
        "actors" => TaskSet::Actors(of),
        "wants_what" => TaskSet::WantsWhat(of),
        "queued" => TaskSet::Queued,
        "replicated_tasks" => TaskSet::Replicated,
        _ => return Err(PyValueError::new_err(format!("no collection: {name:?}"))),
    })
}

fn strings(texts: &[Arc<str>]) -> Vec<&str> {
    texts.iter().map(|text| &**text).collect()
}

#[pymethods]
impl Core {
    #[doc = stub_doc!("SchedulerCore.count_in")]
    fn count_in(&self, name: &str, of: &str) -> PyResult<usize> {
        let set = task_set(name, of)?;
        self.core().count_in(set).map_err(refusal)
    }

    #[doc = stub_doc!("SchedulerCore.keys_in")]
    #[pyo3(signature = (name, of, keys_max = None))]
    fn keys_in(&self, name: &str, of: &str, keys_max: Option<usize>) -> PyResult<Vec<String>> {
        let set = task_set(name, of)?;
        let keys_max = keys_max.unwrap_or(usize::MAX);
        let keys = self.core().keys_in(set, keys_max).map_err(refusal)?;
        Ok(texts_of(&keys))
    }

    #[doc = stub_doc!("SchedulerCore.task_value")]
    fn task_value<'py>(
        &self,
        py: Python<'py>,
        key: &str,
        name: &str,
    ) -> PyResult<Bound<'py, PyAny>> {
        let value = self.core().task_value(key.as_bytes(), name);
        let Some(value) = value else {
            let view = self.core().task_view(key.as_bytes());
            let view = view.ok_or_else(|| PyKeyError::new_err(key.to_owned()))?;
            return task(py, &view)?.as_any().get_item(name);
        };
        Ok(match value {
            TaskValue::Nothing => py.None().into_bound(py),
            TaskValue::Number(number) => number.into_pyobject(py)?.into_any(),
            TaskValue::Flag(flag) => flag.into_pyobject(py)?.to_owned().into_any(),
            TaskValue::Text(text) => PyString::new(py, &text).into_any(),
            TaskValue::State(state) => PyString::new(py, state.name()).into_any(),
            TaskValue::Priority(one) => priority(&one).into_pyobject(py)?.into_any(),
            TaskValue::Keys(keys) => texts_of(&keys).into_pyobject(py)?.into_any(),
            TaskValue::Names(names) => strings(&names).into_pyobject(py)?.into_any(),
        })
    }

    #[doc = stub_doc!("SchedulerCore.is_in")]
    fn is_in(&self, name: &str, of: &str, key: &str) -> PyResult<bool> {
        let set = task_set(name, of)?;
        self.core().is_in(set, key.as_bytes()).map_err(refusal)
    }

    #[doc = stub_doc!("SchedulerCore.state_of")]
    fn state_of(&self, key: &str) -> Option<&'static str> {
        self.core()
            .state_of(key.as_bytes())
            .map(|state| state.name())
    }

    #[doc = stub_doc!("SchedulerCore.worker_load")]
    fn worker_load(&self, address: &str) -> PyResult<WorkerLoad> {
        let load = self.core().worker_load(address).map_err(refusal)?;
        let counts = load.prefix_counts.into_iter();
        let counts = counts.map(|(name, count)| (name.to_string(), count));
        Ok((load.occupancy_s, load.network_bytes, counts.collect()))
    }

    #[doc = stub_doc!("SchedulerCore.cluster_load")]
    fn cluster_load<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let load = self.core().cluster_load();
        let dict = PyDict::new(py);
        dict.set_item("idle", strings(&load.idle))?;
        dict.set_item("idle_task_count", strings(&load.idle_task_count))?;
        dict.set_item("saturated", strings(&load.saturated))?;
        dict.set_item("total_occupancy", load.occupancy_s)?;
        dict.set_item("network_occ", load.network_bytes)?;
        let counts = load.prefix_counts.iter();
        let counts = counts.map(|(name, count)| (&**name, *count));
        dict.set_item("task_prefix_count", counts.collect::<Vec<_>>())?;
        dict.set_item("n_tasks", load.tasks_sent)?;
        dict.set_item("generation", load.generation)?;
        Ok(dict)
    }

    #[doc = stub_doc!("SchedulerCore.group_names")]
    fn group_names(&self) -> Vec<(String, String)> {
        let names = self.core().group_names().into_iter();
        names
            .map(|(group, prefix)| (group.to_string(), prefix.to_string()))
            .collect()
    }

    #[doc = stub_doc!("SchedulerCore.prefix_names")]
    fn prefix_names(&self) -> Vec<String> {
        let names = self.core().prefix_names().into_iter();
        names.map(|name| name.to_string()).collect()
    }

    #[doc = stub_doc!("SchedulerCore.group")]
    fn group<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyDict>>> {
        let view = self.core().group_named(name);
        view.map(|view| group(py, &view)).transpose()
    }

    #[doc = stub_doc!("SchedulerCore.prefix")]
    fn prefix<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyDict>>> {
        let view = self.core().prefix_named(name);
        view.map(|view| prefix(py, &view)).transpose()
    }

    #[doc = stub_doc!("SchedulerCore.watch")]
    fn watch(&self, name: &str) -> PyResult<()> {
        let watched = match name {
            "nothing" => Watched::Nothing,
            "runs" => Watched::Runs,
            "ends" => Watched::Ends,
            _ => return Err(PyValueError::new_err(format!("cannot watch {name:?}"))),
        };
        self.core().watch(watched);
        Ok(())
    }

    #[doc = stub_doc!("SchedulerCore.take_noted")]
    fn take_noted<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let noted = self.core().take_noted();
        let list = PyList::empty(py);
        for one in &noted {
            match one {
                Noted::Ended(run) => {
                    let key = text_of(&run.finished.key);
                    list.append((key, "processing", "memory", run_dict(py, run)?))?;
                }
                Noted::Moved(past) => {
                    let dict = PyDict::new(py);
                    dict.set_item("stimulus_id", &*past.stimulus)?;
                    let moved = &past.transition;
                    let (start, finish) = (moved.start.name(), moved.finish.name());
                    list.append((text_of(&moved.key), start, finish, dict))?;
                }
            }
        }
        Ok(list)
    }
}

/// A run that ended well, as Dask tells plugins of it
fn run_dict<'py>(py: Python<'py>, run: &EndedRun) -> PyResult<Bound<'py, PyDict>> {
    let finished = &run.finished;
    let dict = PyDict::new(py);
    dict.set_item("stimulus_id", &*run.stimulus)?;
    dict.set_item("worker", &*finished.worker)?;
    dict.set_item("metadata", PyDict::new(py))?;
    dict.set_item("nbytes", finished.nbytes)?;
    dict.set_item("type", PyBytes::new(py, &finished.type_))?;
    dict.set_item("typename", &*finished.type_name)?;
    dict.set_item("thread", finished.thread)?;
    let mut startstops = Vec::with_capacity(finished.actions.len());
    for (action, start_s, stop_s) in &finished.actions {
        let startstop = PyDict::new(py);
        startstop.set_item("action", &**action)?;
        startstop.set_item("start", start_s)?;
        startstop.set_item("stop", stop_s)?;
        startstops.push(startstop);
    }
    dict.set_item("startstops", PyTuple::new(py, startstops)?)?;
    dict.set_item("status", "OK")?;
    Ok(dict)
}
