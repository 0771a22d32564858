//! Where tasks go by what links cost, if that is asked for: `backhaul.dask.placement.link_placement`, decision for
//! decision. The model is in `docs/design/placement.md`.
//!
//! Promises to workers are in [`backhaul_placement::cost`], which the caller shares: the caller
//! adds workers there before it adds them to the core, and links.

use std::sync::{Arc, MutexGuard, PoisonError};

use backhaul_placement::cost::candidates::CANDIDATES_MAX;
use backhaul_placement::cost::{
    Candidate, Costs, Inputs, MEETINGS_MAX, MEMBERS_MAX, Meetings, SharedCosts, Wish,
};
use smallvec::SmallVec;

use super::core::SchedulerCore;
use super::ids::{Id, PrefixId, TaskId, WorkerId};
use super::roots::Roots;
use super::task::{Key, Task, TaskTable};
use super::worker::Workers;
use crate::hashing::Map;

/// Placement of tasks by the cost of links
#[derive(Debug)]
pub(super) struct Placing {
    pub(super) costs: SharedCosts,
    /// How much of its memory limit a worker holds before it spills
    pub(super) memory_target: f64,
    /// Number in the costs, by worker; None for a worker that is not in the costs
    numbers: Vec<Option<u32>>,
    /// Workers by that number
    workers: Map<u32, WorkerId>,
    /// Expected size of a result, in bytes, by name of the prefix
    result_bytes: Map<Arc<str>, f64>,
    pub(super) roots: Roots,
}

/// Key of a root that was planned, and whether that task is there still
pub type PlannedRoot = (Key, bool);

/// State of the placement besides the tasks, for a core that goes on from there
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlacingView {
    /// Expected size of a result, in bytes, by name of the prefix
    pub result_bytes: Vec<(Arc<str>, f64)>,
    /// By key of a root that has not been assigned, address of the worker that is to run it
    pub hints: Vec<(Key, Arc<str>)>,
    /// Address of a worker, and its roots in order; some may have been given out meanwhile
    pub own: Vec<(Arc<str>, Vec<PlannedRoot>)>,
    /// Number of a result that is promised, its key, and address of the worker
    pub promised: Vec<(u64, Key, Arc<str>)>,
}

impl Placing {
    pub(super) fn number(&self, worker: WorkerId) -> Option<u32> {
        self.numbers.get(worker.index()).copied().flatten()
    }

    pub(super) fn worker(&self, number: u32) -> Option<WorkerId> {
        self.workers.get(&number).copied()
    }

    pub(super) fn costs(&self) -> MutexGuard<'_, Costs> {
        self.costs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Size to expect of a result, in bytes; 0 if none is known
    pub(super) fn result_bytes(&self, prefix: &str) -> f64 {
        self.result_bytes.get(prefix).copied().unwrap_or(0.0)
    }

    fn meet(&mut self, worker: WorkerId, workers: &Workers) {
        let number = self.costs().number(&workers[worker].address);
        let place = worker.index();
        if self.numbers.len() <= place {
            self.numbers.resize(place + 1, None);
        }
        self.numbers[place] = number;
        if let Some(number) = number {
            self.workers.insert(number, worker);
        }
    }

    fn read(&self, inputs: &mut Inputs, task: TaskId, one: &Task) {
        let bytes = one.nbytes.get().map(|bytes| bytes as f64);
        let holders = one.who_has.iter();
        let holders = holders.filter_map(|holder| self.number(holder));
        inputs.add(u64::from(task.number()), bytes, holders);
    }

    fn inputs(&self, task: TaskId, tasks: &TaskTable) -> Inputs {
        let mut inputs = Inputs::default();
        for input in tasks[task].dependencies.iter() {
            self.read(&mut inputs, input, &tasks[input]);
        }
        inputs
    }

