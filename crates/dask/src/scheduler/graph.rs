//! A graph of plain tasks as a client sends it, and what it changes.
//!
//! The caller has materialized the graph, ordered it, and found group and prefix of each key; see
//! upstream's `update_graph` from where it must not be interrupted.

use std::sync::Arc;

use super::compact::PriorityOrNone;
use super::core::SchedulerCore;
use super::error::EventError;
use super::ids::{GroupId, TaskId};
use super::messages::ClientMessage;
use super::recommendations::Recommendations;
use super::task::{Key, Priority, Requirements, Spec, TaskState};
use crate::hashing::Set;

/// A graph, with keys named once and then by number
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// Keys that it mentions: of its tasks, of those they depend on, and what is wanted
    pub keys: Vec<Key>,
    /// Its tasks, in its order
    pub tasks: Vec<GraphTask>,
    /// Keys that the client wants, as numbers, in the order of the request
    pub wanted: Vec<u32>,
    /// The client
    pub client: Arc<str>,
    /// Priority of those tasks that name none
    pub user_priority: f64,
    /// The task that sent this graph, if one did; its tasks go before it
    pub submitting_task: Option<Key>,
    /// Graphs that come this close together share a generation, in seconds
    pub fifo_timeout_s: f64,
    /// Tasks that are to be actors, as numbers of keys
    pub actors: Vec<u32>,
}

/// One task of a graph
#[derive(Clone, Debug)]
pub struct GraphTask {
    /// Number of its key
    pub key: u32,
    /// Its group
    pub group: Arc<str>,
    /// Its prefix
    pub prefix: Arc<str>,
    /// The run spec
    pub spec: Spec,
    /// Numbers of the keys that it depends on, each once
    pub dependencies: Vec<u32>,
    /// Place in the order of its graph
    pub order: f64,
    /// Priority that the user gave it, instead of the graph's
    pub user_priority: Option<f64>,
    /// Requests of its annotations
    pub requirements: Option<Box<Requirements>>,
    /// True if it produces data, which makes it root-ish
    pub data_producer: bool,
}

/// Result of adding a graph
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GraphOutcome {
    /// Its tasks are known
    Accepted {
        /// How many of them were not known before
        new_tasks: usize,
        /// How many were known with other dependencies, and keep those
        collisions: usize,
    },
    /// It depends on what is gone: what it asked for is cancelled
    LostDependencies,
}

/// Tasks that a graph touches, with their places among the graph's own tasks
struct Touched {
    all: Vec<(TaskId, Option<u32>)>,
    new: Vec<(TaskId, u32)>,
    collisions: usize,
}

/// How numbers of a graph relate to tasks
struct Bound {
    /// The task of each key, if it is known
    known: Vec<Option<TaskId>>,
    /// Place among the graph's tasks of each key, if it is one
    place: Vec<Option<u32>>,
}

impl SchedulerCore {
    /// Handles a graph; `now_s` is the time at which it came
    ///
    /// # Errors
    ///
    /// [`EventError::UnknownName`] if a number has no key, [`EventError::UnknownClient`] if a client
    /// that is not known depends on lost tasks; nothing has changed then. The errors of the
    /// transitions that follow.
    pub fn handle_graph(
        &mut self,
        graph: &Graph,
        stimulus: &Arc<str>,
        now_s: f64,
    ) -> Result<GraphOutcome, EventError> {
        self.begin(stimulus, now_s);
        let mut bound = self.bind(graph)?;
        if lacks_dependencies(graph, &bound) {
            let keys = graph
                .wanted
                .iter()
                .map(|&number| Arc::clone(&graph.keys[number as usize]));
            let keys: Vec<Key> = keys.collect();
            let message = ClientMessage::CancelledKeys {
                keys: keys.clone(),
                reason: Some(Arc::from("lost dependencies")),
                message: None,
            };
            let client = self.client_of(&graph.client)?;
            self.send_to_client(client, message);
            self.release_keys(&keys, client)?;
            self.drain()?;
            return Ok(GraphOutcome::LostDependencies);
        }
        let Touched {
            all: touched,
            new,
            collisions,
        } = self.generate(graph, &mut bound);
        self.apply_requirements(graph, &new);
        self.set_priorities(graph, &touched)?;
        let wanted = graph.wanted.iter();
        let wanted: Vec<TaskId> = wanted
            .filter_map(|&number| bound.known[number as usize])
            .collect();
        let client = self.clients.find_or_add(&graph.client);
        self.desire(&wanted, client)?;
        for &actor in &graph.actors {
            if let Some(task) = bound.known.get(actor as usize).copied().flatten() {
                self.tasks[task].actor = true;
            }
        }
        let recs = self.first_steps(&wanted, &touched);
        self.plan_roots(touched.iter().map(|&(task, _)| task));
        self.follow(recs)?;
        for &(task, _) in &touched {
            // None of them can be forgotten: the client wants what depends on it.
            if let Some(one) = self.tasks.find(task)
                && matches!(one.state, TaskState::Memory | TaskState::Erred)
            {
                self.report_on(task, Some(client))?;
            }
        }
        self.drain()?;
        Ok(GraphOutcome::Accepted {
            new_tasks: new.len(),
            collisions,
        })
    }

