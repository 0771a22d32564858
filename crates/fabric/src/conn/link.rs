//! The link: protocol state, the lane under it, and the operations of callers.
//!
//! Whoever holds the link's lock calls [`Link::advance`]: commands go into the protocol core,
//! what it wants sent goes to the lane, what the lane brings goes into the core, and what the
//! core reports completes operations.

use std::time::Instant;

use backhaul_proto::{
    Capacity, Connection, ConnectionStatistics, Event, FrameDecoder, Limits, MessageKind, RecvId,
    SendId, Span, Store,
};
use backhaul_shm::pool::Pool;
use slab::Slab;

use super::ending::LinkError;
use super::incoming::{Incoming, NoMemory};
use super::outgoing::Outgoing;
use super::{Command, Conn, Target};
use crate::buffer::{Message, PoolBuf, Received, Segments};
use crate::courier::Courier;
use crate::error::{CloseReason, RecvError, SendError};
use crate::flow::Inflow;
use crate::lane::Lane;
use crate::request::{Completer, Wakes};

/// Protocol state, lane and operations of one connection
pub(crate) struct Link {
    pub(super) proto: Connection,
    pub(super) limits: Limits,
    pub(super) decoder: FrameDecoder,
    /// `None` once the link has ended
    pub(super) lane: Option<Lane>,
    pub(super) incoming: Incoming,
    pub(super) inflow: Inflow,
    pub(super) outgoing: Outgoing,
    pub(super) sends: Slab<SendOperation>,
    pub(super) recvs: Slab<RecvOperation>,
    pub(super) memory: MessageMemory,
    pub(super) closers: Vec<Completer<(), CloseReason>>,
    /// When a graceful close gives up
    pub(super) linger_until: Option<Instant>,
    /// Reused between calls
    commands: Vec<Command>,
    started: Instant,
}

/// Where memory for messages comes from, and how that of the peer is reached
pub(crate) struct MessageMemory {
    pub(crate) pool: Pool,
    /// On a lane within the host, until the link has ended
    pub(crate) courier: Option<Courier>,
    /// Shorter segments are not lent
    pub(crate) lease_bytes_min: usize,
    /// Pages of borrowed memory are mapped at once
    pub(crate) populate_leases: bool,
}

/// A send that is not complete
pub(super) struct SendOperation {
    operation: u64,
    pub(super) segments: Segments,
    bytes: u64,
    completer: Completer<(), SendError>,
    started: Option<Instant>,
}

/// A receive that is not complete
pub(super) struct RecvOperation {
    operation: u64,
    pub(super) target: Target,
    started: Option<Instant>,
}

/// What a call of [`Link::advance`] is for
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    /// Take what has arrived
    read: bool,
    /// Ask for the bell before leaving
    arm_read: bool,
    /// Ask for the bell if the lane is full
    arm_write: bool,
    /// Mute the bell
    mute: bool,
    /// Wait for the link rather than leave it to whoever holds it
    pub(super) waits: bool,
}

/// What a call of [`Link::advance`] came to
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    /// Bytes moved
    pub(super) moved: bool,
    /// There is more to move right now
    pub(super) more: bool,
    /// A message is half sent or half received
    pub(super) midway: bool,
}

impl Work {
    /// A caller posted something
    pub(super) const SUBMIT: Self = Self {
        read: false,
        arm_read: false,
        arm_write: true,
        mute: false,
        waits: false,
    };
    /// A caller polls
    pub(super) const POLL: Self = Self {
        read: true,
        arm_read: false,
        arm_write: false,
        mute: false,
        waits: false,
    };
    /// A caller looks once and leaves
    pub(super) const STEP: Self = Self {
        read: true,
        ..Self::SUBMIT
    };
    /// A caller begins to poll
    pub(super) const MUTE: Self = Self {
        mute: true,
        ..Self::POLL
    };
    /// The engine moves data
    pub(super) const DRIVE: Self = Self {
        waits: true,
        ..Self::POLL
    };
    /// The link goes back to the engine
    pub(super) const ARM: Self = Self {
        arm_read: true,
        arm_write: true,
        ..Self::DRIVE
    };
}

