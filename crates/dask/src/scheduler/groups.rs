//! Groups and prefixes: what is counted of tasks that belong together.

use std::ops::{Index, IndexMut};
use std::sync::Arc;

use super::ids::{GroupId, NameId, PrefixId, WorkerId};
use super::loads::Loads;
use super::task::TaskState;
use crate::hashing::Map;
use crate::ordered_set::OrderedSet;

/// Counts that groups and prefixes have in common; see upstream's `TaskCollection`
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    /// How many tasks are in each state, in the order of [`TaskState::ALL`]
    pub(super) states: [i64; 8],
    /// How many tasks there are, forgotten ones included
    pub(super) len: i64,
    /// Bytes that their results came to
    pub(super) nbytes_total: i64,
    /// Time that all actions took, in µs
    pub(super) duration_us: i64,
    /// The same by action
    pub(super) durations_us: Vec<(NameId, i64)>,
    /// How many results there were of each type
    pub(super) types: Vec<(NameId, i64)>,
}

impl Tally {
    fn moved(&mut self, from: TaskState, to: TaskState) {
        self.states[from as usize] -= 1;
        self.states[to as usize] += 1;
    }

    fn took(&mut self, action: NameId, duration_us: i64) {
        self.duration_us += duration_us;
        *entry(&mut self.durations_us, action) += duration_us;
    }

    /// Takes out a group that is gone; upstream keeps its time by action
    fn subtract(&mut self, gone: &Self) {
        for (count, gone) in self.states.iter_mut().zip(gone.states) {
            *count -= gone;
            self.len -= gone;
        }
        self.duration_us -= gone.duration_us;
        self.nbytes_total -= gone.nbytes_total;
        for &(type_name, count) in &gone.types {
            *entry(&mut self.types, type_name) -= count;
        }
        self.types.retain(|&(_, count)| count != 0);
    }
}

/// Tasks of one name and origin, such as one layer of one graph
#[derive(Debug)]
pub(super) struct Group {
    pub(super) name: Arc<str>,
    /// Place among all groups that there ever were
    pub(super) serial: u64,
    pub(super) prefix: PrefixId,
    pub(super) tally: Tally,
    /// Groups that its tasks depend on, those that are gone included
    pub(super) dependencies: OrderedSet<GroupId>,
    /// How many groups list this one in `dependencies`
    pub(super) referrers: u32,
    pub(super) gone: bool,
    pub(super) last_worker: Option<WorkerId>,
    pub(super) last_worker_tasks_left: i64,
    /// When the first of its tasks began and the last ended, by the clocks of workers, in seconds
    pub(super) start_s: f64,
    pub(super) stop_s: f64,
}

/// Tasks of one function, whatever graph they are from
#[derive(Debug)]
pub(super) struct Prefix {
    pub(super) name: Arc<str>,
    pub(super) tally: Tally,
    /// How often a task came into each state
    pub(super) state_counts: [u64; 8],
    /// Moving average of how long its tasks compute, in seconds; negative while it is unknown
    /// ([`Groups::learn`] changes it)
    pub(super) duration_average_s: f64,
    /// Longest that a task was seen executing, in seconds; negative if none was; changed likewise
    pub(super) max_exec_time_s: f64,
    pub(super) suspicious: u64,
    pub(super) groups: OrderedSet<GroupId>,
}

/// Groups and prefixes by number and name
#[derive(Debug, Default)]
pub(super) struct Groups {
    groups: Vec<Option<Group>>,
    free: Vec<GroupId>,
    /// How many groups there were ever
    added: u64,
    pub(super) by_name: Map<Arc<str>, GroupId>,
    prefixes: Vec<Prefix>,
    pub(super) prefix_by_name: Map<Arc<str>, PrefixId>,
    pub(super) loads: Loads,
    /// How long tasks compute of which nothing is known, in seconds
    unknown_duration_s: f64,
}

impl Groups {
    /// None yet
    pub(super) fn new(unknown_duration_s: f64) -> Self {
        Self {
            unknown_duration_s,
            ..Self::default()
        }
    }

