//! Progress of a connection: callers that post, poll and sleep, the engine, and the peer's
//! doorbell.
//!
//! The steps are those of `crates/fabric/src/connection` under the same names: `submit`, `settle`,
//! `progress`, `arm`, `drive`, `poll_inline`, `become_busy_polled`, `on_ready`, `on_tick`, and of
//! `Engine::busy_poll` and `tick`. loom fails a model when all threads sleep: that is a stall.

use std::sync::Arc;

use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::sync::{Condvar, Mutex, MutexGuard};
use loom::thread;

use crate::explore;
use crate::request::{Completer, Operation, Progress, Request, WakeList};
use crate::request_models::bell;

/// A word whose accesses are `SeqCst` in production
///
/// loom takes them for acquire and release, and finds stalls that there are not. A fence on both sides
/// gives them at least the one order of all that the language does.
#[derive(Debug, Default)]
struct Total(AtomicU32);

impl Total {
    fn load(&self) -> u32 {
        fenced(|| self.0.load(Ordering::SeqCst))
    }

    fn swap(&self, value: u32) -> u32 {
        fenced(|| self.0.swap(value, Ordering::SeqCst))
    }

    /// Adds, modulo 2^32
    fn add(&self, value: u32) -> u32 {
        fenced(|| self.0.fetch_add(value, Ordering::SeqCst))
    }
}

fn fenced<T>(access: impl FnOnce() -> T) -> T {
    fence(Ordering::SeqCst);
    let outcome = access();
    fence(Ordering::SeqCst);
    outcome
}

/// Lane that the peer writes to, and rings
#[derive(Debug, Default)]
struct Lane {
    head: AtomicU32,
    consumer_waiting: AtomicU32,
}

/// State of the holder of the lock: messages that were read, and receives that wait for one
#[derive(Debug, Default)]
struct Port {
    tail: u32,
    unexpected: u32,
    posted: Vec<Completer<u32, ()>>,
}

/// Doorbells that the engine sleeps on
#[derive(Debug, Default)]
struct Bells {
    /// The doorbell of the connection
    doorbell: bool,
    /// That of the engine
    own: bool,
    stopping: bool,
}

#[derive(Debug, Default)]
struct Conn {
    lane: Lane,
    inbox: Mutex<Vec<Completer<u32, ()>>>,
    dirty: Total,
    port: Mutex<Port>,
    inline: Total,
    masked: Total,
    busy_polled: Total,
    spins_hit: AtomicU32,
    /// Of the engine
    inline_hits_seen: AtomicU32,
    bells: Mutex<Bells>,
    bell: Condvar,
    polled: Mutex<bool>,
    ticking: Total,
}

#[derive(Clone, Copy)]
struct Work {
    read: bool,
    arm_read: bool,
    mask: bool,
    waits: bool,
}

const SUBMIT: Work = Work {
    read: false,
    arm_read: false,
    mask: false,
    waits: false,
};
const POLL: Work = Work {
    read: true,
    ..SUBMIT
};
const MASK: Work = Work { mask: true, ..POLL };
const ARM: Work = Work {
    arm_read: true,
    waits: true,
    ..POLL
};

impl Conn {
    /// A connection that the engine has armed
    fn start() -> Arc<Self> {
        let conn = Arc::new(Self::default());
        conn.drive();
        conn
    }

    /// The peer sends one message
    fn peer_sends(&self) {
        let head = self.lane.head.load(Ordering::Relaxed);
        self.lane.head.store(head + 1, Ordering::Release);
        fence(Ordering::SeqCst);
        let waiting = &self.lane.consumer_waiting;
        if waiting.load(Ordering::Relaxed) != 0 && waiting.swap(0, Ordering::Relaxed) != 0 {
            self.ring(|bells| bells.doorbell = true);
        }
    }

    fn ring(&self, set: impl FnOnce(&mut Bells)) {
        set(&mut self.bells.lock().unwrap());
        self.bell.notify_all();
    }

    fn recv(self: &Arc<Self>) -> Request<u32, ()> {
        let driver = Arc::clone(self) as Arc<dyn Progress>;
        let (request, completer) = Request::pending(Operation { driver, id: 0 });
        self.submit(completer);
        request
    }

    fn submit(&self, completer: Completer<u32, ()>) {
        match self.port.try_lock() {
            Ok(port) => self.work_on(port, Some(completer), SUBMIT),
            Err(_) => {
                self.inbox.lock().unwrap().push(completer);
                self.dirty.swap(1);
            }
        }
        self.settle();
    }

    fn settle(&self) {
        fence(Ordering::SeqCst);
        if self.dirty.load() == 1 {
            self.progress(SUBMIT);
        }
    }

    fn progress(&self, work: Work) {
        loop {
            let port = match self.port.try_lock() {
                Ok(port) => port,
                Err(_) if work.waits => self.port.lock().unwrap(),
                Err(_) => return,
            };
            self.work_on(port, None, work);
            fence(Ordering::SeqCst);
            if self.dirty.load() == 0 {
                return;
            }
        }
    }

    fn work_on(
        &self,
        mut port: MutexGuard<'_, Port>,
        completer: Option<Completer<u32, ()>>,
        work: Work,
    ) {
        let mut wakes = WakeList::new();
        if self.dirty.load() == 1 && self.dirty.swap(0) == 1 {
            let commands = std::mem::take(&mut *self.inbox.lock().unwrap());
            port.posted.extend(commands);
        }
        port.posted.extend(completer);
        self.pump(&mut port, work);
        while port.unexpected > 0 && !port.posted.is_empty() {
            port.unexpected -= 1;
            port.posted.remove(0).complete(Ok(1), &mut wakes);
        }
        drop(port);
        for waker in wakes {
            waker.wake();
        }
    }