    fn bind(&self, graph: &Graph) -> Result<Bound, EventError> {
        let names = graph.keys.len();
        let mut place = vec![None; names];
        let numbers = graph.tasks.iter().flat_map(|task| task.dependencies.iter());
        for &number in numbers.chain(&graph.wanted).chain(&graph.actors) {
            if number as usize >= names {
                return Err(EventError::UnknownName { number, names });
            }
        }
        for (at, task) in graph.tasks.iter().enumerate() {
            let Some(place) = place.get_mut(task.key as usize) else {
                let number = task.key;
                return Err(EventError::UnknownName { number, names });
            };
            *place = Some(at as u32);
        }
        let known = graph.keys.iter().map(|key| self.tasks.by_key(key));
        Ok(Bound {
            known: known.collect(),
            place,
        })
    }

    /// Makes the tasks that are not known yet, and depends them on each other
    fn generate(&mut self, graph: &Graph, bound: &mut Bound) -> Touched {
        let mut stack = graph.wanted.clone();
        let mut seen = vec![false; graph.keys.len()];
        let mut collided = vec![false; graph.tasks.len()];
        let (mut all, mut new, mut collisions) = (Vec::new(), Vec::new(), 0);
        while let Some(number) = stack.pop() {
            if std::mem::replace(&mut seen[number as usize], true) {
                continue;
            }
            let place = bound.place[number as usize];
            let in_graph = place.map(|place| (&graph.tasks[place as usize], place));
            let task = match (bound.known[number as usize], in_graph) {
                (None, Some((one, place))) => {
                    let key = &graph.keys[number as usize];
                    let state = TaskState::Released;
                    let task = self.new_task(key, &one.group, &one.prefix, state);
                    self.give_spec(task, one);
                    bound.known[number as usize] = Some(task);
                    new.push((task, place));
                    task
                }
                // Neither known nor in the graph: that was looked for before.
                (None, None) => continue,
                (Some(task), in_graph) => {
                    if let Some((one, place)) = in_graph {
                        if self.tasks[task].spec.is_none() {
                            self.give_spec(task, one);
                        } else if !self.same_dependencies(task, one, bound) {
                            collided[place as usize] = true;
                            collisions += 1;
                        }
                    }
                    task
                }
            };
            all.push((task, place));
            if let Some((one, _)) = in_graph {
                stack.extend_from_slice(&one.dependencies);
            }
        }
        self.join(graph, bound, &collided);
        Touched {
            all,
            new,
            collisions,
        }
    }

    /// Depends the tasks of a graph on each other, but those that are known with other dependencies
    fn join(&mut self, graph: &Graph, bound: &Bound, collided: &[bool]) {
        let mut last_edge: Option<(GroupId, GroupId)> = None;
        let mut needed = vec![0_usize; graph.keys.len()];
        for &number in graph.tasks.iter().flat_map(|task| &task.dependencies) {
            needed[number as usize] += 1;
        }
        // Tasks of one layer often need the same: a list for all of them.
        let mut last: Option<(&GraphTask, TaskId)> = None;
        for (one, collided) in graph.tasks.iter().zip(collided) {
            let Some(task) = bound.known[one.key as usize].filter(|_| !collided) else {
                continue;
            };
            let is_new = self.tasks[task].dependencies.is_empty();
            let alike = last.filter(|(before, _)| before.dependencies == one.dependencies);
            if let Some((_, other)) = alike.filter(|_| is_new) {
                self.tasks[task].dependencies = self.tasks[other].dependencies.clone();
            }
            // An input that nothing more of the graph needs
            let mut whole: Option<TaskId> = None;
            for &number in &one.dependencies {
                let Some(dependency) = bound.known[number as usize] else {
                    continue;
                };
                if !is_new || alike.is_none() {
                    let inputs = &mut self.tasks[task].dependencies;
                    inputs.insert(dependency);
                    inputs.expect(one.dependencies.len());
                }
                let dependents = &mut self.tasks[dependency].dependents;
                if !is_new {
                    dependents.insert(task);
                } else if dependents.last() != Some(task) {
                    dependents.add(task);
                }
                dependents.expect(needed[number as usize]);
                if dependents.len() == needed[number as usize] {
                    if let Some(whole) = whole {
                        let others = self.tasks[whole].dependents.clone();
                        self.tasks[dependency].dependents.share(&others);
                    }
                    whole = Some(dependency);
                }
                let edge = (self.tasks[task].group, self.tasks[dependency].group);
                if last_edge != Some(edge) {
                    self.groups.add_dependency(edge.0, edge.1);
                    last_edge = Some(edge);
                }
            }
            // A task that was known may have needed others before.
            last = is_new.then_some((one, task));
        }
    }

