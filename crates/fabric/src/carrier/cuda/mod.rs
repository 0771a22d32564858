//! The CUDA carrier: memory of a device is opened by the receiver, whose device copies it.
//!
//! The sender offers a segment where it lies, by a handle of its allocation, when the work that its
//! producer has put on a stream is done; no thread waits for that. The receiver has a device copy
//! the segment to its place, after the earlier work on that place, and then says that it has the
//! segment. A segment that cannot be shared, or that has to be given away, is copied into memory
//! that can be shared. Between contexts of one process, where no handle opens, an address does.
//!
//! Handles and descriptors go on a separate socket ([`exchange`]); the ticket on the lane names
//! them. The ticket itself names an allocation that the peer knows already ([`slots`]).
//! The memory belongs to the send until the receiver has it, or has gone. See docs/design/cuda.md.

mod allocator;
mod exchange;
mod packet;
mod payload;
mod slots;
mod ways;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use backhaul_cuda::export::Exporter;
use backhaul_cuda::import::Importer;
use backhaul_cuda::{Allocation, Driver, Export, Order, Place, Transfer, transfer};
use backhaul_proto::{CarrierKind, Device, MemoryKind, Vendor};
use backhaul_shm::doorbell::Doorbell;

use self::exchange::{Exchange, Outbox};
use self::packet::{Offered, Packet};
use self::payload::{CudaPayload, PATIENCE};
use self::slots::{Naming, Slots, Ticket};
use super::{Carrier, Payload, TakeError};
use crate::cuda::{CudaMemoryError, STREAM_LEGACY, set_settled};
use crate::memory::{DeviceMemory, Segment};
use crate::runtime::{Engine, lock};

pub(crate) use self::allocator::CudaAllocator;
pub use self::exchange::CudaPackets;

/// Moves memory of NVIDIA's devices between processes of one host
pub(crate) struct CudaCarrier {
    exchange: Arc<Exchange>,
    exporter: Exporter,
    importer: Arc<Mutex<Importer>>,
    /// Allocations that the peer knows
    slots: Slots,
}

impl CudaCarrier {
    /// Has the engine watch the socket
    pub(crate) fn start(
        engine: &Arc<Engine>,
        socket: OwnedFd,
        doorbell: Doorbell,
        is_same_process: bool,
    ) -> io::Result<Self> {
        Ok(Self {
            exchange: Exchange::start(engine, socket, doorbell, is_same_process)?,
            exporter: Exporter::default(),
            importer: Arc::default(),
            slots: Slots::default(),
        })
    }

    /// Lets the peer have a segment, which stays as it is meanwhile unless it is given
    fn hand_over(&mut self, memory: &DeviceMemory, is_given: bool) -> Result<u64, CudaMemoryError> {
        let driver = Driver::get()?;
        let bytes = memory.len() as u64;
        let allocation = Allocation::of(driver, memory.pointer(), bytes)?;
        let place = Place {
            memory: allocation.part(memory.pointer(), bytes),
            order: memory.stream().map_or(Order::Any, Order::After),
        };
        let shared = match is_given {
            true => None,
            false => self.share(driver, &allocation, memory.pointer())?,
        };
        let is_ready = shared.is_some() && transfer::is_ready(driver, &place)?;
        let naming = match shared.as_ref().filter(|_| is_ready) {
            Some(Offered::Local(address)) => {
                Ticket::local(*address).map_or(Naming::Unnamed, Naming::Known)
            }
            Some(Offered::Exported(export)) => self.slots.name(export),
            None => Naming::Unnamed,
        };
        let slot = match naming {
            Naming::Known(ticket) => return Ok(ticket),
            Naming::Named(slot) => Some(slot),
            Naming::Unnamed => None,
        };
        let (ticket, lowest) = self.exchange.next_ticket();
        let offer = |place: Offered| Packet::Offer {
            ticket,
            lowest,
            bytes,
            is_given,
            slot,
            place,
        };
        let outbox = Arc::clone(&self.exchange.outbox);
        let transfer = match shared {
            Some(offered) if is_ready => {
                outbox.post(&offer(offered));
                None
            }
            Some(offered) => {
                let produced = Transfer::after(driver, &place, ())?;
                produced.tell(post_later(outbox, offer(offered)))?;
                Some(produced)
            }
            None => {
                let staged = self.stage(driver, memory, &place, offer)?;
                if is_given {
                    set_settled(memory, false);
                    // The send is over now, and its memory may be written to while it is copied:
                    // by work on its stream, which waits.
                    let stream = memory.stream().unwrap_or(STREAM_LEGACY);
                    staged.precede(place.memory.device(), stream)?;
                }
                Some(staged)
            }
        };
        self.exchange.hold(ticket, transfer, is_given);
        Ok(ticket)
    }

