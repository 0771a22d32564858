//! The carrier over rendezvous of UCX for memory of NVIDIA's devices, whose addresses UCX gets.
//!
//! Where a libucp has its module for CUDA it moves such memory by itself: by way of the host, straight
//! out of a network card (GPUDirect), or over NVLink, as it finds best. UCX does not know streams,
//! so a segment is offered when the work that its producer has put on a stream is done, and fetched
//! when the work that the consumer has put on its own is done. No thread waits for either
//! ([`departures`](super::departures)).
//!
//! A segment that has to be given away is copied on the device first, as the program may write to
//! its memory then.

use std::any::Any;
use std::io::{self, IoSliceMut};
use std::sync::{Arc, Mutex};

use backhaul_cuda::memory::MemoryError;
use backhaul_cuda::{Allocation, DevicePointer, Driver, Order, Place, Transfer, transfer};
use backhaul_proto::{CarrierKind, Device, MemoryKind, Vendor};
use backhaul_shm::pool::{Pool, PoolBuf};
use backhaul_ucx::{DeviceRange, Offer};

use super::departures::{Departure, Departures};
use super::{Landing, Tickets, check_bytes, handle_offer_over, receive_on_host};
use crate::carrier::{Carrier, Payload, TakeError};
use crate::cuda::{CudaMemoryError, STREAM_LEGACY, place_of, set_settled, upload};
use crate::memory::{DeviceMemory, Segment};
use crate::runtime::{Engine, lock};
use crate::ucx::UcxEnd;

/// Offers segments of devices to the peer, and fetches its own
pub(crate) struct UcxCudaCarrier {
    end: Arc<UcxEnd>,
    pool: Pool,
    tickets: Arc<Tickets>,
    departures: Arc<Departures>,
}

impl UcxCudaCarrier {
    /// Has the engine listen for devices
    pub(crate) fn start(
        engine: &Arc<Engine>,
        end: Arc<UcxEnd>,
        pool: Pool,
        tickets: Arc<Tickets>,
    ) -> io::Result<Self> {
        let departures = Departures::start(engine, Arc::clone(&end), Arc::clone(&tickets))?;
        Ok(Self {
            end,
            pool,
            tickets,
            departures,
        })
    }

    /// Offers a segment where it lies, now or once its producer's stream has got so far
    fn offer_in_place(&self, memory: &DeviceMemory) -> Result<u64, CudaMemoryError> {
        let driver = Driver::get()?;
        let place = looked_at(driver, memory)?;
        let is_ready = transfer::is_ready(driver, &place)?;
        let departure = Departure {
            memory: place.memory,
            keep: Box::new(memory.clone()),
        };
        let ticket = self.tickets.open();
        if is_ready {
            self.departures.offer(ticket, departure);
            return Ok(ticket);
        }
        let transfer = Transfer::after(driver, &place, ());
        let transfer = transfer.inspect_err(|_| self.tickets.close(ticket))?;
        self.departures
            .offer_later(ticket, departure, transfer, false)?;
        Ok(ticket)
    }

    /// Offers a copy of a segment, made on its device
    fn offer_copy(&self, memory: &DeviceMemory, ticket: u64) -> Result<(), CudaMemoryError> {
        let driver = Driver::get()?;
        let from = looked_at(driver, memory)?;
        let number = from.memory.device();
        let device = driver.device(number);
        let device = device.expect("memory that was looked at is of a device");
        let block = device.arena(driver).take(from.memory.bytes())?;
        let copy = Allocation::of(driver, block.address(), block.bytes())?;
        let copy = copy.part(block.address(), from.memory.bytes());
        let to = Place {
            memory: copy,
            // As for memory that is allocated for others: it may have been theirs.
            order: Order::After(STREAM_LEGACY),
        };
        let transfer = Transfer::copy(driver, &from, &to, memory.clone())?;
        set_settled(memory, false);
        // The send is over now, and its memory may be written to while it is copied: by work on its
        // stream, which waits.
        transfer.precede(number, memory.stream().unwrap_or(STREAM_LEGACY))?;
        let departure = Departure {
            memory: copy,
            keep: Box::new(block),
        };
        self.departures
            .offer_later(ticket, departure, transfer, true)?;
        Ok(())
    }
}

