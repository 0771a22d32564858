//! `backhaul_placement::cost` as Python calls it: reads what it needs off Dask's objects.
//!
//! One call for a decision, and none of its inputs becomes an object of Python: attributes of the
//! scheduler's own states are read here, and workers are identified by the addresses of these
//! states.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use backhaul_placement::cost::{
    Beta, Candidate, Costs, Inputs, LinkError, MEETINGS_MAX, MEMBERS_MAX, Meetings, SharedCosts,
    Wish,
};
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;

use super::stack::Stack;

#[doc = stub_doc!("Placement")]
#[pyclass(module = "backhaul._native")]
pub(crate) struct Placement {
    costs: SharedCosts,
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
        let costs = Costs::new(Beta {
            shared: beta,
            private: beta_private,
        });
        Ok(Self {
            costs: Arc::new(Mutex::new(costs)),
            workers: Vec::new(),
            numbers: HashMap::new(),
        })
    }

    #[doc = stub_doc!("Placement.add_worker")]
    #[pyo3(signature = (worker, host, island, /))]
    fn add_worker(&mut self, worker: &Bound<'_, PyAny>, host: u32, island: u32) -> PyResult<u32> {
        let address: String = worker.getattr(intern!(worker.py(), "address"))?.extract()?;
        let number = self.costs().add_worker(&address, host, island);
        let number = number.map_err(refusal)?;
        self.workers.push(Some(worker.clone().unbind()));
        self.numbers.insert(worker.as_ptr() as usize, number);
        Ok(number)
    }

    #[doc = stub_doc!("Placement.remove_worker")]
    #[pyo3(signature = (worker, /))]
    fn remove_worker(&mut self, worker: &Bound<'_, PyAny>) {
        if let Some(number) = self.numbers.remove(&(worker.as_ptr() as usize)) {
            self.costs().remove_worker(number);
            self.workers[number as usize] = None;
        }
    }

    #[doc = stub_doc!("Placement.replace_worker")]
    #[pyo3(signature = (number, worker, /))]
    fn replace_worker(&mut self, number: u32, worker: &Bound<'_, PyAny>) -> PyResult<()> {
        let known = self.workers.get_mut(number as usize);
        let Some(known) = known.and_then(Option::as_mut) else {
            return Err(PyValueError::new_err(format!("no worker {number}")));
        };
        self.numbers.remove(&(known.as_ptr() as usize));
        self.numbers.insert(worker.as_ptr() as usize, number);
        *known = worker.clone().unbind();
        Ok(())
    }

    #[doc = stub_doc!("Placement.set_routes")]
    #[pyo3(signature = (capacities_bytes_per_s, routes, /))]
    fn set_routes(
        &self,
        capacities_bytes_per_s: Vec<f64>,
        routes: Vec<(u32, u32, Vec<u32>, f64)>,
    ) -> PyResult<()> {
        let set = self.costs().set_routes(capacities_bytes_per_s, routes);
        set.map_err(refusal)
    }

    #[doc = stub_doc!("Placement.set_hosts")]
    #[pyo3(signature = (nics, flows, /))]
    fn set_hosts(&self, nics: Vec<(u32, f64)>, flows: Vec<(u32, u32, f64, f64)>) -> PyResult<()> {
        self.costs().set_hosts(nics, flows).map_err(refusal)
    }

    #[doc = stub_doc!("Placement.set_request_seconds")]
    #[pyo3(signature = (request_s, /))]
    fn set_request_seconds(&self, request_s: f64) -> PyResult<()> {
        let set = self.costs().mirror.set_request_s(request_s);
        set.map_err(refusal)
    }

    #[doc = stub_doc!("Placement.promise")]
    #[pyo3(signature = (task, worker, /))]
    fn promise(&self, task: &Bound<'_, PyAny>, worker: &Bound<'_, PyAny>) -> PyResult<()> {
        let Some(receiver) = self.number(worker) else {
            return Ok(());
        };
        let mut inputs = Inputs::default();
        self.read_input(task, &mut inputs)?;
        let mut costs = self.costs();
        for input in inputs.listed() {
            costs.mirror.promise(input, receiver);
        }
        Ok(())
    }

    #[doc = stub_doc!("Placement.settle")]
    #[pyo3(signature = (task, worker, /))]
    fn settle(&self, task: &Bound<'_, PyAny>, worker: &Bound<'_, PyAny>) {
        if let Some(receiver) = self.number(worker) {
            self.costs().mirror.settle(task.as_ptr() as u64, receiver);
        }
    }

    #[doc = stub_doc!("Placement.transfer")]
    #[pyo3(signature = (task, worker, /))]
    fn transfer(
        &self,
        task: &Bound<'_, PyAny>,
        worker: &Bound<'_, PyAny>,
    ) -> PyResult<Option<(f64, f64)>> {
        let Some(receiver) = self.number(worker) else {
            return Ok(None);
        };
        let inputs = self.read_inputs(task)?;
        let transfer = self.costs().mirror.transfer(&inputs.listed(), receiver);
        Ok(Some((transfer.queued_s, transfer.cost_s())))
    }

    #[doc = stub_doc!("Placement.choose")]
    #[pyo3(signature = (task, scheduler, unknown_s, running, result_bytes, /))]
    fn choose<'py>(
        &self,
        task: &Bound<'py, PyAny>,
        scheduler: &Bound<'py, PyAny>,
        unknown_s: f64,
        running: &Bound<'py, PyAny>,
        result_bytes: f64,
    ) -> PyResult<Option<Py<PyAny>>> {
        let py = task.py();
        let inputs = self.read_inputs(task)?;
        let meetings = if result_bytes > 0.0 {
            self.read_meetings(task)?
        } else {
            Meetings::default()
        };
        let prefixes = scheduler.getattr(intern!(py, "task_prefixes"))?;
        let mut stack = Stack::new(&self.workers, prefixes.cast_into()?, unknown_s, running);
        // While Python runs no thread may wait for the costs: that thread may have the interpreter.
        let near = self.costs().near(&inputs);
        let near = near.candidates(|worker| stack.seconds(py, worker));
        let candidates: Vec<Candidate> = near
            .into_iter()
            .filter_map(|worker| {
                Some(Candidate {
                    worker,
                    stack_s: stack.seconds(py, worker)?,
                    held_bytes: stack.nbytes(py, worker),
                })
            })
            .collect();
        if let Some(error) = stack.failed.take() {
            return Err(error);
        }
        let wish = Wish {
            inputs: &inputs,
            meetings: &meetings,
            result_bytes,
        };
        let best = self.costs().soonest(&wish, &candidates);
        let chosen = best.and_then(|worker| self.workers[worker as usize].as_ref());
        Ok(chosen.map(|state| state.clone_ref(py)))
    }

    #[doc = stub_doc!("Placement.promises")]
    fn promises(&self) -> usize {
        self.costs().mirror.promises()
    }

    #[doc = stub_doc!("Placement.promised")]
    fn promised(&self) -> Vec<(u64, u32)> {
        let mut promised: Vec<(u64, u32)> = self.costs().mirror.promised().collect();
        promised.sort_unstable();
        promised
    }

    #[doc = stub_doc!("Placement.rename")]
    #[pyo3(signature = (tasks, /))]
    fn rename(&self, tasks: Vec<(u64, Bound<'_, PyAny>)>) {
        let names: HashMap<u64, u64> = tasks
            .iter()
            .map(|(number, task)| (*number, task.as_ptr() as u64))
            .collect();
        let mut costs = self.costs();
        costs.mirror.rename(|number| names.get(&number).copied());
    }
}

impl Placement {
    /// Returns the costs, for other deciders
    pub(crate) fn shared(&self) -> SharedCosts {
        Arc::clone(&self.costs)
    }

    pub(crate) fn costs(&self) -> MutexGuard<'_, Costs> {
        self.costs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn number(&self, worker: &Bound<'_, PyAny>) -> Option<u32> {
        self.numbers.get(&(worker.as_ptr() as usize)).copied()
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
        let mut numbers = Vec::new();
        if !holders.is_none() {
            for holder in holders.try_iter()? {
                numbers.extend(self.number(&holder?));
            }
        }
        let bytes = (bytes >= 0.0).then_some(bytes);
        inputs.add(task.as_ptr() as u64, bytes, numbers);
        Ok(())
    }
}

fn refusal(error: LinkError) -> PyErr {
    PyValueError::new_err(error.to_string())
}
