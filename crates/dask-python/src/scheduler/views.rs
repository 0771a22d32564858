//! Attributes by the names that upstream has.

use backhaul_dask::scheduler::{
    ClusterView, CollectionView, GroupView, Key, PrefixView, SchedulerCore, TaskState, TaskView,
    Transition, WorkerStatus, WorkerView,
};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use super::messages::{amounts, payload, priority, spec, task_error, texts};
use super::{text_of, texts_of};

/// All that there is to be said, taken out at one moment
pub(super) struct Snapshot {
    cluster: ClusterView,
    /// None where they were not asked for
    tasks: Option<Vec<(Key, TaskView)>>,
    workers: Vec<WorkerView>,
    departed: Vec<WorkerView>,
    groups: Vec<GroupView>,
    prefixes: Vec<PrefixView>,
}

impl Snapshot {
    pub(super) fn of(core: &SchedulerCore, with_tasks: bool) -> Self {
        let tasks = || {
            let keys = core.keys().into_iter();
            keys.filter_map(|key| Some((key.clone(), core.task_view(key)?)))
                .collect()
        };
        Self {
            cluster: core.cluster_view(),
            tasks: with_tasks.then(tasks),
            workers: core.worker_views(),
            departed: core.departed_worker_views(),
            groups: core.group_views(),
            prefixes: core.prefix_views(),
        }
    }
}

pub(super) fn dump<'py>(py: Python<'py>, snapshot: &Snapshot) -> PyResult<Bound<'py, PyDict>> {
    let dump = cluster(py, &snapshot.cluster)?;
    if let Some(views) = &snapshot.tasks {
        let tasks = PyDict::new(py);
        for (key, view) in views {
            tasks.set_item(text_of(key), task(py, view)?)?;
        }
        dump.set_item("tasks", tasks)?;
    }
    let workers = PyDict::new(py);
    for view in &snapshot.workers {
        workers.set_item(&*view.address, worker(py, view)?)?;
    }
    dump.set_item("workers", workers)?;
    let departed = PyDict::new(py);
    for view in &snapshot.departed {
        departed.set_item(&*view.address, worker(py, view)?)?;
    }
    dump.set_item("departed_workers", departed)?;
    let groups = PyDict::new(py);
    let gone = PyList::empty(py);
    for view in &snapshot.groups {
        let dict = group(py, view)?;
        if view.gone {
            dict.set_item("name", &*view.common.name)?;
            gone.append(dict)?;
        } else {
            groups.set_item(&*view.common.name, dict)?;
        }
    }
    dump.set_item("task_groups", groups)?;
    dump.set_item("gone_groups", gone)?;
    let prefixes = PyDict::new(py);
    for view in &snapshot.prefixes {
        prefixes.set_item(&*view.common.name, prefix(py, view)?)?;
    }
    dump.set_item("task_prefixes", prefixes)?;
    Ok(dump)
}

fn cluster<'py>(py: Python<'py>, view: &ClusterView) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("running", texts(&view.running))?;
    dict.set_item("idle", texts(&view.idle))?;
    dict.set_item("idle_task_count", texts(&view.idle_task_count))?;
    dict.set_item("saturated", texts(&view.saturated))?;
    dict.set_item("queued", texts_of(&view.queued))?;
    let entries = view.queue_entries.iter();
    let entries =
        entries.map(|(one, order, key)| (one.as_ref().map(priority), *order, text_of(key)));
    dict.set_item("queue_entries", entries.collect::<Vec<_>>())?;
    dict.set_item("queue_added", view.queue_added)?;
    let unrunnable = PyDict::new(py);
    for (key, since) in &view.unrunnable {
        unrunnable.set_item(text_of(key), since)?;
    }
    dict.set_item("unrunnable", unrunnable)?;
    dict.set_item("replicated_tasks", texts_of(&view.replicated_tasks))?;
    let erred = view.erred_tasks.iter();
    let erred = erred.map(|one| {
        (
            text_of(&one.key),
            one.at_s,
            texts(&one.erred_on),
            one.exception_text.as_deref().unwrap_or_default(),
            one.traceback_text.as_deref().unwrap_or_default(),
        )
    });
    dict.set_item("erred_tasks", erred.collect::<Vec<_>>())?;
    let clients = PyDict::new(py);
    for (name, wants) in &view.clients {
        clients.set_item(&**name, texts_of(wants))?;
    }
    dict.set_item("clients", clients)?;
    let resources = PyDict::new(py);
    for (name, suppliers) in &view.resources {
        resources.set_item(&**name, amounts(py, Some(suppliers))?)?;
    }
    dict.set_item("resources", resources)?;
    let hosts = PyDict::new(py);
    for (host, addresses) in &view.hosts {
        hosts.set_item(&**host, texts(addresses))?;
    }
    dict.set_item("hosts", hosts)?;
    let counts = view
        .task_prefix_count
        .iter()
        .map(|(name, count)| (&**name, *count));
    dict.set_item("task_prefix_count", counts.collect::<Vec<_>>())?;
    dict.set_item("network_occ", view.network_occ)?;
    dict.set_item("total_occupancy", view.total_occupancy)?;
    dict.set_item("total_nthreads", view.total_nthreads)?;
    dict.set_item("bandwidth", view.bandwidth)?;
    dict.set_item("n_tasks", view.n_tasks)?;
    dict.set_item("transition_counter", view.transition_counter)?;
    dict.set_item("generation", view.generation)?;
    dict.set_item("last_graph", view.last_graph)?;
    dict.set_item("next_run_id", view.next_run_id)?;
    dict.set_item("no_workers_since", view.no_workers_since)?;
    Ok(dict)
}

