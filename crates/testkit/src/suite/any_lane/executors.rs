//! Requests as futures and as things to block on, wherever they are awaited.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use backhaul::{Endpoint, Tag, TagMask};

use crate::executor::{Task, run_all};
use crate::{Finish, Harness, pattern, wait_until};

/// One task that parks its thread
pub fn a_parking_executor_completes_requests(harness: &Harness) {
    let pair = harness.pair();
    let (near, far) = (&pair.near, &pair.far);
    std::thread::scope(|scope| {
        scope.spawn(|| pollster::block_on(echo(far, ROUNDS)));
        pollster::block_on(ask(near, ROUNDS));
    });
}

/// Many tasks, each with a waker of its own, both sides on one thread
pub fn an_executor_of_many_tasks_completes_requests(harness: &Harness) {
    let pair = harness.pair();
    let (near, far) = (&pair.near, &pair.far);
    let mut tasks: Vec<Task<'_, ()>> = Vec::new();
    for tag in 0..20 {
        tasks.push(Box::pin(async move {
            for round in 0..ROUNDS {
                let bytes = sizes(round);
                let request = near.recv(Tag(tag), TagMask::FULL, vec![0; bytes]);
                let payload = pattern::make(tag, bytes);
                near.send(Tag(100 + tag), payload).await.unwrap();
                let received = request.await.unwrap();
                pattern::check(tag, &received.into_buffer::<Vec<u8>>().unwrap());
            }
        }));
        tasks.push(Box::pin(async move {
            for _ in 0..ROUNDS {
                let request = far.recv_message(Tag(100 + tag), TagMask::FULL);
                let message = request.await.unwrap();
                let payload = message.segments[0].to_vec();
                far.send(Tag(tag), payload).await.unwrap();
            }
        }));
    }
    run_all(tasks);
}

/// Started on one thread, awaited on another, where it sleeps
pub fn a_request_is_awaited_on_another_thread(harness: &Harness) {
    let pair = harness.pair();
    for round in 0..ROUNDS {
        let request = pair.far.recv_message(Tag(1), TagMask::FULL);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| pollster::block_on(request));
            let bytes = sizes(round);
            let payload = pattern::make(1, bytes);
            pair.near.send(Tag(1), payload).done().unwrap();
            let message = waiting.join().unwrap().unwrap();
            pattern::check(1, &message.segments[0]);
        });
    }
}

/// Only the waker of the last poll counts
pub fn a_request_that_moves_between_tasks_wakes_the_last(harness: &Harness) {
    let pair = harness.pair();
    for _ in 0..20 {
        let mut request = pin!(pair.far.recv_message(Tag(1), TagMask::FULL));
        let (first, last) = (Arc::new(Count::default()), Arc::new(Count::default()));
        for count in [&first, &last] {
            let waker = Waker::from(Arc::clone(count));
            let polled = request.as_mut().poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
        }
        pair.near.send(Tag(1), &b"x"[..]).done().unwrap();
        wait_until(|| last.0.load(Ordering::SeqCst) > 0);
        assert_eq!(first.0.load(Ordering::SeqCst), 0);
        let waker = Waker::noop();
        let polled = request.as_mut().poll(&mut Context::from_waker(waker));
        assert!(matches!(polled, Poll::Ready(Ok(_))));
        assert_eq!(last.0.load(Ordering::SeqCst), 1);
    }
}

/// A wait that ran out of time took nothing
pub fn waiting_again_after_a_timeout_gets_the_result(harness: &Harness) {
    let pair = harness.pair();
    let request = pair.far.recv_message(Tag(1), TagMask::FULL);
    assert!(request.wait(Some(Duration::ZERO)).is_none());
    assert!(request.wait(Some(Duration::from_millis(5))).is_none());
    assert!(!request.wait_done(Some(Duration::from_millis(5))));
    assert!(request.take().is_none());
    pair.near.send(Tag(1), &b"late"[..]).done().unwrap();
    assert!(request.wait_done(None));
    assert!(request.is_done());
    assert!(request.wait_done(Some(Duration::ZERO)));
    let message = request.take().unwrap().unwrap();
    assert_eq!(&message.segments[0][..], b"late");
}

/// A caller that only looks, now and then, sees the result too
pub fn stepping_completes_a_request(harness: &Harness) {
    let pair = harness.pair();
    let request = pair.far.recv_message(Tag(1), TagMask::FULL);
    assert!(!request.step());
    let bytes = 3 << 20;
    let send = pair.near.send(Tag(1), pattern::make(1, bytes));
    while !request.step() {
        send.step();
    }
    pattern::check(1, &request.take().unwrap().unwrap().segments[0]);
    send.done().unwrap();
}

/// A message for which no caller waits completes its request all the same
pub fn the_engine_completes_what_nobody_waits_for(harness: &Harness) {
    let pair = harness.pair();
    for bytes in [5, 3 << 20] {
        // Leaves the link with the engine, and again with a caller that polled.
        for warm in [false, true] {
            if warm {
                let request = pair.far.recv_message(Tag(2), TagMask::FULL);
                pair.near.send(Tag(2), &b"x"[..]).done().unwrap();
                request.done().unwrap();
            }
            let request = pair.far.recv_message(Tag(1), TagMask::FULL);
            let send = pair.near.send(Tag(1), pattern::make(1, bytes));
            wait_until(|| request.is_done() && send.is_done());
            pattern::check(1, &request.take().unwrap().unwrap().segments[0]);
        }
    }
}

/// A message that was announced before its receive was posted needs no waiting caller, either
///
/// Several, so that every way of bringing it has its turn.
pub fn the_engine_brings_what_was_announced_before(harness: &Harness) {
    let pair = harness.pair();
    for round in 0..8 {
        let send = pair.near.send(Tag(1), pattern::make(round, 1 << 20));
        // The next message says that it was announced.
        pair.near.send(Tag(2), &b"x"[..]).done().unwrap();
        let marker = pair.far.recv_message(Tag(2), TagMask::FULL);
        marker.done().unwrap();
        let request = pair.far.recv(Tag(1), TagMask::FULL, vec![0; 1 << 20]);
        wait_until(|| request.is_done() && send.is_done());
        let received = request.take().unwrap().unwrap();
        pattern::check(round, &received.into_buffer::<Vec<u8>>().unwrap());
    }
}

/// Detached operations finish
pub fn a_detached_send_arrives(harness: &Harness) {
    let pair = harness.pair();
    for bytes in [5, 3 << 20] {
        let payload = pattern::make(1, bytes);
        pair.near.send(Tag(1), payload).detach();
        let message = pair.far.recv_message(Tag(1), TagMask::FULL).done().unwrap();
        pattern::check(1, &message.segments[0]);
    }
}

async fn ask(endpoint: &Endpoint, rounds: u64) {
    for round in 0..rounds {
        let payload = pattern::make(round, sizes(round));
        endpoint.send(Tag(round), payload).await.unwrap();
        let request = endpoint.recv_message(Tag(round), TagMask::FULL);
        let message = request.await.unwrap();
        assert_eq!(message.segments[0].len(), sizes(round));
        pattern::check(round, &message.segments[0]);
    }
}

async fn echo(endpoint: &Endpoint, rounds: u64) {
    for _ in 0..rounds {
        let message = endpoint.recv_message(Tag(0), TagMask::ANY).await.unwrap();
        let payload = message.segments[0].to_vec();
        endpoint.send(message.tag.unwrap(), payload).await.unwrap();
    }
}

#[derive(Debug, Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn sizes(round: u64) -> usize {
    [8, 5000, 0, 300_000][round as usize % 4]
}

const ROUNDS: u64 = 40;
