#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use backhaul_proto::{MessageKind, Tag, TagMask};

use super::*;
use crate::context::Context;
use crate::memory::Segments;
use crate::runtime::{LoopWatch, Member};

/// Two connected endpoints over TCP, and what keeps them
fn pair() -> (crate::Endpoint, crate::Endpoint, Context) {
    pair_over(LaneKind::Tcp)
}

/// Two connected endpoints, and what keeps them
fn pair_over(lane: LaneKind) -> (crate::Endpoint, crate::Endpoint, Context) {
    let config = Config {
        lanes: vec![lane],
        // Pings would hide a lost wake-up: they send what no thread was woken for.
        keep_alive: None,
        ..Config::default()
    };
    let context = Context::new(config).unwrap();
    let listener = context.listen("127.0.0.1:0").unwrap();
    let accept = listener.accept();
    let near = context.connect(&listener.local_address().to_string());
    let near = near.wait(Some(PATIENCE)).unwrap().unwrap();
    let far = accept.wait(Some(PATIENCE)).unwrap().unwrap();
    (near, far, context)
}

#[test]
fn the_engine_looks_after_a_brief_poll_that_the_tick_overtook() {
    let (near, _far, _context) = pair();
    let conn = near.conn();
    let looked_after = (0..20).any(|_| {
        let (begun, done) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let poll = scope.spawn(|| {
                // The state after a poll that has found something.
                conn.masked.store(true, Ordering::SeqCst);
                conn.become_busy_polled();
                begun.store(true, Ordering::SeqCst);
                let found = conn.poll_for(PATIENCE, &done);
                (found, conn.busy_polled.load(Ordering::SeqCst))
            });
            let is_armed = || {
                begun.load(Ordering::SeqCst)
                    && !conn.busy_polled.load(Ordering::SeqCst)
                    && !conn.masked.load(Ordering::SeqCst)
            };
            let began = Instant::now();
            while !is_armed() {
                assert!(began.elapsed() < PATIENCE, "the tick arms an idle link");
                std::thread::yield_now();
            }
            done.store(true, Ordering::SeqCst);
            // It is busy-polled for a tick or two only, in which a busy machine may run
            // neither this thread nor the poll.
            poll.join().unwrap() == (true, true)
        })
    });
    assert!(looked_after);
}

#[test]
fn a_send_that_a_receive_finds_in_the_inbox_goes_out() {
    let (near, far, _context) = pair();
    let conn = near.conn();
    for _ in 0..3 {
        // As a caller leaves it whose attempt at the port comes while the other holds it.
        let (send, completer) = Request::pending(conn.operation(conn.next_operation()));
        lock(&conn.inbox).push(Command::Send(crate::link::Send {
            operation: Some(conn.next_operation()),
            kind: MessageKind::Tagged(Tag(1)),
            segments: Segments::from_iter([&b"left"[..]]),
            token: SendToken {
                completer: Some(completer),
                started: None,
            },
        }));
        conn.counters.posted_bytes.add(4);
        conn.dirty.store(true, Ordering::SeqCst);
        let posted = near.recv_message(Tag(9), TagMask::FULL);
        let arrived = far.recv_message(Tag(1), TagMask::FULL);
        let arrived = arrived.wait(Some(PATIENCE)).expect("it went out").unwrap();
        assert_eq!(arrived.segments[0][..], *b"left");
        drop((posted, send));
    }
}

#[test]
fn a_receive_given_up_in_the_inbox_leaves_its_message_to_the_next_there() {
    let (near, far, _context) = pair();
    for number in *b"12" {
        near.send_copy(Tag(1), &[number])
            .wait(Some(PATIENCE))
            .unwrap()
            .unwrap();
    }
    // Behind both, so that they are here when it is.
    near.send_copy(Tag(2), b"last").detach();
    let last = far.recv_message(Tag(2), TagMask::FULL);
    last.wait(Some(PATIENCE)).unwrap().unwrap();

    let post = || far.recv_message(Tag(1), TagMask::FULL);
    let port = lock(&far.conn().port);
    drop(post());
    let next = [post(), post()];
    drop(port);
    for (number, next) in b"12".iter().zip(next) {
        let message = next.wait(Some(PATIENCE)).unwrap().unwrap();
        assert_eq!(message.segments[0][..], [*number]);
    }
}

/// Attempts until a test gives up: each takes some 20 ms, and a machine may be busy for seconds
const ATTEMPTS: usize = 200;

/// Has a message come that is noticed by an inspection alone, returning the receiver's statistics
///
/// `None` where the engine was still at its first visit, as on a busy machine it may be.
fn overlook(lane: LaneKind, prepare: &dyn Fn(&Arc<Conn>)) -> Option<crate::EndpointStatistics> {
    let (near, far, _context) = pair_over(lane);
    let received = far.recv_message(Tag(1), TagMask::FULL);
    prepare(far.conn());
    near.send_copy(Tag(1), b"overlooked").detach();
    let began = Instant::now();
    while far.statistics().received_messages == 0 {
        assert!(began.elapsed() < PATIENCE, "{lane:?}: it hangs");
        std::thread::sleep(Duration::from_millis(10));
    }
    let events = far.recent_events();
    let received = received.wait(Some(PATIENCE)).unwrap().unwrap();
    assert_eq!(received.segments[0][..], *b"overlooked");
    assert_eq!(near.statistics().overlooked, 0);
    let was_found = events
        .iter()
        .any(|event| event.kind == EventKind::Overlooked);
    was_found.then(|| far.statistics())
}

#[test]
fn the_engine_finds_what_nobody_was_woken_for() {
    for lane in [LaneKind::Tcp, LaneKind::Shm, LaneKind::Inproc] {
        // As a caller leaves it that polled, and did not arm the connection as it went.
        let mask = |conn: &Arc<Conn>| {
            conn.progress(Work::MASK);
            conn.interest.set(Some(false), None);
        };
        let statistics = (0..ATTEMPTS).find_map(|_| overlook(lane, &mask));
        assert_eq!(statistics.expect("it is found").overlooked, 1, "{lane:?}");
    }
}

#[test]
fn the_engine_does_the_work_of_an_event_loop_that_is_kept_from_it() {
    let watch = LoopWatch::new().unwrap();
    let join = |conn: &Arc<Conn>| Arc::clone(conn).join_loop(&watch);
    let statistics = (0..ATTEMPTS).find_map(|_| overlook(LaneKind::Shm, &join));
    assert_eq!(statistics.expect("it is found").overlooked, 0);
}

#[test]
fn a_connection_that_panics_on_an_event_loop_is_ended() {
    let (near, far, _context) = pair_over(LaneKind::Shm);
    let watch = LoopWatch::new().unwrap();
    let received = far.recv_message(Tag(1), TagMask::FULL);
    Arc::clone(far.conn()).join_loop(&watch);
    Arc::clone(far.conn()).fail(&"as this test wants");
    assert!(received.wait(Some(PATIENCE)).unwrap().is_err());
    let answer = near.recv_message(Tag(1), TagMask::FULL);
    assert!(answer.wait(Some(PATIENCE)).unwrap().is_err());
    assert!(!far.conn().interest.is_with_loop());
}

const PATIENCE: Duration = Duration::from_secs(300);
