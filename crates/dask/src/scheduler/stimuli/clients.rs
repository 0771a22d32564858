//! Events of clients: wanted, released and cancelled tasks.

use std::sync::Arc;

use super::super::core::{SchedulerCore, shown};
use super::super::error::EventError;
use super::super::ids::{ClientId, TaskId};
use super::super::messages::{ClientMessage, Message};
use super::super::recommendations::Recommendations;
use super::super::task::{Key, TaskState};
use super::super::transitions::erred::NO_BLAME;

/// The cancelled tasks, in the order of cancellation
#[derive(Clone, Debug, Default)]
pub struct Cancelled {
    /// How many depended on each that some depend on
    pub dependents: Vec<usize>,
    /// All of them
    pub keys: Vec<Key>,
}

impl SchedulerCore {
    /// Handles a client that connects
    pub fn handle_client_added(&mut self, name: &str) {
        let client = self.clients.find_or_add(name);
        self.clients[client].has_stream = true;
    }

    /// Handles a client that goes: it wants nothing any more
    ///
    /// # Errors
    ///
    /// Errors of the transitions that follow.
    pub fn handle_client_removed(
        &mut self,
        name: &str,
        stimulus: &Arc<str>,
        now_s: f64,
    ) -> Result<(), EventError> {
        self.begin(stimulus, now_s);
        let Some(&client) = self.clients.by_name.get(name) else {
            return Ok(());
        };
        let tasks = self.clients[client].wants.listed();
        self.release_tasks(&tasks, client)?;
        self.clients.remove(client);
        self.drain()
    }

    /// Handles a client that wants tasks; those that are not known are left out
    ///
    /// # Errors
    ///
    /// [`EventError::Lacks`] for a failed task that has no failure.
    pub fn handle_client_desires_keys(
        &mut self,
        keys: &[Key],
        client: &str,
        stimulus: &Arc<str>,
        now_s: f64,
    ) -> Result<(), EventError> {
        self.begin(stimulus, now_s);
        let client = self.clients.find_or_add(client);
        let known = keys.iter().filter_map(|key| self.tasks.by_key(key));
        let tasks: Vec<TaskId> = known.collect();
        self.desire(&tasks, client)
    }

    /// Handles a client that no longer wants tasks
    ///
    /// # Errors
    ///
    /// [`EventError::UnknownClient`]; what the transitions that follow may meet.
    pub fn handle_client_releases_keys(
        &mut self,
        keys: &[Key],
        client: &str,
        stimulus: &Arc<str>,
        now_s: f64,
    ) -> Result<(), EventError> {
        self.begin(stimulus, now_s);
        let client = self.client_of(client)?;
        self.release_keys(keys, client)?;
        self.drain()
    }

    pub(in super::super) fn client_of(&self, name: &str) -> Result<ClientId, EventError> {
        self.clients
            .by_name
            .get(name)
            .copied()
            .ok_or_else(|| EventError::UnknownClient {
                client: name.to_owned(),
            })
    }

    /// Handles a client that cancels tasks, with `force` for all clients
    ///
    /// Returns what upstream logs of it.
    ///
    /// # Errors
    ///
    /// [`EventError::Unwanted`] where upstream asserts that a client wants the cancelled task and
    /// its dependents; tasks that were cancelled before stay cancelled.
    pub fn handle_cancel(
        &mut self,
        keys: &[Key],
        client: &str,
        force: bool,
        why: [Option<&Arc<str>>; 2],
        stimulus: &Arc<str>,
        now_s: f64,
    ) -> Result<Cancelled, EventError> {
        self.begin(stimulus, now_s);
        let mut told = Cancelled::default();
        if let Some(&client) = self.clients.by_name.get(client) {
            let done = self.cancel(keys, client, force, why, &mut told);
            // Tasks that were cancelled before the refused one have released their units.
            self.drain()?;
            done?;
        }
        Ok(told)
    }

    fn cancel(
        &mut self,
        keys: &[Key],
        client: ClientId,
        force: bool,
        why: [Option<&Arc<str>>; 2],
        told: &mut Cancelled,
    ) -> Result<(), EventError> {
        let mut cancelled = Vec::new();
        let mut clients = Vec::new();
        for key in keys {
            let Some(task) = self.tasks.by_key(key) else {
                continue;
            };
            let wants = self.clients_of(task);
            if force || wants[..] == [client] {
                let dependents = self.tasks[task].dependents.listed();
                if !dependents.is_empty() {
                    let keys = dependents
                        .iter()
                        .map(|&one| Arc::clone(&self.tasks[one].key));
                    let keys: Vec<Key> = keys.collect();
                    told.dependents.push(keys.len());
                    self.cancel(&keys, client, force, why, told)?;
                }
                told.keys.push(Arc::clone(key));
                cancelled.push(Arc::clone(key));
            }
            // Cancelling its dependents may have changed who wants it, and even forgotten it.
            let wants = match self.tasks.find(task) {
                Some(_) => self.clients_of(task),
                None => Default::default(),
            };
            if wants.is_empty() {
                return Err(EventError::Unwanted { key: shown(key) });
            }
            if force {
                clients.extend(wants);
            } else {
                clients.push(client);
            }
        }
        for client in clients {
            self.release_keys(&cancelled, client)?;
        }
        let [reason, message] = why.map(|text| text.cloned());
        self.messages
            .push(Message::ToClients(ClientMessage::CancelledKeys {
                keys: cancelled,
                reason,
                message,
            }));
        Ok(())
    }

