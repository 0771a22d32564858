//! Connections that an event loop watches itself, in the place of the engine.
//!
//! An event loop that waits for short messages is woken twice for each if the engine is woken first:
//! the engine reads, and wakes the loop. A [`LoopWatch`] is a descriptor for the loop to watch: it is
//! readable when news have come for a connection that the loop has taken over, or when the loop is
//! called. The loop then moves these connections along by itself.
//!
//! A loop can be kept from its work for long, so a connection is the loop's only while nothing is in
//! the middle of anything: what takes longer than one look goes back to the engine, and so does what
//! a thread blocks on. Its sentinel is the engine's always.

use std::any::Any;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use backhaul_shm::doorbell::Doorbell;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::lock;

/// Descriptors that an event loop watches for the connections that it has taken over
#[derive(Debug)]
pub struct LoopWatch {
    epoll: OwnedFd,
    doorbell: Doorbell,
    members: Mutex<HashMap<u64, Weak<dyn Member>>>,
    next_member: AtomicU64,
    alarm: Mutex<Alarm>,
}

/// Calls the loop later
#[derive(Debug, Default)]
struct Alarm {
    /// Made with the first
    timer: Option<OwnedFd>,
    is_set: bool,
}

/// A connection that may be taken over
pub(crate) trait Member: std::fmt::Debug + Send + Sync {
    /// News have come: moves the connection along
    fn on_news(self: Arc<Self>);
    /// Its own call has panicked, so it is in no state to be called again: ends it
    fn fail(self: Arc<Self>, panic: &(dyn Any + Send));
    /// The loop is gone: the connection goes back to the engine
    fn leave(&self);
}

/// Names a connection to the loop that has taken it over; never 0
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct MemberId(u64);

impl LoopWatch {
    /// Makes what one event loop watches
    ///
    /// # Errors
    ///
    /// Errors that the system reports, when it has no descriptors left.
    pub fn new() -> io::Result<Arc<Self>> {
        let watch = Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            doorbell: Doorbell::new()?,
            members: Mutex::default(),
            next_member: AtomicU64::new(1),
            alarm: Mutex::default(),
        };
        let data = EventData::new_u64(DOORBELL);
        epoll::add(&watch.epoll, &watch.doorbell, data, EventFlags::IN)?;
        Ok(Arc::new(watch))
    }

    /// Calls the loop
    pub fn notify(&self) {
        self.doorbell.notify();
    }

    /// Calls the loop once `delay` has passed, unless it is to be called sooner by an earlier alarm
    ///
    /// May be called by any thread, and wakes no thread before.
    ///
    /// # Errors
    ///
    /// Errors that the system reports, when it has no descriptors left: the loop is not called.
    pub fn notify_within(&self, delay: Duration) -> io::Result<()> {
        let mut alarm = lock(&self.alarm);
        if alarm.is_set {
            return Ok(());
        }
        let timer = match &mut alarm.timer {
            Some(timer) => timer,
            none => {
                let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
                let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
                epoll::add(
                    &self.epoll,
                    &timer,
                    EventData::new_u64(ALARM),
                    EventFlags::IN,
                )?;
                none.insert(timer)
            }
        };
        // Zero would switch it off.
        let delay = delay.max(Duration::from_nanos(1));
        let setting = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec::try_from(delay).map_err(io::Error::other)?,
        };
        timerfd_settime(&*timer, TimerfdTimerFlags::empty(), &setting)?;
        alarm.is_set = true;
        Ok(())
    }

    /// Moves the connections along for which news have come
    ///
    /// To be called on the loop, when the descriptor is readable. Returns whether the loop was called.
    /// A connection that panics is ended, alone: the loop has others, and futures that are due.
    pub fn progress(&self) -> bool {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        // An error would leave the descriptor readable, and this would be called again.
        let _ = epoll::wait(
            &self.epoll,
            spare_capacity(&mut events),
            Some(&Timespec::default()),
        );
        let mut is_called = false;
        for event in events {
            let data = event.data.u64();
            if data == DOORBELL {
                self.doorbell.clear();
                is_called = true;
                continue;
            }
            if data == ALARM {
                self.clear_alarm();
                is_called = true;
                continue;
            }
            let member = lock(&self.members).get(&data).and_then(Weak::upgrade);
            let Some(member) = member else { continue };
            let outcome = catch_unwind(AssertUnwindSafe(|| Arc::clone(&member).on_news()));
            if let Err(panic) = outcome {
                member.fail(&*panic);
            }
        }
        is_called
    }

    fn clear_alarm(&self) {
        let mut alarm = lock(&self.alarm);
        if let Some(timer) = &alarm.timer {
            let mut expirations = [0; 8];
            // An error means that it was cleared before.
            let _ = rustix::io::read(timer, &mut expirations);
        }
        alarm.is_set = false;
    }

    /// Takes over the doorbell of a connection
    pub(crate) fn add(
        &self,
        member: Weak<dyn Member>,
        doorbell: &Doorbell,
    ) -> io::Result<MemberId> {
        // Only uniqueness matters.
        let id = self.next_member.fetch_add(1, Ordering::Relaxed);
        lock(&self.members).insert(id, member);
        let added = epoll::add(
            &self.epoll,
            doorbell,
            EventData::new_u64(id),
            EventFlags::IN,
        );
        if let Err(error) = added {
            lock(&self.members).remove(&id);
            return Err(error.into());
        }
        Ok(MemberId(id))
    }

    /// Gives it back
    pub(crate) fn remove(&self, id: MemberId, doorbell: &Doorbell) {
        // An error means that it was not watched, as it is to be.
        let _ = epoll::delete(&self.epoll, doorbell);
        lock(&self.members).remove(&id.0);
    }
}

