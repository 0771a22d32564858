//! Virtual memory management.

use std::os::fd::AsFd;

use cudarc::driver::sys::{CUmemAllocationProp, CUresult};

use crate::allocators::{
    DESCRIPTOR, Memory, NO_HANDLE, Pool, allocation_prop, allow, map, reserve, unmap,
};
use crate::process::Peer;
use crate::wrap::{Attribute, Stream, attribute, read, start, write};
use crate::{cu, driver_tests};

driver_tests! {
    fn mapped_memory_is_for_whom_access_was_given() {
        start(0);
        let memory = Memory::create(PAGE, NO_HANDLE).unwrap();
        let base = reserve(PAGE);
        assert_eq!(read(base, 1), INVALID);
        map(base, PAGE, memory).unwrap();
        assert_eq!(read(base, 1), INVALID);
        allow(base, PAGE, 0, false).unwrap();
        assert_eq!(read(base, 1).unwrap(), [0]);
        assert_eq!(write(base, &[1]).unwrap_err(), CUresult::CUDA_ERROR_INVALID_VALUE);
        allow(base, PAGE, 0, true).unwrap();
        write(base, &[1]).unwrap();
        // Memory that is mapped anew has no access rights again.
        unmap(base, PAGE).unwrap();
        assert_eq!(read(base, 1), INVALID);
        map(base, PAGE, memory).unwrap();
        assert_eq!(read(base, 1), INVALID);
        allow(base, PAGE, 0, false).unwrap();
        assert_eq!(read(base, 1).unwrap(), [1]);
    }

    fn each_device_needs_access_of_its_own(FAKE_CUDA_DEVICES = "2") {
        start(0);
        let base = reserve(PAGE);
        map(base, PAGE, Memory::create(PAGE, NO_HANDLE).unwrap()).unwrap();
        allow(base, PAGE, 0, true).unwrap();
        crate::wrap::Context::retain(1).push();
        assert_eq!(read(base, 1), INVALID);
        allow(base, PAGE, 1, true).unwrap();
        read(base, 1).unwrap();
    }

    fn mappings_side_by_side_are_one_range() {
        start(0);
        let base = reserve(3 * PAGE);
        map(base, PAGE, Memory::create(PAGE, NO_HANDLE).unwrap()).unwrap();
        map(base + PAGE as u64, PAGE, Memory::create(2 * PAGE, NO_HANDLE).unwrap()).unwrap();
        allow(base, 2 * PAGE, 0, true).unwrap();
        let seam = base + PAGE as u64 - 2;
        write(seam, &[1, 2, 3, 4]).unwrap();
        assert_eq!(read(seam, 4).unwrap(), [1, 2, 3, 4]);
        Stream::NULL.copy(seam + 10, seam, 4);
        assert_eq!(read(seam + 10, 4).unwrap(), [1, 2, 3, 4]);
        let end = base + 2 * PAGE as u64 - 1;
        assert_eq!(read(end, 2), INVALID);
        // Each is taken away as a whole, or both together.
        assert_eq!(unmap(base, PAGE / 2), Err(CUresult::CUDA_ERROR_INVALID_VALUE));
        assert_eq!(allow(base, 3 * PAGE, 0, true), Err(CUresult::CUDA_ERROR_INVALID_VALUE));
        unmap(base, 2 * PAGE).unwrap();
    }

    fn sizes_are_multiples_of_the_granularity() {
        start(0);
        let invalid = Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        let mut granularity = 0;
        let option = cudarc::driver::sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        cu!(cuMemGetAllocationGranularity(&mut granularity, &allocation_prop(NO_HANDLE), option)).unwrap();
        assert_eq!(granularity, PAGE);
        assert_eq!(Memory::create(PAGE / 2, NO_HANDLE).map(drop), invalid);
        assert_eq!(Memory::create(0, NO_HANDLE).map(drop), invalid);
        let memory = Memory::create(PAGE, NO_HANDLE).unwrap();
        let base = reserve(2 * PAGE);
        assert_eq!(map(base + 4096, PAGE, memory), invalid);
        assert_eq!(map(base, 4096, memory), invalid);
        assert_eq!(map(base, 2 * PAGE, memory), invalid);
        assert_eq!(map(base + 2 * PAGE as u64, PAGE, memory), invalid);
        map(base, PAGE, memory).unwrap();
        assert_eq!(map(base, PAGE, memory), invalid);
        assert_eq!(cu!(cuMemAddressFree(base, 2 * PAGE)), invalid);
        unmap(base, PAGE).unwrap();
        assert_eq!(cu!(cuMemAddressFree(base, PAGE)), invalid);
        cu!(cuMemAddressFree(base, 2 * PAGE)).unwrap();
    }

    fn memory_lives_until_handle_and_mapping_are_gone(FAKE_CUDA_MEMORY_MIB = "4") {
        start(0);
        let memory = Memory::create(2 * PAGE, DESCRIPTOR).unwrap();
        let full = Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        assert_eq!(Memory::create(PAGE, NO_HANDLE).map(drop), full);
        let base = reserve(2 * PAGE);
        map(base, 2 * PAGE, memory).unwrap();
        memory.release().unwrap();
        assert_eq!(memory.release(), Err(CUresult::CUDA_ERROR_INVALID_VALUE));
        assert_eq!(Memory::create(PAGE, NO_HANDLE).map(drop), full);
        // The handle comes back by any address of the mapping.
        let mut again = 0;
        let within = (base + 4096) as *mut _;
        cu!(cuMemRetainAllocationHandle(&mut again, within)).unwrap();
        assert_eq!(again, memory.0);
        let mut prop: CUmemAllocationProp = allocation_prop(NO_HANDLE);
        cu!(cuMemGetAllocationPropertiesFromHandle(&mut prop, again)).unwrap();
        assert_eq!(prop, allocation_prop(DESCRIPTOR));
        unmap(base, 2 * PAGE).unwrap();
        assert_eq!(Memory::create(PAGE, NO_HANDLE).map(drop), full);
        memory.release().unwrap();
        Memory::create(PAGE, NO_HANDLE).unwrap();
        let nowhere = cu!(cuMemRetainAllocationHandle(&mut again, within));
        assert_eq!(nowhere, Err(CUresult::CUDA_ERROR_INVALID_VALUE));
    }

    fn exported_memory_outlives_its_process() {
        if let Some(wire) = Peer::here() {
            start(0);
            let memory = Memory::create(PAGE, DESCRIPTOR).unwrap();
            let base = reserve(PAGE);
            map(base, PAGE, memory).unwrap();
            allow(base, PAGE, 0, true).unwrap();
            write(base + 10, &[1, 2, 3]).unwrap();
            wire.send_with(b"memory", &[memory.export().unwrap().as_fd()]);
            wire.recv();
            unreachable!("it is killed");
        }
        start(0);
        let peer = Peer::start(&[]);
        let (_, descriptors) = peer.wire.recv_with();
        peer.kill();
        let memory = Memory::import(descriptors[0].as_fd()).unwrap();
        drop(descriptors);
        let base = reserve(PAGE);
        map(base, PAGE, memory).unwrap();
        memory.release().unwrap();
        assert_eq!(read(base + 10, 3), INVALID);
        allow(base, PAGE, 0, true).unwrap();
        assert_eq!(read(base + 10, 3).unwrap(), [1, 2, 3]);
    }

    fn only_what_was_asked_for_is_exported() {
        start(0);
        let memory = Memory::create(PAGE, NO_HANDLE).unwrap();
        assert_eq!(memory.export().unwrap_err(), CUresult::CUDA_ERROR_INVALID_VALUE);
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let refused = Memory::import(file.as_fd());
        assert_eq!(refused, Err(CUresult::CUDA_ERROR_INVALID_VALUE));
        // A descriptor of the other sort is no better.
        let memory = Memory::create(PAGE, DESCRIPTOR).unwrap().export().unwrap();
        let pool = Pool::create(0, DESCRIPTOR).unwrap().export().unwrap();
        assert_eq!(Memory::import(pool.as_fd()), Err(CUresult::CUDA_ERROR_INVALID_VALUE));
        assert_eq!(Pool::import(memory.as_fd()), Err(CUresult::CUDA_ERROR_INVALID_VALUE));
        Memory::import(memory.as_fd()).unwrap().release().unwrap();
    }

    fn a_pointer_tells_its_reservation_and_its_handle_types() {
        start(0);
        let base = reserve(3 * PAGE);
        let at = base + PAGE as u64;
        let of = |which| attribute(which, at + 5);
        assert_eq!(of(Attribute::CU_POINTER_ATTRIBUTE_MAPPED), Ok(0));
        assert_eq!(of(Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE), Ok(3 * PAGE as u64));
        let invalid = Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        assert_eq!(of(Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE), invalid);
        map(at, PAGE, Memory::create(PAGE, DESCRIPTOR).unwrap()).unwrap();
        assert_eq!(of(Attribute::CU_POINTER_ATTRIBUTE_MAPPED), Ok(1));
        assert_eq!(of(Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR), Ok(base));
        assert_eq!(of(Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE), Ok(3 * PAGE as u64));
        assert_eq!(of(Attribute::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES), Ok(1));
        assert_eq!(of(Attribute::CU_POINTER_ATTRIBUTE_CONTEXT), Ok(0));
        assert_eq!(of(Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE), Ok(2));
        assert_eq!(of(Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE), Ok(0));
        let (mut start, mut bytes) = (0, 0);
        cu!(cuMemGetAddressRange_v2(&mut start, &mut bytes, at + 5)).unwrap();
        assert_eq!((start, bytes), (at, PAGE));
    }
}

const INVALID: Result<Vec<u8>, CUresult> = Err(CUresult::CUDA_ERROR_INVALID_VALUE);
const PAGE: usize = 2 << 20;
