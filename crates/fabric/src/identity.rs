//! Who this process is and which host it runs on, as a Hello says it.
//!
//! Two processes share a host for our purposes when they run under one kernel boot and see the
//! same abstract Unix sockets, which are scoped by the network namespace. An address proves
//! neither; the meeting on the Unix socket does.

use std::sync::Mutex;

use rustix::fs::{Mode, OFlags};

use crate::runtime::lock;

/// Facts about this process that do not change while it runs
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
    pub(crate) fn current() -> &'static Self {
        static CURRENT: Mutex<Option<&Identity>> = Mutex::new(None);
        let pid = std::process::id();
        let mut current = lock(&CURRENT);
        match *current {
            Some(identity) if identity.pid == pid => identity,
            _ => {
                // Leaked, once per process: others hold references to it.
                let identity = Box::leak(Box::new(Self::new(pid)));
                *current = Some(identity);
                identity
            }
        }
    }

    fn new(pid: u32) -> Self {
        Self {
            boot_id: boot_id(),
            host_token: network_namespace(),
            process_token: random(),
            pid,
            uid: rustix::process::getuid().as_raw(),
        }
    }
}

/// What peers know this process by: random, another one after a fork
#[must_use]
pub fn process_token() -> [u8; 16] {
    Identity::current().process_token
}

/// Sixteen random bytes from the kernel
///
/// # Panics
///
/// If the kernel has no random source, which no supported kernel lacks.
pub(crate) fn random() -> [u8; 16] {
    let mut bytes = [0; 16];
    let source = rustix::fs::open(
        "/dev/urandom",
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .expect("the kernel offers /dev/urandom");
    let mut filled = 0;
    while filled < bytes.len() {
        filled += rustix::io::read(&source, &mut bytes[filled..])
            .expect("reading /dev/urandom does not fail");
    }
    bytes
}

/// The boot id; all zero where procfs hides it, which never equals another host's by our rule
fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let mut id = [0; 16];
    if digits.len() == 32 {
        for (index, byte) in id.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * index..2 * index + 2], 16)
                .expect("two hexadecimal digits");
        }
    }
    id
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
