//! Reads of the state by Python that leave the state in Rust.

use std::cmp::Ordering;

use backhaul_dask::worker::{Group, State};
use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use super::export::keys;
use super::extras::{Times, startstops_of};
use super::logs::{Entry, What};
use super::{Core, Inner, listed};

#[pymethods]
impl Core {
    #[doc = stub_doc!("WorkerCore.knows")]
    fn knows(&self, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(self.inner()?.outside.known(key)?.is_some())
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(self.inner()?.core.task_count())
    }

    #[doc = stub_doc!("WorkerCore.number")]
    fn number(&self, name: &str) -> PyResult<i64> {
        let inner = self.inner()?;
        let core = &inner.core;
        let counters = core.counters();
        let number = match name {
            "generation" => counters.generation,
            "nbytes" => counters.nbytes,
            "executed_count" => counters.executed,
            "transition_counter" => counters.transitions,
            "fetch_count" => counters.fetch,
            "transfer_incoming_bytes" => counters.incoming_bytes,
            "transfer_incoming_count_total" => counters.incoming_total,
            "transfer_incoming_count" => core.transfers() as i64,
            "in_flight_tasks_count" => core.in_flight_count() as i64,
            "executing_count" => core.executing_count() as i64,
            "long_running_count" => core.long_running_count() as i64,
            "ready_count" => core.ready_count() as i64,
            "missing_count" => core.missing().len() as i64,
            "running" => i64::from(core.is_running()),
            "has_needed" => i64::from(core.has_needed()),
            _ => return Err(PyAttributeError::new_err(name.to_owned())),
        };
        Ok(number)
    }

    #[doc = stub_doc!("WorkerCore.may_run_at_once")]
    fn may_run_at_once(&self) -> PyResult<bool> {
        let inner = self.inner()?;
        let core = &inner.core;
        Ok(core.is_running() && core.ready_count() == 0 && !core.has_needed())
    }

