//! The order of streams, and when calls return.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUresult;

use crate::wrap::{
    Context, Gate, Outcome, Stream, alloc, alloc_host, alloc_managed, read, start, write,
};
use crate::{cu, driver_tests};

driver_tests! {
    fn work_is_done_in_its_turn_and_not_before() {
        start(0);
        static GATE: Gate = Gate::new();
        let stream = Stream::create(NON_BLOCKING);
        let (a, b) = (alloc(8).unwrap(), alloc(8).unwrap());
        stream.stop_at(&GATE);
        stream.fill(a, 7, 8);
        stream.copy(b, a, 8);
        assert!(!stream.is_idle());
        assert_eq!(read(a, 8).unwrap(), [0; 8]);
        GATE.open();
        stream.synchronize();
        assert!(stream.is_idle());
        assert_eq!(read(b, 8).unwrap(), [7; 8]);
    }

    fn each_operation_is_late(FAKE_CUDA_DELAY_US = "50000") {
        start(0);
        let stream = Stream::create(NON_BLOCKING);
        let a = alloc(8).unwrap();
        let begun = Instant::now();
        stream.fill(a, 1, 8);
        stream.fill(a, 2, 8);
        stream.synchronize();
        assert!(begun.elapsed() >= Duration::from_millis(100));
    }

    fn an_event_orders_two_streams() {
        start(0);
        static GATE: Gate = Gate::new();
        let (first, second) = (Stream::create(NON_BLOCKING), Stream::create(NON_BLOCKING));
        let (a, b) = (alloc(8).unwrap(), alloc(8).unwrap());
        first.stop_at(&GATE);
        first.fill(a, 7, 8);
        let event = first.record();
        second.wait(event);
        second.copy(b, a, 8);
        assert!(!event.is_done());
        assert!(!second.is_idle());
        GATE.open();
        cu!(cuEventSynchronize(event.0)).unwrap();
        assert!(event.is_done());
        second.synchronize();
        assert_eq!(read(b, 8).unwrap(), [7; 8]);
        cu!(cuEventDestroy_v2(event.0)).unwrap();
        assert_eq!(cu!(cuEventQuery(event.0)), Err(CUresult::CUDA_ERROR_INVALID_HANDLE));
    }

    fn what_a_stream_waits_for_is_what_was_recorded_last() {
        start(0);
        static GATE: Gate = Gate::new();
        let (first, second) = (Stream::create(NON_BLOCKING), Stream::create(NON_BLOCKING));
        let event = first.record();
        first.synchronize();
        second.wait(event);
        first.stop_at(&GATE);
        cu!(cuEventRecord(event.0, first.0)).unwrap();
        assert!(!event.is_done());
        // This one has waited for the first record alone.
        second.synchronize();
        GATE.open();
        first.synchronize();
    }

    fn an_event_that_was_never_recorded_holds_nobody_up() {
        start(0);
        let mut event = std::ptr::null_mut();
        cu!(cuEventCreate(&mut event, 0)).unwrap();
        cu!(cuEventQuery(event)).unwrap();
        let stream = Stream::create(0);
        cu!(cuStreamWaitEvent(stream.0, event, 0)).unwrap();
        stream.synchronize();
        // One for other processes may not be timed.
        let invalid = Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        assert_eq!(cu!(cuEventCreate(&mut event, 4)), invalid);
        assert_eq!(cu!(cuEventCreate(&mut event, 8)), invalid);
    }

    fn the_legacy_stream_comes_after_blocking_streams() {
        start(0);
        static GATE: Gate = Gate::new();
        let blocking = Stream::create(0);
        let (a, b) = (alloc(8).unwrap(), alloc(8).unwrap());
        blocking.stop_at(&GATE);
        blocking.fill(a, 7, 8);
        Stream::LEGACY.copy(b, a, 8);
        assert!(!Stream::NULL.is_idle());
        // Others go on, and it had the time to.
        let_others_work();
        GATE.open();
        Stream::NULL.synchronize();
        assert_eq!(read(b, 8).unwrap(), [7; 8]);
    }

    fn a_blocking_stream_comes_after_the_legacy_stream() {
        start(0);
        static GATE: Gate = Gate::new();
        let blocking = Stream::create(0);
        let (a, b) = (alloc(8).unwrap(), alloc(8).unwrap());
        Stream::NULL.stop_at(&GATE);
        Stream::NULL.fill(a, 7, 8);
        blocking.copy(b, a, 8);
        assert!(!blocking.is_idle());
        let_others_work();
        GATE.open();
        blocking.synchronize();
        assert_eq!(read(b, 8).unwrap(), [7; 8]);
    }

    fn each_thread_has_a_stream_of_its_own_that_goes_with_the_legacy_one() {
        let context = start(0);
        static GATE: Gate = Gate::new();
        let (a, b) = (alloc(8).unwrap(), alloc(8).unwrap());
        Stream::PER_THREAD.stop_at(&GATE);
        Stream::PER_THREAD.fill(a, 7, 8);
        let raw = context.0.addr();
        let joined = std::thread::spawn(move || {
            Context(std::ptr::without_provenance_mut(raw)).push();
            // Another stream: it has nothing to wait for.
            Stream::PER_THREAD.synchronize();
        });
        joined.join().unwrap();
        assert!(!Stream::PER_THREAD.is_idle());
        Stream::NULL.copy(b, a, 8);
        let_others_work();
        GATE.open();
        Stream::NULL.synchronize();
        assert_eq!(read(b, 8).unwrap(), [7; 8]);
    }

    fn a_copy_between_device_memory_is_not_waited_for() {
        start(0);
        static GATE: Gate = Gate::new();
        let (a, b) = (alloc(8).unwrap(), alloc(8).unwrap());
        write(a, &[7; 8]).unwrap();
        Stream::create(0).stop_at(&GATE);
        // Neither returns late: the gate is closed.
        cu!(cuMemcpyDtoD_v2(b, a, 8)).unwrap();
        cu!(cuMemsetD8_v2(a, 1, 8)).unwrap();
        assert!(!Stream::NULL.is_idle());
        GATE.open();
        // This is waited for, in the order of the NULL stream.
        assert_eq!(read(b, 8).unwrap(), [7; 8]);
    }

    fn a_synchronous_copy_takes_pageable_bytes_along(FAKE_CUDA_DELAY_US = "20000") {
        start(0);
        let a = alloc(8).unwrap();
        let mut bytes = [7_u8; 8];
        cu!(cuMemcpyHtoD_v2(a, bytes.as_ptr().cast(), 8)).unwrap();
        bytes.fill(8);
        assert_eq!(read(a, 8).unwrap(), [7; 8]);
        // They need not be there when the call returns.
        let late = (0..100).any(|_| {
            cu!(cuMemcpyHtoD_v2(a, bytes.as_ptr().cast(), 8)).unwrap();
            !Stream::NULL.is_idle()
        });
        assert!(late);
    }

    fn an_asynchronous_copy_reads_its_source_in_its_turn() {
        start(0);
        static GATE: Gate = Gate::new();
        let stream = Stream::create(NON_BLOCKING);
        let a = alloc(8).unwrap();
        let source = alloc_host(8);
        fill_at(source, 1, 8);
        stream.stop_at(&GATE);
        cu!(cuMemcpyHtoDAsync_v2(a, source.cast(), 8, stream.0)).unwrap();
        fill_at(source, 2, 8);
        GATE.open();
        stream.synchronize();
        assert_eq!(read(a, 8).unwrap(), [2; 8]);
    }

    fn copies_between_host_memory_and_of_managed_memory_are_waited_for(FAKE_CUDA_DELAY_US = "20000") {
        start(0);
        let (stream, managed) = (Stream::create(NON_BLOCKING), alloc_managed(8));
        let (mut to, from) = ([0_u8; 8], [7_u8; 8]);
        let (target, source) = (to.as_mut_ptr() as u64, from.as_ptr() as u64);
        cu!(cuMemcpyAsync(target, source, 8, stream.0)).unwrap();
        assert_eq!(to, [7; 8]);
        cu!(cuMemcpy(managed, source, 8)).unwrap();
        assert_eq!(bytes_at(managed as *const u8, 8), [7; 8]);
        cu!(cuMemsetD8_v2(managed, 9, 8)).unwrap();
        assert_eq!(bytes_at(managed as *const u8, 8), [9; 8]);
    }

    fn a_destroyed_stream_finishes_its_work() {
        start(0);
        static GATE: Gate = Gate::new();
        let stream = Stream::create(0);
        let a = alloc(8).unwrap();
        stream.stop_at(&GATE);
        stream.fill(a, 7, 8);
        cu!(cuStreamDestroy_v2(stream.0)).unwrap();
        let gone = Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(cu!(cuStreamQuery(stream.0)), gone);
        assert_eq!(cu!(cuStreamDestroy_v2(stream.0)), gone);
        assert_eq!(cu!(cuMemsetD8Async(a, 1, 8, stream.0)), gone);
        GATE.open();
        cu!(cuCtxSynchronize()).unwrap();
        assert_eq!(read(a, 8).unwrap(), [7; 8]);
    }

    fn an_event_and_its_stream_are_of_one_context(FAKE_CUDA_DEVICES = "2") {
        start(0);
        let event = Stream::create(0).record();
        Context::retain(1).push();
        let stream = Stream::create(0);
        let refused = Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(cu!(cuEventRecord(event.0, stream.0)), refused);
        // To wait for it is allowed.
        stream.wait(event);
    }

    fn a_host_function_may_not_call_the_driver() {
        start(0);
        static CALLS: AtomicU32 = AtomicU32::new(0);
        fn call(calls: &AtomicU32) {
            let refused = Err(CUresult::CUDA_ERROR_NOT_PERMITTED);
            let mut address = 0;
            assert_eq!(cu!(cuMemAlloc_v2(&mut address, 8)), refused);
            assert_eq!(cu!(cuStreamQuery(std::ptr::null_mut())), refused);
            assert_eq!(cu!(cuInit(0)), refused);
            assert_ne!(std::thread::current().name(), Some("main"));
            calls.fetch_add(1, Ordering::SeqCst);
        }
        let stream = Stream::create(0);
        stream.launch(call, &CALLS);
        stream.synchronize();
        assert_eq!(CALLS.load(Ordering::SeqCst), 1);
        let null: Outcome = cu!(cuLaunchHostFunc(stream.0, None, std::ptr::null_mut()));
        assert_eq!(null, Err(CUresult::CUDA_ERROR_INVALID_VALUE));
    }

    fn host_functions_run_one_at_a_time() {
        start(0);
        static RUNNING: AtomicBool = AtomicBool::new(false);
        fn alone(running: &AtomicBool) {
            assert!(!running.swap(true, Ordering::SeqCst));
            std::thread::yield_now();
            running.store(false, Ordering::SeqCst);
        }
        let streams = [(); 4].map(|()| Stream::create(NON_BLOCKING));
        for _ in 0..100 {
            for stream in streams {
                stream.launch(alone, &RUNNING);
            }
        }
        for stream in streams {
            stream.synchronize();
        }
    }
}

/// Works in a stream that nothing holds up, long enough for one that should be to go wrong
fn let_others_work() {
    let (stream, scratch) = (Stream::create(NON_BLOCKING), alloc(8).unwrap());
    for _ in 0..100 {
        stream.fill(scratch, 1, 8);
        stream.synchronize();
    }
}

fn bytes_at(pointer: *const u8, count: usize) -> Vec<u8> {
    // SAFETY: a test gives memory that the host may read, of this size or more.
    unsafe { std::slice::from_raw_parts(pointer, count) }.to_vec()
}

fn fill_at(pointer: *mut u8, value: u8, count: usize) {
    // SAFETY: a test gives memory that the host may write, of this size or more.
    unsafe { pointer.write_bytes(value, count) }
}

/// `CU_STREAM_NON_BLOCKING`
const NON_BLOCKING: u32 = 1;
