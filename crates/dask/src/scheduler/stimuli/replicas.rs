//! Results that come to be or go elsewhere than where their task ran.

use std::sync::Arc;

use super::super::core::SchedulerCore;
use super::super::error::EventError;
use super::super::ids::TaskId;
use super::super::messages::{ClientMessage, WorkerMessage};
use super::super::task::{Key, TaskState};

/// A result that a client put on workers
#[derive(Clone, Debug)]
pub struct PlacedResult {
    /// Its key
    pub key: Key,
    /// Its group
    pub group: Arc<str>,
    /// Its prefix
    pub prefix: Arc<str>,
    /// Its size, in bytes, if it is known
    pub nbytes: Option<u64>,
    /// Addresses of the workers
    pub workers: Vec<Arc<str>>,
}

impl SchedulerCore {
    /// Handles a worker that has results; the worker must drop those that are not known to be in
    /// memory
    pub fn handle_add_keys(
        &mut self,
        address: &Arc<str>,
        keys: &[Key],
        stimulus: &Arc<str>,
        now_s: f64,
    ) {
        self.begin(stimulus, now_s);
        let Some(worker) = self.workers.by_address(address) else {
            return;
        };
        let mut redundant = Vec::new();
        for key in keys {
            match self.tasks.by_key(key) {
                Some(task) if self.tasks[task].state == TaskState::Memory => {
                    self.add_replica(task, worker);
                }
                _ => redundant.push(Arc::clone(key)),
            }
        }
        if !redundant.is_empty() {
            let message = WorkerMessage::RemoveReplicas {
                keys: redundant,
                stimulus: Arc::clone(stimulus),
            };
            self.send_to_address(address, message);
        }
    }

    /// Handles a worker that has lost a result
    ///
    /// # Errors
    ///
    /// Errors of the transitions that follow.
    pub fn handle_release_worker_data(
        &mut self,
        key: &[u8],
        address: &str,
        stimulus: &Arc<str>,
        now_s: f64,
    ) -> Result<(), EventError> {
        self.begin(stimulus, now_s);
        let (Some(task), Some(worker)) = (self.tasks.by_key(key), self.workers.by_address(address))
        else {
            return Ok(());
        };
        if !self.tasks[task].who_has.contains(worker) {
            return Ok(());
        }
        self.remove_replica(task, worker);
        if self.tasks[task].who_has.is_empty() {
            self.follow_one(task, TaskState::Released)?;
        }
        self.drain()
    }

    /// Handles a worker that could not find results, and asks where they are
    ///
    /// # Errors
    ///
    /// [`EventError::UnknownWorker`].
    pub fn handle_request_refresh_who_has(
        &mut self,
        keys: &[Key],
        address: &Arc<str>,
        stimulus: &Arc<str>,
        now_s: f64,
    ) -> Result<(), EventError> {
        self.begin(stimulus, now_s);
        self.worker_at(address)?;
        let (mut known, mut unknown) = (Vec::<TaskId>::new(), Vec::new());
        for key in keys {
            match self.tasks.by_key(key) {
                Some(task) if known.contains(&task) => {}
                Some(task) => known.push(task),
                None => unknown.push(Arc::clone(key)),
            }
        }
        if !known.is_empty() {
            let message = WorkerMessage::RefreshWhoHas {
                who_has: self.holders(known.into_iter()),
                stimulus: Arc::clone(stimulus),
            };
            self.send_to_address(address, message);
        }
        if !unknown.is_empty() {
            let message = WorkerMessage::FreeKeys {
                keys: unknown,
                stimulus: Arc::clone(stimulus),
            };
            self.send_to_address(address, message);
        }
        Ok(())
    }

