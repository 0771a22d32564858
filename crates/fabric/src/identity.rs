//! Identity of this process and of the host it runs on, as a Hello has it.
//!
//! Two processes share a host for our purposes when they run under one kernel boot and see the
//! same abstract Unix sockets, which are scoped by the network namespace. An address proves
//! neither; what is handed over on the bootstrap socket does.

use std::io;
use std::sync::Mutex;

use backhaul_sys::forks::PerProcess;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::rand::GetRandomFlags;

use crate::runtime::lock;

/// Facts of this process that do not change while it runs
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// The kernel's id of this boot
    pub(crate) boot_id: [u8; 16],
    /// Device and inode of the network namespace
    pub(crate) host_token: Vec<u8>,
    /// Random, one per process and fork
    pub(crate) process_token: [u8; 16],
    pub(crate) pid: u32,
    pub(crate) uid: u32,
}

impl Identity {
    /// The identity of this process, another one after a fork
    ///
    /// # Errors
    ///
    /// If the system gives no random bytes, or no descriptor to read the boot id.
    pub(crate) fn current() -> io::Result<&'static Self> {
        static CURRENT: PerProcess<Mutex<Option<&Identity>>> = PerProcess::new();
        let pid = std::process::id();
        let mut current = lock(CURRENT.value());
        match *current {
            Some(identity) if identity.pid == pid => Ok(identity),
            _ => {
                // Leaked, once per process: others hold references to it.
                let identity = Box::leak(Box::new(Self::new(pid)?));
                *current = Some(identity);
                Ok(identity)
            }
        }
    }

    fn new(pid: u32) -> io::Result<Self> {
        Ok(Self {
            boot_id: boot_id()?,
            host_token: network_namespace(),
            process_token: random()?,
            pid,
            uid: rustix::process::getuid().as_raw(),
        })
    }
}

/// Returns the random token by which peers know this process; a forked process gets another one
///
/// # Errors
///
/// If the system gives no random bytes; once there is a [`Context`](crate::Context), it has.
pub fn process_token() -> io::Result<[u8; 16]> {
    Ok(Identity::current()?.process_token)
}

/// Sixteen random bytes from the kernel
///
/// # Errors
///
/// If a filter forbids the system call, and there is no `/dev/urandom` or no descriptor for it.
pub(crate) fn random() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += match rustix::rand::getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) => count,
            Err(Errno::INTR) => 0,
            Err(_) => return random_from_device(),
        };
    }
    Ok(bytes)
}

fn random_from_device() -> io::Result<[u8; 16]> {
    let device = "/dev/urandom";
    let in_words = |error: Errno| {
        let error = io::Error::from(error);
        io::Error::new(error.kind(), format!("no random bytes: {device}: {error}"))
    };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let source = rustix::fs::open(device, flags, Mode::empty()).map_err(in_words)?;
    let mut bytes = [0; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += match rustix::io::read(&source, &mut bytes[filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(Errno::INTR) => 0,
            Err(error) => return Err(in_words(error)),
        };
    }
    Ok(bytes)
}

/// The boot id; all zero where procfs hides it, which never equals another host's by our rule
///
/// # Errors
///
/// If it cannot be read just now, for want of descriptors: it is kept for good, so not without it.
fn boot_id() -> io::Result<[u8; 16]> {
    let text = match std::fs::read_to_string("/proc/sys/kernel/random/boot_id") {
        Ok(text) => text,
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => return Err(error),
            _ => String::new(),
        },
    };
    let digits: Vec<u8> = text
        .chars()
        .filter_map(|digit| Some(digit.to_digit(16)? as u8))
        .collect();
    let mut id = [0; 16];
    if let (pairs, []) = digits.as_chunks()
        && pairs.len() == id.len()
    {
        for (byte, [high, low]) in id.iter_mut().zip(pairs) {
            *byte = high << 4 | low;
        }
    }
    Ok(id)
}

fn network_namespace() -> Vec<u8> {
    rustix::fs::stat("/proc/self/ns/net").map_or_else(
        |_| Vec::new(),
        |stat| {
            let mut token = stat.st_dev.to_le_bytes().to_vec();
            token.extend_from_slice(&stat.st_ino.to_le_bytes());
            token
        },
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn the_boot_id_is_the_kernels() {
        let text: String = boot_id()
            .unwrap()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let kernels = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        assert_eq!(text, kernels.trim().replace('-', ""));
    }

    #[test]
    fn random_bytes_differ_wherever_they_come_from() {
        let drawn = [
            random().unwrap(),
            random().unwrap(),
            random_from_device().unwrap(),
            random_from_device().unwrap(),
        ];
        for (index, bytes) in drawn.iter().enumerate() {
            assert!(!drawn[..index].contains(bytes));
        }
    }
}
