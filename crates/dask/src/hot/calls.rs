//! Many calls of one function as a graph that the core takes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::keys;
use crate::codec::calls::{Call, Calls};
use crate::msgpack::TooLong;
use crate::scheduler::{Graph, GraphTask, Key, Payload, SchedulerCore, Spec};

/// What a client says of all calls together
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

/// Whether each key that calls depend on is that of a task, or of another call
pub fn depend_on_what_is_known(calls: &Calls<'_>, core: &SchedulerCore) -> bool {
    let mut own: Option<HashSet<&[u8]>> = None;
    calls.iter().all(|call| {
        !call.has_dependencies()
            || needs_of(&call).iter().all(|key| {
                core.has_task(key)
                    || own
                        .get_or_insert_with(|| {
                            calls.iter().map(|call| call.key.as_bytes()).collect()
                        })
                        .contains(&**key)
            })
    })
}

/// Makes a graph of calls, given the span of each of their groups
///
/// # Errors
///
/// [`TooLong`] for a span that msgpack cannot hold.
///
/// # Panics
///
/// If [`groups_of_calls`] does not know them all.
pub fn graph_of_calls(
    calls: &Calls<'_>,
    spans: &HashMap<String, Option<String>>,
    of: CallGraph,
) -> Result<Graph, TooLong> {
    let count = calls.len();
    let mut graph = Graph {
        keys: Vec::with_capacity(count),
        tasks: Vec::with_capacity(count),
        wanted: (0..count as u32).collect(),
        client: of.client,
        submitting_task: of.submitting_task,
        fifo_timeout_s: of.fifo_timeout_s,
        ..Graph::default()
    };
    graph
        .keys
        .extend(calls.iter().map(|call| Key::from(call.key.as_bytes())));
    let mut numbers: HashMap<Key, u32> = HashMap::new();
    let mut groups: HashMap<String, (Arc<str>, Payload)> = HashMap::new();
    for (number, call) in (0..).zip(calls.iter()) {
        let name = keys::group_of(call.key.as_bytes()).expect("all groups are known");
        if !groups.contains_key(&name) {
            let span = spans.get(&name).and_then(Option::as_deref);
            let shared = Payload::from(calls.shared(span)?);
            groups.insert(name.clone(), (Arc::from(&*name), shared));
        }
        let (group, shared) = &groups[&name];
        let dependencies = if call.has_dependencies() {
            if numbers.is_empty() {
                let own = graph.keys.iter().cloned();
                numbers.extend(own.zip(0..));
            }
            numbers_of(&call, &mut numbers, &mut graph.keys)
        } else {
            Vec::new()
        };
        graph.tasks.push(GraphTask {
            key: number,
            group: Arc::clone(group),
            prefix: Arc::clone(group),
            spec: Spec {
                shared: Some(Arc::clone(shared)),
                own: Payload::from(call.own),
            },
            dependencies,
            order: f64::from(number),
            user_priority: None,
            requirements: None,
            data_producer: false,
        });
    }
    Ok(graph)
}

fn numbers_of(call: &Call<'_>, numbers: &mut HashMap<Key, u32>, keys: &mut Vec<Key>) -> Vec<u32> {
    let needs = needs_of(call).into_iter();
    needs
        .map(|key| {
            let key = Key::from(key);
            *numbers.entry(Arc::clone(&key)).or_insert_with(|| {
                keys.push(key);
                keys.len() as u32 - 1
            })
        })
        .collect()
}

/// The keys that a call depends on, as the core has them
fn needs_of(call: &Call<'_>) -> Vec<Vec<u8>> {
    let needs = call.dependencies();
    needs.iter().map(|key| keys::of_msgpack(key)).collect()
}
