//! How far apart two devices are: the class of the path between them, and what to expect of it
//!
//! Pure: derived from what a [`Machine`] says. A path that a driver told wins over one derived from
//! PCI addresses, and those over NUMA nodes. Where nothing is known the answer is [`Class::Sys`], the
//! farthest that two devices of one host can be.

mod figures;
mod links;

use std::fmt;

use serde::{Serialize, Serializer};
use thiserror::Error;

use self::figures::Figures;
use crate::model::{Machine, Nic, PciPath};

pub(crate) use self::links::{class_between, node_of_place, place};
pub use self::links::{nvlink_between, pci_path_between};

/// Something on a host that data can be at
///
/// Written and read as `gpu0`, `cpu12`, `node1`, or the name of a network interface, an RDMA device
/// or a disk.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Device {
    /// A GPU, by [`crate::model::Gpu::index`]
    Gpu(u32),
    /// A hardware thread
    Cpu(u32),
    /// The memory of a NUMA node
    Node(u32),
    /// A network interface, by name
    Nic(String),
    /// An RDMA device, by name
    Rdma(String),
    /// A block device, by name
    Disk(String),
}

impl Device {
    /// Finds the device that a text names
    ///
    /// # Errors
    ///
    /// [`UnknownDevice`] if the machine has none of this name.
    pub fn find(machine: &Machine, text: &str) -> Result<Self, UnknownDevice> {
        let number = |prefix: &str| {
            text.strip_prefix(prefix)
                .and_then(|rest| rest.parse::<u32>().ok())
        };
        if machine.nics.iter().any(|nic| nic.name == text) {
            return Ok(Self::Nic(text.to_owned()));
        }
        if machine.rdma.iter().any(|rdma| rdma.name == text) {
            return Ok(Self::Rdma(text.to_owned()));
        }
        if machine.storage.iter().any(|disk| disk.name == text) {
            return Ok(Self::Disk(text.to_owned()));
        }
        if let Some(index) = number("gpu")
            && machine.gpus.iter().any(|gpu| gpu.index == index)
        {
            return Ok(Self::Gpu(index));
        }
        if let Some(cpu) = number("cpu")
            && machine.online_cpus.contains(cpu)
        {
            return Ok(Self::Cpu(cpu));
        }
        if let Some(id) = number("node")
            && machine.nodes.iter().any(|node| node.id == id)
        {
            return Ok(Self::Node(id));
        }
        Err(UnknownDevice {
            device: text.to_owned(),
            machine: machine.name.clone(),
        })
    }

    /// The devices of a machine but its CPUs and its memory: GPUs, RDMA devices, interfaces on
    /// hardware, disks
    ///
    /// An interface is left out where its RDMA device stands for it, and a virtual one always.
    #[must_use]
    pub fn all(machine: &Machine) -> Vec<Self> {
        let gpus = machine.gpus.iter().map(|gpu| Self::Gpu(gpu.index));
        let rdma = machine
            .rdma
            .iter()
            .map(|rdma| Self::Rdma(rdma.name.clone()));
        let nics = machine
            .nics
            .iter()
            .filter(|nic| links::is_on_hardware(nic) && links::rdma_of(machine, nic).is_none())
            .map(|nic| Self::Nic(nic.name.clone()));
        let disks = machine
            .storage
            .iter()
            .map(|disk| Self::Disk(disk.name.clone()));
        gpus.chain(rdma).chain(nics).chain(disks).collect()
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gpu(index) => write!(f, "gpu{index}"),
            Self::Cpu(cpu) => write!(f, "cpu{cpu}"),
            Self::Node(id) => write!(f, "node{id}"),
            Self::Nic(name) | Self::Rdma(name) | Self::Disk(name) => f.write_str(name),
        }
    }
}

/// Class of the path between two devices, nearest first within each family
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Class {
    /// They are one device, or two faces of one
    Same,
    /// Hardware threads of one core
    Core,
    /// CPUs under one last-level cache
    L3,
    /// CPUs or memory of one NUMA node, or a CPU and a device of its NUMA node
    NumaNode,
    /// NVLink
    NvLink {
        /// How many links
        links: u32,
    },
    /// One PCI switch at most
    Pix,
    /// Several PCI switches, no host bridge
    Pxb,
    /// A host bridge
    Phb,
    /// Between host bridges of one NUMA node
    Node,
    /// Elsewhere on the same host, or not known
    Sys,
    /// Another host
    Network,
}

impl Class {
    /// The word of `nvidia-smi topo -m`, extended by `CORE`, `L3`, `NUMA` and `NET`
    #[must_use]
    pub fn short(self) -> String {
        match self {
            Self::Same => "X".to_owned(),
            Self::Core => "CORE".to_owned(),
            Self::L3 => "L3".to_owned(),
            Self::NumaNode => "NUMA".to_owned(),
            Self::NvLink { links } => format!("NV{links}"),
            Self::Pix => "PIX".to_owned(),
            Self::Pxb => "PXB".to_owned(),
            Self::Phb => "PHB".to_owned(),
            Self::Node => "NODE".to_owned(),
            Self::Sys => "SYS".to_owned(),
            Self::Network => "NET".to_owned(),
        }
    }

