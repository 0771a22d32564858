//! Addresses: a reservation that no code may touch, and the meaning of its parts.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::CUresult;
use rustix::mm::{MapFlags, ProtFlags};

use crate::backing::Backing;
use crate::error::Outcome;
use crate::props::Access;

/// The address space of all devices of this process
///
/// The lowest address that fits is given out, so one that was freed comes back at the next occasion.
#[derive(Debug)]
pub(crate) struct Space {
    start: u64,
    /// Taken ranges: where each starts and ends
    taken: BTreeMap<u64, u64>,
    /// By first address; host memory among them, which is outside of the reservation
    allocations: BTreeMap<u64, Allocation>,
    buffer_ids: u64,
}

/// A range of addresses with memory behind it
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) base: u64,
    pub(crate) bytes: usize,
    pub(crate) place: Place,
    /// The device that the memory belongs to, or that the context belongs to
    pub(crate) device: usize,
    /// Unique in the life of this process
    pub(crate) buffer_id: u64,
    pub(crate) kind: Kind,
}

/// Kind of an allocation
#[derive(Debug)]
pub(crate) enum Kind {
    /// Of `cuMemAlloc`; whether a peer may have opened it
    Device { exported: bool },
    /// Of `cuMemAllocManaged`
    Managed,
    /// Of `cuMemHostAlloc`
    Pinned,
    /// Of `cuMemHostRegister`
    Registered,
    /// Of `cuIpcOpenMemHandle`: which handle, and how often
    Opened { handle: [u8; 64], times: u32 },
    /// Of `cuMemMap`: of which memory, and who may touch it
    Mapped { handle: u64, access: Access },
    /// Of `cuMemAllocAsync` and its kin, or of `cuMemPoolImportPointer`
    Pooled { pool: usize, serial: u64 },
}

/// Where the driver finds memory
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// In memory of its own, from this byte on
    Backing(Arc<Backing>, usize),
    /// In memory of the application
    Host(usize),
}

/// Bytes that lie together, for a copy
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) place: Place,
    pub(crate) bytes: usize,
}

impl Space {
    /// Reserves addresses
    pub(crate) fn reserve() -> Outcome<Self> {
        // SAFETY: the kernel chooses the place, so nothing is mapped over.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                SPACE_BYTES + MAX_ALIGN,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        let start = start.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(Self {
            start: (start.addr() as u64).next_multiple_of(MAX_ALIGN as u64),
            taken: BTreeMap::new(),
            allocations: BTreeMap::new(),
            buffer_ids: 0,
        })
    }

    /// Takes the lowest range that is free
    pub(crate) fn take(&mut self, bytes: usize, align: u64) -> Outcome<u64> {
        let bytes = bytes as u64;
        let mut base = self.start.next_multiple_of(align);
        for (&start, &end) in &self.taken {
            if start.saturating_sub(base) >= bytes {
                break;
            }
            base = end.next_multiple_of(align);
        }
        let end = base
            .checked_add(bytes)
            .ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        if end > self.start + SPACE_BYTES as u64 {
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        self.taken.insert(base, end);
        Ok(base)
    }

    /// Gives a range back
    pub(crate) fn give_back(&mut self, base: u64) {
        self.taken.remove(&base);
    }

    /// Returns whether an address is a device's, be there memory or not
    pub(crate) fn reserves(&self, address: u64) -> bool {
        (self.start..self.start + SPACE_BYTES as u64).contains(&address)
    }

    /// Puts memory behind a range, returning its buffer id
    pub(crate) fn insert(
        &mut self,
        base: u64,
        bytes: usize,
        place: Place,
        device: usize,
        kind: Kind,
    ) -> u64 {
        self.buffer_ids += 1;
        let allocation = Allocation {
            base,
            bytes,
            place,
            device,
            buffer_id: self.buffer_ids,
            kind,
        };
        let before = self.allocations.insert(base, allocation);
        assert!(before.is_none(), "{base:#x} has two allocations");
        self.buffer_ids
    }

    /// The allocation that an address is in
    pub(crate) fn find(&self, address: u64) -> Option<&Allocation> {
        let (_, allocation) = self.allocations.range(..=address).next_back()?;
        (address - allocation.base < allocation.bytes as u64).then_some(allocation)
    }

    /// The allocation that starts at an address
    pub(crate) fn at(&mut self, base: u64) -> Option<&mut Allocation> {
        self.allocations.get_mut(&base)
    }

    /// Returns whether some allocation has a part of this range
    pub(crate) fn overlaps(&self, base: u64, bytes: usize) -> bool {
        self.find(base).is_some()
            || self
                .allocations
                .range(base..base + bytes as u64)
                .next()
                .is_some()
    }

    /// Takes the memory behind a range away
    pub(crate) fn remove(&mut self, base: u64) -> Option<Allocation> {
        self.allocations.remove(&base)
    }

    /// Every allocation
    pub(crate) fn allocations(&self) -> impl Iterator<Item = &Allocation> {
        self.allocations.values()
    }
}

impl Allocation {
    /// The part of it from an address on, at most so long
    pub(crate) fn piece(&self, address: u64, bytes: usize) -> Piece {
        let offset = usize::try_from(address - self.base).expect("an offset in an allocation");
        Piece {
            place: self.place.after(offset),
            bytes: bytes.min(self.bytes - offset),
        }
    }

    /// The device of the context that it was made in; some is not made in any
    pub(crate) fn context(&self) -> Option<usize> {
        let free = matches!(self.kind, Kind::Mapped { .. } | Kind::Pooled { .. });
        (!free).then_some(self.device)
    }

    /// Returns whether the memory is of a device; the host may touch it nevertheless if it is
    /// managed
    pub(crate) fn is_device(&self) -> bool {
        !matches!(self.kind, Kind::Pinned | Kind::Registered)
    }

    /// Returns whether the host may touch it
    pub(crate) fn is_host(&self) -> bool {
        matches!(self.kind, Kind::Managed | Kind::Pinned | Kind::Registered)
    }

    /// Overwrites memory that a caller might still look at, now that it is freed
    pub(crate) fn spoil(&self) {
        let Place::Backing(backing, offset) = &self.place else {
            return;
        };
        let exported = matches!(self.kind, Kind::Device { exported: true });
        let here = matches!(
            self.kind,
            Kind::Device { .. } | Kind::Managed | Kind::Pinned
        );
        if here && (exported || Arc::strong_count(backing) > 1) {
            backing.fill(*offset, self.bytes, FREED);
        }
    }
}

impl Place {
    /// The place some bytes further
    fn after(&self, bytes: usize) -> Self {
        match self {
            Self::Backing(backing, offset) => Self::Backing(Arc::clone(backing), offset + bytes),
            Self::Host(address) => Self::Host(address + bytes),
        }
    }

    /// Where the driver touches it, while this value is held
    pub(crate) fn pointer(&self) -> *mut u8 {
        match self {
            Self::Backing(backing, offset) => backing.at(*offset),
            Self::Host(address) => ptr::with_exposed_provenance_mut(*address),
        }
    }
}

/// Byte that freed memory is overwritten with
pub(crate) const FREED: u8 = 0xDD;

/// More than any test has memory for
const SPACE_BYTES: usize = 1 << 38;
/// The largest alignment that is asked for
const MAX_ALIGN: usize = 2 << 20;
