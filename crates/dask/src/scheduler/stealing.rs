//! Tasks that idle workers take from busy ones: upstream's `WorkStealing`, decision for decision.
//!
//! Tasks on workers are filed by how costly it is to move them, in fifteen levels. Every so often
//! ([`SchedulerCore::balance`]) the cheapest of those who have too much are asked for
//! ([`WorkerMessage::StealRequest`]); a worker that has not begun a task gives it up, and it is sent
//! to the thief ([`SchedulerCore::confirm_steal`]). The caller gets the numbers and log entries
//! that upstream keeps of stealing.

use std::sync::Arc;

use super::core::SchedulerCore;
use super::error::EventError;
use super::ids::{PrefixId, TaskId, WorkerId};
use super::messages::{Message, WorkerMessage};
use super::task::{Key, TaskState};
use crate::hashing::Map;
use crate::ordered_set::OrderedSet;

/// Time of a transfer besides its bytes, in seconds
const LATENCY_S: f64 = 0.1;

/// Levels of costs
pub(super) const LEVELS: usize = 15;

/// A victim, if none has far too much, is busy for so long at least, in seconds
const VICTIM_S: f64 = 0.2;

/// So many workers at most are looked at then
const VICTIMS_MAX: usize = 10;

/// From so many saturated workers on, they are not sorted
const SORTED_MAX: usize = 20;

/// Tasks that may be moved, and requests under way
#[derive(Debug, Default)]
pub(super) struct Stealing {
    /// Prefixes of tasks that are too short to be moved
    pub(super) fast: Map<Arc<str>, ()>,
    /// By worker and level
    pub(super) stealable: Map<WorkerId, Box<[OrderedSet<TaskId>; LEVELS]>>,
    /// Where each of them is
    pub(super) filed: Map<TaskId, (WorkerId, u8)>,
    /// Tasks that victims have been asked for, in the order in which they were
    pub(super) in_flight: OrderedSet<TaskId>,
    pub(super) moves: Map<TaskId, Move>,
    /// Seconds that workers gain and lose by them
    pub(super) in_flight_occupancy_s: Map<WorkerId, f64>,
    /// Tasks that they do
    pub(super) in_flight_tasks: Map<WorkerId, i64>,
    /// Tasks that were filed while their duration was unknown
    pub(super) unknown: Map<PrefixId, OrderedSet<TaskId>>,
    pub(super) requests: u64,
}

/// A task that a victim has been asked for
#[derive(Clone, Debug)]
pub(super) struct Move {
    pub(super) victim: WorkerId,
    pub(super) thief: WorkerId,
    /// Address of the thief, which may be gone
    pub(super) thief_address: Arc<str>,
    pub(super) victim_s: f64,
    pub(super) thief_s: f64,
    pub(super) stimulus: Arc<str>,
}

/// A task that was asked for, as upstream logs it
#[derive(Clone, Debug, PartialEq)]
pub struct StealRequested {
    /// Level of its cost
    pub level: usize,
    /// Its key
    pub key: Key,
    /// Work that the victim loses, in seconds
    pub cost_s: f64,
    /// Address of the victim
    pub victim: Arc<str>,
    /// How long that is busy for, in seconds
    pub victim_s: f64,
    /// Address of the thief
    pub thief: Arc<str>,
    /// How long that is busy for, in seconds
    pub thief_s: f64,
}

/// Result of a victim's answer
#[derive(Clone, Debug, PartialEq)]
pub enum StealAnswered {
    /// There is no such task
    Unknown,
    /// It answers another question
    Stale,
    /// The task has gone on meanwhile
    Aborted,
    /// Handled: what upstream logs it as, whether the thief is gone, addresses of victim and thief
    Handled(&'static str, bool, Arc<str>, Arc<str>),
}

impl SchedulerCore {
    /// Begins to file tasks; tasks of some prefixes are too short. Requests go on from a number
    pub fn begin_stealing(&mut self, fast: &[Arc<str>], requests: u64) {
        self.stealing = Some(Box::new(Stealing {
            fast: fast.iter().map(|name| (Arc::clone(name), ())).collect(),
            requests,
            ..Stealing::default()
        }));
    }

