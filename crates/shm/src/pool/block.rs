//! A block of memory from the system

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use super::{ALIGNMENT_BYTES, SizeClass};
use crate::mapping::Mapping;

/// Memory of one size class, owned and initialised
///
/// Where it comes from follows from its class: the class of no bytes has none, the small ones are
/// allocations of the heap, and the others are mappings, whose pages stay with the block.
#[derive(Debug)]
pub(super) struct Block {
    address: NonNull<u8>,
    class: SizeClass,
}

// SAFETY: an allocation, or a mapping, may be used and freed by any thread.
unsafe impl Send for Block {}

impl Block {
    /// Asks the system for zeroed memory
    pub(super) fn allocate(class: SizeClass) -> Option<Self> {
        let address = match class.bytes() {
            0 => NonNull::<Line>::dangling().cast(),
            1..=SMALL_BYTES_MAX => {
                // SAFETY: the size is not 0.
                NonNull::new(unsafe { alloc_zeroed(layout(class)?) })?
            }
            bytes => {
                let mapping = Mapping::anonymous(bytes).ok()?;
                if bytes >= HUGE_BYTES_MIN {
                    mapping.advise_huge(bytes <= POPULATE_BYTES_MAX);
                }
                ManuallyDrop::new(mapping).address()
            }
        };
        Some(Self { address, class })
    }

    /// Takes the block apart: it is kept until [`from_parts`](Self::from_parts) makes one again
    pub(super) fn into_parts(self) -> (NonNull<u8>, SizeClass) {
        let this = ManuallyDrop::new(self);
        (this.address, this.class)
    }

    /// Makes a block of its parts
    ///
    /// # Safety
    ///
    /// - They are of one call of [`into_parts`](Self::into_parts), and are used once.
    /// - The memory is used only through the block.
    pub(super) unsafe fn from_parts(address: NonNull<u8>, class: SizeClass) -> Self {
        Self { address, class }
    }

    pub(super) fn class(&self) -> SizeClass {
        self.class
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        match self.class.bytes() {
            0 => (),
            1..=SMALL_BYTES_MAX => {
                if let Some(layout) = layout(self.class) {
                    // SAFETY: came from `alloc_zeroed` with this layout (`allocate`, the class is
                    // the same), and is freed once.
                    unsafe { dealloc(self.address.as_ptr(), layout) };
                }
            }
            bytes => {
                // SAFETY: of a mapping of that length (`allocate`, the class is the same), which
                // was not dropped there and is here.
                drop(unsafe { Mapping::from_parts(self.address, bytes) });
            }
        }
    }
}

/// How a small block is allocated; there always is a layout for it
fn layout(class: SizeClass) -> Option<Layout> {
    Layout::from_size_align(class.bytes(), ALIGNMENT_BYTES).ok()
}

/// Gives the address of an empty block its alignment
#[repr(align(64))]
pub(super) struct Line;

const _: () = assert!(align_of::<Line>() == ALIGNMENT_BYTES);

/// Above this, blocks are mapped: `malloc` would give pages back that we want to keep
pub(super) const SMALL_BYTES_MAX: usize = 64 * 1024;

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
