//! How a caller that waits moves its own connection along, and when the engine does.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use backhaul_shm::doorbell::Doorbell;

use super::Conn;
use super::port::{Command, Work};
use super::recorder::EventKind;
use crate::link::Delivery;
use crate::request::Progress;
use crate::runtime::{Look, LoopWatch, Member, SpinPolicy, sleep_on};

impl Conn {
    /// Holds the port while nothing happens, for a moment, then works on it
    ///
    /// Holding the port saves taking it for each look: what comes is seen when it
    /// comes. A thread that wants the port meanwhile is seen too.
    pub(super) fn watch(&self) -> Look {
        let Some(port) = self.try_port() else {
            return Look::default();
        };
        for _ in 1..LOOKS_PER_HOLD {
            if port.is_stalled {
                std::hint::spin_loop();
            } else if !port.look_is_in_vain() {
                break;
            }
            // The thread that works on the link looks at the inbox, too.
            if self.dirty.load(Ordering::Relaxed) || self.wanted.load(Ordering::Relaxed) > 0 {
                break;
            }
        }
        let moved_else = port.take_moved_else();
        let outcome = self.work_on(port, None, Work::POLL);
        // Pairs with the fence in `settle`.
        fence(Ordering::SeqCst);
        let moved = outcome.moved
            | moved_else
            | (self.dirty.load(Ordering::SeqCst) && self.progress(Work::POLL).moved);
        Look {
            moved,
            awaits: outcome.patience
                + Duration::from_nanos(outcome.offered_bytes / FETCHED_BYTES_PER_NANO),
        }
    }

    /// Has the engine watch the doorbell again
    pub(super) fn leave_loop(&self) {
        self.recorder.note(EventKind::LoopLeft);
        self.interest.leave_loop();
    }

    /// Hands the connection to the engine: from now on news wake it
    pub(super) fn arm(&self) {
        self.masked.store(false, Ordering::SeqCst);
        if self.progress(Work::ARM).more {
            self.call_engine();
        }
    }

    /// Has the engine look at the connection each tick, while callers poll it
    pub(super) fn become_busy_polled(&self) {
        if !self.busy_polled.load(Ordering::SeqCst)
            && !self.busy_polled.swap(true, Ordering::SeqCst)
            && !self.engine.busy_poll(self.id)
        {
            self.busy_polled.store(false, Ordering::SeqCst);
        }
    }

    /// Polls until `is_over` or in vain, as the policy has it; returns which, and whether no other
    /// caller polls: then the connection is to be armed, or polled by the engine
    fn poll_masked(&self, policy: &SpinPolicy, is_over: impl Fn() -> bool) -> (bool, bool) {
        self.inline.fetch_add(1, Ordering::SeqCst);
        self.recorder.note(EventKind::PollBegun);
        if !self.masked.swap(true, Ordering::SeqCst) {
            self.progress(Work::MASK);
        }
        let found = policy.until(|| {
            let look = self.watch();
            (is_over(), look)
        });
        let last = self.inline.fetch_sub(1, Ordering::SeqCst) == 1;
        if found {
            self.recorder.note(EventKind::PollHit);
            // The tick sees by it that there was one.
            self.counters.spins_hit.add(1);
        } else {
            self.recorder.note(EventKind::PollMissed);
            self.counters.spins_missed.add(1);
        }
        (found, last)
    }

    /// Polls for a moment where callers poll anyway, returning whether `done` is set
    pub(super) fn poll_for(&self, patience: Duration, done: &AtomicBool) -> bool {
        // Else no caller polls it, and the peer would notify for each message.
        if !self.busy_polled.load(Ordering::Relaxed) || !self.masked.load(Ordering::Relaxed) {
            return false;
        }
        let started = Instant::now();
        loop {
            self.watch();
            let is_done = done.load(Ordering::Acquire);
            if is_done || started.elapsed() >= patience || self.closed.get().is_some() {
                if is_done {
                    // Also tells the tick that there was one.
                    self.counters.spins_hit.add(1);
                }
                // The tick may have armed the link before our last look at it, which may have left
                // something to write without a wake-up for it.
                self.become_busy_polled();
                return is_done;
            }
        }
    }

    /// How long the engine polls in the middle of a transfer: the peer is at it, on another CPU
    pub(super) fn partial_budget(&self) -> Duration {
        if self.traits.waits_awake {
            self.spin.budget()
        } else {
            Duration::ZERO
        }
    }

    /// Moves what can be moved, as the engine: for a bounded amount, then after the others again
    pub(super) fn drive(&self) {
        let patience = self.partial_budget();
        let work = if patience.is_zero() {
            Work::ARM
        } else {
            Work::DRIVE
        };
        self.masked.store(false, Ordering::SeqCst);
        let mut slices = 0;
        let mut moved_at = Instant::now();
        loop {
            let outcome = self.progress(work);
            if outcome.more || (outcome.moved && !patience.is_zero()) {
                slices += 1;
                if slices == SLICES_MAX {
                    self.call_engine();
                    return;
                }
                moved_at = Instant::now();
            } else if outcome.partial && moved_at.elapsed() < patience {
                std::thread::yield_now();
            } else {
                break;
            }
        }
        if !patience.is_zero() {
            self.arm();
        }
        self.recorder.note(EventKind::EngineDone);
    }
}