    /// Returns the workers that have, or are to make, results that this task's result is combined
    /// with
    fn meetings(&self, task: TaskId, tasks: &TaskTable) -> Meetings {
        let mut meetings = Meetings::default();
        for dependent in tasks[task].dependents.iter().take(MEETINGS_MAX) {
            let needs = tasks[dependent].dependencies.iter();
            let others: Vec<u32> = needs
                .take(MEMBERS_MAX + 1)
                .filter(|&need| need != task)
                .filter_map(|need| {
                    let need = &tasks[need];
                    let place = need.who_has.iter().next().or(need.processing_on)?;
                    self.number(place)
                })
                .collect();
            meetings.add(&others);
        }
        meetings
    }

    /// Notes that a result will go to a worker
    pub(super) fn promise(&self, task: TaskId, worker: WorkerId, tasks: &TaskTable) {
        let Some(receiver) = self.number(worker) else {
            return;
        };
        let mut inputs = Inputs::default();
        self.read(&mut inputs, task, &tasks[task]);
        let mut costs = self.costs();
        for input in inputs.listed() {
            costs.mirror.promise(input, receiver);
        }
    }

    /// Notes that a result is on a worker, or that the worker does not need it any more
    pub(super) fn settle(&self, task: TaskId, worker: WorkerId) {
        if let Some(receiver) = self.number(worker) {
            let task = u64::from(task.number());
            self.costs().mirror.settle(task, receiver);
        }
    }

    /// Learns from a result that has been made how large those of its kind are
    fn observe(&mut self, prefix: &Arc<str>, bytes: f64) {
        if let Some(known) = self.result_bytes.get_mut(prefix) {
            *known += (bytes - *known) * WEIGHT;
            return;
        }
        if self.result_bytes.len() >= PREFIXES_MAX {
            self.result_bytes.clear();
        }
        self.result_bytes.insert(Arc::clone(prefix), bytes);
    }
}

impl SchedulerCore {
    /// Places tasks by what links cost from now on
    ///
    /// `result_bytes` is the expected size of a result by name of the prefix, and `memory_target` how
    /// much of its memory limit a worker holds before it spills. The costs have the workers that
    /// there are, and get each new one before this core.
    pub fn place_by_links(
        &mut self,
        costs: SharedCosts,
        result_bytes: Vec<(Arc<str>, f64)>,
        memory_target: f64,
    ) {
        let mut placing = Placing {
            costs,
            memory_target,
            numbers: Vec::new(),
            workers: Map::default(),
            result_bytes: result_bytes.into_iter().collect(),
            roots: Roots::default(),
        };
        for &worker in self.workers.sorted() {
            placing.meet(worker, &self.workers);
        }
        self.placing = Some(Box::new(placing));
    }

    /// Returns the state of the placement besides the tasks, if tasks are placed by the cost of
    /// links
    pub fn placing_view(&self) -> Option<PlacingView> {
        let placing = self.placing.as_deref()?;
        let address = |worker: WorkerId| Arc::clone(&self.workers[worker].address);
        let result_bytes = placing.result_bytes.iter();
        let mut view = PlacingView {
            result_bytes: result_bytes
                .map(|(name, &bytes)| (Arc::clone(name), bytes))
                .collect(),
            ..PlacingView::default()
        };
        view.result_bytes.sort_by(|one, other| one.0.cmp(&other.0));
        for (key, &worker) in placing.roots.hints() {
            view.hints.push((Arc::clone(key), address(worker)));
        }
        view.hints.sort();
        for (worker, own) in placing.roots.own() {
            let own = own.map(|root| {
                let is_there = root.state(&self.tasks).is_some();
                (Arc::clone(&root.key), is_there)
            });
            view.own.push((address(worker), own.collect()));
        }
        let promised: Vec<(u64, u32)> = placing.costs().mirror.promised().collect();
        for (number, receiver) in promised {
            let task = TaskId::at(number as usize);
            // A worker that has left is promised nothing: the caller forgets that.
            if let Some(worker) = placing.worker(receiver)
                && self.workers.is_current(worker)
                && let Some(one) = self.tasks.find(task)
            {
                let promised = (number, Arc::clone(&one.key), address(worker));
                view.promised.push(promised);
            }
        }
        view.promised.sort();
        Some(view)
    }

