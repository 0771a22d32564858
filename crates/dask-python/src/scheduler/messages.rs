//! Messages as dicts of the form that upstream sends.

use std::sync::Arc;

use backhaul_dask::hot::whole_spec;
use backhaul_dask::scheduler::{
    ClientMessage, ComputeTask, Holders, Message, Payload, Priority, Spec, TaskError, WorkerMessage,
};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use super::{text_of, texts_of};

/// Makes ("worker" or "client", receiver, message); the receiver is None for all clients
pub(super) fn message<'py>(py: Python<'py>, message: &Message) -> PyResult<Bound<'py, PyTuple>> {
    match message {
        Message::ToWorker(address, message) => {
            ("worker", &**address, to_worker(py, message)?).into_pyobject(py)
        }
        Message::ToClient(name, message) => {
            ("client", Some(&**name), to_client(py, message)?).into_pyobject(py)
        }
        Message::ToClients(message) => {
            ("client", None::<&str>, to_client(py, message)?).into_pyobject(py)
        }
    }
}

fn to_worker<'py>(py: Python<'py>, message: &WorkerMessage) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let (op, stimulus) = match message {
        WorkerMessage::ComputeTask(task) => {
            compute_task(&dict, task)?;
            ("compute-task", None)
        }
        WorkerMessage::FreeKeys { keys, stimulus } => {
            dict.set_item("keys", texts_of(keys))?;
            ("free-keys", Some(stimulus))
        }
        WorkerMessage::RemoveReplicas { keys, stimulus } => {
            dict.set_item("keys", texts_of(keys))?;
            ("remove-replicas", Some(stimulus))
        }
        WorkerMessage::AcquireReplicas {
            who_has,
            nbytes,
            stimulus,
        } => {
            dict.set_item("who_has", holders(py, who_has)?)?;
            dict.set_item("nbytes", sizes(py, who_has, nbytes)?)?;
            ("acquire-replicas", Some(stimulus))
        }
        WorkerMessage::RefreshWhoHas { who_has, stimulus } => {
            dict.set_item("who_has", holders(py, who_has)?)?;
            ("refresh-who-has", Some(stimulus))
        }
        WorkerMessage::StealRequest { key, stimulus } => {
            dict.set_item("key", super::text_of(key))?;
            ("steal-request", Some(stimulus))
        }
        WorkerMessage::Close => ("close", None),
        WorkerMessage::RemoveWorker { address, stimulus } => {
            dict.set_item("worker", &**address)?;
            ("remove-worker", Some(stimulus))
        }
    };
    dict.set_item("op", op)?;
    if let Some(stimulus) = stimulus {
        dict.set_item("stimulus_id", &**stimulus)?;
    }
    Ok(dict)
}

fn compute_task(dict: &Bound<'_, PyDict>, task: &ComputeTask) -> PyResult<()> {
    let py = dict.py();
    dict.set_item("key", text_of(&task.key))?;
    dict.set_item("run_id", task.run_id)?;
    dict.set_item("priority", priority(&task.priority))?;
    dict.set_item("who_has", holders(py, &task.who_has)?)?;
    dict.set_item("nbytes", sizes(py, &task.who_has, &task.nbytes)?)?;
    dict.set_item("run_spec", spec(py, task.spec.as_ref(), &task.key))?;
    dict.set_item(
        "resource_restrictions",
        amounts(py, task.resources.as_deref())?,
    )?;
    dict.set_item("actor", task.actor)?;
    dict.set_item(
        "annotations",
        task.annotations.as_ref().map(|one| PyBytes::new(py, one)),
    )
}

fn to_client<'py>(py: Python<'py>, message: &ClientMessage) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let op = match message {
        ClientMessage::KeyInMemory {
            key,
            type_,
            workers,
        } => {
            dict.set_item("key", text_of(key))?;
            if let Some(type_) = type_ {
                dict.set_item("type", PyBytes::new(py, type_))?;
            }
            if let Some(workers) = workers {
                dict.set_item("workers", texts(workers))?;
            }
            "key-in-memory"
        }
        ClientMessage::TaskErred {
            key,
            exception,
            traceback,
        } => {
            dict.set_item("key", text_of(key))?;
            let exception = exception
                .as_ref()
                .map(|one| task_error(py, one))
                .transpose()?;
            dict.set_item("exception", exception)?;
            dict.set_item("traceback", payload(py, traceback.as_ref()))?;
            "task-erred"
        }
        ClientMessage::LostData { key } => {
            dict.set_item("key", text_of(key))?;
            "lost-data"
        }
        ClientMessage::TaskRetried { key } => {
            dict.set_item("key", text_of(key))?;
            "task-retried"
        }
        ClientMessage::CancelledKeys {
            keys,
            reason,
            message,
        } => {
            dict.set_item("keys", texts_of(keys))?;
            if let Some(reason) = reason {
                dict.set_item("reason", &**reason)?;
            }
            if let Some(message) = message {
                dict.set_item("msg", &**message)?;
            }
            "cancelled-keys"
        }
    };
    dict.set_item("op", op)?;
    Ok(dict)
}

