//! The scheduler's state in Rust as Python calls it: events in, messages and attributes out.
//!
//! Keys are texts here.

mod attributes;
mod calls;
mod events;
mod graph;
mod inherit;
mod live;
mod looks;
mod messages;
mod placing;
mod room;
mod run_record;
mod stealing;
mod task_graph;
mod views;
mod window;

pub(crate) use calls::TaskCalls;
pub(crate) use live::ReplicatedTask;
pub use live::gone_groups;
pub(crate) use room::{PassedRequest, RoomState, UnmetRequest};
pub(crate) use run_record::RunRecord;
pub(crate) use stealing::{StealOutcome, StealRequest};
pub(crate) use task_graph::TaskGraph;
pub use window::WindowPolicy;
pub(crate) use window::WorkerLoad;

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use backhaul_dask::hot::HotCore;
use backhaul_dask::scheduler::{Config, EventError, Key, Message, NO_RUN, SchedulerCore};
use pyo3::exceptions::{PyKeyError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

#[doc = stub_doc!("SchedulerCore")]
#[pyclass(frozen, name = "SchedulerCore", module = "backhaul._native")]
pub struct Core(SharedCore);

/// A core that a thread of the fabric may have too, while it handles messages
///
/// That thread never waits for the interpreter, and a thread that has locked it runs no Python
/// until it is unlocked: values that become objects are taken out before. A finalizer that ran in
/// between would wait for its own thread, and without the GIL a thread that waits here while the
/// garbage collector stops the others would never be stopped.
pub type SharedCore = Arc<Mutex<HotCore>>;

impl Core {
    fn of(core: SchedulerCore) -> Self {
        Self(Arc::new(Mutex::new(HotCore::new(core))))
    }

    /// The core, for who handles messages
    pub fn shared(&self) -> SharedCore {
        Arc::clone(&self.0)
    }

    fn core(&self) -> CoreGuard<'_> {
        CoreGuard(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The state, locked
struct CoreGuard<'a>(MutexGuard<'a, HotCore>);

impl Deref for CoreGuard<'_> {
    type Target = SchedulerCore;

    fn deref(&self) -> &SchedulerCore {
        &self.0.core
    }
}

impl DerefMut for CoreGuard<'_> {
    fn deref_mut(&mut self) -> &mut SchedulerCore {
        &mut self.0.core
    }
}

/// The number of a run as a worker names it; what no run can have is that of none
struct RunId(u64);

impl FromPyObject<'_, '_> for RunId {
    type Error = std::convert::Infallible;

    fn extract(named: Borrowed<'_, '_, PyAny>) -> Result<Self, Self::Error> {
        Ok(Self(named.extract().unwrap_or(NO_RUN)))
    }
}

/// Reads the settings that a program may give
fn config(options: Option<&Bound<'_, PyDict>>) -> PyResult<Config> {
    let mut config = Config::default();
    let Some(options) = options else {
        return Ok(config);
    };
    for (name, value) in options {
        let name: String = name.extract()?;
        match name.as_str() {
            "worker_saturation" => config.worker_saturation = value.extract()?,
            "rootish_dependencies" => config.rootish_dependencies = value.extract()?,
            "rootish_dependency_tasks" => config.rootish_dependency_tasks = value.extract()?,
            "unknown_duration_s" => config.unknown_duration_s = value.extract()?,
            "known_durations_s" => {
                let known: Vec<(String, f64)> = value.extract()?;
                let known = known.into_iter();
                config.known_durations_s = known.map(|(name, s)| (Arc::from(name), s)).collect();
            }
            "allowed_failures" => config.allowed_failures = value.extract()?,
            "bandwidth_bytes_per_s" => config.bandwidth_bytes_per_s = value.extract()?,
            "default_data_bytes" => config.default_data_bytes = value.extract()?,
            "no_workers_timeout_s" => config.no_workers_timeout_s = value.extract()?,
            "beside_tasks_max" => config.beside_tasks_max = value.extract()?,
            "recent_transitions_max" => config.recent_transitions_max = value.extract()?,
            "refuse_over_memory" => config.refuse_over_memory = value.extract()?,
            _ => return Err(PyValueError::new_err(format!("no such setting: {name:?}"))),
        }
    }
    if config.worker_saturation.is_nan() || config.worker_saturation <= 0.0 {
        return Err(PyValueError::new_err(format!(
            "worker_saturation must be above 0, got {}",
            config.worker_saturation
        )));
    }
    Ok(config)
}

/// Makes a tuple of a message: "worker" or "client", the receiver, the message
///
/// # Errors
///
/// What Python raises as it makes the objects.
pub fn message_of<'py>(py: Python<'py>, message: &Message) -> PyResult<Bound<'py, PyTuple>> {
    messages::message(py, message)
}

fn key(text: &str) -> Key {
    Key::from(text.as_bytes())
}

fn keys(texts: &[String]) -> Vec<Key> {
    texts.iter().map(|text| key(text)).collect()
}

fn text_of(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}

fn texts_of(keys: &[Key]) -> Vec<String> {
    keys.iter().map(|key| text_of(key)).collect()
}

/// Makes the exception that Python raises where an event is refused
pub fn refusal(error: EventError) -> PyErr {
    let message = error.to_string();
    match error {
        EventError::UnknownWorker { .. }
        | EventError::UnknownClient { .. }
        | EventError::UnknownTask { .. } => PyKeyError::new_err(message),
        EventError::NameTaken { .. } | EventError::UnknownName { .. } => {
            PyValueError::new_err(message)
        }
        _ => PyRuntimeError::new_err(message),
    }
}
