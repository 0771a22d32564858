//! The worker that the connections of a context share: who makes it progress, and what wakes the
//! engine for it.
//!
//! A connection that a caller polls makes the worker progress by itself. The engine need not be woken
//! then, so the worker is *armed* only while a connection sleeps, or none is left that could look: what
//! is under way for connections that have ended needs progress too.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock, Weak};
use std::time::{Duration, Instant};

use backhaul_cuda::DevicePointer;
use backhaul_proto::{Hello, UCX_ADDRESS_BYTES_MAX};
use backhaul_shm::doorbell::Doorbell;
use backhaul_ucx::{Armed, Header, Offer, Receiver, UcxError, Worker};
use rustix::event::epoll::EventFlags;

use super::devices::{DeviceOperation, Devices};
use super::inbox::Inbox;
use super::peer::PeerEnd;
use super::wire::{self, Kind, key_of};
use crate::bootstrap::in_words;
use crate::config::UcxConfig;
use crate::runtime::{Engine, Source, SourceId, lock};

/// The worker of a context, and what is found through it
pub(crate) struct Hub {
    worker: Worker,
    inboxes: Arc<Inboxes>,
    /// By the address of their workers; one that has failed is replaced by the next connection
    peers: Mutex<HashMap<Vec<u8>, Arc<PeerEnd>>>,
    engine: Weak<Engine>,
    id: OnceLock<SourceId>,
    /// Lanes that there are
    lanes: AtomicUsize,
    /// Lanes whose connections are polled
    awake: AtomicUsize,
    /// The engine is woken when there is something to do
    is_armed: AtomicBool,
    /// Times that the engine still makes progress unasked
    draining_ticks: AtomicU32,
    /// Held while that is brought about
    arming: Mutex<()>,
    devices: Arc<Devices>,
}

/// Where each connection has its inbox, by the key in the headers
#[derive(Default)]
pub(super) struct Inboxes(RwLock<HashMap<u64, Weak<Inbox>>>);

/// One end of a connection over UCX
pub(crate) struct UcxEnd {
    pub(crate) hub: Arc<Hub>,
    pub(crate) peer: Arc<PeerEnd>,
    pub(crate) inbox: Arc<Inbox>,
    /// Rung by the inbox
    pub(crate) doorbell: Doorbell,
    /// Peer's key for the connection
    pub(crate) their_key: u64,
    our_key: u64,
}

impl Hub {
    /// Loads UCX and starts a worker, which the engine watches from now on
    ///
    /// Memory of devices takes part only if it is wanted.
    pub(crate) fn start(
        engine: &Arc<Engine>,
        config: &UcxConfig,
        wants_devices: bool,
    ) -> Result<Arc<Self>, UcxError> {
        let library = config.library.load(wants_devices)?;
        let inboxes = Arc::new(Inboxes::default());
        let receiver = Arc::clone(&inboxes) as Arc<dyn Receiver>;
        let worker = Worker::start(library, receiver, &config.settings, wants_devices)?;
        tracing::debug!(
            ?library,
            address_bytes = worker.address().len(),
            "UCX is in use"
        );
        let hub = Arc::new(Self {
            worker,
            inboxes,
            peers: Mutex::default(),
            engine: Arc::downgrade(engine),
            id: OnceLock::new(),
            lanes: AtomicUsize::new(0),
            awake: AtomicUsize::new(0),
            is_armed: AtomicBool::new(false),
            draining_ticks: AtomicU32::new(0),
            arming: Mutex::default(),
            devices: Arc::default(),
        });
        let id = engine.register(Arc::clone(&hub) as Arc<dyn Source>);
        hub.id.get_or_init(|| id);
        if let Err(error) = engine.watch(id, 0, hub.worker.as_fd(), EventFlags::ONESHOT) {
            // Connections still move while callers wait for them.
            tracing::error!(%error, "the engine cannot watch UCX");
        }
        hub.arm();
        Ok(hub)
    }