    /// Files a task anew after a transition
    pub(super) fn refile(&mut self, task: TaskId, start: TaskState, finish: TaskState) {
        if self.stealing.is_none() {
            return;
        }
        if start == TaskState::Processing {
            self.unfile(task);
            self.end_move(task);
            if finish == TaskState::Memory {
                self.learn_duration(task);
            }
        }
        if finish == TaskState::Processing {
            // A task that cannot be filed is left out, as upstream logs and goes on.
            let _ = self.file(task);
        }
    }

    /// Files all tasks of a prefix again, as it is known now how long they take
    fn learn_duration(&mut self, task: TaskId) {
        let prefix = self.groups.prefix_of(self.tasks[task].group);
        let Some(stealing) = &mut self.stealing else {
            return;
        };
        if stealing.unknown.is_empty() {
            return;
        }
        let Some(tasks) = stealing.unknown.remove(&prefix) else {
            return;
        };
        for task in tasks.iter() {
            if self.tasks[task].processing_on.is_none() {
                continue;
            }
            let moves = self
                .stealing
                .as_ref()
                .is_some_and(|stealing| stealing.moves.contains_key(&task));
            if !moves {
                self.unfile(task);
                if self.file(task).is_err() {
                    break;
                }
            }
        }
    }

    /// Forgets a number that another task may get
    pub(super) fn forget_unknown(&mut self, task: TaskId) {
        if let Some(stealing) = &mut self.stealing
            && !stealing.unknown.is_empty()
        {
            let prefix = self.groups.prefix_of(self.tasks[task].group);
            if let Some(tasks) = stealing.unknown.get_mut(&prefix) {
                tasks.remove(task);
            }
        }
    }

    /// Files a task that a worker has been sent by the cost of moving it
    fn file(&mut self, task: TaskId) -> Result<(), EventError> {
        let one = &self.tasks[task];
        let prefix = self.groups.prefix_of(one.group);
        let Some(level) = self.level_of(task, prefix)? else {
            return Ok(());
        };
        let Some(worker) = one.processing_on else {
            return Err(self.lacks(task, "worker"));
        };
        let is_unknown = self.prefix_duration_s(prefix) != self.groups[prefix].duration_average_s;
        if let Some(stealing) = &mut self.stealing {
            let levels = stealing
                .stealable
                .entry(worker)
                .or_insert_with(|| Box::new([const { OrderedSet::new() }; LEVELS]));
            levels[usize::from(level)].insert(task);
            stealing.filed.insert(task, (worker, level));
            if is_unknown {
                let unknown = stealing.unknown.entry(prefix);
                unknown.or_insert_with(OrderedSet::new).insert(task);
            }
        }
        Ok(())
    }

    /// How costly it is to move a task; `None` if it should not be
    fn level_of(&self, task: TaskId, prefix: PrefixId) -> Result<Option<u8>, EventError> {
        let fast = self.stealing.as_ref().map(|stealing| &stealing.fast);
        if fast.is_some_and(|fast| fast.contains_key(&self.groups[prefix].name)) {
            return Ok(None);
        }
        if self.stays(task) {
            return Ok(None);
        }
        let one = &self.tasks[task];
        if one.dependencies.is_empty() {
            return Ok(Some(0));
        }
        let compute_s = self.prefix_duration_s(prefix);
        if compute_s == 0.0 {
            let is_long = one
                .processing_on
                .is_some_and(|worker| self.workers[worker].long_running.contains(task));
            return if is_long {
                Ok(None)
            } else {
                Err(self.lacks(task, "duration"))
            };
        }
        let inputs = one.dependencies.iter();
        let nbytes: u64 = inputs
            .map(|input| self.tasks[input].nbytes_or(self.default_bytes()))
            .sum();
        let transfer_s = nbytes as f64 / self.bandwidth_bytes_per_s + LATENCY_S;
        let level = ((transfer_s / compute_s).log2() + 6.0).round_ties_even();
        if level >= LEVELS as f64 {
            return Ok(None);
        }
        Ok(Some(level.max(1.0) as u8))
    }

