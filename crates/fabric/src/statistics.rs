//! Counters of endpoints, kept as atomics and read as frozen snapshots.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use backhaul_proto::LaneKind;

/// Amounts that an endpoint has moved, at one instant
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EndpointStatistics {
    /// Lane in use
    pub lane: LaneKind,
    /// Messages whose last byte was handed to the lane
    pub sent_messages: u64,
    /// Payload bytes of these messages
    pub sent_bytes: u64,
    /// Messages delivered to a receive
    pub received_messages: u64,
    /// Payload bytes of these messages
    pub received_bytes: u64,
    /// The part of `sent_bytes` that lay in memory of a device
    pub sent_device_bytes: u64,
    /// The part of `received_bytes` that lies in memory of a device
    pub received_device_bytes: u64,
    /// Payload bytes of sends that are not complete
    pub queued_bytes: u64,
    /// Total time from posting a send to its completion, over all complete sends of 4 KiB or more
    pub send_time: Duration,
    /// Total time from posting a receive to its completion, over all complete receives but those
    /// into buffers below 4 KiB
    pub recv_time: Duration,
    /// Times the engine was woken for this endpoint
    pub wakeups: u64,
    /// Times a caller found what it waited for by polling
    pub spins_hit: u64,
    /// Times a caller polled in vain and slept
    pub spins_missed: u64,
    /// Times the engine found work that had waited for seconds without a woken thread:
    /// a defect, logged as a warning
    pub overlooked: u64,
    /// Age of the connection
    pub age: Duration,
}

/// The live counters behind [`EndpointStatistics`]
///
/// Each is a plain count that nothing is ordered by, hence `Relaxed` throughout.
#[derive(Debug)]
pub struct Counters {
    pub(crate) sent_messages: Count,
    pub(crate) sent_bytes: Count,
    pub(crate) received_messages: Count,
    pub(crate) received_bytes: Count,
    pub(crate) sent_device_bytes: Count,
    pub(crate) received_device_bytes: Count,
    /// Of sends that the link has
    pub(crate) queued_bytes: Count,
    /// Of sends in the inbox
    pub(crate) posted_bytes: Count,
    pub(crate) send_time_ns: Count,
    pub(crate) recv_time_ns: Count,
    pub(crate) wakeups: Count,
    pub(crate) spins_hit: Count,
    pub(crate) spins_missed: Count,
    pub(crate) overlooked: Count,
    connected_at: Instant,
}

impl Default for Counters {
    fn default() -> Self {
        Self::new()
    }
}

impl Counters {
    /// Counters at zero
    #[must_use]
    pub fn new() -> Self {
        Self {
            sent_messages: Count::default(),
            sent_bytes: Count::default(),
            received_messages: Count::default(),
            received_bytes: Count::default(),
            sent_device_bytes: Count::default(),
            received_device_bytes: Count::default(),
            queued_bytes: Count::default(),
            posted_bytes: Count::default(),
            send_time_ns: Count::default(),
            recv_time_ns: Count::default(),
            wakeups: Count::default(),
            spins_hit: Count::default(),
            spins_missed: Count::default(),
            overlooked: Count::default(),
            connected_at: Instant::now(),
        }
    }

    /// Payload bytes of sends that are not complete
    pub(crate) fn queued_bytes(&self) -> u64 {
        self.posted_bytes.value() + self.queued_bytes.value()
    }

    pub(crate) fn snapshot(&self, lane: LaneKind) -> EndpointStatistics {
        EndpointStatistics {
            lane,
            sent_messages: self.sent_messages.value(),
            sent_bytes: self.sent_bytes.value(),
            received_messages: self.received_messages.value(),
            received_bytes: self.received_bytes.value(),
            sent_device_bytes: self.sent_device_bytes.value(),
            received_device_bytes: self.received_device_bytes.value(),
            queued_bytes: self.queued_bytes(),
            send_time: Duration::from_nanos(self.send_time_ns.value()),
            recv_time: Duration::from_nanos(self.recv_time_ns.value()),
            wakeups: self.wakeups.value(),
            spins_hit: self.spins_hit.value(),
            spins_missed: self.spins_missed.value(),
            overlooked: self.overlooked.value(),
            age: self.connected_at.elapsed(),
        }
    }
}

/// A counter that nothing is ordered by
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    pub(crate) fn sub(&self, amount: u64) {
        self.0.fetch_sub(amount, Ordering::Relaxed);
    }

    /// As [`Count::add`], for a counter that only the holder of the link changes, without a locked
    /// instruction
    pub(crate) fn bump(&self, amount: u64) {
        self.0.store(self.value() + amount, Ordering::Relaxed);
    }

    /// As [`Count::bump`], down
    pub(crate) fn lower(&self, amount: u64) {
        self.0.store(self.value() - amount, Ordering::Relaxed);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