impl Link {
    /// A link over a lane, with the bytes that came behind the handshake
    pub(crate) fn new(
        proto: Connection,
        limits: Limits,
        lane: Lane,
        staged: &[u8],
        memory: MessageMemory,
        inflow: Inflow,
    ) -> Self {
        Self {
            proto,
            limits,
            decoder: FrameDecoder::default(),
            lane: Some(lane),
            incoming: Incoming::new(staged),
            inflow,
            outgoing: Outgoing::default(),
            sends: Slab::new(),
            recvs: Slab::new(),
            memory,
            closers: Vec::new(),
            linger_until: None,
            commands: Vec::new(),
            started: Instant::now(),
        }
    }

    /// Moves what can be moved, up to one slice
    ///
    /// `command` comes after those in the inbox.
    pub(super) fn advance(
        &mut self,
        conn: &Conn,
        command: Option<Command>,
        work: Work,
        wakes: &mut Wakes,
    ) -> Outcome {
        self.take_commands(conn, wakes);
        if let Some(command) = command {
            self.handle_command(conn, command, wakes);
        }
        let mut outcome = Outcome::default();
        if self.lane.is_none() {
            return outcome;
        }
        if let Err(error) = self.pump(conn, work, &mut outcome, wakes) {
            if matches!(error, LinkError::Lane(_)) {
                // A write fails when the peer has ended; what it sent before may still be here.
                while matches!(self.read_some(conn, wakes), Ok(1..)) {}
            }
            let is_said = self.is_flushed() || self.proto.peer_closed();
            self.fail(conn, error.into_reason(conn, is_said), wakes);
            return outcome;
        }
        outcome.midway = self.incoming.is_midway() || self.outgoing.is_midway();
        self.finish_close(conn, wakes);
        outcome
    }

    fn pump(
        &mut self,
        conn: &Conn,
        work: Work,
        outcome: &mut Outcome,
        wakes: &mut Wakes,
    ) -> Result<(), LinkError> {
        if work.mute
            && let Some(lane) = &mut self.lane
        {
            lane.disarm_read();
        }
        let mut moved_bytes = 0;
        loop {
            let read = if work.read {
                self.read_some(conn, wakes)?
            } else {
                0
            };
            let written = self.write_some(conn, wakes)?;
            moved_bytes += read + written;
            outcome.moved |= read + written > 0;
            let Some(lane) = &mut self.lane else {
                return Ok(());
            };
            if moved_bytes >= SLICE_BYTES {
                outcome.more = true;
                return Ok(());
            }
            if written > 0 || (read > 0 && !lane.is_drained()) {
                continue;
            }
            let blocked = !self.outgoing.is_empty();
            if work.arm_write {
                conn.interest.set(&conn.engine, None, Some(blocked));
                if blocked && !lane.arm_write()? {
                    continue;
                }
            }
            if work.arm_read {
                conn.interest.set(&conn.engine, Some(true), None);
                if !lane.arm_read()? {
                    continue;
                }
            }
            return Ok(());
        }
    }

    /// What time it is, where that matters: without a keep-alive nothing hangs on it
    pub(super) fn now(&self) -> Instant {
        if self.limits.keep_alive.is_some() {
            Instant::now()
        } else {
            self.started
        }
    }

    fn take_commands(&mut self, conn: &Conn, wakes: &mut Wakes) {
        let mut commands = std::mem::take(&mut self.commands);
        conn.take_commands(&mut commands);
        for command in commands.drain(..) {
            self.handle_command(conn, command, wakes);
        }
        self.commands = commands;
    }

