//! Tasks that wait for room at some worker, one line for each request and its restrictions.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use backhaul_placement::resources::Signature;

use super::compact::PriorityOrNone;
use super::ids::TaskId;
use super::queue::Entry;
use crate::hashing::{Map, Set};

/// Properties that the tasks of a line share: their request, and where they may run
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(super) struct LineKey {
    pub(super) request: Signature,
    /// Sorted, each once
    pub(super) workers: Vec<Arc<str>>,
    /// Likewise
    pub(super) hosts: Vec<Arc<str>>,
    /// True if they may run elsewhere while none of these can run them; other tasks have a line of
    /// their own, which these do not block
    pub(super) loose: bool,
}

impl LineKey {
    /// Returns whether the tasks may run on some workers only
    pub(super) fn is_restricted(&self) -> bool {
        !self.workers.is_empty() || !self.hosts.is_empty()
    }
}

/// The tasks of one line, by priority; those that do not wait any more are found out later
#[derive(Debug, Default)]
struct Line {
    heap: BinaryHeap<Reverse<Entry>>,
    /// Tasks with their serials, which tell them from later ones of the same number
    members: Set<(TaskId, u32)>,
    added: u64,
}

/// All lines, by a number that rises with the time of their beginning
#[derive(Debug, Default)]
pub(super) struct Lines {
    lines: BTreeMap<u64, (LineKey, Line)>,
    numbers: Map<LineKey, u64>,
    begun: u64,
}

impl Lines {
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
    pub(super) fn add(
        &mut self,
        key: LineKey,
        task: TaskId,
        serial: u32,
        priority: PriorityOrNone,
    ) -> PriorityOrNone {
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
        if line.members.insert((task, serial)) {
            let order = line.added;
            line.added += 1;
            line.heap
                .push(Reverse(Entry::new(priority, order, task, serial)));
        }
        line.first().map_or(priority, |first| first.priority)
    }

    /// The first task of a line: its number, its serial, its priority
    pub(super) fn first(&mut self, number: u64) -> Option<(TaskId, u32, PriorityOrNone)> {
        let (_, line) = self.lines.get_mut(&number)?;
        let first = line.first()?;
        Some((first.task, first.serial, first.priority))
    }

    /// Takes a task out of a line
    pub(super) fn discard(&mut self, number: u64, task: TaskId, serial: u32) {
        if let Some((_, line)) = self.lines.get_mut(&number) {
            line.members.remove(&(task, serial));
        }
    }

    /// The tasks of the line of a request that are bound to no workers
    pub(super) fn unbound(&self, request: Signature) -> Vec<(TaskId, u32)> {
        let mut lines = self.lines.values();
        let line = lines.find(|(key, _)| key.request == request && !key.is_restricted());
        line.map(|(_, line)| line.members.iter().copied().collect())
            .unwrap_or_default()
    }

    /// Ends a line without waiting tasks
    pub(super) fn end(&mut self, number: u64) -> Option<LineKey> {
        let (key, _) = self.lines.remove(&number)?;
        self.numbers.remove(&key);
        Some(key)
    }

    /// The tasks of all lines, each with its serial, in the order in which they would go
    pub(super) fn members(&self) -> Vec<(TaskId, u32)> {
        let mut found = Vec::new();
        for (_, line) in self.lines.values() {
            let mut entries: Vec<&Entry> = line.heap.iter().map(|Reverse(entry)| entry).collect();
            entries.sort();
            let members = entries.iter().map(|entry| (entry.task, entry.serial));
            found.extend(members.filter(|member| line.members.contains(member)));
        }
        found
    }
}

impl Line {
    fn first(&mut self) -> Option<&Entry> {
        while let Some(Reverse(entry)) = self.heap.peek() {
            if self.members.contains(&(entry.task, entry.serial)) {
                break;
            }
            self.heap.pop();
        }
        self.heap.peek().map(|Reverse(entry)| entry)
    }
}
