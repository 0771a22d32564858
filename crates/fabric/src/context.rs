//! The context: configuration, pooled memory and the engine that a set of endpoints shares.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use backhaul_proto::{Hello, LaneKind};
use backhaul_shm::pool::{Pool, PoolStatistics};

use crate::address::Address;
use crate::config::{Config, check_lanes};
use crate::endpoint::Endpoint;
use crate::error::{ConnectError, ContextError, ListenError};
use crate::flow::{FlowStatistics, Flows};
use crate::handshaking::{Handshaking, finish};
use crate::identity::{Identity, random};
use crate::listener::Listener;
use crate::meeting::Meeting;
use crate::request::{Completer, Operation, Progress, Request};
use crate::runtime::{Engine, EngineGuard, lock};

/// Owns configuration, receive buffers and the progress engine
///
/// Cheap to clone. The engine's thread ends when the context and all endpoints and listeners
/// made from it are gone, or when [`Context::close`] is called.
#[derive(Clone, Debug)]
pub struct Context {
    core: Arc<Core>,
}

/// What the parts of a context share
pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) pool: Pool,
    pub(crate) flows: Arc<Flows>,
    guard: EngineGuard,
    /// Opened with the first listener; `None` inside if that failed
    meeting: OnceLock<Option<Arc<Meeting>>>,
    closed: AtomicBool,
}

impl Context {
    /// Makes a context and starts its engine
    ///
    /// # Errors
    ///
    /// [`ContextError`] if a setting cannot work, or the system gives no descriptor or thread.
    pub fn new(config: Config) -> Result<Self, ContextError> {
        config.validate()?;
        Ok(Self {
            core: Arc::new(Core {
                pool: Pool::with_arena(config.pool_cached_bytes_max, config.arena.clone()),
                flows: Arc::default(),
                guard: Engine::start()?,
                meeting: OnceLock::new(),
                closed: AtomicBool::new(false),
                config,
            }),
        })
    }

    /// Listens on `host:port`, `[ipv6]:port`, or `:port` for every interface; port 0 picks one
    ///
    /// # Errors
    ///
    /// [`ListenError`] if the text is no address or the system refuses it.
    pub fn listen(&self, address: &str) -> Result<Listener, ListenError> {
        self.core.check_open().map_err(|source| ListenError::Io {
            address: address.to_owned(),
            source,
        })?;
        Listener::bind(&self.core, address)
    }

    /// Connects to a listener over the best lane that both sides have
    pub fn connect(&self, address: &str) -> Request<Endpoint, ConnectError> {
        self.connect_over(address, &self.core.config.lanes)
    }

    /// Connects over one of `lanes`, best first, or else over TCP
    pub fn connect_over(
        &self,
        address: &str,
        lanes: &[LaneKind],
    ) -> Request<Endpoint, ConnectError> {
        let connecting = Arc::new(Connecting::default());
        let completer = Completer::new();
        let request = Request::of(
            &completer,
            Operation {
                driver: Arc::clone(&connecting) as Arc<dyn Progress>,
                id: 0,
            },
        );
        let start = Start {
            core: Arc::clone(&self.core),
            connecting,
            address: address.to_owned(),
            lanes: lanes.to_vec(),
            completer,
        };
        if let Err(error) = check_lanes(lanes) {
            finish(start.completer, Err(error.into()));
            return request;
        }
        match Address::parse(address) {
            Err(error) => finish(start.completer, Err(error.into())),
            Ok(parsed @ Address::Literal(_)) => start.run(&parsed),
            Ok(parsed @ Address::Name { .. }) => start.run_in_thread(parsed),
        }
        request
    }

    /// The configuration
    pub fn config(&self) -> &Config {
        &self.core.config
    }

    /// State of the pool of receive buffers
    pub fn pool_statistics(&self) -> PoolStatistics {
        self.core.pool.statistics()
    }

    /// What each peer process has sent, those that are gone included
    pub fn flows(&self) -> Vec<FlowStatistics> {
        self.core.flows.snapshot()
    }

    /// Ends the engine: every endpoint and listener of this context is closed at once
    pub fn close(&self) {
        self.core.closed.store(true, Ordering::Release);
        self.core.engine().stop();
    }
}

impl Core {
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        self.guard.engine()
    }

    /// The meeting socket, opened on first use; `None` if shared memory is off or unavailable
    pub(crate) fn meeting(&self) -> Option<&Arc<Meeting>> {
        self.meeting
            .get_or_init(|| {
                if !self.config.lanes.contains(&LaneKind::Shm) {
                    return None;
                }
                Meeting::open(self.engine())
                    .inspect_err(
                        |error| tracing::warn!(%error, "no shared memory: no meeting socket"),
                    )
                    .ok()
            })
            .as_ref()
    }

    /// The meeting socket if a listener has opened it
    pub(crate) fn meeting_if_open(&self) -> Option<&Arc<Meeting>> {
        self.meeting.get()?.as_ref()
    }

    /// What this side says of itself on a new connection
    pub(crate) fn hello(&self, lanes: &[LaneKind], meeting: Option<&Arc<Meeting>>) -> Hello {
        let identity = Identity::current();
        let limits = &self.config.limits;
        Hello {
            boot_id: identity.boot_id,
            host_token: identity.host_token.clone(),
            process_token: identity.process_token,
            nonce: random(),
            pid: identity.pid,
            uid: identity.uid,
            lanes: lanes.to_vec(),
            unix_name: meeting.map_or_else(String::new, |meeting| meeting.name().to_owned()),
            credit_bytes: limits.credit_bytes,
            credit_messages: limits.credit_messages,
            message_bytes_max: limits.message_bytes_max,
            segments_max: limits.segments_max,
        }
    }

    pub(crate) fn check_open(&self) -> std::io::Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(std::io::Error::other("the context is closed"));
        }
        Ok(())
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// A connect on its way from the look-up of its name to the handshake
struct Start {
    core: Arc<Core>,
    connecting: Arc<Connecting>,
    address: String,
    lanes: Vec<LaneKind>,
    completer: Completer<Endpoint, ConnectError>,
}

impl Start {
    fn run(self, parsed: &Address) {
        let address = self.address;
        if let Err(source) = self.core.check_open() {
            return finish(self.completer, Err(ConnectError::Io { address, source }));
        }
        if self.connecting.cancelled.load(Ordering::Acquire) {
            return finish(self.completer, Err(ConnectError::Cancelled { address }));
        }
        match parsed.resolve() {
            Err(error) => finish(self.completer, Err(error.into())),
            Ok(found) => {
                let found = VecDeque::from(found);
                let handshaking =
                    Handshaking::connect(&self.core, address, found, self.lanes, self.completer);
                self.connecting.go_on(handshaking);
            }
        }
    }

    /// Looks the name up in a thread of its own, because that may block
    fn run_in_thread(self, parsed: Address) {
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
}

/// Cancels a connect at whatever stage it is
#[derive(Debug, Default)]
struct Connecting {
    cancelled: AtomicBool,
    handshaking: Mutex<Option<Arc<Handshaking>>>,
}

impl Connecting {
    fn go_on(&self, handshaking: Option<Arc<Handshaking>>) {
        *lock(&self.handshaking) = handshaking;
        if self.cancelled.load(Ordering::SeqCst) {
            self.cancel(0);
        }
    }
}

impl Progress for Connecting {
    fn cancel(&self, operation: u64) {
        self.cancelled.store(true, Ordering::SeqCst);
        let handshaking = lock(&self.handshaking).take();
        if let Some(handshaking) = handshaking {
            handshaking.cancel(operation);
        }
    }
}
