//! The context: configuration, pooled memory and the engine that a set of endpoints shares.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use backhaul_cuda::Driver;
use backhaul_proto::{CarrierKind, Hello, LaneKind, Role};
use backhaul_shm::pool::{Pool, PoolStatistics};
use backhaul_ucx::UcxError;
use backhaul_ucx::library::{self, has_rdma};

use crate::address::Address;
use crate::bootstrap::{OpenUnixSocket, Settings, UnixSocket};
use crate::carrier::cuda::CudaAllocator;
use crate::config::{Config, check_encryption, check_lanes};
use crate::connecting::{Connecting, Start};
use crate::connection::PeerProcesses;
use crate::endpoint::Endpoint;
use crate::error::{ConnectError, ContextError, ListenError};
use crate::flow::{FlowStatistics, Flows};
use crate::identity::{Identity, random};
use crate::listener::Listener;
use crate::memory::DeviceAllocator;
use crate::request::{Completer, Operation, Progress, Request, finish};
use crate::runtime::{Engine, EngineGuard, lock};
use crate::tls::Tls;
use crate::trust::Trust;
use crate::ucx::Hub;

/// Owns configuration, receive buffers and the progress engine
///
/// Cheap to clone. The engine's thread ends when the context and all endpoints and listeners
/// made from it are gone, or when [`Context::close`] is called.
#[derive(Clone, Debug)]
pub struct Context {
    core: Arc<Core>,
}

/// State that the parts of a context share
pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) pool: Pool,
    pub(crate) flows: Arc<Flows>,
    guard: EngineGuard,
    /// Started when it is first wanted
    ucx: Mutex<Option<Arc<Hub>>>,
    pub(crate) peer_processes: PeerProcesses,
    /// Kept open by the listeners; dangling where there is none, and while opening fails
    unix_socket: Mutex<Weak<OpenUnixSocket>>,
    /// It has been said that everybody can connect
    warned: AtomicBool,
    closed: AtomicBool,
}

impl Context {
    /// Makes a context and starts its engine
    ///
    /// # Errors
    ///
    /// [`ContextError`] if a setting cannot work, UCX is asked for and cannot be used, or the system
    /// gives no descriptor, thread or random bytes.
    pub fn new(config: Config) -> Result<Self, ContextError> {
        config.validate()?;
        // Each connection sends the identity to its peer.
        Identity::current()?;
        let core = Arc::new(Core {
            pool: Pool::with_arena(config.pool_cached_bytes_max, config.arena.clone()),
            flows: Arc::default(),
            guard: Engine::start(config.spin)?,
            ucx: Mutex::default(),
            peer_processes: PeerProcesses::default(),
            unix_socket: Mutex::default(),
            warned: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            config,
        });
        core.start_ucx()?;
        if core.config.carriers.contains(&CarrierKind::Cuda) {
            Driver::get()?;
        }
        if core.config.carriers.contains(&CarrierKind::UcxCuda) {
            core.check_ucx_cuda()?;
        }
        Ok(Self { core })
    }

    /// Listens on `host:port`, `[ipv6]:port`, or `:port` for every interface; port 0 picks one
    ///
    /// # Errors
    ///
    /// [`ListenError`] if the text is no address, the system refuses it, or the context allows the lane
    /// tls alone and has no certificates.
    pub fn listen(&self, address: &str) -> Result<Listener, ListenError> {
        self.core.check_open().map_err(|source| ListenError::Io {
            address: address.to_owned(),
            source,
        })?;
        let tls = self.core.config.tls.as_ref();
        check_encryption(&self.core.config.lanes, tls.is_some())?;
        Listener::bind(&self.core, address, tls)
    }

    /// Listens for peers that encrypt by what `tls` says
    ///
    /// # Errors
    ///
    /// As [`Context::listen`], and [`ListenError::Config`] if it has no certificate, or the context
    /// allows lanes in clear text alone.
    pub fn listen_tls(&self, address: &str, tls: &Tls) -> Result<Listener, ListenError> {
        self.core.check_open().map_err(|source| ListenError::Io {
            address: address.to_owned(),
            source,
        })?;
        Listener::bind(&self.core, address, Some(tls))
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
        self.start_connect(address, lanes, self.core.config.tls.clone())
    }

    /// Connects with encryption by what `tls` says, over one of `lanes` or else over TLS
    ///
    /// Lanes in clear text are passed over. Without `lanes` they are those of the context.
    pub fn connect_tls(
        &self,
        address: &str,
        lanes: Option<&[LaneKind]>,
        tls: &Tls,
    ) -> Request<Endpoint, ConnectError> {
        let lanes = lanes.unwrap_or(&self.core.config.lanes);
        self.start_connect(address, lanes, Some(tls.clone()))
    }

