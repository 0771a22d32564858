//! Records by the connections of `rustls` that have buffers, which each record is copied through.

use std::io::{self, BufRead, IoSlice, Write};
use std::ops::DerefMut;

use rustls::{CommonState, ConnectionCommon, SideData};

use super::TlsFailure;
use super::buffer::Buffer;
use super::records::{Records, Step, Writing, keys_are_used_up, record_bytes};

/// A connection with buffers, client or server
pub(super) struct Buffered<C> {
    connection: C,
    /// The peer has said that nothing more comes
    is_ended: bool,
    /// A step has failed, and the next one gives the alert alone
    is_failed: bool,
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
        }
    }

    /// Hands one record to `rustls`, and what it has decrypted to `sink`
    fn take(&mut self, mut record: &[u8], sink: &mut dyn FnMut(&[u8])) -> Result<(), TlsFailure> {
        while !record.is_empty() {
            if self.connection.read_tls(&mut record).map_err(broken)? == 0 {
                break;
            }
        }
        let processed = self.connection.process_new_packets();
        // Bytes that came before a failure are good.
        let mut reader = self.connection.reader();
        while let Ok(bytes @ [_, ..]) = reader.fill_buf() {
            sink(bytes);
            let taken = bytes.len();
            reader.consume(taken);
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
        if self.is_failed || self.is_ended {
            return Ok(Step::Ended);
        }
        if let Some(bytes) = record_bytes(incoming) {
            let taken = self.take(&incoming.filled_ref()[..bytes], sink);
            incoming.drop_front(bytes);
            self.is_failed = taken.is_err();
            return taken.map(|()| Step::Taken);
        }
        if self.connection.is_handshaking() {
            return Ok(Step::Starved);
        }
        if let Some(writing) = writing {
            writing.encrypt(outgoing, &mut |bytes, outgoing| {
                self.connection.writer().write_all(bytes).map_err(broken)?;
                // Without keys `rustls` drops the bytes, and reports nothing.
                match self.transmit(outgoing)? > bytes.len() {
                    true => Ok(()),
                    false => Err(keys_are_used_up()),
                }
            })?;
        }
        Ok(Step::Ready)
    }

    fn queue_end(&mut self, _: &mut Buffer, outgoing: &mut Buffer) {
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

/// The room of a buffer, which is filled
struct Room<'a>(&'a mut Buffer);

impl Write for Room<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.0.room().len() && self.0.is_empty() {
            self.0.reserve(bytes.len());
        }
        let room = self.0.room();
        let fits = bytes.len().min(room.len());
        room[..fits].copy_from_slice(&bytes[..fits]);
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
