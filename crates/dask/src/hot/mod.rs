//! The hot messages of a running scheduler, from the bytes of workers and clients to the bytes for
//! them: no Python, no I/O, no clock.
//!
//! A batch of messages is handled whole, or left whole to the event loop. The core's messages are
//! written here, whichever event caused them, so that each peer has them in the order in which the
//! core made them.

mod calls;
mod graphs;
mod incoming;
mod keys;
mod notes;
mod outgoing;
mod peers;
mod specs;
mod window;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::msgpack::TooLong;
use crate::scheduler::{
    Container, EventError, Graph, GraphOutcome, GraphTask, Key, Message, SchedulerCore, Spec,
    TaskFinished,
};
pub use calls::{CallGraph, depend_on_what_is_known, graphs_of_calls, groups_of_calls};
pub use graphs::{graph_of_tasks, groups_of_tasks, keys_are_texts, needs_are_known};
use incoming::{Finished, Incoming, Submit};
pub use keys::{is_sayable, key_of};
pub use notes::{HotCounts, HotNotes, NewGroup, Submitted};
use outgoing::Unsayable;
pub use outgoing::{Batch, Frames};
use peers::Peer;
pub use peers::{PeerId, PeerKind};
pub use specs::whole as whole_spec;
pub use window::{Expectation, InFlight, Window, WindowLimits};

/// A core, and the messages from and to its peers
#[derive(Debug)]
pub struct HotCore {
    /// The state
    pub core: SchedulerCore,
    /// None while the event loop handles messages
    streams: Option<Streams>,
}

/// How the streams are handled
#[derive(Clone, Debug, Default)]
pub struct HotSettings {
    /// Longest result that clients are handed, in bytes
    pub result_bytes_max: usize,
    /// How many tasks workers are sent before they need them, if that is for us to decide
    pub window: Option<WindowLimits>,
    /// Graphs of a client that come this close together share a generation, in seconds
    pub fifo_timeout_s: f64,
}

#[derive(Debug)]
struct Streams {
    peers: Vec<Peer>,
    workers: HashMap<Arc<str>, PeerId>,
    clients: HashMap<Arc<str>, PeerId>,
    window: Option<Window>,
    result_bytes_max: usize,
    fifo_timeout_s: f64,
    /// The span of each group that the event loop knows
    spans: HashMap<String, Option<String>>,
    /// Nothing is handled for now
    is_paused: bool,
    notes: HotNotes,
    counts: HotCounts,
    /// How many finished tasks the event loop knows to have been the last of their groups
    known_finished: u64,
}

impl HotCore {
    /// Makes a core whose streams the event loop handles
    pub fn new(core: SchedulerCore) -> Self {
        Self {
            core,
            streams: None,
        }
    }

    /// Begins to handle streams, of which there are none yet
    pub fn begin(&mut self, settings: HotSettings) {
        self.streams = Some(Streams {
            peers: Vec::new(),
            workers: HashMap::new(),
            clients: HashMap::new(),
            window: settings.window.map(Window::new),
            result_bytes_max: settings.result_bytes_max,
            fifo_timeout_s: settings.fifo_timeout_s,
            spans: HashMap::new(),
            is_paused: false,
            notes: HotNotes::default(),
            counts: HotCounts::default(),
            known_finished: 0,
        });
    }

    /// Ends it: what is unsent is to be taken before
    pub fn end(&mut self) {
        self.streams = None;
    }

    /// Returns whether streams are handled
    pub fn is_active(&self) -> bool {
        self.streams.is_some()
    }

    /// Records the span of a group, which the event loop maintains
    pub fn set_span(&mut self, group: &str, span: Option<&str>) {
        if let Some(streams) = &mut self.streams {
            let span = span.map(str::to_owned);
            if streams.spans.len() >= SPANS_MAX {
                streams.spans.clear();
            }
            streams.spans.insert(group.to_owned(), span);
        }
    }

    /// Has nothing handled for a while, or again
    pub fn pause(&mut self, pause: bool) {
        if let Some(streams) = &mut self.streams {
            streams.is_paused = pause;
        }
    }

    /// Returns whether there is work for the event loop
    pub fn has_notes(&self) -> bool {
        self.streams.as_ref().is_some_and(|streams| {
            let notes = &streams.notes;
            notes.failure.is_some() || !notes.unsaid.is_empty() || !notes.give_back.is_empty()
        })
    }

