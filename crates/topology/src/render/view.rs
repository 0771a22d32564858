//! What hangs where: packages, NUMA nodes, caches, cores, and devices at their bridges
//!
//! What the tree and the picture have in common. Devices are grouped by the paths between them, so
//! a machine that tells PCI addresses and a table that tells paths alone look the same.

use crate::cpuset::CpuSet;
use crate::distance::{Class, Device, between, node_of_place, place};
use crate::locality::localities;
use crate::model::{Machine, NicKind};
use crate::plan::memory_text;

/// A machine as boxes in boxes
#[derive(Debug)]
pub(super) struct View {
    pub(super) packages: Vec<PackageView>,
    /// Devices that nobody knows the place of
    pub(super) elsewhere: Vec<BridgeView>,
    /// Interfaces without hardware of their own
    pub(super) virtual_nics: Vec<String>,
}

#[derive(Debug)]
pub(super) struct PackageView {
    /// Its number; `None` where the machine tells no packages
    pub(super) id: Option<u32>,
    pub(super) nodes: Vec<NodeView>,
}

#[derive(Debug)]
pub(super) struct NodeView {
    /// `NUMA node 0`, or what else to call this group of CPUs
    pub(super) name: String,
    pub(super) id: Option<u32>,
    pub(super) memory_bytes: Option<u64>,
    pub(super) cpus: CpuSet,
    pub(super) caches: Vec<CacheView>,
    pub(super) bridges: Vec<BridgeView>,
}

#[derive(Debug)]
pub(super) struct CacheView {
    /// Whether it is a cache that the machine tells, or CPUs of which nobody knows
    pub(super) known: bool,
    pub(super) bytes: Option<u64>,
    pub(super) cpus: CpuSet,
    pub(super) cores: Vec<CpuSet>,
}

/// Devices behind one host bridge
#[derive(Debug)]
pub(super) struct BridgeView {
    /// Its PCI address, where that is known
    pub(super) name: Option<String>,
    pub(super) switches: Vec<SwitchView>,
    /// Devices that share no switch with another
    pub(super) alone: Vec<DeviceView>,
}

/// Devices behind one PCI switch, or several in a row, or on one card
#[derive(Debug)]
pub(super) struct SwitchView {
    pub(super) name: &'static str,
    pub(super) devices: Vec<DeviceView>,
}

#[derive(Clone, Debug)]
pub(super) struct DeviceView {
    pub(super) device: Device,
    /// PCI address
    address: Option<String>,
    /// `GPU 0`, `ib0`
    pub(super) name: String,
    /// What it is called in a plan: a network card by its interfaces and its RDMA device
    pub(super) names: Vec<String>,
    /// Model, speed or size
    pub(super) what: String,
    /// All there is to say, in short pieces
    pub(super) details: Vec<String>,
    /// A fault: down
    pub(super) off: bool,
}

impl View {
    pub(super) fn new(machine: &Machine) -> Self {
        let mut nodes = node_views(machine);
        let mut elsewhere = Vec::new();
        let mut at_nodes: Vec<Vec<Device>> = vec![Vec::new(); nodes.len()];
        for device in Device::all(machine) {
            match node_of(machine, &device, &nodes) {
                Some(at) => at_nodes[at].push(device),
                None => elsewhere.push(device),
            }
        }
        for (node, devices) in nodes.iter_mut().zip(at_nodes) {
            node.bridges = bridges(machine, devices);
        }
        let mut packages: Vec<PackageView> = Vec::new();
        for node in nodes {
            let id = package_of(machine, &node.cpus);
            match packages.iter_mut().find(|package| package.id == id) {
                Some(package) => package.nodes.push(node),
                None => packages.push(PackageView {
                    id,
                    nodes: vec![node],
                }),
            }
        }
        Self {
            packages,
            elsewhere: bridges(machine, elsewhere),
            virtual_nics: machine
                .nics
                .iter()
                .filter(|nic| matches!(nic.kind, NicKind::Loopback | NicKind::Virtual))
                .map(|nic| nic.name.clone())
                .collect(),
        }
    }
}

