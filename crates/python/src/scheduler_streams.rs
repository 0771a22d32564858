//! `SchedulerStreams`: the streams of a scheduler, handled on the engine's thread.

use std::sync::Arc;

use backhaul_dask::hot::{Frames, HotCounts, HotNotes, HotSettings, PeerId, PeerKind, Submitted};
use backhaul_dask_python::{SchedulerCore, WindowPolicy, gone_groups, message_of, refusal};
use backhaul_dask_streams::Streams;
use pyo3::exceptions::{PyConnectionError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use crate::deferred;
use crate::endpoint::Endpoint;
use crate::owned::Owned;

#[doc = stub_doc!("SchedulerStreams")]
#[pyclass(frozen, module = "backhaul._native")]
pub(crate) struct SchedulerStreams(Owned<Arc<Streams>>);

#[pymethods]
impl SchedulerStreams {
    #[new]
    #[pyo3(signature = (core, *, result_bytes_max = 0, window = None, fifo_timeout_s = 0.0))]
    fn new(
        core: &SchedulerCore,
        result_bytes_max: usize,
        window: Option<PyRef<'_, WindowPolicy>>,
        fifo_timeout_s: f64,
    ) -> Self {
        let settings = HotSettings {
            result_bytes_max,
            fifo_timeout_s,
            window: window.as_ref().map(|policy| policy.window().limits()),
        };
        let streams = Streams::begin(core.shared(), settings);
        if let (Some(policy), Some((window, _))) = (window, streams.core().window()) {
            window.learn_from(&policy.window());
        }
        Self(Owned::new(streams))
    }

    #[doc = stub_doc!("SchedulerStreams.add")]
    fn add(
        &self,
        py: Python<'_>,
        kind: &str,
        name: &str,
        endpoint: &Bound<'_, Endpoint>,
    ) -> PyResult<usize> {
        let kind = match kind {
            "worker" => PeerKind::Worker,
            "client" => PeerKind::Client,
            _ => {
                return Err(PyValueError::new_err(format!(
                    "kind must be worker or client, got {kind:?}"
                )));
            }
        };
        let frames = endpoint.get().frames_of(py)?;
        Ok(self.0.check(py)?.add(kind, name, frames).0)
    }

    #[doc = stub_doc!("SchedulerStreams.tap")]
    fn tap(&self, py: Python<'_>, peer: usize) -> PyResult<usize> {
        let streams = self.0.check(py)?;
        let tapped = deferred::call(py, || py.detach(|| streams.tap(PeerId(peer))));
        tapped.map_err(|reason| PyConnectionError::new_err(reason.to_string()))
    }

    #[doc = stub_doc!("SchedulerStreams.remove")]
    fn remove<'py>(&self, py: Python<'py>, peer: usize) -> PyResult<Vec<Bound<'py, PyList>>> {
        let streams = self.0.check(py)?;
        let held = deferred::call(py, || py.detach(|| streams.remove(PeerId(peer))));
        held.iter().map(|batch| frames_list(py, batch)).collect()
    }

    #[doc = stub_doc!("SchedulerStreams.caught_up")]
    fn caught_up(&self, peer: usize, handled: u64) {
        self.0.caught_up(PeerId(peer), handled);
    }

    #[doc = stub_doc!("SchedulerStreams.hold")]
    fn hold(&self, py: Python<'_>, peer: usize, hold: bool) {
        deferred::call(py, || self.0.hold(PeerId(peer), hold));
    }

    #[doc = stub_doc!("SchedulerStreams.flush")]
    fn flush(&self, py: Python<'_>) -> bool {
        deferred::call(py, || self.0.flush())
    }

    #[doc = stub_doc!("SchedulerStreams.pause")]
    fn pause(&self, pause: bool) {
        self.0.core().pause(pause);
    }

    #[doc = stub_doc!("SchedulerStreams.set_keepers")]
    fn set_keepers(&self, clients: Vec<String>) {
        self.0.core().set_keepers(&clients);
    }

    #[doc = stub_doc!("SchedulerStreams.set_span")]
    fn set_span(&self, group: &str, span: Option<&str>) {
        self.0.core().set_span(group, span);
    }

    #[doc = stub_doc!("SchedulerStreams.set_memory")]
    fn set_memory(&self, worker: &str, bytes: f64) {
        if let Some((window, _)) = self.0.core().window() {
            window.set_memory(worker, bytes);
        }
    }

    #[doc = stub_doc!("SchedulerStreams.observe")]
    fn observe(&self, group: &str, prefix: &str, seconds: f64, nbytes: f64) -> bool {
        let mut core = self.0.core();
        let window = core.window();
        window.is_some_and(|(window, _)| window.observe_patiently(group, prefix, seconds, nbytes))
    }

    #[doc = stub_doc!("SchedulerStreams.refill")]
    fn refill(&self, worker: &str, stimulus: &str, now_s: f64) -> PyResult<()> {
        let mut core = self.0.core();
        let Some((window, core)) = core.window() else {
            return Ok(());
        };
        let refilled = window.refill(core, worker, &Arc::from(stimulus), now_s);
        refilled.map_err(refusal)
    }

    #[doc = stub_doc!("SchedulerStreams.has_too_many")]
    fn has_too_many(&self, prefix: &str) -> bool {
        let mut core = self.0.core();
        let window = core.window();
        window.is_some_and(|(window, core)| window.check_excess(core, prefix))
    }

    #[doc = stub_doc!("SchedulerStreams.notes")]
    fn notes(&self, py: Python<'_>) -> PyResult<EngineNotes> {
        let notes = self.0.core().take_notes();
        EngineNotes::of(py, notes)
    }

    #[doc = stub_doc!("SchedulerStreams.failure")]
    fn failure(&self) -> Option<String> {
        self.0.core().failure().map(str::to_owned)
    }

    #[doc = stub_doc!("SchedulerStreams.counts")]
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = self.0.core().counts();
        counts_dict(py, counts)
    }

    #[doc = stub_doc!("SchedulerStreams.stop")]
    fn stop(&self, py: Python<'_>) -> PyResult<StoppedStreams> {
        let streams = self.0.check(py)?;
        let stopped = deferred::call(py, || py.detach(|| streams.stop()));
        let mut held = Vec::new();
        for (peer, batches) in stopped.held {
            for batch in batches {
                held.push((peer.0, frames_list(py, &batch)?.unbind()));
            }
        }
        Ok(StoppedStreams {
            held,
            notes: Py::new(py, EngineNotes::of(py, stopped.notes)?)?,
            counts: counts_dict(py, stopped.counts)?.unbind(),
            expectations: stopped.expectations,
            confirmed: stopped.confirmed,
        })
    }
}

