//! The functions of NVML that are used, found in `libnvidia-ml` by their names
//!
//! NVML is the management library of NVIDIA's driver, which is loaded at run time. Layouts and
//! constants are those of its header `nvml.h`, which keeps both for each function of a given name.

use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_ulong, c_ulonglong, c_void};
use std::ptr;

use libloading::Library;
use thiserror::Error;

/// NVML, initialised; ended when dropped
pub(super) struct Nvml {
    api: Api,
    /// Keeps the functions of `api` mapped
    _library: Library,
}

/// A GPU, or an instance of one
#[derive(Clone, Copy)]
pub(super) struct Device<'a> {
    nvml: &'a Nvml,
    handle: Handle,
}

/// Place on the PCI bus (`nvmlPciInfo_t`)
pub(super) struct Pci {
    /// Address, with a domain of eight digits
    pub(super) bus_id: String,
    /// Number of the device, and below it that of the vendor
    pub(super) device_id: u32,
}

/// Failure to load NVML, or of one of its functions
#[derive(Debug, Error)]
pub(super) enum NvmlError {
    /// The library, or a function in it, is missing
    #[error("{0}")]
    Load(#[from] libloading::Error),
    /// A function failed
    #[error("{function}: {text}")]
    Call {
        /// Its name
        function: &'static str,
        /// Error in NVML's words
        text: String,
    },
}

/// `nvmlDevice_t`
type Handle = *mut c_void;

#[repr(C)]
struct RawPci {
    bus_id_legacy: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    pci_device_id: c_uint,
    pci_sub_system_id: c_uint,
    bus_id: [c_char; 32],
}

#[repr(C)]
#[derive(Default)]
struct RawMemory {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

macro_rules! functions {
    ($($name:ident ($($argument:ident: $type:ty),*);)*) => {
        #[allow(non_snake_case, reason = "these are the names of NVML")]
        struct Api {
            $($name: Option<unsafe extern "C" fn($($type),*) -> c_int>,)*
        }

        impl Api {
            /// Finds the functions; an older driver lacks some
            fn find(library: &Library) -> Self {
                Self {
                    // SAFETY: the types are those of `nvml.h`.
                    $($name: unsafe { library.get(stringify!($name).as_bytes()) }
                        .ok()
                        .map(|symbol| *symbol),)*
                }
            }
        }

        impl Nvml {
            $(
                /// The function of that name; see the documentation of NVML
                ///
                /// # Safety
                ///
                /// As that function says of its arguments.
                #[allow(non_snake_case, reason = "as in NVML")]
                unsafe fn $name(&self, $($argument: $type),*) -> Result<(), NvmlError> {
                    let Some(function) = self.api.$name else {
                        return Err(failure(stringify!($name), "the driver lacks the function"));
                    };
                    // SAFETY: as the caller says.
                    let code = unsafe { function($($argument),*) };
                    self.check(stringify!($name), code)
                }
            )*
        }
    };
}

functions! {
    nvmlInit_v2();
    nvmlShutdown();
    nvmlSystemGetDriverVersion(text: *mut c_char, bytes: c_uint);
    nvmlDeviceGetCount_v2(count: *mut c_uint);
    nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut Handle);
    nvmlDeviceGetUUID(device: Handle, text: *mut c_char, bytes: c_uint);
    nvmlDeviceGetName(device: Handle, text: *mut c_char, bytes: c_uint);
    nvmlDeviceGetPciInfo_v3(device: Handle, pci: *mut RawPci);
    nvmlDeviceGetMemoryInfo(device: Handle, memory: *mut RawMemory);
    nvmlDeviceGetCpuAffinity(device: Handle, words: c_uint, mask: *mut c_ulong);
    nvmlDeviceGetMemoryAffinity(device: Handle, words: c_uint, mask: *mut c_ulong, scope: c_uint);
    nvmlDeviceGetMigMode(device: Handle, current: *mut c_uint, pending: *mut c_uint);
    nvmlDeviceGetMaxMigDeviceCount(device: Handle, count: *mut c_uint);
    nvmlDeviceGetMigDeviceHandleByIndex(device: Handle, index: c_uint, instance: *mut Handle);
    nvmlDeviceGetNvLinkState(device: Handle, link: c_uint, active: *mut c_uint);
    nvmlDeviceGetNvLinkVersion(device: Handle, link: c_uint, version: *mut c_uint);
    nvmlDeviceGetNvLinkRemotePciInfo_v2(device: Handle, link: c_uint, pci: *mut RawPci);
    nvmlDeviceGetTopologyCommonAncestor(a: Handle, b: Handle, level: *mut c_uint);
}

impl Nvml {
    /// Opens the library of this name and initialises it
    pub(super) fn open(name: impl AsRef<OsStr>) -> Result<Self, NvmlError> {
        // SAFETY: the initialisers of the driver's library have no preconditions.
        let library = unsafe { Library::new(name.as_ref()) }?;
        let nvml = Self {
            api: Api::find(&library),
            _library: library,
        };
        // SAFETY: it has no arguments. After a failure NVML refuses to be ended, which is harmless.
        unsafe { nvml.nvmlInit_v2() }?;
        Ok(nvml)
    }

