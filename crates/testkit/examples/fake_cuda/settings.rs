//! Settings from the environment.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::Duration;

use cudarc::driver::sys::CUresult;

use crate::error;

/// The environment, as it was at the first call
#[derive(Debug)]
pub(crate) struct Settings {
    /// Which devices of the host this process sees, in the order of its ordinals
    pub(crate) visible: Vec<usize>,
    /// Memory of each device
    pub(crate) memory_bytes: usize,
    /// How long an operation on a stream waits before it starts
    pub(crate) delay: Duration,
    /// How long a copy within a device waits for its turn, beyond that
    pub(crate) turn: Duration,
    /// True if devices reach each other's memory
    pub(crate) peers: bool,
    /// True if handles of devices that this process does not see open
    pub(crate) unseen_opens: bool,
    /// True if memory says that handles can be made for it
    pub(crate) ipc_flag: bool,
    /// The version of the driver
    pub(crate) version: i32,
    /// Calls that fail, with what
    pub(crate) failures: HashMap<String, CUresult>,
}

/// The settings of this process
///
/// # Panics
///
/// If the environment holds what cannot be read: a test says something else than it means.
pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let devices = number("FAKE_CUDA_DEVICES", 1);
        Settings {
            visible: visible(
                std::env::var("CUDA_VISIBLE_DEVICES").ok().as_deref(),
                devices,
            ),
            memory_bytes: number::<usize>("FAKE_CUDA_MEMORY_MIB", 1024) << 20,
            delay: Duration::from_micros(number("FAKE_CUDA_DELAY_US", 0)),
            turn: Duration::from_micros(number("FAKE_CUDA_TURN_US", 0)),
            peers: number("FAKE_CUDA_NO_PEER", 0) == 0,
            unseen_opens: match std::env::var("FAKE_CUDA_UNSEEN").ok().as_deref() {
                None | Some("") => false,
                Some("open") => true,
                Some(other) => panic!("FAKE_CUDA_UNSEEN={other:?} is not `open`"),
            },
            ipc_flag: number("FAKE_CUDA_NO_IPC_FLAG", 0) == 0,
            version: number("FAKE_CUDA_VERSION", 12_000),
            failures: failures(&std::env::var("FAKE_CUDA_FAIL").unwrap_or_default()),
        }
    })
}

/// The UUID of a device of the host: the same in every process
pub(crate) fn uuid(physical: usize) -> [u8; 16] {
    let mut uuid = *b"\xfa\xce..fake-devices";
    uuid[2..4].copy_from_slice(&u16::try_from(physical).unwrap_or(u16::MAX).to_be_bytes());
    uuid
}

/// A UUID as `nvidia-smi -L` writes it
fn uuid_text(uuid: [u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let (a, b, c, d, e) = (
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    );
    format!("GPU-{a}-{b}-{c}-{d}-{e}")
}

/// The devices that a list names, up to the first that is not there
///
/// A UUID may be abbreviated while it names one device (the programming guide, "CUDA Environment
/// Variables").
fn visible(list: Option<&str>, devices: usize) -> Vec<usize> {
    let Some(list) = list else {
        return (0..devices).collect();
    };
    let mut visible = Vec::new();
    for name in list.split(',').map(str::trim) {
        let found = match name.parse::<usize>() {
            Ok(index) => (index < devices).then_some(index),
            Err(_) if name.starts_with("GPU-") => {
                let mut named =
                    (0..devices).filter(|&index| uuid_text(uuid(index)).starts_with(name));
                named.next().filter(|_| named.next().is_none())
            }
            Err(_) => None,
        };
        let Some(index) = found else { break };
        // That a device that is named twice hides them all is hearsay.
        if visible.contains(&index) {
            return Vec::new();
        }
        visible.push(index);
    }
    visible
}

fn failures(list: &str) -> HashMap<String, CUresult> {
    let parse = |entry: &str| {
        let (name, code) = entry.split_once('=')?;
        let result = error::from_code(code.trim().parse().ok()?)?;
        Some((name.trim().to_owned(), result))
    };
    list.split(',')
        .filter(|entry| !entry.trim().is_empty())
        .map(|entry| parse(entry).unwrap_or_else(|| panic!("FAKE_CUDA_FAIL has {entry:?}")))
        .collect()
}

fn number<T: std::str::FromStr>(name: &str, default: T) -> T {
    match std::env::var(name) {
        Ok(text) if !text.is_empty() => match text.parse() {
            Ok(number) => number,
            Err(_) => panic!("{name}={text:?} is no number that fits"),
        },
        _ => default,
    }
}
