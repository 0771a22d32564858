//! Reports of a connection to its driver.

use smallvec::SmallVec;

use crate::decoder::SegmentBytes;
use crate::frame::FrameHeader;
use crate::ids::{ArrivalId, MessageKind, RecvId, SendId};
use crate::memory::SourceTable;

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

/// A part of a message that a carrier may bring, whole, instead of the lane
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Span {
    /// Where the part begins, in bytes from the start of the first segment, across segments
    pub offset: u64,
    /// Its length, in bytes; never 0
    pub bytes: u64,
}

/// Next step of the driver on the way out
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Outgoing {
    /// Write a frame
    Frame(Transmit),
    /// Hand a part of a message to a carrier, and say with
    /// [`Connection::given`](crate::Connection::given) what came of it
    Give(Give),
}

/// A part of a message that a carrier may bring
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Give {
    /// The part, which is one of the spans of the send
    pub range: PayloadRange,
    /// Number of the carrier that the receiver asks for; 0 if it has no preference
    pub carrier: u8,
}

/// A part of a message that a carrier has taken to bring
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Given {
    /// Number of the carrier; never 0
    pub carrier: u8,
    /// Ticket by which the peer takes the part
    pub ticket: u64,
}

/// Outcome of the attempt to withdraw a receive
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Withdrawn {
    /// It had met no message
    Waiting,
    /// It had met this message, which is there for other receives now; if the receive's buffer
    /// holds part of it, the driver moves that elsewhere
    Met(ArrivalId),
    /// It is over, or the bytes of its message are being dropped: it ends as if not withdrawn
    No,
}

/// Outcome of a receive that was posted
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Posted {
    /// No message is here for it; there is nothing to poll on its account
    Waits,
    /// No message is here for it, and the peer may send more, which frames have to say
    Grants,
    /// It has met its message: there are events, or frames, or both
    Met,
}

/// Data that follows a frame on the lane
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
    /// Nothing on the lane: a carrier brings bytes of a message. Take them, in whatever time, then
    /// call [`Connection::handle_carried`](crate::Connection::handle_carried)
    Carried {
        /// The message
        arrival: ArrivalId,
        /// Where they belong, in bytes from the start of the message
        offset: u64,
        /// How many bytes, never 0
        bytes: u64,
        /// Number of the carrier; never 0
        carrier: u8,
        /// Ticket by which the carrier finds them
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

/// Event on a connection
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event {
    /// Bytes of a message will come: have a place for them
    ///
    /// Once per arrival that has bytes to store, before its first payload is announced or in the
    /// same turn. Also for an empty message, whose layout is given here.
    Prepare {
        /// The message
        arrival: ArrivalId,
        /// Sizes of its segments, in bytes
        segment_bytes: SegmentBytes,
        /// Where each of them lies, if the sender said
        sources: Option<SourceTable>,
        /// Where they go
        store: Store,
        /// The bytes come when the driver asks for them: with
        /// [`Connection::accept`](crate::Connection::accept), or, by itself, with
        /// [`Connection::fetch`](crate::Connection::fetch)
        asks: bool,
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
        /// Its number, by which [`Connection::restore`](crate::Connection::restore) finds its place
        message: u64,
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
    /// Bytes of the peer's messages that are stored here, or on the way
    pub unexpected_bytes: u64,
    /// Messages that we may send before the peer grants more
    pub credit_messages_left: u64,
    /// Eager bytes that we may send before the peer grants more
    pub credit_bytes_left: u64,
}