    /// Takes note of a worker that has come
    pub(super) fn meet_worker(&mut self, worker: WorkerId) {
        if let Some(placing) = &mut self.placing {
            placing.meet(worker, &self.workers);
        }
    }

    /// Removes a worker that has left: its roots go to any free worker
    pub(super) fn part_from_worker(&mut self, worker: WorkerId) {
        if let Some(placing) = &mut self.placing {
            placing.roots.remove_worker(worker);
            if let Some(number) = placing.number(worker) {
                placing.workers.remove(&number);
                placing.numbers[worker.index()] = None;
            }
        }
    }

    /// Learns the size of a result that no worker had
    pub(super) fn observe_result(&mut self, task: TaskId) {
        if let Some(placing) = &mut self.placing {
            let one = &self.tasks[task];
            let prefix = self.groups.prefix_of(one.group);
            // Upstream counts a result of unknown size as -1 byte.
            let bytes = one.nbytes.get().map_or(-1.0, |bytes| bytes as f64);
            placing.observe(&self.groups[prefix].name, bytes);
        }
    }

    /// How long the inputs of a task take to come to a worker behind what is under way, and with the
    /// weight of their bytes, in seconds; None where links do not count
    pub(super) fn transfer_s(&self, task: TaskId, worker: WorkerId) -> Option<f64> {
        let placing = self.placing.as_deref()?;
        let receiver = placing.number(worker)?;
        let inputs = placing.inputs(task, &self.tasks);
        let mut costs = placing.costs();
        Some(costs.mirror.transfer(&inputs.listed(), receiver).cost_s())
    }

    /// The worker where a task is expected to start first by what links cost; None where these do
    /// not count
    pub(super) fn decide_by_links(&mut self, task: TaskId) -> Option<WorkerId> {
        self.placing.as_ref()?;
        let one = &self.tasks[task];
        if one.dependencies.is_empty() {
            return self.decide_for_planned(task);
        }
        let requirements = one.requirements.as_ref();
        if one.actor || requirements.is_some_and(|requirements| requirements.restrict()) {
            return None;
        }
        let placing = self.placing.as_deref()?;
        let prefix: PrefixId = self.groups.prefix_of(one.group);
        let result_bytes = placing.result_bytes(&self.groups[prefix].name);
        let inputs = placing.inputs(task, &self.tasks);
        let meetings = if result_bytes > 0.0 {
            placing.meetings(task, &self.tasks)
        } else {
            Meetings::default()
        };
        let wish = Wish {
            inputs: &inputs,
            meetings: &meetings,
            result_bytes,
        };
        let stack_s = |number| {
            let worker = placing.worker(number)?;
            let threads = f64::from(self.workers[worker].nthreads).max(1.0);
            let runs = self.running.contains(worker);
            runs.then(|| self.stack_s(worker) / threads)
        };
        let held_bytes = |number| {
            let worker = placing.worker(number);
            worker.map_or(0, |worker| {
                u64::try_from(self.workers[worker].nbytes).unwrap_or(0)
            })
        };
        let mut costs = placing.costs();
        let near = costs.near(&inputs).candidates(stack_s).into_iter();
        let near = near.filter_map(|worker| {
            Some(Candidate {
                worker,
                stack_s: stack_s(worker)?,
                held_bytes: held_bytes(worker),
            })
        });
        let candidates: SmallVec<[Candidate; CANDIDATES_MAX]> = near.collect();
        let chosen = costs.soonest(&wish, &candidates)?;
        placing.worker(chosen)
    }
}

/// Kinds of tasks whose size is remembered; when there are more, all are forgotten
const PREFIXES_MAX: usize = 10_000;
/// How much the size of one result counts
const WEIGHT: f64 = 1.0 / 8.0;
