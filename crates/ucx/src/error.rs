//! Errors: why libucp cannot be used here, and what a call of it came to.

use std::ffi::CStr;
use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

use crate::abi::RawStatus;
use crate::library::{self, Version};
use crate::worker;

/// libucp cannot be used in this process
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// There is none
    #[error(
        "no libucp was found (looked for {}): install it with `pip install 'backhaul[ucx]'`, or from \
         the packages of this system, where it has RDMA", searched.join(", ")
    )]
    NotFound {
        /// Places that were searched, in order, with the error of the system
        searched: Vec<String>,
    },
    /// One was named, or is there, and cannot be opened
    #[error("{} cannot be opened: {detail}", path.display())]
    Open {
        /// The file
        path: PathBuf,
        /// Error of the system
        detail: String,
    },
    /// One copy of UCX is loaded, and another would come beside it
    #[error(
        "UCX is loaded from {} in this process, and {} would come beside it, which crashes: \
         have all that use UCX in this process use one copy (uninstall the wheel libucx, or set \
         RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY=true for that of the system)",
        loaded.display(), wanted.display()
    )]
    SecondCopy {
        /// A library that is in the process
        loaded: PathBuf,
        /// Library that would have to be loaded, or is loaded too
        wanted: PathBuf,
    },
    /// It is older than what this crate knows, or newer than what it may trust
    #[error(
        "{} is UCX {version}, and {} to {} can be used: install another one, for example with `pip \
         install 'backhaul[ucx]'`", path.display(), library::VERSION_MIN, library::VERSION_MAX
    )]
    Version {
        /// The file
        path: PathBuf,
        /// Its version
        version: Version,
    },
    /// It lacks a function that all versions have that can be used
    #[error("{} has no {symbol}: it is no UCX that can be used", path.display())]
    MissingSymbol {
        /// The file
        path: PathBuf,
        /// The name of the function
        symbol: &'static str,
    },
    /// The environment has UCX run without its memory hooks, which crashes it when a peer dies
    #[error(
        "UCX_MEM_MMAP_HOOK_MODE={value} makes UCX crash when a peer dies: unset it, or set it to \
         reloc or bistro"
    )]
    HookMode {
        /// Value that it is set to
        value: String,
    },
}

/// Status of a call of libucp, or of an operation, that did not succeed
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct Status(pub(crate) RawStatus);

impl Status {
    /// The number of the error, below zero
    #[must_use]
    pub const fn code(self) -> i32 {
        self.0
    }

    /// The error in `status`, if it is one
    pub(crate) const fn check(status: RawStatus) -> Result<(), Self> {
        if status < 0 {
            Err(Self(status))
        } else {
            Ok(())
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(library) = library::loaded() else {
            return write!(f, "status {}", self.0);
        };
        // SAFETY: any number may be asked for, and the text is a constant of the library, or lies in
        // memory of the calling thread until its next call.
        let text = unsafe { CStr::from_ptr((library.api.status_text)(self.0)) };
        write!(f, "{} ({})", text.to_string_lossy(), self.0)
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Status {}

/// An operation of libucp failed
#[derive(Clone, Debug, Error)]
#[error("{call}: {status}")]
pub struct Failed {
    /// The name of the function
    pub call: &'static str,
    /// Status that it returned
    pub status: Status,
}

/// UCX cannot be used
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum UcxError {
    /// It was not loaded
    #[error(transparent)]
    Load(#[from] LoadError),
    /// It was, and has refused
    #[error("UCX cannot be started: {0}")]
    Failed(#[from] Failed),
    /// The carrier ucx-cuda was asked for, and moves no memory of devices here
    #[error(
        "carrier ucx-cuda: {} (it takes version {} or later, with its module for CUDA, which has to find \
         the driver; of what is set, UCX_TLS with cuda_copy, UCX_RCACHE_ENABLE=y, UCX_MEMTYPE_CACHE=n; and \
         that nothing else has loaded it before)",
        path.as_ref().map_or_else(
            || "the lane ucx is not in use".to_owned(),
            |path| format!("{} moves no memory of GPUs here", path.display())
        ),
        worker::CUDA_VERSION_MIN
    )]
    NoCuda {
        /// The file of libucp, if it is loaded
        path: Option<PathBuf>,
    },
}

/// Names the call in an error
pub(crate) fn check(call: &'static str, status: RawStatus) -> Result<(), Failed> {
    Status::check(status).map_err(|status| Failed { call, status })
}
