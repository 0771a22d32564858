//! The link: protocol state, the lane under it, and the operations of callers.
//!
//! Whoever holds the link's lock calls [`Link::advance`]: commands go into the protocol core,
//! what it wants sent goes to the lane, what the lane brings goes into the core, and what the
//! core reports completes operations.

use std::time::Instant;

use backhaul_proto::{Connection, ConnectionStatistics, Event, FrameDecoder, Limits, Store};
use backhaul_shm::pool::Pool;
use slab::Slab;

use super::ending::LinkError;
use super::incoming::Incoming;
use super::operations::{Posting, RecvOperation, SendOperation};
use super::outgoing::Outgoing;
use super::{Command, Conn};
use crate::courier::Courier;
use crate::error::{CloseReason, RecvError};
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
    pub(super) posting: Posting,
    /// The last look in the middle of a long message found the socket not ready
    ///
    /// To ask again at once would keep the kernel from moving it on: both need the socket's lock.
    pub(super) is_stalled: bool,
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
            posting: Posting::None,
            is_stalled: false,
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
        self.is_stalled =
            outcome.midway && !outcome.moved && matches!(self.lane, Some(Lane::Tcp(_)));
        self.finish_close(conn, wakes);
        outcome
    }

    /// Whether nothing can be moved until the peer has done something
    #[inline]
    pub(super) fn is_at_rest(&self) -> bool {
        self.outgoing.is_empty()
            && !self.incoming.is_midway()
            && self.lane.as_ref().is_some_and(|lane| !lane.may_have_news())
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
            let is_drained = self.is_drained();
            let Some(lane) = &mut self.lane else {
                return Ok(());
            };
            if moved_bytes >= SLICE_BYTES {
                outcome.more = true;
                return Ok(());
            }
            if written > 0 || (read > 0 && !is_drained) {
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
                bytes,
                shared,
                completer,
                started,
            } => {
                conn.counters.queued_bytes.bump(bytes);
                if completer.is_some() {
                    // From the inbox. Counted twice for a moment, rather than not at all.
                    conn.counters.posted_bytes.sub(bytes);
                }
                let send = SendOperation {
                    operation,
                    bytes,
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
                self.handle_recv(conn, operation, selector, target, started, wakes);
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
                        conn.engine.schedule(conn.id, now + conn.linger);
                    }
                }
            }
            Command::Abort => self.fail(conn, CloseReason::Local, wakes),
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
                    // What a receive meets after the end never comes.
                    if store != Store::Discard && self.lane.is_some() {
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

/// Bytes moved under the lock before others may have it
const SLICE_BYTES: usize = 1 << 20;