    /// The group of this name, which is made if there is none
    pub(super) fn find_or_add(
        &mut self,
        name: &Arc<str>,
        prefix: &Arc<str>,
        known_durations_s: &Map<Arc<str>, f64>,
    ) -> GroupId {
        if let Some(&group) = self.by_name.get(name) {
            return group;
        }
        let prefix = self.prefix(prefix, known_durations_s);
        let serial = self.added;
        self.added += 1;
        let group = Group {
            name: Arc::clone(name),
            serial,
            prefix,
            tally: Tally::default(),
            dependencies: OrderedSet::new(),
            referrers: 0,
            gone: false,
            last_worker: None,
            last_worker_tasks_left: 0,
            start_s: 0.0,
            stop_s: 0.0,
        };
        let id = match self.free.pop() {
            Some(id) => {
                self.groups[id.index()] = Some(group);
                id
            }
            None => {
                self.groups.push(Some(group));
                GroupId::at(self.groups.len() - 1)
            }
        };
        self[prefix].groups.insert(id);
        self.by_name.insert(Arc::clone(name), id);
        id
    }

    /// Adds a group as another scheduler had it, in the order of the serials
    ///
    /// Its prefix does not list it yet.
    pub(super) fn add_group(&mut self, group: Group) -> GroupId {
        let id = GroupId::at(self.groups.len());
        self.added = group.serial + 1;
        if !group.gone {
            self.by_name.insert(Arc::clone(&group.name), id);
        }
        self.groups.push(Some(group));
        id
    }

    fn prefix(&mut self, name: &Arc<str>, known_durations_s: &Map<Arc<str>, f64>) -> PrefixId {
        if let Some(&prefix) = self.prefix_by_name.get(name) {
            return prefix;
        }
        self.add_prefix(Prefix {
            name: Arc::clone(name),
            tally: Tally::default(),
            state_counts: [0; 8],
            duration_average_s: known_durations_s.get(name).copied().unwrap_or(-1.0),
            max_exec_time_s: -1.0,
            suspicious: 0,
            groups: OrderedSet::new(),
        })
    }

    pub(super) fn add_prefix(&mut self, prefix: Prefix) -> PrefixId {
        let id = PrefixId::at(self.prefixes.len());
        self.prefix_by_name.insert(Arc::clone(&prefix.name), id);
        self.loads.add(self.duration_of(&prefix));
        self.prefixes.push(prefix);
        id
    }

    /// Changes what is known of how long tasks of a prefix take
    pub(super) fn learn(&mut self, prefix: PrefixId, change: impl FnOnce(&mut Prefix)) {
        change(&mut self[prefix]);
        let duration_s = self.duration_of(&self[prefix]);
        self.loads.set_duration(prefix, duration_s);
    }

    fn duration_of(&self, prefix: &Prefix) -> f64 {
        if prefix.duration_average_s >= 0.0 {
            prefix.duration_average_s
        } else if prefix.max_exec_time_s > 0.0 {
            2.0 * prefix.max_exec_time_s
        } else {
            self.unknown_duration_s
        }
    }

    pub(super) fn prefix_of(&self, group: GroupId) -> PrefixId {
        self[group].prefix
    }

    pub(super) fn count_new(&mut self, group: GroupId, state: TaskState) {
        let prefix = self[group].prefix;
        self[group].tally.states[state as usize] += 1;
        self[group].tally.len += 1;
        self[prefix].tally.states[state as usize] += 1;
        self[prefix].tally.len += 1;
    }

    pub(super) fn count_move(&mut self, group: GroupId, from: TaskState, to: TaskState) {
        let group = &mut self[group];
        group.tally.moved(from, to);
        let prefix = group.prefix;
        let prefix = &mut self[prefix];
        prefix.tally.moved(from, to);
        prefix.state_counts[to as usize] += 1;
    }

    pub(super) fn count_nbytes(&mut self, group: GroupId, more_bytes: i64) {
        self[group].tally.nbytes_total += more_bytes;
        let prefix = self[group].prefix;
        self[prefix].tally.nbytes_total += more_bytes;
    }