impl SwitchView {
    fn new(devices: Vec<DeviceView>) -> Self {
        // Functions of one card differ in the last digit of their addresses
        let card = |device: &DeviceView| {
            let (card, _) = device.address.as_ref()?.rsplit_once('.')?;
            Some(card.to_owned())
        };
        let first = devices.first().and_then(card);
        let one_card = first.is_some() && devices.iter().all(|device| card(device) == first);
        Self {
            name: if one_card { "One card" } else { "PCI switch" },
            devices,
        }
    }
}

impl BridgeView {
    pub(super) fn devices(&self) -> impl Iterator<Item = &DeviceView> {
        let below = self.switches.iter().flat_map(|switch| &switch.devices);
        below.chain(&self.alone)
    }
}

fn node_views(machine: &Machine) -> Vec<NodeView> {
    let groups = localities(machine);
    let told = !machine.nodes.is_empty();
    let covered = groups
        .iter()
        .fold(CpuSet::default(), |all, group| all.union(&group.cpus));
    let rest = machine.online_cpus.difference(&covered);
    let mut nodes: Vec<NodeView> = groups
        .into_iter()
        .map(|group| NodeView {
            name: match group.node {
                Some(id) => format!("NUMA node {id}"),
                None => "CPUs near the same GPUs".to_owned(),
            },
            id: group.node,
            memory_bytes: machine
                .nodes
                .iter()
                .find(|node| Some(node.id) == group.node)
                .and_then(|node| node.memory_bytes),
            caches: caches(machine, &group.cpus),
            cpus: group.cpus,
            bridges: Vec::new(),
        })
        .collect();
    if !rest.is_empty() {
        nodes.push(NodeView {
            name: if told || !covered.is_empty() {
                "Other CPUs".to_owned()
            } else {
                "NUMA node not known".to_owned()
            },
            id: None,
            memory_bytes: None,
            caches: caches(machine, &rest),
            cpus: rest,
            bridges: Vec::new(),
        });
    }
    nodes
}

fn caches(machine: &Machine, cpus: &CpuSet) -> Vec<CacheView> {
    let mut left = cpus.clone();
    let mut caches = Vec::new();
    for l3 in &machine.l3_domains {
        let here = l3.cpus.intersection(&left);
        left = left.difference(&here);
        if !here.is_empty() {
            caches.push(CacheView {
                known: true,
                bytes: l3.bytes,
                cores: cores(machine, &here),
                cpus: here,
            });
        }
    }
    if !left.is_empty() {
        caches.push(CacheView {
            known: false,
            bytes: None,
            cores: cores(machine, &left),
            cpus: left,
        });
    }
    caches
}

/// The cores that CPUs are on; a CPU on no known core is one by itself
fn cores(machine: &Machine, cpus: &CpuSet) -> Vec<CpuSet> {
    let mut left = cpus.clone();
    let mut cores = Vec::new();
    for core in &machine.cores {
        let here = core.cpus.intersection(&left);
        left = left.difference(&here);
        if !here.is_empty() {
            cores.push(here);
        }
    }
    cores.extend(left.iter().map(|cpu| CpuSet::from_iter([cpu])));
    cores.sort();
    cores
}

fn package_of(machine: &Machine, cpus: &CpuSet) -> Option<u32> {
    let core = machine
        .cores
        .iter()
        .find(|core| !core.cpus.intersection(cpus).is_empty());
    core.map(|core| core.package)
}

