//! Finds libucp, opens it once for each process, and checks that it can be used.
//!
//! Two copies of UCX in one process crash it: both patch the same functions of libc, and each has
//! tables of its own under the same names. A wheel makes that easy, as it holds every library three
//! times over, under three names. So whatever is in the process already is used, or nothing; what is
//! opened is opened by the names that the wheel's own loader opens; and once a library of UCX is
//! mapped nothing else is tried. Nothing is ever closed: UCX has patched libc.

use std::ffi::{CStr, c_char};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use libloading::os::unix::{Library as Dynamic, RTLD_LOCAL, RTLD_NOW};

use crate::abi::RawStatus;
use crate::api::Api;
use crate::error::{LoadError, Status};
use crate::maps::{main_library, mapped};

/// libucp, open for as long as the process lives
pub struct Library {
    pub(crate) api: Api,
    path: PathBuf,
    version: Version,
    looks_at_memory: bool,
}

/// A version of UCX
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Version {
    /// First number
    pub major: u32,
    /// Second number
    pub minor: u32,
}

/// Where to look for libucp
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// This file, and no other
    pub file: Option<PathBuf>,
    /// Folders that hold the libraries of a wheel
    pub folders: Vec<PathBuf>,
    /// Looks at the system's before those of folders
    pub prefers_system: bool,
}

impl Search {
    /// With what the environment says: [`FILE_VARIABLE`], and RAPIDS' own variable for its wheel
    #[must_use]
    pub fn from_environment() -> Self {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        Self {
            file: set(FILE_VARIABLE).map(PathBuf::from),
            folders: Vec::new(),
            prefers_system: set("RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY")
                .is_some_and(|value| !value.eq_ignore_ascii_case("false")),
        }
    }

    /// Opens libucp, unless this process has opened it already
    ///
    /// `wants_devices` has it look at memory ([`Library::looks_at_memory`]), unless it is loaded already.
    ///
    /// # Errors
    ///
    /// [`LoadError`]; another attempt can help where nothing was found, and else in another process.
    pub fn load(&self, wants_devices: bool) -> Result<&'static Library, LoadError> {
        // Two threads that load at once would each find nothing mapped.
        static LOADING: Mutex<()> = Mutex::new(());
        let _loading = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = loaded() {
            return Ok(library);
        }
        check_hook_mode()?;
        let library = self.open(wants_devices)?;
        Ok(LOADED.get_or_init(|| library))
    }

    fn open(&self, wants_devices: bool) -> Result<Library, LoadError> {
        let present = mapped();
        check_one_copy(&present)?;
        if let Some(loaded) = present.first() {
            let path = libucp_beside(&present, loaded);
            if let Some(file) = &self.file
                && !is_same_folder(file, &path)
            {
                return Err(LoadError::SecondCopy {
                    loaded: loaded.clone(),
                    wanted: file.clone(),
                });
            }
            return open(&path);
        }
        with_our_options(wants_devices, || {
            if let Some(file) = &self.file {
                return open(file);
            }
            let wheels = || self.folders.iter().map(|folder| folder.join("libucp.so"));
            let system = || std::iter::once(PathBuf::from(SYSTEM_NAME));
            let candidates: Vec<_> = if self.prefers_system {
                system().chain(wheels()).collect()
            } else {
                wheels().chain(system()).collect()
            };
            open_first(&candidates)
        })
    }
}

impl Library {
    /// The file
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its version
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// True if it asks the driver of what type memory is, each time
    ///
    /// Else it has a cache, filled by hooks in CUDA, and takes for the host's what is not in it, whatever a
    /// request says (1.21: `ucp_datatype_iter_detect_mem_info`). It then copies to memory of a device by
    /// `memcpy`.
    #[must_use]
    pub fn looks_at_memory(&self) -> bool {
        self.looks_at_memory
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library")
            .field("path", &self.path)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The library that this process has opened
pub fn loaded() -> Option<&'static Library> {
    LOADED.get()
}

/// Returns whether this host has devices for RDMA
#[must_use]
pub fn has_rdma() -> bool {
    std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some())
}

static LOADED: OnceLock<Library> = OnceLock::new();

/// Opens the first of several files that is there
fn open_first(candidates: &[PathBuf]) -> Result<Library, LoadError> {
    let mut searched = Vec::new();
    for candidate in candidates {
        // A bare name is looked for where the system looks.
        if candidate.is_absolute() && !candidate.exists() {
            searched.push(candidate.display().to_string());
            continue;
        }
        match open(candidate) {
            // A part of a copy that failed may have stayed.
            Err(LoadError::Open { path, detail }) if mapped().is_empty() => {
                searched.push(format!("{}: {detail}", path.display()));
            }
            outcome => return outcome,
        }
    }
    Err(LoadError::NotFound { searched })
}

/// Opens a file, with those beside it that the wheel's own loader opens before it
fn open(path: &Path) -> Result<Library, LoadError> {
    let failed = |path: &Path, error: libloading::Error| LoadError::Open {
        path: path.to_owned(),
        detail: std::error::Error::source(&error)
            .map_or_else(|| error.to_string(), |source| source.to_string()),
    };
    if path.file_name().is_some_and(|name| name == "libucp.so") {
        // By these very names: each other name is another file, and so another copy.
        for name in ["libucs.so", "libucs_signal.so", "libuct.so"] {
            let beside = path.with_file_name(name);
            if beside.is_absolute() && beside.exists() {
                std::mem::forget(dlopen(&beside).map_err(|error| failed(&beside, error))?);
            }
        }
    }
    let library = dlopen(path).map_err(|error| failed(path, error))?;
    let present = mapped();
    check_one_copy(&present)?;
    let is_libucp = |path: &&PathBuf| main_library(path) == Some('p');
    let found = present.iter().find(is_libucp);
    let path = found.map_or(path, PathBuf::as_path).to_owned();
    // Before anything can fail: it is never closed.
    let library: &'static Dynamic = Box::leak(Box::new(library));
    let api = Api::find(library, &path)?;
    let (mut major, mut minor, mut release) = (0, 0, 0);
    // SAFETY: three places for numbers.
    unsafe { (api.version)(&raw mut major, &raw mut minor, &raw mut release) };
    let version = Version { major, minor };
    if !(VERSION_MIN..=VERSION_MAX).contains(&version) {
        return Err(LoadError::Version { path, version });
    }
    let looks_at_memory = option(library, c"MEMTYPE_CACHE").as_deref() == Some("n");
    Ok(Library {
        api,
        path,
        version,
        looks_at_memory,
    })
}

