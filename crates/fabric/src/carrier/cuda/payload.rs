//! A segment in memory of a device of the peer, on its way here.

use std::any::Any;
use std::io::IoSliceMut;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use backhaul_cuda::import::{ImportError, Importer};
use backhaul_cuda::{
    CudaError, Detour, Device, DevicePointer, Driver, Order, Place, Stage, Transfer, transfer,
};

use super::exchange::{Came, Exchange};
use super::packet::{Offered, Packet};
use super::ways::Way;
use crate::carrier::{Payload, TakeError};
use crate::cuda::place_of;
use crate::memory::DeviceMemory;
use crate::runtime::lock;

/// A segment that the peer has offered or given
pub(super) struct CudaPayload {
    exchange: Arc<Exchange>,
    importer: Arc<Mutex<Importer>>,
    ticket: u64,
    bytes: u64,
    is_given: bool,
    state: State,
}

enum State {
    /// The peer has announced it, and its device is still writing it
    Awaited,
    /// It can be opened
    Here(Offered),
    /// It is open, and read up to some byte
    Open {
        memory: DevicePointer,
        _keep: Keep,
        at: u64,
    },
    /// A device is copying it
    Moving(Moving),
    /// It is where it belongs
    Gone,
}

/// A copy that is under way
struct Moving {
    transfer: Transfer,
    /// Its place among those that a device makes here
    number: u64,
    /// The way it takes, if it is to be learned how long that is
    way: Option<Way>,
    begun_at: Instant,
    /// When the device was last asked for it
    asked_at: Instant,
    /// The doorbell is going to be rung
    is_armed: bool,
}

/// Mapping that has to stay open, or nothing
type Keep = Option<Arc<dyn Any + Send + Sync>>;

impl CudaPayload {
    pub(super) fn new(
        exchange: Arc<Exchange>,
        importer: Arc<Mutex<Importer>>,
        ticket: u64,
        bytes: u64,
    ) -> Self {
        Self {
            exchange,
            importer,
            ticket,
            bytes,
            is_given: false,
            state: State::Awaited,
        }
    }

    /// Opens it, for a device of this process
    fn open(&self, offered: &Offered, reader: u16) -> Result<(DevicePointer, Keep), TakeError> {
        match offered {
            Offered::Local(_) if !self.exchange.is_same_process => {
                let detail = "an address of another process".to_owned();
                Err(TakeError::Broken { detail })
            }
            Offered::Local(address) => {
                let driver = Driver::get().map_err(out_of_reach)?;
                let memory = DevicePointer::of(driver, *address, self.bytes);
                Ok((memory.map_err(out_of_reach)?, None))
            }
            Offered::Exported(export) => {
                let mapping = lock(&self.importer).open(export, self.bytes, reader);
                let mapping = mapping.map_err(|error| match error {
                    ImportError::OutOfRange { .. } => TakeError::Broken {
                        detail: error.to_string(),
                    },
                    other => out_of_reach(other),
                })?;
                let memory = mapping.part(export.offset, self.bytes);
                Ok((memory.map_err(out_of_reach)?, Some(mapping)))
            }
        }
    }

    /// Has the device copy it to a place
    fn begin(&mut self, offered: &Offered, target: &DeviceMemory) -> Result<(), TakeError> {
        let driver = Driver::get().map_err(out_of_reach)?;
        let (memory, keep) = self.open(offered, target.device().ordinal)?;
        let from = Place {
            memory,
            order: Order::Any,
        };
        let to = place_of(driver, target).map_err(out_of_reach)?;
        let kept = (keep, target.clone());
        let way = match is_within(driver, offered, &from, &to) {
            true => self.exchange.choose_way(self.bytes),
            false => None,
        };
        // How long it takes says nothing if its stream has to be waited for.
        let way = way.filter(|_| transfer::is_ready(driver, &to) == Ok(true));
        let by_host = match way {
            Some(Way::ByHost) => self.begin_by_host(driver, &from, &to, &kept),
            _ => None,
        };
        let (way, begun_at, transfer) = match by_host {
            Some((begun_at, transfer)) => (way, begun_at, transfer),
            None => {
                let begun_at = Instant::now();
                let begun = Transfer::copy(driver, &from, &to, kept);
                let transfer = begun.map_err(out_of_reach)?;
                (way.map(|_| Way::Direct), begun_at, transfer)
            }
        };
        self.state = State::Moving(Moving {
            transfer,
            number: self.exchange.begin_move(),
            way,
            begun_at,
            asked_at: begun_at,
            is_armed: false,
        });
        Ok(())
    }

    /// Has the device copy it by way of the host, if that can be done
    fn begin_by_host(
        &self,
        driver: &'static Driver,
        from: &Place,
        to: &Place,
        kept: &(Keep, DeviceMemory),
    ) -> Option<(Instant, Transfer)> {
        let detour = Detour::of(self.bytes)?;
        let device = driver.device(to.memory.device())?;
        let begin = || -> Result<_, CudaError> {
            let Some(stage) = Stage::take(driver, device)? else {
                return Ok(None);
            };
            let begun_at = Instant::now();
            let transfer = Transfer::by_host(driver, from, to, detour, stage, kept.clone())?;
            Ok(Some((begun_at, transfer)))
        };
        match begin() {
            Ok(begun) => begun,
            Err(error) => {
                tracing::debug!(%error, "a device does not copy by way of the host");
                self.exchange.forbid_host();
                None
            }
        }
    }
}

