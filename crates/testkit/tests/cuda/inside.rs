//! The tests, in a process that has the driver.

use std::sync::Arc;
use std::time::{Duration, Instant};

use backhaul::{
    Bytes, CarrierKind, Context, LaneKind, RecvError, RecvRefused, Segment, Segments, SendError,
    SendRefused, TagMask, cuda,
};
use backhaul_testkit::harness::LOOPBACK;
use backhaul_testkit::{Finish, assert_matches, pattern};

use crate::driver::{self, Kind, Memory};
use crate::peer::{DATA, Peer, config, lane};

pub(crate) use crate::by_host::{
    what_goes_by_the_host_arrives_as_it_was, where_a_device_is_slow_to_turn_copies_go_by_the_host,
    where_nothing_can_be_pinned_copies_do_not_go_by_the_host,
};

pub(crate) fn device(memory: backhaul::DeviceMemory) -> Segments {
    Segments::from_iter([Segment::Device(memory)])
}

pub(crate) fn filled(kind: Kind, seed: u64, bytes: usize) -> (Arc<Memory>, Vec<u8>) {
    let memory = Arc::new(Memory::new(kind, bytes));
    let content = pattern::make(seed, bytes);
    memory.fill(&content);
    (memory, content)
}

pub(crate) fn memory_of_each_kind_goes_to_another_process() {
    driver::enter(0);
    let context = Context::new(config(lane())).unwrap();
    let peer = Peer::start(&context);
    for (seed, kind) in (0..).zip(Kind::ALL) {
        for bytes in [1, 4096, 3 << 20] {
            let (memory, content) = filled(kind, seed, bytes);
            for how in ["into", "host"] {
                let how = format!("{how} {bytes}");
                let echoed = peer.echo(&how, device(memory.whole()));
                assert!(echoed.as_ref() == Ok(&content), "{kind:?}, {how}");
            }
            let echoed = peer.echo("message", device(memory.whole()));
            assert!(
                echoed.as_ref() == Ok(&content),
                "{kind:?}, {bytes} allocated there"
            );
            let half = bytes / 2;
            let part = memory.part(half, bytes - half, None);
            let echoed = peer.echo(&format!("into {}", bytes - half), device(part));
            assert!(echoed.unwrap() == content[half..], "{kind:?}, a part");
        }
    }
    let statistics = peer.endpoint.statistics();
    assert!(statistics.sent_device_bytes > 3 * 5 * (3 << 20));
}

pub(crate) fn memory_of_each_kind_comes_from_another_process() {
    driver::enter(0);
    let context = Context::new(config(lane())).unwrap();
    let peer = Peer::start(&context);
    for (index, kind) in Kind::ALL.into_iter().enumerate() {
        for bytes in [5, 1 << 20] {
            let memory = Arc::new(Memory::new(Kind::Plain, bytes));
            let is_early = index % 2 == 0;
            if is_early {
                peer.tell(&format!("send {index} {bytes}"));
                std::thread::sleep(Duration::from_millis(20));
            }
            let target = Box::new(memory.whole());
            let received = peer.endpoint.recv_boxed(DATA, TagMask::FULL, target);
            if !is_early {
                peer.tell(&format!("send {index} {bytes}"));
            }
            assert_eq!(received.done().unwrap().bytes, bytes);
            let (got, wanted) = (memory.read(), pattern::make(1, bytes));
            let differs = got.iter().zip(&wanted).position(|(a, b)| a != b);
            assert_eq!(
                differs,
                None,
                "{kind:?}, {bytes}: {}",
                got[differs.unwrap_or(0)]
            );
        }
    }
}

