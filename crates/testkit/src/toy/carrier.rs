//! A carrier made outside the fabric: it moves memory of the host, and of toy devices, by a table of
//! the process.

use std::collections::HashMap;
use std::io::IoSliceMut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use backhaul::seams::{Carrier, CarrierProvider, Hello, Payload, TakeError};
use backhaul::{Bytes, CarrierKind, Device, DeviceMemory, MemoryKind, Segment, Vendor};

use super::device;

/// Makes carriers between contexts of this process
#[derive(Clone, Debug, Default)]
pub struct ToyCarriers {
    /// Amounts that they have moved, in all
    pub counts: Arc<Counts>,
}

/// Amounts that the carriers of a context have taken from peers
#[derive(Debug, Default)]
pub struct Counts {
    /// Bytes to and from memory of the host
    pub host_bytes: AtomicU64,
    /// Bytes to memory of devices
    pub device_bytes: AtomicU64,
}

/// One end of a carrier
struct ToyCarrier {
    counts: Arc<Counts>,
    table: Arc<Table>,
}

/// Gifts of the two ends of a carrier that the other has not taken
///
/// The table goes when both ends have gone: a gift can be taken though its giver has ended.
#[derive(Debug, Default)]
struct Table(Mutex<Given>);

#[derive(Debug, Default)]
struct Given {
    segments: HashMap<u64, Segment>,
    next: u64,
}

/// The tables of all connections, by the nonces of both sides, in ascending order
static TABLES: LazyLock<Mutex<Tables>> = LazyLock::new(Mutex::default);

type Tables = HashMap<[[u8; 16]; 2], Weak<Table>>;

impl CarrierProvider for ToyCarriers {
    fn connect(&self, local: &Hello, peer: &Hello) -> Result<Box<dyn Carrier>, String> {
        if peer.process_token != local.process_token {
            return Err("another process".to_owned());
        }
        let mut key = [local.nonce, peer.nonce];
        key.sort_unstable();
        let mut tables = lock(&TABLES);
        tables.retain(|_, table| table.strong_count() > 0);
        let known = tables.get(&key).and_then(Weak::upgrade);
        let table = known.unwrap_or_default();
        tables.insert(key, Arc::downgrade(&table));
        Ok(Box::new(ToyCarrier {
            counts: Arc::clone(&self.counts),
            table,
        }))
    }
}

impl Carrier for ToyCarrier {
    fn kind(&self) -> CarrierKind {
        CarrierKind::Experimental
    }

    fn takes(&self) -> fn(MemoryKind) -> bool {
        |memory| match memory {
            MemoryKind::Host => true,
            MemoryKind::Device(Device { vendor, .. }) => vendor == Vendor::Experimental,
        }
    }

    fn give(&mut self, segment: &Segment, _is_asked: bool) -> Option<u64> {
        let segment = match segment {
            // Its owner has it back when the send is over.
            Segment::Private(bytes) | Segment::Exported(bytes) => {
                Segment::from(Bytes::copy_from_slice(bytes))
            }
            Segment::Device(memory) => Segment::Device(memory.clone()),
        };
        let mut given = lock(&self.table.0);
        let ticket = given.next;
        given.next += 1;
        given.segments.insert(ticket, segment);
        Some(ticket)
    }

    fn take(&mut self, ticket: u64, bytes: u64) -> Result<Box<dyn Payload>, TakeError> {
        let segment = lock(&self.table.0).segments.remove(&ticket);
        let segment = segment.ok_or_else(|| TakeError::Broken {
            detail: "nothing was given under it".to_owned(),
        })?;
        if segment.len() as u64 != bytes {
            return Err(TakeError::Broken {
                detail: format!("{} bytes were given, not {bytes}", segment.len()),
            });
        }
        Ok(Box::new(ToyPayload {
            segment,
            at: 0,
            counts: Arc::clone(&self.counts),
        }))
    }
}

struct ToyPayload {
    segment: Segment,
    at: usize,
    counts: Arc<Counts>,
}

impl ToyPayload {
    /// Copies the next bytes
    fn copy(&mut self, target: &mut [u8]) {
        let at = self.at;
        match &self.segment {
            Segment::Private(bytes) | Segment::Exported(bytes) => {
                target.copy_from_slice(&bytes[at..at + target.len()]);
            }
            Segment::Device(memory) => device::read(memory, at, target),
        }
        self.at += target.len();
    }
}

impl Payload for ToyPayload {
    fn read(&mut self, targets: &mut [IoSliceMut<'_>]) -> Result<usize, TakeError> {
        let start = self.at;
        for target in targets {
            let left = self.segment.len() - self.at;
            let bytes = left.min(target.len());
            self.copy(&mut target[..bytes]);
        }
        let bytes = self.at - start;
        let count = &self.counts.host_bytes;
        count.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(bytes)
    }

    fn read_to_device(&mut self, target: &DeviceMemory) -> Result<usize, TakeError> {
        // As a device would move it by itself; here through the host.
        let bytes = target.len().min(self.segment.len() - self.at);
        let mut moved = vec![0; bytes];
        self.copy(&mut moved);
        device::write(target, 0, &moved);
        let count = &self.counts.device_bytes;
        count.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(bytes)
    }
}

/// Segments that were given, and neither taken nor released
pub fn segments_held() -> usize {
    let tables: Vec<_> = lock(&TABLES).values().filter_map(Weak::upgrade).collect();
    tables
        .iter()
        .map(|table| lock(&table.0).segments.len())
        .sum()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
