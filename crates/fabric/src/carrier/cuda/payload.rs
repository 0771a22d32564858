//! A segment in memory of a device of the peer, on its way here.

use std::any::Any;
use std::io::IoSliceMut;
use std::sync::{Arc, Mutex};

use backhaul_cuda::import::{ImportError, Importer};
use backhaul_cuda::{DevicePointer, Driver, Order, Place, Transfer, transfer};

use super::exchange::{Came, Exchange};
use super::packet::{Offered, Packet};
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
    Moving(Transfer),
    /// It is where it belongs
    Gone,
}

/// What has to stay open: a mapping, or nothing
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
        let doorbell = self.exchange.doorbell();
        let begun = Transfer::copy(driver, &from, &to, (keep, target.clone()), move || {
            doorbell.notify();
        });
        self.state = State::Moving(begun.map_err(out_of_reach)?);
        self.exchange.begin_move();
        Ok(())
    }
}

impl Payload for CudaPayload {
    fn is_here(&mut self) -> Result<bool, TakeError> {
        if let State::Awaited = self.state {
            match self.exchange.take(self.ticket) {
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
        }
        let State::Moving(transfer) = &self.state else {
            return Ok(0);
        };
        match transfer.is_over() {
            Ok(false) => Ok(0),
            Ok(true) => {
                self.state = State::Gone;
                self.exchange.end_move();
                Ok(target.len())
            }
            Err(error) => Err(out_of_reach(error)),
        }
    }
}

impl Drop for CudaPayload {
    fn drop(&mut self) {
        if let State::Moving(_) = self.state {
            self.exchange.end_move();
        }
        if let State::Awaited = self.state
            && let Some(Came::Offer { is_given, .. }) = self.exchange.take(self.ticket)
        {
            self.is_given = is_given;
        }
        // What a device still reads of it has been opened, and stays until it is through.
        if self.is_given {
            let ticket = self.ticket;
            self.exchange.outbox.post(&Packet::Returned { ticket });
        }
    }
}

fn out_of_reach(error: impl std::fmt::Display) -> TakeError {
    TakeError::OutOfReach {
        detail: error.to_string(),
    }
}
