//! Memory pools, and what is allocated from them in the order of a stream.
//!
//! A pool is one memfd: a table that says which allocation starts at each slot, then the slots. A peer
//! that has the pool sees by the table whether an exported pointer is still one.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys::{CUdevice, CUdeviceptr, CUmemoryPool, CUresult, CUstream};

use crate::backing::{Backing, Name};
use crate::driver::{Driver, State};
use crate::error::Outcome;
use crate::ffi::{In, Out, call};
use crate::props::{Access, AccessDesc, NO_ACCESS, PoolProps, READ_WRITE, device_of};
use crate::settings::settings;
use crate::space::{Allocation, FREED, Kind, Place};

/// The pools of this process, by handle
#[derive(Debug, Default)]
pub(crate) struct Pools {
    by_handle: HashMap<usize, Pool>,
    /// The handle of each device's default pool, once a call asked for it
    defaults: HashMap<usize, usize>,
}

/// A pool, of this process or another
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) backing: Arc<Backing>,
    pub(crate) name: Name,
    pub(crate) device: usize,
    pub(crate) handle_types: u32,
    pub(crate) sort: Sort,
    access: Access,
    /// Taken ranges behind the table: where each starts and ends
    taken: BTreeMap<usize, usize>,
    serials: u64,
    /// Allocations that are not given back yet
    live: usize,
    /// Gone for the application, here until its last allocation is freed
    destroyed: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Sort {
    Default,
    Own { exported: bool },
    Imported,
}

impl Pool {
    /// Takes the lowest range that is free, returning where it starts and its serial number
    fn take(&mut self, bytes: usize) -> Outcome<(usize, u64)> {
        let mut offset = table_bytes(self.backing.bytes());
        for (&start, &end) in &self.taken {
            if start - offset >= bytes {
                break;
            }
            offset = end.next_multiple_of(ALIGN);
        }
        let end = offset
            .checked_add(bytes)
            .filter(|&end| end <= self.backing.bytes());
        let end = end.ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        self.taken.insert(offset, end);
        self.serials += 1;
        // With the load of an importer: an allocation that it finds was there before the importer
        // got its pointer.
        self.slot(offset).store(self.serials, Ordering::Release);
        Ok((offset, self.serials))
    }

    /// Returns whether an allocation could be there
    pub(crate) fn has(&self, offset: usize, bytes: usize) -> bool {
        let end = offset.checked_add(bytes);
        offset >= table_bytes(self.backing.bytes())
            && offset.is_multiple_of(ALIGN)
            && end.is_some_and(|end| end <= self.backing.bytes())
    }

    /// The slot of the allocation at an offset: its serial number, or zero
    pub(crate) fn slot(&self, offset: usize) -> &AtomicU64 {
        let index = (offset - table_bytes(self.backing.bytes())) / ALIGN;
        let slot = self.backing.at(index * size_of::<u64>());
        // SAFETY: the slot is in the table, at a multiple of eight bytes of a mapping that lives as
        // long as the pool; all processes use it as an atomic.
        unsafe { AtomicU64::from_ptr(slot.cast()) }
    }
}

impl Pools {
    /// Returns whether a device may read or write memory of a pool
    pub(crate) fn allows(&self, pool: usize, device: usize, wanted: u32) -> bool {
        let access = &self.by_handle[&pool].access;
        access
            .get(&device)
            .is_some_and(|flags| flags & wanted == wanted)
    }

    /// Which handle types a pool may be exported as
    pub(crate) fn handle_types(&self, pool: usize) -> u32 {
        self.by_handle[&pool].handle_types
    }

    /// Counts an allocation, which is to be given back
    pub(crate) fn count(&mut self, pool: usize) {
        self.by_handle.get_mut(&pool).expect("it was found").live += 1;
    }

    /// A pool that is not destroyed
    pub(crate) fn pool(&mut self, handle: CUmemoryPool) -> Outcome<&mut Pool> {
        self.by_handle
            .get_mut(&handle.addr())
            .filter(|pool| !pool.destroyed)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }
}