    fn start_connect(
        &self,
        address: &str,
        lanes: &[LaneKind],
        tls: Option<Tls>,
    ) -> Request<Endpoint, ConnectError> {
        let is_encrypted = tls.is_some();
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
            tls,
            completer,
        };
        let checked = check_lanes(lanes).and_then(|()| check_encryption(lanes, is_encrypted));
        if let Err(error) = checked {
            finish(start.completer, Err(error.into()));
            return request;
        }
        if lanes.contains(&LaneKind::Ucx)
            && !is_encrypted
            && let Err(error) = self.core.ucx()
        {
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

    /// Returns the data that each peer process has sent, including processes that are gone
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

    /// The worker of this context, started now if it is not yet
    ///
    /// # Errors
    ///
    /// Why UCX cannot be used.
    fn ucx(&self) -> Result<Arc<Hub>, UcxError> {
        let mut ucx = lock(&self.ucx);
        if let Some(hub) = &*ucx {
            return Ok(Arc::clone(hub));
        }
        let hub = Hub::start(self.engine(), &self.config.ucx, self.wants_ucx_cuda())?;
        *ucx = Some(Arc::clone(&hub));
        Ok(hub)
    }

    /// Starts a worker where it is asked for, or where it pays: on hosts with RDMA
    fn start_ucx(&self) -> Result<(), UcxError> {
        if self.config.lanes.contains(&LaneKind::Ucx) {
            self.ucx()?;
        } else if self.config.lanes == LaneKind::DEFAULT
            && has_rdma()
            && let Err(error) = self.ucx()
        {
            tracing::warn!(%error, "this host has RDMA, and it is not used");
        }
        Ok(())
    }

    /// Checks that libucp moves memory of devices here, which was asked for by name
    fn check_ucx_cuda(&self) -> Result<(), ContextError> {
        Driver::get()?;
        if self.takes_ucx_cuda() {
            return Ok(());
        }
        let library = library::loaded().filter(|_| lock(&self.ucx).is_some());
        let path = library.map(|library| library.path().to_owned());
        Err(UcxError::NoCuda { path }.into())
    }

    /// Returns whether UCX is to move memory of devices, if it can: by name, or where there are
    /// devices and UCX is named
    ///
    /// Not where it is chosen for RDMA: that way has not been tried.
    fn wants_ucx_cuda(&self) -> bool {
        let carriers = &self.config.carriers;
        let is_asked_for = self.config.lanes.contains(&LaneKind::Ucx);
        let by_default = *carriers == CarrierKind::DEFAULT && Driver::is_likely();
        by_default && is_asked_for || carriers.contains(&CarrierKind::UcxCuda)
    }

    /// Returns whether there is a worker of UCX that moves memory of devices
    fn takes_ucx_cuda(&self) -> bool {
        lock(&self.ucx).as_ref().is_some_and(|hub| hub.takes_cuda())
    }

    /// Returns the bootstrap socket, opened unless it is open; `None` if shared memory is off
    ///
    /// The socket is closed with the last of those returned. Peers do without shared memory if it
    /// cannot be opened; the next listener tries again.
    pub(crate) fn open_unix_socket(&self) -> Option<Arc<OpenUnixSocket>> {
        if !self.config.lanes.contains(&LaneKind::Shm) {
            return None;
        }
        let mut known = lock(&self.unix_socket);
        if let Some(open) = known.upgrade() {
            return Some(open);
        }
        let uids = self.config.shared_memory_uids.clone();
        let open = UnixSocket::open(self.engine(), uids)
            .inspect_err(|error| tracing::warn!(%error, "no shared memory: no bootstrap socket"))
            .ok()?;
        let open = Arc::new(open);
        *known = Arc::downgrade(&open);
        Some(open)
    }

    /// Returns the settings of a handshake
    pub(crate) fn settings(&self, role: Role, hello: Hello) -> Settings {
        Settings {
            role,
            hello,
            secret: self.config.secret.clone(),
            shared_memory_uids: self.config.shared_memory_uids.clone(),
            ring_bytes: self.config.ring_bytes,
            ucx: lock(&self.ucx).clone(),
            experiment: self.config.experiments.lane.clone(),
            timeout: self.config.handshake_timeout,
            unix_socket: match role {
                Role::Connector => None,
                Role::Acceptor => self.unix_socket(),
            },
        }
    }

    /// The bootstrap socket, if it is open
    pub(crate) fn unix_socket(&self) -> Option<Arc<UnixSocket>> {
        let open = lock(&self.unix_socket).upgrade()?;
        Some(Arc::clone(open.socket()))
    }

    /// Returns the Hello of this side for a new connection
    ///
    /// # Errors
    ///
    /// If the system gives no random bytes.
    pub(crate) fn hello(
        &self,
        lanes: &[LaneKind],
        unix_socket: Option<&UnixSocket>,
        is_encrypted: bool,
    ) -> io::Result<Hello> {
        let identity = Identity::current()?;
        let limits = &self.config.limits;
        let lanes = self.available_lanes(lanes, is_encrypted);
        Ok(Hello {
            boot_id: identity.boot_id,
            host_token: identity.host_token.clone(),
            process_token: identity.process_token,
            nonce: random()?,
            pid: identity.pid,
            uid: identity.uid,
            ucx_address: self.ucx_address(&lanes)?,
            lanes,
            lanes_unknown: Vec::new(),
            unix_name: unix_socket.map_or_else(String::new, |socket| socket.name().to_owned()),
            credit_bytes: limits.credit_bytes,
            credit_messages: limits.credit_messages,
            message_bytes_max: limits.message_bytes_max,
            segments_max: limits.segments_max,
            carriers: self.carriers(),
            carriers_unknown: Vec::new(),
            data_chunk_bytes: limits.data_chunk_bytes,
        })
    }

    /// Lanes that can be offered: that from outside only where there is one, ucx where it runs, and
    /// tls in the place of those in clear text
    fn available_lanes(&self, lanes: &[LaneKind], is_encrypted: bool) -> Vec<LaneKind> {
        let has_experiment = self.config.experiments.lane.is_some();
        let has_ucx = lock(&self.ucx).is_some();
        let is_default = lanes == LaneKind::DEFAULT;
        let mut available: Vec<_> = lanes.to_vec();
        if is_default && has_ucx && has_rdma() {
            available.insert(lanes.len() - 1, LaneKind::Ucx);
        }
        available.retain(|lane| match lane {
            LaneKind::Experimental => has_experiment,
            LaneKind::Ucx => has_ucx && !is_encrypted,
            LaneKind::Tcp => !is_encrypted || !lanes.contains(&LaneKind::Tls),
            LaneKind::Tls => is_encrypted,
            LaneKind::Inproc | LaneKind::Shm => true,
        });
        if is_encrypted {
            for lane in &mut available {
                if *lane == LaneKind::Tcp {
                    *lane = LaneKind::Tls;
                }
            }
        }
        available
    }

    /// Returns the address that peers connect to by UCX; empty if `lanes` do not include UCX
    fn ucx_address(&self, lanes: &[LaneKind]) -> io::Result<Vec<u8>> {
        let hub = lock(&self.ucx).clone();
        match hub.filter(|_| lanes.contains(&LaneKind::Ucx)) {
            Some(hub) => hub.address().map(<[u8]>::to_vec).map_err(io::Error::other),
            None => Ok(Vec::new()),
        }
    }

    /// As [`Core::available_lanes`], for carriers: by default those of CUDA where the host seems to have
    /// devices, and that of UCX only where UCX is in use and moves such memory
    ///
    /// libcuda is not opened for that, but when something in memory of a device is sent or comes.
    pub(crate) fn carriers(&self) -> Vec<CarrierKind> {
        let has_experiment = self.config.experiments.carrier.is_some();
        let mut carriers = self.config.carriers.clone();
        carriers.retain(|carrier| *carrier != CarrierKind::Experimental || has_experiment);
        if carriers == CarrierKind::DEFAULT && Driver::is_likely() {
            carriers.push(CarrierKind::Cuda);
            if self.wants_ucx_cuda() && self.takes_ucx_cuda() {
                carriers.push(CarrierKind::UcxCuda);
            }
        }
        carriers
    }

    /// Gives memory of devices to what arrives
    pub(crate) fn device_allocator(&self) -> Option<Arc<dyn DeviceAllocator>> {
        let set = self.config.device_allocator.clone();
        set.or_else(|| {
            let carriers = self.carriers();
            let of_cuda = [CarrierKind::Cuda, CarrierKind::UcxCuda];
            let has_cuda = of_cuda.iter().any(|kind| carriers.contains(kind));
            has_cuda.then(|| Arc::new(CudaAllocator { ordinal: 0 }) as Arc<dyn DeviceAllocator>)
        })
    }

    /// Says once, of the first listener that others than users of this host reach, if nothing keeps them out
    pub(crate) fn warn_if_open(&self, trust: Trust, address: SocketAddr) {
        if let Some(warning) = trust.warning(address)
            && !self.warned.swap(true, Ordering::Relaxed)
        {
            tracing::warn!("{warning}");
        }
    }

    pub(crate) fn check_open(&self) -> io::Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(io::Error::other("the context is closed"));
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
