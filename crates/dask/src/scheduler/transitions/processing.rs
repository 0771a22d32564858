//! To `Processing`, and from it: to memory, to failure, or back.

use std::sync::Arc;

use super::super::compact::NumberOrNone;
use super::super::core::{SchedulerCore, shown};
use super::super::error::EventError;
use super::super::ids::{TaskId, WorkerId};
use super::super::looks::{Noted, Watched};
use super::super::messages::{ComputeTask, Holders, Message, TaskError, WorkerMessage};
use super::super::recommendations::Recommendations;
use super::super::run_record::RecordedRun;
use super::super::stimuli::EndedRun;
use super::super::task::TaskState;
use super::{Cause, ErredBy};

impl SchedulerCore {
    /// Gives a task to a worker; it fails immediately if its inputs are larger than the worker's memory
    pub(super) fn add_to_processing(
        &mut self,
        task: TaskId,
        worker: WorkerId,
        recs: &mut Recommendations,
    ) -> Result<(), EventError> {
        self.add_to_processing_of(worker, task);
        self.tasks[task].processing_on = Some(worker);
        self.set_state(task, TaskState::Processing);
        self.use_resources(task, worker, 1.0)?;
        self.book(task, worker);
        self.check_idle_saturated(worker);
        self.tasks_sent += 1;
        if self.tasks[task].actor {
            self.add_actor(worker, task);
        }
        let one = &self.tasks[task];
        // Upstream counts a result of unknown size as -1 byte.
        let sizes = one
            .dependencies
            .iter()
            .map(|input| self.tasks[input].nbytes.get());
        let input_bytes: i64 = sizes
            .map(|nbytes| nbytes.map_or(-1, |nbytes| nbytes as i64))
            .sum();
        let limit_bytes = self.workers[worker].memory_limit;
        let fits = limit_bytes == 0 || input_bytes <= limit_bytes as i64;
        if fits || !self.config.refuse_over_memory {
            return self.send_task(task, worker);
        }
        let address = Arc::clone(&self.workers[worker].address);
        let error = TaskError::OverMemory {
            key: Arc::clone(&one.key),
            input_bytes,
            worker: Arc::clone(&address),
            limit_bytes,
            gathers: one.dependents.is_empty(),
        };
        let erred = ErredBy::found(task, Some(address), error);
        self.transition(task, TaskState::Erred, Cause::Erred(&erred), recs)
    }

    /// Sends a task to a worker as a new run
    pub(in super::super) fn send_task(
        &mut self,
        task: TaskId,
        worker: WorkerId,
    ) -> Result<(), EventError> {
        let run_id = self.runs;
        self.runs += 1;
        self.recent_runs.note(run_id, task);
        self.tasks[task].run_id = NumberOrNone::some(run_id);
        let one = &self.tasks[task];
        let Some(priority) = one.priority.get() else {
            return Err(self.lacks(task, "priority"));
        };
        let requirements = one.requirements.as_deref();
        let message = ComputeTask {
            key: Arc::clone(&one.key),
            run_id,
            priority,
            who_has: self.holders(one.dependencies.iter()),
            nbytes: one
                .dependencies
                .iter()
                .map(|input| self.tasks[input].nbytes.get())
                .collect(),
            spec: one.spec.clone(),
            resources: requirements.and_then(|one| one.resources.clone()),
            actor: one.actor,
            annotations: requirements.and_then(|one| one.annotations.clone()),
        };
        let address = Arc::clone(&self.workers[worker].address);
        let message = WorkerMessage::ComputeTask(Box::new(message));
        self.messages.push(Message::ToWorker(address, message));
        Ok(())
    }

    /// Returns which workers have which of these tasks
    pub(in super::super) fn holders(&self, tasks: impl Iterator<Item = TaskId>) -> Holders {
        tasks
            .map(|task| {
                let one = &self.tasks[task];
                let addresses = one.who_has.iter();
                let addresses = addresses.map(|worker| Arc::clone(&self.workers[worker].address));
                (Arc::clone(&one.key), addresses.collect())
            })
            .collect()
    }

    pub(super) fn processing_to_released(
        &mut self,
        task: TaskId,
        recs: &mut Recommendations,
    ) -> Result<(), EventError> {
        if let Some(worker) = self.end_processing(task)? {
            self.send_free_key(worker, task);
        }
        self.propagate_released(task, recs);
        Ok(())
    }

    pub(super) fn processing_to_memory(
        &mut self,
        task: TaskId,
        cause: Cause<'_>,
        recs: &mut Recommendations,
    ) -> Result<(), EventError> {
        let one = &self.tasks[task];
        let Cause::Finished(finished) = cause else {
            return Err(self.impossible(task, TaskState::Processing, TaskState::Memory));
        };
        let Some(worker) = self.workers.find(one.processing_on, &finished.worker) else {
            recs.set(task, TaskState::Released);
            return Ok(());
        };
        if one.processing_on != Some(worker) {
            let given = one.processing_on.map(|given| &*self.workers[given].address);
            return Err(EventError::FinishedElsewhere {
                key: shown(&one.key),
                worker: finished.worker.to_string(),
                given: given.unwrap_or_default().to_owned(),
            });
        }
        let group = one.group;
        for (action, start_s, stop_s) in &finished.actions {
            let action = self.names.intern(action);
            let computes = action == self.compute;
            self.groups
                .count_duration(group, action, computes, [*start_s, *stop_s]);
        }
        if let Some(record) = &self.run_record {
            record.add(RecordedRun {
                key: Arc::clone(&self.tasks[task].key),
                prefix: Arc::clone(&self.groups[self.groups[group].prefix].name),
                worker: Arc::clone(&finished.worker),
                thread: finished.thread,
                nbytes: finished.nbytes,
                actions: finished.actions.as_slice().into(),
            });
        }
        self.set_nbytes(task, finished.nbytes);
        self.end_processing(task)?;
        self.add_to_memory(task, worker, finished, recs);
        if self.watched != Watched::Nothing {
            self.noted.push(Noted::Ended(EndedRun {
                finished: finished.clone(),
                stimulus: Arc::clone(&self.stimulus),
            }));
        }
        Ok(())
    }

    pub(super) fn processing_to_erred(
        &mut self,
        task: TaskId,
        cause: Cause<'_>,
        recs: &mut Recommendations,
    ) -> Result<(), EventError> {
        let one = &self.tasks[task];
        if one.actor
            && let Some(worker) = one.processing_on
        {
            if !self.workers[worker].actors.contains(task) {
                // It was made one while it ran.
                return Err(self.lacks(task, "place among the actors of its worker"));
            }
            self.remove_actor(worker, task);
        }
        self.end_processing(task)?;
        self.propagate_erred(task, cause, recs)
    }

    /// Takes a task from its worker, which is returned if it is in the cluster still
    fn end_processing(&mut self, task: TaskId) -> Result<Option<WorkerId>, EventError> {
        let Some(worker) = self.tasks[task].processing_on.take() else {
            return Err(self.lacks(task, "worker"));
        };
        self.remove_from_processing_of(worker, task);
        if !self.workers.is_current(worker) {
            return Ok(None);
        }
        self.check_idle_saturated(worker);
        self.release_room(task, worker)?;
        Ok(Some(worker))
    }

    pub(in super::super) fn add_actor(&mut self, worker: WorkerId, task: TaskId) {
        if self.workers[worker].actors.insert(task) {
            self.add_reference(task);
        }
    }

    pub(in super::super) fn remove_actor(&mut self, worker: WorkerId, task: TaskId) {
        if self.workers[worker].actors.remove(task) {
            self.drop_reference(task);
        }
    }
}
