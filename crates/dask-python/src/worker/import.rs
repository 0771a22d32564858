//! A state that Python has kept until now.

use backhaul_dask::worker::{
    Counters, InheritedHeap, InheritedTask, PeerId, Priority, State, TaskCounts, TaskId,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use super::events::{given, item};
use super::extras::{Extra, Times};
use super::outside::Outside;
use super::{Core, Inner};

/// A prefix and a state, the tasks of both, and their seconds, if there are any
type Counted<'py> = ((Bound<'py, PyAny>, String), i64, Option<f64>);

#[pymethods]
impl Core {
    #[doc = stub_doc!("WorkerCore.put_in")]
    fn put_in(&self, py: Python<'_>, state: &Bound<'_, PyDict>) -> PyResult<()> {
        let mut inner = self.inner()?;
        let tasks = item(state, "tasks")?;
        let tasks: Vec<Bound<'_, PyDict>> = tasks.extract()?;
        for task in &tasks {
            inner.inherit(task)?;
        }
        for task in &tasks {
            inner.link(task)?;
        }
        let Inner { core, outside } = &mut *inner;
        core.inherit_ready(heap(outside, &item(state, "ready")?)?);
        for (peer, places) in item(state, "data_needed")?.cast::<PyDict>()?.iter() {
            let peer = outside.peer(core, &peer)?;
            core.inherit_needed(peer, heap(outside, &places)?);
        }
        for (peer, keys) in item(state, "in_flight_workers")?.cast::<PyDict>()?.iter() {
            let peer = outside.peer(core, &peer)?;
            // All of them are to be there.
            tasks_of(outside, &keys)?;
            core.inherit_flight(peer);
            outside.flights.insert(peer, keys.unbind());
        }
        let missing = tasks_of(outside, &item(state, "missing")?)?;
        let mut busy: Vec<PeerId> = Vec::new();
        for peer in item(state, "busy_workers")?.try_iter()? {
            busy.push(outside.peer(core, &peer?)?);
        }
        let running = item(state, "running")?.extract()?;
        let counters = counters(&item(state, "counters")?)?;
        let counts = counts(outside, &item(state, "counts")?)?;
        core.inherit_rest(running, counters, counts, missing, busy);
        for line in item(state, "log")?.try_iter()? {
            let entry = super::logs::Entry {
                what: super::logs::What::Made(line?.unbind()),
                stimulus_id: py.None(),
                time_s: 0.0,
            };
            outside.log.push(entry);
        }
        for event in item(state, "stimulus_log")?.try_iter()? {
            outside.note(super::logs::Stimulus::Event(event?.unbind()));
        }
        Ok(())
    }
}

impl Inner {
    fn inherit(&mut self, task: &Bound<'_, PyDict>) -> PyResult<()> {
        let Self { core, outside } = self;
        let py = task.py();
        let key = item(task, "key")?;
        let flag = |name: &str| -> PyResult<bool> { item(task, name)?.extract() };
        let state_named = |name: &str| -> PyResult<Option<State>> {
            let word: Option<String> = item(task, name)?.extract()?;
            word.map(|word| state(&word)).transpose()
        };
        let priority: Option<Vec<f64>> = item(task, "priority")?.extract()?;
        let coming_from = match given(task, "coming_from")? {
            Some(peer) => Some(outside.peer(core, peer.bind(py))?),
            None => None,
        };
        let mut who_has = Vec::new();
        for peer in item(task, "who_has")?.try_iter()? {
            who_has.push(outside.peer(core, &peer?)?);
        }
        let inherited = InheritedTask {
            state: state(&item(task, "state")?.extract::<String>()?)?,
            previous: state_named("previous")?,
            next: state_named("next")?,
            done: flag("done")?,
            executes: flag("executes")?,
            runs_long: flag("runs_long")?,
            in_flight: flag("in_flight")?,
            waits: flag("waits")?,
            prefix: outside.prefix_named(&item(task, "prefix")?)?,
            run_id: item(task, "run_id")?.extract()?,
            nbytes: item(task, "nbytes")?.extract()?,
            priority: priority.map(|numbers| Priority::new(&numbers)),
            coming_from,
            who_has,
        };
        let number = core.inherit(inherited);
        outside.ids.bind(py).set_item(&key, number.index())?;
        outside.extras.begin(number, key.unbind());
        let error: Option<Bound<'_, PyTuple>> = item(task, "error")?.extract()?;
        let mut startstops = Vec::new();
        for times in item(task, "startstops")?.try_iter()? {
            startstops.push(Times::Given(times?.unbind()));
        }
        let extra = outside.extras.of_mut(number);
        *extra = Extra {
            key: extra.key.take(),
            run_spec: given(task, "run_spec")?,
            annotations: given(task, "annotations")?,
            span_id: given(task, "span_id")?,
            kind: given(task, "type")?,
            startstops,
            error: error.map(Bound::unbind),
            view: None,
            is_purged: false,
        };
        Ok(())
    }