fn frames_list<'py>(py: Python<'py>, frames: &Frames) -> PyResult<Bound<'py, PyList>> {
    PyList::new(py, frames.iter().map(|frame| PyBytes::new(py, frame)))
}

#[doc = stub_doc!("EngineNotes")]
#[pyclass(frozen, get_all, module = "backhaul._native")]
pub(crate) struct EngineNotes {
    #[doc = stub_doc!("EngineNotes.unwanted_from")]
    unwanted_from: Vec<String>,
    #[doc = stub_doc!("EngineNotes.give_back")]
    give_back: Vec<String>,
    #[doc = stub_doc!("EngineNotes.submitted")]
    submitted: Vec<Py<SubmittedTask>>,
    #[doc = stub_doc!("EngineNotes.gone_groups")]
    gone_groups: Py<PyList>,
    #[doc = stub_doc!("EngineNotes.failure")]
    failure: Option<String>,
    #[doc = stub_doc!("EngineNotes.unsaid")]
    unsaid: Vec<Py<PyTuple>>,
}

#[doc = stub_doc!("SubmittedTask")]
#[pyclass(frozen, get_all, module = "backhaul._native")]
pub(crate) struct SubmittedTask {
    #[doc = stub_doc!("SubmittedTask.client")]
    client: String,
    #[doc = stub_doc!("SubmittedTask.start_s")]
    start_s: f64,
    #[doc = stub_doc!("SubmittedTask.is_new")]
    is_new: bool,
    #[doc = stub_doc!("SubmittedTask.has_collided")]
    has_collided: bool,
    #[doc = stub_doc!("SubmittedTask.was_idle")]
    was_idle: bool,
    #[doc = stub_doc!("SubmittedTask.group")]
    group: Option<String>,
    #[doc = stub_doc!("SubmittedTask.span")]
    span: Option<String>,
    #[doc = stub_doc!("SubmittedTask.gone_before")]
    gone_before: usize,
}

#[doc = stub_doc!("StoppedStreams")]
#[pyclass(frozen, get_all, module = "backhaul._native")]
pub(crate) struct StoppedStreams {
    #[doc = stub_doc!("StoppedStreams.held")]
    held: Vec<(usize, Py<PyList>)>,
    #[doc = stub_doc!("StoppedStreams.notes")]
    notes: Py<EngineNotes>,
    #[doc = stub_doc!("StoppedStreams.counts")]
    counts: Py<PyDict>,
    #[doc = stub_doc!("StoppedStreams.expectations")]
    expectations: Vec<(String, f64, f64)>,
    #[doc = stub_doc!("StoppedStreams.confirmed")]
    confirmed: Vec<(String, u64)>,
}

impl EngineNotes {
    fn of(py: Python<'_>, notes: HotNotes) -> PyResult<Self> {
        let texts = |texts: &[Arc<str>]| texts.iter().map(|text| text.to_string()).collect();
        let submitted = notes.submitted.iter();
        let submitted = submitted.map(|one| Py::new(py, SubmittedTask::of(one)));
        let unsaid = notes.unsaid.iter();
        let unsaid = unsaid.map(|message| Ok(message_of(py, message)?.unbind()));
        Ok(Self {
            unwanted_from: texts(&notes.unwanted_from),
            give_back: texts(&notes.give_back),
            submitted: submitted.collect::<PyResult<_>>()?,
            gone_groups: gone_groups(py, &notes.gone_groups)?.unbind(),
            unsaid: unsaid.collect::<PyResult<_>>()?,
            failure: notes.failure,
        })
    }
}

impl SubmittedTask {
    fn of(submitted: &Submitted) -> Self {
        let group = submitted.group.as_ref();
        Self {
            client: submitted.client.to_string(),
            start_s: submitted.start_s,
            is_new: submitted.is_new,
            has_collided: submitted.has_collided,
            was_idle: submitted.was_idle,
            group: group.map(|group| group.name.to_string()),
            span: group.and_then(|group| group.span.as_deref().map(str::to_owned)),
            gone_before: group.map_or(0, |group| group.gone_before),
        }
    }
}

fn counts_dict(py: Python<'_>, counts: HotCounts) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    for (name, count) in [
        ("task-finished", counts.finished),
        ("add-keys", counts.added_keys),
        ("long-running", counts.long_running),
        ("release-worker-data", counts.released_data),
        ("client-releases-keys", counts.released_keys),
        ("backhaul-submit", counts.submitted),
        ("batches-left", counts.batches_left),
    ] {
        dict.set_item(name, count)?;
    }
    Ok(dict)
}
