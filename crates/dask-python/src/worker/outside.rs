//! Python's part of the state machine's environment: data, clock, logs, callables.

use std::collections::HashMap;
use std::sync::Arc;

use backhaul_dask::worker::{
    Host, Instruction, Line, PayloadId, PeerId, PrefixId, Stored, TaskId, WorkerCore,
};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PySet, PyTuple};

use super::extras::{Extras, Times};
use super::logs::{Entry, Ring, Stimulus, What};
use super::told::Told;

/// Functions of Python's
pub(super) struct Callables {
    /// The time of day, and a clock that never goes back, in seconds
    pub(super) time: Py<PyAny>,
    pub(super) monotonic: Py<PyAny>,
    /// The generator with which ties are broken
    pub(super) random: Py<PyAny>,
    pub(super) key_split: Py<PyAny>,
    /// Returns whether an address is of another host
    pub(super) is_remote: Py<PyAny>,
    pub(super) sizeof: Py<PyAny>,
    /// Makes what a task raised of an exception: exception, traceback, and their texts
    pub(super) error_of: Py<PyAny>,
    /// Is given the view of a task that is not known any more
    pub(super) forgotten: Py<PyAny>,
}

impl Callables {
    pub(super) fn of(given: &Bound<'_, PyDict>) -> PyResult<Self> {
        let named = |name: &str| -> PyResult<Py<PyAny>> {
            match given.get_item(name)? {
                Some(callable) => Ok(callable.unbind()),
                None => Err(PyValueError::new_err(format!("{name} is missing"))),
            }
        };
        Ok(Self {
            time: named("time")?,
            monotonic: named("monotonic")?,
            random: named("random")?,
            key_split: named("key_split")?,
            is_remote: named("is_remote")?,
            sizeof: named("sizeof")?,
            error_of: named("error_of")?,
            forgotten: named("forgotten")?,
        })
    }
}

/// A value or an error that an event carries
pub(super) struct Payload {
    pub(super) what: Py<PyAny>,
    /// Result of storing it, if it was stored before
    pub(super) kept: Option<Kept>,
    /// How large it is, if that was asked before
    pub(super) nbytes: Option<i64>,
}

impl Payload {
    /// One of which nothing is known
    pub(super) fn of(what: Bound<'_, PyAny>) -> Self {
        Self {
            what: what.unbind(),
            kept: None,
            nbytes: None,
        }
    }
}

/// Result of storing a value
pub(super) enum Kept {
    /// It is there: when that began and ended
    Stored(f64, f64),
    /// It could not be stored: the error of the task
    Refused(Py<PyAny>),
}

/// The parts of a worker's state that are Python's
pub(super) struct Outside {
    pub(super) extras: Extras,
    /// Numbers of tasks by key
    pub(super) ids: Py<PyDict>,
    pub(super) address: String,
    pub(super) peers: Vec<Py<PyAny>>,
    pub(super) peer_ids: HashMap<String, PeerId>,
    pub(super) prefixes: Vec<Py<PyAny>>,
    prefix_ids: HashMap<String, PrefixId>,
    pub(super) data: Py<PyAny>,
    pub(super) threads: Py<PyDict>,
    pub(super) callables: Arc<Callables>,
    pub(super) log: Ring<Entry>,
    pub(super) stimuli: Ring<Stimulus>,
    pub(super) told: Vec<Told>,
    /// Keys on their way from each peer, as a set of Python's
    pub(super) flights: HashMap<PeerId, Py<PyAny>>,
    /// Values and errors of the event that is handled
    pub(super) payloads: Vec<Payload>,
    /// Keys whose values were stored before the event that brings them
    pub(super) stored: Vec<Py<PyAny>>,
    /// True if results are in a dict of Python's own, so that storing one runs no code of the
    /// program
    pub(super) is_plain: bool,
    /// Keys whose results are to go, and views of tasks that are gone, when the state is unlocked
    pub(super) gone: Vec<(TaskId, Py<PyAny>)>,
    pub(super) dead: Vec<Py<PyAny>>,
    /// True if Python has taken over
    pub(super) is_given: bool,
    /// The id of that event, and when it came
    pub(super) stimulus_id: Py<PyAny>,
    pub(super) time_s: f64,
    /// The same by a clock that never goes back, once it was asked for
    pub(super) monotonic_s: Option<f64>,
    /// Exception that Python raised when it was called
    pub(super) raised: Option<PyErr>,
    /// Objects that are dropped when the state is unlocked, because dropping may run Python
    pub(super) dropped: Vec<Py<PyAny>>,
}

