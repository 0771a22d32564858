//! Requests whose driver does nothing, or counts

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;

use super::*;

#[derive(Debug)]
struct Nobody;

impl Progress for Nobody {
    fn cancel(&self, _operation: u64) {}
}

#[test]
fn a_thread_that_waits_for_what_is_given_up_returns() {
    let driver = Arc::new(Nobody);
    let (request, _completer) = Request::<u32, ()>::pending(Operation { driver, id: 0 });
    let request = Arc::new(request);
    let (said, heard) = mpsc::channel();
    let waits = {
        let request = Arc::clone(&request);
        move || said.send(request.wait(None))
    };
    let waiter = std::thread::spawn(waits);
    let is_slept_on = || match &request.state {
        Held::Slot(slot) => {
            let state = slot.lock();
            matches!(&*state, State::Pending { is_slept_on, .. } if *is_slept_on)
        }
        Held::Here(_) => false,
    };
    while !is_slept_on() {
        std::thread::yield_now();
    }
    assert!(request.withdraw());
    let heard = heard.recv_timeout(Duration::from_secs(20));
    assert_eq!(heard.expect("it returns"), None);
    waiter.join().unwrap().unwrap();
}

/// Counts how it is asked to move things along
#[derive(Debug, Default)]
struct Counting {
    steps: AtomicUsize,
    polls: AtomicUsize,
}

impl Progress for Counting {
    fn poll_inline(&self, done: &AtomicBool) -> bool {
        self.polls.fetch_add(1, Ordering::SeqCst);
        done.load(Ordering::Acquire)
    }

    fn poll_patiently(&self, done: &AtomicBool, _is_over: &dyn Fn() -> bool) -> bool {
        self.poll_inline(done)
    }

    fn poll_briefly(&self, done: &AtomicBool) -> bool {
        self.poll_inline(done)
    }

    fn step(&self) {
        self.steps.fetch_add(1, Ordering::SeqCst);
    }

    fn cancel(&self, _operation: u64) {}
}

#[test]
fn a_future_keeps_no_thread_of_its_executor() {
    let counting = Arc::new(Counting::default());
    let driver = Arc::clone(&counting) as Arc<dyn Progress>;
    let (mut request, completer) = Request::<u32, ()>::pending(Operation { driver, id: 0 });
    let context = &mut TaskContext::from_waker(Waker::noop());
    for polled in 1..=3 {
        assert!(Pin::new(&mut request).poll(context).is_pending());
        assert_eq!(counting.steps.load(Ordering::SeqCst), polled);
    }
    finish(completer, Ok(7));
    assert_eq!(Pin::new(&mut request).poll(context), Poll::Ready(Ok(7)));
    assert_eq!(counting.polls.load(Ordering::SeqCst), 0);
}
