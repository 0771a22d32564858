//! Which ends of the graph each task is connected to.
//!
//! The ends are the tasks that nothing leads to: along dependents those are the roots, the other
//! way the leaves. Neighbours mostly have the same ends, so the sets are shared.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::rc::{Rc, Weak};

use super::adjacency::Adjacency;
use super::ids::{PerTask, TaskId};

/// The ends that each task is connected to
#[derive(Debug)]
pub(super) struct Connected {
    /// How many each task is connected to; an end counts as connected to none
    pub(super) counts: PerTask<u32>,
    ends: Vec<TaskId>,
    /// For the tasks that lead nowhere; the others' sets are dropped on the way
    sets: PerTask<Option<Ends>>,
}

impl Connected {
    /// Follows the arrows from the ends
    ///
    /// `incoming` lists where a task is reached from, `outgoing` what it leads to; `sorted` holds
    /// every task, each after those it is reached from.
    pub(super) fn new(
        incoming: &Adjacency,
        outgoing: &Adjacency,
        sorted: impl Iterator<Item = TaskId> + Clone,
    ) -> Self {
        let tasks = incoming.tasks();
        let ends: Vec<TaskId> = sorted
            .clone()
            .filter(|&task| incoming.of(task).is_empty())
            .collect();
        let mut union = Union::new(ends.len());
        let mut counts = PerTask::filled(0, tasks);
        let mut sets = PerTask::filled(None, tasks);
        let mut readers_left: PerTask<usize> =
            incoming.ids().map(|task| outgoing.of(task).len()).collect();
        let mut next_end = 0;
        for task in sorted {
            let from = incoming.of(task);
            let set = if from.is_empty() {
                next_end += 1;
                Ends::One(next_end - 1)
            } else {
                let set = union.of(from.iter().filter_map(|&other| sets[other].as_ref()));
                counts[task] = set.len();
                set
            };
            sets[task] = Some(set);
            for &other in from {
                readers_left[other] -= 1;
                if readers_left[other] == 0 {
                    sets[other] = None;
                }
            }
        }
        Self { counts, ends, sets }
    }

    /// Calls back for each end that a task is connected to; the task leads nowhere
    pub(super) fn for_each(&self, task: TaskId, mut visit: impl FnMut(TaskId)) {
        if self.counts[task] == 0 {
            return;
        }
        match &self.sets[task] {
            None => {}
            Some(Ends::One(end)) => visit(self.ends[*end as usize]),
            Some(Ends::Several(set)) => match &**set {
                Several::Sparse(list) => {
                    for &end in list {
                        visit(self.ends[end as usize]);
                    }
                }
                Several::Dense { words, .. } => {
                    for (index, &word) in words.iter().enumerate() {
                        let mut rest = word;
                        while rest != 0 {
                            visit(self.ends[index * 64 + rest.trailing_zeros() as usize]);
                            rest &= rest - 1;
                        }
                    }
                }
            },
        }
    }
}

/// A set of ends, by their place among the ends; cheap to clone
#[derive(Clone, Debug)]
enum Ends {
    One(u32),
    Several(Rc<Several>),
}

/// Sparse or dense by how many they are, so that equal sets look alike
#[derive(Debug, Eq, Hash, PartialEq)]
enum Several {
    /// In rising order
    Sparse(Box<[u32]>),
    /// One bit for each end
    Dense { words: Box<[u64]>, len: u32 },
}

impl Ends {
    fn len(&self) -> u32 {
        match self {
            Self::One(_) => 1,
            Self::Several(set) => set.len(),
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::One(one), Self::One(other)) => one == other,
            (Self::Several(one), Self::Several(other)) => Rc::ptr_eq(one, other),
            _ => false,
        }
    }
}

impl Several {
    fn len(&self) -> u32 {
        match self {
            Self::Sparse(list) => u32::try_from(list.len()).expect("tasks are counted in 32 bits"),
            Self::Dense { len, .. } => *len,
        }
    }
}

/// Makes unions, and makes each only once
struct Union {
    ends: usize,
    /// Sets in use, by the hash of what they hold
    made: HashMap<u64, Weak<Several>>,
    /// The sets of the union in hand, each once as far as is cheap to tell
    parts: Vec<Ends>,
}

impl Union {
    fn new(ends: usize) -> Self {
        Self {
            ends,
            made: HashMap::new(),
            parts: Vec::new(),
        }
    }

    fn of<'e>(&mut self, sets: impl Iterator<Item = &'e Ends>) -> Ends {
        let mut parts = std::mem::take(&mut self.parts);
        let mut total = 0;
        for set in sets {
            let seen = parts.iter().rev().take(PARTS_COMPARED);
            if !seen.chain(parts.first()).any(|part| part.is_same(set)) {
                total += set.len() as usize;
                parts.push(set.clone());
            }
        }
        let union = match &parts[..] {
            [only] => only.clone(),
            _ => self.merged(&parts, total),
        };
        parts.clear();
        self.parts = parts;
        union
    }

    fn merged(&mut self, parts: &[Ends], total: usize) -> Ends {
        let set = if total > self.sparse_max() {
            self.merged_dense(parts)
        } else {
            Several::Sparse(merged_sparse(parts, total))
        };
        // A part that is as large as the whole is the whole.
        if let Some(whole) = parts.iter().find(|part| part.len() == set.len()) {
            return whole.clone();
        }
        let mut hasher = DefaultHasher::new();
        set.hash(&mut hasher);
        let made = self.made.entry(hasher.finish()).or_default();
        if let Some(same) = made.upgrade().filter(|made| **made == set) {
            return Ends::Several(same);
        }
        let set = Rc::new(set);
        *made = Rc::downgrade(&set);
        Ends::Several(set)
    }

    fn merged_dense(&self, parts: &[Ends]) -> Several {
        let mut words = vec![0u64; self.ends.div_ceil(64)].into_boxed_slice();
        for part in parts {
            match part {
                Ends::One(end) => set_bit(&mut words, *end),
                Ends::Several(set) => match &**set {
                    Several::Sparse(list) => list.iter().for_each(|&end| set_bit(&mut words, end)),
                    Several::Dense { words: more, .. } => {
                        for (word, &bits) in words.iter_mut().zip(more) {
                            *word |= bits;
                        }
                    }
                },
            }
        }
        let len = words.iter().map(|word| word.count_ones()).sum();
        if len as usize > self.sparse_max() {
            return Several::Dense { words, len };
        }
        Several::Sparse(merged_sparse(parts, len as usize))
    }

    /// Ends up to which a list takes less room than bits
    const fn sparse_max(&self) -> usize {
        self.ends / 32
    }
}

fn set_bit(words: &mut [u64], end: u32) {
    words[end as usize / 64] |= 1 << (end % 64);
}

/// All parts, none of them dense, in one list
fn merged_sparse(parts: &[Ends], total: usize) -> Box<[u32]> {
    let mut list = Vec::with_capacity(total);
    for part in parts {
        match part {
            Ends::One(end) => list.push(*end),
            Ends::Several(set) => match &**set {
                Several::Sparse(more) => list.extend_from_slice(more),
                Several::Dense { .. } => unreachable!("the union of a dense set is dense"),
            },
        }
    }
    // The stable sort merges runs, which is what the parts are.
    list.sort();
    list.dedup();
    list.into_boxed_slice()
}

/// Parts that a set is compared with before it is added to them
const PARTS_COMPARED: usize = 4;
