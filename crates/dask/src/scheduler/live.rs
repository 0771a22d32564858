//! Questions of a running scheduler between events, while its state is here.
//!
//! None of it changes anything but [`SchedulerCore::fill`], which sends queued tasks ahead of
//! upstream's limit (`docs/design/in-flight-window.md`).

use std::sync::Arc;

use super::core::SchedulerCore;
use super::error::EventError;
use super::ids::{GroupId, TaskId, WorkerId};
use super::task::{Key, TaskState};
use super::views::GroupView;

/// Collections of upstream's that are often empty
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Container {
    /// `SchedulerState.queued`
    Queued,
    /// `SchedulerState.unrunnable`
    Unrunnable,
    /// `SchedulerState.replicated_tasks`
    Replicated,
    /// `SchedulerState.erred_tasks`
    Erred,
}

/// A task that a worker has been sent and has not finished
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RunningTask {
    /// Name of its group
    pub group: Arc<str>,
    /// Name of its prefix
    pub prefix: Arc<str>,
    /// Clients that want it, if the run is the one that counts and its result is plain data
    pub wanted_by: Vec<Arc<str>>,
}

/// The queued task that goes next
#[derive(Clone, Debug, PartialEq)]
pub struct Front {
    /// Name of its group
    pub group: Arc<str>,
    /// Name of its prefix
    pub prefix: Arc<str>,
    /// Expected time of a task of the prefix, in seconds; negative if unknown
    pub duration_s: f64,
    /// How many are queued
    pub queued: usize,
}

/// How much a worker can take
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WorkerRoom {
    /// How many tasks it runs at a time
    pub threads: u32,
    /// Memory that it may use, in bytes; 0 if that has no limit
    pub memory_limit: u64,
    /// Bytes of the results that it holds
    pub nbytes: i64,
}

/// A result that several workers hold
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ReplicatedTask {
    /// Its key
    pub key: Key,
    /// Its size in bytes, if that is known
    pub nbytes: Option<u64>,
    /// True if it is an actor
    pub actor: bool,
    /// Addresses of those workers
    pub who_has: Vec<Arc<str>>,
    /// Keys of the tasks that wait for it, and where they are processing
    pub waiters: Vec<(Key, Option<Arc<str>>)>,
}

impl SchedulerCore {
    /// Returns whether there is a task of this key
    pub fn has_task(&self, key: &[u8]) -> bool {
        self.tasks.by_key(key).is_some()
    }

    /// Returns whether there is a task of this key that has not failed
    pub fn has_good_task(&self, key: &[u8]) -> bool {
        let task = self.tasks.by_key(key);
        task.is_some_and(|task| self.tasks[task].state != TaskState::Erred)
    }

    /// Returns whether there is a group of this name
    pub fn has_group(&self, name: &str) -> bool {
        self.groups.by_name.contains_key(name)
    }

    /// How many tasks there are
    pub fn task_count(&self) -> usize {
        self.tasks.known_count()
    }

    /// Returns whether tasks are processing, or queued
    pub fn has_work(&self) -> bool {
        !self.processing_prefixes.is_empty() || !self.queue.is_empty()
    }

    /// Returns whether the only work is one processing task that is expected to take less time than
    /// that
    pub fn has_one_shorter_than(&self, seconds: f64) -> bool {
        let mut prefixes = self.processing_prefixes.iter();
        let (Some(prefix), None, true) = (prefixes.next(), prefixes.next(), self.queue.is_empty())
        else {
            return false;
        };
        let average_s = self.groups[prefix].duration_average_s;
        self.groups.loads.processing(prefix) == 1 && (0.0..seconds).contains(&average_s)
    }

    /// How many transitions there have been
    pub fn transition_count(&self) -> u64 {
        self.transition_count
    }

    /// Returns whether no task is waiting, queued or processing
    pub fn is_idle(&self) -> bool {
        self.groups
            .by_name
            .values()
            .all(|&group| self.is_done(group))
    }

    /// Returns whether no task of a group is waiting, queued or processing; also if the group is
    /// gone
    pub fn is_group_done(&self, name: &str) -> bool {
        let group = self.groups.by_name.get(name);
        group.is_none_or(|&group| self.is_done(group))
    }

