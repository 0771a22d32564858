//! The state of a scheduler as Python says it, in the form of `SchedulerCore.dump`.

use std::sync::Arc;

use backhaul_dask::scheduler::{
    Amounts, ClusterView, CollectionView, ErredTask, GroupView, Inherited, Key, MoveView, Payload,
    PrefixView, Priority, Spec, StealingView, TaskError, TaskState, TaskView, WorkerView,
};
use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::events::worker_status;
use super::graph::{amounts, requirements};
use super::key;

/// Parts of a dict by name
struct Said<'a, 'py>(&'a Bound<'py, PyDict>);

impl<'py> Said<'_, 'py> {
    fn part(&self, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let part = self.0.get_item(name)?;
        part.ok_or_else(|| PyKeyError::new_err(name.to_owned()))
    }

    fn get<T>(&self, name: &str) -> PyResult<T>
    where
        T: FromPyObjectOwned<'py>,
    {
        let part = self.part(name)?;
        part.extract().map_err(Into::into)
    }

    fn texts(&self, name: &str) -> PyResult<Vec<Arc<str>>> {
        let texts: Vec<String> = self.get(name)?;
        Ok(texts.into_iter().map(Arc::from).collect())
    }

    fn keys(&self, name: &str) -> PyResult<Vec<Key>> {
        let texts: Vec<String> = self.get(name)?;
        Ok(super::keys(&texts))
    }

    fn counts(&self, name: &str) -> PyResult<Vec<(Arc<str>, i64)>> {
        let counts: Vec<(String, i64)> = self.get(name)?;
        let counts = counts.into_iter();
        Ok(counts
            .map(|(name, count)| (Arc::from(name), count))
            .collect())
    }

    /// A dict from texts, in its order
    fn entries<T>(&self, name: &str) -> PyResult<Vec<(String, T)>>
    where
        T: FromPyObjectOwned<'py>,
    {
        let part = self.part(name)?;
        let dict = part.cast::<PyDict>()?;
        dict.iter()
            .map(|(name, value)| Ok((name.extract()?, value.extract().map_err(Into::into)?)))
            .collect()
    }

    fn amounts(&self, name: &str) -> PyResult<Amounts> {
        amounts(&self.part(name)?)
    }
}

/// Reads the whole state; `streams` are the clients that have a stream
pub(super) fn inherited(said: &Bound<'_, PyDict>, streams: Vec<String>) -> PyResult<Inherited> {
    let groups = Said(said).part("groups")?;
    let groups = groups.try_iter()?;
    let tasks = Said(said).part("tasks")?;
    let tasks = tasks.try_iter()?;
    Ok(Inherited {
        cluster: cluster(said)?,
        workers: workers(said)?,
        prefixes: prefixes(said)?,
        groups: groups
            .map(|one| group(one?.cast::<PyDict>()?))
            .collect::<PyResult<_>>()?,
        tasks: tasks
            .map(|one| task(one?.cast::<PyDict>()?))
            .collect::<PyResult<_>>()?,
        streams: streams.into_iter().map(Arc::from).collect(),
    })
}

/// The cluster: all that belongs to no single task or worker
fn cluster(said: &Bound<'_, PyDict>) -> PyResult<ClusterView> {
    let one = Said(said);
    let clients = one.entries::<Vec<String>>("clients")?.into_iter();
    let hosts = one.entries::<Vec<String>>("hosts")?.into_iter();
    let resources = one.entries::<Bound<'_, PyAny>>("resources")?.into_iter();
    let erred: Vec<(String, f64, Vec<String>, String, String)> = one.get("erred_tasks")?;
    let unrunnable = one.entries::<f64>("unrunnable")?.into_iter();
    Ok(ClusterView {
        running: one.texts("running")?,
        idle: one.texts("idle")?,
        idle_task_count: one.texts("idle_task_count")?,
        saturated: one.texts("saturated")?,
        queued: one.keys("queued")?,
        queue_entries: queue_entries(&one)?,
        queue_added: one.get("queue_added")?,
        unrunnable: unrunnable
            .map(|(text, since)| (key(&text), since))
            .collect(),
        replicated_tasks: one.keys("replicated_tasks")?,
        erred_tasks: erred
            .into_iter()
            .map(|(text, at_s, erred_on, exception, traceback)| ErredTask {
                key: key(&text),
                at_s,
                erred_on: erred_on.into_iter().map(Arc::from).collect(),
                exception_text: Some(Arc::from(exception)),
                traceback_text: Some(Arc::from(traceback)),
            })
            .collect(),
        clients: clients
            .map(|(name, wants)| (Arc::from(name), super::keys(&wants)))
            .collect(),
        resources: resources
            .map(|(name, suppliers)| Ok((Arc::from(name), amounts(&suppliers)?)))
            .collect::<PyResult<_>>()?,
        hosts: hosts
            .map(|(host, addresses)| {
                let addresses = addresses.into_iter().map(Arc::from);
                (Arc::from(host), addresses.collect())
            })
            .collect(),
        task_prefix_count: one.counts("task_prefix_count")?,
        network_occ: one.get("network_occ")?,
        total_occupancy: 0.0,
        total_nthreads: one.get("total_nthreads")?,
        bandwidth: one.get("bandwidth")?,
        n_tasks: one.get("n_tasks")?,
        transition_counter: one.get("transition_counter")?,
        generation: one.get("generation")?,
        last_graph: one.get("last_graph")?,
        next_run_id: one.get("next_run_id")?,
        no_workers_since: one.get("no_workers_since")?,
    })
}

