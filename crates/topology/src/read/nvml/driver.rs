//! Calls into NVML: what it says, and nothing made of it
//!
//! The library is loaded at run time; nothing here needs a driver to build.

use thiserror::Error;

use super::library::{Device, Nvml, NvmlError};
use super::{Told, ToldGpu, ToldLink};
use crate::cpuset::CpuSet;
use crate::model::{GpuInstance, PciPath};

/// Asks the driver of this machine
///
/// # Errors
///
/// [`NoDriver`] if there is none, or it refuses to count its GPUs. A fact that it does not report
/// of one GPU becomes a note.
pub(in crate::read) fn ask() -> Result<Told, NoDriver> {
    ask_library(LIBRARY)
}

fn ask_library(name: &str) -> Result<Told, NoDriver> {
    let nvml = Nvml::open(name)?;
    let mut told = Told {
        version: nvml.driver_version().unwrap_or_default(),
        ..Told::default()
    };
    let count = nvml.device_count()?;
    for index in 0..count {
        match gpu(&nvml, index) {
            Ok(gpu) => told.gpus.push(gpu),
            Err(error) => told
                .notes
                .push(format!("NVML does not tell of GPU {index}: {error}")),
        }
    }
    for a in 0..count {
        for b in a + 1..count {
            if let Ok(Some(path)) = path(&nvml, a, b) {
                told.paths.push(((a, b), path));
            }
        }
    }
    Ok(told)
}

fn gpu(nvml: &Nvml, index: u32) -> Result<ToldGpu, NvmlError> {
    let device = nvml.device(index)?;
    Ok(ToldGpu {
        index,
        uuid: device.uuid()?,
        name: device.name().unwrap_or_default(),
        pci: device.pci()?.bus_id,
        memory_bytes: device.memory_bytes().ok(),
        cpus: device
            .cpus()
            .map(|words| members(&words))
            .unwrap_or_default(),
        nodes: device
            .nodes()
            .map(|words| members(&words))
            .unwrap_or_default(),
        instances: instances(&device),
        links: links(&device),
    })
}

/// MIG instances; a GPU that cannot have any does not support the question
fn instances(device: &Device<'_>) -> Vec<GpuInstance> {
    if !device.is_divided() {
        return Vec::new();
    }
    device
        .instances()
        .filter_map(|instance| {
            let name = instance.name().unwrap_or_default();
            Some(GpuInstance {
                uuid: instance.uuid().ok()?,
                // `NVIDIA A100-SXM4-80GB MIG 1g.10gb`
                profile: name.rsplit("MIG ").next().unwrap_or_default().to_owned(),
                memory_bytes: instance.memory_bytes().ok(),
            })
        })
        .collect()
}

fn links(device: &Device<'_>) -> Vec<ToldLink> {
    (0..LINKS_MAX)
        .filter(|&link| device.is_link_active(link))
        .filter_map(|link| {
            let remote = device.link_pci(link).ok()?;
            Some(ToldLink {
                pci: remote.bus_id,
                vendor: remote.device_id & 0xffff,
                version: device.link_version(link).ok(),
            })
        })
        .collect()
}

fn path(nvml: &Nvml, a: u32, b: u32) -> Result<Option<PciPath>, NvmlError> {
    let level = nvml.device(a)?.common_ancestor(&nvml.device(b)?)?;
    // `nvmlGpuTopologyLevel_t`
    Ok(match level {
        0 | 10 => Some(PciPath::Pix),
        20 => Some(PciPath::Pxb),
        30 => Some(PciPath::Phb),
        40 => Some(PciPath::Node),
        50 => Some(PciPath::Sys),
        _ => None,
    })
}

/// Numbers of the bits that are set
fn members(words: &[u64]) -> CpuSet {
    let mut bits = (0..).zip(words).flat_map(|(at, word)| {
        (0..64_u32)
            .filter(move |bit| word >> bit & 1 == 1)
            .map(move |bit| at * 64 + bit)
    });
    bits.by_ref().collect()
}

/// There is no NVML, or no driver below it
#[derive(Debug, Error)]
#[error("no NVML: {0}")]
pub(in crate::read) struct NoDriver(#[from] NvmlError);

/// The library of the driver
const LIBRARY: &str = "libnvidia-ml.so.1";

/// `NVML_NVLINK_MAX_LINKS`
const LINKS_MAX: u32 = 18;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_of_words_are_numbers() {
        assert_eq!(members(&[0b1011, 0, 1 << 63]).to_string(), "0-1,3,191");
    }

    #[test]
    fn without_a_driver_there_is_an_error_and_no_panic() {
        match ask() {
            // Here or on a host with a GPU
            Ok(told) => assert!(!told.version.is_empty()),
            Err(error) => assert!(error.to_string().starts_with("no NVML: ")),
        }
    }

    /// Builds a library with the functions of NVML from C, for each call with its own answers
    fn fake() -> Result<Told, NoDriver> {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake_nvml.c");
        let folder = std::env::temp_dir().join(format!("fake-nvml-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let library = folder.join("libnvidia-ml.so");
        let built = std::process::Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .args([library.as_os_str(), source.as_ref()])
            .status()
            .expect("a C compiler");
        assert!(built.success());
        let told = ask_library(library.to_str().expect("a path in UTF-8"));
        std::fs::remove_dir_all(&folder).expect("a folder to remove");
        told
    }

    #[test]
    fn answers_of_the_library_are_read_in_its_layouts() {
        let told = fake().expect("the fake has two GPUs");
        assert_eq!(told.version, "570.1");
        let [first, second] = &told.gpus[..] else {
            panic!("{told:?}");
        };
        assert_eq!((first.index, first.uuid.as_str()), (0, "GPU-a"));
        assert_eq!((second.index, second.uuid.as_str()), (1, "GPU-b"));
        assert_eq!(first.name, "Fake A100");
        assert_eq!(first.pci, "00000000:07:00.0");
        assert_eq!(first.memory_bytes, Some(80 << 30));
        assert_eq!(first.cpus.to_string(), "0,65");
        assert_eq!(first.nodes.to_string(), "1");
        let link = |pci: &str| ToldLink {
            pci: pci.to_owned(),
            vendor: 0x10de,
            version: Some(5),
        };
        assert_eq!(
            first.links,
            [link("00000000:0F:00.0"), link("00000000:0F:00.0")]
        );
        assert_eq!(first.instances, []);
        // Of four places for instances two are taken.
        let profiles: Vec<_> = second
            .instances
            .iter()
            .map(|one| one.profile.as_str())
            .collect();
        assert_eq!(profiles, ["1g.10gb", "1g.10gb"]);
        assert_eq!(second.instances[0].memory_bytes, Some(10 << 30));
        assert_eq!(told.paths, [((0, 1), PciPath::Pxb)]);
        // The second does not support the question.
        assert!(second.nodes.is_empty());
        assert!(told.notes.is_empty());
    }
}