impl State {
    fn add_pool(
        &mut self,
        driver: &Driver,
        device: usize,
        handle_types: u32,
        sort: Sort,
    ) -> Outcome<usize> {
        // All memory of a device, and the table for it
        let slots = settings().memory_bytes.div_ceil(ALIGN) + 1;
        let bytes = (slots * (ALIGN + size_of::<u64>())).next_multiple_of(ALIGN);
        let backing = Backing::create(KIND, driver.physical(device), bytes)?;
        let name = Name::of(backing.descriptor()).expect("we named it");
        Ok(self.insert_pool(backing, name, device, handle_types, sort))
    }

    /// Makes a pool of what is behind it
    pub(crate) fn insert_pool(
        &mut self,
        backing: Backing,
        name: Name,
        device: usize,
        handle_types: u32,
        sort: Sort,
    ) -> usize {
        let handle = self.next_handle();
        let pool = Pool {
            backing: Arc::new(backing),
            name,
            device,
            handle_types,
            sort,
            access: Access::from([(device, READ_WRITE)]),
            taken: BTreeMap::new(),
            serials: 0,
            live: 0,
            destroyed: false,
        };
        self.pools.by_handle.insert(handle, pool);
        handle
    }

    fn default_pool(&mut self, driver: &Driver, device: usize) -> Outcome<usize> {
        if let Some(&handle) = self.pools.defaults.get(&device) {
            return Ok(handle);
        }
        let handle = self.add_pool(driver, device, 0, Sort::Default)?;
        self.pools.defaults.insert(device, handle);
        Ok(handle)
    }

