//! Payload of accepted messages that carriers bring, on its way to where it stays.

use std::io;
use std::time::Duration;

use super::{Port, READ_BYTES_MAX};
use crate::carrier::{Payload, TakeError};
use crate::link::{Now, TakeId, TakeRequest, TakeTarget};

/// Payload that a carrier is bringing
pub(super) struct Incoming {
    request: TakeRequest,
    payload: Box<dyn Payload>,
    /// It was not there yet when it was last looked at
    is_awaited: bool,
}

impl Port {
    /// Has carriers bring some of what they are to bring, returning how many bytes
    #[inline]
    pub(super) fn take_some(&mut self) -> usize {
        if self.payloads.is_empty() && !self.link.has_takes_due() {
            return 0;
        }
        self.take_due()
    }

    pub(super) fn take_due(&mut self) -> usize {
        let mut total = 0;
        loop {
            while let Some(request) = self.link.poll_take() {
                self.begin_take(request);
            }
            if self.payloads.is_empty() || total >= READ_BYTES_MAX {
                return total;
            }
            // Oldest first: what is there at once comes in the order in which it was asked for.
            let mut moved = 0;
            let mut index = 0;
            while index < self.payloads.len() && moved < TAKE_BYTES_MAX {
                let (bytes, is_over) = self.take_from(index);
                moved += bytes;
                if is_over {
                    self.payloads.remove(index);
                } else if bytes == 0 {
                    // It is under way by itself: others may be ready.
                    index += 1;
                }
            }
            total += moved;
            if moved == 0 {
                return total;
            }
        }
    }

    /// Has what is under way by itself wake the connection when it is there
    pub(super) fn arm_payloads(&mut self) {
        for incoming in &mut self.payloads {
            incoming.payload.arm();
        }
    }

    /// How long what carriers move is waited for awake, beyond what its bytes take
    pub(super) fn patience(&self) -> Duration {
        let payloads = self.payloads.iter();
        let here = payloads.map(|incoming| incoming.payload.patience()).max();
        here.unwrap_or_default().max(self.carriers.patience())
    }

    fn begin_take(&mut self, request: TakeRequest) {
        let taken = self
            .carriers
            .take(request.carrier, request.ticket, request.bytes);
        let mut payload = match taken {
            Ok(payload) => payload,
            Err(error) => return self.handle_take_error(&request, error),
        };
        match self.adopt(&request, &mut *payload) {
            Ok(Adopted::Whole) => {}
            Ok(outcome) => self.payloads.push_back(Incoming {
                request,
                payload,
                is_awaited: outcome == Adopted::NotHere,
            }),
            Err(error) => self.handle_take_error(&request, error),
        }
    }

    /// Makes the memory of a payload that of its message, if it is here and may be
    fn adopt(
        &mut self,
        request: &TakeRequest,
        payload: &mut dyn Payload,
    ) -> Result<Adopted, TakeError> {
        if !payload.check_here()? {
            return Ok(Adopted::NotHere);
        }
        if self.link.wants_whole(request.id)
            && let Some(memory) = payload.adopt()?
        {
            self.link.handle_adopted(&Now::lazy(), request.id, memory);
            return Ok(Adopted::Whole);
        }
        Ok(Adopted::No)
    }

    /// Looks again for a payload that was not there, returning whether it can be read now
    fn look_for(&mut self, index: usize) -> Result<Adopted, TakeError> {
        let Incoming {
            request, payload, ..
        } = &mut self.payloads[index];
        let request = *request;
        let mut payload = std::mem::replace(payload, Box::new(Nothing));
        let outcome = self.adopt(&request, &mut *payload);
        self.payloads[index].payload = payload;
        self.payloads[index].is_awaited = matches!(outcome, Ok(Adopted::NotHere));
        outcome
    }

    /// Moves one payload on, returning how many bytes and whether it is over
    fn take_from(&mut self, index: usize) -> (usize, bool) {
        if self.payloads[index].is_awaited {
            match self.look_for(index) {
                Ok(Adopted::NotHere) => return (0, false),
                Ok(Adopted::Whole) => return (1, true),
                Ok(Adopted::No) => {}
                Err(error) => {
                    let request = self.payloads[index].request;
                    self.handle_take_error(&request, error);
                    return (1, true);
                }
            }
        }
        let Incoming {
            request, payload, ..
        } = &mut self.payloads[index];
        let id: TakeId = request.id;
        let read = {
            match self.link.take_target(id, TAKE_BYTES_MAX) {
                TakeTarget::Host(mut targets) => Some(payload.read(&mut targets)),
                TakeTarget::Device(memory) => Some(payload.read_to_device(&memory)),
                TakeTarget::Nowhere => None,
            }
        };
        let Some(read) = read else {
            // Its receive is gone: what is not read is given back.
            let left = self.link.take_left(id);
            self.link.handle_taken(&Now::lazy(), id, left);
            return (usize::try_from(left).unwrap_or(usize::MAX).max(1), true);
        };
        match read {
            Ok(bytes) => {
                let is_over = self.link.take_left(id) == bytes as u64;
                if is_over
                    && request.is_fetch
                    && let Some(detail) = self.interest.sentinel_ended()
                {
                    let request = *request;
                    self.handle_take_error(&request, TakeError::OutOfReach { detail });
                    return (1, true);
                }
                if is_over {
                    // Before the event: its receiver may ask whether the lease has been returned.
                    *payload = Box::new(Nothing);
                }
                self.link.handle_taken(&Now::lazy(), id, bytes as u64);
                (bytes, is_over || !self.link.is_taking_it(id))
            }
            Err(error) => {
                let request = *request;
                self.handle_take_error(&request, error);
                (1, true)
            }
        }
    }

    fn handle_take_error(&mut self, request: &TakeRequest, error: TakeError) {
        match error {
            TakeError::Broken { detail } => self.link.handle_bad_ticket(request.ticket, detail),
            TakeError::OutOfReach { detail } => {
                tracing::debug!(detail, "payload is out of a carrier's reach");
                self.link
                    .handle_take_failed(&Now::lazy(), request.id, detail);
            }
        }
    }
}

/// Outcome for the memory of a payload
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Adopted {
    /// It is that of the message
    Whole,
    /// It is to be read
    No,
    /// It has not come
    NotHere,
}

/// Payload that has been taken
struct Nothing;

impl Payload for Nothing {
    fn read(&mut self, _targets: &mut [io::IoSliceMut<'_>]) -> Result<usize, TakeError> {
        Ok(0)
    }
}

/// Bytes that a carrier brings at a time: each time may be a call of the system
const TAKE_BYTES_MAX: usize = 1 << 20;
