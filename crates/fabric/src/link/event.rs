//! Requests to a link, and the events that it reports.

use std::cell::Cell;
use std::time::Instant;

use backhaul_proto::{ArrivalId, MemoryKind, MessageKind, Tag};
use backhaul_shm::pool::PoolBuf;

use crate::error::{CloseReason, RecvError, SendError};
use crate::memory::{DeviceMemory, Message, Received, RecvBuffer, Segments};

/// A message to send
///
/// `S` is what the holder of the link wants back when the send is over.
#[derive(Debug)]
pub struct Send<S> {
    /// Number by which its holder cancels it; `None` until [`super::Link::name_send`]
    pub operation: Option<u64>,
    /// Tagged or not
    pub kind: MessageKind,
    /// Its memory
    pub segments: Segments,
    /// Given back with the outcome
    pub token: S,
}

/// A receive
///
/// `R` is what the holder of the link wants back when the receive is over.
pub struct Recv<R> {
    /// Holder's id of the operation, to cancel it
    pub operation: u64,
    /// Which messages it takes
    pub selector: backhaul_proto::Selector,
    /// Memory for the message; without it, memory is allocated
    pub buffer: Option<Box<dyn RecvBuffer>>,
    /// Given back with the outcome
    pub token: R,
}

/// Event on a link
pub enum LinkEvent<S, R> {
    /// A send is over
    Sent {
        /// Token of the send
        token: S,
        /// How
        result: Result<(), SendError>,
    },
    /// A receive is over
    Received {
        /// Token of the receive
        token: R,
        /// Result; a delivery that no caller takes goes back with [`super::Link::restore`]
        result: Result<Delivery, RecvError>,
    },
    /// The link has ended; said before the operations that fail for it
    Closed(CloseReason),
}

/// A message that a receive has got
pub struct Delivery {
    /// Tagged or not
    pub kind: MessageKind,
    /// Its number on the connection
    pub message: u64,
    /// Its size, in bytes
    pub bytes: u64,
    /// Where it lies
    pub content: Content,
}

/// Where a message lies
pub enum Content {
    /// In the buffer of its receive
    Into(Box<dyn RecvBuffer>),
    /// In memory of its own
    Segments(MessageMemory),
}

/// Segments of a message in memory of its own
#[derive(Debug, Default)]
pub struct MessageMemory {
    /// Segments in memory of the host; empty in the place of the others
    pub host: Vec<PoolBuf>,
    /// Segments in memory of a device, with their places
    pub device: Vec<(usize, DeviceMemory)>,
}

impl MessageMemory {
    /// One segment of the host
    pub(super) fn of_host(segment: PoolBuf) -> Self {
        Self {
            host: vec![segment],
            device: Vec::new(),
        }
    }
}

impl Content {
    /// Returns whether some of its own memory is memory of a device
    #[inline]
    pub fn has_device_segments(&self) -> bool {
        matches!(self, Self::Segments(memory) if !memory.device.is_empty())
    }
}

impl Delivery {
    /// How many of its bytes lie in memory of a device
    pub fn device_bytes(&mut self) -> u64 {
        match &mut self.content {
            Content::Into(buffer) => match buffer.memory().kind() {
                MemoryKind::Device(_) => self.bytes,
                MemoryKind::Host => 0,
            },
            Content::Segments(memory) => {
                let device = memory.device.iter();
                device.map(|(_, memory)| memory.len() as u64).sum()
            }
        }
    }

    /// The tag, if there is one
    pub fn tag(&self) -> Option<Tag> {
        match self.kind {
            MessageKind::Tagged(tag) => Some(tag),
            MessageKind::Untagged => None,
        }
    }

    /// As what a receive into a buffer gives
    ///
    /// # Panics
    ///
    /// If the receive had no buffer.
    pub fn into_received(self) -> Received {
        let tag = self.tag().unwrap_or_default();
        match self.content {
            Content::Into(buffer) => Received {
                tag,
                bytes: usize::try_from(self.bytes).expect("it fits the buffer"),
                buffer,
                message: self.message,
            },
            Content::Segments(_) => unreachable!("a receive with a buffer gets it back"),
        }
    }

    /// As what a receive that allocates gives
    ///
    /// # Panics
    ///
    /// If the receive had a buffer.
    pub fn into_message(self) -> Message {
        let tag = self.tag();
        match self.content {
            Content::Segments(memory) => Message {
                tag,
                segments: memory.host,
                device_segments: memory.device,
                message: self.message,
            },
            Content::Into(_) => unreachable!("a receive without a buffer gets segments"),
        }
    }
}

impl From<Received> for Delivery {
    fn from(received: Received) -> Self {
        Self {
            kind: MessageKind::Tagged(received.tag),
            message: received.message,
            bytes: received.bytes as u64,
            content: Content::Into(received.buffer),
        }
    }
}

impl From<Message> for Delivery {
    fn from(message: Message) -> Self {
        let host = message.segments.iter().map(|segment| segment.len() as u64);
        let device = message.device_segments.iter();
        let device = device.map(|(_, memory)| memory.len() as u64);
        Self {
            kind: message
                .tag
                .map_or(MessageKind::Untagged, MessageKind::Tagged),
            message: message.message,
            bytes: host.chain(device).sum(),
            content: Content::Segments(MessageMemory {
                host: message.segments,
                device: message.device_segments,
            }),
        }
    }
}

/// The time, read when it is first asked for: most calls of a link need none
#[derive(Debug, Default)]
pub struct Now(Cell<Option<Instant>>);

impl Now {
    /// The time of the clock
    #[must_use]
    pub const fn lazy() -> Self {
        Self(Cell::new(None))
    }

    /// A time that is given
    #[must_use]
    pub const fn at(instant: Instant) -> Self {
        Self(Cell::new(Some(instant)))
    }

    /// The time
    pub fn get(&self) -> Instant {
        self.0.get().unwrap_or_else(|| {
            let now = Instant::now();
            self.0.set(Some(now));
            now
        })
    }
}

/// Measures what comes, for reports; called by the link, which has no clock and no lock
pub trait Meter: std::marker::Send {
    /// There is a place for a message, whose bytes will come; `is_on_device`: a part of it lies in memory of
    /// a device
    fn begin(&mut self, now: &Now, arrival: ArrivalId, bytes: u64, is_on_device: bool);
    /// Some bytes of it are in their place; `is_lent`: they were lent, not copied
    fn stored(&mut self, now: &Now, arrival: ArrivalId, bytes: u64, is_lent: bool);
    /// A receive has it
    fn received(&mut self, now: &Now, arrival: ArrivalId, bytes: u64);
    /// A receive has a message that came whole and was never called by an id
    fn received_inline(&mut self, bytes: u64);
    /// No receive gets it
    fn discard(&mut self, now: &Now, arrival: ArrivalId);
    /// Nothing more comes
    fn stop(&mut self);
}