    /// Takes a task out of those that may be moved
    pub(super) fn unfile(&mut self, task: TaskId) {
        if let Some(stealing) = &mut self.stealing
            && let Some((worker, level)) = stealing.filed.remove(&task)
            && let Some(levels) = stealing.stealable.get_mut(&worker)
        {
            levels[usize::from(level)].remove(task);
        }
    }

    /// Removes a worker that has left
    pub(super) fn forget_victim(&mut self, worker: WorkerId) {
        if let Some(stealing) = &mut self.stealing {
            stealing.stealable.remove(&worker);
        }
    }

    fn end_move(&mut self, task: TaskId) -> Option<Move> {
        let stealing = self.stealing.as_mut()?;
        let one = stealing.moves.remove(&task)?;
        stealing.in_flight.remove(task);
        *stealing.occupancy_of(one.thief) -= one.thief_s;
        *stealing.occupancy_of(one.victim) += one.victim_s;
        *stealing.in_flight_tasks.entry(one.victim).or_default() += 1;
        *stealing.in_flight_tasks.entry(one.thief).or_default() -= 1;
        if stealing.moves.is_empty() {
            stealing.in_flight_occupancy_s.clear();
        }
        Some(one)
    }

    /// Asks a victim for a task
    fn ask_for(&mut self, task: TaskId, victim: WorkerId, thief: WorkerId) {
        self.unfile(task);
        let prefix = self.groups.prefix_of(self.tasks[task].group);
        let compute_s = self.prefix_duration_s(prefix);
        let victim_s = compute_s + self.comm_cost_s(task, victim);
        let thief_s = compute_s + self.comm_cost_s(task, thief);
        let thief_address = Arc::clone(&self.workers[thief].address);
        let Some(stealing) = &mut self.stealing else {
            return;
        };
        let stimulus: Arc<str> = Arc::from(format!("steal-{}", stealing.requests));
        stealing.requests += 1;
        let one = Move {
            victim,
            thief,
            thief_address,
            victim_s,
            thief_s,
            stimulus: Arc::clone(&stimulus),
        };
        stealing.in_flight.insert(task);
        stealing.moves.insert(task, one);
        *stealing.occupancy_of(victim) -= victim_s;
        *stealing.occupancy_of(thief) += thief_s;
        *stealing.in_flight_tasks.entry(victim).or_default() -= 1;
        *stealing.in_flight_tasks.entry(thief).or_default() += 1;
        let address = Arc::clone(&self.workers[victim].address);
        let message = WorkerMessage::StealRequest {
            key: Arc::clone(&self.tasks[task].key),
            stimulus,
        };
        self.messages.push(Message::ToWorker(address, message));
    }

    /// How long a worker has to fetch for a task, in seconds
    pub(super) fn comm_cost_s(&self, task: TaskId, worker: WorkerId) -> f64 {
        if let Some(transfer_s) = self.transfer_s(task, worker) {
            return transfer_s;
        }
        let inputs = self.tasks[task].dependencies.iter();
        let missing = inputs.filter(|&input| !self.tasks[input].who_has.contains(worker));
        let nbytes: u64 = missing
            .map(|input| self.tasks[input].nbytes_or(self.default_bytes()))
            .sum();
        nbytes as f64 / self.bandwidth_bytes_per_s
    }

    /// Asks those that have too much for what idle workers take; tells what for
    pub fn balance(&mut self, now_s: f64) -> Vec<StealRequested> {
        self.now_s = now_s;
        let mut requested = Vec::new();
        if self.stealing.is_none()
            || self.idle.is_empty()
            || self.idle.len() == self.workers.sorted().len()
        {
            return requested;
        }
        let sorted = self.workers.sorted().iter();
        let occupancies: Map<WorkerId, f64> =
            sorted.map(|&one| (one, self.occupancy_s(one))).collect();
        let mut thieves = self.idle.clone();
        let victims = self.victims(&occupancies, &thieves);
        if victims.as_ref().is_some_and(Vec::is_empty) {
            return requested;
        }
        for level in 0..LEVELS {
            if thieves.is_empty() {
                break;
            }
            let listed = victims
                .clone()
                .unwrap_or_else(|| self.saturated.iter().collect());
            for victim in listed {
                if self.stealable(victim, level).is_none() || thieves.is_empty() {
                    continue;
                }
                self.rob(victim, level, &mut thieves, &occupancies, &mut requested);
                let busy_s = self.combined_s(victim, &occupancies);
                self.check_idle_saturated_of(victim, busy_s);
            }
        }
        requested
    }

