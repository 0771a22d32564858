//! Which class of path two devices of one host have between them

use std::collections::BTreeSet;

use super::{Class, Device};
use crate::cpuset::CpuSet;
use crate::model::{Machine, Nic, NicKind, PciPath, Place, RdmaDevice};

/// The class of the path between two devices that the machine has
pub(crate) fn class_between(machine: &Machine, one: &Device, other: &Device) -> Class {
    if one == other {
        return Class::Same;
    }
    match (one, other) {
        (Device::Cpu(one), Device::Cpu(other)) => between_cpus(machine, *one, *other),
        (Device::Cpu(cpu), device) | (device, Device::Cpu(cpu))
            if place(machine, device).is_some_and(|place| !place.cpus.is_empty()) =>
        {
            let near = place(machine, device).is_some_and(|place| place.cpus.contains(*cpu));
            if near { Class::NumaNode } else { Class::Sys }
        }
        (Device::Cpu(_) | Device::Node(_), _) | (_, Device::Cpu(_) | Device::Node(_)) => {
            by_nodes(machine, one, other, Class::NumaNode)
        }
        (Device::Gpu(one), Device::Gpu(other)) => nvlink_between(machine, *one, *other)
            .map_or_else(
                || between_devices(machine, &Device::Gpu(*one), &Device::Gpu(*other)),
                |links| Class::NvLink { links },
            ),
        _ => between_devices(machine, one, other),
    }
}

/// How many NVLinks two GPUs have between them, if any
#[must_use]
pub fn nvlink_between(machine: &Machine, one: u32, other: u32) -> Option<u32> {
    machine
        .nvlinks
        .iter()
        .find(|link| link.gpus == (one, other) || link.gpus == (other, one))
        .map(|link| link.links)
        .filter(|&links| links > 0)
}

/// Generation of the NVLink between two GPUs
pub(super) fn nvlink_version(machine: &Machine, one: &Device, other: &Device) -> Option<u32> {
    let (Device::Gpu(one), Device::Gpu(other)) = (one, other) else {
        return None;
    };
    machine
        .nvlinks
        .iter()
        .find(|link| link.gpus == (*one, *other) || link.gpus == (*other, *one))?
        .version
}

/// The path that two PCI addresses imply, while both hang at one host bridge
///
/// Below the part that both share, each further switch adds an upstream and a downstream port to
/// the path: at most a port and the device are left where one switch joins them.
#[must_use]
pub fn pci_path_between(one: &[String], other: &[String]) -> Option<PciPath> {
    let shared = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    let below = one.len().max(other.len()) - shared;
    match shared {
        0 => None,
        1 => Some(PciPath::Phb),
        _ if below <= 2 => Some(PciPath::Pix),
        _ => Some(PciPath::Pxb),
    }
}

/// Returns whether an interface has hardware of its own
pub(crate) fn is_on_hardware(nic: &Nic) -> bool {
    match nic.kind {
        NicKind::Loopback | NicKind::Virtual => false,
        NicKind::Ethernet | NicKind::Infiniband => true,
        NicKind::Other => !nic.place.pci_path.is_empty(),
    }
}

/// The RDMA device behind an interface, where the machine has it
pub(crate) fn rdma_of<'m>(machine: &'m Machine, nic: &Nic) -> Option<&'m RdmaDevice> {
    let name = nic.rdma.as_ref()?;
    machine.rdma.iter().find(|rdma| rdma.name == *name)
}

/// Speed of a device itself, where it has one
pub(super) fn bits_per_s(machine: &Machine, device: &Device) -> Option<u64> {
    match device {
        Device::Nic(name) => nic(machine, name)?.bits_per_s,
        Device::Rdma(name) => rdma(machine, name)?.bits_per_s,
        _ => None,
    }
}

fn between_cpus(machine: &Machine, one: u32, other: u32) -> Class {
    let both = |cpus: &CpuSet| cpus.contains(one) && cpus.contains(other);
    if machine.cores.iter().any(|core| both(&core.cpus)) {
        Class::Core
    } else if machine.l3_domains.iter().any(|l3| both(&l3.cpus)) {
        Class::L3
    } else {
        by_nodes(
            machine,
            &Device::Cpu(one),
            &Device::Cpu(other),
            Class::NumaNode,
        )
    }
}

