//! Events of a worker, each of which gives what the worker is to do.

use backhaul_dask::worker::{Asked, Priority, Refused, TaskId, WorkerCore};
use pyo3::exceptions::PyKeyError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use super::extras::Times;
use super::logs::{Stimulus, What};
use super::outside::{Hosted, Outside};
use super::told::{Told, leave_out_run, take};
use super::{Core, Inner, refusal};

/// How a run has ended well: value, bytes, class, start, stop, id of the event
type Done<'py> = (
    Bound<'py, PyAny>,
    i64,
    Option<Bound<'py, PyAny>>,
    f64,
    f64,
    Bound<'py, PyAny>,
);

/// What an event does, before what it recommends is worked off
type Act<'a> =
    dyn FnMut(&mut WorkerCore, &mut Hosted<'_, '_>) -> PyResult<Result<(), Refused>> + 'a;

#[pymethods]
impl Core {
    #[doc = stub_doc!("WorkerCore.compute")]
    fn compute<'py>(
        &self,
        py: Python<'py>,
        message: &Bound<'py, PyDict>,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        let Some(priority) = plain_priority(message)? else {
            return Ok(None);
        };
        let list = PyList::empty(py);
        self.at_work(|inner| inner.compute(py, message, &priority, &list))?;
        Ok(Some(list))
    }

    #[doc = stub_doc!("WorkerCore.live_through")]
    fn live_through<'py>(
        &self,
        py: Python<'py>,
        message: &Bound<'py, PyDict>,
        done: Done<'py>,
    ) -> PyResult<Option<(bool, Bound<'py, PyList>)>> {
        let Some(priority) = plain_priority(message)? else {
            return Ok(None);
        };
        let key = field(message, intern!(message.py(), "key"))?;
        let run_id: i64 = field(message, intern!(message.py(), "run_id"))?.extract()?;
        let list = PyList::empty(py);
        let lived = self.at_work(|inner| {
            inner.compute_without_run(py, message, &priority, &list)?;
            let Some(task) = inner.outside.known(&key)? else {
                return Ok(false);
            };
            if !inner.left_out(py, task, &list)? {
                return Ok(false);
            }
            inner.succeeded(py, &key, run_id, done, false, &list)?;
            Ok(true)
        })?;
        Ok(Some((lived, list)))
    }

    #[doc = stub_doc!("WorkerCore.succeeded")]
    fn succeeded<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        run_id: i64,
        done: Done<'py>,
    ) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        self.at_work(|inner| inner.succeeded(py, key, run_id, done, true, &list))?;
        Ok(list)
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

    #[doc = stub_doc!("WorkerCore.free")]
    fn free<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        stimulus_id: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        self.at_work(|inner| {
            inner.begin(py, stimulus_id)?;
            let time_s = inner.outside.time_s;
            let stimulus =
                Stimulus::Free(keys.clone().unbind(), stimulus_id.clone().unbind(), time_s);
            inner.outside.note(stimulus);
            let what = What::Of("free-keys", keys.clone().unbind());
            inner.outside.write(py, what);
            for key in keys.try_iter()? {
                if let Some(task) = inner.outside.known(&key?)? {
                    inner.core.free(task);
                }
            }
            inner.conclude(py, &list)
        })?;
        Ok(list)
    }

    #[doc = stub_doc!("WorkerCore.gathered")]
    fn gathered<'py>(
        &self,
        py: Python<'py>,
        event: &Bound<'py, PyAny>,
        peer: &Bound<'py, PyAny>,
        total_bytes: i64,
        data: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        self.event(py, event, &mut |core, host| {
            let peer = host.outside.peer(core, peer)?;
            let tasks = host.outside.landed(host.py, peer)?;
            if let Err(refused) = core.gathered(peer, total_bytes, &tasks) {
                return Ok(Err(refused));
            }
            for task in tasks {
                let key = host.outside.key(host.py, task);
                if data.contains(&key)? {
                    let value = host.outside.payload(data.get_item(&key)?.unbind());
                    core.arrived(task, value);
                } else {
                    core.not_arrived(host, task, peer);
                }
            }
            Ok(Ok(()))
        })
    }

    #[doc = stub_doc!("WorkerCore.not_gathered")]
    #[pyo3(signature = (event, peer, total_bytes, why, error = None))]
    fn not_gathered<'py>(
        &self,
        py: Python<'py>,
        event: &Bound<'py, PyAny>,
        peer: &Bound<'py, PyAny>,
        total_bytes: i64,
        why: &str,
        error: Option<Bound<'py, PyTuple>>,
    ) -> PyResult<Bound<'py, PyList>> {
        self.event(py, event, &mut |core, host| {
            let peer = host.outside.peer(core, peer)?;
            let tasks = host.outside.landed(host.py, peer)?;
            if let Err(refused) = core.gathered(peer, total_bytes, &tasks) {
                return Ok(Err(refused));
            }
            match (why, &error) {
                ("busy", _) => core.was_busy(host, peer, &tasks),
                (_, Some(error)) => {
                    for task in tasks {
                        let error = host.outside.payload(error.clone().into_any().unbind());
                        core.not_readable(task, error);
                    }
                }
                _ => core.was_unreachable(host, peer, &tasks),
            }
            Ok(Ok(()))
        })
    }

    #[doc = stub_doc!("WorkerCore.peer_left")]
    fn peer_left<'py>(
        &self,
        py: Python<'py>,
        event: &Bound<'py, PyAny>,
        peer: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        self.event(py, event, &mut |core, host| {
            let peer = host.outside.peer(core, peer)?;
            core.peer_left(peer);
            Ok(Ok(()))
        })
    }

    #[doc = stub_doc!("WorkerCore.retry")]
    fn retry<'py>(
        &self,
        py: Python<'py>,
        event: &Bound<'py, PyAny>,
        peer: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        self.event(py, event, &mut |core, host| {
            let peer = host.outside.peer(core, peer)?;
            core.retry(peer);
            Ok(Ok(()))
        })
    }

    #[doc = stub_doc!("WorkerCore.steal")]
    fn steal<'py>(
        &self,
        py: Python<'py>,
        event: &Bound<'py, PyAny>,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        self.event(py, event, &mut |core, host| {
            let task = host.outside.known(key)?;
            let state = task.map(|task| core.steal(task).name());
            host.outside
                .told
                .push(Told::Steal(key.clone().unbind(), state));
            Ok(Ok(()))
        })
    }

    #[doc = stub_doc!("WorkerCore.cancel")]
    fn cancel<'py>(
        &self,
        py: Python<'py>,
        event: &Bound<'py, PyAny>,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        self.event(
            py,
            event,
            &mut |core, host| match host.outside.known(key)? {
                Some(task) => Ok(core.cancel(host, task)),
                None => Ok(Ok(())),
            },
        )
    }

    #[doc = stub_doc!("WorkerCore.set_running")]
    fn set_running<'py>(
        &self,
        py: Python<'py>,
        event: &Bound<'py, PyAny>,
        running: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        self.event(py, event, &mut |core, _| {
            if running {
                core.unpause();
            } else {
                core.pause();
            }
            Ok(Ok(()))
        })
    }

    #[doc = stub_doc!("WorkerCore.remove_replicas")]
    fn remove_replicas<'py>(
        &self,
        py: Python<'py>,
        event: &Bound<'py, PyAny>,
        keys: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        self.event(py, event, &mut |core, host| {
            for key in keys.try_iter()? {
                if let Some(task) = host.outside.known(&key?)?
                    && let Err(refused) = core.remove_replica(host, task)
                {
                    return Ok(Err(refused));
                }
            }
            Ok(Ok(()))
        })
    }

    #[doc = stub_doc!("WorkerCore.acquire_replicas")]
    fn acquire_replicas<'py>(
        &self,
        py: Python<'py>,
        event: &Bound<'py, PyAny>,
        nbytes: &Bound<'py, PyDict>,
        who_has: &Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, PyList>> {
        self.event(py, event, &mut |core, host| {
            for (key, nbytes) in nbytes.iter() {
                let task = host.outside.ensure(core, &key)?;
                core.acquire_replica(host, task, nbytes.extract()?);
            }
            note_holders(core, host.outside, who_has)
        })
    }

    #[doc = stub_doc!("WorkerCore.refresh_who_has")]
    fn refresh_who_has<'py>(
        &self,
        py: Python<'py>,
        event: &Bound<'py, PyAny>,
        who_has: &Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, PyList>> {
        self.event(py, event, &mut |core, host| {
            if let Err(refused) = note_holders(core, host.outside, who_has)? {
                return Ok(Err(refused));
            }
            for key in who_has.keys() {
                if let Some(task) = host.outside.known(&key)? {
                    core.refreshed(task);
                }
            }
            Ok(Ok(()))
        })
    }

    #[doc = stub_doc!("WorkerCore.scattered")]
    fn scattered<'py>(
        &self,
        py: Python<'py>,
        event: &Bound<'py, PyAny>,
        data: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        self.event(py, event, &mut |core, host| {
            for pair in data.call_method0("items")?.try_iter()? {
                let (key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = pair?.extract()?;
                let task = host.outside.ensure(core, &key)?;
                let value = host.outside.payload(value.unbind());
                core.scattered(host, task, value);
            }
            Ok(Ok(()))
        })
    }

    #[doc = stub_doc!("WorkerCore.find_missing")]
    fn find_missing<'py>(
        &self,
        py: Python<'py>,
        stimulus_id: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        self.at_work(|inner| {
            inner.begin(py, stimulus_id)?;
            let Inner { core, outside } = inner;
            core.find_missing(&mut Hosted { py, outside });
            inner.conclude(py, &list)
        })?;
        Ok(list)
    }
}