    /// Handles a client that has failed tasks run again; gives the tasks that are
    ///
    /// # Errors
    ///
    /// [`EventError::UnknownTask`]; what the transitions that follow may meet.
    pub fn handle_retry(
        &mut self,
        keys: &[Key],
        stimulus: &Arc<str>,
        now_s: f64,
    ) -> Result<Vec<Key>, EventError> {
        self.begin(stimulus, now_s);
        let mut stack = keys.to_vec();
        let mut seen: Vec<Key> = Vec::new();
        let mut recs = Recommendations::default();
        while let Some(key) = stack.pop() {
            let task = self.task_of(&key)?;
            let dependencies = self.tasks[task].dependencies.iter();
            let erred = dependencies
                .filter(|&dependency| self.tasks[dependency].state == TaskState::Erred)
                .map(|dependency| Arc::clone(&self.tasks[dependency].key));
            let before = stack.len();
            stack.extend(erred);
            if stack.len() == before {
                recs.set(task, TaskState::Waiting);
            }
            if !seen.contains(&key) {
                seen.push(key);
            }
        }
        self.follow(recs)?;
        self.drain()?;
        Ok(seen)
    }

    /// Handles a client that asks how a task is
    ///
    /// # Errors
    ///
    /// [`EventError::Lacks`] for a failed task that has no failure.
    pub fn handle_report_key(&mut self, key: &Key, client: Option<&str>) -> Result<(), EventError> {
        let client = client.map(|client| self.clients.find_or_add(client));
        if let Some(task) = self.tasks.by_key(key) {
            return self.report_on(task, client);
        }
        let message = ClientMessage::CancelledKeys {
            keys: vec![Arc::clone(key)],
            reason: None,
            message: None,
        };
        match client {
            Some(client) => self.send_to_client(client, message),
            None => self.messages.push(Message::ToClients(message)),
        }
        Ok(())
    }

    /// Has a client want tasks
    pub(in super::super) fn desire(
        &mut self,
        tasks: &[TaskId],
        client: ClientId,
    ) -> Result<(), EventError> {
        for &task in tasks {
            let who_wants = self.tasks[task].who_wants.get_or_insert_default();
            who_wants.insert(client);
            self.clients[client].wants.insert(task);
            if matches!(self.tasks[task].state, TaskState::Memory | TaskState::Erred) {
                self.report_on(task, Some(client))?;
            }
        }
        Ok(())
    }

    /// Tells who wants a task, and this client, how it ended
    pub(in super::super) fn report_on(
        &mut self,
        task: TaskId,
        client: Option<ClientId>,
    ) -> Result<(), EventError> {
        let message = match self.tasks[task].state {
            TaskState::Memory => ClientMessage::KeyInMemory {
                key: Arc::clone(&self.tasks[task].key),
                type_: None,
                workers: None,
            },
            TaskState::Erred if !self.tasks[task].is_blamed() => {
                return Err(self.lacks(task, NO_BLAME));
            }
            TaskState::Erred => self.erred_message(task),
            _ => return Ok(()),
        };
        self.report(task, client, &message);
        Ok(())
    }

    /// Tells who wants a task, and this client
    pub(in super::super) fn report(
        &mut self,
        task: TaskId,
        client: Option<ClientId>,
        message: &ClientMessage,
    ) {
        for wants in self.clients_of(task) {
            if Some(wants) != client {
                self.send_to_client(wants, message.clone());
            }
        }
        if let Some(client) = client {
            self.send_to_client(client, message.clone());
        }
    }

    pub(in super::super) fn release_keys(
        &mut self,
        keys: &[Key],
        client: ClientId,
    ) -> Result<(), EventError> {
        let known = keys.iter().filter_map(|key| self.tasks.by_key(key));
        let tasks: Vec<TaskId> = known.collect();
        self.release_tasks(&tasks, client)
    }

    fn release_tasks(&mut self, tasks: &[TaskId], client: ClientId) -> Result<(), EventError> {
        let mut recs = Recommendations::default();
        for &task in tasks {
            self.release_key(task, client, &mut recs);
        }
        self.follow(recs)?;
        self.fill_slots()
    }
}
