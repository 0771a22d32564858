//! The whole state, and parts of it, in dicts by the names of `attributes`.

use backhaul_dask::scheduler::{
    ClusterView, CollectionView, GroupView, Key, PrefixView, SchedulerCore, TaskView, Transition,
    WorkerView,
};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use super::messages::{amounts, payload, spec, texts};
use super::{attributes, text_of};

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
    attributes::cluster::said(view, &dict)?;
    Ok(dict)
}

fn worker<'py>(py: Python<'py>, view: &WorkerView) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    attributes::worker::said(view, &dict)?;
    Ok(dict)
}

pub(super) fn task<'py>(py: Python<'py>, view: &TaskView) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    attributes::task::said(view, &dict)?;
    dict.set_item("run_spec", spec(py, view.run_spec.as_ref(), &view.key))?;
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

pub(super) fn group<'py>(py: Python<'py>, view: &GroupView) -> PyResult<Bound<'py, PyDict>> {
    let dict = collection(py, &view.common)?;
    attributes::group::said(view, &dict)?;
    Ok(dict)
}

pub(super) fn prefix<'py>(py: Python<'py>, view: &PrefixView) -> PyResult<Bound<'py, PyDict>> {
    let dict = collection(py, &view.common)?;
    attributes::prefix::said(view, &dict)?;
    Ok(dict)
}

pub(super) fn collection<'py>(
    py: Python<'py>,
    view: &CollectionView,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    attributes::collection::said(view, &dict)?;
    Ok(dict)
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