impl AsFd for LoopWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Drop for LoopWatch {
    fn drop(&mut self) {
        let members = std::mem::take(&mut *lock(&self.members));
        for member in members.into_values().filter_map(|member| member.upgrade()) {
            member.leave();
        }
    }
}

/// Marks the loop's own doorbell among events; no connection has this id
const DOORBELL: u64 = 0;

/// Marks its alarm
const ALARM: u64 = u64::MAX;

/// Events taken from the kernel at once
const EVENTS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Counts its news and its ends; one of them panics
    #[derive(Debug)]
    struct Counting {
        doorbell: Doorbell,
        panics: bool,
        news: AtomicUsize,
        ends: AtomicUsize,
    }

    impl Counting {
        fn new(panics: bool) -> Arc<Self> {
            Arc::new(Self {
                doorbell: Doorbell::new().unwrap(),
                panics,
                news: AtomicUsize::new(0),
                ends: AtomicUsize::new(0),
            })
        }
    }

    impl Member for Counting {
        fn on_news(self: Arc<Self>) {
            self.doorbell.clear();
            self.news.fetch_add(1, Ordering::SeqCst);
            assert!(!self.panics, "as this test wants");
        }

        fn fail(self: Arc<Self>, _panic: &(dyn Any + Send)) {
            self.ends.fetch_add(1, Ordering::SeqCst);
        }

        fn leave(&self) {}
    }

    #[test]
    fn an_alarm_calls_once_and_not_before() {
        let watch = LoopWatch::new().unwrap();
        let delay = Duration::from_millis(30);
        let set = std::time::Instant::now();
        watch.notify_within(delay).unwrap();
        // It is set already.
        watch.notify_within(Duration::from_secs(60)).unwrap();
        assert!(!watch.progress() || set.elapsed() >= delay);
        let mut fds = [rustix::event::PollFd::new(
            &watch,
            rustix::event::PollFlags::IN,
        )];
        rustix::event::poll(&mut fds, None).unwrap();
        assert!(set.elapsed() >= delay);
        assert!(watch.progress());
        assert!(!watch.progress());
        // And again.
        watch.notify_within(Duration::ZERO).unwrap();
        let mut fds = [rustix::event::PollFd::new(
            &watch,
            rustix::event::PollFlags::IN,
        )];
        rustix::event::poll(&mut fds, None).unwrap();
        assert!(watch.progress());
    }

    #[test]
    fn a_connection_that_panics_ends_alone() {
        let watch = LoopWatch::new().unwrap();
        let members = [
            Counting::new(true),
            Counting::new(false),
            Counting::new(true),
        ];
        for member in &members {
            let weak = Arc::downgrade(member) as Weak<dyn Member>;
            watch.add(weak, &member.doorbell).unwrap();
        }
        for round in 1..=2 {
            for member in &members {
                member.doorbell.notify();
            }
            watch.notify();
            assert!(watch.progress());
            for member in &members {
                assert_eq!(member.news.load(Ordering::SeqCst), round);
                let ends = if member.panics { round } else { 0 };
                assert_eq!(member.ends.load(Ordering::SeqCst), ends);
            }
        }
        assert!(!watch.progress());
    }
}
