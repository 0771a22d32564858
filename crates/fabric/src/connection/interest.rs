//! Descriptors of a connection that the engine watches: its socket, and its doorbell if the lane
//! has one.

use std::io;
use std::mem::MaybeUninit;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use backhaul_shm::doorbell::Doorbell;
use backhaul_sys::forks::Uninherited;
use rustix::event::epoll::EventFlags;
use rustix::net::{RecvFlags, SendFlags};

use crate::lane::Farewell;
use crate::runtime::{Engine, LoopWatch, Member, MemberId, SourceId, lock};

/// Descriptors of a connection and what they are watched for
pub(crate) struct Interest {
    engine: Arc<Engine>,
    id: SourceId,
    /// Frames do not come through the socket, which is the sentinel then
    has_doorbell: bool,
    watched: Mutex<Option<Watched>>,
    /// An event loop watches the doorbell
    is_with_loop: AtomicBool,
}

struct Watched {
    /// A forked child that had it would keep the connection from ending with this process
    socket: Uninherited<Arc<TcpStream>>,
    /// Notified by the peer; `None` when frames come through the socket
    doorbell: Option<Arc<Doorbell>>,
    /// The socket is watched for bytes (always, when it is the sentinel)
    read: bool,
    /// The socket is watched for room
    write: bool,
    /// The event loop that watches the doorbell in the engine's place
    by_loop: Option<(Weak<LoopWatch>, MemberId)>,
    /// A thread sleeps on the doorbell in the engine's place
    by_thread: bool,
    /// Last bytes of the peer on the sentinel
    farewell: Option<Farewell>,
}

impl Interest {
    pub(super) fn new(
        engine: &Arc<Engine>,
        id: SourceId,
        socket: Arc<TcpStream>,
        doorbell: Option<Doorbell>,
    ) -> Arc<Self> {
        Arc::new(Self {
            engine: Arc::clone(engine),
            id,
            has_doorbell: doorbell.is_some(),
            watched: Mutex::new(Some(Watched {
                socket: Uninherited::new(socket),
                doorbell: doorbell.map(Arc::new),
                read: true,
                write: false,
                by_loop: None,
                by_thread: false,
                farewell: None,
            })),
            is_with_loop: AtomicBool::new(false),
        })
    }

    /// Starts watching; the socket is watched already, by the handshake before us
    pub(super) fn begin(&self) -> io::Result<()> {
        if let Some(watched) = &*lock(&self.watched) {
            let flags = watched.flags();
            self.engine
                .rewatch(self.id, PORT_SOCKET, &watched.socket, flags)?;
            if let Some(doorbell) = &watched.doorbell {
                self.engine
                    .watch(self.id, PORT_DOORBELL, &**doorbell, EventFlags::IN)?;
            }
        }
        Ok(())
    }

    /// Returns whether the socket carries no frames: its end is the peer's end
    pub(super) fn has_sentinel(&self) -> bool {
        self.has_doorbell
    }

    /// Watches the socket for bytes or room from now on; `None` leaves it as it is
    ///
    /// Without effect where the socket is the sentinel.
    pub(super) fn set(&self, read: Option<bool>, write: Option<bool>) {
        if self.has_doorbell {
            return;
        }
        let mut watched = lock(&self.watched);
        let Some(watched) = watched.as_mut() else {
            return;
        };
        let before = (watched.read, watched.write);
        watched.read = read.unwrap_or(watched.read);
        watched.write = write.unwrap_or(watched.write);
        if before != (watched.read, watched.write) {
            let flags = watched.flags();
            let outcome = self
                .engine
                .rewatch(self.id, PORT_SOCKET, &watched.socket, flags);
            if let Err(error) = outcome {
                tracing::error!(%error, "cannot watch a socket");
            }
        }
    }

    /// Returns whether an event loop watches the doorbell, as far as that can be known without a
    /// lock
    pub(super) fn is_with_loop(&self) -> bool {
        self.is_with_loop.load(Ordering::Relaxed)
    }

    /// Has an event loop watch the doorbell from now on, if there is one; `false` if that is as before
    pub(super) fn join_loop(&self, watch: &Arc<LoopWatch>, member: Weak<dyn Member>) -> bool {
        let mut watched = lock(&self.watched);
        let Some(watched) = watched.as_mut() else {
            return false;
        };
        if let Some((by, _)) = &watched.by_loop
            && std::ptr::eq(by.as_ptr(), Arc::as_ptr(watch))
        {
            return false;
        }
        self.leave_loop_of(watched);
        let Some(doorbell) = watched.doorbell.as_ref().filter(|_| !watched.by_thread) else {
            return false;
        };
        // It stays readable until it is cleared, so nothing is lost in between.
        self.engine.unwatch(&**doorbell);
        match watch.add(member, doorbell) {
            Ok(id) => {
                watched.by_loop = Some((Arc::downgrade(watch), id));
                self.is_with_loop.store(true, Ordering::Relaxed);
                true
            }
            Err(error) => {
                tracing::debug!(%error, "an event loop cannot watch a doorbell");
                self.watch_doorbell(doorbell);
                false
            }
        }
    }

    /// Has the engine watch the doorbell again
    pub(super) fn leave_loop(&self) {
        if let Some(watched) = lock(&self.watched).as_mut() {
            self.leave_loop_of(watched);
        }
    }