fn workers(said: &Bound<'_, PyDict>) -> PyResult<Vec<WorkerView>> {
    let workers = Said(said).entries::<Bound<'_, PyDict>>("workers")?;
    let workers = workers.iter();
    workers
        .map(|(address, said)| worker(address, said))
        .collect()
}

fn worker(address: &str, said: &Bound<'_, PyDict>) -> PyResult<WorkerView> {
    let one = Said(said);
    let needs = one.entries::<u32>("needs_what")?.into_iter();
    let executing = one.entries::<f64>("executing")?.into_iter();
    Ok(WorkerView {
        address: Arc::from(address),
        name: Arc::from(one.get::<String>("name")?),
        host: Arc::from(one.get::<String>("host")?),
        status: worker_status(&one.get::<String>("status")?)?,
        nthreads: one.get("nthreads")?,
        memory_limit: one.get("memory_limit")?,
        nbytes: one.get("nbytes")?,
        occupancy: 0.0,
        has_what: one.keys("has_what")?,
        processing: one.keys("processing")?,
        long_running: one.keys("long_running")?,
        actors: one.keys("actors")?,
        task_prefix_count: one.counts("task_prefix_count")?,
        needs_what: needs.map(|(text, count)| (key(&text), count)).collect(),
        network_occ: one.get("network_occ")?,
        executing: executing.map(|(text, s)| (key(&text), s)).collect(),
        resources: one.amounts("resources")?,
        used_resources: one.amounts("used_resources")?,
    })
}

fn prefixes(said: &Bound<'_, PyDict>) -> PyResult<Vec<PrefixView>> {
    let prefixes = Said(said).entries::<Bound<'_, PyDict>>("task_prefixes")?;
    let prefixes = prefixes.iter();
    prefixes.map(|(name, said)| prefix(name, said)).collect()
}

/// Entries of the heap of the queue: priority if any, number, key
fn queue_entries(one: &Said<'_, '_>) -> PyResult<Vec<(Option<Priority>, u64, Key)>> {
    let entries: Vec<(Option<[f64; 3]>, u64, String)> = one.get("queue_entries")?;
    let entries = entries.into_iter();
    Ok(entries
        .map(|(priority, order, text)| (priority.map(Priority), order, key(&text)))
        .collect())
}

fn collection(name: &str, one: &Said<'_, '_>) -> PyResult<CollectionView> {
    let named = |entries: Vec<(String, i64)>| {
        let entries = entries.into_iter();
        entries
            .map(|(name, count)| (Arc::from(name), count))
            .collect()
    };
    Ok(CollectionView {
        name: Arc::from(name),
        states: by_state(&one.part("states")?)?,
        len: one.get("len")?,
        nbytes_total: one.get("nbytes_total")?,
        duration_us: one.get("duration_us")?,
        all_durations_us: named(one.entries("all_durations_us")?),
        types: named(one.entries("types")?),
    })
}

fn group(said: &Bound<'_, PyDict>) -> PyResult<GroupView> {
    let one = Said(said);
    let last_worker: Option<String> = one.get("last_worker")?;
    Ok(GroupView {
        common: collection(&one.get::<String>("name")?, &one)?,
        serial: one.get("serial")?,
        gone: one.get("gone")?,
        prefix: Arc::from(one.get::<String>("prefix")?),
        dependency_serials: one.get("dependency_serials")?,
        dependencies: Vec::new(),
        start: one.get("start")?,
        stop: one.get("stop")?,
        last_worker: last_worker.map(|address| Some(Arc::from(address))),
        last_worker_tasks_left: one.get("last_worker_tasks_left")?,
    })
}