    /// Returns the meaning, for people
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Same => "the same device",
            Self::Core => "threads of the same core",
            Self::L3 => "CPUs under the same last-level cache",
            Self::NumaNode => "the same NUMA node",
            Self::NvLink { .. } => "a bonded set of # NVLinks",
            Self::Pix => "one PCI switch at most",
            Self::Pxb => "several PCI switches, no host bridge",
            Self::Phb => "a PCI host bridge",
            Self::Node => "between PCI host bridges of one NUMA node",
            Self::Sys => "between NUMA nodes, or not known",
            Self::Network => "the network",
        }
    }

    /// Rank for choosing the nearest; more NVLinks are nearer, and all of them nearer than PCI
    #[must_use]
    pub fn rank(self) -> (u32, u32) {
        match self {
            Self::Same => (0, 0),
            Self::Core => (1, 0),
            Self::L3 => (2, 0),
            Self::NumaNode => (3, 0),
            Self::NvLink { links } => (4, u32::MAX - links),
            Self::Pix => (5, 0),
            Self::Pxb => (6, 0),
            Self::Phb => (7, 0),
            Self::Node => (8, 0),
            Self::Sys => (9, 0),
            Self::Network => (10, 0),
        }
    }
}

impl From<PciPath> for Class {
    fn from(path: PciPath) -> Self {
        match path {
            PciPath::Pix => Self::Pix,
            PciPath::Pxb => Self::Pxb,
            PciPath::Phb => Self::Phb,
            PciPath::Node => Self::Node,
            PciPath::Sys => Self::Sys,
        }
    }
}

/// The path between two devices and what to expect of it
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Distance {
    /// Class of the path between them; [`Class::short`] in JSON
    #[serde(rename = "path", serialize_with = "short")]
    pub class: Class,
    /// Expected bandwidth in one direction, in bytes per second
    pub bandwidth_bytes_per_s: f64,
    /// Expected latency one way, in seconds
    pub latency_s: f64,
}

impl Distance {
    fn new(class: Class, figures: Figures) -> Self {
        Self {
            class,
            bandwidth_bytes_per_s: figures.bandwidth_bytes_per_s,
            latency_s: figures.latency_s,
        }
    }

    /// The same path to a device that is no faster than this itself
    fn limited(mut self, bits_per_s: Option<u64>) -> Self {
        if let Some(bits) = bits_per_s.filter(|&bits| bits > 0) {
            self.bandwidth_bytes_per_s = self.bandwidth_bytes_per_s.min(bits as f64 / 8.0);
        }
        self
    }
}

fn short<S: Serializer>(class: &Class, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&class.short())
}

/// The distance between two devices of one host
///
/// # Errors
///
/// [`UnknownDevice`] if the machine lacks one of them.
pub fn distance(
    machine: &Machine,
    one: &Device,
    other: &Device,
) -> Result<Distance, UnknownDevice> {
    for device in [one, other] {
        if Device::find(machine, &device.to_string()).as_ref() != Ok(device) {
            return Err(UnknownDevice {
                device: device.to_string(),
                machine: machine.name.clone(),
            });
        }
    }
    Ok(between(machine, one, other))
}

/// The distance between two devices that the machine has
pub(crate) fn between(machine: &Machine, one: &Device, other: &Device) -> Distance {
    path_between(machine, one, other)
        .limited(links::bits_per_s(machine, one))
        .limited(links::bits_per_s(machine, other))
}

/// The path between two devices, whatever their own speed
pub(crate) fn path_between(machine: &Machine, one: &Device, other: &Device) -> Distance {
    let class = links::class_between(machine, one, other);
    let on_cpus = |device: &Device| matches!(device, Device::Cpu(_) | Device::Node(_));
    let both_on_cpus = on_cpus(one) && on_cpus(other);
    usual(
        class,
        both_on_cpus,
        links::nvlink_version(machine, one, other),
    )
}

/// Usual figures of a path of a class; `nvlink_version` counts for NVLink alone
pub(crate) fn usual(class: Class, both_on_cpus: bool, nvlink_version: Option<u32>) -> Distance {
    let plain = |figures| Distance::new(class, figures);
    match class {
        Class::Same if both_on_cpus => plain(figures::CORE),
        Class::Same => plain(figures::SAME_DEVICE),
        Class::Core => plain(figures::CORE),
        Class::L3 => plain(figures::L3),
        Class::NumaNode if both_on_cpus => plain(figures::NUMA_NODE),
        Class::NvLink { links } => plain(figures::nvlink(links, nvlink_version)),
        Class::Pix | Class::Pxb => plain(figures::SWITCH),
        Class::NumaNode | Class::Phb | Class::Node => plain(figures::HOST_BRIDGE),
        Class::Sys if both_on_cpus => plain(figures::NUMA_NODES),
        Class::Sys | Class::Network => plain(figures::SOCKETS),
    }
}

/// The distance between two hosts, from an interface of one to an interface of the other
#[must_use]
pub fn distance_between_hosts(here: &Nic, there: &Nic) -> Distance {
    Distance::new(Class::Network, figures::network(here, there))
}

/// A device that the machine does not have
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error(
    "machine {machine:?} has no device {device:?}; there may be gpu0, cpu0, node0, or the name of an interface, RDMA device or disk"
)]
pub struct UnknownDevice {
    /// The name that was given
    pub device: String,
    /// The machine's name
    pub machine: String,
}

#[cfg(test)]
#[path = "distance/tests.rs"]
mod tests;
