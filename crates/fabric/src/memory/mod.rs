//! Memory that messages come from and go to.
//!
//! A send holds its segments, a receive owns its buffer: memory belongs to the operation until it
//! is over, so that a dropped future can never leave the engine writing into memory that has
//! another owner by then. Memory has a kind: private to this process, exported (it may be lent to
//! peers of this host, because it is not written to any more), or that of a device. Of the last no
//! slice is ever made: only a carrier reaches it.

mod device;

use std::any::Any;

use backhaul_proto::{MemoryKind, Tag};
pub use backhaul_shm::pool::PoolBuf;
use bytes::Bytes;
use smallvec::SmallVec;

pub use device::{DeviceAllocator, DeviceError, DeviceMemory};

/// One segment of a message to send
#[derive(Clone, Debug)]
pub enum Segment {
    /// Memory of the host that is private to this process: it is copied
    Private(Bytes),
    /// Memory of the host that is not written to any more: it may be lent
    Exported(Bytes),
    /// Memory of a device
    Device(DeviceMemory),
}

impl Segment {
    /// How many bytes it has
    pub fn len(&self) -> usize {
        match self {
            Self::Private(bytes) | Self::Exported(bytes) => bytes.len(),
            Self::Device(memory) => memory.len(),
        }
    }

    /// Returns whether it has none
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where it lies
    pub fn kind(&self) -> MemoryKind {
        match self {
            Self::Private(_) | Self::Exported(_) => MemoryKind::Host,
            Self::Device(memory) => MemoryKind::Device(memory.device()),
        }
    }

    /// The bytes, unless they are those of a device
    pub fn host(&self) -> Option<&Bytes> {
        match self {
            Self::Private(bytes) | Self::Exported(bytes) => Some(bytes),
            Self::Device(_) => None,
        }
    }

    /// Returns the same memory as memory that is not written to any more
    #[must_use]
    pub fn exported(self) -> Self {
        match self {
            Self::Private(bytes) => Self::Exported(bytes),
            other => other,
        }
    }
}

impl<B: Into<Bytes>> From<B> for Segment {
    fn from(bytes: B) -> Self {
        Self::Private(bytes.into())
    }
}

impl From<DeviceMemory> for Segment {
    fn from(memory: DeviceMemory) -> Self {
        Self::Device(memory)
    }
}

/// Segments of a message to send
#[derive(Clone, Debug, Default)]
pub struct Segments(SmallVec<[Segment; 2]>);

impl Segments {
    /// No segments
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one at the end
    pub fn push(&mut self, segment: impl Into<Segment>) {
        self.0.push(segment.into());
    }

    /// How many bytes they have in all
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|segment| segment.len() as u64).sum()
    }

    /// How many of them lie in memory of a device
    pub fn device_bytes(&self) -> u64 {
        let device = self.0.iter().filter(|segment| segment.kind().is_device());
        device.map(|segment| segment.len() as u64).sum()
    }

    /// Returns the same memory as memory that is not written to any more
    #[must_use]
    pub fn exported(self) -> Self {
        Self(self.0.into_iter().map(Segment::exported).collect())
    }
}

impl std::ops::Deref for Segments {
    type Target = [Segment];

    fn deref(&self) -> &[Segment] {
        &self.0
    }
}

impl<S: Into<Segment>> FromIterator<S> for Segments {
    fn from_iter<I: IntoIterator<Item = S>>(segments: I) -> Self {
        Self(segments.into_iter().map(Into::into).collect())
    }
}

/// Memory that a receive fills
pub trait RecvBuffer: Any + Send {
    /// The memory, the same on each call
    fn memory(&mut self) -> RecvMemory<'_>;
}

/// The memory of a [`RecvBuffer`]
#[derive(Debug)]
pub enum RecvMemory<'a> {
    /// Memory of the host
    Host(&'a mut [u8]),
    /// Memory of a device
    Device(&'a DeviceMemory),
}

impl RecvMemory<'_> {
    /// How many bytes it has
    pub fn len(&self) -> usize {
        match self {
            Self::Host(bytes) => bytes.len(),
            Self::Device(memory) => memory.len(),
        }
    }

    /// Returns whether it has none
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where it lies
    pub fn kind(&self) -> MemoryKind {
        match self {
            Self::Host(_) => MemoryKind::Host,
            Self::Device(memory) => MemoryKind::Device(memory.device()),
        }
    }
}

impl RecvBuffer for Vec<u8> {
    fn memory(&mut self) -> RecvMemory<'_> {
        RecvMemory::Host(self)
    }
}

impl RecvBuffer for Box<[u8]> {
    fn memory(&mut self) -> RecvMemory<'_> {
        RecvMemory::Host(self)
    }
}

impl RecvBuffer for PoolBuf {
    fn memory(&mut self) -> RecvMemory<'_> {
        RecvMemory::Host(self)
    }
}

impl RecvBuffer for DeviceMemory {
    fn memory(&mut self) -> RecvMemory<'_> {
        RecvMemory::Device(self)
    }
}

/// Result of a receive into a buffer
pub struct Received {
    /// Tag of the message
    pub tag: Tag,
    /// Size of the message, in bytes; the rest of the buffer is as it was
    pub bytes: usize,
    /// The buffer given to the receive
    pub buffer: Box<dyn RecvBuffer>,
    /// Number of the message on its connection
    pub(crate) message: u64,
}

impl Received {
    /// The buffer as the type it was given as; `None` if that was another
    pub fn into_buffer<B: RecvBuffer>(self) -> Option<B> {
        let buffer: Box<dyn Any> = self.buffer;
        buffer.downcast::<B>().ok().map(|buffer| *buffer)
    }
}

impl std::fmt::Debug for Received {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Received")
            .field("tag", &self.tag)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// Result of a receive that allocates
#[derive(Debug)]
#[non_exhaustive]
pub struct Message {
    /// Tag of the message; `None` if it was sent untagged
    pub tag: Option<Tag>,
    /// The segments, each in memory of its own, 64-byte aligned and writable; empty in the place of
    /// one that lies in memory of a device
    pub segments: Vec<PoolBuf>,
    /// Segments in memory of a device, with their places among all segments; only where the
    /// context has an allocator for it
    pub device_segments: Vec<(usize, DeviceMemory)>,
    /// Number of the message on its connection
    pub(crate) message: u64,
}
