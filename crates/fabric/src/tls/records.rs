//! The records of a session, behind one trait, which is all that a session knows of `rustls`.

use std::cell::RefCell;
use std::io::IoSlice;

use rustls::CommonState;

use super::TlsFailure;
use super::buffer::Buffer;

/// Next step with the records that are here
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Step {
    /// Something: there may be more
    Taken,
    /// Nothing until the peer says more
    Starved,
    /// Nothing: bytes can be written
    Ready,
    /// The peer has said that nothing more comes
    Ended,
}

/// Bytes to encrypt
pub(super) struct Writing<'a> {
    pub(super) parts: &'a [IoSlice<'a>],
    /// Bytes at the beginning that are encrypted already
    pub(super) skipped: usize,
    pub(super) taken: usize,
}

/// Makes records of bytes in a buffer that has room for them
pub(super) type Seal<'a> = dyn FnMut(&[u8], &mut Buffer) -> Result<(), TlsFailure> + 'a;

/// One side of a connection, client or server
pub(super) trait Records: Send {
    /// Handles what has come, up to the next event that the session handles
    ///
    /// At most one record of data is decrypted, into `sink`. Records for the peer go to `outgoing`.
    /// Bytes of `writing` are encrypted where the outcome is [`Step::Ready`].
    ///
    /// # Errors
    ///
    /// The failure of the peer or of its records. The next call gives the alert to `outgoing`, and
    /// there may be no other.
    fn step(
        &mut self,
        incoming: &mut Buffer,
        outgoing: &mut Buffer,
        sink: &mut dyn FnMut(&[u8]),
        writing: Option<&mut Writing<'_>>,
    ) -> Result<Step, TlsFailure>;

    /// Puts the end of this side's data behind the rest
    fn queue_end(&mut self, outgoing: &mut Buffer);

    /// Returns the facts about the connection
    fn state(&self) -> &CommonState;
}

/// Bytes of the record at the beginning, with its header; `None` until all of them are here
pub(super) fn record_bytes(incoming: &Buffer) -> Option<usize> {
    match incoming.filled_ref() {
        [_, _, _, high, low, rest @ ..] => {
            let bytes = usize::from(u16::from_be_bytes([*high, *low]));
            (rest.len() >= bytes).then_some(HEADER_BYTES + bytes)
        }
        _ => None,
    }
}

/// The keys have encrypted as much as they may
pub(super) fn keys_are_used_up() -> TlsFailure {
    TlsFailure::Broken {
        detail: "the keys are used up, and TLS 1.2 has no others: allow TLS 1.3".to_owned(),
    }
}

impl Writing<'_> {
    /// Encrypts what there is room for
    ///
    /// Whole records are taken where they lie; shorter parts are gathered before.
    ///
    /// # Errors
    ///
    /// Those of `seal`.
    pub(super) fn encrypt(
        &mut self,
        outgoing: &mut Buffer,
        seal: &mut Seal<'_>,
    ) -> Result<(), TlsFailure> {
        GATHERED.with_borrow_mut(|gathered| {
            gathered.clear();
            let mut skipped = self.skipped;
            for part in self.parts {
                let now = skipped.min(part.len());
                skipped -= now;
                let mut part = &part[now..];
                while !part.is_empty() {
                    if gathered.is_empty() && part.len() >= RECORD_BYTES {
                        let records = (part.len() / RECORD_BYTES).min(records_of(outgoing));
                        let (now, later) = part.split_at(records * RECORD_BYTES);
                        if now.is_empty() {
                            return Ok(());
                        }
                        seal(now, outgoing)?;
                        self.taken += now.len();
                        part = later;
                        continue;
                    }
                    let fits = part.len().min(RECORD_BYTES - gathered.len());
                    let (now, later) = part.split_at(fits);
                    gathered.extend_from_slice(now);
                    part = later;
                    if gathered.len() == RECORD_BYTES {
                        if records_of(outgoing) == 0 {
                            return Ok(());
                        }
                        seal(gathered, outgoing)?;
                        self.taken += gathered.len();
                        gathered.clear();
                    }
                }
            }
            if !gathered.is_empty() && records_of(outgoing) > 0 {
                seal(gathered, outgoing)?;
                self.taken += gathered.len();
            }
            Ok(())
        })
    }
}

/// How many records there is room for
fn records_of(outgoing: &mut Buffer) -> usize {
    outgoing.room().len().saturating_sub(CONTROL_BYTES) / (RECORD_BYTES + RECORD_EXTRA_BYTES)
}

thread_local! {
    /// Where parts shorter than a record are put together
    static GATHERED: RefCell<Vec<u8>> = RefCell::new(Vec::with_capacity(RECORD_BYTES));
}

/// Bytes of a full record before it is encrypted (RFC 8446, section 5.1)
pub(super) const RECORD_BYTES: usize = 16 << 10;

/// Type, version and length in front of a record
pub(super) const HEADER_BYTES: usize = 5;

/// Bytes that encryption adds to a record, at most: header, nonce, type and tag take 29
const RECORD_EXTRA_BYTES: usize = 64;

/// Room left for what TLS says between records
const CONTROL_BYTES: usize = 1 << 10;