/// A task: what it has beyond key, state and group is named only if there is any
fn task(said: &Bound<'_, PyDict>) -> PyResult<TaskView> {
    let one = Said(said);
    let state: String = one.get("state")?;
    let named = TaskState::ALL.into_iter().find(|one| one.name() == state);
    let state = named.ok_or_else(|| PyValueError::new_err(format!("no state: {state:?}")))?;
    let group = Arc::from(one.get::<String>("group")?);
    let text: String = one.get("key")?;
    let mut view = TaskView::new(key(&text), state, group, Arc::from(""));
    for (name, value) in said {
        let name: String = name.extract()?;
        match name.as_str() {
            "key" | "state" | "group" => {}
            "run_spec" => {
                let payload: Vec<u8> = value.extract()?;
                view.run_spec = Some(Spec::from(&*payload));
            }
            "data_producer" => view.data_producer = value.extract()?,
            "priority" => view.priority = Some(Priority(value.extract()?)),
            "dependencies" => view.dependencies = keys_in(&value)?,
            "dependents" => view.dependents = keys_in(&value)?,
            "waiting_on" => view.waiting_on = Some(keys_in(&value)?),
            "waiters" => view.waiters = Some(keys_in(&value)?),
            "who_wants" => view.who_wants = Some(texts_in(&value)?),
            "who_has" => view.who_has = texts_in(&value)?,
            "processing_on" => view.processing_on = Some(text_in(&value)?),
            "nbytes" => view.nbytes = Some(value.extract()?),
            "type" => view.type_name = Some(text_in(&value)?),
            "retries" => view.retries = value.extract()?,
            "suspicious" => view.suspicious = value.extract()?,
            "run_id" => view.run_id = Some(value.extract()?),
            "queueable" => view.queueable = value.extract()?,
            "has_lost_dependencies" => view.has_lost_dependencies = value.extract()?,
            "actor" => view.actor = value.extract()?,
            "exception" => view.exception = Some(TaskError::Raised(payload_in(&value)?)),
            "traceback" => view.traceback = Some(payload_in(&value)?),
            "exception_text" => view.exception_text = Some(text_in(&value)?),
            "traceback_text" => view.traceback_text = Some(text_in(&value)?),
            "exception_blame" => view.exception_blame = Some(key(&value.extract::<String>()?)),
            // It has no serial here: a new one is made.
            "blame_is_forgotten" => view.forgotten_blame = value.extract::<bool>()?.then_some(0),
            "erred_on" => view.erred_on = Some(texts_in(&value)?),
            "requirements" => view.requirements = Some(requirements(value.cast::<PyDict>()?)?),
            _ => {
                return Err(PyValueError::new_err(format!(
                    "no part of a task: {name:?}"
                )));
            }
        }
    }
    Ok(view)
}

fn keys_in(value: &Bound<'_, PyAny>) -> PyResult<Vec<Key>> {
    Ok(super::keys(&value.extract::<Vec<String>>()?))
}

fn text_in(value: &Bound<'_, PyAny>) -> PyResult<Arc<str>> {
    Ok(Arc::from(value.extract::<String>()?))
}

fn texts_in(value: &Bound<'_, PyAny>) -> PyResult<Vec<Arc<str>>> {
    let texts: Vec<String> = value.extract()?;
    Ok(texts.into_iter().map(Arc::from).collect())
}

fn payload_in(value: &Bound<'_, PyAny>) -> PyResult<Payload> {
    Ok(Payload::from(value.extract::<Vec<u8>>()?))
}

/// Tasks that workers may steal, in the form of `SchedulerCore.stealing`
pub(super) fn stealing(said: &Bound<'_, PyDict>) -> PyResult<StealingView> {
    let one = Said(said);
    let stealable: Vec<(String, usize, Vec<String>)> = one.get("stealable")?;
    let in_flight: Vec<(String, String, String, f64, f64, String)> = one.get("in_flight")?;
    let occupancy: Vec<(String, f64)> = one.get("occupancy")?;
    let unknown: Vec<(String, Vec<String>)> = one.get("unknown")?;
    Ok(StealingView {
        stealable: stealable
            .into_iter()
            .map(|(worker, level, texts)| (Arc::from(worker), level, super::keys(&texts)))
            .collect(),
        in_flight: in_flight
            .into_iter()
            .map(
                |(text, victim, thief, victim_s, thief_s, stimulus)| MoveView {
                    key: key(&text),
                    victim: Arc::from(victim),
                    thief: Arc::from(thief),
                    victim_s,
                    thief_s,
                    stimulus: Arc::from(stimulus),
                },
            )
            .collect(),
        occupancy_s: occupancy
            .into_iter()
            .map(|(worker, moved_s)| (Arc::from(worker), moved_s))
            .collect(),
        tasks: one.counts("tasks")?,
        unknown: unknown
            .into_iter()
            .map(|(prefix, texts)| (Arc::from(prefix), super::keys(&texts)))
            .collect(),
        requests: one.get("requests")?,
    })
}

fn prefix(name: &str, said: &Bound<'_, PyDict>) -> PyResult<PrefixView> {
    let one = Said(said);
    let state_counts = one.part("state_counts")?;
    Ok(PrefixView {
        common: collection(name, &one)?,
        state_counts: by_state(&state_counts)?,
        duration_average: one.get("duration_average")?,
        max_exec_time: one.get("max_exec_time")?,
        suspicious: one.get("suspicious")?,
        groups: one.texts("groups")?,
    })
}

fn by_state<'py, T>(said: &Bound<'py, PyAny>) -> PyResult<[T; 8]>
where
    T: Copy + Default + FromPyObjectOwned<'py>,
{
    let dict = said.cast::<PyDict>()?;
    let mut counts = [T::default(); 8];
    for (count, state) in counts.iter_mut().zip(TaskState::ALL) {
        if let Some(one) = dict.get_item(state.name())? {
            *count = one.extract().map_err(Into::into)?;
        }
    }
    Ok(counts)
}