    /// Asks a worker to fetch results from others
    ///
    /// # Errors
    ///
    /// [`EventError::UnknownWorker`], [`EventError::UnknownTask`]; nothing has changed then.
    pub fn handle_acquire_replicas(
        &mut self,
        address: &Arc<str>,
        keys: &[Key],
        stimulus: &Arc<str>,
        now_s: f64,
    ) -> Result<(), EventError> {
        self.begin(stimulus, now_s);
        self.worker_at(address)?;
        let tasks = self.tasks_of(keys)?;
        let message = WorkerMessage::AcquireReplicas {
            who_has: self.holders(tasks.iter().copied()),
            nbytes: tasks
                .iter()
                .map(|&task| self.tasks[task].nbytes.get())
                .collect(),
            stimulus: Arc::clone(stimulus),
        };
        self.send_to_address(address, message);
        Ok(())
    }

    /// Asks a worker to drop results of which there are others
    ///
    /// A result that the worker does not hold is left out of the state, and named to it all the same.
    ///
    /// # Errors
    ///
    /// [`EventError::UnknownWorker`], [`EventError::UnknownTask`]; nothing has changed then.
    pub fn handle_remove_replicas(
        &mut self,
        address: &Arc<str>,
        keys: &[Key],
        stimulus: &Arc<str>,
        now_s: f64,
    ) -> Result<(), EventError> {
        self.begin(stimulus, now_s);
        let worker = self.worker_at(address)?;
        for task in self.tasks_of(keys)? {
            if self.tasks[task].who_has.contains(worker) {
                self.remove_replica(task, worker);
            }
        }
        let message = WorkerMessage::RemoveReplicas {
            keys: keys.to_vec(),
            stimulus: Arc::clone(stimulus),
        };
        self.send_to_address(address, message);
        Ok(())
    }

    /// Handles results that a client put on workers, and wants if it is named
    ///
    /// # Errors
    ///
    /// [`EventError::UnknownWorker`]; nothing has changed then.
    pub fn handle_update_data(
        &mut self,
        placed: &[PlacedResult],
        client: Option<&str>,
        stimulus: &Arc<str>,
        now_s: f64,
    ) -> Result<(), EventError> {
        self.begin(stimulus, now_s);
        for address in placed.iter().flat_map(|one| &one.workers) {
            self.worker_at(address)?;
        }
        let mut tasks = Vec::with_capacity(placed.len());
        for one in placed {
            let task = self.place(one);
            tasks.push(task);
        }
        if let Some(client) = client {
            let client = self.clients.find_or_add(client);
            self.desire(&tasks, client)?;
        }
        Ok(())
    }

    fn place(&mut self, placed: &PlacedResult) -> TaskId {
        let known = self.tasks.by_key(&placed.key);
        let task = known.unwrap_or_else(|| {
            self.new_task(
                &placed.key,
                &placed.group,
                &placed.prefix,
                TaskState::Memory,
            )
        });
        self.set_state(task, TaskState::Memory);
        if let Some(nbytes) = placed.nbytes {
            self.set_nbytes(task, nbytes);
        }
        for address in &placed.workers {
            if let Some(worker) = self.workers.by_address(address) {
                self.add_replica(task, worker);
            }
        }
        let message = ClientMessage::KeyInMemory {
            key: Arc::clone(&placed.key),
            type_: None,
            workers: Some(placed.workers.clone()),
        };
        self.report(task, None, &message);
        task
    }

    fn tasks_of(&self, keys: &[Key]) -> Result<Vec<TaskId>, EventError> {
        keys.iter().map(|key| self.task_of(key)).collect()
    }

    /// Restricts a task to workers at these addresses, or lifts that
    ///
    /// # Errors
    ///
    /// [`EventError::UnknownTask`].
    pub fn handle_restrictions(
        &mut self,
        key: &[u8],
        addresses: Option<Vec<Arc<str>>>,
    ) -> Result<(), EventError> {
        let task = self.task_of(key)?;
        let requirements = self.tasks[task].requirements.get_or_insert_default();
        requirements.workers = addresses.filter(|addresses| !addresses.is_empty());
        Ok(())
    }
}