    fn handle_command(&mut self, conn: &Conn, command: Command, wakes: &mut Wakes) {
        match command {
            Command::Send {
                operation,
                kind,
                segments,
                shared,
                completer,
                started,
            } => {
                let send = SendOperation {
                    operation,
                    bytes: segments.iter().map(|segment| segment.len() as u64).sum(),
                    segments,
                    completer,
                    started,
                };
                self.post_send(conn, kind, send, shared, wakes);
            }
            Command::Recv {
                operation,
                selector,
                target,
                started,
            } => {
                let id = self.recvs.insert(RecvOperation {
                    operation,
                    target,
                    started,
                });
                let capacity = self.recvs[id].target.capacity();
                match self.proto.post_recv(RecvId(id), selector, capacity) {
                    Err(backhaul_proto::RecvRefused::Closed) => {
                        let reason = self.close_reason(conn);
                        self.fail_recv(id, reason.into(), wakes);
                    }
                    Err(refused) => self.fail_recv(id, refused.into(), wakes),
                    Ok(()) => self.handle_events(conn, wakes),
                }
                // After the end, only what arrived before it can be received.
                if self.lane.is_none()
                    && self
                        .recvs
                        .get(id)
                        .is_some_and(|recv| recv.operation == operation)
                {
                    self.proto.cancel_recv(RecvId(id));
                    let reason = self.close_reason(conn);
                    self.fail_recv(id, reason.into(), wakes);
                }
            }
            Command::Cancel { operation } => self.cancel(conn, operation, wakes),
            Command::Close { completer } => {
                if self.lane.is_none() {
                    completer.complete(Ok(()), wakes);
                } else {
                    self.closers.push(completer);
                    if self.linger_until.is_none() {
                        let now = Instant::now();
                        self.proto.close(now);
                        self.linger_until = Some(now + conn.linger);
                        conn.engine.schedule(now + conn.linger);
                    }
                }
            }
            Command::Abort => self.fail(conn, CloseReason::Local, wakes),
        }
    }

    fn post_send(
        &mut self,
        conn: &Conn,
        kind: MessageKind,
        send: SendOperation,
        shared: bool,
        wakes: &mut Wakes,
    ) {
        if self.lane.is_none() || self.linger_until.is_some() {
            let reason = self.close_reason(conn);
            return send.finish(conn, Err(reason.into()), wakes);
        }
        let lengths: smallvec::SmallVec<[u64; 8]> = send
            .segments
            .iter()
            .map(|segment| segment.len() as u64)
            .collect();
        let lendable = if shared && self.memory.courier.is_some() {
            spans(&lengths, self.memory.lease_bytes_min)
        } else {
            smallvec::SmallVec::new()
        };
        let id = self.sends.insert(send);
        if let Err(refused) = self
            .proto
            .send_lendable(SendId(id), kind, &lengths, &lendable)
        {
            self.sends
                .remove(id)
                .finish(conn, Err(refused.into()), wakes);
        }
    }

    fn cancel(&mut self, conn: &Conn, operation: u64, wakes: &mut Wakes) {
        let send = self
            .sends
            .iter()
            .find(|(_, send)| send.operation == operation)
            .map(|(id, _)| id);
        if let Some(id) = send {
            if self.proto.cancel_send(SendId(id)) {
                self.sends
                    .remove(id)
                    .finish(conn, Err(SendError::Cancelled), wakes);
            }
            return;
        }
        let recv = self
            .recvs
            .iter()
            .find(|(_, recv)| recv.operation == operation)
            .map(|(id, _)| id);
        if let Some(id) = recv
            && self.proto.cancel_recv(RecvId(id))
        {
            self.fail_recv(id, RecvError::Cancelled, wakes);
        }
    }

    /// Completes what the protocol reports
    pub(super) fn handle_events(&mut self, conn: &Conn, wakes: &mut Wakes) {
        while let Some(event) = self.proto.poll_event() {
            match event {
                Event::Prepare {
                    arrival,
                    segment_bytes,
                    store,
                } => {
                    if store != Store::Discard {
                        self.inflow.begin(arrival, segment_bytes.iter().sum());
                    }
                    self.incoming
                        .prepare(arrival, segment_bytes, store, &self.recvs);
                }
                Event::RecvComplete {
                    recv,
                    arrival,
                    kind,
                    bytes,
                } => {
                    self.inflow.received(arrival, bytes);
                    let segments = self.incoming.take(arrival, &self.memory.pool);
                    self.complete_recv(conn, recv, kind, bytes, segments, wakes);
                }
                Event::RecvTruncated {
                    recv,
                    arrival,
                    message_bytes,
                    capacity_bytes,
                } => {
                    self.incoming.discard(arrival);
                    self.inflow.discard(arrival);
                    let error = RecvError::Truncated {
                        message_bytes,
                        capacity_bytes,
                    };
                    self.fail_recv(recv.0, error, wakes);
                }
                Event::SendComplete { send } => self.complete_send(conn, send, wakes),
                Event::RecvClosed { recv } => {
                    let reason = CloseReason::Peer {
                        peer: conn.facts.peer,
                    };
                    self.fail_recv(recv.0, reason.into(), wakes);
                }
                // A close of ours goes on until what was sent before it is out.
                Event::PeerClosed if self.linger_until.is_some() => {}
                Event::PeerClosed => {
                    let reason = CloseReason::Peer {
                        peer: conn.facts.peer,
                    };
                    self.fail(conn, reason, wakes);
                }
            }
        }
    }

