//! The memory of one message that comes in: made as its bytes come, filled at any place.

use std::io::IoSliceMut;
use std::time::Instant;

use backhaul_proto::{MemoryKind, RecvId, SegmentBytes, SourceTable};
use backhaul_shm::pool::{Pool, PoolBuf};
use slab::Slab;
use smallvec::SmallVec;

use super::event::MessageMemory;
use super::operations::RecvOperation;
use crate::carrier::Way;
use crate::memory::{DeviceAllocator, DeviceMemory, RecvMemory};

/// A message on its way in
pub(super) struct Arrival {
    pub(super) memory: Memory,
    pub(super) sizes: SegmentBytes,
    /// Where each segment lies at the sender, if it said
    pub(super) sources: Option<SourceTable>,
    pub(super) bytes: u64,
    /// Bytes that are in their place
    pub(super) filled_bytes: u64,
    /// Where the next bytes go that a frame announces
    pub(super) next: Cursor,
    /// How its bytes come, if that is timed
    pub(super) way: Option<Timed>,
    /// It did not come unasked
    pub(super) is_announced: bool,
}

/// How the bytes of a message come, and since when
#[derive(Clone, Copy, Debug)]
pub(super) struct Timed {
    pub(super) way: Way,
    pub(super) since: Instant,
    /// Bytes that had been read before
    pub(super) untimed_bytes: u64,
}

pub(super) enum Memory {
    /// The buffer of a posted receive
    Into(RecvId),
    /// Memory of its own, a place for each segment
    Segments(Vec<Option<SegmentMemory>>),
    /// There is none: the bytes are dropped and the receive will fail
    Missing(Missing),
}

pub(super) enum SegmentMemory {
    Host(PoolBuf),
    Device(DeviceMemory),
}

/// Why a message has no memory
#[derive(Clone, Debug)]
pub(super) enum Missing {
    /// The system has none
    OutOfMemory,
    /// It lies in memory that this side cannot take
    NoPlace { memory: MemoryKind, detail: String },
}

impl Missing {
    /// A message in memory of the host does not go to memory of a device
    pub(super) fn host_message(target: &DeviceMemory) -> Self {
        Self::NoPlace {
            memory: MemoryKind::Device(target.device()),
            detail: "the message lies in memory of the host".to_owned(),
        }
    }
}

/// A place in a message
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor {
    /// Bytes before it
    pub(super) offset: u64,
    /// The first segment that is not wholly before it
    pub(super) segment: usize,
    /// Bytes of that segment before it
    pub(super) within: u64,
}

impl Cursor {
    /// The first byte of a message of segments of these sizes
    ///
    /// As everywhere, behind empty segments: where bytes go is looked for from there.
    pub(super) fn begin(sizes: &[u64]) -> Self {
        let mut begin = Self::default();
        begin.advance(sizes, 0);
        begin
    }

    /// Moves on
    pub(super) fn advance(&mut self, sizes: &[u64], bytes: u64) {
        self.offset += bytes;
        self.within += bytes;
        while let Some(size) = sizes.get(self.segment) {
            if self.within < *size {
                break;
            }
            self.within -= size;
            self.segment += 1;
        }
    }
}

/// Pieces of memory that one read fills
pub(super) type Targets<'a> = SmallVec<[IoSliceMut<'a>; TARGETS_MAX]>;

impl Arrival {
    /// A message whose bytes are all there
    pub(super) fn here(memory: Memory, sizes: SegmentBytes, bytes: u64) -> Self {
        Self {
            memory,
            sizes,
            sources: None,
            bytes,
            filled_bytes: bytes,
            next: Cursor::default(),
            way: None,
            is_announced: false,
        }
    }

