//! A tap has untagged messages before receives do, on any lane, and nothing is lost, doubled or
//! passed by another where it comes, goes, or leaves messages to receives.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use backhaul::{Bytes, Endpoint, FrameStream, Frames, PoolBuf, Segments, Tag, TagMask};
use backhaul_testkit::{Finish, Harness, LaneKind, Spin, wait_until};

/// A stream that takes the messages whose second byte is zero
#[derive(Default)]
struct Taking {
    /// First bytes of what it took
    taken: Mutex<Vec<u64>>,
    /// Where it sends what it took, if anywhere
    echoes_to: Option<Frames>,
    rounds: AtomicU64,
    /// True if the engine is to stay awake for what comes next
    expects_more: bool,
    is_on_engine: AtomicBool,
}

impl FrameStream for Taking {
    fn handle(&self, segments: &[PoolBuf]) -> bool {
        let (number, is_wanted) = read(segments);
        let thread = std::thread::current();
        self.is_on_engine
            .store(thread.name() == Some("backhaul-engine"), Ordering::SeqCst);
        if is_wanted {
            self.taken.lock().unwrap().push(number);
            if let Some(frames) = &self.echoes_to {
                frames.send(message(number, true, 8)).detach();
            }
        }
        is_wanted
    }

    fn handled_all(&self) -> bool {
        self.rounds.fetch_add(1, Ordering::SeqCst);
        self.expects_more
    }
}

impl Taking {
    fn count(&self) -> usize {
        self.taken.lock().unwrap().len()
    }
}

fn message(number: u64, is_wanted: bool, bytes: usize) -> Segments {
    let mut body = vec![0; bytes.max(16)];
    body[..8].copy_from_slice(&number.to_le_bytes());
    body[8] = u8::from(!is_wanted);
    Segments::from_iter([Bytes::from(body)])
}

fn read(segments: &[PoolBuf]) -> (u64, bool) {
    let body = &segments[0];
    let number = u64::from_le_bytes(body[..8].try_into().unwrap());
    (number, body[8] == 0)
}

fn receive(endpoint: &Endpoint) -> u64 {
    read(&endpoint.recv_frames().done().unwrap().segments).0
}

fn lanes() -> impl Iterator<Item = Harness> {
    let kinds = [LaneKind::Inproc, LaneKind::Shm, LaneKind::Tcp];
    kinds
        .into_iter()
        .flat_map(|lane| [Spin::Polling, Spin::Sleeping].map(|spin| Harness::of_lane(lane, spin)))
}

#[test]
fn receives_have_what_the_stream_leaves_until_they_have_caught_up() {
    for harness in lanes() {
        let pair = harness.pair();
        let stream = Arc::new(Taking::default());
        let frames = pair.far.frames();
        assert_eq!(frames.tap(Arc::clone(&stream) as _).unwrap(), 0);
        let send = |number, is_wanted| {
            pair.near
                .send_frames(message(number, is_wanted, 16))
                .done()
                .unwrap();
        };
        // Nothing is known of its reader yet.
        send(0, true);
        assert_eq!(receive(&pair.far), 0);
        frames.caught_up(1);
        send(1, true);
        send(2, true);
        wait_until(|| stream.count() == 2);
        let left: Vec<_> = (3..6).map(|_| pair.far.recv_frames()).collect();
        send(3, false);
        send(4, true);
        send(5, true);
        let left = left
            .iter()
            .map(|left| read(&left.done().unwrap().segments).0);
        assert_eq!(left.collect::<Vec<_>>(), [3, 4, 5]);
        // It has handled the first of these three.
        frames.caught_up(2);
        send(6, true);
        assert_eq!(receive(&pair.far), 6);
        frames.caught_up(5);
        send(7, true);
        wait_until(|| stream.count() == 3);
        assert_eq!(*stream.taken.lock().unwrap(), [1, 2, 7]);
        assert!(stream.is_on_engine.load(Ordering::SeqCst));
        assert!(stream.rounds.load(Ordering::SeqCst) >= 2);
    }
}

