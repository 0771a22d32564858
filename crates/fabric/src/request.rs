//! One operation in flight: a future for any executor, or something to block on.
//!
//! The engine completes a [`Completer`]; the caller holds the [`Request`]. Before it sleeps, a
//! caller that blocks moves its own link along for a bounded time (see `spin`), because a poll
//! costs a fraction of a wake-up. A future moves it along once each time it is polled.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::runtime::{Doorbell, LoopWatch, sleep_on};
use crate::sync::{Arc, AtomicBool, Condvar, Mutex, MutexGuard, Ordering, PoisonError};

/// Wakers to call once the locks that completed their requests are released
pub(crate) type WakeList = SmallVec<[Waker; 4]>;

/// An operation in flight
///
/// Resolves to the result of the operation. Dropping it before completion asks for a cancel, and
/// the memory it was given stays owned by the operation until that is over; [`Request::detach`]
/// lets it finish unobserved.
///
/// # Cancel safety
///
/// A receive that is dropped takes no message: a message that has matched the receive already, or
/// that no caller has taken out of it, is there for other receives again, whole and in its place in
/// the order. A send that is dropped is withdrawn if nothing of it has left, else it completes.
#[must_use = "a dropped request is cancelled; use `detach` to let it finish unobserved"]
#[derive(Debug)]
pub struct Request<T, E> {
    state: Held<T, E>,
    /// Operation to move along; `None` once it is detached
    operation: Option<Operation>,
    /// Gives back a result that no caller takes, where it must not be lost
    give_back: Option<GiveBack<T>>,
}

/// Gives a result back to where it came from
pub(crate) type GiveBack<T> = fn(&dyn Progress, T);

/// Where the result of a request is
#[derive(Debug)]
enum Held<T, E> {
    /// The holder of the completer stores the result
    Slot(Arc<Slot<T, E>>),
    /// It was there from the start; `None` once it is taken
    Here(Mutex<Option<Result<T, E>>>),
}

impl<T, E> Request<T, E> {
    /// Makes a request with the end that completes it
    pub(crate) fn pending(operation: Operation) -> (Self, Completer<T, E>) {
        let slot = Arc::new(Slot::default());
        let completer = Completer {
            slot: Arc::clone(&slot),
        };
        let request = Self {
            state: Held::Slot(slot),
            operation: Some(operation),
            give_back: None,
        };
        (request, completer)
    }

    /// Returns the same request, whose result goes back if no caller takes it
    pub(crate) fn giving_back(mut self, give_back: GiveBack<T>) -> Self {
        self.give_back = Some(give_back);
        self
    }

    /// Makes a request for an operation that is over already
    pub(crate) fn over(result: Result<T, E>) -> Self {
        Self {
            state: Held::Here(Mutex::new(Some(result))),
            operation: None,
            give_back: None,
        }
    }

    /// Makes a request for an operation whose completer exists already
    pub(crate) fn of(completer: &Completer<T, E>, operation: Operation) -> Self {
        Self {
            state: Held::Slot(Arc::clone(&completer.slot)),
            operation: Some(operation),
            give_back: None,
        }
    }

    /// Returns whether the result is there
    pub fn is_done(&self) -> bool {
        match &self.state {
            Held::Slot(slot) => slot.done.load(Ordering::Acquire),
            Held::Here(_) => true,
        }
    }

    /// Moves the operation along for a bounded time, returning whether it is done
    pub fn poll_inline(&self) -> bool {
        match (&self.state, &self.operation) {
            (Held::Here(_), _) => true,
            (Held::Slot(slot), None) => slot.done.load(Ordering::Acquire),
            (Held::Slot(slot), Some(operation)) => {
                slot.done.load(Ordering::Acquire) || operation.driver.poll_inline(&slot.done)
            }
        }
    }

    /// Polls for longer than [`Self::poll_inline`], for what several processes take part in
    ///
    /// For a caller that has just asked for it, and has nothing else to do. Stops as well when
    /// `is_over` says so. Polling that does not pay becomes rare, apart from that of others.
    pub fn poll_patiently(&self, is_over: &dyn Fn() -> bool) -> bool {
        match (&self.state, &self.operation) {
            (Held::Here(_), _) => true,
            (Held::Slot(slot), None) => slot.done.load(Ordering::Acquire),
            (Held::Slot(slot), Some(operation)) => {
                slot.done.load(Ordering::Acquire)
                    || operation.driver.poll_patiently(&slot.done, is_over)
            }
        }
    }

