//! Calls into NVML: what it says, and nothing made of it
//!
//! The library is loaded at run time; nothing here needs a driver to build.

use nvml_wrapper::enum_wrappers::device::TopologyLevel;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use thiserror::Error;

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
    let nvml = Nvml::init()?;
    let mut told = Told {
        version: nvml.sys_driver_version().unwrap_or_default(),
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
            if let Ok(path) = path(&nvml, a, b) {
                told.paths.push(((a, b), path));
            }
        }
    }
    Ok(told)
}

fn gpu(nvml: &Nvml, index: u32) -> Result<ToldGpu, NvmlError> {
    let device = nvml.device_by_index(index)?;
    Ok(ToldGpu {
        index,
        uuid: device.uuid()?,
        name: device.name().unwrap_or_default(),
        pci: device.pci_info()?.bus_id,
        memory_bytes: device.memory_info().ok().map(|memory| memory.total),
        cpus: device
            .cpu_affinity(MASK_WORDS)
            .map(|words| members(&words))
            .unwrap_or_default(),
        nodes: device
            .memory_affinity(MASK_WORDS, SCOPE_NODE)
            .map(|words| members(&words))
            .unwrap_or_default(),
        instances: instances(&device),
        links: links(&device),
    })
}

/// MIG instances; a GPU that cannot have any does not support the question
fn instances(device: &Device<'_>) -> Vec<GpuInstance> {
    if !device.mig_mode().is_ok_and(|mode| mode.current == 1) {
        return Vec::new();
    }
    // Numbers of instances have gaps
    (0..device.mig_device_count().unwrap_or(0))
        .filter_map(|index| device.mig_device_by_index(index).ok())
        .filter_map(|instance| {
            let name = instance.name().unwrap_or_default();
            Some(GpuInstance {
                uuid: instance.uuid().ok()?,
                // `NVIDIA A100-SXM4-80GB MIG 1g.10gb`
                profile: name.rsplit("MIG ").next().unwrap_or_default().to_owned(),
                memory_bytes: instance.memory_info().ok().map(|memory| memory.total),
            })
        })
        .collect()
}

fn links(device: &Device<'_>) -> Vec<ToldLink> {
    (0..LINKS_MAX)
        .map(|link| device.link_wrapper_for(link))
        .filter(|link| link.is_active().unwrap_or(false))
        .filter_map(|link| {
            let remote = link.remote_pci_info().ok()?;
            Some(ToldLink {
                pci: remote.bus_id,
                vendor: remote.pci_device_id & 0xffff,
                version: link.version().ok(),
            })
        })
        .collect()
}

fn path(nvml: &Nvml, a: u32, b: u32) -> Result<PciPath, NvmlError> {
    let (a, b) = (nvml.device_by_index(a)?, nvml.device_by_index(b)?);
    Ok(match a.topology_common_ancestor(b)? {
        TopologyLevel::Internal | TopologyLevel::Single => PciPath::Pix,
        TopologyLevel::Multiple => PciPath::Pxb,
        TopologyLevel::HostBridge => PciPath::Phb,
        TopologyLevel::Node => PciPath::Node,
        TopologyLevel::System => PciPath::Sys,
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

/// Words of 64 bits for 8,192 CPUs, the most that Linux can be built for
const MASK_WORDS: usize = 128;

/// `NVML_AFFINITY_SCOPE_NODE`
const SCOPE_NODE: u32 = 0;

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
}
