//! Requests: each waiting thread is woken, by any end of the operation.

use std::sync::Arc;
use std::task::{Wake, Waker};

use loom::sync::Notify;
use loom::thread;

use crate::explore;
use crate::request::{Completer, Operation, Progress, Request, finish};

#[derive(Debug)]
struct Nobody;

impl Progress for Nobody {
    fn cancel(&self, _operation: u64) {}
}

type Pending = (Arc<Request<u32, ()>>, Completer<u32, ()>);

fn pending() -> Pending {
    let driver = Arc::new(Nobody);
    let (request, completer) = Request::pending(Operation { driver, id: 0 });
    (Arc::new(request), completer)
}

/// Wakes a thread of the model
struct Bell(loom::sync::Arc<Notify>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }
}

pub(crate) fn bell() -> (loom::sync::Arc<Notify>, Waker) {
    let notify = loom::sync::Arc::new(Notify::new());
    let waker = Waker::from(Arc::new(Bell(loom::sync::Arc::clone(&notify))));
    (notify, waker)
}

#[test]
fn a_thread_that_sleeps_is_woken_by_the_result() {
    explore(None, || {
        let (request, completer) = pending();
        let engine = thread::spawn(move || finish(completer, Ok(7)));
        assert_eq!(request.wait(None), Some(Ok(7)));
        engine.join().unwrap();
    });
}

#[test]
fn a_future_is_woken_by_the_result() {
    explore(None, || {
        let (request, completer) = pending();
        let engine = thread::spawn(move || finish(completer, Ok(7)));
        let (notify, waker) = bell();
        // It may wake for nothing, as any executor may poll.
        while request.set_waker(&waker) {
            notify.wait();
        }
        assert_eq!(request.take(), Some(Ok(7)));
        engine.join().unwrap();
    });
}

#[test]
fn whoever_sleeps_wakes_when_another_gives_the_request_up() {
    explore(Some(3), || {
        let (request, completer) = pending();
        let engine = thread::spawn(move || finish(completer, Ok(7)));
        let gives_up = {
            let request = Arc::clone(&request);
            thread::spawn(move || request.withdraw())
        };
        let taken = request.wait(None);
        engine.join().unwrap();
        let was_given_up = gives_up.join().unwrap();
        assert_eq!(taken, (!was_given_up).then_some(Ok(7)));
    });
}

#[test]
fn a_sleeper_and_a_future_of_one_request_both_wake() {
    explore(Some(3), || {
        let (request, completer) = pending();
        let engine = thread::spawn(move || finish(completer, Ok(7)));
        let sleeper = {
            let request = Arc::clone(&request);
            thread::spawn(move || assert!(request.wait_done(None)))
        };
        let (notify, waker) = bell();
        // It may wake for nothing, as any executor may poll.
        while request.set_waker(&waker) {
            notify.wait();
        }
        assert!(request.is_done());
        engine.join().unwrap();
        sleeper.join().unwrap();
    });
}