    fn pump(&self, port: &mut Port, work: Work) {
        if work.mask {
            self.lane.consumer_waiting.store(0, Ordering::Relaxed);
        }
        while work.read {
            let head = self.lane.head.load(Ordering::Acquire);
            port.unexpected += head - port.tail;
            port.tail = head;
            if !work.arm_read {
                return;
            }
            self.lane.consumer_waiting.store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if self.lane.head.load(Ordering::Acquire) == port.tail {
                return;
            }
            self.lane.consumer_waiting.store(0, Ordering::Relaxed);
        }
    }

    fn arm(&self) {
        self.masked.swap(0);
        self.progress(ARM);
    }

    fn drive(&self) {
        self.arm();
    }

    fn become_busy_polled(&self) {
        if self.busy_polled.load() == 0 && self.busy_polled.swap(1) == 0 {
            *self.polled.lock().unwrap() = true;
            if self.ticking.swap(1) == 0 {
                self.ring(|bells| bells.own = true);
            }
        }
    }

    fn on_tick(&self) -> bool {
        let hits = self.spins_hit.load(Ordering::Relaxed);
        let used = self.inline_hits_seen.swap(hits, Ordering::Relaxed) != hits;
        if used || self.inline.load() > 0 {
            return true;
        }
        self.busy_polled.swap(0);
        self.drive();
        false
    }

    fn tick(&self) {
        let is_polled = std::mem::take(&mut *self.polled.lock().unwrap());
        let stays = is_polled && self.on_tick();
        let mut polled = self.polled.lock().unwrap();
        *polled |= stays;
        if !*polled {
            self.ticking.swap(0);
        }
    }

    /// The thread of the engine
    fn run(&self) {
        loop {
            let mut bells = self.bells.lock().unwrap();
            while !bells.doorbell && !bells.own && !bells.stopping {
                if self.ticking.load() == 1 {
                    break;
                }
                bells = self.bell.wait(bells).unwrap();
            }
            let (doorbell, stopping) = (std::mem::take(&mut bells.doorbell), bells.stopping);
            bells.own = false;
            drop(bells);
            if stopping {
                return;
            }
            if doorbell && self.inline.load() == 0 {
                self.drive();
            }
            if self.ticking.load() == 1 {
                self.tick();
                // Time passes between two ticks.
                thread::yield_now();
            }
        }
    }
}

impl Progress for Conn {
    fn poll_inline(&self, done: &crate::sync::AtomicBool) -> bool {
        self.progress(POLL);
        if done.load(Ordering::Acquire) {
            return true;
        }
        self.inline.add(1);
        if self.masked.swap(1) == 0 {
            self.progress(MASK);
        }
        // One look more stands for any number of them.
        self.progress(POLL);
        let found = done.load(Ordering::Acquire);
        let last = self.inline.add(u32::MAX) == 1;
        if found {
            self.spins_hit.fetch_add(1, Ordering::Relaxed);
            if last {
                self.become_busy_polled();
            }
        } else if last {
            self.arm();
        }
        done.load(Ordering::Acquire)
    }

    fn cancel(&self, _operation: u64) {}
}

/// Runs what callers do beside a peer that sends so many messages, and the engine
fn run(messages: u32, callers: Vec<fn(&Arc<Conn>)>) {
    let conn = Conn::start();
    let engine = {
        let conn = Arc::clone(&conn);
        thread::spawn(move || conn.run())
    };
    let mut threads = Vec::new();
    let mut callers = callers.into_iter();
    let first = callers.next().expect("somebody calls");
    for caller in callers {
        let conn = Arc::clone(&conn);
        threads.push(thread::spawn(move || caller(&conn)));
    }
    let peer = {
        let conn = Arc::clone(&conn);
        thread::spawn(move || (0..messages).for_each(|_| conn.peer_sends()))
    };
    first(&conn);
    for thread in threads {
        thread.join().unwrap();
    }
    peer.join().unwrap();
    conn.ring(|bells| bells.stopping = true);
    engine.join().unwrap();
}

fn recv_and_sleep(conn: &Arc<Conn>) {
    assert_eq!(conn.recv().wait(None), Some(Ok(1)));
}

/// As a task on an executor that has polled its future before
fn recv_and_await(conn: &Arc<Conn>) {
    let request = conn.recv();
    let (notify, waker) = bell();
    while request.set_waker(&waker) {
        notify.wait();
    }
    assert_eq!(request.take(), Some(Ok(1)));
}

#[test]
fn a_caller_that_posts_and_does_not_poll_gets_its_message() {
    explore(Some(PREEMPTIONS), || run(1, vec![recv_and_await]));
}

#[test]
fn one_that_does_not_poll_is_not_forgotten_by_one_that_does() {
    explore(Some(PREEMPTIONS - 1), || {
        run(2, vec![recv_and_sleep, recv_and_await]);
    });
}

#[test]
fn a_caller_that_polls_and_then_sleeps_gets_its_message() {
    explore(Some(PREEMPTIONS), || run(1, vec![recv_and_sleep]));
}

#[test]
fn a_caller_that_sleeps_at_once_after_one_that_polled_gets_its_message() {
    explore(Some(PREEMPTIONS), || {
        run(
            2,
            vec![|conn| {
                recv_and_sleep(conn);
                // Its poll has paid: the connection may be the tick's from now on.
                let second = conn.recv();
                assert_eq!(second.wait(None), Some(Ok(1)));
            }],
        );
    });
}

#[test]
fn two_callers_that_poll_and_sleep_each_get_a_message() {
    explore(Some(PREEMPTIONS - 1), || {
        run(2, vec![recv_and_sleep, recv_and_sleep])
    });
}

/// More take minutes
const PREEMPTIONS: usize = 3;
