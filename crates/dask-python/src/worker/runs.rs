//! Events of tasks that are run: asked for, ended, gone from the thread pool.

use backhaul_dask::worker::{Asked, Priority, TaskId};
use pyo3::exceptions::PyKeyError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};
use smallvec::SmallVec;

use super::events::note_holders;
use super::extras::Times;
use super::logs::Stimulus;
use super::outside::{Hosted, Payload};
use super::told::{Told, leave_out_run, take};
use super::{Core, Inner, refusal};

/// How a run has ended well: value, bytes, class, start, stop, id of the event
type Done<'py> = (
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
    Option<Bound<'py, PyAny>>,
    f64,
    f64,
    Bound<'py, PyAny>,
);

#[pymethods]
impl Core {
    #[doc = stub_doc!("WorkerCore.compute")]
    fn compute<'py>(
        &self,
        py: Python<'py>,
        message: &Bound<'py, PyDict>,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        let Some(plain) = Plain::of(message)? else {
            return Ok(None);
        };
        let list = PyList::empty(py);
        self.at_work(py, |inner| inner.compute(py, message, &plain, &list))?;
        Ok(Some(list))
    }

    #[doc = stub_doc!("WorkerCore.live_through")]
    fn live_through<'py>(
        &self,
        py: Python<'py>,
        message: &Bound<'py, PyDict>,
        done: Done<'py>,
    ) -> PyResult<Option<(Option<bool>, Bound<'py, PyList>)>> {
        let (Some(plain), Ok(nbytes)) = (Plain::of(message)?, done.1.extract::<i64>()) else {
            return Ok(None);
        };
        let key = field(message, intern!(py, "key"))?;
        let list = PyList::empty(py);
        let value = done.0.clone();
        let lived = self.at_work(py, |inner| {
            inner.compute_without_run(py, message, &plain, &list)?;
            let Some(task) = inner.outside.known(&key)? else {
                return Ok(false);
            };
            if !inner.left_out(py, task, &list)? {
                return Ok(false);
            }
            if inner.outside.is_plain {
                let payload = Payload::of(value.clone());
                inner.succeeded(py, &key, plain.run_id, &done, nbytes, payload, false, &list)?;
            }
            Ok(true)
        })?;
        if !lived || self.inner()?.outside.is_plain {
            return Ok(Some((Some(lived), list)));
        }
        let Some(mut payloads) = self.stored(py, vec![(key.clone(), value)], false)? else {
            return Ok(Some((None, list)));
        };
        let payload = payloads.remove(0);
        self.at_work(py, |inner| {
            inner.succeeded(py, &key, plain.run_id, &done, nbytes, payload, false, &list)
        })?;
        Ok(Some((Some(true), list)))
    }

    #[doc = stub_doc!("WorkerCore.succeeded")]
    fn succeeded<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        run_id: i64,
        done: Done<'py>,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        let Ok(nbytes) = done.1.extract::<i64>() else {
            return Ok(None);
        };
        let Some(mut payloads) = self.stored(py, vec![(key.clone(), done.0.clone())], false)?
        else {
            return Ok(None);
        };
        let payload = payloads.remove(0);
        let list = PyList::empty(py);
        self.at_work(py, |inner| {
            inner.succeeded(py, key, run_id, &done, nbytes, payload, true, &list)
        })?;
        Ok(Some(list))
    }

    #[doc = stub_doc!("WorkerCore.failed")]
    fn failed<'py>(
        &self,
        py: Python<'py>,
        event: &Bound<'py, PyAny>,
        key: &Bound<'py, PyAny>,
        run_id: i64,
        error: Bound<'py, PyTuple>,
        times: Option<(f64, f64)>,
    ) -> PyResult<Bound<'py, PyList>> {
        self.event(py, event, &mut |core, host| {
            let task = host.outside.required(key)?;
            let error = host.outside.payload(error.clone().into_any().unbind());
            let refused = core.failed(task, run_id, error);
            if let Some((start_s, stop_s)) = times {
                let extra = host.outside.extras.of_mut(task);
                extra
                    .startstops
                    .push(Times::Spent("compute", start_s, stop_s));
            }
            Ok(refused)
        })
    }

    #[doc = stub_doc!("WorkerCore.rescheduled")]
    fn rescheduled<'py>(
        &self,
        py: Python<'py>,
        event: &Bound<'py, PyAny>,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        self.event(py, event, &mut |core, host| {
            let task = host.outside.required(key)?;
            Ok(core.rescheduled(task))
        })
    }

    #[doc = stub_doc!("WorkerCore.seceded")]
    fn seceded<'py>(
        &self,
        py: Python<'py>,
        event: &Bound<'py, PyAny>,
        key: &Bound<'py, PyAny>,
        seconds: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        self.event(py, event, &mut |core, host| {
            if let Some(task) = host.outside.known(key)? {
                let seconds = host.outside.payload(seconds.clone().unbind());
                core.seceded(task, seconds);
            }
            Ok(Ok(()))
        })
    }
}

impl Inner {
    fn compute(
        &mut self,
        py: Python<'_>,
        message: &Bound<'_, PyDict>,
        plain: &Plain<'_>,
        list: &Bound<'_, PyList>,
    ) -> PyResult<()> {
        self.compute_without_run(py, message, plain, list)?;
        take(py, &mut self.outside, list)
    }

