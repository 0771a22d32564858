//! A session of TLS with one peer, over a socket that does not block.
//!
//! Records are encrypted into one buffer that goes out with one call of the system, and come into one
//! in which they are decrypted. Bytes count as written when the system has their records: until
//! then the caller offers them again, and they are not reported to the caller.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;

use rustls::ProtocolVersion;
use rustls::client::ClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::ServerConnection;

use super::buffer::{Buffer, copy};
use super::buffered::Buffered;
use super::outlet::write_all;
use super::records::{Records, Step, Writing, record_bytes};
use super::sharing::Sharing;
use super::{Tls, TlsError, TlsFailure, TlsHelpers, TlsInfo, TlsVersion, ciphers};

/// One end of an encrypted connection
pub(crate) struct Session {
    records: Box<dyn Records>,
    is_client: bool,
    /// Records that have come and are not decrypted
    incoming: Buffer,
    /// Records that the socket has not taken
    outgoing: Buffer,
    /// Decrypted bytes that no target had room for
    plain: Vec<u8>,
    /// Bytes of `plain` that have been taken
    plain_taken: usize,
    /// Bytes whose records went into `outgoing`, and that no write has returned
    uncounted: usize,
    /// Work that other threads do for it, once the handshake is over
    sharing: Option<Box<Sharing>>,
    /// The last read of the socket left nothing there
    is_drained: bool,
    /// Nothing more comes
    is_ended: bool,
    /// A read has said so
    is_end_told: bool,
    /// The first bytes of the peer were those of TLS
    is_tls: bool,
    /// It has failed, and is not to be asked again
    is_broken: bool,
    /// Failure for the next read to report, because the read that met it had something to give
    failed: Option<TlsFailure>,
}

/// Result of a read
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Arrived {
    /// So many bytes, more than zero
    Bytes(usize),
    /// Nothing now
    Blocked,
    /// The peer's end of the stream
    End,
}

impl Session {
    /// The side that connects; `peer` is where to
    pub(crate) fn connect(tls: &Tls, peer: IpAddr) -> Result<Self, TlsFailure> {
        let name = ServerName::IpAddress(peer.into());
        let config = Arc::clone(&tls.client);
        let records = Buffered::new(ClientConnection::new(config, name)?);
        Ok(Self::new(Box::new(records), true))
    }

    /// The side that is called
    ///
    /// # Errors
    ///
    /// If the settings have no certificate, which a listener checks before.
    pub(crate) fn accept(tls: &Tls) -> io::Result<Self> {
        let server = tls.server.as_ref().ok_or(TlsError::NoCertificate);
        let server = Arc::clone(server.map_err(io::Error::other)?);
        let connection = ServerConnection::new(server).map_err(TlsFailure::from)?;
        Ok(Self::new(Box::new(Buffered::new(connection)), false))
    }

    fn new(records: Box<dyn Records>, is_client: bool) -> Self {
        Self {
            records,
            is_client,
            incoming: Buffer::new(),
            outgoing: Buffer::new(),
            plain: Vec::new(),
            plain_taken: 0,
            uncounted: 0,
            sharing: None,
            is_drained: false,
            is_ended: false,
            is_end_told: false,
            is_tls: false,
            is_broken: false,
            failed: None,
        }
    }

    /// Has other threads write from now on while this one encrypts, as `helpers` says
    ///
    /// The socket is the one that all later calls have.
    pub(crate) fn share(&mut self, socket: &Arc<TcpStream>, helpers: TlsHelpers) {
        self.sharing = Sharing::new(socket, helpers).map(Box::new);
    }

    /// Goes on with the handshake; `true` once bytes can be exchanged
    ///
    /// # Errors
    ///
    /// A [`TlsFailure`] within, or what the system reports.
    pub(crate) fn shake_hands(&mut self, socket: &TcpStream) -> io::Result<bool> {
        loop {
            let step = match self.step_keeping(None) {
                Ok(step) => step,
                Err(failure) => return Err(self.fail(socket, failure)),
            };
            match step {
                Step::Taken => continue,
                Step::Ready if !self.records.state().is_handshaking() => return self.flush(socket),
                Step::Ready | Step::Starved => {}
                Step::Ended => return Err(TlsFailure::Ended.into()),
            }
            if !self.flush(socket)? {
                return Ok(false);
            }
            match self.receive(socket) {
                Ok(0) => return Err(TlsFailure::Ended.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Err(TlsFailure::Ended.into());
                }
                Err(error) => return Err(error),
            }
            if !self.is_tls && !self.check_beginning(socket)? {
                return Ok(false);
            }
        }
    }

