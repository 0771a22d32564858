//! The in-flight window of each worker as Python calls it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use backhaul_dask::hot::{Expectation, InFlight, Window, WindowLimits};
use backhaul_dask::scheduler::{Front, WorkerRoom};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::{Core, refusal};

/// Expectations by prefix (seconds, bytes), and finished tasks by group
type Learned = (Vec<(String, f64, f64)>, Vec<(String, u64)>);

#[doc = stub_doc!("WindowPolicy")]
#[pyclass(frozen, name = "WindowPolicy", module = "backhaul._native")]
pub struct WindowPolicy(Mutex<Window>);

#[doc = stub_doc!("WorkerLoad")]
#[pyclass(frozen, name = "WorkerLoad", module = "backhaul._native")]
pub(crate) struct WorkerLoad {
    threads: u32,
    memory_limit: u64,
    used_bytes: f64,
    /// Tasks in flight by prefix
    tasks: Vec<(String, i64)>,
}

#[pymethods]
impl WorkerLoad {
    #[new]
    #[pyo3(signature = (*, threads, memory_limit, used_bytes, tasks))]
    fn new(
        threads: u32,
        memory_limit: u64,
        used_bytes: f64,
        tasks: &Bound<'_, PyDict>,
    ) -> PyResult<Self> {
        let tasks = tasks.iter().map(|(prefix, tasks)| {
            let prefix = prefix.str()?.to_str()?.to_owned();
            Ok((prefix, tasks.extract()?))
        });
        Ok(Self {
            threads,
            memory_limit,
            used_bytes,
            tasks: tasks.collect::<PyResult<_>>()?,
        })
    }
}

impl WindowPolicy {
    /// The window, locked: no Python may run until the caller drops it
    pub fn window(&self) -> MutexGuard<'_, Window> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl WindowPolicy {
    #[new]
    #[pyo3(signature = (
        *, seconds, tasks_per_thread, memory_share, memory_budget_bytes, saturation
    ))]
    fn new(
        seconds: f64,
        tasks_per_thread: f64,
        memory_share: f64,
        memory_budget_bytes: f64,
        saturation: f64,
    ) -> Self {
        Self(Mutex::new(Window::new(WindowLimits {
            seconds,
            tasks_per_thread,
            memory_share,
            memory_budget_bytes,
            saturation,
        })))
    }

    #[doc = stub_doc!("WindowPolicy.learned")]
    fn learned(&self) -> Learned {
        let window = self.window();
        let expectations = window.expectations();
        let expectations = expectations
            .map(|(prefix, one)| (prefix.to_owned(), one.seconds, one.nbytes))
            .collect();
        let confirmed = window.confirmed();
        let confirmed = confirmed.map(|(group, tasks)| (group.to_owned(), tasks));
        (expectations, confirmed.collect())
    }

    #[doc = stub_doc!("WindowPolicy.replace")]
    fn replace(&self, expectations: Vec<(String, f64, f64)>, confirmed: Vec<(String, u64)>) {
        let mut window = self.window();
        window.clear();
        for (prefix, seconds, nbytes) in &expectations {
            window.expect(prefix, Expectation::new(*seconds, *nbytes));
        }
        for (group, tasks) in &confirmed {
            window.confirm(group, *tasks);
        }
    }

    #[doc = stub_doc!("WindowPolicy.observe")]
    #[pyo3(signature = (group, prefix, seconds, nbytes, *, patiently = false))]
    fn observe(
        &self,
        group: &str,
        prefix: &str,
        seconds: f64,
        nbytes: f64,
        patiently: bool,
    ) -> bool {
        let mut window = self.window();
        if patiently {
            window.observe_patiently(group, prefix, seconds, nbytes)
        } else {
            window.observe(group, prefix, seconds, nbytes)
        }
    }

    #[doc = stub_doc!("WindowPolicy.is_low")]
    fn is_low(&self, worker: &str, tasks: usize) -> bool {
        self.window().is_low(worker, tasks)
    }

    #[doc = stub_doc!("WindowPolicy.note_filled")]
    fn note_filled(&self, worker: &str, tasks: usize, threads: u32) {
        self.window().note_filled(worker, tasks, threads);
    }

    #[doc = stub_doc!("WindowPolicy.room")]
    #[pyo3(signature = (group, prefix, worker, *, duration_s, queued, threads_all))]
    fn room(
        &self,
        group: &str,
        prefix: &str,
        worker: &WorkerLoad,
        duration_s: f64,
        queued: usize,
        threads_all: f64,
    ) -> usize {
        let front = Front {
            group: Arc::from(group),
            prefix: Arc::from(prefix),
            duration_s,
            queued,
        };
        let mut window = self.window();
        let in_flight = worker.in_flight(&window);
        in_flight.map_or(0, |in_flight| window.room(&front, &in_flight, threads_all))
    }

    #[doc = stub_doc!("WindowPolicy.excess")]
    fn excess(&self, prefix: &str, workers: Vec<PyRef<'_, WorkerLoad>>) -> Vec<usize> {
        let mut window = self.window();
        let expectation = window.act(prefix);
        let excess_of = |worker: PyRef<'_, WorkerLoad>| {
            let in_flight = worker.in_flight(&window)?;
            let excess = window.excess(&in_flight, expectation.as_ref()?);
            // Upstream gives a worker so many of any kind.
            (worker.tasks_of(prefix) > in_flight.floor()).then_some(excess as usize)
        };
        let workers = workers.into_iter();
        workers.map(|one| excess_of(one).unwrap_or(0)).collect()
    }

    #[doc = stub_doc!("WindowPolicy.set_memory")]
    fn set_memory(&self, worker: &str, bytes: f64) {
        self.window().set_memory(worker, bytes);
    }

    #[doc = stub_doc!("WindowPolicy.refill")]
    fn refill(&self, core: &Core, worker: &str, stimulus: &str, now_s: f64) -> PyResult<()> {
        let stimulus = Arc::from(stimulus);
        self.window()
            .refill(&mut core.core(), worker, &stimulus, now_s)
            .map_err(refusal)
    }

    #[doc = stub_doc!("WindowPolicy.has_too_many")]
    fn has_too_many(&self, core: &Core, prefix: &str) -> bool {
        self.window().check_excess(&core.core(), prefix)
    }
}

impl WorkerLoad {
    fn tasks_of(&self, prefix: &str) -> f64 {
        let mut tasks = self.tasks.iter();
        tasks
            .find(|(name, _)| name == prefix)
            .map_or(0.0, |(_, tasks)| *tasks as f64)
    }

    fn in_flight(&self, window: &Window) -> Option<InFlight> {
        let room = WorkerRoom {
            threads: self.threads,
            memory_limit: self.memory_limit,
            nbytes: 0,
        };
        let tasks = self.tasks.iter().map(|(prefix, tasks)| (prefix, *tasks));
        window.in_flight(&room, self.used_bytes, tasks)
    }
}
