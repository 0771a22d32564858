//! All of the state, for Python to go on with.

use backhaul_dask::worker::{HeapView, PeerId, State, TaskId};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use super::extras::startstops_of;
use super::logs::rendered;
use super::outside::Outside;
use super::{Core, Inner, listed};

#[pymethods]
impl Core {
    #[doc = stub_doc!("WorkerCore.take_out")]
    fn take_out<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let mut inner = self.inner()?;
        let Inner { core, outside } = &mut *inner;
        outside.is_given = true;
        let found = PyDict::new(py);
        let order = core.tasks();
        let tasks = listed(py, order, |task| {
            Ok(inner_task(py, core, outside, task)?.into_any())
        })?;
        found.set_item("tasks", tasks)?;
        found.set_item("ready", heap(py, outside, &core.ready())?)?;
        found.set_item("missing", keys(py, outside, core.missing())?)?;
        let needed = PyDict::new(py);
        for (peer, tasks) in core.needed() {
            needed.set_item(address(py, outside, peer), heap(py, outside, &tasks)?)?;
        }
        found.set_item("data_needed", needed)?;
        let flights = PyDict::new(py);
        for peer in core.in_flight_workers() {
            let keys = outside.flights.get(&peer);
            flights.set_item(address(py, outside, peer), keys)?;
        }
        found.set_item("in_flight_workers", flights)?;
        let busy = core.busy();
        let busy = listed(py, busy, |peer| Ok(address(py, outside, peer)))?;
        found.set_item("busy_workers", busy)?;
        found.set_item("running", core.is_running())?;
        let log = rendered(py, &mut outside.log, |entry| entry.render(py))?;
        found.set_item("log", log)?;
        let stimuli = rendered(py, &mut outside.stimuli, |stimulus| {
            Ok(stimulus.render(py)?.into_any())
        })?;
        found.set_item("stimulus_log", stimuli)?;
        Ok(found)
    }
}

fn inner_task<'py>(
    py: Python<'py>,
    core: &backhaul_dask::worker::WorkerCore,
    outside: &Outside,
    task: TaskId,
) -> PyResult<Bound<'py, PyDict>> {
    let view = core.view(task);
    let extra = outside.extras.of(task);
    let found = PyDict::new(py);
    let set = |name: &str, value: Option<&Py<PyAny>>| match value {
        Some(value) => found.set_item(name, value),
        None => found.set_item(name, py.None()),
    };
    set("key", extra.key.as_ref())?;
    set("run_spec", extra.run_spec.as_ref())?;
    set("annotations", extra.annotations.as_ref())?;
    set("span_id", extra.span_id.as_ref())?;
    set("type", extra.kind.as_ref())?;
    set("view", extra.view.as_ref())?;
    found.set_item("error", extra.error.as_ref())?;
    found.set_item("startstops", startstops_of(py, &extra.startstops)?)?;
    found.set_item("state", view.state().name())?;
    found.set_item("previous", view.previous().map(State::name))?;
    found.set_item("next", view.next().map(State::name))?;
    found.set_item("done", view.done())?;
    found.set_item("executes", view.executes())?;
    found.set_item("runs_long", view.runs_long())?;
    found.set_item("in_flight", view.in_flight())?;
    found.set_item("waits", view.waits())?;
    found.set_item("run_id", view.run_id())?;
    found.set_item("nbytes", view.nbytes())?;
    found.set_item("priority", view.priority().map(<[f64]>::to_vec))?;
    let coming_from = view.coming_from();
    found.set_item(
        "coming_from",
        coming_from.map(|peer| address(py, outside, peer)),
    )?;
    found.set_item("dependencies", keys(py, outside, view.dependencies())?)?;
    found.set_item("dependents", keys(py, outside, view.dependents())?)?;
    let waiting_for_data = keys(py, outside, view.waiting_for_data())?;
    found.set_item("waiting_for_data", waiting_for_data)?;
    found.set_item("waiters", keys(py, outside, view.waiters())?)?;
    let who_has = listed(py, view.who_has(), |&peer| Ok(address(py, outside, peer)))?;
    found.set_item("who_has", who_has)?;
    Ok(found)
}

/// A heap: its places, each with whether its task is a member, and how many were ever added
fn heap<'py>(
    py: Python<'py>,
    outside: &Outside,
    heap: &HeapView,
) -> PyResult<(Bound<'py, PyList>, u64)> {
    let places = listed(py, &heap.places, |(priority, number, task, is_member)| {
        let place = (
            priority.numbers(),
            number,
            outside.key(py, *task),
            is_member,
        );
        Ok(place.into_pyobject(py)?.into_any())
    })?;
    Ok((places, heap.added))
}

pub(super) fn keys<'py>(
    py: Python<'py>,
    outside: &Outside,
    tasks: impl IntoIterator<Item = TaskId>,
) -> PyResult<Bound<'py, PyList>> {
    listed(py, tasks, |task| Ok(outside.key(py, task).into_bound(py)))
}

fn address<'py>(py: Python<'py>, outside: &Outside, peer: PeerId) -> Bound<'py, PyAny> {
    outside.peers[peer.index()].bind(py).clone()
}
