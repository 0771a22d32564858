//! `backhaul_placement::cost` as Python calls it: reads what it needs off Dask's objects.
//!
//! One call for a decision, and none of its inputs becomes an object of Python: attributes of the
//! scheduler's own states are read here, and workers are told apart by the address of theirs.

use std::collections::HashMap;

use backhaul_placement::cost::{
    HostLinks, Input, Islands, LinkCosts, LinkError, Mirror, Route, RouteTable, Transfer,
};
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PySet};

/// Where the bytes of one scheduler are, and what is under way
#[pyclass(module = "backhaul._native")]
pub(crate) struct Placement {
    mirror: Mirror,
    hosts: HostLinks,
    /// Whether routes were given, which hosts say nothing about then
    described: bool,
    islands: Islands,
    /// By number; None for one that is gone
    workers: Vec<Option<Py<PyAny>>>,
    /// Numbers by address of the object, which `workers` keeps alive
    numbers: HashMap<usize, u32>,
    /// How much more a byte counts than the time that it takes alone
    beta: f64,
}

#[pymethods]
impl Placement {
    #[new]
    #[pyo3(signature = (*, beta))]
    fn new(beta: f64) -> PyResult<Self> {
        if !(beta >= 1.0 && beta.is_finite()) {
            return Err(PyValueError::new_err(format!(
                "beta must be a number from 1, got {beta}"
            )));
        }
        Ok(Self {
            mirror: Mirror::new(Box::new(HostLinks::default())),
            hosts: HostLinks::default(),
            described: false,
            islands: Islands::default(),
            workers: Vec::new(),
            numbers: HashMap::new(),
            beta,
        })
    }

    /// Adds a worker on a host, by numbers that leave out none; returns its own
    #[pyo3(signature = (worker, host, island, /))]
    fn add_worker(&mut self, worker: &Bound<'_, PyAny>, host: u32, island: u32) -> PyResult<u32> {
        let number = self.hosts.add_worker(host).map_err(refusal)?;
        self.islands.add(number, island);
        self.workers.push(Some(worker.clone().unbind()));
        self.numbers.insert(worker.as_ptr() as usize, number);
        self.use_hosts();
        Ok(number)
    }

    #[pyo3(signature = (worker, /))]
    fn remove_worker(&mut self, worker: &Bound<'_, PyAny>) {
        if let Some(number) = self.numbers.remove(&(worker.as_ptr() as usize)) {
            self.mirror.forget(number);
            self.islands.remove(number);
            self.workers[number as usize] = None;
        }
    }

    /// Takes all routes of the workers that there are: sender, receiver, edges, latency
    #[pyo3(signature = (capacities_bytes_per_s, routes, /))]
    fn set_routes(
        &mut self,
        capacities_bytes_per_s: Vec<f64>,
        routes: Vec<(u32, u32, Vec<u32>, f64)>,
    ) -> PyResult<()> {
        let routes = routes
            .into_iter()
            .map(|(sender, receiver, edges, latency_s)| {
                Ok((sender, receiver, Route::new(&edges, latency_s)?))
            })
            .collect::<Result<Vec<_>, LinkError>>()
            .map_err(refusal)?;
        let table =
            RouteTable::new(self.workers.len(), capacities_bytes_per_s, routes).map_err(refusal)?;
        self.described = true;
        self.mirror.set_links(Box::new(table));
        Ok(())
    }

    /// Takes what is known of the NICs of hosts, and of one flow between two hosts or within one
    #[pyo3(signature = (nics, flows, /))]
    fn set_hosts(
        &mut self,
        nics: Vec<(u32, f64)>,
        flows: Vec<(u32, u32, f64, f64)>,
    ) -> PyResult<()> {
        let mut hosts = self.hosts.clone();
        for (host, bytes_per_s) in nics {
            hosts.set_nic(host, bytes_per_s).map_err(refusal)?;
        }
        for (sender, receiver, bytes_per_s, latency_s) in flows {
            hosts
                .set_pair(sender, receiver, bytes_per_s, latency_s)
                .map_err(refusal)?;
        }
        self.hosts = hosts;
        self.use_hosts();
        Ok(())
    }