    /// Version of the driver
    pub(super) fn driver_version(&self) -> Result<String, NvmlError> {
        // SAFETY: a buffer of that many bytes.
        text(|buffer, bytes| unsafe { self.nvmlSystemGetDriverVersion(buffer, bytes) })
    }

    /// Number of GPUs
    pub(super) fn device_count(&self) -> Result<u32, NvmlError> {
        // SAFETY: a place for the answer.
        number(|count| unsafe { self.nvmlDeviceGetCount_v2(count) })
    }

    /// The GPU of this number
    pub(super) fn device(&self, index: u32) -> Result<Device<'_>, NvmlError> {
        let mut handle = ptr::null_mut();
        // SAFETY: a place for the answer.
        unsafe { self.nvmlDeviceGetHandleByIndex_v2(index, &raw mut handle) }?;
        Ok(self.device_of(handle))
    }

    fn device_of(&self, handle: Handle) -> Device<'_> {
        Device { nvml: self, handle }
    }

    fn check(&self, function: &'static str, code: c_int) -> Result<(), NvmlError> {
        if code == 0 {
            return Ok(());
        }
        Err(failure(function, &format!("error {code} of NVML")))
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: no handle is left.
        drop(unsafe { self.nvmlShutdown() });
    }
}

impl Device<'_> {
    pub(super) fn uuid(&self) -> Result<String, NvmlError> {
        // SAFETY: a handle of this NVML, and a buffer of that many bytes.
        text(|buffer, bytes| unsafe { self.nvml.nvmlDeviceGetUUID(self.handle, buffer, bytes) })
    }

    pub(super) fn name(&self) -> Result<String, NvmlError> {
        // SAFETY: as above.
        text(|buffer, bytes| unsafe { self.nvml.nvmlDeviceGetName(self.handle, buffer, bytes) })
    }

    pub(super) fn pci(&self) -> Result<Pci, NvmlError> {
        // SAFETY: a handle of this NVML, and a place for the answer.
        pci(|pci| unsafe { self.nvml.nvmlDeviceGetPciInfo_v3(self.handle, pci) })
    }

    pub(super) fn memory_bytes(&self) -> Result<u64, NvmlError> {
        let mut memory = RawMemory::default();
        // SAFETY: as above.
        unsafe {
            self.nvml
                .nvmlDeviceGetMemoryInfo(self.handle, &raw mut memory)
        }?;
        Ok(memory.total)
    }

    /// CPUs near it, a bit for each
    pub(super) fn cpus(&self) -> Result<Vec<u64>, NvmlError> {
        // SAFETY: a handle of this NVML, and a mask of that many words.
        mask(|words, mask| unsafe { self.nvml.nvmlDeviceGetCpuAffinity(self.handle, words, mask) })
    }

    /// NUMA nodes of host memory near it, a bit for each
    pub(super) fn nodes(&self) -> Result<Vec<u64>, NvmlError> {
        // SAFETY: as above.
        mask(|words, mask| unsafe {
            self.nvml
                .nvmlDeviceGetMemoryAffinity(self.handle, words, mask, SCOPE_NODE)
        })
    }

    /// Returns whether it is divided into instances now
    pub(super) fn is_divided(&self) -> bool {
        let mut pending = 0;
        // SAFETY: a handle of this NVML, and places for the answers.
        let current = number(|current| unsafe {
            self.nvml
                .nvmlDeviceGetMigMode(self.handle, current, &raw mut pending)
        });
        current.is_ok_and(|mode| mode == MIG_ENABLED)
    }

    /// Its instances, whose numbers have gaps
    pub(super) fn instances(&self) -> impl Iterator<Item = Self> {
        // SAFETY: a handle of this NVML, and a place for the answer.
        let count =
            number(|count| unsafe { self.nvml.nvmlDeviceGetMaxMigDeviceCount(self.handle, count) });
        (0..count.unwrap_or(0)).filter_map(|index| {
            let mut handle = ptr::null_mut();
            // SAFETY: as above.
            unsafe {
                self.nvml
                    .nvmlDeviceGetMigDeviceHandleByIndex(self.handle, index, &raw mut handle)
            }
            .ok()?;
            Some(self.nvml.device_of(handle))
        })
    }

    /// Returns whether a link of NVLink is active
    pub(super) fn is_link_active(&self, link: u32) -> bool {
        // SAFETY: as above.
        let active = number(|active| unsafe {
            self.nvml
                .nvmlDeviceGetNvLinkState(self.handle, link, active)
        });
        active.is_ok_and(|active| active == 1)
    }

    /// `nvmlNvlinkVersion_t` of a link
    pub(super) fn link_version(&self, link: u32) -> Result<u32, NvmlError> {
        // SAFETY: as above.
        number(|version| unsafe {
            self.nvml
                .nvmlDeviceGetNvLinkVersion(self.handle, link, version)
        })
    }

    /// Other end of a link
    pub(super) fn link_pci(&self, link: u32) -> Result<Pci, NvmlError> {
        // SAFETY: as above.
        pci(|pci| unsafe {
            self.nvml
                .nvmlDeviceGetNvLinkRemotePciInfo_v2(self.handle, link, pci)
        })
    }

    /// `nvmlGpuTopologyLevel_t` of two GPUs
    pub(super) fn common_ancestor(&self, other: &Self) -> Result<u32, NvmlError> {
        // SAFETY: handles of this NVML, and a place for the answer.
        number(|level| unsafe {
            self.nvml
                .nvmlDeviceGetTopologyCommonAncestor(self.handle, other.handle, level)
        })
    }
}