    /// Handles a batch of messages of a peer; `false` if the batch is for the event loop
    ///
    /// Nothing of it was handled then; with a [`HotCore::failure`] some of it may have been, which
    /// Dask's own machine may handle again.
    pub fn handle(&mut self, peer: PeerId, header: &[u8], now_s: f64) -> bool {
        let Self { core, streams } = self;
        let Some(streams) = streams else {
            return false;
        };
        let is_ready = !streams.is_paused
            && !streams.peers[peer.0].is_gone
            && streams.notes.failure.is_none()
            && streams.notes.unsaid.is_empty()
            && streams.notes.submitted.len() < SUBMITTED_MAX
            && core.noted_count() < NOTED_MAX;
        let (kind, name) = (streams.peers[peer.0].kind, &streams.peers[peer.0].name);
        let name = Arc::clone(name);
        let batch = is_ready
            .then(|| incoming::parse(header, kind, &name))
            .flatten();
        let Some(batch) = batch.filter(|batch| streams.knows(core, batch)) else {
            streams.counts.batches_left += 1;
            return false;
        };
        for message in batch {
            if let Err(error) = streams.handle_one(core, &name, message, now_s) {
                streams.notes.failure = Some(error.to_string());
            }
            streams.collect(core, now_s);
            if streams.notes.failure.is_some() {
                return false;
            }
        }
        true
    }

    /// Notes that handling failed in a way of its own: nothing is handled any more
    pub fn fail(&mut self, failure: &str) {
        if let Some(streams) = &mut self.streams {
            streams.notes.failure = Some(failure.to_owned());
        }
    }

    /// Why nothing is handled any more, if something failed
    pub fn failure(&self) -> Option<&str> {
        self.streams.as_ref()?.notes.failure.as_deref()
    }

    /// Turns what the core has to say into messages; does nothing if no streams are handled
    pub fn collect(&mut self, now_s: f64) {
        if let Some(streams) = &mut self.streams {
            streams.collect(&mut self.core, now_s);
        }
    }

    /// A peer for which there are messages that may be sent now, and not before those before
    pub fn next_outgoing(&self, from: usize) -> Option<PeerId> {
        let peers = self.streams.as_ref()?.peers.iter().enumerate().skip(from);
        let mut ready = peers.filter(|(_, peer)| !peer.is_held && !peer.batch.is_empty());
        ready.next().map(|(place, _)| PeerId(place))
    }

    /// Takes the messages for a peer
    pub fn take_outgoing(&mut self, peer: PeerId) -> Vec<Frames> {
        let streams = self.streams.as_mut();
        streams.map_or_else(Vec::new, |streams| streams.peers[peer.0].batch.take())
    }

    /// Takes the work for the event loop
    pub fn take_notes(&mut self) -> HotNotes {
        let Some(streams) = &mut self.streams else {
            return HotNotes::default();
        };
        let failure = streams.notes.failure.clone();
        let mut notes = std::mem::take(&mut streams.notes);
        notes.gone_groups = self.core.take_gone_groups();
        for peer in &mut streams.peers {
            peer.has_unsaid = false;
        }
        // It stays failed.
        streams.notes.failure = failure;
        notes
    }

    /// Returns whether the next message is likely to come very soon
    ///
    /// Either tasks have finished since this was asked last, and none is left to be waited for: a
    /// client that has waited for the last of them may have the next one. Or there is one task
    /// alone, and it is a short one, as in a chain.
    pub fn expects_more(&mut self) -> bool {
        let Some(streams) = &mut self.streams else {
            return false;
        };
        let finished = streams.counts.finished;
        let has_finished = streams.known_finished != finished;
        streams.known_finished = finished;
        match self.core.has_work() {
            true => self.core.has_one_shorter_than(SHORT_S),
            false => has_finished,
        }
    }

    /// How much was handled
    pub fn counts(&self) -> HotCounts {
        let streams = self.streams.as_ref();
        streams.map_or_else(HotCounts::default, |streams| streams.counts)
    }

    /// The window of the workers, if it is ours, and the core that it is of
    pub fn window(&mut self) -> Option<(&mut Window, &mut SchedulerCore)> {
        let window = self.streams.as_mut()?.window.as_mut()?;
        Some((window, &mut self.core))
    }
}