    fn complete_recv(
        &mut self,
        conn: &Conn,
        recv: RecvId,
        kind: MessageKind,
        bytes: u64,
        segments: Result<Option<Vec<PoolBuf>>, NoMemory>,
        wakes: &mut Wakes,
    ) {
        let recv = self.recvs.remove(recv.0);
        conn.counters.received_messages.add(1);
        conn.counters.received_bytes.add(bytes);
        if let Some(started) = recv.started {
            conn.counters.recv_time_ns.add(nanos_since(started));
        }
        let tag = match kind {
            MessageKind::Tagged(tag) => Some(tag),
            MessageKind::Untagged => None,
        };
        let Ok(segments) = segments else {
            let error = RecvError::OutOfMemory {
                message_bytes: bytes,
            };
            return recv.target.fail(error, wakes);
        };
        match recv.target {
            Target::Allocate(completer) => {
                let segments = segments.unwrap_or_default();
                completer.complete(Ok(Message { tag, segments }), wakes);
            }
            Target::Into(mut buffer, completer) => {
                if let Some(segments) = segments {
                    let mut at = 0;
                    for segment in &segments {
                        buffer.as_mut_slice()[at..at + segment.len()].copy_from_slice(segment);
                        at += segment.len();
                    }
                }
                let received = Received {
                    tag: tag.unwrap_or(backhaul_proto::Tag(0)),
                    bytes: usize::try_from(bytes).expect("it fits the buffer"),
                    buffer,
                };
                completer.complete(Ok(received), wakes);
            }
        }
    }

    /// Completes a send whose last byte has left
    pub(super) fn complete_send(&mut self, conn: &Conn, send: SendId, wakes: &mut Wakes) {
        let send = self.sends.remove(send.0);
        conn.counters.sent_messages.add(1);
        conn.counters.sent_bytes.add(send.bytes);
        if let Some(started) = send.started {
            conn.counters.send_time_ns.add(nanos_since(started));
        }
        send.finish(conn, Ok(()), wakes);
    }

    pub(super) fn fail_recv(&mut self, id: usize, error: RecvError, wakes: &mut Wakes) {
        self.recvs.remove(id).target.fail(error, wakes);
    }

    /// When [`Link::handle_deadline`] is to be called
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        [self.linger_until, self.proto.poll_timeout()]
            .into_iter()
            .flatten()
            .min()
    }

    pub(super) fn statistics(&self) -> ConnectionStatistics {
        self.proto.statistics()
    }
}

impl SendOperation {
    pub(super) fn finish(self, conn: &Conn, result: Result<(), SendError>, wakes: &mut Wakes) {
        conn.counters.queued_bytes.sub(self.bytes);
        // First: who sees the send done may use the memory.
        drop(self.segments);
        self.completer.complete(result, wakes);
    }
}

impl Target {
    fn capacity(&mut self) -> Capacity {
        match self {
            Self::Into(buffer, _) => Capacity::Into(buffer.as_mut_slice().len() as u64),
            Self::Allocate(_) => Capacity::Allocate,
        }
    }

    fn fail(self, error: RecvError, wakes: &mut Wakes) {
        match self {
            Self::Into(buffer, completer) => {
                drop(buffer);
                completer.complete(Err(error), wakes);
            }
            Self::Allocate(completer) => completer.complete(Err(error), wakes),
        }
    }
}

/// The segments of at least `bytes_min` bytes, as parts of the message
fn spans(lengths: &[u64], bytes_min: usize) -> smallvec::SmallVec<[Span; 2]> {
    let mut offset = 0;
    let mut spans = smallvec::SmallVec::new();
    for &bytes in lengths {
        if bytes > 0 && bytes >= bytes_min as u64 {
            spans.push(Span { offset, bytes });
        }
        offset += bytes;
    }
    spans
}

fn nanos_since(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Bytes moved under the lock before others may have it
const SLICE_BYTES: usize = 1 << 20;
