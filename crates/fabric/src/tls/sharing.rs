//! Help of other threads for a session: the buffers they write, and when the session asks for help.
//!
//! Cryptography stays with the thread that moves the connection along. In the meantime a helper
//! makes the calls of the system, in which the kernel copies and sends: as much work again. So the
//! two are in a pipeline of a few buffers: records go to an [`Outlet`] as they are made.

use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;

use super::buffer::Buffer;
use super::outlet::{Flushed, Outlet};

/// Use of other threads that write to the sockets of encrypted connections, while one encrypts
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum TlsHelpers {
    /// For long messages, in a process that may use more than two CPUs, as long as it helps
    #[default]
    Auto,
    /// Never: who moves a connection along does all of it
    Never,
    /// For long messages, as long as it helps
    Always,
    /// For all that is sent: for tests alone
    #[doc(hidden)]
    Forced,
}

/// The part of a session that helpers have to do with
pub(super) struct Sharing {
    socket: Arc<TcpStream>,
    is_forced: bool,
    outlet: Option<Arc<Outlet>>,
    /// How many bytes the records in each buffer of the outlet hold, the oldest first
    sealed: VecDeque<usize>,
    patience: Patience,
}

impl Sharing {
    /// `None` where helpers are not to be used
    pub(super) fn new(socket: &Arc<TcpStream>, helpers: TlsHelpers) -> Option<Self> {
        let uses = match helpers {
            TlsHelpers::Never => false,
            TlsHelpers::Always | TlsHelpers::Forced => true,
            TlsHelpers::Auto => {
                std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > CPUS_MIN)
            }
        };
        uses.then(|| Self {
            socket: Arc::clone(socket),
            is_forced: helpers == TlsHelpers::Forced,
            outlet: None,
            sealed: VecDeque::new(),
            patience: Patience::default(),
        })
    }

    /// Returns whether the next bytes to be written go by the outlet
    pub(super) fn takes_writes(&self, offered_bytes: usize) -> bool {
        !self.sealed.is_empty()
            || self.is_forced
            || (self.patience.is_over() && offered_bytes > BATCH_BYTES)
    }

    /// How many bytes are worth offering for one write
    pub(super) fn write_bytes(&self) -> usize {
        match self.is_forced || self.patience.is_over() || !self.sealed.is_empty() {
            true => (BUFFERS_MAX + 1) * BATCH_BYTES,
            false => BATCH_BYTES,
        }
    }

    /// Bytes that are encrypted, and that no write has returned
    pub(super) fn sealed_bytes(&self) -> usize {
        self.sealed.iter().sum()
    }

    /// Returns whether more records may be made before some are out
    pub(super) fn has_room(&self) -> bool {
        self.sealed.len() < BUFFERS_MAX && (self.is_forced || self.patience.is_over())
    }

    /// Takes records that hold so many bytes
    pub(super) fn push(&mut self, records: Buffer, bytes: usize) {
        let socket = &self.socket;
        let outlet = self
            .outlet
            .get_or_insert_with(|| Outlet::new(Arc::clone(socket)));
        self.sealed.push_back(bytes);
        outlet.push(records);
    }

    /// Waits until the oldest records are out, returning how many bytes they held
    ///
    /// # Errors
    ///
    /// As [`Outlet::flush_oldest`].
    pub(super) fn flush_oldest(&mut self) -> io::Result<usize> {
        let Some(outlet) = self.outlet.as_ref().filter(|_| !self.sealed.is_empty()) else {
            return Ok(0);
        };
        match outlet.flush_oldest() {
            Ok(Flushed::Nothing) => Ok(0),
            Ok(Flushed::Buffers { count, alone }) => {
                self.patience.handle_help(!alone);
                Ok(self.sealed.drain(..count).sum())
            }
            Err(error) => {
                if error.kind() == io::ErrorKind::WouldBlock {
                    self.patience.begin(BLOCKED_BYTES);
                }
                Err(error)
            }
        }
    }

    /// Writes all that waits in the outlet
    ///
    /// # Errors
    ///
    /// As [`Outlet::flush_oldest`].
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while !self.sealed.is_empty() {
            self.flush_oldest()?;
        }
        Ok(())
    }

    /// Handles that so many bytes were written without help
    pub(super) fn handle_written(&mut self, bytes: usize) {
        self.patience.handle_written(bytes);
    }
}

/// Bytes to write alone before help is asked for again
#[derive(Clone, Copy, Debug, Default)]
struct Patience {
    left: usize,
    /// How often in a row a helper was called and did not come in time
    missed: u32,
}

impl Patience {
    fn is_over(self) -> bool {
        self.left == 0
    }

    fn handle_written(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes);
    }

    fn begin(&mut self, bytes: usize) {
        self.left = self.left.max(bytes);
    }

    fn handle_help(&mut self, came: bool) {
        self.missed = if came { 0 } else { self.missed + 1 };
        if self.missed == MISSES_MAX {
            self.begin(ALONE_BYTES);
            self.missed = 0;
        }
    }
}

/// More CPUs than this are there for peers on one host, each with one of its own, and another
/// thread
const CPUS_MIN: usize = 2;

/// Bytes of records that one buffer holds
const BATCH_BYTES: usize = 256 << 10;

/// Buffers in the outlet: one is written, and one waits while another is made
const BUFFERS_MAX: usize = 3;

/// Written alone after the socket had no room: the link is slower than one thread
const BLOCKED_BYTES: usize = 2 << 20;

/// Calls in a row in vain that show that there is no CPU for a helper
const MISSES_MAX: u32 = 4;

/// Written alone then
const ALONE_BYTES: usize = 8 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_is_not_asked_for_after_it_did_not_come_or_was_not_needed() {
        let mut patience = Patience::default();
        for came in [false, false, false, true, false, false, false] {
            patience.handle_help(came);
        }
        assert!(patience.is_over());
        patience.handle_help(false);
        assert!(!patience.is_over());
        patience.handle_written(ALONE_BYTES - 1);
        assert!(!patience.is_over());
        patience.handle_written(1);
        assert!(patience.is_over());
        patience.begin(BLOCKED_BYTES);
        assert!(!patience.is_over());
        patience.handle_written(usize::MAX);
        assert!(patience.is_over());
    }
}
