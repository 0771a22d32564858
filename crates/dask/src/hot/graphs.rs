//! A graph of tasks, as a client sent it, as the core takes it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::calls::CallGraph;
use super::{keys, specs};
use crate::codec::graph::Tasks;
use crate::msgpack::{Reader, Token};
use crate::scheduler::{Graph, GraphTask, Key, SchedulerCore, Spec};

/// The groups of tasks: name, prefix, and msgpack of the key of one of its tasks; `None` where Python
/// has to say what the group of a key is
pub fn groups_of_tasks<'a>(tasks: &'a Tasks<'_>) -> Option<Vec<(String, String, &'a [u8])>> {
    let mut groups: Vec<(String, String, &[u8])> = Vec::new();
    let mut known: HashSet<String> = HashSet::new();
    for key in &tasks.keys()[..tasks.len()] {
        let (group, prefix) = keys::names_of(key)?;
        if groups.last().is_some_and(|(last, ..)| *last == group) {
            continue;
        }
        if known.insert(group.clone()) {
            groups.push((group, prefix, key));
        }
    }
    Some(groups)
}

/// Returns whether each key is text
pub fn keys_are_texts(tasks: &Tasks<'_>) -> bool {
    let is_text = |key: &Vec<u8>| matches!(Reader::new(key).token(), Ok(Token::Str(_)));
    tasks.keys().iter().all(is_text)
}

/// Returns whether each key that tasks depend on, or that is wanted, is of one of them, or of a task
pub fn needs_are_known(tasks: &Tasks<'_>, core: &SchedulerCore) -> bool {
    let others = &tasks.keys()[tasks.len()..];
    others
        .iter()
        .all(|key| core.has_task(&keys::of_msgpack(key)))
}

/// Makes a graph of tasks, given the span of each of their groups; `None` if something of one is too
/// long
pub fn graph_of_tasks(
    tasks: &Tasks<'_>,
    groups: &[(String, Option<String>)],
    of: &CallGraph,
) -> Option<Graph> {
    let spans: HashMap<&str, Option<&str>> = groups
        .iter()
        .map(|(name, span)| (&**name, span.as_deref()))
        .collect();
    let mut names: HashMap<String, Arc<str>> = HashMap::new();
    let mut name_of = |name: String| -> Arc<str> {
        let made = names
            .entry(name)
            .or_insert_with_key(|name| Arc::from(&**name));
        Arc::clone(made)
    };
    let texts: Vec<Key> = tasks
        .keys()
        .iter()
        .map(|key| Key::from(keys::of_msgpack(key)))
        .collect();
    let mut graph = Graph {
        wanted: tasks.wanted().to_vec(),
        client: Arc::clone(&of.client),
        submitting_task: of.submitting_task.clone(),
        fifo_timeout_s: of.fifo_timeout_s,
        ..Graph::default()
    };
    for (number, task) in tasks.iter().enumerate() {
        let (group, prefix) = keys::names_of(&tasks.keys()[number])?;
        let span = spans.get(&*group).copied().flatten();
        let pickle = tasks.pickle(&task)?;
        let needs: Vec<&[u8]> = task
            .needs
            .iter()
            .map(|&number| &*texts[number as usize])
            .collect();
        // Only the event loop can load a task that is no call, and find out what the task is.
        let spec = specs::write(&pickle, span, task.is_call().then_some(&*needs)).ok()?;
        graph.tasks.push(GraphTask {
            key: number as u32,
            group: name_of(group),
            prefix: name_of(prefix),
            spec: Spec::from(&*spec),
            dependencies: task.needs.clone(),
            order: task.order as f64,
            user_priority: None,
            requirements: None,
            data_producer: task.is_data_producer(),
        });
    }
    graph.keys = texts;
    Some(graph)
}
