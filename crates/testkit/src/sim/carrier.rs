//! Simulated carriers: payload that is offered or given, taken with delays, in any order, or not.

use std::collections::HashMap;
use std::io::IoSliceMut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use backhaul::seams::{Carrier, Payload, TakeError};
use backhaul::{Bytes, CarrierKind, DeviceMemory, MemoryKind, PoolBuf, Segment};
use backhaul_shm::pool::Pool;

use crate::random::Random;
use crate::toy::device;

/// Offers and gifts of one side to the other
#[derive(Clone, Debug)]
pub(super) struct Exchange(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    random: Random,
    now: u64,
    delay_max: u64,
    pool: Pool,
    /// Parcels that are there to be taken, by ticket
    parcels: HashMap<u64, Parcel>,
    next_ticket: u64,
    /// Memory of sends that are not over, by its address: what may be offered
    lent: HashMap<usize, Weak<Vec<u8>>>,
    /// How often of 100 a take is out of reach, and a gift refused
    unreachable: usize,
    refused: usize,
    /// Gifts that their receiver could not reach
    lost: usize,
    /// The next take finds its ticket broken
    is_broken: bool,
    /// Nothing of a device is taken from the sender any more
    refuses_devices: bool,
    /// The side that offers has ended
    is_over: bool,
}

#[derive(Clone, Debug)]
enum Parcel {
    Given(Segment),
    Offered(Weak<Vec<u8>>),
}

impl Exchange {
    pub(super) fn new(random: &mut Random, delay_max: u64, pool: &Pool, is_faulty: bool) -> Self {
        Self(Arc::new(Mutex::new(State {
            delay_max,
            pool: pool.clone(),
            parcels: HashMap::new(),
            next_ticket: random.bits() >> 1,
            lent: HashMap::new(),
            unreachable: if is_faulty { random.below(30) } else { 0 },
            refused: random.below(60),
            random: Random::new(random.bits()),
            now: 0,
            lost: 0,
            is_broken: false,
            refuses_devices: false,
            is_over: false,
        })))
    }

    /// Memory of the host that can be offered as long as it has a holder
    pub(super) fn lend(&self, bytes: Vec<u8>) -> Bytes {
        let bytes = Arc::new(bytes);
        let mut state = self.lock();
        state
            .lent
            .insert(bytes.as_ptr() as usize, Arc::downgrade(&bytes));
        drop(state);
        Bytes::from_owner(Owner(bytes))
    }

    pub(super) fn set_time(&self, now: u64) {
        self.lock().now = now;
    }

    pub(super) fn break_next(&self) {
        self.lock().is_broken = true;
    }

    pub(super) fn refuse_devices(&self) {
        self.lock().refuses_devices = true;
    }

    pub(super) fn end(&self) {
        self.lock().is_over = true;
    }

    /// Gifts that their receiver could not reach
    pub(super) fn lost(&self) -> usize {
        self.lock().lost
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Offers memory of the host, which its send keeps
    fn offer_host(&mut self, segment: &Segment) -> Option<u64> {
        let address = segment.host()?.as_ptr() as usize;
        let memory = self.lent.get(&address)?.clone();
        // Another segment may lie where one was that is gone.
        memory.upgrade()?;
        Some(self.ticket(Parcel::Offered(memory)))
    }

    fn ticket(&mut self, parcel: Parcel) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.parcels.insert(ticket, parcel);
        ticket
    }
}