/// Which of the nodes a device hangs at: its own, or that of the GPU it is nearest to
fn node_of(machine: &Machine, device: &Device, nodes: &[NodeView]) -> Option<usize> {
    if nodes.len() == 1 && nodes[0].id.is_some() {
        return Some(0);
    }
    let at = |device: &Device| {
        let place = place(machine, device)?;
        let id = node_of_place(machine, place);
        nodes.iter().position(|node| match id {
            Some(_) => node.id == id,
            None => !place.cpus.is_empty() && place.cpus.is_subset(&node.cpus),
        })
    };
    at(device).or_else(|| {
        let near = machine
            .gpus
            .iter()
            .map(|gpu| Device::Gpu(gpu.index))
            .map(|gpu| (between(machine, device, &gpu).class.rank(), gpu))
            .filter(|(rank, _)| *rank < Class::Sys.rank())
            .min_by_key(|(rank, _)| *rank);
        near.and_then(|(_, gpu)| at(&gpu))
    })
}

/// Groups devices by host bridge, and those by switch
fn bridges(machine: &Machine, devices: Vec<Device>) -> Vec<BridgeView> {
    let mut bridges: Vec<BridgeView> = groups(machine, &devices, Class::Phb)
        .into_iter()
        .map(|behind| {
            let name = behind
                .iter()
                .find_map(|device| place(machine, device)?.pci_path.first().cloned());
            let mut bridge = BridgeView {
                name,
                switches: Vec::new(),
                alone: Vec::new(),
            };
            for group in groups(machine, &behind, Class::Pxb) {
                let mut views: Vec<DeviceView> = group
                    .into_iter()
                    .map(|device| device_view(machine, device))
                    .collect();
                if views.len() == 1 {
                    bridge.alone.append(&mut views);
                } else {
                    bridge.switches.push(SwitchView::new(views));
                }
            }
            bridge
        })
        .collect();
    // Devices of which no bridge is known are together
    let (known, unknown): (Vec<_>, Vec<_>) = bridges
        .drain(..)
        .partition(|bridge| bridge.name.is_some() || bridge.devices().count() > 1);
    bridges = known;
    let alone: Vec<DeviceView> = unknown
        .into_iter()
        .flat_map(|bridge| bridge.alone)
        .collect();
    if !alone.is_empty() {
        bridges.push(BridgeView {
            name: None,
            switches: Vec::new(),
            alone,
        });
    }
    bridges
}

/// Devices that are connected by paths no longer than `class`
fn groups(machine: &Machine, devices: &[Device], class: Class) -> Vec<Vec<Device>> {
    let near = |one: &Device, other: &Device| {
        let path = path_on_pci(machine, one, other);
        path.rank() <= class.rank()
    };
    let mut left: Vec<Device> = devices.to_vec();
    let mut groups = Vec::new();
    while !left.is_empty() {
        let mut group = vec![left.remove(0)];
        while let Some(at) = left
            .iter()
            .position(|other| group.iter().any(|one| near(one, other)))
        {
            group.push(left.remove(at));
        }
        group.sort();
        groups.push(group);
    }
    groups
}

/// The path beside NVLink, which says nothing of where a GPU hangs
fn path_on_pci(machine: &Machine, one: &Device, other: &Device) -> Class {
    match between(machine, one, other).class {
        Class::NvLink { .. } => {
            let path = |device| place(machine, device).map(|place| place.pci_path.as_slice());
            let (one, other) = (path(one).unwrap_or(&[]), path(other).unwrap_or(&[]));
            crate::distance::pci_path_between(one, other).map_or(Class::Sys, Class::from)
        }
        class => class,
    }
}

