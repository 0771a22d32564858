//! The lane over active messages of UCX; the first socket is the sentinel.
//!
//! A write becomes short messages, each with a number, as several devices may bring them out of order.
//! A side sends at most a window of bytes ahead of what the other says it has read.

use std::cell::Cell;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use backhaul_proto::LaneKind;
use backhaul_ucx::endpoint::ShortMessage;

use super::{FAREWELL_PATIENCE, Farewell, Lane, LaneError, LaneTraits, Moved};
use crate::ucx::{Kind, UcxEnd, WINDOW_BYTES, header};

/// One end of a lane over UCX
pub(crate) struct UcxLane {
    end: Arc<UcxEnd>,
    /// Pieces sent
    pieces: u64,
    sent_bytes: u64,
    taken_bytes: u64,
    /// Value of `taken_bytes` that the peer has been sent
    told_bytes: u64,
    /// Pieces that UCX has taken, and that have not left
    waiting: Arc<AtomicU32>,
    /// Bytes of a piece that UCX has, and that [`write`](Lane::write) has not counted: it is complete
    /// only when it has left, as it is lost if this process dies before
    uncounted_bytes: usize,
    on_left: Arc<dyn Fn() + Send + Sync>,
    /// Something has left: before, UCX may still be connecting
    is_connected: bool,
    /// `check_room` has promised that the next write is taken whole
    is_promised: bool,
    /// A message to be used again
    spare: Option<Box<ShortMessage>>,
    /// A caller polls
    is_awake: bool,
    /// The worker has moved something since that was asked
    has_moved: Cell<bool>,
    /// Why nothing more can be sent
    failure: Option<String>,
    /// The sentinel has ended, and the peer sent so many pieces
    pieces_max: Option<u64>,
    /// When it has ended
    ended_at: Option<Instant>,
}

impl UcxLane {
    pub(crate) fn new(end: Arc<UcxEnd>) -> Self {
        end.hub.add_lane();
        let waiting = Arc::new(AtomicU32::new(0));
        let told = (Arc::clone(&waiting), Arc::clone(&end.inbox));
        let on_left = move || {
            // Pairs with the load of `is_waiting`.
            told.0.fetch_sub(1, Ordering::Release);
            told.1.notify();
        };
        Self {
            end,
            waiting,
            uncounted_bytes: 0,
            on_left: Arc::new(on_left),
            is_connected: false,
            is_promised: false,
            pieces: 0,
            sent_bytes: 0,
            taken_bytes: 0,
            told_bytes: 0,
            spare: None,
            is_awake: false,
            has_moved: Cell::new(false),
            failure: None,
            pieces_max: None,
            ended_at: None,
        }
    }

    fn room(&self) -> u64 {
        // A peer may send any number.
        let waiting = self.sent_bytes.saturating_sub(self.end.inbox.taken_bytes());
        WINDOW_BYTES.saturating_sub(waiting)
    }

    /// Makes the worker progress
    #[inline]
    fn progress(&self) {
        if self.end.hub.progress() {
            self.has_moved.set(true);
        }
    }

    /// Returns whether UCX has something that has not left
    fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Sends one piece, returning whether it has left
    fn send(&mut self, piece: Box<ShortMessage>) -> bool {
        self.sent_bytes += piece.bytes.len() as u64;
        self.pieces += 1;
        // Before: it may leave while this is called.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        match self.end.peer.endpoint().send_short(piece) {
            Ok(None) => return false,
            Ok(spare) => self.spare = spare,
            Err(error) => self.failure = Some(error.to_string()),
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        true
    }

    /// A message with room for a piece, and its header
    fn message(&mut self) -> Box<ShortMessage> {
        let mut message = self.spare.take().unwrap_or_default();
        message.bytes.clear();
        message
            .on_left
            .get_or_insert_with(|| Arc::clone(&self.on_left));
        let key = self.end.their_key;
        message.header = header(key, Kind::Bytes, self.pieces, self.taken_bytes);
        self.told_bytes = self.taken_bytes;
        message
    }

    /// Says how much has been read, when that is a good part of the window
    fn tell_taken(&mut self) {
        if self.taken_bytes - self.told_bytes >= WINDOW_BYTES / 4 {
            self.told_bytes = self.taken_bytes;
            let header = header(self.end.their_key, Kind::Taken, 0, self.taken_bytes);
            self.end.peer.tell(header);
        }
    }

    /// Returns the meaning of a read without bytes
    fn nothing(&self) -> Result<Moved, LaneError> {
        let failure = self.failure.clone().or_else(|| self.end.inbox.failure());
        if let (Some(pieces_max), Some(ended_at)) = (self.pieces_max, self.ended_at) {
            let is_here = self.end.inbox.pieces() >= pieces_max;
            // Bytes that the peer has seen have left, which the next write reports.
            let is_told = self.uncounted_bytes == 0;
            let is_over = ended_at.elapsed() >= MISSING_MAX;
            if failure.is_some() || is_over || (is_here && is_told) {
                return Ok(Moved::End);
            }
            return Ok(Moved::Blocked);
        }
        match failure {
            Some(detail) => Err(LaneError::Ucx { detail }),
            None => Ok(Moved::Blocked),
        }
    }
}

impl Lane for UcxLane {
    fn kind(&self) -> LaneKind {
        LaneKind::Ucx
    }

    fn traits(&self) -> LaneTraits {
        LaneTraits {
            has_doorbell: true,
            looks_are_free: true,
            waits_awake: true,
            // The sentinel finds out: see `establish`.
            is_local: true,
        }
    }