impl Carrier for UcxCudaCarrier {
    fn kind(&self) -> CarrierKind {
        CarrierKind::UcxCuda
    }

    fn takes(&self) -> fn(MemoryKind) -> bool {
        |memory| matches!(memory, MemoryKind::Device(Device { vendor, .. }) if vendor == Vendor::Nvidia)
    }

    fn offer(&mut self, segment: &Segment) -> Result<Option<u64>, String> {
        match segment {
            Segment::Device(memory) => {
                let offered = self.offer_in_place(memory);
                offered.map(Some).map_err(|error| error.to_string())
            }
            Segment::Private(_) | Segment::Exported(_) => Ok(None),
        }
    }

    fn handle_offer_over(&mut self, ticket: u64) {
        handle_offer_over(&self.end, &self.tickets, ticket);
    }

    fn give(&mut self, segment: &Segment, _is_asked: bool) -> Option<u64> {
        let Segment::Device(memory) = segment else {
            return None;
        };
        let ticket = self.tickets.open();
        if let Err(error) = self.offer_copy(memory, ticket) {
            // The peer waits for it: its receive is to fail, and not the connection.
            self.departures.refuse(ticket, &error.to_string());
        }
        Some(ticket)
    }

    fn take(&mut self, ticket: u64, bytes: u64) -> Result<Box<dyn Payload>, TakeError> {
        Ok(Box::new(UcxCudaPayload {
            end: Arc::clone(&self.end),
            pool: self.pool.clone(),
            departures: Arc::clone(&self.departures),
            ticket,
            bytes,
            state: State::Awaited,
        }))
    }
}

impl Drop for UcxCudaCarrier {
    fn drop(&mut self) {
        self.departures.leave();
    }
}

/// A segment that the peer has offered or given
struct UcxCudaPayload {
    end: Arc<UcxEnd>,
    pool: Pool,
    departures: Arc<Departures>,
    ticket: u64,
    bytes: u64,
    state: State,
}

enum State {
    /// The offer has not come: the peer's device is still writing
    Awaited,
    /// It can be fetched
    Offered(Offer),
    /// The memory to be written to is still in use
    Landing(Offer, Transfer, Place),
    /// It is on its way to memory of a device
    ToDevice(Arc<DeviceLanding>),
    /// It is on its way to memory of the host
    ToHost(Arc<Landing>),
    /// It is in memory of the host, and read up to some place
    Here(PoolBuf, usize),
    /// It is where it belongs, or nowhere
    Gone,
}

/// Where an operation leaves what became of it
type DeviceLanding = Mutex<Option<Result<(), String>>>;

impl UcxCudaPayload {
    /// Fetches to memory of a device, when its stream has got so far
    fn begin(&mut self, offer: Offer, target: &DeviceMemory) -> Result<(), TakeError> {
        let driver = Driver::get().map_err(out_of_reach)?;
        let place = place_of(driver, target).map_err(out_of_reach)?;
        if transfer::is_ready(driver, &place).map_err(out_of_reach)? {
            self.fetch(offer, place.memory, target);
            return Ok(());
        }
        let inbox = Arc::clone(&self.end.inbox);
        let landing = Transfer::after(driver, &place, ()).map_err(out_of_reach)?;
        let told = landing.tell(move || inbox.notify());
        told.map_err(out_of_reach)?;
        self.state = State::Landing(offer, landing, place);
        self.departures.begin_landing();
        Ok(())
    }