    /// Takes memory from a pool, returning its address and where it is
    fn take_from_pool(&mut self, handle: usize, bytes: usize) -> Outcome<(u64, Place)> {
        let pool = self.pools.pool(std::ptr::without_provenance_mut(handle))?;
        if bytes == 0 || pool.sort == Sort::Imported {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let device = pool.device;
        let (offset, serial) = pool.take(bytes)?;
        let place = Place::Backing(Arc::clone(&pool.backing), offset);
        let counted = self.use_memory(device, bytes);
        let base = counted.and_then(|()| {
            let base = self.space.take(bytes, ALIGN as u64);
            base.inspect_err(|_| self.free_memory(device, bytes))
        });
        let base = base.inspect_err(|_| {
            let pool = self.pools.by_handle.get_mut(&handle).expect("it was there");
            pool.slot(offset).store(0, Ordering::Release);
            pool.taken.remove(&offset);
        })?;
        self.pools.count(handle);
        let kind = Kind::Pooled {
            pool: handle,
            serial,
        };
        self.space.insert(base, bytes, place.clone(), device, kind);
        Ok((base, place))
    }

    /// Takes an allocation of a pool from the application; its memory stays until it is given back
    pub(crate) fn take_pooled(&mut self, address: u64) -> Option<Allocation> {
        let allocation = self.space.at(address)?;
        matches!(allocation.kind, Kind::Pooled { .. }).then(|| self.space.remove(address))?
    }

    /// Gives memory of a pool back, with its address
    pub(crate) fn give_back_pooled(&mut self, allocation: &Allocation) {
        let (
            Kind::Pooled {
                pool: handle,
                serial,
            },
            Place::Backing(backing, offset),
        ) = (&allocation.kind, &allocation.place)
        else {
            unreachable!("{allocation:?} is of a pool");
        };
        self.space.give_back(allocation.base);
        let pool = self
            .pools
            .by_handle
            .get_mut(handle)
            .expect("it waits for this");
        pool.live -= 1;
        // Another process's memory is only unmapped.
        if pool.sort != Sort::Imported {
            assert_eq!(pool.slot(*offset).swap(0, Ordering::AcqRel), *serial);
            pool.taken.remove(offset);
            backing.fill(*offset, allocation.bytes, FREED);
            let device = pool.device;
            self.free_memory(device, allocation.bytes);
        }
        self.settle_pool(*handle);
    }

    /// Forgets a pool that is destroyed and has no allocation left
    fn settle_pool(&mut self, handle: usize) {
        let pool = &self.pools.by_handle[&handle];
        if pool.destroyed && pool.live == 0 {
            self.pools.by_handle.remove(&handle);
        }
    }
}

impl Driver {
    fn allocate(&self, pool: Option<usize>, bytes: usize, stream: CUstream) -> Outcome<u64> {
        let stream = self.stream(stream)?;
        let (base, place) = {
            let state = &mut *self.state();
            let pool = match pool {
                Some(pool) => pool,
                None => state.default_pool(self, stream.context)?,
            };
            state.take_from_pool(pool, bytes)?
        };
        // A caller that does not wait for its turn has it overwritten.
        self.submit(&stream, move || {
            let Place::Backing(backing, offset) = place else {
                unreachable!("memory of a pool is the driver's");
            };
            backing.fill(offset, bytes, ALLOCATED);
        });
        Ok(base)
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDeviceGetDefaultMemPool(
    to: Out<CUmemoryPool>,
    ordinal: CUdevice,
) -> CUresult {
    call("cuDeviceGetDefaultMemPool", |driver| {
        let device = driver.device(ordinal)?;
        let handle = driver.state().default_pool(driver, device)?;
        to.put(std::ptr::without_provenance_mut(handle))
    })
}

/// Nothing here sets another pool than the default one
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDeviceGetMemPool(to: Out<CUmemoryPool>, ordinal: CUdevice) -> CUresult {
    call("cuDeviceGetMemPool", |driver| {
        let device = driver.device(ordinal)?;
        let handle = driver.state().default_pool(driver, device)?;
        to.put(std::ptr::without_provenance_mut(handle))
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemPoolCreate(to: Out<CUmemoryPool>, props: In<PoolProps>) -> CUresult {
    call("cuMemPoolCreate", |driver| {
        let props = props.read()?;
        let device = device_of(driver, props.kind, props.handle_types, props.location)?;
        let sort = Sort::Own { exported: false };
        let handle = driver
            .state()
            .add_pool(driver, device, props.handle_types, sort)?;
        to.put(std::ptr::without_provenance_mut(handle))
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemPoolDestroy(pool: CUmemoryPool) -> CUresult {
    call("cuMemPoolDestroy", |driver| {
        let state = &mut *driver.state();
        let it = state.pools.pool(pool)?;
        if it.sort == Sort::Default {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        it.destroyed = true;
        state.settle_pool(pool.addr());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemPoolSetAccess(
    pool: CUmemoryPool,
    descriptions: In<AccessDesc>,
    count: usize,
) -> CUresult {
    call("cuMemPoolSetAccess", |driver| {
        let state = &mut *driver.state();
        let pool = state.pools.pool(pool)?;
        for description in descriptions.read_all(count)? {
            let (device, flags) = description.read(driver)?;
            // Its own device keeps its access; others need a way to it.
            let refused = if device == pool.device {
                flags != READ_WRITE
            } else {
                flags != NO_ACCESS && !settings().peers
            };
            if refused {
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            }
            pool.access.insert(device, flags);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemAllocAsync(
    to: Out<CUdeviceptr>,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    call("cuMemAllocAsync", |driver| {
        to.put(driver.allocate(None, bytes, stream)?)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemAllocFromPoolAsync(
    to: Out<CUdeviceptr>,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> CUresult {
    call("cuMemAllocFromPoolAsync", |driver| {
        to.put(driver.allocate(Some(pool.addr()), bytes, stream)?)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream) -> CUresult {
    call("cuMemFreeAsync", |driver| {
        let stream = driver.stream(stream)?;
        let allocation = driver.state().take_pooled(address);
        let allocation = allocation.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        driver.submit(&stream, move || {
            driver.state().give_back_pooled(&allocation);
        });
        Ok(())
    })
}

/// How long the table is in a pool of so many bytes, for slots in all that is behind it
fn table_bytes(bytes: usize) -> usize {
    let slots = bytes.div_ceil(ALIGN + size_of::<u64>());
    (slots * size_of::<u64>()).next_multiple_of(ALIGN)
}

/// Name of this sort of memory
pub(crate) const KIND: &str = "pool";
/// Alignment of allocations, and the size of a slot
pub(crate) const ALIGN: usize = 512;
/// Byte that memory is overwritten with when its allocation has its turn
const ALLOCATED: u8 = 0xCD;