impl Moving {
    /// Looks whether the device has finished
    ///
    /// Asking takes the driver 0.2 us or more, and of several copies the first ends first: it is asked for
    /// the others now and then.
    fn check_over(&mut self, exchange: &Exchange) -> Result<bool, TakeError> {
        if self.transfer.is_known() {
            return Ok(true);
        }
        let is_first = exchange.first_move() == Some(self.number);
        if !is_first && self.asked_at.elapsed() < ASK_INTERVAL {
            return Ok(false);
        }
        self.asked_at = Instant::now();
        self.transfer.ask_over().map_err(out_of_reach)
    }

    /// Records how long it took, if a caller has looked all the while
    fn learn(&self, exchange: &Exchange, bytes: u64) {
        if let Some(way) = self.way.filter(|_| !self.is_armed) {
            exchange.learn_way(way, bytes, self.begun_at.elapsed());
        }
    }

    /// Has the connection woken when it is over
    fn arm(&mut self, exchange: &Exchange, bytes: u64) {
        if self.is_armed || self.transfer.is_known() {
            return;
        }
        self.is_armed = true;
        if let Some(way) = self.way {
            exchange.learn_at_least(way, bytes, self.begun_at.elapsed());
        }
        let doorbell = exchange.doorbell();
        // The next look reports a device that has failed; the engine looks from time to time.
        if let Err(error) = self.transfer.tell(move || doorbell.notify()) {
            tracing::debug!(%error, "a device does not say when it has finished");
        }
    }
}

impl Payload for CudaPayload {
    fn check_here(&mut self) -> Result<bool, TakeError> {
        if let State::Awaited = self.state {
            match self.exchange.take(self.ticket, self.bytes) {
                None => return Ok(false),
                Some(Came::Failed(detail)) => return Err(TakeError::OutOfReach { detail }),
                Some(Came::Offer {
                    bytes,
                    is_given,
                    place,
                }) => {
                    self.is_given = is_given;
                    if bytes != self.bytes {
                        let detail =
                            format!("{bytes} bytes offered where {} were said", self.bytes);
                        return Err(TakeError::Broken { detail });
                    }
                    self.state = State::Here(place);
                }
            }
        }
        Ok(true)
    }

    fn read(&mut self, targets: &mut [IoSliceMut<'_>]) -> Result<usize, TakeError> {
        let driver = Driver::get().map_err(out_of_reach)?;
        if let State::Here(offered) = &self.state {
            let (memory, keep) = self.open(offered, 0)?;
            let at = 0;
            self.state = State::Open {
                memory,
                _keep: keep,
                at,
            };
        }
        let State::Open {
            memory,
            _keep: _,
            at,
        } = &mut self.state
        else {
            return Ok(0);
        };
        let mut read = 0;
        for target in targets {
            let bytes = (target.len() as u64).min(self.bytes - *at);
            let from = Place {
                memory: memory.part(*at, bytes),
                order: Order::Any,
            };
            transfer::read(driver, &from, target).map_err(out_of_reach)?;
            *at += bytes;
            read += bytes as usize;
        }
        Ok(read)
    }

    fn read_to_device(&mut self, target: &DeviceMemory) -> Result<usize, TakeError> {
        if let State::Here(_) = &self.state {
            let State::Here(offered) = std::mem::replace(&mut self.state, State::Gone) else {
                return Ok(0);
            };
            self.begin(&offered, target)?;
            // No copy is over as soon as that.
            return Ok(0);
        }
        let State::Moving(moving) = &mut self.state else {
            return Ok(0);
        };
        if !moving.check_over(&self.exchange)? {
            return Ok(0);
        }
        moving.learn(&self.exchange, self.bytes);
        self.exchange.end_move(moving.number);
        self.state = State::Gone;
        Ok(target.len())
    }

    fn arm(&mut self) {
        if let State::Moving(moving) = &mut self.state {
            moving.arm(&self.exchange, self.bytes);
        }
    }

    fn patience(&self) -> Duration {
        PATIENCE
    }
}

impl Drop for CudaPayload {
    fn drop(&mut self) {
        if let State::Moving(moving) = &self.state {
            self.exchange.end_move(moving.number);
        }
        if let State::Awaited = self.state
            && let Some(Came::Offer { is_given, .. }) = self.exchange.take(self.ticket, self.bytes)
        {
            self.is_given = is_given;
        }
        // Memory that a device still reads has been opened, and stays until the device has
        // finished.
        if self.is_given {
            let ticket = self.ticket;
            self.exchange.outbox.post(&Packet::Returned { ticket });
        }
    }
}

/// Returns whether a device copies within itself, in one context
fn is_within(driver: &Driver, offered: &Offered, from: &Place, to: &Place) -> bool {
    let Offered::Exported(export) = offered else {
        // Memory of this process: its copies need not make way for other processes.
        return false;
    };
    // Memory of a device that this process does not see is opened by another device.
    let seen = driver.find(export.device).map(Device::ordinal);
    seen == Some(to.memory.device()) && from.memory.context() == to.memory.context()
}

fn out_of_reach(error: impl std::fmt::Display) -> TakeError {
    TakeError::OutOfReach {
        detail: error.to_string(),
    }
}

/// How often a device is asked for copies that are not the first
const ASK_INTERVAL: Duration = Duration::from_micros(50);

/// How long the other side is waited for awake beyond what the bytes take: its thread may have to be woken,
/// by a thread of the driver that has to be woken, too
pub(super) const PATIENCE: Duration = Duration::from_micros(300);
