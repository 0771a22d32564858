//! The lane over UCX, for tests: which libucp, and over which transports of it.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use backhaul::{Config, LaneKind};

use crate::{Harness, Spin};

/// Transport by which UCX moves bytes
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Transport {
    /// Its sockets
    Tcp,
    /// Its shared memory, with single copies by the kernel
    Posix,
}

impl Transport {
    /// As in `UCX_TLS`
    pub fn names(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Posix => "posix,cma",
        }
    }
}

impl Harness {
    /// The harness of the lane over UCX, without a peer program; skipped where there is no libucp
    pub fn over_ucx(transport: Transport, spin: Spin) -> Self {
        Self {
            configure: match transport {
                Transport::Tcp => |config| configure_over(config, Transport::Tcp),
                Transport::Posix => |config| configure_over(config, Transport::Posix),
            },
            peer_environment: vec![("UCX_TLS", transport.names().to_owned())],
            skipped: library().err(),
            ..Self::of_lane(LaneKind::Ucx, spin)
        }
    }
}

/// Has two contexts meet on the lane, over the transports that the environment names
///
/// # Panics
///
/// If there is no libucp.
pub fn configure(config: &mut Config) {
    config.lanes = vec![LaneKind::Ucx];
    config.ucx.library.file = Some(library().unwrap().to_owned());
}

fn configure_over(config: &mut Config, transport: Transport) {
    configure(config);
    let setting = ("TLS".to_owned(), transport.names().to_owned());
    config.ucx.settings.push(setting);
}

/// The libucp that tests use: what `BACKHAUL_LIBUCP` names, or the wheel in `.venv`
///
/// # Errors
///
/// Where none was found.
pub fn library() -> Result<&'static Path, String> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        if let Some(file) = std::env::var_os("BACKHAUL_LIBUCP") {
            return Ok(PathBuf::from(file));
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let versions = root
            .join(".venv/lib")
            .read_dir()
            .into_iter()
            .flatten()
            .flatten();
        let mut files =
            versions.map(|version| version.path().join("site-packages/libucx/lib/libucp.so"));
        let why = "no libucp: BACKHAUL_LIBUCP names none, and .venv has no wheel libucx";
        files
            .find(|file| file.exists())
            .ok_or_else(|| why.to_owned())
    });
    found.as_deref().map_err(String::clone)
}
