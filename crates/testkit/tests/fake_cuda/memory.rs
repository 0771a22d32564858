//! Memory in one process: what an address is, and what may be done with it.

use cudarc::driver::sys::{CUpointer_attribute_enum, CUresult};

use crate::wrap::{
    Attribute, Context, Gate, Stream, alloc, alloc_host, alloc_managed, attribute,
    attribute_of_any, free, read, start, write,
};
use crate::{cu, driver_tests};

driver_tests! {
    fn an_address_comes_back_and_its_id_does_not() {
        start(0);
        let a = alloc(1000).unwrap();
        let id = attribute(ID, a + 999).unwrap();
        assert_eq!(attribute(ID, a), Ok(id));
        free(a).unwrap();
        assert_eq!(attribute(ID, a), Err(CUresult::CUDA_ERROR_INVALID_VALUE));
        assert_eq!(alloc(1000).unwrap(), a);
        assert_ne!(attribute(ID, a), Ok(id));
    }

    fn memory_has_a_limit(FAKE_CUDA_MEMORY_MIB = "1") {
        start(0);
        let full = Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        assert_eq!(alloc((1 << 20) + 1), full);
        let a = alloc(1 << 20).unwrap();
        assert_eq!(alloc(1), full);
        let (mut left, mut total) = (1, 1);
        cu!(cuMemGetInfo_v2(&mut left, &mut total)).unwrap();
        assert_eq!((left, total), (0, 1 << 20));
        free(a).unwrap();
        alloc(1).unwrap();
        assert_eq!(alloc(0), Err(CUresult::CUDA_ERROR_INVALID_VALUE));
    }

    fn only_the_start_of_an_allocation_is_freed_and_once() {
        start(0);
        let a = alloc(1000).unwrap();
        let invalid = Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        assert_eq!(free(a + 8), invalid);
        assert_eq!(free(alloc_host(8) as u64), invalid);
        free(a).unwrap();
        assert_eq!(free(a), invalid);
    }

    fn a_range_is_told_by_any_address_of_it() {
        start(0);
        let a = alloc(1000).unwrap();
        let (mut base, mut bytes) = (0, 0);
        cu!(cuMemGetAddressRange_v2(&mut base, &mut bytes, a + 999)).unwrap();
        assert_eq!((base, bytes), (a, 1000));
        cu!(cuMemGetAddressRange_v2(std::ptr::null_mut(), &mut bytes, a)).unwrap();
        let unknown = cu!(cuMemGetAddressRange_v2(&mut base, &mut bytes, a + 1000));
        assert_eq!(unknown, Err(CUresult::CUDA_ERROR_NOT_FOUND));
    }

    fn a_copy_stays_within_memory_of_its_sort() {
        start(0);
        let (a, b) = (alloc(1000).unwrap(), alloc(1000).unwrap());
        let invalid = Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        assert_eq!(read(a + 999, 2), Err(CUresult::CUDA_ERROR_INVALID_VALUE));
        assert_eq!(cu!(cuMemcpyDtoD_v2(a, b + 500, 501)), invalid);
        assert_eq!(cu!(cuMemsetD8_v2(a, 0, 1001)), invalid);
        // Nor does it go on into what lies behind.
        let (first, second) = (alloc(512).unwrap(), alloc(512).unwrap());
        assert_eq!(second, first + 512);
        assert_eq!(read(first + 511, 2), Err(CUresult::CUDA_ERROR_INVALID_VALUE));
        // A host address for a device's, and the other way round
        let mut host = [0_u8; 8];
        let pointer = host.as_mut_ptr();
        assert_eq!(cu!(cuMemcpyDtoD_v2(a, pointer as u64, 8)), invalid);
        assert_eq!(cu!(cuMemcpyHtoD_v2(a, b as *const _, 8)), invalid);
        assert_eq!(cu!(cuMemcpyDtoH_v2(a as *mut _, b, 8)), invalid);
        // This one finds out what is what.
        write(a, &[7; 8]).unwrap();
        cu!(cuMemcpy(pointer as u64, a, 8)).unwrap();
        assert_eq!(host, [7; 8]);
        cu!(cuMemcpyDtoH_v2(std::ptr::null_mut(), a, 0)).unwrap();
        free(a).unwrap();
        assert_eq!(cu!(cuMemcpy(pointer as u64, a, 8)), invalid);
    }

    fn a_copy_goes_from_device_to_device(FAKE_CUDA_DEVICES = "2") {
        let first = start(0);
        let a = alloc(8).unwrap();
        write(a, &[7; 8]).unwrap();
        let second = Context::retain(1);
        second.push();
        let b = alloc(8).unwrap();
        assert_eq!(attribute(Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, b), Ok(1));
        let stream = Stream::create(0);
        cu!(cuMemcpyPeerAsync(b, second.0, a, first.0, 8, stream.0)).unwrap();
        stream.synchronize();
        assert_eq!(read(b, 8).unwrap(), [7; 8]);
    }

    fn what_is_freed_under_a_copy_is_no_more_what_it_was() {
        start(0);
        static GATE: Gate = Gate::new();
        let stream = Stream::create(1);
        let (a, b) = (alloc(8).unwrap(), alloc(8).unwrap());
        write(a, &[7; 8]).unwrap();
        stream.stop_at(&GATE);
        stream.copy(b, a, 8);
        free(a).unwrap();
        GATE.open();
        stream.synchronize();
        assert_eq!(read(b, 8).unwrap(), [0xDD; 8]);
    }

    fn managed_and_pinned_memory_is_for_both() {
        start(0);
        let stream = Stream::create(0);
        for address in [alloc_managed(100), alloc_host(100) as u64] {
            stream.fill(address, 7, 100);
            stream.synchronize();
            // SAFETY: the memory is this test's, and no other thread is at it.
            assert_eq!(unsafe { (address as *const u8).add(99).read() }, 7);
            let host = attribute(Attribute::CU_POINTER_ATTRIBUTE_HOST_POINTER, address + 1);
            assert_eq!(host, Ok(address + 1));
        }
    }

    fn host_memory_is_registered_once() {
        start(0);
        let mut bytes = vec![0_u8; 8192];
        let pointer = bytes.as_mut_ptr().cast();
        let invalid = Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        assert_eq!(cu!(cuMemsetD8_v2(pointer as u64, 7, 8192)), invalid);
        cu!(cuMemHostRegister_v2(pointer, 8192, 0)).unwrap();
        let again = Err(CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        assert_eq!(cu!(cuMemHostRegister_v2(pointer, 100, 0)), again);
        assert_eq!(attribute(KIND, pointer as u64 + 8191), Ok(1));
        cu!(cuMemsetD8_v2(pointer as u64, 7, 8192)).unwrap();
        assert_eq!(bytes, [7; 8192]);
        cu!(cuMemHostUnregister(pointer)).unwrap();
        let not = Err(CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
        assert_eq!(cu!(cuMemHostUnregister(pointer)), not);
        assert_eq!(cu!(cuMemFreeHost(pointer)), invalid);
    }

    fn a_pointer_tells_what_it_is() {
        let context = start(0);
        let (device, managed) = (alloc(1000).unwrap(), alloc_managed(1000));
        let pinned = alloc_host(1000) as u64;
        let context = context.0.addr() as u64;
        // Kind, managed, legacy handle, context, range, mapped, handle types, pool
        let of = |address: u64| {
            [
                KIND,
                Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED,
                Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                Attribute::CU_POINTER_ATTRIBUTE_CONTEXT,
                Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                Attribute::CU_POINTER_ATTRIBUTE_MAPPED,
                Attribute::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
                Attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
            ]
            .map(|which| {
                // A pointer that the one refuses is zero by the other.
                let value = attribute(which, address + 500).unwrap_or(0);
                assert_eq!(attribute_of_any(which, address + 500), value);
                value
            })
        };
        assert_eq!(of(device), [2, 0, 1, context, device, 1000, 1, 0, 0]);
        // Its range is the driver's own.
        assert_eq!(of(managed), [2, 1, 0, context, 0, 0, 1, 0, 0]);
        let range = attribute(Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE, managed);
        assert_eq!(range, Err(CUresult::CUDA_ERROR_INVALID_VALUE));
        assert_eq!(of(pinned), [1, 0, 0, context, pinned, 1000, 1, 0, 0]);
        let no_host = attribute(Attribute::CU_POINTER_ATTRIBUTE_HOST_POINTER, device);
        assert_eq!(no_host, Err(CUresult::CUDA_ERROR_INVALID_VALUE));
    }

    fn a_pointer_of_the_host_is_refused_by_one_call_and_nothing_to_the_other() {
        start(0);
        let here = 0_u64;
        let address = (&raw const here) as u64;
        for which in [KIND, ID, Attribute::CU_POINTER_ATTRIBUTE_CONTEXT] {
            assert_eq!(attribute(which, address), Err(CUresult::CUDA_ERROR_INVALID_VALUE));
            assert_eq!(attribute_of_any(which, address), 0);
        }
        let device = alloc(8).unwrap();
        Context::pop().unwrap();
        // Some of it needs no context.
        for which in [KIND, Attribute::CU_POINTER_ATTRIBUTE_CONTEXT] {
            attribute(which, device).unwrap();
        }
        for which in [
            ID,
            Attribute::CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
            Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        ] {
            let refused = attribute(which, device);
            assert_eq!(refused, Err(CUresult::CUDA_ERROR_INVALID_CONTEXT));
        }
    }
}

const KIND: CUpointer_attribute_enum = Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
const ID: CUpointer_attribute_enum = Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID;