pub(super) fn task<'py>(py: Python<'py>, view: &TaskView) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("state", view.state.name())?;
    dict.set_item("run_spec", spec(py, view.run_spec.as_ref(), &view.key))?;
    dict.set_item("priority", view.priority.as_ref().map(priority))?;
    dict.set_item("dependencies", texts_of(&view.dependencies))?;
    dict.set_item("dependents", texts_of(&view.dependents))?;
    dict.set_item("waiting_on", view.waiting_on.as_deref().map(texts_of))?;
    dict.set_item("waiters", view.waiters.as_deref().map(texts_of))?;
    dict.set_item("who_wants", view.who_wants.as_deref().map(texts))?;
    dict.set_item("who_has", texts(&view.who_has))?;
    dict.set_item("processing_on", view.processing_on.as_deref())?;
    dict.set_item("nbytes", view.nbytes.map_or(-1, |nbytes| nbytes as i64))?;
    dict.set_item("type", view.type_name.as_deref())?;
    dict.set_item("retries", view.retries)?;
    dict.set_item("suspicious", view.suspicious)?;
    dict.set_item("run_id", view.run_id)?;
    dict.set_item("queueable", view.queueable)?;
    dict.set_item("has_lost_dependencies", view.has_lost_dependencies)?;
    dict.set_item("actor", view.actor)?;
    dict.set_item("group", &*view.group)?;
    dict.set_item("prefix", &*view.prefix)?;
    let exception = view
        .exception
        .as_ref()
        .map(|one| task_error(py, one))
        .transpose()?;
    dict.set_item("exception", exception)?;
    dict.set_item("traceback", payload(py, view.traceback.as_ref()))?;
    dict.set_item("exception_text", view.exception_text.as_deref())?;
    dict.set_item("traceback_text", view.traceback_text.as_deref())?;
    dict.set_item(
        "exception_blame",
        view.exception_blame.as_deref().map(text_of),
    )?;
    dict.set_item("forgotten_blame", view.forgotten_blame)?;
    dict.set_item("erred_on", view.erred_on.as_deref().map(texts))?;
    let asks = view.requirements.clone().unwrap_or_default();
    dict.set_item("host_restrictions", asks.hosts.as_deref().map(texts))?;
    dict.set_item("worker_restrictions", asks.workers.as_deref().map(texts))?;
    dict.set_item(
        "resource_restrictions",
        amounts(py, asks.resources.as_deref())?,
    )?;
    dict.set_item("loose_restrictions", asks.loose)?;
    dict.set_item("annotations", payload(py, asks.annotations.as_ref()))?;
    Ok(dict)
}

/// Says one, by upstream's names
pub(super) fn group<'py>(py: Python<'py>, view: &GroupView) -> PyResult<Bound<'py, PyDict>> {
    let dict = collection(py, &view.common)?;
    dict.set_item("prefix", &*view.prefix)?;
    let dependencies = view.dependencies.iter().map(|(name, len)| (&**name, *len));
    dict.set_item("dependencies", dependencies.collect::<Vec<_>>())?;
    dict.set_item("start", view.start)?;
    dict.set_item("stop", view.stop)?;
    // A worker that has gone is no longer one by address.
    let last = view.last_worker.as_ref();
    dict.set_item(
        "last_worker",
        last.map(|last| last.as_deref().unwrap_or("gone")),
    )?;
    dict.set_item("last_worker_tasks_left", view.last_worker_tasks_left)?;
    dict.set_item("serial", view.serial)?;
    dict.set_item("dependency_serials", &view.dependency_serials)?;
    Ok(dict)
}