    fn is_done(&self, group: GroupId) -> bool {
        let states = &self.groups[group].tally.states;
        let unfinished = [
            TaskState::Waiting,
            TaskState::NoWorker,
            TaskState::Queued,
            TaskState::Processing,
        ];
        unfinished.iter().all(|&state| states[state as usize] == 0)
    }

    /// Returns whether a collection has anything in it
    pub fn has_any(&self, container: Container) -> bool {
        match container {
            Container::Queued => !self.queue.is_empty(),
            Container::Unrunnable => !self.unrunnable.is_empty(),
            Container::Replicated => !self.replicated.is_empty(),
            Container::Erred => !self.erred.is_empty(),
        }
    }

    /// Bytes of the results that a worker holds
    ///
    /// # Errors
    ///
    /// [`EventError::UnknownWorker`].
    pub fn worker_bytes(&self, address: &str) -> Result<i64, EventError> {
        Ok(self.workers[self.worker_at(address)?].nbytes)
    }

    /// How much a worker can take
    ///
    /// # Errors
    ///
    /// [`EventError::UnknownWorker`].
    pub fn worker_room(&self, address: &str) -> Result<WorkerRoom, EventError> {
        let worker = &self.workers[self.worker_at(address)?];
        Ok(WorkerRoom {
            threads: worker.nthreads,
            memory_limit: worker.memory_limit,
            nbytes: worker.nbytes,
        })
    }

    /// Addresses of all workers
    pub fn worker_addresses(&self) -> Vec<Arc<str>> {
        let workers = self.workers.sorted().iter();
        workers
            .map(|&worker| Arc::clone(&self.workers[worker].address))
            .collect()
    }

    /// Threads of all workers
    pub fn total_threads(&self) -> u32 {
        self.total_nthreads
    }

    /// Tasks that a worker has been sent and has not finished, but for those that left their thread
    ///
    /// # Errors
    ///
    /// [`EventError::UnknownWorker`].
    pub fn in_flight(&self, address: &str) -> Result<usize, EventError> {
        let worker = &self.workers[self.worker_at(address)?];
        Ok(worker.processing.len() - worker.long_running.len())
    }

    /// The same by prefix, in the order of first ones
    ///
    /// # Errors
    ///
    /// [`EventError::UnknownWorker`].
    pub fn in_flight_by_prefix(&self, address: &str) -> Result<Vec<(Arc<str>, i64)>, EventError> {
        let worker = &self.workers[self.worker_at(address)?];
        let counts = worker.prefix_counts.iter();
        Ok(counts
            .map(|(prefix, count)| (Arc::clone(&self.groups[prefix].name), count))
            .collect())
    }

    /// Addresses of the workers that hold the result of a task; none if there is no such task
    pub fn holders_of(&self, key: &[u8]) -> Vec<Arc<str>> {
        let Some(task) = self.tasks.by_key(key) else {
            return Vec::new();
        };
        let who_has = self.tasks[task].who_has.iter();
        who_has
            .map(|worker| Arc::clone(&self.workers[worker].address))
            .collect()
    }

    /// A task that this worker has been sent; None if it has not, or not any more
    pub fn running_task(&self, key: &[u8], address: &str, run_id: u64) -> Option<RunningTask> {
        let task = self.tasks.by_key(key)?;
        let one = &self.tasks[task];
        let worker = one.processing_on?;
        if &*self.workers[worker].address != address || one.state != TaskState::Processing {
            return None;
        }
        let counts = one.run_id.get() == Some(run_id) && !one.actor;
        let clients = if counts {
            self.clients_of(task)
        } else {
            Default::default()
        };
        let prefix = self.groups.prefix_of(one.group);
        Some(RunningTask {
            group: Arc::clone(&self.groups[one.group].name),
            prefix: Arc::clone(&self.groups[prefix].name),
            wanted_by: clients
                .iter()
                .map(|&client| Arc::clone(&self.clients[client].name))
                .collect(),
        })
    }

