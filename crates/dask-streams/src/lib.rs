//! The streams of a scheduler whose state is in the core, handled where their bytes come in.
//!
//! Between the two that know nothing of each other: the fabric hands over the frames of messages on
//! the engine's thread, and takes frames; `backhaul_dask::hot` says what they mean. Everything that
//! is not hot goes on to the reader of the connection, in order.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use backhaul::{Bytes, CloseReason, FrameStream, Frames, PoolBuf, Request, Segments, SendError};
use backhaul_dask::hot::{self, HotCore, HotCounts, HotNotes, HotSettings, PeerId, PeerKind};

/// The streams of one scheduler
///
/// Lock order: the core, then `ends`. The engine waits for the core as long as another thread's
/// call takes; a caller of [`Streams::stop`] must not hold the core.
pub struct Streams {
    core: Arc<Mutex<HotCore>>,
    /// None for those that have been removed
    ends: Mutex<Vec<Option<End>>>,
}

/// Our end of the stream of a peer
struct End {
    frames: Frames,
    /// Sends that are not over, the oldest first
    unfinished: VecDeque<Request<(), SendError>>,
}

/// The stream of one peer, as the fabric calls it
struct PeerStream {
    streams: Arc<Streams>,
    peer: PeerId,
}

/// Work that remains when streams are no longer handled
#[derive(Debug, Default)]
pub struct Stopped {
    /// Messages that wait for messages of the event loop
    pub held: Vec<(PeerId, Vec<hot::Frames>)>,
    /// Work for the event loop
    pub notes: HotNotes,
    /// How much was handled
    pub counts: HotCounts,
    /// Expectations that were learned of prefixes: seconds and bytes
    pub expectations: Vec<(String, f64, f64)>,
    /// How many tasks of groups have finished
    pub confirmed: Vec<(String, u64)>,
}

impl Streams {
    /// Begins to handle streams, of which there are none yet
    pub fn begin(core: Arc<Mutex<HotCore>>, settings: HotSettings) -> Arc<Self> {
        lock(&core).begin(settings);
        Arc::new(Self {
            core,
            ends: Mutex::default(),
        })
    }

    /// Takes in a peer, whose messages the event loop reads until [`Streams::tap`]
    pub fn add(&self, kind: PeerKind, name: &str, frames: Frames) -> PeerId {
        let mut core = lock(&self.core);
        let peer = core.add_peer(kind, name);
        lock(&self.ends).push(Some(End {
            frames,
            unfinished: VecDeque::new(),
        }));
        peer
    }

    /// Handles the messages of a peer from when its reader has caught up
    ///
    /// # Errors
    ///
    /// As [`Frames::tap`], which also says what is returned.
    pub fn tap(self: &Arc<Self>, peer: PeerId) -> Result<usize, CloseReason> {
        let stream = Arc::new(PeerStream {
            streams: Arc::clone(self),
            peer,
        });
        let frames = self.frames(peer).ok_or(CloseReason::Local)?;
        frames.tap(stream)
    }

    /// Handles the messages of a peer no more; what has gathered for it leaves first
    ///
    /// When this returns, all that it says goes to its reader. The number is not used again.
    /// Returns the messages that wait for messages of the event loop, which must send them after
    /// those.
    pub fn remove(&self, peer: PeerId) -> Vec<hot::Frames> {
        let mut held = Vec::new();
        {
            let mut core = lock(&self.core);
            let batches = core.take_outgoing(peer);
            if core.is_held(peer) {
                held = batches;
            } else {
                self.send(peer, batches);
            }
            core.remove_peer(peer);
        }
        let end = lock(&self.ends)[peer.0].take();
        // The engine may be about to handle a message, and waits for the core then.
        if let Some(end) = end {
            end.leave();
        }
        held
    }

    /// Hears that the reader of a peer has handled so many messages, as [`Frames::caught_up`]
    pub fn caught_up(&self, peer: PeerId, handled: u64) {
        if let Some(frames) = self.frames(peer) {
            frames.caught_up(handled);
        }
    }

    /// Has messages for a peer wait for those that the event loop is about to send, or no longer
    ///
    /// Messages that were gathered before leave first.
    pub fn hold(&self, peer: PeerId, hold: bool) {
        let mut core = lock(&self.core);
        if hold {
            let batches = core.take_outgoing(peer);
            self.send(peer, batches);
            core.hold(peer, true);
        } else {
            core.hold(peer, false);
            self.send_ready(&mut core);
        }
    }

    /// Sends the messages of the core, and returns whether there is work for the event loop
    pub fn flush(&self) -> bool {
        let mut core = lock(&self.core);
        core.collect(now_s());
        self.send_ready(&mut core);
        core.has_notes()
    }

