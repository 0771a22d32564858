//! Memory leased from one peer and exported to another
//!
//! The second peer maps the owner's memory. The lease of the process in between is returned when
//! neither of the two needs it.

use std::collections::BTreeMap;
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use backhaul_sys::forks::PerProcess;

use crate::completion::Receipt;
use crate::fork::Origin;
use crate::mapping;

/// A part of a lease, held for the peer to which it is exported
///
/// Dropping it says that this peer needs it no longer.
pub struct Reexport {
    receipt: Arc<Receipt>,
    offset: usize,
    bytes: usize,
}

impl Reexport {
    /// Receipt of the lease
    pub fn receipt(&self) -> &Receipt {
        &self.receipt
    }

    /// Where the part starts in the lease
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// How many bytes are exported
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl fmt::Debug for Reexport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reexport")
            .field("receipt", &self.receipt)
            .field("offset", &self.offset)
            .field("bytes", &self.bytes)
            .finish()
    }
}

/// Holds the lease of some memory for another peer, if it is leased and was not written to
///
/// None too if this process wrote there: then the owner's bytes differ. The check takes about
/// 10 ns per page.
pub fn reexport(memory: &[u8]) -> Option<Reexport> {
    let part = find(memory)?;
    mapping::is_as_in_file(memory.as_ptr(), memory.len())
        .unwrap_or(false)
        .then_some(part)
}

/// Returns whether memory is leased
pub fn is_leased(memory: &[u8]) -> bool {
    find(memory).is_some()
}

/// Bytes of the mapped leases of this process whose owners have freed the memory
///
/// Other borrowers of the same memory count these bytes, too.
pub fn orphaned_bytes() -> usize {
    let entries = entries();
    let orphaned = entries.values().filter(|lease| {
        // Not the last reference: a lease leaves the map before it drops its receipt.
        let receipt = lease.receipt.upgrade();
        receipt.is_some_and(|receipt| receipt.is_freed())
    });
    orphaned.map(|lease| lease.bytes).sum()
}

fn find(memory: &[u8]) -> Option<Reexport> {
    let address = memory.as_ptr().addr();
    let entries = entries();
    let (start, lease) = entries.range(..=address).next_back()?;
    let offset = address - start;
    let fits = lease
        .bytes
        .checked_sub(offset)
        .is_some_and(|left| !memory.is_empty() && memory.len() <= left);
    let receipt = lease.receipt.upgrade().filter(|_| fits)?;
    Some(Reexport {
        receipt,
        offset,
        bytes: memory.len(),
    })
}

/// Makes a mapped lease findable by its address while this lives
pub(super) struct Entry {
    start: usize,
    origin: Origin,
}

impl Entry {
    pub(super) fn new(start: NonNull<u8>, bytes: usize, receipt: &Arc<Receipt>) -> Self {
        let start = start.as_ptr().addr();
        let receipt = Arc::downgrade(receipt);
        let replaced = entries().insert(start, Mapped { bytes, receipt });
        debug_assert!(replaced.is_none(), "two leases mapped at {start:#x}");
        Self {
            start,
            origin: Origin::here(),
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // A forked child has other entries.
        if self.origin.is_here() {
            entries().remove(&self.start);
        }
    }
}

struct Mapped {
    bytes: usize,
    receipt: Weak<Receipt>,
}

/// The mapped leases of this process, by address
static ENTRIES: PerProcess<Mutex<BTreeMap<usize, Mapped>>> = PerProcess::new();

fn entries() -> MutexGuard<'static, BTreeMap<usize, Mapped>> {
    ENTRIES
        .value()
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}