/// The value of one of the options of libucs, which are read when it is loaded
fn option(library: &Dynamic, name: &CStr) -> Option<String> {
    type Get = unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> RawStatus;
    // SAFETY: the function of `ucs/config/global_opts.h`, of libucs, which libucp is linked with.
    let get = unsafe { library.get::<Get>(b"ucs_global_opts_get_value") }.ok()?;
    let mut value = [0_u8; 64];
    // SAFETY: a text that ends with a zero, and a place for as many bytes as is said.
    let status = unsafe { get(name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    Status::check(status).ok()?;
    let value = CStr::from_bytes_until_nul(&value).ok()?;
    Some(value.to_str().ok()?.to_owned())
}

fn dlopen(path: &Path) -> Result<Dynamic, libloading::Error> {
    // SAFETY: the constructors of UCX run, which patch functions of libc so that they tell UCX of
    // mappings; they may run while other threads do. A foreign library of that name cannot be
    // checked.
    unsafe { Dynamic::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
}

/// Checks that what is mapped is of one copy: of one folder, each library once
fn check_one_copy(present: &[PathBuf]) -> Result<(), LoadError> {
    let Some((first, others)) = present.split_first() else {
        return Ok(());
    };
    let mut letters = vec![main_library(first)];
    for other in others {
        let letter = main_library(other);
        if !is_same_folder(first, other) || letters.contains(&letter) {
            let twin = letters.iter().position(|known| *known == letter);
            return Err(LoadError::SecondCopy {
                loaded: present[twin.unwrap_or(0)].clone(),
                wanted: other.clone(),
            });
        }
        letters.push(letter);
    }
    Ok(())
}

/// The libucp of the copy of which something is mapped
fn libucp_beside(present: &[PathBuf], loaded: &Path) -> PathBuf {
    let is_libucp = |path: &&PathBuf| main_library(path) == Some('p');
    if let Some(path) = present.iter().find(is_libucp) {
        return path.clone();
    }
    // The same form of name: it is the one that the other's loader would open.
    let name = loaded.file_name().and_then(|name| name.to_str());
    let name = name.map_or_else(
        || SYSTEM_NAME.to_owned(),
        |name| format!("libucp{}", &name[6..]),
    );
    loaded.with_file_name(name)
}

fn is_same_folder(one: &Path, other: &Path) -> bool {
    let folder = |path: &Path| path.canonicalize().ok()?.parent().map(Path::to_owned);
    one.parent() == other.parent() || (folder(one).is_some() && folder(one) == folder(other))
}

/// Refuses what makes UCX crash when a peer dies
fn check_hook_mode() -> Result<(), LoadError> {
    match std::env::var(HOOK_VARIABLE) {
        Ok(value) if value.eq_ignore_ascii_case("none") => Err(LoadError::HookMode { value }),
        _ => Ok(()),
    }
}

/// Loads with options of our own, where the user has not said others
///
/// Memory hooks that are quick to set, where they are only needed in part: since 1.21 the default hooks take
/// 0.41 s, as they wait for all other threads to leave what is patched; `reloc` takes 1 ms. It misses what
/// libc unmaps by itself, which matters to memory that is registered with a device: where there is one, that
/// stays.
///
/// Where memory of devices is to be moved, no cache of types of memory ([`Library::looks_at_memory`]).
fn with_our_options<T>(wants_devices: bool, load: impl FnOnce() -> T) -> T {
    let hooks = (!has_rdma()).then_some((HOOK_VARIABLE, "reloc"));
    let types = wants_devices.then_some((TYPES_VARIABLE, "n"));
    let options = hooks.into_iter().chain(types);
    let ours = options.filter(|(name, _)| std::env::var_os(name).is_none());
    let ours: Vec<_> = ours.collect();
    for (name, value) in &ours {
        // SAFETY: all of Rust reads the environment under the lock that this takes. A thread in C that
        // reads it at this very moment is exposed as to any `setenv`, Python's `os.environ` among them;
        // UCX has no other place for the setting, as it reads this when it is loaded. It is taken
        // back immediately, so that children do not get it.
        unsafe { std::env::set_var(name, value) };
    }
    let loaded = load();
    for (name, _) in &ours {
        // SAFETY: as above.
        unsafe { std::env::remove_var(name) };
    }
    loaded
}

/// Names a libucp to be used, and no other
pub const FILE_VARIABLE: &str = "BACKHAUL_LIBUCP";

/// The oldest version that has all functions that are used
pub const VERSION_MIN: Version = Version {
    major: 1,
    minor: 13,
};

/// Any later version of the same major one: its structures only grow at their ends
pub const VERSION_MAX: Version = Version {
    major: 1,
    minor: 99,
};

const SYSTEM_NAME: &str = "libucp.so.0";

const HOOK_VARIABLE: &str = "UCX_MEM_MMAP_HOOK_MODE";

/// The cache of types of memory, `try` by default
const TYPES_VARIABLE: &str = "UCX_MEMTYPE_CACHE";