/// Memory of a segment, which is gone when it has no holder
struct Owner(Arc<Vec<u8>>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// One end of a simulated carrier
pub(super) struct SimCarrier {
    pub(super) kind: CarrierKind,
    pub(super) ours: Exchange,
    pub(super) theirs: Exchange,
}

impl Carrier for SimCarrier {
    fn kind(&self) -> CarrierKind {
        self.kind
    }

    fn takes(&self) -> fn(MemoryKind) -> bool {
        match self.kind {
            CarrierKind::Lease | CarrierKind::SingleCopy => |kind| !kind.is_device(),
            // They are not simulated.
            CarrierKind::Ucx | CarrierKind::Cuda | CarrierKind::UcxCuda => |_| false,
            CarrierKind::Experimental => MemoryKind::is_device,
        }
    }

    fn offer(&mut self, segment: &Segment) -> Result<Option<u64>, String> {
        let mut state = self.ours.lock();
        Ok(match (self.kind, segment) {
            (CarrierKind::SingleCopy, _) => state.offer_host(segment),
            // As CUDA: sometimes it would have to be copied first.
            (CarrierKind::Experimental, Segment::Device(_)) if state.random.below(2) == 0 => {
                Some(state.ticket(Parcel::Given(segment.clone())))
            }
            _ => None,
        })
    }

    fn give(&mut self, segment: &Segment, is_asked: bool) -> Option<u64> {
        let mut state = self.ours.lock();
        let refused = state.refused;
        let is_given = match (self.kind, segment) {
            (CarrierKind::Lease, Segment::Exported(_)) => state.random.below(100) >= refused,
            (CarrierKind::Lease, Segment::Private(_)) => {
                is_asked && state.random.below(100) >= refused
            }
            (CarrierKind::Experimental, Segment::Device(_)) => !state.refuses_devices,
            _ => false,
        };
        // As a real one: it keeps what it needs, for as long as it takes.
        is_given.then(|| state.ticket(Parcel::Given(segment.clone())))
    }

    fn take(&mut self, ticket: u64, bytes: u64) -> Result<Box<dyn Payload>, TakeError> {
        let mut state = self.theirs.lock();
        if std::mem::take(&mut state.is_broken) {
            return Err(broken("it was to be broken"));
        }
        let parcel = state.parcels.remove(&ticket);
        let parcel = parcel.ok_or_else(|| broken("there is no such ticket"))?;
        let unreachable = state.unreachable;
        if state.random.below(100) < unreachable {
            return Err(state.out_of_reach(&parcel));
        }
        let parcel_bytes = match &parcel {
            Parcel::Given(segment) => segment.len() as u64,
            Parcel::Offered(memory) => match memory.upgrade() {
                Some(memory) => memory.len() as u64,
                None if state.is_over => bytes,
                None => panic!("ticket {ticket:#x} is taken after its send was over"),
            },
        };
        if parcel_bytes != bytes {
            return Err(broken("the size is another"));
        }
        let delay = state.delay();
        let ready_at = state.now + delay;
        drop(state);
        Ok(Box::new(SimPayload {
            parcel,
            at: 0,
            ready_at,
            exchange: self.theirs.clone(),
        }))
    }
}

impl State {
    fn delay(&mut self) -> u64 {
        let delay_max = self.delay_max as usize + 1;
        self.random.below(delay_max) as u64
    }

    fn out_of_reach(&mut self, parcel: &Parcel) -> TakeError {
        if matches!(parcel, Parcel::Given(_)) {
            self.lost += 1;
        }
        TakeError::OutOfReach {
            detail: "it was to be out of reach".to_owned(),
        }
    }
}

struct SimPayload {
    parcel: Parcel,
    at: usize,
    ready_at: u64,
    exchange: Exchange,
}

impl SimPayload {
    /// How many of `wanted` bytes come now
    fn ready(&mut self, wanted: usize) -> Result<usize, TakeError> {
        let mut state = self.exchange.lock();
        if state.now < self.ready_at {
            return Ok(0);
        }
        let unreachable = state.unreachable;
        if state.random.below(400) < unreachable {
            return Err(state.out_of_reach(&self.parcel));
        }
        let delay = state.delay();
        self.ready_at = state.now + delay;
        Ok(if state.random.below(3) == 0 {
            wanted
        } else {
            1 + state.random.below(wanted)
        })
    }

    /// The next bytes, to be copied by `copy`
    fn source(&mut self, target: &mut [u8]) -> Result<(), TakeError> {
        match &self.parcel {
            Parcel::Given(Segment::Device(memory)) => device::read(memory, self.at, target),
            Parcel::Given(Segment::Private(bytes) | Segment::Exported(bytes)) => {
                target.copy_from_slice(&bytes[self.at..self.at + target.len()]);
            }
            Parcel::Offered(memory) => match memory.upgrade() {
                Some(memory) => target.copy_from_slice(&memory[self.at..self.at + target.len()]),
                None if self.exchange.lock().is_over => {
                    return Err(TakeError::OutOfReach {
                        detail: "the peer has ended".to_owned(),
                    });
                }
                None => panic!("memory is read after its send was over"),
            },
        }
        self.at += target.len();
        Ok(())
    }
}

impl Payload for SimPayload {
    fn adopt(&mut self) -> Result<Option<PoolBuf>, TakeError> {
        let Parcel::Given(Segment::Private(bytes) | Segment::Exported(bytes)) = &self.parcel else {
            return Ok(None);
        };
        let mut state = self.exchange.lock();
        if state.random.below(2) == 0 {
            return Ok(None);
        }
        let mut memory = state.pool.take(bytes.len()).unwrap();
        memory.copy_from_slice(bytes);
        Ok(Some(memory))
    }

    fn read(&mut self, targets: &mut [IoSliceMut<'_>]) -> Result<usize, TakeError> {
        let wanted = targets.iter().map(|target| target.len()).sum();
        let ready = self.ready(wanted)?;
        let mut left = ready;
        for target in targets {
            let bytes = left.min(target.len());
            self.source(&mut target[..bytes])?;
            left -= bytes;
        }
        Ok(ready)
    }

    fn read_to_device(&mut self, target: &DeviceMemory) -> Result<usize, TakeError> {
        let ready = self.ready(target.len())?;
        let mut bytes = vec![0; ready];
        self.source(&mut bytes)?;
        device::write(target, 0, &bytes);
        Ok(ready)
    }
}

fn broken(detail: &str) -> TakeError {
    TakeError::Broken {
        detail: detail.to_owned(),
    }
}