    /// Polls for a few microseconds where that has paid lately, returning whether it is done
    ///
    /// For a caller that holds something others may want, and would have to release it for more.
    pub fn poll_briefly(&self) -> bool {
        match (&self.state, &self.operation) {
            (Held::Here(_), _) => true,
            (Held::Slot(slot), None) => slot.done.load(Ordering::Acquire),
            (Held::Slot(slot), Some(operation)) => {
                slot.done.load(Ordering::Acquire) || operation.driver.poll_briefly(&slot.done)
            }
        }
    }

    /// Moves the operation along once, without waiting, returning whether it is done
    pub fn step(&self) -> bool {
        if !self.is_done()
            && let Some(operation) = &self.operation
        {
            operation.driver.step();
        }
        self.is_done()
    }

    /// Takes the result if it is there, and was not given up
    ///
    /// # Panics
    ///
    /// If the result was taken before.
    pub fn take(&self) -> Option<Result<T, E>> {
        match &self.state {
            Held::Slot(slot) if slot.done.load(Ordering::Acquire) => slot.take(),
            Held::Slot(_) => None,
            Held::Here(result) => {
                let result = result.lock().unwrap_or_else(PoisonError::into_inner).take();
                Some(result.expect(TAKEN_ONCE))
            }
        }
    }

    /// Takes the error if the operation has failed; a result stays
    pub fn take_error(&self) -> Option<E> {
        match &self.state {
            Held::Slot(slot) => slot.take_error(),
            Held::Here(result) => {
                let mut result = result.lock().unwrap_or_else(PoisonError::into_inner);
                result.take_if(|result| result.is_err())?.err()
            }
        }
    }

    /// Blocks until the operation is done or `timeout` has passed
    ///
    /// `None` means that time ran out: the operation goes on, and may be waited for again.
    ///
    /// # Panics
    ///
    /// If the result was taken before.
    pub fn wait(&self, timeout: Option<Duration>) -> Option<Result<T, E>> {
        if self.wait_done(timeout) {
            self.take()
        } else {
            None
        }
    }

    /// As [`Request::wait`], but leaves the result for [`Request::take`]
    pub fn wait_done(&self, timeout: Option<Duration>) -> bool {
        self.poll_inline()
            || match (&self.state, &self.operation) {
                (Held::Slot(slot), Some(operation)) => {
                    operation.driver.begin_block();
                    let is_done = slot.block(timeout);
                    operation.driver.end_block();
                    is_done
                }
                (Held::Slot(slot), None) => slot.block(timeout),
                (Held::Here(_), _) => true,
            }
    }

    /// Sleeps until the operation is done, `kick` is notified, or `timeout` has passed
    ///
    /// The thread watches the connection itself where that is possible, so that no other thread has
    /// to wake it. A thread that completes the operation otherwise does wake it, by the waker: the
    /// waker is to notify `kick`, which is not cleared. May return without a reason, as when a
    /// signal comes.
    pub fn sleep(&self, kick: &Doorbell, timeout: Duration) {
        match (&self.state, &self.operation) {
            (Held::Slot(slot), Some(operation)) => {
                operation.driver.sleep_here(&slot.done, kick, timeout);
            }
            (Held::Slot(_), None) => {
                sleep_on(kick, None, Some(timeout));
            }
            (Held::Here(_), _) => {}
        }
    }

    /// Has an event loop, which is about to wait for this, watch the connection itself
    ///
    /// Where that is possible and pays; else the engine goes on.
    pub fn join_loop(&self, watch: &Arc<LoopWatch>) {
        if let Some(operation) = &self.operation {
            Arc::clone(&operation.driver).join_loop(watch);
        }
    }

    /// Asks to cancel; the request still completes, as cancelled or with its result
    pub fn cancel(&self) {
        if let Some(operation) = &self.operation
            && !self.is_done()
        {
            operation.driver.cancel(operation.id);
        }
    }

    /// Gives the operation up: no caller will ask for its result
    ///
    /// Works as dropping the request does: a receive leaves its message for others, if it has one
    /// that no caller has taken. Returns whether there was something to give up; from then on there
    /// is no result, and threads that wait for it return without one.
    pub fn withdraw(&self) -> bool {
        let (Held::Slot(slot), Some(operation)) = (&self.state, &self.operation) else {
            return false;
        };
        match slot.withdraw() {
            State::Pending { waker, is_slept_on } => {
                operation.driver.cancel(operation.id);
                // Others may wait for it too: for them it is over.
                if is_slept_on {
                    slot.blocked.notify_all();
                }
                if let Some(waker) = waker {
                    waker.wake();
                }
                true
            }
            State::Done(result) => {
                if let (Ok(value), Some(give_back)) = (result, self.give_back) {
                    give_back(&*operation.driver, value);
                }
                true
            }
            State::Taken | State::Withdrawn => false,
        }
    }

