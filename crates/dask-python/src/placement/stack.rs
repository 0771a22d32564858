//! Work of a scheduler's workers, read from its states for one decision.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// How long workers are busy with what they were given, read once for each
pub(super) struct Stack<'a, 'py> {
    workers: &'a [Option<Py<PyAny>>],
    prefixes: Bound<'py, PyDict>,
    unknown_s: f64,
    running: &'a Bound<'py, PyAny>,
    /// By worker
    known: Vec<(u32, Option<f64>)>,
    /// Expected seconds by address of the name
    durations: Vec<(usize, f64)>,
    /// Why a worker could not be read
    pub(super) failed: Option<PyErr>,
}

impl<'a, 'py> Stack<'a, 'py> {
    pub(super) fn new(
        workers: &'a [Option<Py<PyAny>>],
        prefixes: Bound<'py, PyDict>,
        unknown_s: f64,
        running: &'a Bound<'py, PyAny>,
    ) -> Self {
        Self {
            workers,
            prefixes,
            unknown_s,
            running,
            known: Vec::with_capacity(32),
            durations: Vec::with_capacity(8),
            failed: None,
        }
    }

    /// Seconds for each thread of a worker; None if it may not be chosen
    pub(super) fn seconds(&mut self, py: Python<'py>, worker: u32) -> Option<f64> {
        if let Some(&(_, seconds)) = self.known.iter().find(|(number, _)| *number == worker) {
            return seconds;
        }
        let seconds = match self.read(py, worker) {
            Ok(seconds) => seconds,
            Err(error) => {
                self.failed = Some(error);
                None
            }
        };
        self.known.push((worker, seconds));
        seconds
    }

    fn read(&mut self, py: Python<'py>, worker: u32) -> PyResult<Option<f64>> {
        let Some(state) = &self.workers[worker as usize] else {
            return Ok(None);
        };
        let state = state.bind(py);
        if !self.running.contains(state)? {
            return Ok(None);
        }
        let counts = state.getattr(intern!(py, "task_prefix_count"))?;
        let threads: f64 = state.getattr(intern!(py, "nthreads"))?.extract()?;
        let mut seconds = 0.0;
        for (name, count) in counts.cast::<PyDict>()? {
            seconds += self.duration(&name)? * count.extract::<f64>()?;
        }
        Ok(Some(seconds / threads.max(1.0)))
    }

    fn duration(&mut self, name: &Bound<'py, PyAny>) -> PyResult<f64> {
        let py = name.py();
        let address = name.as_ptr() as usize;
        if let Some(&(_, seconds)) = self.durations.iter().find(|(known, _)| *known == address) {
            return Ok(seconds);
        }
        let mut seconds = self.unknown_s;
        if let Some(prefix) = self.prefixes.get_item(name)? {
            let average: f64 = prefix.getattr(intern!(py, "duration_average"))?.extract()?;
            if average >= 0.0 {
                seconds = average;
            } else {
                let longest: f64 = prefix.getattr(intern!(py, "max_exec_time"))?.extract()?;
                if longest > 0.0 {
                    seconds = 2.0 * longest;
                }
            }
        }
        self.durations.push((address, seconds));
        Ok(seconds)
    }

    /// Bytes that a worker holds
    pub(super) fn nbytes(&self, py: Python<'py>, worker: u32) -> u64 {
        self.workers[worker as usize]
            .as_ref()
            .and_then(|state| state.bind(py).getattr(intern!(py, "nbytes")).ok())
            .and_then(|bytes| bytes.extract().ok())
            .unwrap_or(0)
    }
}