    /// Returns the address that peers connect to
    ///
    /// # Errors
    ///
    /// If it is too long to be sent.
    pub(crate) fn address(&self) -> Result<&[u8], String> {
        let address = self.worker.address();
        if address.len() > UCX_ADDRESS_BYTES_MAX {
            let bytes = address.len();
            return Err(format!(
                "its address has {bytes} bytes, limit {UCX_ADDRESS_BYTES_MAX}: name fewer devices in UCX_NET_DEVICES"
            ));
        }
        Ok(address)
    }

    /// Returns whether it moves memory of NVIDIA's devices
    pub(crate) fn takes_cuda(&self) -> bool {
        self.worker.takes_cuda()
    }

    /// An operation on memory of a device begins
    pub(crate) fn begin_device_operation(&self, memory: DevicePointer) -> DeviceOperation {
        self.devices.begin(memory)
    }

    /// Makes this side's end of a connection; from now on what the peer sends is taken in
    ///
    /// # Errors
    ///
    /// Why there can be none.
    pub(crate) fn join(self: &Arc<Self>, local: &Hello, peer: &Hello) -> Result<UcxEnd, String> {
        if peer.ucx_address.is_empty() {
            return Err("the peer has no worker".to_owned());
        }
        let doorbell = Doorbell::new().map_err(in_words)?;
        let inbox = Arc::new(Inbox::new(doorbell.try_clone().map_err(in_words)?));
        let our_key = key_of(&local.nonce);
        self.inboxes.insert(our_key, &inbox);
        let peer_end = self.peer(&peer.ucx_address);
        let peer_end = peer_end.inspect_err(|_| self.inboxes.remove(our_key))?;
        peer_end.join(&inbox);
        Ok(UcxEnd {
            hub: Arc::clone(self),
            peer: peer_end,
            inbox,
            doorbell,
            their_key: key_of(&peer.nonce),
            our_key,
        })
    }

    fn peer(&self, address: &[u8]) -> Result<Arc<PeerEnd>, String> {
        let mut peers = lock(&self.peers);
        if let Some(peer) = peers.get(address)
            && peer.is_usable()
        {
            return Ok(Arc::clone(peer));
        }
        let peer = PeerEnd::connect(&self.worker, address).map_err(in_words)?;
        let former = peers.insert(address.to_vec(), Arc::clone(&peer));
        drop(peers);
        // It may be closed by that, which calls UCX.
        drop(former);
        Ok(peer)
    }

    /// Closes the endpoints that have failed and that no connection has any more
    fn reap(&self) {
        let mut failed = Vec::new();
        lock(&self.peers).retain(|_, peer| {
            let is_kept = peer.is_usable();
            if !is_kept {
                failed.push(Arc::clone(peer));
            }
            is_kept
        });
        if !failed.is_empty() {
            for peer in &failed {
                peer.endpoint().close();
            }
            self.drain();
        }
    }

    /// Ends all that is under way to a peer that is known to be dead
    ///
    /// The memory that the peer could have fetched is back when this returns, or soon after.
    pub(crate) fn kill(&self, peer: &PeerEnd, why: &str) {
        peer.kill(why);
        let _current = self.devices.enter();
        let until = Instant::now() + KILL_MAX;
        while !peer.endpoint().is_over() && Instant::now() < until {
            self.worker.progress();
        }
        self.drain();
    }

    /// Has the engine make progress for a while: what is closed ends in steps that ring nothing
    fn drain(&self) {
        let is_draining = self.draining_ticks.swap(DRAIN_TICKS, Ordering::SeqCst) > 0;
        if !is_draining && let (Some(engine), Some(id)) = (self.engine.upgrade(), self.id.get()) {
            engine.busy_poll(*id);
        }
    }

    /// Makes the worker progress, returning whether anything moved
    #[inline]
    pub(crate) fn progress(&self) -> bool {
        let _current = self.devices.enter();
        self.worker.progress()
    }

