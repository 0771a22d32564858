//! Events of a worker, each of which gives what the worker is to do.

use std::sync::Arc;

use backhaul_dask::worker::{Refused, WorkerCore};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use super::logs::{Stimulus, What};
use super::outside::{Hosted, Kept, Outside, Payload, put};
use super::told::{Told, take};
use super::{Core, Inner, refusal};

/// The action of an event, before its recommendations are applied
type Act<'a> =
    dyn FnMut(&mut WorkerCore, &mut Hosted<'_, '_>) -> PyResult<Result<(), Refused>> + 'a;

#[pymethods]
impl Core {
    #[doc = stub_doc!("WorkerCore.free")]
    fn free<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        stimulus_id: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        self.at_work(py, |inner| {
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
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        // As upstream stores them: the last that is noted first
        let keys = self.inner()?.outside.flight(py, peer)?;
        let mut values = Vec::new();
        for key in keys.into_iter().rev() {
            if data.contains(&key)? {
                let value = data.get_item(&key)?;
                values.push((key, value));
            }
        }
        let Some(payloads) = self.stored(py, values, false)? else {
            return Ok(None);
        };
        let mut payloads = payloads.into_iter().rev();
        let told = self.event(py, event, &mut |core, host| {
            let peer = host.outside.peer(core, peer)?;
            let tasks = host.outside.landed(host.py, peer)?;
            if let Err(refused) = core.gathered(peer, total_bytes, &tasks) {
                return Ok(Err(refused));
            }
            for task in tasks {
                let key = host.outside.key(host.py, task);
                match data.contains(&key)?.then(|| payloads.next()).flatten() {
                    Some(payload) => {
                        let value = host.outside.carried(payload);
                        core.arrived(task, value);
                    }
                    None => core.not_arrived(host, task, peer),
                }
            }
            Ok(Ok(()))
        })?;
        Ok(Some(told))
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
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        let mut sizes = Vec::with_capacity(nbytes.len());
        for (key, nbytes) in nbytes.iter() {
            let Ok(nbytes) = nbytes.extract::<i64>() else {
                return Ok(None);
            };
            sizes.push((key, nbytes));
        }
        let told = self.event(py, event, &mut |core, host| {
            for (key, nbytes) in &sizes {
                let task = host.outside.ensure(core, key)?;
                core.acquire_replica(host, task, *nbytes);
            }
            note_holders(core, host.outside, who_has)
        })?;
        Ok(Some(told))
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
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        let sizeof = self.inner()?.outside.callables.sizeof.clone_ref(py);
        let mut values = Vec::new();
        let mut sizes = Vec::new();
        for pair in data.call_method0("items")?.try_iter()? {
            let (key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = pair?.extract()?;
            let Ok(nbytes) = sizeof.call1(py, (&value,))?.extract::<i64>(py) else {
                return Ok(None);
            };
            sizes.push((key.clone(), nbytes));
            values.push((key, value));
        }
        // As upstream stores them: the last first
        values.reverse();
        let Some(payloads) = self.stored(py, values, true)? else {
            return Ok(None);
        };
        let mut payloads = payloads.into_iter().rev();
        let told = self.event(py, event, &mut |core, host| {
            for (key, nbytes) in &sizes {
                let task = host.outside.ensure(core, key)?;
                if let Some(payload) = payloads.next() {
                    let value = host.outside.carried(Payload {
                        nbytes: Some(*nbytes),
                        ..payload
                    });
                    core.scattered(host, task, value);
                }
            }
            Ok(Ok(()))
        })?;
        Ok(Some(told))
    }

    #[doc = stub_doc!("WorkerCore.find_missing")]
    fn find_missing<'py>(
        &self,
        py: Python<'py>,
        stimulus_id: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        self.at_work(py, |inner| {
            inner.begin(py, stimulus_id)?;
            let Inner { core, outside } = inner;
            core.find_missing(&mut Hosted { py, outside });
            inner.conclude(py, &list)
        })?;
        Ok(list)
    }
}

impl Core {
    /// Has something done to the state; what others may see of that is done when it is unlocked
    pub(super) fn at_work<T>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&mut Inner) -> PyResult<T>,
    ) -> PyResult<T> {
        let mut inner = self.inner()?;
        let done = act(&mut inner);
        let unwanted = inner.unwanted(py)?;
        let outside = &mut inner.outside;
        let payloads = std::mem::take(&mut outside.payloads);
        let dropped = std::mem::take(&mut outside.dropped);
        let gone = std::mem::take(&mut outside.gone);
        let dead = std::mem::take(&mut outside.dead);
        let raised = outside.raised.take();
        let gone: Vec<_> = gone
            .into_iter()
            .map(|(_, key)| key)
            .chain(unwanted)
            .collect();
        let data = (!gone.is_empty()).then(|| outside.data.clone_ref(py));
        let forgotten = (!dead.is_empty()).then(|| outside.callables.forgotten.clone_ref(py));
        drop(inner);
        drop((payloads, dropped));
        if let Some(data) = data {
            let data = data.bind(py);
            for key in gone {
                if data.contains(&key)? {
                    data.del_item(key)?;
                }
            }
        }
        if let Some(forgotten) = forgotten {
            for view in dead {
                forgotten.call1(py, (view,))?;
            }
        }
        match raised {
            Some(error) => Err(error),
            None => done,
        }
    }

    /// Stores values by their keys before the event that brings them is handled, where storing one
    /// may run code of the program; None if Python has taken over meanwhile
    pub(super) fn stored<'py>(
        &self,
        py: Python<'py>,
        values: Vec<(Bound<'py, PyAny>, Bound<'py, PyAny>)>,
        may_be_new: bool,
    ) -> PyResult<Option<Vec<Payload>>> {
        let (data, callables) = {
            let inner = self.inner()?;
            let outside = &inner.outside;
            if outside.is_plain {
                let values = values.into_iter().map(|(_, value)| Payload::of(value));
                return Ok(Some(values.collect()));
            }
            (outside.data.clone_ref(py), Arc::clone(&outside.callables))
        };
        let data = data.bind(py);
        let mut payloads = Vec::with_capacity(values.len());
        for (key, value) in values {
            let stores = {
                let inner = self.inner()?;
                let task = inner.outside.known(&key)?;
                let stores = task.map_or(may_be_new, |task| inner.core.stores(task));
                stores && !inner.outside.is_given
            };
            let kept = match stores {
                true => Some(put(data, &callables, &key, &value)?),
                false => None,
            };
            if let Some(Kept::Stored(..)) = kept {
                self.inner()?.outside.stored.push(key.unbind());
            }
            payloads.push(Payload {
                kept,
                ..Payload::of(value)
            });
        }
        let is_given = self.inner()?.outside.is_given;
        Ok((!is_given).then_some(payloads))
    }

    /// Handles an event that Python has made for the log
    pub(super) fn event<'py>(
        &self,
        py: Python<'py>,
        event: &Bound<'py, PyAny>,
        act: &mut Act<'_>,
    ) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        self.at_work(py, |inner| {
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
    pub(super) fn begin(&mut self, py: Python<'_>, stimulus_id: &Bound<'_, PyAny>) -> PyResult<()> {
        self.outside.stimulus_id = stimulus_id.clone().unbind();
        self.outside.time_s = self.outside.callables.time.bind(py).call0()?.extract()?;
        self.outside.monotonic_s = None;
        Ok(())
    }

    /// Keys whose values were stored for an event that has not taken them: it was refused, or the
    /// task went another way by what came of an earlier one
    fn unwanted(&mut self, py: Python<'_>) -> PyResult<Vec<Py<PyAny>>> {
        let mut unwanted = Vec::new();
        for key in std::mem::take(&mut self.outside.stored) {
            let task = self.outside.known(key.bind(py))?;
            if !task.is_some_and(|task| self.core.has_value(task)) {
                unwanted.push(key);
            }
        }
        Ok(unwanted)
    }

    /// Works off what the event recommends, and adds what the worker is to do
    pub(super) fn conclude(&mut self, py: Python<'_>, list: &Bound<'_, PyList>) -> PyResult<()> {
        self.work_off(py)?;
        take(py, &mut self.outside, list)
    }

    pub(super) fn work_off(&mut self, py: Python<'_>) -> PyResult<()> {
        let Self { core, outside } = self;
        let concluded = core.conclude(&mut Hosted { py, outside });
        concluded.map_err(|refused| refusal(py, outside, refused))
    }
}

/// Says who else has results
pub(super) fn note_holders(
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

pub(super) fn item<'py>(message: &Bound<'py, PyDict>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    let found = message.get_item(name)?;
    found.ok_or_else(|| PyKeyError::new_err(name.to_owned()))
}

pub(super) fn given(message: &Bound<'_, PyDict>, name: &str) -> PyResult<Option<Py<PyAny>>> {
    let found = message.get_item(name)?;
    Ok(found.filter(|found| !found.is_none()).map(Bound::unbind))
}
