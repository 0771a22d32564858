//! The state as a whole, and the parts of it that everything else uses.

use std::collections::VecDeque;
use std::sync::Arc;

use super::client::Clients;
use super::config::Config;
use super::error::EventError;
use super::groups::Groups;
use super::ids::{ClientId, NameId, PrefixId, TaskId, WorkerId};
use super::looks::{Noted, Watched};
use super::messages::{ClientMessage, Message, Transition, WorkerMessage};
use super::names::Names;
use super::placing::Placing;
use super::queue::TaskQueue;
use super::recent::{PastTransition, RecentTransitions};
use super::recent_runs::RecentRuns;
use super::room::Room;
use super::run_record::RunRecord;
use super::slots::FreeSlots;
use super::stealing::Stealing;
use super::task::{ErredTask, Key, TaskState, TaskTable};
use super::views::GroupView;
use super::worker::Workers;
use crate::hashing::Map;
use crate::ordered_set::OrderedSet;

/// Tasks, workers and clients, and how events change them
///
/// Each event is a call of one `handle_*`; what is to be sent afterwards is taken with
/// [`SchedulerCore::take_messages`]. Times are arguments: seconds of a clock that only goes forward
/// and whose zero does not matter.
#[derive(Debug)]
pub struct SchedulerCore {
    pub(super) config: Config,
    pub(super) known_durations_s: Map<Arc<str>, f64>,
    pub(super) tasks: TaskTable,
    /// Forgotten tasks that entries of workers still refer to, which a task of the same key inherits
    pub(super) remembered: Map<Key, TaskId>,
    pub(super) groups: Groups,
    pub(super) names: Names,
    /// The action that runs a task
    pub(super) compute: NameId,
    pub(super) workers: Workers,
    pub(super) running: OrderedSet<WorkerId>,
    /// Workers with too little to do, in the order of their addresses
    pub(super) idle: Vec<WorkerId>,
    pub(super) saturated: OrderedSet<WorkerId>,
    pub(super) slots: FreeSlots,
    /// Workers of each host, in the order of their coming
    pub(super) hosts: Map<NameId, OrderedSet<WorkerId>>,
    /// Workers by resource, with the amount of each; a resource stays when its workers have left
    pub(super) resources: Map<NameId, Vec<(WorkerId, f64)>>,
    pub(super) total_nthreads: u32,
    pub(super) bandwidth_bytes_per_s: f64,
    /// Prefixes of tasks that are processing, in the order of first ones
    pub(super) processing_prefixes: OrderedSet<PrefixId>,
    /// Bytes that all workers have to fetch
    pub(super) network_bytes: u64,
    pub(super) clients: Clients,
    pub(super) queue: TaskQueue,
    /// Tasks that no worker may run, and since when
    pub(super) unrunnable: OrderedSet<TaskId>,
    pub(super) unrunnable_since_s: Map<TaskId, f64>,
    pub(super) no_workers_since_s: Option<f64>,
    pub(super) replicated: OrderedSet<TaskId>,
    /// Failures, the latest first
    pub(super) erred: VecDeque<ErredTask>,
    pub(super) generation: i64,
    pub(super) last_graph_s: f64,
    /// Tasks sent to workers so far
    pub(super) tasks_sent: u64,
    pub(super) runs: u64,
    pub(super) recent_runs: RecentRuns,
    pub(super) transition_count: u64,
    pub(super) now_s: f64,
    pub(super) stimulus: Arc<str>,
    pub(super) messages: Vec<Message>,
    pub(super) log: Option<Vec<Transition>>,
    pub(super) recent: RecentTransitions,
    /// The worker that is to have the next queued task, even if others are less busy
    pub(super) target: Option<WorkerId>,
    /// Keys of tasks forgotten, if the caller keeps something of its own by key
    pub(super) forgotten: Option<Vec<Key>>,
    /// Groups that were dropped meanwhile, as they were last
    pub(super) gone_groups: Vec<GroupView>,
    /// Notes that watching plugins have yet to get, and which kinds of notes they want
    pub(super) noted: Vec<Noted>,
    /// Which tasks may be moved to other workers, if any may
    pub(super) stealing: Option<Box<Stealing>>,
    /// Requests of tasks for resources and the free units of workers, if requests are heeded
    pub(super) room: Option<Box<Room>>,
    /// Placement by the cost of links, if that is switched on
    pub(super) placing: Option<Box<Placing>>,
    pub(super) watched: Watched,
    /// Record of ended runs, if the caller keeps one
    pub(super) run_record: Option<Arc<RunRecord>>,
}

