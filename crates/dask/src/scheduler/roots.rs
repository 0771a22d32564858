//! Which worker runs which root of a graph, planned when the graph comes: `backhaul.dask.placement.root_plan`,
//! decision for decision.
//!
//! A plan is a hint. A worker with a free slot takes the roots that were planned for it first, and
//! when there are none left, those of the worker that has most. No root waits for a worker that is
//! busy while another one is idle.

use std::cmp::Reverse;
use std::collections::VecDeque;

use backhaul_placement::roots::{self, Graph, Kinds, Target};

use super::core::SchedulerCore;
use super::error::EventError;
use super::ids::{GroupId, PrefixId, TaskId, WorkerId};
use super::placing::Placing;
use super::task::{Key, TaskState, TaskTable};
use crate::hashing::Map;

/// Roots that wait for a thread, by the worker that is to run them
#[derive(Debug, Default)]
pub(super) struct Roots {
    /// The worker that is to run each root that has not been assigned
    hints: Map<Key, WorkerId>,
    /// The same by worker, in order; some of it may have been given out meanwhile
    own: Map<WorkerId, Own>,
    /// How many workers had any so far
    owners: u64,
}

/// Roots of one worker
#[derive(Debug)]
struct Own {
    /// Place in the order in which workers came to have some
    order: u64,
    planned: VecDeque<Planned>,
}

/// A root that was planned
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) key: Key,
    task: TaskId,
    /// Tells the task from a later one of the same number
    serial: u32,
}

impl Planned {
    /// The state of the task, if it is there still
    pub(super) fn state(&self, tasks: &TaskTable) -> Option<TaskState> {
        let one = tasks.find(self.task)?;
        let is_it = one.serial == self.serial && one.state != TaskState::Forgotten;
        is_it.then_some(one.state)
    }
}

/// The front of a queue, or the back
#[derive(Clone, Copy)]
enum End {
    First,
    Last,
}

impl Roots {
    pub(super) fn hints(&self) -> impl Iterator<Item = (&Key, &WorkerId)> {
        self.hints.iter()
    }

    pub(super) fn own(
        &self,
    ) -> impl Iterator<Item = (WorkerId, impl Iterator<Item = &Planned> + '_)> + '_ {
        let mut own: Vec<(&WorkerId, &Own)> = self.own.iter().collect();
        own.sort_by_key(|(_, own)| own.order);
        let own = own.into_iter();
        own.map(|(worker, own)| (*worker, own.planned.iter()))
    }

    /// Removes a worker: its roots go to any free worker
    pub(super) fn remove_worker(&mut self, worker: WorkerId) {
        self.own.remove(&worker);
        self.hints.retain(|_, hint| *hint != worker);
    }

    fn give(&mut self, key: &Key) {
        if !self.hints.is_empty() {
            self.hints.remove(key);
        }
    }

    /// Drops hints of what a graph touches that has not begun: it is planned anew
    fn plan_anew(&mut self, touched: &[TaskId], tasks: &TaskTable) {
        if !self.hints.is_empty() {
            let begin = touched.iter().map(|&task| &tasks[task]);
            for one in begin.filter(|one| one.state == TaskState::Released) {
                self.hints.remove(&one.key);
            }
        }
        if self.hints.is_empty() {
            self.own.clear();
        }
    }

    fn add(&mut self, worker: WorkerId, planned: Planned) {
        self.hints.insert(Key::clone(&planned.key), worker);
        let owners = &mut self.owners;
        let own = self.own.entry(worker).or_insert_with(|| {
            *owners += 1;
            Own {
                order: *owners,
                planned: VecDeque::new(),
            }
        });
        own.planned.push_back(planned);
    }

    /// Looks whether roots were planned for a worker that may still come into the queue
    fn check_own(&mut self, worker: WorkerId, tasks: &TaskTable) -> bool {
        let Some(own) = self.own.get_mut(&worker) else {
            return false;
        };
        let own = &mut own.planned;
        while let Some(first) = own.front() {
            let is_before = matches!(
                first.state(tasks),
                Some(TaskState::Released | TaskState::Waiting | TaskState::Queued)
            );
            if is_before && self.hints.get(&first.key) == Some(&worker) {
                return true;
            }
            own.pop_front();
        }
        self.own.remove(&worker);
        false
    }

    /// A worker's first or last root in the queue; drops those that are not
    fn end(&mut self, worker: WorkerId, end: End, tasks: &TaskTable) -> Option<TaskId> {
        let own = &mut self.own.get_mut(&worker)?.planned;
        loop {
            let root = match end {
                End::First => own.front(),
                End::Last => own.back(),
            };
            let Some(root) = root else {
                self.own.remove(&worker);
                return None;
            };
            let is_queued = root.state(tasks) == Some(TaskState::Queued);
            let is_hinted = self.hints.get(&root.key) == Some(&worker);
            if is_queued && is_hinted {
                return Some(root.task);
            }
            if is_hinted {
                self.hints.remove(&root.key);
            }
            match end {
                End::First => own.pop_front(),
                End::Last => own.pop_back(),
            };
        }
    }

    /// The last root of the worker that has most: it is missed least, and what is combined with it
    /// comes last, too
    fn of_richest(&mut self, tasks: &TaskTable) -> Option<TaskId> {
        loop {
            // Of equal ones the one that has had some longest
            let own = self.own.iter();
            let (&worker, _) =
                own.max_by_key(|(_, own)| (own.planned.len(), Reverse(own.order)))?;
            if let Some(root) = self.end(worker, End::Last, tasks) {
                return Some(root);
            }
        }
    }
}

impl SchedulerCore {
    /// Plans the roots of a graph, before any of its tasks is given out
    pub(super) fn plan_roots(&mut self, touched: impl Iterator<Item = TaskId>) {
        let Some(mut placing) = self.placing.take() else {
            return;
        };
        let mut tasks: Vec<TaskId> = touched.collect();
        placing.roots.plan_anew(&tasks, &self.tasks);
        tasks.sort_by(|&one, &other| self.by_priority(one, other));
        for (task, worker) in self.planned(&placing, &tasks).unwrap_or_default() {
            let one = &self.tasks[task];
            let (key, serial) = (Key::clone(&one.key), one.serial);
            placing.roots.add(worker, Planned { key, task, serial });
        }
        self.placing = Some(placing);
    }

