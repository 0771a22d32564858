//! Reports of workers about their tasks.

use std::sync::Arc;

use super::super::core::SchedulerCore;
use super::super::error::EventError;
use super::super::ids::TaskId;
use super::super::messages::TaskError;
use super::super::recommendations::Recommendations;
use super::super::task::{Key, Payload, TaskState};
use super::super::transitions::{Cause, ErredBy};

/// The number of no run: a worker may report a task that it was never sent
pub const NO_RUN: u64 = u64::MAX;

/// More bytes than a host has; what tens of thousands of results add up to still fits an `i64`
pub const NBYTES_MAX: u64 = 1 << 48;

/// A task that ended well
#[derive(Clone, Debug)]
pub struct TaskFinished {
    /// Which
    pub key: Key,
    /// Address of the worker
    pub worker: Arc<str>,
    /// Number of the run, as the scheduler gave it to the worker, or [`NO_RUN`]
    pub run_id: u64,
    /// Size of the result, in bytes; at most [`NBYTES_MAX`]
    pub nbytes: u64,
    /// Type of the result, pickled
    pub type_: Payload,
    /// Name of that type
    pub type_name: Arc<str>,
    /// Actions with their begin and end by the worker's clock, in seconds
    pub actions: Vec<(Arc<str>, f64, f64)>,
    /// Thread that ran it, as the worker numbers them
    pub thread: Option<u64>,
}

/// A run that ended well and counted, for those who watch
#[derive(Clone, Debug)]
pub struct EndedRun {
    /// The worker's report
    pub finished: TaskFinished,
    /// The event
    pub stimulus: Arc<str>,
}

/// A task that failed
#[derive(Clone, Debug)]
pub struct TaskErred {
    /// Which
    pub key: Key,
    /// Address of the worker
    pub worker: Arc<str>,
    /// Number of the run, as the scheduler gave it to the worker, or [`NO_RUN`]
    pub run_id: u64,
    /// The exception
    pub exception: Payload,
    /// Where
    pub traceback: Option<Payload>,
    /// Both as texts
    pub exception_text: Arc<str>,
    /// Both as texts
    pub traceback_text: Arc<str>,
}

impl SchedulerCore {
    /// Handles a task that ended well
    ///
    /// A task that this worker was not, or is no longer, asked for is refused with `free-keys`, or
    /// begins again.
    ///
    /// # Errors
    ///
    /// [`EventError::FinishedElsewhere`] if the worker names a run that another was given.
    pub fn handle_task_finished(
        &mut self,
        finished: &TaskFinished,
        stimulus: &Arc<str>,
        now_s: f64,
    ) -> Result<(), EventError> {
        self.begin(stimulus, now_s);
        let task = self.task_of_run(&finished.key, finished.run_id);
        let given = task.and_then(|task| self.tasks[task].processing_on);
        if self.workers.find(given, &finished.worker).is_none() {
            return Ok(());
        }
        let mut recs = Recommendations::default();
        match task {
            None => self.send_free_keys(&finished.worker, &finished.key),
            Some(task) => self.finish(task, finished, &mut recs)?,
        }
        self.follow(recs)?;
        self.fill_slots()?;
        self.drain()
    }

    fn finish(
        &mut self,
        task: TaskId,
        finished: &TaskFinished,
        recs: &mut Recommendations,
    ) -> Result<(), EventError> {
        let one = &self.tasks[task];
        match one.state {
            TaskState::Released | TaskState::Queued | TaskState::NoWorker | TaskState::Erred => {
                self.send_free_keys(&finished.worker, &finished.key);
            }
            _ if one.run_id.get() != Some(finished.run_id) => {
                if self.runs_on(task, &finished.worker) {
                    recs.set(task, TaskState::Released);
                } else {
                    self.send_free_keys(&finished.worker, &finished.key);
                }
            }
            TaskState::Memory => {
                if let Some(worker) = self.workers.by_address(&finished.worker) {
                    self.add_replica(task, worker);
                }
            }
            _ => self.transition(task, TaskState::Memory, Cause::Finished(finished), recs)?,
        }
        Ok(())
    }

    /// Returns whether a task is processing on the worker at this address
    fn runs_on(&self, task: TaskId, address: &str) -> bool {
        let worker = self.tasks[task].processing_on;
        worker.is_some_and(|worker| &*self.workers[worker].address == address)
    }

