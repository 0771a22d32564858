//! Completion of the operations that the link reports as over, and the report of its end.

use std::time::Instant;

use super::port::{Command, RecvCompleter};
use super::recorder::EventKind;
use super::{Conn, Port, RecvToken, SendToken};
use crate::error::{CloseReason, RecvError, SendError};
use crate::link::{Delivery, LinkEvent};
use crate::request::WakeList;
use crate::runtime::lock;

impl Conn {
    /// Completes what the link says is over
    pub(super) fn dispatch(&self, port: &mut Port, wakes: &mut WakeList) {
        while let Some(event) = port.poll_event() {
            self.dispatch_one(port, event, wakes);
        }
    }

    pub(super) fn dispatch_one(
        &self,
        port: &mut Port,
        event: LinkEvent<SendToken, RecvToken>,
        wakes: &mut WakeList,
    ) {
        match event {
            LinkEvent::Sent { token, result } => {
                self.count_sent(&token, &result);
                if let Some(completer) = token.completer {
                    completer.complete(result, wakes);
                }
            }
            LinkEvent::Received {
                token:
                    RecvToken {
                        completer: RecvCompleter::Tap(operation),
                        ..
                    },
                result,
            } => self.handle_tapped(port, operation, result),
            LinkEvent::Received { token, result } => {
                if let (Some(started), Ok(_)) = (token.started, &result) {
                    self.counters.recv_time_ns.bump(nanos_since(started));
                }
                if let Some(delivery) = complete_recv(token.completer, result, wakes) {
                    port.handle(Command::Restore(delivery));
                }
            }
            LinkEvent::Closed(reason) => self.handle_closed(port, &reason, wakes),
        }
    }

    /// Completes the watchers of the end of the link, and leaves the engine
    pub(super) fn handle_closed(
        &self,
        port: &mut Port,
        reason: &CloseReason,
        wakes: &mut WakeList,
    ) {
        self.recorder.note(EventKind::Ended);
        // First: the memory of sends that the end has overtaken is released when the peer can see
        // the end.
        let farewell = port.farewell();
        self.interest.end(farewell);
        // Descriptors go with the link, not with the last holder of the endpoint.
        let process = lock(&self.process).take();
        drop(process);
        port.end();
        // The link ends once, so this is the only call that sets it.
        self.closed.get_or_init(|| reason.clone());
        for watcher in lock(&self.watchers).drain(..) {
            watcher.complete(Ok(reason.clone()), wakes);
        }
        for closer in lock(&self.closers).drain(..) {
            closer.complete(Ok(()), wakes);
        }
        self.engine.deregister(self.id);
    }

    /// Counts how long a send took that is over
    pub(super) fn count_sent(&self, token: &SendToken, result: &Result<(), SendError>) {
        if let (Some(started), Ok(())) = (token.started, result) {
            self.counters.send_time_ns.bump(nanos_since(started));
        }
    }
}

fn nanos_since(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Completes a receive, returning its message if the receive was given up meanwhile
fn complete_recv(
    completer: RecvCompleter,
    result: Result<Delivery, RecvError>,
    wakes: &mut WakeList,
) -> Option<Delivery> {
    match completer {
        RecvCompleter::Into(completer) => completer
            .complete(result.map(Delivery::into_received), wakes)
            .map(Delivery::from),
        RecvCompleter::Allocate(completer) => completer
            .complete(result.map(Delivery::into_message), wakes)
            .map(Delivery::from),
        RecvCompleter::Tap(_) => unreachable!("it is told apart before"),
    }
}
