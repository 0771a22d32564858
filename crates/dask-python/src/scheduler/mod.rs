//! The scheduler's state in Rust as Python calls it: events in, messages and attributes out.
//!
//! Keys are texts here.

mod events;
mod graph;
mod inherit;
mod live;
mod messages;
mod views;

use std::sync::Arc;

use backhaul_dask::scheduler::{Config, EventError, Key, SchedulerCore};
use pyo3::exceptions::{PyKeyError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

#[doc = stub_doc!("SchedulerCore")]
#[pyclass(name = "SchedulerCore", module = "backhaul._native")]
pub(crate) struct Core(SchedulerCore);

/// What settings a program may give
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

fn refusal(error: EventError) -> PyErr {
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