pub(crate) fn contexts_of_one_process_need_no_handles() {
    driver::enter(0);
    for lane in [LaneKind::Inproc, LaneKind::Shm] {
        let (near, far) = (config(lane), config(lane));
        let (near, far) = (Context::new(near).unwrap(), Context::new(far).unwrap());
        let listener = far.listen(LOOPBACK).unwrap();
        let ours = near.connect(&listener.local_address().to_string());
        let theirs = listener.accept().done().unwrap();
        let ours = ours.done().unwrap();
        assert_eq!(ours.lane(), lane);
        let (memory, content) = filled(Kind::Plain, 7, 1 << 20);
        let target = Arc::new(Memory::new(Kind::DefaultPool, 1 << 20));
        let sent = ours.send(DATA, Segment::Device(memory.whole()));
        let received = theirs.recv_boxed(DATA, TagMask::FULL, Box::new(target.whole()));
        received.done().unwrap();
        sent.done().unwrap();
        assert!(target.read() == content, "{lane}");
    }
}

pub(crate) fn what_the_producer_has_under_way_is_waited_for() {
    driver::enter(0);
    let context = Context::new(config(lane())).unwrap();
    let peer = Peer::start(&context);
    let bytes = 1 << 16;
    for kind in [Kind::Plain, Kind::DefaultPool] {
        // The device takes longer than this to fill it. One of several is soon enough, as a busy
        // machine takes its time for some.
        let is_at_once = (0..10).any(|_| {
            let (memory, _) = filled(kind, 3, bytes);
            let stream = driver::stream();
            memory.fill_later(0x5A, stream);
            let begun = Instant::now();
            peer.tell(&format!("into {bytes}"));
            let part = memory.part(0, bytes, Some(stream));
            let sent = peer.endpoint.send(DATA, Segment::Device(part));
            let sending = begun.elapsed();
            let got = peer.answer().unwrap();
            assert!(
                got == vec![0x5A; bytes],
                "{kind:?}: {} {}",
                got[0],
                got[bytes - 1]
            );
            sent.done().unwrap();
            sending < Duration::from_millis(25)
        });
        assert!(is_at_once, "{kind:?}: it waited");
    }
}

pub(crate) fn what_the_consumer_has_under_way_is_waited_for() {
    driver::enter(0);
    let context = Context::new(config(lane())).unwrap();
    let peer = Peer::start(&context);
    let bytes = 1 << 16;
    let (memory, content) = filled(Kind::Plain, 3, bytes);
    let echoed = peer.echo(&format!("into-busy {bytes}"), device(memory.whole()));
    assert!(echoed.unwrap() == content);
}

pub(crate) fn a_send_is_over_when_its_memory_has_been_fetched() {
    driver::enter(0);
    let context = Context::new(config(lane())).unwrap();
    let peer = Peer::start(&context);
    let bytes = 1 << 20;
    for kind in [Kind::Plain, Kind::DefaultPool, Kind::SharedPool] {
        let (memory, content) = filled(kind, 3, bytes);
        let sent = peer.endpoint.send(DATA, Segment::Device(memory.whole()));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!sent.is_done(), "{kind:?}: nobody has received it");
        peer.tell(&format!("into {bytes}"));
        sent.done().unwrap();
        memory.fill(&vec![0; bytes]);
        drop(memory);
        assert!(peer.answer().unwrap() == content, "{kind:?}");
    }
}

pub(crate) fn host_and_device_segments_keep_their_places() {
    driver::enter(0);
    let context = Context::new(config(lane())).unwrap();
    let peer = Peer::start(&context);
    let (first, first_content) = filled(Kind::Plain, 1, 100);
    let (second, second_content) = filled(Kind::Managed, 2, 1 << 20);
    for host_bytes in [0, 10, 200_000] {
        let host = pattern::make(3, host_bytes);
        let segments = Segments::from_iter([
            Segment::from(Bytes::from(host.clone())),
            Segment::Device(first.whole()),
            Segment::from(Bytes::from(host.clone())),
            Segment::Device(second.whole()),
        ]);
        let wanted = [host.as_slice(), &first_content, &host, &second_content].concat();
        for segments in [segments.clone(), segments.exported()] {
            let echoed = peer.echo("message", segments);
            assert!(
                echoed.unwrap() == wanted,
                "{host_bytes} bytes of the host between"
            );
        }
    }
}