impl Outside {
    pub(super) fn new(
        py: Python<'_>,
        address: String,
        data: Py<PyAny>,
        threads: Py<PyDict>,
        callables: Callables,
        log_max: Option<usize>,
        stimuli_max: Option<usize>,
    ) -> Self {
        let is_plain = data.bind(py).is_exact_instance_of::<PyDict>();
        Self {
            is_plain,
            gone: Vec::new(),
            dead: Vec::new(),
            is_given: false,
            extras: Extras::default(),
            ids: PyDict::new(py).unbind(),
            address,
            peers: Vec::new(),
            peer_ids: HashMap::new(),
            prefixes: Vec::new(),
            prefix_ids: HashMap::new(),
            data,
            threads,
            callables: Arc::new(callables),
            log: Ring::new(log_max),
            stimuli: Ring::new(stimuli_max),
            told: Vec::new(),
            flights: HashMap::new(),
            payloads: Vec::new(),
            stored: Vec::new(),
            stimulus_id: py.None(),
            time_s: 0.0,
            monotonic_s: None,
            raised: None,
            dropped: Vec::new(),
        }
    }

    /// The key of a task
    pub(super) fn key(&self, py: Python<'_>, task: TaskId) -> Py<PyAny> {
        match &self.extras.of(task).key {
            Some(key) => key.clone_ref(py),
            None => py.None(),
        }
    }

    /// The task of a key
    pub(super) fn known(&self, key: &Bound<'_, PyAny>) -> PyResult<Option<TaskId>> {
        let found = self.ids.bind(key.py()).get_item(key)?;
        found
            .map(|number| Ok(TaskId::at(number.extract()?)))
            .transpose()
    }

    /// The task of a key, which is made if there is none
    pub(super) fn ensure(
        &mut self,
        core: &mut WorkerCore,
        key: &Bound<'_, PyAny>,
    ) -> PyResult<TaskId> {
        if let Some(task) = self.known(key)? {
            return Ok(task);
        }
        let prefix = self.prefix(key)?;
        let task = core.create(prefix);
        self.ids.bind(key.py()).set_item(key, task.index())?;
        self.extras.begin(task, key.clone().unbind());
        Ok(task)
    }

    fn prefix(&mut self, key: &Bound<'_, PyAny>) -> PyResult<PrefixId> {
        let py = key.py();
        let prefix = self.callables.key_split.bind(py).call1((key,))?;
        self.prefix_named(&prefix)
    }

    pub(super) fn prefix_named(&mut self, prefix: &Bound<'_, PyAny>) -> PyResult<PrefixId> {
        let text: String = prefix.extract()?;
        if let Some(&known) = self.prefix_ids.get(&text) {
            return Ok(known);
        }
        self.prefixes.push(prefix.clone().unbind());
        let prefix = PrefixId::at(self.prefixes.len() - 1);
        self.prefix_ids.insert(text, prefix);
        Ok(prefix)
    }

    pub(super) fn peer(
        &mut self,
        core: &mut WorkerCore,
        address: &Bound<'_, PyAny>,
    ) -> PyResult<PeerId> {
        let text: String = address.extract()?;
        if let Some(&known) = self.peer_ids.get(&text) {
            return Ok(known);
        }
        let py = address.py();
        let is_remote = self.callables.is_remote.bind(py).call1((address,))?;
        let peer = core.meet(is_remote.is_truthy()?);
        self.peers.push(address.clone().unbind());
        self.peer_ids.insert(text, peer);
        Ok(peer)
    }

