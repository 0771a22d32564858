//! View of a machine: packages, NUMA nodes, caches, cores, and devices at their bridges
//!
//! The common part of the tree and the picture. Devices are grouped by the paths between them, so a
//! machine that reports PCI addresses and a table that reports paths alone look the same.

use super::devices::DeviceView;
use crate::cpuset::CpuSet;
use crate::distance::{Class, Device, between, node_of_place, place};
use crate::locality::localities;
use crate::model::{Machine, NicKind};

/// A machine as boxes in boxes
#[derive(Debug)]
pub(super) struct View {
    pub(super) packages: Vec<PackageView>,
    /// Devices whose place is unknown
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
    /// True for a cache that the machine reports; false for CPUs whose cache is unknown
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
        let first = devices.first().and_then(DeviceView::card);
        let one_card = first.is_some() && devices.iter().all(|device| device.card() == first);
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
                    .map(|device| DeviceView::new(machine, device))
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