impl Streams {
    fn handle_one(
        &mut self,
        core: &mut SchedulerCore,
        name: &Arc<str>,
        message: Incoming<'_>,
        now_s: f64,
    ) -> Result<(), EventError> {
        match message {
            Incoming::Finished(finished) => {
                self.counts.finished += 1;
                self.handle_finished(core, name, &finished, now_s)
            }
            Incoming::ReleaseData { key, stimulus } => {
                self.counts.released_data += 1;
                let stimulus = Arc::from(stimulus);
                core.handle_release_worker_data(&key, name, &stimulus, now_s)
            }
            Incoming::ReleaseKeys { keys, stimulus } => {
                self.counts.released_keys += 1;
                let stimulus: Arc<str> = match stimulus {
                    Some(stimulus) => Arc::from(stimulus),
                    None => Arc::from(format!("client-releases-keys-{now_s}")),
                };
                // A client joins releases of single keys into one message, but each of them is an
                // event: plugins count the transitions, which differ if keys are released together.
                keys.iter().try_for_each(|key| {
                    let key = [Key::from(&**key)];
                    core.handle_client_releases_keys(&key, name, &stimulus, now_s)
                })
            }
            Incoming::AddKeys { keys, stimulus } => {
                self.counts.added_keys += 1;
                let keys: Vec<Key> = keys.iter().map(|key| Key::from(&**key)).collect();
                core.handle_add_keys(name, &keys, &Arc::from(stimulus), now_s);
                Ok(())
            }
            Incoming::LongRunning {
                key,
                stimulus,
                run_id,
                compute_s,
            } => {
                self.counts.long_running += 1;
                let stimulus = Arc::from(stimulus);
                core.handle_long_running(&key, name, run_id, compute_s, &stimulus, now_s)
            }
            Incoming::Submit(submit) => {
                self.counts.submitted += 1;
                self.handle_submit(core, name, &submit, now_s)
            }
        }
    }