    /// Peers of a collection of addresses, without this worker, as a set of Python's lists them
    pub(super) fn holders(
        &mut self,
        core: &mut WorkerCore,
        addresses: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<PeerId>> {
        let mut found = Vec::new();
        if addresses.len()? == 1 {
            for address in addresses.try_iter()? {
                self.add_holder(core, &address?, &mut found)?;
            }
            return Ok(found);
        }
        let listed: Vec<Bound<'_, PyAny>> = addresses.try_iter()?.collect::<PyResult<_>>()?;
        for address in PySet::new(addresses.py(), listed)? {
            self.add_holder(core, &address, &mut found)?;
        }
        Ok(found)
    }

    fn add_holder(
        &mut self,
        core: &mut WorkerCore,
        address: &Bound<'_, PyAny>,
        found: &mut Vec<PeerId>,
    ) -> PyResult<()> {
        let text: &Bound<'_, pyo3::types::PyString> = address.cast()?;
        if text.to_cow()? != self.address.as_str() {
            found.push(self.peer(core, address)?);
        }
        Ok(())
    }

    /// Keys that are on their way from an address, as a set of Python's lists them
    pub(super) fn flight<'py>(
        &self,
        py: Python<'py>,
        address: &Bound<'py, PyAny>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let text: String = address.extract()?;
        let peer = self.peer_ids.get(&text);
        match peer.and_then(|peer| self.flights.get(peer)) {
            Some(keys) => keys.bind(py).try_iter()?.collect(),
            None => Ok(Vec::new()),
        }
    }

    /// The tasks that were on their way from a peer, as a set of Python's lists them
    pub(super) fn landed(&mut self, py: Python<'_>, peer: PeerId) -> PyResult<Vec<TaskId>> {
        let Some(keys) = self.flights.remove(&peer) else {
            return Ok(Vec::new());
        };
        let mut tasks = Vec::new();
        for key in keys.bind(py).try_iter()? {
            tasks.push(self.required(&key?)?);
        }
        self.dropped.push(keys);
        Ok(tasks)
    }

    /// The task of a key
    ///
    /// # Errors
    ///
    /// An error that says which key no task has.
    pub(super) fn required(&self, key: &Bound<'_, PyAny>) -> PyResult<TaskId> {
        let found = self.known(key)?;
        found.ok_or_else(|| PyRuntimeError::new_err(("no-task", key.clone().unbind())))
    }

    /// Keeps what an event carries
    pub(super) fn payload(&mut self, what: Py<PyAny>) -> PayloadId {
        self.carried(Payload {
            what,
            kept: None,
            nbytes: None,
        })
    }

    /// Keeps what an event carries, of which something is known
    pub(super) fn carried(&mut self, payload: Payload) -> PayloadId {
        self.payloads.push(payload);
        PayloadId::at(self.payloads.len() - 1)
    }

    /// Writes a line that a state machine writes of its own
    pub(super) fn write(&mut self, py: Python<'_>, what: What) {
        let entry = Entry {
            what,
            stimulus_id: self.stimulus_id.clone_ref(py),
            time_s: self.time_s,
        };
        self.log.push(entry);
    }

    pub(super) fn note(&mut self, stimulus: Stimulus) {
        self.stimuli.push(stimulus);
    }
}

/// The outside as the state machine has it during an event
pub(super) struct Hosted<'a, 'py> {
    pub(super) py: Python<'py>,
    pub(super) outside: &'a mut Outside,
}

impl Hosted<'_, '_> {
    fn raised<T>(&mut self, result: PyResult<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.outside.raised.get_or_insert(error);
                None
            }
        }
    }

    fn key(&self, task: TaskId) -> Py<PyAny> {
        self.outside.key(self.py, task)
    }
}

/// Stores a value, and returns the result; no thread has the state locked, except for a dict's own
pub(super) fn put(
    data: &Bound<'_, PyAny>,
    callables: &Callables,
    key: &Bound<'_, PyAny>,
    value: &Bound<'_, PyAny>,
) -> PyResult<Kept> {
    let py = data.py();
    let now_s = || -> PyResult<f64> { callables.time.bind(py).call0()?.extract() };
    let start_s = now_s()?;
    match data.set_item(key, value) {
        Ok(()) => Ok(Kept::Stored(start_s, now_s()?)),
        Err(error) => {
            let made = callables.error_of.bind(py).call1((error.value(py),))?;
            Ok(Kept::Refused(made.unbind()))
        }
    }
}

impl Host for Hosted<'_, '_> {
    fn monotonic_s(&mut self) -> f64 {
        if let Some(now_s) = self.outside.monotonic_s {
            return now_s;
        }
        let now = self.outside.callables.monotonic.bind(self.py).call0();
        let now = now.and_then(|now| now.extract());
        let now_s = self.raised(now).unwrap_or_default();
        self.outside.monotonic_s = Some(now_s);
        now_s
    }