/// Says one, by upstream's names
pub(super) fn prefix<'py>(py: Python<'py>, view: &PrefixView) -> PyResult<Bound<'py, PyDict>> {
    let dict = collection(py, &view.common)?;
    dict.set_item("state_counts", states(py, &view.state_counts)?)?;
    dict.set_item("duration_average", view.duration_average)?;
    dict.set_item("max_exec_time", view.max_exec_time)?;
    dict.set_item("suspicious", view.suspicious)?;
    dict.set_item("groups", texts(&view.groups))?;
    Ok(dict)
}

fn worker<'py>(py: Python<'py>, view: &WorkerView) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("name", &*view.name)?;
    dict.set_item("host", &*view.host)?;
    dict.set_item("status", status_name(view.status))?;
    dict.set_item("nthreads", view.nthreads)?;
    dict.set_item("memory_limit", view.memory_limit)?;
    dict.set_item("nbytes", view.nbytes)?;
    dict.set_item("occupancy", view.occupancy)?;
    dict.set_item("has_what", texts_of(&view.has_what))?;
    dict.set_item("processing", texts_of(&view.processing))?;
    dict.set_item("long_running", texts_of(&view.long_running))?;
    dict.set_item("actors", texts_of(&view.actors))?;
    let counts = view
        .task_prefix_count
        .iter()
        .map(|(name, count)| (&**name, *count));
    dict.set_item("task_prefix_count", counts.collect::<Vec<_>>())?;
    let needs = PyDict::new(py);
    for (key, count) in &view.needs_what {
        needs.set_item(text_of(key), count)?;
    }
    dict.set_item("needs_what", needs)?;
    dict.set_item("network_occ", view.network_occ)?;
    let executing = PyDict::new(py);
    for (key, executing_s) in &view.executing {
        executing.set_item(text_of(key), executing_s)?;
    }
    dict.set_item("executing", executing)?;
    dict.set_item("resources", amounts(py, Some(&view.resources))?)?;
    dict.set_item("used_resources", amounts(py, Some(&view.used_resources))?)?;
    Ok(dict)
}

pub(super) fn collection<'py>(
    py: Python<'py>,
    view: &CollectionView,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("states", states(py, &view.states)?)?;
    dict.set_item("len", view.len)?;
    dict.set_item("nbytes_total", view.nbytes_total)?;
    dict.set_item("duration_us", view.duration_us)?;
    let durations = PyDict::new(py);
    for (action, duration_us) in &view.all_durations_us {
        durations.set_item(&**action, duration_us)?;
    }
    dict.set_item("all_durations_us", durations)?;
    let types = PyDict::new(py);
    for (name, count) in &view.types {
        types.set_item(&**name, count)?;
    }
    dict.set_item("types", types)?;
    Ok(dict)
}

fn states<'py, T>(py: Python<'py>, counts: &[T; 8]) -> PyResult<Bound<'py, PyDict>>
where
    T: Copy + IntoPyObject<'py>,
{
    let dict = PyDict::new(py);
    for (state, &count) in TaskState::ALL.iter().zip(counts) {
        dict.set_item(state.name(), count)?;
    }
    Ok(dict)
}

pub(super) const fn status_name(status: WorkerStatus) -> &'static str {
    match status {
        WorkerStatus::Running => "running",
        WorkerStatus::Paused => "paused",
        WorkerStatus::ClosingGracefully => "closing_gracefully",
        WorkerStatus::Closed => "closed",
    }
}

/// Transitions: key, start, finish
pub(super) fn transitions<'py>(
    py: Python<'py>,
    log: &[Transition],
) -> PyResult<Bound<'py, PyList>> {
    let log = log.iter();
    PyList::new(
        py,
        log.map(|one| (text_of(&one.key), one.start.name(), one.finish.name()))
            .collect::<Vec<_>>(),
    )
}

/// Key, start, finish, stimulus and time of a transition
pub(super) type PastTransition = (String, &'static str, &'static str, String, f64);

pub(super) fn recent_transitions(core: &SchedulerCore) -> Vec<PastTransition> {
    let recent = core.recent_transitions();
    let recent = recent.iter().map(|past| {
        let one = &past.transition;
        let (start, finish) = (one.start.name(), one.finish.name());
        (
            text_of(&one.key),
            start,
            finish,
            past.stimulus.to_string(),
            past.at_s,
        )
    });
    recent.collect()
}