    /// Returns whether a result that no caller takes goes back to where it came from, as a message
    /// does
    pub fn gives_back(&self) -> bool {
        self.give_back.is_some()
    }

    /// Has `waker` called when the result is there, in place of any earlier one
    ///
    /// Returns whether it will be called: `false` means that the result is there already.
    pub fn set_waker(&self, waker: &Waker) -> bool {
        match &self.state {
            Held::Slot(slot) => slot.set_waker(waker),
            Held::Here(_) => false,
        }
    }

    /// Lets the operation finish without a caller that waits
    pub fn detach(mut self) {
        self.operation = None;
    }
}

impl<E> Request<(), E> {
    /// Returns whether the operation had succeeded when the request was made, so that there is
    /// nothing to wait for and nothing to take
    pub fn is_settled(&self) -> bool {
        match &self.state {
            Held::Here(result) => matches!(
                *result.lock().unwrap_or_else(PoisonError::into_inner),
                Some(Ok(()))
            ),
            Held::Slot(_) => false,
        }
    }
}

impl<T, E> Future for Request<T, E> {
    type Output = Result<T, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let request = self.get_mut();
        // Once, without waiting: the thread is the executor's, which has other tasks.
        if !request.step() && request.set_waker(cx.waker()) {
            return Poll::Pending;
        }
        request.take().map_or(Poll::Pending, Poll::Ready)
    }
}

impl<T, E> Unpin for Request<T, E> {}

impl<T, E> Drop for Request<T, E> {
    fn drop(&mut self) {
        self.withdraw();
    }
}

/// The end of a request that the engine holds
#[derive(Debug)]
pub(crate) struct Completer<T, E> {
    slot: Arc<Slot<T, E>>,
}

impl<T, E> Completer<T, E> {
    /// A completer whose request is made later, with [`Request::of`]
    pub(crate) fn new() -> Self {
        Self {
            slot: Arc::new(Slot::default()),
        }
    }

    /// Stores the result; waiting threads and tasks are woken when the caller drains `wakes`
    ///
    /// Returns what the operation came to if the request was given up meanwhile.
    pub(crate) fn complete(self, result: Result<T, E>, wakes: &mut WakeList) -> Option<T> {
        let mut state = self.slot.lock();
        if matches!(*state, State::Withdrawn) {
            return result.ok();
        }
        let (waker, is_slept_on) = match std::mem::replace(&mut *state, State::Done(result)) {
            State::Pending { waker, is_slept_on } => (waker, is_slept_on),
            State::Done(_) | State::Taken | State::Withdrawn => {
                unreachable!("a completer is consumed by completing")
            }
        };
        // Pairs with the Acquire load of `is_done`.
        self.slot.done.store(true, Ordering::Release);
        drop(state);
        if is_slept_on {
            // Takes a system call, even if no thread sleeps.
            self.slot.blocked.notify_all();
        }
        wakes.extend(waker);
        None
    }

    /// Returns whether the request has no holder any more
    pub(crate) fn is_abandoned(&self) -> bool {
        Arc::strong_count(&self.slot) == 1
    }
}

/// Methods of a link that a request needs
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    /// Moves the operation along
    pub(crate) driver: Arc<dyn Progress>,
    /// Names the operation to its driver
    pub(crate) id: u64,
}