    /// Makes progress until nothing moves, or for a good while: the engine has others to look after
    fn progress_some(&self) {
        let _current = self.devices.enter();
        for _ in 0..PROGRESS_MAX {
            if !self.worker.progress() {
                break;
            }
        }
    }

    /// A lane begins, asleep
    pub(crate) fn add_lane(&self) {
        self.lanes.fetch_add(1, Ordering::SeqCst);
        self.arm();
    }

    /// Looks later whether an endpoint that no connection has any more is over
    fn look_at_unused(&self) {
        if let (Some(engine), Some(id)) = (self.engine.upgrade(), self.id.get()) {
            engine.schedule(*id, Instant::now() + UNUSED_MAX);
        }
    }

    /// Closes endpoints whose peer does not answer what it was offered, and that no connection has
    ///
    /// The worker at the other end is gone, though its process is not: a context was closed there.
    fn close_unused(&self) {
        let mut unused = Vec::new();
        lock(&self.peers).retain(|_, peer| {
            let is_kept = peer.is_in_use() || peer.endpoint().is_over();
            if !is_kept {
                unused.push(Arc::clone(peer));
            }
            is_kept
        });
        for peer in unused {
            self.kill(&peer, "the worker at the other end is gone");
        }
    }

    /// A lane ends
    pub(crate) fn remove_lane(&self, peer: &PeerEnd, was_awake: bool) {
        if !peer.endpoint().is_over() {
            self.look_at_unused();
        }
        self.lanes.fetch_sub(1, Ordering::SeqCst);
        if was_awake {
            self.awake.fetch_sub(1, Ordering::SeqCst);
        }
        self.arm();
    }

    /// A lane is polled from now on
    pub(crate) fn wake_lane(&self) {
        self.awake.fetch_add(1, Ordering::SeqCst);
    }

    /// A lane is not polled any more
    pub(crate) fn put_lane_to_sleep(&self) {
        self.awake.fetch_sub(1, Ordering::SeqCst);
    }

    /// Returns whether each connection is looked after by a caller, and there is one
    fn is_looked_after(&self) -> bool {
        let lanes = self.lanes.load(Ordering::SeqCst);
        lanes > 0 && self.awake.load(Ordering::SeqCst) == lanes
    }

    /// Has the engine woken when there is something to do, unless callers look
    ///
    /// Handles first what is there already.
    pub(crate) fn arm(&self) {
        // A thread that disarms looks at the counts after that, and a thread that counts looks here
        // after it.
        if self.is_armed.load(Ordering::SeqCst) || self.is_looked_after() {
            return;
        }
        let _arming = lock(&self.arming);
        if self.is_armed.load(Ordering::SeqCst) {
            return;
        }
        let _current = self.devices.enter();
        let mut is_armed = false;
        for _ in 0..ARM_ATTEMPTS {
            self.progress_some();
            match self.worker.arm() {
                Ok(Armed::Busy) => {}
                Ok(Armed::Yes) => {
                    is_armed = true;
                    break;
                }
                Err(error) => {
                    tracing::error!(%error, "UCX cannot be watched");
                    break;
                }
            }
        }
        if !is_armed {
            // Operations that wait for a dead peer keep it busy with nothing (posix of 1.21): the
            // engine looks each tick instead.
            return self.drain();
        }
        self.is_armed.store(true, Ordering::SeqCst);
        if let (Some(engine), Some(id)) = (self.engine.upgrade(), self.id.get()) {
            let flags = EventFlags::IN | EventFlags::ONESHOT;
            if let Err(error) = engine.rewatch(*id, 0, self.worker.as_fd(), flags) {
                tracing::error!(%error, "the engine cannot watch UCX");
            }
        }
    }
}

impl Source for Hub {
    fn on_ready(self: Arc<Self>, _port: u8, _flags: EventFlags) {
        self.is_armed.store(false, Ordering::SeqCst);
        self.progress_some();
        self.reap();
        self.arm();
    }