    /// Returns whether all that a batch names is known, or comes with it
    fn knows(&self, core: &SchedulerCore, batch: &[Incoming<'_>]) -> bool {
        let mut submitted: HashSet<&[u8]> = HashSet::new();
        batch.iter().all(|message| {
            if let Incoming::Submit(submit) = message {
                let mut needs = submit.dependencies.iter();
                // The event loop has to announce a new group, and to handle keys without a form.
                if !(self.spans.contains_key(&submit.group)
                    && needs.all(|key| submitted.contains(&**key) || core.has_good_task(key)))
                {
                    return false;
                }
                submitted.insert(&submit.key);
            }
            message.is_known(core)
        })
    }

    fn handle_submit(
        &mut self,
        core: &mut SchedulerCore,
        client: &Arc<str>,
        submit: &Submit<'_>,
        now_s: f64,
    ) -> Result<(), EventError> {
        let span = self.spans.get(&submit.group).and_then(Option::as_deref);
        let spec = specs::write(submit.spec, span, Some(&submit.dependencies));
        let group: Arc<str> = Arc::from(submit.group.as_str());
        let count = submit.dependencies.len() as u32;
        let keys = std::iter::once(&submit.key).chain(&submit.dependencies);
        let was_idle = core.is_idle();
        let new_group = (!core.has_group(&group)).then(|| NewGroup {
            name: submit.group.clone(),
            span: span.map(str::to_owned),
            gone_before: core.gone_group_count(),
        });
        let graph = Graph {
            keys: keys.map(|key| Key::from(&**key)).collect(),
            tasks: vec![GraphTask {
                key: 0,
                group: Arc::clone(&group),
                prefix: group,
                spec: Spec::from(&*spec.expect("what came by msgpack fits msgpack")),
                dependencies: (1..=count).collect(),
                order: 0.0,
                user_priority: None,
                requirements: None,
                data_producer: false,
            }],
            wanted: vec![0],
            client: Arc::clone(client),
            user_priority: 0.0,
            submitting_task: None,
            fifo_timeout_s: self.fifo_timeout_s,
            actors: Vec::new(),
        };
        let stimulus = Arc::from(format!("update-graph-{now_s}"));
        let outcome = core.handle_graph(&graph, &stimulus, now_s)?;
        if let GraphOutcome::Accepted {
            new_tasks,
            collisions,
        } = outcome
        {
            self.notes.submitted.push(Submitted {
                client: Arc::clone(client),
                start_s: now_s,
                is_new: new_tasks > 0,
                has_collided: collisions > 0,
                was_idle,
                group: new_group,
            });
        }
        Ok(())
    }

    fn handle_finished(
        &mut self,
        core: &mut SchedulerCore,
        worker: &Arc<str>,
        finished: &Finished<'_>,
        now_s: f64,
    ) -> Result<(), EventError> {
        let running = core.running_task(&finished.key, worker, finished.run_id);
        let mut surprise = None;
        if let Some(running) = &running {
            if let Some(window) = &mut self.window {
                let seconds = finished.compute_s();
                let nbytes = finished.nbytes as f64;
                if window.observe_patiently(&running.group, &running.prefix, seconds, nbytes) {
                    surprise = Some(Arc::clone(&running.prefix));
                }
            }
            if let Some(value) = finished.value
                && !self.hand_to(&running.wanted_by, &finished.key, value)
                && !self.notes.unwanted_from.contains(worker)
            {
                self.notes.unwanted_from.push(Arc::clone(worker));
            }
        }
        let stimulus = Arc::from(finished.stimulus);
        let event = TaskFinished {
            key: Key::from(&*finished.key),
            worker: Arc::clone(worker),
            run_id: finished.run_id,
            nbytes: finished.nbytes,
            type_: finished.type_.into(),
            type_name: Arc::from(finished.type_name),
            actions: finished
                .actions
                .iter()
                .map(|&(action, start_s, stop_s)| (Arc::from(action), start_s, stop_s))
                .collect(),
            thread: finished.thread,
        };
        core.handle_task_finished(&event, &stimulus, now_s)?;
        let Some(window) = self.window.as_mut().filter(|_| running.is_some()) else {
            return Ok(());
        };
        if core.has_any(Container::Queued) {
            window.refill(core, worker, &stimulus, now_s)?;
        }
        if let Some(prefix) = surprise
            && window.check_excess(core, &prefix)
            && !self.notes.give_back.contains(&prefix)
        {
            self.notes.give_back.push(prefix);
        }
        Ok(())
    }

    /// Hands a result to those of some clients that keep results; tells if there are any
    fn hand_to(&mut self, clients: &[Arc<str>], key: &[u8], value: &[u8]) -> bool {
        if value.len() > self.result_bytes_max {
            return false;
        }
        let mut is_handed = false;
        for client in clients {
            let Some(peer) = self.clients.get(client) else {
                continue;
            };
            let peer = &mut self.peers[peer.0];
            if peer.keeps_results
                && peer.batch.len() <= WAITING_MAX
                && peer.batch.result(key, value).is_ok()
            {
                is_handed = true;
            }
        }
        is_handed
    }

    fn collect(&mut self, core: &mut SchedulerCore, now_s: f64) {
        for message in core.take_messages() {
            if self.say(&message, now_s).is_err() {
                self.notes.unsaid.push(message);
            }
        }
    }

    fn say(&mut self, message: &Message, now_s: f64) -> Result<(), Unsayable> {
        match message {
            Message::ToWorker(address, message) => {
                let peer = *self.workers.get(address).ok_or(Unsayable)?;
                self.peers[peer.0].say(|batch| batch.add_for_worker(message, now_s))
            }
            Message::ToClient(name, message) => {
                let peer = *self.clients.get(name).ok_or(Unsayable)?;
                self.peers[peer.0].say(|batch| batch.add_for_client(message))
            }
            Message::ToClients(message) => {
                let mut clients = self.peers.iter_mut().filter(|peer| !peer.is_gone);
                clients.try_for_each(|peer| match peer.kind {
                    PeerKind::Client => peer.say(|batch| batch.add_for_client(message)),
                    PeerKind::Worker => Ok(()),
                })
            }
        }
    }
}

impl From<TooLong> for Unsayable {
    fn from(_: TooLong) -> Self {
        Self
    }
}

/// How short a task is, in seconds, during which the scheduler stays awake: less than its engine
/// polls for before it sleeps, with what the message takes both ways
const SHORT_S: f64 = 200e-6;

/// Groups whose spans are known; when there are more, all are forgotten
const SPANS_MAX: usize = 10_000;

/// Submitted tasks that the event loop has yet to learn of, beyond which more are left to it
const SUBMITTED_MAX: usize = 10_000;

/// Notes that watching programs have yet to get, beyond which more is left to Python
const NOTED_MAX: usize = 100_000;

/// Most messages that wait for a client while results are among them, as in `inline_results.py`
const WAITING_MAX: usize = 1024;
