//! `SchedulerStreams`: the streams of a scheduler, handled on the engine's thread.

use std::sync::Arc;

use backhaul_dask::hot::{Frames, HotSettings, PeerId, PeerKind};
use backhaul_dask_python::{SchedulerCore, WindowPolicy, gone_groups, message_of, refusal};
use backhaul_dask_streams::Streams;
use pyo3::exceptions::{PyConnectionError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

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
    fn notes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let notes = self.0.core().take_notes();
        notes_dict(py, notes)
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
    fn stop<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let streams = self.0.check(py)?;
        let stopped = deferred::call(py, || py.detach(|| streams.stop()));
        let held = PyList::empty(py);
        for (peer, batches) in stopped.held {
            for batch in batches {
                held.append((peer.0, frames_list(py, &batch)?))?;
            }
        }
        let dict = PyDict::new(py);
        dict.set_item("held", held)?;
        dict.set_item("notes", notes_dict(py, stopped.notes)?)?;
        dict.set_item("counts", counts_dict(py, stopped.counts)?)?;
        dict.set_item("expectations", stopped.expectations)?;
        dict.set_item("confirmed", stopped.confirmed)?;
        Ok(dict)
    }
}

fn frames_list<'py>(py: Python<'py>, frames: &Frames) -> PyResult<Bound<'py, PyList>> {
    PyList::new(py, frames.iter().map(|frame| PyBytes::new(py, frame)))
}

fn notes_dict(py: Python<'_>, notes: backhaul_dask::hot::HotNotes) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    let texts =
        |texts: &[Arc<str>]| -> Vec<String> { texts.iter().map(|text| text.to_string()).collect() };
    dict.set_item("unwanted_from", texts(&notes.unwanted_from))?;
    dict.set_item("give_back", texts(&notes.give_back))?;
    let submitted = notes.submitted.iter().map(|one| {
        let client = &*one.client;
        (
            client,
            one.start_s,
            one.is_new,
            one.has_collided,
            one.was_idle,
            one.group
                .as_ref()
                .map(|group| (&*group.name, group.span.as_deref(), group.gone_before)),
        )
    });
    dict.set_item("gone_groups", gone_groups(py, &notes.gone_groups)?)?;
    dict.set_item("submitted", submitted.collect::<Vec<_>>())?;
    dict.set_item("failure", notes.failure)?;
    let unsaid = PyList::empty(py);
    for message in &notes.unsaid {
        unsaid.append(message_of(py, message)?)?;
    }
    dict.set_item("unsaid", unsaid)?;
    Ok(dict)
}

fn counts_dict(
    py: Python<'_>,
    counts: backhaul_dask::hot::HotCounts,
) -> PyResult<Bound<'_, PyDict>> {
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