impl Core {
    /// Has something done to the state; what that drops is dropped when others may look
    fn at_work<T>(&self, act: impl FnOnce(&mut Inner) -> PyResult<T>) -> PyResult<T> {
        let mut inner = self.inner()?;
        let done = act(&mut inner);
        let payloads = std::mem::take(&mut inner.outside.payloads);
        let dropped = std::mem::take(&mut inner.outside.dropped);
        let raised = inner.outside.raised.take();
        drop(inner);
        drop((payloads, dropped));
        match raised {
            Some(error) => Err(error),
            None => done,
        }
    }

    /// Handles an event that Python has made for the log
    fn event<'py>(
        &self,
        py: Python<'py>,
        event: &Bound<'py, PyAny>,
        act: &mut Act<'_>,
    ) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        self.at_work(|inner| {
            inner.begin(py, &event.getattr("stimulus_id")?)?;
            inner.outside.note(Stimulus::Event(event.clone().unbind()));
            let Inner { core, outside } = inner;
            let acted = act(core, &mut Hosted { py, outside })?;
            acted.map_err(|refused| refusal(py, outside, refused))?;
            inner.conclude(py, &list)
        })?;
        Ok(list)
    }
}

impl Inner {
    fn begin(&mut self, py: Python<'_>, stimulus_id: &Bound<'_, PyAny>) -> PyResult<()> {
        self.outside.stimulus_id = stimulus_id.clone().unbind();
        self.outside.time_s = self.outside.callables.time.bind(py).call0()?.extract()?;
        self.outside.monotonic_s = None;
        Ok(())
    }