    /// Notes that a result will go to a worker
    #[pyo3(signature = (task, worker, /))]
    fn promise(&mut self, task: &Bound<'_, PyAny>, worker: &Bound<'_, PyAny>) -> PyResult<()> {
        let Some(receiver) = self.number(worker) else {
            return Ok(());
        };
        let mut inputs = Inputs::default();
        self.read_input(task, &mut inputs)?;
        inputs.with(|inputs| {
            for input in inputs {
                self.mirror.promise(*input, receiver);
            }
        });
        Ok(())
    }

    /// Notes that a result has come to a worker, or is not needed there any more
    #[pyo3(signature = (task, worker, /))]
    fn settle(&mut self, task: &Bound<'_, PyAny>, worker: &Bound<'_, PyAny>) {
        if let Some(receiver) = self.number(worker) {
            self.mirror.settle(task.as_ptr() as u64, receiver);
        }
    }

    /// What the inputs of a task take to come to a worker, in seconds: behind what is under way,
    /// and that with the weight of bytes
    #[pyo3(signature = (task, worker, /))]
    fn transfer(
        &mut self,
        task: &Bound<'_, PyAny>,
        worker: &Bound<'_, PyAny>,
    ) -> PyResult<Option<(f64, f64)>> {
        let Some(receiver) = self.number(worker) else {
            return Ok(None);
        };
        let inputs = self.read_inputs(task)?;
        let beta = self.beta;
        Ok(inputs.with(|inputs| {
            let Transfer { queued_s, alone_s } = self.mirror.transfer(inputs, receiver);
            Some((queued_s, queued_s + (beta - 1.0) * alone_s))
        }))
    }

    /// The worker where a task with inputs is expected to end soonest; None if no holder is known
    ///
    /// `durations` has the expected seconds of tasks by prefix, `prefixes` the prefixes of the
    /// scheduler for those it does not have; `running` are the workers that may be chosen, or None
    /// for all.
    #[pyo3(signature = (task, scheduler, unknown_s, running, /))]
    fn choose<'py>(
        &mut self,
        task: &Bound<'py, PyAny>,
        scheduler: &Bound<'py, PyAny>,
        unknown_s: f64,
        running: Option<&Bound<'py, PySet>>,
    ) -> PyResult<Option<Py<PyAny>>> {
        let py = task.py();
        let inputs = self.read_inputs(task)?;
        let prefixes = scheduler.getattr(intern!(py, "task_prefixes"))?;
        let mut stack = Stack::new(&self.workers, prefixes.cast_into()?, unknown_s, running);
        let held = inputs.held();
        let candidates = self
            .islands
            .candidates(held, |worker| stack.seconds(py, worker));
        let beta = self.beta;
        let mut best: Option<(f64, u64, u32)> = None;
        inputs.with(|inputs| {
            for worker in candidates {
                let Some(stack_s) = stack.seconds(py, worker) else {
                    continue;
                };
                // Nothing that comes can make it cheaper than its queue.
                if best.is_some_and(|(least, _, _)| stack_s > least) {
                    continue;
                }
                let Transfer { queued_s, alone_s } = self.mirror.transfer(inputs, worker);
                let seconds = stack_s + queued_s + (beta - 1.0) * alone_s;
                let bytes = stack.nbytes(py, worker);
                if best.is_none_or(|(least, fewest, _)| {
                    seconds < least || (seconds == least && bytes < fewest)
                }) {
                    best = Some((seconds, bytes, worker));
                }
            }
        });
        if let Some(error) = stack.failed.take() {
            return Err(error);
        }
        Ok(best.and_then(|(_, _, worker)| {
            self.workers[worker as usize]
                .as_ref()
                .map(|state| state.clone_ref(py))
        }))
    }

    /// How many results are promised, for tests
    fn promises(&self) -> usize {
        self.mirror.promises()
    }
}

