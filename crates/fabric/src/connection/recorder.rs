//! Record of a connection's last events, to find why something waits: a ring of events that costs a
//! few nanoseconds each, and is read when it is needed.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Something that happened on a connection, some time ago
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ConnectionEvent {
    /// How long ago, to some milliseconds
    pub age: Duration,
    /// Kind of the event
    pub kind: EventKind,
}

/// Event on a connection besides bytes that move
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
#[repr(u8)]
pub enum EventKind {
    /// The connection was made
    Started,
    /// The engine was woken by the doorbell
    DoorbellRang,
    /// The engine was woken by the first socket
    SocketReady,
    /// The engine was woken, and left the connection to a caller that polls it
    LeftToCaller,
    /// An event loop was woken by the doorbell
    LoopWoken,
    /// A thread that slept on it was woken
    ThreadWoken,
    /// A caller left the engine something to do
    EngineCalled,
    /// The engine has moved what there was, and waits to be woken
    EngineDone,
    /// A caller waits, and polls: arriving data wakes no thread
    PollBegun,
    /// It found what it waited for
    PollHit,
    /// It did not, and sleeps: news wake the engine
    PollMissed,
    /// The callers that polled have gone quiet: news wake the engine
    PollersGone,
    /// An event loop watches the doorbell from now on
    LoopJoined,
    /// The engine watches the doorbell again
    LoopLeft,
    /// A command was left to the holder of the connection
    CommandLeft,
    /// A deadline passed
    DeadlinePassed,
    /// The inspection found something that no thread had looked at for seconds
    Overlooked,
    /// The peer has ended
    PeerEnded,
    /// The connection has ended
    Ended,
}

/// The last events of one connection; any thread may add one
///
/// An event is one word, so that none is read half; events that are written during a read may be
/// missing.
#[derive(Debug)]
pub(super) struct Recorder {
    /// When the connection was made, by the same clock as the events
    started_ms: u64,
    words: [AtomicU64; EVENTS],
    count: AtomicU64,
}

impl Recorder {
    pub(super) fn new() -> Self {
        let recorder = Self {
            started_ms: now_ms(),
            words: [const { AtomicU64::new(0) }; EVENTS],
            count: AtomicU64::new(0),
        };
        recorder.note(EventKind::Started);
        recorder
    }

    /// Adds an event, over the oldest one
    pub(super) fn note(&self, kind: EventKind) {
        // A report, which orders nothing: `Relaxed` throughout.
        let place = self.count.fetch_add(1, Ordering::Relaxed) as usize % EVENTS;
        let age_ms = now_ms() - self.started_ms;
        self.words[place].store(age_ms << KIND_BITS | (kind as u64 + 1), Ordering::Relaxed);
    }

    /// The events that are kept, the oldest first
    pub(super) fn recent(&self) -> Vec<ConnectionEvent> {
        let now_ms = now_ms() - self.started_ms;
        let count = self.count.load(Ordering::Relaxed) as usize;
        let kept = count.min(EVENTS);
        let words = (count - kept..count).map(|index| &self.words[index % EVENTS]);
        let events = words.filter_map(|word| {
            let word = word.load(Ordering::Relaxed);
            let kind = (word & ((1 << KIND_BITS) - 1)).checked_sub(1)?;
            let kind = *KINDS.get(usize::try_from(kind).ok()?)?;
            let age = Duration::from_millis(now_ms.saturating_sub(word >> KIND_BITS));
            Some(ConnectionEvent { age, kind })
        });
        events.collect()
    }
}

impl EventKind {
    /// In a few words
    #[must_use]
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Started => "connected",
            Self::DoorbellRang => "doorbell rang",
            Self::SocketReady => "socket ready",
            Self::LeftToCaller => "left to a caller that polls",
            Self::LoopWoken => "event loop woken",
            Self::ThreadWoken => "thread woken",
            Self::EngineCalled => "engine called",
            Self::EngineDone => "engine done",
            Self::PollBegun => "poll begun",
            Self::PollHit => "poll hit",
            Self::PollMissed => "poll missed",
            Self::PollersGone => "pollers gone",
            Self::LoopJoined => "event loop joined",
            Self::LoopLeft => "event loop left",
            Self::CommandLeft => "command left",
            Self::DeadlinePassed => "deadline passed",
            Self::Overlooked => "overlooked",
            Self::PeerEnded => "peer ended",
            Self::Ended => "ended",
        }
    }
}

impl fmt::Display for ConnectionEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.3} s ago: {}",
            self.age.as_secs_f64(),
            self.kind.in_words()
        )
    }
}

/// Events in one line, the oldest first
pub(super) fn in_one_line(events: &[ConnectionEvent]) -> String {
    let events: Vec<_> = events.iter().map(ToString::to_string).collect();
    events.join("; ")
}

/// The clock of the last timer interrupt: a few milliseconds are enough, and it costs a quarter
fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    // It counts from the start of the system, and never back.
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    let nanos = u64::try_from(now.tv_nsec).unwrap_or_default();
    seconds * 1000 + nanos / 1_000_000
}

/// Events that are kept: what a request and its answer take, a few times over
const EVENTS: usize = 64;

/// Of a word, for the kind; the others hold milliseconds
const KIND_BITS: u32 = 8;

/// By their numbers
const KINDS: [EventKind; 19] = [
    EventKind::Started,
    EventKind::DoorbellRang,
    EventKind::SocketReady,
    EventKind::LeftToCaller,
    EventKind::LoopWoken,
    EventKind::ThreadWoken,
    EventKind::EngineCalled,
    EventKind::EngineDone,
    EventKind::PollBegun,
    EventKind::PollHit,
    EventKind::PollMissed,
    EventKind::PollersGone,
    EventKind::LoopJoined,
    EventKind::LoopLeft,
    EventKind::CommandLeft,
    EventKind::DeadlinePassed,
    EventKind::Overlooked,
    EventKind::PeerEnded,
    EventKind::Ended,
];

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_number() {
        for (number, kind) in KINDS.iter().enumerate() {
            assert_eq!(*kind as usize, number);
        }
    }

    #[test]
    fn the_last_events_are_kept_in_order() {
        let recorder = Recorder::new();
        assert_eq!(recorder.recent().len(), 1);
        for _ in 0..EVENTS {
            recorder.note(EventKind::PollBegun);
            recorder.note(EventKind::PollHit);
        }
        let recent = recorder.recent();
        let kinds: Vec<_> = recent.iter().map(|event| event.kind).collect();
        let pair = [EventKind::PollBegun, EventKind::PollHit];
        assert_eq!(kinds, pair.repeat(EVENTS / 2));
        assert!(recent.is_sorted_by(|one, next| one.age >= next.age));
        let line = in_one_line(&recent);
        assert!(line.ends_with("s ago: poll hit"), "{line}");
    }
}
