//! Hash table of the right rows of a join

use crate::hash::mix;
use crate::{Block, ExchangeError};

use super::keys::{KeyColumns, Keys};
use super::{Join, JoinKind, RowRef};

/// Left rows whose first entries are loaded together, so that the loads overlap
const PROBES: usize = 256;
/// Most bytes that a [`Scratch`] keeps for the next join
const KEPT_BYTES: usize = 16 << 20;
/// Entry of the hash table without a row
const EMPTY: u64 = u64::MAX;

/// Memory of a join that the next one uses again, so that the kernel need not map new pages
#[derive(Debug, Default)]
pub struct Scratch {
    bits: Vec<u64>,
    refs: Vec<RowRef>,
    entries: Vec<u64>,
}

/// Hash table of the right rows: open addressing, one entry for each distinct key
pub(super) struct Table<'k, 'a> {
    columns: &'k KeyColumns,
    keys: Keys<'a>,
    /// High half of the hash, then the first row with the key; or [`EMPTY`]
    entries: Vec<u64>,
    /// Next row with the same key, for each row; empty if keys are unique
    next: Vec<u32>,
}

impl<'k, 'a> Table<'k, 'a> {
    pub(super) fn new(
        blocks: &[Block<'a>],
        slot: usize,
        columns: &'k KeyColumns,
        rows: usize,
        scratch: &mut Scratch,
    ) -> Result<Self, ExchangeError> {
        let bits = std::mem::take(&mut scratch.bits);
        let refs = std::mem::take(&mut scratch.refs);
        let mut table = Self {
            columns,
            keys: Keys::reusing(bits, refs),
            entries: std::mem::take(&mut scratch.entries),
            next: Vec::new(),
        };
        table.keys.bits.reserve(rows);
        table.keys.refs.reserve(rows);
        read_all(&mut table.keys, blocks, slot, columns)?;
        table.entries.clear();
        let places = (rows * 2).next_power_of_two().max(2);
        table.entries.resize(places, EMPTY);
        // Backwards, so that the chain of a key is ascending
        for row in (0..rows).rev() {
            table.insert(row);
        }
        Ok(table)
    }

    fn insert(&mut self, row: usize) {
        let hash = mix(self.keys.bits[row]);
        let mut place = self.place(hash);
        loop {
            let found = self.entries[place];
            if found == EMPTY {
                break;
            }
            if self.is_same(found, hash, &self.keys, row) {
                if self.next.is_empty() {
                    self.next.resize(self.keys.bits.len(), u32::MAX);
                }
                self.next[row] = found as u32;
                break;
            }
            place = (place + 1) & (self.entries.len() - 1);
        }
        self.entries[place] = (hash >> 32 << 32) | row as u64;
    }

    /// Returns the first place of a hash. The high half is the tag, so that the low half is used
    fn place(&self, hash: u64) -> usize {
        hash as usize & (self.entries.len() - 1)
    }

    /// Returns whether the key of an entry is that of a row of `keys`
    #[inline(always)]
    fn is_same(&self, entry: u64, hash: u64, keys: &Keys<'_>, row: usize) -> bool {
        let first = entry as u32 as usize;
        entry >> 32 == hash >> 32
            && self.keys.bits[first] == keys.bits[row]
            && (self.columns.is_exact() || self.keys.is_same(first, keys, row, self.columns))
    }

    /// Joins in the order of the left rows
    pub(super) fn join(
        &self,
        blocks: &[Block<'_>],
        slot: usize,
        columns: &KeyColumns,
        kind: JoinKind,
        rows: usize,
    ) -> Result<Join, ExchangeError> {
        let mut join = Join {
            left: Vec::with_capacity(rows),
            right: Vec::with_capacity(rows),
            ..Join::default()
        };
        let mut keys = Keys::default();
        for (index, block) in blocks.iter().enumerate() {
            let piece = block.piece(slot)?;
            for start in piece.clone().step_by(PROBES) {
                let end = piece.end.min(start + PROBES);
                keys.clear();
                keys.read(blocks, index, columns, start..end)?;
                self.probe(&keys, 0, |left, found| match (found, kind) {
                    (Some(first), JoinKind::Semi) => {
                        join.push(left, self.keys.refs[first as usize]);
                    }
                    (Some(first), _) => self.push_chain(&mut join, left, first),
                    (None, JoinKind::Left) => join.push_left_only(left),
                    (None, _) => {}
                });
            }
        }
        Ok(join)
    }

    /// Joins with the rows of both frames without a partner, in the order of the keys
    pub(super) fn outer_join(
        &self,
        blocks: &[Block<'_>],
        slot: usize,
        columns: &KeyColumns,
    ) -> Result<Join, ExchangeError> {
        let mut lefts = Keys::default();
        read_all(&mut lefts, blocks, slot, columns)?;
        let mut firsts = Vec::with_capacity(lefts.len());
        let mut has_partner = vec![false; self.keys.len()];
        for start in (0..lefts.len()).step_by(PROBES) {
            self.probe(&lefts, start, |_, found| {
                if let Some(first) = found {
                    has_partner[first as usize] = true;
                }
                firsts.push(found);
            });
        }
        // A left row, or as many more than those as the first right row of a key that no left one has
        let mut items: Vec<usize> = (0..lefts.len()).collect();
        items.extend(self.entries.iter().filter_map(|&entry| {
            let first = entry as u32 as usize;
            (entry != EMPTY && !has_partner[first]).then_some(lefts.len() + first)
        }));
        let items = self.sorted(items, &lefts);
        let mut join = Join {
            left: Vec::with_capacity(items.len()),
            right: Vec::with_capacity(items.len()),
            ..Join::default()
        };
        for (_, item) in items {
            let Some(&left) = lefts.refs.get(item) else {
                self.chain(item - lefts.len(), |right| join.push_right_only(right));
                continue;
            };
            match firsts[item] {
                Some(first) => self.push_chain(&mut join, left, first),
                None => join.push_left_only(left),
            }
        }
        Ok(join)
    }

    /// Sorts left rows, and right rows after them in number, by their keys and then by number
    fn sorted(&self, items: Vec<usize>, lefts: &Keys<'_>) -> Vec<(u128, usize)> {
        let split = |item: usize| match item.checked_sub(lefts.len()) {
            Some(row) => (&self.keys, row),
            None => (lefts, item),
        };
        let with_prefix = |item| {
            let (keys, row) = split(item);
            (keys.prefix(row, self.columns), item)
        };
        let mut sorted: Vec<_> = items.into_iter().map(with_prefix).collect();
        sorted.sort_unstable();
        if self.columns.is_in_prefix() {
            return sorted;
        }
        for run in sorted.chunk_by_mut(|item, next| item.0 == next.0) {
            // A stable sort, because the run is in the order of the numbers
            run.sort_by(|&(_, item), &(_, other)| {
                let ((keys, row), (others, other_row)) = (split(item), split(other));
                keys.compare(row, others, other_row, self.columns)
            });
        }
        sorted
    }

    /// Calls a function with up to [`PROBES`] left rows and the first right row with their keys
    #[inline(always)]
    fn probe(&self, lefts: &Keys<'_>, start: usize, mut visit: impl FnMut(RowRef, Option<u32>)) {
        let mut hashes = [0u64; PROBES];
        let mut entries = [EMPTY; PROBES];
        let places = hashes.iter_mut().zip(&mut entries);
        for ((hash, entry), &bits) in places.zip(&lefts.bits[start..]) {
            *hash = mix(bits);
            *entry = self.entries[self.place(*hash)];
        }
        let rows = lefts.refs[start..].iter().enumerate().take(PROBES);
        for (row, &left) in rows {
            visit(
                left,
                self.find(entries[row], hashes[row], lefts, start + row),
            );
        }
    }

    /// Returns the first right row with the key of a left row, given the first entry of its hash
    #[inline(always)]
    fn find(&self, mut entry: u64, hash: u64, left: &Keys<'_>, row: usize) -> Option<u32> {
        let mut place = self.place(hash);
        while entry != EMPTY {
            if self.is_same(entry, hash, left, row) {
                return Some(entry as u32);
            }
            place = (place + 1) & (self.entries.len() - 1);
            entry = self.entries[place];
        }
        None
    }

    /// Appends the pairs of a left row
    #[inline(always)]
    fn push_chain(&self, join: &mut Join, left: RowRef, first: u32) {
        self.chain(first as usize, |right| join.push(left, right));
    }

    /// Calls a function with each right row of a key, ascending
    #[inline(always)]
    fn chain(&self, first: usize, mut visit: impl FnMut(RowRef)) {
        let mut row = first;
        // The last row of a chain has no next one.
        while let Some(&right) = self.keys.refs.get(row) {
            visit(right);
            row = self.next.get(row).map_or(usize::MAX, |&next| next as usize);
        }
    }

    /// Keeps the memory for the next join, unless there is much of it
    pub(super) fn return_to(self, scratch: &mut Scratch) {
        let bytes = 8 * (self.keys.bits.capacity() + self.keys.refs.capacity());
        if bytes + 8 * self.entries.capacity() <= KEPT_BYTES {
            scratch.bits = self.keys.bits;
            scratch.refs = self.keys.refs;
            scratch.entries = self.entries;
        }
    }
}

/// Appends the keys of one slot of a frame
fn read_all<'a>(
    keys: &mut Keys<'a>,
    blocks: &[Block<'a>],
    slot: usize,
    columns: &KeyColumns,
) -> Result<(), ExchangeError> {
    for (index, block) in blocks.iter().enumerate() {
        keys.read(blocks, index, columns, block.piece(slot)?)?;
    }
    Ok(())
}
