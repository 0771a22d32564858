//! A lane made outside the fabric: two queues of bytes in the memory of this process.

use std::collections::{HashMap, VecDeque};
use std::io::{IoSlice, IoSliceMut, Read};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use backhaul::LaneKind;
use backhaul::seams::{Doorbell, Hello, Lane, LaneEnd, LaneError, LaneProvider, LaneTraits, Moved};

/// Makes lanes between contexts of this process
#[derive(Debug)]
pub struct ToyLanes {
    /// Bytes that wait in one direction, at most
    pub capacity: usize,
}

/// One end of a lane
struct ToyLane {
    incoming: Arc<Mutex<Queue>>,
    outgoing: Arc<Mutex<Queue>>,
    /// Wakes the other side
    doorbell: Doorbell,
    /// Under which the other end waits to be found, if this side has left it there
    left: Option<Nonce>,
}

/// Bytes on their way
struct Queue {
    bytes: VecDeque<u8>,
    capacity: usize,
    /// The reader sleeps until there are bytes
    is_reader_asleep: bool,
    /// The writer sleeps until there is room
    is_writer_asleep: bool,
}

type Nonce = [u8; 16];

/// Ends that wait to be found
static LEFT: LazyLock<Mutex<HashMap<Nonce, LaneEnd>>> = LazyLock::new(Mutex::default);

impl LaneProvider for ToyLanes {
    fn offer(&self, local: &Hello, peer: &Hello) -> Result<LaneEnd, String> {
        if peer.process_token != local.process_token {
            return Err("another process".to_owned());
        }
        let queues = [(); 2].map(|()| Arc::new(Mutex::new(Queue::new(self.capacity))));
        let doorbell = || Doorbell::new().map_err(|error| error.to_string());
        let (ours, theirs) = (doorbell()?, doorbell()?);
        let clone = |doorbell: &Doorbell| doorbell.try_clone().map_err(|error| error.to_string());
        let [first, second] = queues;
        let their_end = ToyLane {
            incoming: Arc::clone(&first),
            outgoing: Arc::clone(&second),
            doorbell: clone(&ours)?,
            left: None,
        };
        let our_end = ToyLane {
            incoming: second,
            outgoing: first,
            doorbell: clone(&theirs)?,
            left: Some(peer.nonce),
        };
        lock(&LEFT).insert(peer.nonce, their_end.with_doorbell(theirs));
        Ok(our_end.with_doorbell(ours))
    }

    fn take(&self, local: &Hello) -> Result<LaneEnd, String> {
        let end = lock(&LEFT).remove(&local.nonce);
        end.ok_or_else(|| "the other end is not in this process".to_owned())
    }
}

impl ToyLane {
    fn with_doorbell(self, doorbell: Doorbell) -> LaneEnd {
        LaneEnd {
            lane: Box::new(self),
            doorbell: Some(doorbell),
        }
    }
}

impl Drop for ToyLane {
    fn drop(&mut self) {
        // Without the lock: it is a lane too.
        let other = self.left.and_then(|nonce| lock(&LEFT).remove(&nonce));
        drop(other);
    }
}

impl Queue {
    fn new(capacity: usize) -> Self {
        Self {
            bytes: VecDeque::new(),
            capacity,
            is_reader_asleep: false,
            is_writer_asleep: false,
        }
    }

    fn room(&self) -> usize {
        self.capacity - self.bytes.len()
    }
}

impl Lane for ToyLane {
    fn kind(&self) -> LaneKind {
        LaneKind::Experimental
    }

    fn traits(&self) -> LaneTraits {
        LaneTraits {
            has_doorbell: true,
            looks_are_free: true,
            waits_awake: false,
            is_local: true,
        }
    }

    fn read(&mut self, buffers: &mut [IoSliceMut<'_>]) -> Result<Moved, LaneError> {
        let mut queue = lock(&self.incoming);
        let mut read = 0;
        for buffer in buffers {
            // All of it: a plain read of a queue stops where its memory wraps around.
            let count = buffer.len().min(queue.bytes.len());
            queue.bytes.read_exact(&mut buffer[..count])?;
            read += count;
        }
        if read == 0 {
            return Ok(Moved::Blocked);
        }
        if std::mem::take(&mut queue.is_writer_asleep) {
            self.doorbell.notify();
        }
        Ok(Moved::Bytes(read))
    }

    fn write(&mut self, buffers: &[IoSlice<'_>]) -> Result<Moved, LaneError> {
        let mut queue = lock(&self.outgoing);
        let mut written = 0;
        for buffer in buffers {
            let count = buffer.len().min(queue.room());
            queue.bytes.extend(&buffer[..count]);
            written += count;
        }
        if written == 0 {
            return Ok(Moved::Blocked);
        }
        if std::mem::take(&mut queue.is_reader_asleep) {
            self.doorbell.notify();
        }
        Ok(Moved::Bytes(written))
    }

    fn check_room(&mut self, bytes: usize) -> bool {
        lock(&self.outgoing).room() >= bytes
    }

    fn look_for_news(&self) -> bool {
        !lock(&self.incoming).bytes.is_empty()
    }

    fn is_drained(&self) -> bool {
        !self.look_for_news()
    }

    fn arm_read(&mut self) -> Result<bool, LaneError> {
        let mut queue = lock(&self.incoming);
        queue.is_reader_asleep = queue.bytes.is_empty();
        Ok(queue.is_reader_asleep)
    }

    fn arm_write(&mut self) -> Result<bool, LaneError> {
        let mut queue = lock(&self.outgoing);
        queue.is_writer_asleep = queue.room() == 0;
        Ok(queue.is_writer_asleep)
    }

    fn disarm_read(&mut self) {
        lock(&self.incoming).is_reader_asleep = false;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
