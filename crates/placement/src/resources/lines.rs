//! Tasks that wait for room at some worker, one line for each request and its restrictions.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use super::places::Signature;

/// Properties that the tasks of a line share: their request, and where they may run
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct LineKey {
    /// What they ask for
    pub request: Signature,
    /// Addresses of the workers that they are bound to; sorted, each once
    workers: Vec<Arc<str>>,
    /// Hosts that they are bound to, likewise
    hosts: Vec<Arc<str>>,
    /// True if they may run elsewhere while none of these can run them; other tasks have a line of
    /// their own, which these do not block
    loose: bool,
}

impl LineKey {
    /// Returns the line of tasks with a request and restrictions
    pub fn new(
        request: Signature,
        mut workers: Vec<Arc<str>>,
        mut hosts: Vec<Arc<str>>,
        loose: bool,
    ) -> Self {
        for names in [&mut workers, &mut hosts] {
            names.sort();
            names.dedup();
        }
        let loose = loose && !(workers.is_empty() && hosts.is_empty());
        Self {
            request,
            workers,
            hosts,
            loose,
        }
    }

    /// Returns whether the tasks may run on some workers only
    pub fn is_restricted(&self) -> bool {
        !self.workers.is_empty() || !self.hosts.is_empty()
    }
}

/// The tasks of one line, by priority; those that do not wait any more are found out later
#[derive(Debug)]
struct Line<T, P> {
    heap: BinaryHeap<Reverse<Entry<T, P>>>,
    members: HashSet<T>,
    added: u64,
}

/// A task of a line, by its priority and then by how long it is there
#[derive(Debug)]
struct Entry<T, P> {
    priority: P,
    order: u64,
    task: T,
}

/// All lines, by a number that rises with the time of their beginning
#[derive(Debug)]
pub(super) struct Lines<T, P> {
    lines: BTreeMap<u64, (LineKey, Line<T, P>)>,
    numbers: HashMap<LineKey, u64>,
    begun: u64,
}

impl<T, P> Default for Lines<T, P> {
    fn default() -> Self {
        Self {
            lines: BTreeMap::new(),
            numbers: HashMap::new(),
            begun: 0,
        }
    }
}

impl<T: Copy + Eq + Hash, P: Clone + PartialOrd> Lines<T, P> {
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Numbers of all lines, the oldest first
    pub(super) fn numbers(&self) -> Vec<u64> {
        self.lines.keys().copied().collect()
    }

    pub(super) fn key(&self, number: u64) -> Option<&LineKey> {
        self.lines.get(&number).map(|(key, _)| key)
    }

    /// Adds a task to its line; returns the priority of the first one there
    pub(super) fn add(&mut self, key: LineKey, task: T, priority: P) -> P {
        let number = match self.numbers.get(&key) {
            Some(&number) => number,
            None => {
                let number = self.begun;
                self.begun += 1;
                self.numbers.insert(key.clone(), number);
                self.lines.insert(number, (key, Line::default()));
                number
            }
        };
        let Some((_, line)) = self.lines.get_mut(&number) else {
            return priority;
        };
        if line.members.insert(task) {
            let order = line.added;
            line.added += 1;
            line.heap.push(Reverse(Entry {
                priority: priority.clone(),
                order,
                task,
            }));
        }
        line.first()
            .map_or(priority, |first| first.priority.clone())
    }

    /// The first task of a line, and its priority
    pub(super) fn first(&mut self, number: u64) -> Option<(T, P)> {
        let (_, line) = self.lines.get_mut(&number)?;
        let first = line.first()?;
        Some((first.task, first.priority.clone()))
    }

    /// Takes a task out of a line
    pub(super) fn discard(&mut self, number: u64, task: &T) {
        if let Some((_, line)) = self.lines.get_mut(&number) {
            line.members.remove(task);
        }
    }

    /// Takes a task out of the line in which it waits
    pub(super) fn leave(&mut self, task: &T) {
        for (_, line) in self.lines.values_mut() {
            line.members.remove(task);
        }
    }

    /// Returns whether a task of a request, bound to no workers, satisfies a condition
    pub(super) fn has_unbound(&self, request: Signature, meets: impl Fn(&T) -> bool) -> bool {
        let mut lines = self.lines.values();
        let line = lines.find(|(key, _)| key.request == request && !key.is_restricted());
        line.is_some_and(|(_, line)| line.members.iter().any(meets))
    }

    /// Ends a line without waiting tasks
    pub(super) fn end(&mut self, number: u64) -> Option<LineKey> {
        let (key, _) = self.lines.remove(&number)?;
        self.numbers.remove(&key);
        Some(key)
    }

    /// The tasks of all lines, in the order in which they would go
    pub(super) fn members(&self) -> Vec<T> {
        let mut found = Vec::new();
        for (_, line) in self.lines.values() {
            let mut entries: Vec<&Entry<T, P>> =
                line.heap.iter().map(|Reverse(entry)| entry).collect();
            entries.sort();
            let members = entries.iter().map(|entry| entry.task);
            found.extend(members.filter(|member| line.members.contains(member)));
        }
        found
    }
}

impl<T, P: PartialOrd> Default for Line<T, P> {
    fn default() -> Self {
        Self {
            heap: BinaryHeap::new(),
            members: HashSet::new(),
            added: 0,
        }
    }
}

impl<T: Eq + Hash, P: PartialOrd> Line<T, P> {
    fn first(&mut self) -> Option<&Entry<T, P>> {
        while let Some(Reverse(entry)) = self.heap.peek() {
            if self.members.contains(&entry.task) {
                break;
            }
            self.heap.pop();
        }
        self.heap.peek().map(|Reverse(entry)| entry)
    }
}

/// Compares priorities; those that cannot be compared, because one is no number, are equal
pub(super) fn by_priority<P: PartialOrd>(one: &P, other: &P) -> Ordering {
    one.partial_cmp(other).unwrap_or(Ordering::Equal)
}

impl<T, P: PartialOrd> Ord for Entry<T, P> {
    fn cmp(&self, other: &Self) -> Ordering {
        by_priority(&self.priority, &other.priority).then(self.order.cmp(&other.order))
    }
}

impl<T, P: PartialOrd> PartialOrd for Entry<T, P> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T, P: PartialOrd> PartialEq for Entry<T, P> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<T, P: PartialOrd> Eq for Entry<T, P> {}
