//! The record of ended runs as Python calls it.

use std::sync::Arc;

use backhaul_dask::scheduler::RecordedRun;
use pyo3::prelude::*;

use super::Core;

/// A run: key, prefix, worker, thread, result size, and actions with their begin and end
type Run = (
    String,
    String,
    String,
    Option<u64>,
    u64,
    Vec<(String, f64, f64)>,
);

#[doc = stub_doc!("RunRecord")]
#[pyclass(frozen, name = "RunRecord", module = "backhaul._native")]
pub(crate) struct RunRecord(Arc<backhaul_dask::scheduler::RunRecord>);

#[pymethods]
impl RunRecord {
    #[new]
    fn new(runs_max: usize) -> Self {
        Self(Arc::new(backhaul_dask::scheduler::RunRecord::new(runs_max)))
    }

    #[doc = stub_doc!("RunRecord.add")]
    #[pyo3(signature = (*, key, prefix, worker, thread, nbytes, actions))]
    fn add(
        &self,
        key: &str,
        prefix: &str,
        worker: &str,
        thread: Option<u64>,
        nbytes: u64,
        actions: Vec<(String, f64, f64)>,
    ) {
        let actions = actions.into_iter();
        self.0.add(RecordedRun {
            key: super::key(key),
            prefix: Arc::from(prefix),
            worker: Arc::from(worker),
            thread,
            nbytes,
            actions: actions
                .map(|(action, start_s, stop_s)| (Arc::from(action), start_s, stop_s))
                .collect(),
        });
    }

    #[doc = stub_doc!("RunRecord.since")]
    fn since(&self, start_s: f64) -> (Vec<Run>, u64) {
        let (runs, dropped) = self.0.since(start_s);
        (runs.iter().map(plain).collect(), dropped)
    }
}

#[pymethods]
impl Core {
    #[doc = stub_doc!("SchedulerCore.record_runs")]
    fn record_runs(&self, record: &RunRecord) {
        self.core().record_runs(Arc::clone(&record.0));
    }
}

fn plain(run: &RecordedRun) -> Run {
    let actions = run.actions.iter();
    (
        String::from_utf8_lossy(&run.key).into_owned(),
        run.prefix.to_string(),
        run.worker.to_string(),
        run.thread,
        run.nbytes,
        actions
            .map(|(action, start_s, stop_s)| (action.to_string(), *start_s, *stop_s))
            .collect(),
    )
}
