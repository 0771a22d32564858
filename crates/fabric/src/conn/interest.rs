//! What the engine watches of a connection: its socket, and its bell if the lane has one.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::event::epoll::EventFlags;
use rustix::net::RecvFlags;

use crate::runtime::{Engine, SourceId, clear, lock, notify};

/// Descriptors of a connection and what they are watched for
pub(super) struct Interest {
    id: SourceId,
    /// Frames come through rings; the socket is the sentinel
    has_bell: bool,
    watched: Mutex<Option<Watched>>,
}

struct Watched {
    socket: Arc<TcpStream>,
    /// Rung by the peer; `None` when frames come through the socket
    bell: Option<OwnedFd>,
    /// The socket is watched for bytes (always, when it is the sentinel)
    read: bool,
    /// The socket is watched for room
    write: bool,
}

impl Interest {
    pub(super) fn new(id: SourceId, socket: Arc<TcpStream>, bell: Option<OwnedFd>) -> Self {
        Self {
            id,
            has_bell: bell.is_some(),
            watched: Mutex::new(Some(Watched {
                socket,
                bell,
                read: true,
                write: false,
            })),
        }
    }

    /// Starts watching; the socket is watched already, by the handshake before us
    pub(super) fn begin(&self, engine: &Engine) -> io::Result<()> {
        if let Some(watched) = &*lock(&self.watched) {
            engine.rewatch(self.id, PORT_SOCKET, &watched.socket, watched.flags())?;
            if let Some(bell) = &watched.bell {
                engine.watch(self.id, PORT_BELL, bell, EventFlags::IN)?;
            }
        }
        Ok(())
    }

    /// Watches the socket for bytes or room from now on; `None` leaves it as it is
    ///
    /// Without effect on a lane that has a bell, where the socket is the sentinel.
    pub(super) fn set(&self, engine: &Engine, read: Option<bool>, write: Option<bool>) {
        if self.has_bell {
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
            let outcome = engine.rewatch(self.id, PORT_SOCKET, &watched.socket, watched.flags());
            if let Err(error) = outcome {
                tracing::error!(%error, "cannot watch a socket");
            }
        }
    }

    /// Has the engine come back to this connection soon
    pub(super) fn call_engine(&self, engine: &Engine) {
        if let Some(Watched {
            bell: Some(bell), ..
        }) = &*lock(&self.watched)
        {
            notify(bell.as_fd());
            return;
        }
        // There is room in the socket at most times, and when there is not, its end is awaited. A
        // caller that polled may have had reading muted.
        self.set(engine, Some(true), Some(true));
    }

    pub(super) fn silence(&self) {
        if let Some(Watched {
            bell: Some(bell), ..
        }) = &*lock(&self.watched)
        {
            clear(bell.as_fd());
        }
    }

    /// Whether the sentinel says that the peer ended, and how
    pub(super) fn sentinel_ended(&self) -> Option<String> {
        let mut byte = [0; 1];
        let watched = lock(&self.watched);
        let socket = &watched.as_ref()?.socket;
        match rustix::net::recv(socket, &mut byte, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => Some("connection ended without a goodbye".to_owned()),
            Ok(_) => Some("bytes came on a socket that carries none".to_owned()),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => None,
            Err(error) => Some(error.to_string()),
        }
    }

    /// Stops watching and closes the descriptors
    pub(super) fn end(&self, engine: &Engine) {
        if let Some(watched) = lock(&self.watched).take() {
            engine.unwatch(&watched.socket);
            // Dropping it would not do: a forked child may hold a copy. An error means that the
            // connection has ended already.
            let _ = watched.socket.shutdown(Shutdown::Both);
            if let Some(bell) = &watched.bell {
                engine.unwatch(bell);
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

/// Port of the bell
pub(crate) const PORT_BELL: u8 = 1;