    fn on_tick(self: Arc<Self>) -> bool {
        self.progress_some();
        if self.draining_ticks.fetch_sub(1, Ordering::SeqCst) > 1 {
            return true;
        }
        // Again for a while, if it is still not available.
        self.arm();
        false
    }

    fn on_deadline(self: Arc<Self>, _now: Instant) -> Option<Instant> {
        self.close_unused();
        None
    }

    // Connections end by themselves, and with the last of them, the worker.
    fn on_stop(self: Arc<Self>) {}
}

impl Drop for Hub {
    fn drop(&mut self) {
        // Offers of peers are refused while there is a way to say so, and bytes that were sent
        // before the last connection ended have yet to leave; then the endpoints close.
        let _current = self.devices.enter();
        let until = Instant::now() + FLUSH_MAX;
        let mut moved_at = Instant::now();
        while moved_at.elapsed() < QUIET && Instant::now() < until {
            if self.worker.progress() {
                moved_at = Instant::now();
            } else {
                std::thread::yield_now();
            }
        }
        for peer in lock(&self.peers).values() {
            let patience = until.saturating_duration_since(Instant::now());
            if peer.is_usable() && !peer.endpoint().flush(patience) {
                tracing::debug!("not all that was sent over UCX has left");
            }
        }
    }
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub")
            .field("worker", &self.worker)
            .finish_non_exhaustive()
    }
}

impl Inboxes {
    pub(super) fn insert(&self, key: u64, inbox: &Arc<Inbox>) {
        let mut inboxes = self
            .0
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        inboxes.insert(key, Arc::downgrade(inbox));
    }

    fn remove(&self, key: u64) {
        let mut inboxes = self
            .0
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        inboxes.remove(&key);
    }

    fn find(&self, key: u64) -> Option<Arc<Inbox>> {
        let inboxes = self
            .0
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        inboxes.get(&key)?.upgrade()
    }
}

// A message that names no connection, or an ended one, is dropped: the sender of an offer has its
// memory back.
impl Receiver for Inboxes {
    fn receive(&self, header: &Header, bytes: &[u8]) {
        let Some(heading) = wire::read(header) else {
            return;
        };
        let Some(inbox) = self.find(heading.key) else {
            return;
        };
        match heading.kind {
            Kind::Bytes => {
                inbox.handle_taken(heading.taken_bytes);
                inbox.handle_bytes(heading.number, bytes);
            }
            Kind::Taken => inbox.handle_taken(heading.taken_bytes),
            Kind::OfferOver => inbox.handle_offer_over(heading.number),
            Kind::OfferFailed => inbox.handle_offer_failed(heading.number, bytes),
            // It does not come by itself.
            Kind::Offer => {}
        }
    }

    fn receive_offer(&self, header: &Header, offer: Offer) {
        let heading = wire::read(header).filter(|heading| heading.kind == Kind::Offer);
        if let Some(heading) = heading
            && let Some(inbox) = self.find(heading.key)
        {
            inbox.handle_offer(heading.number, offer);
        }
    }
}

/// How long a connection waits for what a dead peer had to be back
const KILL_MAX: Duration = Duration::from_millis(20);

/// How long a peer may take to answer what it was offered once the last connection to it has ended
const UNUSED_MAX: Duration = Duration::from_millis(250);

/// How long nothing must have moved before the endpoints of a context close
const QUIET: Duration = Duration::from_millis(2);

/// How long the end of a context waits for what was sent to leave
const FLUSH_MAX: Duration = Duration::from_millis(100);

/// Times that arming is tried while there is something to do
const ARM_ATTEMPTS: u32 = 32;

/// Steps of progress before others have their turn
const PROGRESS_MAX: u32 = 1000;

/// Ticks of the engine until what was closed has ended
const DRAIN_TICKS: u32 = 100;

impl Drop for UcxEnd {
    fn drop(&mut self) {
        self.hub.inboxes.remove(self.our_key);
        self.inbox.end();
    }
}

impl std::fmt::Debug for UcxEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UcxEnd").finish_non_exhaustive()
    }
}
