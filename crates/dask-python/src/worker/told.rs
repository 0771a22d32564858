//! Instructions for the worker, as tuples that Python converts or executes immediately.

use backhaul_dask::worker::TaskId;
use pyo3::prelude::*;
use pyo3::types::PyList;

use super::extras::{Times, startstops_of};
use super::outside::Outside;

/// One instruction; each tuple begins with its name and the id of the event
pub(super) enum Told {
    /// A task's key and its span
    Execute(Py<PyAny>, Option<Py<PyAny>>),
    /// Something about a key
    Key(&'static str, Py<PyAny>),
    /// Key, run, size, class, times
    Finished(Py<PyAny>, i64, i64, Option<Py<PyAny>>, Vec<Times>),
    /// Key, run, error, times
    Erred(Py<PyAny>, i64, Py<PyAny>, Vec<Times>),
    /// Key, run, seconds
    LongRunning(Py<PyAny>, i64, Option<Py<PyAny>>),
    /// Peer, keys, size
    Gather(Py<PyAny>, Py<PyAny>, i64),
    /// Something about a list of keys, or a peer
    Of(&'static str, Py<PyAny>),
    /// Key and state of a task that the scheduler would take away
    Steal(Py<PyAny>, Option<&'static str>),
}

impl Told {
    fn render<'py>(
        &self,
        py: Python<'py>,
        stimulus_id: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let id = stimulus_id;
        Ok(match self {
            Self::Execute(key, span_id) => {
                ("execute", id, key, span_id).into_pyobject(py)?.into_any()
            }
            Self::Key(what, key) => (*what, id, key).into_pyobject(py)?.into_any(),
            Self::Finished(key, run_id, nbytes, kind, times) => {
                let times = startstops_of(py, times)?;
                ("task-finished", id, key, run_id, nbytes, kind, times)
                    .into_pyobject(py)?
                    .into_any()
            }
            Self::Erred(key, run_id, error, times) => {
                let times = startstops_of(py, times)?;
                ("task-erred", id, key, run_id, error, times)
                    .into_pyobject(py)?
                    .into_any()
            }
            Self::LongRunning(key, run_id, seconds) => ("long-running", id, key, run_id, seconds)
                .into_pyobject(py)?
                .into_any(),
            Self::Gather(peer, keys, total_bytes) => ("gather-dep", id, peer, keys, total_bytes)
                .into_pyobject(py)?
                .into_any(),
            Self::Of(what, of) => (*what, id, of).into_pyobject(py)?.into_any(),
            Self::Steal(key, state) => ("steal-response", id, key, state)
                .into_pyobject(py)?
                .into_any(),
        })
    }
}

/// Returns the instructions since the last call, as one list
pub(super) fn take<'py>(
    py: Python<'py>,
    outside: &mut Outside,
    list: &Bound<'py, PyList>,
) -> PyResult<()> {
    let stimulus_id = outside.stimulus_id.bind(py).clone();
    for told in outside.told.drain(..) {
        list.append(told.render(py, &stimulus_id)?)?;
    }
    Ok(())
}

/// Leaves out that a task is to be run; tells whether it was
pub(super) fn leave_out_run(py: Python<'_>, outside: &mut Outside, task: TaskId) -> bool {
    let key = outside.key(py, task);
    let place = outside.told.iter().position(|told| match told {
        Told::Execute(named, _) => named.bind(py).eq(key.bind(py)).unwrap_or(false),
        _ => false,
    });
    place.map(|place| outside.told.remove(place)).is_some()
}
