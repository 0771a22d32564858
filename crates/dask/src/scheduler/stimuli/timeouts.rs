//! Tasks that have waited too long for a worker that may run them.

use std::sync::Arc;

use super::super::core::SchedulerCore;
use super::super::error::EventError;
use super::super::ids::TaskId;
use super::super::messages::TaskError;
use super::super::recommendations::Recommendations;
use super::super::task::{Key, TaskState};
use super::super::transitions::{Cause, ErredBy};

/// Tasks that failed as no worker could run them for too long, in that order
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TimedOut {
    /// Workers ran, but none that meets their restrictions
    pub unsatisfied: Vec<Key>,
    /// No worker ran
    pub without_workers: Vec<Key>,
}

impl SchedulerCore {
    /// Handles that time has passed: tasks fail that no worker could run for too long
    ///
    /// Returns which.
    ///
    /// # Errors
    ///
    /// Errors of the transitions that follow.
    pub fn handle_no_workers_check(
        &mut self,
        stimulus: &Arc<str>,
        now_s: f64,
    ) -> Result<TimedOut, EventError> {
        self.begin(stimulus, now_s);
        let mut failed = TimedOut::default();
        let Some(timeout_s) = self.config.no_workers_timeout_s else {
            return Ok(failed);
        };
        self.refresh_no_workers_since(now_s);
        let since_s = self.no_workers_since_s;
        let (mut unsatisfied, mut without) = (Vec::new(), Vec::new());
        for task in self.unrunnable.iter() {
            let unrunnable_s = self.unrunnable_since_s.get(&task).copied().unwrap_or(now_s);
            if now_s <= unrunnable_s + timeout_s {
                break;
            }
            if since_s.is_none_or(|since_s| since_s >= unrunnable_s) {
                unsatisfied.push(task);
            } else {
                without.push(task);
            }
        }
        let mut recs = Recommendations::default();
        for task in unsatisfied {
            let one = &self.tasks[task];
            let asks = one.requirements.as_deref().cloned().unwrap_or_default();
            let error = TaskError::NoValidWorker {
                key: Arc::clone(&one.key),
                hosts: asks.hosts.unwrap_or_default(),
                workers: asks.workers.unwrap_or_default(),
                resources: asks.resources.unwrap_or_default(),
            };
            failed.unsatisfied.push(Arc::clone(&one.key));
            self.fail_unrun(task, error, &mut recs)?;
        }
        self.fail_without_workers(&without, &mut failed, &mut recs)?;
        if since_s.is_some_and(|since_s| now_s > since_s + timeout_s) {
            let queued: Vec<TaskId> = self.queue.iter().collect();
            self.fail_without_workers(&queued, &mut failed, &mut recs)?;
        }
        self.follow(recs)?;
        self.drain()?;
        Ok(failed)
    }

    fn fail_without_workers(
        &mut self,
        tasks: &[TaskId],
        failed: &mut TimedOut,
        recs: &mut Recommendations,
    ) -> Result<(), EventError> {
        for &task in tasks {
            let key = Arc::clone(&self.tasks[task].key);
            failed.without_workers.push(Arc::clone(&key));
            self.fail_unrun(task, TaskError::NoWorker { key }, recs)?;
        }
        Ok(())
    }

    fn fail_unrun(
        &mut self,
        task: TaskId,
        error: TaskError,
        recs: &mut Recommendations,
    ) -> Result<(), EventError> {
        let cause = ErredBy::found(task, None, error);
        self.transition(task, TaskState::Erred, Cause::Erred(&cause), recs)
    }

    /// Notes since when there has been work but no worker that takes tasks
    pub(super) fn refresh_no_workers_since(&mut self, now_s: f64) {
        if !self.running.is_empty() || (self.queue.is_empty() && self.unrunnable.is_empty()) {
            self.no_workers_since_s = None;
        } else if self.no_workers_since_s.is_none_or(|since_s| since_s == 0.0) {
            self.no_workers_since_s = Some(now_s);
        }
    }
}