    /// Returns the workers that may lose tasks, the busiest first; `None` for all saturated ones,
    /// in order
    fn victims(
        &self,
        occupancies: &Map<WorkerId, f64>,
        thieves: &[WorkerId],
    ) -> Option<Vec<WorkerId>> {
        let by_work = |mut workers: Vec<WorkerId>| {
            workers.sort_by(|&one, &other| {
                let busy_s = self.combined_s(one, occupancies);
                self.combined_s(other, occupancies).total_cmp(&busy_s)
            });
            workers
        };
        if self.saturated.len() >= SORTED_MAX {
            return None;
        }
        if !self.saturated.is_empty() {
            return Some(by_work(self.saturated.iter().collect()));
        }
        let mut busiest = by_work(self.workers.sorted().to_vec());
        busiest.truncate(VICTIMS_MAX);
        busiest.retain(|&one| {
            self.combined_s(one, occupancies) > VICTIM_S
                && self.combined_tasks(one) > i64::from(self.workers[one].nthreads)
                && !thieves.contains(&one)
        });
        Some(busiest)
    }

    /// Asks a victim for tasks of a level
    fn rob(
        &mut self,
        victim: WorkerId,
        level: usize,
        thieves: &mut Vec<WorkerId>,
        occupancies: &Map<WorkerId, f64>,
        requested: &mut Vec<StealRequested>,
    ) {
        let listed = self.stealable(victim, level).map(OrderedSet::listed);
        for task in listed.unwrap_or_default() {
            if thieves.is_empty() {
                break;
            }
            let Some(thief) = self.thief_of(task, thieves, occupancies) else {
                continue;
            };
            let thief_s = self.combined_s(thief, occupancies);
            let victim_s = self.combined_s(victim, occupancies);
            let prefix = self.groups.prefix_of(self.tasks[task].group);
            let compute_s = self.prefix_duration_s(prefix);
            let victim_cost_s = self.comm_cost_s(task, victim);
            let thief_cost_s = self.comm_cost_s(task, thief);
            if thief_s + thief_cost_s + compute_s > victim_s - (victim_cost_s + compute_s) / 2.0 {
                continue;
            }
            self.ask_for(task, victim, thief);
            requested.push(StealRequested {
                level,
                key: Arc::clone(&self.tasks[task].key),
                cost_s: compute_s + victim_cost_s,
                victim: Arc::clone(&self.workers[victim].address),
                victim_s,
                thief: Arc::clone(&self.workers[thief].address),
                thief_s,
            });
            let busy_s = self.combined_s(thief, occupancies);
            if !self.is_unoccupied_with(thief, busy_s, self.combined_tasks(thief)) {
                thieves.retain(|&one| one != thief);
            }
        }
    }

    /// Returns the worker that would start a task first, the first of equal ones
    fn thief_of(
        &mut self,
        task: TaskId,
        thieves: &[WorkerId],
        occupancies: &Map<WorkerId, f64>,
    ) -> Option<WorkerId> {
        let valid = self.valid_workers(task);
        let one = &self.tasks[task];
        let mut among: Vec<WorkerId> = thieves.to_vec();
        if let Some(valid) = valid {
            among.retain(|&thief| valid.contains(thief));
            if among.is_empty() {
                if !one.requirements.as_ref().is_some_and(|one| one.loose) {
                    return None;
                }
                among = thieves.to_vec();
            }
        }
        let objective = |thief: WorkerId| {
            let worker = &self.workers[thief];
            let start_s = self.combined_s(thief, occupancies) / f64::from(worker.nthreads)
                + self.comm_cost_s(task, thief);
            let actors = if one.actor { worker.actors.len() } else { 0 };
            (actors, start_s, worker.nbytes)
        };
        let mut best = *among.first()?;
        let mut least = objective(best);
        for &thief in &among[1..] {
            let found = objective(thief);
            if found < least {
                (best, least) = (thief, found);
            }
        }
        Some(best)
    }

