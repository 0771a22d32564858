//! Which task has which key, in 8 bytes a place.
//!
//! A table of the standard library would hold the keys too, in 25 bytes a place. Looking up one of
//! 10⁶ keys waits for memory and for little else; the task is read for its key here, because each
//! caller reads the task right after.

use std::hash::Hasher;

use super::ids::TaskId;
use crate::hashing::QuickHasher;

/// Tasks by key, with open addressing: a task is in the first place that was free from where its
/// hash says
#[derive(Debug, Default)]
pub(super) struct KeyTable {
    /// As many as a power of two, or none; some are free
    places: Vec<Place>,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    /// Of the key
    hash: u32,
    task: Option<TaskId>,
}

impl KeyTable {
    /// The task of a key, given whether a task has it
    pub(super) fn find(&self, key: &[u8], has_it: impl Fn(TaskId) -> bool) -> Option<TaskId> {
        self.search(hash_of(key), has_it).map(|(_, task)| task)
    }

    /// Adds a task, in the place of one that has its key, given whether a task has it
    pub(super) fn insert(&mut self, key: &[u8], task: TaskId, has_it: impl Fn(TaskId) -> bool) {
        let hash = hash_of(key);
        if let Some((at, _)) = self.search(hash, has_it) {
            self.places[at].task = Some(task);
            return;
        }
        if 4 * (self.len + 1) > 3 * self.places.len() {
            self.grow();
        }
        self.put(Place {
            hash,
            task: Some(task),
        });
        self.len += 1;
    }

    /// Removes the task of a key, given whether a task has it
    pub(super) fn remove(&mut self, key: &[u8], has_it: impl Fn(TaskId) -> bool) {
        let Some((mut hole, _)) = self.search(hash_of(key), has_it) else {
            return;
        };
        self.len -= 1;
        // Entries that follow move up, unless they would move before the place of their hash.
        let mut at = self.next(hole);
        while self.places[at].task.is_some() {
            let mask = self.places.len() - 1;
            let from_home = at.wrapping_sub(self.places[at].hash as usize) & mask;
            let from_hole = at.wrapping_sub(hole) & mask;
            if from_home >= from_hole {
                self.places[hole] = self.places[at];
                hole = at;
            }
            at = self.next(at);
        }
        self.places[hole] = FREE;
    }

    /// How many tasks there are
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The tasks, in no order
    pub(super) fn iter(&self) -> impl Iterator<Item = TaskId> + '_ {
        self.places.iter().filter_map(|place| place.task)
    }

    fn search(&self, hash: u32, has_it: impl Fn(TaskId) -> bool) -> Option<(usize, TaskId)> {
        if self.len == 0 {
            return None;
        }
        let mut at = self.home(hash);
        while let Some(task) = self.places[at].task {
            if self.places[at].hash == hash && has_it(task) {
                return Some((at, task));
            }
            at = self.next(at);
        }
        None
    }

    fn put(&mut self, place: Place) {
        let mut at = self.home(place.hash);
        while self.places[at].task.is_some() {
            at = self.next(at);
        }
        self.places[at] = place;
    }

    fn grow(&mut self) {
        let places = vec![FREE; (2 * self.places.len()).max(PLACES_MIN)];
        for place in std::mem::replace(&mut self.places, places) {
            if place.task.is_some() {
                self.put(place);
            }
        }
    }

    fn home(&self, hash: u32) -> usize {
        hash as usize & (self.places.len() - 1)
    }

    fn next(&self, at: usize) -> usize {
        (at + 1) & (self.places.len() - 1)
    }
}

fn hash_of(key: &[u8]) -> u32 {
    let mut hasher = QuickHasher::default();
    hasher.write(key);
    hasher.finish_mixed()
}

const FREE: Place = Place {
    hash: 0,
    task: None,
};
const PLACES_MIN: usize = 16;

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_place_is_small() {
        assert_eq!(size_of::<Place>(), 8);
    }

    #[test]
    fn keys_that_differ_in_their_last_bytes_are_spread() {
        for width in 1..40 {
            let homes = (0..1000).map(|number| {
                let key = format!("{number:0width$}");
                hash_of(key.as_bytes()) & 2047
            });
            let homes: std::collections::HashSet<u32> = homes.collect();
            // 790 if chance had it
            assert!(homes.len() > 700, "{} of width {width}", homes.len());
        }
    }

    proptest! {
        #[test]
        fn a_table_finds_the_entries_of_a_map(
            steps in prop::collection::vec((0_u16..300, any::<bool>()), 0..2000)
        ) {
            let keys: Vec<String> = (0..300).map(|number| format!("inc-{number}")).collect();
            let has = |number: u16| {
                let keys = &keys;
                move |task: TaskId| keys[task.index()] == keys[usize::from(number)]
            };
            let (mut table, mut naive) = (KeyTable::default(), HashMap::new());
            for (number, adds) in steps {
                let key = keys[usize::from(number)].as_bytes();
                let task = TaskId::at(usize::from(number));
                if !adds {
                    table.remove(key, has(number));
                    naive.remove(key);
                } else {
                    table.insert(key, task, has(number));
                    naive.insert(key, task);
                }
                prop_assert_eq!(table.len(), naive.len());
            }
            for number in 0..300 {
                let key = keys[usize::from(number)].as_bytes();
                prop_assert_eq!(table.find(key, has(number)), naive.get(key).copied());
            }
        }
    }
}
