//! What a connection tells its driver.

use smallvec::SmallVec;

use crate::decoder::SegmentBytes;
use crate::frame::FrameHeader;
use crate::ids::{ArrivalId, MessageKind, RecvId, SendId};

/// A header with its segment table as it goes on the wire; inline up to four segments
pub type HeaderBytes = SmallVec<[u8; 64]>;

/// One frame to write: the header, then the payload
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Transmit {
    /// Header and segment table
    pub header: HeaderBytes,
    /// Bytes of a message that follow the header
    pub payload: Option<PayloadRange>,
    /// The send that is done once this frame is written; the connection has forgotten it
    pub completes: Option<SendId>,
}

impl Transmit {
    /// A frame that is a header only
    pub(super) fn control(header: FrameHeader) -> Self {
        Self {
            header: HeaderBytes::from_slice(&header.encode()),
            payload: None,
            completes: None,
        }
    }
}

/// A part of a message that is being sent
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PayloadRange {
    /// The send
    pub send: SendId,
    /// Where the part begins, in bytes from the start of the first segment, across segments
    pub offset: u64,
    /// Its length, in bytes; never 0
    pub bytes: u64,
}

impl PayloadRange {
    /// A part of a message, unless it is empty
    pub(super) fn new(send: SendId, offset: u64, bytes: u64) -> Option<Self> {
        (bytes > 0).then_some(Self {
            send,
            offset,
            bytes,
        })
    }
}

/// A part of a message that lies in memory which the peer can map
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Span {
    /// Where the part begins, in bytes from the start of the first segment, across segments
    pub offset: u64,
    /// Its length, in bytes; never 0
    pub bytes: u64,
}

/// What became of a receive that was posted
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Posted {
    /// No message is here for it; there is nothing to poll on its account
    Waits,
    /// It has met its message: there are events, or frames, or both
    Met,
}

/// What follows a frame on the lane
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Incoming {
    /// The next frame
    Control,
    /// Bytes of a message: read them behind those that `arrival` has already, then call
    /// [`Connection::handle_payload`](crate::Connection::handle_payload)
    Payload {
        /// The message
        arrival: ArrivalId,
        /// How many bytes, never 0
        bytes: u64,
    },
    /// Nothing on the lane: the next bytes of a message are lent. Take them, or copy them, then
    /// call [`Connection::handle_payload`](crate::Connection::handle_payload)
    Leased {
        /// The message
        arrival: ArrivalId,
        /// How many bytes, never 0
        bytes: u64,
        /// What the peer's lender calls the lease
        ticket: u64,
    },
}

/// Where the bytes of an arrival go
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Store {
    /// Into the buffer of this receive; if it was posted with
    /// [`Capacity::Allocate`](crate::Capacity::Allocate), allocate one for it
    Into(RecvId),
    /// Into new memory, until a receive is posted for it
    Allocate,
    /// Nowhere: read and forget
    Discard,
}

/// What happened on a connection
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event {
    /// Bytes of a message will come: have a place for them
    ///
    /// Once per arrival that has bytes to store, before its first payload is announced or in the
    /// same turn. Also for an empty message, whose layout is told here.
    Prepare {
        /// The message
        arrival: ArrivalId,
        /// Sizes of its segments, in bytes
        segment_bytes: SegmentBytes,
        /// Where they go
        store: Store,
    },
    /// A receive has its message; the last word on both
    ///
    /// If the arrival was prepared with [`Store::Allocate`], its bytes are handed over now: moved
    /// where the receive was posted with [`Capacity::Allocate`](crate::Capacity::Allocate), else
    /// copied.
    RecvComplete {
        /// The receive
        recv: RecvId,
        /// The message
        arrival: ArrivalId,
        /// Its kind, with the tag it was sent with
        kind: MessageKind,
        /// Its size, in bytes
        bytes: u64,
    },
    /// A receive was matched with a message that is too long for it; the last word on both
    ///
    /// The message is consumed. The arrival is unknown to the driver if its bytes were never sent.
    RecvTruncated {
        /// The receive
        recv: RecvId,
        /// The message
        arrival: ArrivalId,
        /// Size of the message, in bytes
        message_bytes: u64,
        /// Size of the buffer, in bytes
        capacity_bytes: u64,
    },
    /// A send is done although its bytes were not wanted
    SendComplete {
        /// The send
        send: SendId,
    },
    /// A posted receive will never get a message, since the peer has closed
    RecvClosed {
        /// The receive
        recv: RecvId,
    },
    /// The peer sends no further message; what arrived before can still be received
    PeerClosed,
}

/// A snapshot of a connection, for reports
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct ConnectionStatistics {
    /// Sends that wait for their turn or for credit
    pub sends_queued: usize,
    /// Long sends that wait for the peer, or are under way
    pub sends_rendezvous: usize,
    /// Receives that wait for a message
    pub recvs_posted: usize,
    /// Messages that wait for a receive
    pub unexpected_messages: usize,
    /// Bytes of theirs that are stored here, or on the way
    pub unexpected_bytes: u64,
    /// Messages that we may send before the peer grants more
    pub credit_messages_left: u64,
    /// Eager bytes that we may send before the peer grants more
    pub credit_bytes_left: u64,
}