    /// Readies memory for a message of its own; segments come when their bytes do
    pub(super) fn segments(count: usize) -> Memory {
        let mut segments = Vec::new();
        // A peer says how many there are: what it says must not end the process.
        if segments.try_reserve_exact(count).is_err() {
            return Memory::Missing(Missing::OutOfMemory);
        }
        segments.resize_with(count, || None);
        Memory::Segments(segments)
    }

    /// The first memory of a device that the message lies in, if it does
    pub(super) fn device(&self) -> Option<MemoryKind> {
        let mut sources = self.sources.iter().flatten();
        let source = sources.find(|source| source.memory.is_device())?;
        Some(source.memory)
    }

    /// Why a message has no memory that a carrier could not bring
    pub(super) fn out_of_reach(&self, detail: String) -> Missing {
        match self.device() {
            Some(memory) => Missing::NoPlace { memory, detail },
            None => Missing::OutOfMemory,
        }
    }

    /// Returns whether all bytes are in their place, or will never be
    pub(super) fn is_complete(&self) -> bool {
        match &self.memory {
            Memory::Segments(_) => self.filled_bytes == self.bytes,
            // The result of its receive has been reported.
            Memory::Into(_) => false,
            Memory::Missing(_) => true,
        }
    }

    /// Collects the host's memory where the next `bytes` from a place go, or their beginning,
    /// returning how much
    ///
    /// 0 if there is none.
    pub(super) fn targets<'a, R>(
        &'a mut self,
        recvs: &'a mut Slab<RecvOperation<R>>,
        pool: &Pool,
        at: &Cursor,
        bytes: usize,
        targets: &mut Targets<'a>,
    ) -> usize {
        if self.make_room(pool, at, bytes).is_err() {
            self.memory = Memory::Missing(Missing::OutOfMemory);
        }
        match &mut self.memory {
            Memory::Into(recv) => {
                let buffer = recvs[recv.0].buffer.as_mut();
                match buffer.expect("a receive with a buffer").memory() {
                    RecvMemory::Host(memory) => {
                        let start = to_usize(at.offset);
                        targets.push(IoSliceMut::new(&mut memory[start..start + bytes]));
                        bytes
                    }
                    RecvMemory::Device(_) => 0,
                }
            }
            Memory::Segments(segments) => {
                let mut within = to_usize(at.within);
                let mut left = bytes;
                let segments = segments.iter_mut().zip(&self.sizes).skip(at.segment);
                for (segment, size) in segments {
                    if left == 0 || targets.len() == TARGETS_MAX - 1 {
                        break;
                    }
                    let take = left.min(to_usize(*size) - within);
                    if take > 0 {
                        let Some(SegmentMemory::Host(memory)) = segment else {
                            break;
                        };
                        targets.push(IoSliceMut::new(&mut memory[within..within + take]));
                    }
                    left -= take;
                    within = 0;
                }
                bytes - left
            }
            Memory::Missing(_) => 0,
        }
    }

    /// Makes the segments of the host that the next bytes go to, as many as one read fills
    fn make_room(&mut self, pool: &Pool, at: &Cursor, bytes: usize) -> Result<(), NoMemory> {
        let Memory::Segments(segments) = &mut self.memory else {
            return Ok(());
        };
        // Most messages are one segment.
        if let [segment] = &mut segments[..] {
            if segment.is_none() {
                *segment = Some(SegmentMemory::Host(take(pool, self.sizes[0])?));
            }
            return Ok(());
        }
        let mut room = 0;
        let wanted = at.within + bytes as u64;
        let mut missing: SmallVec<[u64; TARGETS_MAX]> = SmallVec::new();
        let candidates = segments.iter().zip(&self.sizes).skip(at.segment);
        for (segment, size) in candidates.take(TARGETS_MAX) {
            if room >= wanted {
                break;
            }
            room += size;
            if segment.is_none() {
                missing.push(*size);
            }
        }
        match &missing[..] {
            [] => {}
            sizes => self.fill_missing(at, pool.take_many(sizes).map_err(|_| NoMemory)?),
        }
        Ok(())
    }

    /// Puts memory in the places of the first segments from a place that have none
    fn fill_missing(&mut self, at: &Cursor, made: impl IntoIterator<Item = PoolBuf>) {
        if let Memory::Segments(segments) = &mut self.memory {
            let places = segments.iter_mut().skip(at.segment);
            for (place, memory) in places.filter(|place| place.is_none()).zip(made) {
                *place = Some(SegmentMemory::Host(memory));
            }
        }
    }

    /// The memory of a device where the next `bytes` from a place go, if they go there
    pub(super) fn device_target<R>(
        &mut self,
        recvs: &mut Slab<RecvOperation<R>>,
        allocator: Option<&dyn DeviceAllocator>,
        at: &Cursor,
        bytes: u64,
    ) -> Option<DeviceMemory> {
        let bytes = to_usize(bytes);
        match &mut self.memory {
            Memory::Into(recv) => {
                let buffer = recvs[recv.0].buffer.as_mut();
                match buffer.expect("a receive with a buffer").memory() {
                    RecvMemory::Device(memory) => Some(memory.slice(to_usize(at.offset), bytes)),
                    RecvMemory::Host(_) => None,
                }
            }
            Memory::Segments(segments) => {
                let index = first_with_bytes(&self.sizes, at.segment);
                let source = self.sources.as_ref()?.get(index)?;
                let MemoryKind::Device(device) = source.memory else {
                    return None;
                };
                let segment = segments.get_mut(index)?;
                if segment.is_none() {
                    let size = to_usize(self.sizes[index]);
                    match allocator?.allocate(device, size) {
                        Ok(memory) => *segment = Some(SegmentMemory::Device(memory)),
                        Err(error) => {
                            self.memory = Memory::Missing(Missing::NoPlace {
                                memory: MemoryKind::Device(device),
                                detail: error.to_string(),
                            });
                            return None;
                        }
                    }
                }
                match segment {
                    Some(SegmentMemory::Device(memory)) => {
                        Some(memory.slice(to_usize(at.within), bytes))
                    }
                    _ => None,
                }
            }
            Memory::Missing(_) => None,
        }
    }

    /// Returns whether the `bytes` from a place are just one segment, which has no memory yet
    pub(super) fn wants_whole(&self, at: &Cursor, bytes: u64) -> bool {
        let Memory::Segments(segments) = &self.memory else {
            return false;
        };
        let segment = first_with_bytes(&self.sizes, at.segment);
        at.within == 0
            && self.sizes.get(segment) == Some(&bytes)
            && segments.get(segment).is_some_and(Option::is_none)
    }

    /// Takes memory as the segment at a place
    pub(super) fn adopt(&mut self, at: &Cursor, memory: PoolBuf) {
        if let Memory::Segments(segments) = &mut self.memory {
            let segment = first_with_bytes(&self.sizes, at.segment);
            segments[segment] = Some(SegmentMemory::Host(memory));
        }
    }

    /// Moves what the buffer of a receive holds of the message to memory of its own
    pub(super) fn move_out<R>(&mut self, recvs: &mut Slab<RecvOperation<R>>, pool: &Pool) {
        let Memory::Into(recv) = self.memory else {
            return;
        };
        self.memory = Self::segments(self.sizes.len());
        let buffer = recvs[recv.0].buffer.as_mut();
        let RecvMemory::Host(bytes) = buffer.expect("a receive with a buffer").memory() else {
            // Only a carrier could copy it: it is lost, and the next receive reports that.
            let detail = "its receive was given up while it came".to_owned();
            self.memory = Memory::Missing(self.out_of_reach(detail));
            return;
        };
        let mut start = 0;
        let Memory::Segments(segments) = &mut self.memory else {
            return;
        };
        for (segment, size) in segments.iter_mut().zip(&self.sizes) {
            let Ok(mut memory) = take(pool, *size) else {
                self.memory = Memory::Missing(Missing::OutOfMemory);
                return;
            };
            let end = start + memory.len();
            memory.copy_from_slice(&bytes[start..end]);
            start = end;
            *segment = Some(SegmentMemory::Host(memory));
        }
    }

    /// Copies a complete message of one segment of the host to the buffer of its receive, returning
    /// whether it is one, and the receive has one in memory of the host
    pub(super) fn copy_out<R>(&self, recv: &mut RecvOperation<R>) -> bool {
        let Memory::Segments(segments) = &self.memory else {
            return false;
        };
        match &segments[..] {
            [Some(SegmentMemory::Host(segment))] => copy_to_buffer(segment, recv),
            _ => false,
        }
    }

    /// The memory of a complete message
    pub(super) fn into_memory(self, pool: &Pool) -> Result<Option<MessageMemory>, Missing> {
        let segments = match self.memory {
            Memory::Into(_) => return Ok(None),
            Memory::Missing(missing) => return Err(missing),
            Memory::Segments(segments) => segments,
        };
        let mut memory = MessageMemory {
            host: Vec::with_capacity(segments.len()),
            device: Vec::new(),
        };
        for (index, (segment, size)) in segments.into_iter().zip(&self.sizes).enumerate() {
            let host = match segment {
                Some(SegmentMemory::Host(host)) => host,
                Some(SegmentMemory::Device(device)) => {
                    memory.device.push((index, device));
                    take(pool, 0)?
                }
                // Empty, or its bytes never came.
                None => take(pool, *size)?,
            };
            memory.host.push(host);
        }
        Ok(Some(memory))
    }
}