    /// Returns which worker is to run which of some tasks, in order; None if a plan gains nothing
    fn planned(&self, placing: &Placing, tasks: &[TaskId]) -> Option<Vec<(TaskId, WorkerId)>> {
        if self.config.worker_saturation.is_infinite() {
            return None;
        }
        let mut rootish: Map<GroupId, bool> = Map::default();
        let mut prefixes: Map<PrefixId, u32> = Map::default();
        let mut table = Vec::new();
        let (mut places, mut needs, mut kinds) = (Vec::new(), Vec::new(), Vec::new());
        let numbered = tasks.iter().zip(0..);
        let numbers: Map<TaskId, u32> = numbered.map(|(&task, number)| (task, number)).collect();
        let mut has_roots = false;
        for &task in tasks {
            let one = &self.tasks[task];
            places.push(match one.who_has.iter().next() {
                Some(holder) => placing.number(holder).map_or(LATER, i64::from),
                None if self.is_root(task, &mut rootish) => {
                    has_roots = true;
                    ROOT
                }
                None => LATER,
            });
            let count = needs.len();
            needs.push(0);
            let inputs = one.dependencies.iter();
            needs.extend(inputs.filter_map(|input| numbers.get(&input)));
            needs[count] = (needs.len() - count - 1) as u32;
            let prefix = self.groups.prefix_of(one.group);
            kinds.push(*prefixes.entry(prefix).or_insert_with(|| {
                let prefix = &self.groups[prefix];
                let seconds = prefix.duration_average_s.max(0.0);
                table.push((seconds, placing.result_bytes(&prefix.name)));
                table.len() as u32 - 1
            }));
        }
        if !has_roots {
            return None;
        }
        let targets = self.targets(placing);
        if targets.len() < 2 {
            return None;
        }
        let graph = Graph::read(&places, &needs).ok()?;
        let kinds = Kinds {
            of: &kinds,
            table: &table,
        };
        let planned = roots::choose(&graph, kinds, &targets, placing.costs().links())?;
        let planned = tasks.iter().zip(planned);
        Some(
            planned
                .filter_map(|(&task, number)| Some((task, placing.worker(number?)?)))
                .collect(),
        )
    }

    /// Workers that may run roots, with their threads and the memory that they have left
    fn targets(&self, placing: &Placing) -> Vec<Target> {
        let running = self.running.iter();
        let mut targets: Vec<Target> = running
            .filter_map(|worker| {
                let one = &self.workers[worker];
                let limit_bytes = one.memory_limit as f64 * placing.memory_target;
                let memory_bytes = if one.memory_limit == 0 {
                    f64::INFINITY
                } else {
                    (limit_bytes - one.nbytes as f64).max(0.0)
                };
                Some(Target {
                    worker: placing.number(worker)?,
                    share: f64::from(one.nthreads),
                    roots_max: f64::INFINITY,
                    memory_bytes,
                })
            })
            .collect();
        targets.sort_by_key(|target| target.worker);
        targets
    }