    fn link(&mut self, task: &Bound<'_, PyDict>) -> PyResult<()> {
        let Self { core, outside } = self;
        let number = outside.required(&item(task, "key")?)?;
        let named = |name: &str| -> PyResult<Vec<TaskId>> { tasks_of(outside, &item(task, name)?) };
        core.link(
            number,
            [
                named("dependencies")?,
                named("dependents")?,
                named("waiting_for_data")?,
                named("waiters")?,
            ],
        );
        Ok(())
    }
}

fn state(word: &str) -> PyResult<State> {
    let found = STATES.iter().find(|state| state.name() == word);
    found
        .copied()
        .ok_or_else(|| PyValueError::new_err(format!("no such state here: {word:?}")))
}

fn tasks_of(outside: &Outside, keys: &Bound<'_, PyAny>) -> PyResult<Vec<TaskId>> {
    keys.try_iter()?
        .map(|key| outside.required(&key?))
        .collect()
}

fn heap(outside: &Outside, given: &Bound<'_, PyAny>) -> PyResult<InheritedHeap> {
    let (listed, added): (Bound<'_, PyList>, u64) = given.extract()?;
    let mut places = Vec::new();
    let mut members = Vec::new();
    for place in listed {
        let (priority, number, key, is_member): (Vec<f64>, u64, Bound<'_, PyAny>, bool) =
            place.extract()?;
        let task = outside.required(&key)?;
        places.push((Priority::new(&priority), number, task));
        if is_member && !members.contains(&task) {
            members.push(task);
        }
    }
    Ok(InheritedHeap {
        places,
        members,
        added,
    })
}

fn counters(given: &Bound<'_, PyAny>) -> PyResult<Counters> {
    let given: &Bound<'_, PyDict> = given.cast()?;
    let number = |name: &str| -> PyResult<i64> { item(given, name)?.extract() };
    Ok(Counters {
        generation: number("generation")?,
        nbytes: number("nbytes")?,
        executed: number("executed_count")?,
        transitions: number("transition_counter")?,
        fetch: number("fetch_count")?,
        incoming_bytes: number("transfer_incoming_bytes")?,
        incoming_total: number("transfer_incoming_count_total")?,
    })
}

fn counts(outside: &mut Outside, given: &Bound<'_, PyAny>) -> PyResult<TaskCounts> {
    let (previous_s, groups): (Option<f64>, Vec<Counted<'_>>) = given.extract()?;
    let mut found = Vec::with_capacity(groups.len());
    for ((prefix, word), tasks, seconds) in groups {
        found.push((
            (outside.prefix_named(&prefix)?, state(&word)?),
            tasks,
            seconds,
        ));
    }
    Ok(TaskCounts::resumed(previous_s, found))
}

const STATES: [State; 15] = [
    State::Released,
    State::Waiting,
    State::Ready,
    State::Constrained,
    State::Executing,
    State::LongRunning,
    State::Memory,
    State::Fetch,
    State::Flight,
    State::Missing,
    State::Cancelled,
    State::Resumed,
    State::Error,
    State::Rescheduled,
    State::Forgotten,
];