    fn random(&mut self) -> f64 {
        let number = self.outside.callables.random.bind(self.py).call0();
        let number = number.and_then(|number| number.extract());
        self.raised(number).unwrap_or_default()
    }

    fn store(&mut self, task: TaskId, value: PayloadId) -> Stored {
        let extra = self.outside.extras.of_mut(task);
        extra.is_purged = false;
        // The value that it had before is replaced, not released.
        self.outside.gone.retain(|&(gone, _)| gone != task);
        let kept = match self.outside.payloads[value.index()].kept.take() {
            Some(kept) => Ok(kept),
            None => self.put_now(task, value),
        };
        match self.raised(kept) {
            Some(Kept::Stored(start_s, stop_s)) => {
                let kind = self.outside.payloads[value.index()]
                    .what
                    .bind(self.py)
                    .get_type();
                let extra = self.outside.extras.of_mut(task);
                if stop_s - start_s > SLOW_S {
                    let times = Times::Spent("disk-write", start_s, stop_s);
                    extra.startstops.push(times);
                }
                extra.kind = Some(kind.into_any().unbind());
                Stored::Kept
            }
            Some(Kept::Refused(error)) => Stored::Refused(self.outside.payload(error)),
            None => Stored::Kept,
        }
    }

    fn size_of(&mut self, value: PayloadId) -> i64 {
        let payload = &self.outside.payloads[value.index()];
        if let Some(nbytes) = payload.nbytes {
            return nbytes;
        }
        let value = payload.what.bind(self.py);
        let size = self.outside.callables.sizeof.bind(self.py).call1((value,));
        let size = size.and_then(|size| size.extract());
        self.raised(size).unwrap_or_default()
    }

    fn purge(&mut self, task: TaskId) {
        let extra = self.outside.extras.of_mut(task);
        let was_purged = std::mem::replace(&mut extra.is_purged, true);
        if let Some(error) = extra.error.take() {
            let text = error.bind(self.py).get_item(EXCEPTION_TEXT);
            let text = text.and_then(|text| text_alone(self.py, text));
            let left = self.raised(text);
            self.outside.extras.of_mut(task).error = left;
        }
        if was_purged {
            return;
        }
        let key = self.key(task);
        let taken = self.take_thread(key.bind(self.py));
        self.raised(taken);
        self.outside.gone.push((task, key));
    }

    fn forget(&mut self, task: TaskId) {
        let key = self.key(task);
        let forgotten = self.outside.ids.bind(self.py).del_item(key);
        self.raised(forgotten);
        let view = self.outside.extras.of_mut(task).view.take();
        self.outside.dead.extend(view);
    }

    fn fail(&mut self, task: TaskId, error: PayloadId) {
        let error = self.outside.payloads[error.index()].what.bind(self.py);
        let error = error.cast::<PyTuple>().map(|error| error.clone().unbind());
        if let Some(error) = self.raised(error.map_err(PyErr::from)) {
            self.outside.extras.of_mut(task).error = Some(error);
        }
    }

    fn log(&mut self, line: Line<'_>) {
        let what = match line {
            Line::ComputeTask(task, state) => What::TaskWas(self.key(task), "compute-task", state),
            Line::EnsureTaskExists(task, state) => {
                What::TaskWas(self.key(task), "ensure-task-exists", state)
            }
            Line::ReceiveFromScatter(task, state) => {
                What::TaskWas(self.key(task), "receive-from-scatter", state)
            }
            Line::PutInMemory(task) => What::Task(self.key(task), "put-in-memory"),
            Line::MissingDep(task) => What::Task(self.key(task), "missing-dep"),
            Line::RemoveReplica(task) => What::Task(self.key(task), "remove-replica"),
            Line::CancelCompute(task) => What::Task(self.key(task), "cancel-compute"),
            Line::Transition {
                task,
                start,
                finish,
                end,
                found,
            } => What::Transition {
                key: self.key(task),
                start,
                finish,
                end,
                found: found
                    .iter()
                    .map(|&(task, state)| (self.key(task), state))
                    .collect(),
            },
        };
        self.outside.write(self.py, what);
    }