    /// The results that several workers hold, in the order in which they came to be
    pub fn replicated_tasks(&self) -> Vec<ReplicatedTask> {
        let address = |worker: WorkerId| Arc::clone(&self.workers[worker].address);
        let tasks = self.replicated.iter().map(|task| {
            let one = &self.tasks[task];
            let waiters = one.waiters.iter().flat_map(|waiters| waiters.iter());
            ReplicatedTask {
                key: Arc::clone(&one.key),
                nbytes: one.nbytes.get(),
                actor: one.actor,
                who_has: one.who_has.iter().map(address).collect(),
                waiters: waiters
                    .map(|waiter| {
                        let waiter = &self.tasks[waiter];
                        (Arc::clone(&waiter.key), waiter.processing_on.map(address))
                    })
                    .collect(),
            }
        });
        tasks.collect()
    }

    /// Files a worker anew among the idle and the saturated, on request
    ///
    /// After each event that is done for the workers that it concerns, as Dask does: what others take is
    /// measured against the average, which may have changed since. `busy_s` is how long the worker is busy,
    /// in seconds; less than none is as it is.
    ///
    /// # Errors
    ///
    /// [`EventError::UnknownWorker`].
    pub fn file_worker(&mut self, address: &str, busy_s: f64) -> Result<(), EventError> {
        let worker = self.worker_at(address)?;
        self.check_idle_saturated_of(worker, busy_s);
        Ok(())
    }

    /// Returns whether stealing may move tasks: one worker is idle while another has too many
    pub fn may_balance(&self) -> bool {
        if self.idle.is_empty() || self.idle.len() == self.workers.sorted().len() {
            return false;
        }
        // The second is upstream's choice of victims where none is saturated.
        !self.saturated.is_empty()
            || self.workers.sorted().iter().any(|&worker| {
                let one = &self.workers[worker];
                one.processing.len() > one.nthreads as usize && self.occupancy_s(worker) > 0.2
            })
    }

    /// The queued task that goes next to a worker, before that is idle
    ///
    /// # Errors
    ///
    /// [`EventError::UnknownWorker`].
    pub fn front(&mut self, address: &str) -> Result<Option<Front>, EventError> {
        let worker = self.worker_at(address)?;
        let Some(first) = self.front_for(worker, false) else {
            return Ok(None);
        };
        let group = self.tasks[first].group;
        let prefix = self.groups.prefix_of(group);
        let prefix = &self.groups[prefix];
        Ok(Some(Front {
            group: Arc::clone(&self.groups[group].name),
            prefix: Arc::clone(&prefix.name),
            duration_s: prefix.duration_average_s,
            queued: self.queue.len(),
        }))
    }

    /// Sends a worker that runs up to so many queued tasks, as long as they are of one group
    ///
    /// # Errors
    ///
    /// [`EventError::UnknownWorker`], and what the transitions may meet.
    pub fn fill(
        &mut self,
        address: &str,
        tasks_max: usize,
        stimulus: &Arc<str>,
        now_s: f64,
    ) -> Result<usize, EventError> {
        self.begin(stimulus, now_s);
        let worker = self.worker_at(address)?;
        let filled = self.fill_one(worker, tasks_max);
        self.target = None;
        filled
    }

    fn fill_one(&mut self, worker: WorkerId, tasks_max: usize) -> Result<usize, EventError> {
        let mut group: Option<GroupId> = None;
        let mut sent = 0;
        while sent < tasks_max && self.running.contains(worker) {
            let Some(task) = self.front_for(worker, false) else {
                break;
            };
            let of = self.tasks[task].group;
            if *group.get_or_insert(of) != of {
                break;
            }
            self.give(task);
            self.target = Some(worker);
            self.follow_one(task, TaskState::Processing)?;
            sent += 1;
        }
        Ok(sent)
    }

    pub(super) fn first_queued(&mut self) -> Option<TaskId> {
        self.queue.first(&self.tasks)
    }

    /// Begins to note which tasks are forgotten, or stops
    pub fn note_forgotten(&mut self, note: bool) {
        self.forgotten = note.then(Vec::new);
    }

    /// Takes the keys of tasks forgotten since the last call
    pub fn take_forgotten(&mut self) -> Vec<Key> {
        self.forgotten
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// How many groups were dropped since they were last taken
    pub fn gone_group_count(&self) -> usize {
        self.gone_groups.len()
    }

    /// Takes the groups dropped since the last call, as they were last
    pub fn take_gone_groups(&mut self) -> Vec<GroupView> {
        std::mem::take(&mut self.gone_groups)
    }
}
