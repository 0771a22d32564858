//! Visits to a connection: by the engine, and by an event loop that has taken it over.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::event::epoll::EventFlags;

use super::Conn;
use super::interest::{PORT_DOORBELL, PORT_PROCESS};
use super::port::Work;
use super::recorder::EventKind;
use crate::lane::FAREWELL_PATIENCE;
use crate::runtime::{Member, Source};

impl Source for Conn {
    fn on_ready(self: Arc<Self>, port: u8, flags: EventFlags) {
        self.handle_ready(port, flags);
        self.run_tap();
    }

    fn on_tick(self: Arc<Self>) -> bool {
        let goes_on = self.tick();
        self.run_tap();
        goes_on
    }

    fn on_deadline(self: Arc<Self>, now: Instant) -> Option<Instant> {
        if self.closed.get().is_some() {
            return None;
        }
        self.recorder.note(EventKind::DeadlinePassed);
        let next = self.with_port(|port| port.handle_timeout(now));
        self.drive();
        self.run_tap();
        next
    }

    fn on_inspect(self: Arc<Self>) -> bool {
        let goes_on = self.inspect();
        self.run_tap();
        goes_on
    }

    fn on_stop(self: Arc<Self>) {
        self.abort();
    }
}

impl Conn {
    fn handle_ready(&self, port: u8, flags: EventFlags) {
        self.counters.wakeups.add(1);
        if port == PORT_DOORBELL {
            self.recorder.note(EventKind::DoorbellRang);
            self.interest.clear_doorbell();
            if self.inline.load(Ordering::SeqCst) == 0 {
                self.drive();
            } else {
                self.recorder.note(EventKind::LeftToCaller);
            }
        } else if port == PORT_PROCESS {
            self.handle_peer_ended("the process of the peer has ended");
        } else if !self.interest.has_sentinel() {
            self.recorder.note(EventKind::SocketReady);
            let is_usual = (EventFlags::IN | EventFlags::OUT).contains(flags);
            // Output waits for a caller only while one polls.
            let gives_way = || {
                self.masked.load(Ordering::SeqCst)
                    && (flags == EventFlags::IN || self.inline.load(Ordering::SeqCst) > 0)
            };
            if is_usual && gives_way() {
                self.interest.set(Some(false), Some(false));
                // A caller that armed the link meanwhile has found it watched still.
                if gives_way() {
                    self.recorder.note(EventKind::LeftToCaller);
                    return;
                }
            }
            self.drive();
        } else if let Some(detail) = self.interest.sentinel_ended() {
            let farewell = self.interest.farewell();
            if self.with_port(|port| port.handle_sentinel_end(farewell)) {
                // It would be reported again and again until the lane has ended.
                self.interest.unwatch_sentinel();
                self.engine
                    .schedule(self.id, Instant::now() + FAREWELL_PATIENCE);
                return self.drive();
            }
            self.handle_peer_ended(&detail);
        }
    }

    fn tick(&self) -> bool {
        if self.closed.get().is_some() {
            return false;
        }
        let hits = self.counters.spins_hit.value();
        let used = self.inline_hits_seen.swap(hits, Ordering::Relaxed) != hits;
        if used || self.inline.load(Ordering::SeqCst) > 0 {
            return true;
        }
        // Before arming: a caller that still finds it busy-polled has polled before that.
        self.busy_polled.store(false, Ordering::SeqCst);
        self.recorder.note(EventKind::PollersGone);
        self.drive();
        false
    }

    /// Moves along what an event loop, or a thread, was woken for; the engine does the rest
    pub(super) fn on_doorbell(&self, woken: EventKind) {
        self.counters.wakeups.add(1);
        self.recorder.note(woken);
        self.interest.clear_doorbell();
        if self.inline.load(Ordering::SeqCst) > 0 {
            return;
        }
        self.masked.store(false, Ordering::SeqCst);
        let outcome = self.progress(Work::ARM);
        if outcome.more || outcome.partial {
            self.loop_pause.store(LOOP_PAUSE, Ordering::Relaxed);
            self.call_engine();
        }
    }

    /// Handles that the peer is no more
    fn handle_peer_ended(&self, detail: &str) {
        self.recorder.note(EventKind::PeerEnded);
        // Bytes that the peer wrote before it ended are still in the ring.
        while self.progress(Work::DRIVE).moved {}
        self.with_port(|port| port.handle_peer_ended(detail));
    }
}

impl Member for Conn {
    fn on_news(self: Arc<Self>) {
        self.on_doorbell(EventKind::LoopWoken);
        self.settle_tap();
    }

    fn fail(self: Arc<Self>, panic: &(dyn Any + Send)) {
        self.leave_loop();
        self.engine.end_failed(self.id, panic);
    }

    fn leave(&self) {
        self.leave_loop();
    }
}

/// Waits after a long message before an event loop takes the connection over again: where one is,
/// there are more, which the engine moves without the interpreter
const LOOP_PAUSE: u32 = 64;
