//! Workers that pause and go on.

use std::sync::Arc;

use super::super::core::SchedulerCore;
use super::super::error::EventError;
use super::super::worker::WorkerStatus;

impl SchedulerCore {
    /// Handles a worker that pauses or goes on; one that is not known is no matter
    ///
    /// # Errors
    ///
    /// Errors of the transitions that follow.
    pub fn handle_worker_status(
        &mut self,
        address: &str,
        status: WorkerStatus,
        stimulus: &Arc<str>,
        now_s: f64,
    ) -> Result<(), EventError> {
        self.begin(stimulus, now_s);
        let Some(worker) = self.workers.by_address(address) else {
            return Ok(());
        };
        let before = std::mem::replace(&mut self.workers[worker].status, status);
        if before == status {
            return Ok(());
        }
        if status == WorkerStatus::Running {
            self.running.insert(worker);
            self.check_idle_saturated(worker);
            self.schedule_unrunnable(worker)?;
            self.fill_slots()?;
        } else {
            self.running.remove(worker);
            self.remove_from_idle(worker);
            self.remove_from_slots(worker);
            self.saturated.remove(worker);
        }
        self.refresh_no_workers_since(now_s);
        if status == WorkerStatus::Running || before == WorkerStatus::Running {
            // Tasks that may run elsewhere while this worker cannot run them go there.
            self.drain_what_waits();
        }
        self.drain()
    }
}