pub(crate) fn more_segments_than_can_be_offered_are_given() {
    driver::enter(0);
    let context = Context::new(config(lane())).unwrap();
    let peer = Peer::start(&context);
    let (memory, content) = filled(Kind::Plain, 1, 100 * 4096);
    let stream = driver::stream();
    let parts = (0..100).map(|index| memory.part(4096 * index, 4096, Some(stream)));
    let segments = Segments::from_iter(parts.map(Segment::Device));
    peer.tell("message");
    peer.endpoint.send_segments(DATA, segments).done().unwrap();
    // The send is over, so what comes behind it on its stream may write there.
    memory.fill_later(0, stream);
    assert!(peer.answer().unwrap() == content);
}

pub(crate) fn more_messages_than_the_channel_holds_wait_in_order() {
    driver::enter(0);
    let context = Context::new(config(lane())).unwrap();
    let peer = Peer::start(&context);
    let messages = 2000;
    let memory = Arc::new(Memory::new(Kind::Plain, 256 * messages));
    memory.fill(&pattern::make(9, 256 * messages));
    let content = memory.read();
    let sends: Vec<_> = (0..messages)
        .map(|index| {
            let part = memory.part(256 * index, 256, None);
            peer.endpoint.send(DATA, Segment::Device(part))
        })
        .collect();
    for index in 0..messages {
        peer.tell("into 256");
        let answer = peer.answer().unwrap();
        assert!(
            answer == content[256 * index..256 * (index + 1)],
            "message {index}"
        );
    }
    for sent in sends {
        sent.done().unwrap();
    }
}

