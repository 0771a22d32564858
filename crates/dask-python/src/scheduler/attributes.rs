//! Attributes of tasks, workers, groups, prefixes and the cluster, by the names that upstream has.
//!
//! Each is declared once, in a table: `said` passes it to Python (`SchedulerCore.dump`), `read`
//! takes it from Python (`SchedulerCore.inherit`). A field of a view that is in no table does not
//! compile.

use std::sync::Arc;

use backhaul_dask::scheduler::{
    ClusterView, CollectionView, ErredTask, GroupView, Key, MoveView, Payload, PrefixView,
    Priority, StealingView, TaskError, TaskState, TaskView, WorkerStatus, WorkerView,
};
use pyo3::IntoPyObjectExt as _;
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use super::events::worker_status;
use super::{key, messages, text_of};

/// A value of an attribute, as Python has it
pub(super) trait Attribute: Sized {
    fn said<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>>;

    fn read(value: &Bound<'_, PyAny>) -> PyResult<Self>;
}

/// Part of a dict
pub(super) fn part<'py>(dict: &Bound<'py, PyDict>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    let part = dict.get_item(name)?;
    part.ok_or_else(|| PyKeyError::new_err(name.to_owned()))
}

/// Part of a dict as a value
pub(super) fn read<T: Attribute>(dict: &Bound<'_, PyDict>, name: &str) -> PyResult<T> {
    T::read(&part(dict, name)?)
}

/// The name of an attribute: that of its field, if the table has no other
macro_rules! name {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $name:literal) => {
        $name
    };
}

/// Converts with the form that the table has for an attribute, or else by its type
macro_rules! form {
    (said $value:expr, $py:expr) => {
        Attribute::said($value, $py)
    };
    (said $value:expr, $py:expr, $form:ident) => {
        $form::said($value, $py)
    };
    (read $value:expr) => {
        Attribute::read($value)
    };
    (read $value:expr, $form:ident) => {
        $form::read($value)
    };
}

/// Declares the attributes of a view: those that are said and read, those that are only said and
/// given to `read`, and those that are neither said nor read here
macro_rules! attributes {
    (
        $module:ident: $view:ident { $($field:ident $(= $name:literal)? $(: $form:ident)?),* $(,)? }
        said { $($said:ident: $said_type:ty $(, $said_form:ident)?);* }
        apart { $($apart:ident: $apart_type:ty),* }
    ) => {
        pub(super) mod $module {
            use super::*;

            pub(in super::super) fn said(
                view: &$view,
                dict: &Bound<'_, PyDict>,
            ) -> PyResult<()> {
                let $view { $($field,)* $($said,)* $($apart: _,)* } = view;
                $(dict.set_item(name!($field $($name)?), form!(said $field, dict.py() $(, $form)?)?)?;)*
                $(dict.set_item(name!($said), form!(said $said, dict.py() $(, $said_form)?)?)?;)*
                Ok(())
            }

            pub(in super::super) fn read(
                dict: &Bound<'_, PyDict>,
                $($said: $said_type,)*
                $($apart: $apart_type,)*
            ) -> PyResult<$view> {
                Ok($view {
                    $($field: form!(read &part(dict, name!($field $($name)?))? $(, $form)?)?,)*
                    $($said,)*
                    $($apart,)*
                })
            }
        }
    };
}

attributes! {
    cluster: ClusterView {
        running, idle, idle_task_count, saturated, queued, queue_entries, queue_added,
        unrunnable: dict, replicated_tasks, erred_tasks, clients: dict, resources: dicts,
        hosts: dict, task_prefix_count, network_occ, total_nthreads, bandwidth, n_tasks,
        transition_counter, generation, last_graph, next_run_id, no_workers_since,
    }
    said { total_occupancy: f64 }
    apart {}
}

attributes! {
    worker: WorkerView {
        name, host, status, nthreads, memory_limit, nbytes, has_what, processing, long_running,
        actors, task_prefix_count, needs_what: dict, network_occ, executing: dict,
        resources: dict, used_resources: dict,
    }
    said { occupancy: f64 }
    apart { address: Arc<str> }
}

attributes! {
    collection: CollectionView {
        states, len, nbytes_total, duration_us, all_durations_us: dict, types: dict,
    }
    said {}
    apart { name: Arc<str> }
}

attributes! {
    group: GroupView {
        prefix, start, stop, last_worker: last, last_worker_tasks_left, serial,
        dependency_serials,
    }
    said { dependencies: Vec<(Arc<str>, i64)> }
    apart { common: CollectionView, gone: bool }
}

attributes! {
    prefix: PrefixView { state_counts, duration_average, max_exec_time, suspicious, groups }
    said {}
    apart { common: CollectionView }
}

attributes! {
    stealing: StealingView {
        stealable, in_flight, occupancy_s = "occupancy", tasks, unknown, requests,
    }
    said {}
    apart {}
}