    fn fetch(&mut self, offer: Offer, memory: DevicePointer, target: &DeviceMemory) {
        let range = DeviceRange {
            address: memory.address(),
            bytes: offer.bytes(),
        };
        let landing = Arc::new(DeviceLanding::default());
        self.state = State::ToDevice(Arc::clone(&landing));
        let inbox = Arc::clone(&self.end.inbox);
        let operation = self.end.hub.begin_device_operation(memory);
        let _current = operation.enter();
        let keep: Box<dyn Any + Send> = Box::new(target.clone());
        offer.receive_on_device(range, keep, move |outcome| {
            drop(operation);
            *lock(&landing) = Some(outcome.map(drop).map_err(|status| status.to_string()));
            inbox.notify();
        });
    }
}

impl Payload for UcxCudaPayload {
    fn check_here(&mut self) -> Result<bool, TakeError> {
        if let State::Awaited = self.state {
            let inbox = &self.end.inbox;
            if let Some(detail) = inbox.take_failed(self.ticket) {
                return Err(TakeError::OutOfReach { detail });
            }
            let Some(offer) = inbox.take_offer(self.ticket) else {
                return Ok(false);
            };
            check_bytes(&offer, self.bytes)?;
            self.state = State::Offered(offer);
        }
        Ok(true)
    }

    fn read(&mut self, targets: &mut [IoSliceMut<'_>]) -> Result<usize, TakeError> {
        if let State::Offered(_) = &self.state {
            let State::Offered(offer) = std::mem::replace(&mut self.state, State::Gone) else {
                return Ok(0);
            };
            self.state = State::ToHost(receive_on_host(offer, &self.pool, &self.end.inbox)?);
        }
        if let State::ToHost(landing) = &self.state {
            let landed = lock(landing).take();
            match landed {
                None => return Ok(0),
                Some(Ok(memory)) => self.state = State::Here(memory, 0),
                Some(Err(detail)) => return Err(TakeError::OutOfReach { detail }),
            }
        }
        let State::Here(memory, at) = &mut self.state else {
            return Err(TakeError::OutOfReach {
                detail: "it was on its way to a device".to_owned(),
            });
        };
        let start = *at;
        for target in targets {
            let bytes = target.len().min(memory.len() - *at);
            target[..bytes].copy_from_slice(&memory[*at..*at + bytes]);
            *at += bytes;
        }
        Ok(*at - start)
    }

    fn read_to_device(&mut self, target: &DeviceMemory) -> Result<usize, TakeError> {
        match std::mem::replace(&mut self.state, State::Gone) {
            State::Offered(offer) => self.begin(offer, target)?,
            State::Landing(offer, transfer, place) => match transfer.ask_over() {
                Ok(false) => {
                    self.state = State::Landing(offer, transfer, place);
                    return Ok(0);
                }
                Ok(true) => {
                    self.departures.end_landing();
                    self.fetch(offer, place.memory, target);
                }
                Err(error) => {
                    self.departures.end_landing();
                    return Err(out_of_reach(error));
                }
            },
            State::Here(memory, at) => {
                upload(&memory[at..], target).map_err(out_of_reach)?;
                return Ok(memory.len() - at);
            }
            other => self.state = other,
        }
        let State::ToDevice(landing) = &self.state else {
            return Ok(0);
        };
        let landed = lock(landing).take();
        match landed {
            None => Ok(0),
            Some(Ok(())) => {
                self.state = State::Gone;
                Ok(target.len())
            }
            Some(Err(detail)) => Err(TakeError::OutOfReach { detail }),
        }
    }
}

impl Drop for UcxCudaPayload {
    fn drop(&mut self) {
        if let State::Landing(..) = self.state {
            self.departures.end_landing();
        }
    }
}

/// Where memory is, which the driver still has: UCX does not ask whether it was freed since
fn looked_at(driver: &Driver, memory: &DeviceMemory) -> Result<Place, MemoryError> {
    let (pointer, bytes) = (memory.pointer(), memory.len() as u64);
    let allocation = Allocation::of(driver, pointer, bytes)?;
    Ok(Place {
        memory: allocation.part(pointer, bytes),
        ..place_of(driver, memory)?
    })
}

fn out_of_reach(error: impl std::fmt::Display) -> TakeError {
    TakeError::OutOfReach {
        detail: error.to_string(),
    }
}
