//! A connect under way: the look-up of a name, and one handshake after another with the addresses
//! found.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use backhaul_proto::{LaneKind, Role};

use crate::address::Address;
use crate::bootstrap::{self, Established, Failure, Handshaking, Stream, TlsStream};
use crate::context::Core;
use crate::endpoint::Endpoint;
use crate::error::ConnectError;
use crate::establish::establish;
use crate::request::{Completer, Progress, finish};
use crate::runtime::lock;
use crate::tls::Tls;

/// A connect on its way from the look-up of its name to the endpoint
pub(crate) struct Start {
    pub(crate) core: Arc<Core>,
    pub(crate) connecting: Arc<Connecting>,
    pub(crate) address: String,
    pub(crate) lanes: Vec<LaneKind>,
    /// How the connection is encrypted, if it is
    pub(crate) tls: Option<Tls>,
    pub(crate) completer: Completer<Endpoint, ConnectError>,
}

impl Start {
    /// Looks the address up, in this thread, and starts with what is found
    pub(crate) fn run(self, parsed: &Address) {
        match parsed.resolve() {
            Err(error) => finish(self.completer, Err(error.into())),
            Ok(found) => self.try_next(found.into()),
        }
    }

    /// Looks the name up in a thread of its own, because that may block
    pub(crate) fn run_in_thread(self, parsed: Address) {
        // Should there be no thread, the request must not hang: it blocks instead.
        let shared = Arc::new(Mutex::new(Some((self, parsed))));
        let work = Arc::clone(&shared);
        let run = move || {
            let work = lock(&work).take();
            if let Some((start, parsed)) = work {
                start.run(&parsed);
            }
        };
        let thread = std::thread::Builder::new().name("backhaul-resolve".to_owned());
        if thread.spawn(run).is_err() {
            let work = lock(&shared).take();
            if let Some((start, parsed)) = work {
                start.run(&parsed);
            }
        }
    }

    /// Tries the next of the host's addresses
    fn try_next(self, mut found: VecDeque<SocketAddr>) {
        let io_error = |source| ConnectError::Io {
            address: self.address.clone(),
            source,
        };
        if let Err(source) = self.core.check_open() {
            let error = io_error(source);
            return finish(self.completer, Err(error));
        }
        // A nonce of its own for each attempt.
        let hello = match self.core.hello(&self.lanes, None, self.tls.is_some()) {
            Ok(hello) => hello,
            Err(source) => {
                let error = io_error(source);
                return finish(self.completer, Err(error));
            }
        };
        let mut outcome = Err(std::io::Error::other("the host has no address"));
        while let Some(peer) = found.pop_front() {
            outcome = self.stream_to(peer).map(|stream| (stream, peer));
            if outcome.is_ok() {
                break;
            }
        }
        let (stream, peer) = match outcome {
            Ok(connected) => connected,
            Err(source) => {
                let error = io_error(source);
                return finish(self.completer, Err(error));
            }
        };
        let core = Arc::clone(&self.core);
        let connecting = Arc::clone(&self.connecting);
        let settings = core.settings(Role::Connector, hello);
        let callback = Box::new(move |outcome| self.conclude(outcome, found));
        let handshaking = Handshaking::new(core.engine(), settings, stream, peer, callback);
        connecting.go_on(Arc::clone(&handshaking));
        handshaking.start();
    }

    fn stream_to(&self, peer: SocketAddr) -> std::io::Result<Box<dyn Stream>> {
        let plain = bootstrap::connect(peer)?;
        Ok(match &self.tls {
            Some(tls) => Box::new(TlsStream::connect(plain, tls, peer)?),
            None => Box::new(plain),
        })
    }

    fn conclude(self, outcome: Result<Established, Failure>, others: VecDeque<SocketAddr>) {
        match outcome {
            Ok(established) => {
                let address = self.address;
                let endpoint = establish(&self.core, established)
                    .map_err(|source| ConnectError::Io { address, source });
                finish(self.completer, endpoint);
            }
            Err(Failure::Io(_)) if !others.is_empty() => self.try_next(others),
            Err(failure) => {
                let error = connect_error(failure, self.address);
                finish(self.completer, Err(error));
            }
        }
    }
}

/// Cancels a connect at whatever stage it is
#[derive(Debug, Default)]
pub(crate) struct Connecting {
    cancelled: AtomicBool,
    handshaking: Mutex<Option<Arc<Handshaking>>>,
}

impl Connecting {
    fn go_on(&self, handshaking: Arc<Handshaking>) {
        *lock(&self.handshaking) = Some(handshaking);
        if self.cancelled.load(Ordering::SeqCst) {
            self.cancel(0);
        }
    }
}

impl Progress for Connecting {
    fn cancel(&self, _operation: u64) {
        self.cancelled.store(true, Ordering::SeqCst);
        let handshaking = lock(&self.handshaking).take();
        if let Some(handshaking) = handshaking {
            handshaking.cancel();
        }
    }
}

fn connect_error(failure: Failure, address: String) -> ConnectError {
    match failure {
        Failure::Io(source) => ConnectError::Io { address, source },
        Failure::Tls(source) => ConnectError::Tls { address, source },
        Failure::Handshake(source) => ConnectError::Handshake { address, source },
        Failure::NoLane { reason } => ConnectError::NoLane { address, reason },
        // A connector never gives way.
        Failure::Cancelled | Failure::GaveWay => ConnectError::Cancelled { address },
    }
}