/// Copies a message of one segment to the buffer of its receive, returning whether that has one in
/// memory of the host
pub(super) fn copy_to_buffer<R>(segment: &[u8], recv: &mut RecvOperation<R>) -> bool {
    if let Some(buffer) = &mut recv.buffer
        && let RecvMemory::Host(host) = buffer.memory()
    {
        host[..segment.len()].copy_from_slice(segment);
        return true;
    }
    false
}

/// Copies a message that lies in memory of its own to the buffer of a receive
///
/// # Errors
///
/// Where one of the two is memory of a device, to which nothing is copied here.
pub(super) fn copy_into(
    memory: &MessageMemory,
    target: RecvMemory<'_>,
) -> Result<(), (MemoryKind, String)> {
    let host = match target {
        RecvMemory::Host(host) => host,
        RecvMemory::Device(device) => {
            let detail = match memory.device.is_empty() {
                true => "the message lies in memory of the host",
                false => "the message came before the receive was posted",
            };
            return Err((MemoryKind::Device(device.device()), detail.to_owned()));
        }
    };
    if let Some((_, device)) = memory.device.first() {
        let detail = "it came before a receive into memory of the host was posted".to_owned();
        return Err((MemoryKind::Device(device.device()), detail));
    }
    let mut at = 0;
    for segment in &memory.host {
        host[at..at + segment.len()].copy_from_slice(segment);
        at += segment.len();
    }
    Ok(())
}

fn first_with_bytes(sizes: &[u64], mut segment: usize) -> usize {
    while sizes.get(segment) == Some(&0) {
        segment += 1;
    }
    segment
}

fn take(pool: &Pool, bytes: u64) -> Result<PoolBuf, NoMemory> {
    let bytes = usize::try_from(bytes).map_err(|_| NoMemory)?;
    pool.take(bytes).map_err(|_| NoMemory)
}

pub(super) fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).expect("within memory, or checked against the limits")
}

/// There was no memory for a message
#[derive(Clone, Copy, Debug)]
pub(super) struct NoMemory;

impl From<NoMemory> for Missing {
    fn from(_: NoMemory) -> Self {
        Self::OutOfMemory
    }
}

/// Pieces of memory filled by one read
const TARGETS_MAX: usize = 32;