/// Declares the attributes of a task, which Python leaves out where there is nothing to say
macro_rules! task_attributes {
    (
        { $($field:ident $(= $name:literal)? $(: $form:ident)?),* $(,)? }
        said { $($said:ident),* }
        apart { $($apart:ident),* }
    ) => {
        pub(super) mod task {
            use super::*;

            pub(in super::super) fn said(
                view: &TaskView,
                dict: &Bound<'_, PyDict>,
            ) -> PyResult<()> {
                let TaskView { $($field,)* $($said,)* $($apart: _,)* } = view;
                let py = dict.py();
                $(dict.set_item(name!($field $($name)?), form!(said $field, py $(, $form)?)?)?;)*
                $(dict.set_item(name!($said), form!(said $said, py)?)?;)*
                Ok(())
            }

            /// Sets an attribute by its name; returns whether there is one of that name
            pub(in super::super) fn set(
                view: &mut TaskView,
                name: &str,
                value: &Bound<'_, PyAny>,
            ) -> PyResult<bool> {
                $(
                    if name == name!($field $($name)?) {
                        view.$field = form!(read value $(, $form)?)?;
                        return Ok(true);
                    }
                )*
                Ok(false)
            }
        }
    };
}

task_attributes! {
    {
        priority, dependencies, dependents, waiting_on, waiters, who_wants, who_has,
        processing_on, nbytes: size, type_name = "type", retries, suspicious, run_id, queueable,
        has_lost_dependencies, actor, exception: raised, traceback: bytes, exception_text,
        traceback_text, exception_blame, erred_on,
    }
    said { state, group, prefix, forgotten_blame }
    apart { key, run_spec, data_producer, requirements }
}

// Forms that the type of an attribute does not tell

/// Pairs as a dict, in its order
mod dict {
    use super::*;

    pub(super) fn said<'py, K: Attribute, V: Attribute>(
        pairs: &[(K, V)],
        py: Python<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let dict = PyDict::new(py);
        for (name, value) in pairs {
            dict.set_item(name.said(py)?, value.said(py)?)?;
        }
        Ok(dict.into_any())
    }

    pub(super) fn read<K: Attribute, V: Attribute>(
        value: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<(K, V)>> {
        let dict = value.cast::<PyDict>()?;
        let read = |(name, value)| Ok((K::read(&name)?, V::read(&value)?));
        dict.iter().map(read).collect()
    }
}

/// Amounts by two names, as dicts in a dict
mod dicts {
    use super::*;

    type Nested = Vec<(Arc<str>, Vec<(Arc<str>, f64)>)>;

    pub(super) fn said<'py>(nested: &Nested, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let dict = PyDict::new(py);
        for (name, amounts) in nested {
            dict.set_item(&**name, super::dict::said(amounts, py)?)?;
        }
        Ok(dict.into_any())
    }

    pub(super) fn read(value: &Bound<'_, PyAny>) -> PyResult<Nested> {
        let dict = value.cast::<PyDict>()?;
        let read = |(name, value)| Ok((Attribute::read(&name)?, super::dict::read(&value)?));
        dict.iter().map(read).collect()
    }
}

/// The address of a worker that may have gone, and is no longer one by address then
mod last {
    use super::*;

    pub(super) fn said<'py>(
        last: &Option<Option<Arc<str>>>,
        py: Python<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let last = last.as_ref();
        let address = last.map(|last| last.as_deref().unwrap_or("gone"));
        address.into_bound_py_any(py)
    }

    pub(super) fn read(value: &Bound<'_, PyAny>) -> PyResult<Option<Option<Arc<str>>>> {
        Ok(Option::<Arc<str>>::read(value)?.map(Some))
    }
}

/// Bytes, -1 if nobody has told yet
mod size {
    use super::*;

    pub(super) fn said<'py>(size: &Option<u64>, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        size.map_or(-1, |size| size as i64).into_bound_py_any(py)
    }

    pub(super) fn read(value: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
        Ok(Some(value.extract()?))
    }
}

mod bytes {
    use super::*;

    pub(super) fn said<'py>(
        payload: &Option<Payload>,
        py: Python<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        messages::payload(py, payload.as_ref()).into_bound_py_any(py)
    }

    pub(super) fn read(value: &Bound<'_, PyAny>) -> PyResult<Option<Payload>> {
        Ok(Some(Payload::from(value.extract::<Vec<u8>>()?)))
    }
}

mod raised {
    use super::*;

    pub(super) fn said<'py>(
        error: &Option<TaskError>,
        py: Python<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let error = error.as_ref().map(|error| messages::task_error(py, error));
        error.transpose()?.into_bound_py_any(py)
    }

    pub(super) fn read(value: &Bound<'_, PyAny>) -> PyResult<Option<TaskError>> {
        Ok(bytes::read(value)?.map(TaskError::Raised))
    }
}

// Forms of types