    pub(super) fn count_type(&mut self, group: GroupId, type_name: NameId) {
        *entry(&mut self[group].tally.types, type_name) += 1;
        let prefix = self[group].prefix;
        *entry(&mut self[prefix].tally.types, type_name) += 1;
    }

    /// Notes how long an action of a task took; `computes` says whether it ran the task
    pub(super) fn count_duration(
        &mut self,
        group: GroupId,
        action: NameId,
        computes: bool,
        [start_s, stop_s]: [f64; 2],
    ) {
        // As Python's round: to even
        let duration_us = ((stop_s - start_s) * 1e6).round_ties_even().max(0.0) as i64;
        let group = &mut self[group];
        group.tally.took(action, duration_us);
        if computes {
            if group.stop_s < stop_s {
                group.stop_s = stop_s;
            }
            if group.start_s == 0.0 || group.start_s > start_s {
                group.start_s = start_s;
            }
        }
        let prefix = group.prefix;
        self[prefix].tally.took(action, duration_us);
        if computes {
            let duration_s = duration_us as f64 / 1e6;
            self.learn(prefix, |prefix| {
                let old_s = prefix.duration_average_s;
                prefix.duration_average_s = if old_s < 0.0 {
                    duration_s
                } else {
                    0.5 * duration_s + 0.5 * old_s
                };
            });
        }
    }

    pub(super) fn add_dependency(&mut self, group: GroupId, dependency: GroupId) {
        if self[group].dependencies.insert(dependency) {
            self[dependency].referrers += 1;
        }
    }

    /// Drops a group whose tasks are all forgotten; it stays countable for groups that depend on it
    pub(super) fn retire(&mut self, group: GroupId) {
        let name = Arc::clone(&self[group].name);
        self.by_name.remove(&name);
        let prefix = self[group].prefix;
        let tally = self[group].tally.clone();
        self[prefix].tally.subtract(&tally);
        self[prefix].groups.remove(group);
        // Dependencies of a group without further tasks are never read again.
        let dependencies = std::mem::take(&mut self[group].dependencies);
        self[group].gone = true;
        for dependency in dependencies.iter() {
            self[dependency].referrers -= 1;
            self.free_if_unused(dependency);
        }
        self.free_if_unused(group);
    }

    fn free_if_unused(&mut self, group: GroupId) {
        let place = &mut self.groups[group.index()];
        if place
            .as_ref()
            .is_some_and(|group| group.gone && group.referrers == 0)
        {
            *place = None;
            self.free.push(group);
        }
    }

    /// All groups in the order in which they came, those included that are gone and depended on
    pub(super) fn groups(&self) -> Vec<&Group> {
        let mut groups: Vec<&Group> = self.groups.iter().flatten().collect();
        groups.sort_by_key(|group| group.serial);
        groups
    }

    pub(super) fn prefixes(&self) -> impl Iterator<Item = &Prefix> {
        self.prefixes.iter()
    }
}

fn entry(counts: &mut Vec<(NameId, i64)>, name: NameId) -> &mut i64 {
    let place = match counts.iter().position(|&(one, _)| one == name) {
        Some(place) => place,
        None => {
            counts.push((name, 0));
            counts.len() - 1
        }
    };
    &mut counts[place].1
}

impl Index<GroupId> for Groups {
    type Output = Group;

    fn index(&self, id: GroupId) -> &Group {
        self.groups[id.index()]
            .as_ref()
            .expect("a group with tasks or referrers is kept")
    }
}

impl IndexMut<GroupId> for Groups {
    fn index_mut(&mut self, id: GroupId) -> &mut Group {
        self.groups[id.index()]
            .as_mut()
            .expect("a group with tasks or referrers is kept")
    }
}

impl Index<PrefixId> for Groups {
    type Output = Prefix;

    fn index(&self, id: PrefixId) -> &Prefix {
        &self.prefixes[id.index()]
    }
}

impl IndexMut<PrefixId> for Groups {
    fn index_mut(&mut self, id: PrefixId) -> &mut Prefix {
        &mut self.prefixes[id.index()]
    }
}