impl SchedulerCore {
    /// A cluster without workers
    pub fn new(config: Config) -> Self {
        let mut names = Names::default();
        let compute = names.intern("compute");
        let groups = Groups::new(config.unknown_duration_s);
        let mut core = Self {
            known_durations_s: config.known_durations_s.iter().cloned().collect(),
            bandwidth_bytes_per_s: config.bandwidth_bytes_per_s,
            recent: RecentTransitions::new(config.recent_transitions_max),
            config,
            tasks: TaskTable::default(),
            remembered: Map::default(),
            groups,
            names,
            compute,
            workers: Workers::default(),
            running: OrderedSet::new(),
            idle: Vec::new(),
            saturated: OrderedSet::new(),
            slots: FreeSlots::default(),
            hosts: Map::default(),
            resources: Map::default(),
            total_nthreads: 0,
            processing_prefixes: OrderedSet::new(),
            network_bytes: 0,
            clients: Clients::new(),
            queue: TaskQueue::default(),
            unrunnable: OrderedSet::new(),
            unrunnable_since_s: Map::default(),
            no_workers_since_s: None,
            replicated: OrderedSet::new(),
            erred: VecDeque::new(),
            generation: 0,
            last_graph_s: 0.0,
            tasks_sent: 0,
            runs: 0,
            recent_runs: RecentRuns::default(),
            transition_count: 0,
            now_s: 0.0,
            stimulus: Arc::from(""),
            messages: Vec::new(),
            log: None,
            target: None,
            forgotten: None,
            gone_groups: Vec::new(),
            noted: Vec::new(),
            stealing: None,
            room: None,
            placing: None,
            watched: Watched::Nothing,
            run_record: None,
        };
        core.make_room();
        core
    }