pub(crate) fn a_killed_peer_gives_everything_back() {
    driver::enter(0);
    let context = Context::new(config(lane())).unwrap();
    let mut peer = Peer::start(&context);
    let (shared, _) = filled(Kind::Plain, 1, 1 << 20);
    let (staged, _) = filled(Kind::DefaultPool, 2, 1 << 20);
    let sends =
        [&shared, &staged].map(|memory| peer.endpoint.send(DATA, Segment::Device(memory.whole())));
    std::thread::sleep(Duration::from_millis(20));
    peer.kill();
    let died = Instant::now();
    for sent in sends {
        assert_matches!(sent.done(), Err(SendError::Closed(_)));
    }
    assert!(died.elapsed() < Duration::from_secs(60));
    drop(peer);
    for memory in [shared, staged] {
        let patience = Instant::now() + Duration::from_secs(300);
        while Arc::strong_count(&memory) > 1 {
            assert!(Instant::now() < patience, "something still has the memory");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

pub(crate) fn freed_memory_is_refused_before_anything_is_sent() {
    driver::enter(0);
    let context = Context::new(config(lane())).unwrap();
    let peer = Peer::start(&context);
    // Drivers cut small allocations from chunks of 2 MiB, which stay.
    let memory = Memory::new(Kind::Plain, 4 << 20);
    let pointer = memory.pointer();
    let described = cuda::describe(pointer, 4096, None, Arc::new(())).unwrap();
    let error = cuda::describe(pointer, 64 << 20, None, Arc::new(())).unwrap_err();
    assert!(error.to_string().contains("67108864 bytes"), "{error}");
    drop(memory);
    let refused = peer.endpoint.send(DATA, Segment::Device(described)).done();
    assert_matches!(
        &refused,
        Err(SendError::Refused(SendRefused::NoCarrier { detail, .. })) if detail.contains("0x")
    );
    // The connection is as good as before.
    let (memory, content) = filled(Kind::Plain, 4, 4096);
    assert!(peer.echo("into 4096", device(memory.whole())).unwrap() == content);
}

pub(crate) fn memory_is_lent_again_after_its_allocation_was_replaced() {
    driver::enter(0);
    let context = Context::new(config(lane())).unwrap();
    let peer = Peer::start(&context);
    let mut seen = std::collections::HashSet::new();
    for kind in [Kind::Plain, Kind::Mapped, Kind::SharedPool] {
        for seed in 0..100 {
            let (memory, content) = filled(kind, seed, 4096);
            seen.insert(memory.pointer());
            let echoed = peer.echo("into 4096", device(memory.whole()));
            assert!(echoed.unwrap() == content, "{kind:?}, allocation {seed}");
        }
    }
    assert!(
        seen.len() < 300,
        "no address came twice, so nothing was shown"
    );
}

pub(crate) fn without_a_carrier_on_the_other_side_it_is_refused() {
    driver::enter(0);
    let near = Context::new(config(lane())).unwrap();
    let mut without = config(LaneKind::Shm);
    // The default would have it, on a host with a GPU.
    without.carriers = vec![CarrierKind::Lease];
    let mut over_tcp = config(LaneKind::Tcp);
    over_tcp
        .carriers
        .retain(|carrier| *carrier == CarrierKind::Cuda);
    for other in [without, over_tcp] {
        let far = Context::new(other).unwrap();
        let listener = far.listen(LOOPBACK).unwrap();
        let ours = near.connect(&listener.local_address().to_string());
        let theirs = listener.accept().done().unwrap();
        let ours = ours.done().unwrap();
        let (memory, _) = filled(Kind::Plain, 1, 100);
        let refused = ours.send(DATA, Segment::Device(memory.whole())).done();
        assert_matches!(
            refused,
            Err(SendError::Refused(SendRefused::NoCarrier { .. }))
        );
        ours.send(DATA, Bytes::from_static(b"host")).done().unwrap();
        let received = theirs.recv(DATA, TagMask::FULL, vec![0; 4]).done().unwrap();
        assert_eq!(received.bytes, 4);
    }
}

pub(crate) fn a_receive_that_is_given_up_while_its_bytes_come() {
    driver::enter(0);
    let context = Context::new(config(lane())).unwrap();
    let peer = Peer::start(&context);
    let bytes = 1 << 20;
    let target = Arc::new(Memory::new(Kind::Plain, bytes));
    let received = peer
        .endpoint
        .recv_boxed(DATA, TagMask::FULL, Box::new(target.whole()));
    peer.tell(&format!("send 0 {bytes}"));
    std::thread::sleep(Duration::from_millis(10));
    received.cancel();
    drop(received);
    // The next receive gets the error, unless the message had come before.
    let again = peer
        .endpoint
        .recv_boxed(DATA, TagMask::FULL, Box::new(target.whole()));
    let outcome = again.wait(Some(Duration::from_secs(1)));
    let text = outcome.as_ref().map(|again| format!("{again:?}"));
    again.cancel();
    drop((again, outcome));
    println!("the next receive: {text:?}");
    // The device may still write there: the memory has to stay until it is through.
    let (memory, content) = filled(Kind::Plain, 5, 4096);
    std::thread::sleep(Duration::from_millis(100));
    assert!(peer.echo("into 4096", device(memory.whole())).unwrap() == content);
    // Another transfer releases what the one before it held.
    let patience = Instant::now() + Duration::from_secs(300);
    while Arc::strong_count(&target) > 1 {
        assert!(Instant::now() < patience, "the target is still held");
        let (memory, _) = filled(Kind::DefaultPool, 5, 4096);
        peer.echo("into 4096", device(memory.whole())).unwrap();
    }
}

pub(crate) fn a_result_that_nobody_took_is_told_to_the_next_receive() {
    driver::enter(0);
    let context = Context::new(config(lane())).unwrap();
    let peer = Peer::start(&context);
    for bytes in [4096, 1 << 20] {
        let target = Arc::new(Memory::new(Kind::Plain, bytes));
        let post = || {
            let target = Box::new(target.whole());
            peer.endpoint.recv_boxed(DATA, TagMask::FULL, target)
        };
        let first = post();
        peer.tell(&format!("send 0 {bytes}"));
        while !first.is_done() {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(first);
        let next = post().wait(Some(Duration::from_secs(300)));
        let next = next.expect("it does not wait for ever");
        assert_matches!(next, Err(RecvError::Refused(RecvRefused::NoCarrier { .. })));
        // The peer has sent it, and the connection is as good as before.
        let (memory, content) = filled(Kind::Plain, 5, 4096);
        assert!(peer.echo("into 4096", device(memory.whole())).unwrap() == content);
    }
}

pub(crate) fn memory_that_is_freed_during_its_send_fails_one_message() {
    driver::enter(0);
    let context = Context::new(config(lane())).unwrap();
    let peer = Peer::start(&context);
    for kind in [Kind::Plain, Kind::SharedPool, Kind::DefaultPool] {
        let memory = Memory::new(kind, 4096);
        let owner = Arc::new(());
        let described = cuda::describe(memory.pointer(), 4096, None, owner).unwrap();
        let sent = peer.endpoint.send(DATA, Segment::Device(described));
        // Copied by then, if it cannot be shared.
        std::thread::sleep(Duration::from_millis(20));
        drop(memory);
        peer.tell("into 4096");
        let answer = peer.answer();
        sent.done().unwrap();
        match kind {
            Kind::DefaultPool => assert_eq!(answer.map(|bytes| bytes.len()), Ok(4096)),
            // A real driver may let it be read until its address is used again.
            Kind::Plain if !driver::is_real() => {
                let error = answer.unwrap_err();
                assert!(error.contains("device 0"), "{error}");
            }
            _ => {}
        }
        // The connection is as good as before.
        let (memory, content) = filled(Kind::Plain, 4, 4096);
        let echoed = peer.echo("into 4096", device(memory.whole()));
        assert!(echoed.unwrap() == content, "{kind:?}");
    }
}

pub(crate) fn two_devices_reach_each_other() {
    driver::enter(0);
    let context = Context::new(config(lane())).unwrap();
    let peer = Peer::start(&context);
    driver::enter(1);
    let bytes = 1 << 20;
    for kind in [Kind::Plain, Kind::Mapped, Kind::DefaultPool] {
        let (memory, content) = filled(kind, 8, bytes);
        assert_eq!(memory.whole().device().ordinal, 1);
        let echoed = peer.echo(&format!("into {bytes}"), device(memory.whole()));
        assert!(echoed.unwrap() == content, "{kind:?}");
    }
}

pub(crate) fn a_device_that_the_peer_does_not_see_is_named() {
    driver::enter(0);
    let context = Context::new(config(lane())).unwrap();
    let peer = Peer::start_with(&context, &[("CUDA_VISIBLE_DEVICES", "1")]);
    if std::env::var("FAKE_CUDA_UNSEEN").is_ok() {
        let (memory, content) = filled(Kind::Plain, 8, 4096);
        let echoed = peer.echo("into 4096", device(memory.whole()));
        assert!(echoed.unwrap() == content);
    }
    let (memory, _) = filled(Kind::Mapped, 8, 4096);
    let error = peer.echo("into 4096", device(memory.whole())).unwrap_err();
    assert!(
        error.contains("GPU-") && error.contains("CUDA_VISIBLE_DEVICES"),
        "{error}"
    );
    // The link goes on.
    let host = Segments::from_iter([Segment::from(Bytes::from_static(b"host"))]);
    assert_eq!(peer.echo("message", host).unwrap(), b"host");
}

pub(crate) fn what_cannot_be_exported_is_copied_first() {
    driver::enter(0);
    let context = Context::new(config(lane())).unwrap();
    let peer = Peer::start(&context);
    for kind in [Kind::Plain, Kind::SharedPool] {
        let (memory, content) = filled(kind, 8, 4096);
        let echoed = peer.echo("into 4096", device(memory.whole()));
        assert!(echoed.unwrap() == content, "{kind:?}");
    }
}

pub(crate) fn what_can_be_shared_is_not_copied_first() {
    driver::enter(0);
    let context = Context::new(config(LaneKind::Shm)).unwrap();
    let peer = Peer::start(&context);
    for kind in [Kind::Plain, Kind::SharedPool] {
        let (memory, content) = filled(kind, 8, 4096);
        let echoed = peer.echo("into 4096", device(memory.whole()));
        assert!(echoed.unwrap() == content, "{kind:?}");
        let part = memory.part(1000, 3000, None);
        let echoed = peer.echo("into 3000", device(part));
        assert!(echoed.unwrap() == content[1000..4000], "{kind:?}, a part");
        // Of several parts at once, one is done before the other.
        let both = [memory.part(0, 2000, None), memory.part(2000, 2096, None)];
        let both = both.map(Segment::Device).into_iter().collect();
        assert!(peer.echo("host 4096", both).unwrap() == content);
    }
}

pub(crate) fn memory_that_was_mapped_beside_or_after_other_memory() {
    driver::enter(0);
    let context = Context::new(config(LaneKind::Shm)).unwrap();
    let peer = Peer::start(&context);
    const GRANULE: usize = driver::GRANULE;
    let memory = Arc::new(Memory::new(Kind::Mapped, 2 * GRANULE));
    for seed in 0..3 {
        memory.map_anew_by_halves();
        let content = pattern::make(seed, 2 * GRANULE);
        memory.fill(&content);
        for (at, bytes) in [
            (0, 4096),
            (GRANULE, 4096),
            (GRANULE + 1, GRANULE - 1),
            (GRANULE - 10, 4096),
            (0, 2 * GRANULE),
        ] {
            let part = memory.part(at, bytes, None);
            let echoed = peer.echo(&format!("into {bytes}"), device(part));
            assert!(
                echoed.unwrap() == content[at..at + bytes],
                "{bytes} at {at}"
            );
        }
    }
}

pub(crate) fn a_capture_goes_on() {
    driver::enter(0);
    let context = Context::new(config(LaneKind::Shm)).unwrap();
    let peer = Peer::start(&context);
    let (memory, content) = filled(Kind::Plain, 8, 4096);
    let stream = driver::stream();
    let target = Arc::new(Memory::new(Kind::Plain, 4096));
    driver::begin_capture(stream);
    let refused = memory.part(0, 4096, Some(stream));
    let refused = peer.endpoint.send(DATA, Segment::Device(refused)).done();
    assert_matches!(
        &refused,
        Err(SendError::Refused(SendRefused::NoCarrier { detail, .. })) if detail.contains("CAPTURE")
    );
    for _ in 0..10 {
        let other = memory.part(0, 4096, None);
        assert!(peer.echo("into 4096", device(other)).unwrap() == content);
        peer.tell("send 0 4096");
        let target = Box::new(target.part(0, 4096, None));
        let received = peer.endpoint.recv_boxed(DATA, TagMask::FULL, target);
        assert_eq!(received.done().unwrap().bytes, 4096);
    }
    driver::end_capture(stream);
    let after = memory.part(0, 4096, Some(stream));
    assert!(peer.echo("into 4096", device(after)).unwrap() == content);
}

pub(crate) fn what_does_not_open_is_asked_for_in_another_way() {
    driver::enter(0);
    let context = Context::new(config(lane())).unwrap();
    let fails = [("FAKE_CUDA_FAIL", "cuIpcOpenMemHandle_v2=1")];
    let peer = Peer::start_with(&context, &fails);
    for how in ["into 4096", "message", "host 4096"] {
        let (memory, content) = filled(Kind::Plain, 8, 4096);
        let echoed = peer.echo(how, device(memory.whole()));
        assert!(echoed.unwrap() == content, "{how}");
    }
}

pub(crate) fn a_device_that_fails_fails_the_message() {
    driver::enter(0);
    let context = Context::new(config(lane())).unwrap();
    let peer = Peer::start(&context);
    let (memory, _) = filled(Kind::Plain, 8, 4096);
    let error = peer.echo("into 4096", device(memory.whole())).unwrap_err();
    assert!(
        error.contains("719") || error.contains("no carrier"),
        "{error}"
    );
}

pub(crate) fn an_arena_gives_its_blocks_back() {
    driver::enter(0);
    let addresses: std::collections::HashSet<_> = (0..1000)
        .map(|_| cuda::allocate(0, 300).unwrap().pointer())
        .collect();
    assert_eq!(addresses.len(), 1, "a block is used again");
    let large = cuda::allocate(0, 5 << 20).unwrap();
    let content = pattern::make(1, 5 << 20);
    cuda::upload(&content, &large).unwrap();
    let mut back = vec![0; 5 << 20];
    cuda::download(&large, &mut back).unwrap();
    assert!(back == content);
    let error = cuda::allocate(7, 1).unwrap_err().to_string();
    assert!(error.contains("device 7"), "{error}");
}
