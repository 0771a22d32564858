//! Memory pools, and allocations in the order of a stream.

use std::os::fd::AsFd;

use cudarc::driver::sys::CUresult;

use crate::allocators::{DESCRIPTOR, NO_HANDLE, Pool, export_pointer, free_async};
use crate::process::Peer;
use crate::wrap::{Attribute, Context, Gate, Stream, alloc, attribute, free, read, start, write};
use crate::{cu, driver_tests};

driver_tests! {
    fn memory_of_a_pool_is_there_in_its_turn() {
        start(0);
        static GATE: Gate = Gate::new();
        let stream = Stream::create(NON_BLOCKING);
        stream.stop_at(&GATE);
        let mut early = 0;
        cu!(cuMemAllocAsync(&mut early, 8, stream.0)).unwrap();
        // This does not wait for the allocation, and loses what it writes.
        write(early, &[1; 8]).unwrap();
        GATE.open();
        stream.synchronize();
        assert_eq!(read(early, 8).unwrap(), [0xCD; 8]);
        stream.fill(early, 2, 8);
        free_async(early, stream).unwrap();
        stream.synchronize();
        assert_eq!(read(early, 8), Err(CUresult::CUDA_ERROR_INVALID_VALUE));
        assert_eq!(free_async(early, stream), Err(CUresult::CUDA_ERROR_INVALID_VALUE));
        assert_eq!(free_async(alloc(8).unwrap(), stream), Err(CUresult::CUDA_ERROR_INVALID_VALUE));
    }

    fn freed_memory_of_a_pool_comes_back_in_its_turn() {
        start(0);
        static GATE: Gate = Gate::new();
        let stream = Stream::create(NON_BLOCKING);
        let pool = Pool::create(0, NO_HANDLE).unwrap();
        let a = pool.alloc(600, stream).unwrap();
        stream.stop_at(&GATE);
        free_async(a, stream).unwrap();
        assert_ne!(pool.alloc(600, stream).unwrap(), a);
        GATE.open();
        stream.synchronize();
        assert_eq!(pool.alloc(600, stream).unwrap(), a);
        // By the other call it is freed at once.
        free(a).unwrap();
        assert_eq!(pool.alloc(600, stream).unwrap(), a);
    }

    fn a_pointer_tells_its_pool() {
        start(0);
        let pool = Pool::create(0, DESCRIPTOR).unwrap();
        let a = pool.alloc(8, Stream::NULL).unwrap();
        let of = |which| attribute(which, a + 7);
        assert_eq!(of(Attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE), Ok(pool.0.addr() as u64));
        assert_eq!(of(Attribute::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES), Ok(1));
        assert_eq!(of(Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE), Ok(0));
        assert_eq!(of(Attribute::CU_POINTER_ATTRIBUTE_CONTEXT), Ok(0));
        assert_eq!(of(Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR), Ok(a));
        let mut plain = 0;
        cu!(cuMemAllocAsync(&mut plain, 8, std::ptr::null_mut())).unwrap();
        let default = Pool::default_of(0);
        let pool_of_plain = attribute(Attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, plain);
        assert_eq!(pool_of_plain, Ok(default.0.addr() as u64));
        let mut current = std::ptr::null_mut();
        cu!(cuDeviceGetMemPool(&mut current, 0)).unwrap();
        assert_eq!(Pool(current), default);
    }

    fn only_a_pool_that_was_made_for_it_is_exported() {
        start(0);
        let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
        assert_eq!(Pool::default_of(0).export().unwrap_err(), invalid);
        assert_eq!(Pool::create(0, NO_HANDLE).unwrap().export().unwrap_err(), invalid);
        let pool = Pool::create(0, DESCRIPTOR).unwrap();
        let a = pool.alloc(8, Stream::NULL).unwrap();
        // Its pointers follow it.
        assert_eq!(export_pointer(a).unwrap_err(), invalid);
        let descriptor = pool.export().unwrap();
        export_pointer(a).unwrap();
        assert_eq!(export_pointer(a + 1).unwrap_err(), invalid);
        assert_eq!(export_pointer(alloc(8).unwrap()).unwrap_err(), invalid);
        let imported = Pool::import(descriptor.as_fd()).unwrap();
        assert_eq!(imported.alloc(8, Stream::NULL), Err(invalid));
        assert_eq!(imported.export().unwrap_err(), invalid);
        assert_eq!(Pool::default_of(0).destroy(), Err(invalid));
    }

    fn a_pool_ends_with_its_last_allocation() {
        start(0);
        let pool = Pool::create(0, NO_HANDLE).unwrap();
        let a = pool.alloc(8, Stream::NULL).unwrap();
        pool.destroy().unwrap();
        assert_eq!(pool.alloc(8, Stream::NULL), Err(CUresult::CUDA_ERROR_INVALID_VALUE));
        assert_eq!(pool.destroy(), Err(CUresult::CUDA_ERROR_INVALID_VALUE));
        write(a, &[1; 8]).unwrap();
        assert_eq!(read(a, 8).unwrap(), [1; 8]);
        free_async(a, Stream::NULL).unwrap();
        Stream::NULL.synchronize();
    }

    fn another_device_needs_access_to_a_pool(FAKE_CUDA_DEVICES = "2") {
        start(0);
        let pool = Pool::create(0, NO_HANDLE).unwrap();
        let a = pool.alloc(8, Stream::NULL).unwrap();
        Stream::NULL.synchronize();
        Context::retain(1).push();
        assert_eq!(read(a, 8), Err(CUresult::CUDA_ERROR_INVALID_VALUE));
        pool.allow(1).unwrap();
        read(a, 8).unwrap();
    }

    fn a_pool_is_limited_by_the_memory_of_its_device(FAKE_CUDA_MEMORY_MIB = "1") {
        start(0);
        let pool = Pool::create(0, NO_HANDLE).unwrap();
        let full = Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        assert_eq!(pool.alloc((1 << 20) + 1, Stream::NULL), full);
        let a = pool.alloc(1 << 20, Stream::NULL).unwrap();
        assert_eq!(pool.alloc(1, Stream::NULL), full);
        assert_eq!(alloc(1), full);
        free_async(a, Stream::NULL).unwrap();
        Stream::NULL.synchronize();
        alloc(1 << 20).unwrap();
    }

    fn a_peer_reads_what_is_in_a_pool() {
        if let Some(wire) = Peer::here() {
            start(0);
            let (data, descriptors) = wire.recv_with();
            let pool = Pool::import(descriptors[0].as_fd()).unwrap();
            let a = pool.import_pointer(&data).unwrap();
            assert_eq!(read(a, 3).unwrap(), [1, 2, 3]);
            write(a, &[4]).unwrap();
            wire.send(b"written");
            wire.recv();
            // Freed by its owner first: undefined, and it shows.
            assert_eq!(read(a, 16).unwrap(), [0xDD; 16]);
            wire.send(b"read");
            let gone = Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            assert_eq!(pool.import_pointer(&data), gone);
            // Imported twice, it goes for both at once.
            let other = wire.recv();
            let b = pool.import_pointer(&other).unwrap();
            assert_eq!(pool.import_pointer(&other).unwrap(), b);
            free_async(b, Stream::NULL).unwrap();
            assert_eq!(free_async(b, Stream::NULL), gone.map(drop));
            free(a).unwrap();
            return;
        }
        start(0);
        let pool = Pool::create(0, DESCRIPTOR).unwrap();
        let a = pool.alloc(1000, Stream::NULL).unwrap();
        write(a, &[1, 2, 3]).unwrap();
        let descriptor = pool.export().unwrap();
        let peer = Peer::start(&[]);
        peer.wire.send_with(&export_pointer(a).unwrap(), &[descriptor.as_fd()]);
        peer.wire.recv();
        assert_eq!(read(a, 1).unwrap(), [4]);
        free_async(a, Stream::NULL).unwrap();
        Stream::NULL.synchronize();
        peer.wire.send(b"freed");
        peer.wire.recv();
        let b = pool.alloc(2000, Stream::NULL).unwrap();
        peer.wire.send(&export_pointer(b).unwrap());
        peer.end();
    }
}

/// `CU_STREAM_NON_BLOCKING`
const NON_BLOCKING: u32 = 1;