    fn stealable(&self, victim: WorkerId, level: usize) -> Option<&OrderedSet<TaskId>> {
        let stealing = self.stealing.as_ref()?;
        let tasks = &stealing.stealable.get(&victim)?[level];
        (!tasks.is_empty()).then_some(tasks)
    }

    fn combined_s(&self, worker: WorkerId, occupancies: &Map<WorkerId, f64>) -> f64 {
        let stealing = self.stealing.as_ref();
        let moved = stealing.and_then(|one| one.in_flight_occupancy_s.get(&worker));
        occupancies.get(&worker).copied().unwrap_or_default() + moved.copied().unwrap_or_default()
    }

    fn combined_tasks(&self, worker: WorkerId) -> i64 {
        let stealing = self.stealing.as_ref();
        let moved = stealing.and_then(|one| one.in_flight_tasks.get(&worker));
        self.workers[worker].processing.len() as i64 + moved.copied().unwrap_or_default()
    }

    /// Handles the answer of a victim: in which state it had the task, if it knew it
    ///
    /// # Errors
    ///
    /// Errors of sending or releasing the task; a state that no worker has.
    pub fn confirm_steal(
        &mut self,
        key: &[u8],
        state: Option<&str>,
        stimulus: &Arc<str>,
        now_s: f64,
    ) -> Result<StealAnswered, EventError> {
        self.begin(stimulus, now_s);
        let Some(task) = self.tasks.by_key(key) else {
            return Ok(StealAnswered::Unknown);
        };
        let stealing = self.stealing.as_ref();
        match stealing.and_then(|stealing| stealing.moves.get(&task)) {
            None => return Ok(StealAnswered::Aborted),
            Some(one) if one.stimulus != *stimulus => return Ok(StealAnswered::Stale),
            Some(_) => {}
        }
        let Some(one) = self.end_move(task) else {
            return Ok(StealAnswered::Aborted);
        };
        let is_gone = !self.workers.is_current(one.thief);
        let victim = Arc::clone(&self.workers[one.victim].address);
        let done = self.settle(task, state, &one, is_gone);
        if !is_gone {
            self.check_idle_saturated(one.thief);
        }
        if self.workers.is_current(one.victim) {
            self.check_idle_saturated(one.victim);
        }
        let has_left = self.workers.by_address(&one.thief_address).is_none();
        let told = done?;
        self.drain()?;
        Ok(StealAnswered::Handled(
            told,
            has_left,
            victim,
            one.thief_address,
        ))
    }

    fn settle(
        &mut self,
        task: TaskId,
        state: Option<&str>,
        one: &Move,
        is_gone: bool,
    ) -> Result<&'static str, EventError> {
        match state {
            None | Some("released") => self.follow_one(task, TaskState::Released)?,
            Some("ready" | "constrained" | "waiting") if is_gone => {
                self.follow_one(task, TaskState::Released)?;
            }
            Some("memory" | "executing" | "long-running" | "cancelled" | "resumed") => {
                return Ok("already-computing");
            }
            Some("ready" | "constrained" | "waiting") => {
                self.unfile(task);
                self.tasks[task].processing_on = Some(one.thief);
                self.remove_from_processing_of(one.victim, task);
                self.add_to_processing_of(one.thief, task);
                self.file(task)?;
                self.send_task(task, one.thief)?;
                return Ok("confirm");
            }
            Some(_) => return Err(self.lacks(task, "state")),
        }
        Ok("reschedule")
    }
}

impl Stealing {
    fn occupancy_of(&mut self, worker: WorkerId) -> &mut f64 {
        self.in_flight_occupancy_s.entry(worker).or_default()
    }
}
