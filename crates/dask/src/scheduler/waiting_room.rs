//! Tasks that wait until a worker has room for them, and when they go.

use std::sync::Arc;

use backhaul_placement::resources::{LineKey, Signature, Step};

use super::core::{SchedulerCore, shown};
use super::error::EventError;
use super::ids::{Id, TaskId, WorkerId};
use super::room::{Asking, Unmet, runs_in};
use super::task::TaskState;

impl SchedulerCore {
    /// Keeps a task that no worker has room for, or ever will
    pub(super) fn wait_for_room(&mut self, task: TaskId, request: Signature) {
        let (key, asking) = (self.line_key(task, request), self.asking(task));
        let one = &self.tasks[task];
        let Some(room) = self.room.as_deref_mut() else {
            return;
        };
        let reason = room.admission.wait(key, asking, one.priority);
        if let Some(reason) = reason
            && room.warned.insert(request)
            && let Some(asked) = room.admission.asked(request)
        {
            room.unmet.push(Unmet {
                key: Arc::clone(&one.key),
                amounts: asked.amounts.clone(),
                threads: asked.threads,
                reason,
            });
        }
    }

    /// Puts a task into its line, in which it waited before
    pub(super) fn join_line(&mut self, task: TaskId, request: Signature) {
        let (key, asking) = (self.line_key(task, request), self.asking(task));
        let priority = self.tasks[task].priority;
        if let Some(room) = &mut self.room {
            room.admission.join_line(key, asking, priority);
        }
    }

    fn line_key(&self, task: TaskId, request: Signature) -> LineKey {
        let asks = self.tasks[task].requirements.as_deref();
        let workers = asks.and_then(|asks| asks.workers.clone());
        let hosts = asks.and_then(|asks| asks.hosts.clone());
        let loose = asks.is_some_and(|asks| asks.loose);
        LineKey::new(
            request,
            workers.unwrap_or_default(),
            hosts.unwrap_or_default(),
            loose,
        )
    }

    /// Sends as many of the tasks that wait as workers have room for, the first ones first; to be
    /// called when all else that an event brings is done
    ///
    /// # Errors
    ///
    /// Errors of the transitions.
    pub(super) fn drain(&mut self) -> Result<(), EventError> {
        while let Some(room) = self.room.as_deref_mut()
            && std::mem::take(&mut room.drains)
        {
            self.drain_once()?;
        }
        Ok(())
    }

    fn drain_once(&mut self) -> Result<(), EventError> {
        let Some(room) = self.room.as_deref_mut() else {
            return Ok(());
        };
        let mut drain = room.admission.begin_drain(runs_in(&self.running));
        let mut answer = false;
        while let Some(room) = self.room.as_deref_mut()
            && let Some(step) = (room.admission).step(&mut drain, answer, runs_in(&self.running))
        {
            answer = match step {
                Step::Waits(asking) => self.waits(&asking),
                Step::MayGo((task, _)) => self.may_go(task),
                Step::Send(asking) => {
                    let name = shown(&self.tasks[asking.0].key);
                    self.stimulus = Arc::from(format!("resources-free-{name}"));
                    self.follow_one(asking.0, TaskState::Processing)?;
                    self.waits(&asking)
                }
            };
        }
        Ok(())
    }

    /// Looks whether a task that is restricted may find room: cheaper than to look for it
    fn may_go(&self, task: TaskId) -> bool {
        let (Some(room), Some(one)) = (self.room.as_deref(), self.tasks.find(task)) else {
            return false;
        };
        let Some(asks) = one.requirements.as_deref().filter(|asks| !asks.loose) else {
            return true;
        };
        let Some(request) = asks.request.filter(|_| self.keeps()) else {
            return true;
        };
        let has_room = |worker: WorkerId| {
            self.running.contains(worker) && room.admission.has_room(request, worker.number())
        };
        let mut named = asks.workers.iter().flatten().peekable();
        let mut hosts = asks.hosts.iter().flatten().peekable();
        if named.peek().is_none() && hosts.peek().is_none() {
            return true;
        }
        named.any(|address| self.workers.by_address(address).is_some_and(has_room))
            || hosts.any(|host| {
                let workers = self.host_of(host).and_then(|host| self.hosts.get(&host));
                workers.is_some_and(|workers| workers.iter().any(has_room))
            })
    }

    pub(super) fn waits(&self, &(task, serial): &Asking) -> bool {
        let one = self.tasks.find(task);
        one.is_some_and(|one| one.serial == serial && one.state == TaskState::NoWorker)
    }
}
