//! A map with a bound on its entries and on their bytes.

use std::borrow::Borrow;
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// A map that forgets its oldest entries when it has too many, or too many bytes
#[derive(Debug)]
pub struct Bounded<K, V> {
    limits: Limits,
    entries: HashMap<K, (V, usize)>,
    /// Keys in the order in which they came
    order: VecDeque<K>,
    /// Sum of what the entries are said to have; at most `limits.bytes_max`
    bytes: usize,
}

/// How much a [`Bounded`] map remembers
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Most entries
    pub entries_max: usize,
    /// Most bytes of all entries
    pub bytes_max: usize,
    /// Most bytes of one entry; a larger one is not remembered, as it would push out all others
    pub entry_bytes_max: usize,
}

impl<K: Clone + Eq + Hash, V> Bounded<K, V> {
    /// An empty map
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            entries: HashMap::new(),
            order: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Adds an entry of so many bytes, in place of one with the same key
    ///
    /// Gives back what had to go, which may be the new one, so that the caller can drop it without
    /// a lock.
    #[must_use]
    pub fn insert(&mut self, key: K, value: V, bytes: usize) -> Vec<V> {
        if bytes > self.limits.entry_bytes_max {
            return vec![value];
        }
        let mut forgotten = Vec::new();
        match self.entries.insert(key.clone(), (value, bytes)) {
            Some((old, old_bytes)) => {
                self.bytes -= old_bytes;
                forgotten.push(old);
            }
            None => self.order.push_back(key),
        }
        self.bytes += bytes;
        while self.entries.len() > self.limits.entries_max || self.bytes > self.limits.bytes_max {
            let Some(oldest) = self.order.pop_front() else {
                break;
            };
            if let Some((old, old_bytes)) = self.entries.remove(&oldest) {
                self.bytes -= old_bytes;
                forgotten.push(old);
            }
        }
        forgotten
    }

    /// Forgets all entries, giving them back to be dropped without a lock
    #[must_use]
    pub fn clear(&mut self) -> Vec<V> {
        self.order.clear();
        self.bytes = 0;
        self.entries.drain().map(|(_, (value, _))| value).collect()
    }

    /// The value of a key
    pub fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.entries.get(key).map(|(value, _)| value)
    }

    /// Entries, and their bytes
    #[must_use]
    pub fn usage(&self) -> (usize, usize) {
        (self.entries.len(), self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three_of_ten_bytes() -> Bounded<&'static str, u8> {
        Bounded::new(Limits {
            entries_max: 3,
            bytes_max: 10,
            entry_bytes_max: 8,
        })
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many() {
        let mut map = three_of_ten_bytes();
        for (key, value) in [("a", 0), ("b", 1), ("c", 2)] {
            assert_eq!(map.insert(key, value, 1), []);
        }
        assert_eq!(map.insert("d", 3, 1), [0]);
        assert_eq!(map.get("a"), None);
        assert_eq!(map.get("b"), Some(&1));
        assert_eq!(map.usage(), (3, 3));
    }

    #[test]
    fn as_many_of_the_oldest_go_as_have_too_many_bytes() {
        let mut map = three_of_ten_bytes();
        assert_eq!(map.insert("a", 0, 3), []);
        assert_eq!(map.insert("b", 1, 3), []);
        assert_eq!(map.insert("c", 2, 8), [0, 1]);
        assert_eq!(map.usage(), (1, 8));
    }

    #[test]
    fn one_that_is_too_large_pushes_out_nothing() {
        let mut map = three_of_ten_bytes();
        assert_eq!(map.insert("a", 0, 8), []);
        assert_eq!(map.insert("b", 1, 9), [1]);
        assert_eq!(map.usage(), (1, 8));
    }

    #[test]
    fn a_key_that_comes_again_replaces_its_value_and_its_bytes() {
        let mut map = three_of_ten_bytes();
        assert_eq!(map.insert("a", 0, 8), []);
        assert_eq!(map.insert("a", 1, 2), [0]);
        assert_eq!(map.get("a"), Some(&1));
        assert_eq!(map.usage(), (1, 2));
    }

    #[test]
    fn a_cleared_map_is_as_new() {
        let mut map = three_of_ten_bytes();
        assert_eq!(map.insert("a", 0, 8), []);
        assert_eq!(map.clear(), [0]);
        assert_eq!(map.usage(), (0, 0));
        for key in ["a", "b", "c"] {
            assert_eq!(map.insert(key, 1, 3), []);
        }
        assert_eq!(map.usage(), (3, 9));
    }
}