    /// How the peer opens an allocation, if it can
    fn share(
        &mut self,
        driver: &'static Driver,
        allocation: &Allocation,
        pointer: u64,
    ) -> Result<Option<Offered>, CudaMemoryError> {
        if self.exchange.is_same_process {
            return Ok(Some(Offered::Local(pointer)));
        }
        match self.exporter.export(driver, allocation, pointer) {
            Ok(export) => Ok(export.map(Offered::Exported)),
            Err(error) => {
                tracing::debug!(%error, "memory of a device cannot be shared; it is copied first");
                Ok(None)
            }
        }
    }

    /// Copies a segment to memory that can be shared, and offers that
    fn stage(
        &mut self,
        driver: &'static Driver,
        memory: &DeviceMemory,
        from: &Place,
        offer: impl FnOnce(Offered) -> Packet,
    ) -> Result<Transfer, CudaMemoryError> {
        let device = driver.device(from.memory.device());
        let device = device.expect("memory that was looked at is of a device");
        let block = device.arena(driver).take(from.memory.bytes())?;
        let allocation = Allocation::of(driver, block.address(), block.bytes())?;
        let export: Option<Export> = match self.exchange.is_same_process {
            true => None,
            false => self.exporter.export(driver, &allocation, block.address())?,
        };
        let offered = export.map_or(Offered::Local(block.address()), Offered::Exported);
        let to = Place {
            memory: allocation.part(block.address(), block.bytes()),
            // As for memory that is allocated for others: it may have been theirs.
            order: Order::After(STREAM_LEGACY),
        };
        // Where it is given, nothing else keeps the memory.
        let kept = (block, memory.clone());
        let staged = Transfer::copy(driver, from, &to, kept)?;
        staged.tell(post_later(
            Arc::clone(&self.exchange.outbox),
            offer(offered),
        ))?;
        Ok(staged)
    }
}

impl Carrier for CudaCarrier {
    fn kind(&self) -> CarrierKind {
        CarrierKind::Cuda
    }

    fn takes(&self) -> fn(MemoryKind) -> bool {
        |memory| matches!(memory, MemoryKind::Device(Device { vendor, .. }) if vendor == Vendor::Nvidia)
    }

    fn offer(&mut self, segment: &Segment) -> Result<Option<u64>, String> {
        match segment {
            Segment::Device(memory) => {
                let offered = self.hand_over(memory, false);
                offered.map(Some).map_err(|error| error.to_string())
            }
            Segment::Private(_) | Segment::Exported(_) => Ok(None),
        }
    }

    fn handle_offer_over(&mut self, ticket: u64) {
        match Ticket::decode(ticket) {
            Ticket::Counted(ticket) => self.exchange.release(ticket),
            Ticket::Known(slot, _) => self.slots.release(slot),
            Ticket::Local(_) => {}
        }
    }

    fn give(&mut self, segment: &Segment, _is_asked: bool) -> Option<u64> {
        let Segment::Device(memory) = segment else {
            return None;
        };
        Some(self.hand_over(memory, true).unwrap_or_else(|error| {
            // The peer waits for it: its receive is to fail, and not the connection.
            let (ticket, _) = self.exchange.next_ticket();
            let detail = error.to_string();
            let failed = Packet::Failed { ticket, detail };
            self.exchange.outbox.post(&failed);
            ticket
        }))
    }

    fn patience(&self) -> Duration {
        let is_awaited = self.slots.is_any_outstanding() || self.exchange.is_anything_held();
        if is_awaited { PATIENCE } else { Duration::ZERO }
    }

    fn take(&mut self, ticket: u64, bytes: u64) -> Result<Box<dyn Payload>, TakeError> {
        Ok(Box::new(CudaPayload::new(
            Arc::clone(&self.exchange),
            Arc::clone(&self.importer),
            ticket,
            bytes,
        )))
    }
}

impl Drop for CudaCarrier {
    fn drop(&mut self) {
        self.exchange.leave();
        // Payloads under way keep the objects that they use.
        drop(std::mem::take(&mut *lock(&self.importer)));
    }
}

/// Sends a packet, from a thread of the driver
fn post_later(outbox: Arc<Outbox>, packet: Packet) -> impl FnOnce() + Send + 'static {
    move || outbox.post(&packet)
}
