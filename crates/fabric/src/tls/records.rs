//! The records of a session: results of `rustls`, a step at a time, for client and server alike.

use std::cell::RefCell;
use std::io::IoSlice;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, InsufficientSizeError,
    UnbufferedStatus, WriteTraffic,
};

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

/// Methods that both sides of `rustls` have
pub(super) trait Records {
    type Data;

    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data>;
}

impl Records for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }
}

impl Records for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }
}

/// Deals with what has come, up to the next thing that concerns us
pub(super) fn step<R: Records>(
    connection: &mut R,
    incoming: &mut Buffer,
    outgoing: &mut Buffer,
    sink: &mut dyn FnMut(&[u8]),
    writing: Option<&mut Writing<'_>>,
) -> Result<Step, TlsFailure> {
    let UnbufferedStatus { mut discard, state } = connection.process(incoming.filled());
    let outcome = match state {
        Ok(ConnectionState::ReadTraffic(mut traffic)) => {
            let mut outcome = Ok(Step::Taken);
            while let Some(record) = traffic.next_record() {
                match record {
                    Ok(record) => {
                        discard += record.discard;
                        sink(record.payload);
                    }
                    Err(error) => outcome = Err(error.into()),
                }
            }
            outcome
        }
        Ok(ConnectionState::EncodeTlsData(data)) => {
            encode(data, outgoing);
            Ok(Step::Taken)
        }
        Ok(ConnectionState::TransmitTlsData(data)) => {
            // It lies in `outgoing`, in front of all that comes later.
            data.done();
            Ok(Step::Taken)
        }
        Ok(ConnectionState::BlockedHandshake) => Ok(Step::Starved),
        Ok(ConnectionState::WriteTraffic(mut traffic)) => match writing {
            Some(writing) => writing
                .encrypt(&mut traffic, outgoing)
                .map(|()| Step::Ready),
            None => Ok(Step::Ready),
        },
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Ok(Step::Ended),
        Ok(other) => Err(TlsFailure::Broken {
            detail: format!("unexpected state {other:?}"),
        }),
        Err(error) => Err(error.into()),
    };
    incoming.drop_front(discard);
    outcome
}

fn encode<D>(mut data: EncodeTlsData<'_, D>, outgoing: &mut Buffer) {
    loop {
        match data.encode(outgoing.room()) {
            Ok(bytes) => return outgoing.fill(bytes),
            Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) => {
                outgoing.reserve(required_size);
            }
            // Only after it has been encoded, upon which we return.
            Err(EncodeError::AlreadyEncoded) => return,
        }
    }
}

/// Puts the end of what this side says behind the rest
pub(super) fn queue_end<R: Records>(
    connection: &mut R,
    incoming: &mut Buffer,
    outgoing: &mut Buffer,
) {
    let UnbufferedStatus { discard, state } = connection.process(incoming.filled());
    if let Ok(ConnectionState::WriteTraffic(mut traffic)) = state
        && let Ok(bytes) = traffic.queue_close_notify(outgoing.room())
    {
        outgoing.fill(bytes);
    }
    incoming.drop_front(discard);
}

impl Writing<'_> {
    /// Encrypts what there is room for
    ///
    /// Whole records are taken where they lie; shorter parts are gathered before.
    fn encrypt<D>(
        &mut self,
        traffic: &mut WriteTraffic<'_, D>,
        outgoing: &mut Buffer,
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
                        self.seal(now, traffic, outgoing)?;
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
                        self.seal(gathered, traffic, outgoing)?;
                        gathered.clear();
                    }
                }
            }
            if !gathered.is_empty() && records_of(outgoing) > 0 {
                self.seal(gathered, traffic, outgoing)?;
            }
            Ok(())
        })
    }

    fn seal<D>(
        &mut self,
        bytes: &[u8],
        traffic: &mut WriteTraffic<'_, D>,
        outgoing: &mut Buffer,
    ) -> Result<(), TlsFailure> {
        let sealed =
            traffic
                .encrypt(bytes, outgoing.room())
                .map_err(|error| TlsFailure::Broken {
                    detail: match error {
                        EncryptError::EncryptExhausted => {
                            "the keys are used up, and TLS 1.2 has no others: allow TLS 1.3"
                                .to_owned()
                        }
                        other => other.to_string(),
                    },
                })?;
        outgoing.fill(sealed);
        self.taken += bytes.len();
        Ok(())
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
const RECORD_BYTES: usize = 16 << 10;

/// Bytes that encryption adds to a record, at most: header, nonce, type and tag take 29
const RECORD_EXTRA_BYTES: usize = 64;

/// Room left for what TLS says between records
const CONTROL_BYTES: usize = 1 << 10;
