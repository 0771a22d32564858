//! Records by the unbuffered connections of `rustls`, which encrypt into our buffers.
//!
//! Releases of `rustls` up to 0.23 have them; its main branch has removed them.

use rustls::CommonState;
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, InsufficientSizeError,
    UnbufferedStatus,
};

use super::TlsFailure;
use super::buffer::Buffer;
use super::records::{Records, Step, Writing, keys_are_used_up};

/// A connection that encrypts into our buffers
pub(super) struct Unbuffered<C>(pub(super) C);

/// Methods that both sides of `rustls` have
pub(super) trait Connection: Send {
    type Data;

    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data>;

    fn common(&self) -> &CommonState;
}

impl Connection for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }

    fn common(&self) -> &CommonState {
        self
    }
}

impl Connection for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }

    fn common(&self) -> &CommonState {
        self
    }
}

impl<C: Connection> Records for Unbuffered<C> {
    fn step(
        &mut self,
        incoming: &mut Buffer,
        outgoing: &mut Buffer,
        sink: &mut dyn FnMut(&[u8]),
        writing: Option<&mut Writing<'_>>,
    ) -> Result<Step, TlsFailure> {
        let UnbufferedStatus { mut discard, state } = self.0.process(incoming.filled());
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
                Some(writing) => {
                    let seal = &mut |bytes: &[u8], outgoing: &mut Buffer| {
                        let sealed = traffic.encrypt(bytes, outgoing.room()).map_err(sealing)?;
                        outgoing.fill(sealed);
                        Ok(())
                    };
                    writing.encrypt(outgoing, seal).map(|()| Step::Ready)
                }
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

    fn queue_end(&mut self, incoming: &mut Buffer, outgoing: &mut Buffer) {
        let UnbufferedStatus { discard, state } = self.0.process(incoming.filled());
        if let Ok(ConnectionState::WriteTraffic(mut traffic)) = state
            && let Ok(bytes) = traffic.queue_close_notify(outgoing.room())
        {
            outgoing.fill(bytes);
        }
        incoming.drop_front(discard);
    }

    fn state(&self) -> &CommonState {
        self.0.common()
    }
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

fn sealing(error: EncryptError) -> TlsFailure {
    match error {
        EncryptError::EncryptExhausted => keys_are_used_up(),
        other => TlsFailure::Broken {
            detail: other.to_string(),
        },
    }
}