macro_rules! plain {
    ($($plain:ty),*) => {$(
        impl Attribute for $plain {
            fn said<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                self.into_bound_py_any(py)
            }

            fn read(value: &Bound<'_, PyAny>) -> PyResult<Self> {
                value.extract()
            }
        }
    )*};
}

plain!(bool, i32, u32, i64, u64, usize, f64);

impl Attribute for Arc<str> {
    fn said<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(PyString::new(py, self).into_any())
    }

    fn read(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self::from(value.extract::<String>()?))
    }
}

impl Attribute for Key {
    fn said<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        text_of(self).into_bound_py_any(py)
    }

    fn read(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(key(&value.extract::<String>()?))
    }
}

impl Attribute for Priority {
    fn said<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        messages::priority(self).into_bound_py_any(py)
    }

    fn read(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        value.extract().map(Self)
    }
}

impl Attribute for TaskState {
    fn said<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.name().into_bound_py_any(py)
    }

    fn read(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        let state: String = value.extract()?;
        let named = Self::ALL.into_iter().find(|one| one.name() == state);
        named.ok_or_else(|| PyValueError::new_err(format!("no state: {state:?}")))
    }
}

impl Attribute for WorkerStatus {
    fn said<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let name = match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::ClosingGracefully => "closing_gracefully",
            Self::Closed => "closed",
        };
        name.into_bound_py_any(py)
    }

    fn read(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        worker_status(&value.extract::<String>()?)
    }
}

impl<T: Attribute> Attribute for Option<T> {
    fn said<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Some(value) => value.said(py),
            None => Ok(py.None().into_bound(py)),
        }
    }

    fn read(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        let there = (!value.is_none()).then_some(value);
        there.map(T::read).transpose()
    }
}

impl<T: Attribute> Attribute for Vec<T> {
    fn said<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let said = self.iter().map(|one| one.said(py));
        let said = said.collect::<PyResult<Vec<_>>>()?;
        Ok(PyList::new(py, said)?.into_any())
    }

    fn read(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        value.try_iter()?.map(|one| T::read(&one?)).collect()
    }
}

impl<A: Attribute, B: Attribute> Attribute for (A, B) {
    fn said<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(PyTuple::new(py, [self.0.said(py)?, self.1.said(py)?])?.into_any())
    }

    fn read(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (one, other): (Bound<'_, PyAny>, Bound<'_, PyAny>) = value.extract()?;
        Ok((A::read(&one)?, B::read(&other)?))
    }
}

impl<A: Attribute, B: Attribute, C: Attribute> Attribute for (A, B, C) {
    fn said<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let parts = [self.0.said(py)?, self.1.said(py)?, self.2.said(py)?];
        Ok(PyTuple::new(py, parts)?.into_any())
    }

    fn read(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        type Part<'py> = Bound<'py, PyAny>;
        let (one, other, third): (Part<'_>, Part<'_>, Part<'_>) = value.extract()?;
        Ok((A::read(&one)?, B::read(&other)?, C::read(&third)?))
    }
}

/// Counts by the name of a state
impl<T: Attribute + Copy + Default> Attribute for [T; 8] {
    fn said<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let dict = PyDict::new(py);
        for (state, count) in TaskState::ALL.iter().zip(self) {
            dict.set_item(state.name(), count.said(py)?)?;
        }
        Ok(dict.into_any())
    }

    fn read(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        let dict = value.cast::<PyDict>()?;
        let mut counts = [T::default(); 8];
        for (count, state) in counts.iter_mut().zip(TaskState::ALL) {
            if let Some(one) = dict.get_item(state.name())? {
                *count = T::read(&one)?;
            }
        }
        Ok(counts)
    }
}

impl Attribute for MoveView {
    fn said<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (victim, thief) = (&*self.victim, &*self.thief);
        let (key, times) = (text_of(&self.key), (self.victim_s, self.thief_s));
        (key, victim, thief, times.0, times.1, &*self.stimulus).into_bound_py_any(py)
    }

    fn read(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (text, victim, thief, victim_s, thief_s, stimulus): (
            String,
            String,
            String,
            f64,
            f64,
            String,
        ) = value.extract()?;
        Ok(Self {
            key: key(&text),
            victim: Arc::from(victim),
            thief: Arc::from(thief),
            victim_s,
            thief_s,
            stimulus: Arc::from(stimulus),
        })
    }
}

impl Attribute for ErredTask {
    fn said<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let said = (
            text_of(&self.key),
            self.at_s,
            messages::texts(&self.erred_on),
            self.exception_text.as_deref().unwrap_or_default(),
            self.traceback_text.as_deref().unwrap_or_default(),
        );
        said.into_bound_py_any(py)
    }

    fn read(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (text, at_s, erred_on, exception, traceback): (String, _, Vec<String>, String, String) =
            value.extract()?;
        Ok(Self {
            key: key(&text),
            at_s,
            erred_on: erred_on.into_iter().map(Arc::from).collect(),
            exception_text: Some(Arc::from(exception)),
            traceback_text: Some(Arc::from(traceback)),
        })
    }
}