    fn give_spec(&mut self, task: TaskId, given: &GraphTask) {
        let one = &mut self.tasks[task];
        one.spec = Some(given.spec.clone());
        one.data_producer = given.data_producer;
    }

    fn same_dependencies(&self, task: TaskId, given: &GraphTask, bound: &Bound) -> bool {
        let ours = &self.tasks[task].dependencies;
        let mut theirs = given
            .dependencies
            .iter()
            .map(|&number| bound.known[number as usize]);
        ours.len() == given.dependencies.len()
            && theirs.all(|known| known.is_some_and(|known| ours.contains(known)))
    }

    fn apply_requirements(&mut self, graph: &Graph, new: &[(TaskId, u32)]) {
        for &(task, place) in new {
            if let Some(requirements) = &graph.tasks[place as usize].requirements {
                let one = &mut self.tasks[task];
                if let Some(retries) = requirements.retries {
                    one.retries = retries;
                }
                let mut requirements = requirements.clone();
                self.note_request(&mut requirements);
                self.tasks[task].requirements = Some(requirements);
            }
        }
    }

    fn set_priorities(
        &mut self,
        graph: &Graph,
        touched: &[(TaskId, Option<u32>)],
    ) -> Result<(), EventError> {
        let generation = self.generation_of(graph)?;
        for &(task, place) in touched {
            let Some(place) = place else { continue };
            let given = &graph.tasks[place as usize];
            let one = &mut self.tasks[task];
            if one.priority.get().is_some() {
                continue;
            }
            let requirements = one.requirements.as_ref();
            let annotated = requirements.and_then(|requirements| requirements.priority);
            let user = annotated
                .or(given.user_priority)
                .unwrap_or(graph.user_priority);
            one.priority = PriorityOrNone::some(Priority([-user, generation, given.order]));
        }
        Ok(())
    }

    fn generation_of(&mut self, graph: &Graph) -> Result<f64, EventError> {
        if let Some(submitting) = &graph.submitting_task {
            let Some(task) = self.tasks.by_key(submitting) else {
                return Ok(self.generation as f64);
            };
            let priority = self.tasks[task].priority.get();
            let priority = priority.ok_or_else(|| self.lacks(task, "priority"))?;
            // Upstream takes the first of the three numbers here, which is not the generation.
            return Ok(priority.0[0] - 0.01);
        }
        if self.last_graph_s + graph.fifo_timeout_s < self.now_s {
            self.generation += 1;
            self.last_graph_s = self.now_s;
        }
        Ok(self.generation as f64)
    }

    /// Returns the first recommendations of a graph: wanted tasks, and shared earlier failures
    fn first_steps(
        &mut self,
        wanted: &[TaskId],
        touched: &[(TaskId, Option<u32>)],
    ) -> Recommendations {
        let mut recs = Recommendations::default();
        let mut seen = Set::default();
        let released = wanted
            .iter()
            .copied()
            .filter(|&task| self.tasks[task].state == TaskState::Released && seen.insert(task));
        let mut released: Vec<TaskId> = released.collect();
        released.sort_by(|&one, &other| self.by_priority(other, one));
        for task in released {
            recs.set(task, TaskState::Waiting);
        }
        for &(task, _) in touched {
            let dependencies = &self.tasks[task].dependencies;
            let blamed = dependencies.iter().find(|&one| self.tasks[one].is_blamed());
            if let Some(blamed) = blamed {
                let blame = self.blame_of(blamed);
                self.tasks[task].failure_mut().blame = blame;
                recs.set(task, TaskState::Erred);
            }
        }
        recs
    }
}

/// Returns whether a wanted task depends on a key that is neither in the graph nor known
fn lacks_dependencies(graph: &Graph, bound: &Bound) -> bool {
    let mut stack = graph.wanted.clone();
    let mut seen = vec![false; graph.keys.len()];
    while let Some(number) = stack.pop() {
        if std::mem::replace(&mut seen[number as usize], true) {
            continue;
        }
        match bound.place[number as usize] {
            Some(place) => stack.extend_from_slice(&graph.tasks[place as usize].dependencies),
            None if bound.known[number as usize].is_none() => return true,
            None => {}
        }
    }
    false
}