impl Placement {
    /// Whether a worker of that number is there
    pub(crate) fn has_worker(&self, worker: u32) -> bool {
        self.workers
            .get(worker as usize)
            .is_some_and(Option::is_some)
    }

    /// What it knows of links
    pub(crate) fn links(&self) -> &dyn LinkCosts {
        self.mirror.links()
    }

    fn number(&self, worker: &Bound<'_, PyAny>) -> Option<u32> {
        self.numbers.get(&(worker.as_ptr() as usize)).copied()
    }

    fn use_hosts(&mut self) {
        if !self.described {
            self.mirror.set_links(Box::new(self.hosts.clone()));
        }
    }

    fn read_inputs(&self, task: &Bound<'_, PyAny>) -> PyResult<Inputs> {
        let mut inputs = Inputs::default();
        let needed = task.getattr(intern!(task.py(), "dependencies"))?;
        for dependency in needed.try_iter()? {
            self.read_input(&dependency?, &mut inputs)?;
        }
        Ok(inputs)
    }

    fn read_input(&self, task: &Bound<'_, PyAny>, inputs: &mut Inputs) -> PyResult<()> {
        let py = task.py();
        let bytes: f64 = task.getattr(intern!(py, "nbytes"))?.extract()?;
        let holders = task.getattr(intern!(py, "who_has"))?;
        let first = inputs.holders.len();
        if !holders.is_none() {
            for holder in holders.try_iter()? {
                inputs.holders.extend(self.number(&holder?));
            }
        }
        let bytes = if bytes >= 0.0 { bytes } else { DEFAULT_BYTES };
        inputs
            .results
            .push((task.as_ptr() as u64, bytes, first, inputs.holders.len()));
        Ok(())
    }
}

/// The inputs of a task, as they are read
#[derive(Default)]
struct Inputs {
    /// Identity, bytes, and where its holders are in `holders`
    results: Vec<(u64, f64, usize, usize)>,
    holders: Vec<u32>,
}

impl Inputs {
    fn held(&self) -> impl Iterator<Item = (u32, f64)> + '_ {
        self.results.iter().flat_map(|&(_, bytes, first, last)| {
            self.holders[first..last]
                .iter()
                .map(move |&holder| (holder, bytes))
        })
    }

    fn with<T>(&self, act: impl FnOnce(&[Input<'_>]) -> T) -> T {
        let inputs: Vec<Input<'_>> = self
            .results
            .iter()
            .map(|&(task, bytes, first, last)| Input {
                task,
                bytes,
                holders: &self.holders[first..last],
            })
            .collect();
        act(&inputs)
    }
}

/// How long workers are busy with what they were given, read once for each
struct Stack<'a, 'py> {
    workers: &'a [Option<Py<PyAny>>],
    prefixes: Bound<'py, PyDict>,
    unknown_s: f64,
    running: Option<&'a Bound<'py, PySet>>,
    /// By worker
    known: Vec<(u32, Option<f64>)>,
    /// Expected seconds by address of the name
    durations: Vec<(usize, f64)>,
    failed: Option<PyErr>,
}

impl<'a, 'py> Stack<'a, 'py> {
    fn new(
        workers: &'a [Option<Py<PyAny>>],
        prefixes: Bound<'py, PyDict>,
        unknown_s: f64,
        running: Option<&'a Bound<'py, PySet>>,
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
    fn seconds(&mut self, py: Python<'py>, worker: u32) -> Option<f64> {
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
        if let Some(running) = self.running
            && !running.contains(state)?
        {
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
    fn nbytes(&self, py: Python<'py>, worker: u32) -> u64 {
        self.workers[worker as usize]
            .as_ref()
            .and_then(|state| state.bind(py).getattr(intern!(py, "nbytes")).ok())
            .and_then(|bytes| bytes.extract().ok())
            .unwrap_or(0)
    }
}

fn refusal(error: LinkError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// What a result counts whose size is not known, as in Dask's ``DEFAULT_DATA_SIZE``
const DEFAULT_BYTES: f64 = 1024.0;