/// Moves operations along and cancels them
pub(crate) trait Progress: std::fmt::Debug + Send + Sync {
    /// Moves data until `done` is set or a bounded time has passed, returning whether it is set
    fn poll_inline(&self, done: &AtomicBool) -> bool {
        done.load(Ordering::Acquire)
    }
    /// As `poll_inline`, for more time, and no longer than until `is_over`
    fn poll_patiently(&self, done: &AtomicBool, is_over: &dyn Fn() -> bool) -> bool {
        let _ = is_over;
        done.load(Ordering::Acquire)
    }
    /// As `poll_inline`, for less time, and only where polling has paid lately
    fn poll_briefly(&self, done: &AtomicBool) -> bool {
        done.load(Ordering::Acquire)
    }
    /// Moves data once, without waiting
    fn step(&self) {}
    /// Asks to cancel an operation, which still completes
    fn cancel(&self, operation: u64);
    /// An event loop is about to wait: it may watch the connection itself
    fn join_loop(self: Arc<Self>, watch: &Arc<LoopWatch>) {
        let _ = watch;
    }
    /// A thread is about to sleep until an operation is over
    fn begin_block(&self) {}
    /// It sleeps no more
    fn end_block(&self) {}
    /// Sleeps until `done` is set, `kick` is notified or `timeout` has passed
    fn sleep_here(&self, done: &AtomicBool, kick: &Doorbell, timeout: Duration) {
        if !done.load(Ordering::Acquire) {
            sleep_on(kick, None, Some(timeout));
        }
    }
    /// Takes back a message that a receive has got and no caller has looked at
    fn restore(&self, delivery: crate::link::Delivery) {
        drop(delivery);
    }
}

#[derive(Debug)]
struct Slot<T, E> {
    /// Set once, after `state` holds the result
    done: AtomicBool,
    /// The result was taken: who drops the request need not look. It orders nothing.
    is_taken: AtomicBool,
    state: Mutex<State<T, E>>,
    blocked: Condvar,
}

#[derive(Debug)]
enum State<T, E> {
    Pending {
        waker: Option<Waker>,
        /// A thread sleeps, or has slept, on `blocked`
        is_slept_on: bool,
    },
    Done(Result<T, E>),
    Taken,
    /// No caller will ask for the result
    Withdrawn,
}

impl<T, E> Default for Slot<T, E> {
    fn default() -> Self {
        Self {
            done: AtomicBool::new(false),
            is_taken: AtomicBool::new(false),
            state: Mutex::new(State::Pending {
                waker: None,
                is_slept_on: false,
            }),
            blocked: Condvar::new(),
        }
    }
}

impl<T, E> Slot<T, E> {
    fn lock(&self) -> MutexGuard<'_, State<T, E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The result; `None` if it was given up
    fn take(&self) -> Option<Result<T, E>> {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, State::Taken) {
            State::Done(result) => {
                self.is_taken.store(true, Ordering::Relaxed);
                Some(result)
            }
            State::Withdrawn => {
                *state = State::Withdrawn;
                None
            }
            State::Pending { .. } => unreachable!("`done` is set after the result is stored"),
            State::Taken => panic!("{TAKEN_ONCE}"),
        }
    }

    fn take_error(&self) -> Option<E> {
        let mut state = self.lock();
        if !matches!(*state, State::Done(Err(_))) {
            return None;
        }
        match std::mem::replace(&mut *state, State::Taken) {
            State::Done(result) => result.err(),
            _ => None,
        }
    }

    /// Gives the result up, returning how things stood
    fn withdraw(&self) -> State<T, E> {
        if self.is_taken.load(Ordering::Relaxed) {
            return State::Taken;
        }
        let mut state = self.lock();
        match &*state {
            State::Taken | State::Withdrawn => State::Taken,
            State::Pending { .. } | State::Done(_) => {
                let former = std::mem::replace(&mut *state, State::Withdrawn);
                self.done.store(true, Ordering::Release);
                former
            }
        }
    }

    fn set_waker(&self, waker: &Waker) -> bool {
        match &mut *self.lock() {
            State::Pending { waker: slot, .. } => {
                match slot {
                    Some(old) if old.will_wake(waker) => {}
                    _ => *slot = Some(waker.clone()),
                }
                true
            }
            State::Done(_) | State::Taken | State::Withdrawn => false,
        }
    }

    /// Sleeps until done; `false` means that time ran out
    fn block(&self, timeout: Option<Duration>) -> bool {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut state = self.lock();
        while let State::Pending { is_slept_on, .. } = &mut *state {
            *is_slept_on = true;
            state = match deadline {
                None => self
                    .blocked
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return false;
                    }
                    self.blocked
                        .wait_timeout(state, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
            };
        }
        true
    }
}

const TAKEN_ONCE: &str = "the result of a request is taken once, and not after it was given up";

/// Completes and wakes at once; no lock may be held
pub(crate) fn finish<T, E>(completer: Completer<T, E>, result: Result<T, E>) {
    let mut wakes = WakeList::new();
    completer.complete(result, &mut wakes);
    for waker in wakes {
        waker.wake();
    }
}

// Named, as models include this file from elsewhere
#[cfg(all(test, not(loom)))]
#[path = "request/tests.rs"]
mod tests;