fn failure(function: &'static str, text: &str) -> NvmlError {
    NvmlError::Call {
        function,
        text: text.to_owned(),
    }
}

fn number(ask: impl FnOnce(*mut c_uint) -> Result<(), NvmlError>) -> Result<u32, NvmlError> {
    let mut answer = 0;
    ask(&raw mut answer)?;
    Ok(answer)
}

fn text(
    ask: impl FnOnce(*mut c_char, c_uint) -> Result<(), NvmlError>,
) -> Result<String, NvmlError> {
    let mut buffer = [0; TEXT_BYTES as usize];
    ask(buffer.as_mut_ptr(), TEXT_BYTES)?;
    Ok(read(&buffer))
}

fn mask(
    ask: impl FnOnce(c_uint, *mut c_ulong) -> Result<(), NvmlError>,
) -> Result<Vec<u64>, NvmlError> {
    let mut words: Vec<c_ulong> = vec![0; MASK_WORDS as usize];
    ask(MASK_WORDS, words.as_mut_ptr())?;
    Ok(words)
}

fn pci(ask: impl FnOnce(*mut RawPci) -> Result<(), NvmlError>) -> Result<Pci, NvmlError> {
    let mut raw = RawPci {
        bus_id_legacy: [0; 16],
        domain: 0,
        bus: 0,
        device: 0,
        pci_device_id: 0,
        pci_sub_system_id: 0,
        bus_id: [0; 32],
    };
    ask(&raw mut raw)?;
    Ok(Pci {
        bus_id: read(&raw.bus_id),
        device_id: raw.pci_device_id,
    })
}

/// The text before the first NUL
fn read(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> = buffer.iter().flat_map(|byte| byte.to_ne_bytes()).collect();
    let found = CStr::from_bytes_until_nul(&bytes);
    found.map_or_else(
        |_| String::new(),
        |text| text.to_string_lossy().into_owned(),
    )
}

/// Longer than any text of NVML (`NVML_DEVICE_NAME_V2_BUFFER_SIZE`, `NVML_DEVICE_UUID_V2_BUFFER_SIZE`)
const TEXT_BYTES: c_uint = 96;

/// Words of 64 bits for 8,192 CPUs, the most that Linux can be built for
const MASK_WORDS: c_uint = 128;

/// `NVML_AFFINITY_SCOPE_NODE`
const SCOPE_NODE: c_uint = 0;

/// `NVML_DEVICE_MIG_ENABLE`
const MIG_ENABLED: c_uint = 1;