    fn tell(&mut self, instruction: Instruction<'_>) {
        let told = match instruction {
            Instruction::Execute(task) => {
                let span_id = &self.outside.extras.of(task).span_id;
                let span_id = span_id.as_ref().map(|span_id| span_id.clone_ref(self.py));
                Told::Execute(self.key(task), span_id)
            }
            Instruction::AddKeys(task) => Told::Key("add-keys", self.key(task)),
            Instruction::ReleaseWorkerData(task) => {
                Told::Key("release-worker-data", self.key(task))
            }
            Instruction::Reschedule(task) => Told::Key("reschedule", self.key(task)),
            Instruction::TaskFinished(task, run_id, nbytes) => {
                let extra = self.outside.extras.of(task);
                let kind = extra.kind.as_ref().map(|kind| kind.clone_ref(self.py));
                let times = extra.times(self.py);
                Told::Finished(self.key(task), run_id, nbytes, kind, times)
            }
            Instruction::TaskErred(task, run_id) => {
                let extra = self.outside.extras.of(task);
                let error = match &extra.error {
                    Some(error) => error.clone_ref(self.py).into_any(),
                    None => self.py.None(),
                };
                Told::Erred(self.key(task), run_id, error, extra.times(self.py))
            }
            Instruction::LongRunning(task, run_id, seconds) => {
                let seconds = seconds.map(|seconds| {
                    self.outside.payloads[seconds.index()]
                        .what
                        .clone_ref(self.py)
                });
                Told::LongRunning(self.key(task), run_id, seconds)
            }
            Instruction::RetryBusyWorkerLater(peer) => {
                let peer = self.outside.peers[peer.index()].clone_ref(self.py);
                Told::Of("retry-busy-worker-later", peer)
            }
            Instruction::RequestRefreshWhoHas(tasks) => {
                let keys = tasks.iter().map(|&task| self.key(task));
                let keys = PyList::new(self.py, keys.collect::<Vec<_>>());
                let Some(keys) = self.raised(keys) else {
                    return;
                };
                Told::Of("request-refresh-who-has", keys.into_any().unbind())
            }
        };
        self.outside.told.push(told);
    }

    fn gather(&mut self, peer: PeerId, tasks: &[TaskId], total_bytes: i64) {
        let gathered = self.gather_keys(peer, tasks, total_bytes);
        self.raised(gathered);
    }
}

impl Hosted<'_, '_> {
    /// Stores a value while the state is locked: in a dict, or where it was not stored before
    fn put_now(&mut self, task: TaskId, value: PayloadId) -> PyResult<Kept> {
        let key = self.key(task);
        let data = self.outside.data.bind(self.py);
        let value = self.outside.payloads[value.index()].what.bind(self.py);
        put(data, &self.outside.callables, key.bind(self.py), value)
    }

    fn take_thread(&self, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let threads = self.outside.threads.bind(self.py);
        if threads.contains(key)? {
            threads.del_item(key)?;
        }
        Ok(())
    }

    fn gather_keys(&mut self, peer: PeerId, tasks: &[TaskId], total_bytes: i64) -> PyResult<()> {
        let py = self.py;
        let keys = PySet::empty(py)?;
        for &task in tasks {
            keys.add(self.key(task))?;
        }
        let keys = keys.into_any().unbind();
        self.outside.flights.insert(peer, keys.clone_ref(py));
        let peer = self.outside.peers[peer.index()].clone_ref(py);
        let what = What::Gather(peer.clone_ref(py), keys.clone_ref(py));
        self.outside.write(py, what);
        let told = Told::Gather(peer, keys, total_bytes);
        self.outside.told.push(told);
        Ok(())
    }
}

/// Returns the part of an error that upstream keeps of a purged task: exception, traceback and
/// texts
fn text_alone(py: Python<'_>, text: Bound<'_, PyAny>) -> PyResult<Py<PyTuple>> {
    let left = (py.None(), py.None(), text, "").into_pyobject(py)?;
    Ok(left.unbind())
}

/// Where an error has the text of its exception
const EXCEPTION_TEXT: usize = 2;

/// A value that took longer to store has gone to disk, or has sent others there: upstream's
const SLOW_S: f64 = 0.005;