    /// Works off what the event recommends, and adds what the worker is to do
    fn conclude(&mut self, py: Python<'_>, list: &Bound<'_, PyList>) -> PyResult<()> {
        self.work_off(py)?;
        take(py, &mut self.outside, list)
    }

    fn work_off(&mut self, py: Python<'_>) -> PyResult<()> {
        let Self { core, outside } = self;
        let concluded = core.conclude(&mut Hosted { py, outside });
        concluded.map_err(|refused| refusal(py, outside, refused))
    }

    fn compute(
        &mut self,
        py: Python<'_>,
        message: &Bound<'_, PyDict>,
        priority: &Priority,
        list: &Bound<'_, PyList>,
    ) -> PyResult<()> {
        self.compute_without_run(py, message, priority, list)?;
        take(py, &mut self.outside, list)
    }

    /// Takes on a task; what is to be done is left where it is told
    fn compute_without_run(
        &mut self,
        py: Python<'_>,
        message: &Bound<'_, PyDict>,
        priority: &Priority,
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
        let run_id = field(message, intern!(message.py(), "run_id"))?.extract()?;
        let answer = core.compute_task(&mut Hosted { py, outside }, task, run_id);
        if let Asked::TakesOn { .. } = answer {
            core.take_on(task, priority);
            let extra = outside.extras.of_mut(task);
            extra.run_spec = Some(run_spec.unbind());
            extra.annotations =
                Some(field(message, intern!(message.py(), "annotations"))?.unbind());
            let span_id = field(message, intern!(py, "span_id"))?;
            extra.span_id = (!span_id.is_none()).then(|| span_id.unbind());
            extra.error = None;
            extra.is_purged = false;
            let nbytes = field(message, intern!(message.py(), "nbytes"))?;
            let nbytes: &Bound<'_, PyDict> = nbytes.cast()?;
            for (key, nbytes) in nbytes.iter() {
                let input = outside.ensure(core, &key)?;
                let nbytes = nbytes.extract()?;
                core.add_input(&mut Hosted { py, outside }, task, input, nbytes);
            }
            let who_has = field(message, intern!(message.py(), "who_has"))?;
            let noted = note_holders(core, outside, who_has.cast()?)?;
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

    fn succeeded(
        &mut self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        run_id: i64,
        (value, nbytes, kind, start_s, stop_s, stimulus_id): Done<'_>,
        is_told: bool,
        list: &Bound<'_, PyList>,
    ) -> PyResult<()> {
        if is_told {
            self.begin(py, &stimulus_id)?;
        } else {
            // At the time at which it came
            self.outside.stimulus_id = stimulus_id.clone().unbind();
        }
        let logged = (key, run_id, start_s, stop_s, nbytes, &kind, &stimulus_id);
        let logged = logged.into_pyobject(py)?.unbind();
        let time_s = self.outside.time_s;
        self.outside.note(Stimulus::Success(logged, time_s));
        let task = self.outside.required(key)?;
        let value = self.outside.payload(value.unbind());
        let succeeded = self.core.succeeded(task, run_id, nbytes, value);
        succeeded.map_err(|refused| refusal(py, &self.outside, refused))?;
        let extra = self.outside.extras.of_mut(task);
        extra
            .startstops
            .push(Times::Spent("compute", start_s, stop_s));
        extra.kind = kind.map(Bound::unbind);
        self.work_off(py)?;
        if !is_told {
            self.outside
                .told
                .retain(|told| !matches!(told, Told::Finished(..)));
        }
        take(py, &mut self.outside, list)
    }
}

/// Says who else has results
fn note_holders(
    core: &mut WorkerCore,
    outside: &mut Outside,
    who_has: &Bound<'_, PyDict>,
) -> PyResult<Result<(), Refused>> {
    for (key, addresses) in who_has.iter() {
        if let Some(task) = outside.known(&key)? {
            let holders = outside.holders(core, &addresses)?;
            if let Err(refused) = core.note_holders(task, &holders) {
                return Ok(Err(refused));
            }
        }
    }
    Ok(Ok(()))
}

/// The priority of a task that asks for a thread and no more; None if it is another
fn plain_priority(message: &Bound<'_, PyDict>) -> PyResult<Option<Priority>> {
    if field(message, intern!(message.py(), "actor"))?.is_truthy()?
        || field(message, intern!(message.py(), "resource_restrictions"))?.is_truthy()?
    {
        return Ok(None);
    }
    let mut numbers = Vec::with_capacity(4);
    for number in field(message, intern!(message.py(), "priority"))?.try_iter()? {
        match number?.extract::<f64>() {
            Ok(number) if number.abs() <= EXACT_MAX => numbers.push(number),
            _ => return Ok(None),
        }
    }
    Ok(Some(Priority::new(&numbers)))
}

pub(super) fn item<'py>(message: &Bound<'py, PyDict>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    let found = message.get_item(name)?;
    found.ok_or_else(|| PyKeyError::new_err(name.to_owned()))
}

/// As [`item`], for a name that is looked up for each task
fn field<'py>(
    message: &Bound<'py, PyDict>,
    name: &Bound<'py, PyString>,
) -> PyResult<Bound<'py, PyAny>> {
    let found = message.get_item(name)?;
    found.ok_or_else(|| PyKeyError::new_err(name.clone().unbind()))
}

pub(super) fn given(message: &Bound<'_, PyDict>, name: &str) -> PyResult<Option<Py<PyAny>>> {
    let found = message.get_item(name)?;
    Ok(found.filter(|found| !found.is_none()).map(Bound::unbind))
}

/// Integers up to this are told apart as floating-point numbers
const EXACT_MAX: f64 = (1_u64 << 53) as f64;