impl Progress for Conn {
    fn poll_inline(&self, done: &AtomicBool) -> bool {
        if self.is_tapped.load(Ordering::Relaxed) {
            // The engine reads it, for the tap.
            return done.load(Ordering::Acquire);
        }
        self.step();
        if done.load(Ordering::Acquire) || self.closed.get().is_some() || !self.spin.take_turn() {
            return done.load(Ordering::Acquire);
        }
        let (found, last) = self.poll_masked(&self.spin, || done.load(Ordering::Acquire));
        if last && found {
            self.become_busy_polled();
        } else if last {
            self.arm();
        }
        done.load(Ordering::Acquire)
    }

    fn poll_patiently(&self, done: &AtomicBool, is_over: &dyn Fn() -> bool) -> bool {
        if self.is_tapped.load(Ordering::Relaxed) {
            return done.load(Ordering::Acquire);
        }
        self.step();
        if done.load(Ordering::Acquire)
            || self.closed.get().is_some()
            || !self.patient_spin.take_turn()
        {
            return done.load(Ordering::Acquire);
        }
        let (_, last) = self.poll_masked(&self.patient_spin, || {
            done.load(Ordering::Acquire) || is_over()
        });
        if last {
            // The next message may be long in coming, and may be for another caller.
            self.arm();
        }
        done.load(Ordering::Acquire)
    }

    fn poll_briefly(&self, done: &AtomicBool) -> bool {
        if self.is_tapped.load(Ordering::Relaxed) {
            return done.load(Ordering::Acquire);
        }
        self.poll_for(BRIEFLY, done)
    }

    fn step(&self) {
        if self.is_tapped.load(Ordering::Relaxed) {
            return;
        }
        if self.progress(Work::STEP).more {
            self.call_engine();
        }
        self.settle_tap();
    }

    fn cancel(&self, operation: u64) {
        self.submit(Command::Cancel(operation));
    }

    fn restore(&self, delivery: Delivery) {
        self.submit(Command::Restore(delivery));
    }

    fn join_loop(self: Arc<Self>, watch: &Arc<LoopWatch>) {
        if !self.traits.has_doorbell
            || self.blocked.load(Ordering::Relaxed) > 0
            || self.is_tapped.load(Ordering::Relaxed)
        {
            return;
        }
        // It steers effort and orders nothing, hence `Relaxed`.
        let pause = self.loop_pause.load(Ordering::Relaxed);
        if pause > 0 {
            self.loop_pause.store(pause - 1, Ordering::Relaxed);
            return;
        }
        let member: Weak<dyn Member> = Arc::downgrade(&(Arc::clone(&self) as Arc<dyn Member>));
        if self.interest.join_loop(watch, member) {
            self.recorder.note(EventKind::LoopJoined);
        }
        // One that blocks meanwhile has seen it with the loop, or is seen here.
        if self.blocked.load(Ordering::SeqCst) > 0 {
            self.leave_loop();
        }
    }

    fn begin_block(&self) {
        self.blocked.fetch_add(1, Ordering::SeqCst);
        if self.interest.is_with_loop() {
            self.leave_loop();
        }
    }

    fn end_block(&self) {
        self.blocked.fetch_sub(1, Ordering::SeqCst);
    }

    fn sleep_here(&self, done: &AtomicBool, kick: &Doorbell, timeout: Duration) {
        let deadline = Instant::now().checked_add(timeout);
        // No event loop takes the doorbell over meanwhile.
        self.blocked.fetch_add(1, Ordering::SeqCst);
        let mut doorbell = self.interest.lend_doorbell();
        let has_doorbell = doorbell.is_some();
        while !done.load(Ordering::Acquire) && self.closed.get().is_none() {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                break;
            }
            let woken = sleep_on(kick, doorbell.as_deref(), left);
            if woken.has_news {
                self.on_doorbell(EventKind::ThreadWoken);
                // A long message is left to the engine, which wakes the waiting caller.
                doorbell = doorbell.filter(|_| self.interest.is_with_thread());
            } else {
                break;
            }
            if woken.is_kicked {
                break;
            }
        }
        if has_doorbell {
            self.interest.return_doorbell();
        }
        self.blocked.fetch_sub(1, Ordering::SeqCst);
    }
}

/// How fast a peer fetches what it was offered, at least: it is waited for awake so long
const FETCHED_BYTES_PER_NANO: u64 = 2;

/// A few times what a short message takes to a peer that polls, and back
const BRIEFLY: Duration = Duration::from_micros(3);

/// Looks at the lane while the port is held
const LOOKS_PER_HOLD: u32 = 64;

/// Slices of data that the engine moves on one connection before it looks after the others
const SLICES_MAX: u32 = 8;
