//! Records by the connections of `rustls` that have buffers, which each record is copied through.

use std::io::{self, BufRead, IoSlice, Read, Write};
use std::ops::DerefMut;

use rustls::{CommonState, ConnectionCommon, SideData};

use super::TlsFailure;
use super::buffer::{Buffer, copies_slowly, copy};
use super::records::{
    HEADER_BYTES, RECORD_BYTES, Records, Step, Writing, keys_are_used_up, record_bytes,
};

/// A connection with buffers, client or server
pub(super) struct Buffered<C> {
    connection: C,
    /// The peer has said that nothing more comes
    is_ended: bool,
    /// A step has failed, and the next one gives the alert alone
    is_failed: bool,
    /// How many bytes `rustls` has of the record at the beginning of what has come
    taken_ahead: usize,
    /// Memory to which `rustls` would copy records slowly
    spacers: Vec<Vec<u8>>,
}

impl<C, S: SideData + 'static> Buffered<C>
where
    C: DerefMut<Target = ConnectionCommon<S>>,
{
    pub(super) fn new(mut connection: C) -> Self {
        // A caller encrypts as much as there is room for, and takes the records with each call.
        connection.set_buffer_limit(None);
        Self {
            connection,
            is_ended: false,
            is_failed: false,
            taken_ahead: 0,
            spacers: Vec::new(),
        }
    }

    /// Hands over the record at the beginning of `incoming`, and what it decrypts to, to `sink`
    fn take(
        &mut self,
        incoming: &Buffer,
        record_bytes: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<(), TlsFailure> {
        // While it has a byte of the next record, `rustls` keeps its buffer; else it makes another.
        let ahead = usize::from(!self.connection.is_handshaking());
        let bytes = incoming.filled_ref();
        let end = bytes.len().min(record_bytes + ahead);
        let mut reading = Reading {
            bytes: &bytes[..end],
            taken: self.taken_ahead,
            start: 0,
        };
        while reading.taken < end && self.connection.read_tls(&mut reading).map_err(broken)? > 0 {}
        self.taken_ahead = reading.taken.saturating_sub(record_bytes);
        let processed = self.connection.process_new_packets();
        // Bytes that came before a failure are good.
        let mut reader = self.connection.reader();
        while let Ok(plain @ [_, ..]) = reader.fill_buf() {
            sink(plain);
            let (address, length) = (plain.as_ptr().addr(), plain.len());
            reader.consume(length);
            if copies_slowly(reading.start + HEADER_BYTES, address, length) {
                // Where `rustls` has copied it to is free now, and the next record would lie there.
                // `malloc`'s next place for 16 KiB is 16 bytes further in its page: four are enough.
                self.spacers.truncate(SPACERS_MAX - 1);
                self.spacers.push(Vec::with_capacity(length));
            }
        }
        self.is_ended |= processed?.peer_has_closed();
        Ok(())
    }

    /// Moves records to `outgoing`, returning how many bytes that were
    fn transmit(&mut self, outgoing: &mut Buffer) -> Result<usize, TlsFailure> {
        let mut moved = 0;
        while self.connection.wants_write() {
            let mut room = Room(outgoing);
            match self.connection.write_tls(&mut room).map_err(broken)? {
                0 => break,
                bytes => moved += bytes,
            }
        }
        Ok(moved)
    }
}

impl<C, S: SideData + 'static> Records for Buffered<C>
where
    C: DerefMut<Target = ConnectionCommon<S>> + Send,
{
    fn step(
        &mut self,
        incoming: &mut Buffer,
        outgoing: &mut Buffer,
        sink: &mut dyn FnMut(&[u8]),
        writing: Option<&mut Writing<'_>>,
    ) -> Result<Step, TlsFailure> {
        if self.transmit(outgoing)? > 0 {
            return Ok(Step::Taken);
        }
        if self.is_failed {
            return Ok(Step::Ended);
        }
        if let Some(bytes) = record_bytes(incoming).filter(|_| !self.is_ended) {
            let taken = self.take(incoming, bytes, sink);
            incoming.drop_front(bytes);
            self.is_failed = taken.is_err();
            return taken.map(|()| match self.is_ended {
                true => Step::Ended,
                false => Step::Taken,
            });
        }
        if self.connection.is_handshaking() {
            return Ok(Step::Starved);
        }
        if let Some(writing) = writing {
            writing.encrypt(outgoing, &mut |bytes, outgoing| {
                // One at a time: its memory is used again while it is in the cache.
                for record in bytes.chunks(RECORD_BYTES) {
                    self.connection.writer().write_all(record).map_err(broken)?;
                    // Without keys `rustls` drops the bytes, and reports nothing.
                    if self.transmit(outgoing)? <= record.len() {
                        return Err(keys_are_used_up());
                    }
                }
                Ok(())
            })?;
        }
        Ok(Step::Ready)
    }

    fn queue_end(&mut self, outgoing: &mut Buffer) {
        self.connection.send_close_notify();
        // An error means that there is no room, and then the peer learns it by the socket.
        let _ = self.transmit(outgoing);
    }

    fn state(&self) -> &CommonState {
        &self.connection
    }
}

fn broken(error: io::Error) -> TlsFailure {
    TlsFailure::Broken {
        detail: error.to_string(),
    }
}

/// Bytes that `rustls` reads
struct Reading<'a> {
    bytes: &'a [u8],
    /// How many of them it has
    taken: usize,
    /// Address of the first one where it keeps them
    start: usize,
}

impl Read for Reading<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let rest = &self.bytes[self.taken..];
        let fits = rest.len().min(room.len());
        copy(&rest[..fits], &mut room[..fits]);
        self.start = room.as_ptr().addr().wrapping_sub(self.taken);
        self.taken += fits;
        Ok(fits)
    }
}

/// The room of a buffer, which is filled
struct Room<'a>(&'a mut Buffer);

impl Write for Room<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.0.room().len() && self.0.is_empty() {
            self.0.reserve(bytes.len());
        }
        let room = self.0.room();
        let fits = bytes.len().min(room.len());
        copy(&bytes[..fits], &mut room[..fits]);
        self.0.fill(fits);
        Ok(fits)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut written = 0;
        for part in parts {
            let fits = self.write(part)?;
            written += fits;
            if fits < part.len() {
                break;
            }
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Most blocks of memory that a connection withholds from `rustls`
const SPACERS_MAX: usize = 4;
