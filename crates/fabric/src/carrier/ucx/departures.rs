//! Segments in memory of a device that are to be offered once their device has got so far.
//!
//! A thread of the driver says when it has. That thread may not call CUDA, which UCX does, nor wait for
//! a lock under which it is called: it notes the ticket and rings for the engine, which offers the
//! segment. A device that has failed says nothing, so the engine asks while something is awaited, for
//! what is to be received too.

use std::any::Any;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use backhaul_cuda::{CudaError, DevicePointer, Transfer};
use backhaul_shm::doorbell::Doorbell;
use backhaul_ucx::DeviceRange;
use rustix::event::epoll::EventFlags;

use super::tickets::Tickets;
use crate::runtime::{Engine, Source, SourceId, lock};
use crate::ucx::{Kind, UcxEnd, header};

/// Offers that one end of a connection is going to make
pub(super) struct Departures {
    end: Arc<UcxEnd>,
    tickets: Arc<Tickets>,
    state: Mutex<State>,
    ready: Arc<Ready>,
    engine: Weak<Engine>,
    id: OnceLock<SourceId>,
}

/// Tickets whose devices have got so far; threads of the driver may use it
struct Ready {
    tickets: Mutex<Vec<u64>>,
    wake: Doorbell,
}

#[derive(Default)]
struct State {
    held: BTreeMap<u64, Held>,
    /// Payloads that wait for a device before they are fetched
    landing: usize,
    is_scheduled: bool,
    /// The connection is over
    is_left: bool,
    /// So is what it had given, or the engine
    is_ended: bool,
}

/// A segment that waits for its device
struct Held {
    departure: Departure,
    transfer: Transfer,
    is_given: bool,
}

/// A segment, and what keeps it
pub(super) struct Departure {
    pub(super) memory: DevicePointer,
    pub(super) keep: Box<dyn Any + Send>,
}

impl Departures {
    /// Has the engine listen for devices
    pub(super) fn start(
        engine: &Arc<Engine>,
        end: Arc<UcxEnd>,
        tickets: Arc<Tickets>,
    ) -> io::Result<Arc<Self>> {
        let ready = Ready {
            tickets: Mutex::default(),
            wake: Doorbell::new()?,
        };
        let departures = Arc::new(Self {
            end,
            tickets,
            state: Mutex::default(),
            ready: Arc::new(ready),
            engine: Arc::downgrade(engine),
            id: OnceLock::new(),
        });
        let id = engine.register(Arc::clone(&departures) as Arc<dyn Source>);
        departures.id.get_or_init(|| id);
        let watched = engine.watch(id, 0, &departures.ready.wake, EventFlags::IN);
        watched.inspect_err(|_| engine.deregister(id))?;
        Ok(departures)
    }

