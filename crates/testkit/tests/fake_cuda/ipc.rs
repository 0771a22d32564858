//! Legacy handles, between two processes.

use cudarc::driver::sys::CUresult;

use crate::allocators::{DESCRIPTOR, Memory, Pool, allow, map, reserve};
use crate::process::Peer;
use crate::wrap::{
    Context, Stream, alloc, alloc_host, alloc_managed, free, handle, handle_bytes, handle_of, open,
    read, start, write,
};
use crate::{cu, driver_tests};

driver_tests! {
    fn a_peer_reads_and_writes_what_a_handle_names() {
        if let Some(wire) = Peer::here() {
            start(0);
            let base = open(handle_of(&wire.recv())).unwrap();
            assert_eq!(read(base + 100, 3).unwrap(), [1, 2, 3]);
            write(base + 200, &[4, 5]).unwrap();
            wire.send(b"written");
            cu!(cuIpcCloseMemHandle(base)).unwrap();
            assert_eq!(read(base, 1), Err(CUresult::CUDA_ERROR_INVALID_VALUE));
            return;
        }
        start(0);
        let base = alloc(1000).unwrap();
        write(base + 100, &[1, 2, 3]).unwrap();
        let peer = Peer::start(&[]);
        // An address within names the same.
        let named = handle(base + 999).unwrap();
        assert_eq!(named, handle(base).unwrap());
        peer.wire.send(&handle_bytes(named));
        peer.wire.recv();
        assert_eq!(read(base + 200, 2).unwrap(), [4, 5]);
        free(base).unwrap();
        peer.end();
    }

    fn a_handle_that_is_opened_twice_is_closed_twice() {
        if let Some(wire) = Peer::here() {
            start(0);
            let handle = handle_of(&wire.recv());
            let base = open(handle).unwrap();
            assert_eq!(open(handle).unwrap(), base);
            let invalid = Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            assert_eq!(cu!(cuIpcCloseMemHandle(base + 1)), invalid);
            assert_eq!(free(base), invalid);
            cu!(cuIpcCloseMemHandle(base)).unwrap();
            read(base, 1).unwrap();
            cu!(cuIpcCloseMemHandle(base)).unwrap();
            assert_eq!(cu!(cuIpcCloseMemHandle(base)), invalid);
            // Opened memory cannot be passed on.
            let base = open(handle).unwrap();
            assert_eq!(crate::wrap::handle(base).unwrap_err(), CUresult::CUDA_ERROR_INVALID_VALUE);
            wire.send(b"done");
            return;
        }
        start(0);
        let peer = Peer::start(&[]);
        peer.wire.send(&handle_bytes(handle(alloc(1000).unwrap()).unwrap()));
        peer.wire.recv();
        peer.end();
    }

    fn a_handle_ends_with_its_memory() {
        if let Some(wire) = Peer::here() {
            start(0);
            let handle = handle_of(&wire.recv());
            let base = open(handle).unwrap();
            wire.send(b"opened");
            wire.recv();
            // To look at it is undefined; here it looks like what it is.
            assert_eq!(read(base + 984, 16).unwrap(), [0xDD; 16]);
            cu!(cuIpcCloseMemHandle(base)).unwrap();
            assert_eq!(open(handle), Err(CUresult::CUDA_ERROR_MAP_FAILED));
            return;
        }
        start(0);
        let base = alloc(1000).unwrap();
        let peer = Peer::start(&[]);
        let old = handle(base).unwrap();
        peer.wire.send(&handle_bytes(old));
        peer.wire.recv();
        free(base).unwrap();
        // The address comes back, the handle does not.
        assert_eq!(alloc(1000).unwrap(), base);
        assert_ne!(handle(base).unwrap(), old);
        peer.wire.send(b"freed");
        peer.end();
    }

    fn a_handle_of_a_dead_process_does_not_open_but_what_was_opened_stays() {
        if let Some(wire) = Peer::here() {
            start(0);
            let (a, b) = (alloc(1000).unwrap(), alloc(1000).unwrap());
            write(a, &[7]).unwrap();
            wire.send(&handle_bytes(handle(a).unwrap()));
            wire.send(&handle_bytes(handle(b).unwrap()));
            wire.recv();
            unreachable!("it is killed");
        }
        start(0);
        let peer = Peer::start(&[]);
        let base = open(handle_of(&peer.wire.recv())).unwrap();
        let late = handle_of(&peer.wire.recv());
        peer.kill();
        assert_eq!(read(base, 1).unwrap(), [7]);
        assert_eq!(open(late), Err(CUresult::CUDA_ERROR_MAP_FAILED));
        cu!(cuIpcCloseMemHandle(base)).unwrap();
    }

    fn its_own_process_cannot_open_a_handle() {
        start(0);
        let own = handle(alloc(1000).unwrap()).unwrap();
        assert_eq!(open(own), Err(CUresult::CUDA_ERROR_INVALID_CONTEXT));
        let (mut to, invalid) = (0, Err(CUresult::CUDA_ERROR_INVALID_VALUE));
        assert_eq!(cu!(cuIpcOpenMemHandle_v2(&mut to, own, 0)), invalid);
        assert_eq!(open(handle_of(&[7; 64])), Err(CUresult::CUDA_ERROR_INVALID_VALUE));
    }

    fn only_plain_device_memory_has_a_handle() {
        start(0);
        let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
        assert_eq!(handle(alloc_managed(8)).unwrap_err(), invalid);
        assert_eq!(handle(alloc_host(8) as u64).unwrap_err(), invalid);
        let pooled = Pool::default_of(0).alloc(8, Stream::NULL).unwrap();
        assert_eq!(handle(pooled).unwrap_err(), invalid);
        let mapped = reserve(2 << 20);
        map(mapped, 2 << 20, Memory::create(2 << 20, DESCRIPTOR).unwrap()).unwrap();
        allow(mapped, 2 << 20, 0, true).unwrap();
        assert_eq!(handle(mapped).unwrap_err(), invalid);
        assert_eq!(handle((&raw const invalid) as u64).unwrap_err(), invalid);
    }

    fn memory_of_a_device_that_is_not_seen_does_not_open(FAKE_CUDA_DEVICES = "2") {
        if let Some(wire) = Peer::here() {
            start(0);
            match open(handle_of(&wire.recv())) {
                Ok(base) => wire.send(&read(base, 1).unwrap()),
                Err(CUresult::CUDA_ERROR_INVALID_DEVICE) => wire.send(b"invalid device"),
                Err(CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED) => wire.send(b"no peer"),
                Err(error) => panic!("{error:?}"),
            }
            return;
        }
        start(0);
        Context::retain(1).push();
        let base = alloc(1000).unwrap();
        write(base, b"!").unwrap();
        let handle = handle_bytes(handle(base).unwrap());
        let two = ("FAKE_CUDA_DEVICES", "2");
        let first = ("CUDA_VISIBLE_DEVICES", "0");
        let second = "GPU-face0001-6661-6b65-2d64-657669636573";
        for (environment, answer) in [
            (vec![two], &b"!"[..]),
            (vec![two, ("CUDA_VISIBLE_DEVICES", "1")], b"!"),
            (vec![two, ("CUDA_VISIBLE_DEVICES", second)], b"!"),
            (vec![two, first], b"invalid device"),
            (vec![two, first, ("FAKE_CUDA_UNSEEN", "open")], b"!"),
            (vec![two, ("FAKE_CUDA_NO_PEER", "1")], b"no peer"),
        ] {
            let peer = Peer::start(&environment);
            peer.wire.send(&handle);
            assert_eq!(peer.wire.recv(), answer, "{environment:?}");
            peer.end();
        }
    }
}
