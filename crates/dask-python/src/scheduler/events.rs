//! The events, one method each.

use std::sync::Arc;

use backhaul_dask::scheduler::{
    GraphOutcome, Payload, PlacedResult, SchedulerCore, TaskErred, TaskFinished, WorkerJoins,
    WorkerStatus,
};
use pyo3::exceptions::{PyKeyError, PyLookupError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use super::graph::{amounts, graph};
use super::messages::message;
use super::{Core, RunId, config, inherit, key, keys, refusal, texts_of, views};

/// Key, group, prefix, bytes and addresses of a result
type Placed = (String, String, String, Option<u64>, Vec<String>);

#[pymethods]
impl Core {
    #[new]
    #[pyo3(signature = (**settings))]
    fn new(settings: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let mut core = SchedulerCore::new(config(settings)?);
        core.log_transitions(true);
        Ok(Self::of(core))
    }

    #[doc = stub_doc!("SchedulerCore.inherit")]
    #[staticmethod]
    #[pyo3(signature = (said, streams, /, **settings))]
    fn inherit(
        said: &Bound<'_, PyDict>,
        streams: Vec<String>,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let inherited = inherit::inherited(said, streams)?;
        let mut core = SchedulerCore::inherit(config(settings)?, &inherited)
            .map_err(|error| PyLookupError::new_err(error.to_string()))?;
        core.log_transitions(true);
        Ok(Self::of(core))
    }

    #[doc = stub_doc!("SchedulerCore.take_messages")]
    fn take_messages<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let taken = PyList::empty(py);
        let messages = self.core().take_messages();
        for one in messages {
            taken.append(message(py, &one)?)?;
        }
        Ok(taken)
    }

    #[doc = stub_doc!("SchedulerCore.take_transitions")]
    fn take_transitions<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let taken = self.core().take_transitions();
        views::transitions(py, &taken)
    }

    #[doc = stub_doc!("SchedulerCore.recent_transitions")]
    fn recent_transitions(&self) -> Vec<views::PastTransition> {
        views::recent_transitions(&self.core())
    }

    #[doc = stub_doc!("SchedulerCore.dump")]
    #[pyo3(signature = (tasks = true))]
    fn dump<'py>(&self, py: Python<'py>, tasks: bool) -> PyResult<Bound<'py, PyDict>> {
        let snapshot = views::Snapshot::of(&self.core(), tasks);
        views::dump(py, &snapshot)
    }

    #[doc = stub_doc!("SchedulerCore.keys")]
    fn keys(&self) -> Vec<String> {
        let core = self.core();
        let keys = core.keys().into_iter();
        keys.map(|key| super::text_of(key)).collect()
    }

    #[doc = stub_doc!("SchedulerCore.task")]
    fn task<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Bound<'py, PyDict>> {
        let view = self.core().task_view(key.as_bytes());
        match view {
            Some(view) => views::task(py, &view),
            None => Err(PyKeyError::new_err(key.to_owned())),
        }
    }

    #[doc = stub_doc!("SchedulerCore.handle_graph")]
    #[pyo3(signature = (stimulus, now_s, /, **parts))]
    fn handle_graph(
        &self,
        py: Python<'_>,
        stimulus: &str,
        now_s: f64,
        parts: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Option<(usize, usize)>> {
        let parts = parts.map(graph).transpose()?.unwrap_or_default();
        let stimulus = Arc::from(stimulus);
        let take = || self.core().handle_graph(&parts, &stimulus, now_s);
        let outcome = if parts.tasks.len() < LONG_GRAPH {
            take()
        } else {
            // As with calls: other threads have work, too, and no other thread changes the state.
            py.detach(take)
        };
        Ok(match outcome.map_err(refusal)? {
            GraphOutcome::Accepted {
                new_tasks,
                collisions,
            } => Some((new_tasks, collisions)),
            GraphOutcome::LostDependencies => None,
        })
    }

    #[doc = stub_doc!("SchedulerCore.handle_task_finished")]
    #[expect(clippy::too_many_arguments, reason = "the fields of one message")]
    #[pyo3(signature = (stimulus, now_s, /, *, key, worker, run_id, nbytes, r#type, typename, startstops, thread = None))]
    fn handle_task_finished(
        &self,
        stimulus: &str,
        now_s: f64,
        key: &str,
        worker: &str,
        run_id: RunId,
        nbytes: u64,
        r#type: &[u8],
        typename: &str,
        startstops: Vec<(String, f64, f64)>,
        thread: Option<u64>,
    ) -> PyResult<()> {
        let actions = startstops.into_iter();
        let finished = TaskFinished {
            key: super::key(key),
            worker: Arc::from(worker),
            run_id: run_id.0,
            nbytes,
            type_: Payload::from(r#type),
            type_name: Arc::from(typename),
            actions: actions
                .map(|(action, start_s, stop_s)| (Arc::from(action), start_s, stop_s))
                .collect(),
            thread,
        };
        let stimulus = Arc::from(stimulus);
        self.core()
            .handle_task_finished(&finished, &stimulus, now_s)
            .map_err(refusal)
    }

    #[doc = stub_doc!("SchedulerCore.handle_task_erred")]
    #[expect(clippy::too_many_arguments, reason = "the fields of one message")]
    #[pyo3(signature = (stimulus, now_s, /, *, key, worker, run_id, exception, traceback, exception_text, traceback_text))]
    fn handle_task_erred(
        &self,
        stimulus: &str,
        now_s: f64,
        key: &str,
        worker: &str,
        run_id: RunId,
        exception: &[u8],
        traceback: Option<&[u8]>,
        exception_text: &str,
        traceback_text: &str,
    ) -> PyResult<()> {
        let erred = TaskErred {
            key: super::key(key),
            worker: Arc::from(worker),
            run_id: run_id.0,
            exception: Payload::from(exception),
            traceback: traceback.map(Payload::from),
            exception_text: Arc::from(exception_text),
            traceback_text: Arc::from(traceback_text),
        };
        let stimulus = Arc::from(stimulus);
        self.core()
            .handle_task_erred(&erred, &stimulus, now_s)
            .map_err(refusal)
    }

    #[doc = stub_doc!("SchedulerCore.handle_reschedule")]
    fn handle_reschedule(
        &self,
        stimulus: &str,
        now_s: f64,
        key: &str,
        worker: Option<&str>,
    ) -> PyResult<()> {
        let stimulus = Arc::from(stimulus);
        self.core()
            .handle_reschedule(key.as_bytes(), worker, &stimulus, now_s)
            .map_err(refusal)
    }

    #[doc = stub_doc!("SchedulerCore.handle_long_running")]
    fn handle_long_running(
        &self,
        stimulus: &str,
        now_s: f64,
        key: &str,
        worker: &str,
        run_id: RunId,
        compute_s: Option<f64>,
    ) -> PyResult<()> {
        let stimulus = Arc::from(stimulus);
        self.core()
            .handle_long_running(
                key.as_bytes(),
                worker,
                run_id.0,
                compute_s,
                &stimulus,
                now_s,
            )
            .map_err(refusal)
    }

    #[doc = stub_doc!("SchedulerCore.handle_worker_added")]
    #[expect(clippy::too_many_arguments, reason = "the fields of one message")]
    #[pyo3(signature = (stimulus, now_s, /, *, address, name, host, nthreads, memory_limit, status, resources, bandwidth_bytes_per_s))]
    fn handle_worker_added(
        &self,
        stimulus: &str,
        now_s: f64,
        address: &str,
        name: &str,
        host: &str,
        nthreads: u32,
        memory_limit: u64,
        status: &str,
        resources: &Bound<'_, PyAny>,
        bandwidth_bytes_per_s: f64,
    ) -> PyResult<()> {
        let joins = WorkerJoins {
            address: Arc::from(address),
            name: Arc::from(name),
            host: Arc::from(host),
            nthreads,
            memory_limit,
            status: worker_status(status)?,
            resources: amounts(resources)?,
            bandwidth_bytes_per_s,
        };
        let stimulus = Arc::from(stimulus);
        self.core()
            .handle_worker_added(&joins, &stimulus, now_s)
            .map_err(refusal)
    }

    #[doc = stub_doc!("SchedulerCore.handle_worker_removed")]
    fn handle_worker_removed(
        &self,
        stimulus: &str,
        now_s: f64,
        address: &str,
        expected: bool,
        close: bool,
    ) -> PyResult<()> {
        let stimulus = Arc::from(stimulus);
        self.core()
            .handle_worker_removed(address, expected, close, &stimulus, now_s)
            .map_err(refusal)
    }

    #[doc = stub_doc!("SchedulerCore.handle_worker_lost")]
    fn handle_worker_lost(
        &self,
        stimulus: &str,
        now_s: f64,
        address: &str,
        expected: bool,
    ) -> PyResult<()> {
        let stimulus = Arc::from(stimulus);
        self.core()
            .handle_worker_lost(address, expected, &stimulus, now_s)
            .map_err(refusal)
    }

    #[doc = stub_doc!("SchedulerCore.handle_worker_status")]
    fn handle_worker_status(
        &self,
        stimulus: &str,
        now_s: f64,
        address: &str,
        status: &str,
    ) -> PyResult<()> {
        let stimulus = Arc::from(stimulus);
        let status = worker_status(status)?;
        self.core()
            .handle_worker_status(address, status, &stimulus, now_s)
            .map_err(refusal)
    }

    #[doc = stub_doc!("SchedulerCore.handle_heartbeat")]
    fn handle_heartbeat(
        &self,
        address: &str,
        bandwidth_bytes_per_s: f64,
        executing: Vec<(String, f64)>,
    ) -> PyResult<()> {
        let executing = executing.iter();
        let executing: Vec<_> = executing.map(|(text, s)| (key(text), *s)).collect();
        self.core()
            .handle_heartbeat(address, bandwidth_bytes_per_s, &executing)
            .map_err(refusal)
    }

    #[doc = stub_doc!("SchedulerCore.handle_resources")]
    fn handle_resources(
        &self,
        stimulus: &str,
        now_s: f64,
        address: &str,
        resources: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let stimulus = Arc::from(stimulus);
        let resources = amounts(resources)?;
        self.core()
            .handle_resources(address, &resources, &stimulus, now_s)
            .map_err(refusal)
    }

    #[doc = stub_doc!("SchedulerCore.handle_no_workers_check")]
    fn handle_no_workers_check(
        &self,
        stimulus: &str,
        now_s: f64,
    ) -> PyResult<(Vec<String>, Vec<String>)> {
        let stimulus = Arc::from(stimulus);
        let failed = self
            .core()
            .handle_no_workers_check(&stimulus, now_s)
            .map_err(refusal)?;
        Ok((
            texts_of(&failed.unsatisfied),
            texts_of(&failed.without_workers),
        ))
    }

    #[doc = stub_doc!("SchedulerCore.handle_client_added")]
    fn handle_client_added(&self, client: &str) {
        self.core().handle_client_added(client);
    }

    #[doc = stub_doc!("SchedulerCore.handle_client_removed")]
    fn handle_client_removed(&self, stimulus: &str, now_s: f64, client: &str) -> PyResult<()> {
        let stimulus = Arc::from(stimulus);
        self.core()
            .handle_client_removed(client, &stimulus, now_s)
            .map_err(refusal)
    }

    #[doc = stub_doc!("SchedulerCore.handle_client_desires_keys")]
    fn handle_client_desires_keys(
        &self,
        stimulus: &str,
        now_s: f64,
        desired: Vec<String>,
        client: &str,
    ) -> PyResult<()> {
        let stimulus = Arc::from(stimulus);
        self.core()
            .handle_client_desires_keys(&keys(&desired), client, &stimulus, now_s)
            .map_err(refusal)
    }

    #[doc = stub_doc!("SchedulerCore.handle_client_releases_keys")]
    fn handle_client_releases_keys(
        &self,
        stimulus: &str,
        now_s: f64,
        released: Vec<String>,
        client: &str,
    ) -> PyResult<()> {
        let stimulus = Arc::from(stimulus);
        self.core()
            .handle_client_releases_keys(&keys(&released), client, &stimulus, now_s)
            .map_err(refusal)
    }

    #[doc = stub_doc!("SchedulerCore.handle_cancel")]
    #[expect(clippy::too_many_arguments, reason = "the fields of one message")]
    fn handle_cancel(
        &self,
        stimulus: &str,
        now_s: f64,
        cancelled: Vec<String>,
        client: &str,
        force: bool,
        reason: Option<&str>,
        msg: Option<&str>,
    ) -> PyResult<(Vec<usize>, Vec<String>)> {
        let stimulus = Arc::from(stimulus);
        let why = [reason, msg].map(|text| text.map(Arc::<str>::from));
        let why = [why[0].as_ref(), why[1].as_ref()];
        let told = self
            .core()
            .handle_cancel(&keys(&cancelled), client, force, why, &stimulus, now_s)
            .map_err(refusal)?;
        Ok((told.dependents, texts_of(&told.keys)))
    }

    #[doc = stub_doc!("SchedulerCore.handle_retry")]
    fn handle_retry(
        &self,
        stimulus: &str,
        now_s: f64,
        retried: Vec<String>,
    ) -> PyResult<Vec<String>> {
        let stimulus = Arc::from(stimulus);
        let seen = self
            .core()
            .handle_retry(&keys(&retried), &stimulus, now_s)
            .map_err(refusal)?;
        Ok(texts_of(&seen))
    }

    #[doc = stub_doc!("SchedulerCore.handle_report_key")]
    fn handle_report_key(&self, reported: &str, client: Option<&str>) -> PyResult<()> {
        self.core()
            .handle_report_key(&key(reported), client)
            .map_err(refusal)
    }

    #[doc = stub_doc!("SchedulerCore.handle_add_keys")]
    fn handle_add_keys(&self, stimulus: &str, now_s: f64, address: &str, added: Vec<String>) {
        let (stimulus, address) = (Arc::from(stimulus), Arc::from(address));
        self.core()
            .handle_add_keys(&address, &keys(&added), &stimulus, now_s);
    }

    #[doc = stub_doc!("SchedulerCore.handle_release_worker_data")]
    fn handle_release_worker_data(
        &self,
        stimulus: &str,
        now_s: f64,
        key: &str,
        address: &str,
    ) -> PyResult<()> {
        let stimulus = Arc::from(stimulus);
        self.core()
            .handle_release_worker_data(key.as_bytes(), address, &stimulus, now_s)
            .map_err(refusal)
    }

    #[doc = stub_doc!("SchedulerCore.handle_request_refresh_who_has")]
    fn handle_request_refresh_who_has(
        &self,
        stimulus: &str,
        now_s: f64,
        asked: Vec<String>,
        address: &str,
    ) -> PyResult<()> {
        let (stimulus, address) = (Arc::from(stimulus), Arc::from(address));
        self.core()
            .handle_request_refresh_who_has(&keys(&asked), &address, &stimulus, now_s)
            .map_err(refusal)
    }

    #[doc = stub_doc!("SchedulerCore.handle_acquire_replicas")]
    fn handle_acquire_replicas(
        &self,
        stimulus: &str,
        now_s: f64,
        address: &str,
        acquired: Vec<String>,
    ) -> PyResult<()> {
        let (stimulus, address) = (Arc::from(stimulus), Arc::from(address));
        self.core()
            .handle_acquire_replicas(&address, &keys(&acquired), &stimulus, now_s)
            .map_err(refusal)
    }

    #[doc = stub_doc!("SchedulerCore.handle_remove_replicas")]
    fn handle_remove_replicas(
        &self,
        stimulus: &str,
        now_s: f64,
        address: &str,
        removed: Vec<String>,
    ) -> PyResult<()> {
        let (stimulus, address) = (Arc::from(stimulus), Arc::from(address));
        self.core()
            .handle_remove_replicas(&address, &keys(&removed), &stimulus, now_s)
            .map_err(refusal)
    }

    #[doc = stub_doc!("SchedulerCore.handle_update_data")]
    fn handle_update_data(
        &self,
        stimulus: &str,
        now_s: f64,
        placed: Vec<Placed>,
        client: Option<&str>,
    ) -> PyResult<()> {
        let placed = placed.into_iter();
        let placed: Vec<PlacedResult> = placed
            .map(|(text, group, prefix, nbytes, workers)| PlacedResult {
                key: key(&text),
                group: Arc::from(group),
                prefix: Arc::from(prefix),
                nbytes,
                workers: workers.into_iter().map(Arc::from).collect(),
            })
            .collect();
        let stimulus = Arc::from(stimulus);
        self.core()
            .handle_update_data(&placed, client, &stimulus, now_s)
            .map_err(refusal)
    }

    #[doc = stub_doc!("SchedulerCore.handle_restrictions")]
    fn handle_restrictions(&self, key: &str, addresses: Option<Vec<String>>) -> PyResult<()> {
        let addresses = addresses.map(|addresses| addresses.into_iter().map(Arc::from).collect());
        self.core()
            .handle_restrictions(key.as_bytes(), addresses)
            .map_err(refusal)
    }
}

pub(super) fn worker_status(name: &str) -> PyResult<WorkerStatus> {
    match name {
        "running" => Ok(WorkerStatus::Running),
        "paused" => Ok(WorkerStatus::Paused),
        "closing_gracefully" => Ok(WorkerStatus::ClosingGracefully),
        "closed" => Ok(WorkerStatus::Closed),
        _ => Err(PyValueError::new_err(format!(
            "status must be running, paused, closing_gracefully or closed, got {name:?}"
        ))),
    }
}

/// From so many tasks on the interpreter is left to others while a graph is taken
const LONG_GRAPH: usize = 1_000;