    /// Takes what is to be sent, in the order in which each receiver is to have it
    pub fn take_messages(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.messages)
    }

    /// Begins to log transitions, or stops
    pub fn log_transitions(&mut self, log: bool) {
        self.log = log.then(Vec::new);
    }

    /// Takes the transitions since the last call
    pub fn take_transitions(&mut self) -> Vec<Transition> {
        self.log.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The last transitions, the oldest first
    pub fn recent_transitions(&self) -> Vec<PastTransition> {
        self.recent.listed()
    }

    /// Begins an event: what it is called in messages, and when it is
    pub(super) fn begin(&mut self, stimulus: &Arc<str>, now_s: f64) {
        self.stimulus = Arc::clone(stimulus);
        self.now_s = now_s;
    }

    pub(super) fn worker_at(&self, address: &str) -> Result<WorkerId, EventError> {
        self.workers
            .by_address(address)
            .ok_or_else(|| EventError::UnknownWorker {
                address: address.to_owned(),
            })
    }

    pub(super) fn task_of(&self, key: &[u8]) -> Result<TaskId, EventError> {
        self.tasks
            .by_key(key)
            .ok_or_else(|| EventError::UnknownTask { key: shown(key) })
    }

    /// The task of a key, of which a worker says that it ended this run
    pub(super) fn task_of_run(&self, key: &[u8], run_id: u64) -> Option<TaskId> {
        let is_it = |&task: &TaskId| {
            self.tasks.find(task).is_some_and(|one| {
                one.run_id.get() == Some(run_id)
                    && one.state != TaskState::Forgotten
                    && *one.key == *key
            })
        };
        let recent = self.recent_runs.find(run_id).filter(is_it);
        recent.or_else(|| self.tasks.by_key(key))
    }

    pub(super) fn lacks(&self, task: TaskId, what: &'static str) -> EventError {
        EventError::Lacks {
            key: shown(&self.tasks[task].key),
            what,
        }
    }

    pub(super) fn set_state(&mut self, task: TaskId, state: TaskState) {
        let one = &mut self.tasks[task];
        let before = std::mem::replace(&mut one.state, state);
        self.groups.count_move(one.group, before, state);
    }

    /// Makes a task of a key that has none
    pub(super) fn new_task(
        &mut self,
        key: &Key,
        group: &Arc<str>,
        prefix: &Arc<str>,
        state: TaskState,
    ) -> TaskId {
        let group = self
            .groups
            .find_or_add(group, prefix, &self.known_durations_s);
        let remembered = if self.remembered.is_empty() {
            None
        } else {
            self.remembered.remove(key)
        };
        let task = match remembered {
            Some(task) => {
                self.tasks.revive(task, group, state);
                task
            }
            None => self.tasks.add(Arc::clone(key), group, state),
        };
        self.groups.count_new(group, state);
        self.tasks.insert_key(task);
        task
    }

    /// Releases the number of a forgotten task, unless an entry of a worker still refers to the
    /// task
    pub(super) fn drop_task(&mut self, task: TaskId) {
        let one = &self.tasks[task];
        if one.references > 0 {
            let key = Arc::clone(&one.key);
            self.remembered.insert(key, task);
        } else {
            self.tasks.remove(task);
        }
    }

    pub(super) fn add_reference(&mut self, task: TaskId) {
        self.tasks[task].references += 1;
    }

    pub(super) fn drop_reference(&mut self, task: TaskId) {
        let one = &mut self.tasks[task];
        one.references -= 1;
        if one.references == 0 && one.state == TaskState::Forgotten {
            let key = Arc::clone(&one.key);
            if self.remembered.remove(&key).is_some() {
                self.tasks.remove(task);
            }
        }
    }

    pub(super) fn default_bytes(&self) -> u64 {
        self.config.default_data_bytes
    }

    /// Sends to an address, if a worker of the cluster has it
    pub(super) fn send_to_address(&mut self, address: &Arc<str>, message: WorkerMessage) {
        if self.workers.by_address(address).is_some() {
            self.messages
                .push(Message::ToWorker(Arc::clone(address), message));
        }
    }

    pub(super) fn send_free_keys(&mut self, address: &Arc<str>, key: &Key) {
        let message = WorkerMessage::FreeKeys {
            keys: vec![Arc::clone(key)],
            stimulus: Arc::clone(&self.stimulus),
        };
        self.send_to_address(address, message);
    }

    /// Has a worker drop a result
    pub(super) fn send_free_key(&mut self, worker: WorkerId, task: TaskId) {
        let address = Arc::clone(&self.workers[worker].address);
        let key = Arc::clone(&self.tasks[task].key);
        if !self.workers.is_current(worker) {
            // Another may have come to its address.
            return self.send_free_keys(&address, &key);
        }
        let message = WorkerMessage::FreeKeys {
            keys: vec![key],
            stimulus: Arc::clone(&self.stimulus),
        };
        self.messages.push(Message::ToWorker(address, message));
    }

    pub(super) fn send_to_client(&mut self, client: ClientId, message: ClientMessage) {
        let client = &self.clients[client];
        if client.has_stream {
            self.messages
                .push(Message::ToClient(Arc::clone(&client.name), message));
        }
    }

    /// Sends to all clients that want a task
    pub(super) fn send_to_who_wants(&mut self, task: TaskId, message: &ClientMessage) {
        let clients = self.clients_of(task);
        for client in clients {
            self.send_to_client(client, message.clone());
        }
    }

    pub(super) fn clients_of(&self, task: TaskId) -> smallvec::SmallVec<[ClientId; 4]> {
        let who_wants = self.tasks[task].who_wants.as_ref();
        who_wants.map(OrderedSet::listed).unwrap_or_default()
    }
}

/// A key as it is shown in errors
pub(super) fn shown(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}