    /// Returns whether a task waits for nothing, and the core may choose its worker
    fn is_root(&self, task: TaskId, rootish: &mut Map<GroupId, bool>) -> bool {
        let one = &self.tasks[task];
        let requirements = one.requirements.as_ref();
        if !one.dependencies.is_empty()
            || one.state != TaskState::Released
            || one.spec.is_none()
            || one.actor
            || requirements.is_some_and(|requirements| requirements.restrict())
        {
            return false;
        }
        let is_rootish = rootish.entry(one.group);
        let is_rootish = *is_rootish.or_insert_with(|| self.is_rootish(task));
        // Upstream has a way of its own for roots that may not be queued.
        !is_rootish || one.queueable
    }

    /// Returns whether a planned root has not been assigned
    pub(super) fn has_planned(&self) -> bool {
        let placing = self.placing.as_ref();
        placing.is_some_and(|placing| !placing.roots.hints.is_empty())
    }

    /// Returns the worker that is planned for a root, if any
    fn hint_of(&self, task: TaskId) -> Option<WorkerId> {
        let roots = &self.placing.as_ref()?.roots;
        roots.hints.get(&self.tasks[task].key).copied()
    }

    /// The worker of a root that leaves the queue, or does not enter it; the second None if it is
    /// not planned
    pub(super) fn decide_for_planned_root(&mut self, task: TaskId) -> Option<Option<WorkerId>> {
        let hint = self.hint_of(task)?;
        let worker = self.free_worker(hint);
        if worker.is_some() {
            self.give(task);
        }
        Some(worker)
    }

    /// The worker of a root that is not queued; None if it is not planned
    pub(super) fn decide_for_planned(&mut self, task: TaskId) -> Option<WorkerId> {
        let hint = self.hint_of(task)?;
        if !self.running.contains(hint) {
            return None;
        }
        // A worker with more slots than threads is not idle: the task would start no sooner there.
        let free = self.free_worker(hint);
        self.give(task);
        let idle = free.filter(|&worker| {
            let one = &self.workers[worker];
            one.processing.len() < one.nthreads as usize
        });
        idle.or(Some(hint))
    }

    /// The worker that a root was planned for, or another one, if it has a free slot
    fn free_worker(&mut self, hint: WorkerId) -> Option<WorkerId> {
        if self.workers[hint].slot_order.is_some() {
            return Some(hint);
        }
        let placing = self.placing.as_mut()?;
        // No task waits for a busy worker while another worker has no roots of its own.
        let mut free = self.slots.in_order();
        free.find(|&worker| !placing.roots.check_own(worker, &self.tasks))
    }

    /// Notes that a task has been assigned, or is gone
    pub(super) fn give(&mut self, task: TaskId) {
        if let Some(placing) = &mut self.placing {
            placing.roots.give(&self.tasks[task].key);
        }
    }

    /// Returns the queued task that a worker is to run next, `of_others` if it has none of its own;
    /// the caller that sends the task calls [`SchedulerCore::give`]
    pub(super) fn front_for(&mut self, worker: WorkerId, of_others: bool) -> Option<TaskId> {
        let front = self.first_queued()?;
        let Some(mut placing) = self.placing.take() else {
            return Some(front);
        };
        let roots = &mut placing.roots;
        let own = roots.end(worker, End::First, &self.tasks);
        let is_planned = roots.hints.contains_key(&self.tasks[front].key);
        let comes_first = own.is_none_or(|own| self.by_priority(front, own).is_lt());
        let next = if !is_planned && comes_first {
            Some(front)
        } else if own.is_none() && of_others {
            Some(roots.of_richest(&self.tasks).unwrap_or(front))
        } else {
            own
        };
        self.placing = Some(placing);
        next
    }

    /// Sends queued tasks to where slots are free, each worker its own first
    pub(super) fn fill_slots_by_plan(&mut self) -> Result<(), EventError> {
        let free: Vec<WorkerId> = self.slots.in_order().collect();
        for worker in free {
            for _ in 0..self.slots_available(worker) {
                let Some(task) = self.front_for(worker, true) else {
                    break;
                };
                self.give(task);
                self.target = Some(worker);
                let sent = self.follow_one(task, TaskState::Processing);
                self.target = None;
                sent?;
            }
        }
        Ok(())
    }
}

/// A root that may be placed, as [`Graph::read`] takes it
const ROOT: i64 = -1;
/// A task that is placed when its inputs are there
const LATER: i64 = -2;
