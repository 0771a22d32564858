//! libcuda and the devices that this process sees.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::path::Path;
use std::sync::{Mutex, OnceLock};

use crate::api::Api;
use crate::arena::Arena;
use crate::context::{Context, Current};
use crate::error::{CudaError, LoadError, NO_DEVICE, PEER_ACCESS_ALREADY_ENABLED};
use crate::stage::Stages;
use crate::stream::Streams;

/// libcuda, as this process has it
pub struct Driver {
    pub(crate) api: Api,
    version: u32,
    devices: Vec<Device>,
    /// Pairs of devices whose access to one another has been enabled, or refused
    peers: Mutex<Vec<(u16, u16)>>,
}

/// A device that this process sees
pub struct Device {
    ordinal: u16,
    uuid: Uuid,
    name: String,
    /// Its number in calls of CUDA
    number: c_int,
    /// Its primary context, once something is done with it: that takes some hundred MB of the device
    context: OnceLock<Result<Context, CudaError>>,
    pub(crate) streams: Streams,
    pub(crate) stages: Stages,
    arena: OnceLock<Arena>,
}

/// Identity of a device in every process
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub struct Uuid(pub [u8; 16]);

impl Driver {
    /// Opens libcuda, at the first call
    ///
    /// # Errors
    ///
    /// [`LoadError`], the same on each call.
    pub fn get() -> Result<&'static Self, LoadError> {
        static DRIVER: OnceLock<Result<Driver, LoadError>> = OnceLock::new();
        let driver = DRIVER.get_or_init(Self::load);
        driver.as_ref().map_err(Clone::clone)
    }

    /// Returns whether this host seems to have devices, without opening anything
    #[must_use]
    pub fn is_likely() -> bool {
        // As the driver of Linux, and that of Windows' subsystem for Linux, name them.
        ["/dev/nvidiactl", "/dev/dxg"]
            .iter()
            .any(|path| Path::new(path).exists())
    }

    /// The version of CUDA that the driver is for, such as 12040 for 12.4
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The devices, in the order in which this process counts them
    #[must_use]
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The device with this number in this process
    #[must_use]
    pub fn device(&self, ordinal: u16) -> Option<&Device> {
        self.devices.get(usize::from(ordinal))
    }

    /// The device with this name, if this process sees it
    #[must_use]
    pub fn find(&self, uuid: Uuid) -> Option<&Device> {
        self.devices.iter().find(|device| device.uuid == uuid)
    }

    /// Lets kernels and copies of one device reach memory of another, if they can
    ///
    /// Without it copies take their way through the host.
    pub(crate) fn enable_peer_access(&self, from: &Device, to: &Device) {
        let pair = (from.ordinal, to.ordinal);
        let mut peers = self.peers.lock().unwrap_or_else(|error| error.into_inner());
        if pair.0 == pair.1 || peers.contains(&pair) {
            return;
        }
        peers.push(pair);
        drop(peers);
        if let Err(error) = self.try_enable_peer_access(from, to) {
            tracing::debug!(%error, ?pair, "two devices do not reach each other");
        }
    }

    fn try_enable_peer_access(&self, from: &Device, to: &Device) -> Result<(), CudaError> {
        let mut can = 0;
        // SAFETY: numbers of devices, and a place for the answer.
        unsafe {
            self.api
                .cuDeviceCanAccessPeer(&raw mut can, from.number, to.number)
        }?;
        if can == 0 {
            return Ok(());
        }
        let theirs = to.context(self)?;
        let _current = Current::enter(self, from.context(self)?)?;
        // SAFETY: a context of another device, which is never destroyed.
        match unsafe { self.api.cuCtxEnablePeerAccess(theirs.raw(), 0) } {
            Err(error) if error.code != PEER_ACCESS_ALREADY_ENABLED => Err(error),
            _ => Ok(()),
        }
    }

    fn load() -> Result<Self, LoadError> {
        let api = Api::load()?;
        let no_device = || LoadError::NoDevice {
            visible: std::env::var("CUDA_VISIBLE_DEVICES").ok(),
        };
        // SAFETY: no flags exist.
        match unsafe { api.cuInit(0) } {
            Err(error) if error.code == NO_DEVICE => return Err(no_device()),
            outcome => outcome?,
        }
        let mut version = 0;
        let mut count = 0;
        // SAFETY: places for the answers.
        unsafe {
            api.cuDriverGetVersion(&raw mut version)?;
            api.cuDeviceGetCount(&raw mut count)?;
        }
        let devices: Result<Vec<_>, _> = (0..count)
            .map(|ordinal| Device::open(&api, ordinal))
            .collect();
        let devices = devices?;
        if devices.is_empty() {
            return Err(no_device());
        }
        Ok(Self {
            api,
            version: u32::try_from(version).unwrap_or(0),
            devices,
            peers: Mutex::default(),
        })
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("version", &self.version)
            .field("devices", &self.devices)
            .finish_non_exhaustive()
    }
}

impl Device {
    fn open(api: &Api, ordinal: c_int) -> Result<Self, CudaError> {
        let mut number = 0;
        let mut uuid = cudarc::driver::sys::CUuuid { bytes: [0; 16] };
        let mut name = [0 as c_char; NAME_BYTES];
        // SAFETY: a number below the count, and places for the answers, of which the name has a size.
        unsafe {
            api.cuDeviceGet(&raw mut number, ordinal)?;
            api.cuDeviceGetUuid(&raw mut uuid, number)?;
            api.cuDeviceGetName(name.as_mut_ptr(), NAME_BYTES as c_int, number)?;
        }
        // SAFETY: the name ends with a zero, at the latest with that of the last byte.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) };
        Ok(Self {
            ordinal: u16::try_from(ordinal).unwrap_or(u16::MAX),
            uuid: Uuid(uuid.bytes.map(|byte| byte.to_ne_bytes()[0])),
            name: name.to_string_lossy().into_owned(),
            number,
            context: OnceLock::new(),
            streams: Streams::default(),
            stages: Stages::default(),
            arena: OnceLock::new(),
        })
    }

    /// Its number in this process
    #[must_use]
    pub fn ordinal(&self) -> u16 {
        self.ordinal
    }

    /// Returns its identity in every process
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// Returns its name in the driver
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Memory of it that other processes can open
    pub fn arena(&'static self, driver: &'static Driver) -> &'static Arena {
        self.arena.get_or_init(|| Arena::new(driver, self))
    }

    /// Its primary context, which stays: libraries of CUDA use it too
    pub(crate) fn context(&self, driver: &Driver) -> Result<Context, CudaError> {
        let made = self.context.get_or_init(|| {
            let mut context = std::ptr::null_mut();
            // SAFETY: the number of a device, and a place for the answer.
            unsafe {
                driver
                    .api
                    .cuDevicePrimaryCtxRetain(&raw mut context, self.number)
            }?;
            Ok(Context::new(context).expect("a context that was retained"))
        });
        made.clone()
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("ordinal", &self.ordinal)
            .field("uuid", &self.uuid)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Uuid {
    /// As `nvidia-smi -L` writes it
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        for (index, byte) in self.0.iter().enumerate() {
            if [0, 4, 6, 8, 10].contains(&index) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Longest name of a device; longer ones are cut
const NAME_BYTES: usize = 128;
