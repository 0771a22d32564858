//! Keys of a graph by number, and numbers by key.

use backhaul_dask::order::TaskId;
use pyo3::prelude::*;

/// The keys of a graph: a hash table whose hashes the caller has computed already
pub(super) struct Keys<'py> {
    keys: Vec<(Bound<'py, PyAny>, isize)>,
    ids: Vec<TaskId>,
    /// Places in `keys`, from 1; a power of two of slots, at most half of them taken
    slots: Vec<u32>,
}

impl<'py> Keys<'py> {
    pub(super) fn with_capacity(keys: usize) -> Self {
        Self {
            keys: Vec::with_capacity(keys),
            ids: Vec::with_capacity(keys),
            slots: vec![0; (keys * 2).next_power_of_two().max(SLOTS_MIN)],
        }
    }

    /// Adds a key that is not here yet
    pub(super) fn add(&mut self, task: TaskId, key: Bound<'py, PyAny>, hash: isize) {
        assert_eq!(
            task.index(),
            self.keys.len(),
            "keys come as they are numbered"
        );
        self.keys.push((key, hash));
        self.ids.push(task);
        if self.keys.len() * 2 > self.slots.len() {
            self.slots = vec![0; self.slots.len() * 2];
            for index in 0..self.keys.len() {
                self.place(index);
            }
        } else {
            self.place(self.keys.len() - 1);
        }
    }

    /// The task with a key
    pub(super) fn find(&self, key: &Bound<'py, PyAny>, hash: isize) -> PyResult<Option<TaskId>> {
        let mut slot = self.first_slot(hash);
        loop {
            let Some(index) = (self.slots[slot] as usize).checked_sub(1) else {
                return Ok(None);
            };
            let (other, other_hash) = &self.keys[index];
            if *other_hash == hash && (other.is(key) || other.eq(key)?) {
                return Ok(Some(self.ids[index]));
            }
            slot = (slot + 1) & (self.slots.len() - 1);
        }
    }

    /// The key of a task
    pub(super) fn key(&self, task: TaskId) -> &Bound<'py, PyAny> {
        &self.keys[task.index()].0
    }

    fn place(&mut self, index: usize) {
        let mut slot = self.first_slot(self.keys[index].1);
        while self.slots[slot] != 0 {
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        self.slots[slot] = u32::try_from(index + 1).expect("tasks are numbered in 32 bits");
    }

    /// The high bits of a product, in which every bit of the hash counts
    const fn first_slot(&self, hash: isize) -> usize {
        let spread = (hash as u64).wrapping_mul(GOLDEN);
        (spread >> (64 - self.slots.len().trailing_zeros())) as usize
    }
}

/// 2**64 divided by the golden ratio: Knuth's multiplier, The Art of Computer Programming 3, 6.4
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
const SLOTS_MIN: usize = 8;