    fn leave_loop_of(&self, watched: &mut Watched) {
        let (Some((by, id)), Some(doorbell)) = (watched.by_loop.take(), &watched.doorbell) else {
            return;
        };
        if let Some(watch) = by.upgrade() {
            watch.remove(id, doorbell);
        }
        self.is_with_loop.store(false, Ordering::Relaxed);
        self.watch_doorbell(doorbell);
    }

    /// Gives the doorbell to a thread that is about to sleep on it, until it gives it back
    ///
    /// `None` if there is none, or another thread has it.
    pub(super) fn lend_doorbell(&self) -> Option<Arc<Doorbell>> {
        let mut watched = lock(&self.watched);
        let watched = watched.as_mut().filter(|watched| !watched.by_thread)?;
        let doorbell = Arc::clone(watched.doorbell.as_ref()?);
        match watched.by_loop.take() {
            Some((by, id)) => {
                if let Some(watch) = by.upgrade() {
                    watch.remove(id, &doorbell);
                }
                self.is_with_loop.store(false, Ordering::Relaxed);
            }
            None => self.engine.unwatch(&*doorbell),
        }
        watched.by_thread = true;
        Some(doorbell)
    }

    /// Returns whether a thread has the doorbell still
    pub(super) fn is_with_thread(&self) -> bool {
        lock(&self.watched)
            .as_ref()
            .is_some_and(|watched| watched.by_thread)
    }

    /// Has the engine watch the doorbell again that a thread had
    pub(super) fn return_doorbell(&self) {
        if let Some(watched) = lock(&self.watched).as_mut() {
            self.return_doorbell_of(watched);
        }
    }

    fn return_doorbell_of(&self, watched: &mut Watched) {
        // The engine may have been called for it meanwhile.
        if std::mem::take(&mut watched.by_thread)
            && let Some(doorbell) = &watched.doorbell
        {
            self.watch_doorbell(doorbell);
        }
    }

    fn watch_doorbell(&self, doorbell: &Doorbell) {
        let outcome = self
            .engine
            .watch(self.id, PORT_DOORBELL, doorbell, EventFlags::IN);
        if let Err(error) = outcome {
            tracing::error!(%error, "cannot watch a doorbell");
        }
    }

    /// Has the engine come back to this connection soon
    pub(super) fn call_engine(&self) {
        let mut watched = lock(&self.watched);
        if let Some(watched) = watched.as_mut()
            && watched.doorbell.is_some()
        {
            self.leave_loop_of(watched);
            self.return_doorbell_of(watched);
            if let Some(doorbell) = &watched.doorbell {
                doorbell.notify();
            }
            return;
        }
        drop(watched);
        // The socket has room at most times, so this calls the engine soon; when it has none, there
        // is nothing to do but wait for it. A caller that polled may have masked reading.
        self.set(Some(true), Some(true));
    }

    pub(super) fn clear_doorbell(&self) {
        if let Some(Watched {
            doorbell: Some(doorbell),
            ..
        }) = &*lock(&self.watched)
        {
            doorbell.clear();
        }
    }

    /// Returns how the peer ended, if the sentinel says that it did
    ///
    /// Bytes on the sentinel mean nothing, and are dropped: a connection ends when its sentinel
    /// ends.
    pub(super) fn sentinel_ended(&self) -> Option<String> {
        let mut bytes = [MaybeUninit::uninit(); 4096];
        let mut watched = lock(&self.watched);
        let watched = watched.as_mut()?;
        match rustix::net::recv(&watched.socket, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => Some("connection ended without a Close frame".to_owned()),
            // If there is more, epoll reports it again, after other sources had their turn.
            Ok(((came, _), _)) => {
                watched.farewell = came.last_chunk().copied();
                None
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => None,
            Err(error) => Some(error.to_string()),
        }
    }

    /// Returns the last bytes of the peer on the sentinel
    pub(super) fn farewell(&self) -> Option<Farewell> {
        lock(&self.watched).as_ref()?.farewell
    }

    /// Stops watching the sentinel, which has ended
    pub(super) fn unwatch_sentinel(&self) {
        if let Some(watched) = &*lock(&self.watched) {
            self.engine.unwatch(&watched.socket);
        }
    }

    /// Stops watching and closes the descriptors
    pub(super) fn end(&self, farewell: Option<Farewell>) {
        if let Some(watched) = lock(&self.watched).take() {
            self.engine.unwatch(&watched.socket);
            if let Some(farewell) = farewell {
                let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                // An error means that the peer has ended too.
                let _ = rustix::net::send(&watched.socket, &farewell, flags);
            }
            // Dropping it does not end the connection if a forked child holds a copy. An error means
            // that the connection has ended already.
            let _ = watched.socket.shutdown(Shutdown::Both);
            if let Some(doorbell) = watched.doorbell.as_ref().filter(|_| !watched.by_thread) {
                match watched
                    .by_loop
                    .and_then(|(by, id)| Some((by.upgrade()?, id)))
                {
                    Some((watch, id)) => watch.remove(id, doorbell),
                    None => self.engine.unwatch(&**doorbell),
                }
            }
        }
    }
}

impl Watched {
    fn flags(&self) -> EventFlags {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, self.read);
        flags.set(EventFlags::OUT, self.write);
        flags
    }
}

/// Port of the socket among the descriptors of a connection
pub(super) const PORT_SOCKET: u8 = 0;

/// Port of the doorbell
pub(crate) const PORT_DOORBELL: u8 = 1;

/// Port of the peer's process
pub(super) const PORT_PROCESS: u8 = 2;
