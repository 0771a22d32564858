//! The model of a machine: what readers fill in and plans are made of
//!
//! Plain data with public fields. A fact that a reader could not find out is `None` or an empty
//! list, and [`Machine::notes`] says so; nothing here is guessed. Everything serializes to JSON.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::cpuset::CpuSet;

/// One host, as one process sees it
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Version of this model in JSON; [`FORMAT`]
    pub format: u32,
    /// Host name
    pub name: String,
    /// Sources that were read, for people: `sysfs`, `nvidia-smi topo -m`, `hwloc XML 2.0`, `NVML
    /// 12.4`
    pub sources: Vec<String>,
    /// CPU model, for people
    pub cpu_model: String,
    /// CPUs that exist and are online
    pub online_cpus: CpuSet,
    /// CPUs that this process may use: affinity mask and cgroup cpuset
    pub allowed_cpus: CpuSet,
    /// NUMA nodes that this process may have memory from; empty when unknown
    pub allowed_nodes: Vec<u32>,
    /// CPU time that the cgroup allows, in CPUs (`cpu.max`), when bounded
    pub cpu_quota: Option<f64>,
    /// Memory of the host, in bytes
    pub memory_bytes: Option<u64>,
    /// Memory that the cgroup allows, in bytes, when bounded
    pub memory_limit_bytes: Option<u64>,
    /// NUMA nodes, by number
    pub nodes: Vec<NumaNode>,
    /// Groups of CPUs that share a last-level cache
    pub l3_domains: Vec<CacheDomain>,
    /// Physical cores
    pub cores: Vec<Core>,
    /// Network interfaces
    pub nics: Vec<Nic>,
    /// RDMA devices
    pub rdma: Vec<RdmaDevice>,
    /// GPUs, in the order of their PCI addresses, which is NVML's
    pub gpus: Vec<Gpu>,
    /// NVLink between pairs of GPUs
    pub nvlinks: Vec<NvLink>,
    /// Block devices
    pub storage: Vec<Disk>,
    /// Paths between devices that a driver or a table told, where PCI paths do not
    pub told_paths: Vec<ToldPath>,
    /// Parts that could not be read, and why, for people
    pub notes: Vec<String>,
}

/// One NUMA node
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct NumaNode {
    /// Number of the operating system
    pub id: u32,
    /// Its CPUs; none for a node of memory alone
    pub cpus: CpuSet,
    /// Its memory, in bytes
    pub memory_bytes: Option<u64>,
    /// Distance to each node as firmware tells it (ACPI SLIT: 10 is local), in the order of
    /// [`Machine::nodes`]; empty when unknown
    pub distances: Vec<u32>,
}

/// CPUs that share a cache
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct CacheDomain {
    /// The CPUs
    pub cpus: CpuSet,
    /// Size of the cache, in bytes
    pub bytes: Option<u64>,
}

/// One physical core
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Core {
    /// Package (socket) it is in
    pub package: u32,
    /// Its hardware threads
    pub cpus: CpuSet,
}

/// A network interface
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Nic {
    /// Name, as `ib0`
    pub name: String,
    /// Kind of the card
    pub kind: NicKind,
    /// True if it is up and has a carrier
    pub up: bool,
    /// Speed, in bits per second
    pub bits_per_s: Option<u64>,
    /// Addresses
    pub addresses: Vec<IpAddr>,
    /// Where it is
    pub place: Place,
    /// RDMA device behind it, by name
    pub rdma: Option<String>,
}

/// Kinds of network interface
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NicKind {
    /// `lo`
    Loopback,
    /// A card for Ethernet
    Ethernet,
    /// IP over InfiniBand
    Infiniband,
    /// Bridges, tunnels, veth: no hardware of their own
    Virtual,
    /// None of these, or not known
    #[default]
    Other,
}

/// An RDMA device
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RdmaDevice {
    /// Name, as `mlx5_0`
    pub name: String,
    /// Speed of its fastest active port, in bits per second
    pub bits_per_s: Option<u64>,
    /// True if a port is active; `None` when unknown
    pub active: Option<bool>,
    /// Where it is
    pub place: Place,
}

/// A GPU
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// NVML's number: physical, in PCI order, whatever `CUDA_VISIBLE_DEVICES` says
    pub index: u32,
    /// `GPU-…`, when known
    pub uuid: Option<String>,
    /// Model
    pub name: String,
    /// Memory, in bytes
    pub memory_bytes: Option<u64>,
    /// Where it is
    pub place: Place,
    /// MIG instances it is cut into
    pub instances: Vec<GpuInstance>,
}

/// A slice of a GPU (MIG)
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct GpuInstance {
    /// `MIG-…`
    pub uuid: String,
    /// Profile, as `1g.10gb`
    pub profile: String,
    /// Memory, in bytes
    pub memory_bytes: Option<u64>,
}

/// Where a device is
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// PCI addresses (`0000:17:00.0`) from the host bridge (`pci0000:16`) down to the device
    /// itself, as the path in sysfs names them; empty when unknown
    pub pci_path: Vec<String>,
    /// Its NUMA node
    pub node: Option<u32>,
    /// CPUs near it, as firmware or driver tell; empty when unknown
    pub cpus: CpuSet,
}

/// NVLink between two GPUs
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct NvLink {
    /// [`Gpu::index`] of both, the lower first
    pub gpus: (u32, u32),
    /// How many links, or how many each has into the switch between them
    pub links: u32,
    /// Generation of NVLink, when known
    pub version: Option<u32>,
}

/// A block device
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// Name, as `nvme0n1`
    pub name: String,
    /// Size, in bytes
    pub bytes: Option<u64>,
    /// True if it turns; `None` when unknown
    pub rotational: Option<bool>,
    /// Where it is
    pub place: Place,
}

/// A path between two devices that a source states, not derived
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ToldPath {
    /// The devices, by name: `gpu0` (of [`Gpu::index`]), or the name of a [`Nic`] or [`RdmaDevice`]
    pub devices: (String, String),
    /// The path
    pub path: PciPath,
}

/// Path between two devices of one host, in the words of `nvidia-smi topo -m`
///
/// In ascending order of distance.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum PciPath {
    /// One PCI switch at most
    Pix,
    /// Several PCI switches, no host bridge
    Pxb,
    /// A host bridge
    Phb,
    /// The interconnect between host bridges of one NUMA node
    Node,
    /// The interconnect between NUMA nodes
    Sys,
}

/// Version of the model in JSON
pub const FORMAT: u32 = 1;
