//! Memory that messages come from and go to.
//!
//! A send holds its segments as [`Bytes`], a receive owns its buffer: memory belongs to the
//! operation until it is over, so that a dropped future can never leave the engine writing into
//! memory that somebody else has by then.

use std::any::Any;

use backhaul_proto::Tag;
pub use backhaul_shm::pool::PoolBuf;
use bytes::Bytes;
use smallvec::SmallVec;

/// Segments of a message to send
pub type Segments = SmallVec<[Bytes; 2]>;

/// Memory that a receive fills
pub trait RecvBuffer: Any + Send {
    /// The memory, the same on each call
    fn as_mut_slice(&mut self) -> &mut [u8];
}

impl RecvBuffer for Vec<u8> {
    fn as_mut_slice(&mut self) -> &mut [u8] {
        self
    }
}

impl RecvBuffer for Box<[u8]> {
    fn as_mut_slice(&mut self) -> &mut [u8] {
        self
    }
}

impl RecvBuffer for PoolBuf {
    fn as_mut_slice(&mut self) -> &mut [u8] {
        self
    }
}

/// What a receive into a buffer got
pub struct Received {
    /// Tag of the message
    pub tag: Tag,
    /// Size of the message, in bytes; the rest of the buffer is as it was
    pub bytes: usize,
    /// The buffer given to the receive
    pub buffer: Box<dyn RecvBuffer>,
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

/// What a receive that allocates got
#[derive(Debug)]
pub struct Message {
    /// Tag of the message; `None` if it was sent untagged
    pub tag: Option<Tag>,
    /// The segments, each in memory of its own, 64-byte aligned and writable
    pub segments: Vec<PoolBuf>,
}