fn device_view(machine: &Machine, device: Device) -> DeviceView {
    let address = place(machine, &device).and_then(|place| place.pci_path.last().cloned());
    let mut details = Vec::new();
    let mut off = false;
    let mut names = vec![device.to_string()];
    let (name, what) = match &device {
        Device::Gpu(index) => {
            let gpu = machine.gpus.iter().find(|gpu| gpu.index == *index);
            let model = gpu.map(|gpu| gpu.name.clone()).unwrap_or_default();
            let memory = gpu.and_then(|gpu| gpu.memory_bytes).map(memory_text);
            details.extend(
                [model.clone()]
                    .into_iter()
                    .filter(|model| !model.is_empty()),
            );
            details.extend(memory);
            let instances = gpu.map_or(0, |gpu| gpu.instances.len());
            if instances > 0 {
                details.push(format!("{instances} instances (MIG)"));
            }
            (format!("GPU {index}"), model)
        }
        Device::Rdma(name) => {
            let rdma = machine.rdma.iter().find(|rdma| rdma.name == *name);
            let nics: Vec<_> = machine
                .nics
                .iter()
                .filter(|nic| nic.rdma.as_ref() == Some(name))
                .collect();
            let own = rdma.and_then(|rdma| rdma.bits_per_s);
            let speed = own.or_else(|| nics.iter().find_map(|nic| nic.bits_per_s));
            off = rdma.and_then(|rdma| rdma.active) == Some(false);
            let interfaces: Vec<String> = nics.iter().map(|nic| nic.name.clone()).collect();
            names.extend(interfaces.iter().cloned());
            let speed = speed.map(speed_text);
            let rdma = if interfaces.is_empty() {
                None
            } else {
                Some(name.clone())
            };
            let what: Vec<String> = rdma.clone().into_iter().chain(speed.clone()).collect();
            details.push(
                format!("RDMA {}", rdma.unwrap_or_default())
                    .trim_end()
                    .to_owned(),
            );
            details.extend(speed);
            for nic in nics {
                details.extend(nic.addresses.iter().map(ToString::to_string));
            }
            let called = if interfaces.is_empty() {
                name.clone()
            } else {
                interfaces.join(", ")
            };
            (called, what.join(" · "))
        }
        Device::Nic(name) => {
            let nic = machine.nics.iter().find(|nic| nic.name == *name);
            let speed = nic.and_then(|nic| nic.bits_per_s).map(speed_text);
            off = nic.is_some_and(|nic| !nic.up);
            if let Some(nic) = nic {
                details.extend(match nic.kind {
                    NicKind::Ethernet => Some("Ethernet".to_owned()),
                    NicKind::Infiniband => Some("InfiniBand".to_owned()),
                    _ => None,
                });
                details.extend(speed.clone());
                details.extend(nic.addresses.iter().map(ToString::to_string));
            }
            (name.clone(), speed.unwrap_or_default())
        }
        Device::Disk(name) => {
            let disk = machine.storage.iter().find(|disk| disk.name == *name);
            let size = disk.and_then(|disk| disk.bytes).map(size_text);
            details.extend(size.clone());
            details.extend(
                disk.and_then(|disk| disk.rotational)
                    .filter(|&rotational| rotational)
                    .map(|_| "rotating".to_owned()),
            );
            (name.clone(), size.unwrap_or_default())
        }
        Device::Cpu(_) | Device::Node(_) => (device.to_string(), String::new()),
    };
    if off {
        details.push("down".to_owned());
    }
    details.extend(address.clone());
    DeviceView {
        device,
        address,
        names,
        name,
        what,
        details,
        off,
    }
}

/// `100 Gb/s`
pub(super) fn speed_text(bits_per_s: u64) -> String {
    let gigabits = bits_per_s as f64 / 1e9;
    if gigabits >= 1.0 {
        format!("{gigabits:.0} Gb/s")
    } else {
        format!("{:.0} Mb/s", bits_per_s as f64 / 1e6)
    }
}

/// Size of a disk, in powers of 1000 as they are sold
fn size_text(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = "B";
    for larger in ["kB", "MB", "GB", "TB", "PB"] {
        if value < 1000.0 {
            break;
        }
        value /= 1000.0;
        unit = larger;
    }
    if value < 10.0 {
        format!("{value:.1} {unit}")
    } else {
        format!("{value:.0} {unit}")
    }
}
