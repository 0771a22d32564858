//! Bytes of a message that the peer has lent: mapped where they are a segment, else copied.

use std::os::fd::AsFd;
use std::time::Instant;

use backhaul_proto::{ArrivalId, ProtocolError};
use backhaul_shm::leased::{LeaseError, Leased, MapError, ReadError, read_leased};
use backhaul_shm::pool::PoolBuf;

use super::ending::LinkError;
use super::incoming::{Arrival, Memory, Payload, READ_BYTES_MAX, Targets};
use super::link::{Link, MessageMemory};
use crate::courier::{Loan, LoanError};

impl Link {
    /// The next bytes of a message are lent: maps them, or has them copied
    pub(super) fn take_loan(
        &mut self,
        arrival: ArrivalId,
        bytes: u64,
        ticket: u64,
    ) -> Result<(), LinkError> {
        let broken = |detail: String| ProtocolError::BadLease { ticket, detail };
        let Some(courier) = &self.memory.courier else {
            return Err(broken("nothing can be lent on this lane".to_owned()).into());
        };
        let count = usize::try_from(bytes).expect("checked against the limits");
        let state = self.incoming.arrivals.get_mut(arrival.0);
        let state = state.and_then(Option::as_mut);
        let lent = match (courier.take(ticket, bytes), state) {
            (Err(LoanError::Broken(error)), _) => return Err(error.into()),
            (Err(LoanError::NoDescriptor), state) => {
                tracing::warn!("lent memory is out of reach: no descriptor is left");
                if let Some(state) = state {
                    state.memory = Memory::Missing;
                }
                None
            }
            (Ok(_), None) => None,
            (Ok(loan), Some(state)) => state
                .adopt(loan, count, &self.memory)
                .map_err(|error| broken(error.to_string()))?
                .filter(|_| !matches!(state.memory, Memory::Missing)),
        };
        self.incoming.payload = Some(Payload {
            arrival,
            left: if lent.is_some() { count } else { 0 },
            lent,
        });
        Ok(())
    }

    /// Copies some of a payload that is lent
    pub(super) fn read_lent(&mut self) -> Result<usize, LinkError> {
        let incoming = &mut self.incoming;
        let Some(Payload {
            arrival,
            left,
            lent: Some(loan),
        }) = &mut incoming.payload
        else {
            return Ok(0);
        };
        let state = incoming.arrivals.get_mut(arrival.0);
        let Some(state) = state.and_then(Option::as_mut) else {
            *left = 0;
            return Ok(0);
        };
        let mut targets = Targets::new();
        let asked = (*left).min(READ_BYTES_MAX);
        let mut bytes = state.targets(&mut self.recvs, &self.memory.pool, asked, &mut targets);
        let mut is_missing = false;
        for target in &mut targets {
            match read_leased(loan.memory.as_fd(), loan.offset, target) {
                Ok(()) => loan.offset += target.len() as u64,
                Err(ReadError::Refused(error)) => {
                    let detail = error.to_string();
                    let ticket = loan.ticket;
                    return Err(ProtocolError::BadLease { ticket, detail }.into());
                }
                Err(error) => {
                    tracing::warn!(%error, "lent memory is out of reach");
                    is_missing = true;
                    break;
                }
            }
        }
        drop(targets);
        if is_missing {
            state.memory = Memory::Missing;
            bytes = 0;
        }
        state.advance(bytes);
        *left = if bytes == 0 { 0 } else { *left - bytes };
        self.proto.handle_activity(Instant::now());
        Ok(bytes)
    }
}

impl Arrival {
    /// Takes lent memory as the next segment, if it is just that; else gives the loan back
    fn adopt(
        &mut self,
        loan: Loan,
        bytes: usize,
        memory: &MessageMemory,
    ) -> Result<Option<Loan>, LeaseError> {
        let Memory::Segments(segments) = &mut self.memory else {
            return Ok(Some(loan));
        };
        let (mut segment, offset) = self.cursor;
        while segments.sizes[segment] == 0 {
            segment += 1;
        }
        if offset > 0 || segments.sizes[segment] != bytes as u64 {
            return Ok(Some(loan));
        }
        if segments.make_up_to(segment, &memory.pool).is_err() {
            self.memory = Memory::Missing;
            return Ok(Some(loan));
        }
        let populate = memory.populate_leases;
        match Leased::map(loan.memory, loan.offset, bytes, populate, loan.receipt) {
            Ok(leased) => {
                segments.here.push(PoolBuf::from(leased));
                self.advance(bytes);
                Ok(None)
            }
            Err(MapError::Refused(error)) => Err(error),
            Err(MapError::System {
                source,
                fd,
                receipt,
            }) => {
                tracing::debug!(error = %source, "lent memory was not mapped; it is copied");
                Ok(Some(Loan {
                    memory: fd,
                    offset: loan.offset,
                    ticket: loan.ticket,
                    receipt,
                }))
            }
            Err(_) => unreachable!("the two ways in which a mapping fails"),
        }
    }
}