/// Returns the exception of a task as bytes, or for the scheduler's own errors name and subject
pub(super) fn task_error<'py>(py: Python<'py>, error: &TaskError) -> PyResult<Bound<'py, PyAny>> {
    let of = PyDict::new(py);
    let kind = match error {
        TaskError::Raised(payload) => return Ok(PyBytes::new(py, payload).into_any()),
        TaskError::KilledWorker {
            key,
            worker,
            allowed_failures,
        } => {
            of.set_item("key", text_of(key))?;
            of.set_item("worker", &**worker)?;
            of.set_item("allowed_failures", allowed_failures)?;
            "KilledWorker"
        }
        TaskError::ActorLost => "RuntimeError",
        TaskError::OverMemory {
            key,
            input_bytes,
            worker,
            limit_bytes,
            gathers,
        } => {
            of.set_item("key", text_of(key))?;
            of.set_item("input_bytes", input_bytes)?;
            of.set_item("worker", &**worker)?;
            of.set_item("limit_bytes", limit_bytes)?;
            of.set_item("gathers", gathers)?;
            "MemoryError"
        }
        TaskError::NoValidWorker {
            key,
            hosts,
            workers,
            resources,
        } => {
            of.set_item("key", text_of(key))?;
            of.set_item("host_restrictions", texts(hosts))?;
            of.set_item("worker_restrictions", texts(workers))?;
            of.set_item("resource_restrictions", amounts(py, Some(resources))?)?;
            "NoValidWorkerError"
        }
        TaskError::NoWorker { key } => {
            of.set_item("key", text_of(key))?;
            "NoWorkerError"
        }
    };
    Ok((kind, of).into_pyobject(py)?.into_any())
}

/// A run spec as if it shared nothing with others
pub(super) fn spec<'py>(
    py: Python<'py>,
    spec: Option<&Spec>,
    key: &[u8],
) -> Option<Bound<'py, PyBytes>> {
    spec.and_then(|spec| whole_spec(spec, key))
        .map(|spec| PyBytes::new(py, &spec))
}

pub(super) fn payload<'py>(
    py: Python<'py>,
    payload: Option<&Payload>,
) -> Option<Bound<'py, PyBytes>> {
    payload.map(|payload| PyBytes::new(py, payload))
}

pub(super) fn priority(priority: &Priority) -> (f64, f64, f64) {
    let [user, generation, order] = priority.0;
    (user, generation, order)
}

fn holders<'py>(py: Python<'py>, who_has: &Holders) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (key, addresses) in who_has {
        dict.set_item(text_of(key), texts(addresses))?;
    }
    Ok(dict)
}

/// Sizes by key, -1 where it is not known
fn sizes<'py>(
    py: Python<'py>,
    who_has: &Holders,
    nbytes: &[Option<u64>],
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for ((key, _), nbytes) in who_has.iter().zip(nbytes) {
        match nbytes {
            Some(nbytes) => dict.set_item(text_of(key), nbytes)?,
            None => dict.set_item(text_of(key), -1)?,
        }
    }
    Ok(dict)
}

pub(super) fn texts(texts: &[Arc<str>]) -> Vec<&str> {
    texts.iter().map(|text| &**text).collect()
}

pub(super) fn amounts<'py>(
    py: Python<'py>,
    amounts: Option<&[(Arc<str>, f64)]>,
) -> PyResult<Option<Bound<'py, PyDict>>> {
    let Some(amounts) = amounts else {
        return Ok(None);
    };
    let dict = PyDict::new(py);
    for (name, amount) in amounts {
        dict.set_item(&**name, amount)?;
    }
    Ok(Some(dict))
}