    fn read(&mut self, buffers: &mut [IoSliceMut<'_>]) -> Result<Moved, LaneError> {
        // Before the worker moves: what it brings beside the lane is to be looked for after this.
        self.end.inbox.begin_look();
        let mut read = self.end.inbox.read(buffers);
        if read == 0 {
            self.progress();
            read = self.end.inbox.read(buffers);
        }
        if read == 0 {
            return self.nothing();
        }
        self.taken_bytes += read as u64;
        self.tell_taken();
        Ok(Moved::Bytes(read))
    }

    fn write(&mut self, buffers: &[IoSlice<'_>]) -> Result<Moved, LaneError> {
        if let Some(detail) = self.failure.clone() {
            return Err(LaneError::Ucx { detail });
        }
        if self.is_waiting() || self.room() == 0 {
            self.progress();
            if self.is_waiting() {
                return Ok(Moved::Blocked);
            }
        }
        if self.uncounted_bytes > 0 {
            // The same bytes are offered again: they have left.
            self.is_connected = true;
            return Ok(Moved::Bytes(std::mem::take(&mut self.uncounted_bytes)));
        }
        let is_promised = std::mem::take(&mut self.is_promised);
        let mut room = usize::try_from(self.room()).unwrap_or(usize::MAX);
        let mut parts = buffers.iter().map(|buffer| &buffer[..]);
        let mut rest: &[u8] = &[];
        let mut total = 0;
        while room > 0 && self.failure.is_none() {
            let mut piece = self.message();
            while piece.bytes.len() < PIECE_BYTES.min(room) {
                if rest.is_empty() {
                    match parts.next() {
                        Some(part) => rest = part,
                        None => break,
                    }
                }
                let bytes = rest.len().min(PIECE_BYTES.min(room) - piece.bytes.len());
                piece.bytes.extend_from_slice(&rest[..bytes]);
                rest = &rest[bytes..];
            }
            let bytes = piece.bytes.len();
            if bytes == 0 {
                self.spare = Some(piece);
                break;
            }
            room -= bytes;
            if !self.send(piece) && !is_promised {
                self.uncounted_bytes = bytes;
                break;
            }
            total += bytes;
        }
        // The next call reports a failure: bytes that `check_room` has promised are taken.
        Ok(if total == 0 {
            Moved::Blocked
        } else {
            self.is_connected = true;
            Moved::Bytes(total)
        })
    }

    fn check_room(&mut self, bytes: usize) -> bool {
        self.is_promised = self.is_connected
            && self.uncounted_bytes == 0
            && !self.is_waiting()
            && self.failure.is_none()
            && self.room() >= bytes as u64;
        self.is_promised
    }

    #[inline]
    fn look_for_news(&self) -> bool {
        self.end.inbox.has_news() || {
            self.progress();
            self.end.inbox.has_news()
        }
    }

    fn take_moved_else(&self) -> bool {
        self.has_moved.take()
    }

    fn is_drained(&self) -> bool {
        !self.end.inbox.has_news() && self.failure.is_none()
    }

    fn arm_read(&mut self) -> Result<bool, LaneError> {
        if !self.end.inbox.arm() {
            return Ok(false);
        }
        if std::mem::take(&mut self.is_awake) {
            self.end.hub.put_lane_to_sleep();
        }
        self.end.hub.arm();
        // Arming makes progress: what that has brought has rung, but need not wait for it.
        Ok(!self.end.inbox.has_news())
    }

    fn arm_write(&mut self) -> Result<bool, LaneError> {
        // Armed first: what leaves, or is read, after the look rings.
        self.end.inbox.arm();
        Ok(self.failure.is_none() && (self.is_waiting() || self.room() == 0))
    }

    fn disarm_read(&mut self) {
        self.end.inbox.disarm();
        if !std::mem::replace(&mut self.is_awake, true) {
            self.end.hub.wake_lane();
        }
    }

    fn farewell(&mut self) -> Option<Farewell> {
        // Bytes that have not left will, as the worker goes on; without a farewell this side would
        // count as dead.
        let is_whole = self.failure.is_none() && self.end.inbox.failure().is_none();
        is_whole.then(|| self.pieces.to_le_bytes())
    }

    fn handle_sentinel_end(&mut self, farewell: Option<Farewell>) -> bool {
        self.pieces_max = Some(farewell.map_or(0, u64::from_le_bytes));
        self.ended_at = Some(Instant::now());
        if farewell.is_none() {
            // A process that ends a connection sends a farewell: this one has ended without one.
            // Bytes that it has sent before may still be in the system.
            let mut idle = 0;
            while idle < IDLE_LOOKS {
                idle = if self.end.hub.progress() { 0 } else { idle + 1 };
            }
            let why = "the process at the other end has died";
            self.end.hub.kill(&self.end.peer, why);
        }
        true
    }
}

impl Drop for UcxLane {
    fn drop(&mut self) {
        self.end.hub.remove_lane(&self.end.peer, self.is_awake);
    }
}

/// Longest piece: a few of the segments that transports send at once
const PIECE_BYTES: usize = 32 << 10;

/// How long what a peer has sent may take to come after its end: some transports lose it without a
/// word if its worker has gone too
const MISSING_MAX: Duration = FAREWELL_PATIENCE;

/// Looks in vain after which nothing of a dead peer is in the system any more
const IDLE_LOOKS: u32 = 64;