    /// Takes on a task; the instructions are left to the caller's list
    fn compute_without_run(
        &mut self,
        py: Python<'_>,
        message: &Bound<'_, PyDict>,
        plain: &Plain<'_>,
        list: &Bound<'_, PyList>,
    ) -> PyResult<()> {
        debug_assert!(list.is_empty());
        let run_spec = field(message, intern!(message.py(), "run_spec"))?;
        message.set_item(intern!(py, "run_spec"), py.None())?;
        self.begin(py, &field(message, intern!(message.py(), "stimulus_id"))?)?;
        let asked = message.clone().into_any().unbind();
        let time_s = self.outside.time_s;
        self.outside.note(Stimulus::Compute(asked, time_s));
        let Self { core, outside } = self;
        let task = outside.ensure(core, &field(message, intern!(message.py(), "key"))?)?;
        let answer = core.compute_task(&mut Hosted { py, outside }, task, plain.run_id);
        if let Asked::TakesOn { .. } = answer {
            core.take_on(task, &plain.priority);
            let extra = outside.extras.of_mut(task);
            extra.run_spec = Some(run_spec.unbind());
            extra.annotations =
                Some(field(message, intern!(message.py(), "annotations"))?.unbind());
            let span_id = field(message, intern!(py, "span_id"))?;
            extra.span_id = (!span_id.is_none()).then(|| span_id.unbind());
            extra.error = None;
            extra.is_purged = false;
            for (key, nbytes) in &plain.inputs {
                let input = outside.ensure(core, key)?;
                core.add_input(&mut Hosted { py, outside }, task, input, *nbytes);
            }
            let noted = note_holders(core, outside, &plain.who_has)?;
            noted.map_err(|refused| refusal(py, outside, refused))?;
        }
        self.work_off(py)
    }

    /// Leaves out that a task is to be run, and adds what else is to be done
    fn left_out(
        &mut self,
        py: Python<'_>,
        task: TaskId,
        list: &Bound<'_, PyList>,
    ) -> PyResult<bool> {
        let was_told = leave_out_run(py, &mut self.outside, task);
        take(py, &mut self.outside, list)?;
        Ok(was_told)
    }

    #[allow(
        clippy::too_many_arguments,
        reason = "what is known of the end of a run"
    )]
    fn succeeded(
        &mut self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        run_id: i64,
        (_, _, kind, start_s, stop_s, stimulus_id): &Done<'_>,
        nbytes: i64,
        payload: Payload,
        is_told: bool,
        list: &Bound<'_, PyList>,
    ) -> PyResult<()> {
        if is_told {
            self.begin(py, stimulus_id)?;
        } else {
            // At the time at which it came
            self.outside.stimulus_id = stimulus_id.clone().unbind();
        }
        let logged = (key, run_id, start_s, stop_s, nbytes, kind, stimulus_id);
        let logged = logged.into_pyobject(py)?.unbind();
        let time_s = self.outside.time_s;
        self.outside.note(Stimulus::Success(logged, time_s));
        let task = self.outside.required(key)?;
        let value = self.outside.carried(payload);
        let succeeded = self.core.succeeded(task, run_id, nbytes, value);
        succeeded.map_err(|refused| refusal(py, &self.outside, refused))?;
        let extra = self.outside.extras.of_mut(task);
        extra
            .startstops
            .push(Times::Spent("compute", *start_s, *stop_s));
        extra.kind = kind.clone().map(Bound::unbind);
        self.work_off(py)?;
        if !is_told {
            self.outside
                .told
                .retain(|told| !matches!(told, Told::Finished(..)));
        }
        take(py, &mut self.outside, list)
    }
}

/// Fields of a message for a task that asks for a thread and no more
struct Plain<'py> {
    priority: Priority,
    run_id: i64,
    /// Keys and bytes of what it needs
    inputs: Vec<(Bound<'py, PyAny>, i64)>,
    who_has: Bound<'py, PyDict>,
}

impl<'py> Plain<'py> {
    /// Reads all that Rust needs of it, before anything is done; None if it is Python's
    fn of(message: &Bound<'py, PyDict>) -> PyResult<Option<Self>> {
        let py = message.py();
        if field(message, intern!(py, "actor"))?.is_truthy()?
            || field(message, intern!(py, "resource_restrictions"))?.is_truthy()?
        {
            return Ok(None);
        }
        let mut numbers: SmallVec<[f64; 4]> = SmallVec::new();
        for number in field(message, intern!(py, "priority"))?.try_iter()? {
            match number?.extract::<f64>() {
                Ok(number) if number.abs() <= EXACT_MAX => numbers.push(number),
                _ => return Ok(None),
            }
        }
        let run_id = field(message, intern!(py, "run_id"))?;
        let nbytes = field(message, intern!(py, "nbytes"))?;
        let who_has = field(message, intern!(py, "who_has"))?;
        let (Ok(run_id), Ok(nbytes), Ok(who_has)) = (
            run_id.extract(),
            nbytes.cast_into_exact::<PyDict>(),
            who_has.cast_into_exact::<PyDict>(),
        ) else {
            return Ok(None);
        };
        let mut inputs = Vec::with_capacity(nbytes.len());
        for (key, nbytes) in nbytes.iter() {
            let Ok(nbytes) = nbytes.extract() else {
                return Ok(None);
            };
            inputs.push((key, nbytes));
        }
        Ok(Some(Self {
            priority: Priority::new(&numbers),
            run_id,
            inputs,
            who_has,
        }))
    }
}

/// As [`item`], for a name that is looked up for each task
fn field<'py>(
    message: &Bound<'py, PyDict>,
    name: &Bound<'py, PyString>,
) -> PyResult<Bound<'py, PyAny>> {
    let found = message.get_item(name)?;
    found.ok_or_else(|| PyKeyError::new_err(name.clone().unbind()))
}

/// Integers up to this are exact as floating-point numbers
const EXACT_MAX: f64 = (1_u64 << 53) as f64;