    /// The core, for a moment
    pub fn core(&self) -> MutexGuard<'_, HotCore> {
        lock(&self.core)
    }

    /// Ends it: when this returns, the engine handles no message any more
    pub fn stop(&self) -> Stopped {
        let stopped = self.end();
        let ends = std::mem::take(&mut *lock(&self.ends));
        for end in ends.into_iter().flatten() {
            end.leave();
        }
        stopped
    }

    fn end(&self) -> Stopped {
        let mut core = lock(&self.core);
        guarded(&mut core, (), |core| core.collect(now_s()));
        let mut stopped = Stopped::default();
        // Not in the head of the loop, where it would be locked as long as that goes on
        let count = lock(&self.ends).len();
        for place in 0..count {
            let peer = PeerId(place);
            let batches = core.take_outgoing(peer);
            if batches.is_empty() {
                continue;
            }
            if core.is_held(peer) {
                stopped.held.push((peer, batches));
            } else {
                self.send(peer, batches);
            }
        }
        if let Some((window, _)) = core.window() {
            stopped.expectations = window
                .expectations()
                .map(|(prefix, one)| (prefix.to_owned(), one.seconds, one.nbytes))
                .collect();
            let confirmed = window.confirmed();
            stopped.confirmed = confirmed
                .map(|(group, tasks)| (group.to_owned(), tasks))
                .collect();
        }
        stopped.notes = core.take_notes();
        stopped.counts = core.counts();
        core.end();
        stopped
    }

    fn frames(&self, peer: PeerId) -> Option<Frames> {
        let ends = lock(&self.ends);
        let end = ends.get(peer.0)?.as_ref();
        end.map(|end| end.frames.clone())
    }

    /// Sends what may be sent to peers that take it
    fn send_ready(&self, core: &mut HotCore) {
        let mut from = 0;
        while let Some(peer) = core.next_outgoing(from) {
            from = peer.0 + 1;
            if self.settle_sends(peer) >= UNFINISHED_MAX {
                // It gathers, and leaves with the next batch, or when a program reads the state.
                continue;
            }
            let batches = core.take_outgoing(peer);
            self.send(peer, batches);
        }
    }

    /// Forgets the sends to a peer that are over, returning how many are not
    fn settle_sends(&self, peer: PeerId) -> usize {
        let mut ends = lock(&self.ends);
        let Some(end) = &mut ends[peer.0] else {
            return 0;
        };
        let unfinished = &mut end.unfinished;
        while unfinished.front().is_some_and(Request::is_done) {
            unfinished.pop_front();
        }
        unfinished.len()
    }

    fn send(&self, peer: PeerId, batches: Vec<hot::Frames>) {
        let mut ends = lock(&self.ends);
        let Some(end) = &mut ends[peer.0] else {
            return;
        };
        for batch in batches {
            let segments = Segments::from_iter(batch.into_iter().map(Bytes::from));
            // A failed send has ended its connection, which the reader of the connection finds out.
            let request = end.frames.send(segments);
            if !request.is_done() {
                end.unfinished.push_back(request);
            }
        }
    }
}

impl End {
    /// Has the reader of the connection have all messages again
    fn leave(self) {
        self.frames.untap();
        for request in self.unfinished {
            request.detach();
        }
    }
}

impl FrameStream for PeerStream {
    fn handle(&self, segments: &[PoolBuf]) -> bool {
        let [header] = segments else {
            return false;
        };
        let mut core = lock(&self.streams.core);
        guarded(&mut core, false, |core| {
            core.handle(self.peer, header, now_s())
        })
    }

    fn handled_all(&self) -> bool {
        let mut core = lock(&self.streams.core);
        guarded(&mut core, false, |core| {
            self.streams.send_ready(core);
            core.expects_more()
        })
    }
}

/// Does something with the core; a panic in it is noted as a failure, upon which nothing is handled
/// any more
fn guarded<T>(core: &mut HotCore, failed: T, act: impl FnOnce(&mut HotCore) -> T) -> T {
    let acted = catch_unwind(AssertUnwindSafe(|| act(core)));
    acted.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        let text = text.unwrap_or("a panic");
        tracing::error!(panic = text, "the scheduler's core failed: a defect");
        core.fail(text);
        failed
    })
}

impl std::fmt::Debug for Streams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Streams").finish_non_exhaustive()
    }
}

/// Locks a mutex whose data is as good as it was even if a holder panicked
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The time as Python's `time.time` has it
fn now_s() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}

/// Messages that a peer has yet to take, from which on more gather
const UNFINISHED_MAX: usize = 32;

#[cfg(test)]
mod tests;
