//! Exchange of tokens by which two processes of one host show that each may read the other's
//! memory.
//!
//! Each process says where in its memory a random token lies. A process that can read the token
//! there, in the process that the kernel names as the other end of the socket, may read that
//! process and has the right one. Another process id namespace, a forked server or a forbidden
//! access shows here, once, and not in the middle of a message.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, Weak};

use backhaul_shm::peer_memory::{PeerMemory, Probe, TOKEN_BYTES};
use backhaul_sys::forks::PerProcess;
use rustix::net::{RecvFlags, SendFlags};

use super::selection::in_words;
use crate::runtime::lock;

/// Where a process keeps its token, and what that is
#[derive(Clone, Copy, Debug)]
pub(super) struct Introduction {
    address: u64,
    token: [u8; TOKEN_BYTES],
}

/// Bytes of an introduction: `u64 address | token`
pub(super) const INTRODUCTION_BYTES: usize = 8 + TOKEN_BYTES;

impl Introduction {
    /// That of this process
    pub(super) fn ours() -> io::Result<Self> {
        let probe = Probe::of_this_process()?;
        Ok(Self {
            address: probe.address(),
            token: probe.token(),
        })
    }

    pub(super) fn encode(&self) -> [u8; INTRODUCTION_BYTES] {
        let mut encoded = [0; INTRODUCTION_BYTES];
        encoded[..8].copy_from_slice(&self.address.to_le_bytes());
        encoded[8..].copy_from_slice(&self.token);
        encoded
    }

    pub(super) fn decode(encoded: &[u8; INTRODUCTION_BYTES]) -> Self {
        let (address, token) = encoded.split_first_chunk::<8>().expect("24 bytes");
        Self {
            address: u64::from_le_bytes(*address),
            token: token.try_into().expect("16 bytes"),
        }
    }

    /// Answers an introduction on the socket by which it came
    pub(super) fn send(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = rustix::net::send(socket, &self.encode(), flags)?;
        if sent != INTRODUCTION_BYTES {
            return Err(io::ErrorKind::WriteZero.into());
        }
        Ok(())
    }

    /// Receives the answer, which has been sent
    pub(super) fn receive(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let mut encoded = [0; INTRODUCTION_BYTES];
        // With this flag the length is that of the packet, also where that is longer.
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        let (_, bytes) = rustix::net::recv(socket, &mut encoded[..], flags)?;
        if bytes != INTRODUCTION_BYTES {
            let what = format!("an introduction of {bytes} bytes, not {INTRODUCTION_BYTES}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(Self::decode(&encoded))
    }

    /// Opens the memory of the process at the other end of a socket, or says why it cannot be read
    pub(super) fn open(&self, socket: BorrowedFd<'_>) -> Result<Arc<PeerMemory>, String> {
        let peer = backhaul_sys::peer::credentials(socket).map_err(|error| error.to_string())?;
        let pid = peer
            .pid
            .ok_or("the peer is in another process id namespace")?;
        let pid = pid.get();
        let mut opened = lock(opened());
        let key = (pid, self.token);
        if let Some(memory) = opened.get(&key).and_then(Weak::upgrade) {
            return Ok(memory);
        }
        let memory = PeerMemory::open(pid, self.address, &self.token);
        let memory = Arc::new(memory.map_err(in_words)?);
        opened.retain(|_, memory| memory.strong_count() > 0);
        opened.insert(key, Arc::downgrade(&memory));
        Ok(memory)
    }
}

type Opened = HashMap<(u32, [u8; TOKEN_BYTES]), Weak<PeerMemory>>;

/// Open descriptors: one for each peer process, however many connections the process has
fn opened() -> &'static Mutex<Opened> {
    static OPENED: PerProcess<Mutex<Opened>> = PerProcess::new();
    OPENED.value()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn an_introduction_of_another_length_is_refused() {
        let (ours, theirs) = crate::carrier::packets::pair().expect("two descriptors");
        for bytes in [INTRODUCTION_BYTES - 1, INTRODUCTION_BYTES + 1] {
            rustix::net::send(&theirs, &vec![1; bytes], SendFlags::empty()).expect("room");
            let error = Introduction::receive(ours.as_fd()).expect_err("it has another length");
            assert!(
                error.to_string().contains(&format!("{bytes} bytes")),
                "{error}"
            );
        }
        let ours_said = Introduction::ours().expect("random bytes");
        ours_said.send(theirs.as_fd()).expect("room");
        assert!(Introduction::receive(ours.as_fd()).is_ok());
    }

    #[test]
    fn an_introduction_comes_back() {
        let ours = Introduction::ours().expect("random bytes");
        let again = Introduction::decode(&ours.encode());
        assert_eq!((again.address, again.token), (ours.address, ours.token));
    }
}