    /// Handles a task that failed: it is run again as often as it may be
    ///
    /// # Errors
    ///
    /// Errors of the transitions that follow.
    pub fn handle_task_erred(
        &mut self,
        erred: &TaskErred,
        stimulus: &Arc<str>,
        now_s: f64,
    ) -> Result<(), EventError> {
        self.begin(stimulus, now_s);
        let mut recs = Recommendations::default();
        if let Some(task) = self.tasks.by_key(&erred.key)
            && self.tasks[task].state == TaskState::Processing
        {
            self.fail(task, erred, &mut recs)?;
        }
        self.follow(recs)?;
        self.fill_slots()?;
        self.drain()
    }

    fn fail(
        &mut self,
        task: TaskId,
        erred: &TaskErred,
        recs: &mut Recommendations,
    ) -> Result<(), EventError> {
        if self.tasks[task].run_id.get() != Some(erred.run_id) {
            if self.runs_on(task, &erred.worker) {
                self.transition(task, TaskState::Released, Cause::None, recs)?;
            }
            return Ok(());
        }
        if self.tasks[task].retries > 0 {
            self.tasks[task].retries -= 1;
            return self.transition(task, TaskState::Waiting, Cause::None, recs);
        }
        let cause = ErredBy {
            blamed: task,
            worker: Some(Arc::clone(&erred.worker)),
            exception: Some(TaskError::Raised(Arc::clone(&erred.exception))),
            traceback: erred.traceback.clone(),
            exception_text: Some(Arc::clone(&erred.exception_text)),
            traceback_text: Some(Arc::clone(&erred.traceback_text)),
        };
        self.transition(task, TaskState::Erred, Cause::Erred(&cause), recs)
    }

    /// Handles a worker that gives a task back; without an address, the worker that has the task
    ///
    /// # Errors
    ///
    /// Errors of the transitions that follow.
    pub fn handle_reschedule(
        &mut self,
        key: &[u8],
        worker: Option<&str>,
        stimulus: &Arc<str>,
        now_s: f64,
    ) -> Result<(), EventError> {
        self.begin(stimulus, now_s);
        let Some(task) = self.tasks.by_key(key) else {
            return Ok(());
        };
        if self.tasks[task].state != TaskState::Processing
            || worker.is_some_and(|worker| !worker.is_empty() && !self.runs_on(task, worker))
        {
            return Ok(());
        }
        self.follow_one(task, TaskState::Released)?;
        self.drain()
    }

    /// Handles a task that has left its thread; `compute_s` is how long it held it
    ///
    /// # Errors
    ///
    /// Errors of the transitions that follow.
    pub fn handle_long_running(
        &mut self,
        key: &[u8],
        worker: &str,
        run_id: u64,
        compute_s: Option<f64>,
        stimulus: &Arc<str>,
        now_s: f64,
    ) -> Result<(), EventError> {
        self.begin(stimulus, now_s);
        if self.workers.by_address(worker).is_none() {
            return Ok(());
        }
        let Some(task) = self.tasks.by_key(key) else {
            return Ok(());
        };
        let one = &self.tasks[task];
        let Some(dask_worker) = one.processing_on else {
            return Ok(());
        };
        if !self.runs_on(task, worker) || one.run_id.get() != Some(run_id) {
            return Ok(());
        }
        if self.has_left_its_thread(task, dask_worker) {
            self.give_back_room(task, dask_worker)?;
            return self.drain();
        }
        self.unfile(task);
        let one = &self.tasks[task];
        if let Some(compute_s) = compute_s {
            let prefix = self.groups.prefix_of(one.group);
            self.groups.learn(prefix, |prefix| {
                let average_s = &mut prefix.duration_average_s;
                *average_s = if *average_s < 0.0 {
                    compute_s
                } else {
                    (*average_s + compute_s) / 2.0
                };
            });
        }
        self.add_to_long_running(dask_worker, task);
        self.check_idle_saturated(dask_worker);
        self.fill_slots()?;
        self.give_back_room(task, dask_worker)?;
        self.drain()
    }

    /// Sends queued tasks to where slots are free
    pub(in super::super) fn fill_slots(&mut self) -> Result<(), EventError> {
        if self.queue.is_empty() {
            return Ok(());
        }
        if self.has_planned() {
            return self.fill_slots_by_plan();
        }
        let available: i64 = self
            .slots
            .iter()
            .map(|worker| self.slots_available(worker))
            .sum();
        for _ in 0..available {
            let Some(first) = self.first_queued() else {
                break;
            };
            self.follow_one(first, TaskState::Processing)?;
        }
        Ok(())
    }
}
