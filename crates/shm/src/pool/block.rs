//! A block of memory from the system

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use super::{ALIGNMENT_BYTES, SizeClass};
use crate::mapping::Mapping;

/// Memory of one size class, owned and initialised
#[derive(Debug)]
pub(super) struct Block {
    class: SizeClass,
    memory: Memory,
}

impl Block {
    /// Asks the system for zeroed memory
    pub(super) fn allocate(class: SizeClass) -> Option<Self> {
        let memory = match class.bytes() {
            0 => Memory::Empty,
            bytes @ ..=SMALL_BYTES_MAX => Memory::Small(Small::allocate(bytes)?),
            bytes => {
                let mapping = Mapping::anonymous(bytes).ok()?;
                if bytes >= HUGE_BYTES_MIN {
                    mapping.advise_huge(bytes <= POPULATE_BYTES_MAX);
                }
                Memory::Large(mapping)
            }
        };
        Some(Self { class, memory })
    }

    /// Start of `class().bytes()` initialised bytes that the owner of the block may use
    pub(super) fn address(&self) -> NonNull<u8> {
        match &self.memory {
            Memory::Empty => NonNull::<Line>::dangling().cast(),
            Memory::Small(small) => small.address,
            Memory::Large(mapping) => mapping.address(),
        }
    }

    pub(super) fn class(&self) -> SizeClass {
        self.class
    }
}

/// Where a block comes from and returns to
#[derive(Debug)]
enum Memory {
    /// No bytes, no address worth having
    Empty,
    Small(Small),
    /// Pages of their own, that stay with the block
    Large(Mapping),
}

/// An allocation of the heap, aligned to a line
#[derive(Debug)]
struct Small {
    address: NonNull<u8>,
    layout: Layout,
}

// SAFETY: an allocation may be used and freed by any thread.
unsafe impl Send for Small {}

impl Small {
    fn allocate(bytes: usize) -> Option<Self> {
        assert!(bytes > 0);
        let layout = Layout::from_size_align(bytes, ALIGNMENT_BYTES).ok()?;
        // SAFETY: the size is not 0: asserted.
        let address = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { address, layout })
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // SAFETY: `address` came from `alloc_zeroed` with this layout and is freed once.
        unsafe { dealloc(self.address.as_ptr(), self.layout) };
    }
}

/// Gives the address of an empty block its alignment
#[repr(align(64))]
struct Line;

const _: () = assert!(align_of::<Line>() == ALIGNMENT_BYTES);

/// Above this, blocks are mapped: `malloc` would give pages back that we want to keep
const SMALL_BYTES_MAX: usize = 64 * 1024;

/// From here on, blocks are made of huge pages where possible
///
/// Measured on a virtual machine (2 CPUs, Linux 6.18): to map and fill a block once took 843 µs
/// with small pages, 59 µs with huge ones and 56 µs with huge ones populated at 2 MiB; 7.3, 0.91
/// and 0.57 ms at 16 MiB; 31, 4.2 and 4.2 ms at 64 MiB. Recycled blocks differ by less than 5 %.
const HUGE_BYTES_MIN: usize = 2 << 20;

/// Up to here pages are made before they are asked for
///
/// A peer says how long a message is before it sends it: what it only says must not take memory.
const POPULATE_BYTES_MAX: usize = 64 << 20;
