//! A scheduler without tasks as Python says it, in the form of `SchedulerCore.dump`.

use std::sync::Arc;

use backhaul_dask::scheduler::{
    Amounts, ClusterView, CollectionView, ErredTask, Key, PrefixView, TaskState, WorkerView,
};
use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::events::worker_status;
use super::graph::amounts;
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

/// What concerns no single worker
pub(super) fn cluster(said: &Bound<'_, PyDict>) -> PyResult<ClusterView> {
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
        queue_entries: Vec::new(),
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

pub(super) fn workers(said: &Bound<'_, PyDict>) -> PyResult<Vec<WorkerView>> {
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

pub(super) fn prefixes(said: &Bound<'_, PyDict>) -> PyResult<Vec<PrefixView>> {
    let prefixes = Said(said).entries::<Bound<'_, PyDict>>("task_prefixes")?;
    let prefixes = prefixes.iter();
    prefixes.map(|(name, said)| prefix(name, said)).collect()
}

fn prefix(name: &str, said: &Bound<'_, PyDict>) -> PyResult<PrefixView> {
    let one = Said(said);
    let states = one.part("states")?;
    let state_counts = one.part("state_counts")?;
    let named = |entries: Vec<(String, i64)>| {
        let entries = entries.into_iter();
        entries
            .map(|(name, count)| (Arc::from(name), count))
            .collect()
    };
    Ok(PrefixView {
        common: CollectionView {
            name: Arc::from(name),
            states: by_state(&states)?,
            len: one.get("len")?,
            nbytes_total: one.get("nbytes_total")?,
            duration_us: one.get("duration_us")?,
            all_durations_us: named(one.entries("all_durations_us")?),
            types: named(one.entries("types")?),
        },
        state_counts: by_state(&state_counts)?,
        duration_average: one.get("duration_average")?,
        max_exec_time: one.get("max_exec_time")?,
        suspicious: one.get("suspicious")?,
        groups: Vec::new(),
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