/// Two devices neither of which is a CPU or memory
fn between_devices(machine: &Machine, one: &Device, other: &Device) -> Class {
    let (names, other_names) = (faces(machine, one), faces(machine, other));
    if !names.is_disjoint(&other_names) {
        return Class::Same;
    }
    let told = machine.told_paths.iter().find(|told| {
        let (a, b) = &told.devices;
        (names.contains(a) && other_names.contains(b))
            || (names.contains(b) && other_names.contains(a))
    });
    if let Some(told) = told {
        return told.path.into();
    }
    let (place, other_place) = (place(machine, one), place(machine, other));
    let path = |place: Option<&'_ Place>| {
        place
            .map(|place| place.pci_path.clone())
            .unwrap_or_default()
    };
    pci_path_between(&path(place), &path(other_place)).map_or_else(
        || by_nodes(machine, one, other, Class::Node),
        |path| path.into(),
    )
}

/// `near` where a NUMA node has both, else the same host
fn by_nodes(machine: &Machine, one: &Device, other: &Device, near: Class) -> Class {
    if machine.nodes.len() == 1 {
        return near;
    }
    let (one, other) = (node_of(machine, one), node_of(machine, other));
    if one.is_some() && one == other {
        near
    } else {
        Class::Sys
    }
}

/// NUMA node of a device, as it says itself or as the CPUs near it tell
fn node_of(machine: &Machine, device: &Device) -> Option<u32> {
    match device {
        Device::Node(id) => Some(*id),
        Device::Cpu(cpu) => machine
            .nodes
            .iter()
            .find(|node| node.cpus.contains(*cpu))
            .map(|node| node.id),
        _ => node_of_place(machine, place(machine, device)?),
    }
}

/// NUMA node of a place: what firmware says, else the one node that has all CPUs near it
pub(crate) fn node_of_place(machine: &Machine, place: &Place) -> Option<u32> {
    place.node.or_else(|| {
        machine
            .nodes
            .iter()
            .find(|node| !place.cpus.is_empty() && place.cpus.is_subset(&node.cpus))
            .map(|node| node.id)
    })
}

/// Where a device is; CPUs and memory are not anywhere but where they are
pub(crate) fn place<'m>(machine: &'m Machine, device: &Device) -> Option<&'m Place> {
    match device {
        Device::Gpu(index) => machine
            .gpus
            .iter()
            .find(|gpu| gpu.index == *index)
            .map(|gpu| &gpu.place),
        Device::Nic(name) => {
            let nic = nic(machine, name)?;
            let known = !nic.place.pci_path.is_empty() || nic.place.node.is_some();
            let behind = rdma_of(machine, nic).map(|rdma| &rdma.place);
            Some(if known {
                &nic.place
            } else {
                behind.unwrap_or(&nic.place)
            })
        }
        Device::Rdma(name) => rdma(machine, name).map(|rdma| &rdma.place),
        Device::Disk(name) => machine
            .storage
            .iter()
            .find(|disk| disk.name == *name)
            .map(|disk| &disk.place),
        Device::Cpu(_) | Device::Node(_) => None,
    }
}

/// The names of a device in told paths: an interface and its RDMA device are one
fn faces(machine: &Machine, device: &Device) -> BTreeSet<String> {
    let mut names = BTreeSet::from([device.to_string()]);
    match device {
        Device::Nic(name) => names.extend(nic(machine, name).and_then(|nic| nic.rdma.clone())),
        Device::Rdma(name) => names.extend(
            machine
                .nics
                .iter()
                .filter(|nic| nic.rdma.as_ref() == Some(name))
                .map(|nic| nic.name.clone()),
        ),
        _ => {}
    }
    names
}

fn nic<'m>(machine: &'m Machine, name: &str) -> Option<&'m Nic> {
    machine.nics.iter().find(|nic| nic.name == name)
}

fn rdma<'m>(machine: &'m Machine, name: &str) -> Option<&'m RdmaDevice> {
    machine.rdma.iter().find(|rdma| rdma.name == name)
}
