//! `backhaul_placement::cost` as Python calls it: reads what it needs off Dask's objects.
//!
//! One call for a decision, and none of its inputs becomes an object of Python: attributes of the
//! scheduler's own states are read here, and workers are told apart by the address of theirs.

use std::collections::HashMap;

use backhaul_placement::cost::{
    Beta, HostLinks, Input, Islands, LinkCosts, LinkError, MEETINGS_MAX, MEMBERS_MAX, Meetings,
    Mirror, Route, RouteTable,
};
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PySet;

use super::stack::Stack;

#[doc = stub_doc!("Placement")]
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
}

#[pymethods]
impl Placement {
    #[new]
    #[pyo3(signature = (*, beta, beta_private))]
    fn new(beta: f64, beta_private: f64) -> PyResult<Self> {
        for (name, beta) in [("beta", beta), ("beta_private", beta_private)] {
            if !(beta >= 1.0 && beta.is_finite()) {
                return Err(PyValueError::new_err(format!(
                    "{name} must be a number from 1, got {beta}"
                )));
            }
        }
        let beta = Beta {
            shared: beta,
            private: beta_private,
        };
        Ok(Self {
            mirror: Mirror::new(Box::new(HostLinks::default()), beta),
            hosts: HostLinks::default(),
            described: false,
            islands: Islands::default(),
            workers: Vec::new(),
            numbers: HashMap::new(),
        })
    }

    #[doc = stub_doc!("Placement.add_worker")]
    #[pyo3(signature = (worker, host, island, /))]
    fn add_worker(&mut self, worker: &Bound<'_, PyAny>, host: u32, island: u32) -> PyResult<u32> {
        let number = self.hosts.add_worker(host).map_err(refusal)?;
        self.islands.add(number, island);
        self.workers.push(Some(worker.clone().unbind()));
        self.numbers.insert(worker.as_ptr() as usize, number);
        self.use_hosts();
        Ok(number)
    }

    #[doc = stub_doc!("Placement.remove_worker")]
    #[pyo3(signature = (worker, /))]
    fn remove_worker(&mut self, worker: &Bound<'_, PyAny>) {
        if let Some(number) = self.numbers.remove(&(worker.as_ptr() as usize)) {
            self.mirror.forget(number);
            self.islands.remove(number);
            self.workers[number as usize] = None;
        }
    }

    #[doc = stub_doc!("Placement.set_routes")]
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

    #[doc = stub_doc!("Placement.set_hosts")]
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

    #[doc = stub_doc!("Placement.set_request_seconds")]
    #[pyo3(signature = (request_s, /))]
    fn set_request_seconds(&mut self, request_s: f64) -> PyResult<()> {
        self.mirror.set_request_s(request_s).map_err(refusal)
    }

    #[doc = stub_doc!("Placement.promise")]
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

    #[doc = stub_doc!("Placement.settle")]
    #[pyo3(signature = (task, worker, /))]
    fn settle(&mut self, task: &Bound<'_, PyAny>, worker: &Bound<'_, PyAny>) {
        if let Some(receiver) = self.number(worker) {
            self.mirror.settle(task.as_ptr() as u64, receiver);
        }
    }

    #[doc = stub_doc!("Placement.transfer")]
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
        Ok(inputs.with(|inputs| {
            let transfer = self.mirror.transfer(inputs, receiver);
            Some((transfer.queued_s, transfer.cost_s()))
        }))
    }

    #[doc = stub_doc!("Placement.choose")]
    #[pyo3(signature = (task, scheduler, unknown_s, running, result_bytes, /))]
    fn choose<'py>(
        &mut self,
        task: &Bound<'py, PyAny>,
        scheduler: &Bound<'py, PyAny>,
        unknown_s: f64,
        running: Option<&Bound<'py, PySet>>,
        result_bytes: f64,
    ) -> PyResult<Option<Py<PyAny>>> {
        let py = task.py();
        let inputs = self.read_inputs(task)?;
        let prefixes = scheduler.getattr(intern!(py, "task_prefixes"))?;
        let mut stack = Stack::new(&self.workers, prefixes.cast_into()?, unknown_s, running);
        let held = inputs.held();
        let candidates = self
            .islands
            .candidates(held, |worker| stack.seconds(py, worker));
        let meetings = if result_bytes > 0.0 {
            self.read_meetings(task)?
        } else {
            Meetings::default()
        };
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
                let seconds = stack_s
                    + self.mirror.transfer(inputs, worker).cost_s()
                    + meetings.seconds(worker, result_bytes, self.mirror.links());
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

    #[doc = stub_doc!("Placement.promises")]
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

    /// Finds who has what the result of a task will be combined with, or is to make it
    fn read_meetings(&self, task: &Bound<'_, PyAny>) -> PyResult<Meetings> {
        let py = task.py();
        let mut meetings = Meetings::default();
        let dependents = task.getattr(intern!(py, "dependents"))?;
        for dependent in dependents.try_iter()?.take(MEETINGS_MAX) {
            let needs = dependent?.getattr(intern!(py, "dependencies"))?;
            let mut others = Vec::new();
            for need in needs.try_iter()?.take(MEMBERS_MAX + 1) {
                let need = need?;
                if need.is(task) {
                    continue;
                }
                let holders = need.getattr(intern!(py, "who_has"))?;
                let first = if holders.is_none() {
                    None
                } else {
                    holders.try_iter()?.next().transpose()?
                };
                let place = match first {
                    Some(holder) => holder,
                    None => need.getattr(intern!(py, "processing_on"))?,
                };
                others.extend(self.number(&place));
            }
            meetings.add(&others);
        }
        Ok(meetings)
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

fn refusal(error: LinkError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// What a result counts whose size is not known, as in Dask's ``DEFAULT_DATA_SIZE``
const DEFAULT_BYTES: f64 = 1024.0;