    /// Returns the callback that the driver calls when a device has reached the point of a ticket
    fn told(&self, ticket: u64) -> impl FnOnce() + Send + 'static {
        let ready = Arc::clone(&self.ready);
        move || {
            lock(&ready.tickets).push(ticket);
            ready.wake.notify();
        }
    }

    /// Offers a segment, now
    pub(super) fn offer(&self, ticket: u64, departure: Departure) {
        let Departure { memory, keep } = departure;
        let range = DeviceRange {
            address: memory.address(),
            bytes: usize::try_from(memory.bytes()).expect("within an address space"),
        };
        let header = header(self.end.their_key, Kind::Offer, ticket, 0);
        let tickets = Arc::clone(&self.tickets);
        let operation = self.end.hub.begin_device_operation(memory);
        let _current = operation.enter();
        let endpoint = self.end.peer.endpoint();
        endpoint.send_device_offer(header, range, keep, move |keep, _outcome| {
            // An error is one of the endpoint, which the lane reports.
            tickets.close(ticket);
            drop((keep, operation));
        });
    }

    /// Offers a segment when its device has got so far
    ///
    /// # Errors
    ///
    /// The driver is not going to say so: nothing is offered, and the ticket is free again.
    pub(super) fn offer_later(
        &self,
        ticket: u64,
        departure: Departure,
        transfer: Transfer,
        is_given: bool,
    ) -> Result<(), CudaError> {
        let told = transfer.tell(self.told(ticket));
        told.inspect_err(|_| self.tickets.close(ticket))?;
        let held = Held {
            departure,
            transfer,
            is_given,
        };
        lock(&self.state).held.insert(ticket, held);
        self.schedule();
        // The callback may have come before the entry was there.
        self.ready.wake.notify();
        Ok(())
    }

    /// Tells the peer that a segment does not come
    pub(super) fn refuse(&self, ticket: u64, detail: &str) {
        self.tickets.close(ticket);
        let header = header(self.end.their_key, Kind::OfferFailed, ticket, 0);
        let text = detail.as_bytes();
        self.end
            .peer
            .tell_text(header, &text[..text.len().min(TEXT_BYTES_MAX)]);
    }

    /// A payload waits for a device, from now on
    pub(super) fn begin_landing(&self) {
        lock(&self.state).landing += 1;
        self.schedule();
    }

    pub(super) fn end_landing(&self) {
        lock(&self.state).landing -= 1;
    }

    /// The connection is over: what is not given away is not offered any more
    pub(super) fn leave(&self) {
        let mut state = lock(&self.state);
        state.is_left = true;
        let held = std::mem::take(&mut state.held).into_iter();
        let (given, over): (Vec<_>, Vec<_>) = held.partition(|(_, held)| held.is_given);
        state.held = given.into_iter().collect();
        drop(state);
        drop(over);
        self.end_if_done();
    }

    /// Offers what devices have got to
    fn offer_ready(&self) {
        let tickets = std::mem::take(&mut *lock(&self.ready.tickets));
        let mut early = Vec::new();
        for ticket in tickets {
            let held = lock(&self.state).held.remove(&ticket);
            match held {
                Some(held) => self.settle(ticket, held),
                None => early.push(ticket),
            }
        }
        if !early.is_empty() {
            // Told before it was held, or never to be: its connection is over.
            let is_left = lock(&self.state).is_left;
            early.retain(|ticket| !is_left && self.tickets.is_open(*ticket));
            lock(&self.ready.tickets).extend(early);
        }
        self.end_if_done();
    }

    /// Offers a segment whose device has got so far, or has failed
    fn settle(&self, ticket: u64, held: Held) {
        match held.transfer.ask_over() {
            Err(error) => self.refuse(ticket, &error.to_string()),
            Ok(_) => self.offer(ticket, held.departure),
        }
    }

    /// Looks for devices that have failed; whether something is still awaited
    fn look(&self) -> bool {
        let mut state = lock(&self.state);
        let mut failed = Vec::new();
        for (ticket, held) in &state.held {
            if let Err(error) = held.transfer.ask_over() {
                failed.push((*ticket, error));
            }
        }
        let over: Vec<_> = failed
            .iter()
            .filter_map(|(ticket, _)| state.held.remove(ticket))
            .collect();
        let is_waiting = state.landing > 0 || !state.held.is_empty();
        let is_landing = state.landing > 0;
        state.is_scheduled = is_waiting;
        drop(state);
        drop(over);
        for (ticket, error) in failed {
            self.refuse(ticket, &error.to_string());
        }
        if is_landing {
            self.end.inbox.notify();
        }
        is_waiting
    }

    fn schedule(&self) {
        let mut state = lock(&self.state);
        if !std::mem::replace(&mut state.is_scheduled, true)
            && let (Some(engine), Some(id)) = (self.engine.upgrade(), self.id.get())
        {
            drop(state);
            engine.schedule(*id, Instant::now() + LOOK_INTERVAL);
        }
    }

    fn end_if_done(&self) {
        let mut state = lock(&self.state);
        let is_done = state.is_left && state.held.is_empty();
        if is_done
            && !std::mem::replace(&mut state.is_ended, true)
            && let (Some(engine), Some(id)) = (self.engine.upgrade(), self.id.get())
        {
            drop(state);
            engine.unwatch(&self.ready.wake);
            engine.deregister(*id);
        }
    }
}

impl Source for Departures {
    fn on_ready(self: Arc<Self>, _port: u8, _flags: EventFlags) {
        self.ready.wake.clear();
        self.offer_ready();
    }

    fn on_deadline(self: Arc<Self>, now: Instant) -> Option<Instant> {
        let is_waiting = self.look();
        self.end_if_done();
        is_waiting.then(|| now + LOOK_INTERVAL)
    }

    fn on_stop(self: Arc<Self>) {
        let mut state = lock(&self.state);
        state.is_ended = true;
        let held = std::mem::take(&mut state.held);
        drop(state);
        drop(held);
    }
}

/// Interval of the checks for a failed device, because no callback reports the failure
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Most bytes of the text that reports a failure to the peer
const TEXT_BYTES_MAX: usize = 256;