    /// Fills the buffers in order with what has arrived
    pub(crate) fn read(
        &mut self,
        socket: &TcpStream,
        buffers: &mut [IoSliceMut<'_>],
    ) -> io::Result<Arrived> {
        let mut targets = Targets::new(buffers);
        let taken = targets.put(&self.plain[self.plain_taken..]);
        self.plain_taken += taken;
        if self.plain_taken == self.plain.len() && !self.plain.is_empty() {
            self.plain = Vec::new();
            self.plain_taken = 0;
        }
        if targets.filled == 0
            && let Some(failure) = self.failed.take()
        {
            return Err(self.fail(socket, failure));
        }
        self.is_drained = false;
        while !targets.are_full() && !self.is_ended && self.failed.is_none() {
            if self.has_record() {
                let mut left = Vec::new();
                let sink = &mut |payload: &[u8]| {
                    let fits = targets.put(payload);
                    left.extend_from_slice(&payload[fits..]);
                };
                let step = self.step(sink, None);
                self.plain.append(&mut left);
                match step {
                    Ok(Step::Ended) => self.is_ended = true,
                    Ok(_) => {}
                    // Bytes that came before it are good.
                    Err(failure) if targets.filled > 0 => self.failed = Some(failure),
                    Err(failure) => return Err(self.fail(socket, failure)),
                }
                continue;
            }
            if self.is_drained {
                break;
            }
            match self.receive(socket) {
                Ok(0) => self.is_ended = true,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => break,
                Err(_) if targets.filled > 0 => break,
                Err(error) => return Err(error),
            }
        }
        // Bytes that find no room go out with the next write, which meets the error again if there
        // is one.
        if self.uncounted == 0 && self.sealed_bytes() == 0 {
            let _ = self.flush(socket);
        }
        Ok(match targets.filled {
            0 if self.is_ended => {
                self.is_end_told = true;
                Arrived::End
            }
            0 => Arrived::Blocked,
            bytes => Arrived::Bytes(bytes),
        })
    }

    /// Sends what fits now of the buffers, in order, returning how much that was
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`] if nothing of them is out. The next call has to offer the same
    /// bytes again, though there may be more behind them: some may be encrypted already.
    pub(crate) fn write(&mut self, socket: &TcpStream, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.is_broken || self.failed.is_some() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if self.uncounted == 0 {
            let offered = parts.iter().map(|part| part.len()).sum();
            let sharing = self.sharing.as_ref();
            if sharing.is_some_and(|sharing| sharing.takes_writes(offered)) {
                return self.write_shared(socket, parts, offered);
            }
            self.uncounted = self.seal(socket, parts, 0)?;
        }
        if !self.flush(socket)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let written = std::mem::take(&mut self.uncounted);
        if let Some(sharing) = &mut self.sharing {
            sharing.handle_written(written);
        }
        Ok(written)
    }

    /// How many bytes are worth offering for one write, where that is more than usual
    pub(crate) fn write_bytes(&self) -> usize {
        self.sharing
            .as_ref()
            .map_or(0, |sharing| sharing.write_bytes())
    }

    /// Encrypts what there is room for, and returns what is out, while the rest is written
    fn write_shared(
        &mut self,
        socket: &TcpStream,
        parts: &[IoSlice<'_>],
        offered: usize,
    ) -> io::Result<usize> {
        while let Some(sharing) = &self.sharing
            && sharing.has_room()
            && sharing.sealed_bytes() < offered
        {
            let bytes = self.seal(socket, parts, sharing.sealed_bytes())?;
            let records = std::mem::replace(&mut self.outgoing, Buffer::new());
            if let Some(sharing) = &mut self.sharing {
                sharing.push(records, bytes);
            }
        }
        match &mut self.sharing {
            Some(sharing) => sharing.flush_oldest(),
            None => Ok(0),
        }
    }

    /// Makes records of what is offered behind the first `skipped` bytes, as far as there is room,
    /// returning how many bytes are in them
    fn seal(
        &mut self,
        socket: &TcpStream,
        parts: &[IoSlice<'_>],
        skipped: usize,
    ) -> io::Result<usize> {
        let mut writing = Writing {
            parts,
            skipped,
            taken: 0,
        };
        loop {
            match self.step_keeping(Some(&mut writing)) {
                Ok(Step::Taken) => {}
                Ok(Step::Ready) => return Ok(writing.taken),
                Ok(Step::Ended) if !self.is_ended => self.is_ended = true,
                Ok(Step::Ended | Step::Starved) => {
                    return Err(io::ErrorKind::NotConnected.into());
                }
                Err(failure) => {
                    // Earlier bytes may still be read, and then they are the reason, not an end.
                    self.failed = Some(failure.clone());
                    return Err(self.fail(socket, failure));
                }
            }
        }
    }

    /// Bytes that are encrypted and with a helper
    fn sealed_bytes(&self) -> usize {
        self.sharing
            .as_ref()
            .map_or(0, |sharing| sharing.sealed_bytes())
    }

    /// Says to the peer that nothing more comes, if there is room for it
    pub(crate) fn say_end(&mut self, socket: &TcpStream) {
        if self.is_broken || self.failed.is_some() {
            return;
        }
        if self.flush(socket).is_ok_and(|is_flushed| is_flushed) {
            self.records.queue_end(&mut self.outgoing);
            // An error means that the peer is gone.
            let _ = self.flush(socket);
        }
    }

    /// Returns whether something waits for room in the socket
    pub(crate) fn has_output(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Returns whether another read would find nothing, as the last one has shown
    pub(crate) fn is_drained(&self) -> bool {
        self.is_drained && !self.holds_news()
    }

    /// Returns whether a read finds something without asking the socket
    pub(crate) fn holds_news(&self) -> bool {
        self.plain_taken < self.plain.len()
            || self.has_record()
            || (self.is_ended && !self.is_end_told)
            || self.failed.is_some()
    }

    /// Returns whether the peer has sent something that is TLS
    pub(crate) fn has_heard(&self) -> bool {
        self.is_tls
    }

    /// Returns the facts about it, once the handshake is over
    pub(crate) fn info(&self) -> TlsInfo {
        let state = self.records.state();
        let (cipher, cipher_bits) = state
            .negotiated_cipher_suite()
            .map_or(("none", 0), ciphers::shown);
        let certificates = state.peer_certificates().unwrap_or_default();
        TlsInfo {
            version: match state.protocol_version() {
                Some(ProtocolVersion::TLSv1_2) => TlsVersion::V1_2,
                _ => TlsVersion::V1_3,
            },
            cipher,
            cipher_bits,
            peer_certificate: certificates.first().map(|first| Arc::from(&first[..])),
        }
    }

    /// Returns whether a record is here as a whole
    fn has_record(&self) -> bool {
        record_bytes(&self.incoming).is_some()
    }

    /// Deals with what has come, up to the next thing that concerns us
    fn step(
        &mut self,
        sink: &mut dyn FnMut(&[u8]),
        writing: Option<&mut Writing<'_>>,
    ) -> Result<Step, TlsFailure> {
        let (incoming, outgoing) = (&mut self.incoming, &mut self.outgoing);
        self.records.step(incoming, outgoing, sink, writing)
    }

    /// As [`step`](Self::step), with what is decrypted kept for the next read
    fn step_keeping(&mut self, writing: Option<&mut Writing<'_>>) -> Result<Step, TlsFailure> {
        let mut plain = std::mem::take(&mut self.plain);
        let step = self.step(&mut |payload| plain.extend_from_slice(payload), writing);
        self.plain = plain;
        step
    }

    /// Reads the socket once
    fn receive(&mut self, mut socket: &TcpStream) -> io::Result<usize> {
        let room = self.incoming.room();
        if room.is_empty() {
            // Nothing that is allowed is so long.
            let detail = "a message of its handshake is too long".to_owned();
            return Err(TlsFailure::Broken { detail }.into());
        }
        let asked = room.len();
        let outcome = socket.read(room);
        match outcome {
            Ok(bytes) => {
                self.is_drained = bytes < asked;
                self.incoming.fill(bytes);
            }
            Err(_) => self.is_drained = true,
        }
        self.incoming.release();
        outcome
    }

    /// Sends what lies in `outgoing`, returning whether all of it is out
    fn flush(&mut self, socket: &TcpStream) -> io::Result<bool> {
        let flushed = match &mut self.sharing {
            Some(sharing) => sharing.flush().map(drop),
            None => Ok(()),
        };
        match flushed.and_then(|()| write_all(socket, &mut self.outgoing)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Tells the peer, if there is room, and gives the error
    fn fail(&mut self, socket: &TcpStream, failure: TlsFailure) -> io::Error {
        if !self.is_broken {
            self.is_broken = true;
            // An alert, which one step hands over. `rustls` must not be asked for more: it panics on a
            // second record that it has to answer with an alert.
            let _ = self.step(&mut |_| {}, None);
            let _ = self.flush(socket);
        }
        self.is_ended = true;
        failure.into()
    }

    /// Returns whether the first bytes of the peer are here and may be TLS
    fn check_beginning(&mut self, mut socket: &TcpStream) -> io::Result<bool> {
        let is_client = self.is_client;
        let found = self.incoming.filled_ref();
        match found {
            // A record of a handshake (RFC 8446, section 5.1); or else of an alert, by who is called.
            // Our own Hello has a third byte of zero.
            [HANDSHAKE, 3, minor, ..] if *minor > 0 => {}
            [ALERT, 3, minor, ..] if *minor > 0 && is_client => {}
            [] | [HANDSHAKE | ALERT] | [HANDSHAKE | ALERT, 3] => return Ok(false),
            _ => {
                let is_ours = found.get(8..16) == Some(b"backhaul");
                let found = match is_ours {
                    true => "a handshake of ours in clear text".to_owned(),
                    false => format!("\"{}\"", found[..found.len().min(16)].escape_ascii()),
                };
                // It is a peer of this project: it may learn why it is turned away.
                if is_ours && !is_client {
                    let _ = socket.write(&ASK_FOR_TLS);
                }
                return Err(TlsFailure::PeerIsPlain { found }.into());
            }
        }
        self.is_tls = true;
        Ok(true)
    }
}

/// Memory that is filled one behind the other
struct Targets<'a, 'b> {
    buffers: &'a mut [IoSliceMut<'b>],
    /// The first with room, and what of it is filled
    at: (usize, usize),
    filled: usize,
}

impl<'a, 'b> Targets<'a, 'b> {
    fn new(buffers: &'a mut [IoSliceMut<'b>]) -> Self {
        Self {
            buffers,
            at: (0, 0),
            filled: 0,
        }
    }

    fn are_full(&self) -> bool {
        self.buffers[self.at.0.min(self.buffers.len())..]
            .iter()
            .map(|buffer| buffer.len())
            .sum::<usize>()
            == self.at.1
    }

    /// Copies what fits, returning how much that was
    fn put(&mut self, mut bytes: &[u8]) -> usize {
        let before = self.filled;
        while let Some(buffer) = self.buffers.get_mut(self.at.0) {
            let room = &mut buffer[self.at.1..];
            let fits = room.len().min(bytes.len());
            copy(&bytes[..fits], &mut room[..fits]);
            bytes = &bytes[fits..];
            self.filled += fits;
            self.at.1 += fits;
            if self.at.1 < buffer.len() {
                break;
            }
            self.at = (self.at.0 + 1, 0);
        }
        self.filled - before
    }
}

/// Type of a record of a handshake, and of one with an alert
const HANDSHAKE: u8 = 0x16;
const ALERT: u8 = 0x15;

/// An alert in clear text: `protocol_version`, fatal (RFC 8446, section 6)
const ASK_FOR_TLS: [u8; 7] = [ALERT, 3, 3, 0, 2, 2, 70];