    #[doc = stub_doc!("WorkerCore.first_ready")]
    fn first_ready<'py>(&self, py: Python<'py>, most: usize) -> PyResult<Bound<'py, PyList>> {
        let inner = self.inner()?;
        let ready = inner.core.first_ready(most);
        listed(py, ready, |task| {
            Ok(inner.outside.key(py, task).into_bound(py))
        })
    }

    #[doc = stub_doc!("WorkerCore.latest_needed")]
    fn latest_needed(&self, keys: Vec<Bound<'_, PyAny>>) -> PyResult<Option<usize>> {
        let inner = self.inner()?;
        let mut found: Option<(usize, &[f64])> = None;
        for (index, key) in keys.iter().enumerate() {
            let Some(task) = inner.outside.known(key)? else {
                return Ok(Some(index));
            };
            let Some(first) = inner.core.first_use(task) else {
                return Ok(Some(index));
            };
            if found.is_none_or(|(_, latest)| first.partial_cmp(latest) == Some(Ordering::Greater))
            {
                found = Some((index, first));
            }
        }
        Ok(found.map(|(index, _)| index))
    }

    #[doc = stub_doc!("WorkerCore.write_counts")]
    fn write_counts(
        &self,
        py: Python<'_>,
        current: &Bound<'_, PyDict>,
        elapsed: &Bound<'_, PyDict>,
    ) -> PyResult<Option<f64>> {
        let mut inner = self.inner()?;
        let Inner { core, outside } = &mut *inner;
        let name =
            |(prefix, state): Group| (outside.prefixes[prefix.index()].clone_ref(py), state.name());
        let counts = core.counts();
        current.clear();
        for (group, tasks) in counts.current() {
            current.set_item(name(group), tasks)?;
        }
        let earlier = |group| elapsed.get_item(name(group)).ok()??.extract().ok();
        for (group, seconds) in counts.read_changed(earlier) {
            elapsed.set_item(name(group), seconds)?;
        }
        Ok(counts.previous_s())
    }

    #[doc = stub_doc!("WorkerCore.view_of")]
    fn view_of<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        make: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = key.py();
        {
            let inner = self.inner()?;
            let Some(task) = inner.outside.known(key)? else {
                return Ok(None);
            };
            if let Some(view) = &inner.outside.extras.of(task).view {
                return Ok(Some(view.bind(py).clone()));
            }
        }
        // Others may look while Python makes it.
        let made = make.call1((key,))?;
        let mut inner = self.inner()?;
        let Some(task) = inner.outside.known(key)? else {
            return Ok(None);
        };
        let view = &mut inner.outside.extras.of_mut(task).view;
        let view = view.get_or_insert_with(|| made.unbind());
        Ok(Some(view.bind(py).clone()))
    }

    #[doc = stub_doc!("WorkerCore.set_view")]
    fn set_view(&self, key: &Bound<'_, PyAny>, view: Py<PyAny>) -> PyResult<()> {
        let mut inner = self.inner()?;
        if let Some(task) = inner.outside.known(key)? {
            inner.outside.extras.of_mut(task).view = Some(view);
        }
        Ok(())
    }

    #[doc = stub_doc!("WorkerCore.task_attribute")]
    fn task_attribute<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        name: &str,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = key.py();
        let inner = self.inner()?;
        let Some(task) = inner.outside.known(key)? else {
            return Err(pyo3::exceptions::PyKeyError::new_err(key.clone().unbind()));
        };
        let Inner { core, outside } = &*inner;
        let view = core.view(task);
        let extra = outside.extras.of(task);
        let object = |object: &Option<Py<PyAny>>| match object {
            Some(object) => object.bind(py).clone(),
            None => py.None().into_bound(py),
        };
        let named = |state: Option<State>| state.map(State::name);
        Ok(match name {
            "state" => view.state().name().into_pyobject(py)?.into_any(),
            "previous" => named(view.previous()).into_pyobject(py)?,
            "next" => named(view.next()).into_pyobject(py)?,
            "done" => view.done().into_pyobject(py)?.to_owned().into_any(),
            "run_id" => view.run_id().into_pyobject(py)?.into_any(),
            "nbytes" => view.nbytes().into_pyobject(py)?,
            "prefix" => outside.prefixes[view.prefix().index()].bind(py).clone(),
            "run_spec" => object(&extra.run_spec),
            "annotations" => object(&extra.annotations),
            "span_id" => object(&extra.span_id),
            "type" => object(&extra.kind),
            "startstops" => startstops_of(py, &extra.startstops)?.into_any(),
            "dependencies" => keys(py, outside, view.dependencies())?.into_any(),
            "dependents" => keys(py, outside, view.dependents())?.into_any(),
            "waiting_for_data" => keys(py, outside, view.waiting_for_data())?.into_any(),
            "waiters" => keys(py, outside, view.waiters())?.into_any(),
            "inputs" => listed(py, view.dependencies(), |task| {
                let nbytes = core.view(task).nbytes();
                Ok((outside.key(py, task), nbytes)
                    .into_pyobject(py)?
                    .into_any())
            })?
            .into_any(),
            "is_needed" => {
                let is_needed = view.dependents().next().is_some();
                is_needed.into_pyobject(py)?.to_owned().into_any()
            }
            "who_has" => listed(py, view.who_has(), |peer| {
                Ok(outside.peers[peer.index()].bind(py).clone())
            })?
            .into_any(),
            _ => return Err(PyAttributeError::new_err(name.to_owned())),
        })
    }

    #[doc = stub_doc!("WorkerCore.add_time")]
    fn add_time(&self, key: &Bound<'_, PyAny>, times: Py<PyAny>) -> PyResult<()> {
        let mut inner = self.inner()?;
        if let Some(task) = inner.outside.known(key)? {
            let known = &mut inner.outside.extras.of_mut(task).startstops;
            known.push(Times::Given(times));
        }
        Ok(())
    }

    #[doc = stub_doc!("WorkerCore.add_line")]
    fn add_line(&self, py: Python<'_>, line: Py<PyAny>) -> PyResult<()> {
        let entry = Entry {
            what: What::Made(line),
            stimulus_id: py.None(),
            time_s: 0.0,
        };
        let replaced = {
            let mut inner = self.inner()?;
            inner.outside.log.push(entry)
        };
        drop(replaced);
        Ok(())
    }
}
