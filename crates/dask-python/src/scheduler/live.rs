//! Questions of a running scheduler between events, one method each.

use backhaul_dask::scheduler::{Container, GroupView};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyList;

use super::messages::texts;
use super::views::collection;
use super::{Core, RunId, refusal, text_of, texts_of};

/// Group, prefix and clients that want the result
type Running = (String, String, Vec<String>);

/// A task that waits for a result, and the address of the worker that has the task, if any
type Waiter = (String, Option<String>);

#[doc = stub_doc!("ReplicatedTask")]
#[pyclass(frozen, get_all, module = "backhaul._native")]
pub(crate) struct ReplicatedTask {
    #[doc = stub_doc!("ReplicatedTask.key")]
    key: String,
    #[doc = stub_doc!("ReplicatedTask.nbytes")]
    nbytes: i64,
    #[doc = stub_doc!("ReplicatedTask.actor")]
    actor: bool,
    #[doc = stub_doc!("ReplicatedTask.who_has")]
    who_has: Vec<String>,
    #[doc = stub_doc!("ReplicatedTask.waiters")]
    waiters: Vec<Waiter>,
}

/// Groups that were dropped, each as a dict
///
/// # Errors
///
/// What Python raises as it makes the objects.
pub fn gone_groups<'py>(py: Python<'py>, groups: &[GroupView]) -> PyResult<Bound<'py, PyList>> {
    let gone = PyList::empty(py);
    for view in groups {
        let dict = collection(py, &view.common)?;
        dict.set_item("name", &*view.common.name)?;
        dict.set_item("start", view.start)?;
        dict.set_item("stop", view.stop)?;
        gone.append(dict)?;
    }
    Ok(gone)
}

#[pymethods]
impl Core {
    #[doc = stub_doc!("SchedulerCore.has_task")]
    fn has_task(&self, key: &str) -> bool {
        self.core().has_task(key.as_bytes())
    }

    #[doc = stub_doc!("SchedulerCore.task_count")]
    fn task_count(&self) -> usize {
        self.core().task_count()
    }

    #[doc = stub_doc!("SchedulerCore.transition_count")]
    fn transition_count(&self) -> u64 {
        self.core().transition_count()
    }

    #[doc = stub_doc!("SchedulerCore.is_idle")]
    fn is_idle(&self) -> bool {
        self.core().is_idle()
    }

    #[doc = stub_doc!("SchedulerCore.is_group_done")]
    fn is_group_done(&self, name: &str) -> bool {
        self.core().is_group_done(name)
    }

    #[doc = stub_doc!("SchedulerCore.has_any")]
    fn has_any(&self, name: &str) -> PyResult<bool> {
        let container = match name {
            "queued" => Container::Queued,
            "unrunnable" => Container::Unrunnable,
            "replicated_tasks" => Container::Replicated,
            "erred_tasks" => Container::Erred,
            _ => return Err(PyValueError::new_err(format!("no collection: {name:?}"))),
        };
        Ok(self.core().has_any(container))
    }

    #[doc = stub_doc!("SchedulerCore.worker_bytes")]
    fn worker_bytes(&self, address: &str) -> PyResult<i64> {
        self.core().worker_bytes(address).map_err(refusal)
    }

    #[doc = stub_doc!("SchedulerCore.holders_of")]
    fn holders_of(&self, key: &str) -> Vec<String> {
        let holders = self.core().holders_of(key.as_bytes());
        texts(&holders).into_iter().map(str::to_owned).collect()
    }

    #[doc = stub_doc!("SchedulerCore.running_task")]
    fn running_task(&self, key: &str, address: &str, run_id: RunId) -> Option<Running> {
        let running = self
            .core()
            .running_task(key.as_bytes(), address, run_id.0)?;
        let clients = texts(&running.wanted_by).into_iter();
        Some((
            running.group.to_string(),
            running.prefix.to_string(),
            clients.map(str::to_owned).collect(),
        ))
    }

    #[doc = stub_doc!("SchedulerCore.replicated_tasks")]
    fn replicated_tasks(&self) -> Vec<ReplicatedTask> {
        let tasks = self.core().replicated_tasks().into_iter();
        tasks
            .map(|one| {
                let waiters = one.waiters.iter().map(|(waiter, worker)| {
                    (text_of(waiter), worker.as_deref().map(str::to_owned))
                });
                let who_has = one.who_has.iter();
                ReplicatedTask {
                    key: text_of(&one.key),
                    nbytes: one.nbytes.map_or(-1, |nbytes| nbytes as i64),
                    actor: one.actor,
                    who_has: who_has.map(|address| address.to_string()).collect(),
                    waiters: waiters.collect(),
                }
            })
            .collect()
    }

    #[doc = stub_doc!("SchedulerCore.file_worker")]
    fn file_worker(&self, address: &str, busy_s: f64) -> PyResult<()> {
        let filed = self.core().file_worker(address, busy_s);
        filed.map_err(refusal)
    }

    #[doc = stub_doc!("SchedulerCore.may_balance")]
    fn may_balance(&self) -> bool {
        self.core().may_balance()
    }

    #[doc = stub_doc!("SchedulerCore.note_forgotten")]
    fn note_forgotten(&self, note: bool) {
        self.core().note_forgotten(note);
    }

    #[doc = stub_doc!("SchedulerCore.take_forgotten")]
    fn take_forgotten(&self) -> Vec<String> {
        texts_of(&self.core().take_forgotten())
    }

    #[doc = stub_doc!("SchedulerCore.take_gone_groups")]
    fn take_gone_groups<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let groups = self.core().take_gone_groups();
        gone_groups(py, &groups)
    }

    #[doc = stub_doc!("SchedulerCore.log_transitions")]
    fn log_transitions(&self, log: bool) {
        self.core().log_transitions(log);
    }
}