#[test]
fn every_message_is_seen_once_and_in_order_while_taps_come_and_go() {
    const MESSAGES: u64 = 3_000;
    for harness in lanes() {
        let pair = harness.pair();
        let frames = pair.far.frames();
        let stream = Arc::new(Taking {
            expects_more: true,
            ..Taking::default()
        });
        let is_over = AtomicBool::new(false);
        let received = std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..MESSAGES {
                    // Some are announced, and fetched or asked for.
                    let bytes = if number % 97 == 0 { 100 << 10 } else { 16 };
                    let message = message(number, number % 5 != 0, bytes);
                    pair.near.send_frames(message).detach();
                }
                pair.near.close().done().unwrap();
            });
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst)
                    && frames.tap(Arc::clone(&stream) as _).is_ok()
                {
                    std::thread::yield_now();
                    frames.caught_up(u64::MAX);
                    std::thread::yield_now();
                    frames.untap();
                }
            });
            let mut received = Vec::new();
            while let Ok(message) = pair.far.recv_frames().done() {
                received.push(read(&message.segments).0);
            }
            is_over.store(true, Ordering::SeqCst);
            received
        });
        let taken = stream.taken.lock().unwrap().clone();
        assert!(taken.is_sorted(), "{}", harness.lane.name());
        assert!(received.is_sorted(), "{}", harness.lane.name());
        let mut all: Vec<u64> = taken.into_iter().chain(received).collect();
        all.sort_unstable();
        assert_eq!(
            all,
            (0..MESSAGES).collect::<Vec<_>>(),
            "{}",
            harness.lane.name()
        );
    }
}

#[test]
fn a_stream_may_send_where_it_is_called() {
    for harness in lanes() {
        let pair = harness.pair();
        let stream = Arc::new(Taking {
            echoes_to: Some(pair.far.frames()),
            expects_more: true,
            ..Taking::default()
        });
        let frames = pair.far.frames();
        frames.tap(stream).unwrap();
        frames.caught_up(0);
        for number in 0..500 {
            let reply = pair.near.recv_frames();
            pair.near.send_frames(message(number, true, 16)).detach();
            assert_eq!(read(&reply.done().unwrap().segments).0, number);
        }
        frames.untap();
    }
}

#[test]
fn receives_that_wait_when_a_tap_comes_or_goes_wait_on() {
    for harness in lanes() {
        let pair = harness.pair();
        let frames = pair.far.frames();
        let waiting = pair.far.recv_frames();
        let tagged = pair.far.recv_message(Tag(7), TagMask(u64::MAX));
        let stream = Arc::new(Taking::default());
        assert_eq!(frames.tap(Arc::clone(&stream) as _).unwrap(), 1);
        frames.caught_up(0);
        pair.near.send_frames(message(0, true, 16)).done().unwrap();
        wait_until(|| stream.count() == 1);
        assert!(!waiting.is_done());
        // Tagged messages are no matter of the tap's.
        pair.near
            .send(Tag(7), Bytes::from_static(b"x"))
            .done()
            .unwrap();
        assert_eq!(&tagged.done().unwrap().segments[0][..], b"x");
        frames.untap();
        pair.near.send_frames(message(1, true, 16)).done().unwrap();
        assert_eq!(read(&waiting.done().unwrap().segments).0, 1);
        assert_eq!(stream.count(), 1);
    }
}

#[test]
fn a_receive_that_is_given_up_behind_a_tap_takes_no_message() {
    for harness in lanes() {
        let pair = harness.pair();
        let frames = pair.far.frames();
        frames.tap(Arc::new(Taking::default())).unwrap();
        drop(pair.far.recv_frames());
        let waiting = pair.far.recv_frames();
        waiting.cancel();
        assert!(waiting.done().is_err());
        // Given up when it has its message already.
        let met = pair.far.recv_frames();
        pair.near.send_frames(message(0, false, 16)).done().unwrap();
        pair.near.send_frames(message(1, false, 16)).done().unwrap();
        wait_until(|| met.is_done());
        drop(met);
        assert_eq!(receive(&pair.far), 0);
        assert_eq!(receive(&pair.far), 1);
    }
}

#[test]
fn the_end_of_the_connection_comes_after_what_arrived_before_it() {
    for harness in lanes() {
        let pair = harness.pair();
        let frames = pair.far.frames();
        let stream = Arc::new(Taking::default());
        frames.tap(Arc::clone(&stream) as _).unwrap();
        frames.caught_up(0);
        for number in 0..300 {
            pair.near
                .send_frames(message(number, number < 200, 16))
                .detach();
        }
        pair.near.close().done().unwrap();
        let mut received = Vec::new();
        while let Ok(message) = pair.far.recv_frames().done() {
            received.push(read(&message.segments).0);
        }
        // An end that overtakes the engine leaves what that has not seen to receives.
        let taken = stream.taken.lock().unwrap().clone();
        let count = taken.len() as u64;
        assert!(count <= 200);
        assert_eq!(taken, (0..count).collect::<Vec<_>>());
        assert_eq!(received, (count..300).collect::<Vec<_>>());
        assert!(frames.tap(stream).is_err());
    }
}
