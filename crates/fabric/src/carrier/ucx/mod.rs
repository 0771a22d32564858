//! The carrier over rendezvous of UCX: a segment is offered as an active message, of which the
//! receiver gets the header alone, and fetches the bytes straight into their place.
//!
//! UCX keeps the memory on either side until an operation is over, even if a caller has given up
//! meanwhile: the memory belongs to the operation. The receiver refuses a segment that comes
//! another way, and reports that to the sender.

mod departures;
mod device;
mod tickets;

use std::io::IoSliceMut;
use std::sync::{Arc, Mutex};

use backhaul_proto::{CarrierKind, MemoryKind};
use backhaul_shm::pool::{Pool, PoolBuf};
use backhaul_ucx::Offer;

use super::{Carrier, Payload, TakeError};
use crate::memory::Segment;
use crate::runtime::lock;
use crate::ucx::{Inbox, Kind, UcxEnd, header};

pub(crate) use self::device::UcxCudaCarrier;
pub(crate) use self::tickets::Tickets;

/// Offers segments to the peer, and fetches its own
pub(crate) struct UcxCarrier {
    end: Arc<UcxEnd>,
    pool: Pool,
    tickets: Arc<Tickets>,
}

impl UcxCarrier {
    pub(crate) fn new(end: Arc<UcxEnd>, pool: Pool, tickets: Arc<Tickets>) -> Self {
        Self { end, pool, tickets }
    }
}

impl Carrier for UcxCarrier {
    fn kind(&self) -> CarrierKind {
        CarrierKind::Ucx
    }

    fn takes(&self) -> fn(MemoryKind) -> bool {
        |memory| memory == MemoryKind::Host
    }

    fn offer(&mut self, segment: &Segment) -> Result<Option<u64>, String> {
        let Some(bytes) = segment.host().cloned() else {
            return Ok(None);
        };
        let ticket = self.tickets.open();
        let tickets = Arc::clone(&self.tickets);
        let header = header(self.end.their_key, Kind::Offer, ticket, 0);
        self.end
            .peer
            .endpoint()
            .send_offer(header, bytes, move |bytes, _outcome| {
                // An error is one of the endpoint, which the lane reports.
                tickets.close(ticket);
                drop(bytes);
            });
        Ok(Some(ticket))
    }

    fn handle_offer_over(&mut self, ticket: u64) {
        handle_offer_over(&self.end, &self.tickets, ticket);
    }

    fn take(&mut self, ticket: u64, bytes: u64) -> Result<Box<dyn Payload>, TakeError> {
        let mut payload = UcxPayload {
            inbox: Arc::clone(&self.end.inbox),
            pool: self.pool.clone(),
            ticket,
            bytes,
            state: State::Awaited,
        };
        payload.begin()?;
        Ok(Box::new(payload))
    }
}

/// A segment that the peer has offered
struct UcxPayload {
    inbox: Arc<Inbox>,
    pool: Pool,
    ticket: u64,
    bytes: u64,
    state: State,
}

enum State {
    /// The offer has not come yet: it goes beside the frame that names it
    Awaited,
    /// The bytes are on their way into memory that the operation has
    UnderWay(Arc<Landing>),
    /// They are here, and read up to some place
    Here(PoolBuf, usize),
    /// They have been adopted
    Gone,
}

/// Where an operation leaves its memory
type Landing = Mutex<Option<Result<PoolBuf, String>>>;

/// Has the peer refuse what it has not fetched
fn handle_offer_over(end: &UcxEnd, tickets: &Tickets, ticket: u64) {
    if tickets.is_open(ticket) {
        let header = header(end.their_key, Kind::OfferOver, ticket, 0);
        end.peer.tell(header);
    }
}

/// Checks that an offer is of what was announced
fn check_bytes(offer: &Offer, bytes: u64) -> Result<(), TakeError> {
    if offer.bytes() as u64 == bytes {
        return Ok(());
    }
    let offered = offer.bytes();
    let detail = format!("{offered} bytes offered where {bytes} were said");
    Err(TakeError::Broken { detail })
}

/// Fetches what was offered into memory of the pool
fn receive_on_host(
    offer: Offer,
    pool: &Pool,
    inbox: &Arc<Inbox>,
) -> Result<Arc<Landing>, TakeError> {
    let memory = pool.take(offer.bytes());
    let memory = memory.map_err(|error| TakeError::OutOfReach {
        detail: error.to_string(),
    })?;
    let landing = Arc::new(Landing::default());
    let (landed, inbox) = (Arc::clone(&landing), Arc::clone(inbox));
    offer.receive(memory, move |outcome| {
        *lock(&landed) = Some(outcome.map_err(|status| status.to_string()));
        inbox.notify();
    });
    Ok(landing)
}

impl UcxPayload {
    /// Begins to fetch, once the offer is here
    fn begin(&mut self) -> Result<(), TakeError> {
        let Some(offer) = self.inbox.take_offer(self.ticket) else {
            return Ok(());
        };
        check_bytes(&offer, self.bytes)?;
        let landing = receive_on_host(offer, &self.pool, &self.inbox)?;
        self.state = State::UnderWay(landing);
        Ok(())
    }
}

impl Payload for UcxPayload {
    fn check_here(&mut self) -> Result<bool, TakeError> {
        if let State::Awaited = self.state {
            self.begin()?;
        }
        let State::UnderWay(landing) = &self.state else {
            return Ok(matches!(self.state, State::Here(..)));
        };
        let landed = lock(landing).take();
        match landed {
            None => Ok(false),
            Some(Ok(memory)) => {
                self.state = State::Here(memory, 0);
                Ok(true)
            }
            Some(Err(detail)) => Err(TakeError::OutOfReach { detail }),
        }
    }

    fn adopt(&mut self) -> Result<Option<PoolBuf>, TakeError> {
        Ok(match std::mem::replace(&mut self.state, State::Gone) {
            State::Here(memory, 0) => Some(memory),
            _ => None,
        })
    }

    fn read(&mut self, targets: &mut [IoSliceMut<'_>]) -> Result<usize, TakeError> {
        let State::Here(memory, at) = &mut self.state else {
            return Ok(0);
        };
        let start = *at;
        for target in targets {
            let bytes = target.len().min(memory.len() - *at);
            target[..bytes].copy_from_slice(&memory[*at..*at + bytes]);
            *at += bytes;
        }
        Ok(*at - start)
    }
}
