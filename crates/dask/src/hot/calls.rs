//! Many calls of one function as a graph that the core takes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::keys;
use crate::codec::calls::{Call, Calls};
use crate::msgpack::TooLong;
use crate::scheduler::{Graph, GraphTask, Key, Payload, SchedulerCore, Spec};

/// Parts of a map that all of its calls share
#[derive(Clone, Debug)]
pub struct CallGraph {
    /// The client
    pub client: Arc<str>,
    /// The task that made the calls, if one did
    pub submitting_task: Option<Key>,
    /// Graphs that come this close together share a generation, in seconds
    pub fifo_timeout_s: f64,
}

/// The groups of calls, which are their prefixes, too, each with the key of a call; `None` where
/// Python has to say what the group of a key is
pub fn groups_of_calls<'a>(calls: &Calls<'a>) -> Option<Vec<(String, &'a str)>> {
    let mut groups: Vec<(String, &str)> = Vec::new();
    let mut known: HashSet<String> = HashSet::new();
    for call in calls.iter() {
        let group = keys::group_of(call.key.as_bytes())?;
        if groups.last().is_some_and(|(last, _)| *last == group) {
            continue;
        }
        if known.insert(group.clone()) {
            groups.push((group, call.key));
        }
    }
    Some(groups)
}

/// Returns whether each key that calls depend on is that of a task
pub fn depend_on_what_is_known(calls: &Calls<'_>, core: &SchedulerCore) -> bool {
    calls
        .iter()
        .all(|call| needs_of(&call).iter().all(|key| core.has_task(key)))
}

/// Makes graphs of calls, given the span of each of their groups
///
/// One after the other they come to what a single one would come to, with less memory at a time.
///
/// # Errors
///
/// [`TooLong`] for a span that msgpack cannot hold.
pub fn graphs_of_calls<'a>(
    calls: &'a Calls<'_>,
    groups: &[(String, Option<String>)],
    of: &'a CallGraph,
) -> Result<impl Iterator<Item = Graph> + use<'a>, TooLong> {
    let groups: HashMap<String, Group> = groups
        .iter()
        .map(|(name, span)| {
            let shared = Payload::from(calls.shared(span.as_deref())?);
            let known = Arc::from(&**name);
            Ok((
                name.clone(),
                Group {
                    name: known,
                    shared,
                },
            ))
        })
        .collect::<Result<_, TooLong>>()?;
    let mut calls = calls.iter().enumerate().peekable();
    Ok(std::iter::from_fn(move || {
        calls.peek()?;
        Some(graph_of(calls.by_ref().take(CALLS_IN_GRAPH), &groups, of))
    }))
}

/// A group, and what its tasks share
struct Group {
    name: Arc<str>,
    shared: Payload,
}

fn graph_of<'a>(
    calls: impl Iterator<Item = (usize, Call<'a>)>,
    groups: &HashMap<String, Group>,
    of: &CallGraph,
) -> Graph {
    let mut graph = Graph {
        client: Arc::clone(&of.client),
        submitting_task: of.submitting_task.clone(),
        fifo_timeout_s: of.fifo_timeout_s,
        ..Graph::default()
    };
    let mut needed: HashMap<Vec<u8>, u32> = HashMap::new();
    for (place, call) in calls {
        let key = call.key.as_bytes();
        let Some(group) = keys::group_of(key).and_then(|name| groups.get(&name)) else {
            // Groups that are not given have no tasks.
            continue;
        };
        let dependencies = needs_of(&call)
            .into_iter()
            .map(|key| number_of(key, &mut needed, &mut graph.keys))
            .collect();
        let number = graph.keys.len() as u32;
        graph.keys.push(Key::from(key));
        graph.wanted.push(number);
        graph.tasks.push(GraphTask {
            key: number,
            group: Arc::clone(&group.name),
            prefix: Arc::clone(&group.name),
            spec: Spec {
                shared: Some(Arc::clone(&group.shared)),
                own: Payload::from(call.own),
            },
            dependencies,
            order: place as f64,
            user_priority: None,
            requirements: None,
            data_producer: false,
        });
    }
    graph
}

/// The number of a key that calls depend on, of which none is one of the calls
fn number_of(key: Vec<u8>, needed: &mut HashMap<Vec<u8>, u32>, keys: &mut Vec<Key>) -> u32 {
    *needed.entry(key).or_insert_with_key(|key| {
        keys.push(Key::from(&**key));
        keys.len() as u32 - 1
    })
}

/// The keys that a call depends on, as the core has them
fn needs_of(call: &Call<'_>) -> Vec<Vec<u8>> {
    let needs = call.dependencies();
    needs.iter().map(|key| keys::of_msgpack(key)).collect()
}

/// So many calls at a time are a graph
const CALLS_IN_GRAPH: usize = 16_384;
